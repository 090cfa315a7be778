"""CSV, JSON lines and Parquet files read as Arrow batches, a block at a time; malformed rows come
out apart, as text."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq

from semistream.errors import ConfigError, SemistreamError
from semistream.files.convert import (
    cast_cells,
    cast_rows,
    deciding_cells,
    exponents,
    infer_time,
    infer_type,
    parse_type,
)
from semistream.files.records import count_lines, split_records
from semistream.source_files import open_parquet, parquet_batches

BLOCK = 4 << 20  # bytes of text parsed at a time
SAMPLE = 16 << 20  # bytes of text that types are found from
ROWS, BYTES = 65_536, 8_000_000  # of a Parquet file at a time, at most
FORMATS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".json": "json", ".jsonl": "json",
           ".ndjson": "json", ".parquet": "parquet", ".pq": "parquet"}
AS_WRITTEN = json.JSONDecoder(parse_float=str, parse_constant=str)  # fractions stay text
PACKED = {b"\x1f\x8b": ("gzip", ".gz"), b"BZh": ("bzip2", ".bz2"),
          b"\x28\xb5\x2f\xfd": ("Zstandard", ".zst"),
          b"\x04\x22\x4d\x18": ("LZ4", ".lz4")}  # by the first bytes
QUOTES = "Its quotes do not match."
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class Rejected(NamedTuple):
    """A row that could not be read: its text, why, and where it is.

    line: in the file, from 1; of a Parquet file the row.
    """

    text: str
    detail: str
    file: str = ""
    line: int = 0

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line:,}"


class Chunk(NamedTuple):
    rows: pa.RecordBatch  # in the source's schema
    rejected: list[Rejected]


class _Raw(NamedTuple):
    """Rows in the file's own types, what is no row, and of a row by its position its text (None:
    none of its own) and line."""

    rows: pa.RecordBatch
    rejected: list[Rejected]
    text: Callable[[int], str] | None
    line: Callable[[int], int]


class FileSource(ABC):
    """One data file, or a directory of files alike.

    schema: a column without any value has the type null until ``settle`` gives it one.
    """

    def __init__(self, side: str, paths: Sequence[Path], types: Mapping[str, pa.DataType]):
        self.side, self.paths = side, list(paths)
        self.bytes_total, self.bytes_done = sum(p.stat().st_size for p in paths), 0
        self.notes: list[str] = []  # what a user should know of the types found
        # fields that the schema does not have, with the number of their values
        self.ignored: Counter[str] = Counter()
        self._given = frozenset(types)  # columns whose types were given
        self._exact: frozenset[str] = frozenset()  # columns whose numbers must be kept as written
        self._prepare()
        unknown = [c for c in types if c not in self.schema.names]
        if unknown:
            raise ConfigError("types", f"must name columns of the {side}", unknown[0],
                              f"It has: {', '.join(self.schema.names)}.")
        self.schema = pa.schema([f.with_type(types.get(f.name, f.type)) for f in self.schema])
        self._exact -= set(types)

    schema: pa.Schema

    def settle(self, types: Mapping[str, pa.DataType], leave: Sequence[str] = ()) -> None:
        """Types for the columns whose own is not known: string where none is given, but those to
        leave are left."""
        self.schema = pa.schema([f.with_type(types.get(f.name, pa.string()))
                                 if pa.types.is_null(f.type) and f.name not in leave
                                 else f for f in self.schema])

    def add_columns(self, names: Sequence[str]) -> None:
        """Columns that a file without any row could not tell of."""
        for name in names:
            self.schema = self.schema.append(pa.field(name, pa.null()))

    def only(self, columns: Sequence[str]) -> None:
        """Give these columns, and no others; a row need not fit the types of others."""
        self.schema = pa.schema([self.schema.field(c) for c in columns])

    def read_as(self, schema: pa.Schema) -> None:
        """Types by name, in place of those found."""
        self.schema = pa.schema([f.with_type(schema.field(f.name).type) if f.name in schema.names
                                 else f for f in self.schema])
        self._exact -= set(schema.names)

    def chunks(self) -> Iterator[Chunk]:
        """All rows, in order; may be called again."""
        done = 0
        for path in self.paths:
            for raw in self._read(path, done):
                yield self._typed(path, raw)
            done += path.stat().st_size
            self.bytes_done = done

    @abstractmethod
    def _prepare(self) -> None:
        """Find the schema."""

    @abstractmethod
    def _read(self, path: Path, done: int) -> Iterator[_Raw]:
        """Rows in the file's own types, and the rows that are not rows."""

    def _typed(self, path: Path, raw: _Raw) -> Chunk:
        rows, wrong = cast_rows(raw.rows.select(self.schema.names), self.schema, self._exact)
        text = raw.text or (lambda i: row_text(raw.rows, i))
        return Chunk(rows, raw.rejected + [Rejected(text(i), why, str(path), raw.line(i))
                                           for i, why in wrong.items()])

    def _blocks(self, path: Path, done: int) -> Generator[tuple[bytes, bool], int, None]:
        """Blocks of the file's bytes; send back how many of them were understood. The last one is
        (rest, True)."""
        held, codec = b"", CODECS.get(path.suffix)
        try:
            with pa.OSFile(str(path)) as raw, (pa.CompressedInputStream(raw, codec) if codec
                                               else raw) as stream:
                start = True
                while block := stream.read(BLOCK):
                    if start:
                        _check_start(self.side, path, block)
                        start = False
                    self.bytes_done = done + raw.tell()
                    data = held + block
                    consumed = yield data, False
                    held = data[consumed:]
                yield held, True
        except OSError as e:
            raise SemistreamError(f"{path} cannot be read: {e}") from None


