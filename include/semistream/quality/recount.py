"""A recount of the source without Spark: how many rows each batch should have read, and with which
stream ids.

``load_commits.source_offsets`` says which part of the source belongs to a batch (see
``warehouse.ledger``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, String, Text, select

from semistream.counted import counted
from semistream.job import StreamSpec
from semistream.positions import Kind
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Staging
from semistream.streaming.sources.contract import INFERRED, CannotRecount, Part, Recount
from semistream.warehouse.ids import shorten, stream_ids
from semistream.warehouse.ledger import parts_of
from semistream.warehouse.schema import load_commits, load_files
from semistream.warehouse.tables import arrow_schema, quoted
from semistream.warehouse.taking_out import Stretch
from semistream.warehouse.types import KeyString, LongString

# a tuple's origin is its batch times this, plus the number of its file in the batch
ORIGINS_PER_BATCH = 2**31
Columns = Mapping[str, sa.types.TypeEngine]  # a source's columns, with the warehouse's types


@dataclass(frozen=True)
class Sources:
    """The recounted source. counts: batch, source, rows_in_source; ids: quality_batch,
    quality_origin, the id columns, quality_id (None if the job names no id columns); origins:
    origin, path (see ``ORIGINS_PER_BATCH``). The prefix ``quality_`` avoids the names of data
    columns."""

    counts: sa.Table
    ids: sa.Table | None
    origins: sa.Table | None = None


def recounted_columns(scope: Scope, stream: Stream) -> Columns:
    """Return the columns of a stream's source that are staged, in types that a staging table can
    index: its id columns and, if there are two streams, the join columns."""
    columns = stream.ids | (stream.keys if stream.name else {})
    kinds = {name: scope.fact.c[of].type for name, of in columns.items()}
    return {
        name: KeyString() if stream.name and isinstance(kind, String) else kind
        for name, kind in kinds.items()
    }


def stage_sources(
    staging: Staging, stream: Stream, commits: list[sa.Row], columns: Columns
) -> Sources | None:
    """Stage the number of rows in the source of each batch, and these columns of each row. The
    first columns are the row's id. Return None, with a note, if the source cannot be recounted."""
    try:
        parts = [
            (c.batch, recounts(staging.engine, c, stream.side, stream.spec))
            for c in commits
            if c.drain == Kind.BATCH
        ]
        found = _stage(staging, columns, stream, parts)
    except CannotRecount as e:
        staging.reserve(
            f"The source was not counted again: {e}. Rows read are checked "
            "against the ledger only, and stream ids for duplicates only."
        )
        return None
    keys = list(columns)[len(stream.ids) :]
    if found.ids is not None and keys:
        staging.index(found.ids, *stream.keys)
    return found


