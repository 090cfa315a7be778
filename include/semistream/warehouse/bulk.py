"""Arrow into and out of the warehouse in bulk, inside the caller's transaction.

MySQL: LOAD DATA LOCAL INFILE, or INSERT of many rows where the server forbids it. SQLite: bound
from Arrow's buffers through its C interface, or ``executemany`` for few rows and where Python does
not show that interface.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from sqlalchemy import Connection, Select, Table, func, type_coerce, types
from sqlalchemy.exc import DBAPIError

from semistream.errors import SemistreamError
from semistream.warehouse.connect import HANDLE, say_where
from semistream.warehouse.types import SQLITE_DECIMAL_DIGITS

# converted at a time, at most: they are held several times meanwhile
ROWS, VALUES, BYTES = 20_000, 400_000, 8_000_000
FETCHED_BYTES = 2_000_000  # of rows from a driver that gives Python's values, converted at a time
FIRST_ROWS = 1_000  # which tell how large rows are
FEW_ROWS = 1_000  # for which ``executemany`` is as fast


class BulkError(SemistreamError):
    """The database did not take every row as it was given."""


def bulk_insert(connection: Connection, table: Table, batch: pa.RecordBatch | pa.Table, *,
                replace: bool = False) -> int:
    """Insert rows, whose columns are named like the table's, in the caller's transaction; gives
    their number.

    replace: a row takes the place of the one with its unique key. Raises BulkError or a DBAPIError;
    the caller rolls back.
    """
    if isinstance(batch, pa.RecordBatch):
        batch = pa.Table.from_batches([batch])
    if not batch.num_rows:
        return 0
    if connection.dialect.name == "sqlite":
        _insert_sqlite(connection, table, batch, replace)
    elif _loads_files(connection):
        _load_data(connection, table, batch, replace)
    else:
        _insert_mysql(connection, table, batch, replace)
    return batch.num_rows


def fetch(connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema,
          rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """A query's rows as record batches of at most ``rows``, streamed; its columns are those of
    ``schema``, in order."""
    columns = list(query.selected_columns)
    if connection.dialect.name != "sqlite":
        query = query.with_only_columns(_one_text(columns, schema), maintain_column_froms=True)
        yield from _chunks(connection, query, rows,
                           lambda chunk: _parse_texts([r[0] for r in chunk], schema))
        return
    # dates as the text that they are stored as: Arrow parses a column faster than SQLAlchemy its
    # values
    query = query.with_only_columns(*[type_coerce(c, types.NullType()) for c in columns],
                                    maintain_column_froms=True)
    handle = connection.info.get(HANDLE)
    if handle is None:
        yield from _chunks(connection, query, rows, lambda chunk: arrow_batch(chunk, schema))
        return
    from semistream.warehouse.sqlite_rows import read

    text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
    with _as_sqlalchemy(connection, text):
        for found in read(handle, text, max(min(rows, VALUES // len(schema)), 1)):
            yield pa.record_batch([_stored(c, f.type) for c, f in zip(found, schema, strict=True)],
                                  schema=schema)


def _chunks(connection: Connection, query: Select[*tuple[Any, ...]], most: int,
            convert: Callable[[Sequence[Sequence[Any]]], pa.RecordBatch]
            ) -> Iterator[pa.RecordBatch]:
    """Rows as they come from the driver, converted: at most so many at a time, and about
    FETCHED_BYTES, as those are held several times meanwhile."""
    rows = min(most, FIRST_ROWS)
    with connection.execution_options(stream_results=True, yield_per=rows).execute(query) as result:
        while chunk := result.fetchmany(rows):
            batch = convert(chunk)
            yield batch
            rows = max(min(int(FETCHED_BYTES / max(batch.nbytes / len(chunk), 1)), most), 1)


def arrow_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the database's values as a record batch."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.record_batch([_array(c, f.type) for c, f in zip(columns, schema, strict=True)],
                           schema=schema)


def _stored(column: pa.Array | list[Any], kind: pa.DataType) -> pa.Array:
    """A column of SQLite's values as of its type."""
    if isinstance(column, pa.Array):
        found = column.type
        if pa.types.is_null(found) or found == kind:
            return column.cast(kind)
        if pa.types.is_string(found):
            return _from_text(column, kind)
        if pa.types.is_decimal(kind) and kind.scale <= SQLITE_DECIMAL_DIGITS \
                and not pa.types.is_binary(found):
            return column.cast(pa.decimal128(38, kind.scale)).cast(kind)
        if pa.types.is_integer(found) and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            return column.cast(kind)
        column = column.to_pylist()
    return _array(column, kind)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind) and not isinstance(_first(values), bool):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_decimal(kind) and isinstance(_first(values), (float, int)):
        values = [None if v is None else f"{v:.{kind.scale}f}" for v in values]
    if isinstance(_first(values), str) and not pa.types.is_string(kind):
        return _from_text(pa.array(values, pa.string()), kind)
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.array(values, pa.timestamp("us")).cast(pa.int64()).cast(kind)
    return pa.array(values, kind)


