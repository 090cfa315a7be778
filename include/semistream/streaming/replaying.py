"""``semistream replay``: open tuples of ``unmatched`` are staged for a resolving load, either
unchanged or with corrections from a file.

A file has a row for each tuple: ``load_id`` and ``load_row``, which identify its row in
``unmatched``, and the tuple's columns, or in ``text`` a text that could not be parsed. If the
stream has a column with one of these names, the name begins with "_" in the file. Other columns are
not read.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Table,
    false,
    or_,
    select,
    tuple_,
)

from semistream.column_format import ColumnFormat
from semistream.errors import ConfigError
from semistream.files.convert import is_bytes
from semistream.files.opening import open_source
from semistream.files.parquet_source import ParquetSource
from semistream.job import StreamSpec
from semistream.reasons import Reason
from semistream.streaming.resolving import Staging, typed_tuples
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sources.file_reader import READ, FileReader, find_reader
from semistream.streaming.spool import TEXT, unmatched_rows
from semistream.warehouse.bulk import fetch
from semistream.warehouse.ids import has_long_id, stream_ids
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.records import LoadRecord
from semistream.warehouse.resolution import (
    AT_ONCE,
    ORIGINS,
    TUPLES,
    Unmatched,
    all_open,
    by_key,
    open_rows,
)
from semistream.warehouse.schema import unmatched
from semistream.warehouse.tables import quoted
from semistream.warehouse.types import python_rows, sql_type, stored_schema

TEXT_COLUMN = "text"  # column of a file: the text of a tuple that could not be parsed
NAMED_ROWS = 5  # rows of a file that an error names
HEXADECIMAL = "^([0-9A-Fa-f]{2})*$"
JOINED = (Reason.NO_MATCH, Reason.NULL_KEY)


@dataclass
class Taken:
    """The numbers of tuples in a replay, by result. staged: tuples that are joined again; already:
    tuples that had been resolved before; unread: texts that still cannot be parsed; refused: tuples
    whose ids are too long; named: the ids that a file gives to tuples whose texts told none,
    batches with the columns of ``ORIGINS`` and the id columns."""

    staged: int = 0
    already: int = 0
    unread: int = 0
    refused: int = 0
    named: list[pa.RecordBatch] = field(default_factory=list)


@dataclass(frozen=True)
class Replayed:
    """The result of a replay. resolved: the number of tuples whose result has changed, which are
    now facts, or unmatched for another reason; kept: the number of tuples with the same result;
    already, unread, refused: see ``Taken``; filled: the number of facts, of any load, whose
    inferred members were filled in."""

    app: str
    resolved: int
    facts: int
    moved: int
    kept: int
    already: int
    unread: int
    refused: int
    filled: int = 0

    @classmethod
    def of(cls, app: str, taken: Taken, loads: Sequence[LoadRecord]) -> Replayed:
        """Return the result of a replay. loads: the records of the resolving load, empty if there
        was no load."""
        resolved = sum(load.resolved for load in loads)
        return cls(
            app,
            resolved,
            sum(load.matched for load in loads),
            sum(load.unmatched for load in loads),
            taken.staged - resolved,
            taken.already,
            taken.unread,
            taken.refused,
        )

    def __str__(self) -> str:
        lines = [
            f"{self.app}: {self.facts:,} unmatched tuples became facts",
            *(
                f"{count:,} {what}"
                for count, what in (
                    (self.moved, "are unmatched for another reason now"),
                    (self.kept, "have no match still, and stay in unmatched"),
                    (self.unread, "cannot be parsed still"),
                    (self.refused, "have an id that is too long"),
                    (self.already, "had been resolved before"),
                    (self.filled, "facts with an inferred member were filled in"),
                )
                if count
            ),
        ]
        return "\n".join(lines)


def replayable(*, left: bool) -> ColumnElement[bool]:
    """Return the condition for rows of ``unmatched`` whose tuples can be joined again. left:
    whether the join is a left one, so that tuples without a match are already facts."""
    u = unmatched.c
    return or_(u.reason == Reason.UNPARSABLE, false() if left else u.reason.in_(JOINED))


def stage_open(
    connection: Connection, number: int, spec: StreamSpec, staging: Staging, *, left: bool
) -> Taken:
    """Stage all open tuples of an app that can be joined again. number: the app's number; left: see
    ``replayable``."""
    taken = Taken()
    for batch in all_open(connection, number, replayable(left=left)):
        rows = [Unmatched(**row) for row in batch.to_pylist()]
        kept = [_kept(row) for row in rows]
        _stage(rows, kept, [None] * len(rows), spec, staging, taken)
    return taken


def stage_file(
    connection: Connection,
    number: int,
    spec: StreamSpec,
    file: Path,
    staging: Staging,
    sink: Sink,
    app: str,
    *,
    left: bool,
) -> Taken:
    """Stage the tuples of a file. sink: the sink that has the app's facts. Raises ConfigError for a
    row that identifies no row of the app in ``unmatched``, that cannot be joined again, whose id
    differs, or that gives a tuple without an id the id of another one."""
    taken, seen = Taken(), [np.empty((0, 2), np.int64)]
    for keys, tuples, texts in _read(file, staging.stream, spec.formats):
        seen.append(np.array(keys, np.int64))
        known = by_key(connection, number, keys)
        if absent := [key for key in keys if key not in known]:
            raise _refusal(file, "must have rows of unmatched that the app has", absent)
        rows = [known[key] for key in keys]
        allowed = (Reason.UNPARSABLE, *(() if left else JOINED))
        if wrong := [k for k, row in zip(keys, rows, strict=True) if row.reason not in allowed]:
            raise _refusal(
                file,
                f"must have tuples that are unmatched for {', '.join(allowed)}; those of a left "
                "join are facts already, and an id that is too long cannot be mended here",
                wrong,
            )
        is_open = [row.resolved_by is None for row in rows]
        taken.already += is_open.count(False)
        tuples = _with_empty_texts(file, tuples, rows)
        read = [
            _text(row, text, tuples.slice(n, 1))
            for n, (row, text) in enumerate(zip(rows, texts, strict=True))
        ]
        some = [n for n, ok in enumerate(is_open) if ok]
        _stage(
            [rows[n] for n in some],
            [read[n] for n in some],
            [tuples.slice(n, 1) if read[n] is None else None for n in some],
            spec,
            staging,
            taken,
            file,
        )
    different, times = np.unique(np.concatenate(seen), axis=0, return_counts=True)
    if len(twice := different[times > 1]):
        raise _refusal(file, "must have each row of unmatched once", [*map(tuple, twice.tolist())])
    if taken.named:
        _check_named(connection, number, spec.id, file, pa.concat_batches(taken.named), sink, app)
    return taken


def _kept(row: Unmatched) -> tuple[str, str] | None:
    """Return the text and the file of a tuple that could not be parsed; None for any other
    tuple."""
    if row.reason != Reason.UNPARSABLE:
        return None
    values = json.loads(row.tuple)
    return values[TEXT], values.get("file", "")


def _text(row: Unmatched, text: str | None, tuple_: pa.RecordBatch) -> tuple[str, str] | None:
    """Return the text of a tuple and the file from which it originally came; None for a tuple that
    is given by its columns. text: the text in the corrected file, or None."""
    kept = _kept(row)
    if text:
        return text, kept[1] if kept else ""
    given = any(not column.null_count for column in tuple_.columns)
    return None if given else kept


def _stage(
    rows: list[Unmatched],
    texts: Sequence[tuple[str, str] | None],
    given: Sequence[pa.RecordBatch | None],
    spec: StreamSpec,
    staging: Staging,
    taken: Taken,
    file: Path | None = None,
) -> None:
    """Stage tuples. texts: (text, file from which it came) of tuples that must be parsed, None for
    others; given: corrected tuples, None for others. A tuple with neither is taken from its row of
    ``unmatched``."""
    stream, found = staging.stream, list[pa.RecordBatch | None](given)
    parsed = _parsed([t for t in texts if t is not None], spec, stream)
    for n, text in enumerate(texts):
        if text is not None:
            found[n] = next(parsed)
    same, wrong = typed_tuples(
        [row.tuple if row.reason != Reason.UNPARSABLE else "{}" for row in rows], stream
    )
    for n, row in enumerate(rows):
        if found[n] is None and row.reason != Reason.UNPARSABLE and n not in wrong:
            found[n] = same.slice(n, 1)
    there = [n for n, tuple_ in enumerate(found) if tuple_ is not None]
    taken.unread += len(rows) - len(there)
    if not there:
        return
    tuples = pa.concat_batches([tuple_ for tuple_ in found if tuple_ is not None])
    keep = [rows[n] for n in there]
    _check_ids(keep, tuples, spec.id, file)
    long = has_long_id(tuples, spec.id)
    taken.refused += pc.sum(long).as_py() or 0
    tuples, short = tuples.filter(pc.invert(long)), pc.invert(long).to_pylist()
    keep = [row for row, ok in zip(keep, short, strict=True) if ok]
    origins = pa.RecordBatch.from_pylist([row._asdict() for row in keep], TUPLES)
    mended = [texts[n] != _kept(rows[n]) for n, ok in zip(there, short, strict=True) if ok]
    named = pc.and_(pa.array(mended, pa.bool_()), origins.column("stream_id").is_null())
    if spec.id and pc.any(named).as_py():
        ids = [*origins.select(ORIGINS.names).columns, *tuples.select(list(spec.id)).columns]
        taken.named.append(pa.record_batch(ids, names=[*ORIGINS.names, *spec.id]).filter(named))
    before = same.take(pa.array([n for n, ok in zip(there, short, strict=True) if ok], pa.int64()))
    if not keep:
        return
    reasons = pa.repeat("", len(keep))
    now, was = (unmatched_rows(t, reasons, spec.id)["tuple"] for t in (tuples, before))
    edited = [
        row.reason == Reason.UNPARSABLE or changed
        for row, changed in zip(keep, pc.not_equal(now, was).to_pylist(), strict=True)
    ]
    staging.add(origins, tuples, pa.array(edited))
    taken.staged += len(keep)


def _check_ids(
    rows: Sequence[Unmatched], tuples: pa.RecordBatch, ids: Sequence[str], file: Path | None
) -> None:
    """Raise ConfigError for a tuple whose id differs from the id of its row, if the row has one."""
    found = stream_ids(tuples, ids).to_pylist()
    other = [
        (row.load_id, row.load_row)
        for row, now in zip(rows, found, strict=True)
        if row.stream_id is not None and row.stream_id != now
    ]
    if other:
        raise _refusal(
            file or Path("unmatched"),
            f"must have tuples with the ids that they had, {', '.join(ids)}, by which the proof "
            "knows them",
            other,
        )


def _check_named(
    connection: Connection,
    number: int,
    names: Sequence[str],
    file: Path,
    named: pa.RecordBatch,
    sink: Sink,
    app: str,
) -> None:
    """Raise ConfigError for an id that a file gives to several tuples, or that a fact or another
    open tuple has. named: see ``Taken``."""
    tuples = named.select(list(names))
    ids = stream_ids(tuples, names).to_pylist()
    times = Counter(ids)
    known = {of for of, count in times.items() if count > 1}
    known |= _facts_ids(connection, number, tuples, sink, app).intersection(ids)
    open_ids = select(unmatched.c.stream_id).where(open_rows(number))
    for first in range(0, len(ids), AT_ONCE):
        some = unmatched.c.stream_id.in_(filter(None, ids[first : first + AT_ONCE]))
        known.update(connection.scalars(open_ids.where(some)))
    keys = zip(*(named.column(name).to_pylist() for name in ORIGINS.names), strict=True)
    if taken := [key for key, of in zip(keys, ids, strict=True) if of is not None and of in known]:
        raise _refusal(
            file,
            f"must give tuples whose texts tell no id one ({', '.join(names)}) that no other tuple "
            "has",
            taken,
        )


def _facts_ids(
    connection: Connection, number: int, tuples: pa.RecordBatch, sink: Sink, app: str
) -> set[str | None]:
    """Return the ids of an app's facts, at least those that are among the ids of these tuples."""
    names, found = tuples.schema.names, set[str | None]()
    if (stored := sink.stored(app)) is not None:
        for _, read in stored.files:
            for rows in read():
                found.update(stream_ids(rows.select(names).cast(tuples.schema), names).to_pylist())
        return found
    schema = stored_schema(tuples.schema)
    columns = [Column(quoted(f.name), sql_type(f, True)) for f in schema]
    load = Column("load_id", BigInteger)
    Table(sink.warehouse.fact, MetaData(), *columns, load)
    for first in range(0, tuples.num_rows, AT_ONCE):
        some = python_rows(tuples.slice(first, AT_ONCE).cast(schema))
        query = select(*columns).where(
            load.between(*app_loads(number)),
            tuple_(*columns).in_([tuple(row.values()) for row in some]),
        )
        for rows in fetch(connection, query, schema):
            found.update(stream_ids(rows.cast(tuples.schema), names).to_pylist())
    return found


