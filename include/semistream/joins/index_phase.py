"""The disk-probing phase of the index-based joins, which HYBRIDJOIN introduced: the index
determines which partition of R is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pydantic import Field

from semistream.joins.contract import SemiStreamJoin
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import Part
from semistream.joins.stream_table.by_key import ByKey, Span
from semistream.joins.stream_table.by_partition import ByPartition
from semistream.settings import Settings


class IndexParameters(Settings):
    """The parameters of a join that reads R through its index."""

    disk_tuples: int = Field(
        0,
        ge=0,
        description="d, master tuples read per iteration; 0: chosen from M by the cost model",
    )


class IndexReader(Part):
    """A reader of R by numbers of disk partitions. The index gives the numbers for a key."""

    def __init__(self, spec: JoinSpec):
        self.spec, self.master = spec, spec.master
        self.partitions = 0  # partitions read so far

    def read(self, span: Span, following: Span) -> Iterator[DiskPartition]:
        """READ and yield the partitions of the span. following: the partitions to prefetch, because
        they will probably be read next."""
        self.master.prefetch([*range(*span), *range(*following)], self.spec.fetched)
        for number in range(*span):
            yield DiskPartition(self.spec, number)
        self.partitions += span[1] - span[0]

    @property
    def passes(self) -> float:
        """Partitions read so far, divided by the number of R's partitions."""
        return self.partitions / max(self.master.partition_count, 1)

    @property
    def cycles(self) -> int:
        """The number of complete R-cycles: the number of partitions read so far, divided by R's
        number of partitions and rounded down."""
        return self.partitions // max(self.master.partition_count, 1)

    def values(self) -> dict[str, Any]:
        return {"disk buffer": {"partitions": self.partitions}}

    def restore(self, tables: dict[str, pa.Table], values: dict[str, Any]) -> None:
        self.partitions = values["disk buffer"]["partitions"]


class Indexed(SemiStreamJoin):
    """A join that reads R through its index. Its H_S knows the age of its oldest tuple. buffer: the
    name under which the disk buffer reserves its part of M."""

    h_s: ByKey | ByPartition

    def __init__(self, spec: JoinSpec, parameters: IndexParameters, buffer: str = "disk buffer"):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve(buffer, self.master.partition_bytes)
        self.index = IndexReader(self.spec)
        self.parts = (self.index,)

    @property
    def passes(self) -> float:
        return self.index.passes

    def _is_due(self, passes: float, age: float) -> bool:
        return self.h_s.age >= age
