"""X-HYBRIDJOIN and Tuned X-HYBRIDJOIN.

M. A. Naeem: *Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2013, sections 3 and 4.

    LOAD the most frequent l pages of R into the non-swappable part of the disk buffer
    loop
        READ as many stream tuples as the last iteration removed into H_S, their keys into Q
        for each tuple r of the non-swappable part
            OUTPUT r with each of its matches in H_S, and DELETE these from H_S and Q
        READ the k pages of R that the index gives for the oldest key in Q into the swappable part
        for each tuple r of the swappable part
            OUTPUT r with each of its matches in H_S, and DELETE these from H_S and Q

X-HYBRIDJOIN has l = k; Tuned X-HYBRIDJOIN has l and k chosen apart, by the model of section 5.2 if not given.

Deviations, and why:

- The paper's R is stored by access frequency, so that its first l pages are the most frequent ones: frequency must be known when
  R is stored. Here R is stored by key, and the frequency is observed: the h_S stream tuples that fill H_S for the first time are
  the sample. The iterations that follow read the partitions of the most frequent keys, and keep these keys' tuples for good.
- So d_N = l v_P / v_R counts tuples, not whole pages, and the non-swappable part holds all master tuples of a key or none
  (many-to-many; the paper assumes unique master keys).
- In Eq. 6 an expected count is p where the paper prints p (1 - p); the tuning takes p.
- As in HYBRIDJOIN (`joins/hybridjoin.py`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins.base import JoinOutput, JoinState, Partition, SemiStreamJoin
from semistream.joins.front import KeyTable, cached_bytes, tuples_of
from semistream.joins.indexed import IndexedPhase, Resident
from semistream.joins.spec import JoinSpec


class XHybridjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d_S = d_N, master tuples in each part of the disk buffer; 0: chosen from M")


class TunedXHybridjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d_S, master tuples in the swappable part; 0: chosen from M by the cost model")
    resident_tuples: int = Field(0, ge=0, description="d_N, master tuples in the non-swappable part; 0: chosen from M likewise")


def resident_bytes(spec: JoinSpec) -> float:
    """Bytes of a tuple in the non-swappable part: key code and the columns that are added or compared."""
    return 8 + cached_bytes(spec)


class Collector:
    """Gathers the master tuples of some keys from the partitions that pass by: all of a key or none, in at most so many bytes."""

    def __init__(self, spec: JoinSpec, keys: np.ndarray, most_bytes: int):
        self.table, self.dropped, self.free = KeyTable(keys), np.zeros(len(keys), bool), most_bytes
        self.codes, self.owners = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        self.pieces = [pa.RecordBatch.from_pylist([], spec.fetched_schema)]

    def see(self, partition: Partition, _: np.ndarray | None = None) -> None:
        owners = self.table.find(partition.codes)
        rows = np.flatnonzero(owners >= 0)
        self.add(partition, rows, owners[rows])

    def add(self, partition: Partition, rows: np.ndarray, owners: np.ndarray) -> None:
        """owners: index of each row's key."""
        wanted = ~self.dropped[owners]
        rows, owners = rows[wanted], owners[wanted]
        if not len(rows):
            return
        piece = partition.take(rows)
        if piece.nbytes + 8 * len(rows) > self.free:
            self.dropped[owners] = True
            return
        self.free -= piece.nbytes + 8 * len(rows)
        self.codes.append(partition.codes[rows])
        self.owners.append(owners)
        self.pieces.append(piece)

    def result(self) -> Resident:
        keep, payload = ~self.dropped[np.concatenate(self.owners)], self.pieces[0]
        if payload.num_columns:  # a record batch without columns has no length
            payload = pa.concat_batches(self.pieces).filter(pa.array(keep))
        return Resident(np.concatenate(self.codes)[keep], payload)


class XHybridjoin(SemiStreamJoin):
    """Many-to-many, needs an index. M = (k + l) v_P + alpha [M - (k + l) v_P] + (1 - alpha)[M - (k + l) v_P], Eq. 1."""

    def __init__(self, spec: JoinSpec, parameters: XHybridjoinParameters | TunedXHybridjoinParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.indexed = IndexedPhase(self, self._iterate)
        self.resident: Resident | None = None  # the non-swappable part
        d_n = parameters.resident_tuples if isinstance(parameters, TunedXHybridjoinParameters) else self.master.partition_tuples
        self.d_n = min(d_n, self.master.tuple_count)
        self.arena.reserve("swappable part", self.master.partition_bytes)
        self.arena.reserve("non-swappable part", int(self.d_n * resident_bytes(self.spec)))
        self.indexed.require()

    @property
    def cached(self) -> int:
        """Master tuples in the non-swappable part."""
        return len(self.resident.codes) if self.resident else 0

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        return self.indexed.take(batch, codes, np.arange(len(codes)), time.perf_counter())

    def _iterate(self) -> Iterator[JoinOutput]:
        if self.resident is None:
            yield from self._load()
        else:
            yield from self.indexed.iterate(resident=self.resident)

    def _drain(self) -> Iterator[JoinOutput]:
        while self.indexed.live:
            yield from self.indexed.iterate(resident=self.resident, expected=math.inf)

    def _load(self) -> Iterator[JoinOutput]:
        """Fill the non-swappable part with the keys that are most frequent in the full H_S, and iterate meanwhile."""
        keys = self.indexed.room.most_frequent(self.d_n)
        collector = Collector(self.spec, keys, self.arena.components["non-swappable part"])
        self.indexed.on_partition = collector.see
        spans = [(i, i + 1) for i in dict.fromkeys(i for a, b in self.master.partitions_of(keys) for i in range(a, b))]
        for span, following in itertools.zip_longest(spans, spans[1:]):
            yield from self.indexed.iterate(span, following)
        self.indexed.on_partition = None
        self.resident = collector.result()

    def _waiting(self) -> int:
        return self.indexed.live

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Of the non-swappable part only the keys: its tuples are in R."""
        tables, values = self.indexed.state()
        if self.resident:
            tables["resident"] = pa.table({"key": np.unique(self.resident.codes)})
        return tables, {"indexed": values}

    def _go_on(self, state: JoinState) -> None:
        self.indexed.go_on(state, self.arena.free)
        if "resident" in state.tables:
            keys = state.tables["resident"]["key"].to_numpy()
            collector = Collector(self.spec, keys, self.arena.components["non-swappable part"])
            for found in tuples_of(self.spec, keys):
                collector.add(*found)
            self.resident = collector.result()
