"""``semistream status``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import unknown_app
from semistream.counted import counted

if TYPE_CHECKING:
    from rich.table import Table

    from semistream.paths import Paths


ERROR = 60  # characters of an error in the table; `semistream status APP` has more
# while the warehouse does not answer
UNKNOWN = {"fact_table": "", "sink": "", "in_all": None, "proof": None, "complete": ""}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", help="name of the app [all, a line each]")


def run(arguments: Namespace) -> int:
    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status

    checkpoints = arguments.paths.checkpoints
    known = drivers.app_names(checkpoints)
    names = [arguments.app] if arguments.app else known
    if not set(names) <= set(known):
        raise unknown_app(arguments.app, checkpoints)

    ledger, away = _ledger(names, arguments.paths)

    def render(entries: list[dict[str, Any]]) -> None:
        if not names:
            print(f"No app has run under {checkpoints}.")
        elif arguments.app:
            status = read_status(checkpoints / arguments.app)
            print(
                f"{arguments.app}: its status.json cannot be read; a running app writes it anew"
                if status is None
                else drivers.describe(checkpoints / arguments.app, status)
            )
            _print_in_all(entries[0])
        else:
            console.print_table(console.wide_console(170), _table(entries))

    entries = [_entry(checkpoints / name) | ledger.get(name, UNKNOWN) for name in names]
    console.show(arguments.json, entries, render)
    if away:
        print(f"The warehouse does not answer: {away}", file=sys.stderr)
    return 0


def _ledger(names: list[str], paths: Paths) -> tuple[dict[str, dict[str, Any]], str]:
    """Return by app what the ledger has, and "", or nothing and the reason if the warehouse does
    not answer."""
    from sqlalchemy.exc import SQLAlchemyError

    from semistream.errors import SemistreamError
    from semistream.pipeline.summary import standing

    try:
        return standing(names, paths) if names else {}, ""
    except (SQLAlchemyError, OSError, SemistreamError) as e:
        return {}, str(e).partition("\n")[0]


def _print_in_all(entry: dict[str, Any]) -> None:
    """Print lines on what the ledger has of an app."""
    if (n := entry["in_all"]) is not None:
        print(
            f"  in all {counted(n['rows_read'], 'row')} read, {n['matched']:,} matched, "
            f"{n['unmatched']:,} unmatched, {n['waiting']:,} waiting"
        )
        if entry["sink"]:
            print(f"  facts: {entry['fact_table']} in {console.place_of(entry['sink'])}")
        if entry["complete"]:
            print(f"  {entry['proof']}: {entry['complete'].partition(': ')[2]}")


def _entry(checkpoint: Path) -> dict[str, Any]:
    """Return the status of an app's latest run, by name of the value. ``state`` is "unknown" if the
    status cannot be read."""
    from dataclasses import asdict

    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status

    if (status := read_status(checkpoint)) is None:
        return {"app": checkpoint.name, "state": "unknown", "error": "status.json cannot be read"}
    state = drivers.state_of(checkpoint, status)
    return asdict(status) | {"app": checkpoint.name, "state": state}


def _table(entries: list[dict[str, Any]]) -> Table:
    from semistream.joins.waits import in_seconds

    counts = ("rows_read", "matched", "unmatched", "waiting")
    numbers = ("batch", "read", "matched", "unmatched", "waiting", "tuples/s", "waited")
    table = console.plain_table(
        "app", "state", *numbers, "proof", "last sign of life (UTC)", "error", right=numbers
    )
    for e in entries:
        in_all, proof = e["in_all"], e["proof"] or "–"
        total = ["–" if in_all is None else f"{in_all[name]:,}" for name in counts]
        if "heartbeat" not in e:
            table.add_row(e["app"], e["state"], "", *total, "", "", proof, "", e["error"])
            continue
        # a run that has found nothing to load has no batch
        batch = in_all["batch"] if e["batch"] is None and in_all is not None else e["batch"]
        table.add_row(
            e["app"],
            e["state"],
            "–" if batch is None else str(batch),
            *total,
            f"{e['rate']:,.0f}" if e["rows_read"] else "–",
            in_seconds(e["longest_wait"]) if e["master_version"] else "–",
            proof,
            e["heartbeat"][:19].replace("T", " "),
            shorten(e["error"].partition("\n")[0].partition(". ")[0], ERROR, placeholder=" …"),
        )
    return table


COMMAND = Command("status", "show how the streaming apps are doing", run, add_arguments, json=True)
