"""``semistream estimate-join-size``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from semistream.cli import console
from semistream.cli.command import Command

if TYPE_CHECKING:
    from semistream.pipeline.join_size import JoinSize


def run(arguments: Namespace) -> int:
    from semistream.pipeline.join_size import estimate_join_size

    settings = arguments.settings
    with console.progress(arguments.progress) as tell:
        found = estimate_join_size(settings, arguments.paths, tell)
    console.show(arguments.json, found, _print_estimate)
    return 0


def _print_estimate(found: JoinSize) -> None:
    from semistream.pipeline.join_size import grouped

    table, what = console.key_value_table(), "sum" if found.sum else "join size"
    if found.doubt:
        table.add_row(f"estimated {what}", "cannot tell", "")
    else:
        table.add_row(
            f"estimated {what}",
            grouped(found.estimate),
            f"of {found.sum}, over the rows of the join" if found.sum else "rows",
        )
    table.add_row(
        "off by at most", grouped(found.bound), f"with a probability of {found.confidence:.0%}"
    )
    for symbol, side in (("A", found.left), ("B", found.right)):
        lost = ((side.null_keys, "without a key"), (side.unparsable, "unparsable"))
        table.add_row(
            f"rows of {symbol}",
            f"{side.rows:,}",
            side.name + "".join(f", {n:,} {why}" for n, why in lost if n),
        )
    table.add_row("memory", f"{found.memory_bytes:,}", f"bytes, of both sketches ({found.method})")
    table.add_row(
        "seconds",
        f"{found.seconds:.1f}",
        f"in all; {found.ns_per_key:.0f} ns a key in the sketches",
    )
    screen = console.text_console()
    console.print_table(screen, table)
    if found.doubt:
        screen.print(found.doubt)
    console.print_remarks(screen, note=found.notes)


COMMAND = Command(
    "estimate-join-size",
    "estimate how many rows a join of two inputs would have, from sketches "
    "of their keys in a fixed memory, without joining",
    run,
    settings="semistream.pipeline.settings.JoinSizeSettings",
    positional=(("left", "A"), ("right", "B")),
    progress=True,
    json=True,
    example="semistream estimate-join-size flights.csv planes.csv --on tailnum --null-values NA",
)
