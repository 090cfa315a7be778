"""Parquet files of joined rows, in which the columns of R share the rows' indices.

A join repeats tuples of R. In its batches (``joins.output.Output.refer``), a column of R is a
dictionary of the tuples that occur in the batch, and all columns of R have the same indices. A
Parquet file can have that too: a page with the values of a dictionary, and pages with indices. So a
tuple of R is written once per row group, and the page of indices is made once for all columns.

PyArrow would look up each value of each column again. Here it encodes the dictionaries' values
only, as a file in memory. Their pages become the pages of dictionaries by another header. Numbers
that need no encoding are written as they lie in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.compiled import njit
from semistream.files import thrift
from semistream.files.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Struct
from semistream.parquet_encoding import encoding, page_of

MAGIC = b"PAR1"
LEAST_REPEATED = 2  # rows of a tuple of R, on average, from which a dictionary of tuples pays
CODECS = {1: "snappy", 6: "zstd"}  # by their numbers in Parquet; 0 is none
PLAIN, RLE, RLE_DICTIONARY = ((I32, n) for n in (0, 3, 8))  # encodings
DATA_PAGE, DICTIONARY_PAGE = (I32, 0), (I32, 2)
# fields of a column's metadata
KIND, ENCODINGS, PATH, CODEC, VALUES, UNCOMPRESSED, COMPRESSED = range(1, 8)
DATA, DICTIONARY, STATISTICS, PAGES = 9, 11, 12, 13
ONE_PAGE = {"data_page_size": 1 << 30, "use_dictionary": False} | page_of(1 << 30)


class Chunk(NamedTuple):
    """A column of a row group: its bytes, in parts, and its metadata, in which offsets count from
    the first byte."""

    parts: list[Any]
    metadata: Struct


class SharedDictionaryWriter:
    """A writer with the interface of ``ParquetWriter``. schema: dictionaries where columns may
    share indices; the file has the types of their values."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema):
        self._file, self._at, self._rows, self._closed = file, 0, 0, False
        self._schema = pa.schema([f.with_type(_value_type(f.type)) for f in schema])
        self._groups = list[Struct]()
        self._encodings = dict[tuple[str, ...], dict[str, Any]]()  # by columns
        self._write(MAGIC)

    def write_table(self, table: pa.Table) -> None:
        """Write rows as one row group."""
        table = table.rename_columns(list(map(str, range(table.num_columns))))
        shared, chunks = dict[Any, list[str]](), dict[str, Chunk]()
        for name, column in zip(table.column_names, table.columns, strict=True):
            if (indices := _indices(column)) is not None:
                shared.setdefault(indices, []).append(name)
        for names in shared.values():
            values, page = _values(table.select(names)), _IndexPage(table[names[0]])
            options = self._encoding(values) | ONE_PAGE
            repeated = self._encoding(values)["use_dictionary"]
            for name in (n for n in names if n not in repeated):
                encoded = _in_memory(values[name], options["compression"][name])
                (encoded,) = (encoded,) if encoded else _by_pyarrow(values.select([name]), options)
                chunks[name] = page.of(encoded)
        rows = _decoded(table.select([n for n in table.column_names if n not in chunks]))
        options = self._encoding(rows)
        for name in rows.column_names:
            if name not in options["use_dictionary"] and (
                found := _in_memory(rows[name], options["compression"][name], _levels(len(rows)))
            ):
                chunks[name] = found
        if rest := [n for n in rows.column_names if n not in chunks]:
            chunks |= zip(rest, _by_pyarrow(rows.select(rest), options), strict=True)
        self._write_chunks([chunks[name] for name in table.column_names], len(table))

    def _encoding(self, table: pa.Table) -> dict[str, Any]:
        """Return the encoding options of a table's columns. The first table with these columns
        determines the options; later tables with the same columns get the same ones."""
        names = tuple(table.column_names)
        if names not in self._encodings:
            self._encodings[names] = encoding(table)
        return self._encodings[names]

    def _write_chunks(self, chunks: list[Chunk], rows: int) -> None:
        begun, columns, uncompressed = self._at, list[Struct](), 0
        for (parts, metadata), field in zip(chunks, self._schema, strict=True):
            metadata[PATH] = LIST, (BINARY, [field.name.encode()])
            for number in {DATA, DICTIONARY} & metadata.keys():
                metadata[number] = I64, metadata[number][1] + self._at
            uncompressed += metadata[UNCOMPRESSED][1]
            columns.append({2: (I64, 0), 3: (STRUCT, metadata)})
            for part in parts:
                self._write(part)
        self._groups.append(
            {
                1: (LIST, (STRUCT, columns)),
                2: (I64, uncompressed),
                3: (I64, rows),
                5: (I64, begun),
                6: (I64, self._at - begun),
                7: (I16, len(self._groups)),
            }
        )
        self._rows += rows

    def close(self) -> None:
        """Write the footer. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        footer = _footer(_file_of(self._schema.empty_table(), {}))
        footer |= {3: (I64, self._rows), 4: (LIST, (STRUCT, self._groups))}
        data = thrift.write(footer)
        self._write(data + len(data).to_bytes(4, "little") + MAGIC)

    def _write(self, data: Any) -> None:
        self._file.write(data)
        self._at += memoryview(data).nbytes


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _indices(column: pa.ChunkedArray) -> Any:
    """Return a value that is equal for columns with the same indices; None for a column that is no
    dictionary, or that is smaller, or only possible, without one."""
    if not pa.types.is_dictionary(column.type) or pa.types.is_boolean(column.type.value_type):
        return None
    dictionaries = [chunk.dictionary for chunk in column.chunks]
    if (
        not 0 < LEAST_REPEATED * sum(map(len, dictionaries)) <= len(column)
        or column.null_count
        or any(values.null_count for values in dictionaries)
    ):
        return None
    indices = [chunk.indices for chunk in column.chunks]
    return tuple(
        (each.buffers()[1].address, each.offset, len(each), len(values))
        for each, values in zip(indices, dictionaries, strict=True)
    )


def _values(table: pa.Table) -> pa.Table:
    """Return the dictionaries' values. They have no nulls, and so no levels in their pages."""
    columns = [
        pa.chunked_array([c.dictionary for c in column.chunks], column.type.value_type)
        for column in table.columns
    ]
    fields = [pa.field(f.name, f.type.value_type, nullable=False) for f in table.schema]
    return pa.table(columns, pa.schema(fields))


