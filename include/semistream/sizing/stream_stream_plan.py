"""How P operators join two streams, and which of them a tuple belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semistream.config import SIDES
from semistream.errors import ConfigError, NotEnoughMemory
from semistream.keys import JoinKeys, resolve_keys
from semistream.partitioning import Placement

if TYPE_CHECKING:  # an app of one stream does without
    from semistream.stream_joins import StreamStreamJoin

BUCKETS = 4096  # of join keys, shared out to the partitions; also the most partitions


@dataclass(frozen=True)
class StreamStreamPlan:
    """What all partitions of a batch have in common; a batch begun with a plan is finished with
    it."""

    algorithm: str
    memory: int  # bytes of one partition, M/P
    join_type: str
    parameters: dict[str, Any]
    on: tuple[tuple[str, str], ...]  # (left column, right column)
    partitions: int  # P
    reason: str = ""  # why this algorithm
    version: str = ""  # no master data

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StreamStreamPlan:
        return cls(**{**values, "on": tuple((a, b) for a, b in values["on"])})

    def open(self, streams: tuple[pa.Schema, ...]) -> StreamStreamJoin:
        """The operator of one partition. Raises ConfigError for whatever cannot work, in terms of
        the M of all partitions."""
        from semistream.stream_joins import XJoin, stream_join_spec
        from semistream.stream_joins.events import Monitor

        if self.algorithm != "xjoin":
            raise ConfigError("algorithm", "must be xjoin", self.algorithm,
                              "It joins two streams.")
        try:
            monitor = Monitor(**self.parameters)
        except TypeError as e:
            raise ConfigError("parameters", "must be those of the algorithm", self.parameters,
                              str(e)) from None
        left, right = streams
        try:
            return XJoin(stream_join_spec(self.algorithm, self.memory, left, right, list(self.on),
                                          self.join_type), monitor)
        except NotEnoughMemory as e:
            raise NotEnoughMemory(self.partitions * e.least, self.partitions * self.memory,
                                  f"{self.algorithm}, {self.partitions} partitions") from None

    def placement(self, side: int, streams: tuple[pa.Schema, ...]) -> Placement:
        """Of the tuples of a side; both sides' of one key go to the same partition."""
        keys = resolve_keys(streams[0], streams[1], list(self.on), SIDES)
        mine = JoinKeys(keys.master if side else keys.stream, keys.master, keys.types)
        owners = np.arange(BUCKETS) % self.partitions
        return Placement(streams[side], mine, owners, self.partitions)
