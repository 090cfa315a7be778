"""Detection of how a user's files are written, from some of their rows: the delimiter and encoding
of CSV, unusual formats of dates and numbers, and the types of the columns."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.ddl import type_name
from semistream.errors import ConfigError
from semistream.files.convert import (
    DIGITS,
    NULL_LIKE,
    cast_cells,
    cast_rows,
    prepared_cells,
    readable,
)
from semistream.files.formats import prepared
from semistream.files.inference import SampledCells
from semistream.files.opening import FORMATS, open_source, read_files
from semistream.files.source import FileSource, Rejected
from semistream.files.text_source import open_text, plain_suffix
from semistream.gathering import as_batch

HEAD = 256 << 10  # bytes from which delimiter and encoding are found
LINES = 200  # most of their lines that are examined
DELIMITERS = ",;\t|"
EVEN = 0.9  # share of the lines that have as many cells as the header
FITTING = 0.99  # share of a column's cells that a format must fit
SOME = 0.05  # share of the cells that a format must fit to be worth a remark
TRIED = 300  # distinct cells with which formats are tried first
MOST_FILES = 64  # files of which rows are read
LEGACY = "cp1252"  # the encoding of files that are not UTF-8
DATES = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d.%m.%y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%Y-%m-%d",
)
CLOCKS = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
TIMES = tuple(ColumnFormat(time=day + clock) for day in DATES for clock in CLOCKS)
OFFSET = r"\d ?([+-]\d\d:?\d\d|Z)$"  # of a time from UTC
WITH_OFFSET = tuple(
    ColumnFormat(time=day + clock + zone)
    for day in DATES
    for clock in CLOCKS[1:]
    for zone in ("%z", " %z")
)
# the types that cells have without a format, the narrowest first
PLAIN_TYPES = (pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
LISTED_NAMES = 3  # names of a header that a remark shows
ISO = "%Y-%m-%d"  # read without a format
NUMBERS = tuple(
    ColumnFormat.model_validate({"decimal": decimal, "thousands": thousands})
    for decimal, thousands in ((",", ""), *map(tuple, (",.", ", ", ",'", ".,", ".'", ". ")))
)
# for each decimal sign: numbers that show that the sign is one, and no separator of thousands
DECIMAL_SIGN = {
    ",": r"^[^,]*,(\d{1,2}|\d{4,})\D*$|\.\d{3}(,|$)|^\D*0,|\d{4},",
    ".": r",\d{3}\.|,\d{3},|['\s]\d{3}\.|^\D*\d{1,3}['\s]\d{3}\D*$",
}
AROUND = r"^(?P<before>[^\d+\-.,]*)[+\-]?\d[\d.,' \x{a0}\x{202f}]*?\s*(?P<behind>[^\d.,' ]*)$"


@dataclass(frozen=True)
class DetectedFile:
    """A data file or directory, and how to read it.

    options, formats: as a job declares them; rows: some of the rows, in the detected types, spread
    over the files; rejected: rows of this sample that cannot be read; whole: whether the sample has
    all rows; notes: remarks for the user, by column; retyped: whether a column has another type
    than was detected.
    """

    path: Path
    kind: str
    options: dict[str, str]
    formats: dict[str, ColumnFormat]
    rows: pa.Table
    rejected: tuple[Rejected, ...]
    about: int
    whole: bool
    texts: pa.Table | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    retyped: bool = False

    @property
    def name(self) -> str:
        return self.path.name.split(".")[0] or self.path.parent.name

    @cached_property
    def columns(self) -> list[str]:
        return list(self.rows.schema.names)

    @property
    def header(self) -> str:
        """A remark if the header of a CSV file looks like data; otherwise ""."""
        return header_note(self.columns) if self.kind == "csv" else ""

    def written(self, column: str) -> pa.Array:
        """Return a column's values as texts: in CSV as the file has them, otherwise in the usual
        notation."""
        of = self.texts if self.texts is not None else self.rows
        return readable(of.column(column).combine_chunks())

    def key(self, column: str) -> pa.Array:
        """Return a column as texts that can be compared with another file's. Numbers and texts are
        as the file has them; dates and times are in the usual notation."""
        values = self.rows.column(column).combine_chunks()
        plain = pa.types.is_string(values.type) or pa.types.is_integer(values.type)
        return self.written(column) if plain else readable(values)

    def with_type(self, column: str, kind: pa.DataType) -> DetectedFile:
        """Return the file with a column that is read as another type: as texts, which a key with
        leading zeros needs, or as the integers that all of its texts are."""
        at, values = self.columns.index(column), self.written(column)
        if not pa.types.is_string(kind):
            values = pc.utf8_trim_whitespace(values).cast(kind)
        return replace(
            self,
            rows=self.rows.set_column(at, pa.field(column, kind), pa.chunked_array([values])),
            formats={k: f for k, f in self.formats.items() if k != column},
            retyped=True,
        )

    def with_few_unfit(self, keyed: Container[str]) -> DetectedFile:
        """Return the file with the types that FITTING of a column's cells fit, where a few others
        made a column of a CSV file a text. Rows with these cells are rejected. keyed: columns that
        keep their types, as each of their texts may be a key."""
        types, notes = dict[str, pa.DataType](), dict(self.notes)
        for of in self.rows.schema if self.texts is not None else ():
            if pa.types.is_string(of.type) and of.name not in keyed:
                cells = self.rows.column(of.name).combine_chunks()
                if (found := _plain_type(cells)) is not None:
                    types[of.name], few = found
                    notes[of.name] = (
                        f"{len(few):,} of {len(cells):,} cells are no {type_name(found[0])}, the "
                        f"first {few[0].as_py()!r}: their rows are unparsable, unless the column "
                        "is a STRING"
                    )
        if self.texts is None or not types:
            return self
        schema = pa.schema([f.with_type(types.get(f.name, f.type)) for f in self.rows.schema])
        rows, wrong = cast_rows(as_batch(self.rows), schema, types)
        keep = np.ones(self.rows.num_rows, bool)
        keep[list(wrong)] = False
        return replace(
            self,
            rows=pa.Table.from_batches([rows]),
            texts=self.texts.filter(pa.array(keep)),
            rejected=(
                *self.rejected,
                *(Rejected("", why, str(self.path), i) for i, why in wrong.items()),
            ),
            notes=notes,
        )

    def with_fixed_point(self, keyed: Container[str]) -> DetectedFile:
        """Return the file with the types that suit the fractions of a CSV file: decimals for
        fixed-point numbers, and doubles for others, unless a double would change some of them.
        keyed: columns that keep their types."""
        rows = self.rows
        for at, of in enumerate(rows.schema if self.texts is not None else ()):
            form = self.formats.get(of.name)
            fraction = pa.types.is_floating(of.type) or pa.types.is_decimal(of.type)
            if not fraction or of.name in keyed or (form is not None and form.percent):
                continue
            texts, _ = prepared_cells(of.name, self.written(of.name), form)
            cells = SampledCells(texts)
            if scale := cells.fixed_point():
                kind = pa.decimal128(DIGITS, scale)
            elif cells.fits_double():
                kind = pa.float64()
            else:
                continue
            values, _ = cast_cells(texts, kind)
            rows = rows.set_column(at, pa.field(of.name, kind), pa.chunked_array([values]))
        return replace(self, rows=rows)


def detect(path: Path, side: str, most_rows: int, most_bytes: int) -> DetectedFile:
    """Detect how a file, or the files of a directory, are written, and read some rows of them.

    side: the input's name in errors; most_rows, most_bytes: limits on the rows that are read.
    Raises ConfigError for a file that cannot be read.
    """
    first = _first(path, side)
    kind = kind_of(path, side)
    options = _dialect(first) if kind == "csv" else {}
    plain = open_source(side, path, kind=kind, options=options)
    plain.assign_types()
    if kind != "csv":
        found = sampled(_as_loaded(plain), most_rows, most_bytes)
        formats, notes = _formats(found.rows, {}, False)
        if formats:
            plain = open_source(side, path, kind=kind, formats=formats)
            plain.assign_types()
            found = sampled(_as_loaded(plain), most_rows, most_bytes)
        return DetectedFile(path, kind, options, formats, *found, notes=notes)
    as_text = pa.schema([(name, pa.string()) for name in plain.schema.names])
    raw = read_files(side, plain.paths, kind, plain.reading, as_text, as_text.names)
    texts, unread, about, whole = sampled(raw, most_rows, most_bytes)
    types = {f.name: f.type for f in plain.schema}
    formats, notes = _formats(texts, types, options.get("sep") == ";")
    # the formats decide types
    source = open_source(side, path, kind=kind, options=options, formats=formats)
    source.assign_types()
    typed, wrong = _cast(source, texts)
    keep = pa.array(~np.isin(np.arange(texts.num_rows), [row.line for row in wrong]))
    return DetectedFile(
        path,
        kind,
        options,
        formats,
        typed,
        (*unread, *wrong),
        about,
        whole,
        texts.filter(keep),
        {n.split(" ")[2]: n for n in source.notes} | notes,
    )


def _as_loaded(source: FileSource) -> FileSource:
    """Return a source with the types that a load gives to long texts and times, so that their
    values are compared, and rows with times that cannot be loaded are rejected."""

    def kind(of: pa.DataType) -> pa.DataType:
        if pa.types.is_large_string(of) or pa.types.is_string_view(of):
            return pa.string()
        if pa.types.is_timestamp(of):
            return pa.timestamp("us", of.tz)
        return pa.time64("us") if pa.types.is_time(of) else of

    source.read_as(pa.schema([f.with_type(kind(f.type)) for f in source.schema]))
    source.loaded = True
    return source


class Sample(NamedTuple):
    """Some rows of a source. rejected: rows of the sample that cannot be read; about: the estimated
    number of rows of the source; whole: whether the sample has all rows."""

    rows: pa.Table
    rejected: tuple[Rejected, ...]
    about: int
    whole: bool

    @property
    def read(self) -> int:
        return self.rows.num_rows + len(self.rejected)


def sampled(source: FileSource, most_rows: int, most_bytes: int) -> Sample:
    """Read a sample of a source's rows: equally many from each file, or from some files if there
    are many. most_rows, most_bytes: limits on the sample."""
    step = max(len(source.paths) / MOST_FILES, 1)
    paths = [source.paths[int(i * step)] for i in range(int(len(source.paths) / step))]
    whole, taken, rejected = len(paths) == len(source.paths), list[pa.RecordBatch](), []
    kept = size = passed = passed_bytes = 0
    for number, path in enumerate(paths):
        files = len(paths) - number
        rows_left, bytes_left = (most_rows - kept) // files, (most_bytes - size) // files
        ended = True
        for chunk in source.read(path):
            passed += chunk.rows.num_rows + len(chunk.rejected)
            part = chunk.rows.slice(0, rows_left)
            if bytes_left < part.nbytes:
                part = part.slice(0, max(part.num_rows * bytes_left // part.nbytes, 1))
            cut = part.num_rows < chunk.rows.num_rows
            last = chunk.lines[part.num_rows - 1] if cut and part.num_rows else 0
            rejected += [r for r in chunk.rejected if not cut or r.line < last]
            taken.append(part)
            kept, size = kept + part.num_rows, size + part.nbytes
            rows_left, bytes_left = rows_left - part.num_rows, bytes_left - part.nbytes
            if cut or rows_left <= 0 or bytes_left <= 0:
                ended = False
                break
        passed_bytes += (
            path.stat().st_size if ended else min(source.bytes_done, path.stat().st_size)
        )
        whole = whole and ended
    rows = pa.Table.from_batches(taken, source.schema)
    about = kept + len(rejected)
    if not whole:
        about = max(round(passed * source.bytes_total / max(passed_bytes, 1)), about)
    return Sample(rows, tuple(rejected), about, whole)


def kind_of(path: Path, side: str) -> str:
    """Return the format of a file, or of the files of a directory. Raises ConfigError if there is
    no data file."""
    return FORMATS[plain_suffix(_first(path, side))]


def header_note(names: Sequence[str]) -> str:
    """Return a remark if the names in the header of a CSV file look like data: some are numbers,
    dates or times, or there is no name; otherwise ""."""
    texts = pa.array(names, pa.string())
    odd = np.array([name == f"column_{i + 1}" for i, name in enumerate(names)], bool)
    for kind in (pa.float64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        cells, _ = cast_cells(texts, kind)
        odd |= cells.is_valid().to_numpy(zero_copy_only=False)
    for form in (*TIMES, ColumnFormat(decimal=",", thousands=".")):
        odd |= _fits(texts, form)
    if not odd.any():
        return ""
    shown = ", ".join(repr(names[i]) for i in np.flatnonzero(odd)[:LISTED_NAMES].tolist())
    return (
        f"the first line looks like data, and is taken for the header: {shown}. If it is a row, "
        "write a line with the names of the columns above it"
    )


def _first(path: Path, side: str) -> Path:
    """Return the first data file of a path. Raises ConfigError if there is none."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        if file.is_file() and plain_suffix(file) in FORMATS and file.name[0] not in "._":
            return file
    raise ConfigError(
        side,
        "must be a data file that exists, or a directory of such files",
        str(path),
        f"Names end in {', '.join(FORMATS)}; of text files also packed, as .gz.",
    )


