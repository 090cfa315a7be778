"""Ding, Mehta, Rundensteiner, Heineman: Joining Punctuated Streams (2004).

Tuples of both streams arrive by a Poisson process, by the clock of the stream: the state over time
does not depend on the machine. Each punctuation of a stream closes the oldest of its open join
values, in the same order on both sides. A tuple has any one of the open values. The output rate is
the number of result tuples over the time inside the join, without the pauses between arrivals. Both
joins get tuples in the same pieces: the tuples that have arrived when a punctuation comes. As in
the paper, punctuations are propagated only in the experiment on propagation, in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.papers.model import Claim, Experiment, Number, Plot, Row, Runner, Study, having
from benchmarks.verdicts import half_width
from semistream.paths import Paths
from semistream.stream_joins import (
    LEFT,
    RIGHT,
    StreamJoinOutput,
    StreamStreamJoin,
    open_stream_join,
)

PAPER = "PJoin (2004)"
INTER_ARRIVAL = 0.002  # s, mean, of the tuples of each stream
ELEMENTS = 200_000  # tuples of each stream
UNTOLD = 40.0  # tuples between the ends of join values, if there are no punctuations
OPEN = 10  # join values that a stream may have at a time
MEMORY = 64_000_000  # bytes: XJoin's whole state stays in memory, as on the paper's machine
REPEATS = 9  # runs, each with other arrivals
LOOKS = 100  # looks at the state, equally spaced in the stream's time
SMOOTH = 5  # looks that an output rate spans
STREAM = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.float64())])
TITLES = {"xjoin": "XJoin", "pjoin": "PJoin"}
OVER_TIME = ("time", "held", "held_a", "held_b", "results", "propagated", "rate_now")


@dataclass(frozen=True)
class PunctuatedPoint:
    """A join of two punctuated streams. spacing: tuples per punctuation, of A and of B; memory:
    bytes."""

    algorithm: str
    spacing: tuple[float, float]
    purge_threshold: int = 1
    memory: int = MEMORY
    propagate_count: int = 0  # punctuations; 0: never

    @property
    def title(self) -> str:
        name = TITLES[self.algorithm]
        if self.algorithm == "pjoin":
            name += f"-{self.purge_threshold}"
        if self.memory != MEMORY:
            name += f", M of {self.memory / 1e6:g} MB"
        return f"{name}, {self.spaced}"

    @property
    def spaced(self) -> str:
        a, b = self.spacing
        if math.isinf(a):
            return "no punctuations"
        return f"{a:g} tuples/punctuation" if a == b else f"A {a:g}, B {b:g} tuples/punctuation"


@dataclass(frozen=True)
class PunctuatedStream:
    """A stream with punctuations. arrived: the arrival times of its tuples, s, float64[n]; keys:
    their join values, int64[n]; after: the number of tuples before each punctuation, int64[m],
    increasing. Punctuation j closes value j."""

    arrived: np.ndarray
    keys: np.ndarray
    after: np.ndarray

    @classmethod
    def draw(cls, tuples: int, spacing: float, gaps: int, seed: int) -> PunctuatedStream:
        """Draw a stream. gaps: the seed of the punctuations; streams with the same spacing and the
        same gaps close values in step."""
        rng = np.random.default_rng(seed)
        arrived = np.cumsum(rng.exponential(INTER_ARRIVAL, tuples))
        if math.isinf(spacing):  # values still close, but no punctuation says so
            values = cls.draw(tuples, UNTOLD, gaps, seed)
            return replace(values, after=values.after[:0])
        between = np.random.default_rng(gaps).exponential(spacing, 2 * int(tuples / spacing) + 100)
        after = np.cumsum(np.maximum(np.rint(between), 1)).astype(np.int64)
        after = after[after <= tuples]
        closed = np.searchsorted(after, np.arange(tuples), side="right")
        return cls(arrived, closed + rng.integers(0, OPEN, tuples), after)

    def chunk(self, first: int, last: int) -> pa.RecordBatch:
        n = np.arange(first, last)
        return pa.record_batch([n, self.keys[first:last], n * 0.5], schema=STREAM)


class PunctuatedRunner(Runner):
    """A runner of points. scale: factor of the number of tuples of the streams."""

    def __init__(self, scale: float, paths: Paths, tell: Callable[[str], None]):
        self.scale = scale
        self.tuples = max(round(ELEMENTS * scale), 100)

    def streams(self, point: PunctuatedPoint, repeat: int) -> list[PunctuatedStream]:
        return [
            PunctuatedStream.draw(self.tuples, spacing, repeat, 10 * repeat + side + 1)
            for side, spacing in enumerate(point.spacing)
        ]

    def describe(self, point: PunctuatedPoint) -> dict[str, Any]:
        return {
            "series": point.title,
            **asdict(point),
            "spacing": list(point.spacing),
            "data": point.spaced,
            "master_tuples": self.tuples,
            "skew": 0.0,
        }

    def measured(self, point: PunctuatedPoint, further: object) -> dict[str, Any]:
        runs = [self.join(point, repeat) for repeat in range(REPEATS)]
        row = {k: runs[0][k] for k in (*OVER_TIME, "answer", "relocated")}
        for name in (
            "held_mean",
            "held_peak",
            "a_mean",
            "b_mean",
            "output_rate",
            "late_rate",
            "late_propagated",
        ):
            found = [r[name] for r in runs if r[name] is not None]
            row[name] = float(np.mean(found)) if found else None
            row[f"{name}_interval"] = half_width(found) if len(found) > 1 else None
            row[f"{name}_runs"] = found
        return row

    def join(self, point: PunctuatedPoint, repeat: int) -> dict[str, Any]:
        """Run the join to its end. Return its output over the stream's time, and the time that the
        join took."""
        streams = self.streams(point, repeat)
        watch = Watch(max(s.arrived[-1] for s in streams) / LOOKS)
        parameters = {
            "purge_threshold": point.purge_threshold,
            "propagate_count": point.propagate_count,
        }
        join = open_stream_join(
            point.algorithm,
            memory=point.memory,
            left=STREAM,
            right=STREAM,
            on=[("k", "k")],
            parameters=parameters if point.algorithm == "pjoin" else {},
        )
        for until, upto, side in events(streams, watch.every):
            for s in (LEFT, RIGHT):
                if upto[s] > watch.at[s]:
                    watch.take(join.process(s, streams[s].chunk(watch.at[s], upto[s])))
                    watch.at[s] = upto[s]
            if side is None:
                watch.look(until, join)
            elif point.algorithm == "pjoin":
                watch.take(join.punctuate(side, watch.next_punctuation(side)))
        rows = watch.rows
        watch.take(join.drain())
        looks = watch.looks
        early, late = looks[LOOKS // 5 : 3 * LOOKS // 5], looks[3 * LOOKS // 5 :]
        given = [part[-1].propagated - part[0].propagated for part in (early, late)]
        return {name: [getattr(look, name) for look in looks] for name in OVER_TIME} | {
            "answer": str(watch.rows),
            "relocated": join.stats.relocated,
            "held_mean": float(np.mean([look.held for look in looks])),
            "held_peak": float(max(look.held for look in looks)),
            "a_mean": float(np.mean([look.held_a for look in looks])),
            "b_mean": float(np.mean([look.held_b for look in looks])),
            "output_rate": rows / looks[-1].seconds,
            "late_rate": late[-1].rate_since(late[0]) / early[-1].rate_since(early[0]),
            "late_propagated": given[1] / given[0] if given[0] else None,
        }


class Look(NamedTuple):
    """The state of a join at a time of the stream. held, held_a, held_b: tuples in the state, in
    total and of each side; results, propagated: result tuples and punctuations so far; seconds: the
    join's time so far."""

    time: float
    held: int
    held_a: int
    held_b: int
    results: int
    propagated: int
    seconds: float
    rate_now: float | None = None

    def rate_since(self, before: Look) -> float:
        """Return the result tuples per second of the join's time since an earlier look."""
        return (self.results - before.results) / max(self.seconds - before.seconds, 1e-9)


