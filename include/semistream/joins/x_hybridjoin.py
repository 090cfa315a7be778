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

X-HYBRIDJOIN has l = k; Tuned X-HYBRIDJOIN has l and k chosen apart, by the model of section 5.2 if
not given.

Deviations, and why:

- The paper's R is stored by access frequency, so that its first l pages are the most frequent ones:
  frequency must be known when R is stored. Here R is stored by key, and the frequency is observed:
  the h_S stream tuples that fill H_S for the first time are the sample. The iterations that follow
  read the partitions of the most frequent keys, and keep these keys' tuples for good.
- So d_N = l v_P / v_R counts tuples, not whole pages, and the non-swappable part holds all master
  tuples of a key or none (many-to-many; the paper assumes unique master keys).
- In Eq. 6 an expected count is p where the paper prints p (1 - p); the tuning takes p.
- As in HYBRIDJOIN (`joins/hybridjoin.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins.admission import fill
from semistream.joins.contract import SemiStreamJoin, State
from semistream.joins.disk_partition import DiskPartition, tuples_of
from semistream.joins.index_phase import IndexReader
from semistream.joins.key_table import KeyTable
from semistream.joins.master_cache import cached_bytes
from semistream.joins.output import NO_MATCH, JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_table.by_key import APPEND_ROWS, EVERYWHERE, ByKey, Span


class XHybridjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d_S = d_N, master tuples in each part of the "
                                                  "disk buffer; 0: chosen from M")


class TunedXHybridjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d_S, master tuples in the swappable part; 0: "
                                                  "chosen from M by the cost model")
    resident_tuples: int = Field(0, ge=0, description="d_N, master tuples in the non-swappable "
                                                      "part; 0: chosen from M likewise")


def resident_bytes(spec: JoinSpec) -> float:
    """Bytes of a tuple in the non-swappable part: key code and the columns that are added or
    compared."""
    return 8 + cached_bytes(spec)


@dataclass
class NonSwappable:
    """Master tuples that stay: all that their keys have. codes: int64[n]; payload: of as many
    rows."""

    codes: np.ndarray
    payload: pa.RecordBatch

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        return self.payload.take(pa.array(rows))


class Gatherer:
    """Gathers the master tuples of some keys from the partitions that pass by: all of a key or
    none, in at most so many bytes.

    keys: int64[n].
    """

    def __init__(self, spec: JoinSpec, keys: np.ndarray, most_bytes: int):
        self.table, self.dropped, self.free = KeyTable(keys), np.zeros(len(keys), bool), most_bytes
        self.codes, self.owners = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        self.pieces = [pa.RecordBatch.from_pylist([], spec.fetched_schema)]

    def see(self, partition: DiskPartition) -> None:
        owners = self.table.find(partition.codes)
        rows = np.flatnonzero(owners >= 0)
        self.add(partition, rows, owners[rows])

    def add(self, partition: DiskPartition, rows: np.ndarray, owners: np.ndarray) -> None:
        """owners: int[rows], the index of each row's key."""
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

    def result(self) -> NonSwappable:
        keep, payload = ~self.dropped[np.concatenate(self.owners)], self.pieces[0]
        if payload.num_columns:  # a record batch without columns has no length
            payload = pa.concat_batches(self.pieces).filter(pa.array(keep))
        return NonSwappable(np.concatenate(self.codes)[keep], payload)


class TwoPartBuffer(SemiStreamJoin):
    """The loop of both, which differ in d_N, the master tuples that the non-swappable part has
    places for."""

    h_s: ByKey

    def __init__(self, spec: JoinSpec,
                 parameters: XHybridjoinParameters | TunedXHybridjoinParameters, d_n: int):
        super().__init__(spec, parameters)
        self.index, self.h_s = IndexReader(self.spec), ByKey(self.layout)
        self.non_swappable: NonSwappable | None = None
        self.d_n = min(d_n, self.master.tuple_count)
        self.arena.reserve("swappable part", self.master.partition_bytes)
        self.arena.reserve("non-swappable part", int(self.d_n * resident_bytes(self.spec)))
        self._require(self.h_s.least_bytes, self.arena.free)

    @property
    def cached(self) -> int:
        """Master tuples in the non-swappable part."""
        return len(self.non_swappable.codes) if self.non_swappable else 0

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        for first in range(0, len(codes), APPEND_ROWS):
            tuples = batch.slice(first, APPEND_ROWS)
            buffer = StreamBuffer(self.layout, tuples, codes[first:first + APPEND_ROWS])
            absent = buffer.look_up(self.master)
            if len(absent):
                yield self.output.unmatched(tuples.take(pa.array(absent)).columns, NO_MATCH)
            # READ stream tuples until H_S is full
            while (yield from fill(self.h_s, buffer, self.output)):
                if self.non_swappable is None:
                    yield from self._load()
                else:
                    yield from self.iterate()

    def _load(self) -> Iterator[JoinOutput]:
        """LOAD the keys that are most frequent in the full H_S into the non-swappable part, and
        iterate meanwhile."""
        keys = self.h_s.most_frequent(self.d_n)
        gatherer = Gatherer(self.spec, keys, self.arena.components["non-swappable part"])
        numbers = dict.fromkeys(i for a, b in self.master.partitions_of(keys) for i in range(a, b))
        spans = [(i, i + 1) for i in numbers]
        for span, following in itertools.zip_longest(spans, spans[1:]):
            begun = self._begin()
            removed, read = yield from self._swap(span, following or self.h_s.following(span), 0.0,
                                                  gatherer)
            self._end(begun, removed, read, self.index.cycles)
        self.non_swappable = gatherer.result()

    def iterate(self, expected: float = 0.0) -> Iterator[JoinOutput]:
        """expected: tuples; if fewer leave, keys that are absent are looked for."""
        begun, h_s, removed, read = self._begin(), self.h_s, 0, 0
        if self.non_swappable:  # for each tuple r of the non-swappable part
            found = h_s.find(self.non_swappable.codes, EVERYWHERE)
            yield from self.output.matches(self.non_swappable, h_s, h_s.pairs(found))
            hits = h_s.remove(found.met)
            self.stats.cache_hits += len(hits.slots)
            yield from self.output.finish(h_s, hits)
        if h_s.live:  # READ the partition of the oldest key in Q into the swappable part
            span = h_s.span(h_s.oldest)
            removed, read = yield from self._swap(span, h_s.following(span), expected)
        self._end(begun, removed, read, self.index.cycles)

    def _swap(self, span: Span, following: Span, expected: float,
              gatherer: Gatherer | None = None) -> Generator[JoinOutput, None, tuple[int, int]]:
        """For each tuple r of the swappable part: OUTPUT, DELETE. Returns (stream tuples finished,
        disk tuples read)."""
        h_s, met, read = self.h_s, [], 0
        for partition in self.index.read(span, following):
            found = h_s.find(partition.codes, span)
            yield from self.output.matches(partition, h_s, h_s.pairs(found))
            met.append(found.met)
            read += len(partition.codes)
            if gatherer:
                gatherer.see(partition)
        removed = h_s.remove(h_s.through(span, met, expected))
        yield from self.output.finish(h_s, removed)
        return len(removed.slots), read

    def _drain(self) -> Iterator[JoinOutput]:
        while self.h_s.live:
            yield from self.iterate(expected=math.inf)

    def _state(self) -> State:
        """Of the non-swappable part only the keys: its tuples are in R."""
        tables = self.h_s.tables()
        if self.non_swappable:
            tables["resident"] = pa.table({"key": np.unique(self.non_swappable.codes)})
        return tables, {"indexed": self.h_s.values() | {"read": self.index.partitions}}

    def _restore(self, state: JoinState) -> None:
        values = state.values["indexed"]
        self.index.partitions = values["read"]
        if "waiting" in state.tables:
            self._open(values["variable"])
            self.h_s.restore(state.tables["waiting"], values, self.spec)
        if "resident" in state.tables:
            keys = state.tables["resident"]["key"].to_numpy()
            gatherer = Gatherer(self.spec, keys, self.arena.components["non-swappable part"])
            for found in tuples_of(self.spec, keys):
                gatherer.add(*found)
            self.non_swappable = gatherer.result()


class XHybridjoin(TwoPartBuffer):
    """Many-to-many, needs an index; l = k. M = 2 k v_P + alpha [M - 2 k v_P] + (1 - alpha)[M - 2 k
    v_P], Eq. 1."""

    def __init__(self, spec: JoinSpec, parameters: XHybridjoinParameters):
        spec = spec.with_disk_buffer(parameters.disk_tuples)
        super().__init__(spec, parameters, spec.master.partition_tuples)


class TunedXHybridjoin(TwoPartBuffer):
    """Many-to-many, needs an index. M = (k + l) v_P + alpha [M - (k + l) v_P] + (1 - alpha)[M - (k
    + l) v_P], Eq. 1."""

    def __init__(self, spec: JoinSpec, parameters: TunedXHybridjoinParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters,
                         parameters.resident_tuples)
