"""Arrival times of a stream's tuples: steady, or bursty and self-similar, like the market data of
Naeem: *Tuned X-HYBRIDJOIN* (Table 1).

M. Wang, T. Madhyastha, N. H. Chan, S. Papadimitriou, C. Faloutsos: *Data Mining Meets Performance
Evaluation: Fast Algorithms for Modeling Bursty Traffic*, ICDE 2002, the b-model: a share b of the
tuples of an interval arrives in one of its halves, chosen at random, and the others in the other
half; each half is divided in the same way. A burst therefore consists of smaller bursts with the
same structure.

The random choices depend only on the seed and the interval, so that a source can be read again from
any tuple.
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import filled, njit
from semistream.errors import ConfigError
from semistream.workloads.zipf import uniform

HALVINGS = 16  # halvings of a period, down to intervals in which tuples come steadily


class ArrivalTimes:
    """The arrival times, in seconds from 0 on, of tuples that arrive at ``rate`` per second on
    average.

    burstiness: b, 0.5 is steady; period: seconds; all periods have the same number of tuples, so
    that no burst is longer than a period.
    """

    def __init__(self, rate: float, burstiness: float = 0.5, period: float = 600.0, seed: int = 0):
        for name, value in (("rate", rate), ("period", period)):
            if not 0 < value < np.inf:
                raise ConfigError(name, "must be a positive number", value, "Give one.")
        if not 0.5 <= burstiness < 1:
            raise ConfigError(
                "burstiness",
                "must be in [0.5, 1)",
                burstiness,
                "0.5 is steady; 0.7 is usual for bursty traffic.",
            )
        self.rate, self.burstiness, self.period = rate, burstiness, period
        self._model = (
            rate * period,
            period,
            burstiness,
            HALVINGS if burstiness > 0.5 else 0,
            np.uint64(seed % 2**64),
        )

    def of(self, start: int, tuples: int) -> np.ndarray:
        """Return the arrival times of the tuples start .. start + tuples - 1, float64[tuples],
        ascending."""
        return filled(_times, tuples, np.float64, start, tuples, *self._model)

    def until(self, seconds: float) -> int:
        """Return the number of tuples that have arrived by this time."""
        return int(_until(seconds, *self._model))


@njit(inline="always")
def _left_share(seed, period, node, b):
    """Return the share of an interval's tuples that arrives in its first half.

    period: the period's number; node: the interval's number in the binary tree of halves, where the
    halves of node n are 2 n and 2 n + 1.
    """
    return b if uniform(seed, (np.int64(period) << (HALVINGS + 1)) + node, 0) < 0.5 else 1.0 - b


@njit(cache=True)
def _times(start, tuples, mass, period, b, halvings, seed, out):
    """Write the arrival times of tuples. mass: number of tuples in a period.

    out     out float64[tuples]
    """
    for i in range(tuples):
        number = np.floor((start + i + 1) / mass)
        left_over, m, width, at, node = (start + i + 1) - number * mass, mass, period, 0.0, 1
        for _ in range(halvings):
            first = m * _left_share(seed, number, node, b)
            width, node = width / 2, 2 * node
            if left_over < first:
                m = first
            else:
                left_over, m, at, node = left_over - first, m - first, at + width, node + 1
        out[i] = number * period + at + left_over / m * width


@njit(cache=True)
def _until(seconds, mass, period, b, halvings, seed):
    """Return the number of tuples that have arrived by this time."""
    number = np.floor(seconds / period)
    rest, m, width, came, node = seconds - number * period, mass, period, 0.0, 1
    for _ in range(halvings):
        first = m * _left_share(seed, number, node, b)
        width, node = width / 2, 2 * node
        if rest < width:
            m = first
        else:
            rest, m, came, node = rest - width, m - first, came + first, node + 1
    return np.floor(number * mass + came + rest / width * m)
