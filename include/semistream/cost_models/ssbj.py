"""SSBJ's cost model.

Naeem, Weber, Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join*, "[1]" below.

Corrections, beside the printed equations:

- *steady state*: the paper measures w_N and w_S; here they follow from the cache inequality. With T stream tuples per R-cycle,
  the values with p T v_S > sf m v_R are in H_R, H_S has the rest of M, and T is what fills it: one equation, solved by
  bisection.
- *real bytes*: v_S and v_R are the bytes that a tuple takes in H_S and H_R, links and table included; a cached value takes v_E
  beside its tuples; candidates for switching take a fiftieth of M. Eq. 1 has v_P + f v_S, f v_R and neither of the others.
- *absent values*: a value that has no master tuple is in H_R for the v_E that it takes, where p T v_S > sf v_E.
- *look-up of the misses*: Eq. 2 lacks w_S c_H, as SSJ's does.
- *two cycles of three*: a disk tuple is looked up among the candidates in the incrementing and in the switching cycle only.
- *iteration*, *reading ahead*, *late materialisation*, *largest chunk*: those of MESHJOIN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.meshjoin import unread
from semistream.joins.sequential import largest_chunk
from semistream.joins.ssbj import CANDIDATE_BYTES, LEAST_H_S, most_candidates


def memory(b: float, h_r: float, f: float, v_r: float, w_s: float, r_t: float, v_p: float, v_s: float) -> float:
    """M = (b + h_R f) v_R + w_S (R_t / b)(v_P + f v_S), bytes; [1] Eq. 1."""
    return (b + h_r * f) * v_r + w_s * (r_t / b) * (v_p + f * v_s)


def c_loop(c_io: float, b: float, c_h: float, c_b: float, w_n: float, c_s: float, c_o: float, w_s: float, c_e: float,
           c_a: float) -> float:
    """c_IO(b) + b (c_H + c_B) + w_N (c_S + c_H + c_O) + w_S (c_E + c_S + c_A + c_O), seconds; [1] Eq. 2."""
    return c_io + b * (c_h + c_b) + w_n * (c_s + c_h + c_o) + w_s * (c_e + c_s + c_a + c_o)


def service_rate(w_n: float, w_s: float, c_loop: float) -> float:
    """mu = (w_N + w_S) / c_loop, tuples/s; [1] Eq. 3, and lambda at a stable rate, Eq. 5."""
    return (w_n + w_s) / c_loop


def arrival_rate(c_loop: float, h_r: float, f: float, v_r: float, b: float, w_s: float, r_t: float, v_p: float,
                 v_s: float) -> float:
    """lambda = 1 / c_loop [h_R v_R f + b v_R + w_S (R_t / b)(v_P + f v_S)]; [1] Eq. 6, as printed.

    It puts bytes in the place of the tuples of Eq. 5, so that it is a rate of memory, not of tuples: for a rate use Eq. 5.
    """
    return (h_r * v_r * f + b * v_r + w_s * (r_t / b) * (v_p + f * v_s)) / c_loop


def is_cached(m: float, v_r: float, n: float, v_s: float, sf: float = 1.0) -> bool:
    """The cache inequality: sf m v_R < n v_S, with m master tuples, n stream tuples of the value per R-cycle; [1] Theorem 2."""
    return sf * m * v_r < n * v_s


class Balance(NamedTuple):
    """Where the cache inequality settles."""

    tuples: float  # T, stream tuples per R-cycle
    h_r: float  # master tuples in H_R
    hit: float  # p_N, absent values too
    lost: float  # of it, those
    h_r_bytes: float
    h_s: float  # tuples in H_S


def balance(work: Workload, pool: float, partitions: float, disk_tuples: float, sf: float = 1.0) -> Balance:
    """The T at which H_S, with what H_R leaves of `pool` bytes, holds just the tuples of an R-cycle that miss H_R (*steady
    state*)."""
    v_s, each = work.stream_tuple_bytes, work.fan_out * work.cached_tuple_bytes + work.cached_key_bytes
    most = partitions * largest_chunk(disk_tuples)
    least = max(pool * LEAST_H_S, v_s * partitions)

    def at(t: float) -> Balance:
        c = work.frequencies.worth(sf * each / (t * v_s), sf * work.cached_key_bytes / (t * v_s), each, work.cached_key_bytes,
                                   pool - least)
        return Balance(t, c.keys * work.fan_out, c.hit, c.lost, c.bytes, min((pool - c.bytes) / v_s, most))

    low, high = math.log(partitions), math.log(max(pool / v_s, 2.0)) + 30.0
    for _ in range(50):
        middle = (low + high) / 2
        here = at(math.exp(middle))
        low, high = (middle, high) if here.tuples * (1 - here.hit) < here.h_s else (low, middle)
    return at(math.exp(low))


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float, switching_factor: float = 1.0) -> Prediction:
    """disk_tuples: b. The form with fixed M."""
    sizes, cut = {"disk_tuples": disk_tuples}, work.partitions(disk_tuples)
    candidates = most_candidates(int(memory)) * CANDIDATE_BYTES
    pool = memory - cut.most_bytes - candidates
    least = max(pool * LEAST_H_S, work.stream_tuple_bytes * cut.number)
    if 2 * cut.most_bytes > memory or pool < 2 * least:
        return infeasible("ssbj", sizes)
    x = balance(work, pool, cut.number, cut.most_tuples, switching_factor)
    parts = {"disk buffer": cut.most_bytes, "candidates": candidates, "H_R": x.h_r_bytes, "H_S": pool - x.h_r_bytes}
    w = x.tuples / cut.number
    w_n, w_s = w * x.hit, w * (1 - x.hit)
    s = work.symbols(costs, w_s * cut.number, cut.tuples, x.h_r)
    if x.hit > 1 - 1e-9:  # Theorem 3: a join in main memory, and the disk rests
        each = s.c_r + s.c_n + s.c_s
        return Prediction("ssbj", sizes, 1.0, 0.0, each, each, parts, 0.0, x.h_r)
    printed = c_loop(s.c_io, cut.tuples, s.c_h, s.c_b, 0.0, s.c_s, s.c_o, w_s, s.c_e, s.c_a) + w_n * (s.c_s + s.c_r + s.c_n)
    matches = w_s * (1 - (work.frequencies.absent - x.lost) / (1 - x.hit))
    corrected = printed + w_s * s.c_r - cut.tuples * s.c_b / 3 + s.c_i - s.c_p * unread(matches)
    return Prediction("ssbj", sizes, w_n, w_s, work.beside(corrected, s), printed, parts, w_s * cut.number, x.h_r)
