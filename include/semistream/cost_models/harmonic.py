"""Harmonic numbers H(n, s), the sum of x**-s over x = 1..n, for real s >= 0 and any n. The cost
does not depend on n."""

from __future__ import annotations

import numpy as np

EULER_GAMMA = 0.5772156649  # as the papers print it
_EXACT = 256  # terms summed one by one; beyond them, Euler-Maclaurin is exact to rounding


def harmonic(n: float | np.ndarray, exponent: float = 1.0) -> np.ndarray:
    """Return H(n, s), the generalised harmonic number, elementwise. n >= 0 is rounded down."""
    n = np.floor(np.asarray(n, np.float64))
    head = np.concatenate(
        [[0.0], np.cumsum(np.arange(1, _EXACT + 1, dtype=np.float64) ** -exponent)]
    )
    small = head[np.minimum(n, _EXACT).astype(np.int64)]
    tail = np.maximum(n, _EXACT)
    grown = lambda x: _integral(x, exponent) + _boundary(x, exponent)
    return small + grown(tail) - grown(_EXACT)


def harmonic_approximation(n: float | np.ndarray) -> np.ndarray:
    """Return ln n + gamma, which the papers use for H(n, 1)."""
    return np.log(n) + EULER_GAMMA


def power_sum(
    first: float | np.ndarray, last: float | np.ndarray, exponent: float = 1.0
) -> np.ndarray:
    """Return the sum of x**-s over x = first..last; 0 if last < first."""
    return np.maximum(harmonic(last, exponent) - harmonic(np.asarray(first) - 1, exponent), 0.0)


def _integral(x: float | np.ndarray, s: float) -> np.ndarray:
    """Return the antiderivative of x**-s, without cancellation near s = 1."""
    t = (1.0 - s) * np.log(x)
    return np.log(x) * np.where(np.abs(t) < 1e-12, 1.0, np.expm1(t) / np.where(t == 0, 1.0, t))


def _boundary(x: float | np.ndarray, s: float) -> np.ndarray:
    """Return the Euler-Maclaurin terms at a bound: f/2 + f'/12 - f'''/720 of f = x**-s."""
    x = np.asarray(x, np.float64)
    f = x**-s
    return f / 2 - s * f / (12 * x) + s * (s + 1) * (s + 2) * f / (720 * x**3)
