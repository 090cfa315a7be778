"""A sample of facts and of unmatched tuples, with the master rows that have their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, String, and_, select

from semistream.quality.master_rows import copied, master_table, stage_version
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.warehouse.schema import NAME, load_inputs, unmatched
from semistream.warehouse.tables import same_row
from semistream.warehouse.types import KeyString, LongString, typed

PARTITIONS_SAMPLED = 64


@dataclass(frozen=True)
class Sample:
    """The sampled rows, as tables. facts: load_id, load_row, quality_version, ids; unmatched:
    quality_id, load_id, quality_version, key_0 …; master: quality_version, dimension columns."""

    facts: sa.Table
    unmatched: sa.Table
    master: sa.Table
    seed: int


def stage_sample(staging: Staging, scope: Scope, role: Role, size: int, seed: int) -> Sample | None:
    """Stage a random sample of facts and of unmatched tuples, and the master rows with the sample's
    keys. seed: makes the sample reproducible."""
    if not size or not scope.ids:
        return None
    rng = np.random.default_rng(seed)
    facts = _sample_facts(staging, scope, role, size, rng)
    others = _sample_unmatched(staging, scope, role, size, rng)
    sample = Sample(facts, others, master_table(staging, role, role.staged("master")), seed)
    _stage_dimension(staging, scope, role, sample)
    for version in sorted({v for v in role.versions.values() if v != role.version}):
        _stage_snapshot(staging, scope, role, sample, version)
    staging.index(sample.master, role.surrogate)
    return sample


def _sample_facts(
    staging: Staging, scope: Scope, role: Role, size: int, rng: np.random.Generator
) -> sa.Table:
    """Draw facts in two stages, first loads from the ledger, then rows of these loads, so that the
    cost does not grow with the table."""
    loads = role.loads()
    table = staging.table(
        role.staged("sample"),
        Column("load_id", BigInteger),
        Column("load_row", Integer),
        Column("quality_version", NAME),
        *(Column(i, scope.fact.c[i].type) for i in scope.ids),
    )
    parts = staging.all(
        select(loads.c.load_id, loads.c.output_rows.label("n"), loads.c.version)
        .where(scope.holds(loads), loads.c.output_rows > 0)
        .order_by(loads.c.load_id)
    )
    if len(parts) > PARTITIONS_SAMPLED:
        weights = np.array([p.n for p in parts], float)
        some = rng.choice(len(parts), PARTITIONS_SAMPLED, False, weights / weights.sum())
        parts = [parts[i] for i in sorted(some)]
    staging.insert(table, _draw(staging, scope, role, parts, size, rng))
    staging.index(table, "quality_version")
    staging.analyze(table)
    return table


def _draw(
    staging: Staging,
    scope: Scope,
    role: Role,
    parts: Sequence[sa.Row],
    size: int,
    rng: np.random.Generator,
) -> Iterator[tuple]:
    """Yield (load_id, load_row, version, *ids) of rows whose numbers are drawn. A row that is gone
    is skipped, because other checks report it. A row with an inferred member is skipped, because it
    had no master row."""
    f, start, wanted = scope.fact, 0, _chosen(sum(p.n for p in parts), size, rng)
    for part in parts:
        chosen = wanted[(start <= wanted) & (wanted < start + part.n)] - start
        rows = select(f.c.load_row, *(f.c[i] for i in scope.ids)).where(
            f.c.load_id == part.load_id, f.c.load_row.in_(chosen.tolist()), ~role.is_inferred(f)
        )
        for row in staging.all(rows.order_by(f.c.load_row)):
            yield part.load_id, row[0], part.version, *row[1:]
        start += part.n


def _chosen(total: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw numbers below ``total``, int64[at most size], in ascending order."""
    return np.sort(rng.choice(max(total, 1), min(size, total), replace=False))


def _sample_unmatched(
    staging: Staging, scope: Scope, role: Role, size: int, rng: np.random.Generator
) -> sa.Table:
    u, i = unmatched.c, load_inputs.c
    table = staging.table(
        role.staged("unmatched"),
        Column("quality_id", KeyString()),
        Column("load_id", BigInteger),
        Column("quality_version", NAME),
        # a master key is no longer than an index allows; that of a tuple without a match may be
        *(
            Column(f"key_{i}", LongString() if isinstance(kind, String) else kind)
            for i, kind in enumerate(role.dimension.c[m].type for m in role.on.values())
        ),
    )
    mine = and_(scope.holds(unmatched), scope.kept(), role.lacks(unmatched))
    keys = staging.all(select(u.load_id, u.load_row).where(mine).order_by(u.load_id, u.load_row))
    chosen = [tuple(keys[n]) for n in _chosen(len(keys), size, rng)]
    rows = staging.all(
        select(u.stream_id, u.load_id, i.version, u.tuple)
        .select_from(
            unmatched.outerjoin(load_inputs, and_(i.load_id == u.load_id, i.role == role.name))
        )
        .where(sa.tuple_(u.load_id, u.load_row).in_(chosen))
    )
    tuples = (json.loads(row._mapping["tuple"]) for row in rows)
    keyed = (
        [typed(t.get(s), role.dimension.c[m].type) for s, m in role.on.items()] for t in tuples
    )
    staging.insert(
        table, [(*row[:2], row[2] or "", *key) for row, key in zip(rows, keyed, strict=True)]
    )
    return table


def _stage_dimension(staging: Staging, scope: Scope, role: Role, sample: Sample) -> None:
    """Stage the master rows of the current version that have the sample's keys, with a join in the
    database."""
    d, f, s, u = role.dimension, scope.fact, sample.facts, sample.unmatched
    same_other = and_(*(u.c[f"key_{i}"] == d.c[b] for i, b in enumerate(role.on.values())))
    for table, joined in (
        (s, s.join(f, same_row(s, f)).join(d, role.same_key(f, d))),
        (u, u.join(d, same_other)),
    ):
        rows = (
            select(table.c.quality_version, *(d.c[n] for n in copied(role)))
            .distinct()
            .select_from(joined)
            .where(table.c.quality_version == role.version, role.is_master)
        )
        staging.fill(sample.master, rows)


def _stage_snapshot(
    staging: Staging, scope: Scope, role: Role, sample: Sample, version: str
) -> None:
    """Stage the master rows of an older version that have the sample's keys, read from the
    version's snapshot. If the snapshot is lost, the version's rows are removed from the sample."""
    s, u, f = sample.facts, sample.unmatched, scope.fact
    stream_key, master_key = next(iter(role.on.items()))
    matched = select(f.c[stream_key]).select_from(s.join(f, same_row(s, f)))
    keys = {
        *staging.scalars(matched.where(s.c.quality_version == version).distinct()),
        *staging.scalars(select(u.c.key_0).where(u.c.quality_version == version).distinct()),
    }
    if not keys:
        return
    why = "is no longer kept"
    if (role.snapshots / version).is_dir():
        try:
            stage_version(staging, role, sample.master, version, master_key, keys)
            return
        except (OSError, pa.ArrowException) as e:
            why = f"cannot be read ({e})"
    with staging.engine.begin() as connection:
        lost = [
            connection.execute(t.delete().where(t.c.quality_version == version)).rowcount
            for t in (s, u)
        ]
    staging.notes.append(
        f"{sum(lost)} sampled rows were loaded with version {version} of the "
        f"master data, which {why}: they are not joined again."
    )
