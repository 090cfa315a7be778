"""A checksum of rows that does not depend on their order: the sum, modulo 2**64, of a hash over all
columns of each row.

The checksum is computed for the rows that are written, and again for the rows that the warehouse
returns. If a value is changed, lost, duplicated, or exchanged with another row's value, the sums
differ. A null adds nothing, so that rows keep their checksum when their table gets a new column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine

from semistream.compiled import njit, read_only
from semistream.keys import canonical_type, codes, hash_long
from semistream.warehouse.dialects import system_of

ODD = np.uint64(0x9E3779B97F4A7C15)
ROWS = 16_384  # rows hashed at a time, so that their hashes stay in the processor's cache
ALL = np.empty(0, bool)  # in the place of bool[n] where no value is null


def row_hashes(rows: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Return a hash over the columns of each row, uint64[n]. The order of the columns does not
    matter. Equal integers of different widths have the same hash, as have 0.0 and -0.0."""
    return np.concatenate([np.empty(0, np.uint64), *_hashes(rows)])


def checksum(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the checksum of all rows as a signed 64-bit integer; 0 if there are none."""
    return signed(sum(int(h.sum()) for h in _hashes(rows)))


def signed(total: int | np.uint64) -> int:
    """Convert a sum modulo 2**64 to the signed 64-bit integer that a column of the warehouse
    holds."""
    return (int(total) + 2**63) % 2**64 - 2**63


def as_stored(rows: pa.RecordBatch | pa.Table, of: Engine | Connection) -> pa.Table:
    """Return the rows as the database will return them, for example after rounding."""
    given_back = system_of(of).given_back
    return pa.table([given_back(column) for column in rows.columns], names=rows.schema.names)


def _hashes(rows: pa.RecordBatch | pa.Table) -> Iterator[np.ndarray]:
    """Yield the hashes of the rows part by part, as arrays uint64[at most ROWS]."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    for batch in table.to_batches(ROWS):
        h = np.zeros(batch.num_rows, np.uint64)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _add_column(*map(read_only, _longs(name, column)), _seed(name), h)
        h ^= h >> np.uint64(29)
        h *= ODD
        h += ODD
        yield h


@lru_cache(maxsize=1024)
def _seed(name: str) -> np.int64:
    """Return the seed of a column's hash. Upper and lower case give the same seed, because
    databases ignore the case of column names."""
    return np.frombuffer(hashlib.blake2b(name.lower().encode(), digest_size=8).digest(), np.int64)[
        0
    ]


def _longs(name: str, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return a number or a hash for each value, and whether the value is not null: (int64[n],
    bool[n] or ALL)."""
    if column.type == pa.int64() and not column.null_count:
        return column.to_numpy(), ALL
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), np.zeros(len(column), bool)
    if pa.types.is_floating(column.type):
        valid = pc.fill_null(pc.invert(pc.is_nan(column)), False).to_numpy(zero_copy_only=False)
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        return values.view(np.int64), valid
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us")).cast(pa.int64())
    return codes([column], (canonical_type(name, column.type),))


@njit(cache=True)
def _add_column(values, valid, seed, h):
    """Add the hash of a column's value to the hash of each row. seed: int64, the seed from the
    column's name.

    in      values int64[n], valid bool[n] (bool[0]: all are)
    in/out  h uint64[n]
    """
    for i in range(len(values)):
        if len(valid) == 0 or valid[i]:
            h[i] += np.uint64(hash_long(values[i], seed))
