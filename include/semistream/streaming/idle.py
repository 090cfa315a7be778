"""A check whether a load has anything to do. It needs no Spark, but only the checkpoint, the ledger
and a listing of the source's files."""

from __future__ import annotations

from typing import Any

from semistream.data_files import Unreadable
from semistream.job import AnyJob, Job
from semistream.sizing.plan import Plan
from semistream.streaming.commit import Commits
from semistream.streaming.planning import Planner
from semistream.streaming.position import begun_by_query, done_by_query
from semistream.streaming.settings import AVAILABLE_NOW, AppSettings
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.log import SourceLog
from semistream.streaming.sources.registry import find_source
from semistream.warehouse.ledger import Ledger


def plan_of_idle_load(
    settings: AppSettings, job: AnyJob, commits: Commits, planner: Planner
) -> Plan[Any] | None:
    """Return the plan of the newest commit if there is nothing to do after it. Return None if there
    is, or if only Spark can find out.

    There is something to do if tuples wait, a batch has begun, a file is not loaded, or the job,
    the settings or the master's version differ from those of the newest commit. Raises
    SemistreamError if a load would refuse to continue.
    """
    if settings.trigger != AVAILABLE_NOW or not isinstance(job, Job):
        return None
    source = find_source(job.stream)
    if source.entries() is None:
        return None
    progress, last = commits.take_up(), commits.last
    if progress is None or last is None or commits.needs_plan:
        return None
    query, ledger = commits.checkpoint / "query", commits.ledger
    if not begun_by_query(commits.checkpoint) == done_by_query(commits.checkpoint) == last[0]:
        return None
    try:
        SourceLog(query, job.stream.format).files(last[0])
    except FileNotFoundError:  # Spark cannot continue without this file
        return None
    if ledger.newest_job() != (job.fact_table, job.to_ledger()):
        return None
    plan = progress.plan
    wanted = planner.wanted(settings.partitions or plan.partitions)
    if wanted != plan.initial():
        return None
    return plan if is_loaded(source, ledger) else None


def is_loaded(source: Source, ledger: Ledger) -> bool:
    """List the present files of a source, and return whether all of them are loaded; False if only
    Spark can list them."""
    entries, loaded = source.entries(), ledger.file_paths()
    # an entry that cannot be read may be, or hide, an unloaded file
    return entries is not None and all(
        not isinstance(entry, Unreadable) and entry.path in loaded for entry in entries
    )
