"""ELEVATORJOIN, this project's own algorithm.

ELEVATORJOIN combines SSBJ's cache inequality, HYBRIDJOIN's index, SSIJ's stream buffer by blocks,
and the elevator order of a disk arm.

    loop
        cache phase, until H_S is full:
            READ stream tuples; join each with H_R at once;
            else, if the index or the filter knows that R lacks its key, it is unmatched;
            else ADD it to the waiting tuples of its disk partition, which the index knows
        disk phase:
            GO ON to the next partition of R for which tuples wait, READ it, FILTER its keys
            OUTPUT each of its tuples r with each of its matches among them, and REMOVE them all
            SWITCH the join values that are worth it into the switching buffer
            MOVE the switching buffer to H_R once much of what waits has waited for its values, or
                it is full
        at the end of a sweep over R:  MOVE it too, and drop the values that were not worth it in
                this sweep

Why it is fast:

- A scan-based join keeps each tuple for an R-cycle. Here a tuple leaves when its partition is read,
  after half a sweep on average, so that a full H_S finishes 2 h_S tuples a sweep. Every read serves
  2 h_S / N tuples, and reads are in the order of the disk.
- A waiting tuple needs no hash entry, no queue node and no links: it lies with the other tuples of
  its partition. h_S is larger accordingly.
- The **cost-balanced inequality**: a miss costs c_m of processor time and its share of a sweep's
  stops, C / (2 h_S) with C = N (c_IO(d) + d c_H + c_I). Caching a value with m master tuples takes
  m v_R + v_E bytes from H_S. Setting the derivative of misses (c_m + C / (2 h_S)) to zero gives

      cache j  iff  n_j v_S > 2 phi (m_j v_R + v_E),   phi = (C / 2 h_S) / (c_m + C / 2 h_S),

  where n_j stream tuples of j came since the last sweep's visit and phi is the stops' share of what
  a miss costs, measured sweep by sweep. phi = 1 is SSBJ's inequality (Theorem 2) for tuples that
  wait half a sweep. A uniform stream caches nothing, and where the disk costs nothing any repeated
  value is cached.
- The cache follows drift: a value enters H_R by its tuples in one sweep, and stays by its tuples in
  the last sweep (hysteresis 2). A value that was frequent long ago does not stay.
- A tuple waits for N stops at most: the elevator moves in one direction, stops at most once at a
  partition in a sweep, and serves all tuples of the partition.
- A tuple whose key R lacks would wait half a sweep in vain. A filter keeps a few bits of each key
  that was read (`joins/key_filter.py`): a tuple whose key's bits are not all set is unmatched at
  once.
- The state is saved as changes: the tuples that came since the last snapshot, and the partitions
  that were visited. A load that saves it after every micro-batch writes as much as the batch
  brought, and not h_S tuples. So all of M can be used for waiting tuples.

If all of R fits into H_R, each visited partition is cached whole: ELEVATORJOIN becomes a join in
main memory (SSBJ's Theorem 3). Once all of R is there, a key that H_R lacks is unmatched at once,
too. A join value whose master tuples lie in several partitions is joined, but never cached.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.admission import fill
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.cost_balance import CostBalance, MissCosts
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.index_phase import IndexParameters
from semistream.joins.key_filter import KeyFilter
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.output import JoinOutput
from semistream.joins.scan_phase import largest_chunk
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState, State
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_probing import PROBE_ROWS, probe, step_rows
from semistream.joins.stream_table.by_partition import PARTITION_BYTES, ByPartition, Visit
from semistream.joins.stream_table.snapshots import Snapshots

LEAST_H_S = 0.05  # least share of H_S in the memory that H_S and H_R share
SWITCH_SHARE = 16  # the switching buffer is this part of the memory that H_S and H_R share
SLACK_SHARE = 32  # H_R is compacted when at least this part of it is evicted


class ElevatorjoinParameters(IndexParameters):
    """The parameters of ELEVATORJOIN."""

    cache_tuples: int = Field(
        0,
        ge=0,
        description="h_R, the most master tuples in the cache; 0: as many as the inequality gives",
    )
    waiting_tuples: int = Field(
        0,
        ge=0,
        description="h_S, the most stream tuples that wait; 0: as "
        "many as the memory holds and save anything",
    )
    disk_share: float = Field(
        0.0, ge=0, le=1, description="phi, the stops' share of what a miss costs; 0: measured"
    )
    filter_bits: int = Field(
        0,
        ge=-1,
        le=32,
        description="Bits per master tuple of a filter that "
        "knows absent keys; 0: chosen from M by "
        "the cost model; -1: no filter",
    )


class Stop:
    """The data of one stop of the elevator: the partition in the disk buffer, and how many stream
    tuples matched its tuples."""

    partition: DiskPartition  # in the disk buffer
    counts: np.ndarray  # int32[d], the stream tuples that each tuple of the disk buffer matched

    def __init__(self) -> None:
        self.number = -1  # the number of the partition in the disk buffer
        self.read = 0  # disk tuples


class Elevatorjoin(SemiStreamJoin):
    """The operator of ELEVATORJOIN: many-to-many, with an index. M = d v_R + h_R v_R + h_S v_S + 44
    N + filter."""

    h_s: ByPartition
    parameters: ElevatorjoinParameters

    def __init__(self, spec: JoinSpec, parameters: ElevatorjoinParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.filter = KeyFilter(self.master, max(parameters.filter_bits, 0))
        self.arena.reserve("filter", self.filter.size)
        self.pool = self.arena.free  # bytes that H_S and H_R share
        self.v_r = cached_bytes(self.spec)
        self.h_r = self.held = MasterCache.within(self.spec, self.pool)
        most = self.h_r.most_tuples - 1
        self.most_cached = min(parameters.cache_tuples or most, most)
        all_of_r = self.master.tuple_count * (self.v_r + MasterCache.ENTRY)
        self.whole = (
            all_of_r <= self.h_r.room(self.pool * (1 - LEAST_H_S))
            and self.most_cached >= self.master.tuple_count
        )
        self.position = self.sweeps = 0
        self._missed = 1.0  # share of the last step's tuples that missed H_R
        self.costs = MissCosts(parameters.disk_share, self.clock)
        self.h_s = ByPartition(self.layout, max(self.master.partition_count, 1))
        self.balance = CostBalance(self.spec, self.h_s, self.h_r, self.most_cached, self.whole)
        self.snapshots = Snapshots(self.h_s)
        self.arena.reserve("H_R", 0)
        self._require(self.h_s.least_bytes, self.pool * (1 - LEAST_H_S))

    @property
    def keeps_all(self) -> bool:
        # twice, because strings may be longer than assumed, and values in several partitions stay
        # on disk
        return self.whole and self.stats.disk_tuples_read <= 2 * self.master.tuple_count

    # The outer loop

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        at = 0
        while at < len(codes):  # the cache phase
            number = step_rows(self.h_s.size / self.h_s.tuple_bytes / self._missed)
            tuples, keys = batch.slice(at, number), codes[at : at + number]
            misses = yield from probe(self.h_r, tuples, keys, self.output)
            self._missed = max(len(misses) / len(keys), self._missed / 2, 1 / PROBE_ROWS)
            if len(misses) and self.h_r.tuples == self.master.tuple_count:
                self.stats.cache_hits += len(misses)  # H_R holds all of R, so R lacks their keys
                yield from self.output.absent(tuples, misses)
            elif len(misses):
                yield from self._add(tuples, keys, misses, arrived)
            at += number

    def _add(
        self, batch: pa.RecordBatch, codes: np.ndarray, misses: np.ndarray, arrived: float
    ) -> Iterator[JoinOutput]:
        """ADD the misses to H_S, and run the next stop of the elevator whenever H_S is full.
        misses: int64[n], rows of the batch; arrived: the time at which the batch came."""
        with self.costs.misses:
            buffer = StreamBuffer(self.layout, batch, codes, misses, arrived)
            absent, rejected = buffer.look_up(self.master), buffer.reject(self.filter)
            self.stats.cache_hits += len(rejected)
            for rows in (absent, rejected):
                yield from self.output.absent(batch, rows)
            full = yield from fill(self.h_s, buffer, self.output)
        while full:
            yield from self.iterate()
            with self.costs.misses:
                full = yield from fill(self.h_s, buffer, self.output)

    def iterate(self) -> Iterator[JoinOutput]:
        """Run the disk phase: one stop of the elevator. All tuples that wait for its partition
        leave."""
        begun, h_s, stop = self._begin(), self.h_s, Stop()
        with self.costs.misses:
            at = self._next_stop()  # GO ON to the next partition of R for which tuples wait
            # a key of this partition may have tuples in the following ones too
            span, waited = range(at, int(h_s.reach[at])), int(h_s.waiting[at])
            for visit in h_s.visits(at):
                yield from self._meet(visit, stop, span)
                yield from self.output.finish(h_s, visit.removed)
            yield from self.output.finish(h_s, h_s.remove(at))  # REMOVE them all
            # only after its tuples left, because this may shrink H_S and move its tuples
            if len(span) == 1:
                self._switch(visit, stop.partition, stop.counts)
            self.position = at + 1
        self.costs.stops += 1
        self._end(begun, waited, stop.read, self.sweeps)
        if self.position >= self.master.partition_count:
            self._end_sweep()

    def _next_stop(self) -> int:
        """Return the next partition for which tuples wait. It is reached in this sweep, or after
        the start of a new one."""
        at = self.h_s.next(self.position)
        if at < 0:
            self._end_sweep()
            at = self.h_s.next(0)
        return at

    def _meet(self, visit: Visit, stop: Stop, span: range) -> Iterator[JoinOutput]:
        """READ each partition of the span, FILTER its keys, and OUTPUT the matches of its tuples
        with the waiting tuples of the visit. The stop holds the partition that was read last."""
        for number in span:
            with self.costs.disk:
                if new := stop.number != number:
                    if number == span.start:
                        self.master.prefetch(
                            self.h_s.upcoming(number, self.master.buffers), self.spec.fetched
                        )
                    stop.number, stop.partition = number, DiskPartition(self.spec, number)
                partition = stop.partition
                found = self.h_s.find(partition.codes, visit)
                if found.total:
                    partition.read()
            if new:
                self.filter.add(number, partition.codes)
                stop.read += len(partition.codes)
            stop.counts = found.counts if new else stop.counts + found.counts
            if found.total:
                yield from self.output.matches(partition, visit, visit.pairs(found))

    # The bound on waiting

    @property
    def passes(self) -> float:
        return self.sweeps + self.position / max(self.master.partition_count, 1)

    def _stops(self, passes: float) -> int:
        """Return how many partitions, over all sweeps, the elevator has passed after this many
        passes over R."""
        return math.ceil(passes * self.master.partition_count)

    def _is_due(self, passes: float, age: float) -> bool:
        """Return whether the elevator must go on to its next stop, because there would be fewer
        than `passes` passes over R otherwise."""
        at, sweeps = self.h_s.next(self.position), self.sweeps
        if at < 0:
            at, sweeps = self.h_s.next(0), sweeps + 1
        return sweeps * self.master.partition_count + at < self._stops(passes)

    def _pass_over(self, passes: float) -> None:
        """Move the elevator on to the partition that is due. No tuples wait for the partitions
        before it. passes: the passes over R that are due."""
        if self.h_s.live and self.passes < passes:
            sweeps, position = divmod(self._stops(passes), self.master.partition_count)
            if sweeps > self.sweeps:
                self._end_sweep()
            self.position = position
        super()._pass_over(passes)

    # The cache

    @property
    def _price(self) -> float:
        """phi, or 0 while there is memory that H_S cannot use."""
        spare = self.pool - self.h_r.used - self.h_s.size > self.pool // SWITCH_SHARE
        return (
            0.0 if spare and self.h_s.size > self._useful - self.h_s.block_bytes else self.costs.phi
        )

    def _switch(self, visit: Visit, partition: DiskPartition, counts: np.ndarray) -> None:
        """SWITCH the join values that are worth their memory into the switching buffer. MOVE that
        buffer to H_R if many waiting tuples have one of its values, or if the buffer is full."""
        if self.balance.switch(visit, partition, counts, self._price, self.arena.components["H_R"]):
            self._move()

    def _move(self) -> None:
        """MOVE the switching buffer to H_R."""
        if len(self.h_r.staged):
            self.snapshots.changed += len(self.h_r.staged)
            self.h_r.switch()
        self._divide()

    def _end_sweep(self) -> None:
        """MOVE the staged values, measure phi, and drop the values that were not worth their memory
        in this sweep."""
        self.position, self.sweeps = 0, self.sweeps + 1
        self.stats.r_cycles = self.sweeps
        self._move()
        self.costs.end_sweep(self.sweeps)
        h_r, phi = self.h_r, self._price
        if h_r.entries and phi and not self.whole:  # not while there is memory to spare
            keep = self.balance.worth_keeping(phi)
            gone = (h_r.entries - np.count_nonzero(keep)) * h_r.ENTRY + (
                h_r.tuples - int(h_r.counts.sum(where=keep))
            ) * self.v_r
            if gone * SLACK_SHARE > h_r.used:
                h_r.keep(keep)
                self._divide()
        h_r.frequencies[:] = 0

    # Memory: H_R has what it uses and the switching buffer. H_S has the rest, as long as more
    # waiting tuples save work.

    def _open(self, strings: float, width: int = 0, shift: int = 0) -> None:
        """Open H_S, and give it a part of the pool. strings: expected bytes of strings in a stream
        tuple; width, shift: see `ByPartition.open`."""
        h_s, wanted = self.h_s, self.parameters.waiting_tuples
        size = (
            int(wanted * h_s.bytes_per_tuple(self.layout.held, strings, 1))
            + PARTITION_BYTES * h_s.partitions
        )
        h_s.open(strings, min(size, self.pool) if wanted else self.pool, width, shift)
        self._divide()

    @property
    def _useful(self) -> int:
        """The size of H_S, in bytes, beyond which more waiting tuples save nothing. At this size,
        the fixed cost of an iteration is less than a fifth of its tuples' cost."""
        h_s = largest_chunk(self.master.partition_tuples) * self.h_s.partitions / 2
        h_s = self.parameters.waiting_tuples or h_s
        return int(h_s * self.h_s.tuple_bytes) + PARTITION_BYTES * self.h_s.partitions

    def _divide(self) -> None:
        """Divide the pool between H_R and H_S. H_R gets the bytes that it uses and the switching
        buffer. H_S gets the other bytes, as long as more waiting tuples save work."""
        used, single = self.h_r.used, self.h_s.least_bytes
        least = max(int(self.pool * LEAST_H_S), single)
        switch = min(self.pool // SWITCH_SHARE, max(self.pool - used - least, 0))
        if self.whole:
            switch = max(self.pool - used - least, 0)
        h_s = min(self.pool - used - switch, max(self._useful, single))
        self.arena.reserve("H_S", 0)
        self.arena.reserve("H_R", used)
        self.arena.reserve("H_S", self.h_s.resize(h_s))
        self.arena.reserve("H_R", max(min(self.pool - h_s, self.arena.free + used), used))

    # State

    def _state(self) -> State:
        """Return the whole state: the waiting tuples by partition, and the join values of H_R and
        of the switching buffer. The master tuples of these values can be read from R."""
        tables: dict[str, pa.Table | pa.RecordBatchReader] = {**self.snapshots.whole()}
        return tables | ({"cache": self.h_r.saved()} if tables else {}), self._values()

    def _changes(self) -> State | None:
        """Return the changes of H_S since the last snapshot. Only a whole state contains H_R."""
        tables = self.snapshots.changes(self.h_r.entries)
        return (tables, self._values()) if tables else None

    def _values(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "sweeps": self.sweeps,
            "phi": self.costs.phi,
        } | self.snapshots.values()

    def _restore(self, state: JoinState, *changes: JoinState) -> None:
        """Restore the waiting tuples from a whole snapshot and the changes after it, and fetch the
        tuples of H_R from R."""
        if "waiting" not in state.tables:
            return
        states = [state, *changes]
        values = states[-1].values
        self.position, self.sweeps, self.costs.phi = (
            values[n] for n in ("position", "sweeps", "phi")
        )
        self._open(values["strings"], values["width"], values["shift"])
        self.arena.reserve("H_R", 0)
        self.snapshots.restore(states, self.arena, self.spec)
        budget = self.arena.free
        self.arena.reserve("H_R", budget)
        self.h_r.take_up(self.spec, state.tables["cache"], budget)
