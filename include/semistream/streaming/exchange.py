"""The exchange of tuples between the tasks that read them and the tasks that join them: as Arrow
messages, by partition, through Spark's shuffle, which sees bytes only."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.errors import SemistreamError
from semistream.files.json_source import JsonSource
from semistream.files.source import Chunk, Rejected
from semistream.gathering import Gathered
from semistream.partitioning import Placement
from semistream.scratch import task_directory
from semistream.streaming.sources.log import plain_path
from semistream.streaming.sources.reader import Reader
from semistream.warehouse.checksum import row_hashes

PLACED = "partition INT, side INT, kind INT, message BINARY"
TUPLES, REJECTED, FAILED = range(3)  # kinds of messages
COLUMNS = pa.schema([("partition", pa.int32()), ("side", pa.int32()), ("kind", pa.int32()),
                     ("message", pa.binary())])
NOTHING = np.zeros(0, np.int64)
GATHERED_BYTES = 4_000_000  # of tuples of small files that are combined
REJECTED_BYTES = 1_000  # the assumed size of a rejected text
Batches = Iterator[pa.RecordBatch]


class Input(NamedTuple):
    """Tuples of a side, and the texts that could not be read as tuples."""

    side: int
    tuples: pa.RecordBatch
    rejected: Sequence[Rejected] = ()


class Numbered(NamedTuple):
    """A chunk with a number for each of its tuples, int64[n], and for each rejected text, int64[r].
    The number decides the partition of what has no key, so that every attempt decides alike."""

    chunk: Chunk
    tuples: np.ndarray
    rejected: np.ndarray


class TaskFailed(SemistreamError):
    """A task refused its part of a micro-batch; the message says why."""


@dataclass(frozen=True)
class Side:
    """A reader of a stream that also says which partition a tuple belongs to."""

    number: int
    placement: Placement
    reader: Reader | None

    def files(self, paths: Sequence[str]) -> Iterator[Numbered]:
        """Read local files; small ones are combined. A tuple's number is its place in its file."""
        if paths:
            assert self.reader is not None
            source = self.reader.open()
            yield from together((_by_place(chunk) for path in paths
                                 for chunk in source.read(Path(path))), self.reader.schema)

    def place_files(self, paths: Sequence[str]) -> Batches:
        """Yield the tuples of local files as messages to their partitions."""
        return self._placed(self.files(paths))

    def place_rows(self, batches: Batches) -> Batches:
        """Yield rows that Spark brings as messages to their partitions. A row's number is a hash of
        it."""
        names = self.placement.stream.names
        rows = (batch.rename_columns(names).cast(self.placement.stream) for batch in batches)
        flat = [f.name for f in self.placement.stream if not pa.types.is_nested(f.type)]
        return self._placed(Numbered(Chunk(b, []), _hashes(b.select(flat)), NOTHING)
                            for b in rows)

    def place_values(self, batches: Batches) -> Batches:
        """Yield tuples as messages to their partitions, from records whose value is one JSON object
        each. A record's number is a hash of it."""
        assert self.reader is not None
        source = self.reader.open()
        assert isinstance(source, JsonSource)

        def read() -> Iterator[Numbered]:
            for batch in batches:
                hashes, chunk = _hashes(batch), source.parse(batch.column(0))
                yield Numbered(chunk, hashes[chunk.lines - 1],
                               hashes[[r.line - 1 for r in chunk.rejected]])

        return self._placed(read())

    def place_contents(self, batches: Batches) -> Batches:
        """Yield the tuples of files on another file system as messages to their partitions.
        batches: path, content."""
        assert self.reader is not None
        source = self.reader.open()

        def read() -> Iterator[Numbered]:
            for batch in batches:
                for path, content in zip(*batch.columns, strict=True):
                    uri = path.as_py()
                    with tempfile.TemporaryDirectory(dir=task_directory()) as directory:
                        copy = Path(directory) / Path(plain_path(uri)).name
                        copy.write_bytes(content.as_buffer())
                        for chunk in source.read(copy):
                            rejected = [r._replace(file=uri) for r in chunk.rejected]
                            yield _by_place(chunk._replace(rejected=rejected))

        return self._placed(read())

    def of_partition(self, partition: int, numbered: Numbered) -> Input:
        """Return the tuples and rejected texts that belong to one partition."""
        tuples = self.placement.only(partition, numbered.chunk.rows, numbered.tuples)
        return Input(self.number, tuples, self._rejected(numbered).get(partition, ()))

    def _rejected(self, numbered: Numbered) -> dict[int, list[Rejected]]:
        """Return the rejected texts by partition."""
        out: dict[int, list[Rejected]] = {}
        of = self.placement.of_numbers(numbered.rejected).tolist()
        for p, rejected in zip(of, numbered.chunk.rejected, strict=True):
            out.setdefault(p, []).append(rejected)
        return out

    def _placed(self, chunks: Iterator[Numbered]) -> Batches:
        """Yield messages. An error is sent to all partitions, so that none of them is loaded."""
        try:
            for numbered in chunks:
                placed = [(p, TUPLES, rows.serialize().to_pybytes()) for p, rows
                          in self.placement.split(numbered.chunk.rows, numbered.tuples)]
                placed += [(p, REJECTED, json.dumps(rejected).encode())
                           for p, rejected in self._rejected(numbered).items()]
                if placed:
                    yield self._messages(placed)
        except SemistreamError as e:
            text = str(e).encode()
            yield self._messages([(p, FAILED, text) for p in range(self.placement.count)])

    def _messages(self, placed: list[tuple[int, int, bytes]]) -> pa.RecordBatch:
        partitions, kinds, messages = zip(*placed, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(partitions, pa.int32()), pa.repeat(pa.scalar(self.number, pa.int32()),
                                                         len(placed)),
             pa.array(kinds, pa.int32()), pa.array(messages, pa.binary())], schema=COLUMNS)


