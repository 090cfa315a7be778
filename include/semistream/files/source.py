"""The reader of data files as Arrow batches, a block at a time. Malformed rows are set apart, as
text.

This one reader serves the console, dimensions, a load's tasks and its proof.
"""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from lzma import LZMAError
from lzma import open as lzma_open
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.errors import ConfigError, SemistreamError
from semistream.files.convert import cast_cells, cast_rows, prepared_cells

BLOCK = 4 << 20  # bytes of text parsed at a time
SAMPLE = 16 << 20  # bytes from which types are inferred, of all files together
SAMPLED_FILES = 1000  # most files from which types are inferred
LEAST_SAMPLE = 16 << 10  # least bytes of each of these files
PACKED = {b"\x1f\x8b": ("gzip", ".gz"), b"BZh": ("bzip2", ".bz2"),
          b"\x28\xb5\x2f\xfd": ("Zstandard", ".zst"), b"\xfd7zXZ\0": ("xz", ".xz"),
          b"\x04\x22\x4d\x18": ("LZ4", ".lz4")}  # by the first bytes
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
# after "BZh" and a digit: the mark of a block, and that of an empty file
BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")
BOM = b"\xef\xbb\xbf"


class Rejected(NamedTuple):
    """A row that could not be read: its text, the reason, and its position.

    line: number in the file, from 1; in a Parquet file the row's number; id: the row's identity, if
    it can be read (see ``FileSource.identify``).
    """

    text: str
    detail: str
    file: str = ""
    line: int = 0
    id: str | None = None

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line:,}"


class Chunk(NamedTuple):
    """A chunk of a source. rows: in the source's schema; lines: int64[rows], the line of each, as
    in ``Rejected``."""

    rows: pa.RecordBatch
    rejected: list[Rejected]
    lines: np.ndarray = np.zeros(0, np.int64)


class Raw(NamedTuple):
    """Rows in the file's own types, rejected rows, the text of each row (None: it has none), and
    its line, int64[rows].

    unlike: by column, the positions, int64[k], of cells of another kind than the column.
    """

    rows: pa.RecordBatch
    rejected: list[Rejected]
    text: Callable[[int], str] | None
    lines: np.ndarray
    unlike: Mapping[str, np.ndarray] = {}


@dataclass(frozen=True)
class Reading:
    """The way in which text files are written. Empty strings stand for the defaults: a comma, or a
    tab in .tsv files; a quote doubled inside quotes; UTF-8.

    null_values: cells that mean null besides an empty one; formats: of columns with a declared
    format, also in Parquet files.
    """

    null_values: tuple[str, ...] = ()
    delimiter: str = ""
    quote: str = '"'
    escape: str = ""
    encoding: str = ""
    header: bool = True
    formats: Mapping[str, ColumnFormat] = field(default_factory=dict)


