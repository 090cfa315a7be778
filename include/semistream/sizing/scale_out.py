"""The predicted service rate of several operators, by the cost models.

Each of P operators has the P-th part of M. It joins the buckets of R that it owns with the stream
tuples of these buckets. Buckets are assigned so that the operators have about equally many stream
tuples. If a bucket has more tuples than an operator's share, they go to all operators in turn. All
operators wait for the slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from semistream.cost_models import Costs
from semistream.errors import ConfigError
from semistream.sizing.search import fastest, format_sizes, tune_all
from semistream.sizing.sizing_input import SizingInput


@dataclass(frozen=True)
class Scaled:
    """The prediction for P operators. rate: stream tuples/s of all operators together, without the
    overhead of Spark; sizes in bytes."""

    memory: int  # M, in all
    operators: int  # P
    algorithm: str  # the fastest one, with these parameters
    parameters: dict[str, Any]
    rate: float
    share: float  # share of the stream that goes to the slowest operator
    memory_each: int
    master_each: int  # bytes on disk of that operator's part of R
    # bytes per stream tuple that are sent from the executor that read it to another; none if each
    # machine's tasks read the Parquet files themselves
    shuffled: float


def scale_out(
    sizing: SizingInput,
    budgets: Iterable[int],
    operators: Iterable[int],
    algorithms: Sequence[str],
    costs: Costs,
) -> list[Scaled]:
    """Return the fastest plan for each M and number of operators for which some algorithm fits.
    Raises ConfigError for more operators than R has buckets."""
    found, budgets, most = [], list(budgets), sizing.relation.manifest.bucket_count
    for count in sorted(set(operators)):
        if not 1 <= count <= most:
            raise ConfigError(
                "scale_out",
                f"must be between 1 and {most}, the buckets of the snapshot",
                count,
                "Ask for fewer, or publish the snapshot with more buckets.",
            )
        each = replace(sizing, partitions=count)
        size = each.relation.tuple_count * each.relation.tuple_bytes
        shuffled = each.sample.nbytes / each.sample.num_rows
        try:
            for memory in map(int, budgets):
                ranking = tune_all(
                    each.workload, memory // count, costs, each.algorithms(tuple(algorithms))
                )
                if ranking:
                    best = fastest(ranking, lambda p: p.mu)
                    found.append(
                        Scaled(
                            memory,
                            count,
                            best.algorithm,
                            best.parameters,
                            best.mu / each.share,
                            each.share,
                            memory // count,
                            round(size),
                            shuffled * (1 - 1 / count),
                        )
                    )
        finally:
            each.relation.close()
    return found


def tables(plans: Sequence[Scaled]) -> Iterator[Table]:
    """Yield one table for each M: the rate of each number of operators, and its ratio to that of
    the smallest number."""
    for memory in dict.fromkeys(p.memory for p in plans):
        mine = [p for p in plans if p.memory == memory]
        table = Table(
            title=f"M = {memory:,} bytes, by number of operators",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for name in (
            "operators",
            "tuples/s",
            "times",
            "slowest has",
            "M each, bytes",
            "R each, bytes",
            "shuffled,\nbytes/tuple",
        ):
            table.add_column(name, justify="right")
        table.add_column("best")
        for p in mine:
            table.add_row(
                f"{p.operators}",
                f"{p.rate:,.0f}",
                f"{p.rate / mine[0].rate:.2f}",
                f"{p.share:.1%}",
                f"{p.memory_each:,}",
                f"{p.master_each:,}",
                f"{p.shuffled:.1f}",
                f"{p.algorithm}, {format_sizes(p.parameters)}",
            )
        table.caption = (
            "Shuffled: where Spark brings the tuples; Parquet files are read by the "
            "tasks, once on each machine."
        )
        table.caption_justify = "left"
        yield table
