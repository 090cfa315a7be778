"""The reader of data files as Arrow batches, a block at a time. Malformed rows are set apart, as
text.

The console, dimensions, the tasks of a load and its proof all use this reader.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.errors import ConfigError, check_name
from semistream.files.convert import (
    cast_cells,
    cast_rows,
    json_text,
    plain,
    prepared_cells,
    time_text,
    without,
)

SAMPLE = 16 << 20  # bytes from which types are inferred, of all files together
SAMPLED_FILES = 1000  # most files from which types are inferred
LEAST_SAMPLE = 16 << 10  # least bytes of each of these files


Piece = TypeVar("Piece")


class Rejected(NamedTuple):
    """A row that could not be read: its text, the reason, and its position.

    line: the line's number in the file, from 1; in a Parquet file the row's number; id: the row's
    id columns as a text, if they can be read (see ``FileSource.identify``).
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
    """A chunk of a source. rows: rows in the source's schema; lines: int64[rows], the line of each
    row, as in ``Rejected``."""

    rows: pa.RecordBatch
    rejected: list[Rejected]
    lines: np.ndarray = np.zeros(0, np.int64)


class Raw(NamedTuple):
    """Rows in the types that the file stores.

    rejected: rows that could not be read even in these types; text: a function that returns the
    text of a row, None if the file has no text; lines: int64[rows], the line of each row; unlike:
    by column, the positions, int64[k], of JSON values of another kind than the column, such as a
    text among numbers.
    """

    rows: pa.RecordBatch
    rejected: list[Rejected]
    text: Callable[[int], str] | None
    lines: np.ndarray
    unlike: Mapping[str, np.ndarray] = {}


@dataclass(frozen=True)
class Reading:
    """The notation of text files. An empty string means the default: for the delimiter a comma, or
    a tab in .tsv files; for the escape character none, because a quote inside quotes is doubled;
    for the encoding UTF-8.

    null_values: cells that mean null, besides an empty one; formats: the declared formats by
    column, also for Parquet files.
    """

    null_values: tuple[str, ...] = ()
    delimiter: str = ""
    quote: str = '"'
    escape: str = ""
    encoding: str = ""
    header: bool = True
    formats: Mapping[str, ColumnFormat] = field(default_factory=dict)


