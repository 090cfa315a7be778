"""ELEVATORJOIN's cost model, in the papers' style.

    M = d v_R + h_R (v_R + v_E) + h_S v_S + 44 N + filter
    c_loop = c_IO(d) + v d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S') + c_I
    w_S = 2 h_S / N,  v = max(w_S / V, 1)

An iteration is a stop. c_S includes the index look-up of a miss; a hit's c_S' does not. H_S is
full, and its tuples are spread over the rest of the elevator's way: the next partition has the
tuples of a whole sweep, the last one has none, and 2 h_S / N tuples leave at a stop. They are
grouped by key V at a time, and the disk tuples are looked up in each of these v groups.

In the steady state of the cost-balanced inequality, T = 2 h_S / (1 - p_N) stream tuples come in a
sweep, and the values with (n - sqrt(n)) v_S > 2 phi (m v_R + v_E) are in H_R, with n = p T, and m =
0 for values without master tuples. phi is the stops' share of the cost of a miss; sqrt(n) is what
chance may add to a sweep's count. This is one equation in T. *Reading ahead* is that of MESHJOIN.

A filter of b bits per master tuple rejects all but `false_positives` (b) of the keys that R lacks.
It costs b R_t / 8 + N bytes, and a look-up, c_R, of each tuple that misses H_R. b is the value of
``FILTER_BITS`` with the highest service rate, or none if no key is absent.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from semistream.cost_models.costs import Costs, Cut, Prediction, Workload, infeasible
from semistream.cost_models.course import Course, Stage
from semistream.cost_models.meshjoin import unread
from semistream.cost_models.solve import crossing
from semistream.joins.elevatorjoin import LEAST_H_S, SWITCH_SHARE
from semistream.joins.key_filter import false_positives, filter_bytes
from semistream.joins.scan_phase import largest_chunk
from semistream.joins.stream_table.by_partition import BLOCKS, PARTITION_BYTES, VISITED, WIDTHS

FILTER_BITS = (4, 8, 12)  # 16, 3 and 1 of 100 absent keys pass
passing = cache(false_positives)  # of these few, a search asks very often
# seconds to cache a tuple of R in H_R, and a byte of it; measured with tuples of 4 and 14 columns
FILL_TUPLE, FILL = 3e-7, 4e-9
# the most sweeps of a run that are computed one by one; a smaller relative change of their tuples
# counts as none
MOST_SWEEPS, EVEN_SWEEPS = 12, 0.05
# the most iterations to find phi; a smaller relative change of phi counts as none
ROUNDS, TOLERANCE = 6, 1e-3


def memory(
    *, m: float, d: float, v_r: float, h_s: float, v_s: float, n: float, filter_bytes: float = 0.0
) -> dict[str, float]:
    """Return the terms of M, bytes. H_R gets the rest."""
    taken = {"disk buffer": d * v_r, "filter": filter_bytes, "H_S": h_s * v_s + n * PARTITION_BYTES}
    return taken | {"H_R": m - sum(taken.values())}


def c_loop(
    *,
    c_io: float,
    v: float,
    d: float,
    c_h: float,
    w_s: float,
    c_o: float,
    c_e: float,
    c_s: float,
    c_a: float,
    c_r: float,
    w_n: float,
    c_n: float,
    c_s_hit: float,
) -> float:
    """Return c_IO(d) + v d c_H + w_S (c_O + c_E + c_S + c_A + c_R) + w_N (c_R + c_N + c_S'),
    seconds. c_R and c_N are c_H and c_O of H_R."""
    return c_io + v * d * c_h + w_s * (c_o + c_e + c_s + c_a + c_r) + w_n * (c_r + c_n + c_s_hit)


def w_s(*, h_s: float, n: float) -> float:
    """Return w_S = 2 h_S / N."""
    return 2 * h_s / n


def visits(w_s: float) -> float:
    """Return v = max(w_S / V, 1), how often a stop looks its disk tuples up."""
    return max(w_s / VISITED, 1.0)


def worth_caching(*, m: float, v_r: float, v_e: float, v_s: float, phi: float) -> float:
    """Return the smallest n for which the cost-balanced inequality caches a value: n - sqrt(n)
    stream tuples in a sweep exceed 2 phi (m v_R + v_E) / v_S. Because of the term sqrt(n), a value
    is not cached by chance alone."""
    return (0.5 + math.sqrt(0.25 + 2 * phi * (m * v_r + v_e) / v_s)) ** 2


class Balance(NamedTuple):
    """The steady state of the cost-balanced inequality."""

    tuples: float  # T, stream tuples per sweep
    h_r: float  # master tuples in H_R
    hit: float  # p_N, share of the stream through H_R, with absent values
    lost: float  # the absent values' part of `hit`
    h_s: float  # tuples in H_S
    phi: float


class _Sweep:
    """The content of H_R, given the T tuples that arrive in a sweep."""

    def __init__(
        self,
        work: Workload,
        pool: float,
        number: float,
        disk_tuples: float,
        costs: Costs,
        cut_tuples: float,
        disk_share: float,
    ):
        self.work, self.pool, self.number, self.costs = work, pool, number, costs
        self.cut_tuples, self.disk_share = cut_tuples, disk_share
        self.v_s, self.v_e = work.elevator_tuple_bytes, work.cached_key_bytes
        self.value_bytes = work.fan_out * work.cached_tuple_bytes + self.v_e
        self.useful = largest_chunk(disk_tuples) * number / 2  # tuples; a larger H_S saves nothing
        self.most = max(pool - max(pool * LEAST_H_S, self.v_s), 0.0)  # bytes of H_R
        width = min(max(pool / self.v_s / (BLOCKS * number), WIDTHS[-1]), WIDTHS[0])
        if work.cut is not None:
            width = 2.0 ** math.floor(math.log2(width))
        self.empty = number * (width - 1) / 2  # half a block of each partition
        self.c_s_hit = work.symbols(costs, 1, 1).c_s
        self.phi = 1.0

    def at(self, log_t: float) -> Balance:
        work, t = self.work, math.exp(log_t)
        for _ in range(ROUNDS):
            before, v_r, v_e, v_s = self.phi, work.cached_tuple_bytes, self.v_e, self.v_s
            n = worth_caching(m=work.fan_out, v_r=v_r, v_e=v_e, v_s=v_s, phi=before)
            n_absent = worth_caching(m=0, v_r=v_r, v_e=v_e, v_s=v_s, phi=before)
            c = work.frequencies.worth(n / t, n_absent / t, self.value_bytes, v_e, self.most)
            self.phi = self._share_of_the_disk(max(t * (1 - c.hit), 1e-9), c.keys * work.fan_out)
            if abs(self.phi - before) < TOLERANCE * before:
                break
        # the switching buffer shrinks if H_R otherwise leaves less than the least H_S
        left = max(self.pool - c.bytes - self.pool / SWITCH_SHARE, self.pool - self.most) / self.v_s
        keys, hit = c.keys, c.hit
        if left >= self.useful:  # H_R gets the memory that H_S has no use for
            absent = c.absent * self.v_e
            keys = min(
                max(keys, (self.pool - self.useful * self.v_s - absent) / self.value_bytes),
                (self.most - absent) / self.value_bytes,
                work.frequencies.count,
            )
            hit = work.frequencies.top(keys) + c.lost
        h_s = min(max(left - self.empty, 1.0), self.useful)
        return Balance(t, keys * work.fan_out, hit, c.lost, h_s, self.phi)

    def _share_of_the_disk(self, misses: float, h_r: float) -> float:
        """Return phi = (C / 2 h_S) / (c_m + C / 2 h_S), with the tuples that miss H_R in a sweep: C
        = N (c_IO(d) + v d c_H + c_I), c_m = c_O + c_E + c_A + c_S - c_S'."""
        if self.disk_share:
            return self.disk_share
        work, number = self.work, self.number
        s = work.symbols(self.costs, misses / 2, self.cut_tuples, h_r, "elevator")
        look_up = max(s.c_s - self.c_s_hit, 0.0)
        others = misses * (s.c_o + s.c_e + s.c_a + look_up)
        look_ups = visits(misses / number) * self.cut_tuples
        stops = number * (s.c_io + look_ups * s.c_h + s.c_i)
        stops = work.overlap(stops + others, s, number) - others
        return stops / (stops + others)

    def surplus(self, log_t: float) -> float:
        """Return ln of a ratio: the tuples that miss H_R in a sweep, divided by the tuples that
        leave H_S."""
        b = self.at(log_t)
        return math.log(max(b.tuples * (1 - b.hit), 1e-300) / (2 * b.h_s))


def balance(
    work: Workload,
    pool: float,
    number: float,
    disk_tuples: float,
    costs: Costs,
    cut_tuples: float,
    disk_share: float = 0.0,
) -> Balance:
    """Return the steady state, in which 2 h_S of the T tuples of a sweep miss H_R. H_S has the part
    of `pool` bytes that H_R and the switching buffer leave."""
    sweep = _Sweep(work, pool, number, disk_tuples, costs, cut_tuples, disk_share)
    most = math.log(max(pool / sweep.v_s, 2.0))  # of H_S, as a logarithm
    return sweep.at(crossing(sweep.surplus, 0.0, most + 30.0, near=most))


def predict(
    work: Workload,
    m: float,
    costs: Costs,
    disk_tuples: float,
    disk_share: float = 0.0,
    filter_bits: int = 0,
) -> Prediction:
    """Predict ELEVATORJOIN's performance. m: M, bytes; disk_tuples: d; disk_share: phi, 0 to
    compute it from the costs; filter_bits: -1 for no filter, 0 for the best of ``FILTER_BITS`` or
    none."""
    if filter_bits:
        return _predict(work, m, costs, disk_tuples, disk_share, max(filter_bits, 0))
    options = (0, *FILTER_BITS) if work.frequencies.absent else (0,)
    found = (_predict(work, m, costs, disk_tuples, disk_share, bits) for bits in options)
    return max(found, key=lambda p: p.rate)


def _predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, disk_share: float, bits: int
) -> Prediction:
    sizes, cut = {"disk_tuples": disk_tuples}, work.partitions(disk_tuples)
    layout = {
        "m": m,
        "d": cut.most_tuples,
        "v_r": cut.tuple_bytes,
        "v_s": work.elevator_tuple_bytes,
        "n": cut.number,
        "filter_bytes": filter_bytes(bits, work.master_tuples, cut.number),
    }
    parts = memory(h_s=0, **layout)
    pool = parts["H_R"]  # H_S and H_R share it
    if not cut.fits(m) or pool < work.elevator_tuple_bytes:
        return infeasible("elevatorjoin", sizes)
    c_s_hit = work.symbols(costs, 1, 1).c_s
    all_of_r = work.values * (work.fan_out * work.cached_tuple_bytes + work.cached_key_bytes)
    sweep = _Sweep(work, pool, cut.number, cut.most_tuples, costs, cut.tuples, disk_share)
    whole = all_of_r <= pool * (1 - LEAST_H_S)
    if whole and not work.frequencies.absent:
        s = work.symbols(costs, 1, 1, work.master_tuples, "elevator")
        each = s.c_r + s.c_n + c_s_hit
        return Prediction(
            "elevatorjoin",
            sizes,
            1.0,
            0.0,
            each,
            each,
            parts,
            0.0,
            work.master_tuples,
            course=_course(work, sweep, cut, costs, whole),
        )
    # share of the stream, if all of it missed H_R
    rejected = work.frequencies.absent * (1 - passing(bits))
    work = replace(work, frequencies=work.frequencies.rejecting(1 - passing(bits)))
    sweep = _Sweep(work, pool, cut.number, cut.most_tuples, costs, cut.tuples, disk_share)
    x = balance(work, pool, cut.number, cut.most_tuples, costs, cut.tuples, disk_share)
    disk = w_s(h_s=x.h_s, n=cut.number)
    front = disk * x.hit / max(1 - x.hit, 1e-9)
    at_once = (disk + front) * rejected / max(1 - rejected, 1e-9)
    s = work.symbols(costs, x.h_s, cut.tuples, x.h_r, "elevator")
    matches = disk * (1 - (work.frequencies.absent - x.lost) / max(1 - x.hit, 1e-9))
    plain = c_loop(
        c_io=s.c_io - s.c_p * unread(matches),
        v=visits(disk),
        d=cut.tuples,
        c_h=s.c_h,
        w_s=disk,
        c_o=s.c_o,
        c_e=s.c_e,
        c_s=s.c_s,
        c_a=s.c_a,
        c_r=s.c_r,
        w_n=front,
        c_n=s.c_n,
        c_s_hit=c_s_hit,
    )
    # misses are looked up in the filter too, at the cost of an H_R of as many bytes
    c_filter = (
        work.symbols(costs, 1, 1, layout["filter_bytes"] / work.cached_key_bytes).c_r
        if bits
        else 0.0
    )
    plain += at_once * (s.c_r + s.c_s) + (disk + at_once) * c_filter

    def waits(tuples: float) -> float:
        """Return the share of the stream that misses H_R and the filter, with so many tuples in a
        sweep, as `Frequencies.recurring` has it for values with and without master tuples."""
        hit = x.hit
        if tuples < x.tuples:
            once = 1 / max(tuples, 1.0)
            known = work.frequencies.worth(once, once, sweep.value_bytes, sweep.v_e, sweep.most)
            hit = min(hit, known.hit)
        return (1 - rejected) * (1 - hit)

    return Prediction(
        "elevatorjoin",
        sizes,
        front + at_once,
        disk,
        work.overlap(plain + s.c_i, s),
        plain,
        memory(h_s=x.h_s, **layout),
        x.h_s,
        x.h_r,
        {"filter_bits": bits} if bits else {},
        _course(work, sweep, cut, costs, whole),
        waits=waits,
    )