def _dialect(path: Path) -> dict[str, str]:
    """Return the reading options of a CSV file that differ from the defaults."""
    with open_text(path) as (_, stream):
        head = bytes(stream.read(HEAD))
    options, encoding = dict[str, str](), "utf-8"
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        options["encoding"] = encoding = "utf-16"
    else:
        try:
            head.decode()
        except UnicodeDecodeError as e:
            if e.start < len(head) - 3:  # and not a character that is cut off at the end
                options["encoding"] = encoding = LEGACY
    text = head.decode(encoding, errors="replace").lstrip("\ufeff")
    if text.startswith("sep="):
        return options
    lines = text.splitlines()[:LINES] if len(head) < HEAD else text.splitlines()[:LINES][:-1]

    def cells(delimiter: str) -> tuple[bool, int]:
        counts = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        even = np.mean([n == counts[0] for n in counts]) if counts else 0
        return bool(even >= EVEN), counts[0] if counts else 0

    best = max(DELIMITERS, key=cells)
    usual = "\t" if plain_suffix(path) == ".tsv" else ","
    if best != usual and cells(best)[1] > 1:
        options["sep"] = best
    return options


def _cast(source: FileSource, texts: pa.Table) -> tuple[pa.Table, list[Rejected]]:
    """Cast rows of texts to the source's types. Return the cast rows, and the rows that do not fit.
    The line of a rejected row is its position in ``texts``."""
    exact = set(source.schema.names) - source.declared
    cast, wrong = cast_rows(as_batch(texts), source.schema, exact, formats=source.reading.formats)
    return pa.Table.from_batches([cast]), [
        Rejected("", why, str(source.paths[0]), i) for i, why in wrong.items()
    ]