class Watch:
    """The output of a join so far, and its looks over time."""

    def __init__(self, every: float):
        self.every, self.at, self.rows, self.given = every, [0, 0], 0, 0
        self.looks: list[Look] = []
        self._punctuations = [0, 0]

    def take(self, outputs: Iterable[StreamJoinOutput]) -> None:
        for output in outputs:
            self.rows += output.joined.num_rows if output.joined is not None else 0
            if output.propagated is not None and output.propagated.constants is not None:
                self.given += output.propagated.constants.num_rows

    def next_punctuation(self, side: int) -> pa.RecordBatch:
        value = self._punctuations[side]
        self._punctuations[side] += 1
        return pa.record_batch({"k": pa.array([value], pa.int64())})

    def look(self, now: float, join: StreamStreamJoin) -> None:
        a, b = (join.stats.sides[s].held for s in (LEFT, RIGHT))
        look = Look(now, a + b, a, b, self.rows, self.given, join.stats.seconds)
        if len(self.looks) >= SMOOTH:
            look = look._replace(rate_now=look.rate_since(self.looks[-SMOOTH]))
        self.looks.append(look)


def events(
    streams: Sequence[PunctuatedStream], every: float
) -> Iterator[tuple[float, list[int], int | None]]:
    """Yield the events in the order of the stream's time: (when, tuples of each side so far, the
    side that has a punctuation, or None for a look)."""
    end = max(s.arrived[-1] for s in streams)
    looks = np.minimum(every * np.arange(1, LOOKS + 1), end)
    times, sides = [looks], [np.full(LOOKS, 2)]
    for side, stream in enumerate(streams):
        times.append(stream.arrived[stream.after - 1])
        sides.append(np.full(len(stream.after), side))
    at, whose = np.concatenate(times), np.concatenate(sides)
    order = np.lexsort((whose, at))
    upto = np.column_stack([np.searchsorted(s.arrived, at[order], side="right") for s in streams])
    for when, counts, side in zip(at[order], upto.tolist(), whose[order].tolist(), strict=True):
        yield float(when), counts, None if side == 2 else side


