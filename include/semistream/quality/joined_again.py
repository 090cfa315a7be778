"""Loads that are joined again in staging tables, from the source's tuples and the version of the
master data with which they were loaded. If the source cannot be read again, the facts' stream
columns replace it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, and_, func, literal, null, or_, select

from semistream.quality.findings import Load
from semistream.quality.master_rows import master_table, stage_version
from semistream.quality.recount import read_tuples, with_stream_id
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.quality.stream_checks import Recounted, missing
from semistream.streaming.sources.contract import CannotRecount
from semistream.warehouse.bulk import fetch
from semistream.warehouse.ids import stream_ids
from semistream.warehouse.load_ids import batch_of, resolving
from semistream.warehouse.schema import NAME, unmatched
from semistream.warehouse.tables import ROW_KEY, arrow_schema, quoted
from semistream.warehouse.types import KeyString, big_integer

ROWS_AGAIN = 1_000_000  # the most rows of loads that are joined again; the first load always is
DELETED = 500  # rows deleted by a statement


@dataclass(frozen=True)
class Again:
    """The data with which loads are compared.

    tuples: the columns are a version for each role, quality_batch, stream columns, and quality_id
    (null if the tuple was taken from the facts); masters: by role, tables with quality_version and
    the dimension's columns; expected: a table of quality_number, quality_batch, and the fact
    table's columns; source_ids: ids of the source; absent: ids that have not arrived. The last two
    are None if all tuples were taken from the facts.
    """

    tuples: sa.Table
    masters: dict[str, sa.Table]
    expected: sa.Table
    source_ids: sa.Table | None
    absent: sa.Select | None


def stream_columns(scope: Scope) -> list[str]:
    """Return the fact table's columns that come from the stream, its ids first."""
    added = (name for role in scope.roles for name in role.added)
    others = {*ROW_KEY, *scope.surrogates, *added, *scope.ids}
    return [*scope.ids, *(c.name for c in scope.fact.c if c.name not in others)]


def join_again(
    staging: Staging,
    scope: Scope,
    commits: list[sa.Row],
    loads: Sequence[Load],
    recounted: Recounted,
) -> Again:
    (stream,), source_ids, absent = scope.streams, recounted.ids, None
    kinds = {n: scope.fact.c[n].type for n in stream_columns(scope)}
    tuples = staging.table(
        "tuples",
        *(Column(_version(role), NAME) for role in scope.roles),
        Column("quality_batch", BigInteger),
        *(Column(quoted(n), kind) for n, kind in kinds.items()),
        Column("quality_id", KeyString()),
    )
    staging.index(tuples, *scope.ids)
    if source_ids is not None and recounted.unparsable is not None:
        absent = missing(scope, stream, source_ids, recounted.unparsable.ids)
        wanted = _wanted(staging, scope, loads, absent)
        try:
            for batch, found in read_tuples(staging.engine, stream.spec, commits, kinds):
                if kinds.keys() - found.schema.names:
                    raise CannotRecount("the source does not give all columns")
                _stage_tuples(staging, scope, tuples, batch, found.select([*kinds]), wanted)
        except CannotRecount:
            source_ids = absent = None
            with staging.engine.begin() as connection:
                connection.execute(tuples.delete())
    # tuples of a resolving load may come from any batch, and may differ from the source's tuples
    once = [load for load in loads if not resolving(load.load_id)]
    _fill_gaps(staging, scope, tuples, once, source_ids if absent is not None else None)
    again = [load for load in loads if resolving(load.load_id)]
    _fill_gaps(staging, scope, tuples, again, None)
    masters = {role.name: _masters(staging, role, tuples) for role in scope.roles}
    expected = _expected(staging, scope, tuples, masters, loads)
    return Again(tuples, masters, expected, source_ids, absent)


def _wanted(staging: Staging, scope: Scope, loads: Sequence[Load], absent: sa.Select) -> pa.Array:
    """Return the ids of the loads' tuples, and of the tuples that have not arrived."""
    f, u, schema = scope.fact, unmatched.c, arrow_schema(scope.fact)
    ids = pa.schema([schema.field(i) for i in scope.ids])
    found = []
    with staging.engine.connect() as connection:
        for load in loads:
            if load.facts is not None:
                of_load = select(*(f.c[i] for i in scope.ids)).where(f.c.load_id == load.load_id)
                found += [stream_ids(b, ids.names) for b in fetch(connection, of_load, ids)]
            if load.kept is not None:
                kept = select(u.stream_id).where(u.load_id == load.load_id)
                found.append(pa.array(connection.scalars(kept).all(), pa.string()))
        lost = absent.subquery("lost")
        of_lost = select(*(lost.c[i] for i in scope.ids)).limit(ROWS_AGAIN)
        found += [stream_ids(b, ids.names) for b in fetch(connection, of_lost, ids)]
    return pc.unique(pa.chunked_array(found, pa.string())).drop_null()


