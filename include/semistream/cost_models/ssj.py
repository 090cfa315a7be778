"""SSJ's cost model, and its tuning model.

Naeem, Jamil: *An Efficient Stream-based Join to Process End User Transactions in Real-Time Data
Warehousing* (2014), "[1]" below. Its d v_R is k v_P and its h_R v_R is l v_P, whole pages.

Corrections to the printed equations:

- *look-up of the misses*: a stream tuple that misses H_R was looked up there as well. Eq. 2 lacks
  this cost, w_S c_H.
- *condition of the misses*: Eq. 8 sums the probability that any stream tuple falls into a segment
  of R', but the tuples in H_S are known to belong to R'. Their mean probability is 1 / N, whatever
  the skew, so that w_S is h_S / N.
- *key bytes*: beside its tuple, an entry of H_R takes a place in the table, and not only a
  recorder's 8 bytes; new tuples gather in a switching buffer.
- *one hash table*: a waiting tuple's queue node is a part of its bytes, so that alpha of Eq. 1, the
  share of H_S beside its queue, follows.
- *partial chunk*: the disk phase also starts when the stream buffer is empty, with a chunk that is
  not full.
- *detection*: finding the frequent tuples of a partition costs c_D, and c_M for each of its join
  values that has a match, beside d c_F.
- *whole values*: all tuples of a join value are cached or none, and only if they are all in one
  partition. A share (m - 1) / d of the values with m tuples crosses a border.
- *real bytes*, *iteration*, *reading ahead*, *late materialisation*, *largest chunk*: those of
  MESHJOIN.

The tuning model of [1] section 5.1.2, Eq. 4 to 10, is for Zipf's law. ``predict`` takes p_N from
the stream's actual frequencies; the experiment ``ssj-phases`` compares both with measurements.
"""

from __future__ import annotations

import math

from semistream.cost_models import meshjoin
from semistream.cost_models.costs import Costs, Cut, Prediction, Symbols, Workload, infeasible
from semistream.cost_models.course import Course
from semistream.cost_models.frequencies import Frequencies
from semistream.cost_models.harmonic import harmonic, harmonic_approximation
from semistream.joins.frequency_detection import SWITCH_SHARE

FILLING = 2.0  # R-cycles, without the hits found later, in which the cache fills


def memory(
    *, m: float, d: float, v_r: float, h_r: float, v_h: float, v_f: float
) -> dict[str, float]:
    """Return the terms of M = d v_R + h_R v_H + v_F h_R + [..], bytes; [1] Eq. 1. [..], for H_S and
    its queue, is the rest.

    v_h: v_R as held in H_R; v_f: 8, as printed.
    """
    taken = {"disk buffer": d * v_r, "H_R": h_r * (v_h + v_f)}
    return taken | {"H_S": m - sum(taken.values())}


def c_loop(
    *,
    c_io: float,
    d: float,
    c_h: float,
    c_f: float,
    w_s: float,
    c_o: float,
    c_e: float,
    c_s: float,
    c_a: float,
    w_n: float,
    c_r: float,
    c_n: float,
) -> float:
    """Return c_IO(d) + d (c_H + c_F) + w_S (c_O + c_E + c_S + c_A) + w_N (c_R + c_N + c_S),
    seconds; [1] Eq. 2.

    c_r, c_n: c_H and c_O of H_R, which [1] does not distinguish from those of H_S.
    """
    return c_io + d * (c_h + c_f) + w_s * (c_o + c_e + c_s + c_a) + w_n * (c_r + c_n + c_s)


def p_n(*, h_r: float, r_t: float, exponent: float = 1.0) -> float:
    """Return p_N = H(h_R) / H(R_t), the share of the stream that H_R serves; [1] Eq. 4, with any
    Zipf exponent."""
    return float(harmonic(h_r, exponent) / harmonic(r_t, exponent))


def p_n_logarithm(*, h_r: float, r_t: float) -> float:
    """Return p_N = ln h_R / ln R_t; [1] Eq. 5."""
    return math.log(h_r) / math.log(r_t)


def p_n_power(*, h_r: float, r_t: float, phi_n: float, psi_n: float) -> float:
    """Return p_N = R_t^y h_R^z with y = log2 phi_N, z = log2 psi_N; [1] Eq. 6."""
    return r_t ** math.log2(phi_n) * h_r ** math.log2(psi_n)


def factors_n(*, h_r: float, r_t: float) -> tuple[float, float]:
    """Return (phi_N, psi_N), the factors by which p_N of Eq. 5 changes when R_t, and when h_R, is
    doubled; for Eq. 6."""
    here = p_n_logarithm(h_r=h_r, r_t=r_t)
    return p_n_logarithm(h_r=h_r, r_t=2 * r_t) / here, p_n_logarithm(h_r=2 * h_r, r_t=r_t) / here


def w_n(*, p_n: float, s_n: float, n: float) -> float:
    """Return w_N = p_N S_n / n, with S_n stream tuples in n iterations; [1] Eq. 7."""
    return p_n * s_n / n


def p_s(*, d: float, h_r: float, r_t: float) -> float:
    """Return the mean p_S = (ln R_t - ln h_R) / (N (ln R_t + gamma)), N = (R_t - h_R) / d segments;
    [1] Eq. 8."""
    n = (r_t - h_r) / d
    return (math.log(r_t) - math.log(h_r)) / (n * float(harmonic_approximation(r_t)))


