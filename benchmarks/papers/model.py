"""The definition of an experiment: the points that it measures, the paper's claims about them, and
the plots."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.verdicts import Verdict
from semistream.cost_models import Prediction, Workload
from semistream.errors import SemistreamError
from semistream.joins import REGISTRY
from semistream.paths import Paths

Row = Mapping[str, Any]  # a point with its predicted and measured values, see `bench.Bench.run`
MEASURED, FAILED = "measured", "failed"
CLOSE = 0.25  # the relative difference from the paper's ratio that still reproduces it


@dataclass(frozen=True)
class Point:
    """An algorithm at one setting."""

    algorithm: str
    tuples: int  # R_t; ignored for `flights`
    memory: float  # M, share of R
    skew: float = 1.0  # Zipf's exponent
    data: str = "zipf"
    memory_of: int = 0  # R_t of another R of which `memory` is a share; 0: of this one
    parameters: tuple[tuple[str, Any], ...] = ()  # given sizes; the model finds the others
    rate: float = 0.0  # arrivals, tuples/s; 0: as fast as the join is
    needed: bool = False  # find the M that is needed for the rate
    series: str = ""  # in the legend; default: the algorithm's title
    place: tuple[tuple[str, Any], ...] = ()  # the position in a grid, for tables and plots

    @property
    def title(self) -> str:
        return self.series or REGISTRY[self.algorithm].title


class Asked(Protocol):
    """The questions that an experiment may ask while it lists its points."""

    scale: float
    # |R|, M in percent of R, and skews of the experiments without settings of a paper
    tuples: tuple[int, ...]
    percent: tuple[float, ...]
    skews: tuple[float, ...]

    def work(self, point: Point) -> Workload: ...

    def predict(self, point: Point) -> Prediction: ...

    def memory(self, point: Point) -> int: ...

    def needed(self, point: Point) -> float:
        """Return the M, in bytes, with which the model predicts the point's rate."""
        ...


Figures = Callable[[Asked, Point, Prediction], Mapping[str, float]]


@dataclass(frozen=True)
class Number:
    """A measured figure, half of its 95% interval, and the models' prediction of it."""

    value: float
    interval: float = 0.0  # set by `findings.judge`, over the repetitions; inf: there was only one
    predicted: float | None = None
    rows: tuple[Row, ...] = ()  # the compared rows: two if the claim is to be explained
    told: str = ""  # what the rows say about why the number is as it is


Find = Callable[[Sequence[Row]], Number | None]


@dataclass(frozen=True)
class At:
    """A setting of a paper. Claims about the same setting are found by it."""

    tuples: int
    memory_percent: float
    skew: float = 1.0

    def __str__(self) -> str:
        return (
            f"|R| = {self.tuples / 1e6:g} million, M = {self.memory_percent:g}% of R, skew "
            f"{self.skew:g}"
        )


@dataclass(frozen=True)
class Stated:
    """A statement of a figure in a paper about the ratio of two algorithms' service rates."""

    figure: str
    at: At
    faster: str
    slower: str
    times: float
    at_most: bool = False  # the figure only gives an upper limit
    why: str = ""  # what the figure states instead, if it is no ratio

    def __str__(self) -> str:
        return (
            f"{'at most ' if self.at_most else ''}{self.times:.2g} ({self.figure}"
            f"{': ' + self.why if self.why else ''})"
        )

    @classmethod
    def cached(cls, figure: str, at: At, faster: str, slower: str, share: float) -> Stated:
        """Return the limit on the ratio that follows from the share of the stream through the
        cache: the other tuples wait as all tuples do in the slower algorithm, with no more memory.
        """
        return cls(
            figure, at, faster, slower, 1 / (1 - share), True, f"{share:.0%} through the cache"
        )


@dataclass(frozen=True)
class Claim:
    """A claim of a paper. low, high: the range of numbers that reproduce the claim; worse: a number
    beyond which even the direction differs from the paper's."""

    text: str
    find: Find
    claimed: str
    low: float = -math.inf
    high: float = math.inf
    worse: float | None = None
    unit: str = "times"
    explain: bool = False  # explain the ratio by the cost model
    note: str = ""  # why it does not hold, beside what the models and the rows tell
    short: str = ""  # the note in a few words, for tables; by default, all of it
    reading: str = ""  # how the paper's words are taken, if they are no figure
    aim: bool = False  # our aim, not a paper's claim
    stated: tuple[Stated, ...] = ()  # the claim as statements about a setting of the paper
    full_size: bool = False  # can only be decided at the paper's |R|
    beside: tuple[str, Find] | None = None  # another number to show, without a claim

    def verdict(self, number: Number | None) -> Verdict:
        """Return the verdict on which the number's whole interval agrees."""
        if number is None or math.isnan(number.value):
            return Verdict.NOT_MEASURED
        # Errors, losses and ratios are not below 0, whatever half an interval takes off.
        low = max(number.value - number.interval, min(number.value, 0.0))
        high = number.value + number.interval
        if self.low <= low and high <= self.high:
            return Verdict.MET if self.aim else Verdict.REPRODUCED
        if low <= self.high and high >= self.low:
            return Verdict.NOT_DECIDED
        if self.worse is None:
            return Verdict.NOT_MET if self.aim else Verdict.NOT_REPRODUCED
        if low > self.high > self.worse:
            return Verdict.MORE
        if low <= self.worse < high:
            return Verdict.NOT_DECIDED
        return Verdict.LESS if low > self.worse else Verdict.NOT_REPRODUCED


