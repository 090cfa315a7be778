"""Verification of what an app loaded: one Great Expectations checkpoint, a page of Data Docs, a row
in quality_runs."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import and_, func, select

from semistream import warehouse
from semistream.config import AnyJob, Job, Places, StreamStreamJob, job_of
from semistream.errors import SemistreamError
from semistream.published import read_manifest
from semistream.quality import history, stored_rows, two_streams
from semistream.quality.checkpoint import discard, run_checkpoint
from semistream.quality.checks import Check, all_checks, ledger_checks
from semistream.quality.checksums import Sums, stage_checksums
from semistream.quality.history import Ahead, lost_batches
from semistream.quality.join_size import stage_join_sizes
from semistream.quality.scope import UNPUBLISHED, Scope, committed, make_scope
from semistream.quality.source_files import stage_source_files
from semistream.quality.sources import stage_sources
from semistream.quality.staging import Staging, stage_by_id, stage_rejected, stage_sample
from semistream.streaming.sinks.base import StoredRows
from semistream.streaming.sinks.registry import open_sink, open_warehouse
from semistream.warehouse.proof import START, Position, read_proof
from semistream.warehouse.schema import load_batches, load_commits, masters, quality_runs
from semistream.warehouse.tables import existing_table

BATCHES_SHOWN = 100
SAMPLE = 1000  # facts, and unmatched tuples, that are joined again
# of a batch, in the report
NUMBERS = ["waiting_before", "rows_read", "matched", "unmatched", "waiting", "output_rows"]


@dataclass(frozen=True)
class CheckResult:
    """One expectation. rows: the first offending rows; count: all of them; error: why it could not
    be checked."""

    name: str
    title: str
    success: bool
    count: int
    rows: list[dict[str, Any]]
    error: str | None = None


@dataclass(frozen=True)
class VerificationResult:
    """report: the page of this run, None when nothing had been committed since the last one; index:
    the page of all runs; proof: what all runs together have proven."""

    success: bool
    app: str
    fact_table: str
    results: list[CheckResult] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    report: Path | None = None
    index: Path | None = None
    proof: str = ""

    @property
    def failed(self) -> list[CheckResult]:
        return [r for r in self.results if not r.success]

    def __str__(self) -> str:
        return self.describe()

    def describe(self, rows: int = 5) -> str:
        """A few lines for a log or an error message: what failed, and its first rows, and what
        could not be looked at."""
        not_seen = [f"Note: {note}" for note in self.notes]
        if self.report is None:
            return (f"{self.app}: nothing was committed since the last verification. Complete: "
                    f"{self.proof}")
        if self.success:
            return "\n".join([f"{self.app}: all {len(self.results)} checks hold. Complete: "
                              f"{self.proof}. Report: {self.report}", *not_seen])
        lines = [f"{self.app}: {len(self.failed)} of {len(self.results)} checks failed."]
        for r in self.failed:
            lines.append(f"- {r.title} ({r.name}): {r.error or f'{r.count} rows'}")
            lines += ["    " + ", ".join(f"{k}={v}" for k, v in row.items())
                      for row in r.rows[:rows]]
        return "\n".join([*lines, *not_seen, f"Report: {self.report}"])


class VerificationFailed(SemistreamError):
    """Raised by callers that must fail; the message names the checks and the rows."""

    def __init__(self, result: VerificationResult):
        self.result = result
        super().__init__(result.describe())


def verify(url: str, app: str, *, job: AnyJob | None = None, since_last: bool = False,
           reports_dir: Path | None = None,
           reports_kept: int | None = None, sample: int = SAMPLE, seed: int | None = None,
           snapshots: Path | None = None) -> VerificationResult:
    """Check everything that `app` has committed.

    since_last: only what comes behind that which is proven already, by verifications that no
    failure has followed. job: what the app loads; default: what the ledger says, else the shipped
    job of the app's name. reports_dir: where Data Docs are kept, so many of the latest ones,
    snapshots: where the master data's snapshots are; by default as the environment says. sample:
    how many facts, and how many unmatched tuples, are joined again, drawn anew each time unless a
    seed is given. Raises ConfigError for an app that has loaded nothing; a failed check does not.
    """
    started, clock = datetime.now(UTC).replace(tzinfo=None), time.monotonic()
    places = Places.from_environment()
    seed = secrets.randbelow(2**31) if seed is None else seed
    reports, snapshots = (reports_dir or places.reports).absolute(), snapshots or places.snapshots
    with warehouse.open_warehouse(url) as engine:
        ahead = lost_batches(engine, app, places.checkpoints / app)
        with engine.connect() as connection:
            commits = committed(connection, app)
            job = job or _job(commits[-1], app, places)
            proof = read_proof(connection, app)
            first = (proof.until if since_last and proof is not None
                     and proof.until != START and not ahead.findings else None)
        if first is not None and (commits[-1].batch, commits[-1].drain) <= first:
            return VerificationResult(True, app, commits[-1].fact_table,
                                      index=reports / "index.html", proof=str(proof))
        while True:
            master = job.master.name if isinstance(job, Job) else ""
            changes = _changes(engine, master)
            with Staging(engine) as staging:
                result, scope = _verify(staging, url, job, commits, first, (sample, seed), reports,
                                        snapshots / master, changes,
                                        reports_kept or places.reports_kept, ahead)
            if result.success or result.report is None or _changes(engine, master) == changes:
                break
            # the master data were changed meanwhile, and what was found may be no more than that
            discard(result.report, reports)
        _write_run(engine, result, scope, started, time.monotonic() - clock)
        with engine.connect() as connection:
            return replace(result, proof=str(read_proof(connection, app)))


def _job(commit: sa.Row, app: str, places: Places) -> AnyJob:
    """The job that was loaded, as the ledger has it; else the shipped one of the app's name."""
    if commit.job:
        return job_of(json.loads(commit.job))
    from semistream import workloads

    return workloads.load_any_job(app, places)


