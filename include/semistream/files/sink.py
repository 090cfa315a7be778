"""The writer of Arrow batches to CSV, JSON lines or Parquet. A file gets its name when it is
complete."""

from __future__ import annotations

import datetime
import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from semistream.durable import WritingThread, naming
from semistream.errors import ConfigError
from semistream.files.convert import is_bytes, is_time, json_text, time_texts
from semistream.files.opening import FORMATS
from semistream.files.shared_dictionaries import SharedDictionaryWriter
from semistream.gathering import Gathered
from semistream.parquet_encoding import encoding

GATHERED_BYTES = 16_000_000  # bytes written at a time
JSON_VALUES = 20_000  # values converted to Python objects at a time


class OutputFile:
    """An output file, as a context manager. It appears under its name when it is complete; after an
    error, the incomplete file is deleted.

    Rows are written to a temporary file in the same directory. A thread encodes them while the next
    rows are gathered. Raises ConfigError for a format, a directory or a type that cannot be
    written.
    """

    def __init__(self, side: str, path: Path, schema: pa.Schema):
        self.path, self.schema, self.rows = path, schema, 0
        self._kind = check_output(side, path, schema)
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._held = Gathered(schema)
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> OutputFile:
        self._encoding = WritingThread("encoding")
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.add(batch)
        self.rows += batch.num_rows
        if self._held.size >= GATHERED_BYTES:
            self._encoding.wait()  # and free those rows, before others may be copied
            self._encoding.begin(self._encode, self._held.take())

    def _encode(self, rows: pa.Table) -> None:
        if self._kind != "parquet":
            rows = _in_utc(rows)
        with naming(self.path):
            if self._writer is None:  # the first rows; an interrupt reaches no thread
                self._file = pa.OSFile(str(self._partial), "wb")
                self._writer = self._open(rows)
            self._writer.write_table(rows)

    def _open(self, first: pa.Table) -> Any:
        if self._kind == "parquet" and any(pa.types.is_dictionary(t) for t in self.schema.types):
            return SharedDictionaryWriter(self._file, self.schema)
        if self._kind == "parquet":
            return pq.ParquetWriter(self._file, self.schema, **encoding(first))
        if self._kind == "csv":
            options = arrow_csv.WriteOptions(delimiter="\t" if self.path.suffix == ".tsv" else ",")
            return arrow_csv.CSVWriter(self._file, first.schema, write_options=options)
        return _JsonWriter(self._file)

    def finish(self) -> None:
        """Write the remaining rows. The file is complete afterwards, but not yet under its name."""
        if self._held.size or not self.rows:
            self._encoding.begin(self._encode, self._held.take())
        self._encoding.wait()
        with naming(self.path):
            self._writer.close()
            self._file.close()

    def publish(self) -> None:
        os.replace(self._partial, self.path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._encoding.shutdown(cancel_futures=True)
        if kind is not None:
            for part in filter(None, (self._writer, self._file)):
                # for instance a full disk, which is already being reported
                with suppress(OSError, pa.ArrowException):
                    part.close()
        self._partial.unlink(missing_ok=True)


class _JsonWriter:
    def __init__(self, file: pa.NativeFile):
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        for i, field in enumerate(table.schema):
            if is_time(field.type):
                # ISO 8601; Python's times have neither nanoseconds nor years after 9999
                texts = pc.replace_substring(
                    time_texts(table.column(i)), " ", "T", max_replacements=1
                )
                table = table.set_column(i, field.name, texts)
        for batch in table.to_batches(max(JSON_VALUES // table.num_columns, 1)):
            lines = (
                json.dumps(row, default=_plain, ensure_ascii=False) + "\n"
                for row in batch.to_pylist()
            )
            self._file.write("".join(lines).encode())

    def close(self) -> None:
        """Do nothing, because all rows have already been written."""


def _in_utc(table: pa.Table) -> pa.Table:
    """Return a table whose times with a zone are in UTC, as the offsets of former centuries have
    seconds, which the text of a time lacks."""
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            times = table.column(i).cast(pa.timestamp(field.type.unit, "UTC"))
            table = table.set_column(i, field.name, times)
    return table


def _plain(value: Any) -> str:
    times = isinstance(value, (datetime.date, datetime.time))
    return value.isoformat() if times else json_text(value)


def check_place(side: str, path: Path) -> None:
    """Raise ConfigError for a path at which no file can be written."""
    directory = path.absolute().parent
    if path.is_dir():
        constraint, remedy = "must be a file, and is a directory", "Name a file in it."
    elif not directory.is_dir():
        constraint, remedy = "must be in a directory that exists", "Make the directory first."
    elif not os.access(directory, os.W_OK):
        constraint = "must be in a directory that can be written"
        remedy = "Allow this user to write there, or name another place."
    else:
        return
    raise ConfigError(side, constraint, str(path), remedy)


def check_output(side: str, path: Path, schema: pa.Schema | None = None) -> str:
    """Return the format of an output file, by its name: csv, json or parquet. Raises ConfigError
    for another ending, for a directory that cannot be written, and for a type that the format does
    not have."""
    kind = FORMATS.get(path.suffix, "")
    if not kind:
        raise ConfigError(
            side, "must end in .parquet, .csv, .tsv or .jsonl", str(path), "Name the file so."
        )
    check_place(side, path)
    nested = [f for f in schema or [] if pa.types.is_nested(f.type) or is_bytes(f.type)]
    if kind == "csv" and nested:
        raise ConfigError(
            side,
            "must be of a format that can hold every column",
            f"{path.name}: {nested[0]}",
            "Write .parquet instead.",
        )
    return kind
