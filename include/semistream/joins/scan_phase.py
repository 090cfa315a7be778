"""The disk-probing phase of the scan-based joins, which MESHJOIN introduced: R is read cyclically,
partition by partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.contract import SemiStreamJoin
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import Part
from semistream.joins.stream_table.by_chunk import ByChunk
from semistream.settings import Settings

# Orders of magnitude, in seconds: the fixed cost of an iteration; the cost of a disk tuple; that of
# a stream tuple.
ITERATION_COST, TUPLE_COST, STREAM_COST = 400e-6, 60e-9, 300e-9


def largest_chunk(disk_tuples: float) -> float:
    """Return the largest number of stream tuples for which an iteration over `disk_tuples` disk
    tuples should wait. At this number the iteration's fixed cost is a fifth of the tuples' cost, so
    that waiting for more tuples would gain little."""
    return 5 * (ITERATION_COST + disk_tuples * TUPLE_COST) / STREAM_COST


class ScanParameters(Settings):
    """The parameters of a join that scans R."""

    disk_tuples: int = Field(
        0,
        ge=0,
        description="b, master tuples read per iteration; 0: chosen from M by the cost model",
    )


class Slice:
    """A part of a disk partition; empty if R has no partitions."""

    def __init__(self, partition: DiskPartition | None, first: int = 0, last: int = 0):
        self._partition, self._first = partition, first
        self.codes = partition.codes[first:last] if partition else np.empty(0, np.int64)

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        """Return the payload of these rows of the slice, given in ascending order."""
        assert self._partition is not None
        return self._partition.take(rows + self._first if self._first else rows)

    @property
    def payload(self) -> pa.RecordBatch:
        """The payload of all rows, in the order of ``codes``."""
        assert self._partition is not None
        return self._partition.payload.slice(self._first, len(self.codes))


class Scan(Part):
    """A cyclic reader of R. slices: q, the number of slices of a partition; each slice is joined in
    a separate iteration."""

    def __init__(self, spec: JoinSpec, slices: int = 1):
        self.spec, self.master, self.slices = spec, spec.master, slices
        self.position = self.cycles = 0  # iterations of this R-cycle; R-cycles
        self._partition: DiskPartition | None = None  # in the disk buffer

    @property
    def chunks(self) -> int:
        """Iterations of an R-cycle: N q, at least 1. An empty R takes one iteration."""
        return max(self.master.partition_count * self.slices, 1)

    @property
    def largest_w(self) -> int:
        """The largest number of stream tuples for which an iteration should wait."""
        return int(largest_chunk(self.master.partition_tuples / self.slices))

    @property
    def passes(self) -> float:
        """R-cycles so far, including the finished share of the present one."""
        return self.cycles + self.position / self.chunks

    @property
    def ended_cycle(self) -> bool:
        """Whether the last read completed an R-cycle."""
        return self.position == 0 and self.cycles > 0

    def read(self) -> tuple[Slice, int]:
        """READ the next partition, or the next slice of the partition in the disk buffer. Return
        (slice, disk tuples read)."""
        number, piece = divmod(self.position, self.slices)
        self.position += 1
        if self.position >= self.chunks:
            self.position, self.cycles = 0, self.cycles + 1
        if not self.master.partition_count:
            return Slice(None), 0
        read = 0
        if self._partition is None or self._partition.number != number:
            ahead = [(number + i) % self.master.partition_count for i in range(self.master.buffers)]
            self.master.prefetch(ahead, self.spec.fetched)
            self._partition = DiskPartition(self.spec, number)
            read = len(self._partition.codes)
        partition, count = self._partition, len(self._partition.codes)
        if piece == self.slices - 1:
            self._partition = None
        return Slice(
            partition, count * piece // self.slices, count * (piece + 1) // self.slices
        ), read

    def values(self) -> dict[str, Any]:
        return {"disk buffer": {"position": self.position, "cycles": self.cycles}}

    def restore(self, tables: dict[str, pa.Table], values: dict[str, Any]) -> None:
        self.position, self.cycles = (values["disk buffer"][n] for n in ("position", "cycles"))


class Scanning(SemiStreamJoin):
    """A join that scans R. It holds its waiting tuples by chunk. slices: q, see `Scan`."""

    h_s: ByChunk

    def __init__(self, spec: JoinSpec, parameters: ScanParameters, slices: int = 1):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.scan = Scan(self.spec, slices)
        self.parts = (self.scan,)
        self.h_s = ByChunk(self.layout, self.scan.chunks, self.scan.largest_w)

    @property
    def passes(self) -> float:
        return self.scan.passes
