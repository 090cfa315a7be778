"""A Delta table's rows as a staging table, so that the same queries can prove it."""

from __future__ import annotations

from collections import Counter
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Column

from semistream.config import Job
from semistream.errors import ConfigError
from semistream.quality.checksums import Sums, sum_up
from semistream.quality.staging import Staging
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.schema import NAME
from semistream.warehouse.types import LongString, sql_type, stored_schema

ROWS = 100_000


def stage(staging: Staging, uri: str, job: Job, app: str) -> tuple[sa.Table, Sums, sa.Table]:
    """What `app` wrote to the Delta table, its rows' checksums by load, and the damaged ones of the files that the table's log
    names: file, finding. Raises ConfigError when there is no table."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(uri)
    except TableNotFoundError:
        raise ConfigError("sink", "must be a Delta table that exists", uri, "It was written by this app and is gone.") from None
    data = table.to_pyarrow_dataset()
    columns = [Column("app", NAME) if f.name == "app" else Column(f.name, sql_type(f, f.name in job.stream.id))
               for f in stored_schema(pa.schema(data.schema))]
    facts = staging.table("facts", *columns)
    log = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    sizes = {unquote(path): size for path, size in zip(log["path"], log["size_bytes"], strict=True)}
    sums: Sums = Counter()
    findings = []
    for fragment in data.get_fragments():
        try:
            found, wanted = data.filesystem.get_file_info(fragment.path).size, sizes.get(fragment.path)
            if wanted not in (None, found):
                raise OSError("it is gone" if found is None else f"it has {found:,} bytes in place of {wanted:,}")
            for batch in fragment.to_batches(schema=data.schema, filter=pc.field("app") == app, batch_size=ROWS):
                sums.update(sum_up([batch]))
                with staging.engine.begin() as connection:
                    bulk_insert(connection, facts, batch)
        except (OSError, pa.ArrowException) as e:
            findings.append((f"{uri}/{fragment.path}", str(e)))
    damaged = staging.table("files_of_delta", Column("file", LongString()), Column("finding", LongString()))
    staging.insert(damaged, findings)
    staging.index(facts, "app", "batch", "drain", "partition")
    if job.stream.id:
        staging.index(facts, *job.stream.id)
    return facts, sums, damaged
