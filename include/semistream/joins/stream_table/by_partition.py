"""H_S of ELEVATORJOIN: waiting tuples grouped by the disk partition that holds their key."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pyarrow as pa

from semistream.joins.arena import mapped, release
from semistream.joins.output import OUTPUT_ROWS, Pairs, Removed, portions
from semistream.joins.spec import JoinSpec
from semistream.joins.stored_types import variable_bytes
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_table import by_partition_kernels as kernels
from semistream.joins.stream_table.by_partition_kernels import HIGH, LIVE, MOST, USED
from semistream.joins.stream_table.interface import NO_LIMIT, SAVED_ROWS, Found, StreamTable
from semistream.joins.tuple_store import TupleStore

# tuples of a block; half a block of each partition is empty on average
WIDTHS = (32, 16, 8, 4, 2, 1)
BLOCKS = 8  # that each partition can have at least, of the widest blocks that allow it
PARTITION_BYTES = 4 + 4 + 4 + 4 + 8 + 8  # head, tuples, saved ones, reach, arrivals
SLACK = 8  # one part in so many of the heap may be what removed tuples left; then it is compacted
SAMPLED = 1000  # coming tuples whose strings are looked at to divide the bytes anew


class Visit:
    """The tuples that wait for one partition, grouped by key: what the elevator finishes at one
    stop.

    keys: int64[n]; number: int32[n], the tuples of the key at its leader, else 0; met: bool[n], of
    leaders: found in R; matched: bool[n].
    """

    def __init__(self, h_s: ByPartition, partition: int):
        self._h_s, self.partition, self.reach = h_s, partition, int(h_s.reach[partition])
        self.slots = h_s.slots(partition, h_s.waiting[partition:partition + 1])
        n = len(self.slots)
        self.keys = h_s.key[self.slots]
        self.table, self.same = np.empty(2 * n + 2, np.int32), np.empty(n, np.int32)
        self.number, self.met = np.empty(n, np.int32), np.zeros(n, bool)
        self.matched = np.zeros(n, bool)
        kernels.group(self.keys, self.table, self.same, self.number)

    def get(self, tuples: np.ndarray) -> list[pa.Array]:
        """All columns of the stream of these tuples of the visit, int64[n]."""
        return self._h_s.get(self.slots[tuples])

    def mark(self, tuples: np.ndarray) -> None:
        self.matched[tuples] = True

    def pairs(self, found: Found) -> Pairs:
        """(master rows, tuples of the visit) of the matches."""
        for first, last, total in portions(found.counts):
            rows, tuples = np.empty(total, np.int64), np.empty(total, np.int64)
            kernels.pairs(first, last, found.first, self.same, rows, tuples)
            yield rows, tuples


class ByPartition(StreamTable):
    """Waiting tuples in blocks, the blocks of a partition linked; a partition's tuples leave
    together.

    No hash table and no links between tuples: beside its payload a tuple takes 9 bytes, and its
    share of a block's 16. partitions: N of R.
    """

    def __init__(self, layout: StreamLayout, partitions: int):
        super().__init__(layout)
        self.partitions, self.width = partitions, 1
        self._slot = 8 + TupleStore.slot_bytes(layout.held)
        self.head, self.waiting = np.full(partitions, -1, np.int32), np.zeros(partitions, np.int32)
        # of waiting, in the last snapshot; -1: there were some, and they left
        self.snapped = np.zeros(partitions, np.int32)
        # behind the last partition that may hold a waiting key
        self.reach = np.zeros(partitions, np.int32)
        # s: sum of arrivals, and the oldest one
        self.arrived, self.first = np.zeros(partitions), np.zeros(partitions)
        self.q = np.array([-1, 0, 0, 0, 0], np.int64)
        self.heap_at = self.heap_live = self.heap_capacity = 0
        self.blocks = 0  # that it has memory for

    def open(self, strings: float, most: int, width: int = 0) -> None:
        """width: tuples of a block, 0: as is best for so many bytes."""
        self.strings = strings
        tuples = max(most - self._fixed, 0) / (self._slot + strings)
        self.width = width or next((w for w in WIDTHS if tuples >= BLOCKS * w * self.partitions), 1)
        blocks = max(int((most - self._fixed) // self.block_bytes), 1)
        self.store = TupleStore(self.layout.held, blocks * self.width, most)
        self.key, self.block = mapped(blocks * self.width, np.int64), mapped(blocks, np.int32, 4)
        self.opened = True

    @property
    def _fixed(self) -> int:
        return self.partitions * PARTITION_BYTES

    @property
    def least_bytes(self) -> int:
        """What it has with a single block."""
        return self._fixed + self.block_bytes

    @property
    def block_bytes(self) -> int:
        return self.width * self._slot + 16

    @classmethod
    def bytes_per_tuple(cls, schema: pa.Schema, strings: float, width: int = 16) -> float:
        """v_S as held, with `strings` bytes of strings, in blocks of so many tuples."""
        return (8 + TupleStore.slot_bytes(schema) + 16 / width
                + strings * (SLACK / (SLACK - 1) if strings else 1))

    @property
    def tuple_bytes(self) -> float:
        return self.bytes_per_tuple(self.layout.held, self.strings, self.width)

    @property
    def live(self) -> int:
        return int(self.q[LIVE])

    # Size

    def resize(self, size: int) -> int:
        each = self.block_bytes + self.width * self.strings * SLACK / (SLACK - 1)
        blocks = max(min(int((size - self._fixed) // each), len(self.block)), 1)
        left = max(size - self._fixed - blocks * self.block_bytes, 0)
        return self.divide(blocks, min(left, len(self.store.heap)) if self.store.variable else 0)

    def divide(self, blocks: int, heap: int) -> int:
        """Have so many blocks, and so many bytes for strings. Returns the bytes that it has: more,
        while more waits."""
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

    # Entering

    def fits(self, sizes: np.ndarray, most: int = NO_LIMIT) -> int:
        sizes = sizes[:most]
        count = self._fitting(sizes)
        return (self._fitting(sizes) if len(sizes) and not count
                and self._divide_anew(sizes) else count)

    def _fitting(self, sizes: np.ndarray) -> int:
        """How many of the coming tuples the heap has room for."""
        if not self.store.variable or not len(sizes):
            return len(sizes)
        total = np.cumsum(sizes)
        if (total[-1] > self.heap_capacity - self.heap_at
                and SLACK * (self.heap_at - self.heap_live) >= self.heap_capacity):
            self.compact()
        if not self.live:
            self.heap_at = 0
        return int(np.searchsorted(total, self.heap_capacity - self.heap_at, side="right"))

    def _divide_anew(self, sizes: np.ndarray) -> bool:
        """Where strings are longer than assumed, divide the bytes anew between tuples and strings.
        False: nothing changed."""
        mean = max(float(sizes[:SAMPLED].mean()), self.heap_live / max(self.live, 1))
        if mean <= 1.1 * self.strings and self.live:
            return False
        self.strings = mean
        self.resize(self.size)
        return True

    def append(self, buffer: StreamBuffer, count: int) -> int:
        slots, rows, spans = np.empty(count, np.int64), buffer.rows[:count], buffer.spans[:count]
        n = kernels.append(buffer.codes, rows, spans[:, 0], self.width, self.head, self.waiting,
                           self.key, self.block, self.q, slots)
        if n:
            kernels.note(spans[:n], time.perf_counter(), self.reach, self.arrived, self.first)
            self.heap_at = self.store.put(buffer.held, rows[:n], slots[:n], self.heap_at)
            self.heap_live += int(buffer.sizes[:n].sum())
        return n

    def admit_saved(self, batch: pa.RecordBatch, spec: JoinSpec, by_index: bool = True) -> None:
        if self.fits(variable_bytes(self.layout.batch(batch))) < batch.num_rows:
            self.compact()
        super().admit_saved(batch, spec, by_index)

    # Probing

    def get(self, tuples: np.ndarray) -> list[pa.Array]:
        return self.layout.columns(self.key[tuples], self.store.get(tuples))

    def next(self, position: int) -> int:
        """The first partition from `position` on for which tuples wait, or -1."""
        return kernels.next_waiting(self.waiting, position)

    def upcoming(self, partition: int, number: int) -> list[int]:
        """This partition and those for which tuples wait behind it, so many in all, around the end
        of R."""
        out = [partition]
        while len(out) < number:
            behind = self.next(out[-1] + 1)
            out.append(behind if behind >= 0 else max(self.next(0), 0))
        return out

    def visit(self, partition: int) -> Visit:
        """The tuples that wait for this partition."""
        return Visit(self, partition)

    def find(self, codes: np.ndarray, visit: Visit) -> Found:
        """The tuples of a visit with these key codes, int64[n]."""
        found, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        total = kernels.find(codes, visit.keys, visit.table, visit.number, visit.met, found, counts)
        return Found(found, counts, total)

    # Leaving

    def remove(self, visit: Visit) -> Removed:
        """Remove the visited partition's tuples."""
        p, now, n = visit.partition, time.perf_counter(), len(visit.slots)
        if self.store.variable:
            self.heap_live -= sum(int(column.lengths[visit.slots].sum(dtype=np.int64))
                                  for column in self.store.variable)
        removed = Removed(visit.slots, visit.matched, float(n * now - self.arrived[p]),
                          float(now - self.first[p]) if n else 0.0)
        kernels.release(p, self.head, self.waiting, self.block, self.q)
        self.reach[p] = self.arrived[p] = self.first[p] = 0
        self.snapped[p] = -1 if self.snapped[p] else 0
        return removed

    # What waits

    def slots(self, first: int, number: np.ndarray) -> np.ndarray:
        """The slots of the newest number[i] tuples of each partition first + i, int64[sum of
        number]."""
        out = np.empty(int(number.sum()), np.int64)
        kernels.slots_of(first, number, self.width, self.head, self.block, out)
        return out

    def newest(self, number: np.ndarray) -> pa.RecordBatchReader:
        """The newest number[i] tuples of each partition i, for a state."""
        ends = np.cumsum(number, dtype=np.int64)
        cuts = np.unique([0, *np.searchsorted(ends, np.arange(SAVED_ROWS, ends[-1], SAVED_ROWS)),
                          len(number)])
        return self.saved(self.slots(a, number[a:b]) for a, b in itertools.pairwise(cuts))

    @property
    def not_snapped(self) -> np.ndarray:
        """How many tuples of each partition the last snapshot does not have, int32[partitions]."""
        return self.waiting - np.maximum(self.snapped, 0)

    def snap(self) -> None:
        """A snapshot has what is here."""
        self.snapped[:] = self.waiting

    def _shrink(self, blocks: int) -> None:
        """Move the blocks down so that none lies behind so many."""
        above = max(int(self.q[HIGH]) - blocks, 0)
        source, target = np.empty(above, np.int32), np.empty(above, np.int32)
        n = kernels.shrink(blocks, self.head, self.block, self.q, source, target)
        inside = np.arange(self.width)
        old, new = ((b[:n, None].astype(np.int64) * self.width + inside).ravel()
                    for b in (source, target))
        for array in (self.key, self.store.tuples):
            for first in range(0, len(old), OUTPUT_ROWS):
                array[new[first:first + OUTPUT_ROWS]] = array[old[first:first + OUTPUT_ROWS]]
            release(array, blocks * self.width)
        release(self.block, blocks)

    def compact(self) -> None:
        """Close the gaps of the heap."""
        slots = np.empty(self.live, np.int64)
        kernels.live_slots(self.width, self.block, self.q, slots)
        self.heap_at = self.store.close_gaps([slots] * len(self.store.variable), 0)
