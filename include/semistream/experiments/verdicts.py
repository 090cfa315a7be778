"""What whole repetitions say of a figure: a 95% interval, and a verdict where all of it agrees.

The repetitions are processes of their own, in random order: what varies between two of them, the
place of data in memory and the state of the machine, does not vary over the seconds of one.
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
    MET = "met"  # of aims, which no paper has
    NOT_MET = "not met"
    FASTER = "faster"  # of a peer beside its baseline
    SLOWER = "slower"
    NOT_DECIDED = "not decided"  # the interval holds more than one answer
    NOT_MEASURED = "not measured"


def half_width(repetitions: Sequence[float]) -> float:
    """Half the 95% interval of the mean, by Student's distribution; inf of a single repetition."""
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
        """Of a rate over its baseline's."""
        if self.low <= 1 <= self.high:
            return Verdict.NOT_DECIDED
        return Verdict.FASTER if self.low > 1 else Verdict.SLOWER


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Of positive figures of the same repetitions, pair by pair."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    mean, half = math.fsum(logs) / len(logs), half_width(logs)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(min(mean + half, 700.0)))