def progress_line(row: Row) -> str:
    moved = f"  {row['relocated']:,} tuples went to disk" if row["relocated"] else ""
    return (
        f"{row['series']:<44} {row['master_tuples']:>9,} tuples a side  state "
        f"{row['held_mean']:>11,.0f} tuples  {row['output_rate']:>11,.0f} results/s"
        f"{moved}  {row['seconds']:.1f} s"
    )


# ---- points and claims


def _points(
    *settings: tuple[float, float, int],
    beside: bool = False,
    memory: Sequence[int] = (MEMORY,),
    propagate: int = 0,
) -> Callable[..., list[PunctuatedPoint]]:
    """Return a function that lists points. settings: spacing of A and of B, and purge threshold;
    beside: whether XJoin runs at each spacing, too; propagate: the propagation threshold."""

    def points(asked: PunctuatedRunner, names: Sequence[str]) -> list[PunctuatedPoint]:
        found = [
            PunctuatedPoint("pjoin", (a, b), threshold, m, propagate)
            for a, b, threshold in settings
            for m in memory
        ]
        if beside:
            found += [
                PunctuatedPoint("xjoin", (a, b), memory=m)
                for a, b in dict.fromkeys(s[:2] for s in settings)
                for m in memory
            ]
        return [p for p in found if p.algorithm in names]

    return points


def _at(
    threshold: int | None = None,
    a: float | None = None,
    b: float | None = None,
    memory: int = MEMORY,
) -> Callable[[Row], bool]:
    """Return a condition on rows: PJoin with this threshold, or XJoin if none is given."""

    def found(row: Row) -> bool:
        return (
            row["algorithm"] == ("xjoin" if threshold is None else "pjoin")
            and row["memory"] == memory
            and threshold in (None, row["purge_threshold"])
            and (a is None or row["spacing"][0] == a)
            and (b is None or row["spacing"][1] == b)
        )

    return found


def _number(values: Sequence[float]) -> Number | None:
    """Return the mean of the values with its 95% interval."""
    if not len(values):
        return None
    return Number(float(np.mean(values)), half_width(values))


def _ratio(
    rows: Sequence[Row],
    above: Callable[[Row], bool],
    below: Callable[[Row], bool],
    y: str,
    of: str = "",
) -> Number | None:
    """Return the y of one row over the y (or `of`) of another row, run by run."""
    pairs = [(u, v) for u in having(rows) if above(u) for v in having(rows) if below(v)]
    if not pairs:
        return None
    u, v = pairs[0]
    return _number(np.asarray(u[f"{y}_runs"]) / np.maximum(np.asarray(v[f"{of or y}_runs"]), 1e-9))


