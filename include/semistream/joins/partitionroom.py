"""H_S of the elevator: waiting stream tuples grouped by the disk partition that holds their key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins import partition_kernels
from semistream.joins.partition_kernels import HIGH, LIVE, MOST, USED
from semistream.joins.parts import OUTPUT_ROWS, TupleStore, mapped, portions, release

WIDTHS = (32, 16, 8, 4, 2, 1)  # tuples of a block; half a block of each partition is empty on average
BLOCKS = 8  # that each partition can have at least, of the widest blocks that allow it
PARTITION_BYTES = 4 + 4 + 4 + 4 + 8 + 8  # head, tuples, saved ones, reach, arrivals
SLACK = 8  # one part in so many of the heap may be what removed tuples left; then it is compacted


class PartitionRoom:
    """Waiting tuples in blocks, the blocks of a partition linked; a partition's tuples leave together.

    No hash table and no links between tuples: beside its payload a tuple takes 9 bytes, and its share of a block's 16.

    size: bytes, the most that it will ever have. variable: the bytes of strings to expect of a tuple. width: tuples of a block,
    0: as is best for the size.
    """

    def __init__(self, schema: pa.Schema, size: int, variable: float, partitions: int, width: int = 0):
        self._slot, self.partitions, self.variable = 8 + TupleStore.slot_bytes(schema), partitions, variable
        tuples = max(size - self._fixed, 0) / (self._slot + variable)
        self.width = width or next((w for w in WIDTHS if tuples >= BLOCKS * w * partitions), 1)
        blocks = max(int((size - self._fixed) // self.block_bytes), 1)
        self.store = TupleStore(schema, blocks * self.width, size)
        self.key, self.block = mapped(blocks * self.width, np.int64), mapped(blocks, np.int32, 4)
        self.head, self.waiting = np.full(partitions, -1, np.int32), np.zeros(partitions, np.int32)
        self.saved = np.zeros(partitions, np.int32)  # of waiting, those of the last snapshot; -1: there were some, and they left
        self.reach = np.zeros(partitions, np.int32)  # behind the last partition that may hold a waiting key
        self.arrived, self.first = np.zeros(partitions), np.zeros(partitions)  # s: sum of arrivals, and the oldest one
        self.q = np.array([-1, 0, 0, 0, 0], np.int64)
        self.heap_at = self.heap_live = self.heap_capacity = self.size = 0
        self.blocks = 0  # that it has memory for

    @property
    def _fixed(self) -> int:
        return self.partitions * PARTITION_BYTES

    @classmethod
    def least_bytes(cls, schema: pa.Schema, partitions: int, width: int = 1) -> int:
        """What it has with a single block."""
        return partitions * PARTITION_BYTES + width * (8 + TupleStore.slot_bytes(schema)) + 16

    @property
    def block_bytes(self) -> int:
        return self.width * self._slot + 16

    @classmethod
    def tuple_bytes(cls, schema: pa.Schema, variable: float, width: int = 16) -> float:
        """Bytes of one waiting tuple with `variable` bytes of strings."""
        return 8 + TupleStore.slot_bytes(schema) + 16 / width + variable * (SLACK / (SLACK - 1) if variable else 1)

    @property
    def live(self) -> int:
        return int(self.q[LIVE])

    def resize(self, size: int) -> int:
        """Have so many bytes from now on. Returns the bytes that it has: more, while more waits."""
        each = self.block_bytes + self.width * self.variable * SLACK / (SLACK - 1)
        blocks = max(min(int((size - self._fixed) // each), len(self.block)), 1)
        heap = min(max(size - self._fixed - blocks * self.block_bytes, 0), len(self.store.heap)) if self.store.variable else 0
        return self.divide(blocks, heap)

    def divide(self, blocks: int, heap: int) -> int:
        """Have so many blocks, and so many bytes for strings. Returns the bytes that it has: more, while more waits."""
        self.q[MOST] = blocks
        if blocks < self.blocks or heap < self.heap_capacity:
            if heap < self.heap_at:
                self.compact()
            if self.q[USED] > blocks or self.heap_at > heap:
                return self.size
            self._shrink(blocks)
            release(self.store.heap, heap)
        self.blocks, self.heap_capacity = blocks, heap
        self.size = self._fixed + blocks * self.block_bytes + heap
        return self.size

    def fits(self, sizes: np.ndarray) -> int:
        """How many of the coming tuples, with these heap bytes each, the heap has room for."""
        if not self.store.variable or not len(sizes):
            return len(sizes)
        total = np.cumsum(sizes)
        if total[-1] > self.heap_capacity - self.heap_at and SLACK * (self.heap_at - self.heap_live) >= self.heap_capacity:
            self.compact()
        if not self.live:
            self.heap_at = 0
        return int(np.searchsorted(total, self.heap_capacity - self.heap_at, side="right"))

    def append(self, batch: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, spans: np.ndarray, sizes: np.ndarray,
               now: float) -> int:
        """Add these rows, whose partition ranges are spans, int32[rows, 2], as many as there is room for. Returns how many."""
        slots = np.empty(len(rows), np.int64)
        n = partition_kernels.append(codes, rows, spans[:, 0], self.width, self.head, self.waiting, self.key, self.block, self.q,
                                     slots)
        if n:
            partition_kernels.note(spans[:n], now, self.reach, self.arrived, self.first)
            self.heap_at = self.store.put(batch, rows[:n], slots[:n], self.heap_at)
            self.heap_live += int(sizes[:n].sum())
        return n

    def next(self, position: int) -> int:
        """The first partition from `position` on for which tuples wait, or -1."""
        return partition_kernels.next_waiting(self.waiting, position)

    def upcoming(self, partition: int, number: int) -> list[int]:
        """This partition and those for which tuples wait behind it, so many in all, around the end of R."""
        out = [partition]
        while len(out) < number:
            behind = self.next(out[-1] + 1)
            out.append(behind if behind >= 0 else max(self.next(0), 0))
        return out

    def visit(self, partition: int) -> Visit:
        return Visit(self, partition)

    def find(self, codes: np.ndarray, visit: Visit) -> tuple[np.ndarray, np.ndarray, int]:
        """(leader or -1, its key's tuples) per code, and all matches."""
        found, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        total = partition_kernels.find(codes, visit.keys, visit.table, visit.number, visit.met, found, counts)
        return found, counts, total

    def remove(self, visit: Visit) -> None:
        """Free what the visited partition's tuples take. Read their slots before appending."""
        if self.store.variable:
            self.heap_live -= sum(int(lane.lengths[visit.slots].sum(dtype=np.int64)) for lane in self.store.variable)
        p = visit.partition
        partition_kernels.release(p, self.head, self.waiting, self.block, self.q)
        self.reach[p] = self.arrived[p] = self.first[p] = 0
        self.saved[p] = -1 if self.saved[p] else 0

    def slots(self, first: int, number: np.ndarray) -> np.ndarray:
        """The slots of the newest number[i] tuples of each partition first + i."""
        out = np.empty(int(number.sum()), np.int64)
        partition_kernels.slots_of(first, number, self.width, self.head, self.block, out)
        return out

    @property
    def unsaved(self) -> np.ndarray:
        """How many tuples of each partition the last snapshot does not have."""
        return self.waiting - np.maximum(self.saved, 0)

    def save(self) -> None:
        """A snapshot has what is here."""
        self.saved[:] = self.waiting

    def _shrink(self, blocks: int) -> None:
        """Move the blocks down so that none lies behind so many."""
        above = max(int(self.q[HIGH]) - blocks, 0)
        source, target = np.empty(above, np.int32), np.empty(above, np.int32)
        n = partition_kernels.shrink(blocks, self.head, self.block, self.q, source, target)
        inside = np.arange(self.width)
        old, new = ((b[:n, None].astype(np.int64) * self.width + inside).ravel() for b in (source, target))
        for array in (self.key, *self.store.arrays()):
            for first in range(0, len(old), OUTPUT_ROWS):
                array[new[first:first + OUTPUT_ROWS]] = array[old[first:first + OUTPUT_ROWS]]
            release(array, blocks * self.width)
        release(self.block, blocks)

    def compact(self) -> None:
        """Close the gaps of the heap, a part of its addresses after the other."""
        live = np.empty(int(self.q[HIGH]) * self.width, bool)
        partition_kernels.live_slots(self.width, self.block, self.q, live)
        at, lanes, step = 0, self.store.variable, max(self.heap_at // 16, 4096)
        for low in range(0, self.heap_at, step):
            inside = [np.flatnonzero(live & (x.starts[:len(live)] >= low) & (x.starts[:len(live)] < low + step)) for x in lanes]
            at = self.store.close_gaps(inside, at)
        self.heap_at = at


class Visit:
    """The tuples of one partition, grouped by key: what the elevator finishes at one stop.

    slots, keys: int64[n]; number: int32[n], the tuples of the key at its leader, else 0; met: bool[n], of leaders: found in R.
    """

    def __init__(self, room: PartitionRoom, partition: int):
        self.partition, self.reach = partition, int(room.reach[partition])
        self.arrived, self.first = float(room.arrived[partition]), float(room.first[partition])
        self.slots = room.slots(partition, room.waiting[partition:partition + 1])
        n = len(self.slots)
        self.keys = room.key[self.slots]
        self.table, self._same = np.empty(2 * n + 2, np.int32), np.empty(n, np.int32)
        self.number, self.met = np.empty(n, np.int32), np.zeros(n, bool)
        partition_kernels.group(self.keys, self.table, self._same, self.number)

    def pairs(self, found: np.ndarray, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(master rows, tuples of the visit) of the matches, in portions."""
        for first, last, total in portions(counts):
            rows, tuples = np.empty(total, np.int64), np.empty(total, np.int64)
            partition_kernels.pairs(first, last, found, self._same, rows, tuples)
            yield rows, tuples
