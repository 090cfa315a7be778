"""HYBRIDJOIN's cost model.

Naeem, Dobbie, Weber: *HYBRIDJOIN for Near-Real-Time Data Warehousing* (2011), as restated in Naeem, Weber, Dobbie, Lutteroth:
*SSCJ*.

Corrections, beside the printed equations:

- *w in the steady state*: the paper takes w as given. A partition of probability P is read when its oldest waiting tuple is the
  oldest of all. Between two reads pass 1 / P arrivals until its next tuple comes and then A until that is the oldest, the same
  A for all. So a read finishes 1 + P A tuples, an arrival causes sum P / (1 + P A) reads, and A is what makes sum P A (1 + P A
  / 2) / (1 + P A) tuples wait, which is h_S.
- *iteration*: c_I, as in MESHJOIN; *reading ahead*: of the partition of the oldest tuple that this read does not finish.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.frequencies import Frequencies


def memory(m: float, d: float, v_r: float, alpha: float) -> dict[str, float]:
    """The terms of M = d v_R + alpha (M - d v_R) + (1 - alpha)(M - d v_R), bytes."""
    return {"disk buffer": d * v_r, "H_S": alpha * (m - d * v_r), "queue": (1 - alpha) * (m - d * v_r)}


def c_loop(c_io: float, d: float, c_h: float, w: float, c_o: float, c_e: float, c_s: float, c_a: float) -> float:
    """c_IO(d) + d c_H + w (c_O + c_E + c_S + c_A), seconds."""
    return c_io + d * c_h + w * (c_o + c_e + c_s + c_a)


class Reads(NamedTuple):
    """The steady state of reading the oldest tuple's partition."""

    w: float  # tuples finished per read
    age: float  # A: arrivals between a tuple's and the read of its partition, at most


def reads(partitions: Frequencies, h_s: float, passing: float = 0.0) -> Reads:
    """For partitions of these probabilities and an H_S of so many tuples (*w in the steady state*).

    passing: tuples that stay in H_S for one iteration only, for each tuple that a read finishes.
    """
    p, many = partitions.p / max(float(partitions.p @ partitions.keys), 1e-300), partitions.keys
    low, high = 0.0, math.log(4.0 * h_s + 16.0)  # of ln(1 + A)
    for _ in range(40):
        middle = (low + high) / 2
        x = p * math.expm1(middle)
        waiting = float(many @ (x * (1 + x / 2) / (1 + x))) + passing / float(many @ (p / (1 + x)))
        low, high = (middle, high) if waiting < h_s else (low, middle)
    age = math.expm1(low)
    return Reads(1.0 / float(many @ (p / (1 + p * age))), age)


def predict(work: Workload, memory: float, costs: Costs, disk_tuples: float) -> Prediction:
    """disk_tuples: d."""
    sizes, cut = {"disk_tuples": disk_tuples}, work.partitions(disk_tuples)
    h_s = (memory - cut.most_bytes) / work.indexed_tuple_bytes
    if 2 * cut.most_bytes > memory or h_s < 1:
        return infeasible("hybridjoin", sizes)
    present = 1 - work.frequencies.absent
    w = reads(work.frequencies.partitions(cut.number), h_s).w
    s = work.symbols(costs, h_s, cut.tuples, phase="index")
    printed = c_loop(s.c_io, cut.tuples, s.c_h, w, s.c_o, s.c_e, s.c_s, s.c_a)
    absent = w * (1 - present) / max(present, 1e-9)  # unmatched at once, by the index
    return Prediction("hybridjoin", sizes, 0.0, w + absent, work.beside(printed + s.c_i + absent * s.c_s, s), printed,
                      {"disk buffer": cut.most_bytes, "H_S": memory - cut.most_bytes}, h_s)
