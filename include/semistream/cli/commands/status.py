"""``semistream status``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import unknown_app

if TYPE_CHECKING:
    from rich.table import Table


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", help="name of the app [all, a line each]")


def run(arguments: Namespace) -> int:
    from semistream.paths import Paths
    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status

    checkpoints = Paths.from_environment().checkpoints
    known = drivers.app_names(checkpoints)
    names = [arguments.app] if arguments.app else known
    if not set(names) <= set(known):
        raise unknown_app(arguments.app, checkpoints)

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
        else:
            console.print_table(console.wide_console(160), _table(entries))

    console.show(arguments.json, [_entry(checkpoints / name) for name in names], render)
    return 0


def _entry(checkpoint: Path) -> dict[str, Any]:
    """Return an app's status, by name of the value. ``state`` is "unknown" if the status cannot be
    read."""
    from dataclasses import asdict

    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status

    if (status := read_status(checkpoint)) is None:
        return {"app": checkpoint.name, "state": "unknown", "error": "status.json cannot be read"}
    state = drivers.state_of(checkpoint, status)
    return asdict(status) | {"app": checkpoint.name, "state": state}


def _table(entries: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from semistream.joins.waits import in_seconds

    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("app", overflow="fold")
    for name in ("state", "batch", "read", "matched", "unmatched", "waiting", "tuples/s", "waited"):
        table.add_column(name, justify="left" if name == "state" else "right")
    table.add_column("last sign of life (UTC)")
    table.add_column("error", overflow="fold")
    for e in entries:
        if "heartbeat" not in e:
            table.add_row(e["app"], e["state"], *[""] * 8, e["error"])
            continue
        table.add_row(
            e["app"],
            e["state"],
            "–" if e["batch"] is None else str(e["batch"]),
            *(f"{e[name]:,}" for name in ("rows_read", "matched", "unmatched", "waiting")),
            f"{e['rate']:,.0f}",
            in_seconds(e["longest_wait"]) if e["master_version"] else "–",
            e["heartbeat"][:19].replace("T", " "),
            e["error"].partition("\n")[0],
        )
    return table


COMMAND = Command("status", "show how the streaming apps are doing", run, add_arguments, json=True)
