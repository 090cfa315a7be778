"""What a join counts: totals, and its latest iterations one by one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from semistream.joins.waits import MicroBatches, Waits

T = TypeVar("T")


class Clock:
    """Seconds spent inside a join: it stands still while the caller has what came out."""

    def __init__(self) -> None:
        self._spent, self._since = 0.0, 0.0

    def __call__(self) -> float:
        """Seconds so far, for differences; to be read inside a step."""
        return self._spent + time.perf_counter() - self._since

    def timed(self, steps: Iterator[T], account: Callable[[float], None]) -> Iterator[T]:
        """What the steps give; account is told the seconds spent inside each."""
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
    """``Clock.timed`` by a clock that nobody else reads."""
    return Clock().timed(steps, account)


class PaperTimes:
    """How long stream tuples wait and are processed by the papers' own definitions (Naeem, Jamil:
    *SSJ*, section 6.2), summed over them.

    *Waiting time* is spent "in the stream buffer before entering into the join module": until an
    iteration begins that takes the tuple in, or H_R answers it. *Processing time* is "from loading
    to matching, without including any delay due to a low arrival rate": from there to its first
    match, or to where it is certain that it has none. A tuple that the index or a filter answers
    has neither.

    The clock is the join's, which stands still between two calls. What goes by there is the
    stream's time: whoever knows it adds it for the tuples that are still to be taken in.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self.waited = self.processed = 0.0  # s
        self.entered = 0  # tuples in H_S that no iteration has taken in yet
        self._unmatched = 0  # tuples that iterations have taken in, without a match so far
        self._came = self._entered_at = self._at = 0.0

    def call(self) -> None:
        """Note that the tuples of a call have come."""
        self._came = self._clock()

    def answer(self, tuples: int) -> None:
        """Note that H_R answered so many of them."""
        self.waited += tuples * (self._clock() - self._came)

    def enter(self, tuples: int) -> None:
        """Note that so many of them entered H_S."""
        self.entered += tuples
        self._entered_at += tuples * self._came

    def load(self) -> None:
        """Note that an iteration begins."""
        self.waited += self.entered * self._go_on() - self._entered_at
        self._unmatched += self.entered
        self.entered, self._entered_at = 0, 0.0

    def match(self, tuples: int) -> None:
        """Note that so many had their first match, or are certain to have none."""
        self._go_on()
        self._unmatched -= tuples

    def resume(self, unmatched: int) -> None:
        """Begin with tuples of a restored state that have no match so far."""
        self._unmatched = unmatched

    def _go_on(self) -> float:
        """Count the time since the last event for all that are without a match. Returns now."""
        now = self._clock()
        self.processed += self._unmatched * (now - self._at)
        self._at = now
        return now


class Iteration(NamedTuple):
    """One outer loop."""

    w_n: int  # stream tuples finished through H_R since the last one
    w_s: int  # stream tuples finished through H_S
    disk_tuples: int
    bytes_read: int
    seconds: float  # c_loop, without what the caller does with the output
    waiting: int  # tuples in H_S behind it
    cached: int  # master tuples in H_R behind it
    r_cycles: int  # full passes over R so far


@dataclass
class JoinStatistics:
    """Totals since the operator was opened or restored, and its latest iterations one by one."""

    rows_read: int = 0  # stream tuples taken in
    matched: int = 0  # stream tuples finished with a match
    unmatched: int = 0  # stream tuples finished without
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
    # by ours, summed over the tuples that entered H_S: from the call that brought them to their
    # entry
    waited_seconds: float = 0.0
    processed_seconds: float = 0.0  # summed over the same: from there to their removal
    # from the micro-batch that brought a tuple to where it leaves the operator, where micro-batches
    # are told; else of those that entered H_S, from there. Tuples of one chunk, key or partition
    # that leave together count as one that entered at their mean time, but for the oldest
    waits: Waits = field(default_factory=Waits)
    micro_batches: MicroBatches = field(default_factory=MicroBatches, repr=False)
    memory: dict[str, int] = field(default_factory=dict)  # bytes reserved now, by component
    memory_peak: int = 0  # bytes, the most that the components ever had together
    rejected: dict[str, int] = field(default_factory=dict)  # unmatched tuples by reason
    paper_times: PaperTimes = field(default_factory=lambda: PaperTimes(Clock()), repr=False)
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=10_000), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """All but the single iterations, and what they are counted with."""
        return {f.name: getattr(self, f.name) for f in fields(self)
                if f.name not in ("iterations", "paper_times", "micro_batches")}
