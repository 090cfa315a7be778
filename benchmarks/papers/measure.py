"""The measurement of one operator at one setting: warm-up, steady state, then a bounded stream for
the answer.

Only the time inside the operator counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.papers.answer import Answer
from benchmarks.papers.data import Stream
from semistream.cost_models import Prediction
from semistream.errors import SemistreamError
from semistream.joins import REGISTRY, SemiStreamJoin
from semistream.joins.output import JoinOutput
from semistream.workloads import ArrivalTimes

BATCHES = 10  # the fewest batches of a measurement
CYCLES = 3  # the fewest R-cycles of a measurement of a scanning join
LATE = 0.1  # the share of the arrivals that may be left in the stream buffer


@dataclass
class Measured:
    """The measured figures. Rates in stream tuples/s, times in s, memory in bytes."""

    mu: float
    c_loop: float
    w_n: float  # stream tuples per iteration through H_R
    w_s: float  # through H_S
    through_cache: float  # share of the stream tuples
    h_r: int  # master tuples in H_R
    # means over all stream tuples, by the papers' definitions (`joins.statistics.PaperTimes`)
    processing_time: float
    waiting_time: float
    # by our definitions: from a tuple's arrival to its entry into H_S, from there to its removal
    entry_time: float
    removal_time: float
    components: dict[str, int] = field(default_factory=dict)  # memory
    memory_peak: int = 0
    rows: int = 0  # stream tuples measured
    bytes_read: int = 0  # of R during the measurement
    busy: float = 1.0  # share of the time that the operator was at work


class Drive:
    """An operator and the stream that it gets."""

    def __init__(
        self,
        join: SemiStreamJoin,
        stream: Stream,
        batch: int,
        clock: Callable[[], float],
        pace: Callable[[], float] = lambda: 1.0,
    ):
        self.join, self.stream, self.batch, self.clock, self.pace = join, stream, batch, clock, pace
        self.paces: list[float] = []

    def feed(self, rows: int = 0, answer: Answer | None = None) -> float:
        """Process the next tuples, by default a batch, and return the seconds that the operator
        took. rows: the number of tuples; answer: gets the joined rows."""
        return self.spend(self.join.process(self.stream.next(rows or self.batch)), answer)

    def spend(self, steps: Iterator[JoinOutput], answer: Answer | None = None) -> float:
        spent = 0.0
        while True:
            started = self.clock()
            step = next(steps, None)
            spent += self.clock() - started
            if step is None:
                break
            if answer:
                answer.add(step)
        self.paces.append(self.pace())
        return spent / float(np.median(self.paces[-5:]))


def measure(drive: Drive, seconds: float) -> Measured:
    """Measure a warmed-up operator at full speed for at least `seconds`."""
    stats, scans = drive.join.stats, not REGISTRY[drive.join.spec.algorithm].needs_index
    start, begun, cycles = (
        stats.as_dict(),
        drive.join.master.bytes_read,
        stats.r_cycles + (CYCLES if scans else 0),
    )
    spent, batches = 0.0, 0
    while batches < BATCHES or spent < seconds or stats.r_cycles < cycles:
        hits = stats.cache_hits
        spent += drive.feed()
        batches += 1
        # all tuples are answered by H_R, so that there are no more R-cycles
        if stats.cache_hits - hits == drive.batch:
            cycles = 0
    return _measured(drive, start, begun, spent)


class Arrivals:
    """The arrivals of a drive's tuples, by a simulated clock. The clock advances by the operator's
    time, and to the next arrival if no tuple waits.

    From its arrival until it is passed to the operator, a tuple waits in the stream buffer. By the
    papers' definition the tuple still waits while it lies in H_S and no iteration has begun because
    fewer than w tuples have arrived. ``gathering`` is that time between two calls.
    """

    def __init__(self, drive: Drive, times: ArrivalTimes):
        self.drive, self.times = drive, times
        self.now = self.busy = self.waited = self.gathering = 0.0
        self.taken = 0

    def feed(self) -> float:
        """Process the tuples that have arrived, or the next one. Return the operator's seconds."""
        at = max(self.now, float(self.times.of(self.taken, 1)[0]))
        self.gathering += (at - self.now) * self.drive.join.stats.paper_times.entered
        due = min(max(self.times.until(at) - self.taken, 1), self.drive.batch)
        before = self.drive.join.stats.rows_read
        took = self.drive.feed(due)
        due = self.drive.join.stats.rows_read - before  # fewer if the stream's file ended
        self.waited += float((at - self.times.of(self.taken, due)).sum())
        self.taken, self.busy, self.now = self.taken + due, self.busy + took, at + took
        return took

    def settle(self, prediction: Prediction) -> None:
        """Process tuples until H_S has its steady content at this rate: for a pass over R, or for
        as many tuples as H_S holds."""
        stats = self.drive.join.stats
        scans = not REGISTRY[self.drive.join.spec.algorithm].needs_index
        cycles, rows = stats.r_cycles + 1, stats.rows_read + max(prediction.h_s, self.drive.batch)
        while stats.rows_read < rows and not (scans and stats.r_cycles >= cycles):
            self.feed()


