"""The content of a load's page: its commits as series for charts, its settings, unmatched tuples,
verifications and lineage."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from semistream.job import AnyJob, Job
from semistream.paths import Paths
from semistream.pipeline import summary
from semistream.pipeline.lineage import Drawing, lineage
from semistream.pipeline.loaded import loaded_job
from semistream.positions import KINDS, Kind, Position, resolves
from semistream.settings import pair_words
from semistream.streaming.phases import PHASES
from semistream.warehouse import existing, open_warehouse, unmatched_groups
from semistream.warehouse.commit_history import CommitCounts, read_commits, with_inputs
from semistream.warehouse.ledger import app_number, newest_commit
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.schema import load_batches, load_rejections, quality_runs, unmatched

CHARTED = 2_000  # commits that the charts show at a time
PAGE = 25  # rows of a page of the ledger


class Mark(NamedTuple):
    """An event at a commit. at: index of the commit in the chart; kind: "version", "settings",
    "run", "proof" or "resolved"."""

    at: int
    kind: str
    text: str


class Rejected(NamedTuple):
    """Tuples that were ever unmatched for one reason. role: the dimension's role, or the side of
    two streams, "" if the tuples reached none; still: the number of those that still are; example:
    one of these, as JSON, "" if there is none."""

    role: str
    reason: str
    tuples: int
    still: int
    example: str


class Setting(NamedTuple):
    name: str
    value: str


@dataclass(frozen=True)
class LoadPage:
    """The content of a load's page below its tile. ledger: one page of the list of commits, the
    newest first; older: the position before which the list's next page begins, None if there is
    none."""

    app: str
    settings: tuple[Setting, ...]
    reason: str
    memory: tuple[tuple[str, int], ...]
    rejected: tuple[Rejected, ...]
    quality: tuple[summary.Verified, ...]
    ledger: tuple[CommitCounts, ...]
    older: str
    drawing: Drawing


def position_text(position: Position) -> str:
    return f"{position[0]}.{position[1]}"


def load_page(app: str, paths: Paths, before: Position | None = None) -> LoadPage:
    """Return the content of a load's page. before: a position; the ledger shows the commits before
    it, or the newest commits if it is None. Raises ConfigError for an app that has committed
    nothing."""
    with open_warehouse(existing(paths.warehouse_url)) as engine:
        job = loaded_job(engine, app)
        with engine.connect() as connection:
            # a resolving load has a plan of its own
            latest = read_commits(connection, app, KINDS)
            newest = [of for of in latest if not resolves(of.drain)][-1:]
            ledger = read_commits(connection, app, PAGE + 1, before=before)
            shown = with_inputs(connection, app, ledger[-PAGE:])
            rejected = _rejected(connection, app)
            quality = summary.quality(connection, paths, app)
            memory = _memory(connection, app, newest)
            commit = newest_commit(connection, app)
    settings = list(_settings(job, newest[0], commit.sink)) if newest and commit else []
    return LoadPage(
        app,
        tuple(settings),
        newest[0].reason if newest else "",
        memory,
        rejected,
        quality,
        tuple(shown[::-1]),
        position_text(shown[0].position) if len(ledger) > PAGE else "",
        lineage(app, job),
    )


def series(app: str, paths: Paths, before: Position | None = None) -> dict[str, Any]:
    """Return an app's newest commits, or its newest commits before a position, as columns for
    charts. All columns have the same length; null stands for unknown.

    at: seconds since 1970; name: the commit's name; rejected: by "ROLE: REASON"; seconds: by phase;
    marks: events at commits; older: the position of the first commit if there are older ones,
    otherwise "".
    """
    with open_warehouse(existing(paths.warehouse_url)) as engine, engine.connect() as connection:
        commits = read_commits(connection, app, CHARTED + 1, before=before)
        older = position_text(commits[1].position) if len(commits) > CHARTED else ""
        commits = with_inputs(connection, app, commits[-CHARTED:])
        failures = _failures(connection, app)
    kinds = sorted({kind for of in commits for kind in of.rejected})
    return {
        "at": [int(of.committed_at.replace(tzinfo=UTC).timestamp()) for of in commits],
        "name": [commit_name(of.position) for of in commits],
        **{
            name: [getattr(of, name) for of in commits]
            for name in (
                "rows_read",
                "matched",
                "unmatched",
                "waiting",
                "output_rows",
                "bytes_read",
                "memory_budget",
                "memory_peak",
                "resident_peak",
                "wait_median",
                "wait_longest",
                "service_rate",
            )
        },
        "rate": [_rate(of) for of in commits],
        "cache": [of.cache_hits / of.rows_read if of.rows_read else None for of in commits],
        "rejected": {
            ": ".join(filter(None, kind)): [of.rejected.get(kind, 0) for of in commits]
            for kind in kinds
        },
        "seconds": {phase: [of.phases.get(phase) for of in commits] for phase in PHASES},
        "marks": [mark._asdict() for mark in _marks(commits, failures)],
        "older": older,
    }


def commit_name(position: Position) -> str:
    """Return a commit's name in a table: the batch's number, with "drain" or "resolved" for commits
    that follow the batch."""
    batch, kind = position
    if kind == Kind.BATCH:
        return str(batch)
    return f"{batch} resolved" if resolves(kind) else f"{batch} drain"


def _rate(of: CommitCounts) -> float | None:
    """Return the tuples per second of a batch, from the start of its planning to its commit."""
    seconds = sum(of.phases.values())
    return of.rows_read / seconds if seconds and of.rows_read else None


def _failures(connection: Connection, app: str) -> list[tuple[Position, str]]:
    q = quality_runs.c
    rows = connection.execute(
        select(q.to_batch, q.to_drain, q.failed, q.started_at)
        .where(q.app == app, q.success == 0, q.outdated.is_(None))
        .order_by(q.id)
    )
    return [
        ((row.to_batch, row.to_drain), f"proof failed: {', '.join(json.loads(row.failed))}")
        for row in rows
    ]


def _marks(
    commits: Sequence[CommitCounts], failures: Sequence[tuple[Position, str]]
) -> Iterator[Mark]:
    """Yield the events at commits, in the commits' order."""
    settings: tuple[Any, ...] = ()  # of the newest commit that read the source
    for n, of in enumerate(commits):
        before = commits[max(n - 1, 0)]
        for role, version in of.versions.items():
            if before.versions.get(role, version) != version:
                yield Mark(n, "version", f"{role}: {before.versions[role]} → {version}")
        if of.rows_read:
            former, settings = (
                settings,
                # the predictions in a reason differ from run to run
                (of.algorithm, of.memory_budget, of.partitions, re.sub(r"[\d.,]+", "", of.reason)),
            )
            if former not in ((), settings):
                size = summary.megabytes(of.memory_budget)
                sweep = f", by {of.reason}" if of.reason.startswith("sweep ") else ""
                yield Mark(n, "settings", f"{of.algorithm}, M {size}, P {of.partitions}{sweep}")
        if of.run_started != before.run_started:
            yield Mark(n, "run", "another run began")
        if resolves(of.drain):
            yield Mark(n, "resolved", f"{of.resolved:,} late tuples resolved")
        for position, text in failures:
            if of.position == position:
                yield Mark(n, "proof", text)


