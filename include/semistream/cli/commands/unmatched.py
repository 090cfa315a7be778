"""``semistream unmatched``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import add_app

if TYPE_CHECKING:
    from rich.table import Table

    from semistream.pipeline.unmatched import Key, Listed


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
        metavar="FILE",
        help="write all of them to a .csv, .jsonl or .parquet file, with file and line",
    )


def run(arguments: Namespace) -> int:
    from pathlib import Path

    from semistream.paths import Paths
    from semistream.pipeline import unmatched

    places, app = Paths.from_environment(), arguments.app
    asked = {"reason": arguments.reason, "role": arguments.role}
    if arguments.out is not None:
        out = Path(arguments.out)
        with console.progress(arguments.progress) as tell:
            written = unmatched.export_unmatched(app, places, out, **asked, tell=tell)
        if written:
            print(f"{app}: {written:,} unmatched tuples in {out}")
        else:
            print(f"{app} has no such unmatched tuple: no file was written.")
        return 0
    listed = unmatched.list_unmatched(app, places, **asked, limit=arguments.limit)
    if arguments.json:
        console.print_json(unmatched.as_dicts(listed))
    elif not listed:
        print(f"{app} has no such unmatched tuple.")
    for of in () if arguments.json else listed:
        _print(of)
    return 0


def _print(of: Listed) -> None:
    keys = "" if of.keys <= 1 else f" of {of.keys:,} keys"
    if of.reason == "unparsable":
        keys = f", for {of.keys:,} {'reason' if of.keys == 1 else 'reasons'}"
    title = f"{of.reason} in {of.role}" if of.role else of.reason
    screen = console.wide_console(160)
    print(f"{title}: {of.tuples:,} {'tuple' if of.tuples == 1 else 'tuples'}{keys}")
    console.print_table(screen, _table(of))
    for remark in of.remarks:
        console.text_console().print(f"  {remark}")
    print()


def _table(of: Listed) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False)
    near = any(key.nearest for key in of.top)
    table.add_column("  key", overflow="fold")
    table.add_column("tuples", justify="right")
    table.add_column("newest one", overflow="fold")
    if near:
        table.add_column(f"nearest in {of.role}", overflow="fold")
    for key in of.top:
        cells = [f"  {_text(key.key)}", f"{key.tuples:,}", _example(key)]
        cells += [_nearest(key)] if near else []
        table.add_row(*map(Text, cells))
    return table


def _example(key: Key) -> str:
    e = key.example
    if e is None:
        return ""
    id_ = "" if e.id is None else f"id {e.id}"
    where = "" if e.file is None else e.file + ("" if e.line is None else f", line {e.line:,}")
    return " in ".join(filter(None, (id_, where))) or str(e.values)[:100]


def _nearest(key: Key) -> str:
    if key.nearest and key.nearest[0] == key.key:
        return "is there now"
    return ", ".join(map(_text, key.nearest))


def _text(key: dict[str, Any]) -> str:
    if not key:
        return "(any)"
    if len(key) == 1:
        (value,) = key.values()
        return "(none)" if value is None else _shown(value)
    return ", ".join(f"{name}={_shown(value)}" for name, value in key.items())


def _shown(value: Any) -> str:
    """Return a value as it is, in quotes where blanks would not be seen."""
    text = str(value)
    return repr(text) if text != text.strip() or not text else text


COMMAND = Command(
    "unmatched",
    "list an app's unmatched tuples by reason, role and key, or write them to a file",
    run,
    add_arguments,
    progress=True,
    json=True,
    example="semistream unmatched sales --reason no_match --out unmatched.csv.",
)
