"""What a run of a given length takes: to the steady state, in it, and out of it.

The papers' models are those of the steady state. A run begins with an empty H_S and an empty cache,
and ends with a drain, in which whatever waits is finished. So, for S stream tuples,

    scan of R:    S_0 c_miss + q N c_read + (S - S_0) / mu + N c_read
    index on R:   S_0 c_miss + q N c_read + (S - S_0 - h_S) / mu + h_S c_miss + N(h_S) c_read

S_0 = q S_c tuples leave in the q R-cycles that fill the cache, S_c in each, all of them through
H_S. A scan reads while H_S fills, and one R-cycle more at the end. An index reads when H_S is full,
and at the end N(h_S) = N (1 - e^(-h_S / N)) partitions, those for which something waits. A run that
is over before the cache is full reads as much as its tuples need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Course:
    """read: c_read, seconds of an iteration whatever leaves in it; miss: c_miss, seconds of a tuple
    that goes through H_S; first: tuples that H_S holds while nothing is cached."""

    tuples: float  # S
    partitions: float  # N
    read: float
    miss: float
    first: float
    cycle: float  # S_c
    cycles: float = 0.0  # q
    scans: bool = False

    def parts(self, h_s: float) -> tuple[float, float, float]:
        """The tuples of the warm-up, of the steady state and of the drain; h_s: what waits in the
        steady state."""
        warm = min(self.cycles * self.cycle, self.tuples)
        left = 0.0 if self.scans else min(h_s, self.tuples)
        if not self.scans and self.tuples < self.first + self.cycles * self.cycle:
            left, warm = min(self.first, self.tuples), max(self.tuples - self.first, 0.0)
        return warm, max(self.tuples - warm - left, 0.0), left

    def seconds(self, mu: float, h_s: float) -> float:
        """Of the whole run; mu: the service rate in the steady state, tuples/s."""
        warm, steady, left = self.parts(h_s)
        reads = warm / max(self.cycle, 1e-9) * self.partitions + self._last(left)
        return (warm + left) * self.miss + reads * self.read + steady / mu

    def _last(self, left: float) -> float:
        """Reads of the drain."""
        n = self.partitions
        return n if self.scans else n * -math.expm1(-left / n)
