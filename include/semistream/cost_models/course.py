"""What a run of a given length takes: to the steady state, in it, and out of it.

The papers' models are those of the steady state. A run begins with an empty H_S and an empty cache,
and ends with a drain, in which whatever waits is finished. So, for S stream tuples,

    scan of R:    t_0 + (S - S_0) / mu + N c_read
    index on R:   t_0 + (S - S_0 - h_S) / mu + h_S c_miss + N(h_S) c_read

S_0 tuples leave in the t_0 seconds in which the cache fills. A scan reads while H_S fills, and one
R-cycle more at the end. An index reads when H_S is full, and at the end N(h_S) = N (1 - e^(-h_S /
N)) partitions, those for which something waits. A run that is over before the cache is full takes
its part of t_0, and what is cached in its drain, of use for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Stage(NamedTuple):
    """A part of the run in which the cache fills."""

    tuples: float  # that leave in it
    hit: float  # share of them through H_R
    seconds: float


@dataclass(frozen=True)
class Course:
    """read: c_read, seconds of an iteration whatever leaves in it; miss: c_miss, seconds of a tuple
    that goes through H_S; first: tuples that H_S holds while nothing is cached."""

    tuples: float  # S
    partitions: float  # N
    read: float
    miss: float
    first: float
    stages: tuple[Stage, ...] = ()
    scans: bool = False
    in_vain: float = 0.0  # seconds of what is cached in a drain that the cache begins with

    def filled_after(self, cycles: float, cycle: float) -> Course:
        """The same with a cache that is full after so many R-cycles, in each of which so many
        tuples leave, all through H_S."""
        seconds = cycles * (self.partitions * self.read + cycle * self.miss)
        return Course(self.tuples, self.partitions, self.read, self.miss, self.first,
                      (Stage(cycles * cycle, 0.0, seconds),), self.scans)

    def run(self, mu: float, h_s: float, hit: float) -> tuple[float, float]:
        """(seconds, share of the tuples through H_R) of the run; mu: the service rate in the steady
        state, tuples/s; h_s, hit: what waits in it, and the share of the stream through H_R."""
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
