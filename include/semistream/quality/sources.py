"""The source counted again, without Spark: how many rows each batch should have read, and which
stream ids.

``load_commits.source_offsets`` says which part of the source a batch is (see ``warehouse.ledger``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Text, select

from semistream.config import SIDES, StreamSpec
from semistream.errors import SemistreamError
from semistream.quality.staging import Sources, Staging
from semistream.streaming.sources.base import CannotRecount, Part
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.ids import shorten, stream_ids
from semistream.warehouse.ledger import parts_of
from semistream.warehouse.schema import load_files
from semistream.warehouse.tables import arrow_schema, quoted
from semistream.warehouse.types import KeyString

Columns = Mapping[str, sa.types.TypeEngine]  # of a source, as the warehouse has them


def stage_sources(staging: Staging, stream: StreamSpec, commits: list[sa.Row], columns: Columns,
                  ids: int, side: int | None = None) -> Sources | None:
    """The rows of each batch's source, and of each row these columns, of which the first ``ids``
    are its id. side: of two streams. None, and a note, where they cannot be had."""
    try:
        parts = [(c.batch, _part(_source(staging.engine, c, side), stream, staging.engine))
                 for c in commits if c.drain == 0]
        return _stage(staging, columns, ids, parts, "" if side is None else f"_{SIDES[side]}")
    except CannotRecount as e:
        staging.notes.append(f"The source was not counted again: {e}. Rows read are checked "
                             "against the ledger only, and stream ids for duplicates only.")
        return None


def _stage(staging: Staging, columns: Columns, ids: int, parts: list[tuple[int, Part]],
           side: str) -> Sources:
    counts = staging.table(f"sources{side}", Column("batch", BigInteger), Column("source", Text),
                           Column("rows_in_source", BigInteger))
    names = tuple(columns)
    tuples = staging.table(f"ids{side}", Column("quality_batch", BigInteger),
                           *(Column(quoted(name), kind) for name, kind in columns.items()),
                           Column("quality_id", KeyString())) if ids else None
    counted = []
    for batch, part in parts:
        rows = 0
        for n, found in part.read(names):
            rows += n
            if tuples is not None and len(found):
                with staging.engine.begin() as connection:
                    bulk_insert(connection, tuples,
                                _with_stream_id(batch, found, ids, arrow_schema(tuples)))
        counted.append((batch, part.label, rows))
    staging.insert(counts, counted)
    if tuples is not None:
        staging.index(tuples, *names[:ids])
        staging.index(tuples, "quality_id")
    return Sources(counts, tuples)


def _source(engine: sa.Engine, commit: sa.Row, side: int | None) -> dict[str, Any]:
    """``source_offsets`` of a stream, with the paths of the batch's files."""
    parts = parts_of(json.loads(commit.source_offsets))
    offsets: dict[str, Any] = parts[side or 0]
    if not isinstance(count := offsets.get("files"), int):
        return offsets
    first = parts[0].get("files", 0) if side else 0
    f = load_files.c
    with engine.connect() as connection:
        paths = list(
            connection.scalars(select(f.path).where(f.app == commit.app, f.batch == commit.batch,
                                                    f.number >= first, f.number < first + count)
                               .order_by(f.number)))
    if len(paths) < count:
        raise CannotRecount(f"{count - len(paths)} source files of batch {commit.batch} are gone, "
                            f"and their names forgotten")
    return offsets | {"files": paths}


def _part(offsets: dict[str, Any], stream: StreamSpec, engine: sa.Engine) -> Part:
    """Out of ``load_commits.source_offsets``. Raises CannotRecount when that part of the source
    cannot be read again."""
    kind = offsets.get("format")
    if "files" in offsets:
        files = [_local(f) for f in offsets["files"]]
        names = [f.name for f in files]
        label = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return Part(
            label, lambda ids: (piece for f in files
                                for piece in _readable_file(f, kind, stream, ids)))
    if stream.mark is not None:
        raise CannotRecount("rows that are punctuations are not told apart in this source")
    # imports Spark, which files do without
    from semistream.streaming.sources.registry import find_source

    return find_source(stream.model_copy(update={"format": kind or stream.format})).recount(
        offsets, engine)


