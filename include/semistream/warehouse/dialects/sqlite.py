"""SQLite.

Rows are bound from Arrow's buffers through SQLite's C interface. If there are few rows, or if
Python does not expose that interface, they are written with ``executemany``.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Dialect,
    Engine,
    ExceptionContext,
    MetaData,
    Select,
    String,
    Table,
    Text,
    case,
    create_engine,
    event,
    func,
    insert,
    literal_column,
    make_url,
    select,
    type_coerce,
    types,
)
from sqlalchemy.exc import DBAPIError

from semistream.warehouse.dialects import sqlite_library
from semistream.warehouse.dialects.rows import (
    VALUES,
    batch,
    chunks,
    from_text,
    parts,
    plain,
    python_values,
    quoted,
)

HANDLE = "sqlite3 *"  # key in a connection's ``info``; value None where the handle is unknown
BUSY_SECONDS = 120  # how long a writer waits for another one's transaction
TRANSIENT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
DECIMAL_DIGITS = 15  # the most that NUMERIC, a double, keeps
ROW_ID = ("rowid", "oid", "_rowid_")  # a row's number, unless a column is named so
FEW_ROWS = 1_000  # for fewer, ``executemany`` is as fast
TOO_MANY_COLUMNS = ("too many columns", "expression tree is too large")  # in the error's text


class Sqlite:
    """SQLite, see `protocol.System`."""

    title, url = "SQLite", "sqlite:///"
    names: tuple[str, ...] = ("sqlite",)
    no_number = "SQLite has no NaN"
    name_length = sys.maxsize

    # ---- connections

    def may_exist(self, url: URL) -> bool:
        return Path(url.database or "").exists()

    def engine(self, url: URL) -> Engine:
        """Return an engine. On a full disk, its statements raise OSError, which names the file."""
        if url.database and url.database != ":memory:":
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        sqlite_library.library()  # from here on, handles are known
        # IMMEDIATE: a transaction that will write waits for its turn at BEGIN; one that had
        # started with reading could only fail.
        engine = create_engine(
            url, connect_args={"timeout": BUSY_SECONDS, "isolation_level": "IMMEDIATE"}
        )

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, record: Any) -> None:
            record.info[HANDLE] = sqlite_library.newest_handle()
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA cache_size = -32768")  # KiB

        @event.listens_for(engine, "handle_error")
        def _full(context: ExceptionContext) -> None:
            _check_full_disk(context.original_exception, url)

        return engine

    def limit_reads(self, engine: Engine, seconds: int) -> None:
        """Do nothing, because a file has no server that could be silent."""

    def warm_up(self) -> None:
        engine, rows = self.engine(make_url("sqlite://")), pa.table({"text": ["text"] * FEW_ROWS})
        table = Table("rows", MetaData(), Column("text", Text))
        with engine.begin() as connection:
            table.create(connection)
            self.insert(connection, table, rows, replace=False)
            list(self.fetch(connection, select(*table.c), rows.schema, FEW_ROWS))
        engine.dispose()

    def is_transient(self, error: BaseException | None) -> bool:
        # the lowest byte of an extended code is its kind
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in TRANSIENT

    # ---- rows

    def insert(self, connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
        _insert(connection, table, data, replace)

    def fetch(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        columns = list(query.selected_columns)
        for found in _fetch(connection, query, rows):
            yield batch(_stored, found, columns, schema)

    def fetch_texts(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield a query's rows as texts. A column is binary if some of its values are bytes, which
        SQLite allows in every column."""
        for found in _fetch(connection, query, rows):
            yield pa.record_batch(
                [_as_text(c, f.type) for c, f in zip(found, schema, strict=True)],
                names=schema.names,
            )

    def given_back(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values that SQLite returns after storing these values. Decimals with many
        digits are returned as text."""
        kind = column.type
        return (
            column.cast(pa.string())
            if pa.types.is_decimal(kind) and self.decimal_is_text(kind.precision)
            else column
        )

    def lost(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.is_nan(column)

    # ---- columns

    def key_string(self, dialect: Dialect, length: int) -> Any:
        return String(length)

    def long_string(self, dialect: Dialect) -> Any:
        return Text()

    def decimal_is_text(self, precision: int) -> bool:
        return precision > DECIMAL_DIGITS

    def variant(self, kind: Any) -> Any:
        """Return INTEGER for a 64-bit integer, because only INTEGER can be an automatic primary
        key."""
        return types.Integer() if type(kind) is types.BigInteger else None

    def arrow_type(self, kind: Any) -> pa.DataType | None:
        """Return None for every type, because an INTEGER of SQLite is 64 bits wide, like the
        general integer type."""
        return None

    def table_options(self, clustered: bool, numbered: bool) -> dict[str, Any]:
        return {"sqlite_with_rowid": not clustered, "sqlite_autoincrement": numbered}

    def index_options(self, long: Collection[str], length: int) -> dict[str, Any]:
        """Return no options, because SQLite indexes texts of any length."""
        return {}

    def reflected(self, name: str) -> str:
        return name

    # ---- what the database refuses

    def check_table(self, dialect: Dialect, table: Table) -> None:
        """Do nothing, because SQLite accepts every name and key."""

    def refusal(self, error: BaseException | None) -> tuple[str, str] | None:
        if any(text in str(error).lower() for text in TOO_MANY_COLUMNS):
            return (
                "must have at most 2,000 columns in SQLite, or 1,000 as a dimension",
                "Leave columns out of the data; a Delta table takes any facts.",
            )
        return None

    def indexable(self, columns: Sequence[Column]) -> list[Column]:
        return list(columns)

    # ---- statements of this dialect

    @contextmanager
    def unsorted(self, connection: Connection, staging: Table) -> Iterator[Table]:
        """Yield a table without a key. At the exit, move its rows in the order of their keys,
        because they would otherwise be written to random positions."""
        raw = Table(
            f"raw_{staging.name}",
            MetaData(),
            *(Column(c.name, c.type) for c in staging.columns),
            prefixes=["TEMPORARY"],
        )
        self.drop_temporary(connection, raw)
        raw.create(connection)
        yield raw
        names = [c.name for c in staging.columns]
        lower = {name.lower() for name in names}
        arrival = next(alias for alias in ROW_ID if alias not in lower)
        rows = select(*raw.columns).order_by(
            *[raw.c[k.name] for k in staging.primary_key], literal_column(arrival)
        )
        moved = insert(staging).prefix_with("OR REPLACE").from_select(names, rows)
        connection.execute(moved)
        self.drop_temporary(connection, raw)

    def random(self) -> Any:
        return func.random()

    def json_value(self, document: Any, name: str) -> Any:
        # by a row of each field: a path cannot name every field, and makes numbers of booleans
        field = func.json_each(document).table_valued("key", "value", "type")
        truth = case(
            (field.c.type.in_(("true", "false")), field.c.type),
            else_=func.json_quote(field.c.value),
        )
        return (
            select(type_coerce(truth, Text()))
            .select_from(field)
            .where(field.c.key == name)
            .correlate(document.table)
            .scalar_subquery()
        )

    def analyze(self, connection: Connection, table: Table) -> None:
        connection.exec_driver_sql(f"ANALYZE {table.name}")

    def drop_temporary(self, connection: Connection, table: Table) -> None:
        name = connection.dialect.identifier_preparer.format_table(table)
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS temp.{name}")

    @contextmanager
    def alone(self, engine: Engine, name: str) -> Iterator[Connection]:
        """Begin a transaction that writes, because SQLite allows only one at a time."""
        with engine.begin() as connection:
            # otherwise the driver would begin with the first INSERT only
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    @contextmanager
    def locked(self, engine: Engine, written: Table, read: Table) -> Iterator[Connection]:
        with self.alone(engine, "") as connection:
            yield connection

    def await_writers(self, engine: Engine, table: str, column: str, first: int, last: int) -> None:
        """Do nothing, because there is only one writer at a time, so that ids become visible in
        order."""


def _check_full_disk(error: BaseException, url: URL) -> None:
    """Raise OSError with the database's file name if SQLite reported a full disk."""
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), url.database)


