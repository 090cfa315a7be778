"""A table as one record batch, and a collector of record batches, which combines many small ones:
the overhead of each could exceed the bytes of its values."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# overhead in bytes of one column of a record batch: objects, and buffers that are allocated
# in multiples of 64. A batch of one row and 400 columns has 3 KB of values and takes 200 KB.
COLUMN_OVERHEAD = 800
LEAST_OVERHEAD = 2_000_000  # bytes of overhead from which batches are combined
SMALL_SHARE = 8  # batches are small if their values take less than this many times their overhead


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table's rows as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


class Gathered:
    """Record batches of one schema, collected until they are taken as a table.

    size: bytes that the batches have allocated. Small batches are combined when they are added.
    """

    def __init__(self, schema: pa.Schema):
        self.schema = schema
        self._batch_overhead = COLUMN_OVERHEAD * len(schema)
        self._held: list[pa.RecordBatch] = []
        self._values = 0  # bytes, without the overhead

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._values += batch.get_total_buffer_size()
        if self._overhead > max(self._values, LEAST_OVERHEAD):
            self._put_together()

    def take(self) -> pa.Table:
        """Return the rows in the order in which they were added, and forget them."""
        if len(self._held) > 1 and self._values < SMALL_SHARE * self._overhead:
            self._put_together()
        table = pa.Table.from_batches(self._held, self.schema)
        self._held, self._values = [], 0
        return table

    @property
    def size(self) -> int:
        return self._values + self._overhead

    @property
    def _overhead(self) -> int:
        return self._batch_overhead * len(self._held)

    def _put_together(self) -> None:
        self._held = [_concatenated(self._held)]
        self._values = self._held[0].get_total_buffer_size()


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows as one batch. Dictionaries are put one behind the other, and indices that
    columns share stay shared: PyArrow would look up each value, and refuses nulls."""
    columns, made = list[pa.Array](), dict[Any, pa.Array]()
    for i, field in enumerate(batches[0].schema):
        parts = [batch.column(i) for batch in batches]
        if not pa.types.is_dictionary(field.type):
            columns.append(pa.concat_arrays(parts))
            continue
        values, indices = [p.dictionary for p in parts], [p.indices for p in parts]
        key = tuple(
            (p.buffers()[1].address, p.offset, len(v)) for p, v in zip(indices, values, strict=True)
        )
        if key not in made:
            firsts = itertools.accumulate(map(len, values), initial=0)
            moved = [
                pc.add(p, pa.scalar(first, p.type))
                for p, first in zip(indices, firsts, strict=False)
            ]
            made[key] = pa.concat_arrays(moved)
        columns.append(
            pa.DictionaryArray.from_arrays(made[key], pa.concat_arrays(values), safe=False)
        )
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