def _changes(engine: sa.Engine, master: str) -> int | None:
    """The state that the dimension table is in, as provisioning numbers them; None where it did not
    make the table."""
    with engine.connect() as connection:
        return connection.scalar(select(masters.c.changes).where(masters.c.name == master))


def _version(snapshots: Path, changes: int | None) -> str | None:
    """The version of the master data that the dimension table has: UNPUBLISHED after a change,
    until that is published."""
    manifest = read_manifest(snapshots)
    if manifest is None:
        return None
    known = manifest["source"].get("changes")
    return manifest["version"] if None in (changes, known) or changes == known else UNPUBLISHED


def _verify(staging: Staging, url: str, job: AnyJob, commits: list[sa.Row], first: Position | None,
            sampling: tuple[int, int],
            reports: Path, snapshots: Path, changes: int | None, kept: int,
            ahead: Ahead) -> tuple[VerificationResult, Scope]:
    engine, app, sink = staging.engine, commits[-1].app, commits[-1].sink
    name = commits[-1].fact_table
    sums: Sums | None = None
    damaged: sa.Table | None = None
    stored: StoredRows | None = None
    gone = ""
    try:
        stored = open_sink(sink, open_warehouse(url, job), Path()).stored(app)
        if stored is None:
            fact = existing_table(engine, name)
        else:
            ids = job.fact_ids(stored.schema.names)
            fact, sums, damaged = stored_rows.stage(staging, stored, ids)
    except SemistreamError as e:
        gone, fact = str(e), load_batches
    with engine.connect() as connection:
        scope = two_streams.scope_of(connection, app, job, commits, first, fact) \
            if gone or isinstance(job, StreamStreamJob) else make_scope(
                connection, app, job, commits, first, fact, _version(snapshots, changes))
    checks = list(history.checks(staging, scope, ahead, stored, gone))
    if gone:
        checks += ledger_checks(scope)
        return _run(staging, url, scope, checks, reports, kept)
    rejected = stage_rejected(staging, scope)
    checksums = stage_checksums(staging, scope, sums)
    if isinstance(job, StreamStreamJob):
        checks += two_streams.all_checks(staging, scope, job, commits, rejected, checksums,
                                         damaged, sampling[0])
    else:
        scope = replace(scope, by_id=stage_by_id(staging, scope))
        columns = {name: scope.fact.c[name].type for name in scope.ids}
        sources = stage_sources(staging, job.stream,
                                [c for c in commits if _later(c, scope.source_first)], columns,
                                len(columns))
        files = stage_source_files(staging, scope, job.stream)
        join_sizes = stage_join_sizes(staging, scope, snapshots)
        sample = stage_sample(staging, scope, *sampling, snapshots)
        checks += all_checks(scope, rejected, checksums, damaged, files, join_sizes, sources,
                             sample)
        if not scope.comparable:
            staging.notes.append("All of these were loaded with an older version of the master "
                                 f"data than {scope.dimension.name} has ({scope.version}): "
                                 "enriched columns are compared in the sample only.")
    return _run(staging, url, scope, checks, reports, kept)


