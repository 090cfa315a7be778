"""The content of a dimension's page: its rows and how they have changed, its versions and the apps
that join them, its rejected rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from semistream.durable import read_checked
from semistream.errors import ConfigError, StateError
from semistream.master.published import ANEW, MANIFEST, current_version, snapshot_roots
from semistream.paths import Paths
from semistream.settings import pair_words
from semistream.warehouse import existing, open_warehouse
from semistream.warehouse.commit_history import read_commits, with_inputs
from semistream.warehouse.schema import load_commits, master_changes, masters, rejected_master

REJECTED = 50  # rejected rows that are shown
CHANGES = 25  # provisionings that are shown
COMMITS = 1_000  # of each app that are searched for the versions that it joined


class Joined(NamedTuple):
    """An app that joins a dimension, and the role in which it does so."""

    app: str
    role: str
    on: str
    join_type: str


@dataclass(frozen=True)
class DimensionLine:
    """A dimension in the overview. rows: number of rows of its table; rejected: number of source
    rows that the latest provisioning left out; provisioned_at: UTC."""

    name: str
    table: str
    rows: int
    provisioned_at: datetime
    rejected: int
    joined: tuple[Joined, ...]


class Change(NamedTuple):
    """A provisioning that has changed rows. changes: its time, ns since 1970; rejected: rows of the
    source that it left out."""

    changes: int
    inserted: int
    updated: int
    rejected: int

    @property
    def at(self) -> datetime:
        """The time, UTC."""
        return datetime.fromtimestamp(self.changes / 1e9, UTC)


class Version(NamedTuple):
    """A version of a dimension's snapshot. key: its join key; rows: number of rows with a key;
    more: the increase of rows since the previous version, None for the oldest version; created:
    UTC; bytes: size on disk; current: whether loads that begin now use the version; held: the apps
    that hold it; taken: by app, the time of the first commit with the version, UTC."""

    key: str
    version: str
    created: datetime
    rows: int
    more: int | None
    null_keys: int
    bytes: int
    current: bool
    held: tuple[str, ...]
    taken: Mapping[str, datetime]


class Rejected(NamedTuple):
    """A row of the source that the latest provisioning left out."""

    reason: str
    detail: str
    tuple: str
    rejected_at: datetime


@dataclass(frozen=True)
class DimensionPage:
    """The content of a dimension's page. changes: the newest ones, in falling order; reasons: the
    numbers of rejected rows by reason; damaged: the reasons why snapshots cannot be read."""

    of: DimensionLine
    business_key: tuple[str, ...]
    changes: tuple[Change, ...]
    versions: tuple[Version, ...]
    reasons: Mapping[str, int]
    rejected: tuple[Rejected, ...]
    damaged: tuple[str, ...] = ()


def dimension_lines(connection: Connection) -> tuple[DimensionLine, ...]:
    """Return all dimensions of the warehouse, by name."""
    m, r = masters.c, rejected_master.c
    counted = connection.execute(select(r.master, func.count()).group_by(r.master))
    rejected = {name: int(count) for name, count in counted}
    joined = _joined(connection)
    rows = connection.execute(
        select(m.name, m.table_name, m.rows, m.provisioned_at).order_by(m.name)
    )
    return tuple(
        DimensionLine(*row, rejected.get(row.name, 0), tuple(joined.get(row.name, ())))
        for row in rows
    )


def dimension_page(name: str, paths: Paths) -> DimensionPage:
    """Return the content of a dimension's page. Raises ConfigError for a name that no dimension
    has."""
    with open_warehouse(existing(paths.warehouse_url)) as engine, engine.connect() as connection:
        lines = {line.name: line for line in dimension_lines(connection)}
        if name not in lines:
            raise ConfigError(
                "dimension",
                "must be one that was provisioned",
                name,
                f"They are: {', '.join(lines) or 'none'}.",
            )
        line, r, c = lines[name], rejected_master.c, master_changes.c
        key = connection.scalar(select(masters.c.business_key).where(masters.c.name == name))
        reasons = connection.execute(
            select(r.reason, func.count())
            .where(r.master == name)
            .group_by(r.reason)
            .order_by(func.count().desc())
        ).all()
        rejected = connection.execute(
            select(r.reason, func.coalesce(r.detail, ""), r.tuple, r.rejected_at)
            .where(r.master == name)
            .order_by(r.id)
            .limit(REJECTED)
        ).all()
        changes = connection.execute(
            select(c.changes, c.inserted, c.updated, c.rejected)
            .where(c.master == name)
            .order_by(c.changes.desc())
            .limit(CHANGES)
        ).all()
        taken = _first_commits(connection, line)
    versions, damaged = _versions(name, paths, taken)
    return DimensionPage(
        line,
        tuple(json.loads(key or "[]")),
        tuple(Change(*change) for change in changes),
        versions,
        {reason: int(count) for reason, count in reasons},
        tuple(Rejected(*row) for row in rejected),
        damaged,
    )


def _joined(connection: Connection) -> dict[str, list[Joined]]:
    """Return the apps that join each dimension, according to the newest commit of each app."""
    c = load_commits.c
    newest = select(c.app, func.max(c.batch).label("batch")).group_by(c.app).subquery()
    jobs = connection.execute(
        select(c.app, c.job)
        .join(newest, (c.app == newest.c.app) & (c.batch == newest.c.batch))
        .where(c.drain == 0)
        .order_by(c.app)
    )
    found: dict[str, list[Joined]] = {}
    for app, job in jobs:
        for role, of in json.loads(job).get("dimensions", {}).items():
            joined = Joined(app, role, pair_words(of["on"]), of.get("join_type") or "")
            found.setdefault(of["dimension"]["name"], []).append(joined)
    return found


def _first_commits(connection: Connection, line: DimensionLine) -> dict[str, dict[str, datetime]]:
    """Return the time of each app's first commit with a version, by version and app."""
    taken: dict[str, dict[str, datetime]] = {}
    for app in {joined.app for joined in line.joined}:
        roles = {joined.role for joined in line.joined if joined.app == app}
        commits = with_inputs(connection, app, read_commits(connection, app, COMMITS))
        for commit in commits:
            for role in roles & commit.versions.keys():
                taken.setdefault(commit.versions[role], {}).setdefault(app, commit.committed_at)
    return taken


