"""SSBJ's cost model.

Naeem, Weber, Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join*, "[1]" below.

Corrections to the printed equations:

- *steady state*: the paper measures w_N and w_S; here they follow from the cache inequality. With T
  stream tuples per R-cycle, the values with p T v_S > sf m v_R are in H_R, H_S has the rest of M,
  and T tuples fill it. This is one equation in T.
- *real bytes*: v_S and v_R are the bytes that a tuple takes in H_S and H_R, links and table
  included; a cached value takes v_E beside its tuples, and the candidates for switching a share of
  M. Eq. 1 has v_P + f v_S, f v_R and neither of the others.
- *absent values*: a value without master tuples is in H_R, where it takes v_E, if p T v_S > sf v_E.
- *look-up of the misses*: Eq. 2 lacks w_S c_H, as SSJ's does.
- *two cycles of three*: a disk tuple is looked up among the candidates in the incrementing and in
  the switching cycle only.
- *iteration*, *reading ahead*, *late materialisation*, *largest chunk*: those of MESHJOIN.
- Eq. 5, lambda at a stable rate, is Eq. 3. Eq. 6 puts the bytes of Eq. 1 in the place of Eq. 5's
  tuples, so that it is not a rate of tuples; it is left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.course import Course
from semistream.cost_models.meshjoin import unread
from semistream.cost_models.solve import crossing
from semistream.joins.scan_phase import largest_chunk
from semistream.joins.ssbj import CANDIDATE_BYTES, LEAST_H_S, most_candidates

FIRST_SWITCH = 4.0  # R-cycles before the first one with values in H_R, as rc begins at 2


def memory(
    *,
    m: float,
    b: float,
    v_r: float,
    candidates: float,
    h_r: float,
    v_h: float,
    e_r: float,
    v_e: float,
) -> dict[str, float]:
    """Return the terms of M = b v_R + h_R v_H + e_R v_E + candidates + w_S (R_t / b) v_S, bytes;
    [1] Eq. 1 with *real bytes*. The last term, H_S, gets the rest.

    h_r: tuples in H_R, of v_h bytes each; e_r: join values there; candidates: bytes.
    """
    taken = {"disk buffer": b * v_r, "candidates": candidates, "H_R": h_r * v_h + e_r * v_e}
    return taken | {"H_S": m - sum(taken.values())}


def c_loop(
    *,
    c_io: float,
    b: float,
    c_h: float,
    c_b: float,
    w_n: float,
    c_r: float,
    c_n: float,
    w_s: float,
    c_e: float,
    c_s: float,
    c_a: float,
    c_o: float,
) -> float:
    """Return c_IO(b) + b (c_H + c_B) + w_N (c_S + c_R + c_N) + w_S (c_E + c_S + c_A + c_O),
    seconds; [1] Eq. 2.

    c_r, c_n: c_H and c_O of H_R, which [1] does not distinguish from those of H_S.
    """
    return c_io + b * (c_h + c_b) + w_n * (c_s + c_r + c_n) + w_s * (c_e + c_s + c_a + c_o)


def worth_caching(*, m: float, v_r: float, v_s: float, v_e: float = 0.0, sf: float = 1.0) -> float:
    """Return the stream tuples per R-cycle above which a value with m master tuples is cached: sf
    (m v_R + v_E) / v_S. [1] Theorem 2, the cache inequality sf m v_R < n v_S, has no v_E."""
    return sf * (m * v_r + v_e) / v_s


class Balance(NamedTuple):
    """The steady state of the cache inequality."""

    tuples: float  # T, stream tuples per R-cycle
    h_r: float  # master tuples in H_R
    e_r: float  # join values there
    hit: float  # p_N, share of the stream through H_R, with absent values
    lost: float  # the absent values' part of `hit`
    h_s: float  # tuples in H_S


def balance(
    work: Workload, pool: float, partitions: float, disk_tuples: float, sf: float = 1.0
) -> Balance:
    """Return the steady state. T is such that H_S holds just the tuples of an R-cycle that miss
    H_R; H_S has the part of `pool` bytes that H_R leaves."""
    v_s, v_e = work.stream_tuple_bytes, work.cached_key_bytes
    value_bytes = work.fan_out * work.cached_tuple_bytes + v_e
    most = partitions * largest_chunk(disk_tuples)
    room = pool - max(pool * LEAST_H_S, v_s * partitions)
    n = worth_caching(m=work.fan_out, v_r=work.cached_tuple_bytes, v_s=v_s, v_e=v_e, sf=sf)
    n_absent = worth_caching(m=0, v_r=0, v_s=v_s, v_e=v_e, sf=sf)

    def at(log_t: float) -> Balance:
        t = math.exp(log_t)
        c = work.frequencies.worth(n / t, n_absent / t, value_bytes, v_e, room)
        h_s = min((pool - c.bytes) / v_s, most)
        return Balance(t, c.keys * work.fan_out, c.keys + c.absent, c.hit, c.lost, h_s)

    def surplus(log_t: float) -> float:
        """Return ln of a ratio: the tuples that miss H_R, divided by the tuples that H_S holds."""
        b = at(log_t)
        return math.log(max(b.tuples * (1 - b.hit), 1e-300) / b.h_s)

    full = math.log(max(pool / v_s, 2.0))  # of H_S, as a logarithm
    return at(crossing(surplus, math.log(partitions), full + 30.0, near=full))


def predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, switching_factor: float = 1.0
) -> Prediction:
    """Predict the performance of SSBJ with fixed M. m: M, bytes; disk_tuples: b."""
    sizes, cut = {"disk_tuples": disk_tuples}, work.partitions(disk_tuples)
    layout = {
        "m": m,
        "b": cut.most_tuples,
        "v_r": cut.tuple_bytes,
        "v_h": work.cached_tuple_bytes,
        "v_e": work.cached_key_bytes,
        "candidates": most_candidates(int(m)) * CANDIDATE_BYTES,
    }
    pool = memory(h_r=0, e_r=0, **layout)["H_S"]  # H_R and H_S share it
    least = max(pool * LEAST_H_S, work.stream_tuple_bytes * cut.number)
    if not cut.fits(m) or pool < 2 * least:
        return infeasible("ssbj", sizes)
    x = balance(work, pool, cut.number, cut.most_tuples, switching_factor)
    parts = memory(h_r=x.h_r, e_r=x.e_r, **layout)
    w_n, w_s = x.tuples / cut.number * x.hit, x.tuples / cut.number * (1 - x.hit)
    s = work.symbols(costs, w_s * cut.number, cut.tuples, x.h_r)
    h_s = min(pool / work.stream_tuple_bytes, cut.number * largest_chunk(cut.most_tuples))
    course = Course(
        work.tuples,
        cut.number,
        s.c_io + cut.tuples * s.c_h + s.c_i,
        s.c_e + s.c_s + s.c_a + s.c_o + s.c_r,
        h_s,
        scans=True,
    )
    course = course.filled_after(FIRST_SWITCH, h_s)
    if x.hit > 1 - 1e-9:  # Theorem 3: a join in main memory, with an idle disk
        each = s.c_r + s.c_n + s.c_s
        return Prediction("ssbj", sizes, 1.0, 0.0, each, each, parts, 0.0, x.h_r, course=course)
    printed = c_loop(
        c_io=s.c_io,
        b=cut.tuples,
        c_h=s.c_h,
        c_b=s.c_b,
        w_n=w_n,
        c_r=s.c_r,
        c_n=s.c_n,
        w_s=w_s,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
        c_o=s.c_o,
    )
    matches = w_s * (1 - (work.frequencies.absent - x.lost) / (1 - x.hit))
    corrected = printed + w_s * s.c_r - cut.tuples * s.c_b / 3 + s.c_i - s.c_p * unread(matches)
    return Prediction(
        "ssbj",
        sizes,
        w_n,
        w_s,
        work.overlap(corrected, s),
        printed,
        parts,
        w_s * cut.number,
        x.h_r,
        course=course,
    )
