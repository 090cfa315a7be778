"""H_S of ELEVATORJOIN and of the partition-based join: waiting tuples grouped by the disk partition
that holds their key."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.arena import mapped, release
from semistream.joins.output import OUTPUT_BYTES, OUTPUT_ROWS, Pairs, Removed, portions
from semistream.joins.paged_store import PagedStore
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_table import by_partition_kernels as kernels
from semistream.joins.stream_table.by_partition_kernels import HIGH, LIVE, MOST, USED
from semistream.joins.stream_table.interface import NO_LIMIT, SAVED_ROWS, Ages, Found, StreamTable
from semistream.joins.tuple_store import rows_in

# tuples of a block; half a block of each partition is empty on average
WIDTHS = (32, 16, 8, 4, 2, 1)
SHIFTS = (12, 11, 10, 9, 8, 7, 6)  # a page of strings has 2**shift bytes; half a one is empty too
# that each partition can have at least, of the widest blocks and the largest pages that allow it
BLOCKS = 8
HALF_PAGES = 1 + 1 / (2 * BLOCKS)  # what strings take with the pages that are half empty
# head, tuples, saved ones, reach, arrivals; of strings, the first page and the end
PARTITION_BYTES = 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8
VISITED = 65_536  # tuples of a partition that are grouped at a time, which takes some 50 bytes each
SAMPLED = 1000  # coming tuples whose strings are looked at to divide the bytes anew


class Visit:
    """Tuples that wait for one partition, grouped by key.

    slots: int64[n]; keys: int64[n]; number: int32[n], the tuples of the key at its leader, else 0;
    met: bool[n], of leaders: found in R; matched: bool[n].
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
        """Its tuples, whose waiting `ByPartition.remove` tells."""
        return Removed(self.slots, self.matched, 0.0, 0.0, 0)

    def get(self, tuples: np.ndarray) -> list[pa.Array]:
        """All columns of the stream of these tuples of the visit, int64[n]."""
        return self._h_s.get(self.slots[tuples])

    def mark(self, tuples: np.ndarray) -> int:
        before = np.count_nonzero(self.matched)
        self.matched[tuples] = True
        return int(np.count_nonzero(self.matched) - before)

    def pairs(self, found: Found) -> Pairs:
        """(master rows, tuples of the visit) of the matches."""
        for first, last, total in portions(found.counts):
            rows, tuples = np.empty(total, np.int64), np.empty(total, np.int64)
            kernels.pairs(first, last, found.first, self.same, rows, tuples)
            yield rows, tuples


