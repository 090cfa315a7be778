"""SSJ, Semi-Stream Join.

M. A. Naeem, N. Jamil: *An Efficient Stream-based Join to Process End User Transactions in Real-Time
Data Warehousing*, 2014, Algorithm 1.

    while true                                                             stream-probing phase
        READ w stream tuples (w = w_S + w_N)
        for each tuple t of them:  if t in H_R  OUTPUT t, else ADD t to H_S and Q
        READ the next b tuples of R, cyclically                            disk-probing phase
        for each tuple r of them:  if r in H_S
            OUTPUT r;  f = number of its matches
            if f >= threshold  SWITCH r into H_R
        DELETE the oldest chunk from H_S and Q

SSJ has the phases of CMESHJOIN. It adds that "a stream-probing phase ends if H_S is completely
filled or if the stream buffer is empty. Then the disk-probing phase becomes active" (section 4.1).
So it does not wait for a full chunk, and tuples of a slow stream do not wait for each other. The
stream buffer is the chunk that the caller gives. Once it is empty, the disk-probing phase becomes
active for one iteration, also after a chunk without tuples or without keys.

Deviations: those of CMESHJOIN. While the stream buffer stays empty, the paper's endless loop would
go on reading R, even for an empty H_S. Here the disk-probing phase becomes active again with the
next chunk, however few tuples it has, and with `SemiStreamJoin.keep_up`, as often as is needed for
no tuple to wait longer than a bound. If no tuples wait, nothing is read. A chunk is at most an N-th
of H_S, so that H_S fills evenly over the R-cycle. One that filled H_S at once would let N - 1
iterations pass without taking in a tuple, at the same service rate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.admission import fill
from semistream.joins.contract import SemiStreamJoin, State
from semistream.joins.frequency_detection import FrequentTuples
from semistream.joins.output import JoinOutput
from semistream.joins.scan_phase import Scan
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_probing import probe, steps
from semistream.joins.stream_table.by_chunk import ByChunk
from semistream.settings import Settings


class SsjParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="b, master tuples read per iteration; 0: chosen "
                                                  "from M by the cost model")
    cache_tuples: int = Field(0, ge=0, description="h_R, master tuples that H_R has places for; 0: "
                                                   "chosen from M")
    threshold: int = Field(2, ge=1, description="matches in H_S from which a master tuple is "
                                                "frequent, at first; it adapts")


class Ssj(SemiStreamJoin):
    """The operator of SSJ: without an index. M = (k + l) v_P + 8 h_R + alpha [..] + (1 - alpha)
    [..], with [..] = M - (k + l) v_P - 8 h_R, Eq. 1."""

    h_s: ByChunk

    def __init__(self, spec: JoinSpec, parameters: SsjParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.h_r = FrequentTuples(self.spec, self.arena, parameters.cache_tuples,
                                  parameters.threshold)
        self.scan = Scan(self.spec)
        self.h_s = ByChunk(self.layout, self.scan.chunks, self.scan.largest_w)
        self._require(self.h_s.least_bytes, self.arena.free)

    @property
    def cached(self) -> int:
        """Master tuples in H_R."""
        return self.h_r.cache.tuples

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived, h_s = time.perf_counter(), self.h_s
        for tuples, keys in steps(batch, codes, h_s.capacity):  # the stream-probing phase
            misses = yield from probe(self.h_r.cache, tuples, keys, self.output)
            buffer = StreamBuffer(self.layout, tuples, keys, misses, arrived)
            # ADD them to H_S and Q, until w_S have come
            while (yield from fill(h_s, buffer, self.output, h_s.missing)):
                yield from self.iterate()

    def _stream_buffer_empty(self, iterated: bool) -> Iterator[JoinOutput]:
        if self.h_s.open_count or (not iterated and self.h_s.live):
            yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        """Run the disk-probing phase once."""
        begun, h_s = self._begin(), self.h_s
        h_s.close_chunk()
        partition, read = self.scan.read()  # READ the next b tuples of R, cyclically
        found = h_s.find(partition.codes)
        yield from self.output.matches(partition, h_s, h_s.pairs(found))  # OUTPUT
        self.h_r.detect(partition, found.counts)  # SWITCH the frequent ones into H_R
        if self.scan.ended_cycle:
            self.h_r.end_period()
        removed = h_s.remove()  # DELETE the oldest chunk
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.scan.cycles)

    @property
    def passes(self) -> float:
        return self.scan.passes

    def _drain(self) -> Iterator[JoinOutput]:
        yield from super()._drain()
        self.h_s.queue.clear()

    def _state(self) -> State:
        tables = self.h_s.tables() | {"cache": self.h_r.table()}
        return tables, {"disk buffer": self.scan.values(), "H_S": self.h_s.values(),
                        "frequency recorder": self.h_r.values()}

    def _restore(self, state: JoinState) -> None:
        self.h_r.restore(state.tables["cache"], state.values["frequency recorder"])
        self.scan.restore(state.values["disk buffer"])
        if "waiting" in state.tables:
            values = state.values["H_S"]
            self._open(values["strings"])
            self.h_s.restore(state.tables["waiting"], values, self.spec)