def _plain_type(texts: pa.Array) -> tuple[pa.DataType, pa.Array] | None:
    """Return the type without a format that FITTING of a column's texts fit, and the other texts,
    of which there are some; None if there is no such type. Integers that begin with zeros, or are
    too long, are codes: with one, the column has no numbers."""
    for kind in PLAIN_TYPES:
        few = texts[:TRIED]
        if len(cast_cells(few, kind, True)[1]) > (1 - EVEN) * len(few):
            continue
        others = texts.take(pa.array(cast_cells(texts, kind, True)[1]))
        codes = pc.any(pc.match_substring_regex(others, r"^[+-]?\d+$")).as_py()
        most = (1 - FITTING) * (len(texts) - texts.null_count)
        if 0 < len(others) <= most and (pa.types.is_temporal(kind) or not codes):
            return kind, others
    return None


def _formats(
    rows: pa.Table, types: Mapping[str, pa.DataType], semicolons: bool
) -> tuple[dict[str, ColumnFormat], dict[str, str]]:
    """Detect the columns that have a special format. Return the formats and remarks, both by
    column. types: the types that are inferred without a format; semicolons: whether the file's
    delimiter is a semicolon."""
    formats, notes = dict[str, ColumnFormat](), dict[str, str]()
    for name in rows.schema.names:
        kind = types.get(name, rows.schema.field(name).type)
        if not pa.types.is_string(kind):
            continue
        texts = pc.utf8_trim_whitespace(rows.column(name).combine_chunks())
        texts = texts.filter(pc.and_(texts.is_valid(), pc.invert(pc.is_in(texts, NULL_LIKE))))
        counts = texts.value_counts()
        cells, weights = counts.field(0), counts.field(1).to_numpy()
        if len(cells):
            form, note = _format(cells, weights, semicolons)
            formats |= {name: form} if form else {}
            notes |= {name: note} if note else {}
    return formats, notes