def _from_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(kind)
    if pa.types.is_time(kind):  # Arrow parses no times of day
        column = pc.binary_join_element_wise("1970-01-01", column, " ")
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([None if v is None else bytes.fromhex(v) for v in column.to_pylist()], kind)
    return column.cast(kind)


# PyMySQL spends 2 us a value: a row fetched as one text is fetched six times as fast.
ESCAPES = (("~", "~0"), ("\t", "~1"), ("\n", "~2"), ("\r", "~3"))  # undone in the opposite order
NULL = "~N"


def _one_text(columns: Sequence[Any], schema: pa.Schema) -> Any:
    """A row's columns as one tab-separated text."""
    texts = []
    for column, field in zip(columns, schema, strict=True):
        text = func.hex(column) if pa.types.is_binary(field.type) else column
        if pa.types.is_string(field.type):
            for character, escaped in ESCAPES:
                text = func.replace(text, character, escaped)
        texts.append(func.coalesce(text, NULL))
    return type_coerce(func.concat_ws("\t", *texts), types.Text())


def _parse_texts(texts: list[str], schema: pa.Schema) -> pa.RecordBatch:
    options = {
        "read_options": csv.ReadOptions(column_names=schema.names, use_threads=False,
                                        block_size=2**30),
        "parse_options": csv.ParseOptions(delimiter="\t", quote_char=False,
                                          ignore_empty_lines=False),
        "convert_options": csv.ConvertOptions(column_types={n: pa.string() for n in schema.names},
                                              null_values=[NULL], strings_can_be_null=True)}
    table = csv.read_csv(pa.BufferReader("\n".join([*texts, ""]).encode()),
                         **options).combine_chunks()
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_string(field.type):
            for character, escaped in reversed(ESCAPES):
                column = pc.replace_substring(column, escaped, character)
        columns.append(column if pa.types.is_string(field.type) else _from_text(column, field.type))
    return pa.record_batch(columns, schema=schema)


def _first(values: Sequence[Any]) -> Any:
    return next((v for v in values if v is not None), None)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps as UTC without a zone, dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us",
                                        column.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    if pa.types.is_null(column.type):
        return column.cast(pa.string())
    return column


def _parts(data: pa.Table) -> Iterator[pa.Table]:
    """Rows that are converted at a time: the fewer, the wider they are."""
    width = max(data.nbytes / data.num_rows, 1.0)
    rows = max(int(min(ROWS, VALUES / data.num_columns, BYTES / width)), 1)
    return (data.slice(start, rows) for start in range(0, data.num_rows, rows))


def _quoted(connection: Connection, *names: str) -> list[str]:
    return [connection.dialect.identifier_preparer.quote_identifier(n) for n in names]


# ---- SQLite


