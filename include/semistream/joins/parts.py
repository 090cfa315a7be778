"""The parts that the joins are composed of: arena, tuple store, H_S with Q, H_R, output.

Every array is a mapping of its own, of the most that it may ever hold: anonymous, or a `Region` that another process can have. A
page costs memory from its first use on, and is given back when its part shrinks. What the parts may use together is the arena's
budget M.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError
from semistream.joins import kernels

OUTPUT_ROWS = 131_072  # the most rows of one joined batch, save where one tuple alone has more matches
_MAP_NORESERVE, _PAGE = 0x4000, mmap.PAGESIZE  # Linux; the first is not in Python 3.11
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Arena:
    """The budget M of one operator, in bytes, and what each component has reserved of it."""

    def __init__(self, budget: int):
        self.budget, self.peak = budget, 0
        self.components: dict[str, int] = {}

    @property
    def used(self) -> int:
        return sum(self.components.values())

    @property
    def free(self) -> int:
        return self.budget - self.used

    def reserve(self, component: str, size: int) -> None:
        """Set what the component has. Raises ConfigError when M is exceeded."""
        self.components[component] = int(size)
        if self.used > self.budget:
            raise ConfigError("memory", f"must hold {self.components} ({self.used:,} bytes)", self.budget, "Give more memory.")
        self.peak = max(self.peak, self.used)


class Region(mmap.mmap):
    """Memory like an anonymous mapping's, with a file handle by which another process can have it."""

    wanted = False  # whether new arrays lie in regions: a process that gives its operators away sets it
    handle: int

    def __new__(cls, size: int, handle: int = -1) -> Region:
        if handle < 0:
            handle = os.memfd_create("semistream")
            os.truncate(handle, size)
        region = super().__new__(cls, handle, size, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        region.handle = handle
        return region

    def __del__(self) -> None:
        os.close(self.handle)

    @classmethod
    def of(cls, array: np.ndarray) -> Region | None:
        """The region that an array lies in."""
        base: Any = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        return base if isinstance(base, cls) else None


def mapped(count: int, dtype: np.dtype | type, width: int = 1) -> np.ndarray:
    """A zeroed array whose pages become resident when first written."""
    dtype = np.dtype(dtype)
    size = max(count, 1) * width * dtype.itemsize
    region = Region(size) if Region.wanted else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    array = np.frombuffer(region, dtype, count * width)
    return array.reshape(count, width) if width > 1 else array


def release(array: np.ndarray, first: int) -> None:
    """Give back the pages behind array[first:]; what was there reads as zero."""
    start = -(-(array.ctypes.data + first * array.strides[0]) // _PAGE) * _PAGE
    end = array.ctypes.data + array.nbytes
    if end > start:
        advice = mmap.MADV_REMOVE if Region.of(array) else mmap.MADV_DONTNEED
        _libc.madvise(start, (end - start) // _PAGE * _PAGE, advice)


def is_variable(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary())


def stored_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type that a column is held in. Raises ConfigError for nested and null columns."""
    if pa.types.is_dictionary(kind):
        return stored_type(name, kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise ConfigError("columns", "must be flat and typed", f"{name}: {kind}",
                          "Leave the column out, or turn it into a string.")
    return kind


def stored_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, stored_type(f.name, f.type)) for f in schema])


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The schema's columns of the batch, in its types."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for f in schema:
        column = batch.column(f.name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns.append(column if column.type == f.type else pc.cast(column, f.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class FixedLane:
    """A column of fixed-width values; booleans take a byte."""

    def __init__(self, kind: pa.DataType, slots: int):
        self.kind, self.boolean = kind, pa.types.is_boolean(kind)
        self.width = self.bytes_per_slot(kind)
        dtype, many = {1: (np.uint8, 1), 2: (np.uint16, 1), 4: (np.uint32, 1), 8: (np.uint64, 1), 16: (np.uint64, 2)}.get(
            self.width, (np.uint8, self.width))
        self.values = mapped(slots, dtype, many)

    @staticmethod
    def bytes_per_slot(kind: pa.DataType) -> int:
        return 1 if pa.types.is_boolean(kind) else kind.bit_width // 8

    def put(self, column: pa.Array, rows: np.ndarray, slots: np.ndarray) -> None:
        if not len(rows):
            return
        if self.boolean:
            source = pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(np.uint8)
        else:
            many = self.values.shape[1:]
            size = self.values.dtype.itemsize * (many[0] if many else 1)
            source = np.frombuffer(column.buffers()[1], self.values.dtype, len(column) * size // self.values.dtype.itemsize,
                                   column.offset * size).reshape(-1, *many)
        self.values[slots] = source[rows]

    def get(self, slots: np.ndarray, validity: pa.Buffer | None) -> pa.Array:
        values = self.values.take(slots, axis=0)
        if self.boolean:
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(self.kind, len(slots), [validity, pa.py_buffer(values)])


class VariableLane:
    """A column of strings or bytes: their addresses in the store's heap."""

    def __init__(self, kind: pa.DataType, slots: int):
        self.kind, self.starts, self.lengths = kind, mapped(slots, np.uint32), mapped(slots, np.uint32)

    @staticmethod
    def bytes_per_slot() -> int:
        return 8

    def put(self, column: pa.Array, rows: np.ndarray, slots: np.ndarray, heap: np.ndarray, at: int) -> int:
        offsets, data = offsets_and_data(column)
        return kernels.var_put(offsets, data, rows, self.starts, self.lengths, heap, slots, at)

    def get(self, slots: np.ndarray, validity: pa.Buffer | None, heap: np.ndarray) -> pa.Array:
        offsets = np.empty(len(slots) + 1, np.int32)
        out = np.empty(kernels.var_sizes(self.lengths, slots, offsets), np.uint8)
        kernels.var_get(self.starts, self.lengths, heap, slots, out)
        return pa.Array.from_buffers(self.kind, len(slots), [validity, pa.py_buffer(offsets), pa.py_buffer(out)])


def offsets_and_data(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    if not len(column):
        return np.zeros(1, np.int32), np.zeros(1, np.uint8)
    _, offsets, data = column.buffers()
    return (np.frombuffer(offsets, np.int32)[column.offset:column.offset + len(column) + 1],
            np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8))


def variable_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """Bytes of each row's variable-length values, int64[n]."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if is_variable(column.type):
            total += np.diff(offsets_and_data(column)[0])
    return total


class TupleStore:
    """Tuples in numbered slots, column by column; values of variable length in one heap."""

    def __init__(self, schema: pa.Schema, slots: int, heap_bytes: int):
        self.schema = schema
        self.nulls = mapped(slots, np.uint8, self._null_bytes(schema)).reshape(slots, self._null_bytes(schema))
        self.lanes = [VariableLane(f.type, slots) if is_variable(f.type) else FixedLane(f.type, slots) for f in schema]
        self.heap = mapped(heap_bytes if any(isinstance(x, VariableLane) for x in self.lanes) else 0, np.uint8)

    @staticmethod
    def _null_bytes(schema: pa.Schema) -> int:
        return max(-(-len(schema) // 8), 1)

    @classmethod
    def slot_bytes(cls, schema: pa.Schema) -> int:
        """Bytes of one tuple, its share of the heap aside."""
        return cls._null_bytes(schema) + sum(
            VariableLane.bytes_per_slot() if is_variable(f.type) else FixedLane.bytes_per_slot(f.type) for f in schema)

    def put(self, batch: pa.RecordBatch, rows: np.ndarray, slots: np.ndarray, at: int = 0) -> int:
        """Copy the batch's rows into slots, their variable-length values to heap[at:]. Returns the heap's new end."""
        self.nulls[slots] = 0
        for i, (column, lane) in enumerate(zip(batch.columns, self.lanes, strict=True)):
            if column.null_count:
                null = column.is_null().to_numpy(zero_copy_only=False)[rows]
                self.nulls[slots[null], i // 8] |= np.uint8(1 << i % 8)
            if isinstance(lane, VariableLane):
                at = lane.put(column, rows, slots, self.heap, at)
            else:
                lane.put(column, rows, slots)
        return at

    def get(self, slots: np.ndarray) -> list[pa.Array]:
        """The columns of the tuples in these slots."""
        out = []
        nulls = self.nulls.take(slots, axis=0)
        seen = np.bitwise_or.reduce(nulls, axis=0) if len(slots) else np.zeros(nulls.shape[1], np.uint8)
        for i, lane in enumerate(self.lanes):
            validity = None
            if seen[i // 8] & (1 << i % 8):
                validity = pa.py_buffer(np.packbits(nulls[:, i // 8] & (1 << i % 8) == 0, bitorder="little"))
            out.append(lane.get(slots, validity, self.heap) if isinstance(lane, VariableLane) else lane.get(slots, validity))
        return out

    def close_gaps(self, slots: Sequence[np.ndarray], at: int) -> int:
        """Move these slots' variable-length values, for each such column, down to heap[at:], in the order of their addresses.
        Returns the end."""
        lanes = self.variable
        starts = np.concatenate([x.starts[s] for x, s in zip(lanes, slots, strict=True)])
        lengths = np.concatenate([x.lengths[s] for x, s in zip(lanes, slots, strict=True)])
        order = np.argsort(starts, kind="stable")
        moved = np.empty_like(starts)
        at = kernels.var_close(starts[order], lengths[order], self.heap, at, moved)
        starts[order] = moved
        first = 0
        for x, s in zip(lanes, slots, strict=True):
            x.starts[s] = starts[first:first + len(s)]
            first += len(s)
        return at

    def arrays(self) -> Iterator[np.ndarray]:
        """Every per-slot array."""
        yield self.nulls
        for lane in self.lanes:
            yield from (lane.starts, lane.lengths) if isinstance(lane, VariableLane) else (lane.values,)

    @property
    def variable(self) -> list[VariableLane]:
        return [x for x in self.lanes if isinstance(x, VariableLane)]


class WaitingRoom:
    """H_S and Q: the stream tuples that wait, findable by key, leaving chunk by chunk in the order of their arrival.

    A ring of ``capacity`` slots and one of heap bytes; `resize` moves it to another size. Q holds per chunk its tuples, the heap
    address behind it, and its arrival time.
    """

    OVERHEAD = 8 + 4 + 4 + 1 + 4  # key, back, same, flags, head: bytes of a tuple beside its payload

    def __init__(self, schema: pa.Schema, most: int, most_heap: int):
        self.store = TupleStore(schema, most, most_heap)
        self.key, self.flags = mapped(most, np.int64), mapped(most, np.uint8)
        self.back, self.same, self.heads = mapped(most, np.int32), mapped(most, np.int32), mapped(most, np.int32)
        self.most, self.most_heap = most, most_heap
        self.capacity = self.heap_capacity = self.oldest = self.live = self.heap_at = self.heap_live = 0
        self.head = self.heads[:0]
        self.queue: deque[Chunk] = deque()

    @classmethod
    def tuple_bytes(cls, schema: pa.Schema, variable: float) -> float:
        """Bytes of one waiting tuple with `variable` bytes of strings."""
        return cls.OVERHEAD + TupleStore.slot_bytes(schema) + variable

    def slots(self, first: int, count: int) -> np.ndarray:
        """The slots of tuples first.. in the order of arrival."""
        return (self.oldest + first + np.arange(count, dtype=np.int64)) % max(self.capacity, 1)

    def fits(self, sizes: np.ndarray, most: int) -> int:
        """How many of the coming tuples, with these heap bytes each, can be taken in now."""
        count = min(len(sizes), most, self.capacity - self.live)
        if count <= 0 or not self.store.variable:
            return max(count, 0)
        total = np.cumsum(sizes[:count])
        return int(np.searchsorted(total, self._heap_room(), side="right"))

    def _heap_room(self) -> int:
        """The most bytes that one block can have: behind the last one, or from the start of the heap on."""
        if not self.heap_live:
            return self.heap_capacity
        first = self.queue[0].heap_start
        return max(self.heap_capacity - self.heap_at, first) if self.heap_at > first else first - self.heap_at

    def append(self, batch: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, heap_bytes: int, now: float) -> None:
        """Add tuples, with heap_bytes of strings together, to the open chunk, the newest of Q (`close` ends it)."""
        if not self.queue or self.queue[-1].closed:
            self.queue.append(Chunk(self.heap_at, now))
        if not self.heap_live:
            self.heap_at = 0
            for chunk in self.queue:
                chunk.heap_start = 0
        chunk = self.queue[-1]
        if heap_bytes > self.heap_capacity - self.heap_at:
            chunk.heap_bytes += self.heap_capacity - self.heap_at
            self.heap_live += self.heap_capacity - self.heap_at
            self.heap_at = 0
        slots = self.slots(self.live, len(rows))
        self.heap_at = self.store.put(batch, rows, slots, self.heap_at)
        kernels.hs_append(codes, rows, self.head, self.key, self.back, self.same, self.flags, self.oldest, self.live,
                          self.capacity)
        self.live += len(rows)
        self.heap_live += heap_bytes
        chunk.heap_bytes += heap_bytes
        chunk.count += len(rows)

    def close(self, now: float) -> None:
        """End the open chunk, empty if nothing came."""
        if not self.queue or self.queue[-1].closed:
            self.queue.append(Chunk(self.heap_at, now))
        self.queue[-1].closed = True

    @property
    def open_count(self) -> int:
        return self.queue[-1].count if self.queue and not self.queue[-1].closed else 0

    def find(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """(newest matching slot or -1, matches) per code, and all matches."""
        found, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        total = kernels.hs_find(codes, self.head, self.key, self.back, self.same, self.oldest, self.live, self.capacity,
                                found, counts)
        return found, counts, total

    def pairs(self, found: np.ndarray, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(master rows, slots) of the matches, in portions."""
        for first, last, total in portions(counts):
            rows, slots = np.empty(total, np.int64), np.empty(total, np.int64)
            kernels.hs_pairs(first, last, found, self.same, self.oldest, self.capacity, rows, slots)
            yield rows, slots

    def expire(self) -> tuple[Chunk, np.ndarray, np.ndarray]:
        """Remove the oldest chunk: (chunk, slots of its tuples, which of them had a match). Read the slots before appending."""
        chunk = self.queue.popleft()
        slots = self.slots(0, chunk.count)
        matched = self.flags[slots] & kernels.MATCHED != 0
        if self.capacity:
            self.oldest = (self.oldest + chunk.count) % self.capacity
        self.live -= chunk.count
        self.heap_live -= chunk.heap_bytes
        return chunk, slots, matched

    def resize(self, capacity: int, heap_capacity: int) -> bool:
        """Move the ring to another size. False, and nothing done, while too many tuples wait or their strings lie too high."""
        capacity, heap_capacity = min(capacity, self.most), min(heap_capacity, self.most_heap)
        if capacity == self.capacity and heap_capacity == self.heap_capacity:
            return True
        shift = self.queue[0].heap_start if self.heap_live else 0
        heap_end = (self.heap_at - shift - 1) % self.heap_capacity + 1 if self.heap_live else 0
        if capacity < self.live or heap_capacity < heap_end:
            return False
        self._to_front(shift)
        self.heap_at = heap_end
        for array in (self.key, self.flags, self.back, self.same, self.heads, *self.store.arrays()):
            if capacity < self.capacity:
                release(array, capacity)
        if heap_capacity < self.heap_capacity:
            release(self.store.heap, heap_capacity)
        self.capacity, self.heap_capacity, self.head = capacity, heap_capacity, self.heads[:capacity]
        kernels.hs_rebuild(self.head, self.key, self.back, self.same, self.flags, self.live, max(capacity, 1))
        return True

    def _to_front(self, heap_shift: int) -> None:
        """Rotate the ring so that the oldest tuple is in slot 0 and its strings start the heap."""
        if self.oldest and self.live:
            for array in (self.key, self.flags, *self.store.arrays()):
                kernels.rotate(array[:self.capacity].reshape(self.capacity, -1), self.oldest)
        self.oldest = 0
        if heap_shift:
            kernels.rotate(self.store.heap[:self.heap_capacity].reshape(-1, 1), heap_shift)
            for lane in self.store.variable:
                kernels.var_shift(lane.starts, self.live, heap_shift, self.heap_capacity)
            for chunk in self.queue:
                chunk.heap_start = (chunk.heap_start - heap_shift) % self.heap_capacity


class Chunk:
    """A node of Q."""

    __slots__ = ("arrived", "closed", "count", "heap_bytes", "heap_start")

    def __init__(self, heap_start: int, arrived: float):
        self.heap_start, self.arrived, self.count, self.heap_bytes, self.closed = heap_start, arrived, 0, 0, False


class Cache:
    """H_R: all master tuples of the cached join values, or the knowledge that a value has none.

    Values are added in two steps, `load` (the papers' switching buffer: payload is in, nothing is findable) and `publish`.
    """

    ENTRY = 8 + 4 + 4 + 4 + 6  # key, first, count, frequency, 1.5 places in the table: bytes of a join value
    LINK = 4  # bytes of a tuple beside its payload

    def __init__(self, schema: pa.Schema, tuples: int, entries: int, heap_bytes: int):
        self.store = TupleStore(schema, tuples, heap_bytes)
        self.slot = self.LINK + TupleStore.slot_bytes(schema)  # bytes of a tuple, its strings aside
        self.tnext = mapped(tuples, np.int32)
        self.ekey, self.efreq = mapped(entries, np.int64), mapped(entries, np.uint32)
        self.efirst, self.ecount = mapped(entries, np.int32), mapped(entries, np.int32)
        self._table = mapped(entries + entries // 2 + 2, np.int32)
        self.most_tuples = tuples
        self.entries = self.tuples = self.loaded = self.heap_at = 0
        self._owners: list[np.ndarray] = []
        self._index()

    @classmethod
    def tuple_bytes(cls, schema: pa.Schema, variable: float) -> float:
        return cls.LINK + TupleStore.slot_bytes(schema) + variable

    @property
    def used(self) -> int:
        """Bytes of what is cached or loaded."""
        return self.entries * self.ENTRY + (self.tuples + self.loaded) * self.slot + self.heap_at

    def _index(self) -> None:
        self.table = self._table[:self.entries + self.entries // 2 + 2]
        kernels.table_build(self.table, self.ekey[:self.entries])

    def probe(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """The cache phase: (entry or -1, its tuples) per code, and the number of hits. Counts the frequency of each entry."""
        entries, counts = np.empty(len(codes), np.int32), np.empty(len(codes), np.int32)
        if not self.entries:
            entries.fill(-1)
            counts.fill(0)
            return entries, counts, 0
        hits, _ = kernels.hr_probe(codes, self.table, self.ekey, self.efreq, self.ecount, entries, counts)
        return entries, counts, hits

    def pairs(self, entries: np.ndarray, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(stream rows, slots of H_R) of the hits, in portions."""
        for first, last, total in portions(counts):
            rows, slots = np.empty(total, np.int64), np.empty(total, np.int64)
            kernels.hr_pairs(first, last, entries, self.efirst, self.tnext, rows, slots)
            yield rows, slots

    def load(self, batch: pa.RecordBatch, rows: np.ndarray, owners: np.ndarray, budget: int) -> bool:
        """Take in master tuples; owners[i] numbers the join value, among those to be published.

        False, and nothing done, when H_R would take more than `budget` bytes.
        """
        first = self.tuples + self.loaded
        strings = int(variable_bytes(batch)[rows].sum())
        size = len(rows) * self.slot + strings
        if self.used + size > budget or first + len(rows) > self.most_tuples:
            return False
        self.heap_at = self.store.put(batch, rows, first + np.arange(len(rows)), self.heap_at)
        self._owners.append(owners.astype(np.int32))
        self.loaded += len(rows)
        return True

    def publish(self, keys: np.ndarray, frequencies: np.ndarray | None = None) -> None:
        """Make the loaded tuples findable under these join values."""
        first, n = self.entries, len(keys)
        self.ekey[first:first + n] = keys
        self.efreq[first:first + n] = 0 if frequencies is None else frequencies
        owners = np.concatenate(self._owners) if self._owners else np.zeros(0, np.int32)
        kernels.hr_link(first, n, owners + np.int32(first), self.tuples, self.efirst, self.ecount, self.tnext)
        self.entries, self.tuples = first + n, self.tuples + self.loaded
        self.forget_loaded()
        self._index()

    def forget_loaded(self) -> None:
        self.loaded, self._owners = 0, []

    def keep(self, which: np.ndarray) -> None:
        """Evict the entries that `which` (bool per entry) does not keep."""
        moved = np.empty(self.tuples, np.int64)
        self.entries, left = kernels.hr_compact(which, self.ekey, self.efirst, self.ecount, self.efreq, self.tnext, moved)
        moved = moved[:left]
        for array in self.store.arrays():
            for first in range(0, left, OUTPUT_ROWS):  # in place: a tuple never moves up
                last = min(first + OUTPUT_ROWS, left)
                array[first:last] = array[moved[first:last]]
        self._slide(left)
        self.tuples = left
        for array in (self.tnext, *self.store.arrays()):
            release(array, left)
        release(self.store.heap, self.heap_at)
        self._index()

    def _slide(self, left: int) -> None:
        """Close the gaps of the heap: values move down in the order of their addresses."""
        at, lanes = 0, self.store.variable
        if not lanes or not left:
            self.heap_at = 0 if lanes else self.heap_at
            return
        self.heap_at = self.store.close_gaps([np.arange(left)] * len(lanes), at)


def portions(counts: np.ndarray, most: int = OUTPUT_ROWS) -> Iterator[tuple[int, int, int]]:
    """(first, last, sum) cuts of counts with sums of at most `most`, or of one element."""
    ends = np.cumsum(counts, dtype=np.int64)
    first, done = 0, 0
    while first < len(counts) and done < ends[-1]:
        last = max(int(np.searchsorted(ends, done + most, side="right")), first + 1)
        total = int(ends[last - 1]) - done
        if total:
            yield first, last, total
        first, done = last, int(ends[last - 1])