def measure_arrivals(drive: Drive, arrivals: Arrivals, seconds: float) -> Measured:
    """Measure an operator whose stream arrives at some rate, for at least so many seconds of the
    stream's time. The operator is warmed up for that rate.

    Raises SemistreamError if the operator cannot keep up.
    """
    stats = drive.join.stats
    start, begun, taken = stats.as_dict(), drive.join.master.bytes_read, arrivals.taken
    waited, gathering = arrivals.waited, arrivals.gathering
    ends, busy, peak = [arrivals.now], [arrivals.busy], 0
    while ends[-1] - ends[0] < seconds or len(ends) <= 2 * BATCHES:
        arrivals.feed()
        ends.append(arrivals.now)
        busy.append(arrivals.busy)
        peak = max(peak, sum(drive.join.arena.components.values()))
    came = arrivals.times.until(ends[-1]) - arrivals.times.until(ends[0])
    behind = came - (arrivals.taken - taken)
    if behind > LATE * (arrivals.taken - taken) + drive.batch:
        rate = arrivals.times.rate
        raise SemistreamError(
            f"the join does not keep up with {rate:,.0f} tuples/s: of "
            f"those that came while it was measured {behind:,.0f} wait, "
            f"{arrivals.taken - taken:,} entered"
        )
    found = _measured(drive, start, begun, busy[-1] - busy[0])
    entered = max(arrivals.taken - taken, 1)
    found.entry_time += (arrivals.waited - waited) / entered
    found.waiting_time += (arrivals.waited - waited + arrivals.gathering - gathering) / entered
    found.memory_peak, found.busy = peak, (busy[-1] - busy[0]) / (ends[-1] - ends[0])
    return found


def _measured(drive: Drive, start: dict, begun: int, spent: float) -> Measured:
    stats = drive.join.stats
    finished = stats.rows_read - stats.waiting - start["rows_read"] + start["waiting"]
    hits = stats.cache_hits - start["cache_hits"]
    loops = max(stats.iteration_count - start["iteration_count"], 1)
    each = lambda name: (getattr(stats, name) - start[name]) / max(finished, 1)
    return Measured(
        finished / spent,
        spent / loops,
        hits / loops,
        (finished - hits) / loops,
        hits / max(finished, 1),
        getattr(drive.join, "cached", 0),
        each("paper_processing_seconds"),
        each("paper_waiting_seconds"),
        each("waited_seconds"),
        each("processed_seconds"),
        dict(drive.join.arena.components),
        stats.memory_peak,
        finished,
        drive.join.master.bytes_read - begun,
    )


def check(drive: Drive, stream: Stream, tuples: int) -> Answer:
    """Return the answer to a bounded stream from an operator that has already joined other tuples.
    Raises SemistreamError if a tuple is missing."""
    drive.spend(drive.join.drain())
    answer, stats = Answer(), drive.join.stats
    drive.stream, goal = stream, stats.rows_read + tuples
    while stats.rows_read < goal:
        drive.feed(min(drive.batch, goal - stats.rows_read), answer)
    drive.spend(drive.join.drain(), answer)
    if stats.waiting or stats.matched + stats.unmatched != stats.rows_read:
        raise SemistreamError(
            f"of {stats.rows_read:,} tuples {stats.matched:,} came out matched, "
            f"{stats.unmatched:,} unmatched, {stats.waiting:,} still wait"
        )
    return answer