def _insert_sqlite(connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
    name, *columns = _quoted(connection, table.name, *data.column_names)
    into = f"INSERT {'OR REPLACE ' if replace else ''}INTO {name} ({', '.join(columns)})"
    handle = connection.info.get(HANDLE) if data.num_rows >= FEW_ROWS else None
    driver: Any = connection.connection.driver_connection
    if handle is not None and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # as Python's module does before an INSERT
    for part in _parts(data):
        part = pa.table([_plain(c) for c in part.columns], names=part.column_names)
        if handle is not None:
            # what imports Numba, for the many rows that need it
            from semistream.warehouse.sqlite_rows import insert

            with _as_sqlalchemy(connection, into):
                insert(handle, into, part)
        else:
            values = [_sqlite_values(c) for c in part.columns]
            connection.exec_driver_sql(f"{into} VALUES ({', '.join('?' * len(columns))})",
                                       list(zip(*values, strict=True)))


@contextmanager
def _as_sqlalchemy(connection: Connection, statement: str) -> Iterator[None]:
    """SQLite's errors as SQLAlchemy raises them."""
    try:
        yield
    except sqlite3.Error as e:
        say_where(e, connection.engine.url)
        raise DBAPIError.instance(statement, None, e, sqlite3.Error) from e


def _sqlite_values(column: pa.ChunkedArray) -> list[Any]:
    """A column as the Python values that SQLAlchemy would bind for it."""
    k = column.type
    # SQLite makes the nearest double of a decimal's text, Arrow does not
    if pa.types.is_temporal(k) or pa.types.is_decimal(k):
        column = column.cast(pa.string())
    elif pa.types.is_boolean(k):
        column = column.cast(pa.int8())
    return python_values(column)


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """``to_pylist`` for numbers and strings, several times faster."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return (column.to_numpy(zero_copy_only=False).tolist() if pa.types.is_string(column.type)
                else column.to_pylist())
    if not column.null_count:
        return column.to_numpy().tolist()
    values = pc.fill_null(column, 0).to_numpy().tolist()
    for i in np.flatnonzero(pc.is_null(column).to_numpy()).tolist():
        values[i] = None
    return values


# ---- MySQL


def _loads_files(connection: Connection) -> bool:
    info = connection.engine.__dict__.setdefault("_semistream", {})
    if "local_infile" not in info:
        info["local_infile"] = bool(connection.exec_driver_sql("SELECT @@local_infile").scalar())
    return bool(info["local_infile"])


def _load_data(connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
    name, *columns = _quoted(connection, table.name, *data.column_names)
    binary = [pa.types.is_binary(t) for t in data.schema.types]
    targets = [f"@c{i}" if b else c for i, (c, b) in enumerate(zip(columns, binary, strict=True))]
    sets = [f"{c} = UNHEX(@c{i})"
            for i, (c, b) in enumerate(zip(columns, binary, strict=True)) if b]
    with _piped(_lines(part) for part in _parts(data)) as path:
        result = connection.exec_driver_sql(
            f"LOAD DATA LOCAL INFILE '{path}' {'REPLACE ' if replace else ''}INTO TABLE {name} "
            f"CHARACTER SET utf8mb4 ({', '.join(targets)})"
            + (f" SET {', '.join(sets)}" if sets else ""))
    # LOCAL makes the server skip or bend rows that it would refuse elsewhere, with a warning each.
    warnings = connection.exec_driver_sql("SHOW WARNINGS LIMIT 3").all()
    if warnings or (not replace and result.rowcount != data.num_rows):
        raise BulkError(f"{table.name}: {result.rowcount} of {data.num_rows} rows were loaded; "
                        + "; ".join(w[2] for w in warnings))


@contextmanager
def _piped(pieces: Iterator[memoryview]) -> Iterator[str]:
    """The path of a file with these bytes, of which each piece is made while the server takes in
    the one before.

    It can be read once. An error in making a piece is raised at the end, in place of what came of
    it.
    """
    reader, writer = os.pipe()

    def write() -> None:
        # the statement failed, and says why
        with open(writer, "wb", buffering=0) as file, suppress(BrokenPipeError):
            for piece in pieces:
                while piece:
                    piece = piece[file.write(piece):]

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        try:
            yield f"/dev/fd/{reader}"
        finally:
            os.close(reader)
            written.result()


def _lines(data: pa.Table) -> memoryview:
    """Rows in the default format of LOAD DATA: tab-separated, backslash-escaped, \\N for null."""
    fields = [pc.fill_null(_mysql_text(_plain(c)), "\\N") for c in data.columns]
    lines = (pc.binary_join_element_wise(*fields, "\t").combine_chunks() if len(fields) > 1
             else fields[0].combine_chunks())
    lines = pc.binary_join_element_wise(lines, "", "\n")
    offsets = np.frombuffer(lines.buffers()[1], np.int32)
    return memoryview(lines.buffers()[2])[offsets[lines.offset]:offsets[lines.offset + len(lines)]]


def _mysql_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    k = column.type
    if pa.types.is_boolean(k):
        return column.cast(pa.int8()).cast(pa.string())
    if pa.types.is_floating(k):
        # MySQL has neither NaN nor infinity
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, k))
    if pa.types.is_binary(k):
        return pa.chunked_array(
            [pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string())])
    if not pa.types.is_string(k):
        return column.cast(pa.string())
    for character, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"),
                               ("\0", "\\0")):
        column = pc.replace_substring(column, character, escaped)
    return column


def _insert_mysql(connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
    name, *columns = _quoted(connection, table.name, *data.column_names)
    # PyMySQL makes one INSERT of many rows from a statement of this form.
    verb = "REPLACE" if replace else "INSERT"
    places = ", ".join(["%s"] * len(columns))
    statement = f"{verb} INTO {name} ({', '.join(columns)}) VALUES ({places})"
    for rows in _parts(data):
        part = [_plain(c) for c in rows.columns]
        part = [pc.if_else(pc.is_finite(c), c, pa.scalar(None, c.type))
                if pa.types.is_floating(c.type) else c for c in part]
        connection.exec_driver_sql(statement,
                                   list(zip(*[python_values(c) for c in part], strict=True)))

