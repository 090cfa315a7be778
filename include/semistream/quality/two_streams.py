"""The proof of a load of two streams: each stream's arithmetic, each stream's tuples, the pairs.

Checks that a load of one stream shares (the ledger, counts of rows and sums) are in ``checks``.
``config.StreamStreamJob`` defines how both streams' columns are named in the fact table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, String, and_, func, literal, null, or_, select
from sqlalchemy.sql import ColumnElement

from semistream.config import SIDES, AnyJob, SideSpec, StreamStreamJob
from semistream.quality.checks import (
    Check,
    arrived,
    fact_rows,
    ledger_checks,
    load_of,
    same_rows,
    source_files,
    table_files,
    unmatched_rows,
    unparsable,
    unsure,
)
from semistream.quality.file_audit import stage_file_audit
from semistream.quality.recount import stage_sources
from semistream.quality.repeated_ids import Tuples, unique_ids
from semistream.quality.scope import Scope, drained_until
from semistream.quality.staging import Sources, Staging, copy_facts
from semistream.quality.unparsable_ids import stage_unparsable, with_lost
from semistream.quality.wrong_rows import WrongRows, stage_wrong_rows
from semistream.warehouse.closing import Closing, closed_name, closing_of
from semistream.warehouse.dialects import system_of
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import batch_of, drain_of
from semistream.warehouse.proof import Position
from semistream.warehouse.schema import load_batches, unmatched
from semistream.warehouse.tables import existing_table
from semistream.warehouse.types import KeyString

ROUNDING = 1e-9  # relative error allowed in a sum of doubles
COUNTS = ("waiting_before", "rows_read", "matched", "unmatched", "waiting", "on_disk")


@dataclass(frozen=True)
class Side:
    """One of the two streams. ids, keys: its columns -> their names in the fact table; sources: its
    recounted tuples, or None if they cannot be recounted."""

    name: str
    ids: dict[str, str]
    keys: dict[str, str]
    sources: Sources | None
    files: sa.Table | None

    @property
    def staged(self) -> sa.Table | None:
        """The staged ids and keys of the stream's tuples, or None."""
        return self.sources.ids if self.sources is not None else None


def scope_of(connection: sa.Connection, app: str, job: AnyJob, commits: list[sa.Row],
             first: Position | None, fact: sa.Table) -> Scope:
    """Return the scope of a load of two streams, which has no dimension and no single stream's
    id."""
    last = (commits[-1].batch, commits[-1].drain)
    b, number = load_batches.c, app_number(connection, app) or 0
    waiting = connection.scalar(select(func.coalesce(func.sum(b.waiting), 0)).where(
        b.app == app, b.batch == last[0], b.drain == last[1]))
    return Scope(
        app=app, number=number, first=first, last=last,
        source_first=drained_until(connection, app, first), commits=len(commits),
        sink=commits[-1].sink, fact_name=commits[-1].fact_table, fact=fact, by_id=fact,
        dimension=fact, surrogate="", ids=(), on={}, added={}, business_key=(), unique=True,
        left=False, version="", waiting=int(waiting or 0),
        max_unparsable=max(stream.max_unparsable for stream in job.streams))


def closed_table(engine: sa.Engine, job: AnyJob, fact: str) -> sa.Table | None:
    """Return the table with the totals of a fact table's keys, or None without such a table."""
    name = closed_name(fact)
    if closing_of(job) is None or not sa.inspect(engine).has_table(name):
        return None
    return existing_table(engine, name)


