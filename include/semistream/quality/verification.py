"""Verification of what an app loaded: one Great Expectations checkpoint, a page of Data Docs, a row
in quality_runs."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import func, select

from semistream import warehouse
from semistream.errors import ConfigError, SemistreamError
from semistream.job import SIDES, AnyJob, Job, Role, StreamStreamJob, job_of
from semistream.joins.waits import in_seconds
from semistream.master.published import read_manifest, snapshot_root
from semistream.paths import Paths
from semistream.positions import START, Kind, Position, resolves
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
    with_remedy,
)
from semistream.quality.checksums import Sums, stage_checksums
from semistream.quality.dimension_checks import dimension_checks
from semistream.quality.findings import WrongRows
from semistream.quality.history import Ahead, lost_batches
from semistream.quality.pair_checks import closed_table, pair_checks
from semistream.quality.recount import recounted_columns, stage_sources
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
from semistream.streaming.sinks.registry import open_sink, sink_kind
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.warehouse.bulk import say_nulled
from semistream.warehouse.lateness import lateness
from semistream.warehouse.proof import read_proof
from semistream.warehouse.records import unaccounted
from semistream.warehouse.schema import (
    load_batches,
    load_commits,
    load_rejections,
    masters,
    quality_runs,
)
from semistream.warehouse.tables import existing_table

S = TypeVar("S", bound=Settings)
BATCHES_SHOWN = 100
ROWS_TOLD = 5  # of a failed check, in a log or an error message
JUDGED = ("max_unparsable", "unique_ids")  # settings of a stream that only the verdict uses
JUDGED_OF_ROLE = ("max_unmatched", "max_open_hours", "grace")  # likewise of a role
SAMPLE = 1000  # how many facts, and how many unmatched tuples, are joined again
# the columns of a batch in the report
LONGEST = "longest wait"  # that a tuple waited for its master data
NUMBERS = [
    "waiting_before",
    "rows_read",
    "resolved",
    "matched",
    "unmatched",
    "waiting",
    "output_rows",
]


@dataclass(frozen=True)
class VerificationResult:
    """The result of a verification.

    unseen: what could not be checked, so that the verdict does not cover it; report: the page of
    this run, or None if nothing was committed since the last one; index: the page of all runs;
    proof: what all runs together have proven.
    """

    success: bool
    app: str
    fact_table: str
    results: list[CheckResult] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    report: Path | None = None
    index: Path | None = None
    proof: str = ""

    @property
    def failed(self) -> list[CheckResult]:
        return [r for r in self.results if not r.success]

    def describe(self) -> str:
        """Describe the result in a few lines for a log or an error message: what failed, its first
        rows, and what could not be checked."""
        if self.report is None:
            return (
                f"{self.app}: nothing was committed since the last verification. Complete: "
                f"{self.proof}"
            )
        if self.success:
            return (
                f"{self.app}: all {len(self.results)} checks hold. Complete: {self.proof}. "
                f"Report: {self.report}"
            )
        lines = [f"{self.app}: {len(self.failed)} of {len(self.results)} checks failed."]
        for r in self.failed:
            lines.append(f"- {r.title} ({r.name}): {r.error or f'{r.count} rows'}")
            lines += [
                "    " + ", ".join(f"{k}={v}" for k, v in row.items()) for row in r.rows[:ROWS_TOLD]
            ]
            lines += [f"    What to do: {r.remedy}"] if r.remedy else []
        lines += [f"- Not looked at: {what}" for what in self.unseen]
        return "\n".join([*lines, f"Report: {self.report}"])

    __str__ = describe


class VerificationFailed(SemistreamError):
    """The error for callers that must fail. Its message names the checks and the rows."""

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
) -> VerificationResult:
    """Check everything that `app` has committed.

    since_last: check only what comes after the part that is already proven; where nothing does, and
    a tuple is open for longer than the job allows by now, check everything. job: what the app
    loads; default: the ledger's record; limits: a job whose judged settings replace those of
    ``job``. reports_dir, reports_kept: where Data Docs are written, and how many to keep;
    snapshots: where the master data's snapshots are; the environment
    gives the defaults. sample: how many facts, and how many unmatched tuples, are joined again;
    they are drawn anew each time unless a seed is given. Raises ConfigError for an app that has
    loaded nothing. A failed check raises nothing.
    """
    started, clock = datetime.now(UTC).replace(tzinfo=None), time.monotonic()
    places = Paths.from_environment()
    seed = secrets.randbelow(2**31) if seed is None else seed
    reports, snapshots = (reports_dir or places.reports).absolute(), snapshots or places.snapshots
    with warehouse.open_warehouse(url) as engine:
        ahead = lost_batches(engine, app, places.checkpoints / app)
        with engine.connect() as connection:
            commits = committed(connection, app)
            job = _with_limits(job or job_of(json.loads(commits[-1].job)), limits)
            proof = read_proof(connection, app)
            first = (
                proof.until
                if since_last and proof is not None and proof.until != START and not ahead.findings
                else None
            )
        if first is not None and (commits[-1].batch, commits[-1].drain) <= first:
            with engine.connect() as connection:
                assert proof is not None
                overdue = (
                    isinstance(job, Job)
                    and proof.run is not None
                    and is_overdue(connection, app, job, proof.run.at)
                )
            if not overdue:
                return VerificationResult(
                    True,
                    app,
                    commits[-1].fact_table,
                    index=reports / "index.html",
                    proof=str(proof),
                )
            first = None  # time has made it fail, which is proven by looking at everything
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
                    (sample, seed),
                    reports,
                    snapshots,
                    versions,
                    reports_kept or places.reports_kept,
                    ahead,
                )
            if result.success or result.report is None or _changes(engine, roles) == changes:
                break
            # the master data were changed meanwhile, which may be all that the checks have found
            discard(result.report, reports)
        _write_run(engine, result, scope, started, time.monotonic() - clock)
        with engine.connect() as connection:
            return replace(result, proof=str(read_proof(connection, app)))


def _with_limits(job: AnyJob, limits: AnyJob | None) -> AnyJob:
    """Return the job as it was loaded, with the judged settings of another one."""
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
        return job.model_copy(update={"stream": stream, "dimensions": roles})
    sides = {side: _judged(getattr(job, side), getattr(limits, side), JUDGED) for side in SIDES}
    return job.model_copy(update=sides)


def _judged(settings: S, limits: S, names: Sequence[str]) -> S:
    """Return settings with those of ``limits`` that have these names."""
    return settings.model_copy(update={name: getattr(limits, name) for name in names})


def _changes(engine: sa.Engine, roles: Sequence[Role]) -> dict[str, int]:
    """Return, by name, how many changes provisioning has counted for each dimension table. A table
    that provisioning did not make is left out."""
    m = masters.c
    with engine.connect() as connection:
        return dict(
            connection.execute(
                select(m.name, m.changes).where(m.name.in_([role.dimension.name for role in roles]))
            ).all()
        )


def _version(snapshots: Path, changes: int | None) -> str | None:
    """Return the version of the master data that the dimension table has; UNPUBLISHED if it changed
    and was not published since."""
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
    sampling: tuple[int, int],
    reports: Path,
    snapshots: Path,
    versions: Sequence[str | None],
    kept: int,
    ahead: Ahead,
) -> tuple[VerificationResult, Scope]:
    """Verify the commits. versions: see ``make_scope``."""
    engine, newest = staging.engine, commits[-1]
    with engine.connect() as connection:
        verified = range_of(connection, newest.app, commits, first)
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
        return _run(staging, url, scope, checks, reports, kept)
    with engine.connect() as connection:
        scope = make_scope(connection, verified, job, newest, fact, versions, snapshots)
    closed = closed_table(engine, job, scope.fact_name)
    checks = list(history.checks(staging, scope, ahead, stored, "", closed))
    checks += _checks(staging, scope, job, commits, sums, damaged, *sampling)
    return _run(staging, url, scope, checks, reports, kept)


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
    if they are known; damaged: the sink's damaged files, if it has files; size, seed: of the
    samples."""
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
    yield same_rows(stage_wrong_rows(staging, scope, checksums, wrong), wrong.told)
    if damaged is not None:
        yield table_files(damaged)
    for stream, recounted in zip(scope.streams, found, strict=True):
        yield from stream_checks(staging, scope, stream, recounted)
    ids = [recounted.ids for recounted in found]
    # of a single stream, unique_ids finds what was loaded twice where the source is gone
    if all(
        stream.ids and (source is not None or (stream.name and stream.spec.unique_ids))
        for stream, source in zip(scope.streams, ids, strict=True)
    ):
        yield no_duplicates(scope, ids)
    for role in scope.roles:
        yield from dimension_checks(staging, scope, role, size, seed)
    if isinstance(job, StreamStreamJob):
        yield from pair_checks(staging, scope, job, ids, size)


