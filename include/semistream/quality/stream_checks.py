"""The expectations of one stream: its tuples, counted again in its source, are in the fact table or
in ``unmatched``, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import and_, case, func, select

from semistream.positions import Kind
from semistream.quality.checks import Check, listed, load_of
from semistream.quality.file_audit import stage_file_audit
from semistream.quality.repeated_ids import unique_ids
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Sources, Staging, Unparsable
from semistream.quality.unparsable_ids import stage_unparsable, with_lost
from semistream.reasons import Reason
from semistream.warehouse.load_ids import batch_of, resolving
from semistream.warehouse.schema import load_batches, load_commits, load_inputs, unmatched


@dataclass(frozen=True)
class Recounted:
    """The recounted tuples of a stream. sources: the tuples, None if they cannot be counted again;
    unparsable: the ids of tuples that could not be parsed, None if no ids are staged."""

    sources: Sources | None
    unparsable: Unparsable | None

    @property
    def ids(self) -> sa.Table | None:
        """The staged ids of the stream's tuples."""
        return self.sources.ids if self.sources is not None else None


def recount(staging: Staging, scope: Scope, stream: Stream, sources: Sources | None) -> Recounted:
    """Stage the ids of the stream's unparsable tuples. The recounted source contains these ids,
    too."""
    if sources is None or sources.ids is None:
        return Recounted(sources, None)
    found = stage_unparsable(staging, scope, stream, sources)
    absent = missing(scope, stream, sources.ids, found.ids)
    return Recounted(sources, with_lost(staging, found, absent, stream))


def stream_checks(
    staging: Staging, scope: Scope, stream: Stream, found: Recounted
) -> Iterator[Check]:
    """Yield the checks of a stream. A check is left out if its data is missing: staged files, ids,
    or a source whose tuples can be counted again. found: the result of the recount."""
    if (files := stage_file_audit(staging, scope, stream)) is not None:
        yield source_files(stream, files)
    if found.sources is not None:
        yield source_rows(scope, stream, found.sources.counts)
    if stream.ids:
        yield from unique_ids(staging, scope, stream, found.sources)
    if found.ids is not None and found.unparsable is not None:
        absent = missing(scope, stream, found.ids, found.unparsable.ids)
        yield none_missing(scope, stream, absent, found.unparsable.lost)
        yield none_invented(scope, stream, found.ids)
        yield unmatched_once(scope, stream, found.ids)


def source_files(stream: Stream, files: sa.Table) -> Check:
    return Check(
        stream.named("source_files"),
        f"Every file of the {stream.word}source is in a batch, and as it was loaded",
        "The ledger names each file with its size and time. A file listed here was "
        "there when the source was read and is in no batch, or it was written after its "
        "batch was loaded: complete files are to be renamed into the stream's directory. "
        "What could not be looked at may be, or hide, such a file: mend or remove it.",
        select(files),
    )


def source_rows(scope: Scope, stream: Stream, counts: sa.Table) -> Check:
    s, c, b, i = counts.c, load_commits.c, load_batches.c, load_inputs.c
    read = select(c.batch, c.rows_read).where(c.app == scope.app, c.drain == Kind.BATCH)
    if stream.name:  # a commit has the rows of both streams
        read = (
            select(b.batch, func.sum(i.rows_read).label("rows_read"))
            .join(load_inputs, i.load_id == b.load_id)
            .where(b.app == scope.app, b.drain == Kind.BATCH, i.role == stream.name)
            .group_by(b.batch)
        )
    per_batch = read.subquery("read")
    found = func.coalesce(per_batch.c.rows_read, 0)
    return Check(
        stream.named("source_rows"),
        f"The {stream.word}source has as many rows as were read",
        "The files (or table) that each batch was read from are opened again, without "
        "Spark, and counted.",
        select(s.batch, s.source, s.rows_in_source, found.label("rows_read"))
        .select_from(counts.outerjoin(per_batch, per_batch.c.batch == s.batch))
        .where(s.rows_in_source != found),
    )


