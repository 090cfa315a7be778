"""Frequency detection: which master tuples CMESHJOIN, SSJ and SSCJ hold in H_R.

M. A. Naeem, N. Jamil: *An Efficient Stream-based Join to Process End User Transactions in Real-Time
Data Warehousing*, Algorithm 1 and section 4.2; M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth:
*SSCJ*, section 4.1:

    f = number of matches that the disk tuple r found in H_S
    if f >= threshold:  SWITCH r into H_R, in the place of the least frequent one if H_R is full
    the threshold falls while H_R is not full, and rises when evictions come too often

Deviations, and why:

- Newcomers gather in a switching buffer, an eighth of H_R, and change places with the least
  frequent ones together: one pass over H_R per buffer and not per tuple.
- A newcomer does not displace a tuple that is as frequent.
- Frequencies in H_R are halved every period (an R-cycle in a scan). They are thus comparable to f,
  which is what came in one period, and what was hot once does not stay. When an eighth of H_R has
  fallen below the threshold, H_R does not count as full.
- Duplicate master keys: of a join value all master tuples are cached or none. Candidates are the
  values whose tuples are all in one disk partition, as R's index tells. Frequencies are compared
  per master tuple.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins.arena import Arena
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.key_table import KeyTable
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.scan_phase import Slice
from semistream.joins.selection import most_frequent, per_tuple, slices
from semistream.joins.spec import JoinSpec
from semistream.joins.stored_types import has_strings, variable_bytes
from semistream.joins.tuple_store import MOST_HEAP

# the switching buffer is this part of H_R; evictions of more than it in one period are too many
SWITCH_SHARE = 8


class Frequent(NamedTuple):
    """Join values of a partition that are frequent."""

    keys: np.ndarray  # int64[n]
    f: np.ndarray  # int64[n], matches of each of its master tuples
    tuples: np.ndarray  # int64[n], its master tuples


class FrequentTuples:
    """H_R with places for h_R master tuples, and the frequency recorder that decides which.

    The join calls ``detect`` with every partition that it has probed and ``end_period`` once a
    period.
    """

    def __init__(self, spec: JoinSpec, arena: Arena, h_r: int, threshold: int):
        self.spec = spec
        v, strings = cached_bytes(spec) + MasterCache.ENTRY, has_strings(spec.fetched_schema)
        self.places = min(h_r, max(spec.master.tuple_count, 1))
        if strings:  # with the switching buffer no more than a heap
            most = int(MOST_HEAP / v * SWITCH_SHARE / (SWITCH_SHARE + 1)) - 1
            self.places = max(min(self.places, most), 1)
        self.switch = max(self.places // SWITCH_SHARE, 1)  # places in the switching buffer
        self.bytes = math.ceil(self.places * v)
        self.size = math.ceil((self.places + self.switch) * v)
        if self.size > arena.free:
            raise ConfigError("cache_tuples", f"must let H_R, {self.size:,} bytes, fit beside the "
                                              f"disk buffer, {arena.free:,}",
                              h_r, "Give more memory, or a smaller cache_tuples.")
        arena.reserve("H_R", self.size)
        places = self.places + self.switch
        self.cache = MasterCache(spec.fetched_schema, places, places,
                                 self.size if strings else 0)
        self.threshold, self.evictions = threshold, 0
        self.least = 0.0  # frequency per tuple that a newcomer must exceed

    def detect(self, partition: DiskPartition | Slice, f: np.ndarray) -> None:
        """Switch the frequent tuples of a partition into H_R; f: int32[n], the matches of each of
        its tuples in H_S."""
        rows = np.flatnonzero(f >= self.threshold)
        if not len(rows):
            return
        keys, first, group = np.unique(partition.codes[rows], return_index=True,
                                       return_inverse=True)
        found = Frequent(keys, f[rows[first]].astype(np.int64), np.bincount(group))
        new = self._new(keys) & (found.f > self.least * found.tuples)
        order = np.argsort(-found.f / found.tuples, kind="stable")
        order = order[new[order]][:self.places]
        if not len(order):
            return
        size = (np.bincount(group, variable_bytes(partition.payload)[rows] + self.cache.slot)
                + MasterCache.ENTRY)
        while len(order):
            count = self._fitting(found.tuples[order], size[order])
            if count:
                self._stage(partition.payload, rows, group, found, order[:count])
                order = order[count:]
            elif len(self.cache.staged):
                self._exchange()
            else:
                order = order[1:]  # larger than the switching buffer
        if self.cache.staged.tuples >= self.switch:
            self._exchange()

    def end_period(self) -> None:
        """Adapt the threshold, age the frequencies."""
        self._exchange()
        cache = self.cache
        free = sum(counts[per_tuple(f, counts) < self.threshold].sum() for f, counts in (
            (cache.frequencies[part], cache.counts[part]) for part in slices(cache.entries)))
        if self.evictions > self.places // SWITCH_SHARE:
            self.threshold += max(self.threshold // 4, 1)
        elif not self._full or free > self.places // SWITCH_SHARE:
            self.threshold = max(self.threshold // 2, 1)
        self.evictions = 0
        cache.frequencies[:] //= 2
        self._measure_least()

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """Which of the keys are not in H_R and may be."""
        new = self.cache.lacks(keys)
        # not isin, which makes a set of all that are staged: they may be many more than the keys
        staged = KeyTable(keys).find(self.cache.staged.keys)
        new[staged[staged >= 0]] = False
        master = self.spec.master
        if not (master.unique and master.keys.exact):  # equal codes are one value to H_R
            ranges = master.partitions_of(keys)
            new &= ranges[:, 1] - ranges[:, 0] == 1
        return new

    def _fitting(self, tuples: np.ndarray, size: np.ndarray) -> int:
        """How many of the coming values, with these tuples and bytes each, the switching buffer has
        room for."""
        return int(min(np.searchsorted(np.cumsum(tuples), self.switch - self.cache.staged.tuples,
                                       side="right"),
                       np.searchsorted(np.cumsum(size), self.size - self.cache.used, side="right")))

    def _stage(self, payload: pa.RecordBatch, rows: np.ndarray, group: np.ndarray, found: Frequent,
               chosen: np.ndarray) -> None:
        """Put the chosen values into the switching buffer; group: the value of each row of the
        payload."""
        owner = np.full(len(found.keys), -1, np.int64)
        owner[chosen] = self.cache.stage(found.keys[chosen],
                                         found.f[chosen]) + np.arange(len(chosen))
        mine = owner[group] >= 0
        self.cache.stage_tuples(payload, rows[mine], owner[group][mine], self.size)

    def _exchange(self) -> None:
        """The switching buffer becomes a part of H_R; the least frequent tuples beyond h_R go."""
        cache, before = self.cache, self.cache.entries
        if not len(cache.staged):
            return
        cache.switch()
        kept = self._most_frequent()
        self.evictions += int(np.count_nonzero(cache.frequencies[:before][~kept[:before]]))
        if not kept.all():
            cache.keep(kept)
        self._measure_least()

    def _measure_least(self) -> None:
        cache, self.least = self.cache, 0.0
        if self._full:
            self.least = float(min(per_tuple(cache.frequencies[part], cache.counts[part]).min()
                                   for part in slices(cache.entries)))

    @property
    def _full(self) -> bool:
        """Whether a value more, of average size, would be one too many."""
        cache, n = self.cache, self.cache.entries
        return n > 0 and (cache.tuples >= self.places or cache.used + cache.used / n > self.bytes)

    def _most_frequent(self) -> np.ndarray:
        """Which entries are the most frequent that h_R tuples and their bytes have room for,
        bool[n]; the older one of equals."""
        cache = self.cache
        if cache.tuples <= self.places and cache.used <= self.bytes:
            return np.ones(cache.entries, bool)
        return most_frequent(cache.entries,
                             lambda part: (cache.frequencies[part], cache.counts[part],
                                           cache.sizes(part)), self.places, self.bytes)

    def table(self) -> pa.RecordBatchReader:
        """For a state: join values and frequencies of H_R and of the switching buffer; their tuples
        are in R."""
        return self.cache.saved()

    def values(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "evictions": self.evictions}

    def restore(self, table: pa.Table, values: dict[str, Any]) -> None:
        """Fetch the most frequent of the saved join values from R, as many as there is room for."""
        self.threshold, self.evictions = values["threshold"], values["evictions"]
        self.cache.take_up(self.spec, table, self.size, self.places)
        self._measure_least()