def read_tuples(
    engine: sa.Engine, stream: StreamSpec, commits: list[sa.Row], columns: Columns
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (batch, rows of its source), of a job of one stream, with these columns, the first of
    which are the stream's id. Raises CannotRecount."""
    names = tuple(columns)
    for c in commits:
        if c.drain == Kind.BATCH:
            for part in recounts(engine, c, None, stream):
                yield from ((c.batch, found) for _, found in part.read(names))


def _stage(
    staging: Staging, columns: Columns, stream: Stream, parts: list[tuple[int, list[Recount]]]
) -> Sources:
    names, ids = tuple(columns), len(stream.ids)
    tuples = (
        staging.table(
            stream.named("ids"),
            Column("quality_batch", BigInteger),
            Column("quality_origin", BigInteger),
            *(Column(quoted(name), kind) for name, kind in columns.items()),
            Column("quality_id", KeyString()),
        )
        if ids
        else None
    )
    counted, nameless = [], 0
    for batch, each in parts:
        rows, files = 0, [Path(part.label).name for part in each]
        for number, part in enumerate(each):
            for n, found in part.read(names):
                rows += n
                if tuples is not None and len(found):
                    nameless += len(found) - len(found.select(list(names[:ids])).drop_null())
                    staging.write(
                        tuples, with_stream_id(batch, found, ids, arrow_schema(tuples), number)
                    )
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        counted.append((batch, ", ".join(files[:3]) + more, rows))
    if nameless:
        staging.notes.append(
            f"{nameless:,} {'tuple' if nameless == 1 else 'tuples'} of the {stream.word}source "
            f"without an id ({', '.join(stream.ids)}): counted, and no missing one can be named."
        )
    counts = staging.table(
        stream.named("sources"),
        Column("batch", BigInteger),
        Column("source", Text),
        Column("rows_in_source", BigInteger),
        rows=counted,
    )
    origins = staging.table(
        stream.named("origins"),
        Column("origin", BigInteger),
        Column("path", LongString()),
        rows=(
            (batch * ORIGINS_PER_BATCH + number, part.label)
            for batch, each in parts
            for number, part in enumerate(each)
        ),
    )
    if tuples is not None:
        staging.index(tuples, *names[:ids])
        staging.index(tuples, "quality_id")
    return Sources(counts, tuples, origins)


def recounts(
    engine: sa.Engine, commit: sa.Row, side: int | None, stream: StreamSpec
) -> list[Recount]:
    """Return the splits of the source that a batch read, for reading them again. Raises
    CannotRecount."""
    offsets, files = files_of_batch(engine, commit, side)
    if (lost := offsets.get("files", 0) - len(files)) > 0:
        raise CannotRecount(
            f"{counted(lost, 'source file')} of batch {commit.batch} "
            + ("is gone, and its name" if lost == 1 else "are gone, and their names")
            + " forgotten"
        )
    # in the format that was read, which the job may have changed since
    given = stream.model_copy(update={"format": offsets.get("format") or stream.format})
    return _splits(engine, given, Part.of(offsets, list(files.values())))


def batches_of(engine: sa.Engine, app: str, stretch: Stretch) -> Sequence[sa.Row]:
    """Return the rows of ``load_commits`` of the batches in a stretch, in their order."""
    c = load_commits.c
    mine = select(load_commits).where(
        c.app == app, c.drain == Kind.BATCH, c.batch > stretch.first[0], c.batch <= stretch.last[0]
    )
    with engine.connect() as connection:
        return connection.execute(mine.order_by(c.batch)).all()


def files_of_batch(
    engine: sa.Engine, commit: sa.Row, side: int | None
) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the ``source_offsets`` of a stream's part of a batch; and the paths of its files, by
    their number among these, as far as the ledger has them still."""
    parts, f = parts_of(json.loads(commit.source_offsets)), load_files.c
    offsets: dict[str, Any] = parts[side or 0]
    count, first = offsets.get("files", 0), parts[0].get("files", 0) if side else 0
    mine = select(f.number, f.path).where(f.app == commit.app, f.batch == commit.batch)
    with engine.connect() as connection:
        rows = connection.execute(
            mine.where(f.number >= first, f.number < first + count).order_by(f.number)
        ).all()
    return offsets, {number - first: path for number, path in rows}


def _splits(engine: sa.Engine, stream: StreamSpec, part: Part) -> list[Recount]:
    # imported only here: it imports Numba, which other checks do not need
    from semistream.streaming.sources.registry import find_source

    source = find_source(stream)
    return [source.recount(split, engine) for split in source.splits(part)]


def with_stream_id(
    batch: int,
    found: pa.RecordBatch,
    ids: int,
    schema: pa.Schema,
    file: int = 0,
    whole: bool = False,
) -> pa.Table:
    """Return the rows that have an id, with quality_id, quality_batch and quality_origin, in
    ``schema``.

    ids: the number of id columns, which come first; file: the file's number in the batch; whole:
    whether to keep only rows in which all columns can be read. A column that the source no longer
    gives is null.
    """
    names = found.schema.names[:ids]
    for name in names:
        found = found.filter(found.column(name).is_valid())
    found = _readable(found, schema, len(found.schema) if whole else ids)
    rows = pa.table(
        [
            *(
                # a key is indexed; a value is compared with the one that was loaded
                column if whole and number >= ids else shorten(column)
                for number, column in enumerate(found.columns)
            ),
            stream_ids(found, names),
            *(
                pa.repeat(pa.scalar(n, pa.int64()), len(found))
                for n in (batch, batch * ORIGINS_PER_BATCH + file)
            ),
        ],
        names=[*found.schema.names, "quality_id", "quality_batch", "quality_origin"],
    )
    given = [
        rows[f.name] if f.name in rows.column_names else pa.nulls(len(found), f.type)
        for f in schema
    ]
    return pa.table(given, names=schema.names)


def _readable(found: pa.RecordBatch, schema: pa.Schema, deciding: int) -> pa.RecordBatch:
    """Return the rows whose first ``deciding`` values can be converted to the warehouse's types, in
    these types. If other values cannot be converted, they become null."""
    from semistream.files.convert import cast_cells

    exact = (found.schema.metadata or {}) == INFERRED
    columns, wrong = [], list[int]()
    for name, column in zip(found.schema.names, found.columns, strict=True):
        kind = schema.field(name).type
        # a database's times have no zone, but texts of times may
        timed = pa.types.is_timestamp(kind) and pa.types.is_string(column.type)
        cast, bad = cast_cells(
            column, pa.timestamp("us", "UTC") if timed else kind, exact and not timed
        )
        columns.append(cast.cast(kind))
        wrong += bad.tolist() if len(columns) <= deciding else []
    rows = pa.record_batch(columns, names=found.schema.names)
    return rows.take(pa.array(np.delete(np.arange(len(rows)), wrong))) if wrong else rows


def ids_of_file(
    file: Path, stream: StreamSpec, engine: sa.Engine
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number, rows with their ids) of one file, read like a file of a batch. Raises
    CannotRecount."""
    for split in _splits(engine, stream, Part(None, None, (str(file),))):
        yield from split.read(stream.id)
