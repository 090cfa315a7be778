"""Bulk transfer of Arrow data into and out of the warehouse, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine, Select, Table

from semistream.warehouse.dialects import system_of
from semistream.warehouse.dialects.rows import ROWS, BulkError

__all__ = ["BulkError", "bulk_insert", "fetch", "fetch_texts", "nulled", "nulled_sentence"]


def bulk_insert(
    connection: Connection, table: Table, batch: pa.RecordBatch | pa.Table, *, replace: bool = False
) -> int:
    """Insert rows in the caller's transaction and return their number. The columns of the rows have
    the names of the table's columns.

    replace: whether a row replaces an existing row with the same unique key. Raises BulkError or a
    DBAPIError; the caller must roll back.
    """
    if isinstance(batch, pa.RecordBatch):
        batch = pa.Table.from_batches([batch])
    if batch.num_rows:
        system_of(connection).insert(connection, table, batch, replace)
    return batch.num_rows


def fetch(
    connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int = ROWS
) -> Iterator[pa.RecordBatch]:
    """Stream a query's rows as record batches of at most ``rows`` rows. The query's columns are
    those of ``schema``, in order."""
    return system_of(connection).fetch(connection, query, schema, rows)


def fetch_texts(
    connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int = ROWS
) -> Iterator[pa.RecordBatch]:
    """Stream a query's rows like ``fetch``, but with each value as its exact text, and bytes as
    bytes. This function is for tables of other programs, whose values need not fit the types of
    their columns."""
    return system_of(connection).fetch_texts(connection, query, schema, rows)


def nulled(rows: pa.RecordBatch | pa.Table, of: Engine | Connection) -> dict[str, int]:
    """Count, by column, the numbers that the database stores as null because it cannot represent
    them: NaN, and in MySQL also the infinities."""
    lost = system_of(of).lost
    counts = {
        name: pc.sum(lost(column)).as_py() or 0
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if pa.types.is_floating(column.type)
    }
    return {name: count for name, count in counts.items() if count}


def nulled_sentence(counts: Mapping[str, int], of: Engine | Connection) -> str:
    """Describe the counts of ``nulled`` in a sentence for people."""
    columns = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
    return f"numbers stored as NULL: {columns}; {system_of(of).no_number}"