def all_checks(staging: Staging, scope: Scope, job: StreamStreamJob, commits: Sequence[sa.Row],
               rejected: sa.Table, checksums: sa.Table, damaged: sa.Table | None,
               size: int) -> Iterator[Check]:
    """Yield the checks that are possible. size: how many tuples of each stream are joined again."""
    counted = stage_counts(staging, scope)
    recent = [c for c in commits if (c.batch, c.drain) > (scope.source_first or (-1, 1))]
    sides = [_side(staging, scope, job, side, recent) for side in range(len(SIDES))]
    yield from ledger_checks(scope)
    yield side_arithmetic(scope, counted)
    yield fact_rows(scope)
    yield unmatched_rows(scope, rejected)
    yield unparsable(scope, rejected)
    yield same_rows(stage_wrong_rows(staging, scope, checksums, WrongRows()))
    if damaged is not None:
        yield table_files(damaged)
    yield equal_keys(scope, sides)
    for side in sides:
        if side.files is not None:
            yield source_files(side.files, side.name)
        if side.sources is not None:
            yield source_rows(scope, side, counted)
    if (closing := closing_of(job)) is not None:
        closed = closed_table(staging.engine, job, scope.fact_name)
        if closed is not None:
            yield from closed_checks(scope, closing, closed, counted)
        else:
            name = closed_name(scope.fact_name)
            yield Check("closed_totals", f"The table {name} is there",
                        "It has the totals of keys that are final.",
                        select(literal(name).label("missing_table")))
    if not all(side.ids for side in sides):
        staging.reserve("Both streams need id columns for a proof of their tuples and pairs.")
        return
    pairs = stage_pairs(staging, scope, sides)
    for side, other, stream in zip(sides, sides[::-1], job.streams, strict=True):
        tuples = Tuples(side.ids, tuple(side.keys.values()), tuple(other.ids.values()), False,
                        side.name)
        yield from unique_ids(staging, scope, tuples, side.sources, stream.unique_ids)
    if all(side.staged is not None or stream.unique_ids
           for side, stream in zip(sides, job.streams, strict=True)):
        yield no_pair_twice(scope, sides, pairs)
    for side, other in zip(sides, sides[::-1], strict=True):
        if side.staged is not None:
            stream = job.streams[SIDES.index(side.name)]
            yield none_missing(staging, scope, side, stream, pairs, counted)
            yield none_invented(scope, side, side.staged)
            yield unmatched_once(scope, side, other, side.staged, pairs)
    yield from sample_pairs(staging, scope, job, sides, pairs, counted, size)


def closed_checks(scope: Scope, closing: Closing, closed: sa.Table,
                  counted: sa.Table) -> Iterator[Check]:
    """Yield the checks of the totals of final keys. All keys are checked, because rows may have
    come since."""
    f, c = scope.fact, closed.c
    own = select(*(f.c[k] for k in closing.keys), *closing.sums(f)).where(
        scope.until(f), *(f.c[k].is_not(None) for k in closing.keys)).group_by(
            *(f.c[k] for k in closing.keys)).subquery("own")
    same = and_(*(own.c[k] == c[k] for k in closing.keys))
    differs = [_differs(c[name], own.c[name]) for name, _ in closing.totals]
    keys = [c[k] for k in closing.keys]
    yield Check(
        "closed_totals", f"The totals in {closed.name} are those of the facts",
        f"Each key there is final: what {scope.fact_name} has of it now is added up again. No row "
        f"of such a key may have come since.",
        select(*keys, *load_of(closed), *(x for name, _ in closing.totals for x in (
            c[name], own.c[name].label(f"facts_{name}"[:60]))))
        .select_from(closed.outerjoin(own, same))
        .where(scope.until(closed), or_(own.c[closing.keys[0]].is_(None), *differs)))
    yield Check(
        "closed_once", f"No key is in {closed.name} twice",
        "A key is closed once, in the load that made it final.",
        select(*keys, func.count().label("times_in_warehouse")).where(scope.until(closed))
        .group_by(*keys).having(func.count() > 1))
    there = select(c.load_id, func.count().label("number")).where(scope.until(closed)).group_by(
        c.load_id).subquery("there")
    number = func.coalesce(there.c.number, 0)
    yield Check(
        "closed_rows", f"Each load has as many rows in {closed.name} as it wrote",
        "The ledger has the number of each load. Rows that are missing were deleted since.",
        select(*load_of(counted), counted.c.closed.label("rows_written"),
               number.label("rows_in_warehouse"))
        .select_from(counted.outerjoin(there, there.c.load_id == counted.c.load_id))
        .where(counted.c.closed != number))
    if scope.last[1]:
        yield Check(
            "closed_all", f"Every key of the facts is in {closed.name}",
            "Both streams have ended, which makes all keys final.",
            select(*(own.c[k] for k in closing.keys))
            .select_from(own.outerjoin(closed, and_(same, scope.until(closed))))
            .where(c.load_id.is_(None)))


