"""Tuples in numbered slots, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.joins import tuple_store_kernels as kernels
from semistream.joins.arena import mapped
from semistream.joins.stored_types import is_variable, offsets_and_data


class FixedLane:
    """A column of fixed-width values; booleans take a byte."""

    def __init__(self, kind: pa.DataType, slots: int):
        self.kind, self.boolean = kind, pa.types.is_boolean(kind)
        self.width = self.bytes_per_slot(kind)
        dtype, many = {1: (np.uint8, 1), 2: (np.uint16, 1), 4: (np.uint32, 1), 8: (np.uint64, 1),
                       16: (np.uint64, 2)}.get(self.width, (np.uint8, self.width))
        self.values = mapped(slots, dtype, many)

    @staticmethod
    def bytes_per_slot(kind: pa.DataType) -> int:
        return 1 if pa.types.is_boolean(kind) else kind.bit_width // 8

    def put(self, column: pa.Array, rows: np.ndarray, slots: np.ndarray | slice) -> None:
        if not len(rows):
            return
        if self.boolean:
            source = pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(np.uint8)
        else:
            many = self.values.shape[1:]
            size = self.values.dtype.itemsize * (many[0] if many else 1)
            source = np.frombuffer(column.buffers()[1], self.values.dtype,
                                   len(column) * size // self.values.dtype.itemsize,
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
        self.kind, self.starts = kind, mapped(slots, np.uint32)
        self.lengths = mapped(slots, np.uint32)

    @staticmethod
    def bytes_per_slot() -> int:
        return 8

    def put(self, column: pa.Array, rows: np.ndarray, slots: np.ndarray, heap: np.ndarray,
            at: int) -> int:
        offsets, data = offsets_and_data(column)
        return kernels.put(offsets, data, rows, self.starts, self.lengths, heap, slots, at)

    def get(self, slots: np.ndarray, validity: pa.Buffer | None, heap: np.ndarray) -> pa.Array:
        offsets = np.empty(len(slots) + 1, np.int32)
        out = np.empty(kernels.sizes(self.lengths, slots, offsets), np.uint8)
        kernels.get(self.starts, self.lengths, heap, slots, out)
        return pa.Array.from_buffers(self.kind, len(slots),
                                     [validity, pa.py_buffer(offsets), pa.py_buffer(out)])


class TupleStore:
    """Tuples in numbered slots, column by column; values of variable length in one heap."""

    def __init__(self, schema: pa.Schema, slots: int, heap_bytes: int):
        self.schema = schema
        self.nulls = mapped(slots, np.uint8,
                            self._null_bytes(schema)).reshape(slots, self._null_bytes(schema))
        self.lanes = [VariableLane(f.type, slots) if is_variable(f.type)
                      else FixedLane(f.type, slots) for f in schema]
        self.heap = mapped(heap_bytes if any(isinstance(x, VariableLane) for x in self.lanes)
                           else 0, np.uint8)

    @staticmethod
    def _null_bytes(schema: pa.Schema) -> int:
        return max(-(-len(schema) // 8), 1)

    @classmethod
    def slot_bytes(cls, schema: pa.Schema) -> int:
        """Bytes of one tuple, its share of the heap aside."""
        return cls._null_bytes(schema) + sum(VariableLane.bytes_per_slot() if is_variable(f.type)
                                             else FixedLane.bytes_per_slot(f.type) for f in schema)

    def put(self, batch: pa.RecordBatch, rows: np.ndarray, slots: np.ndarray | slice,
            at: int = 0) -> int:
        """Copy the batch's rows into slots, their variable-length values to heap[at:]. Returns the
        heap's new end. Into a slice it is faster."""
        each = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        self.nulls[slots] = 0
        for i, (column, lane) in enumerate(zip(batch.columns, self.lanes, strict=True)):
            if column.null_count:
                null = column.is_null().to_numpy(zero_copy_only=False)[rows]
                self.nulls[each[null], i // 8] |= np.uint8(1 << i % 8)
            if isinstance(lane, VariableLane):
                at = lane.put(column, rows, each, self.heap, at)
            else:
                lane.put(column, rows, slots)
        return at

    def get(self, slots: np.ndarray) -> list[pa.Array]:
        """The columns of the tuples in these slots."""
        out = []
        nulls = self.nulls.take(slots, axis=0)
        seen = np.bitwise_or.reduce(nulls,
                                    axis=0) if len(slots) else np.zeros(nulls.shape[1], np.uint8)
        for i, lane in enumerate(self.lanes):
            validity = None
            if seen[i // 8] & (1 << i % 8):
                validity = pa.py_buffer(
                    np.packbits(nulls[:, i // 8] & (1 << i % 8) == 0, bitorder="little"))
            out.append(lane.get(slots, validity, self.heap) if isinstance(lane, VariableLane)
                       else lane.get(slots, validity))
        return out

    def close_gaps(self, slots: Sequence[np.ndarray], at: int) -> int:
        """Move these slots' variable-length values, for each such column, down to heap[at:], in the
        order of their addresses. Returns the end."""
        lanes = self.variable
        starts = np.concatenate([x.starts[s] for x, s in zip(lanes, slots, strict=True)])
        lengths = np.concatenate([x.lengths[s] for x, s in zip(lanes, slots, strict=True)])
        order = np.argsort(starts, kind="stable")
        moved = np.empty_like(starts)
        at = kernels.close(starts[order], lengths[order], self.heap, at, moved)
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
            yield from (lane.starts,
                        lane.lengths) if isinstance(lane, VariableLane) else (lane.values,)

    @property
    def variable(self) -> list[VariableLane]:
        return [x for x in self.lanes if isinstance(x, VariableLane)]
