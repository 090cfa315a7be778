"""H_S and Q of the index-based joins: tuples wait in the order of age and leave key by key.

A key's master tuples may lie in several disk partitions, if the key has tuples on both sides of a
border, or shares its hash code with other keys. A stream tuple stores the range of partitions for
its key. The tuple takes part in an iteration only if that iteration reads the whole range. It then
leaves, with a match or without. The hash table is laid out by partition, so that all tuples that
wait for a partition are found without examining others.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.joins import tuple_store_kernels as heap_kernels
from semistream.joins.arena import mapped, release
from semistream.joins.output import Pairs, Removed, pairs_of
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_table import by_key_kernels as kernels
from semistream.joins.stream_table.by_key_kernels import FREE, HIGH, LIVE, NEWEST, OLDEST
from semistream.joins.stream_table.interface import NO_LIMIT, Ages, StreamTable
from semistream.joins.stream_table.shared_kernels import MATCHED, mark, pairs
from semistream.joins.tuple_store import MOST_HEAP, TupleStore

APPEND_ROWS = 65_536  # the most tuples of one `append`
TICK = 20e-6  # seconds, the unit of ages
MOST_AGE = 80_000.0  # s; ticks wrap 5,900 s later
SLACK = 8  # the heap is compacted once more than 1/SLACK of it are gaps that removed tuples left

Span = tuple[int, int]  # disk partitions, [first, last)
EVERYWHERE: Span = (0, 2**31 - 1)  # contains every other


class FoundKeys(NamedTuple):
    """The waiting tuples that have the key codes of a partition's tuples."""

    first: np.ndarray  # int32[n], the leader of each code's key, or -1
    counts: np.ndarray  # int32[n], its key's tuples
    met: np.ndarray  # int32[m], the leaders that were found for the first time in this iteration