def _refusal(file: Path, constraint: str, keys: Sequence[tuple[int, int]]) -> ConfigError:
    shown = ", ".join(f"load_id {load}, load_row {row}" for load, row in keys[:NAMED_ROWS])
    more = f" and {len(keys) - NAMED_ROWS:,} more" if len(keys) > NAMED_ROWS else ""
    return ConfigError(
        str(file),
        constraint,
        f"{shown}{more}",
        "Take these rows out, or write the file anew: semistream unmatched APP --out FILE. "
        "Nothing of the file was loaded.",
    )


# ---- a file


def _read(
    file: Path, stream: pa.Schema, declared: Mapping[str, ColumnFormat]
) -> Iterator[tuple[list[tuple[int, int]], pa.RecordBatch, list[str | None]]]:
    """Yield the rows of a file: keys of rows of ``unmatched``, tuples, and texts, None where the
    file has no text. declared: formats of the stream's columns; a corrected key is converted to its
    normal form. Raises ConfigError."""
    normal = {
        name: ColumnFormat(**of.normal_form) for name, of in declared.items() if of.normal_form
    }
    load_id, load_row, text = (free_name(n, stream) for n in ("load_id", "load_row", TEXT_COLUMN))
    kinds = pa.schema([(load_id, pa.int64()), (load_row, pa.int32()), *stream, (text, pa.string())])
    needed = [name for name in kinds.names if name != text]
    there = open_source("replay", file).schema.names
    if lacking := [name for name in needed if name not in there]:
        raise ConfigError(
            "replay",
            f"must have the columns {', '.join(needed)}",
            f"{file} lacks {', '.join(lacking)}",
            "Write it with semistream unmatched APP --out FILE, and mend that.",
        )
    source = open_source("replay", file, formats=normal)
    has_text = text in there
    written = kinds if isinstance(source, ParquetSource) else _hexadecimal(kinds)
    source.read_as(written, kinds.names)
    source.only([*needed, *([text] if has_text else [])])
    for chunk in source.chunks():
        if chunk.rejected:
            first = chunk.rejected[0]
            raise ConfigError(
                "replay",
                "must have values of the stream's types in every row",
                f"{first.place}: {first.detail}",
                "Mend the row, or take it out. Nothing of the file was loaded.",
            )
        rows, wrong = _with_bytes(chunk.rows, kinds)
        if wrong:
            raise ConfigError(
                "replay",
                "must have bytes as hexadecimal digits, two for each",
                f"{file}, line {chunk.lines[next(iter(wrong))]:,}: {next(iter(wrong.values()))}",
                "Mend the row, or take it out. Nothing of the file was loaded.",
            )
        for part in pa.Table.from_batches([rows]).to_batches(max_chunksize=1_000):
            keys = list(
                zip(*(part.column(n).to_pylist() for n in (load_id, load_row)), strict=True)
            )
            if nameless := [key for key in keys if None in key]:
                raise _refusal(file, "must name a row of unmatched in each of its rows", nameless)
            texts = part.column(text).to_pylist() if has_text else [None] * part.num_rows
            yield keys, part.select(stream.names).cast(stream), texts