def _stage_tuples(
    staging: Staging,
    scope: Scope,
    tuples: sa.Table,
    batch: int,
    found: pa.RecordBatch,
    wanted: pa.Array,
) -> None:
    """Stage the tuples of a batch whose ids are wanted."""
    versions = {_version(role): role.versions.get((batch, 0), "") for role in scope.roles}
    schema = pa.schema([field for field in arrow_schema(tuples) if field.name not in versions])
    rows = with_stream_id(batch, found, len(scope.ids), schema, whole=True)
    rows = rows.filter(pc.is_in(rows["quality_id"], value_set=wanted))
    for name, version in versions.items():
        rows = rows.append_column(name, pa.repeat(version, rows.num_rows))
    staging.write(tuples, rows)


def _fill_gaps(
    staging: Staging,
    scope: Scope,
    tuples: sa.Table,
    loads: Sequence[Load],
    source_ids: sa.Table | None,
) -> None:
    """Stage tuples from the facts if the source does not give them completely. If the source was
    read, these are only tuples whose ids the source has; otherwise all tuples."""
    f, known = scope.fact, []
    if source_ids is not None:
        read, there = (
            select(1).select_from(ids).where(*(ids.c[i] == f.c[i] for i in scope.ids)).correlate(f)
            for ids in (tuples, source_ids)
        )
        known = [~read.exists(), there.exists()]
    for load in loads:
        columns = (f.c[n] for n in stream_columns(scope))
        rows = select(
            *map(literal, load.versions), literal(int(batch_of(load.load_id))), *columns, null()
        ).where(f.c.load_id == load.load_id, *known)
        staging.fill(tuples, rows.distinct())


def _masters(staging: Staging, role: Role, tuples: sa.Table) -> sa.Table:
    table, d, t = master_table(staging, role, role.staged("masters")), role.dimension, tuples.c
    stream_key, master_key = next(iter(role.on.items()))
    of_tuple = t[_version(role)]
    for version in staging.scalars(select(of_tuple).distinct()):
        if version == role.version:
            names = [c.name for c in table.columns if c.name != "quality_version"]
            same = and_(of_tuple == version, role.same_key(tuples, d))
            rows = select(literal(version), *(d.c[n] for n in names))
            of_version = rows.select_from(tuples.join(d, same)).where(role.is_master)
            staging.fill(table, of_version.distinct())
        elif (role.snapshots / version).is_dir():
            keys = select(t[stream_key]).where(of_tuple == version).distinct()
            stage_version(staging, role, table, version, master_key, staging.scalars(keys))
    staging.index(table, master_key)
    return table


def _version(role: Role) -> str:
    """Return the name of the column of staged tuples that contains the version of a role's master
    data."""
    return f"quality_version_{role.number}"


def joined(role: Role, tuples: sa.Table, masters: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition for joining staged tuples with a role's master rows."""
    same_version = masters.c.quality_version == tuples.c[_version(role)]
    return and_(same_version, role.same_key(tuples, masters))


def _expected(
    staging: Staging,
    scope: Scope,
    tuples: sa.Table,
    masters: dict[str, sa.Table],
    loads: Sequence[Load],
) -> sa.Table:
    """Stage the facts that should result from the tuples, except facts that exist in loads with
    correct checksums."""
    t = tuples.c
    columns = [c for c in scope.fact.columns if c.name not in ROW_KEY]
    table = staging.table(
        "expected",
        Column("quality_number", big_integer(), primary_key=True, autoincrement=True),
        Column("quality_batch", BigInteger),
        *(Column(quoted(c.name), c.type) for c in columns),
    )
    of, known = dict[str, sa.ColumnElement[Any]](), list[sa.ColumnElement[bool]]()
    together: sa.FromClause = tuples
    for role in scope.roles:
        m = masters[role.name]
        key = m.c[role.surrogate]
        of[role.surrogate] = key if role.unknown is None else func.coalesce(key, role.unknown)
        of |= {a: m.c[b] for a, b in role.added.items()}
        together = together.join(m, joined(role, tuples, m), isouter=role.left)
        if role.infers and role.left:
            known.append(or_(key.is_not(None), *(t[a].is_(None) for a in role.on)))
    rows = (
        select(t.quality_batch, *(of[c.name] if c.name in of else t[c.name] for c in columns))
        .select_from(together)
        .where(~scope.refused(scope.streams[0], tuples), *known)
    )
    names = ("quality_batch", *(c.name for c in columns))
    staging.fill(table, rows, *names)
    inferring = [role.is_inferred(scope.fact) for role in scope.roles if role.infers]
    for load in loads if inferring else ():  # copied unchanged: other checks verify these facts
        f, batch = scope.fact, literal(int(batch_of(load.load_id)))
        as_it_is = select(batch, *columns).where(f.c.load_id == load.load_id, or_(*inferring))
        staging.fill(table, as_it_is, *names)
    staging.index(table, *scope.ids)
    e, g = table.c, scope.by_id.alias("elsewhere")
    same = and_(
        *(g.c[i] == e[i] for i in scope.ids),
        scope.recounted(g),
        *(g.c[k].is_not_distinct_from(e[k]) for k in scope.surrogates),
    )
    numbers = staging.scalars(
        select(e.quality_number)
        .join_from(table, g, same)
        .where(g.c.load_id.not_in([load.load_id for load in loads if load.facts is not None]))
    )
    with staging.engine.begin() as connection:
        for start in range(0, len(numbers), DELETED):
            some = numbers[start : start + DELETED]
            connection.execute(table.delete().where(e.quality_number.in_(some)))
    return table