def factors_s(*, d: float, h_r: float, r_t: float) -> tuple[float, float, float]:
    """Return (theta_S, psi_S, phi_S), the factors by which p_S of Eq. 8 changes when d, h_R, and
    R_t is doubled; for Eq. 9."""
    here = p_s(d=d, h_r=h_r, r_t=r_t)
    return (
        p_s(d=2 * d, h_r=h_r, r_t=r_t) / here,
        p_s(d=d, h_r=2 * h_r, r_t=r_t) / here,
        p_s(d=d, h_r=h_r, r_t=2 * r_t) / here,
    )


def p_s_power(
    *, d: float, h_r: float, r_t: float, theta_s: float, psi_s: float, phi_s: float
) -> float:
    """Return the mean p_S = d^x h_R^y R_t^z; [1] Eq. 9. x, y, z = log2 of theta_S, psi_S, phi_S."""
    return d ** math.log2(theta_s) * h_r ** math.log2(psi_s) * r_t ** math.log2(phi_s)


def w_s(*, p_s: float, h_s: float) -> float:
    """Return w_S = p_S h_S; [1] Eq. 10."""
    return p_s * h_s


def held(work: Workload, h_r: float) -> float:
    """Return the largest number of master tuples that H_R and its switching buffer hold
    together."""
    return (
        h_r + max(h_r // SWITCH_SHARE, 1) if work.cut is not None else h_r * (1 + 1 / SWITCH_SHARE)
    )


def behind(work: Workload, cut: Cut, h_r: float) -> tuple[float, Frequencies]:
    """Return (p_N, frequencies in the stream that H_R does not serve) for an H_R of h_R master
    tuples (*whole values*)."""
    whole = 1.0
    if cut.number > 1:
        whole = max(1 - (work.fan_out - 1) / max(cut.tuples, 1), 0.0)
    values = h_r / work.fan_out / whole if whole else 0.0
    return whole * work.frequencies.top(values), work.frequencies.without(values, whole)


def matched(work: Workload, cut: Cut, waiting: Frequencies, h_s: float, share: float) -> float:
    """Return how many join values of a disk partition have a match, in an iteration that finishes
    this share of the h_s waiting tuples. waiting: frequencies of the values among the waiting
    tuples."""
    return min(waiting.different(h_s) * share, cut.tuples / work.fan_out)


def predict(
    work: Workload,
    m: float,
    costs: Costs,
    disk_tuples: float,
    cache_tuples: float,
    algorithm: str = "ssj",
) -> Prediction:
    """Predict SSJ's performance. m: M, bytes; disk_tuples: d; cache_tuples: h_R."""
    sizes = {"disk_tuples": disk_tuples, "cache_tuples": cache_tuples}
    cut = work.partitions(disk_tuples)
    hit, missed = behind(work, cut, cache_tuples)
    parts = memory(
        m=m,
        d=cut.most_tuples,
        v_r=cut.tuple_bytes,
        h_r=held(work, cache_tuples),
        v_h=work.cached_tuple_bytes,
        v_f=work.cached_key_bytes,
    )
    h_s = parts["H_S"] / work.stream_tuple_bytes
    if not cut.fits(m) or h_s < cut.number:
        return infeasible(algorithm, sizes)
    disk = meshjoin.admitted(work, w_s(p_s=1 / cut.number, h_s=h_s), cut.most_tuples)
    if hit > 1 - 1e-9:
        s = work.symbols(costs, disk * cut.number, cut.tuples, cache_tuples)
        return in_memory(
            algorithm,
            sizes,
            work.symbols(costs, 1, 1, cache_tuples),
            cache_tuples,
            parts,
            course(work, cut, s, disk * cut.number),
        )
    if algorithm == "ssj" and math.isfinite(work.batch_tuples):
        coming = work.batch_tuples * (1 - hit)
        disk = coming / (math.floor(coming / disk) + 1)
    front = w_n(p_n=hit, s_n=disk / (1 - hit), n=1)
    s = work.symbols(costs, disk * cut.number, cut.tuples, cache_tuples)
    printed = c_loop(
        c_io=s.c_io,
        d=cut.tuples,
        c_h=s.c_h,
        c_f=s.c_f,
        w_s=disk,
        c_o=s.c_o,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
        w_n=front,
        c_r=s.c_r,
        c_n=s.c_n,
    )
    matches = disk * (1 - work.frequencies.absent / (1 - hit))
    found = matched(work, cut, missed, disk * cut.number, 1 / cut.number)
    corrected = (
        printed + disk * s.c_r + s.c_i + s.c_d + found * s.c_m - s.c_p * meshjoin.unread(matches)
    )
    return Prediction(
        algorithm,
        sizes,
        front,
        disk,
        work.overlap(corrected, s),
        printed,
        parts,
        disk * cut.number,
        cache_tuples,
        course=course(work, cut, s, disk * cut.number),
    )


def course(work: Workload, cut: Cut, s: Symbols, first: float) -> Course:
    """Return the course of the run of a scan with a cache. first: tuples that H_S holds while
    nothing is cached."""
    found = Course(
        work.tuples,
        cut.number,
        s.c_io + cut.tuples * (s.c_h + s.c_f) + s.c_i + s.c_d,
        s.c_o + s.c_e + s.c_s + s.c_a + s.c_r + s.c_m,
        first,
        scans=True,
    )
    return found.filled_after(FILLING, first)


def in_memory(
    algorithm: str,
    sizes: dict[str, float],
    s: Symbols,
    h_r: float,
    parts: dict[str, float],
    run: Course,
) -> Prediction:
    """Return the prediction for an H_R that has all values that occur: there are no disk reads, and
    an iteration is one stream tuple."""
    each = s.c_r + s.c_n + s.c_s
    return Prediction(algorithm, sizes, 1.0, 0.0, each, each, parts, 0.0, h_r, course=run)
