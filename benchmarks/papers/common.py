"""Experiments that are common to several papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.papers.layouts import PERCENT, R, over_memory, over_relation
from benchmarks.papers.model import (
    Asked,
    Claim,
    Experiment,
    Find,
    Number,
    Plot,
    Point,
    Row,
    having,
    ratio,
)
from semistream.cost_models import MODELS
from semistream.joins import REGISTRY

# TPC-H's customers at scale factor 100; the scale at which M = 1% of R holds a disk buffer
CUSTOMERS, TPCH_SCALE = 15_000_000, 0.03
LOADS = (0.2, 0.4, 0.6, 0.8)  # arrival rates, as shares of the slowest algorithm's service rate


def data_sets(
    name: str,
    paper: str,
    figures: tuple[str, str],
    algorithms: tuple[str, ...],
    tpch: tuple[Claim, ...],
    real: tuple[Claim, ...],
    headline: str = "remarkably faster",
) -> tuple[Experiment, Experiment]:
    plots = tuple(
        Plot(f"Service rate over memory, {what}", "memory_percent", only={"data": data})
        for data, what in (
            ("tpch", "TPC-H as generated"),
            ("tpch-zipf", "TPC-H with customers by Zipf's law"),
        )
    )
    return (
        Experiment(
            f"{name}-tpch",
            paper,
            figures[0],
            "TPC-H: orders joined with customers, M from 1% to 10% of R",
            _tpch,
            algorithms,
            tpch,
            plots,
            scale=TPCH_SCALE,
            least=TPCH_SCALE,
            headline=f"{headline}, TPC-H",
        ),
        Experiment(
            f"{name}-real",
            paper,
            figures[1],
            "a real data set, many to many: flights joined on their aircraft with those of "
            "other months; the papers have weather reports",
            _real,
            algorithms,
            real,
            (Plot("Service rate over memory", "memory_percent"),),
            scale=1.0,
            least=1.0,
            headline="faster, real data",
        ),
    )


def _tpch(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    return [
        p
        for data in ("tpch", "tpch-zipf")
        for p in over_memory(asked, algorithms, CUSTOMERS, (1.0, 5.0, 10.0), data=data)
    ]


def _real(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    return [Point(a, 0, m / 100, data="flights") for m in PERCENT for a in algorithms]


WAITS = (
    "a tuple waits while an iteration reads R; SSJ and SSCJ begin one whenever the stream "
    "buffer is empty, so that one is always under way, the others once w tuples have come or "
    "H_S is full"
)


def time_claims(faster: str, others: Sequence[str]) -> tuple[Claim, ...]:
    """Return the claims about one algorithm's times compared with those of others, by the papers'
    definitions. Next to each claim are the times by this project's definitions, about which the
    papers claim nothing."""
    kinds: tuple[tuple[str, str, Any, str, str, str], ...] = (
        (
            "processing",
            "processing_time",
            0.0,
            "",
            "removal_time",
            "From the entry into H_S to the removal, which is later than the match",
        ),
        (
            "waiting",
            "waiting_time",
            lambda rate: rate > 0,
            WAITS,
            "entry_time",
            "Until a tuple enters H_S, whether or not the w tuples of an iteration have come",
        ),
    )
    smaller = tuple(
        Claim(
            f"The {what} time of {REGISTRY[faster].title} is significantly smaller than "
            f"{REGISTRY[other].title}'s",
            ratio(other, faster, y, every=True, rate=rate),
            "more than 1",
            1.0,
            note=note,
            beside=(label, ratio(other, faster, ours, every=True, rate=rate)),
        )
        for what, y, rate, note, ours, label in kinds
        for other in others
    )
    pronounced = tuple(
        Claim(
            f"The difference between the processing times of {REGISTRY[other].title} and "
            f"{REGISTRY[faster].title} becomes more pronounced with |R|",
            difference_over_relation(faster, other),
            "more than 1",
            1.0,
            worse=1.0,
            reading="the difference in seconds at the largest |R|, in the place of the smallest",
            beside=(
                "The ratio of the two, at the largest |R| over that at the smallest",
                difference_over_relation(faster, other, ratios=True),
            ),
        )
        for other in others
    )
    return smaller + pronounced


def difference_over_relation(faster: str, slower: str, ratios: bool = False) -> Find:
    """Return a function that finds how much larger the difference (or the ratio) of two
    algorithms' processing times is at the largest |R| than at the smallest."""

    def find(rows: Sequence[Row]) -> Number | None:
        one, other = (
            sorted(having(rows, algorithm=a, rate=0.0), key=lambda r: r["master_tuples"])
            for a in (faster, slower)
        )
        if min(len(one), len(other)) < 2:
            return None
        ends = [(one[at]["processing_time"], other[at]["processing_time"]) for at in (0, -1)]
        if any(fast <= 0 for fast, _ in ends) or (not ratios and ends[0][0] == ends[0][1]):
            return None
        at = [slow / fast if ratios else slow - fast for fast, slow in ends]
        return Number(at[1] / at[0], 0.0, None, (one[0], other[0], one[-1], other[-1]))

    return find


