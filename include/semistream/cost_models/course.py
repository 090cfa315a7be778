"""The time of a run of a given length: before the steady state, in it, and after it.

The papers' models are those of the steady state. A run begins with an empty H_S and an empty cache,
and ends with a drain, in which the waiting tuples are finished. So, for S stream tuples,

  scan of R:    t_0 + (S - S_0) / mu + N c_read
  index on R:   t_0 + (S - S_0 - h_S) / mu + h_S c_miss + N(h_S) c_read

S_0 tuples leave in the t_0 seconds in which the cache fills. A scan reads while H_S fills, and for
one more R-cycle at the end. A join with an index reads when H_S is full, and at the end it reads
the N(h_S) = N (1 - e^(-h_S / N)) partitions for which tuples wait. A run that ends before the cache
is full takes a part of t_0, and the time in which its drain caches tuples in vain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Stage(NamedTuple):
    """A part of the run in which the cache fills."""

    tuples: float  # stream tuples that leave in this stage
    hit: float  # share of these through H_R
    seconds: float


@dataclass(frozen=True)
class Course:
    """The course of a run. read: c_read, seconds of an iteration without its stream tuples; miss:
    c_miss, seconds of a tuple that goes through H_S; first: tuples that H_S holds while nothing is
    cached."""

    tuples: float  # S
    partitions: float  # N
    read: float
    miss: float
    first: float
    stages: tuple[Stage, ...] = ()
    scans: bool = False
    in_vain: float = 0.0  # seconds in which a drain caches tuples that are of no use

    def filled_after(self, cycles: float, cycle: float) -> Course:
        """Return a copy in which the cache is full after `cycles` passes over R. `cycle` stream
        tuples leave in each of these passes, all of them through H_S."""
        seconds = cycles * (self.partitions * self.read + cycle * self.miss)
        return Course(
            self.tuples,
            self.partitions,
            self.read,
            self.miss,
            self.first,
            (Stage(cycles * cycle, 0.0, seconds),),
            self.scans,
        )

    def run(self, mu: float, h_s: float, hit: float) -> tuple[float, float]:
        """Return (seconds, share of the tuples through H_R) of the run. mu, h_s, hit: service rate
        in tuples/s, waiting tuples, and share through H_R, all in the steady state."""
        full = self.tuples > self.first + sum(s.tuples for s in self.stages)
        left = 0.0 if self.scans else min(h_s if full else self.first, self.tuples)
        rest, seconds, hits = self.tuples - left, 0.0, 0.0
        for stage in self.stages:
            part = min(rest / max(stage.tuples, 1e-9), 1.0)
            rest -= part * stage.tuples
            seconds += part * stage.seconds
            hits += part * stage.tuples * stage.hit
        reads = self.partitions * (1.0 if self.scans else -math.expm1(-left / self.partitions))
        seconds += rest / mu + left * self.miss + reads * self.read
        seconds += 0.0 if full else self.in_vain
        return seconds, (hits + rest * hit) / self.tuples