def _hexadecimal(schema: pa.Schema) -> pa.Schema:
    """Return the types of columns in JSON and CSV, where bytes are hexadecimal digits."""
    return pa.schema([f.with_type(pa.string()) if is_bytes(f.type) else f for f in schema])


def _with_bytes(rows: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return rows with the bytes that hexadecimal digits stand for, and by position what is no such
    text. schema: the types of these columns and of others. Columns that have bytes already stay."""
    columns, wrong = list[pa.Array](), dict[int, str]()
    schema = pa.schema([schema.field(name) for name in rows.schema.names])
    for of, column in zip(schema, rows.columns, strict=True):
        if is_bytes(of.type) and not is_bytes(column.type):
            good = pc.fill_null(pc.match_substring_regex(column, HEXADECIMAL), True)
            for i in pc.indices_nonzero(pc.invert(good)).to_pylist():
                wrong.setdefault(i, f"{of.name}: {column[i].as_py()!r}")
            texts = pc.if_else(good, column, None).to_pylist()
            column = pa.array([None if t is None else bytes.fromhex(t) for t in texts], of.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema), wrong


def free_name(name: str, stream: pa.Schema) -> str:
    """Return the name of a column beside those of a stream, in a file of its tuples."""
    while name in stream.names:
        name = f"_{name}"
    return name


def _with_empty_texts(
    file: Path, tuples: pa.RecordBatch, rows: Sequence[Unmatched]
) -> pa.RecordBatch:
    """Replace nulls of tuples by empty texts where the original tuples in `rows` had them, because
    a CSV file does not distinguish the two. Tuples of other files are returned unchanged."""
    if ".parquet" in file.suffixes or ".jsonl" in file.suffixes or ".json" in file.suffixes:
        return tuples
    was = [json.loads(row.tuple) for row in rows]
    columns = []
    for of, column in zip(tuples.schema, tuples.columns, strict=True):
        if pa.types.is_string(of.type) and column.null_count:
            empty = pa.array([kept.get(of.name) == "" for kept in was])
            both = pc.and_(empty, column.is_null())
            column = pc.if_else(both, pa.scalar("", of.type), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=tuples.schema)


# ---- texts


def _parsed(
    texts: Sequence[tuple[str, str]], spec: StreamSpec, stream: pa.Schema
) -> Iterator[pa.RecordBatch | None]:
    """Yield the tuple of each text, as the stream's reader parses it; None for a text that still
    cannot be parsed. texts: (text, file from which it came)."""
    if not texts:
        return
    found: list[pa.RecordBatch | None] = [None] * len(texts)
    if spec.format in READ:
        reader = find_reader(spec, [], stream)
        if spec.format == "parquet":  # what did not fit is kept as JSON
            as_json = {"kind": "json", "schema": _hexadecimal(stream)}
            reader = FileReader(**vars(reader) | as_json)
        alone = [n for n, (text, _) in enumerate(texts) if "\n" in text or text.count('"') % 2]
        files: dict[str, list[int]] = {}
        for n, (_, file) in enumerate(texts):
            if n not in alone:
                files.setdefault(file, []).append(n)
        with TemporaryDirectory(prefix="semistream-") as directory:
            for numbers in [*files.values(), *([n] for n in alone)]:
                _parse(texts, numbers, reader, spec, Path(directory) / "texts", found)
    for parsed in found:
        read, wrong = (None, {}) if parsed is None else _with_bytes(parsed, stream)
        yield None if wrong else read


def _parse(
    texts: Sequence[tuple[str, str]],
    numbers: Sequence[int],
    reader: FileReader,
    spec: StreamSpec,
    copy: Path,
    found: list[pa.RecordBatch | None],
) -> None:
    """Parse some texts of one file, and put the tuples into ``found``. numbers: positions of the
    texts; either each text is a single line, or there is only one text."""
    options = {k.lower(): v for k, v in spec.all_options().items()}
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    header = b""
    with suppress(OSError):  # the file may be gone, and another one have the same columns
        header = header_of(Path(texts[numbers[0]][1]), spec.format, options)
    if not header and has_header(spec.format, options):
        separator = options.get("sep", options.get("delimiter", ","))
        header = separator.join(reader.schema.names).encode(encoding)
    lines = [t[0].encode(encoding, "replace") for t in (texts[n] for n in numbers)]
    copy.write_bytes(b"\n".join([*([header] if header else []), *lines, b""]))
    first = 1 + bool(header)
    for chunk in reader.open().read(copy):
        for row, line in enumerate(chunk.lines.tolist()):
            at = line - first if len(numbers) > 1 else 0
            if 0 <= at < len(numbers):
                # a text of more than one tuple counts as none
                again = found[numbers[at]] is not None
                found[numbers[at]] = None if again else chunk.rows.slice(row, 1)


def has_header(format_: str, options: Mapping[str, str]) -> bool:
    """Return whether files of this format have a first line that names the columns."""
    return format_ == "csv" and options.get("header", "true").lower() == "true"


def header_of(file: Path, format_: str, options: Mapping[str, str]) -> bytes:
    """Return the first line of a CSV file if it names the columns; otherwise b""."""
    if not has_header(format_, options):
        return b""
    with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as lines:
        return lines.readline().rstrip(b"\r\n")
