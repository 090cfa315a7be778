"""Short-lived tables in the warehouse that the expectations compare with: ids of the source, a
sample, master rows.

GX opens separate connections, so that these cannot be temporary tables. They are named
quality_<epoch>_<pid>_… and dropped after the run. The tables of a run that was killed are dropped
by a later run.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Column, FromClause, Index, func, insert, select

from semistream.quality.scope import Scope
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.dialects import name_length, system_of, table_options
from semistream.warehouse.load_ids import last_load
from semistream.warehouse.schema import load_batches

ROWS_AT_ONCE = 50_000
STALE_SECONDS = 86_400
FACTS_AT_ONCE = 1_000_000  # copied in one transaction, approximately


@dataclass
class Staging:
    """The staging tables of one run, which are dropped at its end. notes: notes for a reader of the
    report; unseen: descriptions of what could not be checked, which the verdict does not cover;
    passing: those of them that the next verification looks at again, whichever batches it
    verifies."""

    engine: sa.Engine
    prefix: str = field(default_factory=lambda: f"quality_{int(time.time())}_{os.getpid()}")
    metadata: sa.MetaData = field(default_factory=sa.MetaData)
    notes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    passing: list[str] = field(default_factory=list)

    def reserve(self, what: str, *, passing: bool = False) -> None:
        """Record a description of something that could not be checked. The verdict does not cover
        it. passing: whether it is about the source or the checkpoint as they are now, which every
        verification looks at as a whole."""
        self.notes.append(what)
        self.unseen.append(what.rstrip("."))
        if passing:
            self.passing.append(self.unseen[-1])

    def __enter__(self) -> Staging:
        drop_stale(self.engine)
        return self

    def __exit__(self, *_: object) -> None:
        self.metadata.drop_all(self.engine)

    def table(self, name: str, *columns: Column, rows: Iterable[Sequence[Any]] = ()) -> sa.Table:
        """Create a table with these rows."""
        table = sa.Table(f"{self.prefix}_{name}", self.metadata, *columns, **table_options())
        table.create(self.engine)
        self.insert(table, rows)
        return table

    def insert(self, table: sa.Table, rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows in several short transactions, because a loader may be waiting to write."""
        names, rows = [c.name for c in table.columns], iter(rows)
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            with self.engine.begin() as connection:
                connection.execute(
                    insert(table), [dict(zip(names, row, strict=True)) for row in chunk]
                )

    def fill(self, table: sa.Table, query: sa.Select, *columns: str) -> None:
        """Insert the rows of a query. columns: the table's columns to fill, in the query's order;
        by default all."""
        with self.engine.begin() as connection:
            connection.execute(table.insert().from_select(columns or table.columns.keys(), query))

    def write(self, table: sa.Table, rows: pa.RecordBatch | pa.Table) -> None:
        """Insert Arrow rows in bulk."""
        with self.engine.begin() as connection:
            bulk_insert(connection, table, rows)

    def all(self, query: sa.Select) -> Sequence[sa.Row]:
        """Return the rows of a query."""
        with self.engine.connect() as connection:
            return connection.execute(query).all()

    def scalars(self, query: sa.Select) -> list[Any]:
        """Return the first column of a query's rows."""
        return [row[0] for row in self.all(query)]

    def count(self, table: FromClause) -> int:
        """Return the number of rows of a table or a subquery."""
        return self.scalars(select(func.count()).select_from(table))[0]

    def index(self, table: sa.Table, *columns: str) -> None:
        # an index name must be unique in the whole SQLite database
        Index(
            f"ix_{table.name}_{len(table.indexes)}"[: name_length()],
            *system_of(self.engine).indexable([table.c[c] for c in columns]),
        ).create(self.engine)

    def analyze(self, table: sa.Table) -> None:
        """Update the database's statistics of a table, so that the database knows how few rows it
        has."""
        with self.engine.begin() as connection:
            system_of(self.engine).analyze(connection, table)


def drop_stale(engine: sa.Engine) -> None:
    """Drop tables that remain from killed runs."""
    for name in sa.inspect(engine).get_table_names():
        found = re.fullmatch(r"quality_(\d+)_\d+_\w+", name)
        if found and time.time() - int(found[1]) > STALE_SECONDS:
            with engine.begin() as connection:
                sa.Table(name, sa.MetaData()).drop(connection, checkfirst=True)


def stage_by_id(staging: Staging, scope: Scope) -> sa.Table:
    """Return a table that finds facts by each stream's ids: the fact table if it has indexes on
    them, otherwise an indexed copy of ids, load_id and surrogate keys.

    The copy has only the loads that may contain tuples of the recounted part of the source.
    """
    f, known = scope.fact, sa.inspect(staging.engine).get_indexes(scope.fact.name)
    wanted = [list(stream.ids.values()) for stream in scope.streams]
    if not all(wanted) or all(
        any(i["column_names"][: len(ids)] == ids for i in known) for ids in wanted
    ):
        return f
    names = [*scope.ids, "load_id", *(role.surrogate for role in scope.roles)]
    table = staging.table("by_id", *(Column(n, f.c[n].type) for n in names))
    copy_facts(staging, scope, table)
    for ids in wanted:
        staging.index(table, *ids)
    return table


def copy_facts(staging: Staging, scope: Scope, table: sa.Table) -> None:
    """Copy the table's columns from the facts of those loads that may contain tuples of the
    recounted part of the source."""
    f, b, after = scope.fact, load_batches.c, scope.last_complete_load
    rows, ends = 0, list[int]()
    for load in staging.all(
        select(b.load_id, b.output_rows)
        .where(scope.until(load_batches), b.load_id > after)
        .order_by(b.load_id)
    ):
        rows += load.output_rows
        if rows >= FACTS_AT_ONCE:
            rows = 0
            ends.append(load.load_id)
    for end in [*ends, last_load(scope.number, scope.last)]:
        some = select(*(f.c[c.name] for c in table.columns))
        staging.fill(table, some.where(f.c.load_id > after, f.c.load_id <= end))
        after = end
