"""An outbox table in SQL as a source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError

from semistream.errors import ConfigError, check_name
from semistream.streaming.sources.contract import RECOUNT_ROWS
from semistream.streaming.sources.ranges import NumberedSource, Range, RangeReader, option
from semistream.warehouse.bulk import fetch
from semistream.warehouse.dialects import connect, system_of
from semistream.warehouse.tables import arrow_schema, existing_table


class OutboxDataSource(DataSource):
    """``outbox``: rows of a SQL table in the order of its auto-increment id.

    Options: table, id (default "id"), url (default: the warehouse, $WAREHOUSE_URL; or urlVariable,
    the environment variable that holds the URL, so that no password is an option), rowsPerBatch,
    partitions. The reader never changes or deletes rows.
    """

    @classmethod
    def name(cls) -> str:
        return "outbox"

    def schema(self) -> StructType:
        engine, table, _ = _outbox(dict(self.options))
        engine.dispose()
        return from_arrow_schema(arrow_schema(table))

    def streamReader(self, schema: StructType) -> OutboxReader:
        return OutboxReader(_resolved(dict(self.options)), schema)


class Outbox(NumberedSource):
    data_source = OutboxDataSource

    def check(self, max_files: int = 0, max_rows: int = 0) -> None:
        with suppress(DBAPIError):  # a database that is away may be back when Spark asks it
            super().check(max_files, max_rows)

    def label(self, split: Range) -> str:
        return f"{option(self.spec.all_options(), 'table', '')}, {split.label}"

    def read_again(
        self, split: Range, columns: tuple[str, ...], warehouse: Engine
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        options = self.spec.all_options()
        url = option(options, "url", "") or os.environ.get(option(options, "urlVariable", ""), "")
        engine = connect(url) if url else warehouse
        table = existing_table(engine, option(options, "table", ""))
        column = table.c[option(options, "id", "id")]
        schema = pa.schema([f for f in arrow_schema(table) if f.name in columns])
        query = select(*(table.c[n] for n in schema.names or [column.name])).where(
            column > split.start, column <= split.end
        )
        try:
            with engine.connect() as connection:
                for batch in fetch(connection, query, schema, RECOUNT_ROWS):
                    yield len(batch), batch
        finally:
            if engine is not warehouse:
                engine.dispose()


class OutboxReader(RangeReader):
    def __init__(self, options: dict[str, str], schema: StructType):
        super().__init__(options)
        self.options, self.schema = options, to_arrow_schema(schema, timezone="UTC")

    def newest(self, start: int) -> int:
        """Return the highest id up to which no transaction is still writing.

        Ids are assigned before the commit, so that a lower id may appear after a higher one.
        """
        engine, table, column = _outbox(self.options)
        try:
            with engine.connect() as connection:
                newest = connection.execute(select(func.max(column))).scalar()
            if newest is None or newest <= start:
                return start
            system_of(engine).await_writers(engine, table.name, column.name, start, newest)
            return int(newest)
        finally:
            engine.dispose()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        engine, table, column = _outbox(self.options)
        columns = [table.c[n] for n in self.schema.names]
        query = (
            select(*columns)
            .where(column > partition.start, column <= partition.end)
            .order_by(column)
        )
        try:
            with engine.connect() as connection:
                yield from fetch(connection, query, self.schema)
        finally:
            engine.dispose()


def _outbox(options: dict[str, str]) -> tuple[Engine, Any, Any]:
    """Return engine, table and id column. Raises ConfigError if they do not exist."""
    engine = connect(_resolved(options)["url"])
    name = option(options, "table", "")
    if not name:
        raise ConfigError(
            "table", "must be given for an outbox", "", "Add --source-options table=NAME."
        )
    table = existing_table(engine, name)
    column = option(options, "id", "id")
    check_name("id", f"must be a column of {name}", column, table.c.keys())
    return engine, table, table.c[column]


def _resolved(options: dict[str, str]) -> dict[str, str]:
    """Return the options with the URL filled in, because executors may not have the driver's
    environment variables."""
    url = option(options, "url", "") or os.environ.get(
        option(options, "urlVariable", "WAREHOUSE_URL"), ""
    )
    if not url:
        raise ConfigError(
            "url",
            "must be given for an outbox",
            "",
            "Set WAREHOUSE_URL, or the variable that urlVariable names.",
        )
    return options | {"url": url}
