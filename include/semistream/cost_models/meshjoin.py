"""MESHJOIN's cost model.

Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: *Meshing Streaming Updates with
Persistent Data in an Active Data Warehouse* (2008); in the notation of Naeem, Weber, Lutteroth: *A
Memory-Optimal Many-To-Many Semi-Stream Join*, "[1]" below.

Corrections to the printed equations:

- *real bytes*: v_R and v_S are the bytes that a tuple takes in the disk buffer and in H_S, links
  and table included, so that v_ptr is 0 and f is 1.
- *iteration*: an iteration has a fixed cost c_I; the papers' costs are all per tuple.
- *reading ahead*: if R is read past the page cache, the next partition is read while one is probed.
  Of c_w, the processor's wait for the disk in c_IO, only the measured remainder c_x then adds to
  the other costs. If c_w is longer than all other costs together, it alone counts.
- *late materialisation*: all columns but the key codes are read only if some tuple matches.
- *largest chunk*: w stays below the size at which c_I is a fifth of an iteration, as more tuples
  would wait for little gain.
"""

from __future__ import annotations

import math

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.course import Course
from semistream.joins.scan_phase import largest_chunk


def memory(
    *, b: float, v_r: float, w: float, n: float, v_s: float, v_ptr: float = 0.0, f: float = 1.0
) -> dict[str, float]:
    """Return the terms of M = b v_R + w N (v_ptr + f v_S), bytes; [1] Eq. 1 without H_R."""
    return {"disk buffer": b * v_r, "H_S": w * n * (v_ptr + f * v_s)}


def chunk(
    *, m: float, b: float, v_r: float, n: float, v_s: float, v_ptr: float = 0.0, f: float = 1.0
) -> float:
    """Return w, the stream tuples per iteration that M bytes allow: Eq. 1 solved for w."""
    return (m - b * v_r) / (n * (v_ptr + f * v_s))


def c_loop(
    *, c_io: float, b: float, c_h: float, w: float, c_o: float, c_e: float, c_s: float, c_a: float
) -> float:
    """Return c_IO(b) + b c_H + w (c_O + c_E + c_S + c_A), seconds; [1] Eq. 2 without H_R."""
    return c_io + b * c_h + w * (c_o + c_e + c_s + c_a)


def unread(matches: float) -> float:
    """Return the probability that none of a partition's tuples matches, so that its payload is not
    read (*late materialisation*)."""
    return math.exp(-min(max(matches, 0.0), 700.0))


def admitted(work: Workload, w: float, disk_tuples: float) -> float:
    """Return the w that the operator uses: at most the *largest chunk*, rounded to whole tuples."""
    w = min(w, largest_chunk(disk_tuples))
    return max(math.floor(w), 1) if work.cut is not None else w


def predict(work: Workload, m: float, costs: Costs, disk_tuples: float) -> Prediction:
    """Predict MESHJOIN's performance. m: M, bytes; disk_tuples: b."""
    sizes, cut = {"disk_tuples": disk_tuples}, work.partitions(disk_tuples)
    layout = {
        "b": cut.most_tuples,
        "v_r": cut.tuple_bytes,
        "n": cut.number,
        "v_s": work.stream_tuple_bytes,
    }
    most = chunk(m=m, **layout)
    if not cut.fits(m) or most < 1:
        return infeasible("meshjoin", sizes)
    w = admitted(work, most, cut.most_tuples)
    s = work.symbols(costs, w * cut.number, cut.tuples)
    printed = c_loop(
        c_io=s.c_io, b=cut.tuples, c_h=s.c_h, w=w, c_o=s.c_o, c_e=s.c_e, c_s=s.c_s, c_a=s.c_a
    )
    matches = w * (1 - work.frequencies.absent)
    corrected = work.overlap(printed + s.c_i - s.c_p * unread(matches), s)
    course = Course(
        work.tuples,
        cut.number,
        s.c_io + cut.tuples * s.c_h + s.c_i,
        s.c_o + s.c_e + s.c_s + s.c_a,
        w * cut.number,
        scans=True,
    )
    return Prediction(
        "meshjoin",
        sizes,
        0.0,
        w,
        corrected,
        printed,
        memory(w=most, **layout),
        w * cut.number,
        course=course,
    )