class ByPartition(StreamTable):
    """Waiting tuples in blocks, the blocks of a partition linked; a partition's tuples leave
    together. Their strings lie in pages, those of a partition linked too: what leaves, leaves no
    gaps.

    No hash table and no links between tuples: beside its payload a tuple takes 9 bytes, and its
    share of a block's 16. partitions: N of R.
    """

    store: PagedStore

    def __init__(self, layout: StreamLayout, partitions: int):
        super().__init__(layout)
        self.partitions, self.width = partitions, 1
        self._slot = 8 + PagedStore.slot_bytes(layout.held)
        self.head, self.waiting = np.full(partitions, -1, np.int32), np.zeros(partitions, np.int32)
        # of waiting, in the last snapshot; -1: there were some, and they left
        self.snapped = np.zeros(partitions, np.int32)
        # behind the last partition that may hold a waiting key
        self.reach = np.zeros(partitions, np.int32)
        # s: sum of arrivals, and the oldest one
        self.arrived, self.first = np.zeros(partitions), np.zeros(partitions)
        self.q = np.array([-1, 0, 0, 0, 0], np.int64)
        # of strings: the first page, and where the last string ends; as q of the pages
        self.page, self.end = np.full(partitions, -1, np.int32), np.zeros(partitions, np.int64)
        self.pages = np.array([-1, 0, 0, 0], np.int64)
        self.blocks = self.page_count = 0  # that it has memory for

    def open(self, strings: float, most: int, width: int = 0, shift: int = 0) -> None:
        """width: tuples of a block, shift: 2**shift bytes of a page; 0: as is best for so many
        bytes."""
        self.strings, room = strings, max(most - self._fixed, 0)
        tuples = room / (self._slot + strings)
        self.width = width or next((w for w in WIDTHS if tuples >= BLOCKS * w * self.partitions), 1)
        shift = shift or next((s for s in SHIFTS
                               if tuples * strings >= BLOCKS * self.partitions << s), SHIFTS[-1])
        blocks = max(room // self.block_bytes, 1)
        self.store = PagedStore(self.layout.held, blocks * self.width, room, shift)
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
        """Have so many blocks, and so many pages for strings. Returns the bytes that it has: more,
        while more waits."""
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
        return min(len(sizes), most)  # where each one goes decides, in `append`

    def admit(self, buffer: StreamBuffer, most: int = NO_LIMIT) -> int:
        count = super().admit(buffer, most)
        # pages are what is missing, for the blocks are not used up
        if not count and len(buffer) and self.q[USED] < self.q[MOST] and self._divide_anew(
                buffer.sizes[:SAMPLED]):
            count = super().admit(buffer, most)
        return count

    def _divide_anew(self, sizes: np.ndarray) -> bool:
        """Where strings are longer than assumed, divide the bytes anew between tuples and strings.
        False: nothing changed."""
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
        n = kernels.append(buffer.codes, rows, spans[:, 0], buffer.sizes[:count], self.width,
                           self.store.shift, self.head, self.waiting, self.key, self.block, self.q,
                           self.page, self.end, self.store.link, self.pages, slots, at)
        if n:
            kernels.note(spans[:n], time.perf_counter(), self.reach, self.arrived, self.first)
            self.store.put(buffer.incoming, rows[:n], slots[:n], at[:n])
        return n

    # Probing

    def get(self, tuples: np.ndarray) -> list[pa.Array]:
        return self.layout.columns(self.key[tuples], self.store.get(tuples))

    def next(self, position: int) -> int:
        """The first partition from `position` on for which tuples wait, or -1."""
        return kernels.next_waiting(self.waiting, position)

    @property
    def oldest(self) -> int:
        """The partition for which the oldest tuple waits; some tuple must wait."""
        return int(np.argmin(np.where(self.waiting > 0, self.first, np.inf)))

    @property
    def age(self) -> float:
        """Seconds that the oldest tuple has waited; some tuple must wait."""
        return float(time.perf_counter() - self.first[self.oldest])

    def upcoming(self, partition: int, number: int) -> list[int]:
        """This partition and those for which tuples wait behind it, so many in all, around the end
        of R."""
        out = [partition]
        while len(out) < number:
            behind = self.next(out[-1] + 1)
            out.append(behind if behind >= 0 else max(self.next(0), 0))
        return out

    def visits(self, partition: int) -> Iterator[Visit]:
        """The tuples that wait for this partition, what the elevator finishes at one stop, VISITED
        at a time. They stay until `remove`."""
        block, at, left = int(self.head[partition]), 0, int(self.waiting[partition])
        while left:
            slots = np.empty(min(left, VISITED), np.int64)
            block, at = kernels.slots_from(block, at, self.width, self.block, slots)
            left -= len(slots)
            yield Visit(self, slots)

    def find(self, codes: np.ndarray, visit: Visit) -> Found:
        """The tuples of a visit with these key codes, int64[n]."""
        found, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        total = kernels.find(codes, visit.keys, visit.table, visit.number, visit.met, found, counts)
        return Found(found, counts, total)

    # Leaving

    def remove(self, p: int) -> Removed:
        """Remove partition p's tuples. Tells how long they waited; which they are, its visits
        do."""
        now, n = time.perf_counter(), int(self.waiting[p])
        removed = Removed.none()._replace(seconds=float(n * now - self.arrived[p]),
                                          longest=float(now - self.first[p]) if n else 0.0,
                                          timed=n)
        kernels.release(p, self.store.shift, self.head, self.waiting, self.block, self.q, self.page,
                        self.end, self.store.link, self.pages)
        self.reach[p] = self.arrived[p] = self.first[p] = 0
        self.snapped[p] = -1 if self.snapped[p] else 0
        return removed

    # Ages

    def ages(self) -> Ages:
        somewhere = self.waiting > 0
        if not somewhere.any():
            return Ages()
        now = time.perf_counter()
        return Ages.of(float(now - self.first[somewhere].min()),
                       float(self.live * now - self.arrived[somewhere].sum()), self.live)

    def age_by(self, ages: Ages) -> None:
        """The oldest tuple is one of the first partition's."""
        somewhere = np.flatnonzero(self.waiting)
        if len(somewhere):
            came = time.perf_counter() - ages.others
            self.first[somewhere], self.arrived[somewhere] = came, self.waiting[somewhere] * came
            self.first[somewhere[0]] -= ages.oldest - ages.others
            self.arrived[somewhere[0]] -= ages.oldest - ages.others

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
        """Move the pages down so that none lies behind so many."""
        if pages < self.pages[HIGH]:
            moved, touched = np.empty(self.pages[HIGH], np.int32), np.empty(self.partitions, bool)
            kernels.shrink_pages(pages, self.store.shift, self.page, self.end, self.store.link,
                                 self.pages, self.store.heap, moved, touched)
            for p in np.flatnonzero(touched).tolist():
                self.store.readdress(self.slots(p, self.waiting[p:p + 1]), moved)
        release(self.store.heap, pages << self.store.shift)
        release(self.store.link, pages)
