"""R-MESHJOIN's cost model: that of MESHJOIN, applied to the slices of a disk read. An iteration is
a slice.

Naeem, Dobbie, Weber, Alam: *R-MESHJOIN for Near-Real-Time Data Warehousing* (2010), in our reading
(``joins/r_meshjoin.py``). Corrections: those of MESHJOIN. Each slice has an iteration's fixed cost
c_I; with the papers' costs, all per tuple, one slice and several would cost the same.
"""

from __future__ import annotations

from semistream.cost_models import meshjoin
from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.course import Course


def memory(
    *,
    b: float,
    v_r: float,
    w: float,
    n: float,
    q: float,
    v_s: float,
    v_ptr: float = 0.0,
    f: float = 1.0,
) -> dict[str, float]:
    """Return the terms of M = b v_R + w N q (v_ptr + f v_S), bytes."""
    return meshjoin.memory(b=b, v_r=v_r, w=w, n=n * q, v_s=v_s, v_ptr=v_ptr, f=f)


def c_loop(
    *,
    c_io: float,
    b: float,
    q: float,
    c_h: float,
    w: float,
    c_o: float,
    c_e: float,
    c_s: float,
    c_a: float,
) -> float:
    """Return c_IO(b) / q + (b / q) c_H + w (c_O + c_E + c_S + c_A), seconds per slice."""
    return c_io / q + b / q * c_h + w * (c_o + c_e + c_s + c_a)


def predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, slices: float
) -> Prediction:
    """Predict R-MESHJOIN's performance. m: M, bytes; disk_tuples: b; slices: q."""
    sizes, cut = {"disk_tuples": disk_tuples, "slices": slices}, work.partitions(disk_tuples)
    layout = {"b": cut.most_tuples, "v_r": cut.tuple_bytes, "v_s": work.stream_tuple_bytes}
    chunks = cut.number * slices
    most = meshjoin.chunk(m=m, n=chunks, **layout)
    if not cut.fits(m) or most < 1:
        return infeasible("r-meshjoin", sizes)
    w = meshjoin.admitted(work, most, cut.most_tuples / slices)
    s = work.symbols(costs, w * chunks, cut.tuples)
    printed = c_loop(
        c_io=s.c_io,
        b=cut.tuples,
        q=slices,
        c_h=s.c_h,
        w=w,
        c_o=s.c_o,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
    )
    matches = w * slices * (1 - work.frequencies.absent)
    corrected = work.overlap(
        printed + s.c_i - s.c_p * meshjoin.unread(matches) / slices, s, 1 / slices
    )
    parts = memory(w=most, n=cut.number, q=slices, **layout)
    course = Course(
        work.tuples,
        chunks,
        (s.c_io + cut.tuples * s.c_h) / slices + s.c_i,
        s.c_o + s.c_e + s.c_s + s.c_a,
        w * chunks,
        scans=True,
    )
    return Prediction(
        "r-meshjoin", sizes, 0.0, w, corrected, printed, parts, w * chunks, course=course
    )
