"""``semistream reset``, and ``semistream remove``, which also deletes the app's reports."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from functools import partial

from semistream.cli.command import Command
from semistream.cli.options import add_app, unknown_app


def add_arguments(parser: ArgumentParser) -> None:
    add_app(parser)
    parser.add_argument("--checkpoint", help="its checkpoint [$SEMISTREAM_HOME/checkpoints/APP]")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: Namespace, reports: bool) -> int:
    from pathlib import Path

    from semistream.paths import Paths
    from semistream.pipeline import steps

    places, app = Paths.from_environment(), arguments.app
    checkpoint = Path(arguments.checkpoint or places.checkpoints / app).absolute()
    counts = steps.rows_of(app, places)
    if not counts and not checkpoint.is_dir():
        raise unknown_app(app, places.checkpoints)
    rows = ", ".join(f"{n:,} of {table}" for table, n in counts.items()) or "no rows"
    if not arguments.yes:
        print(f"This deletes what {app} has loaded ({rows}), and {checkpoint}.")
        if not sys.stdin.isatty() or input(f"Type {app} to go on: ") != app:
            print(
                "Nothing was deleted."
                + ("" if sys.stdin.isatty() else " Give --yes where nobody can be asked.")
            )
            return 1
    steps.reset(app, places, checkpoint, reports=reports)
    print(f"{app}: deleted {rows}.")
    return 0


RESET = Command(
    "reset",
    "take away an app's rows, ledger and checkpoint, so that it loads its source anew",
    partial(run, reports=False),
    add_arguments,
)
REMOVE = Command(
    "remove", "the same, with the app's reports", partial(run, reports=True), add_arguments
)