def _format(
    cells: pa.Array, weights: np.ndarray, semicolons: bool
) -> tuple[ColumnFormat | None, str]:
    """Return the format of a column's distinct cells, and a remark. weights: how often each cell
    occurs, int64[n]."""
    if float(np.asarray(pc.match_substring_regex(cells, r"\d")).mean()) < SOME:
        return None, ""
    few = cells[:TRIED]
    zoned = WITH_OFFSET if pc.any(pc.match_substring_regex(few, OFFSET)).as_py() else ()
    forms = itertools.chain(zoned, TIMES, _numbers(few))
    found = [(form, _fits(few, form).mean()) for form in forms]
    found = [(form, share) for form, share in found if share >= SOME]
    shares = {
        form: float(weights[_fits(cells, form)].sum() / weights.sum())
        for form, _ in sorted(found, key=lambda of: -of[1])[:4]
    }
    if not shares:
        return None, ""
    best, share = max(shares.items(), key=lambda of: (of[1], -_order(of[0])))
    if best.number:
        shown = pc.match_substring_regex(cells, DECIMAL_SIGN[best.point])
        plain = best.strip and not best.thousands and best.point == "."
        sure = plain or pc.any(shown).as_py() or (semicolons and best.point == ",")
        if share < FITTING or not sure:
            return None, ""
        return best, ""
    said = f"{share:.0%} of the values are written as {best.time}"
    if share < FITTING:
        odd = cells.filter(pa.array(~_fits(cells, best)))
        return None, f"{said}, and others otherwise, as {odd[0].as_py()!r}: a text as it is"
    also = next((f for f, s in shares.items() if f != best and s == share and f.time), None)
    if best.time.startswith(ISO):
        return None, ""
    return best, f"every value fits {also.time}, too" if also else ""


