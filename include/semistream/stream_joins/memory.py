"""The memory-resident portion of the join state: a directory of key codes, and per stream a log of
tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from semistream.joins.arena import mapped, release
from semistream.joins.output import OUTPUT_ROWS
from semistream.joins.stored_types import as_stored
from semistream.joins.tuple_store import TupleStore
from semistream.stream_joins import kernels
from semistream.stream_joins.kernels import BUCKETS, BUFFERED, CHANGED, DEAD

LEAST = 1024  # positions of a directory
LOAD = 0.7  # of its positions, that may be used


class Directory:
    """Key code -> the newest tuple of each side; tuples of one code are linked from there. See
    ``kernels``."""

    POSITION = 16  # bytes

    def __init__(self, most: int):
        """most: positions that it may ever have."""
        # used: positions, with those whose tuples are gone
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
        """Codes with tuples; counted by a pass over all positions."""
        return kernels.directory_live(self.t32)

    def fits(self, count: int) -> bool:
        """Whether there is place for so many more codes."""
        return self.used + count <= LOAD * self.size

    def growth(self, count: int, live: int) -> int:
        """Bytes that it takes, for a moment, to make place for so many more codes than the live
        ones."""
        return 0 if self.fits(count) else self._wanted(count, live) * self.POSITION

    def _wanted(self, count: int, live: int) -> int:
        return min(max(LEAST, 2 * (live + count)), self._most)

    def grow(self, count: int) -> None:
        """Make place for so many more codes, and forget those without tuples."""
        if not self.fits(count):
            self.used = self.live
            self._make(self._wanted(count, self.used))

    def _make(self, size: int) -> None:
        """Anew, of another size; for a moment there are both."""
        old = (self.t64, self.t32)
        self._tables.reverse()
        self._resize(size)
        kernels.directory_copy(*old, self.t64)
        old[0][:] = 0
        release(self._tables[1], 0)

    def clear(self, buckets: np.ndarray) -> bool:
        """Each side has no tuples of the hash buckets with buckets[side, bucket] any more; forget
        codes without tuples. Returns whether so few are left that it has become smaller."""
        self.used = kernels.directory_clear(self.t64, self.t32, buckets)
        size = self._wanted(0, self.used)
        few = size < (self.size // 2 if self.used else self.size)
        if few:
            self._make(size)
        return few


class TupleLog:
    """Tuples in slots in the order of their arrival; those that have left are garbage until
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
        # tuples that arrived before are in the last snapshot, those of `gone` (ats) though they
        # have left
        self.saved_until, self.gone = 0, list[np.ndarray]()

    @property
    def live(self) -> int:
        return self.end - self.dead

    @property
    def bytes(self) -> int:
        return self.end * self.slot_bytes + self.heap_at + sum(a.nbytes for a in self.gone)

    @property
    def garbage(self) -> int:
        """Bytes that `compact` gives back, about."""
        return (self.end * self.slot_bytes + self.heap_at) * self.dead // max(self.end, 1)

    def store_rows(self, batch: pa.RecordBatch, rows: np.ndarray, ats: np.ndarray) -> None:
        """Append rows whose lists are made already."""
        last = self.end + len(rows)
        self.ats[self.end:last], self.pid[self.end:last], self.flags[self.end:last] = ats, -1, 0
        self.heap_at = self.store.put(batch, rows, np.arange(self.end, last), self.heap_at)
        self.end = last

    def find(self, codes: np.ndarray) -> np.ndarray:
        """The newest slot of each code, or -1, int32[n]."""
        found = np.empty(len(codes), np.int32)
        kernels.find(codes, self.side, self.directory.t64, self.directory.t32, found)
        return found

    def pairs(self, found: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows, slots) of lists found, in portions."""
        row, slot = 0, -1
        while row < len(found):
            rows, slots = np.empty(OUTPUT_ROWS, np.int64), np.empty(OUTPUT_ROWS, np.int64)
            count, row, slot = kernels.pairs(found, self.same, row, slot, rows, slots)
            if count:
                yield rows[:count], slots[:count]

    def slots(self, without: int = DEAD) -> np.ndarray:
        """Those that have none of the flags."""
        return np.flatnonzero(self.flags[:self.end] & without == 0)

    def bucket_counts(self) -> np.ndarray:
        """Live tuples of each hash bucket, with those of the purge buffer, int64[BUCKETS]."""
        counts = np.empty(BUCKETS, np.int64)
        kernels.bucket_counts(self.code, self.flags, self.end, counts)
        return counts

    def of_buckets(self, buckets: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Slots of their live tuples, bucket by bucket, int32[]. counts: how many each has."""
        at = np.full(BUCKETS, -1)
        at[buckets] = np.cumsum(counts) - counts
        out = np.empty(counts.sum(), np.int32)
        kernels.bucket_slots(self.code, self.flags, self.end, at, out)
        return out

    def columns(self, slots: np.ndarray) -> list[pa.Array]:
        return self.store.get(slots)

    def column(self, name: str, slots: np.ndarray) -> pa.Array:
        return self.store.get(slots, [self.schema.get_field_index(name)])[0]

    def match(self, slots: np.ndarray) -> None:
        kernels.match(self.flags, slots)

    def assign(self, slots: np.ndarray, pids: np.ndarray) -> None:
        """pids: int32[n], of punctuations."""
        self.pid[slots] = pids
        self.flags[slots] |= CHANGED

    def remove(self, slots: np.ndarray) -> None:
        """Of live slots without twice the same one."""
        linked = slots[self.flags[slots] & BUFFERED == 0]
        self._remove(slots)
        self._unlink(linked)

    def remove_buckets(self, slots: np.ndarray) -> None:
        """All that is live of some hash buckets, which the directory has forgotten."""
        self._remove(slots)
        self.compact()

    def _remove(self, slots: np.ndarray) -> None:
        self.buffered -= int(np.count_nonzero(self.flags[slots] & BUFFERED))
        self.flags[slots] |= DEAD
        self.dead += len(slots)

    def buffer(self, slots: np.ndarray) -> None:
        """Move linked slots to the purge buffer: no probe finds them there."""
        self.flags[slots] |= BUFFERED | CHANGED
        self.buffered += len(slots)
        self._unlink(slots)

    def _unlink(self, slots: np.ndarray) -> None:
        kernels.unlink(slots, self.side, self.directory.t64, self.directory.t32, self.code,
                       self.same, self.flags)

    def compact(self) -> np.ndarray:
        """Slide what lives to the front. Gives the old slots, ascending."""
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

    def append(self, columns: Sequence[pa.Array], codes: np.ndarray, ats: np.ndarray,
               linked: np.ndarray) -> np.ndarray:
        """Add tuples; those not linked go to the purge buffer. The directory has grown already.
        Gives their slots."""
        batch = as_stored(pa.RecordBatch.from_arrays(list(columns), schema=self.schema),
                          self.schema)
        first = self.end
        found = np.empty(len(codes), np.int32)
        self.directory.used += kernels.join_and_insert(
            codes, np.ones(len(codes), np.uint8), self.side, self.directory.t64, self.directory.t32,
            self.code, self.same, first, found)
        self.store_rows(batch, np.arange(len(codes)), ats)
        slots = np.arange(first, self.end)
        if not linked.all():
            self.buffer(slots[~linked])
        return slots

    # Changes since the last snapshot

    def _left(self) -> np.ndarray:
        """ats of garbage that the last snapshot has."""
        ats, flags = self.ats[:self.end], self.flags[:self.end]
        return ats[(flags & DEAD != 0) & (ats < self.saved_until)]

    def changes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ats of tuples that have left, slots of those whose flags or pid have changed, bool[end]
        for those that have come)."""
        old, flags = self.ats[:self.end] < self.saved_until, self.flags[:self.end]
        changed = np.flatnonzero(old & (flags & (DEAD | CHANGED) == CHANGED))
        return np.concatenate([*self.gone, self._left()]), changed, ~old & (flags & DEAD == 0)

    def saved(self, clock: int) -> None:
        """A snapshot has what arrived before."""
        self.gone, self.saved_until = [], clock
        self.flags[:self.end] &= 255 - CHANGED