def missing(scope: Scope, stream: Stream, source: sa.Table, unparsable: sa.Table) -> sa.Select:
    """Select the ids of the source that have not arrived. unparsable: the ids found in the texts of
    tuples that could not be parsed."""
    s, f, u, n = source.c, scope.by_id, unmatched.c, unparsable.c
    loaded = and_(*(f.c[of] == s[i] for i, of in stream.ids.items()), scope.recounted(f))
    kept = and_(
        scope.kept(stream),
        u.stream_id == s.quality_id,
        scope.recounted(unmatched),
        scope.is_open(unmatched),
    )
    # Outer joins: for NOT EXISTS, MariaDB would copy everything that was loaded to a table on disk
    # instead of using the indexes.
    return (
        select(s.quality_batch.label("source_batch"), *(s[i] for i in stream.ids))
        .select_from(
            source.outerjoin(f, loaded)
            .outerjoin(unmatched, kept)
            .outerjoin(unparsable, n.stream_id == s.quality_id)
        )
        .where(f.c.load_id.is_(None), u.load_id.is_(None), n.stream_id.is_(None))
    )


def none_missing(scope: Scope, stream: Stream, absent: sa.Select, lost: int) -> Check:
    """Return the check that no tuple of the source is missing. absent: see ``missing``; lost: the
    number of missing ids that may belong to unparsable tuples whose text does not show the id."""
    which = f"tuple of the {stream.name} stream" if stream.name else "stream tuple"
    if stream.waiting or lost:
        found = absent.cte("missing")
        how_many = select(func.count()).select_from(found).scalar_subquery()
        most = stream.waiting + lost
        # of two streams, a tuple that waits may have had a partner
        absent = select(*found.c).where(how_many > most if stream.name else how_many != most)
    return Check(
        stream.named("none_missing"),
        f"All {which.replace('tuple', 'tuples')} but at most {lost:,} have arrived"
        if lost
        else f"Every {which} has arrived",
        f"Every {listed(stream.ids)} of the source is in {scope.fact_name} or in unmatched."
        + (
            f" {stream.waiting:,} tuples wait in the join after the last batch and may "
            "still be missing."
            if stream.waiting
            else ""
        )
        + (
            f" {lost:,} that are in neither may be among those that could not be parsed, and "
            "whose text does not tell the id."
            if lost
            else ""
        ),
        absent,
    )


def none_invented(scope: Scope, stream: Stream, source: sa.Table) -> Check:
    f, s = scope.fact, source.c
    ids = [f.c[of] for of in stream.ids.values()]
    return Check(
        stream.named("none_invented"),
        f"Every {stream.name} tuple of a row comes from the source"
        if stream.name
        else "Every loaded row comes from the source",
        f"A row of {scope.fact_name} whose {listed(stream.ids.values())} the source does "
        "not have was changed, or put there by another.",
        select(*ids, *load_of(f))
        .select_from(f.outerjoin(source, and_(*(s[i] == f.c[of] for i, of in stream.ids.items()))))
        .where(
            scope.holds(f),
            ~resolving(f.c.load_id),  # which may have tuples of earlier batches, see resolved_once
            *(c.is_not(None) for c in ids),
            s.quality_batch.is_(None),
        ),
    )


def unmatched_once(scope: Scope, stream: Stream, source: sa.Table) -> Check:
    s, f, u = source.c, scope.by_id, unmatched.c
    mine = and_(
        scope.kept(stream),
        u.stream_id.is_not(None),
        u.reason != Reason.UNPARSABLE,
        scope.holds(unmatched),
        scope.is_open(unmatched),
        ~resolving(u.load_id),
    )
    kept = (
        select(
            u.stream_id,
            func.count().label("rows_in_unmatched"),
            batch_of(func.min(u.load_id)).label("first_batch"),
            batch_of(func.max(u.load_id)).label("last_batch"),
        )
        .where(mine)
        .group_by(u.stream_id)
        .subquery("kept")
    )
    same = s.quality_id == kept.c.stream_id
    times = select(func.count()).where(same).correlate(kept).scalar_subquery()
    matched = and_(
        *(f.c[of] == s[i] for i, of in stream.ids.items()),
        scope.recounted(f),
        *stream.has_partner(f),
    )
    loaded = case(
        (select(1).select_from(source.join(f, matched)).where(same).correlate(kept).exists(), 1),
        else_=0,
    )
    return Check(
        stream.named("unmatched_once"),
        f"Every unmatched tuple comes from the {stream.word}source, from there only once, and has "
        f"no match",
        f"A tuple in unmatched whose {listed(stream.ids)} the source does not have, or has less "
        f"often than unmatched and {scope.fact_name} together, was changed on its way, put aside "
        f"twice, or has a match.",
        select(*kept.c, loaded.label(f"in_{scope.fact_name}"), times.label("rows_in_source")).where(
            kept.c.rows_in_unmatched + loaded > times
        ),
    )
