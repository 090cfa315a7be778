"""The memory-resident portion of the join state: a directory of key codes, and for each stream a
log of tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from semistream.compiled import filled
from semistream.joins.arena import mapped, release
from semistream.joins.output import OUTPUT_ROWS
from semistream.joins.stored_types import as_stored
from semistream.joins.tuple_store import TupleStore
from semistream.stream_joins import kernels
from semistream.stream_joins.kernels import BUCKETS, BUFFERED, CHANGED, DEAD

LEAST = 1024  # positions of a directory
LOAD = 0.7  # share of the positions that may be used


class Directory:
    """A hash table from key codes to the newest tuple of each side, from which the other tuples of
    the code are linked (see ``kernels``)."""

    POSITION = 16  # bytes

    def __init__(self, most: int):
        """Reserve memory. most: the largest number of positions ever."""
        # used: positions, including those whose tuples have left
        self._most, self.used = max(most, LEAST), 0
        self.t64, self._other = (mapped(self._most, np.int64, 2) for _ in range(2))
        self._tables = [self.t64, self._other]
        self._resize(LEAST)

    def _resize(self, size: int) -> None:
        self.size, self.t64 = size, self._tables[0][:size]
        self.t32 = self.t64.view(np.int32)

    @property
    def bytes(self) -> int:
        return self.size * self.POSITION

    @property
    def live(self) -> int:
        """The number of codes with tuples, counted by a pass over all positions."""
        return kernels.directory_live(self.t32)

    def fits(self, count: int) -> bool:
        """Return whether `count` more codes fit."""
        return self.used + count <= LOAD * self.size

    def growth(self, count: int, live: int) -> int:
        """Return the bytes that are needed temporarily to make room for `count` codes besides the
        live ones."""
        return 0 if self.fits(count) else self._wanted(count, live) * self.POSITION

    def _wanted(self, count: int, live: int) -> int:
        return min(max(LEAST, 2 * (live + count)), self._most)

    def grow(self, count: int) -> None:
        """Make room for `count` more codes, and forget codes without tuples."""
        if not self.fits(count):
            self.used = self.live
            self._make(self._wanted(count, self.used))

    def _make(self, size: int) -> None:
        """Copy the table into one of another size. Both tables exist for a moment."""
        old = (self.t64, self.t32)
        self._tables.reverse()
        self._resize(size)
        kernels.directory_copy(*old, self.t64)
        old[0][:] = 0
        release(self._tables[1], 0)

    def clear(self, buckets: np.ndarray) -> bool:
        """Remove the tuples of the hash buckets with buckets[side, bucket], uint8[2, BUCKETS], and
        then the codes without tuples. Return whether few codes were left, so that a smaller table
        has replaced this one."""
        self.used = kernels.directory_clear(self.t64, self.t32, buckets)
        size = self._wanted(0, self.used)
        few = size < (self.size // 2 if self.used else self.size)
        if few:
            self._make(size)
        return few


class TupleLog:
    """Tuples in slots in the order of arrival. Tuples that have left are garbage until
    `compact`."""

    OVERHEAD = 8 + 8 + 4 + 4 + 1 + 4 + 4  # code, ats, same, pid, flags; the two maps of `compact`

    def __init__(self, schema: pa.Schema, directory: Directory, side: int, budget: int):
        self.schema, self.directory, self.side = schema, directory, side
        self.slot_bytes = self.OVERHEAD + TupleStore.slot_bytes(schema)
        slots = budget // self.slot_bytes + 1
        self.store = TupleStore(schema, slots, budget)
        self.code, self.ats = mapped(slots, np.int64), mapped(slots, np.int64)
        self.same, self.pid = mapped(slots, np.int32), mapped(slots, np.int32)
        self.flags = mapped(slots, np.uint8)
        self._moved, self._kept = mapped(slots, np.int32), mapped(slots, np.int32)
        self.end = self.heap_at = self.dead = self.buffered = 0
        # the last snapshot has the tuples that arrived before `saved_until`; `gone` are the ats of
        # those of them that have left
        self.saved_until, self.gone = 0, list[np.ndarray]()

    @property
    def live(self) -> int:
        return self.end - self.dead

    @property
    def bytes(self) -> int:
        return self.end * self.slot_bytes + self.heap_at + sum(a.nbytes for a in self.gone)

    @property
    def garbage(self) -> int:
        """The number of bytes that `compact` would free, approximately."""
        return (self.end * self.slot_bytes + self.heap_at) * self.dead // max(self.end, 1)

    def store_rows(self, batch: pa.RecordBatch, rows: np.ndarray, ats: np.ndarray) -> None:
        """Append rows of a batch whose slots are already linked into their lists. rows: int64[k],
        positions in the batch; ats: int64[k], arrival times."""
        last = self.end + len(rows)
        self.ats[self.end : last], self.pid[self.end : last], self.flags[self.end : last] = (
            ats,
            -1,
            0,
        )
        self.heap_at = self.store.put(batch, rows, np.arange(self.end, last), self.heap_at)
        self.end = last

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Return the newest slot of each code, int32[n]; -1 for a code without tuples."""
        tables = self.directory.t64, self.directory.t32
        return filled(kernels.find, len(codes), np.int32, codes, self.side, *tables)

    def pairs(self, found: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (rows int64[k], slots int64[k]) in portions: each row i with each slot of the list
        that begins at found[i], int32[n]."""
        row, slot = 0, -1
        while row < len(found):
            rows, slots = np.empty(OUTPUT_ROWS, np.int64), np.empty(OUTPUT_ROWS, np.int64)
            count, row, slot = kernels.pairs(found, self.same, row, slot, rows, slots)
            if count:
                yield rows[:count], slots[:count]

    def slots(self, without: int = DEAD) -> np.ndarray:
        """Return the slots of tuples that have none of these flags."""
        return np.flatnonzero(self.flags[: self.end] & without == 0)

    def bucket_counts(self) -> np.ndarray:
        """Return the number of live tuples in each hash bucket, including the purge buffer,
        int64[BUCKETS]."""
        return filled(kernels.bucket_counts, BUCKETS, np.int64, self.code, self.flags, self.end)

    def of_buckets(self, buckets: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the slots of these hash buckets' live tuples, one bucket after the other,
        int32[n]. counts: the number of live tuples of each bucket."""
        at = np.full(BUCKETS, -1)
        at[buckets] = np.cumsum(counts) - counts
        tuples = self.code, self.flags, self.end
        return filled(kernels.bucket_slots, counts.sum(), np.int32, *tuples, at)

    def columns(self, slots: np.ndarray) -> list[pa.Array]:
        return self.store.get(slots)

    def column(self, name: str, slots: np.ndarray) -> pa.Array:
        return self.store.get(slots, [self.schema.get_field_index(name)])[0]

    def match(self, slots: np.ndarray) -> None:
        kernels.match(self.flags, slots)

    def assign(self, slots: np.ndarray, pids: np.ndarray) -> None:
        """Set the pids (numbers of punctuations) of the tuples in these slots. pids: int32[n]."""
        self.pid[slots] = pids
        self.flags[slots] |= CHANGED

    def remove(self, slots: np.ndarray) -> None:
        """Remove live slots. Each slot is given only once."""
        linked = slots[self.flags[slots] & BUFFERED == 0]
        self._remove(slots)
        self._unlink(linked)

    def remove_buckets(self, slots: np.ndarray) -> None:
        """Remove all live slots of hash buckets that the directory has forgotten."""
        self._remove(slots)
        self.compact()

    def _remove(self, slots: np.ndarray) -> None:
        self.buffered -= int(np.count_nonzero(self.flags[slots] & BUFFERED))
        self.flags[slots] |= DEAD
        self.dead += len(slots)

    def buffer(self, slots: np.ndarray) -> None:
        """Move linked slots to the purge buffer, where no probe finds them."""
        self.flags[slots] |= BUFFERED | CHANGED
        self.buffered += len(slots)
        self._unlink(slots)

    def _unlink(self, slots: np.ndarray) -> None:
        kernels.unlink(
            slots,
            self.side,
            self.directory.t64,
            self.directory.t32,
            self.code,
            self.same,
            self.flags,
        )

    def compact(self) -> np.ndarray:
        """Move the live tuples to the front. Return their old slots, ascending."""
        if len(left := self._left()):
            self.gone.append(left)
        left = kernels.compact(self.end, self.flags, self.same, self._moved, self._kept)
        kernels.directory_move(self.directory.t32, self.side, self._moved)
        for array in (self.code, self.ats, self.pid, self.flags, self.store.tuples):
            for first in range(0, left, OUTPUT_ROWS):  # in place: a tuple never moves up
                last = min(first + OUTPUT_ROWS, left)
                array[first:last] = array[self._kept[first:last]]
        if columns := self.store.variable:
            self.heap_at = self.store.close_gaps([np.arange(left)] * len(columns), 0) if left else 0
        kept = self._kept[:left].copy()
        for array in (self.code, self.ats, self.pid, self.flags, self.same, self.store.tuples):
            release(array, left)
        release(self.store.heap, self.heap_at)
        for array in (self._moved, self._kept):
            release(array, 0)
        self.end, self.dead = left, 0
        return kept

    def append(
        self, columns: Sequence[pa.Array], codes: np.ndarray, ats: np.ndarray, linked: np.ndarray
    ) -> np.ndarray:
        """Add tuples, and return their slots. Tuples without linked[i] go to the purge buffer. The
        directory must have grown already."""
        batch = as_stored(
            pa.RecordBatch.from_arrays(list(columns), schema=self.schema), self.schema
        )
        first = self.end
        found = np.empty(len(codes), np.int32)
        self.directory.used += kernels.join_and_insert(
            codes,
            np.ones(len(codes), np.uint8),
            self.side,
            self.directory.t64,
            self.directory.t32,
            self.code,
            self.same,
            first,
            found,
        )
        self.store_rows(batch, np.arange(len(codes)), ats)
        slots = np.arange(first, self.end)
        if not linked.all():
            self.buffer(slots[~linked])
        return slots

    # Changes since the last snapshot

    def _left(self) -> np.ndarray:
        """Return the arrival times of garbage tuples that the last snapshot contains."""
        ats, flags = self.ats[: self.end], self.flags[: self.end]
        return ats[(flags & DEAD != 0) & (ats < self.saved_until)]

    def changes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the changes of the memory since the last snapshot, as three arrays: the arrival
        times of the tuples that were removed, the slots of the tuples whose flags or pid differ,
        and a mask of the slots with new tuples, bool[end]."""
        old, flags = self.ats[: self.end] < self.saved_until, self.flags[: self.end]
        changed = np.flatnonzero(old & (flags & (DEAD | CHANGED) == CHANGED))
        return np.concatenate([*self.gone, self._left()]), changed, ~old & (flags & DEAD == 0)

    def saved(self, clock: int) -> None:
        """Record that the last snapshot contains all tuples that arrived before `clock`."""
        self.gone, self.saved_until = [], clock
        self.flags[: self.end] &= 255 - CHANGED
