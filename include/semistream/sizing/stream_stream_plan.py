"""The plan of P operators that join two streams, and the assignment of tuples to the operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError, NotEnoughMemory, check_name
from semistream.job import SIDES
from semistream.keys import JoinKeys, resolve_keys
from semistream.partitioning import Axis, Placement
from semistream.sizing.plan import JoinPlan

if TYPE_CHECKING:  # an app of one stream does not need it
    from semistream.stream_joins import StreamStreamJoin, Within

BUCKETS = 4096  # buckets of join keys, assigned to the partitions; also the most partitions


@dataclass(frozen=True)
class StreamStreamPlan(JoinPlan):
    """The plan of a join of two streams."""

    # ``job.SideSpec.promises`` of each side
    promises: tuple[dict[str, Any], ...] = ({}, {})
    within: dict[str, Any] | None = None  # ``job.WithinSpec``

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return super().from_json({**values, "promises": tuple(values["promises"])})

    def mark(self, side: int) -> str | None:
        """Return the column that marks rows as punctuations. It is not a column of the tuples."""
        return self.promises[side].get("punctuation")

    def tuples(self, streams: tuple[pa.Schema, ...]) -> tuple[pa.Schema, ...]:
        """Return the schemas of the streams' tuples, without the columns that mark punctuations."""
        return tuple(
            pa.schema([f for f in stream if f.name != self.mark(side)])
            for side, stream in enumerate(streams)
        )

    def open(self, streams: tuple[pa.Schema, ...]) -> StreamStreamJoin:
        """Open the operator of one partition. Raises ConfigError for settings that cannot work; it
        names the M of all partitions together."""
        from semistream.stream_joins import open_stream_join

        streams = self.tuples(streams)
        if self.algorithm == "xjoin" and any(self.promises):
            raise ConfigError(
                "algorithm",
                "must be pjoin where a stream makes promises",
                "xjoin",
                "Choose pjoin, or leave these out: unique, clustered, watermark, punctuation.",
            )
        try:
            return open_stream_join(
                self.algorithm,
                memory=self.memory,
                left=streams[0],
                right=streams[1],
                on=list(self.on),
                join_type=self.join_type,
                within=self._within(streams),
                parameters=self.parameters,
            )
        except NotEnoughMemory as e:
            raise self.not_enough(e) from None

    def _within(self, streams: tuple[pa.Schema, ...]) -> Within | None:
        from semistream.stream_joins import Within

        if self.within is None:
            return None
        columns = [self.within[side] for side in SIDES]
        for side, (column, stream) in enumerate(zip(columns, streams, strict=True)):
            check_name(
                f"within.{SIDES[side]}", "must be a column of the stream", column, stream.names
            )
        kind = streams[0].field(columns[0]).type
        return Within(columns[0], columns[1], distance(self.within["distance"], kind))

    def placement(self, streams: Sequence[pa.Schema], side: int = 0) -> Placement:
        """Return the assignment of a side's tuples to partitions. Tuples with the same key go to
        the same partition on both sides."""
        keys = resolve_keys(streams[0], streams[1], list(self.on), SIDES)
        mine = JoinKeys(keys.master if side else keys.stream, keys.master, keys.types)
        owners = np.arange(BUCKETS) % self.partitions
        axis = Axis(mine, owners, self.partitions)
        return Placement(streams[side], (axis,), self.partitions, self.mark(side))


def distance(value: float, kind: pa.DataType) -> timedelta | int:
    """Convert a number to a distance between times of this type."""
    return int(value) if pa.types.is_integer(kind) else timedelta(seconds=value)
