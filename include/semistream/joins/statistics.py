"""Statistics of a join: totals, and its latest iterations one by one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from semistream.joins.waits import MicroBatches, Waits

T = TypeVar("T")


class Clock:
    """The seconds spent inside a join. The clock stands still while the caller handles the
    output."""

    def __init__(self) -> None:
        self._spent, self._since = 0.0, 0.0

    def __call__(self) -> float:
        """Return the seconds so far, to be read inside a step. Only differences are meaningful."""
        return self._spent + time.perf_counter() - self._since

    def timed(self, steps: Iterator[T], account: Callable[[float], None]) -> Iterator[T]:
        """Yield the items of `steps`. Call `account` with the seconds that each item took."""
        while True:
            self._since = time.perf_counter()
            try:
                item = next(steps)
            except StopIteration:
                return
            finally:
                seconds = time.perf_counter() - self._since
                self._spent += seconds
                account(seconds)
            yield item


def timed(steps: Iterator[T], account: Callable[[float], None]) -> Iterator[T]:
    """Yield the items of `steps`. Call `account` with the seconds that each item took."""
    return Clock().timed(steps, account)


class PaperTimes:
    """Waiting and processing times of stream tuples by the papers' definitions (Naeem, Jamil:
    *SSJ*, section 6.2), summed over the tuples.

    *Waiting time* is spent "in the stream buffer before entering into the join module": until an
    iteration begins that takes the tuple in, or H_R answers it. *Processing time* is "from loading
    to matching, without including any delay due to a low arrival rate": from then until the tuple's
    first match, or until it is certain that the tuple has none. Both times are 0 for a tuple that
    the index or a filter answers.

    The clock is the join's, which stands still between two calls. Time between calls belongs to the
    stream; a caller that knows this time adds it for the tuples that are still to be taken in.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self.waited = self.processed = 0.0  # s
        self.entered = 0  # tuples in H_S that no iteration has taken in yet
        self._unmatched = 0  # tuples that iterations have taken in, without a match so far
        self._came = self._entered_at = self._at = 0.0

    def call(self) -> None:
        """Record that the tuples of a call have arrived."""
        self._came = self._clock()

    def answer(self, tuples: int) -> None:
        """Record that H_R answered this many tuples of the call."""
        self.waited += tuples * (self._clock() - self._came)

    def enter(self, tuples: int) -> None:
        """Record that this many tuples of the call entered H_S."""
        self.entered += tuples
        self._entered_at += tuples * self._came

    def load(self) -> None:
        """Record that an iteration begins."""
        self.waited += self.entered * self._go_on() - self._entered_at
        self._unmatched += self.entered
        self.entered, self._entered_at = 0, 0.0

    def match(self, tuples: int) -> None:
        """Record that this many tuples had their first match, or are certain to have none."""
        self._go_on()
        self._unmatched -= tuples

    def resume(self, unmatched: int) -> None:
        """Start with the tuples of a restored state that have had no match so far. unmatched: the
        number of these tuples."""
        self._unmatched = unmatched

    @property
    def without_match(self) -> int:
        """The tuples in H_S that have no match so far."""
        return self.entered + self._unmatched

    def _go_on(self) -> float:
        """Add the time since the last event for all tuples without a match. Return the present
        time."""
        now = self._clock()
        self.processed += self._unmatched * (now - self._at)
        self._at = now
        return now


class Iteration(NamedTuple):
    """The measurements of one iteration of a join's outer loop."""

    w_n: int  # stream tuples finished through H_R since the last iteration
    w_s: int  # stream tuples finished through H_S
    disk_tuples: int
    bytes_read: int
    seconds: float  # c_loop, without what the caller does with the output
    waiting: int  # tuples in H_S afterwards
    cached: int  # master tuples in H_R afterwards
    r_cycles: int  # full passes over R so far


@dataclass
class JoinStatistics:
    """Totals since the operator was opened or restored, and its latest iterations one by one."""

    rows_read: int = 0  # stream tuples taken in
    matched: int = 0  # stream tuples finished with a match
    unmatched: int = 0  # stream tuples finished without a match
    output_rows: int = 0  # pairs (and, in a left join, unmatched tuples)
    cache_hits: int = 0  # stream tuples finished through H_R
    disk_tuples_read: int = 0
    bytes_read: int = 0
    r_cycles: int = 0
    iteration_count: int = 0
    seconds: float = 0.0  # spent inside the operator
    waiting: int = 0  # tuples taken in and not finished now
    # by the papers' definitions (`PaperTimes`), summed over the stream tuples
    paper_waiting_seconds: float = 0.0
    paper_processing_seconds: float = 0.0
    # by our definition, summed over the tuples that entered H_S: from the call that brought a tuple
    # to its entry
    waited_seconds: float = 0.0
    processed_seconds: float = 0.0  # summed over the same tuples: from entry to removal
    # waits from the micro-batch that brought a tuple until the tuple leaves the operator; without
    # known micro-batches, waits from the entry into H_S. Tuples of one chunk, key or partition that
    # leave together count with their mean, except the oldest
    waits: Waits = field(default_factory=Waits)
    micro_batches: MicroBatches = field(default_factory=MicroBatches, repr=False)
    memory: dict[str, int] = field(default_factory=dict)  # bytes reserved now, by component
    memory_peak: int = 0  # bytes, the most that the components ever had together
    rejected: dict[str, int] = field(default_factory=dict)  # unmatched tuples by reason
    paper_times: PaperTimes = field(default_factory=lambda: PaperTimes(Clock()), repr=False)
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=10_000), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return all totals, without the single iterations and the paper times."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("iterations", "paper_times", "micro_batches")
        }
