"""Verification of an app's loads: one Great Expectations checkpoint, a page of Data Docs, a row in
quality_runs."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import select

from semistream import warehouse
from semistream.counted import counted
from semistream.errors import ConfigError, SemistreamError
from semistream.job import SIDES, AnyJob, Job, Role, StreamStreamJob, job_of
from semistream.master.published import read_manifest, snapshot_root
from semistream.paths import Paths
from semistream.positions import START, Position
from semistream.quality import history, stored_rows
from semistream.quality.checkpoint import CheckResult, discard, run_checkpoint
from semistream.quality.checks import (
    Check,
    fact_rows,
    ledger_checks,
    no_duplicates,
    same_rows,
    table_files,
    unmatched_rows,
    unparsable,
)
from semistream.quality.checksums import Sums, stage_checksums
from semistream.quality.dimension_checks import dimension_checks
from semistream.quality.expected_loads import expectation_checks, is_stale
from semistream.quality.failures import write_failures
from semistream.quality.findings import WrongRows
from semistream.quality.history import Ahead, lost_batches
from semistream.quality.pair_checks import closed_table, pair_checks
from semistream.quality.recount import recounted_columns, stage_sources
from semistream.quality.remedies import with_remedy
from semistream.quality.report import summarise
from semistream.quality.resolved import is_overdue, resolved_checks
from semistream.quality.scope import (
    UNPUBLISHED,
    Scope,
    committed,
    compared_columns,
    make_scope,
    range_of,
)
from semistream.quality.staging import Staging, stage_by_id
from semistream.quality.stream_checks import recount, stream_checks
from semistream.quality.wrong_rows import find_wrong_rows, stage_wrong_rows
from semistream.settings import Settings
from semistream.streaming.sinks.registry import open_sink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.warehouse.bulk import nulled_sentence
from semistream.warehouse.inferred import count_filled, oldest_filled
from semistream.warehouse.lateness import lateness
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_history import Load, read_loads
from semistream.warehouse.proof import Run, read_proof
from semistream.warehouse.schema import load_batches, load_commits, masters, quality_runs
from semistream.warehouse.source_files import source_files
from semistream.warehouse.tables import existing_table

S = TypeVar("S", bound=Settings)
MOST_CHARACTERS = 400  # of a value, in a message: a path is to be shown whole
LISTED_ROWS = 5  # of a failed check, in a log or an error message
JUDGED = ("max_unparsable", "unique_ids")  # settings of a stream that only the verdict uses
JUDGED_OF_ROLE = ("max_unmatched", "max_open_hours", "grace")  # likewise of a role
GO_ON = "`semistream load JOB`, or the DAG of the load, goes on where it was."
FILLING = timedelta(hours=1)  # a transaction that fills facts in is shorter
SAMPLE = 1000  # how many facts, and how many unmatched tuples, are joined again


@dataclass(frozen=True)
class VerificationResult:
    """The result of a verification.

    unseen: descriptions of what could not be checked, which the verdict does not cover; passing:
    see ``Staging``; report: the page of this run, None if nothing was committed since the last run;
    index: the page of all runs; proof: what all runs together have proven; unfinished: sentences on
    how the last load has failed, and on files of the source that are not loaded, "" if there are
    none.
    """

    success: bool
    app: str
    fact_table: str
    results: list[CheckResult] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    passing: list[str] = field(default_factory=list)
    report: Path | None = None
    index: Path | None = None
    proof: str = ""
    unfinished: str = ""

    @property
    def failed(self) -> list[CheckResult]:
        return [r for r in self.results if not r.success]

    @property
    def warned(self) -> list[CheckResult]:
        return [r for r in self.results if r.warned]

    def describe(self) -> str:
        """Return a description of the result in a few lines, for a log or an error message: the
        checks that fail or warn, their first rows, and what could not be checked."""
        end = f"{self.unfinished}. {GO_ON}" if self.unfinished else ""
        complete = f"Complete{' as far as it was loaded' if end else ''}: {self.proof}"
        if self.report is None:
            return (
                f"{self.app}: nothing was committed since the last verification. {complete}"
                f"{end and f'. {end}'}"
            )
        if self.success:
            first = f"{self.app}: all {counted(len(self.results), 'check')} hold. {complete}."
            return "\n".join([f"{first} {end and f'{end} '}Report: {self.report}", *self._wrong()])
        lines = [f"{self.app}: {len(self.failed)} of {counted(len(self.results), 'check')} failed."]
        lines += [*self._wrong(), *(f"- Not looked at: {what}" for what in self.unseen)]
        lines += [end] if end else []
        return "\n".join([*lines, f"Report: {self.report}"])

    __str__ = describe

    def _wrong(self) -> Iterator[str]:
        """Yield lines about each check that fails or warns."""
        for r in (*self.failed, *self.warned):
            what = f"{'Warning: ' if r.warned else ''}{r.title} ({r.name})"
            yield f"- {what}: {r.error or counted(r.count, 'row')}"
            yield from (f"    {_words(row)}" for row in r.rows[:LISTED_ROWS])
            yield from [f"    What to do: {r.remedy}"] if r.remedy else []


def _words(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={_short(str(v))}" for k, v in row.items())


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


class VerificationFailed(SemistreamError):
    """The error for callers that must fail if a verification fails. Its message names the checks
    and the rows."""

    def __init__(self, result: VerificationResult):
        self.result = result
        super().__init__(result.describe())


def verify(
    url: str,
    app: str,
    *,
    job: AnyJob | None = None,
    limits: AnyJob | None = None,
    since_last: bool = False,
    reports_dir: Path | None = None,
    reports_kept: int | None = None,
    sample: int = SAMPLE,
    seed: int | None = None,
    snapshots: Path | None = None,
    unfinished: str = "",
) -> VerificationResult:
    """Check everything that `app` has committed.

    since_last: whether to check only the part that is not yet proven, to which facts belong that
    were filled in since the last verification, with all loads after theirs; if that part is empty,
    but a tuple has become open for longer than the job allows, everything is checked; if it is
    empty, but files of the source have changed or were passed over, the newest commit is checked
    again. job: the app's job, by default the ledger's record; limits: a job whose limits replace
    those of ``job``. reports_dir, reports_kept: the directory of Data Docs, and how many reports to
    keep; snapshots: the directory of the master data's snapshots; the environment gives the
    defaults. unfinished: how the last load has failed, "" if it has not. sample: the number of
    facts, and of unmatched tuples, that are joined again; they differ each time unless a seed is
    given. Raises ConfigError
    for an app that has loaded nothing. A failed check raises no error.
    """
    started, clock = datetime.now(UTC).replace(tzinfo=None), time.monotonic()
    paths = Paths.from_environment()
    seed = secrets.randbelow(2**31) if seed is None else seed
    reports, snapshots = (reports_dir or paths.reports).absolute(), snapshots or paths.snapshots
    with warehouse.open_warehouse(warehouse.existing(url)) as engine:
        ahead = lost_batches(engine, app, paths.checkpoints / app)
        with engine.connect() as connection:
            commits = committed(connection, app)
            job = _with_limits(job or job_of(json.loads(commits[-1].job)), limits)
            proof = read_proof(connection, app)
            # facts that an earlier version has loaded elsewhere are missed by looking at everything
            elsewhere = len({commit.sink for commit in commits}) > 1
            first = (
                proof.until
                if since_last
                and proof is not None
                and proof.until != START
                and not ahead.findings
                and not elsewhere
                else None
            )
            number = app_number(connection, app)
            filled = count_filled(connection, number)
            if first is not None and proof is not None and proof.run is not None:
                first = _before_filled(connection, number, commits, first, proof.run, filled)
            newest = (commits[-1].batch, commits[-1].drain)
            overdue = (
                isinstance(job, Job)
                and proof is not None
                and proof.run is not None
                and is_overdue(connection, app, job, proof.run.at)
            )
            stale = job.expect.freshness is not None and is_stale(
                job.expect, read_loads(connection, app, newest)
            )
            source = source_files(connection, app)
            failed = f"The last load {unfinished}" if unfinished else ""
            unfinished = ". ".join(filter(None, (failed, source.not_loaded)))
        if first is not None and newest <= first:
            if overdue:  # time has made it fail, which is proven by looking at everything
                first = None
            elif stale or source.findings:  # which is seen with the newest commit
                first = (commits[-2].batch, commits[-2].drain) if len(commits) > 1 else None
            else:
                return VerificationResult(
                    True,
                    app,
                    commits[-1].fact_table,
                    index=reports / "index.html",
                    proof=str(proof),
                    unfinished=unfinished,
                )
        roles = job.roles if isinstance(job, Job) else ()
        while True:
            changes = _changes(engine, roles)
            with Staging(engine) as staging:
                versions = [
                    _version(
                        snapshot_root(snapshots, role.dimension.name, role.key),
                        changes.get(role.dimension.name),
                    )
                    for role in roles
                ]
                result, scope = _verify(
                    staging,
                    url,
                    job,
                    commits,
                    first,
                    proof.held if proof is not None else START,
                    (sample, seed),
                    reports,
                    snapshots,
                    versions,
                    reports_kept or paths.reports_kept,
                    ahead,
                    unfinished,
                )
            if result.success or result.report is None or _changes(engine, roles) == changes:
                break
            # the master data were changed meanwhile, which may have caused everything that the
            # checks have found
            discard(result.report, reports)
        _write_run(engine, result, scope, filled, started, time.monotonic() - clock)
        with engine.connect() as connection:
            return replace(result, proof=str(read_proof(connection, app)))


def _with_limits(job: AnyJob, limits: AnyJob | None) -> AnyJob:
    """Return the job as it was loaded, with its limits replaced by those of another job."""
    if limits is None:
        return job
    if type(job) is not type(limits):
        raise ConfigError(
            "job",
            "must have as many streams as the one that was loaded",
            limits.name,
            "Name the file of the job that was loaded.",
        )
    if isinstance(job, Job) and isinstance(limits, Job):
        roles = {
            name: _judged(role, limits.dimensions.get(name, role), JUDGED_OF_ROLE)
            for name, role in job.dimensions.items()
        }
        stream = _judged(job.stream, limits.stream, JUDGED)
        limits.expect.check_roles(tuple(roles))
        return job.model_copy(
            update={"stream": stream, "dimensions": roles, "expect": limits.expect}
        )
    sides = {side: _judged(getattr(job, side), getattr(limits, side), JUDGED) for side in SIDES}
    return job.model_copy(update=sides | {"expect": limits.expect})


def _judged(settings: S, limits: S, names: Sequence[str]) -> S:
    """Return a copy of the settings in which the settings with these names are taken from
    ``limits``."""
    return settings.model_copy(update={name: getattr(limits, name) for name in names})


def _changes(engine: sa.Engine, roles: Sequence[Role]) -> dict[str, int]:
    """Return, by name, the time of each dimension table's last change, as provisioning recorded it.
    A table that provisioning did not create is left out."""
    m = masters.c
    with engine.connect() as connection:
        return dict(
            connection.execute(
                select(m.name, m.changes).where(m.name.in_([role.dimension.name for role in roles]))
            ).all()
        )


def _version(snapshots: Path, changes: int | None) -> str | None:
    """Return the version of the master data in the dimension table; UNPUBLISHED if the table has
    changed since the last publication."""
    manifest = read_manifest(snapshots)
    if manifest is None:
        return None
    known = manifest["source"].get("changes")
    return manifest["version"] if None in (changes, known) or changes == known else UNPUBLISHED


def _verify(
    staging: Staging,
    url: str,
    job: AnyJob,
    commits: list[sa.Row],
    first: Position | None,
    proven: Position,
    sampling: tuple[int, int],
    reports: Path,
    snapshots: Path,
    versions: Sequence[str | None],
    kept: int,
    ahead: Ahead,
    unfinished: str,
) -> tuple[VerificationResult, Scope]:
    """Verify the commits. proven: see ``range_of``; versions: see ``make_scope``."""
    engine, newest = staging.engine, commits[-1]
    with engine.connect() as connection:
        verified = range_of(connection, newest.app, commits, first, proven)
        loads = read_loads(connection, newest.app, verified.last)
    sums: Sums | None = None
    damaged: sa.Table | None = None
    try:
        stored = open_sink(newest.sink, Warehouse.of(url, job), Path()).stored(newest.app)
        if stored is None:
            fact = existing_table(engine, newest.fact_table)
        else:
            with engine.connect() as connection:
                compared = compared_columns(connection, job)
            fact, sums, damaged = stored_rows.stage(
                staging, stored, job.fact_ids(stored.schema.names), compared
            )
    except SemistreamError as e:
        scope = Scope(
            **vars(verified),
            sink=newest.sink,
            fact_name=newest.fact_table,
            fact=load_batches,
            by_id=load_batches,
        )
        checks = [*history.checks(staging, scope, ahead, None, str(e)), *ledger_checks(scope)]
        return _run(staging, url, scope, job, loads, checks, reports, kept, unfinished)
    with engine.connect() as connection:
        scope = make_scope(connection, verified, job, newest, fact, versions, snapshots)
    closed = closed_table(engine, job, scope.fact_name)
    checks = list(history.checks(staging, scope, ahead, stored, "", closed))
    checks += _checks(staging, scope, job, commits, sums, damaged, *sampling)
    checks += expectation_checks(staging, scope, job.expect, loads)
    return _run(staging, url, scope, job, loads, checks, reports, kept, unfinished)


def _checks(
    staging: Staging,
    scope: Scope,
    job: AnyJob,
    commits: list[sa.Row],
    sums: Sums | None,
    damaged: sa.Table | None,
    size: int,
    seed: int,
) -> Iterator[Check]:
    """Yield the checks of the ledger, of the facts, and of each input. sums: the facts' checksums
    if they are known; damaged: the sink's damaged files, if it has files; size, seed: size and seed
    of the samples."""
    checksums = stage_checksums(staging, scope, sums)
    scope = replace(scope, by_id=stage_by_id(staging, scope))
    recent = [c for c in commits if (c.batch, c.drain) > (scope.source_first or START)]
    found = [
        recount(
            staging,
            scope,
            stream,
            stage_sources(staging, stream, recent, recounted_columns(scope, stream)),
        )
        for stream in scope.streams
    ]
    yield from ledger_checks(scope)
    yield fact_rows(scope)
    yield unmatched_rows(scope)
    yield unparsable(scope)
    yield from resolved_checks(staging, scope)
    wrong = (
        find_wrong_rows(staging, scope, recent, checksums, found[0]) if scope.roles else WrongRows()
    )
    yield same_rows(stage_wrong_rows(staging, scope, checksums, wrong), wrong.notes)
    if damaged is not None:
        yield table_files(damaged)
    for stream, recounted in zip(scope.streams, found, strict=True):
        for check in stream_checks(staging, scope, stream, recounted):
            yield check.about(stream.name)
    ids = [recounted.ids for recounted in found]
    # of a single stream, unique_ids finds what was loaded twice where the source is gone
    if all(
        stream.ids and (source is not None or (stream.name and stream.spec.unique_ids))
        for stream, source in zip(scope.streams, ids, strict=True)
    ):
        yield no_duplicates(scope, ids)
    for role in scope.roles:
        for check in dimension_checks(staging, scope, role, size, seed):
            yield check.about("" if role.alone else role.name)
    if isinstance(job, StreamStreamJob):
        yield from pair_checks(staging, scope, job, ids, size)


def _run(
    staging: Staging,
    url: str,
    scope: Scope,
    job: AnyJob,
    loads: Sequence[Load],
    checks: Sequence[Check],
    reports: Path,
    kept: int,
    unfinished: str,
) -> tuple[VerificationResult, Scope]:
    """Run the checks and write the report. loads: all loads up to the verified range."""
    engine = staging.engine
    checks = [with_remedy(check, scope) for check in checks]
    with engine.connect() as connection:
        figures, told = summarise(connection, scope, job, loads, reports)
        mine = scope.holds(load_batches) & load_batches.c.nulled.is_not(None)
        lost = sum(
            (
                Counter(json.loads(text))
                for text in connection.scalars(select(load_batches.c.nulled).where(mine))
            ),
            Counter[str](),
        )
        late = lateness(connection, scope.app)
    if lost:
        staging.notes.append(f"Of the facts verified: {nulled_sentence(lost, engine)}.")
    if f"{late or ''}":
        staging.notes.append(f"Of all that {scope.app} has loaded: {late}.")
    told |= {"notes": staging.notes, "unseen": staging.unseen, "unfinished": unfinished}
    success, results, page = run_checkpoint(
        url, load_commits.name, scope.app, checks, told, reports, kept
    )
    return VerificationResult(
        success,
        scope.app,
        scope.fact_name,
        results,
        figures,
        staging.notes,
        staging.unseen,
        staging.passing,
        page,
        reports / "index.html",
        unfinished=unfinished,
    ), scope


def _before_filled(
    connection: sa.Connection,
    number: int,
    commits: Sequence[sa.Row],
    first: Position,
    run: Run,
    filled: int,
) -> Position | None:
    """Return the position after which everything is verified again: ``first``, or before the first
    load whose facts were filled in since a run, as that has changed them; None for everything.
    filled: how many facts have been filled in by now."""
    if filled == run.filled:
        return first
    changed = oldest_filled(connection, number, run.at - FILLING)
    former = [(c.batch, c.drain) for c in commits if changed and (c.batch, c.drain) < changed]
    return min(first, former[-1]) if former else None


def _write_run(
    engine: sa.Engine,
    result: VerificationResult,
    scope: Scope,
    filled: int,
    started: datetime,
    seconds: float,
) -> None:
    """Write the verification and its wrong rows, in one transaction. filled: how many facts had
    been filled in when it began."""
    first = scope.first
    with engine.begin() as connection:
        done = connection.execute(
            quality_runs.insert().values(
                app=result.app,
                fact_table=result.fact_table,
                started_at=started,
                seconds=seconds,
                from_batch=first and first[0],
                from_drain=first and first[1],
                to_batch=scope.last[0],
                to_drain=scope.last[1],
                success=int(result.success),
                expectations=len(result.results),
                failed=json.dumps([r.name for r in result.failed]),
                unseen=json.dumps([what for what in result.unseen if what not in result.passing]),
                passing=json.dumps(result.passing),
                filled=filled,
                report=str(result.report),
            )
        )
        (verification,) = done.inserted_primary_key or (0,)
        write_failures(connection, verification, result.results, scope.number, scope.ids)
