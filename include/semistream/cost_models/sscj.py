"""SSCJ's cost model.

Naeem, Weber, Dobbie, Lutteroth: *SSCJ: A Semi-Stream Cache Join using a Front-Stage Cache Module* (2013), "[1]" below.

Corrections: *look-up of the misses*, *key bytes* and *detection* as in SSJ, *w in the steady state*, *iteration* and *reading
ahead* as in HYBRIDJOIN, over what the stream looks like behind the cache.
"""

from __future__ import annotations

from semistream.cost_models import ssj
from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.hybridjoin import reads


def memory(m: float, d: float, v_r: float, h_r: float, alpha: float) -> dict[str, float]:
    """The terms of M = d v_R + h_R v_R + 8 h_R + alpha (..) + (1 - alpha)(..), bytes; [1] Eq. 1, (..) = M - d v_R - h_R v_R - 8
    h_R."""
    rest = m - d * v_r - h_r * v_r - ssj.RECORDER_BYTES * h_r
    return {"disk buffer": d * v_r, "H_R": h_r * v_r, "frequency recorder": ssj.RECORDER_BYTES * h_r, "H_S": alpha * rest,
            "queue": (1 - alpha) * rest}


c_loop = ssj.c_loop  # [1] Eq. 2 is SSJ's Eq. 2 with c_IO(d)
service_rate = ssj.service_rate  # [1] Eq. 3


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float, cache_tuples: float) -> Prediction:
    """disk_tuples: d; cache_tuples: h_R."""
    sizes, cut = {"disk_tuples": disk_tuples, "cache_tuples": cache_tuples}, work.partitions(disk_tuples)
    cache = ssj.h_r_bytes(work, cache_tuples)
    left = memory - cut.most_bytes - cache
    h_s, hit = left / work.indexed_tuple_bytes, ssj.front(work, cache_tuples)
    parts = {"disk buffer": cut.most_bytes, "H_R": cache, "H_S": left}
    if 2 * cut.most_bytes > memory or h_s < 1:
        return infeasible("sscj", sizes)
    if hit > 1 - 1e-9:
        return ssj.in_memory("sscj", sizes, work.symbols(costs, 1, 1, cache_tuples), cache_tuples, parts)
    missed = work.frequencies.without(cache_tuples / work.fan_out)
    present = 1 - missed.absent
    w = reads(missed.partitions(cut.number), h_s).w if present > 1e-9 else 1.0
    w_s = w / max(present, 1e-9)
    w_n = w_s * hit / (1 - hit)
    s = work.symbols(costs, h_s, cut.tuples, cache_tuples, "index")
    printed = c_loop(s.c_io, cut.tuples, s.c_h, s.c_f, w, s.c_o, s.c_e, s.c_s, s.c_a, 0.0) + w_n * (s.c_r + s.c_n + s.c_s)
    corrected = printed + w_s * s.c_r + (w_s - w) * s.c_s + s.c_i + s.c_d + w * s.c_m
    return Prediction("sscj", sizes, w_n, w_s, work.beside(corrected, s), printed, parts, h_s, cache_tuples)