def _course(work: Workload, sweep: _Sweep, cut: Cut, costs: Costs, whole: bool) -> Course:
    """Return the predicted course of a run: for each sweep over R its tuples, the share of them
    that H_R answers, and its seconds. The content of H_R in a sweep follows from the previous
    sweep.

    In the first sweep H_R is empty, and H_S has the whole pool. The tuples that arrive during this
    sweep belong to partitions all over R, so that 1.72 times as many tuples are finished in it as
    H_S holds (Euler's number minus 1). whole: whether H_R holds all of R after
    the first sweep.
    """
    first = min(sweep.pool / sweep.v_s, sweep.useful)
    t = (math.e - 1) * first
    s = work.symbols(costs, first, cut.tuples, phase="elevator")
    course = Course(
        work.tuples,
        cut.number,
        s.c_io + visits(t / cut.number) * cut.tuples * s.c_h + s.c_i,
        s.c_o + s.c_e + s.c_s + s.c_a + s.c_r,
        first,
    )
    if not math.isfinite(work.tuples):
        return course
    hit_cost, fill = s.c_r + s.c_n + sweep.c_s_hit, FILL_TUPLE + work.cached_tuple_bytes * FILL
    stages: list[Stage] = []
    hit, cached, came = 0.0, 0.0, 0.0
    while len(stages) < MOST_SWEEPS and came < work.tuples:
        came += t
        b = sweep.at(math.log(max(t, 1.0)))
        known = work.frequencies.different(came) * work.fan_out
        here = work.master_tuples if whole else min(b.h_r, known)
        seconds = (
            cut.number * course.read
            + t * (hit * hit_cost + (1 - hit) * course.miss)
            + max(here - cached, 0.0) * fill
        )
        stages.append(Stage(t, hit, seconds))
        cached, hit = here, min(b.hit, work.frequencies.top(here / work.fan_out) + b.lost)
        before, t = t, 2 * b.h_s / max(1 - hit, 1e-9)
        if whole or abs(t - before) < EVEN_SWEEPS * before:
            break
    in_vain = (
        min(
            work.frequencies.different(min(first, work.tuples)) * work.fan_out,
            sweep.most / sweep.value_bytes * work.fan_out,
        )
        * fill
    )
    return replace(course, stages=tuple(stages), in_vain=in_vain)
