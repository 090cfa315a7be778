"""The history of an app's commits: counts, rates, waits, memory and phases of each, for charts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, select

from semistream.positions import Position
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import batch_of, drain_of, first_load, last_load
from semistream.warehouse.schema import load_batches, load_commits, load_inputs, load_rejections
from semistream.warehouse.unmatched_groups import Kind

SUMMED = (
    "rows_read",
    "resolved",
    "matched",
    "unmatched",
    "waiting",
    "output_rows",
    "cache_hits",
    "bytes_read",
    "memory_budget",
    "memory_peak",
)
GREATEST = ("resident_peak", "wait_median", "wait_longest", "seconds")


@dataclass(frozen=True)
class CommitCounts:
    """A commit, with sums over its partitions. Memory is in bytes; committed_at is UTC.

    service_rate: tuples per second of all partitions, inside the join; seconds: time of the slowest
    partition inside the join; wait_median, wait_longest: seconds, from the partition with the
    longest waits, None if no tuple was finished; phases: seconds by phase, empty if unknown;
    rejected: the number of unmatched tuples by (role, reason), see ``Kind``; versions: the version
    of the master data by role.
    """

    batch: int
    drain: int
    committed_at: datetime
    run_started: float | None
    phases: Mapping[str, float]
    algorithm: str
    reason: str
    partitions: int
    rows_read: int
    resolved: int
    matched: int
    unmatched: int
    waiting: int
    output_rows: int
    cache_hits: int
    bytes_read: int
    memory_budget: int
    memory_peak: int
    service_rate: float
    seconds: float
    resident_peak: int | None = None
    wait_median: float | None = None
    wait_longest: float | None = None
    rejected: Mapping[tuple[str, str], int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        return self.batch, self.drain

    @property
    def finished(self) -> int:
        """The number of tuples that this commit finished as matched or unmatched."""
        return self.matched + self.unmatched


def read_commits(
    connection: Connection,
    app: str,
    most: int,
    *,
    after: Position | None = None,
    before: Position | None = None,
) -> list[CommitCounts]:
    """Return an app's newest commits, at most `most`, in order, without ``rejected`` and
    ``versions``. after, before: positions that limit the commits."""
    c, b = load_commits.c, load_batches.c
    newest = (
        select(c.batch, c.drain, c.committed_at, c.partitions, c.run_started, c.phases)
        .where(c.app == app, *_between(c, after, before))
        .order_by(c.batch.desc(), c.drain.desc())
        .limit(most)
    )
    commits = connection.execute(newest).all()[::-1]
    if not commits:
        return []
    first = commits[0]
    sums = (
        select(
            b.batch,
            b.drain,
            func.max(b.algorithm).label("algorithm"),
            func.max(b.reason).label("reason"),
            func.sum(b.service_rate).label("service_rate"),
            *(func.sum(b[name]).label(name) for name in SUMMED),
            *(func.max(b[name]).label(name) for name in GREATEST),
        )
        .where(b.app == app, _since(b, (first.batch, first.drain)), *_between(b, None, before))
        .group_by(b.batch, b.drain)
    )
    counted = {(row.batch, row.drain): row._mapping for row in connection.execute(sums)}
    return [
        CommitCounts(
            commit.batch,
            commit.drain,
            commit.committed_at,
            commit.run_started,
            json.loads(commit.phases or "{}"),
            of["algorithm"],
            of["reason"] or "",
            commit.partitions,
            **_numbers(of),
            service_rate=of["service_rate"],
        )
        for commit in commits
        if (of := counted.get((commit.batch, commit.drain))) is not None
    ]


def with_inputs(
    connection: Connection, app: str, commits: Iterable[CommitCounts]
) -> list[CommitCounts]:
    """Return consecutive commits of an app, completed with ``rejected`` and ``versions``."""
    commits = list(commits)
    if not commits:
        return []
    number = app_number(connection, app)
    loads = first_load(number, commits[0].position), last_load(number, commits[-1].position)
    rejected: dict[Position, dict[tuple[str, str], int]] = defaultdict(dict)
    versions: dict[Position, dict[str, str]] = defaultdict(dict)
    r, i = load_rejections.c, load_inputs.c
    at = batch_of(r.load_id), drain_of(r.load_id)
    for batch, drain, role, reason, tuples in connection.execute(
        select(*at, r.role, r.reason, func.sum(r.tuples))
        .where(r.load_id.between(*loads))
        .group_by(*at, r.role, r.reason)
    ):
        kinds = rejected[int(batch), int(drain)]
        kind = Kind.of(reason, role)
        kinds[kind.role, reason] = kinds.get((kind.role, reason), 0) + int(tuples)
    at = batch_of(i.load_id), drain_of(i.load_id)
    for batch, drain, role, version in connection.execute(
        select(*at, i.role, func.max(i.version))
        .where(i.load_id.between(*loads), i.dimension != "")
        .group_by(*at, i.role)
    ):
        versions[int(batch), int(drain)][role] = version
    return [
        replace(of, rejected=rejected[of.position], versions=versions[of.position])
        for of in commits
    ]


def _numbers(of: RowMapping) -> dict[str, Any]:
    """Return the sums and the maxima over a commit's loads. The sums become integers, because MySQL
    returns sums as decimals."""
    return {name: int(of[name]) for name in SUMMED} | {name: of[name] for name in GREATEST}


def _since(columns: Any, position: Position) -> ColumnElement[bool]:
    batch, drain = position
    return or_(columns.batch > batch, and_(columns.batch == batch, columns.drain >= drain))


def _between(
    columns: Any, after: Position | None, before: Position | None
) -> list[ColumnElement[bool]]:
    """Return the conditions for rows after one position and before another."""
    found: list[ColumnElement[bool]] = []
    if after is not None:
        found.append(_since(columns, (after[0], after[1] + 1)))
    if before is not None:
        batch, drain = before
        found.append(
            or_(columns.batch < batch, and_(columns.batch == batch, columns.drain < drain))
        )
    return found
