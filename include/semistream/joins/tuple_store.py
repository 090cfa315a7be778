"""Tuples in numbered slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.compiled import filled, read_only
from semistream.errors import ConfigError
from semistream.joins import tuple_store_kernels as kernels
from semistream.joins.arena import mapped
from semistream.joins.stored_types import is_variable, offsets_and_data

ADDRESS = 4  # bytes of an address in the heap, and of a size
MOST_HEAP = 1 << 8 * ADDRESS  # bytes that have an address
PARTS = 8  # parts of the heap, whose gaps are closed one after the other
LINE = 64  # bytes, at a multiple of which a column's values begin


class Column:
    """The position of a column in the tuples. Values of fixed width lie in the tuple (a boolean
    takes a byte). For values of variable width, the tuple holds address and size, and the values
    lie in the heap."""

    def __init__(self, kind: pa.DataType, rows: np.ndarray, first: int):
        self.kind, self.rows, self.first, self.width = kind, rows, first, self.bytes_per_slot(kind)
        self.boolean, self.variable = pa.types.is_boolean(kind), is_variable(kind)

    @staticmethod
    def bytes_per_slot(kind: pa.DataType) -> int:
        if is_variable(kind):
            return 2 * ADDRESS
        return 1 if pa.types.is_boolean(kind) else kind.bit_width // 8

    @property
    def starts(self) -> np.ndarray:
        """The heap addresses of the column's values, uint32[slots], writable."""
        return self._view(self.first)

    @property
    def lengths(self) -> np.ndarray:
        """The sizes of the column's values, uint32[slots], writable."""
        return self._view(self.first + ADDRESS)

    def _view(self, first: int) -> np.ndarray:
        return self.rows[:, first : first + ADDRESS].view(np.uint32)[:, 0]

    def put_from(self, column: pa.Array) -> tuple[np.ndarray, ...]:
        """Return the arrays that are copied for an Arrow column: its ``values``, or its offsets and
        data."""
        return offsets_and_data(column) if self.variable else (self.values(column),)

    def values(self, column: pa.Array) -> np.ndarray:
        """Return the bytes of an Arrow column of fixed width, uint8[len(column) * width]."""
        if self.boolean:
            out = pc.fill_null(column, False).to_numpy(zero_copy_only=False).view(np.uint8)
        else:
            out = np.frombuffer(
                column.buffers()[1], np.uint8, len(column) * self.width, column.offset * self.width
            )
        return read_only(out)


def rows_in(schema: pa.Schema, size: int, strings: float = 0.0) -> int:
    """Return the number of tuples, at least 1, that fit into `size` bytes if each has `strings`
    bytes of strings."""
    return max(int(size / (TupleStore.slot_bytes(schema) + strings)), 1)


class Incoming:
    """A record batch whose rows are put into a store, a few at a time. Its columns are prepared
    only once."""

    def __init__(self, batch: pa.RecordBatch):
        self._batch = batch
        self._columns = list[tuple[tuple[np.ndarray, ...], np.ndarray | None]]()

    def columns(
        self, of: Sequence[Column]
    ) -> list[tuple[tuple[np.ndarray, ...], np.ndarray | None]]:
        """Return two things for each column: the arrays to copy, and a mask, bool[rows], of its
        nulls. The mask is None if there are no nulls."""
        if not self._columns:
            self._columns = [
                (
                    column.put_from(values),
                    values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None,
                )
                for values, column in zip(self._batch.columns, of, strict=True)
            ]
        return self._columns


