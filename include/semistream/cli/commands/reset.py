"""``semistream reset``, of an app or of some of its files, and ``semistream remove``, which also
deletes the app's reports."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import date
from functools import partial
from pathlib import Path

from semistream.cli.command import Command
from semistream.cli.options import add_app, unknown_app


def add_arguments(parser: ArgumentParser) -> None:
    add_app(parser)
    parser.add_argument(
        "--checkpoint", type=Path, help="its checkpoint [$SEMISTREAM_HOME/checkpoints/APP]"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def add_reset_arguments(parser: ArgumentParser) -> None:
    add_arguments(parser)
    some = parser.add_mutually_exclusive_group()
    some.add_argument(
        "--day",
        type=_day,
        metavar="YYYY-MM-DD",
        help="only the files that were last modified on this day (UTC), and the other files of "
        "their batches: they are loaded again",
    )
    some.add_argument(
        "--file",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="only these files, and the other files of their batches: they are loaded again",
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a date such as 2026-11-23: {text!r}") from None


def run_reset(arguments: Namespace) -> int:
    if arguments.day is None and not arguments.file:
        return run(arguments, reports=False)
    from semistream.pipeline import day_again

    paths, app = arguments.paths, arguments.app
    checkpoint = (arguments.checkpoint or paths.checkpoints / app).absolute()
    if (cut_short := day_again.under_way(checkpoint)) is not None:
        day_again.carry_out(cut_short, paths, checkpoint)
        print(f"{app}: finished what was cut short, {cut_short.command}.")
        return 0
    plan = day_again.plan(app, paths, checkpoint, day=arguments.day, files=arguments.file)
    print(plan)
    if not arguments.yes and not _agreed(app):
        return 1
    day_again.carry_out(plan, paths, checkpoint)
    print(f"{app}: taken out. Correct the files; the next load takes them in.")
    return 0


def _agreed(app: str) -> bool:
    """Ask the user to confirm by typing the app's name. Return whether the user did so."""
    asked = sys.stdin.isatty()
    if asked and input(f"Type {app} to go on: ") == app:
        return True
    print("Nothing was deleted." + ("" if asked else " Give --yes where nobody can be asked."))
    return False


def run(arguments: Namespace, reports: bool) -> int:
    from semistream.pipeline import steps

    paths, app = arguments.paths, arguments.app
    checkpoint = (arguments.checkpoint or paths.checkpoints / app).absolute()
    counts = steps.rows_of(app, paths)
    if not counts and not checkpoint.is_dir():
        raise unknown_app(app, paths.checkpoints)
    rows = ", ".join(f"{n:,} of {table}" for table, n in counts.items()) or "no rows"
    if not arguments.yes:
        print(f"This deletes what {app} has loaded ({rows}), and {checkpoint}.")
        if not _agreed(app):
            return 1
    steps.reset(app, paths, checkpoint, reports=reports)
    print(f"{app}: deleted {rows}.")
    return 0


RESET = Command(
    "reset",
    "take away an app's rows, ledger and checkpoint, so that it loads its source anew; or only "
    "those of some files",
    run_reset,
    add_reset_arguments,
    example="semistream reset sales --day 2026-11-23.",
)
REMOVE = Command(
    "remove",
    "take away an app's rows, ledger, checkpoint and reports",
    partial(run, reports=True),
    add_arguments,
)