def _run(
    staging: Staging, url: str, scope: Scope, checks: Sequence[Check], reports: Path, kept: int
) -> tuple[VerificationResult, Scope]:
    """Run the checks and write the report."""
    engine = staging.engine
    checks = [with_remedy(check, scope) for check in checks]
    with engine.connect() as connection:
        figures, batches = _figures(connection, scope)
        mine = scope.holds(load_batches) & load_batches.c.nulled.is_not(None)
        lost = sum(
            (
                Counter(json.loads(text))
                for text in connection.scalars(select(load_batches.c.nulled).where(mine))
            ),
            Counter[str](),
        )
    if lost:
        staging.notes.append(f"Of the facts verified: {say_nulled(lost, engine)}.")
    with engine.connect() as connection:
        late = lateness(connection, scope.app)
    if f"{late or ''}":
        staging.notes.append(f"Of all that {scope.app} has loaded: {late}.")
    app, name = scope.app, scope.fact_name
    since = "all-batches" if scope.first is None else f"batches-after-{_position(scope.first)}"
    summary = {
        "run": f"{since}-up-to-{_position(scope.last)}",  # also the name of a directory
        "app": app,
        "fact_table": name,
        "sink": "" if sink_kind(scope.sink).in_warehouse else scope.sink,
        "figures": [[k, n] for k, n in figures.items()],
        "columns": [*NUMBERS, LONGEST],
        "commits": len(batches),
        "batches": [list(b.values()) for b in batches[-BATCHES_SHOWN:]],
        "notes": staging.notes,
        "unseen": staging.unseen,
    }
    success, results, page = run_checkpoint(
        url, load_commits.name, app, checks, summary, reports, kept
    )
    return VerificationResult(
        success,
        app,
        name,
        results,
        figures,
        staging.notes,
        staging.unseen,
        page,
        reports / "index.html",
    ), scope


