"""How long stream tuples waited, as a histogram that can be added up, and since when."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter

LEAST = 1e-3  # s; a shorter wait is none
PER_OCTAVE = 8  # bins of a doubling: a wait is known to 9%


class Waits(Counter[int]):
    """Tuples by bin: bin i has those that waited for up to LEAST 2^(i / PER_OCTAVE) s. Tuples that
    did not wait may be left out."""

    def note(self, seconds: float, tuples: int) -> None:
        """Count tuples that waited so long each."""
        if tuples:
            number = math.ceil(PER_OCTAVE * math.log2(seconds / LEAST)) if seconds > LEAST else 0
            self[number] += tuples

    def since(self, before: Waits) -> Waits:
        """Return what was added to a former copy."""
        return Waits({number: n - before[number] for number, n in self.items()
                      if n > before[number]})

    def median(self, tuples: int) -> float:
        """Return the seconds that half of so many tuples waited at most, the ones left out
        included."""
        longer = 0
        for number in sorted(self, reverse=True):
            longer += self[number]
            if longer > tuples / 2:
                return _seconds(number)
        return 0.0

    @property
    def longest(self) -> float:
        """Seconds that no tuple waited longer than."""
        return _seconds(max(self, default=0))


class MicroBatches(list[float]):
    """When the micro-batches began that may have brought what waits, on time.perf_counter, in
    order. Empty where nobody tells: then a tuple waits from its entry into H_S."""

    def of(self, entered: float) -> float:
        """Return when the micro-batch began in which a tuple entered H_S."""
        number = self._number(entered)
        return min(self[number - 1], entered) if number else entered

    def forget(self, oldest: float) -> None:
        """Leave out those before the one that brought the oldest tuple, which entered then."""
        del self[:max(self._number(oldest) - 1, 0)]

    def _number(self, entered: float) -> int:
        """Count those that had begun; an entry is known to LEAST."""
        return bisect_right(self, entered + LEAST)


def _seconds(number: int) -> float:
    return LEAST * 2 ** (number / PER_OCTAVE) if number else 0.0


def in_seconds(waited: float) -> str:
    """A wait for people."""
    return f"{waited:.2g} s" if waited < 10 else f"{waited:,.0f} s"