def _rejected(connection: Connection, app: str) -> tuple[Rejected, ...]:
    """Return the numbers of tuples that were ever unmatched, by role and reason, the largest
    first."""
    r, groups = load_rejections.c, unmatched_groups
    loads = app_loads(app_number(connection, app))
    still, ever = groups.count_open(connection, loads), Counter[groups.Kind]()
    for role, reason, tuples in connection.execute(
        select(r.role, r.reason, func.sum(r.tuples))
        .where(r.load_id.between(*loads))
        .group_by(r.role, r.reason)
    ):
        ever[groups.Kind.of(reason, role)] += int(tuples)
    return tuple(
        Rejected(
            kind.role,
            kind.reason,
            tuples,
            still.get(kind) or still.get(groups.Kind(kind.reason), 0),
            connection.scalar(
                select(unmatched.c.tuple).where(groups.is_of(connection, app, kind)).limit(1)
            )
            or "",
        )
        for kind, tuples in ever.most_common()
    )


def _memory(
    connection: Connection, app: str, newest: Sequence[CommitCounts]
) -> tuple[tuple[str, int], ...]:
    """Return the bytes of M by component, summed over the partitions of the newest commit."""
    b, sums = load_batches.c, dict[str, int]()
    for of in newest:
        for text in connection.scalars(
            select(b.memory).where(b.app == app, b.batch == of.batch, b.drain == of.drain)
        ):
            for name, size in json.loads(text).items():
                sums[name] = sums.get(name, 0) + int(size)
    return tuple(sorted(sums.items(), key=lambda of: -of[1]))


def _settings(job: AnyJob, newest: CommitCounts, sink: str) -> Iterator[Setting]:
    yield Setting("algorithm", newest.algorithm)
    yield Setting("memory (M)", summary.megabytes(newest.memory_budget))
    yield Setting("partitions (P)", str(newest.partitions))
    yield Setting("sink", sink)
    for name, stream in zip(job.stream_names, job.streams, strict=True):
        yield Setting(name, " ".join(filter(None, (stream.format, stream.path or ""))))
        yield Setting(f"{name}: id", ", ".join(stream.id))
    if isinstance(job, Job):
        for role in job.roles:
            on, late = f"on {pair_words(role.on)}", f"late: {role.late}"
            parts = filter(None, (role.dimension.name, on, role.join_type, late))
            yield Setting(f"role {role.name}", ", ".join(parts))
    yield Setting("fact table", job.fact_table)
