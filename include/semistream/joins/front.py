"""The front stage: H_R, the cache of master tuples that every stream tuple meets first.

The stream-probing phase is one for all cache joins (SSBJ, CMESHJOIN, SSJ, SSCJ). What enters H_R differs: SSBJ decides by its
cache inequality, the others by **frequency detection** (Naeem, Jamil: *An Efficient Stream-based Join to Process End User
Transactions in Real-Time Data Warehousing*, Algorithm 1 and section 4.2; Naeem, Weber, Dobbie, Lutteroth: *SSCJ*, section 4.1):

    f = number of matches that the disk tuple r found in H_S
    if f >= threshold:  SWITCH r into H_R, in the place of the least frequent one if H_R is full
    the threshold falls while H_R is not full, and rises when evictions come too often

Deviations, and why:

- Newcomers gather in a switching buffer, an eighth of H_R, and change places with the least frequent ones together: one pass over
  H_R per buffer and not per tuple.
- A newcomer does not displace a tuple that is as frequent.
- Frequencies in H_R are halved every period (an R-cycle in a scan). They are thus comparable to f, which is what came in one
  period, and what was hot once does not stay. When an eighth of H_R has fallen below the threshold, H_R does not count as full.
- Duplicate master keys: of a join value all master tuples are cached or none. Candidates are the values whose tuples are all in
  one disk partition, as R's index tells. Frequencies are compared per master tuple.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins import kernels
from semistream.joins.base import NO_MATCH, JoinOutput, Partition, SemiStreamJoin
from semistream.joins.parts import Cache, is_variable, portions, variable_bytes
from semistream.joins.spec import JoinSpec

PROBE_ROWS, LEAST_PROBED = 65_536, 1024  # stream tuples per step of the cache phase, at most and at least
LONG_ROWS = 256  # the most rows of a joined batch of tuples that are too long for H_S
SWITCH_SHARE = 8  # the switching buffer is this part of H_R; evictions of more than it in one period are too many


class KeyTable:
    """Distinct key codes, findable."""

    def __init__(self, keys: np.ndarray):
        self.keys = keys
        self._table = np.empty(len(keys) + len(keys) // 2 + 2, np.int32)
        kernels.table_build(self._table, keys)

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Index of each code among the keys, or -1."""
        out = np.empty(len(codes), np.int32)
        kernels.table_find(codes, self._table, self.keys, out)
        return out


