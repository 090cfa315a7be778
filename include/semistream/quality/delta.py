"""A Delta table's rows as a staging table, so that the same queries can prove it."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from sqlalchemy import Column

from semistream.config import Job
from semistream.errors import ConfigError
from semistream.quality.checksums import Sums, sum_up
from semistream.quality.staging import Staging
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.schema import NAME
from semistream.warehouse.types import sql_type, stored_schema

ROWS = 100_000


def stage(staging: Staging, uri: str, job: Job, app: str) -> tuple[sa.Table, Sums]:
    """What `app` wrote to the Delta table, and its rows' checksums by load. Raises ConfigError when there is none."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        data = DeltaTable(uri).to_pyarrow_dataset()
    except TableNotFoundError:
        raise ConfigError("sink", "must be a Delta table that exists", uri, "It was written by this app and is gone.") from None
    columns = [Column("app", NAME) if f.name == "app" else Column(f.name, sql_type(f, f.name in job.stream.id))
               for f in stored_schema(pa.schema(data.schema))]
    table = staging.table("facts", *columns)
    import pyarrow.compute as pc

    sums: Sums = Counter()
    for batch in data.to_batches(filter=pc.field("app") == app, batch_size=ROWS):
        sums.update(sum_up([batch]))
        with staging.engine.begin() as connection:
            bulk_insert(connection, table, batch)
    staging.index(table, "app", "batch", "drain", "partition")
    if job.stream.id:
        staging.index(table, *job.stream.id)
    return table, sums
