"""``semistream status``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import unknown_app
from semistream.counted import counted

if TYPE_CHECKING:
    from rich.table import Table

    from semistream.paths import Paths
    from semistream.pipeline.summary import Standing
    from semistream.streaming.status import Status

UNREADABLE = "status.json cannot be read"
ERROR = 60  # characters of an error in the table; `semistream status APP` has more


class Entry(NamedTuple):
    """An app: the status of its latest run, None if it cannot be read, and what the ledger has."""

    app: str
    state: str
    status: Status | None
    stands: Standing

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for JSON."""
        from dataclasses import asdict

        status = {"error": UNREADABLE} if self.status is None else asdict(self.status)
        return status | {"app": self.app, "state": self.state} | self.stands.as_dict()


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", help="name of the app [all, a line each]")


def run(arguments: Namespace) -> int:
    from semistream.pipeline import drivers

    checkpoints = arguments.paths.checkpoints
    known = drivers.app_names(checkpoints)
    names = [arguments.app] if arguments.app else known
    if not set(names) <= set(known):
        raise unknown_app(arguments.app, checkpoints)

    ledger, away = _ledger(names, arguments.paths)
    entries = [_entry(checkpoints / name, ledger[name]) for name in names]

    def render(_: Any) -> None:
        if not names:
            print(f"No app has run under {checkpoints}.")
        elif arguments.app:
            status = entries[0].status
            print(
                f"{arguments.app}: its {UNREADABLE}; a running app writes it anew"
                if status is None
                else drivers.describe(checkpoints / arguments.app, status)
            )
            _print_in_all(entries[0].stands)
        else:
            console.print_table(console.wide_console(170), _table(entries))

    console.show(arguments.json, [entry.as_dict() for entry in entries], render)
    if away:
        print(f"The warehouse does not answer: {away}", file=sys.stderr)
    return 0


def _ledger(names: list[str], paths: Paths) -> tuple[dict[str, Standing], str]:
    """Return by app what the ledger has, and the reason if the warehouse does not answer, "" if it
    does."""
    from sqlalchemy.exc import SQLAlchemyError

    from semistream.errors import SemistreamError
    from semistream.pipeline.summary import Standing, standing

    try:
        return standing(names, paths) if names else {}, ""
    except (SQLAlchemyError, OSError, SemistreamError) as e:
        return dict.fromkeys(names, Standing()), str(e).partition("\n")[0]


def _print_in_all(stands: Standing) -> None:
    """Print lines on what the ledger has of an app."""
    if (n := stands.totals) is not None:
        print(
            f"  in all {counted(n.rows_read, 'row')} read, {n.matched:,} matched, "
            f"{n.open:,} unmatched, {n.waiting:,} waiting"
        )
        if n.sink:
            print(f"  facts: {n.fact_table} in {console.place_of(n.sink)}")
        if stands.complete:
            print(f"  {stands.proof}: {stands.complete.partition(': ')[2]}")


def _entry(checkpoint: Path, stands: Standing) -> Entry:
    """Return the entry of an app. ``state`` is "unknown" if its status cannot be read."""
    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status

    status = read_status(checkpoint)
    state = "unknown" if status is None else drivers.state_of(checkpoint, status)
    return Entry(checkpoint.name, state, status, stands)


def _table(entries: list[Entry]) -> Table:
    from semistream.joins.waits import in_seconds

    counts = ("rows_read", "matched", "open", "waiting")
    numbers = ("batch", "read", "matched", "unmatched", "waiting", "tuples/s", "waited")
    table = console.plain_table(
        "app", "state", *numbers, "proof", "last sign of life (UTC)", "error", right=numbers
    )
    for e in entries:
        in_all, proof, status = e.stands.totals, e.stands.proof or "–", e.status
        total = ["–" if in_all is None else f"{getattr(in_all, name):,}" for name in counts]
        if status is None:
            table.add_row(e.app, e.state, "", *total, "", "", proof, "", UNREADABLE)
            continue
        # a run that has found nothing to load has no batch
        batch = in_all.batch if status.batch is None and in_all is not None else status.batch
        table.add_row(
            e.app,
            e.state,
            "–" if batch in (None, -1) else str(batch),
            *total,
            f"{status.rate:,.0f}" if status.rows_read else "–",
            in_seconds(status.longest_wait) if status.master_version else "–",
            proof,
            status.heartbeat[:19].replace("T", " "),
            shorten(status.error.partition("\n")[0].partition(". ")[0], ERROR, placeholder=" …"),
        )
    return table


COMMAND = Command("status", "show how the streaming apps are doing", run, add_arguments, json=True)
