"""How long stream tuples waited in H_S, as a histogram that can be added up."""

from __future__ import annotations

import math
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


def _seconds(number: int) -> float:
    return LEAST * 2 ** (number / PER_OCTAVE) if number else 0.0


def in_seconds(waited: float) -> str:
    """A wait for people."""
    return f"{waited:.2g} s" if waited < 10 else f"{waited:,.0f} s"
