"""MESHJOIN.

N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: *Meshing Streaming Updates with Persistent Data in an
Active Data Warehouse*, IEEE TKDE 20(7), 2008; as restated in section 2.2 of Naeem, Weber, Lutteroth: *A Memory-Optimal
Many-To-Many Semi-Stream Join*.

    loop
        READ w stream tuples, append them to H_S and, as one chunk, to Q
        READ the next partition of R (b tuples), cyclically
        for each tuple r of the partition
            OUTPUT r with each of its matches in H_S
        REMOVE the oldest chunk of Q from H_S: it has met all N partitions

Deviations: fewer than w tuples wait in the open chunk, without an iteration, until w have come or the join is drained. A tuple
that leaves without a match is reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins.base import JoinOutput, JoinState, SemiStreamJoin
from semistream.joins.sequential import MeshPhase
from semistream.joins.spec import JoinSpec


class MeshjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="b, master tuples read per iteration; 0: chosen from M by the cost model")


class Meshjoin(SemiStreamJoin):
    """Many-to-many, needs no index. M = b v_R + w N (v_ptr + f v_S)."""

    def __init__(self, spec: JoinSpec, parameters: MeshjoinParameters, slices: int = 1):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.mesh = MeshPhase(self, slices=slices)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.mesh.require(self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived, held = time.perf_counter(), self.mesh.tuples.batch(batch)
        if not self.mesh.started:
            self.mesh.fill(held)
        yield from self.mesh.take(held, codes, np.arange(len(codes)), arrived)

    def _drain(self) -> Iterator[JoinOutput]:
        return self.mesh.drain()

    def _waiting(self) -> int:
        return self.mesh.live

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        table, values = self.mesh.state()
        return ({"waiting": table} if table else {}), {"mesh": values}

    def _go_on(self, state: JoinState) -> None:
        self.mesh.resume(state)
