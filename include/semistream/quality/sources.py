"""A recount of the source without Spark: how many rows each batch should have read, and which
stream ids.

``load_commits.source_offsets`` says which part of the source a batch is (see ``warehouse.ledger``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, String, Text, select

from semistream.config import StreamSpec
from semistream.errors import SemistreamError
from semistream.positions import Kind
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Sources, Staging
from semistream.streaming.sources.base import CannotRecount, Part
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.ids import shorten, stream_ids
from semistream.warehouse.ledger import parts_of
from semistream.warehouse.schema import load_files
from semistream.warehouse.tables import arrow_schema, quoted
from semistream.warehouse.types import KeyString, LongString

FOUND_TYPES = {b"types": b"found"}  # for texts whose types a load inferred, see ``cast_cells``
PLACES = 2**31  # a tuple's place is its batch times this, plus the number of its file in the batch
Columns = Mapping[str, sa.types.TypeEngine]  # a source's columns, with the warehouse's types


def recounted_columns(scope: Scope, stream: Stream) -> Columns:
    """Return the columns of a stream's source that are staged: its id columns, and of two streams
    the join columns, in a type that a staging table can index."""
    columns = stream.ids | (stream.keys if stream.name else {})
    kinds = {name: scope.fact.c[of].type for name, of in columns.items()}
    return {name: KeyString() if stream.name and isinstance(kind, String) else kind
            for name, kind in kinds.items()}


def stage_sources(staging: Staging, stream: Stream, commits: list[sa.Row],
                  columns: Columns) -> Sources | None:
    """Stage the number of rows of each batch's source, and these columns of each row, the first of
    which are its id. Return None, with a note, if the source cannot be recounted."""
    try:
        parts = [(c.batch, _parts(_source(staging.engine, c, stream.side), stream.spec,
                                  staging.engine)) for c in commits if c.drain == Kind.BATCH]
        found = _stage(staging, columns, len(stream.ids), parts,
                       f"_{stream.name}" if stream.name else "")
    except CannotRecount as e:
        staging.reserve(f"The source was not counted again: {e}. Rows read are checked "
                             "against the ledger only, and stream ids for duplicates only.")
        return None
    keys = list(columns)[len(stream.ids):]
    if found.ids is not None and keys:
        staging.index(found.ids, *stream.keys)
    return found


def read_tuples(engine: sa.Engine, stream: StreamSpec, commits: list[sa.Row], columns: Columns,
                side: int | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (batch, rows of its source) with these columns, the first of which are the stream's id.
    Raises CannotRecount."""
    names = tuple(columns)
    for c in commits:
        if c.drain == Kind.BATCH:
            for part in _parts(_source(engine, c, side), stream, engine):
                yield from ((c.batch, found) for _, found in part.read(names))


def _stage(staging: Staging, columns: Columns, ids: int, parts: list[tuple[int, list[Part]]],
           side: str) -> Sources:
    counts = staging.table(f"sources{side}", Column("batch", BigInteger), Column("source", Text),
                           Column("rows_in_source", BigInteger))
    names = tuple(columns)
    places = staging.table(f"places{side}", Column("place", BigInteger),
                           Column("path", LongString()))
    tuples = staging.table(f"ids{side}", Column("quality_batch", BigInteger),
                           Column("quality_place", BigInteger),
                           *(Column(quoted(name), kind) for name, kind in columns.items()),
                           Column("quality_id", KeyString())) if ids else None
    counted = []
    for batch, each in parts:
        rows = 0
        for number, part in enumerate(each):
            for n, found in part.read(names):
                rows += n
                if tuples is not None and len(found):
                    with staging.engine.begin() as connection:
                        bulk_insert(connection, tuples, with_stream_id(
                            batch, found, ids, arrow_schema(tuples), number))
        counted.append((batch, _label(each), rows))
    staging.insert(counts, counted)
    staging.insert(places, ((batch * PLACES + number, part.label) for batch, each in parts
                            for number, part in enumerate(each)))
    if tuples is not None:
        staging.index(tuples, *names[:ids])
        staging.index(tuples, "quality_id")
    return Sources(counts, tuples, places)


def _source(engine: sa.Engine, commit: sa.Row, side: int | None) -> dict[str, Any]:
    """Return the ``source_offsets`` of a stream, with the paths of the batch's files."""
    parts = parts_of(json.loads(commit.source_offsets))
    offsets: dict[str, Any] = parts[side or 0]
    if (count := offsets.get("files")) is None:
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


def _parts(offsets: dict[str, Any], stream: StreamSpec, engine: sa.Engine) -> list[Part]:
    """Return the parts of the source that a batch read: one for each file, labelled with its path,
    or a single one."""
    if "files" not in offsets:
        return [_part(offsets, stream, engine)]
    return [replace(_part(offsets | {"files": [file]}, stream, engine), label=file)
            for file in offsets["files"]]


