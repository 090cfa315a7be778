"""The decoders of the records that Spark brings: rows, JSON messages, and files with their
contents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from semistream.files.json_source import JsonSource
from semistream.files.source import Chunk
from semistream.scratch import task_directory
from semistream.streaming.sources.file_reader import FileReader
from semistream.streaming.sources.log import plain_path
from semistream.streaming.sources.numbered import NOTHING, Numbered, by_line, hashes

MANY = 2**31 - 1


@dataclass(frozen=True)
class RowDecoder:
    """The decoder of rows, whose columns are the stream's, in the same order. A row's number is a
    hash of the row."""

    schema: pa.Schema
    most_sampled: ClassVar[int] = MANY

    def decode(self, records: Iterator[pa.RecordBatch]) -> Iterator[Numbered]:
        flat = [f.name for f in self.schema if not pa.types.is_nested(f.type)]
        for batch in records:
            rows = batch.rename_columns(self.schema.names).cast(self.schema)
            yield Numbered(Chunk(rows, []), hashes(rows.select(flat)), NOTHING)


@dataclass(frozen=True)
class MessageDecoder:
    """The decoder of records whose only column, a binary value, is one JSON object. A record's
    number is a hash of the record."""

    reader: FileReader
    most_sampled: ClassVar[int] = MANY

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    def decode(self, records: Iterator[pa.RecordBatch]) -> Iterator[Numbered]:
        source = self.reader.open()
        assert isinstance(source, JsonSource)
        for batch in records:
            numbers, chunk = hashes(batch), source.parse(batch.column(0))
            yield Numbered(
                chunk, numbers[chunk.lines - 1], numbers[[r.line - 1 for r in chunk.rejected]]
            )


@dataclass(frozen=True)
class ContentDecoder:
    """The decoder of whole files from a file system that is not local, given as (path, content)."""

    reader: FileReader
    most_sampled: ClassVar[int] = 1

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    def decode(self, records: Iterator[pa.RecordBatch]) -> Iterator[Numbered]:
        source = self.reader.open()
        for batch in records:
            for path, content in zip(*batch.columns, strict=True):
                uri = path.as_py()
                with tempfile.TemporaryDirectory(dir=task_directory()) as directory:
                    copy = Path(directory) / Path(plain_path(uri)).name
                    copy.write_bytes(content.as_buffer())
                    for chunk in source.read(copy):
                        rejected = [r._replace(file=uri) for r in chunk.rejected]
                        yield by_line(chunk._replace(rejected=rejected))