class ByKey(StreamTable):
    """A hash multimap of waiting tuples, and a doubly linked queue through them. All tuples of a
    key are removed together.

    Slots come from a free list. Strings lie in a heap that is filled upwards and compacted in the
    order of age.
    """

    # key, link, flags, head: bytes of a tuple in addition to its payload
    OVERHEAD = 8 + 8 * 4 + 1 + 4

    def __init__(self, layout: StreamLayout, partitions: int):
        """Create the table. partitions: N, the number of R's partitions."""
        super().__init__(layout)
        self.partitions = max(partitions, 1)
        self.slot_bytes = self.OVERHEAD + TupleStore.slot_bytes(layout.held)
        self.capacity = self.heap_at = self.heap_live = self._tick = 0
        self.q = np.array([-1, -1, -1, 0, 0], np.int64)

    @classmethod
    def bytes_per_tuple(cls, schema: pa.Schema, strings: float) -> float:
        """Return v_S in H_S: the bytes of a tuple with `strings` bytes of strings, and its share of
        the heap's unused part."""
        return cls.OVERHEAD + TupleStore.slot_bytes(schema) + strings * SLACK / (SLACK - 1)

    @property
    def least_bytes(self) -> float:
        """Bytes for one tuple, without strings."""
        return self.bytes_per_tuple(self.layout.held, 0)

    @property
    def live(self) -> int:
        return int(self.q[LIVE])

    @property
    def oldest(self) -> int:
        """The slot of the oldest tuple, which is the oldest of its key and so the key's leader; -1
        when no tuple waits."""
        return int(self.q[OLDEST])

    @property
    def age(self) -> float:
        """Seconds that the oldest tuple has waited; 0 when no tuple waits."""
        if self.oldest < 0:
            return 0.0
        _, longest = kernels.ages(np.array([self.oldest]), self.link, self._now())
        return float(longest * TICK)

    def open(self, strings: float, most: int) -> None:
        self.strings, self.size = strings, most
        self.most = max(int(most // self.bytes_per_tuple(self.layout.held, strings)), 1)
        self.store = TupleStore(self.layout.held, self.most, min(most, MOST_HEAP))
        self.key, self.flags = mapped(self.most, np.int64), mapped(self.most, np.uint8)
        self.link, self.head = mapped(self.most, np.int32, 8), mapped(self.most, np.int32)
        self.head[:], self._share = -1, self.most / self.partitions
        self.divide(self.most)
        self._opened_at, self.opened = time.perf_counter(), True

    def resize(self, size: int) -> int:
        """Return the size with which the table was opened. This layout cannot change its size."""
        return self.size

    def divide(self, capacity: int) -> None:
        """Limit the table to `capacity` waiting tuples, and give the remaining bytes to the heap.
        The hash table keeps its size."""
        self.capacity = capacity
        left = self.size - capacity * self.slot_bytes - (self.most - capacity) * 4
        self.heap_capacity = min(max(left, 0), len(self.store.heap))

    # Entering

    def fits(self, sizes: np.ndarray, most: int = NO_LIMIT) -> int:
        count = min(len(sizes), self.capacity - self.live, APPEND_ROWS, most)
        if count <= 0 or not self.layout.has_strings:
            return max(count, 0)
        total = np.cumsum(sizes[:count])
        if (
            total[-1] > self.heap_capacity - self.heap_at
            and SLACK * (self.heap_at - self.heap_live) >= self.heap_capacity
        ):
            self._compact()
        if total[-1] > self.heap_capacity - self.heap_at:
            self._divide_anew(
                max(self.heap_live + int(total[-1]), self.heap_at) / (self.live + count)
            )
            total = total[: max(self.capacity - self.live, 0)]
        return int(np.searchsorted(total, self.heap_capacity - self.heap_at, side="right"))

    def append(self, buffer: StreamBuffer, count: int) -> int:
        slots, rows = np.empty(count, np.int64), buffer.rows[:count]
        # each batch has a different tick, because the heap is compacted batch by batch
        self._tick = max(self._now(), self._tick + 1)
        kernels.append(
            buffer.codes[rows],
            buffer.spans,
            _wrapped(self._tick),
            self._share,
            self.head,
            self.key,
            self.link,
            self.flags,
            self.q,
            slots,
        )
        self.heap_at = self.store.put(buffer.incoming, rows, slots, self.heap_at)
        self.heap_live += int(buffer.sizes[:count].sum())
        return count

    # Probing

    def mark(self, tuples: np.ndarray) -> int:
        return mark(self.flags, tuples, MATCHED)

    def span(self, slot: int) -> Span:
        """Return the partitions that may hold the key at this slot."""
        return int(self.link[slot, kernels.FIRST]), int(self.link[slot, kernels.LAST])

    def following(self, span: Span) -> Span:
        """Return the span of the oldest waiting tuple that needs partitions outside of the given
        span; an empty range if no such tuple waits."""
        slot = kernels.outside(self.oldest, *span, self.link)
        return self.span(slot) if slot >= 0 else (0, 0)

    def find(self, codes: np.ndarray, firsts: np.ndarray, span: Span) -> FoundKeys:
        """Find the waiting tuples with these key codes, int64[n], whose partitions all lie in the
        span. firsts: int32[n], the first partition that may hold each code."""
        found, counts, met = (np.empty(len(codes), np.int32) for _ in range(3))
        _, n = kernels.find(
            codes,
            firsts,
            *span,
            self._share,
            self.head,
            self.key,
            self.link,
            self.flags,
            found,
            counts,
            met,
        )
        return FoundKeys(found, counts, met[:n])

    def pairs(self, found: FoundKeys) -> Pairs:
        """Return the matches as (master rows, slots), in portions."""
        return pairs_of(found.counts, pairs, found.first, self.link[:, kernels.SAME])

    # Leaving

    def within(self, span: Span) -> np.ndarray:
        """Return the slots, int32[n], that stand for join values (``leaders``) which occur in no
        partition outside the span. Once the span has been read, all waiting tuples with these
        values are finished, with a match or without."""
        place = *span, self._share, self.head, self.link
        out = np.empty(kernels.within(*place, np.empty(0, np.int32)), np.int32)
        if len(out):
            kernels.within(*place, out)
        return out

    def remove(self, leaders: np.ndarray) -> Removed:
        """Remove all tuples of these leaders' keys, int32[n]."""
        if not len(leaders):
            return Removed.none()
        slots = np.empty(kernels.count(leaders, self.link), np.int64)
        kernels.remove(leaders, self._share, self.head, self.key, self.link, self.q, slots)
        if self.layout.has_strings:
            self.heap_live -= sum(
                int(column.lengths[slots].sum(dtype=np.int64)) for column in self.store.variable
            )
        total, longest = kernels.ages(slots, self.link, self._now())
        return Removed(
            slots, self.flags[slots] & MATCHED != 0, total * TICK, longest * TICK, len(slots)
        )

    # Ages

    def ages(self) -> Ages:
        if not self.live:
            return Ages()
        total, longest = kernels.ages(self.in_age_order(), self.link, self._now())
        return Ages.of(longest * TICK, total * TICK, self.live)

    def age_by(self, ages: Ages) -> None:
        """Move the arrival times of the restored tuples into the past by these ages. ``restore``
        has put the oldest tuple into a separate batch, so that it has a separate arrival time."""
        if self.live:
            oldest, others = (min(age, MOST_AGE) for age in ages)
            self._opened_at -= others
            arrived = int(self.link[self.oldest, kernels.ARRIVED]) - int((oldest - others) / TICK)
            self.link[self.oldest, kernels.ARRIVED] = _wrapped(arrived)

    # Waiting tuples

    def in_age_order(self) -> np.ndarray:
        """Return the slots of all waiting tuples, oldest first, int64[n]."""
        slots = np.empty(self.live, np.int64)
        if self.live:
            kernels.in_age_order(self.oldest, False, self.link, slots)
        return slots

    def most_frequent(self, most: int) -> np.ndarray:
        """Return at most `most` keys with the most waiting tuples, the most frequent first,
        int64[n]."""
        histogram, nothing = np.zeros(65_536, np.int64), np.empty(0, np.int32)
        kernels.frequent(self.link, self.q, 1, NO_LIMIT, histogram, nothing)
        above = np.cumsum(histogram[::-1])[::-1]  # above[n]: keys with at least n waiting tuples
        # the least number of tuples that at most `most` keys reach, as far as the histogram tells
        least = int(np.argmax(above <= most)) if above[-1] <= most else len(above) - 1
        least = max(least, 1)
        leaders = np.empty(max(min(int(above[max(least - 1, 1)]), most), above[least]), np.int32)
        n = kernels.frequent(self.link, self.q, least, NO_LIMIT, histogram, leaders)
        if least > 1:  # add as many as fit of the keys with one tuple less
            kernels.frequent(self.link, self.q, least - 1, least, histogram, leaders[n:])
        order = np.argsort(-self.link[leaders, kernels.COUNT], kind="stable")
        return self.key[leaders[order[:most]]]

    def waiting(self, partitions: int) -> np.ndarray:
        """Return how many tuples wait for each partition and no other one, int64[partitions]."""
        counts = np.zeros(partitions, np.int64)
        kernels.waiting(self.link, self.q, counts)
        return counts

    def _now(self) -> int:
        return int((time.perf_counter() - self._opened_at) / TICK)

    # Strings

    def _compact(self) -> None:
        """Close the gaps of the heap, batch by batch in the order of age, which is the order of
        addresses."""
        slots, slot, at = np.empty(APPEND_ROWS, np.int64), self.oldest, 0
        while slot >= 0:
            n, slot = kernels.in_age_order(slot, True, self.link, slots)
            for column in self.store.variable:
                at = heap_kernels.slide(
                    column.starts, column.lengths, self.store.heap, slots[:n], at
                )
        self.heap_at = at

    def _divide_anew(self, strings: float) -> None:
        """Give the bytes of slots that were never used to the heap, if strings are longer than
        expected."""
        if not self.live:
            self.q[[FREE, HIGH]], self.q[[OLDEST, NEWEST]] = (-1, 0), -1
            self.heap_at = 0
        capacity = max(
            int(self.size // (self.slot_bytes + strings * SLACK / (SLACK - 1))),
            int(self.q[HIGH]),
            1,
        )
        if capacity < self.capacity:
            self.divide(capacity)
            for array in (self.key, self.flags, self.link, self.store.tuples):
                release(array, int(self.q[HIGH]))

    # State

    def tables(self) -> dict[str, pa.RecordBatchReader]:
        """Return the waiting tuples in the order of age."""
        return {"waiting": self.saved(self.in_age_order())} if self.opened else {}

    def values(self) -> dict[str, Any]:
        return {"strings": self.strings} | ({"capacity": self.capacity} if self.opened else {})

    def restore(self, waiting: pa.Table, values: dict[str, Any], spec: JoinSpec) -> None:
        self.divide(min(values["capacity"], self.most))
        for parts in (waiting[:1], waiting[1:]):  # the oldest tuple has a separate age
            for part in parts.to_batches(max_chunksize=APPEND_ROWS):
                self.admit_saved(pa.RecordBatch.from_arrays(part.columns, schema=spec.stream), spec)


def _wrapped(tick: int) -> int:
    """Return a tick as an int32, with wrap-around."""
    return (tick + 2**31) % 2**32 - 2**31