def _order(form: ColumnFormat) -> int:
    return TIMES.index(form) if form in TIMES else len(TIMES)


def _fits(cells: pa.Array, form: ColumnFormat) -> np.ndarray:
    """Return which cells fit a format, bool[n]."""
    fits = np.ones(len(cells), bool)
    fits[prepared(cells, form, NULL_LIKE)[1]] = False
    return fits


def _numbers(cells: pa.Array) -> Iterator[ColumnFormat]:
    """Yield the number formats that cells may have, each with the signs around the numbers."""
    if not pc.any(pc.match_substring_regex(cells, r"\d[,']\d|\d [\d€$£]|[€$£%]")).as_py():
        return
    signs = {sign for which in ("before", "behind") for sign in _signs(cells, which)}
    percent = signs == {"%"}
    strip: Sequence[str] = sorted(signs - {"%"}) if not percent else ()
    if len(signs) > 3 or ("%" in signs and not percent):
        return
    plain = (ColumnFormat(decimal="."),) if signs else ()
    for form in (*NUMBERS, *plain):
        yield form.model_copy(update={"strip": tuple(strip), "percent": percent})


def _signs(cells: pa.Array, which: str) -> list[str]:
    found = pc.extract_regex(cells, AROUND).drop_null()
    texts = pc.unique(pc.utf8_trim_whitespace(found.field(which))) if len(found) else []
    return [text for text in (t.as_py() for t in texts) if text]
