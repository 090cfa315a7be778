"""The operations that a warehouse needs from a database system. Everything specific to a system is
in that system's module."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa
from sqlalchemy import URL, Column, Connection, Dialect, Engine, Select, Table


class System(Protocol):
    """A database system.

    title: its display name; names: its dialects in SQLAlchemy; url: the prefix of its URLs;
    no_number: a sentence about the numbers that it stores as null; name_length: the largest number
    of characters in the name of an index.
    """

    title: str
    names: tuple[str, ...]
    url: str
    no_number: str
    name_length: int

    def may_exist(self, url: URL) -> bool:
        """Return whether the database may exist. That it does not is only known of a local file."""

    def engine(self, url: URL) -> Engine:
        """Return an engine that has not opened a connection yet."""

    def limit_reads(self, engine: Engine, seconds: int) -> None:
        """Limit how long a read waits for a silent server, in seconds."""

    def warm_up(self) -> None:
        """Load what moves many rows, so that the first ones need not wait for it."""

    def is_transient(self, error: BaseException | None) -> bool:
        """Return whether the transaction may succeed if it is repeated after this error."""

    def insert(self, connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
        """Insert rows, whose columns have the names of the table's columns. replace: whether a row
        replaces an existing row with the same unique key. Raises BulkError or a DBAPIError."""

    def fetch(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield a query's rows in the types of `schema`, in batches of at most `rows`."""

    def fetch_texts(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield a query's rows with each value as its exact text, and bytes as bytes."""

    def given_back(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values that the database returns after storing these values."""

    def lost(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return, for each number of a floating column, whether the database stores a number that
        is not null as null."""

    def key_string(self, dialect: Dialect, length: int) -> Any:
        """Return the column type of a text that is compared byte by byte and can be indexed."""

    def long_string(self, dialect: Dialect) -> Any:
        """Return the column type of a text of any length that is compared byte by byte."""

    def decimal_is_text(self, precision: int) -> bool:
        """Return whether decimals of `precision` digits are stored as text."""

    def variant(self, kind: Any) -> Any:
        """Return the system's column type that replaces a general one; None if there is none."""

    def arrow_type(self, kind: Any) -> pa.DataType | None:
        """Return the Arrow type of a column type that only this system has; None for a general
        type."""

    def table_options(self, clustered: bool, numbered: bool) -> dict[str, Any]:
        """Return SQLAlchemy's options for a new table. clustered: whether the rows are stored in
        the order of the primary key, if the system can; numbered: whether the automatic primary key
        never uses a number twice."""

    def index_options(self, long: Collection[str], length: int) -> dict[str, Any]:
        """Return SQLAlchemy's options for a new index. long: those of its columns that are texts or
        bytes of any length; length: the largest length that is indexed of such a column."""

    def reflected(self, name: str) -> str:
        """Return the true name of a column. name: the name that SQLAlchemy has read from an
        existing table."""

    def check_table(self, dialect: Dialect, table: Table) -> None:
        """Raise ConfigError for a table that the system would refuse because of a name or a key."""

    def refusal(self, error: BaseException | None) -> tuple[str, str] | None:
        """Return (the exceeded limit, the remedy) if an error says that the database has no room
        for a table's columns or for one of its rows; otherwise None."""

    def indexable(self, columns: Sequence[Column]) -> list[Column]:
        """Return the longest prefix of these columns that one index can hold."""

    def unsorted(self, connection: Connection, staging: Table) -> AbstractContextManager[Table]:
        """Yield a table for writing rows in any order; at the exit the temporary table ``staging``
        contains them. If the system writes rows in random order slowly, it yields another table,
        without a key, and moves the rows at the exit: of rows with the same key the last one."""

    def random(self) -> Any:
        """Return an SQL expression that gives a random number for each row, for ordering."""

    def json_value(self, document: Any, name: str) -> Any:
        """Return an SQL expression that gives the JSON text of a field of a JSON object; null if
        the object lacks the field."""

    def analyze(self, connection: Connection, table: Table) -> None:
        """Update the database's statistics of a table, unless the system updates them itself."""

    def drop_temporary(self, connection: Connection, table: Table) -> None:
        """Drop a temporary table if it exists, without ending the transaction."""

    def alone(self, engine: Engine, name: str) -> AbstractContextManager[Connection]:
        """Open a connection that excludes all other processes that call this method with the same
        name."""

    def locked(
        self, engine: Engine, written: Table, read: Table
    ) -> AbstractContextManager[Connection]:
        """Begin a transaction during which no other transaction writes to these two tables."""

    def await_writers(self, engine: Engine, table: str, column: str, first: int, last: int) -> None:
        """Wait until no transaction is still writing a row whose `column` is above `first` and at
        most `last`."""