def _decoded(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([f.with_type(_value_type(f.type)) for f in table.schema]))


def _levels(rows: int) -> bytes:
    """Return the definition levels of a page on which no value is null."""
    one_run = thrift.varint(2 * rows) + b"\1"
    return len(one_run).to_bytes(4, "little") + one_run


def _in_memory(column: pa.ChunkedArray, codec: str, levels: bytes = b"") -> Chunk | None:
    """Return a column of numbers without nulls as one page, as it lies in memory; None if a Parquet
    file has it in another form. levels: the page's beginning."""
    kind = column.type
    time = pa.types.is_timestamp(kind) and kind.unit == "us"
    whole = pa.types.is_integer(kind) and kind.bit_width >= 32
    if codec != "none" or column.null_count or not (whole or time or pa.types.is_date32(kind)):
        return None
    form = f"{'u' * pa.types.is_unsigned_integer(kind)}int{kind.bit_width}"
    parts = [
        np.frombuffer(c.buffers()[1], form, len(c), c.offset * kind.bit_width // 8)
        for c in column.chunks
        if len(c)
    ]
    if not parts:
        return None
    size, count = sum(part.nbytes for part in parts) + len(levels), (I64, len(column))
    head = thrift.write({1: DATA_PAGE, 2: (I32, size), 3: (I32, size), 5: _page_head(len(column))})
    ends = max(part.max() for part in parts), min(part.min() for part in parts)
    total = I64, len(head) + size
    metadata = {
        KIND: (I32, 2 if kind.bit_width == 64 else 1),
        ENCODINGS: (LIST, (I32, [0, 3])),
        CODEC: (I32, 0),
        VALUES: count,
        UNCOMPRESSED: total,
        COMPRESSED: total,
        DATA: (I64, 0),
        STATISTICS: (
            STRUCT,
            {3: (I64, 0), **{5 + i: (BINARY, end.tobytes()) for i, end in enumerate(ends)}},
        ),
    }
    return Chunk([head + levels, *parts], metadata)


def _page_head(rows: int, encoding: tuple[int, int] = PLAIN) -> tuple[int, Struct]:
    return STRUCT, {1: (I32, rows), 2: encoding, 3: RLE, 4: RLE}


def _file_of(table: pa.Table, options: dict[str, Any]) -> pa.Buffer:
    """Return a Parquet file with one row group."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, max(len(table), 1))
    return sink.getvalue()


def _footer(file: pa.Buffer) -> Struct:
    size = int.from_bytes(file[-8:-4], "little")
    return thrift.read(memoryview(file)[-8 - size : -8])[0]


def _by_pyarrow(table: pa.Table, options: dict[str, Any]) -> list[Chunk]:
    """Return the columns as PyArrow encodes them."""
    file, chunks = _file_of(table, options), list[Chunk]()
    (group,) = _footer(file)[4][1][1]
    for column in group[1][1][1]:
        metadata = column[3][1]
        offsets = {n: metadata[n][1] for n in (DATA, DICTIONARY) if n in metadata}
        first = min(offsets.values())
        metadata |= {n: (I64, at - first) for n, at in offsets.items()}
        chunks.append(Chunk([file.slice(first, metadata[COMPRESSED][1])], metadata))
    return chunks


class _IndexPage:
    """The page of indices of a column, into the dictionaries of all its chunks, one behind the
    other."""

    def __init__(self, column: pa.ChunkedArray):
        first, parts = 0, list[np.ndarray]()
        for chunk in column.chunks:
            parts.append(chunk.indices.to_numpy() + np.int32(first))
            first += len(chunk.dictionary)
        index = np.concatenate(parts)
        width = max((first - 1).bit_length(), 1)  # bits
        out = np.empty((len(index) + 8) * (width // 8 + 2) + 16, np.uint8)
        size = _hybrid(index, width, out)
        self._rows = len(index)
        self._body = b"".join([_levels(self._rows), bytes([width]), out[:size].tobytes()])
        self._packed = dict[int, bytes]()  # by codec

    def of(self, values: Chunk) -> Chunk:
        """Return the column that has these values, given as one page without levels, as its
        dictionary."""
        (first, *others), metadata = values
        head, size = thrift.read(memoryview(first))
        parts, codec = [memoryview(first)[size:], *others], metadata[CODEC][1]
        packed = sum(memoryview(part).nbytes for part in parts)
        if packed != head[3][1]:
            raise ValueError(f"PyArrow has encoded {packed} bytes as several pages")
        dictionary = {1: (I32, metadata[VALUES][1]), 2: PLAIN}
        parts.insert(
            0, thrift.write({1: DICTIONARY_PAGE, 2: head[2], 3: head[3], 7: (STRUCT, dictionary)})
        )
        if codec not in self._packed:
            self._packed[codec] = (
                pa.compress(self._body, CODECS[codec], asbytes=True) if codec else self._body
            )
        page = self._packed[codec]
        indices = thrift.write(
            {
                1: DATA_PAGE,
                2: (I32, len(self._body)),
                3: (I32, len(page)),
                5: _page_head(self._rows, RLE_DICTIONARY),
            }
        )
        before, heads = len(parts[0]) + packed, len(parts[0]) + len(indices)
        pages = [
            {1: kind, 2: encoded, 3: (I32, 1)}
            for kind, encoded in ((DICTIONARY_PAGE, PLAIN), (DATA_PAGE, RLE_DICTIONARY))
        ]
        return Chunk(
            [*parts, indices, page],
            {n: metadata[n] for n in (KIND, CODEC, STATISTICS) if n in metadata}
            | {
                ENCODINGS: (LIST, (I32, [0, 3, 8])),
                VALUES: (I64, self._rows),
                UNCOMPRESSED: (I64, heads + head[2][1] + len(self._body)),
                COMPRESSED: (I64, heads + packed + len(page)),
                DATA: (I64, before),
                DICTIONARY: (I64, 0),
                PAGES: (LIST, (STRUCT, pages)),
            },
        )


@njit(cache=True)
def _hybrid(index, width, out):
    """Write indices of `width` bits in Parquet's hybrid of runs and literals. Return the bytes
    written.

    in      index int32[n]
    out     out uint8[bytes]
    """
    at = i = literal = 0  # literal: the first index that is not written
    while i < len(index):
        end = i + 1
        while end < len(index) and index[end] == index[i]:
            end += 1
        i += (literal - i) % 8  # literals are written eight at a time
        if end - i >= 8:
            at = _literals(index, literal, i, width, out, at)
            at = _varint(2 * (end - i), out, at)
            for shift in range(0, width, 8):
                out[at] = index[i] >> shift & 0xFF
                at += 1
            literal = end
        i = end
    return _literals(index, literal, len(index), width, out, at)


@njit(inline="always")
def _literals(index, first, last, width, out, at):
    """Write the indices from first to last - 1, bit by bit, in groups of eight, from the byte `at`
    on. Return the position behind them.

    in      index int32[n]
    out     out uint8[bytes]
    """
    if first < last:
        groups = (last - first + 7) // 8
        at = _varint(groups * 2 + 1, out, at)
        bits = filled = 0
        for i in range(first, first + groups * 8):
            bits |= (int(index[i]) if i < last else 0) << filled
            filled += width
            while filled >= 8:
                out[at] = bits & 0xFF
                bits >>= 8
                filled -= 8
                at += 1
    return at


@njit(inline="always")
def _varint(number, out, at):
    """Write a number with 7 bits in a byte, the lowest first, from the byte `at` on. Return the
    position behind it.

    out     out uint8[bytes]
    """
    while number > 0x7F:
        out[at] = number & 0x7F | 0x80
        number >>= 7
        at += 1
    out[at] = number
    return at + 1