class FileSource(ABC):
    """A data file, or several files with the same columns.

    schema: a column without any value has the type null until ``assign_types`` gives it a type.
    """

    def __init__(
        self,
        side: str,
        paths: Sequence[Path],
        types: Mapping[str, pa.DataType],
        reading: Reading,
        schema: pa.Schema | None = None,
    ):
        """Open the files. types: declared types of columns; schema: the whole schema, if it need
        not be inferred."""
        self.side, self.paths, self.reading = side, list(paths), reading
        self.bytes_total, self.bytes_done = sum(p.stat().st_size for p in paths), 0
        self.notes: list[str] = []  # remarks for the user on the inferred types
        # fields that the schema lacks, with the number of their values
        self.ignored: Counter[str] = Counter()
        self.declared = frozenset(types)  # columns whose types were not inferred
        self.loaded = False  # whether values go to a warehouse, which knows the years 1 to 9999
        # a function that returns the ids of rows, as texts, from these columns
        self.id_columns: Sequence[str] = ()
        self.identify: Callable[[pa.RecordBatch], pa.Array] | None = None
        if schema is None:
            self.schema = self._infer_schema()
            for column in types:
                check_name("types", f"must name columns of the {side}", column, self.schema.names)
        else:
            self.schema = schema
        self.schema = pa.schema([f.with_type(types.get(f.name, f.type)) for f in self.schema])

    def assign_types(self, types: Mapping[str, pa.DataType] | None = None) -> None:
        """Give types to the columns whose type is unknown, by default string."""
        self.schema = pa.schema(
            [
                f.with_type((types or {}).get(f.name, pa.string()))
                if pa.types.is_null(f.type)
                else f
                for f in self.schema
            ]
        )

    def only(self, columns: Sequence[str]) -> None:
        """Restrict the source to these columns. Rows are not rejected for their values in other
        columns."""
        self.schema = pa.schema([self.schema.field(c) for c in columns])

    def read_as(self, schema: pa.Schema, declared: Iterable[str] = ()) -> None:
        """Use the types of another schema instead of the inferred ones. declared: columns whose
        types in that schema were not inferred."""
        self.schema = pa.schema(
            [
                f.with_type(schema.field(f.name).type) if f.name in schema.names else f
                for f in self.schema
            ]
        )
        self.declared = frozenset(declared)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows, in order. This method may be called again."""
        done = 0
        for path in self.paths:
            yield from self.read(path, done)
            done += path.stat().st_size
            self.bytes_done = done

    def read(self, path: Path, done: int = 0) -> Iterator[Chunk]:
        """Read one file. done: bytes of the previous files. Raises ConfigError for a file with
        other columns, SemistreamError for a file that cannot be read; both name the file."""
        for raw in self._read(path, done):
            yield self._typed(path, raw)

    @abstractmethod
    def columns(self, path: Path) -> list[str] | None:
        """Return the columns that a file has; None if the file does not say. Raises ConfigError for
        a file that cannot be read in this way."""

    @abstractmethod
    def _infer_schema(self) -> pa.Schema:
        """Infer the schema from a sample of all files."""

    @abstractmethod
    def _read(self, path: Path, done: int) -> Iterator[Raw]:
        """Yield rows in the types that the file stores, with the rejected rows."""

    def _typed(self, path: Path, raw: Raw) -> Chunk:
        """Cast the rows to the schema's types. Rows that do not fit are rejected, with the
        reason."""
        exact, formats = set(self.schema.names) - self.declared, self.reading.formats
        strict = exact.union(n for n, form in formats.items() if form.notation)
        rows, wrong = cast_rows(
            raw.rows.select(self.schema.names),
            self.schema,
            exact,
            {n: raw.unlike.get(n) for n in strict},
            formats,
        )
        if self.loaded and (beyond := beyond_calendar(rows)):
            kept = np.delete(np.arange(raw.rows.num_rows), list(wrong))
            wrong = dict(sorted((wrong | {int(kept[i]): why for i, why in beyond.items()}).items()))
            rows = without(rows, beyond)
        text = raw.text or (lambda i: row_text(raw.rows, i))
        ids = self._ids(raw, list(wrong)) if wrong else []
        rejected = [
            Rejected(text(i), why, str(path), int(raw.lines[i]), id_)
            for (i, why), id_ in zip(wrong.items(), ids, strict=True)
        ]
        lines = np.delete(raw.lines, list(wrong)) if wrong else raw.lines
        return Chunk(rows, sorted(raw.rejected + rejected, key=lambda r: r.line), lines)

    def _ids(self, raw: Raw, positions: list[int]) -> list[str | None]:
        """Return the ids of the rows at these positions, in the form of ``identify``; None for a
        row whose id cannot be read."""
        if self.identify is None or not self.id_columns:
            return [None] * len(positions)
        rows = raw.rows.select(self.id_columns).take(pa.array(positions, pa.int64()))
        formats = self.reading.formats
        cells = [
            cast_cells(
                prepared_cells(name, column, formats.get(name))[0],
                self.schema.field(name).type,
                name not in self.declared,
            )[0]
            for name, column in zip(self.id_columns, rows.columns, strict=True)
        ]
        found: list[str | None] = self.identify(
            pa.RecordBatch.from_arrays(cells, list(self.id_columns))
        ).to_pylist()
        return found

    def _first_pieces(
        self, pieces: Callable[[Path], Iterable[Piece]], size: Callable[[Piece], int]
    ) -> list[Piece]:
        """Return the pieces from which types are inferred: the first pieces of each sampled file.
        pieces: a function that yields the pieces of a file; size: a function that returns the bytes
        of a piece."""
        found: list[Piece] = []
        for path, left in self._samples():
            for piece in pieces(path):
                found.append(piece)
                left -= size(piece)
                if left <= 0:
                    break
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


def check_columns(
    side: str, path: Path, names: Sequence[str], wanted: Sequence[str], remedy: str = ""
) -> None:
    """Check that two lists of columns are the same, in any order. Raises ConfigError otherwise."""
    if set(names) != set(wanted):
        lacking, new = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
        found = (
            lacking and f"it lacks {', '.join(lacking)}",
            new and f"it has {', '.join(new)} besides",
        )
        what = "; ".join(part for part in found if part)
        raise ConfigError(
            side,
            "must have the same columns in every file",
            f"{path}: {what}",
            f"The first file has: {', '.join(wanted)}. {remedy}".strip(),
        )


def row_text(rows: pa.RecordBatch, i: int) -> str:
    """Return a row as JSON, with bytes in hexadecimal digits."""
    cells = {
        name: plain(column[i]) for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }
    return json.dumps(cells, default=json_text, ensure_ascii=False)


def beyond_calendar(rows: pa.RecordBatch) -> dict[int, str]:
    """Find the rows with a date or timestamp outside of the years 1 to 9999, which a warehouse
    cannot store. Return the reason by the row's position."""
    out: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
            continue
        days = pa.types.is_date(column.type)
        zone = None if days else column.type.tz
        limits = [
            pa.scalar(
                day if days else datetime.combine(day, of),
                pa.date32() if days else pa.timestamp("us", zone),
            )
            for day, of in ((date.min, time.min), (date.max, time.max))
        ]
        beyond = pc.or_(pc.less(column, limits[0]), pc.greater(column, limits[1]))
        for i in pc.indices_nonzero(pc.fill_null(beyond, False)).to_pylist():
            out.setdefault(i, f"{name}: {time_text(column[i])} is not in the years 1 to 9999")
    return out
