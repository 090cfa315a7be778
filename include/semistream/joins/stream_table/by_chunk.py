"""H_S and Q of the scan-based joins: tuples leave chunk by chunk in the order of arrival."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins import tuple_store_kernels as heap_kernels
from semistream.joins.arena import mapped, release
from semistream.joins.output import Pairs, Removed, pairs_of
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_table import by_chunk_kernels as kernels
from semistream.joins.stream_table.interface import NO_LIMIT, SAVED_ROWS, Ages, Found, StreamTable
from semistream.joins.stream_table.shared_kernels import MATCHED, mark
from semistream.joins.tuple_store import MOST_HEAP, TupleStore


class Chunk:
    """A node of Q: the tuples that arrived in one iteration. heap_start: the address of the tuples'
    strings in the heap; heap_bytes: the strings' bytes, gaps included; count: the number of tuples.
    """

    __slots__ = ("arrived", "closed", "count", "heap_bytes", "heap_start")

    def __init__(self, heap_start: int, arrived: float):
        self.heap_start, self.arrived, self.count, self.heap_bytes = heap_start, arrived, 0, 0
        self.closed = False


class ByChunk(StreamTable):
    """A hash multimap of tuples in a ring, and a queue of `chunks` chunks.

    The ring has ``capacity`` slots. The heap bytes for strings form a second ring. ``resize``
    changes the sizes of both. Q holds for each chunk the number of its tuples, the start and
    the bytes of its strings in the heap, and its arrival time.

    chunks: N, or N q, the iterations of an R-cycle; largest_w: the largest useful number of tuples
    in a chunk.
    """

    # key, back, same, flags, head: bytes of a tuple in addition to its payload
    OVERHEAD = 8 + 4 + 4 + 1 + 4

    def __init__(self, layout: StreamLayout, chunks: int, largest_w: int):
        super().__init__(layout)
        self.chunks, self.largest_w = chunks, largest_w
        self.slot_bytes = self.OVERHEAD + TupleStore.slot_bytes(layout.held)
        self.capacity = self.heap_capacity = self.oldest = self.heap_at = self.heap_live = 0
        self._live = 0
        self.queue: deque[Chunk] = deque()

    @classmethod
    def bytes_per_tuple(cls, schema: pa.Schema, strings: float) -> float:
        """Return v_S in H_S: the bytes of payload, key, links, flags and table element, plus
        `strings` bytes of strings."""
        return cls.OVERHEAD + TupleStore.slot_bytes(schema) + strings

    @property
    def tuple_bytes(self) -> float:
        return self.slot_bytes + self.strings

    @property
    def least_bytes(self) -> int:
        """Bytes for one tuple in each chunk, without strings."""
        return self.slot_bytes * self.chunks

    @property
    def live(self) -> int:
        return self._live

    def w(self, capacity: int) -> int:
        """Return w, the tuples per iteration, for a capacity: as many as fill the capacity in one
        R-cycle, at most ``largest_w``."""
        return max(min(capacity // self.chunks, self.largest_w), 1)

    @property
    def missing(self) -> int:
        """The number of tuples that the open chunk, the newest one of Q, needs to reach w
        tuples."""
        return self.w(self.capacity) - self.open_count

    @property
    def open_count(self) -> int:
        return self.queue[-1].count if self.queue and not self.queue[-1].closed else 0

    def open(self, strings: float, most: int) -> None:
        """Reserve memory. If strings are too long for one tuple in each chunk, the longest strings
        that fit are assumed, and fewer tuples can wait."""
        self.strings = max(min(strings, most / self.chunks - self.slot_bytes), 0.0)
        self.most = max(most // self.slot_bytes, 1)
        self.most_heap = min(most, MOST_HEAP) if self.layout.has_strings else 0
        self.store = TupleStore(self.layout.held, self.most, self.most_heap)
        self.key, self.flags = mapped(self.most, np.int64), mapped(self.most, np.uint8)
        self.back, self.same, self.heads = (mapped(self.most, np.int32) for _ in range(3))
        self.head = self.heads[:0]
        self.opened = True

    # Entering

    def fits(self, sizes: np.ndarray, most: int = NO_LIMIT) -> int:
        count = self._fitting(sizes, most)
        if count < min(len(sizes), most) and self._divide_anew(sizes):
            count = self._fitting(sizes, most)
        return count

    def _fitting(self, sizes: np.ndarray, most: int) -> int:
        """Return how many of the next tuples fit if the bytes are divided as they are now, at most
        `most`. sizes: int64[n], bytes of each tuple's strings."""
        count = min(len(sizes), most, self.capacity - self.live)
        if count <= 0 or not self.store.variable:
            return max(count, 0)
        total = np.cumsum(sizes[:count])
        return int(np.searchsorted(total, self._largest_block(), side="right"))

    def _largest_block(self) -> int:
        """Return the largest contiguous space for strings, in bytes: behind the last strings, or at
        the start of the heap."""
        if not self.heap_live:
            return self.heap_capacity
        first = self.queue[0].heap_start
        return (
            max(self.heap_capacity - self.heap_at, first)
            if self.heap_at > first
            else first - self.heap_at
        )

    def _divide_anew(self, sizes: np.ndarray) -> bool:
        """Divide the bytes between slots and strings again, if strings are longer than assumed.
        Return whether the division has changed."""
        before = self.strings
        if not self.most_heap or self.live >= self.capacity:
            return False
        longest = self.size - self.tuple_bytes + before
        self.strings = min(max(float(sizes.mean()), self.heap_live / max(self.live, 1)), longest)
        if self.strings > 1.1 * before and self._resized(self.size):
            return True
        self.strings = before
        return False

    def append(self, buffer: StreamBuffer, count: int) -> int:
        """Add tuples to the open chunk. ``close_chunk`` ends it."""
        rows, heap_bytes = buffer.rows[:count], int(buffer.sizes[:count].sum())
        chunk = self._open_chunk(time.perf_counter())
        if not self.heap_live:
            self.heap_at = 0
            for each in self.queue:
                each.heap_start = 0
        if heap_bytes > self.heap_capacity - self.heap_at:
            chunk.heap_bytes += self.heap_capacity - self.heap_at
            self.heap_live += self.heap_capacity - self.heap_at
            self.heap_at = 0
        slots = self.slots(self.live, count)
        self.heap_at = self.store.put(buffer.incoming, rows, slots, self.heap_at)
        kernels.append(
            buffer.codes[rows],
            self.head,
            self.key,
            self.back,
            self.same,
            self.flags,
            self.oldest,
            self.live,
            self.capacity,
        )
        self._live += count
        self.heap_live += heap_bytes
        chunk.heap_bytes += heap_bytes
        chunk.count += count
        return count

    def _open_chunk(self, now: float) -> Chunk:
        if not self.queue or self.queue[-1].closed:
            self.queue.append(Chunk(self.heap_at, now))
        return self.queue[-1]

    def close_chunk(self) -> None:
        """End the open chunk, which is empty if no tuples came."""
        self._open_chunk(time.perf_counter()).closed = True

    # Probing

    def slots(self, first: int, count: int) -> np.ndarray:
        """Return the slots of `count` tuples in the order of arrival, int64[count]. first: the
        number of older tuples in H_S."""
        return (self.oldest + first + np.arange(count, dtype=np.int64)) % max(self.capacity, 1)

    def mark(self, tuples: np.ndarray) -> int:
        return mark(self.flags, tuples, MATCHED)

    def find(self, codes: np.ndarray) -> Found:
        """Find the waiting tuples with these key codes, int64[n]."""
        found, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        total = kernels.find(
            codes,
            self.head,
            self.key,
            self.back,
            self.same,
            self.oldest,
            self.live,
            self.capacity,
            found,
            counts,
        )
        return Found(found, counts, total)

    def pairs(self, found: Found) -> Pairs:
        """Return the matches as (master rows, slots), in portions."""
        ring = self.same, self.oldest, self.capacity
        return pairs_of(found.counts, kernels.pairs, found.first, *ring)

    def frequent(self, present: int, absent: int, most: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Find join values with at least `present` waiting tuples, and values with at least
        `absent` waiting tuples of which the oldest has waited long without a match. If there are
        more than `most` values, only the most frequent ones are returned.

        Return (values int64[n], tuples of each value int32[n], the minimum that was used in place
        of `present`).
        """
        histogram = np.zeros(4096, np.int64)

        def scan(keys: np.ndarray, counts: np.ndarray) -> int:
            histogram[:] = 0
            return kernels.frequent(
                self.key,
                self.same,
                self.flags,
                self.oldest,
                self.live,
                self.capacity,
                present,
                absent,
                keys,
                counts,
                histogram,
            )

        nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
        number = scan(*nothing) if self.live else 0
        if number > most:
            # above[n]: values with at least n waiting tuples
            above = np.cumsum(histogram[::-1])[::-1]
            least = int(np.argmax(above <= most)) if (above <= most).any() else len(histogram)
            present, absent = max(present, least), max(absent, least)
            number = scan(*nothing) if most else 0
        keys, counts = np.empty(min(number, most), np.int64), np.empty(min(number, most), np.int32)
        if len(keys):
            scan(keys, counts)
        return keys, counts, present

    # Leaving

    def remove(self) -> Removed:
        """Remove the oldest chunk if Q has all its chunks, because that chunk has then met all of
        R."""
        if len(self.queue) < self.chunks:
            return Removed.none()
        chunk = self.queue.popleft()
        slots = self.slots(0, chunk.count)
        if self.capacity:
            self.oldest = (self.oldest + chunk.count) % self.capacity
        self._live -= chunk.count
        self.heap_live -= chunk.heap_bytes
        age = time.perf_counter() - chunk.arrived if chunk.count else 0.0
        return Removed(slots, self.flags[slots] & MATCHED != 0, chunk.count * age, age, chunk.count)

    # Ages

    def ages(self) -> Ages:
        filled = [chunk for chunk in self.queue if chunk.count]
        if not filled:
            return Ages()
        now = time.perf_counter()
        return Ages.of(
            now - filled[0].arrived,
            sum(chunk.count * (now - chunk.arrived) for chunk in filled),
            self.live,
        )

    def age_by(self, ages: Ages) -> None:
        now = time.perf_counter()
        for number, chunk in enumerate(chunk for chunk in self.queue if chunk.count):
            chunk.arrived = now - (ages.others if number else ages.oldest)

    # Size

    def resize(self, size: int) -> int:
        self._resized(min(size, int(self.tuple_bytes * max(self.largest_w, 1) * self.chunks) + 1))
        return self.size

    def _resized(self, size: int) -> bool:
        """Divide `size` bytes between slots and strings, and move the ring. Return whether this was
        possible."""
        capacity = int(size // self.tuple_bytes)
        heap = int(size - capacity * (self.tuple_bytes - self.strings)) if self.most_heap else 0
        done = self._move(min(capacity, self.most), min(heap, self.most_heap))
        if done:
            self.size = size
        return done

    def _move(self, capacity: int, heap_capacity: int) -> bool:
        """Move the ring to another size, given in tuples and in bytes of strings. Return False and
        change nothing while too many tuples wait, or while their strings have addresses that are
        too high."""
        if capacity == self.capacity and heap_capacity == self.heap_capacity:
            return True
        shift = self.queue[0].heap_start if self.heap_live else 0
        heap_end = (self.heap_at - shift - 1) % self.heap_capacity + 1 if self.heap_live else 0
        if capacity < self.live or heap_capacity < heap_end:
            return False
        self._to_front(shift)
        self.heap_at = heap_end
        for array in (self.key, self.flags, self.back, self.same, self.heads, self.store.tuples):
            if capacity < self.capacity:
                release(array, capacity)
        if heap_capacity < self.heap_capacity:
            release(self.store.heap, heap_capacity)
        self.capacity, self.heap_capacity = capacity, heap_capacity
        self.head = self.heads[:capacity]
        kernels.rebuild(
            self.head, self.key, self.back, self.same, self.flags, self.live, max(capacity, 1)
        )
        return True

    def _to_front(self, heap_shift: int) -> None:
        """Rotate the ring so that the oldest tuple is in slot 0 and its strings start the heap."""
        if self.oldest and self.live:
            for array in (self.key, self.flags, self.store.rows):
                kernels.rotate(array[: self.capacity].reshape(self.capacity, -1), self.oldest)
        self.oldest = 0
        if heap_shift:
            kernels.rotate(self.store.heap[: self.heap_capacity].reshape(-1, 1), heap_shift)
            for column in self.store.variable:
                heap_kernels.shift(column.starts, self.live, heap_shift, self.heap_capacity)
            for chunk in self.queue:
                chunk.heap_start = (chunk.heap_start - heap_shift) % self.heap_capacity

    # State

    def drained(self) -> None:
        """Remove the empty chunks that remain in Q."""
        self.queue.clear()

    def tables(self) -> dict[str, pa.RecordBatchReader]:
        """Return the waiting tuples in the order of age, with a column that says whether each has a
        match."""
        if not self.opened:
            return {}
        portions = (
            self.slots(first, min(SAVED_ROWS, self.live - first))
            for first in range(0, self.live, SAVED_ROWS)
        )
        return {"waiting": self.saved(portions, lambda slots: self.flags[slots] & MATCHED != 0)}

    def values(self) -> dict[str, Any]:
        return {"strings": self.strings, "chunks": [[c.count, c.closed] for c in self.queue]}

    def restore(self, waiting: pa.Table, values: dict[str, Any], spec: JoinSpec) -> None:
        """Restore waiting tuples. The table must be open and have its final size."""
        at = 0
        for count, closed in values["chunks"]:
            if count:
                *columns, matched = (
                    waiting.slice(at, count).combine_chunks().to_batches()[0].columns
                )
                first = self.live
                self.admit_saved(
                    pa.RecordBatch.from_arrays(columns, schema=spec.stream), spec, by_index=False
                )
                self.mark(self.slots(first, count)[matched.to_numpy(zero_copy_only=False)])
            if closed:
                self.close_chunk()
            at += count
