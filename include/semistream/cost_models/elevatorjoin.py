"""ELEVATORJOIN's cost model, in the papers' style.

    M = d v_R + h_R (v_R + v_E) + h_S v_S + 32 N
    c_loop = c_IO(d) + d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S') + c_I
    w_S = 2 h_S / N

One iteration is one stop. c_S looks up in the index where a miss belongs, a hit's c_S' does not. H_S is full, and its tuples
are spread over the way that the elevator still has to go: a partition that comes next has the tuples of a whole sweep, one just
left has none, and 2 h_S / N leave at a stop.

The cost-balanced inequality settles where T = 2 h_S / (1 - p_N) stream tuples come in a sweep and the values with
(n - sqrt(n)) v_S > 2 phi (m v_R + v_E) are in H_R, n = p T, m = 0 for one without master tuples; phi is the share that reading R
has in the cost of a miss, sqrt(n) what chance may add to a sweep's count. One equation in T, solved by bisection. *Reading ahead*
is that of MESHJOIN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.meshjoin import unread
from semistream.joins.elevatorjoin import LEAST_H_S, SWITCH_SHARE
from semistream.joins.partitionroom import BLOCKS, PARTITION_BYTES, WIDTHS
from semistream.joins.sequential import largest_chunk


def memory(d: float, v_r: float, h_r: float, v_cached: float, v_e: float, n: float, h_s: float, v_s: float) -> dict[str, float]:
    """The terms of M, bytes."""
    return {"disk buffer": d * v_r, "H_R": h_r * (v_cached + v_e), "H_S": h_s * v_s + n * PARTITION_BYTES}


def c_loop(c_io: float, d: float, c_h: float, w_s: float, c_o: float, c_e: float, c_s: float, c_a: float, c_r: float, w_n: float,
           c_n: float, c_s_hit: float) -> float:
    """c_IO(d) + d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S'), seconds; c_R, c_N: c_H and c_O of H_R."""
    return c_io + d * c_h + w_s * (c_o + c_e + c_s + c_a + c_r) + w_n * (c_r + c_n + c_s_hit)


def is_cached(n: float, v_s: float, m: float, v_r: float, v_e: float, phi: float) -> bool:
    """The cost-balanced inequality n v_S > 2 phi (m v_R + v_E): n stream tuples of the value in a sweep, m master tuples."""
    return n * v_s > 2 * phi * (m * v_r + v_e)


def surely(a: float) -> float:
    """The n with n - sqrt(n) = a: more than so many stream tuples in a sweep, and chance alone does not make a value worth a."""
    return (0.5 + math.sqrt(0.25 + a)) ** 2


class Balance(NamedTuple):
    """Where the cost-balanced inequality settles."""

    tuples: float  # T, stream tuples per sweep
    h_r: float  # master tuples in H_R
    hit: float  # p_N, absent values too
    lost: float  # of it, those
    h_r_bytes: float
    h_s: float  # tuples in H_S
    phi: float


def balance(work: Workload, pool: float, number: float, disk_tuples: float, costs: Costs, cut_tuples: float,
            disk_share: float = 0.0) -> Balance:
    """The T in which H_S, with what H_R and the switching buffer leave of `pool` bytes, is turned over twice."""
    v_s, each = work.elevator_tuple_bytes, work.fan_out * work.cached_tuple_bytes + work.cached_key_bytes
    useful = largest_chunk(disk_tuples) * number / 2
    most = max(pool - max(pool * LEAST_H_S, v_s), 0.0)
    width = min(max(pool / v_s / (BLOCKS * number), WIDTHS[-1]), WIDTHS[0])
    if work.cut is not None:
        width = 2.0 ** math.floor(math.log2(width))
    empty = number * (width - 1) / 2  # half a block of each partition

    def at(t: float) -> Balance:
        phi = 1.0
        for _ in range(6):
            c = work.frequencies.worth(surely(2 * phi * each / v_s) / t, surely(2 * phi * work.cached_key_bytes / v_s) / t,
                                       each, work.cached_key_bytes, most)
            misses = max(t * (1 - c.hit), 1e-9)
            s = work.symbols(costs, misses / 2, cut_tuples, c.keys * work.fan_out, "elevator")
            others = misses * (s.c_o + s.c_e + s.c_a) + number * s.c_i
            disk = work.beside(number * (s.c_io + cut_tuples * s.c_h) + others, s, number) - others
            phi = disk_share or disk / (disk + others)
        left = pool - c.bytes - pool / SWITCH_SHARE
        keys, hit = c.keys, c.hit
        if min(left / v_s, useful) == useful:  # what H_S has no use for goes to H_R
            absent = c.bytes - c.keys * each
            keys = min(max(keys, (pool - useful * v_s - absent) / each), (most - absent) / each, work.frequencies.count)
            hit = work.frequencies.top(keys) + c.lost
        return Balance(t, keys * work.fan_out, hit, c.lost, c.bytes + (keys - c.keys) * each,
                       min(max(left / v_s - empty, 1.0), useful), phi)

    low, high = 0.0, math.log(max(pool / v_s, 2.0)) + 30.0
    for _ in range(40):
        middle = (low + high) / 2
        here = at(math.exp(middle))
        low, high = (middle, high) if here.tuples * (1 - here.hit) < 2 * here.h_s else (low, middle)
    return at(math.exp(low))


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float, disk_share: float = 0.0) -> Prediction:
    """disk_tuples: d; disk_share: phi, 0: as the costs have it."""
    sizes, cut = {"disk_tuples": disk_tuples}, work.partitions(disk_tuples)
    pool = memory - cut.most_bytes - cut.number * PARTITION_BYTES
    if 2 * cut.most_bytes > memory or pool < work.elevator_tuple_bytes:
        return infeasible("elevatorjoin", sizes)
    all_of_r = work.values * (work.fan_out * work.cached_tuple_bytes + work.cached_key_bytes)
    if all_of_r <= pool * (1 - LEAST_H_S):
        s = work.symbols(costs, 1, 1, work.master_tuples, "elevator")
        each = s.c_r + s.c_n + work.symbols(costs, 1, 1).c_s
        return Prediction("elevatorjoin", sizes, 1.0, 0.0, each, each,
                          {"disk buffer": cut.most_bytes, "H_R": all_of_r, "H_S": pool - all_of_r}, 0.0, work.master_tuples)
    x = balance(work, pool, cut.number, cut.most_tuples, costs, cut.tuples, disk_share)
    w_s = 2 * x.h_s / cut.number
    w_n = w_s * x.hit / max(1 - x.hit, 1e-9)
    s = work.symbols(costs, x.h_s, cut.tuples, x.h_r, "elevator")
    matches = w_s * (1 - (work.frequencies.absent - x.lost) / max(1 - x.hit, 1e-9))
    plain = c_loop(s.c_io - s.c_p * unread(matches), cut.tuples, s.c_h, w_s, s.c_o, s.c_e, s.c_s, s.c_a, s.c_r, w_n, s.c_n,
                   work.symbols(costs, 1, 1).c_s)
    h_s = x.h_s * work.elevator_tuple_bytes + cut.number * PARTITION_BYTES
    return Prediction("elevatorjoin", sizes, w_n, w_s, work.beside(plain + s.c_i, s), plain,
                      {"disk buffer": cut.most_bytes, "H_R": memory - cut.most_bytes - h_s, "H_S": h_s}, x.h_s, x.h_r)