def _label(parts: list[Part]) -> str:
    names = [Path(part.label).name for part in parts]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _part(offsets: dict[str, Any], stream: StreamSpec, engine: sa.Engine) -> Part:
    """Return the part of the source that ``load_commits.source_offsets`` describes. Raises
    CannotRecount if it cannot be read again."""
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
    # imported only here: it imports Spark, which files do not need
    from semistream.streaming.sources.registry import find_source

    return find_source(stream.model_copy(update={"format": kind or stream.format})).recount(
        offsets, engine)


def with_stream_id(batch: int, found: pa.RecordBatch, ids: int, schema: pa.Schema, file: int = 0,
                   whole: bool = False) -> pa.Table:
    """Return the rows that have an id, with quality_id, quality_batch and quality_place, in
    ``schema``.

    file: its number in the batch; whole: keep only rows all of whose columns can be read. A column
    that the source does not give again is null.
    """
    names = found.schema.names[:ids]
    for name in names:
        found = found.filter(found.column(name).is_valid())
    found = _readable(found, schema, len(found.schema) if whole else ids)
    rows = pa.table([*map(shorten, found.columns), stream_ids(found, names),
                     *(pa.repeat(pa.scalar(n, pa.int64()), len(found))
                       for n in (batch, batch * PLACES + file))],
                    names=[*found.schema.names, "quality_id", "quality_batch", "quality_place"])
    given = [rows[f.name] if f.name in rows.column_names else pa.nulls(len(found), f.type)
             for f in schema]
    return pa.table(given, names=schema.names)


def _readable(found: pa.RecordBatch, schema: pa.Schema, deciding: int) -> pa.RecordBatch:
    """Return the rows whose first ``deciding`` values can be converted to the warehouse's types, in
    these types. Other values that cannot be converted are null."""
    from semistream.files.convert import cast_cells

    exact = (found.schema.metadata or {}) == FOUND_TYPES
    columns, wrong = [], list[int]()
    for name, column in zip(found.schema.names, found.columns, strict=True):
        kind = schema.field(name).type
        # a database's times have no zone, but texts of times may
        timed = pa.types.is_timestamp(kind) and pa.types.is_string(column.type)
        cast, bad = cast_cells(column, pa.timestamp("us", "UTC") if timed else kind,
                               exact and not timed)
        columns.append(cast.cast(kind))
        wrong += bad.tolist() if len(columns) <= deciding else []
    rows = pa.record_batch(columns, names=found.schema.names)
    return rows.take(pa.array(np.delete(np.arange(len(rows)), wrong))) if wrong else rows


def ids_of_file(file: Path, stream: StreamSpec,
                engine: sa.Engine) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (rows, their ids) of one file, as for the file of a batch. Raises CannotRecount."""
    yield from _part({"format": stream.format, "files": [str(file)]}, stream,
                     engine).read(stream.id)


def _local(file: str) -> Path:
    if "://" in file:
        raise CannotRecount(f"{file} is not on a file system here")
    path = Path(file)
    try:
        there = path.is_file()
    except OSError as e:
        raise CannotRecount(f"{path} cannot be looked at ({e.strerror or e})") from None
    if not there:
        raise CannotRecount(f"the source file {path} is gone")
    return path


def _readable_file(file: Path, *arguments: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    try:
        yield from read_ids(file, *arguments)
    except (pa.ArrowException, OSError, SemistreamError) as e:
        raise CannotRecount(f"{file} cannot be read ({e})") from None


def read_ids(file: Path, kind: str | None, stream: StreamSpec,
             ids: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (rows, some of their columns) piece by piece, read as the load reads the file. A line
    that is no row, or whose columns cannot be read, is only counted. The columns of text files are
    texts."""
    # imported only here: they import Numba, which other checks do not need
    from semistream.files.opening import SOURCES, read_files
    from semistream.streaming.sources.reader import reading_of

    if kind not in SOURCES:
        raise CannotRecount(f"files of the format {kind} cannot be read again; those that can are "
                            f"{', '.join(SOURCES)}")
    if stream.mark is not None and kind != "parquet":
        raise CannotRecount(f"rows that are punctuations are not told apart in {kind} files")
    if not file.stat().st_size:
        return
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
    source.only(there or found[:1])  # without a column the rows could not be counted
    for chunk in source.read(file):
        rows = chunk.rows
        if stream.mark is not None:
            rows = rows.filter(_is_tuple(rows.column(stream.mark)))
        rows = rows.select([n for n in there if n in ids])
        if kind != "parquet" and stream.declared is None:
            rows = rows.replace_schema_metadata(FOUND_TYPES)
        yield rows.num_rows + len(chunk.rejected), rows


def _is_tuple(marks: pa.Array) -> pa.Array:
    """Return whether each row is a tuple and not a punctuation; see
    ``stream_joins.sources.PunctuationRows``."""
    marked = marks if pa.types.is_boolean(marks.type) else pc.not_equal(marks, "")
    return pc.invert(pc.fill_null(marked, False))
