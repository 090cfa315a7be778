"""Arrow into and out of the warehouse in bulk, inside the caller's transaction.

MySQL: LOAD DATA LOCAL INFILE, or INSERT of many rows where the server forbids it. SQLite: bound
from Arrow's buffers through its C interface, or ``executemany`` for few rows and where Python does
not show that interface.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from sqlalchemy import (
    Connection,
    Row,
    Select,
    Table,
    case,
    func,
    literal_column,
    type_coerce,
    types,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from semistream.errors import SemistreamError
from semistream.warehouse.connect import HANDLE, say_where
from semistream.warehouse.types import SQLITE_DECIMAL_DIGITS, ExactDecimal

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
    ``schema``, in order. Rows that are too long for one text of MySQL's come last."""
    if connection.dialect.name != "sqlite":
        yield from _fetch_mysql(connection, query, schema, rows)
        return
    columns = list(query.selected_columns)
    for found in _fetch_sqlite(connection, query, rows):
        yield _batch(_stored, found, columns, schema)


def fetch_texts(connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema,
                rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Like ``fetch``, but every value is the text that shows it exactly, and bytes stay bytes: of
    tables of others, whose cells need not fit the types of their columns.

    A column of which some cells are bytes, as SQLite allows in any, is one of bytes.
    """
    if connection.dialect.name != "sqlite":
        texts = pa.schema([f if pa.types.is_binary(f.type) else f.with_type(pa.string())
                           for f in schema])
        yield from _fetch_mysql(connection, query, texts, rows)
        return
    for found in _fetch_sqlite(connection, query, rows):
        yield pa.record_batch([_as_text(c, f.type) for c, f in zip(found, schema, strict=True)],
                              names=schema.names)


def _fetch_sqlite(connection: Connection, query: Select[*tuple[Any, ...]],
                  rows: int) -> Iterator[Sequence[pa.Array | list[Any]]]:
    """The columns of a query's rows as they are stored."""
    # dates as the text that they are stored as: Arrow parses a column faster than SQLAlchemy its
    # values
    columns = list(query.selected_columns)
    query = query.with_only_columns(*[type_coerce(c, types.NullType()) for c in columns],
                                    maintain_column_froms=True)
    handle = connection.info.get(HANDLE)
    if handle is None:
        for chunk in _chunks(connection, query, rows):
            yield [list(column) for column in zip(*chunk, strict=True)]
        return
    from semistream.warehouse.sqlite_rows import read

    text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
    with _as_sqlalchemy(connection, text):
        yield from read(handle, text, max(min(rows, VALUES // len(columns)), 1))


def _fetch_mysql(connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema,
                 rows: int) -> Iterator[pa.RecordBatch]:
    columns = list(query.selected_columns)
    text, too_long, found = _one_text(columns, schema), 0, 0
    for chunk in _chunks(connection, query.with_only_columns(text, maintain_column_froms=True),
                         rows):
        texts = [r[0] for r in chunk if r[0] is not None]
        too_long += len(chunk) - len(texts)
        yield _batch(_from_text, _split(texts, schema), columns, schema)
    if not too_long:
        return
    # the server gives null in place of a text of more than max_allowed_packet
    apart = query.with_only_columns(
        *(_shown(c, f.type) for c, f in zip(columns, schema, strict=True)),
        maintain_column_froms=True).where(text.is_(None))
    for chunk in _chunks(connection, apart, rows, first=1):
        found += len(chunk)
        yield _batch(_from_shown, zip(*chunk, strict=True), columns, schema)
    if found != too_long:
        raise BulkError(f"{too_long} rows were longer than max_allowed_packet, and {found} when "
                        "they were read by themselves: they changed meanwhile. Read them again.")


def _batch(convert: Callable[[Any, pa.DataType], pa.Array], found: Iterable[Any],
           columns: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """What was found of each column, in its type. Raises ArrowInvalid, which names the column."""
    arrays = []
    for values, column, field in zip(found, columns, schema, strict=True):
        try:
            arrays.append(convert(values, field.type))
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise pa.ArrowInvalid(f"{column} has a value that is not {field.type}: {e}") from None
    return pa.record_batch(arrays, schema=schema)


def _chunks(connection: Connection, query: Select[*tuple[Any, ...]], most: int,
            first: int = FIRST_ROWS) -> Iterator[Sequence[Row[Any]]]:
    """Rows as they come from the driver: at most so many at a time, and about FETCHED_BYTES, as
    those are held several times meanwhile."""
    rows = min(most, first)
    with connection.execution_options(stream_results=True, yield_per=rows).execute(query) as result:
        while chunk := result.fetchmany(rows):
            yield chunk
            size = sum(len(v) if isinstance(v, (str, bytes)) else 8 for r in chunk for v in r)
            rows = max(min(int(FETCHED_BYTES / max(size / len(chunk), 1)), most), 1)


def _stored(column: pa.Array | list[Any], kind: pa.DataType) -> pa.Array:
    """A column of SQLite's values as of its type; an error where one of them is not."""
    if isinstance(column, pa.Array):
        found = column.type
        if pa.types.is_null(found) or found == kind:
            return column.cast(kind)
        if pa.types.is_decimal(kind) and kind.scale <= SQLITE_DECIMAL_DIGITS \
                and (pa.types.is_integer(found) or pa.types.is_floating(found)):
            return column.cast(pa.decimal128(38, kind.scale)).cast(kind)
        if any(test(found) and test(kind) for test in (pa.types.is_integer, pa.types.is_floating)):
            return column.cast(kind)
    if pa.types.is_string(kind):
        return pa.array(column.to_pylist() if isinstance(column, pa.Array) else column, kind)
    texts = _as_text(column, kind)
    if pa.types.is_binary(kind):
        return texts.cast(kind)
    return _from_text(texts.cast(pa.string()), kind)


def _as_text(column: pa.Array | list[Any], kind: pa.DataType) -> pa.Array:
    """A column of SQLite's values, which are of any kind, as texts; as bytes where some are, or
    where it is of bytes."""
    if isinstance(column, pa.Array):
        if pa.types.is_floating(column.type):
            return _float_texts(column, kind)
        if pa.types.is_binary(column.type):
            return column
        return column.cast(pa.binary() if pa.types.is_binary(kind) and
                           pa.types.is_string(column.type) else pa.string())
    texts = [v if v is None or isinstance(v, (str, bytes)) else
             _float_texts(pa.array([v]), kind)[0].as_py() if isinstance(v, float) else str(v)
             for v in column]
    if not pa.types.is_binary(kind) and not any(isinstance(v, bytes) for v in texts):
        return pa.array(texts, pa.string())
    return pa.array([v.encode() if isinstance(v, str) else v for v in texts], pa.binary())


def _float_texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Doubles as their shortest texts. A column of decimals has doubles in SQLite: where those have
    more digits than the column, they are shown with the digits that a double surely keeps."""
    texts = column.cast(pa.string())
    if not pa.types.is_decimal(kind):
        return texts
    longer = pc.match_substring_regex(texts, rf"\.[0-9]{{{kind.scale + 1},}}|e-")
    digits = [f"{v:.{SQLITE_DECIMAL_DIGITS}g}" for v in column.filter(longer).to_pylist()
              if v is not None]
    return pc.replace_with_mask(texts, pc.fill_null(longer, False), pa.array(digits, pa.string()))


def _from_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts of MySQL's values, or of others, as of their type; bytes are in hexadecimal."""
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
# whose texts have no character to escape
ONE_LINE = (types.Boolean, types.Integer, types.Numeric, types.Float, ExactDecimal, types.Date,
            types.DateTime, types.Time, mysql.BIT, mysql.YEAR)


def _one_text(columns: Sequence[Any], schema: pa.Schema) -> Any:
    """A row's columns as one tab-separated text; null where that is longer than the server gives
    out."""
    texts = list[Any]()
    for column, field in zip(columns, schema, strict=True):
        text = _number(column)
        if pa.types.is_binary(field.type):
            text = func.hex(column)
        elif pa.types.is_string(field.type) and not isinstance(column.type, ONE_LINE):
            for character, escaped in ESCAPES:
                text = func.replace(text, character, escaped)
        # not coalesce: what is too long is null here, too
        texts += ["\t", case((column.is_(None), NULL), else_=text)]
    return type_coerce(func.concat(*texts[1:]), types.Text())


def _number(column: Any) -> Any:
    """Bits as a number, and a FLOAT with all its digits, of which MySQL shows six."""
    if isinstance(column.type, mysql.BIT):
        return type_coerce(column, types.Integer()) + literal_column("0")
    if isinstance(column.type, mysql.FLOAT):
        return column + literal_column("0e0")
    return column


def _shown(column: Any, kind: pa.DataType) -> Any:
    """A column by itself, as text or bytes."""
    if pa.types.is_binary(kind) or (pa.types.is_string(kind)
                                    and not isinstance(column.type, ONE_LINE)):
        return type_coerce(column, types.NullType())
    return type_coerce(func.concat(_number(column)), types.Text())


def _from_shown(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    return _from_text(pa.array(values, pa.string()), kind)


def _split(texts: list[str], schema: pa.Schema) -> Iterator[pa.Array]:
    """The columns of rows that are one text each, as texts."""
    options = {
        # the line before the first one: there, Arrow takes U+FEFF away
        "read_options": csv.ReadOptions(column_names=schema.names, use_threads=False, skip_rows=1,
                                        block_size=2**30),
        "parse_options": csv.ParseOptions(delimiter="\t", quote_char=False,
                                          ignore_empty_lines=False),
        "convert_options": csv.ConvertOptions(column_types={n: pa.string() for n in schema.names},
                                              null_values=[NULL], strings_can_be_null=True)}
    table = csv.read_csv(pa.BufferReader("\n".join(["", *texts, ""]).encode()),
                         **options).combine_chunks()
    for field, column in zip(schema, table.columns, strict=True):
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_string(field.type):
            for character, escaped in reversed(ESCAPES):
                column = pc.replace_substring(column, escaped, character)
        yield column


def nulled(rows: pa.RecordBatch | pa.Table, dialect: str) -> dict[str, int]:
    """By column, how many numbers a database stores as null because it has none like them: NaN, and
    in MySQL also the infinities."""
    lost = pc.is_nan if dialect == "sqlite" else lambda column: pc.invert(pc.is_finite(column))
    counts = {name: pc.sum(lost(column)).as_py() or 0
              for name, column in zip(rows.schema.names, rows.columns, strict=True)
              if pa.types.is_floating(column.type)}
    return {name: count for name, count in counts.items() if count}


def say_nulled(counts: Mapping[str, int], dialect: str) -> str:
    """What ``nulled`` has found, for people."""
    has = "SQLite has no NaN" if dialect == "sqlite" else "MySQL has neither NaN nor infinity"
    columns = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
    return f"numbers stored as NULL: {columns}; {has}"


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

