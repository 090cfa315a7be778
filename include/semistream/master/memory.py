"""R held in memory: the simplest MasterRelation, for small master data and for examples."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.compiled import read_only
from semistream.keys import master_keys
from semistream.master.relation import MasterRelation


class MemoryRelation(MasterRelation):
    """An Arrow table as R, in the order of the table. A sorted array serves as its index.

    table: R; on: its join columns. Tuples with a null key are left out.
    """

    def __init__(self, name: str, table: pa.Table, on: Sequence[str], partition_tuples: int = 1024):
        self.name, self.version, self.schema = name, "memory", table.schema
        self.keys = master_keys(table.schema, list(on))
        batch = pa.RecordBatch.from_arrays(
            [c.combine_chunks() for c in table.columns], schema=table.schema
        )
        codes, valid = self.keys.master_codes(batch)
        self._batch, self._codes = batch.filter(pa.array(valid)), read_only(codes[valid])
        self.tuple_count = self._batch.num_rows
        self.tuple_bytes = (self._batch.nbytes + self._codes.nbytes) / max(self.tuple_count, 1)
        self._order = np.argsort(self._codes, kind="stable")
        self._distinct, self._firsts = np.unique(self._codes[self._order], return_index=True)
        self.unique = len(self._distinct) == self.tuple_count
        self.bytes_read = 0
        self._cut(partition_tuples)

    def _cut(self, tuples: int) -> None:
        """Cut R into partitions of this many tuples."""
        self.partition_tuples = max(1, tuples)
        self.partition_count = -(-self.tuple_count // self.partition_tuples)
        self.partition_bytes = (
            max(
                (
                    self._batch.slice(i * self.partition_tuples, self.partition_tuples).nbytes
                    for i in range(self.partition_count)
                ),
                default=0,
            )
            + 8 * self.partition_tuples
        )
        numbers = (self._order // self.partition_tuples).astype(np.int32)
        self._ranges = np.zeros((len(self._distinct), 2), np.int32)
        if self.tuple_count:
            self._ranges[:, 0] = np.minimum.reduceat(numbers, self._firsts)
            self._ranges[:, 1] = np.maximum.reduceat(numbers, self._firsts) + 1

    def with_partition(self, tuples: int) -> MemoryRelation:
        other = copy.copy(self)
        other._cut(tuples)
        return other

    def read_codes(self, partition: int) -> np.ndarray:
        codes = self._codes[
            partition * self.partition_tuples : (partition + 1) * self.partition_tuples
        ]
        self.bytes_read += codes.nbytes
        return codes

    def pages(self, partition: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        batch = self._batch.select(list(columns)).slice(
            partition * self.partition_tuples, self.partition_tuples
        )
        self.bytes_read += batch.nbytes
        return [batch]

    def partitions_of(self, codes: np.ndarray) -> np.ndarray:
        if not self.tuple_count:
            return np.zeros((len(codes), 2), np.int32)
        at = np.minimum(np.searchsorted(self._distinct, codes), len(self._distinct) - 1)
        return np.where((self._distinct[at] == codes)[:, None], self._ranges[at], np.int32(0))
