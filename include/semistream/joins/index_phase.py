"""The disk-probing phase of the index-based joins, which HYBRIDJOIN brought: R is read where the
index leads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from semistream.joins.disk_partition import DiskPartition
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_table.by_key import Span


class IndexReader:
    """Reads partitions of R by their numbers, which the index gives for a key."""

    def __init__(self, spec: JoinSpec):
        self.spec, self.master = spec, spec.master
        self.partitions = 0  # read so far

    def read(self, span: Span, following: Span) -> Iterator[DiskPartition]:
        """READ the partitions of the span. following: what is thought to be read next."""
        self.master.prefetch([*range(*span), *range(*following)], self.spec.fetched)
        for number in range(*span):
            yield DiskPartition(self.spec, number)
        self.partitions += span[1] - span[0]

    @property
    def passes(self) -> float:
        """How often as many partitions were read as R has, with the share of the next time."""
        return self.partitions / max(self.master.partition_count, 1)

    @property
    def cycles(self) -> int:
        """How often as many partitions were read as R has."""
        return self.partitions // max(self.master.partition_count, 1)

    def values(self) -> dict[str, Any]:
        """For a state."""
        return {"partitions": self.partitions}

    def restore(self, values: dict[str, Any]) -> None:
        self.partitions = values["partitions"]
