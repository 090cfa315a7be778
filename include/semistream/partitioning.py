"""Which buckets of R, and which stream tuples, belong to which of P operators."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.compiled import njit
from semistream.keys import JoinKeys, bucket_of, buckets

DEALT = -1  # the owner of a bucket whose tuples are dealt out to all


@dataclass(frozen=True)
class Placement:
    """Which partition a stream tuple belongs to. owners: that of each bucket of R, int[buckets], or
    DEALT."""

    stream: pa.Schema
    keys: JoinKeys  # in the order that R is bucketed by
    owners: np.ndarray
    count: int  # P

    def buckets(self, batch: pa.RecordBatch) -> np.ndarray:
        """int[n], -1 where a key is null."""
        codes, valid = self.keys.stream_codes(batch)
        return np.where(valid, buckets(codes, self.keys.exact, len(self.owners)), -1)

    def partitions(self, batch: pa.RecordBatch, first: int = 0) -> np.ndarray:
        """int[n]. What is dealt out, as are tuples without a key, goes by a hash of its row number.
        first: that of the first."""
        codes, valid = self.keys.stream_codes(batch)
        return _partitions(codes, valid, self.keys.exact, self.owners, self.count, first)

    def only(self, partition: int, batch: pa.RecordBatch, first: int = 0) -> pa.RecordBatch:
        """The tuples of a partition, in their order."""
        if self.count == 1:
            return batch
        return batch.take(pa.array(np.flatnonzero(self.partitions(batch, first) == partition)))


@njit(cache=True)
def _partitions(codes, valid, exact, owners, count, first):
    """The partition of each key code, int32[n]: its bucket's owner; where that is DEALT or the key
    is null, by the row's number from `first` on.

    in      codes int64[n], valid bool[n], owners int32[buckets]
    """
    out = np.empty(len(codes), np.int32)
    for i in range(len(codes)):
        owner = owners[bucket_of(codes[i], exact, len(owners))] if valid[i] else DEALT
        out[i] = owner if owner != DEALT else bucket_of(first + i, True, count)
    return out


def share_out(tuples: np.ndarray, partitions: int) -> np.ndarray:
    """The owner of each bucket of R, int[buckets], by how many stream tuples come to it.

    The fullest bucket first, each to the partition that has the fewest tuples so far (Graham's LPT
    rule). A bucket with more than a partition's share of the tuples, as a very frequent key's, is
    dealt out where the slowest has less to do for it: all partitions then read that bucket of R
    too.
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
        plans.append((loads(owners, tuples, partitions).max() / total + dealt / len(tuples),
                      dealt, owners))
    return min(plans)[2]


def loads(owners: np.ndarray, tuples: np.ndarray, partitions: int) -> np.ndarray:
    """How many tuples each partition gets, float[partitions]."""
    dealt = owners == DEALT
    return np.bincount(owners[~dealt], tuples[~dealt],
                       minlength=partitions) + tuples[dealt].sum() / partitions
