"""The data files of a Delta table: Parquet files, written during a join and read again."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from semistream.durable import DirectFile, naming, sync
from semistream.gathering import Gathered
from semistream.parquet_decoding import open_parquet, parquet_batches
from semistream.parquet_encoding import encoding
from semistream.warehouse.checksum import checksum

LOAD_ROW = pa.field("load_row", pa.int32())  # where facts may have inferred members
READ_ROWS = 100_000  # read at a time
# approximate size of a file's row group, which is in memory until it is written, and encoded
GROUP_ROWS, GROUP_BYTES = 131_072, 8_000_000


class DataFiles:
    """A partition's joined rows as Parquet files of a Delta table, written during the join. On a
    local disk they are also flushed. Nothing refers to them until the driver's commit.

    There is one file, unless a column has its first null in a later row group. Then a second file
    begins, because the first one declares the column as not nullable, which saves a definition
    level for each value.

    name: the beginning of the files' names; key: further columns, each with one value in all rows;
    numbered: whether the rows are numbered from 0, in a column after these.
    """

    def __init__(
        self,
        uri: str,
        schema: pa.Schema,
        name: str,
        key: dict[str, pa.Scalar],
        *,
        numbered: bool = False,
    ):
        self._files, self._directory = pyarrow.fs.FileSystem.from_uri(uri)
        self._local = isinstance(self._files, pyarrow.fs.LocalFileSystem)
        self._names = name
        self._schema, self._key, self._numbered, self._count = schema, key, numbered, 0
        self._written: list[dict[str, Any]] = []
        self._path = ""  # of the newest file
        self._file: DirectFile | None = None  # the newest file, if it is local
        self._writer: pq.ParquetWriter | None = None  # likewise
        self._group = Gathered(schema)
        self._rows = self._group_rows = 0
        self.total = 0  # the sum of the rows' checksums

    def write(self, rows: pa.RecordBatch) -> None:
        self._group.add(rows)
        self._group_rows += rows.num_rows
        if self._group_rows >= GROUP_ROWS or self._group.size >= GROUP_BYTES:
            self._write_group()

    def close(self) -> list[dict[str, Any]]:
        """Finish the files. Return each file's path, size and rows for the commit."""
        if self._group_rows:
            self._write_group()
        if self._writer is not None:
            self._end()
        if self._written and self._local:
            sync(Path(self._directory))
        return self._written

    def discard(self) -> None:
        if self._writer is not None:
            with suppress(OSError):  # for instance a full disk, which is already being reported
                self._close()
            self._files.delete_file(self._path)
        for file in self._written:
            self._files.delete_file(f"{self._directory}/{file['path']}")

    def _write_group(self) -> None:
        group = self._group.take()
        self.total += checksum(group)
        for name, value in self._key.items():
            group = group.append_column(name, pa.repeat(value, group.num_rows))
        if self._numbered:
            numbers = np.arange(self._count, self._count + group.num_rows, dtype=np.int32)
            group = group.append_column(LOAD_ROW, pa.array(numbers))
            self._count += group.num_rows
        if self._writer is not None and any(
            column.null_count and not field.nullable
            for column, field in zip(group.columns, self._writer.schema, strict=True)
        ):
            self._end()
        if self._writer is None:
            self._path = f"{self._directory}/{self._names}-{uuid.uuid4().hex}.parquet"
            self._file = DirectFile(self._path) if self._local else None
            with naming(self._path):
                self._writer = (
                    data_writer(self._file, group, self._key)
                    if self._file
                    else data_writer(self._path, group, self._key, filesystem=self._files)
                )
        with naming(self._path):
            self._writer.write_table(group.cast(self._writer.schema), GROUP_ROWS * 2)
        self._rows += group.num_rows
        self._group_rows = 0

    def _end(self) -> None:
        """Finish the newest file and record it."""
        with naming(self._path):
            self._close()
        self._written.append(
            {
                "path": self._path.removeprefix(f"{self._directory}/"),
                "size": self._files.get_file_info(self._path).size,
                "rows": self._rows,
            }
        )
        self._writer, self._rows = None, 0

    def _close(self) -> None:
        assert self._writer is not None
        try:
            self._writer.close()
        finally:
            if self._file is not None:
                self._file.close()


def data_writer(
    where: Any, first: pa.Table, key: Collection[str], **options: Any
) -> pq.ParquetWriter:
    """Return a writer of a data file that begins with these rows. A column that has no null in
    these rows is declared as not nullable.

    key: columns with the same value in all rows; options: options of ``ParquetWriter``, which take
    precedence.
    """
    schema = pa.schema(
        [
            field.with_nullable(column.null_count > 0)
            for field, column in zip(first.schema, first.columns, strict=True)
        ]
    )
    return pq.ParquetWriter(where, schema, **encoding(first, key) | options)


def read_columns(
    files: pyarrow.fs.FileSystem, path: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a data file, a little at a time. A column that the file lacks is
    null."""
    with files.open_input_file(path) as file, open_parquet(file) as parquet:
        there = [name for name in schema.names if name in parquet.schema_arrow.names]
        for rows in parquet_batches(parquet, there, READ_ROWS, GROUP_BYTES):
            columns = [
                rows[f.name].cast(f.type) if f.name in there else pa.nulls(rows.num_rows, f.type)
                for f in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