def time_points(
    name: str, paper: str, figure: str, algorithms: tuple[str, ...], claims: tuple[Claim, ...]
) -> tuple[Experiment]:
    def points(asked: Asked, names: Sequence[str]) -> list[Point]:
        full = over_relation(asked, names, (20, 60, 100))
        largest = [p for p in full if p.tuples == p.memory_of]
        slowest = min(asked.predict(p).mu for p in largest)
        return full + [
            replace(p, rate=float(round(load * slowest, -2))) for load in LOADS for p in largest
        ]

    plots = (
        Plot(
            "Processing time over |R|",
            "master_tuples",
            "processing_time",
            log="y",
            models=(),
            only={"rate": 0.0},
            caption="Mean over all stream tuples, from loading to matching: from the beginning of "
            "the iteration that takes a tuple in to its match. One that the cache answers "
            "has none.",
        ),
        Plot(
            "Time in H_S over |R|",
            "master_tuples",
            "removal_time",
            log="y",
            models=(),
            only={"rate": 0.0},
            caption="From the entry into H_S to the removal. The papers do not show it.",
        ),
        Plot(
            "Waiting time over the arrival rate",
            "rate",
            "waiting_time",
            log="y",
            models=(),
            only={"rate": lambda r: r > 0},
            caption="In the stream buffer: from a tuple's arrival to the beginning of the "
            "iteration that takes it in, once w tuples have come, or to the cache's "
            "answer.",
        ),
        Plot(
            "Time to the entry into H_S over the arrival rate",
            "rate",
            "entry_time",
            log="y",
            models=(),
            only={"rate": lambda r: r > 0},
            caption="From a tuple's arrival to its entry into H_S, whether or not the w tuples of "
            "an iteration have come. The papers do not show it.",
        ),
    )
    return (
        Experiment(
            f"{name}-time",
            paper,
            figure,
            "processing time over |R|, waiting time over the arrival rate",
            points,
            algorithms,
            claims,
            plots,
            headline="shorter processing time",
        ),
    )


def cost(
    name: str,
    paper: str,
    figure: str,
    algorithms: tuple[str, ...],
    skews: Sequence[float] = (1.0,),
    data: str = "zipf",
) -> Experiment:
    def points(asked: Asked, names: Sequence[str]) -> list[Point]:
        return [p for s in skews for p in over_memory(asked, names, R, skew=s, data=data)]

    plots = tuple(
        Plot(
            f"c_loop of {REGISTRY[a].title}" + (f", skew {s:g}" if len(skews) > 1 else ""),
            "memory_percent",
            "c_loop",
            models=("model", "printed"),
            only={"algorithm": a, "skew": s},
        )
        for a in algorithms
        for s in skews
    )
    return Experiment(
        f"{name}-cost",
        paper,
        figure,
        "c_loop calculated and measured, M from 1% to 10% of R",
        points,
        algorithms,
        tuple(c for a in algorithms for c in model_error(a)),
        plots,
        beside=False,
    )


def error(rows: Sequence[Row], y: str, by: str, **where: Any) -> Number | None:
    """Return the median relative error of a model's figure."""
    errors = [abs(r[by] / r[y] - 1) for r in having(rows, **where) if r.get(y) and r.get(by)]
    return Number(float(np.median(errors))) if errors else None


MEASURED_ONCE = "what a step costs is measured once, before the points, and differs between runs"


def _loop_error(rows: Sequence[Row], by: str, **where: Any) -> Number | None:
    """Return the median error of c_loop, and tell by how much it is off over the points."""
    found = error(rows, "c_loop", f"c_loop_{by}", **where)
    known = [r for r in having(rows, **where) if r.get(f"c_loop_{by}")]
    if found is None or by != "model":
        return found
    off = [r["c_loop_model"] / r["c_loop"] - 1 for r in known]
    w = max(abs(r["w_model"] / r["w"] - 1) for r in known)
    told = f"off by {min(off):+.0%} to {max(off):+.0%} over the points, w by {w:.0%} at most"
    return replace(found, told=told)


def algorithms() -> tuple[str, ...]:
    """Return all algorithms that have a cost model."""
    return tuple(a for a in REGISTRY if a in MODELS)


def printed_lacks(algorithm: str) -> str:
    """Return where a reader finds what an algorithm's printed equation lacks."""
    file = MODELS[algorithm].predict.__module__.rsplit(".", 1)[1]
    return (
        "the printed equation lacks the terms that the docstring of "
        f"`cost_models/{file}.py` lists as corrections: the next row has them"
    )


def model_error(algorithm: str, **where: Any) -> tuple[Claim, Claim]:
    """Return the claims about the error of the c_loop equation, as printed and with its
    corrections. The papers' words "closely resembles" are taken as 10%."""
    title = REGISTRY[algorithm].title
    return tuple(
        Claim(  # type: ignore[return-value]
            f"The c_loop calculated for {title} closely resembles the measured one ({what})",
            partial(_loop_error, by=by, algorithm=algorithm, **where),
            "close",
            0,
            0.1,
            unit="%",
            note=note,
            reading="median error; up to 10% is taken as close",
        )
        for by, what, note in (
            ("printed", "as printed", printed_lacks(algorithm)),
            ("model", "corrected", MEASURED_ONCE),
        )
    )
