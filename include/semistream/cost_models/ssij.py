"""SSIJ's cost model.

Bornea, Deligiannakis, Kotidis, Vassalos: *Semi-Streamed Index Join for Near-Real Time Execution of ETL Transformations* (2011).
The papers at hand note that it has no cost model; this one is ours, in their style, for the reading of ``joins/ssij.py``:

    M = d v_R + (d (v_R + v_E) + 5) places + 5 N + h_S v_S
    c_loop = c_IO(d) + d c_H + w_S (c_O + c_E + c_S + c_A + c_H) + w_N (c_H + c_O + c_S) + c_I + plan

One iteration is one block read. w_N follows from the share of the stream that the most useful blocks take. For w_S, a plan is
made after T = h_S / 8 arrivals and reads the blocks for which at least c tuples wait. A block of probability P gains P T tuples
from plan to plan; where that is less than c, it is read with c + P T / 2 of them, and (c + P T) / 2 wait on average; otherwise
both are P T. c is what makes h_S wait. A plan looks at every waiting tuple to free an eighth of them.
*Reading ahead* is that of MESHJOIN.
"""

from __future__ import annotations

import numpy as np

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.frequencies import Frequencies
from semistream.joins.ssij import FREED, BlockCache


def memory(d: float, v_r: float, places: float, v_cached: float, v_e: float, n: float, h_s: float,
           v_s: float) -> dict[str, float]:
    """The terms of M, bytes."""
    return {"disk buffer": d * v_r, "utility counters": n * BlockCache.BLOCK,
            "block cache": places * (int(d * (v_cached + v_e)) + 1),
            "H_S": h_s * v_s}


def c_loop(c_io: float, d: float, c_h: float, w_s: float, c_o: float, c_e: float, c_s: float, c_a: float, c_r: float, w_n: float,
           c_n: float) -> float:
    """c_IO(d) + d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S), seconds; c_R, c_N: c_H and c_O of the
    cache."""
    return c_io + d * c_h + w_s * (c_o + c_e + c_s + c_a + c_r) + w_n * (c_r + c_n + c_s)


def finished(blocks: Frequencies, h_s: float) -> float:
    """w_S: stream tuples finished by one block read, for uncached blocks of these probabilities."""
    gain, many = blocks.p * h_s * FREED, blocks.keys
    low, high = 0.0, 2 * h_s
    for _ in range(40):
        c = (low + high) / 2
        waiting = float(many @ np.where(gain < c, (c + gain) / 2, gain))
        low, high = (c, high) if waiting < h_s else (low, c)
    return 1 / float(many @ (blocks.p / np.maximum(np.maximum(low + gain / 2, gain), 1.0)))


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float, cache_share: float) -> Prediction:
    """disk_tuples: d; cache_share: of the memory beside the disk buffer and the counters, what caches blocks."""
    sizes, cut = {"disk_tuples": disk_tuples, "cache_share": cache_share}, work.partitions(disk_tuples)
    left = memory - cut.most_bytes - cut.number * BlockCache.BLOCK
    block = int(cut.most_tuples * (work.cached_tuple_bytes + work.cached_key_bytes + BlockCache.ENTRY)) + 1
    places = min(cache_share * left / block, cut.number)
    if work.cut is not None:
        places = int(places)
    h_s = (left - places * block) / work.indexed_tuple_bytes
    if 2 * cut.most_bytes > memory or h_s < 1:
        return infeasible("ssij", sizes)
    parts = {"disk buffer": cut.most_bytes, "utility counters": cut.number * BlockCache.BLOCK, "block cache": places * block,
             "H_S": left - places * block}
    blocks = work.frequencies.partitions(cut.number)
    hit, h_r = blocks.top(places), places * cut.tuples
    s = work.symbols(costs, h_s, cut.tuples, h_r, "index")
    present = 1 - work.frequencies.absent - hit
    if present < 1e-9:  # what R has is cached, what it has not the index knows
        each = s.c_r + s.c_n + s.c_s
        return Prediction("ssij", sizes, 1.0, 0.0, each, each, parts, 0.0, h_r)
    rest = blocks.without(places)
    w = finished(Frequencies(rest.p / max(1 - rest.absent, 1e-9), rest.keys), h_s)
    w_s = w * (1 - hit) / max(present, 1e-9)
    w_n = w_s * hit / (1 - hit)
    plain = c_loop(s.c_io, cut.tuples, s.c_h, w, s.c_o, s.c_e, s.c_s, s.c_a, s.c_r, w_n, s.c_n)
    corrected = plain + s.c_i + (w_s - w) * (s.c_s + s.c_r) + w * s.c_e / FREED / 8
    return Prediction("ssij", sizes, w_n, w_s, work.beside(corrected, s), plain, parts, h_s, h_r)
