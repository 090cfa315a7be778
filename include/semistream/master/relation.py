"""The interface of R that a join uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from semistream.keys import JoinKeys


class MasterRelation(Protocol):
    """R, cut into partitions of at most d tuples. The disk buffer holds one of them.

    A partition's key codes can be read without its payload, so that payload is fetched only if some
    tuple matched.
    """

    name: str
    version: str
    keys: JoinKeys  # of the master side; ``keys.master`` are R's join columns
    schema: pa.Schema  # R's columns, without the stored key codes
    tuple_count: int  # R_t
    tuple_bytes: float  # v_R of all columns, bytes on disk
    partition_count: int  # N
    partition_tuples: int  # d, the most tuples that one partition has
    unique: bool  # whether no two tuples have the same key
    buffers: int = 1  # partitions held at a time: 2 if one is read ahead
    partition_bytes: int  # most bytes of these partitions, key codes and all columns
    bytes_read: int  # so far

    def with_partition(self, tuples: int) -> MasterRelation:
        """Return the same R cut into partitions of about `tuples` tuples. The number is rounded to
        what the storage allows, at least one page."""

    def read_codes(self, partition: int) -> np.ndarray:
        """Return the key codes of a partition's tuples, int64[n]. Tuples with a null key are not in
        R."""

    def read(self, partition: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the named columns of a partition's tuples, in the order of ``read_codes``."""
        pages = self.pages(partition, columns)
        return pa.concat_batches(pages) if len(pages) > 1 else pages[0]

    def pages(self, partition: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Return the same columns as ``read``, as the pieces in which they were read. There is at
        least one piece."""

    def prefetch(self, partitions: Sequence[int], columns: Sequence[str]) -> None:
        """Announce the next reads: these columns of at most ``buffers`` of these partitions, in
        this order. Other partitions that were read ahead are dropped. Call this method before the
        first of the partitions is read."""
        return None

    def partitions_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the partitions that may hold each key code, as ranges int32[n, 2] (first, last +
        1). A range is empty if no partition can hold the code.

        A range is longer than one if a key's tuples cross a partition's border.
        """

    def close(self) -> None:
        return None
