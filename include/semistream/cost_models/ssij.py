"""SSIJ's cost model.

Bornea, Deligiannakis, Kotidis, Vassalos: *Semi-Streamed Index Join for Near-Real Time Execution of
ETL Transformations* (2011). The papers at hand note that it has no cost model; this one is ours, in
their style, for the reading of ``joins/ssij.py``:

    M = d v_R + 5 N + capacity (d (v_R + v_E) + 1) + h_S v_S
    c_loop = c_IO(d) + d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S) + c_I +
    plan

An iteration is a block read. w_N follows from the share of the stream that the most useful blocks
take. For w_S, a plan is made after T = h_S / 8 arrivals, and reads the blocks for which at least c
tuples wait. A block of probability P gains P T tuples between two plans. If that is less than c, it
is read with c + P T / 2 tuples, and (c + P T) / 2 wait on average; otherwise both are P T. c
follows from the h_S waiting tuples. A plan examines every waiting tuple to free an eighth of them.
*Reading ahead* is that of MESHJOIN.
"""

from __future__ import annotations

import math

import numpy as np

from semistream.cost_models.costs import Costs, Cut, Prediction, Workload, infeasible
from semistream.cost_models.course import Course
from semistream.cost_models.frequencies import Frequencies
from semistream.cost_models.solve import crossing
from semistream.cost_models.ssj import in_memory
from semistream.joins.block_cache import BlockCache
from semistream.joins.ssij import FREED


def memory(
    *, m: float, d: float, v_r: float, n: float, capacity: float, v_h: float, v_e: float
) -> dict[str, float]:
    """Return the terms of M, bytes. H_S gets the rest.

    v_h, v_e: bytes of a cached tuple and of its key.
    """
    taken = {
        "disk buffer": d * v_r,
        "utility counters": n * BlockCache.BLOCK,
        "block cache": capacity * (int(d * (v_h + v_e)) + 1),
    }
    return taken | {"H_S": m - sum(taken.values())}


def c_loop(
    *,
    c_io: float,
    d: float,
    c_h: float,
    w_s: float,
    c_o: float,
    c_e: float,
    c_s: float,
    c_a: float,
    c_r: float,
    w_n: float,
    c_n: float,
) -> float:
    """Return c_IO(d) + d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S), seconds.
    c_R and c_N are c_H and c_O of the cache."""
    return c_io + d * c_h + w_s * (c_o + c_e + c_s + c_a + c_r) + w_n * (c_r + c_n + c_s)


def finished(blocks: Frequencies, h_s: float) -> float:
    """Return w_S, the stream tuples that one block read finishes, for uncached blocks of these
    probabilities."""
    gain, many = blocks.p * h_s * FREED, blocks.keys

    def surplus(log_c: float) -> float:
        """Return ln(n / h_S), where n is the number of waiting tuples in the steady state of a join
        whose plans read each block for which at least c = e^log_c tuples wait. It is 0 for the
        right c."""
        c = math.exp(log_c)
        return math.log(float(many @ np.where(gain < c, (c + gain) / 2, gain)) / h_s)

    all_waiting = math.log(2 * h_s)
    each = all_waiting - math.log(max(blocks.count, 1.0))
    c = math.exp(crossing(surplus, -30.0, all_waiting, near=each))
    return 1 / float(many @ (blocks.p / np.maximum(np.maximum(c + gain / 2, gain), 1.0)))


def cached_blocks(
    work: Workload, m: float, cut: Cut, share: float
) -> tuple[float, dict[str, float]]:
    """Return how many blocks the cache holds, and how M is divided, bytes. share: the share of the
    memory besides the disk buffer and the counters that caches blocks."""
    layout = {
        "m": m,
        "d": cut.most_tuples,
        "v_r": cut.tuple_bytes,
        "n": cut.number,
        "v_h": work.cached_tuple_bytes,
        "v_e": work.cached_key_bytes + BlockCache.ENTRY,
    }
    left = memory(capacity=0, **layout)["H_S"]
    capacity = min(share * left / memory(capacity=1, **layout)["block cache"], cut.number)
    if work.cut is not None:
        capacity = int(capacity)
    return capacity, memory(capacity=capacity, **layout)


def predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, cache_share: float
) -> Prediction:
    """Predict SSIJ's performance. m: M, bytes; disk_tuples: d; cache_share: share of the memory
    besides the disk buffer and the counters that caches blocks."""
    sizes = {"disk_tuples": disk_tuples, "cache_share": cache_share}
    cut = work.partitions(disk_tuples)
    capacity, parts = cached_blocks(work, m, cut, cache_share)
    h_s = parts["H_S"] / work.indexed_tuple_bytes
    if not cut.fits(m) or h_s < 1:
        return infeasible("ssij", sizes)
    blocks = work.frequencies.partitions(cut.number)
    hit, h_r = blocks.top(capacity), capacity * cut.tuples
    s = work.symbols(costs, h_s, cut.tuples, h_r, "index")
    course = Course(
        work.tuples,
        cut.number,
        s.c_io + cut.tuples * s.c_h + s.c_i,
        s.c_o + s.c_e + s.c_s + s.c_a + s.c_r,
        h_s,
    ).filled_after(1.0, 2 * h_s)
    present = 1 - work.frequencies.absent - hit
    if present < 1e-9:  # all of R is cached, and the index recognises absent keys
        return in_memory("ssij", sizes, s, h_r, parts, course)
    rest = blocks.without(capacity)
    w = finished(Frequencies(rest.p / max(1 - rest.absent, 1e-9), rest.keys), h_s)
    w_s = w * (1 - hit) / max(present, 1e-9)
    w_n = w_s * hit / (1 - hit)
    plain = c_loop(
        c_io=s.c_io,
        d=cut.tuples,
        c_h=s.c_h,
        w_s=w,
        c_o=s.c_o,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
        c_r=s.c_r,
        w_n=w_n,
        c_n=s.c_n,
    )
    corrected = plain + s.c_i + (w_s - w) * (s.c_s + s.c_r) + w * s.c_e / FREED / 8
    return Prediction(
        "ssij", sizes, w_n, w_s, work.overlap(corrected, s), plain, parts, h_s, h_r, course=course
    )