class TupleStore:
    """Tuples in numbered slots. Each tuple is one row of bytes, read from memory at once; values of
    variable length lie in one heap. Raises ConfigError when the heap is larger than MOST_HEAP."""

    def __init__(self, schema: pa.Schema, slots: int, heap_bytes: int):
        self.schema, self.width = schema, self.slot_bytes(schema)
        self.rows = mapped(slots, np.uint8, self.width).reshape(-1, self.width)
        ends = np.cumsum([0, *(Column.bytes_per_slot(f.type) for f in schema)])
        self.columns = [
            Column(f.type, self.rows, int(first))
            for f, first in zip(schema, ends[:-1], strict=True)
        ]
        # behind the columns: a bit for each column, set where it is null; and the columns that have
        # ever had a null
        self.nulls, self._null = int(ends[-1]), set[int]()
        if heap_bytes > MOST_HEAP and self.variable:
            raise ConfigError(
                "memory",
                f"must be {MOST_HEAP:,} bytes at most for each partition, "
                "as tuples have strings, whose addresses have 32 bits",
                heap_bytes,
                "Give less memory, or more partitions.",
            )
        self.heap = mapped(heap_bytes if self.variable else 0, np.uint8)

    @classmethod
    def slot_bytes(cls, schema: pa.Schema) -> int:
        """Return the bytes of one tuple without its part of the heap."""
        return max(-(-len(schema) // 8), 1) + sum(Column.bytes_per_slot(f.type) for f in schema)

    def put(
        self, batch: pa.RecordBatch | Incoming, rows: np.ndarray, slots: np.ndarray, at: Any = 0
    ) -> Any:
        """Copy rows of the batch into slots, both int64[n], and their variable-length values to
        heap[at:]. Return the heap's new end."""
        if not len(rows):
            return at
        if self._null:
            self.rows[slots, self.nulls :] = 0
        incoming = batch if isinstance(batch, Incoming) else Incoming(batch)
        flat = self.rows.ravel()
        for i, ((values, null), column) in enumerate(
            zip(incoming.columns(self.columns), self.columns, strict=True)
        ):
            if null is not None:
                self._null.add(i)
                self.rows[slots[null[rows]], self.nulls + i // 8] |= np.uint8(1 << i % 8)
            if column.variable:
                at = self._put(column, values, rows, slots, at)
            else:
                kernels.scatter(
                    values[0], column.width, rows, flat, self.width, column.first, slots
                )
        return at

    def get(self, slots: np.ndarray, which: Sequence[int] | None = None) -> list[pa.Array]:
        """Return columns of the tuples in these slots, int64[n]: all columns, or the columns with
        the numbers in `which`."""
        numbers, n = range(len(self.columns)) if which is None else which, len(slots)
        null = [i for i in numbers if i in self._null]
        wanted, end = [], 0
        for first, width in [
            *((self.columns[i].first, self.columns[i].width) for i in numbers),
            *((self.nulls + i // 8, 1) for i in null),
        ]:
            wanted.append((first, width, end))
            end += -(-n * width // LINE) * LINE
        # from Arrow's allocator, which reuses pages that were freed a moment ago
        out = pa.allocate_buffer(end)
        values = np.frombuffer(out, np.uint8)
        kernels.gather(
            self.rows.ravel(), self.width, slots, np.array(wanted, np.int64).reshape(-1, 3), values
        )
        parts = [values[at : at + n * width] for _, width, at in wanted]
        bits = {
            i: part & np.uint8(1 << i % 8)
            for i, part in zip(null, parts[len(numbers) :], strict=True)
        }
        return [
            self._array(self.columns[i], n, part, bits.get(i))
            for i, part in zip(numbers, parts, strict=False)
        ]

    def _array(
        self, column: Column, n: int, values: np.ndarray, null: np.ndarray | None
    ) -> pa.Array:
        """Return a column of n tuples as an Arrow array. values: uint8[n * width], the values'
        bytes; null: uint8[n], not 0 where a value is null."""
        validity, buffers = None, [values]
        if null is not None and null.any():
            validity = pa.py_buffer(np.packbits(null == 0, bitorder="little"))
        if column.variable:
            starts, lengths = values.view(np.uint32).reshape(-1, 2).T
            buffers = [
                np.empty(n + 1, np.int32),
                np.empty(int(lengths.sum(dtype=np.int64)), np.uint8),
            ]
            self._get(starts, lengths, *buffers)
        elif column.boolean:
            buffers = [np.packbits(values, bitorder="little")]
        return pa.Array.from_buffers(column.kind, n, [validity, *map(pa.py_buffer, buffers)])

    def _put(
        self,
        column: Column,
        values: tuple[np.ndarray, ...],
        rows: np.ndarray,
        slots: np.ndarray,
        at: Any,
    ) -> Any:
        return kernels.put(*values, rows, column.starts, column.lengths, self.heap, slots, at)

    def _get(
        self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, out: np.ndarray
    ) -> None:
        kernels.get(starts, lengths, self.heap, offsets, out)

    def close_gaps(self, slots: Sequence[np.ndarray], at: int) -> int:
        """Move the variable-length values of these slots down to heap[at:], in the order of their
        addresses, so that no gaps are left between them. Return the new end of the heap. slots:
        integers[n], an array for each column of variable length.

        The heap is processed in parts, one after the other, because this takes little memory.
        """
        columns = list(zip(self.variable, slots, strict=True))
        end = max(kernels.last(x.starts, s) for x, s in columns) + 1
        step = -(-end // PARTS)
        number = np.empty((len(columns), PARTS), np.int64)
        for (x, s), of in zip(columns, number, strict=True):
            kernels.count(x.starts, x.lengths, s, step, of)
        for low, counts in zip(range(0, end, step), number.T, strict=False):
            ends = np.cumsum(counts)
            slot, start, length = np.empty((3, ends[-1]), np.uint32)
            parts = [slice(b - n, b) for n, b in zip(counts, ends, strict=True)]
            for (x, s), part in zip(columns, parts, strict=True):
                kernels.within(
                    x.starts, x.lengths, s, low, low + step, slot[part], start[part], length[part]
                )
            order = filled(kernels.by_address, len(start), np.uint32, start, low, step)
            at = kernels.slide(start, length, self.heap, order, at)
            for (x, _), part in zip(columns, parts, strict=True):
                x.starts[slot[part]] = start[part]
        return at

    @property
    def tuples(self) -> np.ndarray:
        """The bytes of each slot as one element, void[slots], so that a whole tuple can be moved at
        once."""
        return self.rows.view(np.dtype((np.void, self.width)))[:, 0]

    @property
    def variable(self) -> list[Column]:
        return [x for x in self.columns if x.variable]
