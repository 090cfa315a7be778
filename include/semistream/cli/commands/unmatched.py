"""``semistream unmatched``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import add_app, add_force, check_new

if TYPE_CHECKING:
    from rich.table import Table

    from semistream.pipeline.unmatched import Listed


def add_arguments(parser: ArgumentParser) -> None:
    add_app(parser)
    parser.add_argument("--reason", default="", help="only tuples of this reason [all]")
    parser.add_argument(
        "--role",
        default="",
        help="only tuples without a row in this role, or of the stream left or right [all]",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=10,
        metavar="KEYS",
        help="keys that are shown of each reason and role, the most frequent ones [10]",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write all of them to a .csv, .jsonl or .parquet file, with file and line",
    )
    add_force(parser)


def run(arguments: Namespace) -> int:
    from semistream.pipeline.unmatched import list_unmatched
    from semistream.pipeline.unmatched_file import export_unmatched

    paths, app = arguments.paths, arguments.app
    asked = {"reason": arguments.reason, "role": arguments.role}
    if (out := arguments.out) is not None:
        check_new(out, arguments.force)
        with console.progress(arguments.progress) as tell:
            written = export_unmatched(app, paths, out, **asked, tell=tell)
        if written:
            print(f"{app}: {written:,} unmatched tuples in {out}")
        else:
            print(f"{app} has no such unmatched tuple: no file was written.")
        return 0
    listed = list_unmatched(app, paths, **asked, limit=arguments.limit)
    console.show(arguments.json, listed, lambda listed: _print(app, listed))
    return 0


def _print(app: str, listed: Sequence[Listed]) -> None:
    if not listed:
        print(f"{app} has no such unmatched tuple.")
    for of in listed:
        print(of.title)
        console.print_table(console.wide_console(160), _table(of))
        for remark in of.remarks:
            console.text_console().print(f"  {remark}")
        print()


def _table(of: Listed) -> Table:
    from rich.text import Text

    near = [f"nearest in {of.role}"] if any(key.nearest for key in of.top) else []
    table = console.plain_table("  key", "tuples", "for instance", *near, right=("tuples",))
    for key in of.top:
        cells = [f"  {key}", f"{key.tuples:,}", f"{key.example or ''}"]
        table.add_row(*map(Text, [*cells, key.near] if near else cells))
    return table


COMMAND = Command(
    "unmatched",
    "list an app's unmatched tuples by reason, role and key, or write them to a file",
    run,
    add_arguments,
    progress=True,
    json=True,
    example="semistream unmatched sales --reason no_match --out unmatched.csv.",
)
