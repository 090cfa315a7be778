"""CSV files. Cells are bytes until their column's type is known."""

from __future__ import annotations

import csv
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from semistream.errors import ConfigError, SemistreamError
from semistream.files.convert import cast_cells, prepared_cells
from semistream.files.inference import SampledCells, infer_formatted_type
from semistream.files.records import LF, Records, line_numbers, split_records
from semistream.files.source import Raw, Reading, Rejected, check_columns
from semistream.files.text_source import (
    BLOCK,
    BOM,
    TextSource,
    check_start,
    decode,
    open_text,
    other_encoding,
    plain_suffix,
)

CR = b"\r"
QUOTES = "Its quotes do not match."
HEADER = 64 << 10  # bytes that contain most header lines and one more record
SEPARATOR = b"sep="  # the first line that Excel writes; the delimiter follows


class CsvSource(TextSource):
    """CSV text with a header line. Types are inferred from a sample. A row with a cell that does
    not fit its column's type is rejected."""

    def __init__(
        self,
        side: str,
        paths: Sequence[Path],
        types: Mapping[str, pa.DataType],
        reading: Reading,
        schema: pa.Schema | None = None,
    ):
        self.names = list[str]() if schema is None else list(schema.names)  # of the first file
        # the only file, if it was sampled: the bytes read and the rows, and what is left of it
        self._begun: tuple[Path, deque[tuple[int, Raw]], Iterator[Raw]] | None = None
        self._null_words = pa.array(reading.null_values, pa.binary())
        super().__init__(side, paths, types, reading, schema)

    def columns(self, path: Path) -> list[str] | None:
        if not path.stat().st_size:
            return None
        if not self.reading.header:
            return list(self.names)
        with open_text(path) as (_, stream):
            block = stream.read(BLOCK)
        if self.reading.encoding:
            block = block.decode(self.reading.encoding, errors="replace").encode()
        else:
            check_start(self.side, path, block)
        names, _, _ = self._header(path, block, True)
        return names or None

    def _infer_schema(self) -> pa.Schema:
        """Infer each column's type from the cells of a sample, and note for the user which types
        depend on few cells."""
        samples = self._first_pieces(self._sample, lambda raw: raw.rows.nbytes)
        if not self.names:
            raise ConfigError(
                self.side,
                "must have a header line with the names of its columns",
                str(self.paths[0]),
                "The file is empty; was it written completely?",
            )
        columns = [
            [pa.array([], pa.binary()), *(raw.rows[name] for raw in samples)] for name in self.names
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            found = list(threads.map(self._infer_field, self.names, columns))
        self.notes += [note for _, notes in found for note in notes]
        return pa.schema([field for field, _ in found])

    def _infer_field(self, name: str, sample: list[pa.Array]) -> tuple[pa.Field, list[str]]:
        """Infer a column's type from its cells, given as one array for each block. Return the
        field, and remarks for the user."""
        cells = cast_cells(pa.concat_arrays(sample), pa.string())[0]
        form, notes = self.reading.formats.get(name), list[str]()
        if form is not None and form.notation:
            return pa.field(name, infer_formatted_type(cells, form)), notes
        sampled = SampledCells(prepared_cells(name, cells, form)[0])
        # a key that is padded with zeros is a string, whatever the sample shows
        kind = pa.string() if form and isinstance(form.zeros, int) else sampled.infer_type()
        if name not in self.declared:
            if why := sampled.deciding_cells(kind):
                notes.append(f"{self.side} column {name} is read as {kind}, for {why}")
            if sampled.has_exponents(kind):
                notes.append(
                    f"{self.side} column {name} is read as {kind}; numbers with an "
                    f"exponent are integers there, too"
                )
        return pa.field(name, kind), notes

    def _sample(self, path: Path) -> Iterator[Raw]:
        """Yield the rows of a file. The rows of the only file are kept until it is read, as parsing
        them takes as long as inferring types."""
        rest = self._parsed(path, 0)
        if len(self.paths) > 1:
            yield from rest
            return
        pieces = deque[tuple[int, Raw]]()
        self._begun = path, pieces, rest
        for raw in rest:
            pieces.append((self.bytes_done, raw))
            yield raw

    def _read(self, path: Path, done: int) -> Iterator[Raw]:
        begun, self._begun = self._begun, None
        if begun is None or begun[0] != path:
            yield from self._parsed(path, done)
            return
        _, pieces, rest = begun
        while pieces:
            self.bytes_done, raw = pieces.popleft()
            yield raw
        yield from rest

    def _parsed(self, path: Path, done: int) -> Iterator[Raw]:
        """Yield the rows of a file, a block at a time, with binary cells."""
        blocks = self._blocks(path, done)
        data, final = next(blocks)
        names = [] if self.reading.header else list(self.names)
        delimiter, lines = self._delimiter(path), 0  # lines before the data
        while True:
            header = consumed = 0
            if final and not data and lines:  # the whole file was read
                return
            if not names:
                names, header, delimiter = self._header(path, data, final)
                if names:
                    self.names = self.names or names
                    check_columns(self.side, path, names, self.names)
            elif not lines and data.startswith(BOM):
                header = len(BOM)
            if names:
                consumed, lines, item = self._parse(
                    path, names, delimiter, data, header, final, lines
                )
                yield item
            if final:
                return
            data, final = blocks.send(consumed)

    def _delimiter(self, path: Path) -> str:
        return self.reading.delimiter or ("\t" if plain_suffix(path) == ".tsv" else ",")

    def _header(self, path: Path, data: bytes, final: bool) -> tuple[list[str], int, str]:
        """Return (the names of the file's columns, bytes of its header line, the delimiter). The
        list of names is empty if the file is empty, or while the data end within the header line.
        """
        skip, delimiter = len(BOM) if data.startswith(BOM) else 0, self._delimiter(path)
        given = data[skip + len(SEPARATOR) : skip + len(SEPARATOR) + 3]
        if (
            data[skip:].startswith(SEPARATOR)
            and given[1:2] in (b"\r", b"\n")
            and not self.reading.delimiter
        ):
            delimiter = given[:1].decode(errors="replace")
            skip += len(SEPARATOR) + (3 if given[1:] == b"\r\n" else 2)
        array = np.frombuffer(data, np.uint8)[skip:]
        records = self._records(array[:HEADER], delimiter, False, False)
        if len(records.starts) < 2:  # the header is longer than that, or nothing follows it
            records = self._records(array, delimiter, final, False)
        if not len(records.starts):
            return [], 0, delimiter
        start, end = skip + records.starts[0], skip + records.ends[0]
        text = data[start:end].decode(errors="surrogateescape")
        _check_header(self.side, path, text)
        cells = (
            next(
                csv.reader(
                    [text],
                    delimiter=delimiter,
                    quotechar=self.reading.quote or None,
                    escapechar=self.reading.escape or None,
                )
            )
            if text
            else [""]
        )
        names = [n or f"column_{i + 1}" for i, n in enumerate(cells)]
        twice = [n for n, count in Counter(names).items() if count > 1]
        if twice or not records.fields[0]:
            raise ConfigError(
                self.side,
                "must have a header line that names each column once",
                f"{path}: {text[:200]}",
                f"Rename one of the columns {twice[0]!r}; if the line is a row, write one with the "
                "names of the columns above it."
                if twice
                else QUOTES,
            )
        if len(names) == 1 and not self.reading.delimiter:
            _check_delimiter(path, text, delimiter)
        following = records.starts[1] if len(records.starts) > 1 else records.consumed
        return names, skip + int(following), delimiter

    def _records(self, data: np.ndarray, delimiter: str, final: bool, keep_empty: bool) -> Records:
        quote, escape = self.reading.quote, self.reading.escape
        return split_records(
            data,
            ord(delimiter),
            ord(quote) if quote else -1,
            ord(escape) if escape else -1,
            final,
            keep_empty,
        )

    def _parse(
        self,
        path: Path,
        names: list[str],
        delimiter: str,
        data: bytes,
        skip: int,
        final: bool,
        lines: int,
    ) -> tuple[int, int, Raw]:
        """Parse the complete records of a block. Return (bytes parsed, lines of the file up to the
        end of the last record, rows).

        skip: bytes of the block before its first record; final: whether it is the file's last
        block; lines: lines of the file before the block.
        """
        array = np.frombuffer(data, np.uint8)[skip:]
        found = self._records(array, delimiter, final, len(names) == 1)
        good = found.fields == len(names)
        wanted = f"fields in place of {len(names)}"
        where, lines = self._lines(data, skip, array, found, lines)
        rejected = [
            Rejected(
                decode(data[skip + s : skip + e]),
                f"{fields} {wanted}" if fields else "quotes do not match",
                str(path),
                int(line),
            )
            for s, e, fields, line in zip(
                found.starts[~good],
                found.ends[~good],
                found.fields[~good],
                where[~good],
                strict=True,
            )
        ]
        starts, ends = skip + found.starts[good], skip + found.ends[good]
        clean = (
            pa.py_buffer(data)[skip : skip + found.consumed]
            if good.all()
            else pa.py_buffer(
                b"\n".join(data[s:e] for s, e in zip(starts, ends, strict=True)) + b"\n"
            )
        )
        rows = self._arrow(names, delimiter, clean, len(starts)).select(self.names)
        return (
            skip + found.consumed,
            lines,
            Raw(rows, rejected, lambda i: decode(data[starts[i] : ends[i]]), where[good]),
        )

    @staticmethod
    def _lines(
        data: bytes, skip: int, array: np.ndarray, found: Records, lines: int
    ) -> tuple[np.ndarray, int]:
        """Return (the line of each record, int64[n], the number of lines up to the end of the last
        record)."""
        count, taken = len(found.starts), array[: found.consumed]
        if count and taken[-1] == LF and np.count_nonzero(taken == LF) == count and CR not in data:
            first = lines + data.count(b"\n", 0, skip)  # no line is blank, none has two records
            return np.arange(first + 1, first + count + 1), first + count
        where = lines + line_numbers(data, skip + np.append(found.starts, found.consumed))
        return where[:-1] + 1, int(where[-1])

    def _arrow(
        self, names: list[str], delimiter: str, text: pa.Buffer, rows: int
    ) -> pa.RecordBatch:
        """Parse well-formed records with Arrow. text: the records; rows: their number. Raises
        SemistreamError if Arrow finds a different number."""
        schema = pa.schema([(n, pa.binary()) for n in names])
        if not rows:
            return pa.RecordBatch.from_pylist([], schema)
        table = arrow_csv.read_csv(
            pa.BufferReader(text),
            arrow_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=max(text.size + 1, 1024)
            ),
            arrow_csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                quote_char=self.reading.quote or False,
                escape_char=self.reading.escape or False,
                ignore_empty_lines=len(names) > 1,
            ),
            # an empty cell is null, and "" is an empty text
            arrow_csv.ConvertOptions(
                column_types=schema,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if table.num_rows != rows:
            raise SemistreamError(
                f"{rows} CSV records were read as {table.num_rows} rows; please report this."
            )
        batch = table.combine_chunks().to_batches()[0]
        if not len(self._null_words):
            return batch
        columns = [
            pc.if_else(pc.is_in(c, self._null_words), pa.scalar(None, c.type), c)
            for c in batch.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_header(side: str, path: Path, text: str) -> None:
    """Check that a header line, decoded with ``surrogateescape``, was UTF-8. Raises ConfigError
    otherwise."""
    try:
        text.encode()
    except UnicodeEncodeError:
        readable = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise ConfigError(
            side,
            "must have a header line in UTF-8",
            f"{path}: {readable[:200]}",
            other_encoding("cp1252"),
        ) from None


def _check_delimiter(path: Path, header: str, delimiter: str) -> None:
    """Check a header in which only one name was found. Raises ConfigError if the header contains
    another delimiter than ``delimiter``."""
    if other := next((c for c in ";\t|" if c in header and c != delimiter), ""):
        raise ConfigError(
            "delimiter",
            f"must be told where it is not {delimiter!r}",
            f"{path}: {header[:200]}",
            f"For instance --delimiter {other!r}, or sep under the source's options in a job.",
        )
