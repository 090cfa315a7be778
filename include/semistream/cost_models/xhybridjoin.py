"""X-HYBRIDJOIN's and Tuned X-HYBRIDJOIN's cost model.

Naeem: *Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing* (2013), "[1]" below.

Corrections, beside the printed equations:

- *expected count*: Eq. 6 is derived with p (1 - p), the variance of a Bernoulli trial, where the expected number of matches of w
  tuples is w p. With that, w = h_S p_old / (1 + p_old - p_new).
- *oldest first*: Eq. 4 gives every partition the same chance to be read; but the oldest tuple chooses it, as in HYBRIDJOIN, whose
  steady state over the keys that are not resident gives w here.
- *observed residents*: the non-swappable part has the keys that were most frequent in the first full H_S, not the most probable
  ones.
- *second probe*: the non-swappable part is probed each iteration, at an iteration's costs for finding and removing.
- *iteration*: c_I, as in MESHJOIN; *reading ahead* as in HYBRIDJOIN.
"""

from __future__ import annotations

import math

import numpy as np

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.harmonic import harmonic, power_sum
from semistream.cost_models.hybridjoin import reads


def memory(m: float, k: float, l: float, v_p: float, alpha: float) -> dict[str, float]:  # noqa: E741
    """The terms of M = (k + l) v_P + alpha [M - (k + l) v_P] + (1 - alpha)[M - (k + l) v_P], bytes; [1] Eq. 1."""
    rest = m - (k + l) * v_p
    return {"swappable part": k * v_p, "non-swappable part": l * v_p, "H_S": alpha * rest, "queue": (1 - alpha) * rest}


def c_loop(c_io: float, d_n: float, d_s: float, c_h: float, w: float, c_o: float, c_e: float, c_s: float, c_a: float) -> float:
    """c_IO(k v_P) + (d_N + d_S) c_H + w (c_O + c_E + c_S + c_A), seconds; [1] Eq. 2."""
    return c_io + (d_n + d_s) * c_h + w * (c_o + c_e + c_s + c_a)


def service_rate(w: float, c_loop: float) -> float:
    """mu = w / c_loop, tuples/s; [1] Eq. 3."""
    return w / c_loop


def p_old(d_n: float, d_s: float, r_t: float, exponent: float = 1.0) -> float:
    """p_old = (1 / n) sum of p_k over the n partitions of R', p_k = sum x**-s in partition k over sum x**-s in R'; [1] Eq. 4.

    The p_k add up to 1, so that it is 1 / n: the sum is taken as printed, all the same.
    """
    n = math.ceil((r_t - d_n) / d_s)
    k = np.arange(1, n + 1)
    p_k = power_sum(d_n + (k - 1) * d_s + 1, np.minimum(d_n + k * d_s, r_t), exponent) / power_sum(d_n + 1, r_t, exponent)
    return float(p_k.sum() / n)


def p_new(d_n: float, d_s: float, r_t: float, exponent: float = 1.0) -> float:
    """p_new = p_N + p_S / n with p_N = H(d_N) / H(R_t), p_S = 1 - p_N; [1] Eq. 5."""
    n = math.ceil((r_t - d_n) / d_s)
    p_n = float(harmonic(d_n, exponent) / harmonic(r_t, exponent))
    return p_n + (1 - p_n) / n


def w(h_s: float, p_old: float, p_new: float) -> float:
    """w = h_S p_old (1 - p_old) / (1 + p_old (1 - p_old) - p_new (1 - p_new)); [1] Eq. 6."""
    old, new = p_old * (1 - p_old), p_new * (1 - p_new)
    return h_s * old / (1 + old - new)


def w_expected(h_s: float, p_old: float, p_new: float) -> float:
    """w = h_S p_old / (1 + p_old - p_new): Eq. 6 with the *expected count*."""
    return h_s * p_old / (1 + p_old - p_new)


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float, resident_tuples: float | None = None,
            algorithm: str = "") -> Prediction:
    """disk_tuples: d_S; resident_tuples: d_N, in X-HYBRIDJOIN as many."""
    cut = work.partitions(disk_tuples)
    d_n = min(cut.most_tuples if resident_tuples is None else resident_tuples, work.master_tuples)
    sizes = {"disk_tuples": disk_tuples} | ({} if resident_tuples is None else {"resident_tuples": resident_tuples})
    algorithm = algorithm or ("x-hybridjoin" if resident_tuples is None else "tuned-x-hybridjoin")
    resident = d_n * work.resident_tuple_bytes
    left = memory - cut.most_bytes - resident
    h_s = left / work.indexed_tuple_bytes
    if 2 * cut.most_bytes > memory or h_s < 1:
        return infeasible(algorithm, sizes)
    parts = {"swappable part": cut.most_bytes, "non-swappable part": resident, "H_S": left}
    hit, missed = work.frequencies.split(d_n / work.fan_out, h_s)
    share, present = hit / max(1 - hit, 1e-9), max(1 - missed.absent, 1e-9)
    left_over = missed.partitions(cut.number)
    rest = float(left_over.p @ left_over.keys)
    w_s = reads(left_over, h_s, share).w if rest > 1e-9 else h_s / (1 + share)  # else all that waits leaves at once
    w_n = w_s * share
    absent = w_s * (1 - present) / present
    s = work.symbols(costs, h_s, cut.tuples, phase="index")
    printed = c_loop(s.c_io, d_n, cut.tuples, s.c_h, w_n + w_s, s.c_o, s.c_e, s.c_s, s.c_a)
    corrected = work.beside(printed + s.c_i + s.c_2 + absent * s.c_s, s)
    return Prediction(algorithm, sizes, w_n, w_s + absent, corrected, printed, parts, h_s, d_n)
