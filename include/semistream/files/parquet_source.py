"""Parquet files, read with the types that they store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.errors import ConfigError, SemistreamError
from semistream.files.convert import cast_cells, without
from semistream.files.formats import check_texts, is_text
from semistream.files.inference import infer_formatted_type
from semistream.files.source import FileSource, Raw, Rejected, check_columns, row_text
from semistream.parquet_decoding import open_parquet, parquet_batches

UNSIGNED = pa.decimal128(20, 0)  # holds every unsigned integer of 64 bits
# Spark's mark of dates in the old calendar, and the first date and time that both calendars share
LEGACY = b"org.apache.spark.legacy"
FIRST_DAY, FIRST_TIME = date(1582, 10, 15), datetime(1900, 1, 1, tzinfo=UTC)


class ParquetSource(FileSource):
    """Parquet files. If they differ in a column's type, a type is used that holds the values of all
    of them.

    rows, size: the largest numbers of a file's rows and bytes that are read at a time; threads:
    whether several threads decode.
    """

    rows, size, threads = 65_536, 8_000_000, True

    def columns(self, path: Path) -> list[str] | None:
        return self._schema_of(path).names if path.stat().st_size else None

    def _open(self, path: Path) -> pq.ParquetFile:
        try:
            return open_parquet(path)
        except (OSError, pa.ArrowException) as e:
            raise ConfigError(self.side, "must be readable Parquet", str(path), str(e)) from None

    def _schema_of(self, path: Path) -> pa.Schema:
        with self._open(path) as file:
            return self._schema(path, file)

    def _schema(self, path: Path, file: pq.ParquetFile) -> pa.Schema:
        schema = file.schema_arrow
        twice = [n for n, count in Counter(schema.names).items() if count > 1]
        if twice:
            raise ConfigError(
                self.side,
                "must have each column once",
                f"{path}: {twice[0]!r} {schema.names.count(twice[0])} times",
                "Rename one of them.",
            )
        return schema

    def _infer_schema(self) -> pa.Schema:
        kinds: dict[str, pa.DataType] = {}
        names: list[str] = []
        for path, _ in self._samples():
            schema = self._schema_of(path)
            names = names or schema.names
            check_columns(self.side, path, schema.names, names)
            for field in schema:
                kind = field.type
                if pa.types.is_dictionary(kind):  # as pandas writes categories
                    kind = kind.value_type
                elif pa.types.is_uint64(kind):
                    kind = _signed_type(path, field)
                kinds[field.name] = _wider(kinds.get(field.name, pa.null()), kind)
        for name, form in self.reading.formats.items():
            if name in kinds:
                check_texts(name, kinds[name], form)
                if form.notation and (is_text(kinds[name]) or pa.types.is_null(kinds[name])):
                    kinds[name] = infer_formatted_type(self._sampled(name), form)
        return pa.schema([(n, kinds[n]) for n in names])

    def _sampled(self, name: str) -> pa.Array:
        """Return the sample of texts from which a column's type is inferred."""

        def texts(path: Path) -> Iterator[pa.Array]:
            with open_parquet(path) as file:
                for batch in parquet_batches(file, [name], self.rows, self.size):
                    yield cast_cells(batch.column(0), pa.string())[0]

        cells = self._first_pieces(texts, lambda cells: cells.nbytes)
        return pa.concat_arrays([pa.array([], pa.string()), *cells])

    def _read(self, path: Path, done: int) -> Iterator[Raw]:
        """Yield the rows of a file, a part of a row group at a time. The lines of rows are their
        numbers in the file."""
        size, read = path.stat().st_size, 0
        with self._open(path) as file:
            found = self._schema(path, file)
            lacking = [n for n in self.schema.names if n not in found.names]
            if lacking:
                check_columns(self.side, path, found.names, self.schema.names)
            try:
                legacy = any(name.startswith(LEGACY) for name in found.metadata or ())
                for batch in parquet_batches(
                    file, self.schema.names, self.rows, self.size, threads=self.threads
                ):
                    first, read = read, read + batch.num_rows
                    self.bytes_done = done + size * read // file.metadata.num_rows
                    yield _reject_legacy_times(path, batch.select(self.schema.names), first, legacy)
            except (OSError, pa.ArrowException) as e:
                raise SemistreamError(f"{path} cannot be read: {e}") from None


def _reject_legacy_times(path: Path, rows: pa.RecordBatch, first: int, legacy: bool) -> Raw:
    """Return the rows, without those whose times are in the Julian calendar, which are rejected.

    first: number of the file's rows before these; legacy: whether Spark's legacy mode has written
    the file.
    """
    lines = np.arange(first + 1, first + rows.num_rows + 1)
    old: dict[int, str] = {}  # the position of each such row, and the time's column
    for name, column in zip(rows.schema.names, rows.columns, strict=True) if legacy else ():
        days = pa.types.is_date(column.type)
        if days or pa.types.is_timestamp(column.type):
            limit = pa.scalar(FIRST_DAY if days else FIRST_TIME).cast(column.type)
            before = pc.fill_null(pc.less(column, limit), False)
            old |= dict.fromkeys(np.flatnonzero(before).tolist(), name)
    if not old:
        return Raw(rows, [], None, lines)
    rejected = [
        Rejected(
            row_text(rows, i),
            f"{name}: a time in the calendar of before 1582, which Spark's legacy mode has written",
            str(path),
            int(lines[i]),
        )
        for i, name in sorted(old.items())
    ]
    return Raw(without(rows, old), rejected, None, np.delete(lines, list(old)))


def _signed_type(path: Path, field: pa.Field) -> pa.DataType:
    """Return the signed type of a column of unsigned 64-bit integers, so that it can be joined with
    signed ones: int64, or a decimal if the file's statistics show numbers beyond that."""
    metadata = pq.read_metadata(path)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if (
                chunk.path_in_schema == field.name
                and chunk.statistics is not None
                and chunk.statistics.has_min_max
                and chunk.statistics.max >= 2**63
            ):
                return UNSIGNED
    return pa.int64()


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both types; the first type if none does."""
    try:
        return (
            pa.unify_schemas(
                [pa.schema([("x", a)]), pa.schema([("x", b)])], promote_options="permissive"
            )
            .field(0)
            .type
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return a
