"""HYBRIDJOIN's cost model.

Naeem, Dobbie, Weber: *HYBRIDJOIN for Near-Real-Time Data Warehousing* (2011), as restated in Naeem,
Weber, Dobbie, Lutteroth: *SSCJ*.

Corrections to the printed equations:

- *w in the steady state*: the paper takes w as given. A partition of probability P is read when its
  oldest waiting tuple is the oldest of all. Between two reads of a partition, 1 / P arrivals pass
  until its next tuple comes, and then A arrivals until that tuple is the oldest; A is the same for
  all partitions. So a read finishes 1 + P A tuples, and an arrival causes sum P / (1 + P A) reads.
  A follows from the number of waiting tuples, sum P A (1 + P A / 2) / (1 + P A) = h_S.
- *one hash table*: as in SSJ.
- *absent keys*: absent keys that the index does not recognise wait for their partition as others
  do.
- *iteration*: c_I, as in MESHJOIN; *reading ahead*: the next partition is that of the oldest tuple
  that this read does not finish.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from semistream.cost_models.costs import Costs, Cut, Prediction, Symbols, Workload, infeasible
from semistream.cost_models.course import Course
from semistream.cost_models.frequencies import Frequencies
from semistream.cost_models.solve import crossing


def memory(*, m: float, d: float, v_r: float) -> dict[str, float]:
    """Return the terms of M = d v_R + (M - d v_R), bytes. The second term is for H_S and its
    queue."""
    return {"disk buffer": d * v_r, "H_S": m - d * v_r}


def c_loop(
    *, c_io: float, d: float, c_h: float, w: float, c_o: float, c_e: float, c_s: float, c_a: float
) -> float:
    """Return c_IO(d) + d c_H + w (c_O + c_E + c_S + c_A), seconds."""
    return c_io + d * c_h + w * (c_o + c_e + c_s + c_a)


class Reads(NamedTuple):
    """The steady state of reading the oldest tuple's partition."""

    w: float  # tuples finished per read
    age: float  # A: most arrivals between that of a tuple and the read of its partition


def reads(partitions: Frequencies, h_s: float, passing: float = 0.0) -> Reads:
    """Return the steady state for partitions of these probabilities and an H_S of h_s tuples (*w in
    the steady state*).

    passing: tuples that stay in H_S for one iteration only, for each tuple that a read finishes.
    """
    many, total = partitions.keys, float(partitions.p @ partitions.keys)
    # if no tuples wait, any probabilities will do
    p = partitions.p / total if total > 0 else np.full(len(many), 1 / float(many.sum()))
    mass = p * many

    def surplus(log_age: float) -> float:
        """Return ln of a ratio: the tuples that wait if A = e^log_age - 1, divided by h_S."""
        age = math.expm1(log_age)
        x = p * age
        waiting = age * float(mass @ ((1 + x / 2) / (1 + x)))
        if passing:
            waiting += passing / float(mass @ (1 / (1 + x)))
        return math.log(max(waiting, 1e-300) / h_s)

    age = math.expm1(crossing(surplus, 0.0, math.log(4.0 * h_s + 16.0), near=math.log1p(h_s)))
    return Reads(1.0 / float(mass @ (1 / (1 + p * age))), age)


class Waiting(NamedTuple):
    """The part of a stream that waits in H_S of an index-based join."""

    partitions: Frequencies  # probability of each partition among the waiting tuples
    present: float  # share of the waiting tuples that have a match
    at_once: float  # tuples that the index knows to be absent, per waiting tuple


def waiting(work: Workload, stream: Frequencies, number: float) -> Waiting:
    """Return the stream tuples that have to wait, for R in `number` partitions. A tuple whose key R
    lacks, but whose absence the index does not recognise, waits for one of the partitions, each
    with the same probability."""
    in_gaps, present = stream.absent * work.gaps, 1 - stream.absent
    of = stream.partitions(number)
    share = max(present + in_gaps, 1e-9)
    return Waiting(
        Frequencies(of.p + in_gaps / number, of.keys, of.name),
        present / share,
        (stream.absent - in_gaps) / share,
    )


def predict(work: Workload, m: float, costs: Costs, disk_tuples: float) -> Prediction:
    """Predict HYBRIDJOIN's performance. m: M, bytes; disk_tuples: d."""
    sizes, cut = {"disk_tuples": disk_tuples}, work.partitions(disk_tuples)
    parts = memory(m=m, d=cut.most_tuples, v_r=cut.tuple_bytes)
    h_s = parts["H_S"] / work.indexed_tuple_bytes
    if not cut.fits(m) or h_s < 1:
        return infeasible("hybridjoin", sizes)
    waits = waiting(work, work.frequencies, cut.number)
    w = reads(waits.partitions, h_s).w
    s = work.symbols(costs, h_s, cut.tuples, phase="index")
    printed = c_loop(
        c_io=s.c_io, d=cut.tuples, c_h=s.c_h, w=w, c_o=s.c_o, c_e=s.c_e, c_s=s.c_s, c_a=s.c_a
    )
    at_once = w * waits.at_once
    plain = printed + s.c_i + at_once * s.c_s - w * (1 - waits.present) * s.c_o
    return Prediction(
        "hybridjoin",
        sizes,
        0.0,
        w + at_once,
        work.overlap(plain, s),
        printed,
        parts,
        h_s,
        course=course(work, cut, s, h_s),
    )


def course(
    work: Workload, cut: Cut, s: Symbols, h_s: float, more: float = 0.0, more_each: float = 0.0
) -> Course:
    """Return the course of an index-based join's run. more, more_each: costs in addition to
    HYBRIDJOIN's, of an iteration and of a tuple through H_S."""
    return Course(
        work.tuples,
        cut.number,
        s.c_io + cut.tuples * s.c_h + s.c_i + more,
        s.c_o + s.c_e + s.c_s + s.c_a + more_each,
        h_s,
    )
