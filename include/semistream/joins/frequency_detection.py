"""Frequency detection: which master tuples CMESHJOIN, SSJ and SSCJ hold in H_R.

M. A. Naeem, N. Jamil: *An Efficient Stream-based Join to Process End User Transactions in Real-Time
Data Warehousing*, Algorithm 1 and section 4.2; M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth:
*SSCJ*, section 4.1:

    f = number of matches that the disk tuple r found in H_S
    if f >= threshold:  SWITCH r into H_R, in the place of the least frequent one if H_R is full
    the threshold falls while H_R is not full, and rises when evictions come too often

Deviations, and why:

- New tuples gather in a switching buffer, an eighth of H_R, and replace the least frequent ones
  together, with one pass over H_R per buffer and not per tuple. If a partition's new tuples do not
  fit there, one pass decides between them and the tuples in H_R, and the chosen ones enter H_R at
  once. So a value may have more tuples than the buffer.
- A new tuple does not replace one that is equally frequent.
- Frequencies in H_R are halved every period (an R-cycle in a scan). So they are comparable to f,
  the count of one period, and a tuple that was frequent long ago does not stay. When an eighth of
  H_R has fallen below the threshold, H_R does not count as full.
- Duplicate master keys: all master tuples of a join value are cached, or none. Candidates are
  values whose tuples are all in one disk partition, by R's index, and at most h_R in number. Their
  frequencies per master tuple decide which of them are in H_R; the threshold applies to f.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.errors import ConfigError
from semistream.joins.arena import Arena
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.key_table import KeyTable
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.scan_phase import Slice
from semistream.joins.selection import most_frequent, per_tuple, slices
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import Part
from semistream.joins.stored_types import has_strings, variable_bytes
from semistream.joins.tuple_store import MOST_HEAP
from semistream.settings import Settings

# the switching buffer is this part of H_R; more evictions than this part in one period are too many
SWITCH_SHARE = 8


class Frequent(NamedTuple):
    """Frequent join values of a partition."""

    keys: np.ndarray  # int64[n]
    f: np.ndarray  # int64[n], matches of each of its master tuples
    tuples: np.ndarray  # int64[n], its master tuples

    def of(self, which: np.ndarray) -> Frequent:
        """Return the values that the mask `which`, bool[n], selects."""
        return Frequent(*(numbers[which] for numbers in self))


class FrequencyParameters(Settings):
    """The parameters of a join with a frequency recorder."""

    cache_tuples: int = Field(
        0, ge=0, description="h_R, the most master tuples that H_R holds; 0: chosen from M"
    )
    threshold: int = Field(
        2,
        ge=1,
        description="matches in H_S from which a master tuple is frequent, at first; it adapts",
    )


NONE = Frequent(*(np.zeros(0, np.int64) for _ in range(3)))


class FrequentTuples(Part):
    """H_R for h_R master tuples, and the frequency recorder that decides which tuples it holds.

    capacity: h_R, but no more tuples than R has; switch: the largest number of tuples in the
    switching buffer. The join calls ``detect`` with every partition that it has probed, and
    ``end_period`` once per period.
    """

    def __init__(self, spec: JoinSpec, arena: Arena, parameters: FrequencyParameters):
        self.spec, h_r = spec, parameters.cache_tuples
        v, strings = cached_bytes(spec) + MasterCache.ENTRY, has_strings(spec.fetched_schema)
        self.capacity = min(h_r, max(spec.master.tuple_count, 1))
        if strings:  # with the switching buffer no more than a heap
            heap = int(MOST_HEAP / v * SWITCH_SHARE / (SWITCH_SHARE + 1)) - 1
            self.capacity = max(min(self.capacity, heap), 1)
        self.switch = max(self.capacity // SWITCH_SHARE, 1)
        self.bytes = math.ceil(self.capacity * v)
        self.size = math.ceil((self.capacity + self.switch) * v)
        if self.size > arena.free:
            raise ConfigError(
                "cache_tuples",
                f"must let H_R, {self.size:,} bytes, fit beside the disk buffer, {arena.free:,}",
                h_r,
                "Give more memory, or a smaller cache_tuples.",
            )
        arena.reserve("H_R", self.size)
        most = self.capacity + self.switch
        self.cache = MasterCache(spec.fetched_schema, most, most, self.size)
        self.threshold, self.evictions = parameters.threshold, 0
        self.least = 0.0  # the frequency per tuple that a new value must exceed

    @property
    def tuples(self) -> int:
        """Master tuples in H_R, without the switching buffer."""
        return self.cache.tuples

    def detect(self, partition: DiskPartition | Slice, f: np.ndarray) -> None:
        """Switch the frequent tuples of a partition into H_R. f: int32[n], the matches of each
        tuple of the partition in H_S."""
        rows = np.flatnonzero(f >= self.threshold)
        if not len(rows):
            return
        codes = partition.codes[rows]
        keys, first, tuples = np.unique(codes, return_index=True, return_counts=True)
        found = Frequent(keys, f[rows[first]].astype(np.int64), tuples)
        found = found.of((found.f > self.least * tuples) & (tuples <= self.capacity))
        if len(found.keys):
            found = found.of(self._new(found.keys))
        if not len(found.keys):
            return
        value = KeyTable(found.keys).find(codes)
        rows, value = rows[value >= 0], value[value >= 0]
        payload, cache = partition.take(rows), self.cache
        size = found.tuples * cache.slot + MasterCache.ENTRY
        if cache.store.variable:
            size += np.bincount(value, variable_bytes(payload)).astype(np.int64)
        rows = np.arange(len(value))
        if (
            cache.staged.tuples + found.tuples.sum() > self.switch
            or cache.used + size.sum() > self.size
        ):
            kept = self._exchange(found, size)
            rows = np.flatnonzero(kept[value])
            found, value = found.of(kept), (np.cumsum(kept) - 1)[value[rows]]
        place = cache.stage(found.keys, found.f)
        cache.stage_tuples(payload, rows, value + place, self.size)
        if cache.staged.tuples >= self.switch:
            self._exchange()

    def end_period(self) -> None:
        """Adapt the threshold, and halve the frequencies."""
        self._exchange()
        cache = self.cache
        free = sum(
            int(cache.counts[part][cache.frequencies[part] < self.threshold].sum())
            for part in slices(cache.entries)
        )
        if self.evictions > self.capacity // SWITCH_SHARE:
            self.threshold += max(self.threshold // 4, 1)
        elif not self._full or free > self.capacity // SWITCH_SHARE:
            self.threshold = max(self.threshold // 2, 1)
        self.evictions = 0
        cache.frequencies[:] //= 2
        self._measure_least(self._full)

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """Return which of the keys, int64[n], are not in H_R and may enter it, bool[n]."""
        new = self.cache.lacks(keys)
        # np.isin would make a set of all staged keys, which may be many more than `keys`
        staged = KeyTable(keys).find(self.cache.staged.keys)
        new[staged[staged >= 0]] = False
        return new & self.spec.in_one_partition(keys)

    def _exchange(self, new: Frequent = NONE, size: np.ndarray = NONE.f) -> np.ndarray:
        """Move the switching buffer into H_R. To make room for new values, the least frequent
        values are evicted. size: int64[n], bytes of each new value. Return which new values fit,
        bool[n]."""
        cache, before = self.cache, self.cache.entries
        if not (len(cache.staged) or len(new.keys)):
            return np.ones(0, bool)
        cache.link()
        n = cache.entries
        kept = self._most_frequent(new, size)
        gone = ~kept[:before]
        self.evictions += int(cache.counts[:before][gone].sum())
        if kept[:n].all():
            cache.index()
        else:
            cache.keep(kept[:n])
        # a rejected value is not tried again before the period ends
        self._measure_least(self._full or self.least > 0 or not kept.all())
        return kept[n:]

    def _measure_least(self, full: bool) -> None:
        cache, self.least = self.cache, 0.0
        if full and cache.entries:
            self.least = float(
                min(
                    per_tuple(cache.frequencies[part], cache.counts[part]).min()
                    for part in slices(cache.entries)
                )
            )

    @property
    def _full(self) -> bool:
        """Whether H_R has no room for one more value of average size."""
        cache, n = self.cache, self.cache.entries
        return n > 0 and (cache.tuples >= self.capacity or cache.used + cache.used / n > self.bytes)

    def _most_frequent(self, new: Frequent, size: np.ndarray) -> np.ndarray:
        """Choose the most frequent values, among the entries and the new values, that fit into h_R
        tuples and their bytes. Return which values are chosen, bool[n], the entries first. Of
        equally frequent values the older one is kept."""
        cache, n = self.cache, self.cache.entries
        if (
            cache.tuples + new.tuples.sum() <= self.capacity
            and cache.used + size.sum() <= self.bytes
        ):
            return np.ones(n + len(new.keys), bool)

        def numbers_of(part: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            old = slice(part.start, min(part.stop, n))
            more = slice(max(part.start - n, 0), max(part.stop - n, 0))
            here = (cache.frequencies[old], cache.counts[old], cache.sizes(old))
            there = (new.f[more], new.tuples[more], size[more])
            frequencies, tuples, sizes = map(np.append, here, there)
            return frequencies, tuples, sizes

        return most_frequent(n + len(new.keys), numbers_of, self.capacity, self.bytes)

    def tables(self) -> dict[str, pa.RecordBatchReader]:
        """Return the join values and frequencies of H_R and of the switching buffer. The master
        tuples of these values can be read from R."""
        return {"cache": self.cache.saved()}

    def values(self) -> dict[str, Any]:
        return {"frequency recorder": {"threshold": self.threshold, "evictions": self.evictions}}

    def restore(self, tables: dict[str, pa.Table], values: dict[str, Any]) -> None:
        """Fetch the tuples of the saved join values from R: the most frequent values first, as many
        as fit."""
        recorder = values["frequency recorder"]
        self.threshold, self.evictions = recorder["threshold"], recorder["evictions"]
        self.cache.take_up(self.spec, tables["cache"], self.size, self.capacity)
        self._measure_least(self._full)
