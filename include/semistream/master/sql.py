"""R straight from a SQL table, by keyset pages."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, inspect, or_, select

from semistream.errors import ConfigError, StateError
from semistream.keys import master_keys
from semistream.warehouse.bulk import fetch
from semistream.warehouse.tables import arrow_schema, existing_table
from semistream.warehouse.types import sql_type

PARTITION_TUPLES = 8192


class SqlRelation:
    """A ``MasterRelation`` over a table, whose partitions are runs of its rows in the order of the join columns.

    Where a partition starts and ends is found in one pass at open; reading it is ``WHERE key > … AND key <= … ORDER BY key``,
    never OFFSET. Rows with the same key are told apart by the primary key. The table needs an index on the join columns and must
    not change while it is open: a partition that grew raises StateError.
    Memory: the borders, 16 bytes a partition; for keys without an order also 12 bytes a tuple, once ``partitions_of`` is called.
    """

    version = "live"

    def __init__(self, engine: Engine, table: str, on: Sequence[str], partition_tuples: int = PARTITION_TUPLES,
                 name: str | None = None, schema: pa.Schema | None = None):
        self._engine, self._table = engine, existing_table(engine, table)
        self.name, self.schema = name or table, schema or arrow_schema(self._table)
        self.keys = master_keys(self.schema, list(on))
        for f in self.schema:  # a given schema says how values are bound, where reflection cannot know
            self._table.c[f.name].type = sql_type(f, key=True)
        self._order = [self._table.c[c] for c in dict.fromkeys((*on, *_primary_key(engine, table)))]
        self._order_schema = pa.schema([self.schema.field(c.name) for c in self._order])
        self._connection: Connection | None = None
        self._index: tuple[np.ndarray, np.ndarray] | None = None
        self.bytes_read = 0
        self._cut(partition_tuples)

    buffers = 1

    def with_partition(self, tuples: int) -> SqlRelation:
        """The same table in partitions of that many tuples."""
        other = copy.copy(self)
        other._connection, other._index, other.bytes_read = None, None, 0
        other._cut(tuples)
        return other

    @property
    def sequential(self) -> bool:
        return False

    def read_codes(self, partition: int) -> np.ndarray:
        """Key codes of a partition's tuples, int64[n]."""
        return self.keys.master_codes(self.read(partition, self.keys.master))[0]

    def read(self, partition: int, columns: Sequence[str]) -> pa.RecordBatch:
        """The named columns of a partition's tuples, in the order of ``read_codes``."""
        columns = list(dict.fromkeys(columns))
        for c in columns:
            if c not in self.schema.names:
                raise ConfigError("columns", f"must name columns of {self.name}", c, f"It has: {', '.join(self.schema.names)}.")
        wanted = columns or [self._order[0].name]
        query = select(*[self._table.c[c] for c in wanted]).where(*self._range(partition)).order_by(*self._order)
        batch = self._fetch(query, pa.schema([self.schema.field(c) for c in wanted]), self._rows[partition] + 1)
        if batch.num_rows != self._rows[partition]:
            raise StateError(f"{self.name} changed while it was joined: partition {partition} had {self._rows[partition]} rows")
        self.bytes_read += batch.nbytes
        return batch.select(columns)

    def pages(self, partition: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        return [self.read(partition, columns)]

    def prefetch(self, partitions: Sequence[int], columns: Sequence[str]) -> None:
        pass

    def partitions_of(self, codes: np.ndarray) -> np.ndarray:
        """The partitions that may hold each key code, int32[n, 2] as (first, last + 1); from memory."""
        if self._ordered:
            first = np.searchsorted(self._last, codes, "left")
            last = np.searchsorted(self._first, codes, "right")
        else:
            first, last = self._hashed_partitions(codes)
        out = np.stack([first, last], axis=1).astype(np.int32)
        out[out[:, 0] >= out[:, 1]] = 0
        return out

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ---- the pass at open

    def _cut(self, partition_tuples: int) -> None:
        if partition_tuples < 1:
            raise ConfigError("partition_tuples", "must be at least 1", partition_tuples,
                              "It is d, the tuples read per iteration.")
        borders: list[tuple[Any, ...]] = []
        first: list[int] = []
        last: list[int] = []
        rows: list[int] = []
        size, widest, ordered = 0, 0, self.keys.exact
        query = select(*[self._table.c[c] for c in self.schema.names]).where(*self._with_key()).order_by(*self._order)
        unique, before = True, None
        with self._engine.connect() as connection:
            for batch in fetch(connection, query, self.schema, partition_tuples):
                order = batch.select([c.name for c in self._order])
                unique, before = self._watch(batch, order, unique, before, bool(borders))
                key_codes, _ = self.keys.master_codes(batch)
                ordered = ordered and bool((np.diff(key_codes) >= 0).all() and (not last or last[-1] <= key_codes[0]))
                borders.append(tuple(order.slice(batch.num_rows - 1).to_pylist()[0].values()))
                first.append(int(key_codes[0]))
                last.append(int(key_codes[-1]))
                rows.append(batch.num_rows)
                size, widest = size + batch.nbytes, max(widest, batch.nbytes)
        self._borders, self._rows, self._ordered = borders, rows or [0], ordered  # SQLite orders long decimals as text
        self._first, self._last = np.array(first, np.int64), np.array(last, np.int64)
        self.tuple_count, self.unique = sum(rows), unique
        self.tuple_bytes = size / self.tuple_count if self.tuple_count else 0.0
        self.partition_count = max(1, len(rows))
        self.partition_tuples, self.partition_bytes = max(self._rows), widest + 8 * max(self._rows)

    def _watch(self, batch: pa.RecordBatch, order: pa.RecordBatch, unique: bool, before: Any, several: bool) -> tuple[bool, Any]:
        """Whether keys are unique so far; the rows come in their order, so that equal keys are neighbours."""
        key_columns = list(self.keys.master)
        last = tuple(batch.slice(batch.num_rows - 1).select(key_columns).to_pylist()[0].values())
        first = tuple(batch.slice(0, 1).select(key_columns).to_pylist()[0].values())
        distinct = pa.Table.from_batches([batch.select(key_columns)]).group_by(key_columns).aggregate([]).num_rows
        unique = unique and distinct == batch.num_rows and first != before
        if not unique and len(self._order) == len(key_columns):
            raise ConfigError("table", "must have a primary key where its join columns are not unique", self.name, "Add one.")
        return unique, last

    def _with_key(self) -> list[ColumnElement[bool]]:
        return [self._table.c[c].is_not(None) for c in self.keys.master]

    def _range(self, partition: int) -> list[ColumnElement[bool]]:
        conditions = self._with_key()
        if not self._borders:
            return conditions
        if partition:
            conditions += _beyond(self._order, self._borders[partition - 1])
        return conditions + _up_to(self._order, self._borders[partition])

    def _fetch(self, query: Select[*tuple[Any, ...]], schema: pa.Schema, rows: int) -> pa.RecordBatch:
        if self._connection is None:
            self._connection = self._engine.connect()
        batches = list(fetch(self._connection, query, schema, rows))
        self._connection.rollback()  # no snapshot of the database is held from one partition to the next
        return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema)

    def _hashed_partitions(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hashes say nothing of the key's order: a sorted array of every tuple's code, with its partition."""
        if self._index is None:
            parts = [self.read_codes(i) for i in range(self.partition_count)]
            every = np.concatenate(parts)
            partition = np.repeat(np.arange(len(parts), dtype=np.int32), [len(p) for p in parts])
            order = np.argsort(every, kind="stable")  # stable: the partitions of one code stay in order
            self._index = every[order], partition[order]
        every, partition = self._index
        low, high = np.searchsorted(every, codes, "left"), np.searchsorted(every, codes, "right")
        found = low < high
        if not len(every):
            return np.zeros(len(codes), np.int32), np.zeros(len(codes), np.int32)
        return (np.where(found, partition[np.minimum(low, len(every) - 1)], 0),
                np.where(found, partition[np.maximum(high, 1) - 1] + 1, 0))


def _beyond(columns: Sequence[Any], values: Sequence[Any]) -> list[ColumnElement[bool]]:
    """(columns) > (values). The first condition alone is what the database searches its index for."""
    if len(columns) == 1:
        return [columns[0] > values[0]]
    return [columns[0] >= values[0], or_(columns[0] > values[0], and_(*_beyond(columns[1:], values[1:])))]


def _up_to(columns: Sequence[Any], values: Sequence[Any]) -> list[ColumnElement[bool]]:
    """(columns) <= (values)."""
    if len(columns) == 1:
        return [columns[0] <= values[0]]
    return [columns[0] <= values[0], or_(columns[0] < values[0], and_(*_up_to(columns[1:], values[1:])))]


def _primary_key(engine: Engine, table: str) -> list[str]:
    found = inspect(engine)
    return found.get_pk_constraint(table)["constrained_columns"] if table in found.get_table_names() else []
