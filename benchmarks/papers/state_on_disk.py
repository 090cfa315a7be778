"""The cost of XJoin's state on disk, measured and by the cost model.

Two streams with equally many tuples, whose values are uniform, come in turns. The time is the time
inside the join, to its end, of the second of two successive runs, because pages that the process
had before are allocated faster. The costs are fitted to runs of equally many other tuples, with
other M. These runs alternate with the measured ones, because the machine's speed changes over time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.optimize import nnls

from benchmarks.papers import xjoin_model
from benchmarks.papers.common import error
from benchmarks.papers.model import Claim, Experiment, Number, Plot, Row, Runner, Study, having
from benchmarks.papers.xjoin_model import StateCosts, StreamWorkload
from benchmarks.verdicts import half_width
from semistream.errors import SemistreamError
from semistream.paths import Paths
from semistream.stream_joins import LEFT, RIGHT, open_stream_join

TUPLES = 2_000_000  # of each stream
PIECE = 20_000  # tuples of a stream processed at a time
LEAST_TUPLES = 40_000  # with fewer, a small part of their state is less than the least M
ROUNDS = 10
IN_MEMORY = (0.4, 0.5, 0.6)  # the state over M, if memory suffices
RATIOS = (2.0, 5.0, 10.0, 20.0, 40.0)  # the whole state over M
RESULTS = (1.0, 4.0)  # result rows per tuple of a stream
CALIBRATED = tuple((ratio, results) for ratio in (0.8, 1.5, 6.0, 30.0) for results in RESULTS)
STREAM = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("v", pa.float64()), ("w", pa.int64())])
AIM = 0.1  # the model's median error
BOUND = 1.25  # the factor by which the slowdown may rise from 10 to 40 times M


@dataclass(frozen=True)
class StatePoint:
    ratio: float  # the whole state over M
    results: float
    algorithm: str = "xjoin"

    @property
    def title(self) -> str:
        return f"XJoin, {self.results:g} result row{'s' * (self.results != 1)} a tuple"


@dataclass(frozen=True)
class Timed:
    work: StreamWorkload
    memory: float
    seconds: float
    statistics: Any

    @property
    def due(self) -> list[float]:
        """How often each cost is incurred, in the order of `StateCosts`."""
        moved = self.statistics.relocated
        model = xjoin_model.predict(self.work, self.memory, NONE)
        return [
            self.work.tuples,
            self.work.results,
            moved,
            *((model.read, model.found, model.accesses) if moved else (0.0, 0.0, 0.0)),
        ]


Round = dict[tuple[float, float], Timed | Exception]  # (state over M, results): run


class StateRunner(Runner):
    """A runner of points. scale: factor of the number of tuples of the streams."""

    def __init__(self, scale: float, paths: Paths, tell: Callable[[str], None]):
        self.scale, self.tuples = scale, max(round(TUPLES * scale), LEAST_TUPLES)
        self.tell = tell
        join(Streams(1_000, 1.0, 0), 1e8)  # compiles the kernels

    @cached_property
    def rounds(self) -> list[Round]:
        """All runs that are measured, or to which costs are fitted, in random order and ``ROUNDS``
        times."""
        settings = [
            *CALIBRATED,
            *((ratio, results) for results in RESULTS for ratio in IN_MEMORY + RATIOS),
        ]
        rounds = []
        for number in range(ROUNDS):
            self.tell(
                f"round {number + 1} of {ROUNDS}: {len(settings)} joins of "
                f"{2 * self.tuples:,} tuples, each twice"
            )
            rounds.append(
                {
                    (ratio, results): self._timed(ratio, results, number)
                    for ratio, results in random.Random(number).sample(settings, len(settings))
                }
            )
        return rounds

    def _timed(self, ratio: float, results: float, number: int) -> Timed | Exception:
        seed = 100 + number if (ratio, results) in CALIBRATED else 0
        streams = Streams(self.tuples, results, seed)
        memory = streams.work.state_bytes / ratio
        try:
            return Timed(streams.work, memory, *again(streams, memory))
        except (SemistreamError, MemoryError, OSError) as e:
            return e

    def timed(self, ratio: float, results: float) -> list[Timed]:
        """Return the runs of a setting, one of each round. Raises the error of a run that
        failed."""
        found = []
        for r in self.rounds:
            one = r[ratio, results]
            if isinstance(one, Exception):
                raise one
            found.append(one)
        return found

    @cached_property
    def costs(self) -> StateCosts:
        return fitted([one for setting in CALIBRATED for one in self.timed(*setting)])

    def describe(self, point: StatePoint) -> dict[str, Any]:
        return {
            "series": point.title,
            **asdict(point),
            "data": point.title,
            "master_tuples": self.tuples,
            "skew": 0.0,
        }

    def measured(self, point: StatePoint, further: object) -> dict[str, Any]:
        runs = self.timed(point.ratio, point.results)
        seconds = np.array([r.seconds for r in runs])
        enough = np.mean(
            [[r.seconds for r in self.timed(ratio, point.results)] for ratio in IN_MEMORY], axis=0
        )
        slowdowns = (seconds / enough).tolist()
        last = runs[-1]
        model = xjoin_model.predict(last.work, last.memory, self.costs)
        return {
            "memory": last.memory,
            "answer": str(last.statistics.output_rows),
            "slowdown": float(np.mean(slowdowns)),
            "slowdown_runs": slowdowns,
            "slowdown_interval": half_width(slowdowns),
            "slowdown_model": model.slowdown,
            "relocated": last.statistics.relocated,
            "relocated_model": model.relocated,
            "bytes_read": last.statistics.bytes_read,
            "rate": last.work.tuples / float(np.mean(seconds)),
            "costs": asdict(self.costs),
        }


def fitted(runs: Sequence[Timed]) -> StateCosts:
    """Return the costs with the least sum of squared relative errors of the seconds."""
    due = np.array([run.due for run in runs]) / np.array([run.seconds for run in runs])[:, None]
    return StateCosts(*nnls(due, np.ones(len(runs)))[0])


NONE = StateCosts(*[0.0] * 6)


class Streams:
    """Two streams of so many tuples each, with about so many result rows a tuple."""

    def __init__(self, tuples: int, results: float, seed: int):
        rng, self.tuples = np.random.default_rng(seed), tuples
        values = max(round(tuples / results), 1)
        self.keys = [rng.integers(0, values, tuples) for _ in (LEFT, RIGHT)]
        counts = [np.bincount(k, minlength=values) for k in self.keys]
        few = open_stream_join("xjoin", memory=1 << 20, left=STREAM, right=STREAM, on=[("k", "k")])
        self.work = StreamWorkload(
            tuples,
            tuples,
            few.state.memory[LEFT].slot_bytes,
            int(np.count_nonzero(counts[0] + counts[1])),
            int(counts[0] @ counts[1]),
        )

    def pieces(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        for first in range(0, self.tuples, PIECE):
            for side in (LEFT, RIGHT):
                keys = self.keys[side][first : first + PIECE]
                ids = np.arange(first, first + len(keys))
                yield side, pa.record_batch([keys, ids, ids * 0.5, ids], schema=STREAM)


def join(streams: Streams, memory: float) -> tuple[float, Any]:
    """Return the seconds inside the join, and its statistics."""
    operator = open_stream_join(
        "xjoin", memory=int(memory), left=STREAM, right=STREAM, on=[("k", "k")]
    )
    for side, piece in streams.pieces():
        for _ in operator.process(side, piece):
            pass
    for _ in operator.drain():
        pass
    operator.state.remove()
    return operator.stats.seconds, operator.stats


def again(streams: Streams, memory: float) -> tuple[float, Any]:
    """Run the join twice and return the result of the second run."""
    join(streams, memory)
    return join(streams, memory)


def progress_line(row: Row) -> str:
    return (
        f"{row['series']:<32} {row['ratio']:>4g} times M  {row['relocated']:>11,} tuples to "
        f"disk  {row['slowdown']:.2f} times as long, by the model "
        f"{row['slowdown_model']:.2f}"
    )


def _points(asked: StateRunner, names: Sequence[str]) -> list[StatePoint]:
    return [
        StatePoint(ratio, results) for results in RESULTS for ratio in RATIOS if "xjoin" in names
    ]


def _error(rows: Sequence[Row]) -> Number | None:
    """Return the error of the means. Its interval is over the errors of the rounds."""
    measured = having(rows)
    by_round = zip(*(r["slowdown_runs"] for r in measured), strict=True)
    each = [
        error(
            [{**r, "slowdown": s} for r, s in zip(measured, slowdowns, strict=True)],
            y="slowdown",
            by="slowdown_model",
        )
        for slowdowns in by_round
    ]
    whole = error(measured, y="slowdown", by="slowdown_model")
    return whole and replace(whole, interval=half_width([n.value for n in each if n]))


def _slowdown(rows: Sequence[Row], results: float) -> Number | None:
    found = having(rows, ratio=10.0, results=results)
    return (
        Number(found[0]["slowdown"], found[0]["slowdown_interval"], found[0]["slowdown_model"])
        if found
        else None
    )


def _rise(rows: Sequence[Row], results: float) -> Number | None:
    """Return the rise of the slowdown from 10 to 40 times M."""
    ends = [having(rows, ratio=ratio, results=results) for ratio in (10.0, 40.0)]
    if not all(ends):
        return None
    (low,), (high,) = ends
    each = np.array(high["slowdown_runs"]) / np.array(low["slowdown_runs"])
    return Number(
        float(np.mean(each)), half_width(each), high["slowdown_model"] / low["slowdown_model"]
    )


EXPERIMENTS = (
    Experiment(
        "xjoin-on-disk",
        "ours",
        "",
        "how much longer XJoin takes where its state is 2 to "
        "40 times M, measured and by the cost model",
        _points,
        ("xjoin",),
        (
            Claim("median error of the slowdown", _error, "under 10%", 0, AIM, unit="%", aim=True),
            Claim(
                "median error of the tuples that go to disk",
                partial(error, y="relocated", by="relocated_model"),
                "under 10%",
                0,
                AIM,
                unit="%",
                aim=True,
            ),
            *(
                Claim(
                    f"{results:g} result rows a tuple: times as long with a state of 10 times "
                    "M as in memory",
                    partial(_slowdown, results=results),
                    "under 3",
                    0,
                    3.0,
                    aim=True,
                )
                for results in RESULTS
            ),
            *(
                Claim(
                    f"{results:g} result rows a tuple: the slowdown at 40 times M over that at "
                    "10 times",
                    partial(_rise, results=results),
                    "at most 1.25",
                    0,
                    BOUND,
                    aim=True,
                )
                for results in RESULTS
            ),
        ),
        (
            Plot(
                "Slowdown over the state's size",
                "ratio",
                "slowdown",
                log="x",
                caption="The time over that with enough memory.",
            ),
        ),
        scale=0.2,
        study=Study(
            StateRunner,
            progress_line,
            "state_on_disk.html",
            f"Two streams in turns, {PIECE:,} tuples at a time; all settings in random "
            f"order, {ROUNDS} times; the time is that inside the join, to its end",
            "as many result rows with each M",
        ),
    ),
)
