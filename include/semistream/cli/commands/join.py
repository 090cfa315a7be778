"""``semistream join``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from semistream.cli import console
from semistream.cli.command import Command

if TYPE_CHECKING:
    from rich.table import Table

    from semistream.files.join_summary import Summary
    from semistream.files.settings import JoinFiles


def run(arguments: Namespace) -> int:
    from semistream.files.join import join_files

    settings = arguments.settings
    with console.progress(arguments.progress) as tell:
        summary = join_files(settings, tell)
    console.show(arguments.json, summary.as_dict(), lambda _: _print_summary(summary, settings))
    return 0


def _print_summary(summary: Summary, settings: JoinFiles) -> None:
    from semistream.files.convert import NO_UTF8

    table = console.key_value_table()
    several = len(summary.roles) > 1
    also = f"; in {settings.unmatched}, too" if settings.unmatched else ""
    of_one = (
        (
            "through the cache",
            f"{summary.cache_share:.1%}",
            "of the rows, without waiting for the disk",
        ),
        ("R-cycles", f"{summary.r_cycles:,}", f"passes over {summary.master_rows:,} master rows"),
        ("bytes read", f"{summary.bytes_read:,}", "of the master data"),
    )
    for row in (
        ("rows read", f"{summary.rows_read:,}", ""),
        ("matched", f"{summary.matched:,}", "with all inner dimensions" if several else ""),
        *(
            (f"unmatched: {reason}", f"{n:,}", "")
            for reason, n in sorted(summary.unmatched.items())
        ),
        *(
            (f"without {role.role}", f"{n:,}", f"go on with nulls{also}")
            for role in summary.roles
            if several and role.join_type == "left" and (n := sum(role.unmatched.values()))
        ),
        ("output rows", f"{summary.output_rows:,}", str(settings.out)),
        ("service rate", f"{summary.service_rate:,.0f}", "tuples/s inside the join"),
        ("end to end", f"{summary.rate:,.0f}", "tuples/s with reading and writing"),
        *(of_one[:1] if not several else ()),
        ("peak memory", f"{summary.memory_peak:,}", f"bytes, of {summary.memory_budget:,} allowed"),
        ("peak resident", f"{summary.resident_peak:,}", "bytes of the process, all in all"),
        *(of_one[1:] if not several else ()),
        *(
            (f"master rows left out: {reason}", f"{n:,}", role.role if several else "")
            for role in summary.roles
            for reason, n in sorted(role.master_rejected.items())
        ),
        *(
            (f"field ignored: {name}", f"{n:,}", "values; the first rows lack it")
            for name, n in summary.ignored_fields.items()
        ),
        ("seconds", *console.seconds(summary)),
    ):
        table.add_row(*row)
    screen = console.text_console()
    console.print_table(screen, table)
    if several:
        console.print_table(console.wide_console(150), _role_table(summary))
    console.print_remarks(
        screen,
        auto=filter(None, [summary.reason]),
        note=summary.notes,
        unparsable=summary.examples,
        warning=summary.warnings,
    )
    if summary.examples:
        screen.print("A column's type can be set: --types COLUMN=TYPE, for instance string.")
    if any(NO_UTF8 in example for example in summary.examples):
        screen.print("An encoding can be named: --stream-options encoding=cp1252, for instance.")


def _role_table(summary: Summary) -> Table:
    """Return a table with a line for each role, in the order of execution."""
    numbers = (
        *("rows read", "matched", "no_match", "null_key", "through the cache"),
        *("bytes of R read", "master rows", "memory", "of its share"),
    )
    table = console.plain_table("role", *numbers, "algorithm", right=numbers)
    for role in summary.roles:
        table.add_row(
            role.role,
            f"{role.rows_read:,}",
            f"{role.matched:,}",
            f"{role.unmatched.get('no_match', 0):,}",
            f"{role.unmatched.get('null_key', 0):,}",
            f"{role.cache_share:.1%}",
            f"{role.bytes_read:,}",
            f"{role.master_rows:,}",
            f"{role.memory_peak:,}",
            f"{role.memory_budget:,}",
            role.algorithm,
        )
    return table


COMMAND = Command(
    "join",
    "join a stream's file with a master file, or with several dimensions",
    run,
    settings="semistream.files.settings.JoinFiles",
    progress=True,
    json=True,
    example="semistream join --stream flights.csv --master planes.csv --on tailnum --memory 1MB "
    "--join-type left --out out.parquet --null-values NA",
    files_only=True,
    without_pandas=True,
)
