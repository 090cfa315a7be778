"""The assignment of buckets of R, and of stream tuples, to P operators."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.compiled import njit
from semistream.keys import JoinKeys, bucket_of, buckets

DEALT = -1  # the owner of a bucket whose tuples are dealt to all partitions in turn
EVERYWHERE = -1  # the partition of rows that go to all partitions


@dataclass(frozen=True)
class Placement:
    """The assignment of stream tuples to partitions.

    owners: the partition of each bucket of R, int[buckets]; DEALT for a bucket whose tuples are
    distributed over all partitions; mark: the column that marks rows as punctuations. Punctuations
    of more than one key go to every partition.
    """

    stream: pa.Schema
    keys: JoinKeys  # in the column order by which R is bucketed
    owners: np.ndarray
    count: int  # P
    mark: str | None = None

    def buckets(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the bucket of each tuple, int[n], -1 if its key is null."""
        codes, valid = self.keys.stream_codes(batch)
        return np.where(valid, buckets(codes, self.keys.exact, len(self.owners)), -1)

    def partitions(self, batch: pa.RecordBatch, numbers: np.ndarray | None = None) -> np.ndarray:
        """Return the partition of each row, int[n], or EVERYWHERE. Tuples of a DEALT bucket, and
        tuples without a key, are assigned by a hash of their number. numbers: int64[n], by default
        the index in the batch."""
        codes, valid = self.keys.stream_codes(batch)
        numbers = np.arange(batch.num_rows) if numbers is None else numbers
        of = _partitions(codes, valid, self.keys.exact, self.owners, self.count, numbers)
        if self.mark in batch.schema.names:
            marks = batch.column(self.mark)
            if pa.types.is_boolean(marks.type):
                everywhere = pc.and_(pc.fill_null(marks, False), pa.array(~valid))
            else:
                everywhere = pc.fill_null(pc.not_equal(marks, ""), False)
            of[everywhere.to_numpy(zero_copy_only=False)] = EVERYWHERE
        return of

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Return the partition, int32[n], of rows that are not tuples, by their number,
        int64[n]."""
        return _partitions(
            numbers, np.zeros(len(numbers), bool), True, self.owners, self.count, numbers
        )

    def only(self, partition: int, batch: pa.RecordBatch, numbers: np.ndarray) -> pa.RecordBatch:
        """Return the tuples of a partition, in the order of the batch."""
        if self.count == 1:
            return batch
        of = self.partitions(batch, numbers)
        return batch.take(pa.array(np.flatnonzero((of == partition) | (of == EVERYWHERE))))

    def split(
        self, batch: pa.RecordBatch, numbers: np.ndarray
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (partition, its tuples in the order of the batch) for each partition that has
        tuples."""
        of = self.partitions(batch, numbers)
        everywhere = np.flatnonzero(of == EVERYWHERE)
        order = np.argsort(of, kind="stable")[len(everywhere) :]
        ends = np.cumsum(np.bincount(of[order], minlength=self.count))
        sorted_ = batch.take(pa.array(order))
        for p in range(self.count):
            start = ends[p - 1] if p else 0
            part = sorted_.slice(start, ends[p] - start)
            if len(everywhere):
                rows = np.sort(np.concatenate([order[start : ends[p]], everywhere]))
                part = batch.take(pa.array(rows))
            if part.num_rows:
                yield p, part


@njit(cache=True)
def _partitions(codes, valid, exact, owners, count, numbers):
    """Return the partition of each key code, int32[n]: the owner of its bucket. If the owner is
    DEALT or the key is null, the row's number decides.

    in      codes int64[n], valid bool[n], owners int64[buckets], numbers int64[n]
    """
    out = np.empty(len(codes), np.int32)
    for i in range(len(codes)):
        owner = owners[bucket_of(codes[i], exact, len(owners))] if valid[i] else DEALT
        out[i] = owner if owner != DEALT else bucket_of(numbers[i], True, count)
    return out


def share_out(tuples: np.ndarray, partitions: int) -> np.ndarray:
    """Return the owner of each bucket of R, int[buckets], given the stream tuples of each bucket.

    The buckets are assigned by size, the largest first, each to the partition with the fewest
    tuples so far (Graham's LPT rule). A bucket with more tuples than a partition's share, such as
    the bucket of a very frequent key, is dealt to all partitions if the slowest partition then has
    less to do. All partitions must then read that bucket of R.
    """
    fullest, total = np.argsort(-tuples, kind="stable"), tuples.sum()
    plans = []
    for dealt in range(partitions):
        owners = np.full(len(tuples), DEALT)
        heap = [(0, p) for p in range(partitions)]
        for bucket in fullest[dealt:]:
            load, owner = heap[0]
            owners[bucket] = owner
            heapq.heapreplace(heap, (load + int(tuples[bucket]), owner))
        plans.append(
            (loads(owners, tuples, partitions).max() / total + dealt / len(tuples), dealt, owners)
        )
    return min(plans)[2]


def loads(owners: np.ndarray, tuples: np.ndarray, partitions: int) -> np.ndarray:
    """Return the number of tuples of each partition, float[partitions]."""
    dealt = owners == DEALT
    return (
        np.bincount(owners[~dealt], tuples[~dealt], minlength=partitions)
        + tuples[dealt].sum() / partitions
    )