def together(parts: Iterator[Numbered], schema: pa.Schema) -> Iterator[Numbered]:
    """Combine small parts, in their order, up to `GATHERED_BYTES`."""
    rows, held = Gathered(schema), list[Numbered]()
    for part in parts:
        size = part.chunk.rows.nbytes + REJECTED_BYTES * len(part.chunk.rejected)
        if held and rows.size + size > GATHERED_BYTES:
            yield _one(rows, held)
            held = []
        rows.add(part.chunk.rows)
        held.append(part)
    if held:
        yield _one(rows, held)


def _one(rows: Gathered, parts: Sequence[Numbered]) -> Numbered:
    batches = rows.take().combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)
    rejected = [each for part in parts for each in part.chunk.rejected]
    return Numbered(Chunk(batch, rejected), np.concatenate([p.tuples for p in parts]),
                    np.concatenate([p.rejected for p in parts]))


def _by_place(chunk: Chunk) -> Numbered:
    return Numbered(chunk, chunk.lines - 1, np.array([r.line for r in chunk.rejected], np.int64))


def _hashes(rows: pa.RecordBatch) -> np.ndarray:
    return row_hashes(rows).view(np.int64)


def inputs(batches: Batches, streams: Sequence[pa.Schema]) -> Iterator[Input]:
    """Read the messages of one partition. Raises TaskFailed for an error that a reading task has
    sent."""
    for batch in batches:
        for _, side, kind, message in zip(*batch.columns, strict=True):
            number, data = side.as_py(), message.as_py()
            if kind.as_py() == FAILED:
                raise TaskFailed(data.decode())
            if kind.as_py() == REJECTED:
                rejected = [Rejected(*r) for r in json.loads(data)]
                yield Input(number, pa.RecordBatch.from_pylist([], streams[number]), rejected)
            else:
                yield Input(number, pa.ipc.read_record_batch(pa.py_buffer(data), streams[number]))


def shares(files: Sequence[Sequence[str]], sizes: Callable[[str], int],
           count: int) -> list[list[list[str]]]:
    """Divide the files of each side among so many tasks, the largest first: [task][side] paths."""
    out = [[list[str]() for _ in files] for _ in range(count)]
    loads = [0] * count
    every = [(sizes(path) + 1, side, path) for side, paths in enumerate(files) for path in paths]
    for size, side, path in sorted(every, reverse=True):
        task = loads.index(min(loads))
        out[task][side].append(path)
        loads[task] += size
    return out
