"""Zipf-distributed keys, reproducible from any row on.

W. Hörmann, G. Derflinger: Rejection-inversion to generate variates from monotone discrete
distributions (1996). The method works for any exponent, without a table, with a constant expected
number of tries. The i-th key depends only on the seed and i, so that a source can be read again
from any offset.
"""

from __future__ import annotations

from math import exp, expm1, gcd, log, log1p

import numpy as np

from semistream.compiled import filled, njit
from semistream.errors import ConfigError


class ZipfKeys:
    """Keys 1..count. The key of rank r is drawn with probability proportional to r**-exponent.

    scattered: whether the ranks are spread over the keys, so that frequent keys are not neighbours;
    otherwise key = rank. drift: number of rows after which the ranks move to other keys; 0 for
    never.
    """

    def __init__(
        self, count: int, exponent: float, seed: int = 0, scattered: bool = False, drift: int = 0
    ):
        if not 1 <= count < 2**53:
            raise ConfigError(
                "count", "must be in [1, 2**53)", count, "It is R_t, the number of different keys."
            )
        if not 0 <= exponent < 100:
            raise ConfigError(
                "exponent", "must be in [0, 100)", exponent, "0 is uniform, 1 is Zipf's law."
            )
        self.count, self.exponent, self.seed, self.drift = count, float(exponent), seed, drift
        self.factor = _coprime(count, seed) if scattered else 1

    def draw(self, start: int, rows: int) -> np.ndarray:
        """Return the keys of the rows start .. start + rows - 1, int64[rows]."""
        return filled(
            _draw,
            rows,
            np.int64,
            start,
            rows,
            self.count,
            self.exponent,
            np.uint64(self.seed % 2**64),
            self.factor,
            self.drift,
        )

    def keys_of(self, ranks: np.ndarray) -> np.ndarray:
        """Return the key of each rank in the first rows, int64[n], for a count below 2**31."""
        return ranks if self.factor == 1 else ranks * np.int64(self.factor) % self.count + 1


def _coprime(count: int, seed: int) -> int:
    """Return a factor f, such that rank -> rank * f mod count is one to one and separates
    neighbours."""
    factor = max(1, int(count * 0.6180339887498949) + seed % 97)
    while gcd(factor, count) != 1:
        factor += 1
    return factor % count or 1


@njit(inline="always")
def uniform(seed, row, attempt):
    """Return a number in (0, 1) from splitmix64 over (seed, row, attempt)."""
    z = (
        seed
        + np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(attempt) * np.uint64(0xD1B54A32D192ED03)
    )
    for _ in range(2):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (np.float64(z >> np.uint64(11)) + 0.5) * 2.0**-53


@njit(inline="always")
def _integral(x, z):
    """Return H(x), an antiderivative of x**-z."""
    t = (1.0 - z) * log(x)
    return log(x) if abs(t) < 1e-12 else expm1(t) / (1.0 - z)


@njit(inline="always")
def _inverse(u, z):
    """Return the x with H(x) = u."""
    t = u * (1.0 - z)
    return exp(u) if abs(t) < 1e-12 else exp(log1p(max(t, -1.0)) / (1.0 - z))


@njit(cache=True)
def _draw(start, rows, count, z, seed, factor, drift, out):
    """Write the keys of ``ZipfKeys.draw``.

    out     out int64[rows]
    """
    turn = np.int64(count * 0.3819660112501051)  # two turns share few frequent keys
    low, high = _integral(1.5, z) - 1.0, _integral(count + 0.5, z)
    for i in range(rows):
        attempt = 0
        while True:
            u = high + uniform(seed, start + i, attempt) * (low - high)
            x = _inverse(u, z)
            k = min(max(np.int64(x + 0.5), 1), count)
            if u >= _integral(k + 0.5, z) - exp(-z * log(np.float64(k))):
                break
            attempt += 1
        if drift:
            k = (k - 2 + _scatter((start + i) // drift, turn, count)) % count + 1
        out[i] = k if factor == 1 else _scatter(k, factor, count)


@njit(inline="always")
def _scatter(rank, factor, count):
    """Return rank * factor mod count in 1..count, without overflow for count < 2**53."""
    total, a, b = np.int64(0), np.int64(rank % count), np.int64(factor)
    if count < 2**31:
        return a * b % count + 1
    while b:
        if b & 1:
            total = (total + a) % count
        a = a * 2 % count
        b >>= 1
    return total + 1
