"""The files of repeated ids that were counted in the warehouse, which knows a tuple's load only.

The files of these loads that are still there are read again. An id that none of them has was in a
file that is gone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Subquery, and_, case, func, select

from semistream.data_files import DataFile
from semistream.positions import Kind
from semistream.quality.recount import (
    ORIGINS_PER_BATCH,
    batches_of,
    files_of_batch,
    ids_of_file,
    recounted_columns,
    with_stream_id,
)
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Staging
from semistream.streaming.sources.contract import CannotRecount
from semistream.streaming.sources.log import SourceLog, numbers_of
from semistream.warehouse.ledger import checkpoint_of
from semistream.warehouse.tables import arrow_schema, quoted
from semistream.warehouse.taking_out import Stretch, stretches
from semistream.warehouse.types import KeyString

MOST = 1_000_000  # repeated ids that are held; of more, all ids of the files are staged
# the number of a file, in its batch, that stands for the files without the id
ELSEWHERE = ORIGINS_PER_BATCH - 1


@dataclass
class _Files:
    """The files of a stretch of batches. there: by origin, paths of those that are there; gone:
    paths of those that are not; nameless: the number of those whose names nobody knows."""

    there: dict[int, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    nameless: int = 0

    @property
    def elsewhere(self) -> str:
        """A description of the files that may have an id that was not found."""
        lost = len(self.gone) + self.nameless
        names, count = (self.gone, lost) if lost else ([*self.there.values()], len(self.there))
        if not names:
            return "a file that is gone" if lost == 1 else f"one of {lost:,} files that are gone"
        if count == 1:
            return f"{names[0]} (which is gone)" if lost else names[0]
        return f"{names[0]}, or another of {count:,} files{' that are gone' if lost else ''}"


def find_origins(
    staging: Staging, scope: Scope, stream: Stream, table: sa.Table, origins: sa.Table
) -> sa.Table:
    """Return a copy of the table of repeated ids, in which origins that stand for whole batches are
    replaced by the files' origins. Add the names of these. See ``repeated_ids.Repeated``."""
    t = table.c
    known = select(origins.c.origin)
    batches = {
        origin // ORIGINS_PER_BATCH
        for column in (t.first_origin, t.last_origin)
        for origin in staging.scalars(select(column).where(column.not_in(known)).distinct())
    }
    with staging.engine.connect() as connection:
        every = stretches(connection, scope.app)
    whole = staging.table(
        stream.named("whole"),
        *(Column(name, BigInteger) for name in ("origin", "after", "until", "elsewhere")),
    )
    kinds = recounted_columns(scope, stream)
    ids = staging.table(
        stream.named("found"),
        Column("quality_batch", BigInteger),
        Column("quality_origin", BigInteger),
        *(Column(quoted(name), kinds[name]) for name in stream.ids),
        Column("quality_id", KeyString()),
    )
    wanted = staging.scalars(select(t.stream_id).limit(MOST + 1))
    those = pa.array(wanted, pa.string()) if len(wanted) <= MOST else None
    for of in every:
        mine = [batch for batch in batches if of.holds((batch, Kind.BATCH))]
        if not mine:
            continue
        files = _files(staging, scope, stream, of)
        elsewhere = max(mine) * ORIGINS_PER_BATCH + ELSEWHERE
        staging.insert(origins, [*files.there.items(), (elsewhere, files.elsewhere)])
        staging.insert(
            whole,
            [(batch * ORIGINS_PER_BATCH, of.first[0], of.last[0], elsewhere) for batch in mine],
        )
        _find(staging, stream, files, ids, those)
    staging.index(ids, "quality_id")
    exact = staging.table(
        stream.named("placed"), *(Column(column.name, column.type) for column in t)
    )
    staging.fill(exact, _placed(table, whole, ids))
    return exact


def _files(staging: Staging, scope: Scope, stream: Stream, of: Stretch) -> _Files:
    """Return the files of a stretch of batches. The checkpoint, if it is here, lists those that the
    ledger has forgotten."""
    found = _Files()
    with staging.engine.connect() as connection:
        checkpoint = checkpoint_of(connection, scope.app)
    for commit in batches_of(staging.engine, scope.app, of):
        offsets, noted = files_of_batch(staging.engine, commit, stream.side)
        if not offsets.get("files"):
            continue
        here = {n: path for n, path in noted.items() if DataFile(path).now() is not None}
        found.there |= {commit.batch * ORIGINS_PER_BATCH + n: path for n, path in here.items()}
        listed = list(noted.values())
        if checkpoint is not None:
            log = SourceLog(Path(checkpoint) / "query", offsets["format"], stream.side or 0)
            with suppress(OSError, ValueError):  # what is damaged there is another check's
                listed += log.entries(*numbers_of(offsets))
        gone = dict.fromkeys(path for path in listed if path not in here.values())
        found.gone += gone
        found.nameless += max(offsets["files"] - len(here) - len(gone), 0)
    return found


def _find(
    staging: Staging, stream: Stream, files: _Files, ids: sa.Table, wanted: pa.Array | None
) -> None:
    """Stage the ids of files. wanted: the ids to look for, None for all. A file that cannot be read
    is left out."""
    schema = arrow_schema(ids)
    for origin, path in files.there.items():
        with suppress(CannotRecount, OSError):
            for _, rows in ids_of_file(Path(path), stream.spec, staging.engine):
                found = with_stream_id(
                    origin // ORIGINS_PER_BATCH,
                    rows,
                    len(stream.ids),
                    schema,
                    origin % ORIGINS_PER_BATCH,
                )
                if wanted is not None:
                    found = found.filter(pc.is_in(found["quality_id"], value_set=wanted))
                staging.write(ids, found)


def _placed(table: sa.Table, whole: sa.Table, ids: sa.Table) -> sa.Select:
    """Select the repeated ids with the origins where they were found; see ``find_origins``. If a
    copy was not found, it is in the files elsewhere."""
    t, i = table.c, ids.c

    def found(name: str) -> tuple[sa.FromClause, Subquery]:
        w = whole.alias(name)
        of_stretch = (
            select(
                w.c.origin,
                i.quality_id,
                func.count().label("times"),
                func.min(i.quality_origin).label("first_origin"),
                func.max(i.quality_origin).label("last_origin"),
            )
            .join_from(ids, w, and_(i.quality_batch > w.c.after, i.quality_batch <= w.c.until))
            .group_by(w.c.origin, i.quality_id)
            .subquery(f"found_{name}")
        )
        return whole.alias(f"{name}_whole"), of_stretch

    (one, first), (other, last) = found("one"), found("other")
    both, times = one.c.elsewhere == other.c.elsewhere, func.coalesce(last.c.times, 0)
    return (
        select(
            t.stream_id,
            t.times,
            func.coalesce(first.c.first_origin, one.c.elsewhere, t.first_origin),
            case(
                (and_(both, times < t.times), other.c.elsewhere),
                else_=func.coalesce(last.c.last_origin, other.c.elsewhere, t.last_origin),
            ),
        )
        .outerjoin_from(table, one, one.c.origin == t.first_origin)
        .outerjoin(other, other.c.origin == t.last_origin)
        .outerjoin(first, and_(first.c.origin == one.c.origin, first.c.quality_id == t.stream_id))
        .outerjoin(last, and_(last.c.origin == other.c.origin, last.c.quality_id == t.stream_id))
    )