def _value(rows: Sequence[Row], at: Callable[[Row], bool], y: str) -> Number | None:
    found = [r for r in having(rows) if at(r) and r[f"{y}_runs"]]
    return _number(found[0][f"{y}_runs"]) if found else None


def _more(
    text: str,
    above: Callable[[Row], bool],
    below: Callable[[Row], bool],
    y: str,
    note: str = "",
    short: str = "",
) -> Claim:
    find = partial(_ratio, above=above, below=below, y=y)
    return Claim(text, find, "more", 1.0, worse=1.0, note=note, short=short)


def _steady(text: str, at: Callable[[Row], bool], y: str, reading: str = "") -> Claim:
    return Claim(text, partial(_value, at=at, y=y), "steady", 0.9, 1.1, reading=reading)


SMALL = 1_000_000  # bytes: XJoin's state outgrows it
STATE = Plot("Tuples in the state over time", "time", "held")
RATE = Plot(
    "Output rate over time",
    "time",
    "rate_now",
    caption="Result tuples per second of the join's time, over five looks.",
)
RESULTS = Plot("Result tuples over time", "time", "results")
HASHED = (
    "a probe of a hash table does not take longer as the table grows, and the state stays in "
    "memory; the paper's XJoin walks through buckets that get longer"
)
HASHED_SHORT = "a probe takes no longer as the state grows"
LATE = "later two fifths of the time over the two before"
STUDY = Study(
    PunctuatedRunner,
    progress_line,
    "punctuated.html",
    f"Poisson arrivals, mean 2 ms, on each stream, and any of {OPEN} open join values; "
    f"{REPEATS} runs with other arrivals. State and punctuations are by the stream's "
    "clock; rates are by the time inside the join",
    "XJoin and PJoin give as many result tuples",
)


def _experiment(
    name: str,
    figure: str,
    about: str,
    points: Callable[..., list[PunctuatedPoint]],
    claims: Sequence[Claim],
    plots: Sequence[Plot],
) -> Experiment:
    return Experiment(
        f"pjoin-{name}",
        PAPER,
        figure,
        about,
        points,
        ("pjoin", "xjoin"),
        tuple(claims),
        tuple(plots),
        scale=0.1,
        study=STUDY,
    )