def _position(position: Position) -> str:
    """Return a position as a word, which may be in the name of a directory."""
    what = "-drained" if position[1] else ""
    if resolves(position[1]):
        what = f"-resolved-{position[1] - Kind.RESOLVE + 1}"
    return f"{position[0]}{what}"


def _figures(
    connection: sa.Connection, scope: Scope
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return the completeness summary: totals of the verified batches, and the batches one by
    one."""
    b, r = load_batches.c, load_rejections.c
    rows = connection.execute(
        select(
            b.batch,
            b.drain,
            *(func.sum(b[n]).label(n) for n in NUMBERS),
            func.max(b.wait_longest).label("waited"),
        )
        .where(scope.holds(load_batches))
        .group_by(b.batch, b.drain)
        .order_by(b.batch, b.drain)
    ).all()
    batches: list[dict[str, Any]] = [
        {
            "batch": _position((row.batch, row.drain)),
            **{n: int(row._mapping[n]) for n in NUMBERS},
            LONGEST: "" if row.waited is None else in_seconds(row.waited),
            "ok": not unaccounted(row),
        }
        for row in rows
    ]
    figures = {
        label: sum(x[n] for x in batches)
        for label, n in (
            ("rows read", "rows_read"),
            ("resolved", "resolved"),
            ("matched", "matched"),
            ("unmatched", "unmatched"),
        )
        if n != "resolved" or any(x[n] for x in batches)
    }
    reasons = connection.execute(
        select(r.reason, func.sum(r.tuples))
        .where(scope.holds(load_rejections))
        .group_by(r.reason)
        .order_by(r.reason)
    )
    figures |= {f"unmatched: {reason}": int(n) for reason, n in reasons}
    figures |= {
        "waiting": batches[-1]["waiting"] if batches else 0,
        "output rows": sum(x["output_rows"] for x in batches),
        "batches": len({row.batch for row in rows}),
    }
    return figures, batches


def _write_run(
    engine: sa.Engine, result: VerificationResult, scope: Scope, started: datetime, seconds: float
) -> None:
    first = scope.first
    with engine.begin() as connection:
        connection.execute(
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
                unseen=json.dumps(result.unseen),
                report=str(result.report),
            )
        )
