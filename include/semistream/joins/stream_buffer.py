"""The papers' stream buffer: tuples that have arrived and are not yet in H_S. Also the layout in
which H_S holds a tuple."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.key_filter import KeyFilter
from semistream.joins.spec import JoinSpec
from semistream.joins.stored_types import has_strings, variable_bytes
from semistream.joins.tuple_store import Incoming
from semistream.master.relation import MasterRelation


class StreamLayout:
    """The columns of a stream tuple that H_S holds. An integer key that equals its code is not
    stored a second time.

    schema: the stream's schema; key: index of the column that is not stored, or None.
    """

    def __init__(self, schema: pa.Schema, key: int | None = None):
        self.schema, self.key = schema, key
        self.held = pa.schema([f for i, f in enumerate(schema) if i != key])
        self.has_strings = has_strings(self.held)

    @classmethod
    def of(cls, spec: JoinSpec) -> StreamLayout:
        index = spec.stream.get_field_index(spec.keys.stream[0])
        own_code = spec.keys.exact and pa.types.is_integer(spec.stream.field(index).type)
        return cls(spec.stream, index if own_code else None)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of stream tuples that H_S holds. batch: tuples with all columns."""
        if self.key is None:
            return batch
        columns = [c for i, c in enumerate(batch.columns) if i != self.key]
        if not columns:  # a record batch without columns has no length
            return pa.RecordBatch.from_struct_array(
                pa.nulls(batch.num_rows, pa.struct([])).fill_null({})
            )
        return pa.RecordBatch.from_arrays(columns, schema=self.held)

    def columns(self, codes: np.ndarray, held: list[pa.Array]) -> list[pa.Array]:
        """Return all columns of stream tuples, from their key codes, int64[n], and the columns that
        H_S holds."""
        if self.key is None:
            return held
        kind = self.schema.field(self.key).type
        key = pa.array(codes.view(np.uint64) if kind == pa.uint64() else codes).cast(kind)
        return [*held[: self.key], key, *held[self.key :]]

    def strings(self, sample: pa.RecordBatch) -> float:
        """Return the expected bytes of strings in a stream tuple, estimated from a sample; 0 if
        there are no string columns."""
        if not self.has_strings or not sample.num_rows:
            return 0.0
        return float(variable_bytes(self.batch(sample)).mean()) + 1


def pieces(
    batch: pa.RecordBatch, codes: np.ndarray, rows: int
) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Split a batch into pieces of at most `rows` rows, and yield (tuples, key codes int64[n]) for
    each."""
    for first in range(0, len(codes), rows):
        yield batch.slice(first, rows), codes[first : first + rows]


class StreamBuffer:
    """Stream tuples that have arrived, and will enter H_S.

    held: the columns of a batch that H_S holds; incoming: the same columns, prepared for its store;
    codes: int64[batch], the key codes of the batch; rows: int64[n], the rows that are still to
    enter; sizes: int64[n], the bytes of each row's strings; spans: int32[n, 2], the partitions of R
    that may have each row's key, as [first, last), set by ``look_up``; arrived: the time of
    arrival, on time.perf_counter.
    """

    def __init__(
        self,
        layout: StreamLayout,
        batch: pa.RecordBatch,
        codes: np.ndarray,
        rows: np.ndarray | None = None,
        arrived: float | None = None,
    ):
        self.layout, self.held, self.codes = layout, layout.batch(batch), codes
        self.incoming = Incoming(self.held)
        self.rows = np.arange(len(codes)) if rows is None else rows
        self.sizes = (
            variable_bytes(self.held)[self.rows]
            if layout.has_strings
            else np.zeros(len(self.rows), np.int64)
        )
        self.spans = np.empty((len(self.rows), 0), np.int32)
        self.arrived = time.perf_counter() if arrived is None else arrived

    def __len__(self) -> int:
        return len(self.rows)

    def look_up(self, master: MasterRelation, spans: np.ndarray | None = None) -> np.ndarray:
        """Find the span of each tuple in R's index, and remove the tuples whose keys have no span.
        Return the removed rows, int64[m]. spans: the spans, int32[n, 2], if they are known."""
        self.spans = master.partitions_of(self.codes[self.rows]) if spans is None else spans
        somewhere = self.spans[:, 0] < self.spans[:, 1]
        absent = self.rows[~somewhere]
        if len(absent):
            self.keep(somewhere)
        return absent

    def reject(self, keys: KeyFilter) -> np.ndarray:
        """Remove the tuples whose keys the filter rejects. The caller must have called ``look_up``
        before. Return the removed rows, int64[m]."""
        rejected = keys.rejects(self.codes[self.rows], self.spans)
        rows = self.rows[rejected]
        if len(rows):
            self.keep(~rejected)
        return rows

    def get(self, rows: np.ndarray) -> list[pa.Array]:
        """Return all stream columns of these rows of the batch."""
        return self.layout.columns(self.codes[rows], self.held.take(pa.array(rows)).columns)

    def keep(self, which: np.ndarray | slice) -> None:
        """Keep only the selected tuples. which: a mask, bool[n], or a slice."""
        self.rows, self.sizes, self.spans = self.rows[which], self.sizes[which], self.spans[which]

    def drop(self, count: int) -> None:
        """Remove the first `count` tuples."""
        self.keep(slice(count, None))
