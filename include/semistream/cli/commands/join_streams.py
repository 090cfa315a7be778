"""``semistream join-streams``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from semistream.cli import console
from semistream.cli.command import Command

if TYPE_CHECKING:
    from semistream.files.join_streams import StreamsSummary
    from semistream.files.settings import JoinStreams

COUNTS = {
    "rows read": "rows_read",
    "matched": "matched",
    "punctuations": "punctuations",
    "purged": "purged",
    "dropped on the fly": "dropped",
    "propagated": "propagated",
    "most held at a time": "held_peak",
}  # a summary's counts of a stream, by title


def run(arguments: Namespace) -> int:
    from semistream.files.join_streams import join_streams

    settings = arguments.settings
    with console.progress(arguments.progress) as tell:
        summary = join_streams(settings, tell)
    console.show(arguments.json, summary.as_dict(), lambda _: _print_summary(summary, settings))
    return 0


def _print_summary(summary: StreamsSummary, settings: JoinStreams) -> None:
    table = console.plain_table("", "left", "right", right=("left", "right"))
    table.columns[0].style = "bold"
    sides = (summary.left, summary.right)
    forgotten = any(s.forgotten for s in sides)
    for title, name in (
        COUNTS | ({"punctuations forgotten": "forgotten"} if forgotten else {})
    ).items():
        table.add_row(title, *(f"{getattr(s, name):,}" for s in sides))
        if name == "matched":
            for reason in sorted({*sides[0].unmatched, *sides[1].unmatched}):
                table.add_row(
                    f"unmatched: {reason}", *(f"{s.unmatched.get(reason, 0):,}" for s in sides)
                )
    screen = console.text_console()
    console.print_table(screen, table)
    screen.print(f"output rows: {summary.output_rows:,} in {settings.out}")
    screen.print(
        f"relocated to disk: {summary.relocated:,} tuples; disk joins: {summary.disk_joins:,}"
    )
    screen.print(
        f"peak memory: {summary.memory_peak:,} bytes, of {summary.memory_budget:,} allowed"
    )
    screen.print(
        f"{summary.service_rate:,.0f} tuples/s inside the join, "
        f"{summary.rate:,.0f} end to end, {' s '.join(console.seconds(summary))}"
    )
    ignored = (f"{name}, {count:,} values" for name, count in summary.ignored_fields.items())
    console.print_remarks(
        screen, **{"field ignored": ignored, "note": summary.notes, "unparsable": summary.examples}
    )


COMMAND = Command(
    "join-streams",
    "join the files of two streams",
    run,
    settings="semistream.files.settings.JoinStreams",
    progress=True,
    json=True,
    example="semistream join-streams --left orders.parquet --right lines.parquet --on order_id "
    "--unique left --memory 16MB --out out.parquet",
    files_only=True,
)
