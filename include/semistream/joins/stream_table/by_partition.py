"""H_S of ELEVATORJOIN and of the partition-based join: waiting tuples grouped by the disk partition
that holds their key."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.compiled import filled
from semistream.joins.arena import mapped, release
from semistream.joins.output import OUTPUT_BYTES, OUTPUT_ROWS, Pairs, Removed, pairs_of
from semistream.joins.paged_store import PagedStore
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_probing import PROBE_ROWS
from semistream.joins.stream_table import by_partition_kernels as kernels
from semistream.joins.stream_table.by_partition_kernels import HIGH, LIVE, MOST, USED
from semistream.joins.stream_table.interface import NO_LIMIT, SAVED_ROWS, Ages, Found, StreamTable
from semistream.joins.stream_table.shared_kernels import pairs
from semistream.joins.tuple_store import rows_in

# possible tuples per block; half a block of each partition is empty on average
WIDTHS = (32, 16, 8, 4, 2, 1)
SHIFTS = (12, 11, 10, 9, 8, 7, 6)  # 2**shift bytes of strings per page; half a page is empty too
# the widest blocks and largest pages are chosen that give each partition at least this many
BLOCKS = 8
HALF_PAGES = 1 + 1 / (2 * BLOCKS)  # bytes per byte of strings, with pages that are half empty
# head, tuples, saved tuples, reach, arrivals; first page and end of the strings
PARTITION_BYTES = 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8
VISITED = 65_536  # tuples of a partition that are grouped at a time, at some 50 bytes each
SAMPLED = 1000  # incoming tuples whose strings are measured when the bytes are divided again


class Visit:
    """Tuples that wait for one partition, grouped by key.

    slots, keys: int64[n]; number: int32[n], for the leader of a key the number of the key's tuples,
    otherwise 0; met: bool[n], whether a leader's key was found in R; matched: bool[n].
    """

    def __init__(self, h_s: ByPartition, slots: np.ndarray):
        self._h_s, self.slots, n = h_s, slots, len(slots)
        self.keys = h_s.key[self.slots]
        self.table, self.same = np.empty(2 * n + 2, np.int32), np.empty(n, np.int32)
        self.number, self.met = np.empty(n, np.int32), np.zeros(n, bool)
        self.matched = np.zeros(n, bool)
        kernels.group(self.keys, self.table, self.same, self.number)

    @property
    def removed(self) -> Removed:
        """The tuples of the visit. `ByPartition.remove` returns their waiting times."""
        return Removed(self.slots, self.matched, 0.0, 0.0, 0)

    def get(self, tuples: np.ndarray) -> list[pa.Array]:
        """Return all stream columns of these tuples of the visit, int64[n]."""
        return self._h_s.get(self.slots[tuples])

    def mark(self, tuples: np.ndarray) -> int:
        before = np.count_nonzero(self.matched)
        self.matched[tuples] = True
        return int(np.count_nonzero(self.matched) - before)

    def pairs(self, found: Found) -> Pairs:
        """Return the matches as (master rows, tuples of the visit), in portions."""
        return pairs_of(found.counts, pairs, found.first, self.same)


class ByPartition(StreamTable):
    """Waiting tuples in blocks. The blocks of a partition are linked, and a partition's tuples
    leave together. Strings lie in pages that are also linked by partition, so that leaving tuples
    leave no gaps.

    There is no hash table, and tuples are not linked: besides its payload a tuple takes 9 bytes,
    and its share of a block's 16. partitions: N, the number of R's partitions.
    """

    store: PagedStore

    def __init__(self, layout: StreamLayout, partitions: int):
        super().__init__(layout)
        self.partitions, self.width = partitions, 1
        self._slot = 8 + PagedStore.slot_bytes(layout.held)
        self.head, self.waiting = np.full(partitions, -1, np.int32), np.zeros(partitions, np.int32)
        # `waiting` at the last snapshot; -1: its tuples have left since
        self.snapped = np.zeros(partitions, np.int32)
        # for each partition, one past the last partition that may hold a waiting key
        self.reach = np.zeros(partitions, np.int32)
        # in s: the sum of arrival times, and the oldest
        self.arrived, self.first = np.zeros(partitions), np.zeros(partitions)
        self.q = np.array([-1, 0, 0, 0, 0], np.int64)
        # for strings: the first page, and where the last string ends; `pages` counts pages as q
        # counts blocks
        self.page, self.end = np.full(partitions, -1, np.int32), np.zeros(partitions, np.int64)
        self.pages = np.array([-1, 0, 0, 0], np.int64)
        self.blocks = self.page_count = 0  # how many blocks and pages the memory suffices for

    def open(self, strings: float, most: int, width: int = 0, shift: int = 0) -> None:
        """Reserve memory. width: tuples per block; shift: 2**shift is the size of a page in bytes;
        0 stands for the best value for `most` bytes."""
        self.strings, room = strings, max(most - self._fixed, 0)
        tuples = room / (self._slot + strings)
        self.width = width or next((w for w in WIDTHS if tuples >= BLOCKS * w * self.partitions), 1)
        shift = shift or next(
            (s for s in SHIFTS if tuples * strings >= BLOCKS * self.partitions << s), SHIFTS[-1]
        )
        blocks = max(room // self.block_bytes, 1)
        self.store = PagedStore(self.layout.held, blocks * self.width, room, shift)
        self.key, self.block = mapped(blocks * self.width, np.int64), mapped(blocks, np.int32, 4)
        self.opened = True

    @property
    def _fixed(self) -> int:
        return self.partitions * PARTITION_BYTES

    @property
    def least_bytes(self) -> int:
        """The bytes that the table takes with a single block."""
        return self._fixed + self.block_bytes

    @property
    def block_bytes(self) -> int:
        return self.width * self._slot + 16

    @classmethod
    def bytes_per_tuple(cls, schema: pa.Schema, strings: float, width: int = 16) -> float:
        """Return v_S in H_S: the bytes of a tuple with `strings` bytes of strings, in blocks of
        `width` tuples."""
        return 8 + PagedStore.slot_bytes(schema) + 16 / width + strings * HALF_PAGES

    @property
    def tuple_bytes(self) -> float:
        return self.bytes_per_tuple(self.layout.held, self.strings, self.width)

    @property
    def live(self) -> int:
        return int(self.q[LIVE])

    # Size

    def resize(self, size: int) -> int:
        each = self.block_bytes + self.width * self.strings * HALF_PAGES
        blocks = max(min(int((size - self._fixed) // each), len(self.block)), 1)
        left = max(size - self._fixed - blocks * self.block_bytes, 0)
        return self.divide(blocks, min(left // self.store.page_bytes, len(self.store.link)))

    def divide(self, blocks: int, pages: int) -> int:
        """Set the number of blocks, and of pages for strings. Return the bytes in use, which may be
        more while waiting tuples need more."""
        if self.q[USED] > blocks or self.pages[USED] > pages:
            self.q[MOST] = min(blocks, self.blocks)
            self.pages[MOST] = min(pages, self.page_count)
            return self.size
        if blocks < self.blocks:
            self._shrink(blocks)
        if pages < self.page_count:
            self._shrink_pages(pages)
        self.blocks, self.page_count = blocks, pages
        self.q[MOST], self.pages[MOST] = blocks, pages
        self.size = self._fixed + blocks * self.block_bytes + pages * self.store.page_bytes
        return self.size

    # Entering

    def fits(self, sizes: np.ndarray, most: int = NO_LIMIT) -> int:
        return min(len(sizes), most)  # `append` decides, as it depends on each tuple's partition

    def admit(self, buffer: StreamBuffer, most: int = NO_LIMIT) -> int:
        count = super().admit(buffer, most)
        # although blocks are free, no tuple was admitted: pages are missing
        if (
            not count
            and len(buffer)
            and self.q[USED] < self.q[MOST]
            and self._divide_anew(buffer.sizes[:SAMPLED])
        ):
            count = super().admit(buffer, most)
        return count

    def _divide_anew(self, sizes: np.ndarray) -> bool:
        """Divide the bytes between tuples and strings again, if strings are longer than assumed.
        Return whether the division has changed."""
        used = int(self.pages[USED]) << self.store.shift
        mean = max(float(sizes.mean()), used / HALF_PAGES / max(self.live, 1))
        if mean <= 1.1 * self.strings and self.live:
            return False
        self.strings = mean
        self.resize(self.size)
        return True

    def append(self, buffer: StreamBuffer, count: int) -> int:
        slots, rows, spans = np.empty(count, np.int64), buffer.rows[:count], buffer.spans[:count]
        at = np.empty(count, np.int64)
        # contiguous, as the slice of a single tuple is: kernels are compiled for one kind
        partition = np.ascontiguousarray(spans[:, 0])
        n = kernels.append(
            buffer.codes,
            rows,
            partition,
            buffer.sizes[:count],
            self.width,
            self.store.shift,
            self.head,
            self.waiting,
            self.key,
            self.block,
            self.q,
            self.page,
            self.end,
            self.store.link,
            self.pages,
            slots,
            at,
        )
        if n:
            kernels.note(spans[:n], time.perf_counter(), self.reach, self.arrived, self.first)
            self.store.put(buffer.incoming, rows[:n], slots[:n], at[:n])
        return n

    # Probing

    def next(self, position: int) -> int:
        """Return the first partition, from `position` on, for which tuples wait; -1 if there is
        none."""
        return kernels.next_waiting(self.waiting, position)

    @property
    def oldest(self) -> int:
        """The partition for which the oldest tuple waits. At least one tuple must wait."""
        return int(np.argmin(np.where(self.waiting > 0, self.first, np.inf)))

    @property
    def age(self) -> float:
        """Seconds that the oldest tuple has waited. At least one tuple must wait."""
        return float(time.perf_counter() - self.first[self.oldest])

    def upcoming(self, partition: int, number: int) -> list[int]:
        """Return this partition and the next ones with waiting tuples, `number` partitions in
        total. After the last partition of R the search continues at the first."""
        out = [partition]
        while len(out) < number:
            behind = self.next(out[-1] + 1)
            out.append(behind if behind >= 0 else max(self.next(0), 0))
        return out

    def visits(self, partition: int) -> Iterator[Visit]:
        """Yield the tuples that wait for this partition, VISITED at a time. The tuples stay in H_S
        until `remove` is called."""
        block, at, left = int(self.head[partition]), 0, int(self.waiting[partition])
        while left:
            slots = np.empty(min(left, VISITED), np.int64)
            block, at = kernels.slots_from(block, at, self.width, self.block, slots)
            left -= len(slots)
            yield Visit(self, slots)

    def find(self, codes: np.ndarray, visit: Visit) -> Found:
        """Find the tuples of a visit with these key codes, int64[n]."""
        found, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        total = kernels.find(codes, visit.keys, visit.table, visit.number, visit.met, found, counts)
        return Found(found, counts, total)

    # Leaving

    def remove(self, p: int) -> Removed:
        """Remove the tuples of partition p. Return how long they waited; `visits` has yielded the
        tuples themselves."""
        now, n = time.perf_counter(), int(self.waiting[p])
        removed = Removed.none()._replace(
            seconds=float(n * now - self.arrived[p]),
            longest=float(now - self.first[p]) if n else 0.0,
            timed=n,
        )
        kernels.release(
            p,
            self.store.shift,
            self.head,
            self.waiting,
            self.block,
            self.q,
            self.page,
            self.end,
            self.store.link,
            self.pages,
        )
        self.reach[p] = self.arrived[p] = self.first[p] = 0
        self.snapped[p] = -1 if self.snapped[p] else 0
        return removed

    # State

    def tables(self) -> dict[str, pa.RecordBatchReader]:
        return {"waiting": self.newest(self.waiting)} if self.opened else {}

    def values(self) -> dict[str, Any]:
        sizes = (
            {
                "width": self.width,
                "blocks": self.blocks,
                "shift": self.store.shift,
                "pages": self.page_count,
            }
            if self.opened
            else {}
        )
        return {"strings": self.strings} | sizes

    def restore(self, waiting: pa.Table, values: dict[str, Any], spec: JoinSpec) -> None:
        self.divide(values["blocks"], values["pages"])
        for part in waiting.to_batches(max_chunksize=PROBE_ROWS):
            self.admit_saved(pa.RecordBatch.from_arrays(part.columns, schema=spec.stream), spec)

    # Ages

    def ages(self) -> Ages:
        somewhere = self.waiting > 0
        if not somewhere.any():
            return Ages()
        now = time.perf_counter()
        return Ages.of(
            float(now - self.first[somewhere].min()),
            float(self.live * now - self.arrived[somewhere].sum()),
            self.live,
        )

    def age_by(self, ages: Ages) -> None:
        """Set the arrival times of the waiting tuples so that they have these ages now. One tuple
        of the first partition with waiting tuples gets the oldest age."""
        somewhere = np.flatnonzero(self.waiting)
        if len(somewhere):
            came = time.perf_counter() - ages.others
            self.first[somewhere], self.arrived[somewhere] = came, self.waiting[somewhere] * came
            self.first[somewhere[0]] -= ages.oldest - ages.others
            self.arrived[somewhere[0]] -= ages.oldest - ages.others

    # Waiting tuples

    def slots(self, first: int, number: np.ndarray) -> np.ndarray:
        """Return the slots of the newest number[i] tuples of each partition first + i, int64[sum of
        number]."""
        blocks = self.width, self.head, self.block
        return filled(kernels.slots_of, int(number.sum()), np.int64, first, number, *blocks)

    def newest(self, number: np.ndarray) -> pa.RecordBatchReader:
        """Return a reader of the newest waiting tuples, for saving: number[i] tuples of each
        partition i."""
        ends = np.cumsum(number, dtype=np.int64)
        cuts = np.unique(
            [0, *np.searchsorted(ends, np.arange(SAVED_ROWS, ends[-1], SAVED_ROWS)), len(number)]
        )
        return self.saved(self.slots(a, number[a:b]) for a, b in itertools.pairwise(cuts))

    @property
    def not_snapped(self) -> np.ndarray:
        """The number of tuples of each partition that the last snapshot does not contain,
        int32[partitions]."""
        return self.waiting - np.maximum(self.snapped, 0)

    def snap(self) -> None:
        """Record that a snapshot holds the tuples that wait now."""
        self.snapped[:] = self.waiting

    def _shrink(self, blocks: int) -> None:
        """Move blocks so that all block numbers are below `blocks`."""
        above = max(int(self.q[HIGH]) - blocks, 0)
        source, target = np.empty(above, np.int32), np.empty(above, np.int32)
        n = kernels.shrink(blocks, self.head, self.block, self.q, source, target)
        rows = min(OUTPUT_ROWS, rows_in(self.layout.held, OUTPUT_BYTES))
        step = max(rows // self.width, 1)  # blocks
        for array in (self.key, self.store.tuples):
            whole = array.reshape(-1, self.width)
            for first in range(0, n, step):
                part = slice(first, min(first + step, n))
                whole[target[part]] = whole[source[part]]
            release(array, blocks * self.width)
        release(self.block, blocks)

    def _shrink_pages(self, pages: int) -> None:
        """Move pages so that all page numbers are below `pages`."""
        if pages < self.pages[HIGH]:
            moved, touched = np.empty(self.pages[HIGH], np.int32), np.empty(self.partitions, bool)
            kernels.shrink_pages(
                pages,
                self.store.shift,
                self.page,
                self.end,
                self.store.link,
                self.pages,
                self.store.heap,
                moved,
                touched,
            )
            for p in np.flatnonzero(touched).tolist():
                self.store.readdress(self.slots(p, self.waiting[p : p + 1]), moved)
        release(self.store.heap, pages << self.store.shift)
        release(self.store.link, pages)
