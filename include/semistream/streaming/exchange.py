"""The exchange of tuples between the tasks that read them and the tasks that join them. Tuples are
sent as Arrow messages, by partition, through Spark's shuffle, which sees only bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from semistream.errors import SemistreamError
from semistream.files.source import Rejected
from semistream.partitioning import Placement
from semistream.streaming.sources.contract import Splits
from semistream.streaming.sources.numbered import Numbered

PLACED = "partition INT, side INT, kind INT, message BINARY"
TUPLES, REJECTED, FAILED = range(3)  # kinds of messages
COLUMNS = pa.schema(
    [
        ("partition", pa.int32()),
        ("side", pa.int32()),
        ("kind", pa.int32()),
        ("message", pa.binary()),
    ]
)
Batches = Iterator[pa.RecordBatch]


class Input(NamedTuple):
    """Tuples of a side, and the texts that could not be read as tuples."""

    side: int
    tuples: pa.RecordBatch
    rejected: Sequence[Rejected] = ()


class TaskFailed(SemistreamError):
    """A task refused its part of a micro-batch; the message says why."""


@dataclass(frozen=True)
class Side:
    """A side of the join, and the placement that assigns a tuple to a partition."""

    number: int
    placement: Placement

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

    def messages(self, chunks: Iterator[Numbered]) -> Batches:
        """Yield batches of messages, which carry tuples and rejected texts to each partition. If
        reading the chunks fails, the error is sent to all partitions, so that none of them is
        loaded."""
        try:
            for numbered in chunks:
                placed = [
                    (p, TUPLES, rows.serialize().to_pybytes())
                    for p, rows in self.placement.split(numbered.chunk.rows, numbered.tuples)
                ]
                placed += [
                    (p, REJECTED, json.dumps(rejected).encode())
                    for p, rejected in self._rejected(numbered).items()
                ]
                if placed:
                    yield self._messages(placed)
        except SemistreamError as e:
            text = str(e).encode()
            yield self._messages([(p, FAILED, text) for p in range(self.placement.count)])

    def _messages(self, placed: list[tuple[int, int, bytes]]) -> pa.RecordBatch:
        partitions, kinds, messages = zip(*placed, strict=True)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(partitions, pa.int32()),
                pa.repeat(pa.scalar(self.number, pa.int32()), len(placed)),
                pa.array(kinds, pa.int32()),
                pa.array(messages, pa.binary()),
            ],
            schema=COLUMNS,
        )


def read_messages(batches: Batches, streams: Sequence[pa.Schema]) -> Iterator[Input]:
    """Read the messages for one partition. Raises TaskFailed for an error that a reading task has
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


def shares(exchanged: Mapping[int, Splits[Any]], count: int) -> list[list[tuple[int, Splits[Any]]]]:
    """Divide the splits of each side among several tasks, the largest first. Return the shares,
    each as a list of (side, its splits)."""
    out = [{side: list[Any]() for side in exchanged} for _ in range(count)]
    sizes = [0] * count
    every = [
        (max(split.size, 0) + 1, side, split)
        for side, each in exchanged.items()
        for split in each.splits
    ]
    for size, side, split in sorted(every, key=lambda each: each[0], reverse=True):
        task = sizes.index(min(sizes))
        out[task][side].append(split)
        sizes[task] += size
    return [
        [
            (side, replace(exchanged[side], splits=splits))
            for side, splits in share.items()
            if splits
        ]
        for share in out
    ]