def _with_stream_id(batch: int, found: pa.RecordBatch, ids: int, schema: pa.Schema) -> pa.Table:
    """Of rows that have an id. A column that the source does not give again is null."""
    names = found.schema.names[:ids]
    for name in names:
        found = found.filter(found.column(name).is_valid())
    found = _readable(found, schema)
    rows = pa.table([*map(shorten, found.columns), stream_ids(found, names),
                     pa.repeat(pa.scalar(batch, pa.int64()), len(found))],
                    names=[*found.schema.names, "quality_id", "quality_batch"])
    given = [rows[f.name] if f.name in rows.column_names else pa.nulls(len(found), f.type)
             for f in schema]
    return pa.table(given, names=schema.names)


def _readable(found: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows whose ids are there and of the types that the warehouse has them in, in these
    types."""
    kinds = [schema.field(n).type for n in found.schema.names]
    try:
        return pa.record_batch([c.cast(k) for c, k in zip(found.columns, kinds, strict=True)],
                               names=found.schema.names)
    except pa.ArrowInvalid:
        good = [i for i in range(len(found)) if _castable(found.slice(i, 1), kinds)]
        return _readable(found.take(pa.array(good, pa.int64())),
                         schema) if len(good) < len(found) else found


def _castable(row: pa.RecordBatch, kinds: list[pa.DataType]) -> bool:
    try:
        for column, kind in zip(row.columns, kinds, strict=True):
            column.cast(kind)
        return True
    except pa.ArrowInvalid:
        return False


def _local(file: str) -> Path:
    if "://" in file:
        raise CannotRecount(f"{file} is not on a file system here")
    path = Path(file)
    if not path.is_file():
        raise CannotRecount(f"the source file {path} is gone")
    return path


def _readable_file(file: Path, *arguments: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    try:
        yield from read_ids(file, *arguments)
    except (pa.ArrowException, OSError, SemistreamError) as e:
        raise CannotRecount(f"{file} cannot be read ({e})") from None


def read_ids(file: Path, kind: str | None, stream: StreamSpec,
             ids: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (rows, some of their columns) piece by piece, by the reader of the load. A row that is
    none, or whose columns cannot be read, is counted only. Those of text files are texts."""
    # with numba, which other checks do without
    from semistream.files.opening import SOURCES, read_files
    from semistream.streaming.sources.reader import reading_of

    if kind not in SOURCES:
        raise CannotRecount(f"files of the format {kind} cannot be read again; those that can are "
                            f"{', '.join(SOURCES)}")
    if stream.mark is not None and kind != "parquet":
        raise CannotRecount(f"rows that are punctuations are not told apart in {kind} files")
    wanted = [*ids, *([] if stream.mark is None else [stream.mark])]
    reading = reading_of(stream.model_copy(update={"format": kind}))
    names = [f.name for f in stream.declared] if stream.declared is not None else []
    source = read_files("stream", [], kind, reading, pa.schema([(n, pa.string()) for n in names]))
    found = source.columns(file) or names
    if lacking := [i for i in stream.id if i not in found] if kind != "json" or not names else []:
        raise CannotRecount(f"{file} has no column {lacking[0]}")
    there = [n for n in wanted if n in found]
    if kind == "parquet":
        source = read_files("stream", [file], kind, reading)
    else:
        source = read_files("stream", [], kind, reading, pa.schema([(n, pa.string())
                                                                    for n in found]), found)
    source.only(there or found[:1])  # rows without a column would have no number
    for chunk in source.read(file):
        rows = chunk.rows
        if stream.mark is not None:
            rows = rows.filter(_is_tuple(rows.column(stream.mark)))
        yield (rows.num_rows + len(chunk.rejected),
               rows.select([n for n in there if n in ids]))


def _is_tuple(marks: pa.Array) -> pa.Array:
    """Whether a row is a tuple and no punctuation; see ``stream_joins.sources.PunctuationRows``."""
    marked = marks if pa.types.is_boolean(marks.type) else pc.not_equal(marks, "")
    return pc.invert(pc.fill_null(marked, False))
