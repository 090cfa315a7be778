"""Error bounds of a sketch's estimates.

Each of the s2 rows of a sketch gives an unbiased estimate, with a variance of at most V / s1. By
Chebyshev its error exceeds sqrt(V / (s1 q)) with probability at most q. The error of the rows'
median exceeds this only if half of the rows' errors do; the binomial distribution gives the exact
probability. N. Alon, Y. Matias, M. Szegedy: The Space Complexity of Approximating the Frequency
Moments (1996), Theorem 2.2, has q = 1/8 and Chernoff's bound in the place of the binomial tail.

F2 is a self-join size, the sum of squared frequencies; J a join size.
"""

from __future__ import annotations

import math
from functools import cache

FAILURE = 0.05  # probability that a bound does not hold


@cache
def row_failure(s2: int, failure: float) -> float:
    """Return q such that the median of s2 independent rows is off with probability at most
    ``failure`` if each row is off with probability at most q."""
    from scipy.special import betaincinv  # a slow import, not needed to keep sketches

    # rows that may be off while the middle one is not; of an even number, both middle ones count
    most = s2 // 2
    most = most if s2 % 2 else most - 1
    return float(betaincinv(most + 1, s2 - most, failure))  # P(binomial(s2, q) > most) = failure


def estimated_join_error(
    f2_left: float, f2_right: float, estimate: float, s1: int, s2: int, failure: float = FAILURE
) -> float:
    """Return an error of the median of s2 estimates of a join size J, computed from such an
    estimate. The error is exceeded only with probability ``failure``.

    V, the variance of the product of two atomic sketches, is at most F + J**2, F = F2_left F2_right
    (Alon, Gibbons, Matias, Szegedy: Tracking Join and Self-Join Sizes in Limited Storage, 1999,
    Lemma 4.4); the same bounds s1 times the variance of a row of two hash sketches' product. So V
    <= F + (|estimate| + error)**2, and error**2 s1 q <= F + (|estimate| + error)**2, of which this
    is the larger root; or by Cauchy and Schwarz V <= 2 F, if that is less.
    """
    f, e, s = f2_left * f2_right, abs(estimate), s1 * row_failure(s2, failure)
    always = math.sqrt(2 * f / s)
    return min(always, (e + math.sqrt(e**2 + (s - 1) * (f + e**2))) / (s - 1)) if s > 1 else always


def self_join_size(
    estimate: float, most: float, s1: int, s2: int, failure: float = FAILURE
) -> float:
    """Return an upper bound of F2, which fails with probability ``failure``: a row's estimate has V
    <= 2 F2**2. most: a bound of F2 that always holds."""
    off = math.sqrt(2 / (s1 * row_failure(s2, failure)))
    return min(estimate / (1 - off), most) if off < 1 else most
