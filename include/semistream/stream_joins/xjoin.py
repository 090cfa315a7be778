"""XJoin (Urhan, Franklin: XJoin: A Reactively-Scheduled Pipelined Join Operator, 2000), as restated
in the paper on PJoin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.settings import Settings
from semistream.stream_joins.base import StreamJoinOutput, StreamStreamJoin
from semistream.stream_joins.events import Component, Event, Monitor, Registry
from semistream.stream_joins.spec import StreamJoinSpec


class XJoinParameters(Settings):
    """The parameters of XJoin."""

    activation_threshold: int = Field(
        1, ge=0, description="Least tuples of a hash bucket on disk for which a disk join is run"
    )
    activation_seconds: float = Field(
        0.0,
        ge=0,
        description="Seconds for which both streams must have been empty before a disk join",
    )

    def monitor(self) -> Monitor:
        """Return a new monitor with these thresholds."""
        return Monitor(
            activation_threshold=self.activation_threshold,
            activation_seconds=self.activation_seconds,
        )


class XJoin(StreamStreamJoin):
    """A symmetric hash join with memory overflow.

    1. Memory with memory: each tuple, as it arrives (`memory_join`). When M is full, the largest
       hash buckets go to disk (`state_relocation`).
    2. Memory with disk: while both streams are silent (`disk_join`).
    3. Disk with disk, and all remaining pairs: at the end (`drain`).
    """

    def __init__(self, spec: StreamJoinSpec, parameters: XJoinParameters):
        registry: Registry = {
            Event.STATE_FULL: [Component.STATE_RELOCATION],
            Event.STREAM_EMPTY: [Component.DISK_JOIN],
        }
        super().__init__(spec, parameters.monitor(), registry)

    def _take(
        self, side: int, batch: pa.RecordBatch, codes: np.ndarray
    ) -> Iterator[StreamJoinOutput]:
        yield from self.memory_join(side, batch, codes, np.ones(len(codes), bool))
