"""The rows of a sink outside the warehouse as a staging table, so that the same queries can prove it."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Column

from semistream.config import Job
from semistream.quality.checksums import Sums, sum_up
from semistream.quality.staging import Staging
from semistream.streaming.sinks.base import StoredRows
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.schema import NAME
from semistream.warehouse.types import LongString, sql_type, stored_schema


def stage(staging: Staging, stored: StoredRows, job: Job) -> tuple[sa.Table, Sums, sa.Table]:
    """What a sink outside the warehouse has of an app, its rows' checksums by load, and the damaged ones of its files: file,
    finding."""
    columns = [Column("app", NAME) if f.name == "app" else Column(f.name, sql_type(f, f.name in job.stream.id))
               for f in stored_schema(stored.schema)]
    facts = staging.table("facts", *columns)
    sums: Sums = Counter()
    findings = []
    for name, read in stored.files:
        try:
            for batch in read():
                sums.update(sum_up([batch]))
                with staging.engine.begin() as connection:
                    bulk_insert(connection, facts, batch)
        except (OSError, pa.ArrowException) as e:
            findings.append((name, str(e)))
    damaged = staging.table("files_of_sink", Column("file", LongString()), Column("finding", LongString()))
    staging.insert(damaged, findings)
    staging.index(facts, "app", "batch", "drain", "partition")
    if job.stream.id:
        staging.index(facts, *job.stream.id)
    return facts, sums, damaged
