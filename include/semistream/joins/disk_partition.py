"""Disk partitions, which are the units in which R is read, and their tuples by key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.spec import JoinSpec
from semistream.joins.stored_types import as_stored

# bytes that can be concatenated in the time that taking rows from one more page costs
TAKEN_BYTES = 128 << 10


class DiskPartition:
    """A disk partition. Its key codes are read at once, its payload on first use."""

    def __init__(self, spec: JoinSpec, number: int):
        self._spec, self.number = spec, number
        self.codes = spec.master.read_codes(number)
        self._pages: list[pa.RecordBatch] = []

    def firsts(self, span: tuple[int, int]) -> np.ndarray:
        """Return the first partition that may hold each tuple's key, int32[n]. All partitions of
        the span are read together; if this is the only partition of the span, it is the first for
        all tuples."""
        if span[1] - span[0] == 1:
            return np.full(len(self.codes), self.number, np.int32)
        return np.ascontiguousarray(self._spec.master.partitions_of(self.codes)[:, 0])

    def read(self) -> list[pa.RecordBatch]:
        """Return the partition's payload, page by page."""
        if not self._pages:
            pages = self._spec.master.pages(self.number, self._spec.fetched)
            self._pages = [as_stored(p, self._spec.fetched_schema) for p in pages]
        return self._pages

    @property
    def payload(self) -> pa.RecordBatch:
        """The payload in one piece, in the order of ``codes``."""
        if len(self.read()) > 1:
            self._pages = [pa.concat_batches(self._pages)]
        return self._pages[0]

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        """Return the payload of these rows, which are in ascending order."""
        touched = min(len(self.read()), len(rows))
        if len(self._pages) == 1 or touched * TAKEN_BYTES > self._spec.master.partition_bytes:
            return self.payload.take(pa.array(rows))
        ends = np.cumsum([0, *(p.num_rows for p in self._pages)])
        cuts = np.searchsorted(rows, ends)
        return pa.concat_batches(
            [
                page.take(pa.array(rows[a:b] - first))
                for page, first, a, b in zip(self._pages, ends, cuts, cuts[1:], strict=False)
                if b > a or page is self._pages[0]
            ]
        )


def tuples_of(
    spec: JoinSpec, keys: np.ndarray
) -> Iterator[tuple[DiskPartition, np.ndarray, np.ndarray]]:
    """Yield the tuples of R that have these key codes, as (partition, rows, index). rows: int64[n],
    ascending positions in the partition; index: int64[n], the position of each row's key in `keys`.
    """
    if not len(keys):
        return
    spans = spec.master.partitions_of(keys)
    value, nth = expand(spans[:, 1] - spans[:, 0])
    number = spans[value, 0] + nth
    order = np.lexsort((keys[value], number))
    value, number = value[order], number[order]
    cuts = np.flatnonzero(np.diff(number, prepend=-1, append=-1))
    for a, b in itertools.pairwise(cuts):
        partition, mine = DiskPartition(spec, int(number[a])), value[a:b]
        codes = partition.codes
        sorter = None if (codes[1:] >= codes[:-1]).all() else np.argsort(codes, kind="stable")
        first, last = (
            np.searchsorted(codes, keys[mine], side, sorter=sorter) for side in ("left", "right")
        )
        which, nth = expand(last - first)
        rows, index = first[which] + nth, mine[which]
        if sorter is not None:
            rows = sorter[rows]
            order = np.argsort(rows)
            rows, index = rows[order], index[order]
        yield partition, rows, index


def expand(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Repeat each index as often as its count says, and number the repetitions of each. For counts
    [2, 0, 1] return ([0, 0, 2], [0, 1, 0])."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