def times(
    text: str,
    faster: str,
    slower: str,
    claimed: float | None,
    up_to: float | None = None,
    y: str = "mu",
    note: str = "",
    short: str = "",
    reading: str = "",
    stated: tuple[Stated, ...] = (),
    **where: Any,
) -> Claim:
    """Return the claim that `faster` has `claimed` (up to `up_to`) times the y of `slower` in the
    rows with these values. Without a number, the claim is that `faster` has more at every setting.
    """
    shown = "more" if claimed is None else f"{claimed:g}" + (f"–{up_to:g}" if up_to else "")
    low, high = (
        (1.0, math.inf)
        if claimed is None
        else (claimed * (1 - CLOSE), (up_to or claimed) * (1 + CLOSE))
    )
    return Claim(
        text,
        ratio(faster, slower, y, every=claimed is None, **where),
        shown,
        low,
        high,
        worse=1.0,
        explain=y == "mu",
        note=note,
        short=short,
        reading=reading,
        stated=stated,
    )


def change(
    text: str,
    key: str,
    first: float,
    last: float,
    above: str,
    below: str = "",
    falls: float = 0.0,
    reading: str = "",
    **where: Any,
) -> Claim:
    """Return the claim that the service rate of `above`, or its ratio to that of `below`, is larger
    where key is `last` than where it is `first`. falls: if given, the claim is that the rate is
    smaller, but at least this share."""

    def find(rows: Sequence[Row]) -> Number | None:
        ends, compared = [], []
        for value in (first, last):
            at = where | {key: value}
            one, other = (having(rows, algorithm=a, **at) for a in (above, below or above))
            if not one or not other:
                return None
            compared += [one[0], other[0]]
            ends.append(
                {
                    y: one[0][y] / (other[0][y] if below else 1.0)
                    for y in ("mu", "mu_model")
                    if one[0].get(y)
                }
            )
        known = all("mu_model" in e for e in ends)
        return Number(
            ends[1]["mu"] / ends[0]["mu"],
            0.0,
            ends[1]["mu_model"] / ends[0]["mu_model"] if known else None,
            tuple(compared),
        )

    if falls:
        return Claim(text, find, "less", falls, 1.0, reading=reading)
    return Claim(text, find, "more", 1.0, worse=1.0, reading=reading)


def ratio(above: str, below: str, y: str = "mu", every: bool = False, **where: Any) -> Find:
    """Return a function that finds y of one algorithm over y of another: the geometric mean over
    several settings, or the least ratio (every)."""

    setting = ("master_tuples", "memory_percent", "skew", "data", "rate")

    def find(rows: Sequence[Row]) -> Number | None:
        pairs = [
            (a, b)
            for a in having(rows, algorithm=above, **where)
            for b in having(rows, algorithm=below, **where)
            if a[y] > 0 and b[y] > 0 and all(a[k] == b[k] for k in setting)
        ]
        if not pairs:
            return None
        if every:
            pairs = [min(pairs, key=lambda pair: pair[0][y] / pair[1][y])]
        mean = lambda values: math.exp(sum(map(math.log, values)) / len(pairs))
        value = mean([a[y] / b[y] for a, b in pairs])
        known = all(r.get(f"{y}_model") for pair in pairs for r in pair)
        predicted = mean([a[f"{y}_model"] / b[f"{y}_model"] for a, b in pairs]) if known else None
        return Number(value, 0.0, predicted, tuple(pairs[-1]))

    return find


def having(rows: Iterable[Row], **where: Any) -> list[Row]:
    """Return the measured rows that have these values; a callable value is a condition."""
    return [
        r
        for r in rows
        if r["state"] == MEASURED
        and all(v(r.get(k)) if callable(v) else r.get(k) == v for k, v in where.items())
    ]


