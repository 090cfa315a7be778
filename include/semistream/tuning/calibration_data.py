"""The data of a calibration: the first partitions of R, and stream tuples with keys from these
partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.joins.registry import REGISTRY
from semistream.joins.spec import Columns
from semistream.master.relation import MasterRelation
from semistream.sizing import open_join

DISK_BUFFERS = (1_024, 4_096, 16_384)  # sizes that are measured, in tuples
CHUNK = 65_536  # stream tuples processed at a time
CHUNKS = 12  # how many different chunks
LEAST_PIECE = 512  # stream tuples
PIECE = 16_384  # output rows of the stream tuples processed at a time


class Head:
    """The first partitions of R. Only these are used, so that measuring does not take longer for a
    larger R."""

    def __init__(self, master: MasterRelation, tuples: int):
        self.whole, self._tuples = master, tuples
        self.tuple_count = min(master.tuple_count, tuples)
        share = min(tuples / max(master.tuple_count, 1), 1.0)
        self.partition_count = max(round(master.partition_count * share), 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def with_partition(self, tuples: int) -> Head:
        return Head(self.whole.with_partition(tuples), self._tuples)


class Setting(NamedTuple):
    """The data and options of a measurement."""

    chunks: list[pa.RecordBatch]
    keys: pa.Table  # R's join columns
    master: Head
    on: Sequence[tuple[str, str]]
    columns: Columns
    clock: Callable[[], float]
    seconds: float
    pace: Callable[[], float]
    matches: float  # output rows per stream tuple of the chunks

    @classmethod
    def of(
        cls, master: Head, sample: pa.RecordBatch, on: Sequence[tuple[str, str]], **options: Any
    ) -> Setting:
        """Return a setting with CHUNKS chunks of the sample's tuples, which get keys of R. options:
        the values of the other fields."""
        keys, random = master_keys(master, on), np.random.default_rng(0)
        chunks = [
            with_keys(sample, keys, random.integers(0, keys.num_rows, CHUNK), on)
            for _ in range(CHUNKS)
        ]
        return cls(chunks, keys, master, on, matches=matches_of(master), **options)

    @property
    def piece(self) -> int:
        """The number of stream tuples that are processed at a time, so that they give about PIECE
        output rows."""
        return max(int(PIECE / self.matches), LEAST_PIECE)

    def open(self, algorithm: str, disk_tuples: int, memory: int, **more: int) -> Any:
        # a join with an index may read every partition of R
        master = self.master.whole if REGISTRY[algorithm].needs_index else self.master
        return open_join(
            algorithm,
            memory=memory,
            stream=self.chunks[0].schema,
            master=master,
            on=self.on,
            columns=self.columns,
            parameters={"disk_tuples": disk_tuples, **more},
        )


def master_keys(master: Head, on: Sequence[tuple[str, str]]) -> pa.Table:
    """Return R's join columns."""
    whole = master.with_partition(65_536)
    return pa.Table.from_batches(
        [whole.read(i, [m for _, m in on]) for i in range(whole.partition_count)]
    ).combine_chunks()


def with_keys(
    sample: pa.RecordBatch, keys: pa.Table, which: np.ndarray, on: Sequence[tuple[str, str]]
) -> pa.RecordBatch:
    """Return the sample's tuples, repeated as often as necessary, with keys of R, so that each
    tuple finds a match. keys: R's join columns; which: the row in ``keys`` for each tuple."""
    drawn = keys.take(pa.array(which))
    rows = sample.take(pa.array(np.arange(len(which)) % sample.num_rows))
    for stream, column in on:
        i = rows.schema.get_field_index(stream)
        rows = rows.set_column(
            i,
            rows.schema.field(i),
            pc.cast(drawn[column].combine_chunks(), rows.schema.field(i).type),
        )
    return rows


def matches_of(head: Head) -> float:
    """Return the average number of output rows for a stream tuple whose key is that of a random
    tuple of R."""
    codes = np.concatenate([head.read_codes(i) for i in range(head.partition_count)])
    _, counts = np.unique(codes, return_counts=True)
    return float(np.square(counts, dtype=np.float64).sum() / len(codes))
