"""The checksum of an answer: the same for every correct join of the same tuples, in whatever order its rows come out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.joins.base import JoinOutput
from semistream.keys import canonical_type, codes

ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class Answer:
    """Rows, and the sum modulo 2**64 of a hash over all columns of each."""

    joined: int = 0
    unmatched: int = 0
    total: int = 0

    def add(self, step: JoinOutput) -> None:
        self.joined += step.joined.num_rows
        self.unmatched += step.unmatched.num_rows
        for batch in step:
            if batch.num_rows:
                self.total = (self.total + int(row_hashes(batch).sum(dtype=np.uint64))) % 2**64

    @property
    def checksum(self) -> str:
        return f"{self.total:016x}"


def row_hashes(batch: pa.RecordBatch) -> np.ndarray:
    """One hash a row over all its columns, uint64[n]; a null has one too."""
    h = np.full(batch.num_rows, batch.num_columns, np.uint64)
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if pa.types.is_floating(field.type):
            column, kind = pc.cast(column, pa.float64()).view(pa.int64()), pa.int64()
        else:
            kind = canonical_type(field.name, field.type)
        h = h * ODD + codes([column, column], (kind, kind))[0].view(np.uint64)  # of one column, the code may be the value itself
    h ^= h >> np.uint64(29)
    return h * ODD
