"""The rows of a sink outside the warehouse, copied to a staging table so that the same queries can
prove them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer

from semistream.quality.checksums import Sums, sum_up
from semistream.quality.staging import Staging
from semistream.streaming.sinks.base import StoredRows
from semistream.warehouse.tables import ROW_KEY, quoted
from semistream.warehouse.types import LongString, outside_years, sql_type, stored_schema


def stage(
    staging: Staging, stored: StoredRows, ids: tuple[str, ...], compared: Container[str] | None
) -> tuple[sa.Table, Sums, sa.Table]:
    """Stage an app's rows in a sink outside the warehouse. Return the table, the rows' checksums by
    load, and a table of the sink's damaged files: file, finding.

    compared: the columns in the table in addition to the ids, None for all; a warehouse may not
    allow as many columns as the sink. The checksums cover all columns.
    """
    kept = [f for f in stored_schema(stored.schema) if f.name not in ROW_KEY]
    shown = [f for f in kept if compared is None or f.name in compared or f.name in ids]
    # no primary key: rows may be there twice, as damage that the checks are to tell of
    facts = staging.table(
        "facts",
        *(Column(quoted(f.name), sql_type(f, f.name in ids)) for f in shown),
        Column("load_id", BigInteger),
        Column("load_row", Integer),
    )
    rows: Counter[int] = Counter()
    sums: Sums = Counter()
    findings = []
    for name, read in stored.files:
        try:
            for batch in read():
                numbers = _numbers(batch.column("load_id"), rows)
                if "load_row" in batch.schema.names:  # null in a load before it was a column
                    numbers = pc.coalesce(batch.column("load_row"), numbers)
                batch = batch.select([*(f.name for f in kept), "load_id"])
                sums.update(sum_up([batch]))
                rows_of = _storable(batch.select([*(f.name for f in shown), "load_id"]))
                staging.write(facts, rows_of.append_column("load_row", numbers))
        except (OSError, pa.ArrowException) as e:
            findings.append((name, str(e)))
    damaged = staging.table(
        "files_of_sink",
        Column("file", LongString()),
        Column("finding", LongString()),
        rows=findings,
    )
    staging.index(facts, *ROW_KEY)
    if ids:
        staging.index(facts, *ids)
    return facts, sums, damaged


def _storable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace dates and times that the warehouse cannot store by null. Checksums are computed from
    the sink's original values."""
    columns = [
        pc.if_else(outside_years(c), pa.scalar(None, c.type), c)
        if pa.types.is_temporal(c.type)
        else c
        for c in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _numbers(loads: pa.Array, rows: Counter[int]) -> pa.Array:
    """Return the load_row of each row. The rows of a load are numbered from 0 in the order in which
    they come. rows: by load, the number of earlier rows, which is updated."""
    found, of, counts = np.unique(loads.to_numpy(), return_inverse=True, return_counts=True)
    order, starts = np.argsort(of, kind="stable"), np.cumsum(counts) - counts
    numbers = np.empty(len(of), np.int64)
    numbers[order] = np.arange(len(of)) - np.repeat(starts, counts)
    numbers += np.array([rows[load] for load in found.tolist()], np.int64)[of]
    rows.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
    return pa.array(numbers.astype(np.int32))