def _differs(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that two values differ. Doubles may differ by rounding, because their
    sum depends on the order of the rows."""
    null = or_(and_(one.is_(None), other.is_not(None)), and_(one.is_not(None), other.is_(None)))
    if isinstance(one.type, sa.Float):
        return or_(null, func.abs(one - other) > ROUNDING * (func.abs(one) + func.abs(other)))
    return or_(null, one != other)


def _side(staging: Staging, scope: Scope, job: StreamStreamJob, side: int,
          commits: list[sa.Row]) -> Side:
    spec, fact = job.streams[side], scope.fact

    ids, keys = (job.in_fact(side, names, fact.c.keys())
                 for names in (spec.id, [pair[side] for pair in job.on.items()]))
    columns = {name: _indexable(fact.c[of].type) for name, of in (ids | keys).items()}
    sources = stage_sources(staging, spec, commits, columns, len(ids), side)
    files = stage_file_audit(staging, scope, spec, SIDES[side])
    covered = list(ids)[:len(keys)] == list(keys)  # the index on the ids covers the keys
    if sources is not None and sources.ids is not None and not covered:
        staging.index(sources.ids, *keys)
    return Side(SIDES[side], ids, keys, sources, files)


def _indexable(kind: sa.types.TypeEngine) -> sa.types.TypeEngine:
    """Return the type in which a staging table can index a key; the fact table need not index
    it."""
    return KeyString() if isinstance(kind, String) else kind


def stage_counts(staging: Staging, scope: Scope) -> sa.Table:
    """Stage the ledger's counts of each side: load_id, side, COUNTS, and, of the left side, how
    many keys' totals the load has written; null: the job has no totals, or a former version wrote
    the row."""
    b = load_batches.c
    table = staging.table("counts", Column("load_id", BigInteger), Column("side", String(5)),
                          *(Column(name, BigInteger) for name in (*COUNTS, "closed")))
    with staging.engine.connect() as connection:
        ledger = connection.execute(select(b.load_id, b.sides)
                                    .where(scope.until(load_batches))).all()
    rows = []
    for load, text in ledger:
        for side, of in json.loads(text or "{}").items():
            counts = of | {"unmatched": sum(of["rejected"].values())}
            rows.append((load, side, *(counts[name] for name in COUNTS), counts.get("closed")))
    staging.insert(table, rows)
    staging.index(table, "load_id")
    return table


def stage_pairs(staging: Staging, scope: Scope, sides: Sequence[Side]) -> sa.Table:
    """Stage the ids of both streams in the facts, and their load, with an index for each side."""
    names = [of for side in sides for of in side.ids.values()]
    table = staging.table("pairs", *(Column(n, scope.fact.c[n].type) for n in names),
                          Column("load_id", BigInteger))
    copy_facts(staging, scope, table)
    for side in sides:
        staging.index(table, *side.ids.values())
    return table


def side_arithmetic(scope: Scope, counted: sa.Table) -> Check:
    b, c = load_batches.c, counted.c
    left_over = c.waiting_before + c.rows_read - c.matched - c.unmatched - c.waiting
    own = select(*load_of(counted), c.side, *(c[n] for n in COUNTS[:-1]),
                 left_over.label("difference")).where(scope.holds(counted), left_over != 0)
    names = COUNTS[:-1]
    sums = select(c.load_id, *(func.sum(c[n]).label(n) for n in names)).group_by(
        c.load_id).subquery("both")
    differs = or_(sums.c.load_id.is_(None), *(sums.c[n] != b[n] for n in names))
    both = select(*load_of(load_batches), literal("both"), *(b[n] for n in names), null()) \
        .select_from(load_batches.outerjoin(sums, sums.c.load_id == b.load_id)) \
        .where(scope.holds(load_batches), differs)
    return Check(
        "side_arithmetic", "Of each stream: held before + read = matched + unmatched + held",
        "Each tuple of either stream is joined and gone, finished without a partner, or held by "
        "the join, in memory or on disk; and both streams together are what the ledger says in "
        "all. The difference is what is not accounted for.", sa.union_all(own, both))


def source_rows(scope: Scope, side: Side, counted: sa.Table) -> Check:
    assert side.sources is not None
    s, c = side.sources.counts.c, counted.c
    batch = batch_of(c.load_id)
    read = select(batch.label("batch"), func.sum(c.rows_read).label("rows_read")).where(
        c.side == side.name).group_by(batch).subquery("read")
    found = func.coalesce(read.c.rows_read, 0)
    return Check(
        f"{side.name}_source_rows", f"The {side.name} source has as many rows as were read",
        "The files (or table) that each batch was read from are opened again, without Spark, and "
        "counted.",
        select(s.batch, s.source, s.rows_in_source, found.label("rows_read"))
        .select_from(side.sources.counts.outerjoin(read, read.c.batch == s.batch))
        .where(s.rows_in_source != found))


def equal_keys(scope: Scope, sides: Sequence[Side]) -> Check:
    f = scope.fact
    keys = list(zip(*(side.keys.values() for side in sides), strict=True))
    ids = [f.c[of] for side in sides for of in side.ids.values()]
    columns = {c.name: c for c in [*ids, *(f.c[n] for pair in keys for n in pair)]}
    return Check(
        "equal_keys", "Both tuples of a joined row have the same key",
        "Compared for every row of the fact table that has both.",
        select(*load_of(f), *columns.values()).where(
            scope.holds(f), or_(*(f.c[a] != f.c[b] for a, b in keys))))


def no_pair_twice(scope: Scope, sides: Sequence[Side], pairs: sa.Table) -> Check:
    """Return the check that no pair was loaded twice. If the sources were recounted, a pair may
    occur as often as its tuples do in them."""
    names = [of for side in sides for of in side.ids.values()]
    key = [pairs.c[n] for n in names]
    many = select(*key, func.count().label("rows_in_warehouse")).where(
        *(k.is_not(None) for k in key)).group_by(*key).having(func.count() > 1).subquery("many")
    times: ColumnElement = literal(1)
    for side in sides:
        if (s := side.staged) is not None:
            same = and_(*(s.c[n] == many.c[of] for n, of in side.ids.items()))
            times = times * select(func.count()).select_from(s).where(same).correlate(
                many).scalar_subquery()
    return Check(
        "no_pair_twice", "No pair of tuples was loaded twice",
        "A pair is identified by the ids of both streams' tuples.",
        select(*many.c).where(many.c.rows_in_warehouse > times))


def missing(scope: Scope, side: Side, source: sa.Table, pairs: sa.Table,
            unparsable: sa.Table) -> sa.Select:
    """Select the ids of the source that have not arrived, as ``checks.missing`` does."""
    s, u, n = source.c, unmatched.c, unparsable.c
    loaded = and_(*(pairs.c[of] == s[n] for n, of in side.ids.items()))
    kept = and_(u.fact_table == scope.fact_name, u.side == side.name,
                u.stream_id == s.quality_id, scope.recounted(unmatched))
    return select(s.quality_batch.label("source_batch"), *(s[n] for n in side.ids)) \
        .select_from(source.outerjoin(pairs, loaded).outerjoin(unmatched, kept)
                     .outerjoin(unparsable, n.stream_id == s.quality_id)) \
        .where(pairs.c.load_id.is_(None), u.load_id.is_(None), n.stream_id.is_(None))


def held_by(scope: Scope, side: Side, counted: sa.Table) -> sa.ScalarSelect:
    """Return a subquery of how many tuples of a side the join holds at the end."""
    c = counted.c
    return select(func.coalesce(func.sum(c.waiting), 0)).where(
        c.side == side.name, batch_of(c.load_id) == scope.last[0],
        drain_of(c.load_id) == scope.last[1]).scalar_subquery()


def none_missing(staging: Staging, scope: Scope, side: Side, stream: SideSpec, pairs: sa.Table,
                 counted: sa.Table) -> Check:
    assert side.sources is not None and side.staged is not None
    held = held_by(scope, side, counted)
    unparsable = stage_unparsable(staging, scope, stream, side.sources, side.name)
    absent = missing(scope, side, side.staged, pairs, unparsable.ids)
    with staging.engine.connect() as connection:
        waiting = int(connection.scalar(select(held)) or 0)
    lost = with_lost(staging, unparsable, absent, waiting, side.name).lost
    found = absent.cte("missing")
    how_many = select(func.count()).select_from(found).scalar_subquery()
    return Check(
        f"{side.name}_none_missing", arrived(side.name, lost),
        f"Every {', '.join(side.ids)} of the source is in {scope.fact_name} or in unmatched, but "
        f"for tuples that are held and have had no partner so far.{unsure(lost)}",
        select(*found.c).where(how_many > held + lost))


def none_invented(scope: Scope, side: Side, source: sa.Table) -> Check:
    f, s = scope.fact, source.c
    same = and_(*(s[n] == f.c[of] for n, of in side.ids.items()))
    later = [] if scope.source_first is None else [scope.after(f)]
    return Check(
        f"{side.name}_none_invented", f"Every {side.name} tuple of a row comes from the source",
        f"A row of {scope.fact_name} whose {', '.join(side.ids.values())} the source does not have "
        f"was changed, or put there by another.",
        select(*(f.c[of] for of in side.ids.values()), *load_of(f))
        .select_from(f.outerjoin(source, same))
        .where(scope.holds(f), *later, *(f.c[of].is_not(None) for of in side.ids.values()),
               s.quality_batch.is_(None)))


def unmatched_once(scope: Scope, side: Side, other: Side, source: sa.Table,
                   pairs: sa.Table) -> Check:
    s, u = source.c, unmatched.c
    mine = and_(u.fact_table == scope.fact_name, u.side == side.name, u.stream_id.is_not(None),
                u.reason != "unparsable", scope.holds(unmatched))
    kept = select(u.stream_id, func.count().label("rows_in_unmatched")).where(mine).group_by(
        u.stream_id).subquery("kept")
    same = s.quality_id == kept.c.stream_id
    times = select(func.count()).where(same).correlate(kept).scalar_subquery()
    joined = and_(*(pairs.c[of] == s[n] for n, of in side.ids.items()),
                  *(pairs.c[of].is_not(None) for of in other.ids.values()))
    loaded = sa.case((select(1).select_from(source.join(pairs, joined)).where(same)
                      .correlate(kept).exists(), 1), else_=0)
    return Check(
        f"{side.name}_unmatched_once",
        f"Every unmatched tuple of the {side.name} stream comes from there, only once, and has no "
        f"partner",
        f"A tuple in unmatched that the source does not have, or has less often than unmatched and "
        f"{scope.fact_name} together, was changed on its way, put aside twice, or has a partner.",
        select(*kept.c, loaded.label("is_joined"), times.label("rows_in_source"))
        .where(kept.c.rows_in_unmatched + loaded > times))


def sample_pairs(staging: Staging, scope: Scope, job: StreamStreamJob, sides: Sequence[Side],
                 pairs: sa.Table, counted: sa.Table, size: int) -> Iterator[Check]:
    """Yield checks of a random sample of each stream's tuples: the database joins them with the
    whole other stream from its source, and each pair must be in the facts."""
    c = counted.c
    with staging.engine.connect() as connection:
        on_disk = connection.scalar(select(func.coalesce(func.sum(c.on_disk), 0)).where(
            batch_of(c.load_id) == scope.last[0], drain_of(c.load_id) == scope.last[1]))
    staged = [side.staged for side in sides]
    why = next((reason for reason, holds in (
        ("the job has within, which the database does not compare", job.within is not None),
        (f"{on_disk:,} tuples wait on disk, and what they join with may come later", on_disk),
        ("a source could not be read again with its keys", None in staged)) if holds), "")
    if why or not size:
        if why:
            staging.reserve(f"No pairs were joined again by the database: {why}.")
        return
    for side, other in zip(sides, sides[::-1], strict=True):
        sample, source = _sample(staging, side, size), other.staged
        assert source is not None
        equal = and_(*(sample.c[a] == source.c[b]
                       for a, b in zip(side.keys, other.keys, strict=True)))
        loaded = and_(*(pairs.c[of] == sample.c[n] for n, of in side.ids.items()),
                      *(pairs.c[of] == source.c[n] for n, of in other.ids.items()))
        ids = [*(sample.c[n].label(of) for n, of in side.ids.items()),
               *(source.c[n].label(of) for n, of in other.ids.items())]
        refused = [~_quarantined(scope, side, sample), ~_quarantined(scope, other, source)]
        yield Check(
            f"{side.name}_sample_pairs",
            f"A sample of the {side.name} stream, joined by the database with all of the other "
            f"one, is in {scope.fact_name}",
            f"Up to {size:,} tuples, drawn at random, with the {other.name} stream as its source "
            f"has it. A pair listed here was not loaded.",
            select(*ids, *(sample.c[n].label(f"key_{i}") for i, n in enumerate(side.keys)))
            .select_from(sample.join(source, equal).outerjoin(pairs, loaded))
            .where(pairs.c.load_id.is_(None), *refused))


def _sample(staging: Staging, side: Side, size: int) -> sa.Table:
    source = side.staged
    assert source is not None
    columns = list(source.columns)
    table = staging.table(f"sample_{side.name}", *(Column(c.name, c.type) for c in columns))
    keyed = select(*columns).where(*(source.c[n].is_not(None) for n in side.keys))
    with staging.engine.begin() as connection:
        connection.execute(table.insert().from_select(
            [c.name for c in columns],
            keyed.order_by(system_of(staging.engine).random()).limit(size)))
    return table


def _quarantined(scope: Scope, side: Side, source: sa.Table) -> ColumnElement[bool]:
    """Return the condition for tuples that went to ``unmatched`` before they could be joined."""
    u = unmatched.c
    return select(1).where(
        u.fact_table == scope.fact_name, u.side == side.name, u.stream_id == source.c.quality_id,
        u.reason.in_(("against_punctuation", "long_id", "unparsable")),
        scope.recounted(unmatched)).correlate(source).exists()

