"""CMESHJOIN, Cached Mesh Join.

MESHJOIN with a cache as front stage, and nothing else changed: as described in section 2.2 of Naeem, Weber, Lutteroth: *A
Memory-Optimal Many-To-Many Semi-Stream Join*, which cites it as their former work.

    loop
        stream-probing phase: READ stream tuples; one whose key is in H_R is joined at once, another is ADDED to H_S and Q,
                              until w_S have come
        disk-probing phase:   one iteration of MESHJOIN; a disk tuple with f >= threshold matches in H_S is SWITCHED into H_R

Deviations: those of MESHJOIN, and of the frequency detection (``front.py``). The paper assumes that a stream tuple has one match;
here duplicate master keys are joined exactly too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins.base import JoinOutput, JoinState, Partition, SemiStreamJoin
from semistream.joins.front import FrequentTuples, cache_phase
from semistream.joins.sequential import MeshPhase
from semistream.joins.spec import JoinSpec


class CmeshjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="b, master tuples read per iteration; 0: chosen from M by the cost model")
    cache_tuples: int = Field(0, ge=0, description="h_R, master tuples that H_R has places for; 0: chosen from M")
    threshold: int = Field(2, ge=1, description="matches in H_S from which a master tuple is frequent, at first; it adapts")


class Cmeshjoin(SemiStreamJoin):
    """Needs no index. M = b v_R + h_R v_R + 8 h_R + w_S N (v_ptr + f v_S)."""

    def __init__(self, spec: JoinSpec, parameters: CmeshjoinParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.front = FrequentTuples(self, parameters.cache_tuples, parameters.threshold)
        self.mesh = MeshPhase(self, self._detect)
        self.mesh.require(self.arena.free)

    @property
    def cached(self) -> int:
        """Master tuples in H_R."""
        return self.front.cache.tuples

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived, held = time.perf_counter(), self.mesh.tuples.batch(batch)
        if not self.mesh.started:
            self.mesh.fill(held)
        for first, block, keys in cache_phase(batch, codes, self.mesh.room.capacity):
            misses = yield from self.front.probe(block, keys)
            yield from self.mesh.take(held, codes, first + misses, arrived)

    def _detect(self, partition: Partition, f: np.ndarray) -> None:
        self.front.detect(partition, f)
        if partition.number == self.master.partition_count - 1:
            self.front.end_period()

    def _drain(self) -> Iterator[JoinOutput]:
        return self.mesh.drain()

    def _waiting(self) -> int:
        return self.mesh.live

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        table, mesh = self.mesh.state()
        cache, front = self.front.state()
        return {"cache": cache} | ({"waiting": table} if table else {}), {"mesh": mesh, "front": front}

    def _go_on(self, state: JoinState) -> None:
        self.front.go_on(state.tables["cache"], state.values["front"])
        self.mesh.resume(state)
