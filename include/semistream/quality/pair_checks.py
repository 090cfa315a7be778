"""The expectations of two streams that were joined with each other: the pairs, and the totals of
final keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, ColumnElement, and_, func, literal, or_, select

from semistream.job import AnyJob, StreamStreamJob
from semistream.quality.checks import Check, load_of
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Staging
from semistream.warehouse.closing import Closing, closed_name, closing_of
from semistream.warehouse.dialects import system_of
from semistream.warehouse.load_ids import first_load, last_load
from semistream.warehouse.schema import load_batches, load_inputs
from semistream.warehouse.tables import existing_table

ROUNDING = 1e-9  # relative error allowed in a sum of doubles


def pair_checks(
    staging: Staging,
    scope: Scope,
    job: StreamStreamJob,
    sources: Sequence[sa.Table | None],
    size: int,
) -> Iterator[Check]:
    """Yield the checks that are possible. sources: the recounted ids of each stream; size: the
    number of tuples of each stream that are joined again."""
    yield equal_keys(scope)
    closing, closed = closing_of(job), closed_table(staging.engine, job, scope.fact_name)
    if closing is not None and closed is not None:
        yield from closed_checks(scope, closing, closed)
    elif closing is not None:
        name = closed_name(scope.fact_name)
        yield Check(
            "closed_totals",
            f"The table {name} is there",
            "It has the totals of keys that are final.",
            select(literal(name).label("missing_table")),
        )
    if all(stream.ids for stream in scope.streams):
        yield from sample_pairs(staging, scope, job, sources, size)
    else:
        staging.reserve("Both streams need id columns for a proof of their tuples and pairs.")


def closed_table(engine: sa.Engine, job: AnyJob, fact: str) -> sa.Table | None:
    """Return the table with the totals of a fact table's keys; None if there is no such table."""
    name = closed_name(fact)
    if closing_of(job) is None or not sa.inspect(engine).has_table(name):
        return None
    return existing_table(engine, name)


def closed_checks(scope: Scope, closing: Closing, closed: sa.Table) -> Iterator[Check]:
    """Yield the checks of the totals of final keys. All keys are checked, because rows may have
    come after a key was final."""
    f, c, b = scope.fact, closed.c, load_batches.c
    own = (
        select(*(f.c[k] for k in closing.keys), *closing.sums(f))
        .where(scope.until(f), *(f.c[k].is_not(None) for k in closing.keys))
        .group_by(*(f.c[k] for k in closing.keys))
        .subquery("own")
    )
    same = and_(*(own.c[k] == c[k] for k in closing.keys))
    differs = [_differs(c[name], own.c[name]) for name, _ in closing.totals]
    keys = [c[k] for k in closing.keys]
    yield Check(
        "closed_totals",
        f"The totals in {closed.name} are those of the facts",
        f"Each key there is final: what {scope.fact_name} has of it now is added up again. No row "
        f"of such a key may have come since.",
        select(
            *keys,
            *load_of(closed),
            *(
                x
                for name, _ in closing.totals
                for x in (c[name], own.c[name].label(f"facts_{name}"[:60]))
            ),
        )
        .select_from(closed.outerjoin(own, same))
        .where(scope.until(closed), or_(own.c[closing.keys[0]].is_(None), *differs)),
    )
    yield Check(
        "closed_once",
        f"No key is in {closed.name} twice",
        "A key is closed once, in the load that made it final.",
        select(*keys, func.count().label("times_in_warehouse"))
        .where(scope.until(closed))
        .group_by(*keys)
        .having(func.count() > 1),
    )
    there = (
        select(c.load_id, func.count().label("number"))
        .where(scope.until(closed))
        .group_by(c.load_id)
        .subquery("there")
    )
    number = func.coalesce(there.c.number, 0)
    yield Check(
        "closed_rows",
        f"Each load has as many rows in {closed.name} as it wrote",
        "The ledger has the number of each load. Rows that are missing were deleted since.",
        select(
            *load_of(load_batches),
            b.closed.label("rows_written"),
            number.label("rows_in_warehouse"),
        )
        .select_from(load_batches.outerjoin(there, there.c.load_id == b.load_id))
        .where(scope.until(load_batches), func.coalesce(b.closed, 0) != number),
    )
    if scope.last[1]:
        yield Check(
            "closed_all",
            f"Every key of the facts is in {closed.name}",
            "Both streams have ended, which makes all keys final.",
            select(*(own.c[k] for k in closing.keys))
            .select_from(own.outerjoin(closed, and_(same, scope.until(closed))))
            .where(c.load_id.is_(None)),
        )


