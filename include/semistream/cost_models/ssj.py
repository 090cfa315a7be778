"""SSJ's cost model, and its tuning model.

Naeem, Jamil: *An Efficient Stream-based Join to Process End User Transactions in Real-Time Data Warehousing* (2014), "[1]" below.

Corrections, beside the printed equations:

- *look-up of the misses*: a stream tuple that H_R does not know was looked up there as well, w_S c_H, which Eq. 2 lacks.
- *condition of the misses*: Eq. 8 sums the probability that any stream tuple falls into a segment of R'; but the tuples in H_S
  are known to belong to R'. Their mean probability is 1 / N.
- *key bytes*: a cached tuple also takes a place in H_R's table, and newcomers gather in a buffer an eighth as large.
- *partial chunk*: the disk phase also starts when the stream buffer is empty, with a chunk that is not full.
- *detection*: finding the frequent ones among a partition's tuples costs c_D and c_M per match, beside d c_F.
- *iteration*, *reading ahead*, *late materialisation*, *largest chunk*: those of MESHJOIN.
"""

from __future__ import annotations

import math

from semistream.cost_models.costs import Costs, Prediction, Symbols, Workload, infeasible
from semistream.cost_models.harmonic import EULER_GAMMA, harmonic, power_sum
from semistream.cost_models.meshjoin import chunk_of, unread
from semistream.joins.front import SWITCH_SHARE

RECORDER_BYTES = 8  # per tuple of H_R, as printed


def memory(m: float, k: float, l: float, v_p: float, h_r: float, alpha: float) -> dict[str, float]:  # noqa: E741
    """The terms of M = (k + l) v_P + 8 h_R + alpha [..] + (1 - alpha) [..], bytes; [1] Eq. 1, [..] = M - (k + l) v_P - 8 h_R."""
    rest = m - (k + l) * v_p - RECORDER_BYTES * h_r
    return {"disk buffer": k * v_p, "H_R": l * v_p, "frequency recorder": RECORDER_BYTES * h_r, "H_S": alpha * rest,
            "queue": (1 - alpha) * rest}


def c_loop(c_io: float, d: float, c_h: float, c_f: float, w_s: float, c_o: float, c_e: float, c_s: float, c_a: float,
           w_n: float) -> float:
    """c_IO(k v_P) + d (c_H + c_F) + w_S (c_O + c_E + c_S + c_A) + w_N (c_H + c_O + c_S), seconds; [1] Eq. 2."""
    return c_io + d * (c_h + c_f) + w_s * (c_o + c_e + c_s + c_a) + w_n * (c_h + c_o + c_s)


def c_loop_with_misses(c_io: float, d: float, c_h: float, c_f: float, w_s: float, c_o: float, c_e: float, c_s: float, c_a: float,
                       w_n: float) -> float:
    """Eq. 2 with w_S c_H, the *look-up of the misses* in H_R."""
    return c_loop(c_io, d, c_h, c_f, w_s, c_o, c_e, c_s, c_a, w_n) + w_s * c_h


def service_rate(w_n: float, w_s: float, c_loop: float) -> float:
    """mu = (w_N + w_S) / c_loop, tuples/s; [1] Eq. 3."""
    return (w_n + w_s) / c_loop


def p_n(h_r: float, r_t: float, exponent: float = 1.0) -> float:
    """p_N = H(h_R) / H(R_t), the share of the stream that H_R serves; [1] Eq. 4, with any Zipf exponent."""
    return float(harmonic(h_r, exponent) / harmonic(r_t, exponent))


def p_n_logarithm(h_r: float, r_t: float) -> float:
    """p_N = ln h_R / ln R_t; [1] Eq. 5."""
    return math.log(h_r) / math.log(r_t)


def p_n_power(r_t: float, h_r: float, phi_n: float, psi_n: float) -> float:
    """p_N = R_t^y h_R^z with y = log2 phi_N, z = log2 psi_N, the factors when R_t and h_R are doubled; [1] Eq. 6."""
    return r_t ** math.log2(phi_n) * h_r ** math.log2(psi_n)


def fit_power(h_r: float, r_t: float) -> tuple[float, float]:
    """(phi_N, psi_N) of Eq. 6 as Eq. 5 has them at (h_R, R_t)."""
    here = p_n_logarithm(h_r, r_t)
    return p_n_logarithm(h_r, 2 * r_t) / here, p_n_logarithm(2 * h_r, r_t) / here


