"""Publication of dimension tables as the snapshots that loads read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, Row, Table, select

from semistream.errors import ConfigError, StateError
from semistream.job import UNKNOWN, surrogate_key
from semistream.master.manifest import Manifest, decode_schema
from semistream.master.publish import MEMORY, current_manifest, publish_snapshot
from semistream.master.published import snapshot_root
from semistream.progress import Progress, silent
from semistream.warehouse import create_all
from semistream.warehouse.bulk import fetch
from semistream.warehouse.identity import snapshot_source
from semistream.warehouse.ledger import retrying
from semistream.warehouse.schema import masters
from semistream.warehouse.tables import IS_INFERRED, dimension_name, existing_table

# key in the metadata of a dimension's schema: the forms of its key columns
FORMS = b"semistream.formats"
SMALL = 20_000_000  # values that one process publishes sooner than Spark starts


@dataclass(frozen=True)
class DimensionTable:
    """A provisioned dimension table and its state."""

    table: Table
    schema: pa.Schema
    rows: int
    changes: int

    @property
    def is_small(self) -> bool:
        """Return whether one process publishes the dimension faster than Spark."""
        return self.rows * len(self.schema) <= SMALL

    def key_forms(self, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the normal forms of the key columns, for a snapshot's manifest."""
        return {c: form for c, form in forms_of(self.schema).items() if c in columns}

    def source(self, engine: Engine) -> dict[str, Any]:
        """Return the origin of a snapshot, for its manifest."""
        return snapshot_source(engine, self.table.name, self.changes)


def forms_of(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return the normal forms of the texts in a dimension's key columns; see ``column_format``."""
    return json.loads((schema.metadata or {}).get(FORMS, b"{}"))


def master_row(connection: Connection, name: str) -> Row[Any] | None:
    """Return the row of a dimension in ``masters``, or None if it was never provisioned."""
    return connection.execute(select(masters).where(masters.c.name == name)).first()


def open_dimension(engine: Engine, name: str) -> DimensionTable:
    """Open a dimension. Raises ConfigError if it was never provisioned."""
    create_all(engine)
    with engine.connect() as connection:
        row = master_row(connection, name)
    if row is None:
        raise ConfigError(
            "dimension", "must have been provisioned", name, "Run `semistream provision` first."
        )
    return DimensionTable(
        existing_table(engine, row.table_name),
        decode_schema(row.arrow_schema),
        row.rows,
        row.changes,
    )


def read_dimension(
    connection: Connection, dimension: DimensionTable, keys: range | None = None
) -> Iterator[pa.RecordBatch]:
    """Return a dimension's rows, or its rows with these surrogate keys. The unknown member is left
    out, because it has no key. Inferred members are left out, because tuples must not be joined
    with a member that has no row yet, and because members may be created between two versions."""
    columns = [dimension.table.c[n] for n in dimension.schema.names]
    query = select(*columns).where(columns[0] != UNKNOWN)
    if IS_INFERRED in dimension.table.c and IS_INFERRED not in dimension.schema.names:
        query = query.where(dimension.table.c[IS_INFERRED] == 0)
    if keys is not None:
        query = query.where(columns[0] >= keys.start, columns[0] < keys.stop)
    return fetch(connection, query, dimension.schema)


def check_unknown_member(engine: Engine, dimension: str, retry: float) -> None:
    """Raise ConfigError if a dimension's table has no unknown member."""

    def found() -> bool:
        with engine.connect() as connection:
            table = existing_table(connection, dimension_name(dimension))
            sk = table.c[surrogate_key(dimension)]
            return connection.execute(select(sk).where(sk == UNKNOWN)).first() is not None

    if not retrying(found, retry):
        raise ConfigError(
            f"dimension {dimension}",
            f"must have a row with surrogate key {UNKNOWN}, as unknown_member is set",
            dimension_name(dimension),
            "Run `semistream provision JOB`, or the DAG provision_master_data.",
        )


def needs_publishing(engine: Engine, dimension: DimensionTable, root: Path) -> bool:
    """Return whether the current snapshot under ``root`` differs from the dimension's present
    table."""
    current = current_manifest(root)
    return current is None or current.source != dimension.source(engine)


def check_unchanged(engine: Engine, name: str, dimension: DimensionTable) -> None:
    """Raise StateError if the dimension was provisioned again while it was read."""
    if open_dimension(engine, name).changes != dimension.changes:
        raise StateError(
            f"{dimension.table.name} changed while it was read: another load or provisioning runs. "
            "Start this one again when that has ended."
        )


def publish(
    name: str,
    key: Sequence[str],
    engine: Engine,
    snapshots: Path,
    progress: Progress = silent,
    memory: int = MEMORY,
) -> tuple[Manifest, bool]:
    """Publish a dimension's snapshot for a key if the dimension has changed. Return the current
    snapshot, and whether it is new. memory: bytes that publishing may use."""
    dimension, root = open_dimension(engine, name), snapshot_root(snapshots, name, key)
    current, source, done = current_manifest(root), dimension.source(engine), 0
    if current is not None and current.source == source:
        return current, False

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        progress(f"publishing {name}", done // 2, dimension.rows)

    def batches() -> Iterator[pa.RecordBatch]:
        with engine.connect() as connection:
            yield from read_dimension(connection, dimension)
        check_unchanged(engine, name, dimension)

    return publish_snapshot(
        batches(),
        dimension.schema,
        root,
        name,
        key,
        source=source,
        memory=memory,
        progress=count,
        formats=dimension.key_forms(key),
    ), True
