"""A Delta table's rows as a staging table, so that the same queries can prove it."""

from __future__ import annotations

from collections import Counter
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Column

from semistream.config import Job
from semistream.errors import ConfigError
from semistream.quality.checksums import Sums, sum_up
from semistream.quality.staging import Staging
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.load_ids import app_loads, key_of
from semistream.warehouse.migration import FORMER_KEY
from semistream.warehouse.schema import row_key
from semistream.warehouse.tables import ROW_KEY
from semistream.warehouse.types import LongString, sql_type, stored_schema

ROWS = 100_000


def stage(staging: Staging, uri: str, job: Job, app: str, number: int) -> tuple[sa.Table, Sums, sa.Table]:
    """What an app wrote to a Delta table, its rows' checksums by load, and the damaged ones of the files that the table's log
    names: file, finding. number: of the app, in its load_ids. Raises ConfigError when there is no table.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(uri)
    except TableNotFoundError:
        raise ConfigError("sink", "must be a Delta table that exists", uri, "It was written by this app and is gone.") from None
    data = table.to_pyarrow_dataset()
    former = "load_id" not in data.schema.names
    first, last = app_loads(number)
    mine = pc.field("app") == app if former else (pc.field("load_id") >= first) & (pc.field("load_id") <= last)
    kept = [f for f in stored_schema(pa.schema(data.schema)) if f.name not in (FORMER_KEY if former else ROW_KEY)]
    facts = staging.table("facts", *(Column(f.name, sql_type(f, f.name in job.stream.id)) for f in kept), *row_key())
    rows: Counter[int] = Counter()
    log = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    sizes = {unquote(path): size for path, size in zip(log["path"], log["size_bytes"], strict=True)}
    sums: Sums = Counter()
    findings = []
    for fragment in data.get_fragments():
        try:
            found, wanted = data.filesystem.get_file_info(fragment.path).size, sizes.get(fragment.path)
            if wanted not in (None, found):
                raise OSError("it is gone" if found is None else f"it has {found:,} bytes in place of {wanted:,}")
            for batch in fragment.to_batches(schema=data.schema, filter=mine, batch_size=ROWS):
                loads = _former_loads(batch, number) if former else batch.column("load_id")
                batch = batch.select([f.name for f in kept]).append_column("load_id", loads)
                sums.update(sum_up([batch]))
                with staging.engine.begin() as connection:
                    bulk_insert(connection, facts, batch.append_column("load_row", _numbers(loads, rows)))
        except (OSError, pa.ArrowException) as e:
            findings.append((f"{uri}/{fragment.path}", str(e)))
    damaged = staging.table("files_of_delta", Column("file", LongString()), Column("finding", LongString()))
    staging.insert(damaged, findings)
    if job.stream.id:
        staging.index(facts, *job.stream.id)
    return facts, sums, damaged


def _former_loads(batch: pa.RecordBatch, number: int) -> pa.Array:
    """The rows' load_id, in a table of a former version that names loads by four columns."""
    return pa.array(key_of(number, *(batch.column(name).to_numpy().astype(np.int64) for name in FORMER_KEY[1:])))


def _numbers(loads: pa.Array, rows: Counter[int]) -> pa.Array:
    """load_row of each row: within a load from 0 on, as they come; rows: how many of each load there were, counted on."""
    found, of, counts = np.unique(loads.to_numpy(), return_inverse=True, return_counts=True)
    order, starts = np.argsort(of, kind="stable"), np.cumsum(counts) - counts
    numbers = np.empty(len(of), np.int64)
    numbers[order] = np.arange(len(of)) - np.repeat(starts, counts)
    numbers += np.array([rows[load] for load in found.tolist()], np.int64)[of]
    rows.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
    return pa.array(numbers.astype(np.int32))
