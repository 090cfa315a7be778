"""``semistream check``."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from semistream.cli import console
from semistream.cli.command import Command
from semistream.counted import counted

if TYPE_CHECKING:
    from rich.table import Table

    from semistream.pipeline.check_result import JobCheck


def run(arguments: Namespace) -> int:
    from semistream.pipeline.job_check import check_job

    with console.progress(arguments.progress) as tell:
        found = check_job(arguments.settings, arguments.paths, tell)
    console.show(arguments.json, asdict(found) | {"ok": found.ok}, lambda _: _print(found))
    return 0 if found.ok else 1


def _print(found: JobCheck) -> None:
    from semistream.cost_models.bound import describe_idle
    from semistream.joins.waits import in_seconds
    from semistream.settings import pair_words
    from semistream.sizing.search import format_sizes

    screen, text = console.wide_console(160), console.text_console()
    for stream in found.streams:
        text.print(
            f"{stream.name}: {stream.format} {stream.path or ''}, {stream.files:,} "
            f"file{'s' * (stream.files != 1)}, {stream.bytes:,} bytes, "
            f"{_about(stream.rows, stream.about)}"
            + (f", {stream.punctuations:,} of them punctuations" * bool(stream.punctuations))
            if stream.files
            else f"{stream.name}: {stream.format} {stream.path or ''}"
        )
        if stream.columns:
            console.print_table(screen, _columns(stream.columns, stream.rows - stream.punctuations))
        print()
    if found.roles:
        numbers = ("rows", "left out", "duplicates", "tuples with a row", "without a key")
        words = ("role", "dimension", "from", "join columns")
        table = console.plain_table(*words, *numbers, right=numbers)
        for role in found.roles:
            table.add_row(
                *(role.role, role.dimension, role.source, pair_words(role.on)),
                f"{'' if role.whole else 'first '}{role.rows:,}",
                *(f"{n:,}" for n in (role.rejected, role.duplicates)),
                *("–" if n is None else f"{n:.1%}" for n in (role.matched, role.null_keys)),
            )
        console.print_table(screen, table)
        print()
    if found.predictions:
        busy = any(p.busy is not None for p in found.predictions)
        read = "master data MB/s" if busy else "most master data MB/s"
        costs = ["memory, bytes", "tuples/s", read, "least max_wait"]
        costs += ["busy"] if busy else []
        table = console.plain_table("role", "algorithm", "sizes", *costs, right=costs)
        for p in found.predictions:
            table.add_row(
                *(p.role, p.algorithm, format_sizes(p.sizes) or "held whole", f"{p.memory:,}"),
                f"{float(f'{p.rate:.2g}'):,.0f}" if p.rate else "–",
                f"{p.bytes_read / 1e6:,.1f}",
                in_seconds(p.least_wait),
                *((f"{p.busy:.0%}" if p.busy is not None else "–",) if busy else ()),
            )
        console.print_table(screen, table)
        text.print(
            f"M = {found.memory:,} bytes, {counted(found.partitions, 'operator')}; a worker's "
            f"process stays below about {found.worker_bytes / 1e6:,.0f} MB; "
            f"costs of {found.costs}\n"
        )
        idle = describe_idle(
            sum(p.bytes_read for p in found.predictions),
            sum(p.idle_bytes_read for p in found.predictions),
        )
        if idle:
            text.print(f"Master data: {idle}.\n")
    if found.fact_table:
        text.print(f"Facts go to {found.fact_table} in {console.place_of(found.sink)}.\n")
    for finding in found.findings:
        text.print(f"{finding.level}: {finding.about}: {finding.text}")
    count = sum(finding.level == "error" for finding in found.findings)
    faults = counted(count, "error")
    print(f"{found.job} can be loaded." if found.ok else f"{found.job} cannot be loaded: {faults}.")


def _columns(columns: Any, rows: int) -> Table:
    from rich.text import Text

    numbers = ("null", "unparsable")
    table = console.plain_table("column", "type", "examples", *numbers, right=numbers)
    for c in columns:
        examples = ", ".join(" ".join(e.split()) for e in c.examples)
        table.add_row(
            *map(Text, (c.name, c.type, examples)),
            f"{c.nulls / max(rows, 1):.1%}" if c.nulls else "",
            f"{c.unparsable:,}" if c.unparsable else "",
        )
    return table


def _about(rows: int, about: int) -> str:
    return counted(rows, "row") if rows == about else f"about {about:,} rows, {rows:,} looked at"


COMMAND = Command(
    "check",
    "look into a job's files and say what its load would do, without writing anything; exit code "
    "1 where it could not work",
    run,
    settings="semistream.pipeline.settings.CheckSettings",
    positional=(("job", "JOB"),),
    progress=True,
    json=True,
    example="semistream check sales.yaml.",
    without_pandas=True,
)
