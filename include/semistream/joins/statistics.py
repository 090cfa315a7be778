"""What a join counts: totals, and its latest iterations one by one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from semistream.joins.waits import Waits

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
    # summed over the tuples that entered H_S: from the call that brought them to their entry
    waited_seconds: float = 0.0
    processed_seconds: float = 0.0  # summed over the same: from there to their removal
    # of tuples that left H_S; those of one chunk, key or partition that leave together count with
    # their mean, but for the one that waited longest
    waits: Waits = field(default_factory=Waits)
    memory: dict[str, int] = field(default_factory=dict)  # bytes reserved now, by component
    memory_peak: int = 0  # bytes, the most that the components ever had together
    rejected: dict[str, int] = field(default_factory=dict)  # unmatched tuples by reason
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=10_000), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """All but the single iterations."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "iterations"}
