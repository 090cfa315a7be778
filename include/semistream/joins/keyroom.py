"""H_S and Q of the index-based joins: stream tuples wait in the order of age and leave key by key."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins import kernels, room_kernels
from semistream.joins.parts import TupleStore, mapped, portions, release
from semistream.joins.room_kernels import FREE, HIGH, LIVE, NEWEST, OLDEST

APPEND_ROWS = 65_536  # the most tuples of one `append`
TICK = 20e-6  # seconds, the unit of ages
SLACK = 8  # one part in so many of the heap may be what removed tuples left; then it is compacted


class KeyRoom:
    """A hash multimap of waiting stream tuples, and a doubly linked queue through them; all tuples of a key are removed at once.

    `size` bytes: slots from a free list, and, where the tuples have strings, a heap that is filled upwards and compacted in the
    order of age. variable: the bytes of strings to expect of a tuple.
    """

    OVERHEAD = 8 + 8 * 4 + 1 + 4  # key, link, flags, head: bytes of a tuple beside its payload

    def __init__(self, schema: pa.Schema, size: int, variable: float):
        self.size, self.slot_bytes = size, self.OVERHEAD + TupleStore.slot_bytes(schema)
        self.slots = max(int(size // self.tuple_bytes(schema, variable)), 1)
        self.store = TupleStore(schema, self.slots, size)
        self.variable = bool(self.store.variable)
        self.heap_at = self.heap_live = 0
        self.divide(self.slots)
        self.key, self.flags = mapped(self.slots, np.int64), mapped(self.slots, np.uint8)
        self.link, self.head = mapped(self.slots, np.int32, 8), mapped(self.slots, np.int32)
        self.head[:] = -1
        self.q = np.array([-1, -1, -1, 0, 0], np.int64)
        self._opened, self._tick = time.perf_counter(), 0

    @classmethod
    def tuple_bytes(cls, schema: pa.Schema, variable: float) -> float:
        """Bytes of one waiting tuple with `variable` bytes of strings, and its share of what the heap leaves unused."""
        return cls.OVERHEAD + TupleStore.slot_bytes(schema) + variable * SLACK / (SLACK - 1)

    def divide(self, capacity: int) -> None:
        """Let at most so many tuples wait, and the heap have what they leave of the bytes (of the table they leave nothing)."""
        self.capacity = capacity
        self.heap_capacity = max(self.size - capacity * self.slot_bytes - (self.slots - capacity) * 4, 0) if self.variable else 0

    @property
    def live(self) -> int:
        return int(self.q[LIVE])

    @property
    def oldest(self) -> int:
        """Slot of the oldest tuple, the leader of its key; -1 when nothing waits."""
        return int(self.q[OLDEST])

    def fits(self, sizes: np.ndarray) -> int:
        """How many of the coming tuples, with these heap bytes each, can be taken in now."""
        count = min(len(sizes), self.capacity - self.live, APPEND_ROWS)
        if count <= 0 or not self.variable:
            return max(count, 0)
        total = np.cumsum(sizes[:count])
        if total[-1] > self.heap_capacity - self.heap_at and SLACK * (self.heap_at - self.heap_live) >= self.heap_capacity:
            self._compact()
        if total[-1] > self.heap_capacity - self.heap_at:
            self._divide_anew(max(self.heap_live + int(total[-1]), self.heap_at) / (self.live + count))
            total = total[:max(self.capacity - self.live, 0)]
        return int(np.searchsorted(total, self.heap_capacity - self.heap_at, side="right"))

    def append(self, batch: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, spans: np.ndarray, heap_bytes: int) -> None:
        """Add these rows, which `fits` has let in, with key codes[rows] and the keys' partition ranges spans, int32[rows, 2]."""
        slots = np.empty(len(rows), np.int64)
        self._tick = max(self._now(), self._tick + 1)  # one of its own for each batch: the heap is compacted batch by batch
        arrived = (self._tick + 2**31) % 2**32 - 2**31
        room_kernels.append(codes, rows, spans, arrived, self.head, self.key, self.link, self.flags, self.q, slots)
        self.heap_at = self.store.put(batch, rows, slots, self.heap_at)
        self.heap_live += heap_bytes

    def span(self, slot: int) -> tuple[int, int]:
        """The partitions that may hold the key at this slot, (first, last + 1)."""
        return int(self.link[slot, room_kernels.FIRST]), int(self.link[slot, room_kernels.LAST])

    def following(self, first: int, last: int) -> tuple[int, int]:
        """The partitions that may hold the oldest key that is not in [first, last) only; an empty range where none waits."""
        slot = room_kernels.outside(self.oldest, first, last, self.link)
        return self.span(slot) if slot >= 0 else (0, 0)

    def find(self, codes: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(leader or -1, its key's tuples) per code, and the leaders that were found for the first time in this iteration.

        Keys that may be in a partition outside [first, last) are not found.
        """
        found, counts, met = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        _, n = room_kernels.find(codes, first, last, self.head, self.key, self.link, self.flags, found, counts, met)
        return found, counts, met[:n]

    def pairs(self, found: np.ndarray, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(master rows, slots) of the matches, in portions."""
        for first, last, total in portions(counts):
            rows, slots = np.empty(total, np.int64), np.empty(total, np.int64)
            room_kernels.pairs(first, last, found, self.link, rows, slots)
            yield rows, slots

    def unmet(self, first: int, last: int) -> np.ndarray:
        """Leaders whose partitions are all in [first, last) and that this iteration did not find."""
        n = room_kernels.unmet(first, last, self.link, self.flags, self.q, np.empty(0, np.int32))
        out = np.empty(n, np.int32)
        if n:
            room_kernels.unmet(first, last, self.link, self.flags, self.q, out)
        return out

    def remove(self, leaders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Remove all tuples of these keys: (their slots, which of them had a match). Read the slots before appending."""
        slots = np.empty(room_kernels.count(leaders, self.link), np.int64)
        room_kernels.remove(leaders, self.head, self.key, self.link, self.q, slots)
        if self.variable:
            self.heap_live -= sum(int(lane.lengths[slots].sum(dtype=np.int64)) for lane in self.store.variable)
        return slots, self.flags[slots] & room_kernels.MATCHED != 0

    def ages(self, slots: np.ndarray) -> tuple[float, float]:
        """(sum, maximum) of these tuples' seconds since they came."""
        total, most = room_kernels.ages(slots, self.link, self._now())
        return total * TICK, most * TICK

    def in_age_order(self) -> np.ndarray:
        """The slots of all waiting tuples, oldest first."""
        slots = np.empty(self.live, np.int64)
        if self.live:
            room_kernels.in_age_order(self.oldest, False, self.link, slots)
        return slots

    def most_frequent(self, most: int) -> np.ndarray:
        """The keys with the most waiting tuples, at most so many; most frequent first, int64[n]."""
        histogram, nothing = np.zeros(65_536, np.int64), np.empty(0, np.int32)
        room_kernels.frequent(self.link, self.q, 1, histogram, nothing)
        above = np.cumsum(histogram[::-1])[::-1]  # above[n]: keys with at least n waiting tuples
        least = max(int(np.argmax(above <= most)) if (above <= most).any() else len(histogram), 1)
        leaders = np.empty(int(above[min(max(least - 1, 1), len(histogram) - 1)]), np.int32)  # with those of the next lower count
        room_kernels.frequent(self.link, self.q, max(least - 1, 1), histogram, leaders)
        order = np.argsort(-self.link[leaders, room_kernels.COUNT], kind="stable")
        return self.key[leaders[order[:most]]]

    def waiting(self, partitions: int) -> np.ndarray:
        """How many tuples wait for each of so many partitions, and no other, int64[partitions]."""
        counts = np.zeros(partitions, np.int64)
        room_kernels.waiting(self.link, self.q, counts)
        return counts

    def _now(self) -> int:
        return int((time.perf_counter() - self._opened) / TICK)

    def _compact(self) -> None:
        """Close the gaps of the heap: batch by batch in the order of age, which is the order of addresses."""
        slots, slot, at = np.empty(APPEND_ROWS, np.int64), self.oldest, 0
        while slot >= 0:
            n, slot = room_kernels.in_age_order(slot, True, self.link, slots)
            for lane in self.store.variable:
                at = kernels.var_slide(lane.starts, lane.lengths, self.store.heap, slots[:n], at)
        self.heap_at = at

    def _divide_anew(self, variable: float) -> None:
        """Where strings are longer than expected, let the heap have the bytes of slots that were never used."""
        if not self.live:
            self.q[[FREE, HIGH]], self.q[[OLDEST, NEWEST]] = (-1, 0), -1
            self.heap_at = 0
        capacity = max(int(self.size // (self.slot_bytes + variable * SLACK / (SLACK - 1))), int(self.q[HIGH]), 1)
        if capacity < self.capacity:
            self.divide(capacity)
            for array in (self.key, self.flags, self.link, *self.store.arrays()):
                release(array, int(self.q[HIGH]))
