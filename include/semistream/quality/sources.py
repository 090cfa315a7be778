"""The source counted again, without Spark: how many rows each batch should have read, and which
stream ids.

``load_commits.source_offsets`` says which part of the source a batch is (see ``warehouse.ledger``).
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Text, select

from semistream.config import SIDES, StreamSpec
from semistream.quality.staging import Sources, Staging
from semistream.source_files import open_parquet
from semistream.streaming.sources.base import CannotRecount, Part
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.ids import shorten, stream_ids
from semistream.warehouse.ledger import parts_of
from semistream.warehouse.schema import load_files
from semistream.warehouse.tables import arrow_schema
from semistream.warehouse.types import KeyString

ROWS = 100_000
Columns = Mapping[str, sa.types.TypeEngine]  # of a source, as the warehouse has them
SIGNED = re.compile(r'("(?:[^"\\]|\\.)*")|([+-]INF|\+Infinity)\b')  # a string, or such a number
# Ids of a text column are as they are written. A number that is a text is one to the warehouse's
# column of numbers.
AS_SPARK = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
FIELD = 1 << 28  # bytes: an unclosed quote makes one field of the rest of its file


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
    tuples = staging.table(f"ids{side}", Column("batch", BigInteger),
                           *(Column(name, kind) for name, kind in columns.items()),
                           Column("stream_id", KeyString())) if ids else None
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
        staging.index(tuples, "stream_id")
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
    kind, options = offsets.get("format"), {k.lower(): v for k, v in stream.all_options().items()}
    if "files" in offsets:
        files = [_local(f) for f in offsets["files"]]
        names = [f.name for f in files]
        label = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return Part(
            label, lambda ids: (piece for f in files
                                for piece in _readable_file(f, kind, stream, options, ids)))
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
                    names=[*found.schema.names, "stream_id", "batch"])
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
    except (pa.ArrowException, OSError, EOFError, zlib.error, csv.Error, UnicodeError) as e:
        raise CannotRecount(f"{file} cannot be read ({e})") from None


def read_ids(file: Path, kind: str | None, stream: StreamSpec, options: dict[str, str],
             ids: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(rows, their ids) piece by piece. A row whose ids cannot be read is counted and has none.
    ids: of Parquet files any columns; text files give the stream's id."""
    if stream.mark is not None and kind != "parquet":
        raise CannotRecount(f"rows that are punctuations are not told apart in {kind} files")
    if kind not in COUNTED:
        raise CannotRecount(f"files of the format {kind} cannot be read again; those that can are "
                            f"{', '.join(COUNTED)}")
    yield from COUNTED[kind](file, stream, options, ids)


def _parquet_ids(file: Path, stream: StreamSpec, _options: dict[str, str],
                 ids: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    parquet = open_parquet(file)
    if lacking := [i for i in ids if i not in parquet.schema_arrow.names]:
        raise CannotRecount(f"{file} has no column {lacking[0]}")
    marks = [] if stream.mark is None else [stream.mark]
    for batch in parquet.iter_batches(ROWS, columns=[*ids, *marks]):
        if marks:
            batch = batch.filter(_is_tuple(batch.column(marks[0]))).select(list(ids))
        yield len(batch), batch


def _csv_ids(file: Path, stream: StreamSpec, options: dict[str, str],
             _ids: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    return _pieces(_csv_rows(file, stream, options), stream.id)


def _json_ids(file: Path, stream: StreamSpec, _options: dict[str, str],
              _ids: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    return _pieces(_json_rows(file, stream), stream.id)


# the file formats (of ``config.FILE_FORMATS``) that can be counted again, and how
COUNTED = {"parquet": _parquet_ids, "csv": _csv_ids, "json": _json_ids}


def _is_tuple(marks: pa.Array) -> pa.Array:
    """Whether a row is a tuple and no punctuation; see ``stream_joins.sources.PunctuationRows``."""
    marked = marks if pa.types.is_boolean(marks.type) else pc.not_equal(marks, "")
    return pc.invert(pc.fill_null(marked, False))


def _pieces(rows: Iterator[tuple[Any, ...] | None],
            ids: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    count, found = 0, []
    for row in rows:
        count += 1
        if row is not None and None not in row:
            found.append(tuple(str(v) for v in row))
        if count == ROWS:
            yield count, _strings(found, ids)
            count, found = 0, []
    yield count, _strings(found, ids)


def _strings(rows: list[tuple[str, ...]], ids: tuple[str, ...]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(ids)
    return pa.record_batch([pa.array(c, pa.string()) for c in columns],
                           schema=pa.schema([(i, pa.string()) for i in ids]))


def _csv_rows(file: Path, stream: StreamSpec,
              options: dict[str, str]) -> Iterator[tuple[Any, ...] | None]:
    """Spark's options by their names. A row of the wrong width has no ids."""
    with _text(file, options.get("encoding", "utf-8-sig")) as f:
        separator = options.get("sep", options.get("delimiter", ","))
        quote = options.get("quote", '"') or None
        csv.field_size_limit(FIELD)
        reader = csv.reader(f, delimiter=separator, quotechar=quote)
        header = next(reader, []) if options.get("header", "true").lower() == "true" else []
        names = header or (stream.declared.names if stream.declared is not None else [])
        if lacking := [i for i in stream.id if i not in names]:
            raise CannotRecount(f"{file} has no column {lacking[0]}")
        places = [names.index(i) for i in stream.id]
        for row in reader:
            if row:
                yield tuple(row[p] or None for p in places) if len(row) == len(names) else None


def _json_rows(file: Path, stream: StreamSpec) -> Iterator[tuple[Any, ...] | None]:
    with _text(file, "utf-8-sig") as f:
        for line in f:
            if not line.strip():
                continue
            try:
                # Spark passes over what follows
                value, _ = AS_SPARK.raw_decode(_quoted(line.strip()))
            except (ValueError, RecursionError):
                yield None
                continue
            # and takes an array of objects for so many tuples
            objects = value if isinstance(value, list) else [value]
            for row in objects if all(isinstance(o, dict) for o in objects) else [{}]:
                yield tuple(row.get(i) for i in stream.id)


def _quoted(line: str) -> str:
    """Numbers that JSON does not have, but Spark reads, as texts."""
    return SIGNED.sub(lambda m: m[1] or f'"{m[2]}"',
                      line) if "INF" in line or "+I" in line else line


def _text(file: Path, encoding: str) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", newline="", encoding=encoding, errors="replace")
    return open(file, newline="", encoding=encoding, errors="replace")