class CsvSource(FileSource):
    """Text with a header line. Types are found from the first rows; cells that do not fit theirs
    make the row a rejected one."""

    def __init__(self, side: str, paths: Sequence[Path], types: Mapping[str, pa.DataType],
                 null_values: Sequence[str], delimiter: str, default: str = ","):
        self.names: list[str] = []  # of the first file
        # share of the values of an integer column that are written with one
        self.exponents: dict[str, float] = {}
        self._asked = bool(delimiter)
        self._delimiter, self._null_values = delimiter or default, ["", *null_values]
        super().__init__(side, paths, types)

    def _prepare(self) -> None:
        samples, size = [], 0
        for path in self.paths:
            for raw in self._read(path, 0):
                samples.append(raw.rows)
                size += raw.rows.nbytes
                if size >= SAMPLE:
                    break
            if size >= SAMPLE:
                break
        if not self.names:
            raise ConfigError(self.side, "must have a header line with the names of its columns",
                              str(self.paths[0]), "The file is empty; was it written completely?")
        fields = []
        for i, name in enumerate(self.names):
            cells = self._text([b.column(i) for b in samples])
            kind = infer_type(cells)
            fields.append(pa.field(name, kind))
            self.exponents[name] = exponents(cells, kind)
            if why := deciding_cells(cells, kind):
                self.notes.append(f"{self.side} column {name} is read as {kind}, for {why}")
        self.schema, self._exact = pa.schema(fields), frozenset(self.names)

    @staticmethod
    def _text(columns: list[pa.Array]) -> pa.Array:
        return cast_cells(pa.concat_arrays(columns) if columns else pa.array([], pa.binary()),
                          pa.string())[0]

    def _read(self, path: Path, done: int) -> Iterator[_Raw]:
        blocks = self._blocks(path, done)
        data, final = next(blocks)
        names: list[str] = []
        lines = 0  # before the data
        while True:
            header = consumed = 0
            if not names:
                names, header = self._header(path, data, final)
            if names:
                consumed, item = self._parse(path, names, data, header, final, lines)
                lines += count_lines(np.frombuffer(data, np.uint8)[:consumed])
                yield item
            if final:
                return
            data, final = blocks.send(consumed)

    def _header(self, path: Path, data: bytes, final: bool) -> tuple[list[str], int]:
        """(the names of the file's columns, bytes of its header line); none while that is not
        complete, or there is none."""
        records = split_records(np.frombuffer(data, np.uint8), ord(self._delimiter), ord('"'),
                                final, False)
        if not len(records.starts):
            return [], 0
        start, end = records.starts[0], records.ends[0]
        text = data[start:end].decode("utf-8-sig", errors="surrogateescape")
        _check_header(self.side, path, text)
        names = [n or f"column_{i + 1}"
                 for i, n in enumerate(next(csv.reader([text], delimiter=self._delimiter)))]
        twice = [n for n, count in Counter(names).items() if count > 1]
        if twice or not records.fields[0]:
            raise _wrong_header(self.side, path, text,
                                f"Rename one of the columns {twice[0]!r}." if twice else QUOTES)
        if len(names) == 1 and not self._asked:
            _check_delimiter(path, text, self._delimiter)
        self.names = self.names or names
        _check_columns(self.side, path, names, self.names)
        return names, int(records.starts[1]) if len(records.starts) > 1 else records.consumed

    def _parse(self, path: Path, names: list[str], data: bytes, skip: int, final: bool,
               lines: int) -> tuple[int, _Raw]:
        array = np.frombuffer(data, np.uint8)[skip:]
        found = split_records(array, ord(self._delimiter), ord('"'), final, len(names) == 1)
        good = found.fields == len(names)
        wanted = f"fields in place of {len(names)}"

        def line(start: int) -> int:
            return lines + 1 + count_lines(np.frombuffer(data, np.uint8)[:start])

        rejected = [Rejected(_decode(data[skip + s:skip + e]), f"{fields} {wanted}" if fields
                             else "quotes do not match", str(path), line(skip + s))
                    for s, e, fields in zip(found.starts[~good],
                                            found.ends[~good], found.fields[~good], strict=True)]
        starts, ends = skip + found.starts[good], skip + found.ends[good]
        clean = pa.py_buffer(data)[skip:skip + found.consumed] if good.all() else \
            pa.py_buffer(b"\n".join(data[s:e] for s, e in zip(starts, ends, strict=True)) + b"\n")
        raw = self._arrow(names, clean, len(starts)).select(self.names)
        return skip + found.consumed, _Raw(raw, rejected,
                                           lambda i: _decode(data[starts[i]:ends[i]]),
                                           lambda i: line(starts[i]))

    def _arrow(self, names: list[str], text: pa.Buffer, rows: int) -> pa.RecordBatch:
        schema = pa.schema([(n, pa.binary()) for n in names])
        if not rows:
            return pa.RecordBatch.from_pylist([], schema)
        table = arrow_csv.read_csv(
            pa.BufferReader(text),
            arrow_csv.ReadOptions(column_names=names, use_threads=False,
                                  block_size=max(text.size + 1, 1024)),
            arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True,
                                   ignore_empty_lines=len(names) > 1),
            arrow_csv.ConvertOptions(column_types=schema, null_values=self._null_values,
                                     strings_can_be_null=True,
                                     quoted_strings_can_be_null=len(self._null_values) > 1))
        if table.num_rows != rows:
            raise SemistreamError(
                f"{rows} CSV records were read as {table.num_rows} rows; please report this.")
        return table.combine_chunks().to_batches()[0]