def _versions(
    name: str, paths: Paths, taken: Mapping[str, Mapping[str, datetime]]
) -> tuple[tuple[Version, ...], tuple[str, ...]]:
    """Return the versions on disk, grouped by key with the newest first, and the reasons why other
    versions cannot be read."""
    found, damaged = list[Version](), list[str]()
    for key, root in snapshot_roots(paths.snapshots, name).items():
        current, held, before = current_version(root), _held(root), None
        mine = list[Version]()
        for directory in sorted(p for p in root.glob("v[0-9]*") if p.is_dir()):
            try:
                manifest = read_checked(directory / MANIFEST, ANEW)
            except StateError as e:
                damaged.append(str(e))
                continue
            if manifest is None:
                continue
            rows = manifest["tuple_count"]
            mine.append(
                Version(
                    ", ".join(key),
                    directory.name,
                    datetime.fromisoformat(manifest["created"]).astimezone(UTC),
                    rows,
                    None if before is None else rows - before,
                    manifest["null_keys"],
                    sum(bucket["bytes"] for bucket in manifest["buckets"]),
                    directory.name == current,
                    tuple(held.get(directory.name, ())),
                    taken.get(directory.name, {}),
                )
            )
            before = rows
        found += mine[::-1]
    return tuple(found), tuple(damaged)


def _held(root: Path) -> dict[str, list[str]]:
    """Return, by version, the apps that hold it."""
    held: dict[str, list[str]] = {}
    for pin in sorted((root / "pins").glob("*")):
        held.setdefault(pin.read_text().strip(), []).append(pin.name)
    return held
