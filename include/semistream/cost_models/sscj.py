"""SSCJ's cost model.

Naeem, Weber, Dobbie, Lutteroth: *SSCJ: A Semi-Stream Cache Join using a Front-Stage Cache Module*
(2013), "[1]" below. Its Eq. 1 and Eq. 2 are SSJ's.

Corrections: *look-up of the misses*, *key bytes*, *one hash table*, *detection* and *whole values*
as in SSJ; *w in the steady state*, *absent keys*, *iteration* and *reading ahead* as in HYBRIDJOIN,
over the frequencies in the stream behind the cache.
"""

from __future__ import annotations

from semistream.cost_models import ssj
from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.hybridjoin import course, reads, waiting


def predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, cache_tuples: float
) -> Prediction:
    """Predict SSCJ's performance. m: M, bytes; disk_tuples: d; cache_tuples: h_R."""
    sizes = {"disk_tuples": disk_tuples, "cache_tuples": cache_tuples}
    cut = work.partitions(disk_tuples)
    hit, missed = ssj.behind(work, cut, cache_tuples)
    parts = ssj.memory(
        m=m,
        d=cut.most_tuples,
        v_r=cut.tuple_bytes,
        h_r=ssj.held(work, cache_tuples),
        v_h=work.cached_tuple_bytes,
        v_f=work.cached_key_bytes,
    )
    h_s = parts["H_S"] / work.indexed_tuple_bytes
    if not cut.fits(m) or h_s < 1:
        return infeasible("sscj", sizes)
    s = work.symbols(costs, h_s, cut.tuples, cache_tuples, "index")
    run = course(work, cut, s, h_s, cut.tuples * s.c_f + s.c_d, s.c_r + s.c_m)
    run = run.filled_after(ssj.FILLING, 2 * h_s)
    if hit > 1 - 1e-9:
        return ssj.in_memory(
            "sscj", sizes, work.symbols(costs, 1, 1, cache_tuples), cache_tuples, parts, run
        )
    waits = waiting(work, missed, cut.number)
    left = reads(waits.partitions, h_s).w
    found, disk = left * waits.present, left * (1 + waits.at_once)
    front = ssj.w_n(p_n=hit, s_n=disk / (1 - hit), n=1)
    printed = ssj.c_loop(
        c_io=s.c_io,
        d=cut.tuples,
        c_h=s.c_h,
        c_f=s.c_f,
        w_s=found,
        c_o=s.c_o,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
        w_n=front,
        c_r=s.c_r,
        c_n=s.c_n,
    )
    corrected = printed + disk * s.c_r + (disk - found) * s.c_s + s.c_i + s.c_d
    corrected += ssj.matched(work, cut, missed, h_s * waits.present, left / h_s) * s.c_m
    corrected += (left - found) * (s.c_e + s.c_a)
    return Prediction(
        "sscj",
        sizes,
        front,
        disk,
        work.overlap(corrected, s),
        printed,
        parts,
        h_s,
        cache_tuples,
        course=run,
        waits=lambda tuples: 1 - min(hit, work.frequencies.recurring(tuples)),
    )
