"""X-HYBRIDJOIN's and Tuned X-HYBRIDJOIN's cost model.

The equations are those of Naeem: *Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing* (2013),
"[1]" below. The paper counts the two parts of the disk buffer in pages of v_P bytes, this module in
tuples of v_R bytes: d_S v_R = k v_P for the swappable part, d_N v_R = l v_P for the other one.

Corrections to the printed equations:

- *expected count*: Eq. 6 is derived with p (1 - p), the variance of a Bernoulli trial, where the
  expected number of matches of w tuples is w p. With the latter, w = h_S p_old / (1 + p_old -
  p_new). The experiment ``x-hybridjoin-eq6`` compares both, and the next correction, with the
  measured w.
- *oldest first*: Eq. 4 gives every partition the same chance to be read. But the oldest tuple
  chooses the partition, as in HYBRIDJOIN, whose steady state over the keys that are not resident
  gives w here.
- *observed residents*: the non-swappable part has the keys that were most frequent in the first
  full H_S, not the most probable ones. d_N is at most the number of tuples of these keys. If a
  bound on waiting makes the join read before H_S is full, the sample is the tuples that came until
  then, or the first d_N if these are more.
- *second probe*: the non-swappable part is probed in each iteration, at an iteration's costs of
  finding and removing.
- *absent keys* as in HYBRIDJOIN; *one hash table*: as in SSJ; *iteration*: c_I, as in
  MESHJOIN; *reading ahead* as in HYBRIDJOIN.
"""

from __future__ import annotations

import math

import numpy as np

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.harmonic import harmonic, power_sum
from semistream.cost_models.hybridjoin import course, reads, waiting


def memory(*, m: float, d_s: float, v_r: float, d_n: float, v_n: float) -> dict[str, float]:
    """Return the terms of M = d_S v_R + d_N v_N + [..], bytes; [1] Eq. 1. [..], for H_S and its
    queue, is the rest.

    v_n: v_R as held in the non-swappable part.
    """
    return {
        "swappable part": d_s * v_r,
        "non-swappable part": d_n * v_n,
        "H_S": m - d_s * v_r - d_n * v_n,
    }


def c_loop(
    *,
    c_io: float,
    d_n: float,
    d_s: float,
    c_h: float,
    w: float,
    c_o: float,
    c_e: float,
    c_s: float,
    c_a: float,
) -> float:
    """Return c_IO(d_S) + (d_N + d_S) c_H + w (c_O + c_E + c_S + c_A), seconds; [1] Eq. 2."""
    return c_io + (d_n + d_s) * c_h + w * (c_o + c_e + c_s + c_a)


def p_old(*, d_n: float, d_s: float, r_t: float, exponent: float = 1.0) -> float:
    """Return p_old = (1 / n) sum of p_k over the n partitions of R', p_k = sum x**-s in partition k
    over sum x**-s in R'; [1] Eq. 4.

    The p_k add up to 1, so that p_old is 1 / n. The sum is computed as printed all the same.
    """
    n = math.ceil((r_t - d_n) / d_s)
    k = np.arange(1, n + 1)
    last = np.minimum(d_n + k * d_s, r_t)
    p_k = power_sum(d_n + (k - 1) * d_s + 1, last, exponent) / power_sum(d_n + 1, r_t, exponent)
    return float(p_k.sum() / n)


def p_new(*, d_n: float, d_s: float, r_t: float, exponent: float = 1.0) -> float:
    """Return p_new = p_N + p_S / n with p_N = H(d_N) / H(R_t), p_S = 1 - p_N; [1] Eq. 5."""
    n = math.ceil((r_t - d_n) / d_s)
    p_n = float(harmonic(d_n, exponent) / harmonic(r_t, exponent))
    return p_n + (1 - p_n) / n


def w(*, h_s: float, p_old: float, p_new: float) -> float:
    """Return w = h_S p_old (1 - p_old) / (1 + p_old (1 - p_old) - p_new (1 - p_new)); [1] Eq. 6."""
    old, new = p_old * (1 - p_old), p_new * (1 - p_new)
    return h_s * old / (1 + old - new)


def w_expected(*, h_s: float, p_old: float, p_new: float) -> float:
    """Return w = h_S p_old / (1 + p_old - p_new): Eq. 6 with the *expected count*."""
    return h_s * p_old / (1 + p_old - p_new)


def predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, resident_tuples: float | None = None
) -> Prediction:
    """Predict the performance of X-HYBRIDJOIN, or of Tuned X-HYBRIDJOIN if `resident_tuples` is
    given. m: M, bytes; disk_tuples: d_S; resident_tuples: d_N, in X-HYBRIDJOIN equal to d_S."""
    cut = work.partitions(disk_tuples)
    algorithm, sizes, d_n = "x-hybridjoin", {"disk_tuples": disk_tuples}, float(cut.most_tuples)
    if resident_tuples is not None:
        algorithm, d_n = "tuned-x-hybridjoin", resident_tuples
        sizes["resident_tuples"] = resident_tuples
    d_n = min(d_n, work.master_tuples)
    parts = memory(
        m=m, d_s=cut.most_tuples, v_r=cut.tuple_bytes, d_n=d_n, v_n=work.resident_tuple_bytes
    )
    h_s = parts["H_S"] / work.indexed_tuple_bytes
    if not cut.fits(m) or h_s < 1:
        return infeasible(algorithm, sizes)
    sample = h_s if work.unread >= h_s else max(work.unread, d_n)
    d_n = min(d_n, work.frequencies.different(sample) * work.fan_out)
    hit, missed = work.frequencies.split(d_n / work.fan_out, sample)
    waits = waiting(work, missed, cut.number)
    rest = float(waits.partitions.p @ waits.partitions.keys) * (1 - hit)  # share of the stream
    if rest > 1e-9:
        disk = reads(waits.partitions, h_s, hit / rest).w
        resident, at_once = disk * hit / rest, disk * waits.at_once
    else:  # all waiting tuples match resident ones and leave at once
        disk, resident, at_once = 0.0, h_s, h_s * missed.absent * (1 - hit) / max(hit, 1e-9)
    s = work.symbols(costs, h_s, cut.tuples, phase="index")
    printed = c_loop(
        c_io=s.c_io,
        d_n=d_n,
        d_s=cut.tuples,
        c_h=s.c_h,
        w=resident + disk,
        c_o=s.c_o,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
    )
    plain = printed + s.c_i + s.c_2 + at_once * s.c_s - disk * (1 - waits.present) * s.c_o
    # nearly all of the sample matches the residents, and leaves before these are loaded
    run = course(work, cut, s, h_s).filled_after(1.0, sample)
    return Prediction(
        algorithm,
        sizes,
        resident,
        disk + at_once,
        work.overlap(plain, s),
        printed,
        parts,
        h_s,
        d_n,
        course=run,
        waits=lambda tuples: 1 - min(hit, work.frequencies.recurring(tuples)),
    )
