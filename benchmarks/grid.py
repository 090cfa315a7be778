"""ELEVATORJOIN compared with the other algorithms, over M, skew and drift.

As in ``memory``, the operators run in process, with one thread; R is read past the page cache; the
cost models choose sizes; joined rows are written as Arrow. With a drift, the frequent keys change
after so many tuples. grid-SCALE.svg shows, point by point, the ratio of ELEVATORJOIN's service rate
to that of the best other algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.colors import LogNorm

from benchmarks.data import MASTER_BYTES, OPAQUE, Stream
from benchmarks.harness import Bench
from benchmarks.operators import Operator
from benchmarks.verdicts import Verdict
from semistream.durable import write_text
from semistream.joins import REGISTRY
from semistream.tuning.report import STYLE, figure_of, svg

OURS = "elevatorjoin"


@dataclass(frozen=True)
class Settings:
    master: int = 200_000  # R_t
    shares: tuple[float, ...] = (5.0, 20.0)  # M, percent of R
    skews: tuple[float, ...] = (0.0, 1.0)  # exponents of Zipf's law; 0: uniform
    drifts: tuple[int, ...] = (0, 200_000)  # tuples; 0: none
    algorithms: tuple[str, ...] = ("sscj", "ssbj", "hybridjoin", "ssij")
    batch: int = 16_384
    seconds: float = 0.1
    warm_up: float = 20.0  # at most


SCALES = {
    "smallest": Settings(
        master=50_000,
        shares=(20.0,),
        skews=(1.0,),
        drifts=(0, 50_000),
        algorithms=("ssbj", "sscj"),
        seconds=0.02,
        warm_up=0.3,
    ),
    "small": Settings(),
    "full": Settings(
        master=1_000_000,
        shares=(1.0, 10.0, 50.0),
        skews=(0.0, 0.5, 1.0, 1.5),
        drifts=(0, 500_000),
        algorithms=tuple(a for a in REGISTRY if a != OURS),
        batch=65_536,
        seconds=0.7,
        warm_up=120.0,
    ),
}


def run(bench: Bench, s: Settings) -> None:
    bench.files.snapshot(s.master, OPAQUE)
    for drift in s.drifts:
        for skew in s.skews:
            if drift and not skew:  # without skew a drift changes nothing
                continue
            for share in s.shares:
                memory = int(share / 100 * s.master * MASTER_BYTES)
                stream = Stream(s.master, skew, drift)
                bench.compare(
                    "grid",
                    case(share, skew, drift),
                    {
                        name: Operator(
                            bench.files, OPAQUE, name, memory, stream, s.batch, s.seconds, s.warm_up
                        )
                        for name in (OURS, *s.algorithms)
                    },
                    OURS,
                )
    write_text(bench.path("grid", "svg"), picture(bench.rows, s))


def case(share: float, skew: float, drift: int) -> str:
    return f"M={share:g}% zipf {skew:g} {f'drift {drift:,}' if drift else 'no drift'}"


def picture(rows: Sequence[Mapping[str, Any]], s: Settings) -> str:
    """Return the picture as SVG, with a panel for each drift and a field for each point. A field
    shows the ratio of ELEVATORJOIN's rate to the best other algorithm's, and the name of that
    algorithm."""
    with rc_context({**STYLE, "axes.grid": False}):
        figure, axes = figure_of(
            1.2 + 1.5 * len(s.shares) * len(s.drifts), 1.2 + 0.6 * len(s.skews), 1, len(s.drifts)
        )
        for panel, drift in zip([axes] if len(s.drifts) == 1 else axes, s.drifts, strict=True):
            times = [[float("nan")] * len(s.shares) for _ in s.skews]
            for y, skew in enumerate(s.skews):
                for x, share in enumerate(s.shares):
                    others = [
                        r
                        for r in rows
                        if r["benchmark"] == "grid"
                        and r["peer"] != OURS
                        and r["case"] == case(share, skew, drift)
                        and r.get("ratio")
                    ]
                    if others:
                        best = max(others, key=lambda r: r["ratio"])
                        times[y][x] = 1 / best["ratio"]
                        open_ = "?" if best["verdict"] == Verdict.NOT_DECIDED else ""
                        panel.text(
                            x,
                            y,
                            f"{1 / best['ratio']:.2f}{open_}\n{REGISTRY[best['peer']].title}",
                            ha="center",
                            va="center",
                        )
            panel.imshow(times, norm=LogNorm(0.25, 4), cmap="PiYG", aspect="auto")
            panel.set(
                xticks=range(len(s.shares)),
                xticklabels=[f"{v:g}%" for v in s.shares],
                yticks=range(len(s.skews)),
                yticklabels=[f"{v:g}" for v in s.skews],
                xlabel="M, of R",
                ylabel="Zipf exponent",
                title=f"other keys after {drift:,} tuples" if drift else "no drift",
            )
        figure.suptitle(
            f"{REGISTRY[OURS].title}'s service rate, times that of the best of the others\n"
            "?: which of them is faster is not decided"
        )
        return svg(figure)
