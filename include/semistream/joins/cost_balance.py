"""The cost-balanced inequality of ELEVATORJOIN, which chooses the join values that H_R holds.

`joins/elevatorjoin.py` derives the inequality. A value with n stream tuples per sweep and m master
tuples is worth caching if n v_S > 2 phi (m v_R + v_E). phi is the stops' share of the cost of a
miss, or 0 while there is memory that H_S cannot use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.joins.disk_partition import DiskPartition
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.scan_phase import ITERATION_COST
from semistream.joins.spec import JoinSpec
from semistream.joins.statistics import Clock
from semistream.joins.stored_types import has_strings, variable_bytes
from semistream.joins.stream_table.by_partition import ByPartition, Visit

HYSTERESIS = 2.0  # a value stays while its worth is at least half of that needed to enter
ABSENT_VALUES = True  # whether H_R holds values without master tuples
# staged values move to H_R before the end of a sweep once this part of the waiting tuples has
# waited for them
MOVED_SHARE = 16
INDEXED = 64  # join values of H_R that can be indexed anew in the time of one miss


class Stopwatch:
    """A stopwatch that runs inside ``with`` blocks. seconds: the time so far, on the given
    clock."""

    def __init__(self, clock: Clock):
        self._clock, self._begun, self.seconds = clock, 0.0, 0.0

    def __enter__(self) -> None:
        self._begun = self._clock()

    def __exit__(self, *_: object) -> None:
        self.seconds += self._clock() - self._begun


class MissCosts:
    """phi, the stops' share of the cost of a miss. It is given, or measured in every sweep.

    misses: the whole time that misses cost in this sweep; disk: the part of this time for reading R
    and probing.
    """

    def __init__(self, given: float, clock: Clock):
        self.phi, self._measured = given or 1.0, not given
        self.misses, self.disk, self.stops = Stopwatch(clock), Stopwatch(clock), 0

    def end_sweep(self, sweeps: int) -> None:
        """Update phi at the end of a sweep. sweeps: the number of sweeps that have ended. A stop's
        fixed cost, c_I, cannot be timed separately from the cost of its tuples; it is assumed to be
        `ITERATION_COST`."""
        spent, disk = self.misses.seconds, self.disk.seconds
        if self._measured and spent > 0:
            now = (disk + min(self.stops * ITERATION_COST, spent - disk)) / spent
            self.phi = (self.phi + now) / 2 if sweeps > 1 else now
        self.misses.seconds = self.disk.seconds = 0.0
        self.stops = 0


class Values(NamedTuple):
    """The join values of some rows of a partition."""

    rows: np.ndarray  # int64[r]
    group: np.ndarray  # int64[r], the value of each row
    keys: np.ndarray  # int64[k]
    n: np.ndarray  # int32[k], stream tuples that met each value
    m: np.ndarray  # int64[k], master tuples of each value


class CostBalance:
    """The choice of join values for H_R, and their transfer into its switching buffer.

    most_cached: the largest number of master tuples in H_R; whole: whether all of R fits, so that
    every value is chosen.
    """

    def __init__(
        self, spec: JoinSpec, h_s: ByPartition, h_r: MasterCache, most_cached: int, whole: bool
    ):
        self.spec, self.h_s, self.h_r = spec, h_s, h_r
        self.most_cached, self.whole = most_cached, whole
        self.v_r, self.strings = cached_bytes(spec), has_strings(spec.fetched_schema)

    def worth(self, n: np.ndarray, m: np.ndarray | int, phi: float) -> np.ndarray:
        """Return n v_S / (2 phi (m v_R + v_E)) of each join value. A value is worth caching if this
        exceeds 1. n: stream tuples of each value in a sweep; m: its master tuples."""
        return n * self.h_s.tuple_bytes / (2 * max(phi, 1e-9) * (m * self.v_r + self.h_r.ENTRY))

    def worth_keeping(self, phi: float) -> np.ndarray:
        """Return which values of H_R are still worth their memory, bool[entries]."""
        return self.h_r.entries_where(lambda n, m: HYSTERESIS * self.worth(n, m, phi) > 1)

    def switch(
        self, visit: Visit, partition: DiskPartition, counts: np.ndarray, phi: float, budget: int
    ) -> bool:
        """SWITCH the values that satisfy the inequality into the switching buffer, best first, as
        far as they fit. Return whether the switching buffer should be moved to H_R now.

        visit: the partition's last visit, which has the tuples with absent values; counts:
        int32[n], the stream tuples that each tuple of the partition matched in all visits; budget:
        bytes of H_R.
        """
        h_r = self.h_r
        # stream tuples that a value with one master tuple needs
        least = 2 * phi * (self.v_r + h_r.ENTRY) / self.h_s.tuple_bytes
        rows = np.arange(len(counts)) if self.whole else np.flatnonzero(counts > least)
        absent = np.flatnonzero((visit.number > 0) & ~visit.met & ABSENT_VALUES)
        absent = absent[self.worth(_surely(visit.number[absent], phi), 0, phi) > 1]
        if not (len(rows) or len(absent)):
            return False
        values = self._values(partition, rows, counts)
        worth = (
            np.full(len(values.keys), 2.0)
            if self.whole
            else self.worth(_surely(values.n, phi), values.m, phi)
        )
        chosen = np.flatnonzero(worth > 1)
        chosen = chosen[self._new(values.keys[chosen])]
        absent = absent[self._new(visit.keys[absent])] if len(absent) else absent
        if not (len(chosen) or len(absent)):
            return False
        best = chosen[np.argsort(-worth[chosen], kind="stable")]
        full = self._stage(partition, values, best, budget)
        absent = absent[: max(int(h_r.room(budget) // h_r.ENTRY), 0)]
        h_r.stage(visit.keys[absent], visit.number[absent])
        soon = max(self.h_s.live // MOVED_SHARE, h_r.entries // INDEXED)
        return bool(
            full
            or len(h_r.staged) > max(h_r.entries // 8, 256)
            or h_r.staged.frequencies.sum() > soon
        )

    def _values(self, partition: DiskPartition, rows: np.ndarray, counts: np.ndarray) -> Values:
        if self.spec.one_tuple:
            return Values(
                rows,
                np.arange(len(rows)),
                partition.codes[rows],
                counts[rows],
                np.ones(len(rows), np.int64),
            )
        keys, first, group = np.unique(
            partition.codes[rows], return_index=True, return_inverse=True
        )
        return Values(
            rows, group, keys, counts[rows[first]], np.bincount(group, minlength=len(keys))
        )

    def _stage(
        self, partition: DiskPartition, values: Values, chosen: np.ndarray, budget: int
    ) -> bool:
        """Put the chosen values into the switching buffer. Return whether some values did not
        fit."""
        h_r, (rows, group, keys, n, m) = self.h_r, values
        size = m * h_r.slot + h_r.ENTRY
        if len(chosen) and self.strings:
            size = size + np.bincount(group, variable_bytes(partition.payload)[rows], len(keys))
        most = self.most_cached - h_r.tuples - h_r.staged.tuples
        fit = min(
            np.searchsorted(np.cumsum(size[chosen]), h_r.room(budget), side="right"),
            np.searchsorted(np.cumsum(m[chosen]), most, side="right"),
        )
        full, chosen = bool(fit < len(chosen)), chosen[:fit]
        if len(chosen):
            owner = np.full(len(keys), -1, np.int64)
            owner[chosen] = h_r.stage(keys[chosen], n[chosen]) + np.arange(len(chosen))
            mine = owner[group] >= 0
            h_r.stage_tuples(
                partition.take(rows[mine]), np.arange(mine.sum()), owner[group][mine], budget
            )
        return full

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """Return which of the keys are not in H_R and have all their master tuples in one
        partition."""
        return self.h_r.lacks(keys) & self.spec.in_one_partition(keys)


def _surely(n: np.ndarray, phi: float) -> np.ndarray:
    """Return n minus one standard deviation of a Poisson count, the part that chance may have
    added. Otherwise each value that came once by chance would count as a value that comes once per
    sweep. While memory costs nothing (phi is 0), return n."""
    return n - np.sqrt(n) if phi else n