class JsonSource(FileSource):
    """One JSON object a line. Types are found from the first lines; later fields that these lack
    are ignored, and counted."""

    _told = False  # the types are not those found

    def _prepare(self) -> None:
        lines: list[bytes] = []
        size = 0
        for data, _ in chain.from_iterable(self._lines(path, 0) for path in self.paths):
            lines += data
            size += sum(map(len, data))
            if size >= SAMPLE:
                break
        if lines and lines[0].lstrip().startswith(b"["):
            raise ConfigError(self.side, "must have one JSON object a line",
                              lines[0][:60].decode(errors="replace"),
                              "Turn the array into lines, for instance: jq -c '.[]'.")
        tables: list[pa.Table] = []
        _halves(lines, lambda piece: arrow_json.read_json(*_json_input(piece)), tables, [])
        found: dict[str, pa.DataType] = {}
        for field in (f for t in tables for f in t.schema):
            found[field.name] = _wider(found.get(field.name, pa.null()), field.type)
        self._found = tuple(found)
        self._raw = pa.schema(
            [(n, pa.string() if pa.types.is_timestamp(k) else k) for n, k in found.items()])
        self.schema = self._raw
        times = [n for n, k in found.items() if pa.types.is_timestamp(k)]
        if times:
            options = arrow_json.ParseOptions(
                explicit_schema=pa.schema([(n, pa.string()) for n in times]),
                                              unexpected_field_behavior="ignore")
            samples: list[pa.Table] = []
            _halves(lines, lambda piece: arrow_json.read_json(*_json_input(piece), options),
                    samples, [])
            sample = pa.concat_tables(samples).combine_chunks()
            kinds = {n: infer_time(pa.concat_arrays(sample.column(n).chunks).drop_null())
                     for n in times}
            self.schema = pa.schema([f.with_type(kinds.get(f.name, f.type)) for f in self.schema])

    def settle(self, types: Mapping[str, pa.DataType], leave: Sequence[str] = ()) -> None:
        super().settle(types, leave)
        self._raw = pa.schema(
            [self.schema.field(f.name) if pa.types.is_null(f.type) else f for f in self._raw])

    def read_as(self, schema: pa.Schema) -> None:
        """Also columns that the first lines lack; a number that is a text fits a column of numbers,
        and the other way round."""
        more = [pa.field(f.name, f.type) for f in schema if f.name not in self.schema.names]
        super().read_as(schema)
        self.schema = pa.schema([*self.schema, *more])
        self._raw = pa.schema(
            [f.with_type(pa.string()) if pa.types.is_temporal(f.type) else f for f in self.schema])
        self._told = True

    def later_fields(self, wanted: Sequence[str]) -> list[str]:
        """Those wanted that only lines have which the types were not found from."""
        missing = set(wanted) - set(self._found)
        later: set[str] = set()
        if missing and self._found:
            marks = [json.dumps(n, ensure_ascii=a).encode() for n in missing for a in (True, False)]
            for lines, _ in chain.from_iterable(self._lines(path, 0) for path in self.paths):
                for line in lines:
                    if any(mark in line for mark in marks):
                        later |= missing & _keys(line)
                if later == missing:
                    break
        return [n for n in wanted if n in later]

    def add_columns(self, names: Sequence[str]) -> None:
        super().add_columns(names)
        for name in names:
            self._raw = self._raw.append(pa.field(name, pa.null()))

    def _read(self, path: Path, done: int) -> Iterator[_Raw]:
        # what no line of the file has had
        lacking = set(self._found) - self._given if len(self.paths) > 1 else set()
        read = 0
        for lines, numbers in self._lines(path, done):
            rows, bad = self._parse(lines)
            read += rows.num_rows
            lacking -= {n for n in lacking
                        if rows.column(n).null_count < rows.num_rows} if lacking else set()
            kept = [i for i in range(len(lines)) if i not in bad] if bad else range(len(lines))
            rejected = [Rejected(_decode(lines[i]), why, str(path), numbers[i])
                        for i, why in bad.items()]
            yield _Raw(
                rows, rejected,
                lambda i, lines=lines, kept=kept: _decode(lines[kept[i]]),  # type: ignore[misc]
                lambda i, numbers=numbers, kept=kept: numbers[kept[i]])  # type: ignore[misc]
            for line in lines if lacking else ():  # null may be written
                lacking -= _keys(line)
                if not lacking:
                    break
        if read and lacking:
            _check_columns(self.side, path, [n for n in self._found if n not in lacking],
                           self._found, "Name the types of columns that a file may lack.")

    def _lines(self, path: Path, done: int) -> Iterator[tuple[list[bytes], Sequence[int]]]:
        """Lines that are not blank, and their numbers in the file."""
        first = 1
        blocks = self._blocks(path, done)
        data, final = next(blocks)
        while True:
            end = len(data) if final else data.rfind(b"\n") + 1
            lines = data[:end].removeprefix(b"\xef\xbb\xbf").split(b"\n")
            numbers = [first + i for i, line in enumerate(lines) if line.strip()]
            first += len(lines) - 1
            yield [line for line in lines if line.strip()], numbers
            if final:
                return
            data, final = blocks.send(end)

    def _parse(self, lines: list[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """(the rows of the good lines, why each of the others is not one)."""
        def read(piece: list[bytes]) -> pa.Table:
            source, options = _json_input(piece)
            table = arrow_json.read_json(source, options, arrow_json.ParseOptions(
                explicit_schema=self._raw, newlines_in_values=False,
                unexpected_field_behavior="infer"))
            if table.num_rows != len(piece):
                raise pa.ArrowInvalid("not one JSON object")
            for name in table.schema.names[len(self._raw):]:
                self.ignored[name] += table.num_rows - table.column(name).null_count
            return table.select(self._raw.names)

        tables: list[pa.Table] = []
        bad: list[tuple[int, str]] = []
        try:
            tables += [read(lines)] if lines else []
        except (pa.ArrowInvalid, UnicodeDecodeError):
            if self._told:
                return self._parse_texts(lines)
            _halves(lines, read, tables, bad)
        table = pa.concat_tables(tables) if tables else self._raw.empty_table()
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], self._raw), dict(bad)


    def _parse_texts(self, lines: list[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """The same one by one, with all values as text; fractions as they are written."""
        rows: list[dict[str, str | None]] = []
        bad: dict[int, str] = {}
        for i, line in enumerate(lines):
            try:
                row = {k: v if v is None or isinstance(v, str) else
                       json.dumps(json.loads(line)[k] if isinstance(v, (list, dict)) else v)
                       for k, v in AS_WRITTEN.decode(line.decode()).items()}
                "".join(filter(None, row.values())).encode()  # half a surrogate pair is no text
            except (ValueError, AttributeError, RecursionError):
                bad[i] = "not one JSON object"
                continue
            rows.append(row)
        return pa.RecordBatch.from_pylist(
            rows, pa.schema([(n, pa.string()) for n in self._raw.names])), bad


class ParquetSource(FileSource):
    """Parquet files, in their own types."""

    def _prepare(self) -> None:
        try:
            schemas = [pq.read_schema(p).remove_metadata() for p in self.paths]
        except (OSError, pa.ArrowInvalid) as e:
            raise ConfigError(self.side, "must be readable Parquet", str(self.paths[0]),
                              str(e)) from None
        for path, schema in zip(self.paths, schemas, strict=True):
            _check_columns(self.side, path, schema.names, schemas[0].names)
        self.schema = pa.schema([pa.field(f.name, f.type) for f in schemas[0]])

    def _read(self, path: Path, done: int) -> Iterator[_Raw]:
        size, read = path.stat().st_size, 0
        try:
            with open_parquet(path) as file:
                for batch in parquet_batches(file, self.schema.names, ROWS, BYTES,
                                             threads=True):
                    read += batch.num_rows
                    self.bytes_done = done + size * read // file.metadata.num_rows
                    before = read - batch.num_rows
                    yield _Raw(batch.select(self.schema.names), [], None, lambda i,
                               before=before: before + i + 1)  # type: ignore[misc]
        except (OSError, pa.ArrowInvalid) as e:
            raise SemistreamError(f"{path} cannot be read: {e}") from None


def open_source(side: str, path: Path, *, kind: str = "", types: Mapping[str, str] | None = None,
                null_values: Sequence[str] = (), delimiter: str = "") -> FileSource:
    """A data file or directory. side: what to call it in errors; kind: csv, json or parquet, by the
    name where it is empty.

    types: column to type name, over what the file says. Raises ConfigError for a file that cannot
    be read so.
    """
    paths = [path]
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and _format(p)
                       and not any(part[0] in "._" for part in p.relative_to(path).parts))
        check_partitions(side, path, paths)
    if not paths or not paths[0].is_file():
        raise ConfigError(side, "must be a file or a directory with files that exists", str(path),
                          "Check the path.")
    formats = {kind or _format(p) for p in paths}
    if len(formats) != 1 or not min(formats):
        raise ConfigError(f"{side}_format", "must be csv, json or parquet, the same for all files",
                          str(path), "Name them .csv, .tsv, .jsonl or .parquet, or tell it where "
                                     f"it can be told: --{side}-format csv.")
    asked = {c: parse_type(c, t) for c, t in (types or {}).items()}
    kind = formats.pop()
    if kind == "parquet":
        return ParquetSource(side, paths, asked)
    if kind == "json":
        return JsonSource(side, paths, asked)
    tabs = Path(paths[0].stem if paths[0].suffix in CODECS else paths[0].name).suffix == ".tsv"
    return CsvSource(side, paths, asked, null_values, delimiter, "\t" if tabs else ",")


def check_partitions(parameter: str, path: Path, files: Sequence[Path]) -> None:
    """Raises ConfigError for directories in the way of Hive (year=2026/…): what they say is not in
    the files."""
    for file in files:
        if hive := [part for part in file.relative_to(path).parts[:-1] if "=" in part]:
            raise ConfigError(parameter, "must be a directory whose files have all columns",
                              str(file), f"The column {hive[0].split('=')[0]} is in the name of a "
                                         "directory only. Write it into the files, or give one of "
                                         f"the directories, as {hive[0]}.")


def file_columns(path: Path, kind: str, delimiter: str = "",
                 wanted: Sequence[str] = ()) -> list[str] | None:
    """The columns that a file names: a CSV file's header, a Parquet file's schema, the fields of a
    JSON file's lines; of those beyond ``SAMPLE`` bytes only the ones ``wanted``. None where it has
    none. Raises ConfigError for what cannot be read so."""
    if not path.stat().st_size:
        return None
    if kind == "csv":
        codec = CODECS.get(path.suffix)
        with pa.OSFile(str(path)) as raw, (pa.CompressedInputStream(raw, codec) if codec
                                           else raw) as stream:
            block = stream.read(BLOCK)
        _check_start("stream", path, block)
        block, separator = block.removeprefix(b"\xef\xbb\xbf"), delimiter or ","
        records = split_records(np.frombuffer(block, np.uint8), ord(separator), ord('"'), True,
                                False)
        if not len(records.starts):
            return None
        text = block[records.starts[0]:records.ends[0]].decode(errors="surrogateescape")
        _check_header("stream", path, text)
        if not records.fields[0]:
            raise _wrong_header("stream", path, text, QUOTES)
        header = next(csv.reader([text], delimiter=separator))
        if len(header) == 1 and not delimiter:
            _check_delimiter(path, header[0], separator)
        return [name or f"_c{i}" for i, name in enumerate(header)]  # as Spark calls it
    source = open_source("stream", path, kind=kind)
    later = source.later_fields(wanted) if isinstance(source, JsonSource) else []
    return [*source.schema.names, *later] or None


def _check_columns(side: str, path: Path, names: Sequence[str], wanted: Sequence[str],
                   remedy: str = "") -> None:
    """Raises ConfigError unless these are the same, in any order."""
    if set(names) != set(wanted):
        lacking, new = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
        found = (lacking and f"it lacks {', '.join(lacking)}",
                 new and f"it has {', '.join(new)} besides")
        what = "; ".join(part for part in found if part)
        raise ConfigError(side, "must have the same columns in every file", f"{path}: {what}",
                          f"The first file has: {', '.join(wanted)}. {remedy}".strip())


def _check_header(side: str, path: Path, text: str) -> None:
    """Raises ConfigError for a header line with bytes that are not UTF-8, which ``text`` has as
    surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise ConfigError(side, "must have a header line in UTF-8", f"{path}: {shown[:200]}",
                          "Convert the file, for instance: iconv -f LATIN1 -t UTF-8 IN > "
                          "OUT.") from None


def _wrong_header(side: str, path: Path, text: str, remedy: str) -> ConfigError:
    return ConfigError(side, "must have a header line that names each column once",
                       f"{path}: {text[:200]}", remedy)


def _check_delimiter(path: Path, header: str, delimiter: str) -> None:
    """Raises ConfigError for a header of one name that has another delimiter in it."""
    if other := next((c for c in ";\t|" if c in header and c != delimiter), ""):
        raise ConfigError("delimiter", f"must be told where it is not {delimiter!r}",
                          f"{path}: {header[:200]}",
                          f"For instance --delimiter {other!r}, or sep under the source's options "
                          f"in a job.")


def _check_start(side: str, path: Path, block: bytes) -> None:
    """Raises ConfigError for what is not UTF-8 text as a whole."""
    for magic, (what, ending) in PACKED.items():
        if block.startswith(magic):
            raise ConfigError(side, f"must be text, and this is compressed with {what}", str(path),
                              f"Let its name end in {ending}.")
    if block[:2] in (b"\xff\xfe",
                     b"\xfe\xff") or (b"\0" in block[:4] and b"\0" * 4 not in block[:16]):
        raise ConfigError(side, "must be text in UTF-8, and this is UTF-16", str(path),
                          "Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT.")
    if block.startswith((b"PAR1", b"PK\3\4")):
        what = "Parquet" if block.startswith(b"PAR1") else "a ZIP archive or a spreadsheet"
        raise ConfigError(side, f"must be text, and this is {what}", str(path),
                          "Name it as what it is, or export it as CSV.")


def _format(path: Path) -> str:
    return FORMATS.get(Path(path.stem).suffix if path.suffix in CODECS else path.suffix, "")


def _json_input(lines: list[bytes]) -> tuple[pa.BufferReader, arrow_json.ReadOptions]:
    text = b"\n".join(lines)
    text.decode()  # Arrow does not check that it is UTF-8
    # Arrow takes it for a row, or the process ends
    if any(line.lstrip().startswith(b"null") for line in lines):
        raise pa.ArrowInvalid("not one JSON object")
    return pa.BufferReader(text), arrow_json.ReadOptions(use_threads=False,
                                                         block_size=max(len(text) + 1, 1024))


def _keys(line: bytes) -> set[str]:
    """The names of a line's fields."""
    try:
        return set(json.loads(line))
    except (ValueError, RecursionError, TypeError):
        return set()


def _halves(lines: list[bytes], read: Callable[[list[bytes]], pa.Table], tables: list[pa.Table],
            bad: list[tuple[int, str]], start: int = 0) -> None:
    """Read lines; where that fails, halve until the lines at fault are alone."""
    if not lines:
        return
    try:
        tables.append(read(lines))
    except (pa.ArrowInvalid, UnicodeDecodeError) as e:
        if len(lines) == 1:
            bad.append((start, str(e).splitlines()[0].replace(" in row 0", "")))
            return
        half = len(lines) // 2
        _halves(lines[:half], read, tables, bad, start)
        _halves(lines[half:], read, tables, bad, start + half)


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type that holds both; the first where there is none."""
    try:
        return pa.unify_schemas([pa.schema([("x", a)]), pa.schema([("x", b)])],
                                promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.string() if {pa.types.is_string(t) or pa.types.is_timestamp(t)
                               for t in (a, b)} == {True} else a


def row_text(rows: pa.RecordBatch, i: int) -> str:
    """A row as JSON."""
    return json.dumps(rows.slice(i, 1).to_pylist()[0], default=str, ensure_ascii=False)


def _decode(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
