"""HYBRIDJOIN.

M. A. Naeem, G. Dobbie, G. Weber: *HYBRIDJOIN for Near-Real-Time Data Warehousing*, IJDWM 7(4), 2011; as restated in section 3 of
Naeem, Weber, Dobbie, Lutteroth: *SSCJ: A Semi-Stream Cache Join using a Front-Stage Cache Module*.

    loop
        READ as many stream tuples as the last iteration removed into H_S, their keys into Q
        READ the partition of R (d tuples) that the index gives for the oldest key in Q
        for each tuple r of the partition
            OUTPUT r with each of its matches in H_S, and DELETE these from H_S and Q

Deviations, and why:

- The paper's Q is a list of join values, a node for each stream tuple, to which H_S points; here a tuple's links to its
  neighbours in age are part of its H_S slot, so that alpha, the share of H_S, is fixed by the layout.
- Many-to-many, by the rule of `joins/indexed.py`; the paper assumes unique master keys.
- A key for which the index knows no partition is unmatched without entering H_S. When the oldest key is not in its partition, all
  waiting keys that would have been there too leave with it; and so they do in the next iterations while such keys are found.
- While H_S is not full it only fills, without an iteration, until more tuples come or the join is drained.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins.base import JoinOutput, JoinState, SemiStreamJoin
from semistream.joins.indexed import IndexedPhase
from semistream.joins.spec import JoinSpec


class HybridjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d, master tuples read per iteration; 0: chosen from M by the cost model")


class Hybridjoin(SemiStreamJoin):
    """Many-to-many, needs an index. M = d v_R + alpha (M - d v_R) + (1 - alpha)(M - d v_R)."""

    def __init__(self, spec: JoinSpec, parameters: HybridjoinParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.indexed = IndexedPhase(self, self._iterate)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.indexed.require()

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        return self.indexed.take(batch, codes, np.arange(len(codes)), time.perf_counter())

    def _iterate(self) -> Iterator[JoinOutput]:
        return self.indexed.iterate()

    def _drain(self) -> Iterator[JoinOutput]:
        while self.indexed.live:
            yield from self.indexed.iterate(expected=math.inf)

    def _waiting(self) -> int:
        return self.indexed.live

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        tables, values = self.indexed.state()
        return tables, {"indexed": values}

    def _go_on(self, state: JoinState) -> None:
        self.indexed.go_on(state, self.arena.free)
