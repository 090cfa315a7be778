"""The assignment of buckets of R, and of stream tuples, to P operators.

A stream that is joined with several R needs a part of each at one operator. The *Shares* algorithm
(F. N. Afrati, J. D. Ullman: *Optimizing Joins in a Map-Reduce Environment*, EDBT 2010) arranges the
P partitions as a grid with an axis for each R that is split, P = P_1 x P_2 x ...: R_i is split into
P_i parts, and a tuple goes to the partition that has the parts of all its keys. So one exchange is
enough. An R without an axis is read whole by every operator. With one axis, P = P_1.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.compiled import njit
from semistream.keys import JoinKeys, bucket_of, buckets

DEALT = -1  # the owner of a bucket whose tuples are dealt to all parts in turn
EVERYWHERE = -1  # the partition of rows that go to all partitions


@dataclass(frozen=True)
class Axis:
    """An axis of the grid of partitions: an R that is split into parts.

    owners: the part that has each bucket of R, int[buckets]; DEALT for a bucket that all parts
    have; parts: P_i; stride: the difference between the numbers of two partitions that are
    neighbours on this axis, so that partition p has part p // stride % parts.
    """

    keys: JoinKeys  # in the column order by which R is bucketed
    owners: np.ndarray
    parts: int
    stride: int = 1

    def buckets(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the bucket of each tuple, int[n], -1 if its key is null."""
        codes, valid = self.keys.stream_codes(batch)
        return np.where(valid, buckets(codes, self.keys.exact, len(self.owners)), -1)


@dataclass(frozen=True)
class Placement:
    """The assignment of stream tuples to partitions.

    axes: of the grid of partitions; count: P, the product of their parts; mark: the column that
    marks rows as punctuations. Punctuations of more than one key go to every partition.
    """

    stream: pa.Schema
    axes: tuple[Axis, ...]
    count: int
    mark: str | None = None

    def partitions(self, batch: pa.RecordBatch, numbers: np.ndarray | None = None) -> np.ndarray:
        """Return the partition of each row, int32[n], or EVERYWHERE. On an axis where a tuple has
        no key, or one of a DEALT bucket, a hash of the row's number decides. numbers: int64[n], by
        default the index in the batch."""
        numbers = np.arange(batch.num_rows) if numbers is None else numbers
        of, keyed = self.of_numbers(numbers), np.ones(batch.num_rows, bool)
        for axis in self.axes:
            codes, valid = axis.keys.stream_codes(batch)
            _place(of, codes, valid, axis.keys.exact, axis.owners, axis.parts, axis.stride)
            keyed &= valid
        if self.mark in batch.schema.names:
            marks = batch.column(self.mark)
            if pa.types.is_boolean(marks.type):
                everywhere = pc.and_(pc.fill_null(marks, False), pa.array(~keyed))
            else:
                everywhere = pc.fill_null(pc.not_equal(marks, ""), False)
            of[everywhere.to_numpy(zero_copy_only=False)] = EVERYWHERE
        return of

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Return the partition, int32[n], of rows that are not tuples, by their number,
        int64[n]."""
        return buckets(numbers, True, self.count)

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
def _place(of, codes, valid, exact, owners, parts, stride):
    """Move each row along an axis to the part that has the bucket of its key. A row without a key,
    or of a DEALT bucket, stays where it is.

    in      codes int64[n], valid bool[n], owners int64[buckets]
    in/out  of int32[n]
    """
    for i in range(len(codes)):
        if valid[i]:
            part = owners[bucket_of(codes[i], exact, len(owners))]
            if part != DEALT:
                of[i] += (part - of[i] // stride % parts) * stride


def share_out(tuples: np.ndarray, parts: int) -> np.ndarray:
    """Return the owner of each bucket of R, int[buckets], given the stream tuples of each bucket.

    The buckets are assigned by size, the largest first, each to the part with the fewest tuples so
    far (Graham's LPT rule). A bucket with more tuples than a part's share, such as the bucket of a
    very frequent key, is dealt to all parts if the slowest one then has less to do. All of them
    must then read that bucket of R.
    """
    fullest, total = np.argsort(-tuples, kind="stable"), tuples.sum()
    plans = []
    for dealt in range(parts):
        owners = np.full(len(tuples), DEALT)
        heap = [(0, p) for p in range(parts)]
        for bucket in fullest[dealt:]:
            load, owner = heap[0]
            owners[bucket] = owner
            heapq.heapreplace(heap, (load + int(tuples[bucket]), owner))
        plans.append(
            (loads(owners, tuples, parts).max() / total + dealt / len(tuples), dealt, owners)
        )
    return min(plans)[2]


def loads(owners: np.ndarray, tuples: np.ndarray, parts: int) -> np.ndarray:
    """Return the number of tuples of each part, float[parts]."""
    dealt = owners == DEALT
    return (
        np.bincount(owners[~dealt], tuples[~dealt], minlength=parts) + tuples[dealt].sum() / parts
    )