# ---- rows out


def _fetch(
    connection: Connection, query: Select[*tuple[Any, ...]], rows: int
) -> Iterator[Sequence[pa.Array | list[Any]]]:
    """Yield the columns of a query's rows, some rows at a time, with the values that SQLite
    stores."""
    # fetches dates as the texts that are stored: Arrow parses a column faster than SQLAlchemy its
    # values
    columns = list(query.selected_columns)
    query = query.with_only_columns(
        *[type_coerce(c, types.NullType()) for c in columns], maintain_column_froms=True
    )
    handle = connection.info.get(HANDLE)
    if handle is None:
        for chunk in chunks(connection, query, rows):
            yield [list(column) for column in zip(*chunk, strict=True)]
        return
    from semistream.warehouse.dialects.sqlite_rows import read

    text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
    with _as_sqlalchemy(connection, text):
        yield from read(handle, text, max(min(rows, VALUES // len(columns)), 1))


def _stored(column: pa.Array | list[Any], kind: pa.DataType) -> pa.Array:
    """Convert a column of SQLite's values to a type. Raises an error if a value is not of that
    type."""
    if isinstance(column, pa.Array):
        found = column.type
        if pa.types.is_null(found) or found == kind:
            return column.cast(kind)
        if (
            pa.types.is_decimal(kind)
            and kind.scale <= DECIMAL_DIGITS
            and (pa.types.is_integer(found) or pa.types.is_floating(found))
        ):
            return column.cast(pa.decimal128(38, kind.scale)).cast(kind)
        if any(test(found) and test(kind) for test in (pa.types.is_integer, pa.types.is_floating)):
            return column.cast(kind)
    if pa.types.is_string(kind):
        return pa.array(column.to_pylist() if isinstance(column, pa.Array) else column, kind)
    texts = _as_text(column, kind)
    if pa.types.is_binary(kind):
        return texts.cast(kind)
    return from_text(texts.cast(pa.string()), kind)


def _as_text(column: pa.Array | list[Any], kind: pa.DataType) -> pa.Array:
    """Convert a column of SQLite's values, of any storage class, to texts. The result is bytes if
    some values are bytes, or if the column's type is binary."""
    if isinstance(column, pa.Array):
        if pa.types.is_floating(column.type):
            return _float_texts(column, kind)
        if pa.types.is_binary(column.type):
            return column
        return column.cast(
            pa.binary()
            if pa.types.is_binary(kind) and pa.types.is_string(column.type)
            else pa.string()
        )
    texts = [
        v
        if v is None or isinstance(v, (str, bytes))
        else _float_texts(pa.array([v]), kind)[0].as_py()
        if isinstance(v, float)
        else str(v)
        for v in column
    ]
    if not pa.types.is_binary(kind) and not any(isinstance(v, bytes) for v in texts):
        return pa.array(texts, pa.string())
    return pa.array([v.encode() if isinstance(v, str) else v for v in texts], pa.binary())


def _float_texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert doubles to their shortest texts. SQLite may store doubles in a column of decimals. If
    such a double has more digits than the column, it is shown with only those digits that a double
    represents exactly."""
    texts = column.cast(pa.string())
    if not pa.types.is_decimal(kind):
        return texts
    longer = pc.match_substring_regex(texts, rf"\.[0-9]{{{kind.scale + 1},}}|e-")
    digits = [f"{v:.{DECIMAL_DIGITS}g}" for v in column.filter(longer).to_pylist() if v is not None]
    return pc.replace_with_mask(texts, pc.fill_null(longer, False), pa.array(digits, pa.string()))


# ---- rows in


def _insert(connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
    name, *columns = quoted(connection, table.name, *data.column_names)
    into = f"INSERT {'OR REPLACE ' if replace else ''}INTO {name} ({', '.join(columns)})"
    handle = connection.info.get(HANDLE) if data.num_rows >= FEW_ROWS else None
    driver: Any = connection.connection.driver_connection
    if handle is not None and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # as Python's module does before an INSERT
    for part in parts(data):
        part = pa.table([plain(c) for c in part.columns], names=part.column_names)
        if handle is not None:
            # imported only here, for many rows: it imports Numba
            from semistream.warehouse.dialects.sqlite_rows import insert

            with _as_sqlalchemy(connection, into):
                insert(handle, into, part)
        else:
            values = [_values(c) for c in part.columns]
            connection.exec_driver_sql(
                f"{into} VALUES ({', '.join('?' * len(columns))})", list(zip(*values, strict=True))
            )


@contextmanager
def _as_sqlalchemy(connection: Connection, statement: str) -> Iterator[None]:
    """Convert SQLite's errors inside the block to SQLAlchemy's errors."""
    try:
        yield
    except sqlite3.Error as e:
        _check_full_disk(e, connection.engine.url)
        raise DBAPIError.instance(statement, None, e, sqlite3.Error) from e


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as the Python values that SQLAlchemy would bind for it."""
    k = column.type
    # SQLite converts a decimal's text to the nearest double, Arrow does not
    if pa.types.is_temporal(k) or pa.types.is_decimal(k):
        column = column.cast(pa.string())
    elif pa.types.is_boolean(k):
        column = column.cast(pa.int8())
    return python_values(column)
