"""What a warehouse asks of a database system. One file a system has all that is its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa
from sqlalchemy import URL, Column, Connection, Dialect, Engine, Select, Table


class System(Protocol):
    """A database system.

    title: for people; names: of its dialects in SQLAlchemy; url: how its URLs begin; no_number:
    which numbers it stores as null, in a sentence; one_writer: whether a transaction that writes
    excludes others, and rows that come in no order are slow to write.
    """

    title: str
    names: tuple[str, ...]
    url: str
    no_number: str
    one_writer: bool

    def engine(self, url: URL) -> Engine:
        """Return an engine, which has opened no connection yet."""

    def limit_reads(self, engine: Engine, seconds: int) -> None:
        """Give up reading from a server that is silent for so long."""

    def is_transient(self, error: BaseException | None) -> bool:
        """Return whether the same transaction may succeed when it is tried again."""

    def insert(self, connection: Connection, table: Table, data: pa.Table, replace: bool) -> None:
        """Insert rows, whose columns are named like the table's. replace: a row takes the place of
        the one with its unique key. Raises BulkError or a DBAPIError."""

    def fetch(self, connection: Connection, query: Select[*tuple[Any, ...]], schema: pa.Schema,
              rows: int) -> Iterator[pa.RecordBatch]:
        """Give a query's rows in the types of `schema`, at most so many at a time."""

    def fetch_texts(self, connection: Connection, query: Select[*tuple[Any, ...]],
                    schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
        """Give the same with every value as the text that shows it exactly, and bytes as bytes."""

    def given_back(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values that it gives back of what was written."""

    def lost(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return which numbers of a floating column it stores as null, of those that are not."""

    def key_string(self, dialect: Dialect, length: int) -> Any:
        """Return the column type of a text that is compared byte by byte and can be indexed."""

    def long_string(self, dialect: Dialect) -> Any:
        """Return the column type of a text of any length that is compared byte by byte."""

    def decimal_is_text(self, precision: int) -> bool:
        """Return whether decimals of so many digits are stored as text."""

    def variant(self, kind: Any) -> Any:
        """Return the type of its own that takes the place of a general one, or None."""

    def arrow_type(self, kind: Any) -> pa.DataType | None:
        """Return the Arrow type of a column type of its own; None: that of the general one."""

    def reflected(self, name: str) -> str:
        """Return the name of a column that SQLAlchemy has read from an existing table."""

    def check_table(self, dialect: Dialect, table: Table) -> None:
        """Raise ConfigError for a table that it would refuse because of a name or a key."""

    def refusal(self, error: BaseException | None) -> tuple[str, str] | None:
        """Return (what a table must have, the remedy) where an error says that it has no room for a
        table's columns or for one of its rows."""

    def indexable(self, columns: Sequence[Column]) -> list[Column]:
        """Return the first of these columns, as many as it indexes together."""

    def random(self) -> Any:
        """Return a random number for each row, to order by."""

    def analyze(self, connection: Connection, table: Table) -> None:
        """Let it know how many rows a table has, where it does not find out by itself."""

    def drop_temporary(self, connection: Connection, table: Table) -> None:
        """Drop a temporary table, if it is there, within the transaction."""

    def alone(self, engine: Engine, name: str) -> AbstractContextManager[Connection]:
        """Open a connection while no other process is in here by the same name."""

    def locked(self, engine: Engine, written: Table,
               read: Table) -> AbstractContextManager[Connection]:
        """Begin a transaction while no other one writes to these two tables."""

    def await_writers(self, engine: Engine, table: str, column: str, first: int,
                      last: int) -> None:
        """Wait until no transaction is still writing a row with `column` above `first` and up to
        `last`."""
