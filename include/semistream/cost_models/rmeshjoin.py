"""R-MESHJOIN's cost model: MESHJOIN's, per slice of a disk read. One iteration is one slice.

Naeem, Dobbie, Weber, Alam: *R-MESHJOIN for Near-Real-Time Data Warehousing* (2010), in our reading (``joins/r_meshjoin.py``).
Corrections: those of MESHJOIN. Each slice has an iteration's own cost c_I; the papers' costs, all per tuple, see no difference
between one slice and several.
"""

from __future__ import annotations

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.meshjoin import chunk_of, unread


def memory(b: float, v_r: float, w: float, n: float, q: float, v_ptr: float, f: float, v_s: float) -> float:
    """M = b v_R + w N q (v_ptr + f v_S), bytes."""
    return b * v_r + w * n * q * (v_ptr + f * v_s)


def c_loop(c_io: float, b: float, q: float, c_h: float, w: float, c_o: float, c_e: float, c_s: float, c_a: float) -> float:
    """c_IO(b) / q + (b / q) c_H + w (c_O + c_E + c_S + c_A), seconds per slice."""
    return c_io / q + b / q * c_h + w * (c_o + c_e + c_s + c_a)


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float, slices: float) -> Prediction:
    """disk_tuples: b; slices: q."""
    sizes, cut = {"disk_tuples": disk_tuples, "slices": slices}, work.partitions(disk_tuples)
    h_s, chunks = (memory - cut.most_bytes) / work.stream_tuple_bytes, cut.number * slices
    if 2 * cut.most_bytes > memory or h_s < chunks:
        return infeasible("r-meshjoin", sizes)
    w = chunk_of(work, h_s, chunks, cut.most_tuples / slices)
    s = work.symbols(costs, w * chunks, cut.tuples)
    printed = c_loop(s.c_io, cut.tuples, slices, s.c_h, w, s.c_o, s.c_e, s.c_s, s.c_a)
    matches = w * slices * (1 - work.frequencies.absent)
    corrected = work.beside(printed + s.c_i - s.c_p * unread(matches) / slices, s, 1 / slices)
    return Prediction("r-meshjoin", sizes, 0.0, w, corrected, printed,
                      {"disk buffer": cut.most_bytes, "H_S": memory - cut.most_bytes}, w * chunks)
