"""Service rate over M, from a thousandth of R to all of R, for every algorithm, compared with a
hash join with all of R in memory.

The operators run in process, with one thread; R is on disk, read past the page cache; keys follow
Zipf's law with exponent 1; joined rows are written as Arrow. The cost models choose the best sizes.
The curve is drawn in memory-SCALE.svg. Two bounds are shown, too (``bounds``): R read alone, in
tuples of R, with the bytes per second of this disk; and stream tuples whose keys each touch four
cache lines of an array of M bytes, the fewest for a tuple that H_R answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter

from benchmarks.bounds import Bound, CacheLines, Reading
from benchmarks.data import MASTER_BYTES, OPAQUE, Stream
from benchmarks.harness import Bench
from benchmarks.operators import HASH_JOIN, Operator
from semistream.durable import write_text
from semistream.joins import REGISTRY
from semistream.tuning.report import COLOURS, STYLE, figure_of, svg


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    shares: tuple[float, ...] = (1.0, 10.0, 100.0)  # M, percent of R
    algorithms: tuple[str, ...] = tuple(REGISTRY)
    skew: float = 1.0
    batch: int = 65_536
    seconds: float = 0.15
    warm_up: float = 20.0  # at most
    hash_join: bool = True  # also a hash join; its R must fit into this machine's memory


SCALES = {
    "smallest": Settings(
        master=50_000,
        shares=(20.0, 30.0),
        algorithms=("ssbj", "sscj"),
        batch=20_000,
        seconds=0.02,
        warm_up=0.3,
    ),
    "small": Settings(),
    "full": Settings(
        master=20_000_000,
        shares=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        seconds=3.0,
        warm_up=600.0,
    ),
}


def run(bench: Bench, s: Settings) -> None:
    stream = Stream(s.master, s.skew)
    bench.files.snapshot(s.master, OPAQUE)
    beside = (HASH_JOIN,) if s.hash_join else ()
    for share in s.shares:
        memory = int(share / 100 * s.master * MASTER_BYTES)
        make = {
            name: Operator(bench.files, OPAQUE, name, memory, stream, s.batch, s.seconds, s.warm_up)
            for name in (*beside, *s.algorithms)
        }
        make |= {
            "bound: R read alone": Bound(Reading(bench.files, OPAQUE, s.master), s.seconds),
            "bound: four cache lines": Bound(CacheLines(stream, memory, s.batch), s.seconds),
        }
        bench.compare("memory", f"R={s.master:,} M={share:g}% zipf {s.skew:g}", make, HASH_JOIN)
    if len(s.shares) > 1 and s.hash_join:
        write_text(bench.path("memory", "svg"), curve(bench.rows, s.master))


def curve(rows: Sequence[Mapping[str, Any]], master: int) -> str:
    """Return the ratio to the hash join over M as SVG, with a line for each algorithm."""
    with rc_context(STYLE):
        figure, axes = figure_of(7.2, 4.0)
        for name, colour in zip(REGISTRY, [*COLOURS, "black"], strict=False):
            points = sorted(
                (100 * r["memory_budget"] / MASTER_BYTES / master, r["ratio"])
                for r in rows
                if r["benchmark"] == "memory" and r["peer"] == name and r.get("ratio")
            )
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    markersize=3,
                    color=colour,
                    label=REGISTRY[name].title,
                )
        axes.axhline(1, color="grey", linestyle=":")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel=f"M, % of R of {master:,} tuples",
            ylabel="service rate, of the hash join's",
            title="What bounded memory costs: 1 is a hash join with all of R in memory",
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        return svg(figure)