def _run(staging: Staging, url: str, scope: Scope, checks: Sequence[Check], reports: Path,
         kept: int) -> tuple[VerificationResult, Scope]:
    """Make the checks, and write the report."""
    with staging.engine.connect() as connection:
        figures, batches = _figures(connection, scope)
        old = and_(scope.holds(load_batches), load_batches.c.facts_checksum.is_(None))
        without = connection.scalar(select(func.count()).where(old))
    if without:
        staging.notes.append(f"{without:,} of the ledger's rows are of a version that kept no "
                             f"checksums: what they loaded is "
                             "counted and joined again, but not compared value by value.")
    app, name = scope.app, scope.fact_name
    summary = {"run": _run_name(scope), "app": app, "fact_table": name, "sink": scope.sink,
               "figures": [[k, n] for k, n in figures.items()], "columns": NUMBERS,
               "commits": len(batches),
               "batches": [list(b.values()) for b in batches[-BATCHES_SHOWN:]],
               "notes": staging.notes}
    success, checked, page = run_checkpoint(url, load_commits.name, app, checks, summary, reports,
                                            kept)
    results = [CheckResult(**{k: c[k] for k in ("name", "title", "success", "count", "rows",
                                                "error")}) for c in checked]
    return VerificationResult(success, app, name, results, figures, staging.notes, page,
                              reports / "index.html"), scope


def _later(commit: sa.Row, position: Position | None) -> bool:
    return position is None or (commit.batch, commit.drain) > position


def _run_name(scope: Scope) -> str:
    """Also a directory's name."""
    since = "all-batches" if scope.first is None else f"batches-after-{_position(scope.first)}"
    return f"{since}-up-to-{_position(scope.last)}"


def _position(position: Position) -> str:
    return f"{position[0]}{'-drained' if position[1] else ''}"


def _figures(connection: sa.Connection,
             scope: Scope) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """The completeness summary: totals of the batches verified, and these one by one."""
    b = load_batches.c
    rows = connection.execute(select(b.batch, b.drain, *(func.sum(b[n]).label(n) for n in NUMBERS))
                              .where(scope.holds(load_batches)).group_by(b.batch, b.drain)
                              .order_by(b.batch, b.drain)).all()
    batches = [{"batch": _position((r.batch, r.drain)), **{n: int(r._mapping[n]) for n in NUMBERS},
                "ok": r.waiting_before + r.rows_read == r.matched + r.unmatched + r.waiting}
               for r in rows]
    figures = {label: sum(x[n] for x in batches) for label, n in (
        ("rows read", "rows_read"), ("matched", "matched"), ("unmatched", "unmatched"))}
    reasons: dict[str, int] = {}
    for text in connection.scalars(select(b.rejected).where(scope.holds(load_batches))):
        for reason, n in json.loads(text).items():
            reasons[reason] = reasons.get(reason, 0) + n
    figures |= {f"unmatched: {reason}": n for reason, n in sorted(reasons.items()) if n}
    figures |= {"waiting": batches[-1]["waiting"] if batches else 0,
                "output rows": sum(x["output_rows"] for x in batches),
                "batches": len({r.batch for r in rows})}
    return figures, batches


def _write_run(engine: sa.Engine, result: VerificationResult, scope: Scope, started: datetime,
               seconds: float) -> None:
    failed: Sequence[str] = [r.name for r in result.failed]
    first = scope.first
    with engine.begin() as connection:
        connection.execute(quality_runs.insert().values(
            app=result.app, fact_table=result.fact_table, started_at=started, seconds=seconds,
            from_batch=first and first[0], from_drain=first and first[1], to_batch=scope.last[0],
            to_drain=scope.last[1], success=int(result.success), expectations=len(result.results),
            failed=json.dumps(failed), notes=json.dumps(result.notes), report=str(result.report)))
