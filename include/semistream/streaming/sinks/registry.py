"""The registry of sinks. A new sink is a file beside this one, and a line in ``SINKS``."""

from __future__ import annotations

from pathlib import Path

from semistream.job import AnyJob, Job
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sinks.delta import DeltaSink
from semistream.streaming.sinks.sql import SqlSink
from semistream.warehouse.closing import closing_of

SINKS: list[type[Sink]] = [SqlSink, DeltaSink]  # the first one that accepts the setting is taken


def open_sql_sink(url: str, job: AnyJob, retry: float = 60.0) -> SqlSink:
    """Return the sink of the warehouse's own tables, which every other sink also needs. retry:
    seconds for which an unreachable database is tried again."""
    surrogates = tuple(r.surrogate_key for r in job.roles) if isinstance(job, Job) else ()
    return SqlSink(url, job.fact_table, surrogates, retry, job.index_ids, closing_of(job))


def open_sink(setting: str, warehouse: SqlSink, checkpoint: Path) -> Sink:
    """Return the sink that a setting names: ``sql``, a directory, a URI …"""
    return next(kind for kind in SINKS
                if kind.accepts(setting)).open(setting, warehouse, checkpoint)