EXPERIMENTS = (
    _experiment(
        "memory",
        "Fig. 5",
        "state over time, a punctuation every 40 tuples, beside XJoin",
        _points((40, 40, 1), beside=True),
        [
            Claim(
                "PJoin-1 has an insignificant state beside XJoin's",
                partial(_ratio, above=_at(1), below=_at(), y="held_mean"),
                "insignificant",
                0,
                0.05,
                unit="%",
                reading="taken as up to 5%",
            )
        ],
        [STATE],
    ),
    _experiment(
        "unpunctuated",
        "Fig. 5, text",
        "state over time, no punctuations, beside XJoin",
        _points((math.inf, math.inf, 1), beside=True),
        [
            Claim(
                "Without punctuations PJoin's state is as large as XJoin's",
                partial(_ratio, above=_at(1), below=_at(), y="held_mean"),
                "the same",
                0.99,
                1.01,
            )
        ],
        [STATE],
    ),
    _experiment(
        "spacing",
        "Fig. 6",
        "state over time, a punctuation every 10, 20 and 30 tuples",
        _points((10, 10, 1), (20, 20, 1), (30, 30, 1)),
        [
            _more(
                f"The state is larger with {x} tuples per punctuation than with {y}",
                _at(1, x),
                _at(1, y),
                "held_mean",
            )
            for y, x in ((10, 20), (20, 30))
        ],
        [STATE],
    ),
    _experiment(
        "rate",
        "Fig. 7",
        "output rate over time, a punctuation every 30 tuples, beside "
        "XJoin; also with an M that XJoin's state outgrows",
        _points((30, 30, 1), beside=True, memory=(MEMORY, SMALL)),
        [
            _steady("PJoin-1's output rate stays", _at(1), "late_rate", LATE),
            Claim(
                "XJoin's output rate drops",
                partial(_value, at=_at(), y="late_rate"),
                "drops",
                0,
                0.9,
                note=HASHED,
                short=HASHED_SHORT,
                reading=LATE,
            ),
            _steady(
                "With M of 1 MB PJoin-1's output rate stays",
                _at(1, memory=SMALL),
                "late_rate",
                LATE,
            ),
            Claim(
                "With M of 1 MB XJoin's output rate drops",
                partial(_value, at=_at(memory=SMALL), y="late_rate"),
                "drops",
                0,
                0.9,
                note="what has gone to disk is joined after the streams' end",
                reading=LATE,
            ),
        ],
        [RATE, RESULTS],
    ),
    _experiment(
        "eager",
        "Fig. 8",
        "state over time, eager and lazy purge, a punctuation every 10 tuples",
        _points((10, 10, 1), (10, 10, 10)),
        [_more("PJoin-10 has a larger state than PJoin-1", _at(10), _at(1), "held_mean")],
        [STATE],
    ),
    _experiment(
        "thresholds",
        "Fig. 9",
        "result tuples over time, purge thresholds 1, 100, 400 and "
        "800, a punctuation every 10 tuples",
        _points(*((10, 10, t) for t in (1, 100, 400, 800))),
        [
            _more(
                "PJoin-100 has a higher output rate than PJoin-1", _at(100), _at(1), "output_rate"
            ),
            Claim(
                "PJoin-400 has a lower output rate than PJoin-100",
                partial(_ratio, above=_at(400), below=_at(100), y="output_rate"),
                "less",
                0,
                1.0,
                note=HASHED,
                short=HASHED_SHORT,
            ),
            Claim(
                "PJoin-800 has a lower output rate than PJoin-400",
                partial(_ratio, above=_at(800), below=_at(400), y="output_rate"),
                "less",
                0,
                1.0,
                note=HASHED,
                short=HASHED_SHORT,
            ),
        ],
        [RATE, STATE],
    ),
    _experiment(
        "asymmetric",
        "Fig. 10, 11",
        "state and output rate over time, A every 10 tuples, B every 20, 30 and 40",
        _points(*((10, b, 1) for b in (20, 30, 40))),
        [
            _more(
                f"A's state is larger with {x} tuples per punctuation of B than with {y}",
                _at(1, 10, x),
                _at(1, 10, y),
                "a_mean",
            )
            for y, x in ((20, 30), (30, 40))
        ]
        + [
            Claim(
                "B's state is insignificant beside A's",
                partial(
                    _ratio, above=_at(1, 10, 40), below=_at(1, 10, 40), y="b_mean", of="a_mean"
                ),
                "insignificant",
                0,
                0.05,
                unit="%",
                reading="B 40; taken as up to 5%",
            ),
            _more(
                "The output rate is higher with 40 tuples per punctuation of B than with 20",
                _at(1, 10, 40),
                _at(1, 10, 20),
                "output_rate",
            ),
        ],
        [
            Plot("Tuples of A in the state over time", "time", "held_a"),
            Plot("Tuples of B in the state over time", "time", "held_b"),
            RATE,
        ],
    ),
    _experiment(
        "asymmetric-thresholds",
        "Fig. 12, 13",
        "output rate and state over time, A every "
        "10 tuples, B every 20, purge thresholds "
        "1, 100 and 400, beside XJoin",
        _points((10, 20, 1), (10, 20, 100), (10, 20, 400), beside=True),
        [
            Claim(
                "PJoin-1 has a lower output rate than XJoin",
                partial(_ratio, above=_at(1), below=_at(), y="output_rate"),
                "less",
                0,
                1.0,
            ),
            _more(
                "PJoin-100 has at least XJoin's output rate",
                _at(100),
                _at(),
                "output_rate",
                note=HASHED,
                short=HASHED_SHORT,
            ),
            Claim(
                "PJoin-100 has little more state than PJoin-1",
                partial(_ratio, above=_at(100), below=_at(1), y="held_mean"),
                "insignificantly more",
                0.95,
                1.25,
                reading="taken as up to 25%",
            ),
        ],
        [RATE, STATE],
    ),
    _experiment(
        "propagation",
        "Fig. 14",
        "punctuations propagated over time, both every 40 tuples",
        _points((40, 40, 1), propagate=2),
        [_steady("Punctuations are propagated steadily", _at(1), "late_propagated", LATE)],
        [Plot("Punctuations propagated over time", "time", "propagated")],
    ),
)