def _differs(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that two values differ. Doubles may differ by rounding, because their
    sum depends on the order of the rows."""
    if not isinstance(one.type, sa.Float):
        return one.is_distinct_from(other)
    null = one.is_(None) != other.is_(None)
    return or_(null, func.abs(one - other) > ROUNDING * (func.abs(one) + func.abs(other)))


def equal_keys(scope: Scope) -> Check:
    f, keys = scope.fact, list(zip(*(s.keys.values() for s in scope.streams), strict=True))
    columns = {n: f.c[n] for n in (*scope.ids, *(n for pair in keys for n in pair))}
    return Check(
        "equal_keys",
        "Both tuples of a joined row have the same key",
        "Compared for every row of the fact table that has both.",
        select(*load_of(f), *columns.values()).where(
            scope.holds(f), or_(*(f.c[a] != f.c[b] for a, b in keys))
        ),
    )


def sample_pairs(
    staging: Staging,
    scope: Scope,
    job: StreamStreamJob,
    sources: Sequence[sa.Table | None],
    size: int,
) -> Iterator[Check]:
    """Yield checks of a random sample of each stream's tuples. The database joins the sample with
    the whole other stream, as read from its source. Each pair must be in the facts."""
    i, pairs = load_inputs.c, scope.by_id
    (on_disk,) = staging.scalars(
        select(func.coalesce(func.sum(i.on_disk), 0)).where(
            i.load_id.between(
                first_load(scope.number, scope.last), last_load(scope.number, scope.last)
            )
        )
    )
    for why, holds in (
        ("the job has within, which the database does not compare", job.within is not None),
        (f"{on_disk:,} tuples wait on disk, and what they join with may come later", on_disk),
        ("a source could not be read again with its keys", None in sources),
    ):
        if holds:
            return staging.reserve(f"No pairs were joined again by the database: {why}.")
    if not size:
        return
    both = list(zip(scope.streams, sources, strict=True))
    for (side, own), (other, source) in zip(both, both[::-1], strict=True):
        assert own is not None and source is not None
        sample = _sample(staging, side, own, size)
        equal = and_(
            *(sample.c[a] == source.c[b] for a, b in zip(side.keys, other.keys, strict=True))
        )
        loaded = and_(
            *(pairs.c[of] == sample.c[n] for n, of in side.ids.items()),
            *(pairs.c[of] == source.c[n] for n, of in other.ids.items()),
        )
        ids = [
            *(sample.c[n].label(of) for n, of in side.ids.items()),
            *(source.c[n].label(of) for n, of in other.ids.items()),
        ]
        yield Check(
            f"{side.name}_sample_pairs",
            f"A sample of the {side.name} stream, joined by the database with all of the other "
            f"one, is in {scope.fact_name}",
            f"Up to {size:,} tuples, drawn at random, with the {other.name} stream as its source "
            f"has it. A pair listed here was not loaded.",
            select(*ids, *(sample.c[n].label(f"key_{i}") for i, n in enumerate(side.keys)))
            .select_from(sample.join(source, equal).outerjoin(pairs, loaded))
            .where(
                pairs.c.load_id.is_(None),
                ~scope.refused(side, sample),
                ~scope.refused(other, source),
            ),
        )


def _sample(staging: Staging, side: Stream, source: sa.Table, size: int) -> sa.Table:
    columns = list(source.columns)
    table = staging.table(f"sample_{side.name}", *(Column(c.name, c.type) for c in columns))
    keyed = select(*columns).where(*(source.c[n].is_not(None) for n in side.keys))
    staging.fill(table, keyed.order_by(system_of(staging.engine).random()).limit(size))
    return table
