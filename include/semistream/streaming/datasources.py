"""Streaming sources of our own, as Spark Python data sources: the seeded Zipf generator, and an outbox table in SQL.

Both have one number as their offset, so that a micro-batch that is read again has the same tuples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from sqlalchemy import Connection, Engine, func, select, text

from semistream.errors import ConfigError
from semistream.warehouse.bulk import fetch
from semistream.warehouse.connect import connect
from semistream.warehouse.tables import arrow_schema, existing_table
from semistream.workloads import ZipfKeys

BLOCK = 65_536  # tuples made at a time


class Range(InputPartition):
    """Ids in (start, end]."""

    def __init__(self, start: int, end: int):
        self.start, self.end = start, end


class RangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads ids in (start, end], at most ``rowsPerBatch`` of them in a micro-batch, split over ``partitions`` tasks."""

    def __init__(self, options: dict[str, str]):
        self.most = _whole(options, "rowsPerBatch", 0)
        self.tasks = _whole(options, "partitions", 1, least=1)
        self.available_now = False
        self.target: int | None = None

    def newest(self, start: int) -> int:
        """The highest id that may be read now, at least ``start``."""
        raise NotImplementedError

    def initialOffset(self) -> dict[str, int]:
        return {"id": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.most) if self.most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.available_now = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        newest = self.newest(start["id"]) if self.target is None else self.target
        if self.available_now:
            self.target = newest
        if isinstance(limit, ReadMaxRows):
            newest = min(newest, start["id"] + limit.max_rows)
        return {"id": max(newest, start["id"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        low, high = start["id"], end["id"]
        edges = [low + (high - low) * i // self.tasks for i in range(self.tasks + 1)]
        return [Range(a, b) for a, b in pairwise(edges) if a < b]


# ---- Zipf


class ZipfSource(DataSource):
    """``zipf``: tuples (id BIGINT, key BIGINT, value DOUBLE), ids 1, 2, 3 …, keys as ``workloads.ZipfKeys`` draws them.

    Options: rows (total; 0: without end), keys (R_t, default 1000000), exponent (default 1), seed, scattered (true: frequent keys
    lie apart), rowsPerBatch, rowsPerSecond (0: as fast as they are read), partitions.
    """

    @classmethod
    def name(cls) -> str:
        return "zipf"

    def schema(self) -> str:
        return "id BIGINT, key BIGINT, value DOUBLE"

    def streamReader(self, schema: StructType) -> ZipfReader:
        return ZipfReader(dict(self.options))


class ZipfReader(RangeReader):
    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self.rows, self.rate = _whole(options, "rows", 0), float(_option(options, "rowsPerSecond", "0"))
        self.keys = ZipfKeys(_whole(options, "keys", 1_000_000, least=1), float(_option(options, "exponent", "1")),
                             _whole(options, "seed", 0), _option(options, "scattered", "false").lower() == "true")
        if not self.rows and not self.rate and not self.most:
            raise ConfigError("rows", "must be given for a Zipf stream without rowsPerSecond or rowsPerBatch", 0,
                              "Bound the stream in all, per second, or per micro-batch.")
        self._clock: tuple[float, int] | None = None

    def newest(self, start: int) -> int:
        newest = self.rows or start + (self.most or 2**40)
        if self.rate:
            self._clock = self._clock or (time.monotonic(), start)
            newest = min(newest, self._clock[1] + int(self.rate * (time.monotonic() - self._clock[0])))
        return newest

    def prepareForTriggerAvailableNow(self) -> None:
        if not self.rows:
            raise ConfigError("rows", "must be given for a Zipf stream with trigger availableNow", 0, "Say how many.")
        self.target = self.rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        for start in range(partition.start, partition.end, BLOCK):
            yield zipf_tuples(self.keys, start, min(start + BLOCK, partition.end))


def zipf_tuples(keys: ZipfKeys, start: int, end: int) -> pa.RecordBatch:
    """The tuples with ids in (start, end]."""
    ids = np.arange(start + 1, end + 1, dtype=np.int64)
    value = ids * 0.6180339887498949 % 1.0
    columns = [pa.array(ids), pa.array(keys.draw(start, end - start)), pa.array(value)]
    return pa.record_batch(columns, names=["id", "key", "value"])


# ---- outbox


class OutboxSource(DataSource):
    """``outbox``: rows of a SQL table in the order of its auto-increment id.

    Options: table, id (default "id"), url (default: the warehouse, $WAREHOUSE_URL; or urlVariable, the environment variable that
    holds it, so that no password is an option), rowsPerBatch, partitions. Rows are never changed or deleted by the reader.
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


class OutboxReader(RangeReader):
    def __init__(self, options: dict[str, str], schema: StructType):
        super().__init__(options)
        self.options, self.schema = options, to_arrow_schema(schema, timezone="UTC")

    def newest(self, start: int) -> int:
        """The highest id below which no transaction is still writing.

        Ids are given out before commit, so that a lower id may appear after a higher one was seen. The locking count waits for
        whoever holds a row up to that id; counted again without change, after the lock was let go, nobody was about to insert.
        """
        engine, table, column = _outbox(self.options)
        try:
            with engine.connect() as connection:
                newest = connection.execute(select(func.max(column))).scalar()
            if newest is None or newest <= start:
                return start
            if engine.dialect.name == "sqlite":  # one writer: ids become visible in order
                return int(newest)
            before = -1
            while (count := _settled_count(engine, table.name, column.name, start, newest)) != before:
                before = count
                time.sleep(0.02)
            return int(newest)
        finally:
            engine.dispose()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        engine, table, column = _outbox(self.options)
        columns = [table.c[n] for n in self.schema.names]
        query = select(*columns).where(column > partition.start, column <= partition.end).order_by(column)
        try:
            with engine.connect() as connection:
                yield from fetch(connection, query, self.schema)
        finally:
            engine.dispose()


def _settled_count(engine: Engine, table: str, column: str, start: int, newest: int) -> int:
    quote = engine.dialect.identifier_preparer.quote
    table, column = quote(table), quote(column)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        query = text(f"SELECT COUNT(*) FROM {table} WHERE {column} > :a AND {column} <= :b LOCK IN SHARE MODE")
        return int(_scalar(connection, query, {"a": start, "b": newest}))


def _scalar(connection: Connection, query: Any, values: dict[str, Any]) -> Any:
    return connection.execute(query, values).scalar()


def _outbox(options: dict[str, str]) -> tuple[Engine, Any, Any]:
    """Engine, table and id column. Raises ConfigError where they are not there."""
    engine = connect(_resolved(options)["url"])
    name = _option(options, "table", "")
    if not name:
        raise ConfigError("table", "must be given for an outbox", "", "Add --source-options table=NAME.")
    table = existing_table(engine, name)
    column = _option(options, "id", "id")
    if column not in table.c:
        raise ConfigError("id", f"must be a column of {name}", column, f"It has: {', '.join(c.name for c in table.columns)}.")
    return engine, table, table.c[column]


def _resolved(options: dict[str, str]) -> dict[str, str]:
    """The options with the URL that they stand for; executors need not have the driver's environment."""
    url = _option(options, "url", "") or os.environ.get(_option(options, "urlVariable", "WAREHOUSE_URL"), "")
    if not url:
        raise ConfigError("url", "must be given for an outbox", "", "Set WAREHOUSE_URL, or the variable that urlVariable names.")
    return options | {"url": url}


def _option(options: dict[str, str], name: str, default: str) -> str:
    """Spark hands option names on in lower case."""
    return next((v for k, v in options.items() if k.lower() == name.lower()), default)


def _whole(options: dict[str, str], name: str, default: int, least: int = 0) -> int:
    value = _option(options, name, str(default))
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(name, f"must be a whole number of at least {least}", value, "It is an option of the source.")
    return number
