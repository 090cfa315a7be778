"""H_R, the cache of master tuples that stream tuples probe first, and its switching buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from semistream.compiled import filled
from semistream.joins import master_cache_kernels as kernels
from semistream.joins.arena import mapped, release
from semistream.joins.disk_partition import tuples_of
from semistream.joins.key_table import TABLE_BYTES, build, count_by, find, insert, table_size
from semistream.joins.master_cache_kernels import UNKNOWN
from semistream.joins.output import Pairs, pairs_of
from semistream.joins.selection import most_frequent, slices
from semistream.joins.spec import JoinSpec
from semistream.joins.stored_types import has_strings, variable_bytes
from semistream.joins.tuple_store import MOST_HEAP, TupleStore

# a look-up reads all of these fields, so they lie together; `master_cache_kernels` describes them
FIELDS = np.dtype(
    [("key", np.int64), ("first", np.int32), ("count", np.int32), ("frequency", np.uint32)]
)
FULL = 3 / 4  # share of the hash table's elements from which it is built anew
SAVED = pa.schema([("key", pa.int64()), ("tuples", pa.int64()), ("frequency", pa.int64())])


def cached_bytes(spec: JoinSpec) -> float:
    """Return v_R in H_R: the bytes of a tuple's payload and link, with strings of R's average
    length."""
    fixed = MasterCache.bytes_per_tuple(spec.fetched_schema, 0)
    if not has_strings(spec.fetched_schema):
        return fixed
    widths = (
        max(f.type.bit_width // 8, 1) if pa.types.is_primitive(f.type) else 4
        for f in spec.master.schema
    )
    # v_R on disk, without key codes, numbers and the offsets of strings
    return fixed + max(spec.master.tuple_bytes - 8 - sum(widths), 0)


class SwitchingBuffer:
    """Join values that will enter H_R. Their tuples are already stored, but no probe finds them
    yet. keys int64[n]; frequencies int64[n], the stream tuples that each value is estimated to have
    served; counts int32[n], the tuples of each value."""

    def __init__(self) -> None:
        self.keys, self.frequencies = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int32)
        self.owners: list[np.ndarray] = []  # for each tuple, the number of its value
        self.tuples = 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: np.ndarray, frequencies: np.ndarray) -> None:
        self.keys = np.append(self.keys, keys)
        self.frequencies = np.append(self.frequencies, frequencies.astype(np.int64))
        self.counts = np.append(self.counts, np.zeros(len(keys), np.int32))


class MasterCache:
    """All master tuples of the cached join values. A cached value may have no master tuples, if R
    is known to lack them.

    Values enter in three steps: ``stage`` puts the values and ``stage_tuples`` their tuples into
    the switching buffer, and ``switch`` moves the switching buffer to H_R.
    """

    ENTRY = FIELDS.itemsize + TABLE_BYTES  # bytes of a join value
    LINK = 4  # bytes of a tuple in addition to its payload

    def __init__(self, schema: pa.Schema, tuples: int, entries: int, heap_bytes: int):
        self.store = TupleStore(schema, tuples, min(heap_bytes, MOST_HEAP))
        self.slot = self.LINK + TupleStore.slot_bytes(schema)  # bytes of a tuple, its strings aside
        self.tnext = mapped(tuples, np.int32)
        self._entry = mapped(entries, FIELDS)
        self.ekey, self.efirst = self._entry["key"], self._entry["first"]
        self.ecount, self.efreq = self._entry["count"], self._entry["frequency"]
        self._table = mapped(table_size(entries), np.int64)
        self.table = self._table[:0]
        self.most_tuples = tuples
        self.entries = self.tuples = self.heap_at = 0
        self.staged = SwitchingBuffer()
        self.index()

    @classmethod
    def within(cls, spec: JoinSpec, size: int) -> MasterCache:
        """Create a cache for at most `size` bytes of R's tuples. The cache has slots for one more
        tuple and one more value than fit."""
        slots = size // cls.bytes_per_tuple(spec.fetched_schema, 0)
        most = int(min(slots, spec.master.tuple_count))
        return cls(spec.fetched_schema, most + 1, size // cls.ENTRY + 1, size)

    @classmethod
    def bytes_per_tuple(cls, schema: pa.Schema, strings: float) -> float:
        return cls.LINK + TupleStore.slot_bytes(schema) + strings

    @property
    def used(self) -> int:
        """Bytes of the cached and the staged values and tuples."""
        return (
            (self.entries + len(self.staged)) * self.ENTRY
            + (self.tuples + self.staged.tuples) * self.slot
            + self.heap_at
        )

    def room(self, budget: float) -> float:
        """Return the bytes of `budget` that H_R can still take. If R has strings, H_R takes at most
        MOST_HEAP bytes of them."""
        return (min(budget, MOST_HEAP) if self.store.variable else budget) - self.used

    # By entry

    @property
    def keys(self) -> np.ndarray:
        """The cached join values, int64[entries]."""
        return self.ekey[: self.entries]

    @property
    def firsts(self) -> np.ndarray:
        """The first master tuple of each value, int32[entries]."""
        return self.efirst[: self.entries]

    @property
    def counts(self) -> np.ndarray:
        """The number of master tuples of each value, int32[entries]."""
        return self.ecount[: self.entries]

    @property
    def frequencies(self) -> np.ndarray:
        """The stream tuples that each value has served, uint32[entries], writable."""
        return self.efreq[: self.entries]

    def index(self, known: int = 0) -> None:
        """Build the hash table of the entries. known: how many it has already. The table is built
        anew only if it would become too full, as each time that takes as long as all its keys."""
        if known and self.entries <= FULL * len(self.table):
            insert(self.table, self.keys, known)
            return
        self.table = self._table[: table_size(self.entries)]
        build(self.table, self.keys)

    def lacks(self, keys: np.ndarray) -> np.ndarray:
        """Return which of these join values, int64[n], are not cached, bool[n]."""
        return filled(find, len(keys), np.int32, keys, self.table, self.ekey) < 0

    def probe(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Look key codes up in H_R, and count each look-up in its entry's frequency. Return
        (firsts, counts, hits).

        firsts: int32[n], the first master tuple of each code, ABSENT if R has none, or UNKNOWN if
        H_R does not know the code; counts: int32[n], the master tuples of each code; hits: how many
        codes H_R knows.
        """
        firsts, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        if not self.entries:
            firsts.fill(UNKNOWN)
            counts.fill(0)
            return firsts, counts, 0
        hits = kernels.probe(
            codes, self.table, self.ekey, self.efreq, self.efirst, self.ecount, firsts, counts
        )
        return firsts, counts, hits

    def pairs(self, firsts: np.ndarray, counts: np.ndarray) -> Pairs:
        """Return (rows, tuples of H_R) in portions. Each row has counts[row] tuples, the first of
        which is firsts[row]."""
        return pairs_of(counts, kernels.pairs, firsts, counts, self.tnext)

    # The switching buffer

    def stage(self, keys: np.ndarray, frequencies: np.ndarray) -> int:
        """Put join values without their tuples into the switching buffer. Return the position of
        the first of these values there."""
        first = len(self.staged)
        self.staged.add(keys, frequencies)
        return first

    def fits(self, batch: pa.RecordBatch, rows: np.ndarray, budget: float) -> bool:
        """Return whether H_R would stay within `budget` bytes with these rows of master tuples
        added."""
        strings = int(variable_bytes(batch)[rows].sum()) if self.store.variable else 0
        most = self.most_tuples - self.tuples - self.staged.tuples
        return len(rows) * self.slot + strings <= self.room(budget) and len(rows) <= most

    def stage_tuples(
        self, batch: pa.RecordBatch, rows: np.ndarray, owners: np.ndarray, budget: float
    ) -> None:
        """Put these rows of master tuples into the switching buffer. owners: int64[rows], the
        positions of their join values in the buffer.

        If the rows would exceed `budget` bytes, only rows of the values that were staged first are
        put there, as far as they fit.
        """
        if not self.fits(batch, rows, budget):
            best = np.argsort(owners, kind="stable")
            size = np.cumsum(variable_bytes(batch)[rows[best]] + self.slot)
            most = max(self.most_tuples - self.tuples - self.staged.tuples, 0)
            best = best[: min(int(np.searchsorted(size, self.room(budget), side="right")), most)]
            rows, owners = rows[best], owners[best]
        if not len(rows):
            return
        first = self.tuples + self.staged.tuples
        slots = np.arange(first, first + len(rows))
        self.heap_at = self.store.put(batch, rows, slots, self.heap_at)
        self.staged.owners.append(owners.astype(np.int32))
        self.staged.tuples += len(rows)
        count_by(owners, self.staged.counts)

    def stage_from(
        self, spec: JoinSpec, keys: np.ndarray, frequencies: np.ndarray, budget: float
    ) -> np.ndarray:
        """Stage join values, with the tuples that R's index finds for them. Return which values are
        complete, bool[n]. A value is incomplete if not all of its tuples fit."""
        self.stage(keys, frequencies)
        found = np.zeros(len(keys), np.int32)
        for partition, rows, owners in tuples_of(spec, keys):
            count_by(owners, found)
            self.stage_tuples(partition.take(rows), np.arange(len(rows)), owners, budget)
        return self.staged.counts == found

    def switch(self, keep: np.ndarray | None = None) -> None:
        """MOVE the switching buffer to H_R. keep: bool[n], which values of the buffer to keep; None
        for all."""
        first = self.entries
        self.link()
        if keep is None or keep.all():
            self.index(first)
        else:
            self.keep(np.concatenate([np.ones(first, bool), keep]))

    def link(self) -> None:
        """Append the join values of the switching buffer to the entries of H_R. The caller must
        then call `index`, so that probes can find the values."""
        first, n, staged = self.entries, len(self.staged), self.staged
        self.ekey[first : first + n] = staged.keys
        self.efreq[first : first + n] = np.minimum(staged.frequencies, 2**32 - 1)
        owners = np.concatenate(staged.owners) if staged.owners else np.zeros(0, np.int32)
        kernels.link(
            first, n, owners + np.int32(first), self.tuples, self.efirst, self.ecount, self.tnext
        )
        self.entries, self.tuples = first + n, self.tuples + staged.tuples
        self.staged = SwitchingBuffer()

    # State

    def saved(self, staged: bool = True) -> pa.RecordBatchReader:
        """Return the state to save, a portion at a time: the join values of H_R, then those of the
        switching buffer, each with its number of tuples and its frequency. The tuples themselves
        can be read from R."""
        parts = [(self.keys, self.counts, self.frequencies)]
        if staged:
            parts.append((self.staged.keys, self.staged.counts, self.staged.frequencies))

        def portions() -> Iterator[pa.RecordBatch]:
            for arrays in parts:
                for part in slices(len(arrays[0])):
                    portion = (a[part].astype(np.int64) for a in arrays)
                    yield pa.record_batch([*map(pa.array, portion)], schema=SAVED)

        return pa.RecordBatchReader.from_batches(SAVED, portions())

    def take_up(self, spec: JoinSpec, saved: pa.Table, budget: float, most: int = 0) -> None:
        """Cache the saved join values with the tuples that R's index finds. If not all values fit
        into `budget` bytes or `most` tuples, the most frequent ones are cached. Values whose
        strings do not fit are left out. R is read once, in the order of the disk."""
        chosen = np.flatnonzero(self._fitting(saved, budget, most or self.most_tuples))
        keys, frequencies = (saved[c].to_numpy() for c in ("key", "frequency"))
        first, partition = self.entries, np.empty(len(chosen), np.int32)
        for part in slices(len(chosen)):
            partition[part] = spec.master.partitions_of(keys[chosen[part]])[:, 0]
        order = chosen[np.argsort(partition, kind="stable")]
        complete = np.ones(first + len(order), bool)
        del chosen, partition
        for part in slices(len(order)):
            coming, mine = (len(order) - part.stop) * self.ENTRY, order[part]
            complete[first + part.start : first + part.stop] = self.stage_from(
                spec, keys[mine], frequencies[mine], budget - coming
            )
            self.link()
        del keys, frequencies, order
        if complete.all():
            self.index()
        else:
            self.keep(complete)

    def _fitting(self, saved: pa.Table, budget: float, most: int) -> np.ndarray:
        """Return which saved values fit, bool[n]. Strings are not taken into account."""
        tuples, frequencies = (saved[c].to_numpy() for c in ("tuples", "frequency"))
        return most_frequent(
            len(saved),
            lambda part: (frequencies[part], tuples[part], self.ENTRY + self.slot * tuples[part]),
            most,
            budget,
        )

    # Eviction

    def entries_where(
        self, predicate: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Return which entries satisfy a predicate of frequencies and counts, bool[entries]. The
        predicate is evaluated in portions, because arrays over all entries would be large compared
        with H_R."""
        out = np.empty(self.entries, bool)
        for part in slices(self.entries):
            out[part] = predicate(self.frequencies[part], self.counts[part])
        return out

    def sizes(self, part: slice) -> np.ndarray:
        """Return the bytes of each entry together with its tuples, int64[n]."""
        counts = self.counts[part]
        size = self.ENTRY + self.slot * counts.astype(np.int64)
        for entry, tuples in self.pairs(self.firsts[part], counts) if self.store.variable else ():
            strings = sum(c.lengths[tuples].astype(np.int64) for c in self.store.variable)
            np.add.at(size, entry, strings)
        return size

    def keep(self, which: np.ndarray) -> None:
        """Keep only the entries that the mask `which`, bool[entries], selects, and evict the
        others."""
        self.entries, left = kernels.compact(
            which,
            self.ekey,
            self.efirst,
            self.ecount,
            self.efreq,
            self.tnext,
            self.tuples,
            self.store.rows,
        )
        if self.store.variable:
            slots = [np.arange(left, dtype=np.uint32)] * len(self.store.variable)
            self.heap_at = self.store.close_gaps(slots, 0) if left else 0
        self.tuples = left
        self.index()
        for array, end in (
            (self.tnext, left),
            (self.store.rows, left),
            (self.store.heap, self.heap_at),
            (self._entry, self.entries),
            (self._table, len(self.table)),
        ):
            release(array, end)
