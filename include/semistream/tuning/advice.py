"""The result of ``semistream tune``: the best sizes of each algorithm and the best algorithm, for
each memory budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from semistream.cost_models.bound import Demand, describe_price
from semistream.counted import counted
from semistream.paths import Paths
from semistream.progress import Progress
from semistream.sizing.search import format_sizes
from semistream.sizing.sizing_input import SizingInput
from semistream.tuning.measure import FAILED, Point, error, grid, measure, recommend
from semistream.tuning.settings import TuneSettings
from semistream.tuning.tuning_input import costs_for


@dataclass(frozen=True)
class Advice:
    """The result of tuning. points: the whole grid if it was measured, otherwise the best point of
    each algorithm; best: the recommended point by budget."""

    about: str
    points: list[Point]
    best: dict[int, Point]
    measured: bool
    demand: Demand | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "recommended": [recommendation(p) for p in self.best.values()],
            "points": [asdict(p) for p in self.points],
        }

    def tables(self) -> Iterator[Table]:
        """Yield one table for each budget, with the fastest algorithm first. If there is a bound on
        waiting, the algorithm that keeps the bound with the least work comes first."""
        for memory in dict.fromkeys(p.memory for p in self.points):
            mine = sorted(
                (p for p in self.points if p.memory == memory),
                key=lambda p: (
                    p.price.busy if p.price and not self.measured else -(p.rate or p.predicted_rate)
                ),
            )
            best = self.best.get(memory)
            table = Table(
                title=f"M = {memory:,} bytes. {self.about}",
                title_justify="left",
                box=None,
                pad_edge=False,
            )
            for name in (
                "algorithm",
                "sizes",
                "predicted,\nsteady, tuples/s",
                *(("measured\ntuples/s", "error") if self.measured else ()),
                *(("master data\nMB/s", "busy") if self.demand else ()),
                "c_loop ms",
                "memory, bytes",
            ):
                table.add_column(
                    name,
                    justify="left" if name in ("algorithm", "sizes", "memory, bytes") else "right",
                )
            for p in mine:
                table.add_row(*self._row(p), style="bold green" if p is best else None)
            table.caption = (
                f"Best: {best.algorithm}, {format_sizes(best.parameters)}"
                if best
                else "M is too small for all of them"
            )
            if best and best.price and self.demand:
                table.caption += "; " + describe_price(best.price, self.demand)
            table.caption_justify = "left"
            yield table

    def _row(self, p: Point) -> list[str]:
        if not p.predicted_rate and p.rate is None:
            return [
                p.algorithm,
                "–",
                "–",
                *(["–", "–"] if self.measured else []),
                *(["–", "–"] if self.demand else []),
                "–",
                p.error,
            ]
        wrong = error(p)
        measured = (
            [
                f"{p.rate:,.0f}" if p.rate else "failed",
                f"{wrong:+.0%}" if not math.isnan(wrong) else "–",
            ]
            if self.measured
            else []
        )
        parts = (
            p.error
            if p.state == FAILED
            else ", ".join(f"{k} {v:,.0f}" for k, v in p.predicted_memory.items())
        )
        return [
            p.algorithm,
            format_sizes(p.parameters),
            f"{p.predicted_rate:,.0f}",
            *measured,
            *((f"{p.price.bytes_read / 1e6:,.1f}", f"{p.price.busy:.0%}") if p.price else ()),
            f"{1e3 * p.predicted_c_loop:.2f}",
            parts,
        ]


def advise(
    sizing: SizingInput, settings: TuneSettings, paths: Paths, measured: bool, progress: Progress
) -> Advice:
    """Return the result of tuning. By default it comes from the cost models alone, which takes a
    moment. With ``measured`` the points of the grid are run one after the other."""
    demand = Demand(settings.max_wait, settings.rate) if settings.rate else None
    costs = costs_for(sizing, paths, settings.calibrate)
    points = grid(
        sizing,
        settings.memory,
        sizing.algorithms(settings.algorithms),
        settings.grid if measured else 1,
        costs,
        demand,
    )
    if measured:
        done: list[Point] = []
        for p in points:
            progress("measuring", len(done), len(points))
            done.append(measure(sizing, p))
        points = done
    machine = (
        costs.machine
        if costs.measured
        else (f"{costs.machine} (rates only compare; --calibrate measures this one's)")
    )
    return Advice(describe(sizing, machine), points, recommend(points), measured, demand)


def describe(sizing: SizingInput, machine: str) -> str:
    """Describe the sample and the master data for people."""
    operators = counted(sizing.partitions, "operator")
    return (
        f"{operators}, {sizing.relation.manifest.tuple_count:,} master tuples of "
        f"{sizing.relation.tuple_bytes:.0f} bytes, {sizing.sample.num_rows:,} stream tuples looked "
        f"at, costs of {machine}"
    )


def recommendation(p: Point) -> dict[str, Any]:
    """Return the settings of a load that a point recommends."""
    return {
        "memory": p.memory,
        "partitions": p.partitions,
        "algorithm": p.algorithm,
        "parameters": p.parameters,
        "rate": p.rate or p.predicted_rate,
        "measured": p.rate is not None,
    }
