"""Ids that occur more than once in the source, and the files in which they occur.

Tuples of the recounted batches are counted in the source. Tuples of earlier batches, or of a source
that cannot be read again, are counted in the warehouse: as facts, by the rows with which they were
joined, and in ``unmatched``. So the verdict is the same whether all batches are verified or only
the newest, and whether the copies came in one load or in two. A tuple that was joined again is
counted once, in ``unmatched``, where it was kept first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, ColumnElement, Subquery, and_, func, select

from semistream.counted import counted
from semistream.job import FILE_FORMATS
from semistream.quality.checks import Check
from semistream.quality.recount import ORIGINS_PER_BATCH, Sources, with_stream_id
from semistream.quality.repeated_origins import find_origins
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Staging
from semistream.warehouse.bulk import fetch
from semistream.warehouse.load_ids import batch_of, resolving
from semistream.warehouse.schema import unmatched
from semistream.warehouse.tables import arrow_schema, quoted
from semistream.warehouse.types import KeyString, LongString, typed

ROWS = 50_000  # rows of unmatched converted at a time
LISTED_PAIRS, LISTED_IDS = 3, 5  # how many pairs of files, and ids, are named


@dataclass(frozen=True)
class Repeated:
    """The repeated ids. table: stream_id, times, first_origin, last_origin; origins: a table with
    the names of origins; summary: a sentence that says how many ids there are and in which files,
    "" if there are none."""

    table: sa.Table
    origins: sa.Table
    summary: str


def unique_ids(
    staging: Staging, scope: Scope, stream: Stream, sources: Sources | None
) -> Iterator[Check]:
    """Yield the check for repeated ids if the job requires unique ids; otherwise only note repeated
    ids. sources: the recounted source, None if it cannot be recounted."""
    found = stage_repeated(staging, scope, stream, sources)
    if stream.spec.unique_ids:
        yield _unique_ids(found, scope.app, stream, sources is not None)
    elif found.summary:
        staging.notes.append(
            f"{found.summary} The job has unique_ids: false, so that this is right."
        )


def _unique_ids(found: Repeated, app: str, stream: Stream, recounted: bool) -> Check:
    how = (
        ""
        if recounted
        else " The source cannot be read again: counted is what the warehouse "
        "has of it, so that a tuple that was loaded twice is here too."
    )
    copy = (
        f"Where a file came twice, under another name: `semistream reset {app} --file COPY`, "
        "delete the copy, and load again."
        if not stream.name and stream.spec.format in FILE_FORMATS
        else "Where tuples came twice: take the copies out of the source, `semistream reset "
        f"{app}`, and load again."
    )
    f = _with_files(found.table, found.origins).c
    named = select(
        f.stream_id,
        f.times.label("times_in_source"),
        _batch(f.first_origin).label("first_batch"),
        f.first_file,
        _batch(f.last_origin).label("last_batch"),
        f.last_file,
    ).order_by(f.first_origin, f.last_origin, f.stream_id)
    return Check(
        "unique_ids",
        f"No id comes twice in the {stream.word}source",
        f"A tuple is identified by {', '.join(stream.ids)}.{how} {found.summary}".strip(),
        named,
        f"{copy} Where the ids do not identify a tuple, name all columns "
        f"that do under stream.id, reset and load again. Where copies are right, set unique_ids: "
        f"false under {stream.name or 'stream'} in the job, and `semistream verify {app} --job "
        f"FILE`.",
        found="times_in_source",
    )


def _with_files(table: sa.Table, origins: sa.Table) -> Subquery:
    """Select the repeated ids with the names of their origins: first_file, last_file."""
    t, first, last = table.c, origins.alias("first"), origins.alias("last")
    return (
        select(*t, first.c.path.label("first_file"), last.c.path.label("last_file"))
        .outerjoin_from(table, first, first.c.origin == t.first_origin)
        .outerjoin(last, last.c.origin == t.last_origin)
        .subquery("with_files")
    )


def stage_repeated(
    staging: Staging, scope: Scope, stream: Stream, sources: Sources | None
) -> Repeated:
    """Stage the repeated ids. They are counted in the source, or in the warehouse if the source was
    not recounted."""
    if sources is None or sources.ids is None or sources.origins is None:
        recent = _loaded(staging, scope, stream)
        origins = staging.table(
            stream.named("loaded_origins"),
            Column("origin", BigInteger),
            Column("path", LongString()),
        )
    else:
        recent, origins = sources.ids, sources.origins
    table = staging.table(
        stream.named("repeated"),
        Column("stream_id", KeyString()),
        *(Column(n, BigInteger) for n in ("times", "first_origin", "last_origin")),
    )
    staging.fill(table, _repeated(scope, stream, recent))
    if not (count := staging.count(table)):
        return Repeated(table, origins, "")
    if stream.spec.unique_ids and stream.spec.format in FILE_FORMATS:
        table = find_origins(staging, scope, stream, table, origins)
    return Repeated(table, origins, _summary(staging, table, origins, count))


def _repeated(scope: Scope, stream: Stream, recent: sa.Table) -> sa.Select:
    """Select stream_id, times, first_origin, last_origin of ids that occur more than once."""
    r = recent.c
    now = (
        select(
            r.quality_id.label("stream_id"),
            *(func.min(r[i]).label(f"id_{n}") for n, i in enumerate(stream.ids)),
            func.count().label("times"),
            func.min(r.quality_origin).label("first_origin"),
            func.max(r.quality_origin).label("last_origin"),
        )
        .group_by(r.quality_id)
        .subquery("now")
    )
    if scope.source_first is None:
        return select(now.c.stream_id, now.c.times, now.c.first_origin, now.c.last_origin).where(
            now.c.times > 1
        )
    facts, kept = _facts_before(scope, stream, recent), _kept_before(scope, stream, recent)
    times = now.c.times + sum(func.coalesce(t.c.times, 0) for t in (facts, kept))
    first = func.coalesce(facts.c.first_origin, kept.c.first_origin, now.c.first_origin)
    same = and_(*(facts.c[f"id_{n}"] == now.c[f"id_{n}"] for n in range(len(stream.ids))))
    return (
        select(now.c.stream_id, times, first, now.c.last_origin)
        .select_from(
            now.outerjoin(facts, same).outerjoin(kept, kept.c.stream_id == now.c.stream_id)
        )
        .where(times > 1)
    )


def _facts_before(scope: Scope, stream: Stream, recent: sa.Table) -> Subquery:
    """Select the recent ids that also occur among the facts of earlier batches. The query uses IN
    instead of a join: if the fact table has no index on the ids, the staged table has one."""
    f, r, ids = scope.fact, recent.c, list(stream.ids.items())
    these = select(*(r[i] for i, _ in ids)).where(*(r[i].is_not(None) for i, _ in ids))
    known = (
        f.c[ids[0][1]].in_(these)
        if len(ids) == 1
        else sa.tuple_(*(f.c[of] for _, of in ids)).in_(these)
    )
    copies = _copies(scope, stream, scope.before(f), known)
    names = [copies.c[n] for n in stream.ids.values()]
    return (
        select(
            *(c.label(f"id_{n}") for n, c in enumerate(names)),
            func.count().label("times"),
            _origin(func.min(copies.c.load_id)).label("first_origin"),
        )
        .group_by(*names)
        .subquery("facts_before")
    )


def _kept_before(scope: Scope, stream: Stream, recent: sa.Table) -> Subquery:
    u = unmatched.c
    return (
        select(
            u.stream_id,
            func.count().label("times"),
            _origin(func.min(u.load_id)).label("first_origin"),
        )
        .where(
            scope.kept(stream),
            scope.before(unmatched),
            ~resolving(u.load_id),
            u.stream_id.in_(select(recent.c.quality_id)),
        )
        .group_by(u.stream_id)
        .subquery("kept_before")
    )


def _copies(scope: Scope, stream: Stream, *where: ColumnElement[bool]) -> Subquery:
    """Select the ids and load_id of each tuple that has facts. Facts with equal ids and join
    columns belong to different tuples only if they were joined with the same row."""
    f = scope.fact.c
    ids = [f[of] for of in stream.ids.values()]
    has = [
        *where,
        ~resolving(f.load_id),
        *(c.is_not(None) for c in ids),
        *stream.has_partner(scope.fact),
    ]
    if stream.single:
        return select(*ids, f.load_id).where(*has).subquery("copies")
    key = [*ids, *(f[n] for n in stream.keys.values() if n not in stream.ids.values())]
    rows = dict.fromkeys((*stream.partner, *scope.surrogates))
    number = (
        func.row_number()
        .over(partition_by=[*key, *(f[name] for name in rows)], order_by=f.load_id)
        .label("quality_copy")
    )
    each = select(*key, f.load_id, number).where(*has).subquery("each_fact")
    columns = [each.c[c.name] for c in key]
    return (
        select(*columns[: len(ids)], func.min(each.c.load_id).label("load_id"))
        .group_by(*columns, each.c.quality_copy)
        .subquery("copies")
    )


def _loaded(staging: Staging, scope: Scope, stream: Stream) -> sa.Table:
    """Stage the tuples in the form of ``sources.stage_sources``, but from the warehouse."""
    kinds = {i: scope.fact.c[of].type for i, of in stream.ids.items()}
    table = staging.table(
        stream.named("loaded"),
        Column("quality_origin", BigInteger),
        *(Column(quoted(i), kind) for i, kind in kinds.items()),
        Column("quality_id", KeyString()),
    )
    schema = arrow_schema(table)
    for batch in _loaded_tuples(staging, scope, stream, schema):
        staging.write(table, batch)
    staging.index(table, *stream.ids)
    staging.index(table, "quality_id")
    return table


def _loaded_tuples(
    staging: Staging, scope: Scope, stream: Stream, schema: pa.Schema
) -> Iterator[pa.Table]:
    ids, u = list(stream.ids), unmatched.c
    copies = _copies(scope, stream, scope.recounted(scope.fact))
    facts = select(*(copies.c[of].label(i) for i, of in stream.ids.items()), copies.c.load_id)
    found = pa.schema([*(schema.field(i) for i in ids), pa.field("load_id", pa.int64())])
    with staging.engine.connect() as connection:
        for batch in fetch(connection, facts, found):
            origins = _origin(batch.column("load_id").to_numpy())
            yield with_stream_id(0, batch.select(ids), len(ids), schema).set_column(
                schema.get_field_index("quality_origin"),
                "quality_origin",
                pa.array(origins, pa.int64()),
            )
    kept = select(u.load_id, u.stream_id, u.tuple).where(
        scope.kept(stream),
        u.stream_id.is_not(None),
        scope.recounted(unmatched),
        ~resolving(u.load_id),
    )
    with staging.engine.connect() as connection:
        result = connection.execution_options(yield_per=ROWS).execute(kept)
        for rows in result.partitions(ROWS):
            yield pa.Table.from_pylist(
                [
                    {
                        "quality_origin": _origin(load),
                        "quality_id": stream_id,
                        **_ids_of(stream_id, json.loads(text), scope, stream),
                    }
                    for load, stream_id, text in rows
                ],
                schema,
            )


def _ids_of(stream_id: str, kept: dict[str, Any], scope: Scope, stream: Stream) -> dict[str, Any]:
    """Return the id columns of a tuple in ``unmatched``. For a text that was not parsed, the id is
    known only if it consists of one column, which equals the stream_id."""
    if len(stream.ids) == 1:
        kept = dict.fromkeys(stream.ids, stream_id)
    try:
        return {i: typed(kept.get(i), scope.fact.c[of].type) for i, of in stream.ids.items()}
    except ValueError:
        return dict.fromkeys(stream.ids)


def _origin(load_id: Any) -> Any:
    """Return the number that stands for a whole batch in the columns first_origin and last_origin.
    load_id: a number, an array or a column."""
    return batch_of(load_id) * ORIGINS_PER_BATCH


def _batch(origin: ColumnElement[int]) -> ColumnElement[int]:
    return (origin - origin % ORIGINS_PER_BATCH) // ORIGINS_PER_BATCH


def _summary(staging: Staging, table: sa.Table, origins: sa.Table, count: int) -> str:
    f = _with_files(table, origins).c
    pair = [f.first_origin, f.last_origin, f.first_file, f.last_file]
    rows = staging.all(
        select(*pair, func.count().label("ids"))
        .group_by(*pair)
        .order_by(sa.desc("ids"), f.first_origin, f.last_origin)
        .limit(LISTED_PAIRS + 1)
    )
    examples = staging.scalars(
        select(f.stream_id).order_by(f.first_origin, f.last_origin, f.stream_id).limit(LISTED_IDS)
    )
    parts = [_pair(row) for row in rows[:LISTED_PAIRS]]
    more = "; others elsewhere" if len(rows) > LISTED_PAIRS else ""
    return (
        f"{counted(count, 'id')} {'comes' if count == 1 else 'come'} more than once: "
        f"{'; '.join(parts)}{more}. Such as {', '.join(examples)}."
    )


def _pair(row: sa.Row) -> str:
    first, last = (
        path or f"batch {origin // ORIGINS_PER_BATCH}"
        for path, origin in ((row.first_file, row.first_origin), (row.last_file, row.last_origin))
    )
    return f"{row.ids:,} " + (
        f"within {first}" if row.first_origin == row.last_origin else f"in {first} and in {last}"
    )
