"""The warehouse's tables as the sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from sqlalchemy import Connection, Engine, inspect, select

from semistream.errors import ConfigError
from semistream.streaming.sinks.base import (
    Sink,
    of_load,
    parts,
    rejected_rows,
    stored_checksum,
    with_key,
)
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import Spool
from semistream.warehouse.bulk import bulk_insert, nulled
from semistream.warehouse.closing import Closing, closed_name
from semistream.warehouse.dialects import refusals_as_errors, system_of
from semistream.warehouse.inferred import Filling
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.records import Commit, LoadRecord
from semistream.warehouse.resolution import AT_ONCE, mark_resolved
from semistream.warehouse.schema import inferred, propagated, unmatched
from semistream.warehouse.tables import (
    check_fact_table,
    ensure,
    existing_table,
    fact_table,
    is_left_over,
)
from semistream.warehouse.types import outside_years


@dataclass(frozen=True)
class SqlSink(Sink):
    """The sink of the warehouse's tables. Each task writes its rows and its ledger row in one
    transaction. The rows are spooled, so that they can be written again after a lost connection."""

    warehouse: Warehouse
    in_warehouse: ClassVar[bool] = True
    put_back: ClassVar[str] = (
        "put the rows back from a backup of the warehouse; or, while the source has all that "
        "was loaded, `semistream reset {app}`, and load again."
    )

    @property
    def closing(self) -> Closing | None:
        return self.warehouse.closing

    @staticmethod
    def accepts(setting: str) -> bool:
        return setting == "sql"

    @classmethod
    def open(cls, setting: str, warehouse: Warehouse, checkpoint: Path) -> SqlSink:
        return cls(warehouse)

    @property
    def engine(self) -> Engine:
        return self.warehouse.engine

    def loaded(self, app: str, batch: int, drain: int, partition: int) -> LoadRecord | None:
        return self.warehouse.ledger(app).partition(batch, drain, partition)

    def take_back(self, app: str, batch: int, drain: int) -> None:
        fact = self.warehouse.fact
        names = [fact, *([closed_name(fact)] if self.closing is not None else [])]
        self.warehouse.ledger(app).take_back(
            batch, drain, [existing_table(self.engine, n) for n in names]
        )

    def write(self, record: LoadRecord, spool: Spool) -> LoadRecord:
        fact, ledger = self.warehouse.fact, self.warehouse.ledger(record.app)
        key = ledger.load_id(record.batch, record.drain, record.partition)
        joined, rejected, closed = spool.joined(), spool.unmatched(), spool.propagated()
        resolved, members = spool.resolved(), spool.inferred()
        final, lost = spool.final(), Counter[str]()
        for _, part in parts(joined):
            check_years(part, fact)
            lost.update(nulled(part, self.engine))
        record = replace(
            record,
            facts_checksum=stored_checksum(joined, self.engine),
            nulled=dict(lost),
            unmatched_checksum=stored_checksum(rejected, self.engine),
        )
        table = fact_table(fact, spool.stream_schema, self.warehouse.surrogates, spool.added_schema)

        def insert(connection: Connection) -> int | None:
            for first, part in parts(joined):
                bulk_insert(connection, table, with_key(part, key, first))
            for kept, rows in ((unmatched, rejected), (propagated, closed)):
                for first, part in parts(rows):
                    bulk_insert(connection, kept, rejected_rows(part, key, fact, first))
            for _, part in parts(members):
                bulk_insert(connection, inferred, of_load(part, key, fact))
            mark_resolved(connection, key, resolved.to_reader(AT_ONCE))
            return (
                self.closing.close(connection, table, key, app_loads(ledger.number()), final)
                if self.closing is not None
                else None
            )

        with refusals_as_errors(self.engine, fact):
            return ledger.load(record, insert)

    def prepare(self, stream: pa.Schema, added: pa.Schema, id_columns: tuple[str, ...]) -> SqlSink:
        fact = self.warehouse.fact
        check_fact_table(fact, (), self.engine)
        table = fact_table(
            fact,
            stream,
            self.warehouse.surrogates,
            added,
            id_columns,
            index_ids=self.warehouse.index_ids,
            keys=self.closing.keys if self.closing is not None else (),
        )
        if is_left_over(self.engine, table):
            existing_table(self.engine, fact).drop(self.engine)
        ensure(self.engine, table)
        if self.closing is not None:
            self.closing.check(table, system_of(self.engine))
            ensure(self.engine, self.closing.table(table))
        return self

    def commit(self, commit: Commit, loads: Sequence[LoadRecord]) -> None:
        self.warehouse.ledger(commit.app).commit(commit)

    def fill(self, filling: Filling, ledger: Ledger) -> int:
        return filling.fill(ledger, existing_table(self.engine, self.warehouse.fact))

    def missing(self, app: str) -> str | None:
        fact, newest = self.warehouse.fact, self.warehouse.ledger(app).newest_output("sql")
        if newest is None:
            return None
        load, batch = newest
        if not inspect(self.engine).has_table(fact):
            return f"The table {fact} is gone"
        key = existing_table(self.engine, fact).c.load_id
        any_row = select(key).where(key == load).limit(1)
        with self.engine.connect() as connection:
            if connection.execute(any_row).first() is None:
                return f"The table {fact} has no row of batch {batch}"
        return None


def check_years(rows: pa.Table, fact: str) -> None:
    """Raise ConfigError for a date or time that no column of the warehouse can hold."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for chunk in column.chunks:
            if len(found := chunk.filter(outside_years(chunk))):
                raise ConfigError(
                    f"{fact}.{name}",
                    "must be within the years 1 to 9999",
                    str(found[:1].cast(pa.string())[0]),
                    "Correct it in the source, declare the column a STRING there, or "
                    "load into a Delta table.",
                )
