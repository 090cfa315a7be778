"""The waiting times of stream tuples, as a histogram that can be summed, and the times from which
they count."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter

LEAST = 1e-3  # s; a shorter wait counts as none
PER_OCTAVE = 8  # bins per doubling: a wait is known to 9%


class Waits(Counter[int]):
    """Numbers of tuples by bin: bin i counts the tuples that waited up to LEAST 2^(i / PER_OCTAVE)
    seconds. Tuples that did not wait may be left out."""

    def note(self, seconds: float, tuples: int) -> None:
        """Count `tuples` tuples that waited this many seconds each."""
        if tuples:
            number = math.ceil(PER_OCTAVE * math.log2(seconds / LEAST)) if seconds > LEAST else 0
            self[number] += tuples

    def since(self, before: Waits) -> Waits:
        """Return the counts minus those of ``before``, an earlier copy."""
        return Waits(
            {number: n - before[number] for number, n in self.items() if n > before[number]}
        )

    def median(self, tuples: int) -> float:
        """Return the median wait of `tuples` tuples, in seconds. Tuples that are missing in the
        histogram did not wait."""
        longer = 0
        for number in sorted(self, reverse=True):
            longer += self[number]
            if longer > tuples / 2:
                return _seconds(number)
        return 0.0

    @property
    def longest(self) -> float:
        """The longest wait in seconds, rounded up to the end of its bin."""
        return _seconds(max(self, default=0))


class MicroBatches(list[float]):
    """The start times of the micro-batches that may have brought the waiting tuples, on
    time.perf_counter, in ascending order. The list is empty if the caller reports no micro-batches;
    the wait of a tuple then begins with its entry into H_S."""

    def of(self, entered: float) -> float:
        """Return the start of the micro-batch in which a tuple entered H_S. entered: the time of
        the tuple's entry."""
        number = self._number(entered)
        return min(self[number - 1], entered) if number else entered

    def forget(self, oldest: float) -> None:
        """Drop the micro-batches before the one that brought the oldest waiting tuple. oldest: the
        time at which that tuple entered H_S."""
        del self[: max(self._number(oldest) - 1, 0)]

    def _number(self, entered: float) -> int:
        """Return how many micro-batches had begun when a tuple entered H_S. The time of the entry
        is known only with an accuracy of LEAST seconds."""
        return bisect_right(self, entered + LEAST)


def _seconds(number: int) -> float:
    return LEAST * 2 ** (number / PER_OCTAVE) if number else 0.0


def in_seconds(waited: float) -> str:
    """Format a waiting time for display."""
    return f"{waited:.2g} s" if waited < 10 else f"{waited:,.0f} s"
