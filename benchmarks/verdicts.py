"""Verdicts on figures from complete repetitions: a 95% interval, and a verdict if the whole
interval agrees on it.

The repetitions are separate processes, in random order. Effects that differ between two processes,
such as the place of data in memory and the state of the machine, do not differ within the seconds
of one process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    LESS = "same direction, less"
    MORE = "more than claimed"
    MET = "met"  # an aim of ours, not a paper's claim
    NOT_MET = "not met"
    FASTER = "faster"  # a peer compared with its baseline
    SLOWER = "slower"
    NOT_DECIDED = "not decided"  # the interval allows more than one answer
    NOT_MEASURED = "not measured"


def half_width(repetitions: Sequence[float]) -> float:
    """Return half of the mean's 95% interval, by Student's distribution; inf for a single
    repetition."""
    n = len(repetitions)
    if n < 2:
        return math.inf
    return float(stdtrit(n - 1, 0.975) * np.std(repetitions, ddof=1) / math.sqrt(n))


class Ratio(NamedTuple):
    """The geometric mean of a ratio over repetitions, and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """The verdict on the ratio of a rate to its baseline's rate."""
        if self.low <= 1 <= self.high:
            return Verdict.NOT_DECIDED
        return Verdict.FASTER if self.low > 1 else Verdict.SLOWER


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the ratio of positive figures of the same repetitions, pair by pair."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    mean, half = math.fsum(logs) / len(logs), half_width(logs)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(min(mean + half, 700.0)))