@dataclass(frozen=True)
class Plot:
    """A plot of y over x with a line for each series. The measured line is solid, the models'
    predictions are dashed. With a second x, the plot shows the contours of a surface. If a row's
    values are lists, the lists are one line."""

    title: str
    x: str
    y: str = "mu"
    second: str = ""
    log: str = ""  # axes with a logarithmic scale, of "x", "y", "xy"
    models: tuple[str, ...] = ("model",)  # rows' keys are Y_model …
    only: Mapping[str, Any] = field(default_factory=dict)
    caption: str = ""


class Runner:
    """An object that measures points."""

    scale: float

    def run(self, point: Any, further: Figures | None = None) -> dict[str, Any]:
        """Return a point's row: the values of `describe` and `measured`, and state, error and
        seconds. A point that cannot run has the error."""
        begun, row = time.perf_counter(), {"state": MEASURED, "error": ""} | self.describe(point)
        if row["state"] == MEASURED:
            try:
                row |= self.measured(point, further)
            except (SemistreamError, MemoryError, OSError) as e:
                row |= {"state": FAILED, "error": str(e) or type(e).__name__}
        return row | {"seconds": time.perf_counter() - begun}

    def describe(self, point: Any) -> dict[str, Any]:
        """Return the values of a point that are known before it runs: series, data, master_tuples,
        skew …"""
        raise NotImplementedError

    def measured(self, point: Any, further: Figures | None) -> dict[str, Any]:
        """Return the values for a point's plots, claims and page, and its answer, which is the same
        for all points of the same data."""
        raise NotImplementedError


@dataclass(frozen=True)
class Study:
    """The way to run experiments whose points are not settings of a semi-stream join."""

    open: Callable[[float, Paths, Callable[[str], None]], Runner]  # takes the scale
    progress_line: Callable[[Row], str]  # a line on a point that was measured
    page: str  # the report's template
    note: str  # on how it was measured
    answers: str  # a sentence on which answers are equal


@dataclass(frozen=True)
class Experiment:
    name: str
    paper: str  # the authors' short title of it
    figure: str
    about: str  # a description in one line
    # takes what may be asked, `Asked`; of these algorithms, `Point`s
    points: Callable[[Any, Sequence[str]], Sequence[Any]]
    algorithms: tuple[str, ...]
    claims: tuple[Claim, ...]
    plots: tuple[Plot, ...]
    scale: float = 0.01  # the default
    least: float = 0.005  # scale at which every M still holds two disk buffers
    beside: bool = True  # whether our own algorithm may be shown too
    figures: Figures | None = None  # more columns
    headline: str = ""  # the first claim in a few words
    study: Study | None = None  # none: of semi-stream joins


def apart(share: float) -> str:
    """Describe how far a measured figure is from the calculated one."""
    far = round(100 * abs(share))
    return f"{far}% {'more' if share > 0 else 'less'}" if far else "as calculated"


SYMBOLS = {
    "disk_tuples": "d",
    "cache_tuples": "h_R",
    "resident_tuples": "d_N",
    "slices": "q",
    "switching_factor": "sf",
    "cache_share": "cache share",
}
TITLES = {
    "mu": "service rate, tuples/s",
    "mu_disk": "service rate of the disk phase, tuples/s",
    "c_loop": "c_loop, s",
    "memory_percent": "M, % of R",
    "memory": "M, bytes",
    "master_tuples": "|R|, tuples",
    "skew": "Zipf exponent",
    "through_cache": "share of the stream through the cache",
    "processing_time": "mean processing time, s",
    "waiting_time": "mean waiting time, s",
    "entry_time": "mean time to the entry into H_S, s",
    "removal_time": "mean time from the entry into H_S to the removal, s",
    "rate": "arrival rate, tuples/s",
    "needed": "memory needed, bytes",
    "switching_factor": "switching factor sf",
    "disk_tuples": "disk buffer, tuples",
    "cache_tuples": "h_R, tuples",
    "resident_tuples": "non-swappable part, tuples",
    "w": "w, stream tuples per iteration",
    "w_n": "w_N, stream tuples per iteration through H_R",
    "w_s": "w_S, stream tuples per iteration through H_S",
    "partition_spread": "standard deviation over mean of a partition's pairs",
    "estimate_error": "mean error, |J - estimate| / min(J, estimate)",
    "update_ns": "ns a key",
    "time": "time of the stream, s",
    "held": "tuples in the state",
    "held_a": "tuples of A in the state",
    "held_b": "tuples of B in the state",
    "results": "result tuples",
    "propagated": "punctuations propagated",
    "rate_now": "output rate, tuples/s",
    "ratio": "the whole state over M",
    "slowdown": "times as long as in memory",
}
