"""The operations that a warehouse needs from a database system. Each system's file holds everything
that is special to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa
from sqlalchemy import URL, Column, Connection, Dialect, Engine, Select, Table


class System(Protocol):
    """A database system.

    title: its display name; names: its dialects in SQLAlchemy; url: the prefix of its URLs;
    no_number: a sentence about the numbers that it stores as null; name_length: the most characters
    in the name of an index.
    """

    title: str
    names: tuple[str, ...]
    url: str
    no_number: str
    name_length: int

    def engine(self, url: URL) -> Engine:
        """Return an engine, which has opened no connection yet."""

    def limit_reads(self, engine: Engine, seconds: int) -> None:
        """Limit how long a read waits for a silent server, in seconds."""

    def is_transient(self, error: BaseException | None) -> bool:
        """Return whether the transaction may succeed if it is run again."""

    def insert(self, connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
        """Insert rows, whose columns have the names of the table's. replace: a row replaces the one
        with the same unique key. Raises BulkError or a DBAPIError."""

    def fetch(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Give a query's rows in the types of `schema`, in batches of at most `rows`."""

    def fetch_texts(
        self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Give a query's rows with each value as its exact text, and bytes as bytes."""

    def given_back(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values that the database returns after these were written."""

    def lost(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return, for each number of a floating column, whether the database stores it as null
        although it is not."""

    def key_string(self, dialect: Dialect, length: int) -> Any:
        """Return the column type of a text that is compared byte by byte and can be indexed."""

    def long_string(self, dialect: Dialect) -> Any:
        """Return the column type of a text of any length that is compared byte by byte."""

    def decimal_is_text(self, precision: int) -> bool:
        """Return whether decimals of `precision` digits are stored as text."""

    def variant(self, kind: Any) -> Any:
        """Return the system's own type that replaces a general one, or None."""

    def arrow_type(self, kind: Any) -> pa.DataType | None:
        """Return the Arrow type of one of the system's own column types; None for a general
        type."""

    def table_options(self, clustered: bool, numbered: bool) -> dict[str, Any]:
        """Return SQLAlchemy's options for a new table. clustered: the rows are stored in the order
        of the primary key where the system can; numbered: the automatic primary key never gets a
        number twice."""

    def index_options(self, long: Collection[str], length: int) -> dict[str, Any]:
        """Return SQLAlchemy's options for a new index. long: those of its columns that are texts or
        bytes of any length; length: the most that a column of a key has."""

    def reflected(self, name: str) -> str:
        """Return the true name of a column whose name SQLAlchemy has read from an existing
        table."""

    def check_table(self, dialect: Dialect, table: Table) -> None:
        """Raise ConfigError for a table that the system would refuse because of a name or a key."""

    def refusal(self, error: BaseException | None) -> tuple[str, str] | None:
        """Return (the limit that was exceeded, the remedy) if an error says that the database has
        no room for a table's columns or for one of its rows; else None."""

    def indexable(self, columns: Sequence[Column]) -> list[Column]:
        """Return the longest prefix of these columns that one index can hold."""

    def unsorted(self, connection: Connection, staging: Table) -> AbstractContextManager[Table]:
        """Give the table into which rows in any order are written so that a temporary table has
        them at the exit. It is another table, without a key, where it is slow to write rows in
        random order; then the last one of the rows with the same key is moved."""

    def random(self) -> Any:
        """Return an SQL expression that is a random number for each row, to order by."""

    def json_value(self, document: Any, name: str) -> Any:
        """Return an SQL expression that is the JSON text of a field of a JSON object; null where
        the object lacks it."""

    def analyze(self, connection: Connection, table: Table) -> None:
        """Update the database's statistics of a table where it does not do so by itself."""

    def drop_temporary(self, connection: Connection, table: Table) -> None:
        """Drop a temporary table if it exists, without ending the transaction."""

    def alone(self, engine: Engine, name: str) -> AbstractContextManager[Connection]:
        """Open a connection that excludes all other processes that call this with the same name."""

    def locked(
        self, engine: Engine, written: Table, read: Table
    ) -> AbstractContextManager[Connection]:
        """Begin a transaction during which no other one writes to these two tables."""

    def await_writers(self, engine: Engine, table: str, column: str, first: int, last: int) -> None:
        """Wait until no transaction is still writing a row whose `column` is above `first` and at
        most `last`."""