def w_n(p_n: float, s_n: float, n: float) -> float:
    """w_N = p_N S_n / n, with S_n stream tuples in n iterations; [1] Eq. 7."""
    return p_n * s_n / n


def p_s(h_r: float, r_t: float, n: float) -> float:
    """Mean p_S = (ln R_t - ln h_R) / (N (ln R_t + gamma)); [1] Eq. 8."""
    return (math.log(r_t) - math.log(h_r)) / (n * (math.log(r_t) + EULER_GAMMA))


def p_s_of_misses(h_r: float, r_t: float, n: float, exponent: float = 1.0) -> float:
    """Eq. 8 with the *condition of the misses*: divided by the share of the stream that misses H_R, it is 1 / N, whatever the
    skew."""
    missing = float(power_sum(h_r + 1, r_t, exponent) / harmonic(r_t, exponent))
    return float(power_sum(h_r + 1, r_t, exponent) / (n * harmonic(r_t, exponent))) / missing if missing else 0.0


def w_s(d: float, h_r: float, r_t: float, theta_s: float, psi_s: float, phi_s: float, h_s: float) -> float:
    """w_S = d^x h_R^y R_t^z h_S with x, y, z = log2 of theta_S, psi_S, phi_S, the factors of p_S at doubling; [1] Eq. 9, 10."""
    return d ** math.log2(theta_s) * h_r ** math.log2(psi_s) * r_t ** math.log2(phi_s) * h_s


def h_r_bytes(work: Workload, h_r: float) -> float:
    """Bytes of H_R and its switching buffer (*key bytes*)."""
    each = work.cached_tuple_bytes + work.cached_key_bytes
    return math.ceil((h_r + max(h_r // SWITCH_SHARE, 1)) * each) if work.cut is not None else h_r * (1 + 1 / SWITCH_SHARE) * each


def front(work: Workload, h_r: float) -> float:
    """p_N: share of the stream that an H_R of the h_R most frequent master tuples serves."""
    return work.frequencies.top(h_r / work.fan_out)


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float, cache_tuples: float,
            algorithm: str = "ssj") -> Prediction:
    """disk_tuples: d; cache_tuples: h_R."""
    sizes, cut = {"disk_tuples": disk_tuples, "cache_tuples": cache_tuples}, work.partitions(disk_tuples)
    cache = h_r_bytes(work, cache_tuples)
    left = memory - cut.most_bytes - cache
    h_s, hit = left / work.stream_tuple_bytes, front(work, cache_tuples)
    if 2 * cut.most_bytes > memory or h_s < cut.number:
        return infeasible(algorithm, sizes)
    if hit > 1 - 1e-9:
        parts = {"disk buffer": cut.most_bytes, "H_R": cache, "H_S": left}
        return in_memory(algorithm, sizes, work.symbols(costs, 1, 1, cache_tuples), cache_tuples, parts)
    w_s = chunk_of(work, h_s, cut.number, cut.most_tuples)
    if algorithm == "ssj" and math.isfinite(work.batch_tuples):
        w_s = work.batch_tuples * (1 - hit) / (math.floor(work.batch_tuples * (1 - hit) / w_s) + 1)
    w_n = w_s * hit / (1 - hit)
    s = work.symbols(costs, w_s * cut.number, cut.tuples, cache_tuples)
    printed = c_loop(s.c_io, cut.tuples, s.c_h, s.c_f, w_s, s.c_o, s.c_e, s.c_s, s.c_a, 0.0) + w_n * (s.c_r + s.c_n + s.c_s)
    matches = w_s * (1 - work.frequencies.absent / (1 - hit))
    corrected = printed + w_s * s.c_r + s.c_i + s.c_d + w_s * s.c_m - s.c_p * unread(matches)
    return Prediction(algorithm, sizes, w_n, w_s, work.beside(corrected, s), printed,
                      {"disk buffer": cut.most_bytes, "H_R": cache, "H_S": left}, w_s * cut.number, cache_tuples)


def in_memory(algorithm: str, sizes: dict[str, float], s: Symbols, h_r: float, memory: dict[str, float]) -> Prediction:
    """All that comes is in H_R: the disk rests, and an iteration is one stream tuple."""
    each = s.c_r + s.c_n + s.c_s
    return Prediction(algorithm, sizes, 1.0, 0.0, each, each, memory, 0.0, h_r)
