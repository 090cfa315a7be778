"""Facts that were loaded with a version of the master data other than the dimension table's present
one.

A fact whose values equal today's dimension needs no further check. Other facts are compared with
the rows of the version with which they were loaded, read from its snapshot. If a version is no
longer kept, either an earlier successful verification compared its loads, or the verdict says that
they were not compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, and_, func, or_, select

from semistream.counted import counted
from semistream.positions import ordinal
from semistream.quality.master_rows import master_table, stage_version
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.warehouse.proof import as_run
from semistream.warehouse.schema import NAME, inferred, load_inputs, quality_runs
from semistream.warehouse.tables import same_row


@dataclass(frozen=True)
class Older:
    """Facts that were loaded with another version of the master data and differ from today's
    dimension. facts: a table of load_id, load_row, quality_version, surrogate key; master: a table
    of quality_version and dimension columns."""

    facts: sa.Table
    master: sa.Table


def stage_older(staging: Staging, scope: Scope, role: Role) -> Older | None:
    """Stage the facts that differ from today's dimension, and the master rows of their versions.
    Return None if all facts were loaded with today's version."""
    kept, seen, unseen = list[str](), list[Loads](), list[Loads]()
    for loads in _loads(staging, scope, role):
        if (role.snapshots / loads.version).is_dir():
            kept.append(loads.version)
        else:
            (seen if _seen_before(staging, scope, loads) else unseen).append(loads)
    if seen:
        staging.notes.append(
            f"{_described(seen)}: they were compared with it by an earlier verification, and by "
            "their checksums have not changed since."
        )
    if unseen:
        staging.unseen.append(f"{_described(unseen)}: they were not compared with it")
    filled = _filled(staging, scope, role)
    if not (kept or filled) or not role.added:
        return None
    facts = staging.table(
        role.staged("older"),
        Column("load_id", BigInteger),
        Column("load_row", Integer),
        Column("quality_version", NAME),
        Column(role.surrogate, BigInteger),
    )
    master = master_table(staging, role, role.staged("older_master"))
    _stage_facts(staging, scope, role, facts, kept, filled)
    f = facts.c
    for version in sorted({*kept, *filled}):
        keys = staging.scalars(
            select(f[role.surrogate]).where(f.quality_version == version).distinct()
        )
        try:
            if keys:
                stage_version(staging, role, master, version, role.surrogate, keys)
        except (OSError, pa.ArrowException) as e:
            with staging.engine.begin() as connection:
                connection.execute(facts.delete().where(f.quality_version == version))
            staging.unseen.append(
                f"facts of version {version} of the master data were not all "
                f"compared with it, as it cannot be read ({e})"
            )
    staging.index(master, role.surrogate)
    return Older(facts, master)


@dataclass(frozen=True)
class Loads:
    """The loads under one version of the master data. positions: see ``ordinal``."""

    version: str
    positions: tuple[int, ...]
    facts: int
    unmatched: int


def _described(gone: Sequence[Loads]) -> str:
    """Return the beginning of a sentence on loads under versions that are no longer kept."""
    facts, lost = (sum(getattr(of, name) for of in gone) for name in ("facts", "unmatched"))
    words = ((facts, "fact"), (lost, "unmatched tuple"))
    what = " and ".join(counted(number, word) for number, word in words if number)
    versions = ", ".join(of.version for of in gone)
    return (
        f"{what} {'was' if facts + lost == 1 else 'were'} loaded with a version of the master data "
        f"that is no longer kept ({versions})"
    )


def _loads(staging: Staging, scope: Scope, role: Role) -> list[Loads]:
    of_role, found = role.loads(), dict[str, list[sa.Row]]()
    b = of_role.c
    at = ordinal(b.batch, b.drain).label("at")
    for row in staging.all(
        select(
            b.version,
            at,
            func.sum(b.output_rows).label("facts"),
            func.sum(b.unmatched).label("unmatched"),
        )
        .where(
            scope.holds(of_role), b.version != role.version, or_(b.output_rows > 0, b.unmatched > 0)
        )
        .group_by(b.version, at)
    ):
        found.setdefault(row.version, []).append(row)
    return [
        Loads(
            version,
            tuple(row.at for row in rows),
            sum(int(row.facts) for row in rows),
            sum(int(row.unmatched) for row in rows),
        )
        for version, rows in sorted(found.items())
    ]


def _seen_before(staging: Staging, scope: Scope, loads: Loads) -> bool:
    """Return whether successful verifications have compared all of these loads, also if other
    batches of theirs were taken out since."""
    q = quality_runs.c
    mine = (q.app == scope.app, q.fact_table == scope.fact_name)
    runs = staging.all(select(quality_runs).where(*mine, q.success == 1))
    looked = [
        (ordinal(*run.first), ordinal(*run.last))
        for run in map(as_run, runs)
        if not any(re.search(rf"\b{loads.version}\b", what) for what in run.unseen)
    ]
    return all(any(first < at <= last for first, last in looked) for at in loads.positions)


def _filled(staging: Staging, scope: Scope, role: Role) -> list[str]:
    """Return the older versions from which facts with an inferred member were filled in, and which
    are still kept. Facts of other versions were compared when they were filled in; if they have
    changed since, their checksums show this."""
    i = inferred.c
    versions = staging.scalars(
        select(i.version)
        .where(
            scope.until(inferred),
            i.role == role.name,
            i.version.is_not(None),
            i.version != role.version,
        )
        .distinct()
    )
    return [version for version in versions if (role.snapshots / version).is_dir()]


def _stage_facts(
    staging: Staging,
    scope: Scope,
    role: Role,
    facts: sa.Table,
    versions: list[str],
    filled: list[str],
) -> None:
    """Stage the facts that differ from today's dimension, and that were loaded with one of
    ``versions`` or filled in from one of ``filled``."""
    f, d, i = scope.fact, role.dimension, load_inputs.c
    same = f.c[role.surrogate] == d.c[role.surrogate]
    query = (
        select(f.c.load_id, f.c.load_row, i.version, f.c[role.surrogate])
        .select_from(
            f.join(load_inputs, and_(i.load_id == f.c.load_id, i.role == role.name)).outerjoin(
                d, same
            )
        )
        .where(
            scope.holds(f),
            i.version.in_(versions),
            role.has_row(f),
            ~role.is_inferred(f),
            role.differ(f, d),
        )
    )
    staging.fill(facts, query)
    n = inferred.c
    these = and_(same_row(inferred, f), n.role == role.name)
    query = (
        select(f.c.load_id, f.c.load_row, n.version, f.c[role.surrogate])
        .select_from(inferred.join(f, these).outerjoin(d, same))
        .where(scope.until(inferred), n.version.in_(filled), role.differ(f, d))
    )
    staging.fill(facts, query)
