"""SSCJ, the Semi-Stream Cache Join (CACHEJOIN).

M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth: *SSCJ: A Semi-Stream Cache Join using a Front-Stage Cache
Module*, 2013, section 4.1.

    loop
        stream-probing phase, until H_S is full:
            READ a stream tuple; if its key is in H_R OUTPUT it with its match, else ADD it to H_S and Q
        disk-probing phase:
            READ the partition of R (d tuples) that the index gives for the oldest key in Q
            for each tuple r of the partition
                OUTPUT r with each of its f matches in H_S, and DELETE these from H_S and Q
                if f >= threshold SWITCH r into H_R, in the place of the least frequent tuple if H_R is full

The front stage and its frequency recorder are those of CMESHJOIN and SSJ (`joins/front.py`), the disk phase that of HYBRIDJOIN
(`joins/indexed.py`); so are the deviations. A period of the frequency recorder is N partitions read. The paper assumes unique
master keys: here H_R has all tuples of a key or none.
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
from semistream.joins.front import FrequentTuples, cache_phase
from semistream.joins.indexed import IndexedPhase
from semistream.joins.spec import JoinSpec


class SscjParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d, master tuples read per iteration; 0: chosen from M by the cost model")
    cache_tuples: int = Field(0, ge=0, description="h_R, master tuples that H_R has places for; 0: chosen from M")
    threshold: int = Field(2, ge=1, description="matches in H_S from which a master tuple is frequent, at first; it adapts")


class Sscj(SemiStreamJoin):
    """Many-to-many, needs an index. M = d v_R + h_R v_R + 8 h_R + alpha [..] + (1 - alpha) [..], [..] = what is left, Eq. 1."""

    def __init__(self, spec: JoinSpec, parameters: SscjParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.front = FrequentTuples(self, parameters.cache_tuples, parameters.threshold)
        self.indexed = IndexedPhase(self, self._iterate, self.front.detect)
        self.indexed.require()

    @property
    def cached(self) -> int:
        """Master tuples in H_R."""
        return self.front.cache.tuples

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        for _, block, keys in cache_phase(batch, codes, self.indexed.room_for(batch).capacity):
            misses = yield from self.front.probe(block, keys)
            yield from self.indexed.take(block, keys, misses, arrived)

    def _iterate(self, expected: float = 0) -> Iterator[JoinOutput]:
        cycles = self.stats.r_cycles
        yield from self.indexed.iterate(expected=expected)
        if self.stats.r_cycles > cycles:
            self.front.end_period()

    def _drain(self) -> Iterator[JoinOutput]:
        while self.indexed.live:
            yield from self._iterate(expected=math.inf)

    def _waiting(self) -> int:
        return self.indexed.live

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        tables, values = self.indexed.state()
        cache, front = self.front.state()
        return tables | {"cache": cache}, {"indexed": values, "front": front}

    def _go_on(self, state: JoinState) -> None:
        self.front.go_on(state.tables["cache"], state.values["front"])
        self.indexed.go_on(state, self.arena.free)
