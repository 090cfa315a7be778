"""A fact stream with foreign keys of several dimensions, and the expected result of their join.

Dimension d has the column key{d}, with the keys 1 to its size, and WORDS columns of payload, d{d}_0
and so on. A sale has a key of each dimension, which follow Zipf's law independently of each other,
an id and a quantity. One sale in ABSENT has a key that dimension 0 lacks, and is not in the result.
Every word is a function of the key, so that the checksum of the result is known without joining.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.data import ROW_GROUPS, STEP, Answer, Files, Stream
from benchmarks.nexmark_data import random_words
from semistream.master.publish import publish_snapshot
from semistream.workloads.zipf import ZipfKeys

WORDS = 4
ABSENT = 20


@dataclass(frozen=True)
class DimensionData:
    """A dimension, by its number and its number of tuples."""

    number: int  # d
    tuples: int

    @property
    def key(self) -> str:
        return f"key{self.number}"

    @property
    def added(self) -> list[str]:
        """The columns of payload that a join adds."""
        return [f"d{self.number}_{i}" for i in range(WORDS)]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, pa.int64()) for name in (self.key, *self.added)])

    def payload(self, keys: np.ndarray) -> list[pa.Array]:
        """Return the columns of payload of the tuples with these keys, int64[n] each."""
        salted = 8 * keys + self.number
        return [pa.array(random_words(salted, i).view(np.int64)) for i in range(WORDS)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the dimension in the order of its keys."""
        for first in range(1, self.tuples + 1, STEP):
            keys = np.arange(first, min(first + STEP, self.tuples + 1))
            yield pa.record_batch([pa.array(keys), *self.payload(keys)], schema=self.schema)

    def parquet(self, files: Files) -> Path:
        def make(at: Path) -> None:
            at.mkdir()
            with pq.ParquetWriter(at / "part-00000.parquet", self.schema) as writer:
                for batch in self.batches():
                    writer.write_batch(batch)

        return files.made(f"star-{self.number}-{self.tuples}.parquet", make)

    def snapshot(self, files: Files) -> Path:
        """Return the root of the dimension's master snapshot."""
        name = f"d{self.number}"
        return files.made(
            f"star-{self.number}-{self.tuples}-snapshot",
            lambda at: publish_snapshot(self.batches(), self.schema, at, name, [self.key]),
        )


@dataclass(frozen=True)
class Sales(Stream):
    """The stream of sales 0, 1, 2, …; ``master`` is the size of dimension 0, others: the sizes of
    the other dimensions."""

    others: tuple[int, ...] = ()

    @property
    def dimensions(self) -> list[DimensionData]:
        return [DimensionData(*d) for d in enumerate((self.master, *self.others))]

    @property
    def schema(self) -> pa.Schema:
        keys = [(d.key, pa.int64()) for d in self.dimensions]
        return pa.schema([*keys, ("id", pa.int64()), ("quantity", pa.int32())])

    def batch(self, first: int, rows: int) -> pa.RecordBatch:
        ids = np.arange(first, first + rows, dtype=np.int64)
        keys = [
            ZipfKeys(d.tuples, self.skew, seed=d.number + 1, scattered=True).draw(first, rows)
            for d in self.dimensions
        ]
        keys[0] = np.where(ids % ABSENT == 0, keys[0] + self.master, keys[0])
        quantities = pa.array((ids % 97).astype(np.int32))
        return pa.record_batch([*map(pa.array, keys), pa.array(ids), quantities], self.schema)

    def answer(self) -> Facts:
        """Return an empty answer."""
        added = (name for d in self.dimensions for name in d.added)
        return Facts(columns=(*self.schema.names, *added))

    def expected(self, tuples: int) -> Facts:
        answer = self.answer()
        for first in range(0, tuples, STEP):
            sales = self.batch(first, min(STEP, tuples - first))
            sales = sales.filter(pc.less_equal(sales.column("key0"), self.master))
            answer.add(self.joined(sales))
        return answer

    def joined(self, sales: pa.RecordBatch) -> pa.RecordBatch:
        """Return sales with the payload of all dimensions."""
        columns = dict(zip(sales.schema.names, sales.columns, strict=True))
        for d in self.dimensions:
            columns |= zip(d.added, d.payload(sales.column(d.key).to_numpy()), strict=True)
        return pa.RecordBatch.from_pydict(columns)

    def parquet(self, files: Files, count: int, rows: int) -> Path:
        """Return the directory of the sales as `count` Parquet files of `rows` tuples."""

        def make(at: Path) -> None:
            at.mkdir()
            for number in range(count):
                pq.write_table(
                    pa.Table.from_batches([self.batch(number * rows, rows)]),
                    at / f"part-{number:05d}.parquet",
                    row_group_size=max(rows // ROW_GROUPS, 1),
                )

        sizes = "-".join(str(d.tuples) for d in self.dimensions)
        return files.made(f"star-sales-{sizes}-{self.skew:g}-{count}x{rows}.parquet", make)


@dataclass
class Facts(Answer):
    """The number of joined rows, and the sum over them of a 64-bit hash of their columns. Other
    columns are ignored."""

    columns: tuple[str, ...] = field(default=(), repr=False)

    def _add(self, batch: pa.RecordBatch) -> None:
        hashes = np.zeros(batch.num_rows, np.uint64)
        for name in self.columns:
            column = batch.column(name)
            if column.null_count:
                raise ValueError(f"the joined column {name} has {column.null_count} nulls")
            words = column.cast(pa.int64()).to_numpy().view(np.uint64)
            hashes = (hashes ^ words) * np.uint64(0xD1B54A32D192ED03)
            hashes ^= hashes >> np.uint64(29)
        self.rows += batch.num_rows
        self.checksum = (self.checksum + int(hashes.sum(dtype=np.uint64))) % 2**64


def of_two(sales: Sales) -> Sales:
    """Return sales with only the first two foreign keys."""
    return replace(sales, others=sales.others[:1])
