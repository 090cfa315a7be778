"""Conversion between Arrow and rows, shared by the database systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Row, Select

from semistream.errors import SemistreamError

# most that is converted at a time: several copies are held meanwhile
ROWS, VALUES, BYTES = 20_000, 400_000, 8_000_000
FETCHED_BYTES = 2_000_000  # of rows converted at a time from a driver that gives Python values
FIRST_ROWS = 1_000  # fetched first, to learn how large rows are
UNSIGNED = pa.decimal128(20, 0)  # holds every unsigned integer of 64 bits


class BulkError(SemistreamError):
    """The database did not store every row unchanged."""


def batch(
    convert: Callable[[Any, pa.DataType], pa.Array],
    found: Iterable[Any],
    columns: Sequence[Any],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Convert the values of each column to its type and return the record batch. Raises
    ArrowInvalid, which names the column."""
    arrays = []
    for values, column, field in zip(found, columns, schema, strict=True):
        try:
            arrays.append(convert(values, field.type))
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise pa.ArrowInvalid(f"{column} has a value that is not {field.type}: {e}") from None
    return pa.record_batch(arrays, schema=schema)


def chunks(
    connection: Connection, query: Select[*tuple[Any, ...]], most: int, first: int = FIRST_ROWS
) -> Iterator[Sequence[Row[Any]]]:
    """Yield rows from the driver, at most ``most`` and about FETCHED_BYTES at a time, because
    several copies of them are in memory during conversion."""
    rows = min(most, first)
    with connection.execution_options(stream_results=True, yield_per=rows).execute(query) as result:
        while chunk := result.fetchmany(rows):
            yield chunk
            size = sum(len(v) if isinstance(v, (str, bytes)) else 8 for r in chunk for v in r)
            rows = max(min(int(FETCHED_BYTES / max(size / len(chunk), 1)), most), 1)


def from_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert texts in MySQL's notation to an Arrow type. Bytes are in hexadecimal."""
    if pa.types.is_time(kind):  # Arrow parses no times of day
        column = pc.binary_join_element_wise("1970-01-01", column, " ")
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([None if v is None else bytes.fromhex(v) for v in column.to_pylist()], kind)
    return column.cast(kind)


def hex_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return bytes as hexadecimal texts."""
    return pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string())


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with timestamps in UTC but without a time zone, and with dictionaries
    decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_timestamp(column.type):
        return (
            column.cast(pa.timestamp("us", column.type.tz))
            .cast(pa.int64())
            .cast(pa.timestamp("us"))
        )
    if pa.types.is_null(column.type):
        return column.cast(pa.string())
    return column


def parts(data: pa.Table) -> Iterator[pa.Table]:
    """Split rows into parts that are converted one at a time. The wider the rows, the fewer rows
    are in a part."""
    width = max(data.nbytes / data.num_rows, 1.0)
    rows = max(int(min(ROWS, VALUES / data.num_columns, BYTES / width)), 1)
    return (data.slice(start, rows) for start in range(0, data.num_rows, rows))


def quoted(connection: Connection, *names: str) -> list[str]:
    return [connection.dialect.identifier_preparer.quote_identifier(n) for n in names]


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values, several times faster than ``to_pylist`` for numbers and
    strings."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return (
            column.to_numpy(zero_copy_only=False).tolist()
            if pa.types.is_string(column.type)
            else column.to_pylist()
        )
    if not column.null_count:
        return column.to_numpy().tolist()
    values = pc.fill_null(column, 0).to_numpy().tolist()
    for i in np.flatnonzero(pc.is_null(column).to_numpy()).tolist():
        values[i] = None
    return values
