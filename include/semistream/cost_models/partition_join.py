"""The partition-based join's cost model.

Chakraborty, Singh: *A Partition-based Approach to Support Streaming Updates over Persistent Data in
an Active Data Warehouse* (2009). The papers at hand give no model. This one is ours, in their
style, for the reading of ``joins/partition_join.py``:

    M = d v_R + 5 N + capacity (d (v_R + v_E) + 1) + h_S v_S
    c_loop = c_IO(d) + v d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S) + c_I

v is ELEVATORJOIN's, whose H_S this join has. An iteration is a partition read. w_N follows from the
share of the stream that the partitions in memory take. A partition of probability P, after T
arrivals, is read when c tuples wait for it. c is the same for all, as the partition with the most
tuples is read. Partitions with P T < c were never read and have P T tuples; for the others c / 2
tuples wait on average. c follows from the h_S waiting tuples, and w_S = c. In an endless stream
every partition reaches c, so that w_S = 2 h_S / N, as in ELEVATORJOIN. The bound on waiting of the
latter thus costs only the reads of rare partitions, which a finite run of this join is spared.
"""

from __future__ import annotations

import math

import numpy as np

from semistream.cost_models.costs import Costs, Prediction, Workload, infeasible
from semistream.cost_models.course import Course
from semistream.cost_models.elevatorjoin import visits
from semistream.cost_models.frequencies import Frequencies
from semistream.cost_models.solve import crossing
from semistream.cost_models.ssij import c_loop, cached_blocks
from semistream.cost_models.ssj import in_memory
from semistream.joins.stream_table.by_partition import PARTITION_BYTES


def read_at(partitions: Frequencies, h_s: float, came: float = math.inf) -> float:
    """Return c, the number of waiting tuples at which a partition is read, when h_s tuples wait and
    `came` have arrived."""
    p = partitions.p
    most = p * came if math.isfinite(came) else np.where(p > 0, math.inf, 0.0)

    def surplus(log_c: float) -> float:
        """Return ln of a ratio: the tuples that wait for this c, divided by h_S."""
        c = math.exp(log_c)
        waits = float(partitions.keys @ np.where(most < c, most, c / 2))
        return math.log(max(waits, 1e-300) / h_s)

    all_waiting = math.log(2 * h_s)
    each = all_waiting - math.log(max(partitions.count, 1.0))
    return max(math.exp(crossing(surplus, -30.0, all_waiting, near=each)), 1.0)


def predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, cache_share: float
) -> Prediction:
    """Predict the partition-based join's performance. m: M, bytes; disk_tuples: d; cache_share:
    share of the memory besides the disk buffer and the counters that holds partitions."""
    sizes = {"disk_tuples": disk_tuples, "cache_share": cache_share}
    cut = work.partitions(disk_tuples)
    capacity, parts = cached_blocks(work, m, cut, cache_share)
    h_s = (parts["H_S"] - cut.number * PARTITION_BYTES) / work.elevator_tuple_bytes
    if not cut.fits(m) or h_s < 1:
        return infeasible("partition-join", sizes)
    blocks = work.frequencies.partitions(cut.number)
    hit, h_r = blocks.top(capacity), capacity * cut.tuples
    index, s = (work.symbols(costs, h_s, cut.tuples, h_r, phase) for phase in ("index", "elevator"))
    s = s._replace(**{name: getattr(index, name) for name in ("c_io", "c_p", "c_w", "c_x")})
    course = Course(
        work.tuples,
        cut.number,
        s.c_io + visits(min(h_s, work.tuples) / cut.number) * cut.tuples * s.c_h + s.c_i,
        s.c_o + s.c_e + s.c_s + s.c_a + s.c_r,
        h_s,
    ).filled_after(1.0, 2 * h_s)
    absent = work.frequencies.absent
    in_gaps = absent * work.gaps  # absent keys that wait, for any partition
    present, at_once = max(1 - absent - hit, 0.0), absent - in_gaps
    misses = present + in_gaps
    if misses < 1e-9:  # all of R is in memory, and the index recognises absent keys
        return in_memory("partition-join", sizes, s, h_r, parts, course)
    rest = blocks.without(capacity)
    waiting = Frequencies((rest.p + in_gaps / cut.number) / misses, rest.keys)
    w = read_at(waiting, h_s, work.tuples * misses)
    w_n, at_once = w * hit / misses, w * at_once / misses
    plain = c_loop(
        c_io=s.c_io,
        d=visits(w) * cut.tuples,
        c_h=s.c_h,
        w_s=w,
        c_o=s.c_o,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
        c_r=s.c_r,
        w_n=w_n,
        c_n=s.c_n,
    )
    corrected = plain + s.c_i + at_once * (s.c_s + s.c_r) - w * (1 - present / misses) * s.c_o
    return Prediction(
        "partition-join",
        sizes,
        w_n,
        w + at_once,
        work.overlap(corrected, s),
        plain,
        parts,
        h_s,
        h_r,
        course=course,
    )
