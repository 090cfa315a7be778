"""The points of a grid around the predicted best sizes, and their measurement with the real
operator, in this process."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from semistream.cost_models import MODELS, Costs, Prediction
from semistream.cost_models.bound import Demand, Price, price
from semistream.errors import ConfigError, SemistreamError
from semistream.joins.registry import REGISTRY
from semistream.sizing import open_join
from semistream.sizing.choice import cheap
from semistream.sizing.search import fastest, predict, tune
from semistream.sizing.sizing_input import SizingInput

CHUNK = 16_384  # stream tuples that an operator processes at a time
TURNOVERS = 2  # turnovers of H_S to warm up, and again to measure
LEAST_SECONDS, MOST_SECONDS = 0.5, 15.0  # of warming up one point, and again of measuring it
MEASURED, FAILED, OPEN = "measured", "failed", "open"


@dataclass(frozen=True)
class Point:
    """An algorithm with one setting of its sizes. Rates are in stream tuples/s of all P operators
    together, bytes are those of all operators, times are in seconds."""

    number: int
    algorithm: str
    memory: int
    partitions: int
    parameters: dict[str, Any]
    predicted_rate: float = 0.0
    predicted_c_loop: float = 0.0
    predicted_memory: dict[str, float] = field(default_factory=dict)
    best: bool = False  # the algorithm's best point according to the model
    # stream tuples of all operators that fill H_S once, according to the model
    turnover: float = 0.0
    state: str = OPEN
    rate: float | None = None
    c_loop: float | None = None
    cache_share: float | None = None
    memory_peak: int | None = None
    rows: int = 0
    seconds: float = 0.0
    error: str = ""
    price: Price | None = None  # of a bound on waiting; bytes of all operators, time of the slowest


def grid(
    sizing: SizingInput,
    budgets: Iterable[int],
    algorithms: Iterable[str],
    count: int,
    costs: Costs,
    demand: Demand | None = None,
) -> list[Point]:
    """Return every algorithm's points for every budget. An algorithm for which the model finds no
    setting gets a point without parameters and with the error. demand: a bound on waiting, whose
    price is computed."""
    points: list[Point] = []
    mine = demand and demand._replace(share=sizing.share, whole=sizing.whole_reads)
    work = mine.of(sizing.workload) if mine else sizing.workload
    for memory, algorithm in itertools.product(budgets, algorithms):
        each = int(memory) // sizing.partitions
        try:
            best = tune(algorithm, work, each, costs)
            found = [
                p
                for sizes in around(sizing, best, each, count)
                if (p := predict(algorithm, work, each, costs, **sizes)).mu > 0
            ]
            points += [
                point_of(
                    sizing,
                    int(memory),
                    p,
                    p.sizes == best.sizes,
                    price(p, work, costs, MODELS[algorithm].phase, mine) if mine else None,
                )
                for p in found
            ]
        except ConfigError as e:
            points.append(Point(0, algorithm, int(memory), sizing.partitions, {}, error=str(e)))
    return [replace(p, number=i) for i, p in enumerate(points)]


def around(
    sizing: SizingInput, best: Prediction, memory: int, count: int
) -> list[dict[str, float]]:
    """Return a grid around the best sizes: all combinations of `count` values of each size. The
    values of a size double from one to the next, and the best value is one of them."""
    axes = []
    for name, size in best.sizes.items():
        kind = MODELS[best.algorithm].sizes[name]
        (low, high), unit = kind.bounds(sizing.workload, memory), kind.unit(sizing.workload)
        steps = (size * 2.0 ** (i - (count - 1) // 2) for i in range(count))
        axes.append(
            sorted(
                {
                    size if s == size else max(round(min(max(s, low), high) / unit), 1) * unit
                    for s in steps
                }
            )
        )
    return [dict(zip(best.sizes, sizes, strict=True)) for sizes in itertools.product(*axes)]


def point_of(
    sizing: SizingInput, memory: int, p: Prediction, best: bool, taken: Price | None = None
) -> Point:
    turnover = p.h_s * p.w / p.w_s if p.w_s > 0 else 0.0
    return Point(
        0,
        p.algorithm,
        memory,
        sizing.partitions,
        p.parameters,
        p.mu / sizing.share,
        p.c_loop,
        p.memory,
        best,
        turnover / sizing.share,
        price=taken,
    )


def measure(sizing: SizingInput, point: Point) -> Point:
    """Measure a point with one warmed-up operator on the slowest partition's tuples. If the point
    cannot run, it gets the error."""
    try:
        return _measure(sizing, point)
    except (SemistreamError, MemoryError) as e:
        return replace(point, state=FAILED, error=str(e))


def _measure(sizing: SizingInput, point: Point) -> Point:
    """Run an operator on the sample, first to warm up and then to measure. Return the point with
    the measured rate."""
    join = open_join(
        point.algorithm,
        memory=point.memory // point.partitions,
        stream=sizing.sample.schema,
        master=sizing.relation,
        on=sizing.on,
        columns=sizing.added,
        parameters=point.parameters,
    )
    stats, begun = join.stats, time.perf_counter()
    chunks = itertools.cycle(
        sizing.tuples.slice(i, CHUNK) for i in range(0, sizing.tuples.num_rows, CHUNK)
    )

    def feed(tuples: int, cycles: float) -> None:
        """Process at least this many tuples and passes over R, unless the time is over before."""
        start, rows, r = time.perf_counter(), stats.rows_read + tuples, stats.r_cycles + cycles
        while (past := time.perf_counter() - start) < LEAST_SECONDS or (
            past < MOST_SECONDS and (stats.rows_read < rows or stats.r_cycles < r)
        ):
            chunk, hits = next(chunks), stats.cache_hits
            for _ in join.process(chunk):
                pass
            # everything is in the cache, so that there are no more passes
            if stats.cache_hits - hits == chunk.num_rows:
                r = 0

    def counts() -> tuple[float, ...]:
        """Return the tuples finished, the seconds, the iterations and the cache hits so far."""
        finished = stats.matched + stats.unmatched
        return finished, stats.seconds, stats.iteration_count, stats.cache_hits

    scans = 0 if REGISTRY[point.algorithm].needs_index else 2
    enough = max(sizing.tuples.num_rows, int(TURNOVERS * point.turnover * sizing.share))
    feed(enough, scans)
    before = counts()
    feed(enough, scans)
    finished, seconds, loops, hits = (
        now - then for now, then in zip(counts(), before, strict=True)
    )
    return replace(
        point,
        state=MEASURED,
        rate=finished / seconds / sizing.share,
        c_loop=seconds / loops if loops else None,
        cache_share=hits / max(finished, 1),
        memory_peak=stats.memory_peak * point.partitions,
        rows=stats.rows_read,
        seconds=time.perf_counter() - begun,
    )


def is_steady(point: Point) -> bool:
    """Return whether the point's measured rate became stable, so that it can be compared with other
    rates. If not, ``error`` gives the reason."""
    return point.state == MEASURED and not point.error


def error(point: Point) -> float:
    """Return the error of the predicted rate relative to the measured one. Return nan if there is
    no measured rate. Return nan also if the rate has not become stable, because the prediction is
    for the steady state."""
    return (
        point.predicted_rate / point.rate - 1
        if is_steady(point) and point.rate and point.predicted_rate
        else math.nan
    )


def recommend(points: Iterable[Point]) -> dict[int, Point]:
    """Return for each budget the point with the highest rate, measured if any rate was measured,
    otherwise predicted. If there is a bound on waiting, return the point that keeps the bound at
    the highest rate, of those that do so with little work, as `auto` would choose."""
    known = [p for p in points if p.state != FAILED and (p.state != OPEN or p.predicted_rate)]
    found: dict[int, Point] = {}
    for memory in dict.fromkeys(p.memory for p in known):
        mine = [p for p in known if p.memory == memory]
        measured = [p for p in mine if p.rate is not None]
        found[memory] = (
            max(measured, key=lambda p: p.rate or 0.0)
            if measured
            else fastest(cheap(mine, _busy), lambda p: p.predicted_rate / max(_busy(p), 1.0))
        )
    return found


def _busy(p: Point) -> float:
    """Return the share of the time that a bound on waiting takes; 0 without a bound."""
    return p.price.busy if p.price else 0.0