def cache_phase(batch: pa.RecordBatch, codes: np.ndarray, waiting: int) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray]]:
    """(first row, tuples, key codes) of each step: at most a quarter of the tuples that H_S holds, as H_R changes while those
    that it does not know wait to get in."""
    step = min(PROBE_ROWS, max(waiting // 4, LEAST_PROBED))
    for first in range(0, len(codes), step):
        yield first, batch.slice(first, step), codes[first:first + step]


def probe_front(join: SemiStreamJoin, cache: Cache, block: pa.RecordBatch,
                codes: np.ndarray) -> Generator[JoinOutput, None, np.ndarray]:
    """The stream-probing phase: join what H_R knows. Returns the rows that it does not know, int64[n].

    A tuple whose key is cached and that still has no match has none in R: all master tuples of a cached key are there.
    """
    entries, counts, hits = cache.probe(codes)
    if not hits:
        return np.arange(len(codes))
    matched = np.zeros(len(codes), bool)
    for rows, slots in cache.pairs(entries, counts):
        stream, master = block.take(pa.array(rows)).columns, cache.store.get(slots)
        stream, master, rows = join._equal(stream, master, rows)
        matched[rows] = True
        if len(rows):
            yield join._joined(stream, master)
    join.stats.cache_hits += hits
    join.stats.matched += int(matched.sum())
    absent = np.flatnonzero((entries >= 0) & ~matched)
    if len(absent):
        yield join._unmatched(block.take(pa.array(absent)).columns, NO_MATCH)
    return np.flatnonzero(entries < 0)


def tuples_of(spec: JoinSpec, keys: np.ndarray) -> Iterator[tuple[Partition, np.ndarray, np.ndarray]]:
    """R's tuples with these key codes: (partition, their rows in it, ascending, and the index of each one's key)."""
    if not len(keys):
        return
    spans = spec.master.partitions_of(keys)
    value, nth = expand(spans[:, 1] - spans[:, 0])
    number = spans[value, 0] + nth
    order = np.lexsort((keys[value], number))
    value, number = value[order], number[order]
    cuts = np.flatnonzero(np.diff(number, prepend=-1, append=-1))
    for a, b in itertools.pairwise(cuts):
        partition, mine = Partition(spec, int(number[a])), value[a:b]
        codes = partition.codes
        sorter = None if (codes[1:] >= codes[:-1]).all() else np.argsort(codes, kind="stable")
        first, last = (np.searchsorted(codes, keys[mine], side, sorter=sorter) for side in ("left", "right"))
        which, nth = expand(last - first)
        rows, index = first[which] + nth, mine[which]
        if sorter is not None:
            rows = sorter[rows]
            order = np.argsort(rows)
            rows, index = rows[order], index[order]
        yield partition, rows, index


def expand(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each index as often as its count, and the number of each repetition; for counts [2, 0, 1]: ([0, 0, 2], [0, 1, 0])."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def join_long(join: SemiStreamJoin, columns: Callable[[np.ndarray, list[pa.Array]], list[pa.Array]], held: pa.RecordBatch,
              codes: np.ndarray, rows: np.ndarray, sizes: np.ndarray) -> Generator[JoinOutput, None, np.ndarray]:
    """Join the tuples of these rows that an empty H_S cannot hold, those no shorter than the first, from the stream buffer: all
    partitions that may have their keys are read. Returns which rows are left, bool[rows].

    columns: ``StreamTuples.columns``; sizes: bytes of each row's strings.
    """
    long = sizes >= sizes[0]
    rows = rows[long]
    keys, of = np.unique(codes[rows], return_inverse=True)
    order, number = np.argsort(of, kind="stable"), np.bincount(of)
    first_of, matched = np.cumsum(number) - number, np.zeros(len(rows), bool)

    def stream(tuples: np.ndarray) -> list[pa.Array]:
        return columns(codes[rows[tuples]], held.take(pa.array(rows[tuples])).columns)

    for partition, found, index in tuples_of(join.spec, keys):
        for first, last, _ in portions(number[index], LONG_ROWS):
            which, nth = expand(number[index[first:last]])
            tuples = order[first_of[index[first:last]][which] + nth]
            left, right, tuples = join._equal(stream(tuples), partition.take(found[first:last][which]).columns, tuples)
            matched[tuples] = True
            if len(tuples):
                yield join._joined(left, right)
    join.stats.matched += int(matched.sum())
    lost = np.flatnonzero(~matched)
    for first in range(0, len(lost), LONG_ROWS):
        yield join._unmatched(stream(lost[first:first + LONG_ROWS]), NO_MATCH)
    return ~long


def has_strings(schema: pa.Schema) -> bool:
    return any(is_variable(f.type) for f in schema)


def cached_bytes(spec: JoinSpec) -> float:
    """v_R as held in H_R: payload and link, strings at the average length of R's."""
    fixed = Cache.tuple_bytes(spec.fetched_schema, 0)
    if not has_strings(spec.fetched_schema):
        return fixed
    widths = (max(f.type.bit_width // 8, 1) if pa.types.is_primitive(f.type) else 4 for f in spec.master.schema)
    return fixed + max(spec.master.tuple_bytes - 8 - sum(widths), 0)  # v_R on disk less key codes, numbers and strings' offsets


class Staged(NamedTuple):
    """The join values in the switching buffer: their f and their master tuples."""

    keys: np.ndarray
    f: np.ndarray
    tuples: np.ndarray

    @classmethod
    def none(cls) -> Staged:
        return cls(*(np.zeros(0, np.int64) for _ in range(3)))


class FrequentTuples:
    """H_R with places for h_R master tuples, and the frequency recorder that decides which.

    The join calls ``detect`` with every partition that it has probed and ``end_period`` once a period.
    """

    def __init__(self, join: SemiStreamJoin, h_r: int, threshold: int):
        spec, self.join = join.spec, join
        v = cached_bytes(spec) + Cache.ENTRY
        self.h_r = min(h_r, max(spec.master.tuple_count, 1))
        self.switch = max(self.h_r // SWITCH_SHARE, 1)
        self.bytes, self.size = math.ceil(self.h_r * v), math.ceil((self.h_r + self.switch) * v)
        if self.size > join.arena.free:
            raise ConfigError("cache_tuples", f"must let H_R, {self.size:,} bytes, fit beside the disk buffer, "
                              f"{join.arena.free:,}", h_r, "Give more memory, or a smaller cache_tuples.")
        join.arena.reserve("H_R", self.size)
        places = self.h_r + self.switch
        self.cache = Cache(spec.fetched_schema, places, places, self.size if has_strings(spec.fetched_schema) else 0)
        self.threshold, self.evictions = threshold, 0
        self.least = 0.0  # frequency per tuple that a newcomer must exceed
        self.staged = Staged.none()

    def probe(self, block: pa.RecordBatch, codes: np.ndarray) -> Generator[JoinOutput, None, np.ndarray]:
        """The stream-probing phase. Returns the rows that H_R does not know."""
        return probe_front(self.join, self.cache, block, codes)

    def detect(self, partition: Partition, f: np.ndarray) -> None:
        """Switch the frequent tuples of a partition into H_R; f[i]: matches of its tuple i in H_S."""
        rows = np.flatnonzero(f >= self.threshold)
        if not len(rows):
            return
        keys, first, group = np.unique(partition.codes[rows], return_index=True, return_inverse=True)
        found = Staged(keys, f[rows[first]].astype(np.int64), np.bincount(group))
        new = self._new(keys) & (found.f > self.least * found.tuples)
        order = np.argsort(-found.f / found.tuples, kind="stable")
        order = order[new[order]][:self.h_r]
        if not len(order):
            return
        size = np.bincount(group, variable_bytes(partition.payload)[rows] + self.cache.slot) + Cache.ENTRY
        while len(order):
            count = self._fitting(found.tuples[order], size[order])
            if count:
                self._stage(partition, rows, group, found, order[:count])
                order = order[count:]
            elif len(self.staged.keys):
                self._exchange()
            else:
                order = order[1:]  # larger than the switching buffer
        if self.cache.loaded >= self.switch:
            self._exchange()

    def end_period(self) -> None:
        """Adapt the threshold, age the frequencies."""
        self._exchange()
        cache = self.cache
        tuples = cache.ecount[:cache.entries]
        free = tuples[cache.efreq[:cache.entries] < self.threshold * tuples].sum()
        if self.evictions > self.h_r // SWITCH_SHARE:
            self.threshold += max(self.threshold // 4, 1)
        elif not self._full or free > self.h_r // SWITCH_SHARE:
            self.threshold = max(self.threshold // 2, 1)
        self.evictions = 0
        cache.efreq[:cache.entries] //= 2
        self._measure_least()

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """Which of the keys are not in H_R and may be."""
        cached = np.empty(len(keys), np.int32)
        kernels.table_find(keys, self.cache.table, self.cache.ekey, cached)
        new = (cached < 0) & ~np.isin(keys, self.staged.keys)
        master = self.join.spec.master
        if not (master.unique and master.keys.exact):  # equal codes are one value to H_R
            ranges = master.partitions_of(keys)
            new &= ranges[:, 1] - ranges[:, 0] == 1
        return new

    def _fitting(self, tuples: np.ndarray, size: np.ndarray) -> int:
        """How many of the coming values, with these tuples and bytes each, the switching buffer has room for."""
        room = self.size - self.cache.used - len(self.staged.keys) * Cache.ENTRY
        return int(min(np.searchsorted(np.cumsum(tuples), self.switch - self.cache.loaded, side="right"),
                       np.searchsorted(np.cumsum(size), room, side="right")))

    def _stage(self, partition: Partition, rows: np.ndarray, group: np.ndarray, found: Staged, chosen: np.ndarray) -> None:
        """Load the tuples of the chosen values into the switching buffer; group numbers the value of each row."""
        owner = np.full(len(found.keys), -1, np.int64)
        owner[chosen] = len(self.staged.keys) + np.arange(len(chosen))
        mine = owner[group] >= 0
        self.cache.load(partition.payload, rows[mine], owner[group][mine], self.size)
        self.staged = Staged(*(np.append(a, b[chosen]) for a, b in zip(self.staged, found, strict=True)))

    def _exchange(self) -> None:
        """The switching buffer becomes a part of H_R; the least frequent tuples beyond h_R go."""
        before = self.cache.entries
        if not len(self.staged.keys):
            return
        self.cache.publish(self.staged.keys, self.staged.f)
        self.staged = Staged.none()
        kept = self._most_frequent()
        self.evictions += int((~kept[:before] & (self.cache.efreq[:before] > 0)).sum())
        if not kept.all():
            self.cache.keep(kept)
        self._measure_least()

    def _measure_least(self) -> None:
        cache, n = self.cache, self.cache.entries
        self.least = float((cache.efreq[:n] / cache.ecount[:n]).min()) if self._full else 0.0

    @property
    def _full(self) -> bool:
        """Whether a value more, of average size, would be one too many."""
        cache, n = self.cache, self.cache.entries
        return n > 0 and (cache.tuples >= self.h_r or cache.used + cache.used / n > self.bytes)

    def _most_frequent(self) -> np.ndarray:
        """Which entries are the most frequent that h_R tuples and their bytes have room for; the older one of equals."""
        cache, n = self.cache, self.cache.entries
        if cache.tuples <= self.h_r and cache.used <= self.bytes:
            return np.ones(n, bool)
        strings = sum((x.lengths[:cache.tuples].astype(np.int64) for x in cache.store.variable), np.zeros(cache.tuples, np.int64))
        size = np.full(n, float(Cache.ENTRY))
        for entry, slots in cache.pairs(np.arange(n, dtype=np.int32), cache.ecount[:n]):
            size += np.bincount(entry, strings[slots] + cache.slot, minlength=n)
        order = np.argsort(-(cache.efreq[:n] / cache.ecount[:n]), kind="stable")
        fits = (np.cumsum(cache.ecount[order]) <= self.h_r) & (np.cumsum(size[order]) <= self.bytes)
        kept = np.zeros(n, bool)
        kept[order[fits]] = True
        return kept

    def state(self) -> tuple[pa.Table, dict[str, Any]]:
        """Join values and frequencies of H_R and of the switching buffer; their tuples are in R."""
        cache, n = self.cache, self.cache.entries
        table = pa.table({"key": np.append(cache.ekey[:n], self.staged.keys),
                          "tuples": np.append(cache.ecount[:n], self.staged.tuples),
                          "frequency": np.append(cache.efreq[:n], self.staged.f)})
        return table, {"threshold": self.threshold, "evictions": self.evictions}

    def go_on(self, table: pa.Table, values: dict[str, Any]) -> None:
        """Fetch the most frequent of the saved join values from R, as many as there is room for."""
        self.threshold, self.evictions = values["threshold"], values["evictions"]
        keys, tuples, frequencies = (table[c].to_numpy() for c in ("key", "tuples", "frequency"))
        order = np.argsort(-(frequencies / np.maximum(tuples, 1)), kind="stable")
        order = order[np.cumsum(tuples[order]) <= self.h_r]
        keys, tuples, frequencies = keys[order], tuples[order], frequencies[order]
        loaded, budget = np.zeros(len(keys), np.int32), self.size - len(keys) * Cache.ENTRY
        for partition, rows, index in tuples_of(self.join.spec, keys):
            if len(rows) and self.cache.load(partition.take(rows), np.arange(len(rows)), index, budget):
                kernels.count_by(index.astype(np.int32), loaded)
        self.cache.publish(keys, frequencies)
        if (loaded != tuples).any():
            self.cache.keep(loaded == tuples)
        self._measure_least()
