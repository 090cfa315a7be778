"""Checksums of the warehouse's present rows, by load. They are compared with the ledger's checksums
of the rows that were written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, select

from semistream.quality.scope import Scope
from semistream.quality.staging import Staging
from semistream.warehouse.bulk import fetch
from semistream.warehouse.checksum import row_hashes, signed
from semistream.warehouse.schema import unmatched
from semistream.warehouse.tables import ROW_KEY, arrow_schema

Sums = dict[int, int]  # by load_id, not yet modulo 2**64
KEPT = (
    "reason",
    "side",
    "role",
    "stream_id",
    "tuple",
    "key_code",
)  # columns of unmatched that a task writes


def stage_checksums(staging: Staging, scope: Scope, facts: Sums | None) -> sa.Table:
    """Stage a table of load_id, facts_checksum, unmatched_checksum, computed by a scan of all
    verified rows.

    facts: the facts' checksums if they are already known, as for a sink outside the warehouse.
    """
    if facts is None:
        columns = [c for c in scope.fact.columns if c.name not in ROW_KEY]
        facts = _scan(staging.engine, scope.fact, columns, scope.holds(scope.fact))
    mine = sa.and_(scope.holds(unmatched), scope.kept())
    kept = _scan(staging.engine, unmatched, [unmatched.c[name] for name in KEPT], mine)
    table = staging.table(
        "checksums",
        Column("load_id", BigInteger),
        Column("facts_checksum", BigInteger),
        Column("unmatched_checksum", BigInteger),
        rows=[
            (load, signed(facts.get(load, 0)), signed(kept.get(load, 0)))
            for load in {*facts, *kept}
        ],
    )
    staging.index(table, "load_id")
    return table


def _scan(
    engine: sa.Engine, table: sa.Table, columns: list[Column], where: sa.ColumnElement[bool]
) -> Sums:
    """Return, by load, the sums of the hashes of a table's rows, which are read in batches."""
    schema = pa.schema(
        [f for f in arrow_schema(table) if f.name in {"load_id", *(c.name for c in columns)}]
    )
    with engine.connect() as connection:
        return sum_up(
            fetch(
                connection, select(*(table.c[name] for name in schema.names)).where(where), schema
            )
        )


def sum_up(batches: Iterable[pa.RecordBatch]) -> Sums:
    """Return the sum of the rows' hashes by load. The batches have load_id and the columns to
    hash."""
    sums: Sums = defaultdict(int)
    for batch in batches:
        loads, of = np.unique(batch.column("load_id").to_numpy(), return_inverse=True)
        totals = np.zeros(len(loads), np.uint64)
        np.add.at(totals, of, row_hashes(batch.drop_columns(["load_id"])))
        for load, total in zip(loads.tolist(), totals.tolist(), strict=True):
            sums[load] += total
    return sums
