"""Basic AGMS sketches.

N. Alon, P. B. Gibbons, Y. Matias, M. Szegedy: Tracking Join and Self-Join Sizes in Limited Storage
(1999).
"""

from __future__ import annotations

from typing import Self

import numpy as np

from semistream.compiled import njit
from semistream.errors import ConfigError
from semistream.sketches.bounds import FAILURE, estimated_join_error, self_join_size
from semistream.sketches.hashing import BITS, COEFFICIENTS, SIGNS, polynomial, random_field_elements
from semistream.sketches.sketch import Estimate, Sketch

ROWS = 5  # s2 for a given memory: it gives the least s2 / q, and so the least bound


class AgmsSketch(Sketch):
    """s2 rows of s1 atomic sketches X = sum of f(v) xi(v); J is the median over the rows of the
    mean over each of X_F X_G.

    The signs xi of neighbouring atomic sketches are the bits of one four-wise independent value.
    That is sufficient: the covariance of two of their products involves signs of at most four keys,
    so that the mean has the variance of independent sketches. Rows are independent.
    """

    name = "agms"
    least = ROWS * (8 + 8 * COEFFICIENTS)

    def __init__(self, s1: int, s2: int, seed: int = 0):
        super().__init__(s1, s2, seed)
        values = -(-s1 // SIGNS)
        self._signs = random_field_elements(seed, "agms", s2 * values * COEFFICIENTS).reshape(
            s2, values, COEFFICIENTS
        )

    @classmethod
    def for_memory(cls, memory: int, seed: int = 0) -> Self:
        row = memory // ROWS
        hashes = 8 * COEFFICIENTS
        full, rest = divmod(row, 8 * SIGNS + hashes)
        s1 = full * SIGNS + max(rest - hashes, 0) // 8
        if s1 < 1:
            raise ConfigError(
                "memory",
                f"must be at least {cls.least} bytes for a sketch",
                memory,
                "Some kilobytes are usual.",
            )
        return cls(s1, ROWS, seed)

    @property
    def memory_bytes(self) -> int:
        return self.counters.nbytes + self._signs.nbytes

    def join_size(self, other: Self, failure: float = FAILURE) -> Estimate:
        self._check(other)
        x, y = self.counters.astype(float), other.counters.astype(float)
        value = float(np.median((x * y).mean(axis=1)))
        f2_left, f2_right = (
            self_join_size(
                float(np.median((c * c).mean(axis=1))),
                float(s.inserted + s.deleted) ** 2,
                s.s1,
                s.s2,
                failure / 3,
            )
            # the failure probability in three parts: two self-join sizes, and the join size
            for c, s in ((x, self), (y, other))
        )
        return Estimate(
            value, estimated_join_error(f2_left, f2_right, value, self.s1, self.s2, failure / 3)
        )

    def _update(self, codes: np.ndarray, weights: np.ndarray) -> None:
        # updates cost more than sorting
        codes, which = np.unique(codes, return_inverse=True)
        totals = np.zeros(len(codes), np.int64)
        np.add.at(totals, which, weights)
        _add(self._points(codes), totals, self._signs, self.counters)


@njit(cache=True)
def _add(points, weights, signs, counters):
    """Add points with their weights to the atomic sketches.

    in      points uint64[n], weights int64[n], signs uint64[s2, values a row, COEFFICIENTS]
    in/out  counters int64[s2, s1]
    """
    s2, s1 = counters.shape
    negative = np.empty(SIGNS, np.int64)  # weight of the keys with sign -1, by bit
    total = weights.sum()
    for q in range(s2):
        for w in range(signs.shape[1]):
            a, b, c, d = signs[q, w, 0], signs[q, w, 1], signs[q, w, 2], signs[q, w, 3]
            negative[:] = 0
            for i in range(len(points)):
                value, weight = polynomial(points[i], a, b, c, d, BITS), weights[i]
                for bit in range(SIGNS):
                    negative[bit] += weight & -np.int64((value >> np.uint64(bit)) & np.uint64(1))
            for bit in range(min(SIGNS, s1 - SIGNS * w)):
                counters[q, SIGNS * w + bit] += total - 2 * negative[bit]
