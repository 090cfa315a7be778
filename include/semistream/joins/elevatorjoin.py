"""ELEVATORJOIN, our own.

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
from semistream.joins.contract import SemiStreamJoin, State
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.key_filter import KeyFilter
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.output import NO_MATCH, JoinOutput
from semistream.joins.scan_phase import ITERATION_COST, largest_chunk
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState
from semistream.joins.stored_types import has_strings, variable_bytes
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_probing import PROBE_ROWS, probe, step_rows
from semistream.joins.stream_table.by_partition import PARTITION_BYTES, ByPartition, Visit
from semistream.joins.stream_table.snapshots import Snapshots
from semistream.settings import Settings

LEAST_H_S = 0.05  # least share of H_S in the memory that H_S and H_R share
HYSTERESIS = 2.0  # a value stays while its worth is at least half of that needed to enter
ABSENT_VALUES = True  # whether H_R holds values without master tuples
SWITCH_SHARE = 16  # the switching buffer is this part of the memory that H_S and H_R share
# staged values move to H_R before the end of a sweep once this part of the waiting tuples has
# waited for them
SOON = 16
INDEXED = 64  # join values of H_R that can be indexed anew in the time of one miss
SLACK_SHARE = 32  # H_R is compacted when at least this part of it is evicted


class ElevatorjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d, master tuples read per iteration; 0: chosen "
                                                  "from M by the cost model")
    cache_tuples: int = Field(0, ge=0, description="h_R, the most master tuples in the cache; 0: "
                                                   "as many as the inequality gives")
    waiting_tuples: int = Field(0, ge=0, description="h_S, the most stream tuples that wait; 0: as "
                                                     "many as the memory holds and save anything")
    disk_share: float = Field(0.0, ge=0, le=1, description="phi, the stops' share of what a miss "
                                                           "costs; 0: measured")
    filter_bits: int = Field(0, ge=-1, le=32, description="Bits per master tuple of a filter that "
                                                          "knows absent keys; 0: chosen from M by "
                                                          "the cost model; -1: no filter")


class MissCosts:
    """phi, the stops' share of the cost of a miss: given, or measured sweep by sweep."""

    def __init__(self, given: float):
        self.phi, self._measure = given or 1.0, not given
        # seconds in this sweep for reading R and probing; seconds for all else that misses cost
        self.disk = self.other = 0.0
        self.stops = 0

    def end_sweep(self, sweeps: int) -> None:
        """Update phi from the sweep that ends, the sweeps-th one. A stop's own cost, c_I, cannot be
        timed apart from its tuples' and is taken to be `ITERATION_COST`."""
        spent = self.disk + self.other
        if self._measure and spent > 0:
            now = (self.disk + min(self.stops * ITERATION_COST, self.other)) / spent
            self.phi = (self.phi + now) / 2 if sweeps > 1 else now
        self.disk, self.other, self.stops = 0.0, 0.0, 0


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
        self.v_r, schema = cached_bytes(self.spec), self.spec.fetched_schema
        most = int(min(self.pool // MasterCache.bytes_per_tuple(schema, 0),
                       self.master.tuple_count))
        self.most_cached = min(parameters.cache_tuples or most, most)
        self.h_r = MasterCache(schema, most + 1, self.pool // MasterCache.ENTRY + 1,
                               self.pool if has_strings(schema) else 0)
        all_of_r = self.master.tuple_count * (self.v_r + MasterCache.ENTRY)
        self.whole = (all_of_r <= self.h_r.room(self.pool * (1 - LEAST_H_S))
                      and self.most_cached >= self.master.tuple_count)
        self.position = self.sweeps = 0
        self._missed = 1.0  # share of the last step's tuples that missed H_R
        self.costs = MissCosts(parameters.disk_share)
        self.h_s = ByPartition(self.layout, max(self.master.partition_count, 1))
        self.snapshots = Snapshots(self.h_s)
        self.arena.reserve("H_R", 0)
        self._require(self.h_s.least_bytes, self.pool * (1 - LEAST_H_S))

    @property
    def cached(self) -> int:
        """Master tuples in H_R."""
        return self.h_r.tuples

    # The outer loop

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        at = 0
        while at < len(codes):  # the cache phase
            number = step_rows(self.h_s.size / self.h_s.tuple_bytes / self._missed)
            tuples, keys = batch.slice(at, number), codes[at:at + number]
            misses = yield from probe(self.h_r, tuples, keys, self.output)
            self._missed = max(len(misses) / len(keys), self._missed / 2, 1 / PROBE_ROWS)
            if len(misses) and self.h_r.tuples == self.master.tuple_count:
                self.stats.cache_hits += len(misses)  # H_R holds all of R, so R lacks their keys
                yield from self.output.unmatched(tuples.take(pa.array(misses)).columns, NO_MATCH)
            elif len(misses):
                yield from self._add(tuples, keys, misses, arrived)
            at += number

    def _add(self, batch: pa.RecordBatch, codes: np.ndarray, misses: np.ndarray,
             arrived: float) -> Iterator[JoinOutput]:
        """ADD the misses to H_S. Whenever H_S is full, run the elevator's next stop."""
        begun = self.clock()
        buffer = StreamBuffer(self.layout, batch, codes, misses, arrived)
        absent, rejected = buffer.look_up(self.master), buffer.reject(self.filter)
        self.stats.cache_hits += len(rejected)
        for rows in (absent, rejected):
            if len(rows):
                yield from self.output.unmatched(batch.take(pa.array(rows)).columns, NO_MATCH)
        while True:
            full = yield from fill(self.h_s, buffer, self.output)
            self.costs.other += self.clock() - begun
            if not full:
                return
            yield from self.iterate()
            begun = self.clock()

    def iterate(self) -> Iterator[JoinOutput]:
        """Run the disk phase: go to the elevator's next stop, and finish all tuples that wait for
        its partition."""
        begun, h_s, disk, read = self._begin(), self.h_s, 0.0, 0
        at = h_s.next(self.position)
        if at < 0:
            self._end_sweep()
            at = h_s.next(0)
        reach, waited = int(h_s.reach[at]), int(h_s.waiting[at])
        counts = np.zeros(0, np.int32)
        for visit in h_s.visits(at):
            for number in range(at, reach):
                reading = self.clock()
                if new := not len(counts) or reach > at + 1:
                    if number == at:
                        self.master.prefetch(h_s.upcoming(at, self.master.buffers),
                                             self.spec.fetched)
                    partition = DiskPartition(self.spec, number)  # READ
                found = h_s.find(partition.codes, visit)
                if found.total:
                    partition.read()
                disk += self.clock() - reading
                if new:
                    self.filter.add(number, partition.codes)
                    read += len(partition.codes)
                if found.total:
                    yield from self.output.matches(partition, visit, visit.pairs(found))  # OUTPUT
            counts = found.counts if new else counts + found.counts
            yield from self.output.finish(h_s, visit.removed)
        yield from self.output.finish(h_s, h_s.remove(at))  # REMOVE them all
        # after its tuples left: this may shrink H_S, and move what is in it
        if reach == at + 1:
            self._switch(visit, partition, counts)
        self.position = at + 1
        self.costs.disk += disk
        self.costs.other += self.clock() - begun.at - disk
        self.costs.stops += 1
        self._end(begun, waited, read, self.sweeps)
        if self.position >= self.master.partition_count:
            self._end_sweep()

    # The bound on waiting

    @property
    def passes(self) -> float:
        return self.sweeps + self.position / max(self.master.partition_count, 1)

    def _stops(self, passes: float) -> int:
        """Return how many partitions, over all sweeps, the elevator has passed after this many
        passes over R."""
        return math.ceil(passes * self.master.partition_count)

    def _is_due(self, passes: float, age: float) -> bool:
        """Return whether the next partition with waiting tuples is among those that must have been
        passed."""
        at, sweeps = self.h_s.next(self.position), self.sweeps
        if at < 0:
            at, sweeps = self.h_s.next(0), sweeps + 1
        return sweeps * self.master.partition_count + at < self._stops(passes)

    def _pass_over(self, passes: float) -> None:
        """Pass the partitions up to the one that is due; no tuples wait for them."""
        if self.h_s.live and self.passes < passes:
            sweeps, position = divmod(self._stops(passes), self.master.partition_count)
            if sweeps > self.sweeps:
                self._end_sweep()
            self.position = position
        super()._pass_over(passes)

    # The cache

    def _worth(self, n: np.ndarray, m: np.ndarray | int) -> np.ndarray:
        """Return the ratio of the left side of the cost-balanced inequality to its right side. A
        value with n stream tuples a sweep and m master tuples is worth caching if the ratio exceeds
        1."""
        return n * self.h_s.tuple_bytes / (2 * max(self._price, 1e-9)
                                           * (m * self.v_r + MasterCache.ENTRY))

    def _surely(self, n: np.ndarray) -> np.ndarray:
        """Return n less one standard deviation, which chance may have added. Otherwise every value
        that came once would count as one that comes once a sweep. While memory costs nothing,
        return n."""
        return n - np.sqrt(n) if self._price else n

    @property
    def _price(self) -> float:
        """phi, or 0 while there is memory that H_S has no use for."""
        spare = self.pool - self.h_r.used - self.h_s.size > self.pool // SWITCH_SHARE
        return (0.0 if spare and self.h_s.size > self._useful - self.h_s.block_bytes
                else self.costs.phi)

    def _switch(self, visit: Visit, partition: DiskPartition, counts: np.ndarray) -> None:
        """SWITCH the values that satisfy the inequality into the switching buffer, best first, as
        far as they fit.

        visit: the partition's last visit, whose absent values are judged; counts: int32[n], the
        stream tuples that each tuple of the partition matched in all visits.
        """
        h_r, staged, budget = self.h_r, self.h_r.staged, self.arena.components["H_R"]
        # stream tuples that a value with one master tuple needs
        least = 2 * self._price * (self.v_r + h_r.ENTRY) / self.h_s.tuple_bytes
        rows = np.arange(len(counts)) if self.whole else np.flatnonzero(counts > least)
        absent = np.flatnonzero((visit.number > 0) & ~visit.met & ABSENT_VALUES)
        absent = absent[self._worth(self._surely(visit.number[absent]), 0) > 1]
        if not (len(rows) or len(absent)):
            return
        if self.master.unique and self.spec.keys.exact:
            keys, group, n = partition.codes[rows], np.arange(len(rows)), counts[rows]
            m = np.ones(len(rows), np.int64)
        else:
            keys, first, group = np.unique(partition.codes[rows], return_index=True,
                                           return_inverse=True)
            n, m = counts[rows[first]], np.bincount(group, minlength=len(keys))
        worth = np.full(len(keys), 2.0) if self.whole else self._worth(self._surely(n), m)
        chosen = np.flatnonzero(worth > 1)
        chosen = chosen[self._new(keys[chosen])]
        absent = absent[self._new(visit.keys[absent])] if len(absent) else absent
        if not (len(chosen) or len(absent)):
            return
        chosen = chosen[np.argsort(-worth[chosen], kind="stable")]
        size = m * h_r.slot + h_r.ENTRY
        if len(chosen) and has_strings(self.spec.fetched_schema):
            size = size + np.bincount(group, variable_bytes(partition.payload)[rows], len(keys))
        places = self.most_cached - h_r.tuples - staged.tuples
        fit = min(np.searchsorted(np.cumsum(size[chosen]), h_r.room(budget), side="right"),
                  np.searchsorted(np.cumsum(m[chosen]), places, side="right"))
        full, chosen = fit < len(chosen), chosen[:fit]
        if len(chosen):
            owner = np.full(len(keys), -1, np.int64)
            owner[chosen] = h_r.stage(keys[chosen], n[chosen]) + np.arange(len(chosen))
            mine = owner[group] >= 0
            h_r.stage_tuples(partition.take(rows[mine]), np.arange(mine.sum()), owner[group][mine],
                             budget)
        absent = absent[:max(int(h_r.room(budget) // h_r.ENTRY), 0)]
        h_r.stage(visit.keys[absent], visit.number[absent])
        soon = max(self.h_s.live // SOON, h_r.entries // INDEXED)
        if full or len(staged) > max(h_r.entries // 8, 256) or staged.frequencies.sum() > soon:
            self._move()

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """Return which of the keys are not in H_R and have all their master tuples in one
        partition."""
        new = self.h_r.lacks(keys)
        if not self.master.unique or not self.spec.keys.exact:
            spans = self.master.partitions_of(keys)
            new &= spans[:, 1] - spans[:, 0] <= 1
        return new

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
        h_r = self.h_r
        if h_r.entries and self._price and not self.whole:  # not while there is memory to spare
            keep = h_r.entries_that(lambda n, m: HYSTERESIS * self._worth(n, m) > 1)
            gone = ((h_r.entries - np.count_nonzero(keep)) * h_r.ENTRY
                    + (h_r.tuples - int(h_r.counts.sum(where=keep))) * self.v_r)
            if gone * SLACK_SHARE > h_r.used:
                h_r.keep(keep)
                self._divide()
        h_r.frequencies[:] = 0

    # Memory: H_R has what it uses and the switching buffer. H_S has the rest, as long as more
    # waiting tuples save work

    def _open(self, strings: float, width: int = 0, shift: int = 0) -> None:
        h_s, wanted = self.h_s, self.parameters.waiting_tuples
        size = int(wanted * h_s.bytes_per_tuple(self.layout.held, strings,
                                                1)) + PARTITION_BYTES * h_s.partitions
        h_s.open(strings, min(size, self.pool) if wanted else self.pool, width, shift)
        self._divide()

    @property
    def _useful(self) -> int:
        """Bytes of H_S beyond which more memory saves nothing, as an iteration's own cost is less
        than a fifth of its tuples'."""
        h_s = largest_chunk(self.master.partition_tuples) * self.h_s.partitions / 2
        h_s = self.parameters.waiting_tuples or h_s
        return int(h_s * self.h_s.tuple_bytes) + PARTITION_BYTES * self.h_s.partitions

    def _divide(self) -> None:
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
        of the switching buffer. Their master tuples can be read from R."""
        tables: dict[str, pa.Table | pa.RecordBatchReader] = {**self.snapshots.whole()}
        return tables | ({"cache": self.h_r.saved()} if tables else {}), self._values()

    def _changes(self) -> State | None:
        """Return the changes of H_S since the last snapshot. H_R is only part of a whole state."""
        tables = self.snapshots.changes(self.h_r.entries)
        return (tables, self._values()) if tables else None

    def _values(self) -> dict[str, Any]:
        return {"position": self.position, "sweeps": self.sweeps,
                "phi": self.costs.phi} | self.snapshots.values()

    def _restore(self, state: JoinState, *changes: JoinState) -> None:
        if "waiting" not in state.tables:
            return
        states = [state, *changes]
        values = states[-1].values
        self.position, self.sweeps, self.costs.phi = (values[n]
                                                      for n in ("position", "sweeps", "phi"))
        self._open(values["strings"], values["width"], values["shift"])
        self.arena.reserve("H_R", 0)
        self.snapshots.restore(states, self.arena, self.spec)
        budget = self.arena.free
        self.arena.reserve("H_R", budget)
        self.h_r.take_up(self.spec, state.tables["cache"], budget)
