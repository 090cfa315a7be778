"""MySQL and MariaDB.

Rows are written with LOAD DATA LOCAL INFILE, or with multi-row INSERTs if the server forbids LOAD
DATA.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Dialect,
    Engine,
    ExceptionContext,
    Select,
    String,
    Table,
    case,
    create_engine,
    event,
    func,
    literal_column,
    select,
    text,
    type_coerce,
    types,
)
from sqlalchemy.dialects import mysql

from semistream.errors import ConfigError
from semistream.warehouse.dialects.rows import (
    UNSIGNED,
    BulkError,
    batch,
    chunks,
    from_text,
    hex_texts,
    parts,
    plain,
    python_values,
    quoted,
)

READ_ONLY = frozenset({1290, 1836})  # errors of a server that may not write
# Deadlock, lock wait timeout; server gone, lost, shutting down, not reachable, too many
# connections; a statement ended by an administrator (1317) or by a limit on its time (1969
# MariaDB's, 3024 MySQL's).
TRANSIENT = frozenset(
    {1213, 1205, 2006, 2013, 2014, 2055, 1053, 1927, 1080, 1040, 2002, 2003, 0, 1317, 1969, 3024}
)
KEY_BYTES_LENGTH = 190  # of a key column of bytes
NAME_CHARACTERS = 64  # of any name
KEY_BYTES = 3072  # of an InnoDB index
KEY_COLUMNS = 16  # likewise; 32 in MariaDB
CHARACTER_BYTES = 4  # of utf8mb4
LOCK_SECONDS = 86_400
COUNT_INTERVAL = 0.02  # seconds between two counts of rows that others may be about to insert
RENAME = "Rename the column in the source."
FEWER = (
    "Leave columns out of the data, or declare some as numbers or dates. SQLite takes more, "
    "and a Delta table any facts."
)
# error number -> (the limit that a table exceeds, the remedy)
REFUSED = {
    1060: ("must not have two columns that MySQL takes for one", RENAME),
    1071: ("must have a key of at most 3,072 bytes", "Name fewer key columns that are text."),
    1070: ("must have fewer columns in a key", "Name fewer key columns."),
    1118: (
        "must have rows that fit half a page of InnoDB, 8,126 bytes, in which each text or blob "
        "takes up to 41 of its own",
        FEWER,
    ),
}


class Mysql:
    """MySQL and MariaDB, see `protocol.System`."""

    title, url = "MySQL", "mysql+pymysql://"
    names: tuple[str, ...] = ("mysql", "mariadb")
    no_number = "MySQL has neither NaN nor infinity"
    name_length = NAME_CHARACTERS

    # ---- connections

    def may_exist(self, url: URL) -> bool:
        return True

    def engine(self, url: URL) -> Engine:
        engine = create_engine(
            url.set(drivername=f"{url.get_backend_name()}+pymysql"),
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            connect_args={
                "local_infile": True,
                "charset": "utf8mb4",
                "init_command": "SET time_zone = '+00:00'",
            },
        )

        @event.listens_for(engine, "handle_error")
        def _lost(context: ExceptionContext) -> None:
            """Treat a server that became read-only after a failover as disconnected. A new
            connection then finds the server that accepts writes."""
            if (arguments := getattr(context.original_exception, "args", ())) and arguments[
                0
            ] in READ_ONLY:
                context.is_disconnect = True

        return engine

    def limit_reads(self, engine: Engine, seconds: int) -> None:
        event.listen(
            engine,
            "do_connect",
            lambda _dialect, _record, _args, given: given.update(read_timeout=seconds),
        )

    def warm_up(self) -> None:
        """Do nothing, because nothing is compiled."""

    def is_transient(self, error: BaseException | None) -> bool:
        return _number_of(error) in TRANSIENT

    # ---- rows

    def insert(self, connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
        (_load_data if _loads_files(connection) else _insert)(connection, table, data, replace)

    def fetch(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield a query's rows. Rows that are too long to be sent as one text are yielded last."""
        return _fetch(connection, query, schema, rows)

    def fetch_texts(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        return _fetch(
            connection,
            query,
            pa.schema(
                [f if pa.types.is_binary(f.type) else f.with_type(pa.string()) for f in schema]
            ),
            rows,
        )

    def given_back(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values that MySQL returns after storing these values. A 32-bit float is stored
        by way of its shortest text."""
        kind = column.type
        if not pa.types.is_floating(kind):
            return column
        column = _finite(column)
        return column.cast(pa.string()).cast(pa.float64()) if pa.types.is_float32(kind) else column

    def lost(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.invert(pc.is_finite(column))

    # ---- columns

    def key_string(self, dialect: Dialect, length: int) -> Any:
        return mysql.VARCHAR(length, charset="utf8mb4", collation=_collation(dialect))

    def long_string(self, dialect: Dialect) -> Any:
        return mysql.LONGTEXT(charset="utf8mb4", collation=_collation(dialect))

    def decimal_is_text(self, precision: int) -> bool:
        return False

    def variant(self, kind: Any) -> Any:
        if isinstance(kind, types.DateTime):
            return mysql.DATETIME(fsp=6)
        if isinstance(kind, types.Time):
            return mysql.TIME(fsp=6)
        if isinstance(kind, types.LargeBinary) and kind.length and kind.length < 2**16:
            return mysql.VARBINARY(kind.length)
        return None

    def arrow_type(self, kind: Any) -> pa.DataType | None:
        if isinstance(kind, mysql.BIT):
            bits = kind.length or 1
            return pa.bool_() if bits == 1 else pa.int64() if bits < 64 else UNSIGNED
        if isinstance(kind, mysql.TINYINT):
            return pa.int16()  # also TINYINT(1), which may hold 5
        if isinstance(kind, (mysql.INTEGER, mysql.MEDIUMINT)):
            return pa.int64() if kind.unsigned else pa.int32()
        if isinstance(kind, mysql.SMALLINT):
            return pa.int32() if kind.unsigned else pa.int16()
        if isinstance(kind, mysql.YEAR):
            return pa.int32()
        return pa.float32() if isinstance(kind, mysql.FLOAT) else None

    def table_options(self, clustered: bool, numbered: bool) -> dict[str, Any]:
        """Return the same options for every table, because InnoDB clusters all tables."""
        return {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}

    def index_options(self, long: Collection[str], length: int) -> dict[str, Any]:
        """Return the option by which only the beginning of long texts is indexed."""
        return {f"{name}_length": dict.fromkeys(long, length) for name in self.names if long}

    def reflected(self, name: str) -> str:
        return name.replace("``", "`")  # SQLAlchemy leaves it escaped as in CREATE TABLE

    # ---- what the database refuses

    def check_table(self, dialect: Dialect, table: Table) -> None:
        _check_name("fact_table, master.name", table.name, "Give it another name in the job.")
        for column in table.columns:
            _check_name(f"{table.name}.{column.name}", column.name, RENAME)
        for index in table.indexes:
            columns = list(index.columns)
            most = KEY_COLUMNS * (2 if getattr(dialect, "is_mariadb", False) else 1)
            if len(columns) > most or sum(map(_key_bytes, columns)) > KEY_BYTES:
                raise ConfigError(
                    f"a key of {table.name}",
                    f"must have at most {most} columns and "
                    f"{KEY_BYTES:,} bytes in MySQL, which four columns of text are",
                    [c.name for c in columns],
                    "Name fewer key columns.",
                )

    def refusal(self, error: BaseException | None) -> tuple[str, str] | None:
        if "too many columns" in str(error).lower():  # several error numbers say so
            return "must have at most 1,017 columns in MySQL", FEWER
        return REFUSED.get(_number_of(error))

    def indexable(self, columns: Sequence[Column]) -> list[Column]:
        ends = accumulate(map(_key_bytes, columns[:KEY_COLUMNS]))
        return [c for c, end in zip(columns, ends, strict=False) if end <= KEY_BYTES]

    # ---- statements of this dialect

    @contextmanager
    def unsorted(self, connection: Connection, staging: Table) -> Iterator[Table]:
        yield staging

    def random(self) -> Any:
        return func.rand()

    def json_value(self, document: Any, name: str) -> Any:
        return func.json_extract(document, f"$.{json.dumps(name)}", type_=types.Text())

    def analyze(self, connection: Connection, table: Table) -> None:
        """Do nothing, because MySQL updates its row statistics itself."""

    def drop_temporary(self, connection: Connection, table: Table) -> None:
        # plain DROP TABLE would commit the transaction
        connection.exec_driver_sql("DROP TEMPORARY TABLE IF EXISTS " + _named(connection, table))

    @contextmanager
    def alone(self, engine: Engine, name: str) -> Iterator[Connection]:
        """Hold a named lock. A transaction would not suffice, because each statement about tables
        commits it."""
        with engine.connect() as connection:
            database = connection.scalar(select(func.database()))
            lock = f"{name} {database}"[:64]
            connection.scalar(select(func.get_lock(lock, LOCK_SECONDS)))
            try:
                yield connection
            finally:
                if not connection.invalidated:
                    connection.scalar(select(func.release_lock(lock)))

    @contextmanager
    def locked(self, engine: Engine, written: Table, read: Table) -> Iterator[Connection]:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"LOCK TABLES {_named(connection, written)} WRITE, {_named(connection, read)} READ"
            )
            yield connection
            connection.exec_driver_sql("UNLOCK TABLES")

    def await_writers(self, engine: Engine, table: str, column: str, first: int, last: int) -> None:
        """Count the rows with a lock until two counts are equal. The locking count waits for every
        transaction that has written a row in the range. An equal second count shows that no
        transaction was about to insert one."""
        quote, before = engine.dialect.identifier_preparer.quote, -1
        query = text(
            f"SELECT COUNT(*) FROM {quote(table)} WHERE {quote(column)} > :a AND "  # noqa: S608
            f"{quote(column)} <= :b LOCK IN SHARE MODE"
        )
        while True:
            with engine.connect().execution_options(
                isolation_level="REPEATABLE READ"
            ) as connection:
                count = int(connection.execute(query, {"a": first, "b": last}).scalar() or 0)
            if count == before:
                return
            before = count
            time.sleep(COUNT_INTERVAL)


def _number_of(error: BaseException | None) -> Any:
    return error.args[0] if error is not None and error.args else None


def _collation(dialect: Any) -> str:
    return "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"


def _named(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)


def _check_name(parameter: str, name: str, remedy: str) -> None:
    """Raise ConfigError for a name that MySQL does not allow, or under which it does not find the
    object again."""
    if len(name) > NAME_CHARACTERS:
        wrong = f"must have at most {NAME_CHARACTERS} characters in MySQL"
    elif not name or name[-1] in " \t\n\v\f\r":
        wrong = "must not be empty, and not end with a blank, in MySQL"
    elif any(c > "\uffff" or c in "\0\n" for c in name):
        wrong = "must have no line break and no character beyond U+FFFF in MySQL"
    else:
        return
    raise ConfigError(parameter, wrong, name, remedy)


def _key_bytes(column: Column) -> int:
    kind = column.type.impl if isinstance(column.type, types.TypeDecorator) else column.type
    length = getattr(column.type, "length", None) or KEY_BYTES_LENGTH
    if isinstance(kind, String):
        return length * CHARACTER_BYTES
    return length if isinstance(kind, types._Binary) else 8


def _finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))


# ---- rows out


def _fetch(
    connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    columns = list(query.selected_columns)
    text, too_long, found = _one_text(columns, schema), 0, 0
    for chunk in chunks(
        connection, query.with_only_columns(text, maintain_column_froms=True), rows
    ):
        texts = [r[0] for r in chunk if r[0] is not None]
        too_long += len(chunk) - len(texts)
        yield batch(from_text, _split(texts, schema), columns, schema)
    if not too_long:
        return
    # the server gives null in place of a text of more than max_allowed_packet
    apart = query.with_only_columns(
        *(_single_column(c, f.type) for c, f in zip(columns, schema, strict=True)),
        maintain_column_froms=True,
    ).where(text.is_(None))
    for chunk in chunks(connection, apart, rows, first=1):
        found += len(chunk)
        yield batch(_from_single, zip(*chunk, strict=True), columns, schema)
    if found != too_long:
        raise BulkError(
            f"{too_long} rows were longer than max_allowed_packet, and {found} when "
            "they were read by themselves: they changed meanwhile. Read them again."
        )


# PyMySQL spends 2 us a value: a row fetched as one text is fetched six times as fast.
ESCAPES = (("~", "~0"), ("\t", "~1"), ("\n", "~2"), ("\r", "~3"))  # undone in the opposite order
NULL = "~N"
# types whose texts have no character to escape
ONE_LINE = (
    types.Boolean,
    types.Integer,
    types.Numeric,
    types.Float,
    types.Date,
    types.DateTime,
    types.Time,
    mysql.BIT,
    mysql.YEAR,
)


def _is_one_line(kind: Any) -> bool:
    return isinstance(kind.impl if isinstance(kind, types.TypeDecorator) else kind, ONE_LINE)


def _one_text(columns: Sequence[Any], schema: pa.Schema) -> Any:
    """Return an SQL expression that joins a row's columns into one tab-separated text. The text is
    null if it is longer than the server can send."""
    texts = list[Any]()
    for column, field in zip(columns, schema, strict=True):
        text = _number(column)
        if pa.types.is_binary(field.type):
            text = func.hex(column)
        elif pa.types.is_string(field.type) and not _is_one_line(column.type):
            for character, escaped in ESCAPES:
                text = func.replace(text, character, escaped)
        # not coalesce: a value that is too long is null as well
        texts += ["\t", case((column.is_(None), NULL), else_=text)]
    return type_coerce(func.concat(*texts[1:]), types.Text())


def _number(column: Any) -> Any:
    """Return an SQL expression for a column: bits as a number, and a FLOAT with all its digits
    (MySQL shows only six)."""
    if isinstance(column.type, mysql.BIT):
        return type_coerce(column, types.Integer()) + literal_column("0")
    if isinstance(column.type, mysql.FLOAT):
        return column + literal_column("0e0")
    return column


def _single_column(column: Any, kind: pa.DataType) -> Any:
    """Return an SQL expression for one column as text or bytes."""
    if pa.types.is_binary(kind) or (pa.types.is_string(kind) and not _is_one_line(column.type)):
        return type_coerce(column, types.NullType())
    return type_coerce(func.concat(_number(column)), types.Text())


def _from_single(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    return from_text(pa.array(values, pa.string()), kind)


def _split(texts: list[str], schema: pa.Schema) -> Iterator[pa.Array]:
    """Yield the columns, as texts, of rows. texts: each row as one tab-separated text."""
    options = {
        # skips an empty first line: in the first line Arrow would remove U+FEFF
        "read_options": csv.ReadOptions(
            column_names=schema.names, use_threads=False, skip_rows=1, block_size=2**30
        ),
        "parse_options": csv.ParseOptions(
            delimiter="\t", quote_char=False, ignore_empty_lines=False
        ),
        "convert_options": csv.ConvertOptions(
            column_types={n: pa.string() for n in schema.names},
            null_values=[NULL],
            strings_can_be_null=True,
        ),
    }
    table = csv.read_csv(
        pa.BufferReader("\n".join(["", *texts, ""]).encode()), **options
    ).combine_chunks()
    for field, column in zip(schema, table.columns, strict=True):
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_string(field.type):
            for character, escaped in reversed(ESCAPES):
                column = pc.replace_substring(column, escaped, character)
        yield column


# ---- rows in


def _loads_files(connection: Connection) -> bool:
    info = connection.engine.__dict__.setdefault("_semistream", {})
    if "local_infile" not in info:
        info["local_infile"] = bool(connection.exec_driver_sql("SELECT @@local_infile").scalar())
    return bool(info["local_infile"])


def _load_data(connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
    name, *columns = quoted(connection, table.name, *data.column_names)
    binary = [pa.types.is_binary(t) for t in data.schema.types]
    targets = [f"@c{i}" if b else c for i, (c, b) in enumerate(zip(columns, binary, strict=True))]
    sets = [
        f"{c} = UNHEX(@c{i})" for i, (c, b) in enumerate(zip(columns, binary, strict=True)) if b
    ]
    with _piped(_lines(part) for part in parts(data)) as path:
        result = connection.exec_driver_sql(
            f"LOAD DATA LOCAL INFILE '{path}' {'REPLACE ' if replace else ''}INTO TABLE {name} "
            f"CHARACTER SET utf8mb4 ({', '.join(targets)})"
            + (f" SET {', '.join(sets)}" if sets else "")
        )
    # LOCAL makes the server skip or bend rows that it would refuse elsewhere, with a warning each.
    warnings = connection.exec_driver_sql("SHOW WARNINGS LIMIT 3").all()
    if warnings or (not replace and result.rowcount != data.num_rows):
        raise BulkError(
            f"{table.name}: {result.rowcount} of {data.num_rows} rows were loaded; "
            + "; ".join(w[2] for w in warnings)
        )


@contextmanager
def _piped(pieces: Iterator[memoryview]) -> Iterator[str]:
    """Yield the path of a file with these bytes. Each piece is computed while the server reads the
    previous one.

    The file can be read only once. An error in computing a piece is raised at the end, instead of
    the reader's error that it caused.
    """
    reader, writer = os.pipe()

    def write() -> None:
        # the statement failed, and says why
        with open(writer, "wb", buffering=0) as file, suppress(BrokenPipeError):
            for piece in pieces:
                while piece:
                    piece = piece[file.write(piece) :]

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        try:
            yield f"/dev/fd/{reader}"
        finally:
            os.close(reader)
            written.result()


def _lines(data: pa.Table) -> memoryview:
    r"""Return the rows in the default format of LOAD DATA: tab-separated, backslash-escaped, \N for
    null."""
    fields = [pc.fill_null(_text(plain(c)), "\\N") for c in data.columns]
    lines = (
        pc.binary_join_element_wise(*fields, "\t").combine_chunks()
        if len(fields) > 1
        else fields[0].combine_chunks()
    )
    lines = pc.binary_join_element_wise(lines, "", "\n")
    offsets = np.frombuffer(lines.buffers()[1], np.int32)
    return memoryview(lines.buffers()[2])[
        offsets[lines.offset] : offsets[lines.offset + len(lines)]
    ]


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    k = column.type
    if pa.types.is_boolean(k):
        return column.cast(pa.int8()).cast(pa.string())
    if pa.types.is_floating(k):
        column = _finite(column)
    if pa.types.is_binary(k):
        return pa.chunked_array([hex_texts(column)])
    if not pa.types.is_string(k):
        return column.cast(pa.string())
    for character, escaped in (
        ("\\", "\\\\"),
        ("\t", "\\t"),
        ("\n", "\\n"),
        ("\r", "\\r"),
        ("\0", "\\0"),
    ):
        column = pc.replace_substring(column, character, escaped)
    return column


def _insert(connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
    name, *columns = quoted(connection, table.name, *data.column_names)
    # PyMySQL makes one INSERT of many rows from a statement of this form.
    verb = "REPLACE" if replace else "INSERT"
    places = ", ".join(["%s"] * len(columns))
    statement = f"{verb} INTO {name} ({', '.join(columns)}) VALUES ({places})"
    for rows in parts(data):
        part = [plain(c) for c in rows.columns]
        part = [_finite(c) if pa.types.is_floating(c.type) else c for c in part]
        connection.exec_driver_sql(
            statement, list(zip(*[python_values(c) for c in part], strict=True))
        )
