"""The partition-based join.

A. Chakraborty, A. Singh: *A Partition-based Approach to Support Streaming Updates over Persistent
Data in an Active Data Warehouse*, IPDPS 2009; as described in the sections on related work of the
papers on SSJ, SSBJ, SSCJ and Tuned X-HYBRIDJOIN.

    loop
        on arrival:     of each stream tuple, count its partition as wanted
                            if its partition is in memory OUTPUT its matches
                            else ADD it to its partition's part of the waiting area
        disk, when the waiting area is full:
                        READ the partition for which the most tuples wait
                        OUTPUT and REMOVE all of them
                        KEEP it in memory if it is one of those that are wanted most

No partition is read for which no tuple waits, and a read serves as many tuples as possible. The
flaw that the papers name follows from this: a tuple of a rarely wanted partition may wait for ever.
Here this happens only if the caller has no bound on waiting. With a bound, the partition of a tuple
that is due is read, whatever waits for others.

The papers at hand describe the algorithm in a few sentences and give no pseudocode: this reading is
ours. What they leave open, and deviations:

- The two-level hash table over the join attribute is R's index, which gives a tuple's partition,
  and a hash table over the keys of the partitions in memory (`joins/block_cache.py`).
- The waiting area is ELEVATORJOIN's (`joins/stream_table/by_partition.py`). The two joins differ in
  the order of their reads, and in what they cache.
- A partition is in memory as a whole. How often it is wanted is counted in stream tuples. Each time
  that an eighth of R's partitions has been read, the most wanted partitions are chosen anew, and
  the counts fade by a tenth, as in SSIJ.
- Keys with tuples in several partitions are never joined from memory.
- The state is saved as changes, as in ELEVATORJOIN.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins.admission import fill
from semistream.joins.block_cache import FADE, BlockCache, BlockCacheParameters
from semistream.joins.index_phase import Indexed
from semistream.joins.output import JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState, State
from semistream.joins.stream_probing import steps
from semistream.joins.stream_table.by_partition import ByPartition
from semistream.joins.stream_table.snapshots import Snapshots

CHOICES = 8  # how often per pass over R the partitions to cache are chosen


class PartitionJoin(Indexed):
    """The operator of the partition-based join: many-to-many, with an index. M = disk buffer +
    partitions in memory and their counters + waiting area."""

    h_s: ByPartition

    def __init__(self, spec: JoinSpec, parameters: BlockCacheParameters):
        super().__init__(spec, parameters)
        self.blocks = self.held = BlockCache(self.spec, self.arena, parameters.cache_share)
        self.parts = (self.blocks, self.index)
        self.h_s = ByPartition(self.layout, max(self.master.partition_count, 1))
        self.snapshots = Snapshots(self.h_s)
        self._chosen = 0.0  # passes over R at the last choice of partitions
        self._oldest_first = False
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        for tuples, keys in steps(batch, codes, self.h_s.size / self.h_s.tuple_bytes):
            buffer = yield from self.blocks.online(self.layout, tuples, keys, arrived, self.output)
            while (yield from fill(self.h_s, buffer, self.output)):  # ADD to the waiting area
                yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        """READ the partition with the most waiting tuples, or the oldest tuple's partition if the
        oldest tuple is due. OUTPUT and REMOVE the partition's waiting tuples."""
        begun, h_s, read = self._begin(), self.h_s, 0
        at, following = self._next()
        span, waited = (at, int(h_s.reach[at])), int(h_s.waiting[at])
        for visit in h_s.visits(at):
            for partition in self.index.read(span, (following, following + 1)):
                found = h_s.find(partition.codes, visit)
                yield from self.output.matches(partition, visit, visit.pairs(found))
                self.blocks.see(partition)  # KEEP
                read += len(partition.codes)
            yield from self.output.finish(h_s, visit.removed)
        yield from self.output.finish(h_s, h_s.remove(at))
        self._end(begun, waited, read, self.index.cycles)
        if CHOICES * (self.passes - self._chosen) >= 1:
            self._choose()

    def _next(self) -> tuple[int, int]:
        """Return the numbers of two partitions: the one to read now, and the one that will probably
        be read next."""
        waiting = self.h_s.waiting
        second, first = np.argpartition(waiting, -2)[-2:] if len(waiting) > 1 else (0, 0)
        if self._oldest_first:
            return self.h_s.oldest, int(first)
        return int(first), int(second if waiting[second] else first)

    def _choose(self) -> None:
        """Choose the most wanted partitions, which will be kept in memory. They enter memory when
        they are read."""
        self._chosen = self.passes
        self.blocks.switch()
        self.blocks.utility *= FADE
        self.blocks.replace(np.arange(self.master.partition_count))

    # The bound on waiting

    def _keep_up(self, share: float, age: float) -> Iterator[JoinOutput]:
        self._oldest_first = True
        yield from super()._keep_up(share, age)
        self._oldest_first = False

    # State

    def _state(self) -> State:
        return {**self.snapshots.whole(), **self.blocks.tables()}, self._values()

    def _changes(self) -> State | None:
        tables = self.snapshots.changes()
        return (tables | self.blocks.tables(), self._values()) if tables else None

    def _values(self) -> dict[str, Any]:
        return self.index.values() | self.snapshots.values()

    def _restore(self, state: JoinState, *changes: JoinState) -> None:
        """Restore the partitions in memory, and the waiting tuples from a whole snapshot and the
        changes after it."""
        states = [state, *changes]
        tables, values = states[-1].tables, states[-1].values
        for part in self.parts:
            part.restore(tables, values)
        self._chosen = self.passes
        if "waiting" in state.tables:
            self.h_s.open(values["strings"], self.arena.free, values["width"], values["shift"])
            self.snapshots.restore(states, self.arena, self.spec)