class FileSource(ABC):
    """A data file, or several of the same columns.

    schema: a column without any value has the type null until ``settle`` gives it one.
    """

    def __init__(self, side: str, paths: Sequence[Path], types: Mapping[str, pa.DataType],
                 reading: Reading, schema: pa.Schema | None = None):
        """Open the files. types: declared types of columns; schema: of all columns, if it need not
        be inferred."""
        self.side, self.paths, self.reading = side, list(paths), reading
        self.bytes_total, self.bytes_done = sum(p.stat().st_size for p in paths), 0
        self.notes: list[str] = []  # remarks for the user on the inferred types
        # fields that the schema lacks, with the number of their values
        self.ignored: Counter[str] = Counter()
        self.told = frozenset(types)  # columns whose types were declared
        self.loaded = False  # whether values go to a warehouse, which knows the years 1 to 9999
        # a function that returns the identities of rows, as texts, from these columns
        self.id_columns: Sequence[str] = ()
        self.identify: Callable[[pa.RecordBatch], pa.Array] | None = None
        if schema is None:
            self.schema = self._found()
            unknown = [c for c in types if c not in self.schema.names]
            if unknown:
                raise ConfigError("types", f"must name columns of the {side}", unknown[0],
                                  f"It has: {', '.join(self.schema.names)}.")
        else:
            self.schema = schema
        self.schema = pa.schema([f.with_type(types.get(f.name, f.type)) for f in self.schema])

    schema: pa.Schema

    def settle(self, types: Mapping[str, pa.DataType], leave: Sequence[str] = ()) -> None:
        """Give types to the columns whose type is unknown: string by default. Columns in `leave`
        stay unknown."""
        self.schema = pa.schema([f.with_type(types.get(f.name, pa.string()))
                                 if pa.types.is_null(f.type) and f.name not in leave
                                 else f for f in self.schema])

    def add_columns(self, names: Sequence[str]) -> None:
        """Add columns that a file without rows could not show."""
        for name in names:
            self.schema = self.schema.append(pa.field(name, pa.null()))

    def only(self, columns: Sequence[str]) -> None:
        """Read only these columns. A row need not fit the types of other columns."""
        self.schema = pa.schema([self.schema.field(c) for c in columns])

    def read_as(self, schema: pa.Schema, told: Iterable[str] = ()) -> None:
        """Use the types of another schema in the place of the inferred ones. told: columns whose
        types were declared."""
        self.schema = pa.schema([f.with_type(schema.field(f.name).type) if f.name in schema.names
                                 else f for f in self.schema])
        self.told = frozenset(told)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows, in order. May be called again."""
        done = 0
        for path in self.paths:
            yield from self.read(path, done)
            done += path.stat().st_size
            self.bytes_done = done

    def read(self, path: Path, done: int = 0) -> Iterator[Chunk]:
        """Read one file. done: bytes of the files before it. Raises ConfigError for a file with
        other columns, SemistreamError for one that cannot be read; both name the file."""
        for raw in self._read(path, done):
            yield self._typed(path, raw)

    @abstractmethod
    def columns(self, path: Path) -> list[str] | None:
        """Return the columns that a file has; None if the file does not say. Raises ConfigError for
        a file that cannot be read in this way."""

    @abstractmethod
    def _found(self) -> pa.Schema:
        """Infer the schema from a sample of all files."""

    @abstractmethod
    def _read(self, path: Path, done: int) -> Iterator[Raw]:
        """Yield rows in the file's own types, with the rejected rows."""

    def _typed(self, path: Path, raw: Raw) -> Chunk:
        exact, formats = set(self.schema.names) - self.told, self.reading.formats
        strict = exact.union(n for n, form in formats.items() if form.notation)
        rows, wrong = cast_rows(raw.rows.select(self.schema.names), self.schema, exact,
                                {n: raw.unlike.get(n) for n in strict}, formats)
        if self.loaded and (beyond := beyond_calendar(rows)):
            kept = np.delete(np.arange(raw.rows.num_rows), list(wrong))
            wrong = dict(sorted((wrong | {int(kept[i]): why for i, why in beyond.items()}).items()))
            rows = rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), list(beyond))))
        text = raw.text or (lambda i: row_text(raw.rows, i))
        ids = self._ids(raw, list(wrong)) if wrong else []
        rejected = [Rejected(text(i), why, str(path), int(raw.lines[i]), id_)
                    for (i, why), id_ in zip(wrong.items(), ids, strict=True)]
        lines = np.delete(raw.lines, list(wrong)) if wrong else raw.lines
        return Chunk(rows, sorted(raw.rejected + rejected, key=lambda r: r.line), lines)

    def _ids(self, raw: Raw, places: list[int]) -> list[str | None]:
        """Return the identities of the rows at these positions, None for one that cannot be
        read."""
        if self.identify is None or not self.id_columns:
            return [None] * len(places)
        rows = raw.rows.select(self.id_columns).take(pa.array(places, pa.int64()))
        formats = self.reading.formats
        cells = [cast_cells(prepared_cells(name, column, formats.get(name))[0],
                            self.schema.field(name).type, name not in self.told)[0]
                 for name, column in zip(self.id_columns, rows.columns, strict=True)]
        found: list[str | None] = self.identify(
            pa.RecordBatch.from_arrays(cells, list(self.id_columns))).to_pylist()
        return found

    def _samples(self) -> Iterator[tuple[Path, int]]:
        """Yield the files from which types are inferred, each with the number of bytes to read."""
        step = max(len(self.paths) / SAMPLED_FILES, 1)
        chosen = [self.paths[int(i * step)] for i in range(int(len(self.paths) / step))]
        left = SAMPLE
        for i, path in enumerate(chosen):
            share = max(left // (len(chosen) - i), min(LEAST_SAMPLE, SAMPLE))
            yield path, share
            left -= min(share, path.stat().st_size)

    def _blocks(self, path: Path, done: int) -> Generator[tuple[bytes, bool], int, None]:
        """Yield blocks of the file's bytes, in UTF-8. The consumer sends back how many of them it
        has parsed. The last block is (rest, True)."""
        held, encoding = b"", self.reading.encoding
        decoder = codecs.getincrementaldecoder(encoding)() if encoding else None
        try:
            with open_text(path) as (raw, stream):
                start = True
                while block := stream.read(BLOCK):
                    if start and decoder is None:
                        check_start(self.side, path, block)
                    start = False
                    self.bytes_done = done + raw.tell()
                    data = held + (decoder.decode(block).encode() if decoder else block)
                    consumed = yield data, False
                    held = data[consumed:]
                yield held + (decoder.decode(b"", True).encode() if decoder else b""), True
        except (OSError, EOFError, LZMAError) as e:
            raise SemistreamError(f"{path} cannot be read: {e}") from None
        except UnicodeDecodeError as e:
            raise ConfigError(self.side, f"must be text in {encoding}", str(path), str(e)) from None


@contextmanager
def open_text(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a text file that may be compressed. Return (the file as stored, the decompressed
    stream)."""
    if path.suffix.lower() == ".xz":
        with open(path, "rb") as raw, lzma_open(raw) as stream:
            yield raw, stream
        return
    codec = CODECS.get(path.suffix.lower())
    with pa.OSFile(str(path)) as raw:
        if codec is None:
            yield raw, raw
            return
        with pa.CompressedInputStream(raw, codec) as stream:
            yield raw, stream


def check_columns(side: str, path: Path, names: Sequence[str], wanted: Sequence[str],
                  remedy: str = "") -> None:
    """Check that two lists of columns are the same, in any order. Raises ConfigError otherwise."""
    if set(names) != set(wanted):
        lacking, new = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
        found = (lacking and f"it lacks {', '.join(lacking)}",
                 new and f"it has {', '.join(new)} besides")
        what = "; ".join(part for part in found if part)
        raise ConfigError(side, "must have the same columns in every file", f"{path}: {what}",
                          f"The first file has: {', '.join(wanted)}. {remedy}".strip())


def check_start(side: str, path: Path, block: bytes) -> None:
    """Check the first bytes of a file. Raises ConfigError if they are not UTF-8 text."""
    for magic, (what, ending) in PACKED.items():
        if block.startswith(magic) and (magic != b"BZh" or block[4:10] in BZIP2):
            raise ConfigError(side, f"must be text, and this is compressed with {what}", str(path),
                              f"Let its name end in {ending}.")
    if block[:2] in (b"\xff\xfe",
                     b"\xfe\xff") or (b"\0" in block[:4] and b"\0" * 4 not in block[:16]):
        raise ConfigError(side, "must be text in UTF-8, and this is UTF-16", str(path),
                          "Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT.")
    # a column may be called PAR1, but text has no control characters after that
    if block.startswith(b"PAR1") and any(b < 9 or 13 < b < 32 for b in block[4:12]):
        raise ConfigError(side, "must be text, and this is Parquet", str(path),
                          "Name it as what it is.")
    if block.startswith(b"PK\3\4"):
        raise ConfigError(side, "must be text, and this is a ZIP archive or a spreadsheet",
                          str(path), "Export it as CSV.")


def row_text(rows: pa.RecordBatch, i: int) -> str:
    """Return a row as JSON."""
    cells = {name: _cell(column[i]) for name, column in zip(rows.schema.names, rows.columns,
                                                           strict=True)}
    return json.dumps(cells, default=str, ensure_ascii=False)


def _cell(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except (ValueError, OverflowError):  # a time that Python does not have
        return str(cell.cast(pa.string()))


def beyond_calendar(rows: pa.RecordBatch) -> dict[int, str]:
    """Return the reason for each row with a time outside of the warehouses' calendar, by
    position."""
    out: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
            continue
        days = pa.types.is_date(column.type)
        zone = None if days else column.type.tz
        limits = [pa.scalar(day if days else datetime.combine(day, of),
                            pa.date32() if days else pa.timestamp("us", zone))
                  for day, of in ((date.min, time.min), (date.max, time.max))]
        beyond = pc.or_(pc.less(column, limits[0]), pc.greater(column, limits[1]))
        for i in pc.indices_nonzero(pc.fill_null(beyond, False)).to_pylist():
            out.setdefault(i, f"{name}: {_cell(column[i])} is not in the years 1 to 9999")
    return out


def decode(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
