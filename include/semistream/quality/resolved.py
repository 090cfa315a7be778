"""The expectations of resolving loads. If a row of ``unmatched`` names a load that has resolved it,
that load has the row's tuple, as facts or in ``unmatched``. A resolving load has no other tuples.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, ColumnElement, and_, func, literal, null, or_, select

from semistream.job import Job
from semistream.positions import resolves
from semistream.quality.checks import PARTS, Check, load_of
from semistream.quality.scope import Role, Scope, Stream, hours_ago
from semistream.quality.staging import Staging
from semistream.streaming.resolving import lacks
from semistream.warehouse.bulk import fetch
from semistream.warehouse.ids import stream_ids
from semistream.warehouse.inferred import is_open
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.resolution import open_rows
from semistream.warehouse.schema import inferred, load_batches, unmatched
from semistream.warehouse.tables import arrow_schema
from semistream.warehouse.types import KeyString


def resolved_checks(staging: Staging, scope: Scope) -> Iterator[Check]:
    """Yield the checks of resolving loads. There are none if no such load exists and no row names
    one."""
    b = load_batches.c
    loads = staging.scalars(
        select(b.load_id).where(scope.holds(load_batches), resolves(b.drain)).order_by(b.load_id)
    )
    if not loads and not staging.all(select(literal(1)).where(_marked(scope)).limit(1)):
        return
    yield resolved_rows(scope)
    (stream,) = scope.streams if len(scope.streams) == 1 else (None,)
    if stream is not None and stream.ids:
        yield resolved_once(scope, _stage(staging, scope, stream, loads))


def _marked(scope: Scope) -> ColumnElement[bool]:
    """Return the condition for the app's rows of ``unmatched`` that claim to be resolved by a
    verified load, or by a load that the app does not have."""
    u = unmatched.c
    first, last = app_loads(scope.number)
    return and_(
        scope.kept(),
        scope.until(unmatched),
        or_(u.resolved_by.between(*scope.loads), u.resolved_by < first, u.resolved_by > last),
    )


def resolved_rows(scope: Scope) -> Check:
    b, u = load_batches.c, unmatched.c
    marked = (
        select(u.resolved_by.label("load_id"), func.count().label("rows_in_table"))
        .where(_marked(scope))
        .group_by(u.resolved_by)
        .subquery("marked")
    )
    found = func.coalesce(marked.c.rows_in_table, 0)
    return Check(
        "resolved_rows",
        "As many unmatched tuples are marked as were resolved",
        "A load that joins unmatched tuples again counts those that it has taken, and marks their "
        "rows in unmatched with its load_id, resolved_by, in one transaction. More rows than "
        "counted are tuples that are said to be elsewhere and are not; fewer are tuples that are "
        "in two places.",
        sa.union_all(
            select(
                *load_of(load_batches),
                b.resolved.label("resolved_in_ledger"),
                found.label("rows_marked"),
            )
            .select_from(load_batches.outerjoin(marked, marked.c.load_id == b.load_id))
            .where(scope.holds(load_batches), b.resolved != found),
            select(*load_of(marked), literal(0), marked.c.rows_in_table)
            .select_from(marked.outerjoin(load_batches, marked.c.load_id == b.load_id))
            .where(b.load_id.is_(None)),
        ),
        expected="resolved_in_ledger",
        found="rows_marked",
    )


def _stage(staging: Staging, scope: Scope, stream: Stream, loads: list[int]) -> sa.Table:
    """Stage a table of load_id and quality_id: the ids of tuples that resolving loads have
    written."""
    table = staging.table(
        "resolved", Column("load_id", BigInteger), Column("quality_id", KeyString())
    )
    f, u, ids = scope.fact, unmatched.c, list(stream.ids.values())
    kinds = arrow_schema(f)
    schema = pa.schema([kinds.field(i) for i in ids])
    for load in loads:
        with staging.engine.connect() as connection:
            of_load = select(*(f.c[i] for i in ids)).where(f.c.load_id == load).distinct()
            found = [stream_ids(batch, ids) for batch in fetch(connection, of_load, schema)]
        for each in found:
            rows = pa.table({"load_id": pa.repeat(load, len(each)), "quality_id": each})
            staging.write(table, rows)
    kept = select(u.load_id, u.stream_id).where(
        scope.kept(), scope.holds(unmatched), u.load_id.in_(loads), u.stream_id.is_not(None)
    )
    staging.fill(table, kept.distinct())
    staging.index(table, "load_id", "quality_id")
    return table


def resolved_once(scope: Scope, there: sa.Table) -> Check:
    """Return the check that tuples were resolved exactly once. there: the table of ``_stage``."""
    u, t, marked = unmatched.c, there.c, _marked(scope)
    lost = (
        select(
            *(part(u.resolved_by).label(name) for name, part in PARTS.items()),
            u.stream_id,
            literal("marked, and not there").label("finding"),
        )
        .select_from(
            unmatched.outerjoin(
                there, and_(t.load_id == u.resolved_by, t.quality_id == u.stream_id)
            )
        )
        .where(marked, u.stream_id.is_not(None), t.load_id.is_(None))
    )
    # a tuple whose text showed no id got one when the text was corrected
    nameless = (
        select(func.count())
        .where(marked, u.resolved_by == t.load_id, u.stream_id.is_(None))
        .correlate(there)
        .scalar_subquery()
    )
    is_marked = and_(marked, u.resolved_by == t.load_id, u.stream_id == t.quality_id)
    number = func.row_number().over(partition_by=t.load_id, order_by=t.quality_id)
    surplus = (
        select(t.load_id, t.quality_id, number.label("number"), nameless.label("nameless"))
        .where(~select(literal(1)).where(is_marked).correlate(there).exists())
        .subquery("surplus")
    )
    s = surplus.c
    return Check(
        "resolved_once",
        "Every resolved tuple is in the load that resolved it, and nowhere else",
        "A tuple that was joined again is a fact, or a row of unmatched, of the load that its "
        "former row names as resolved_by. One that is marked, and not there, is lost; one that is "
        "there, and not marked, is in two places, or comes from nowhere.",
        sa.union_all(
            lost,
            select(*load_of(surplus), s.quality_id, literal("there, and not marked")).where(
                s.number > s.nameless
            ),
        ),
        found="finding",
    )


def is_overdue(connection: sa.Connection, app: str, job: Job, since: datetime) -> bool:
    """Return whether some tuple of an app has become overdue since the last verification: it is
    open for longer than a role of the job allows, or its grace has ended. since: the time of the
    last verification, UTC."""
    b, number = load_batches.c, app_number(connection, app)
    now = hours_ago(0)
    for role in job.roles:
        late = list[ColumnElement[bool]]()
        if role.max_open_hours is not None:
            hours = max(role.max_open_hours, role.grace_hours)
            late.append(b.committed_at < hours_ago(hours))
            if role.grace_versions:  # what was overdue before had its grace, and has it still
                late[-1] &= b.committed_at >= since - timedelta(hours=hours)
        if role.grace_hours:
            grace = timedelta(hours=role.grace_hours)
            late.append(b.committed_at.between(since - grace, now - grace))
        for table, mine in (
            (unmatched, and_(open_rows(number), lacks(role.name, alone=len(job.roles) == 1))),
            (inferred, and_(is_open(number), inferred.c.role == role.name)),
        ):
            some = select(literal(1)).select_from(
                table.join(load_batches, b.load_id == table.c.load_id)
            )
            found = some.where(mine, or_(sa.false(), *late)).limit(1)
            if late and connection.execute(found).first() is not None:
                return True
    return False


def open_age(scope: Scope, role: Role, hours: float) -> Check:
    """Return the check that no tuple is without a row of a dimension for longer than this number of
    hours."""
    b, u, i, oldest = load_batches.c, unmatched.c, inferred.c, hours_ago(hours)
    return Check(
        "open_age",
        f"No tuple lacks a row of {role.name} for more than {hours:g} hours",
        f"A tuple without a row of {role.dimension.name} is open in unmatched until a later "
        "version has one and it is joined again, or is a fact with an inferred member until this "
        "is filled in. The limit is max_open_hours of the job's role.",
        sa.union_all(
            select(
                *load_of(unmatched),
                u.stream_id,
                null().label("inferred_member"),
                b.committed_at.label("open_since"),
            )
            .select_from(unmatched.join(load_batches, b.load_id == u.load_id))
            .where(
                scope.kept(),
                scope.until(unmatched),
                scope.is_open(unmatched),
                role.lacks(unmatched),
                b.committed_at < oldest,
                ~role.in_grace(unmatched),
            ),
            select(*load_of(inferred), null(), i.member, b.committed_at)
            .select_from(inferred.join(load_batches, b.load_id == i.load_id))
            .where(
                scope.until(inferred),
                i.role == role.name,
                i.version.is_(None),
                b.committed_at < oldest,
                ~role.in_grace(inferred),
            ),
        ).order_by("open_since"),
        f"Provision {role.dimension.name} with the missing rows; then the next load resolves the "
        "tuples where late is resolve, fills in the facts where it is infer, and "
        f"`semistream replay {scope.app}` does in any case. "
        f"Where they may wait longer, raise max_open_hours of the role {role.name} in the job, and "
        f"`semistream verify {scope.app} --job FILE`.",
    )
