"""SSIJ, the Semi-Streamed Index Join.

M. A. Bornea, A. Deligiannakis, Y. Kotidis, V. Vassalos: *Semi-Streamed Index Join for Near-Real Time Execution of ETL
Transformations*, ICDE 2011; as described in section 2 of Naeem, Weber, Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream
Join*.

    loop
        pending phase: COLLECT stream tuples in the input buffer, until it is full or the stream ends
        online phase:  for each of them, count its block's utility
                           if its block is cached OUTPUT its matches, else ADD it to the stream buffer, to wait for its block
        join phase, when the stream buffer is full:
                       PLAN to read the blocks of R for which the most tuples wait
                       for each block of the plan
                           READ it, OUTPUT and DELETE the tuples that wait for it
                           CACHE it in the place of the blocks with the lowest utility, if its own is higher

A block is a disk partition. The papers at hand describe the algorithm and give no pseudocode: this reading is ours. What they
leave open, and deviations:

- The input buffer is the chunk that the caller collected. It needs no memory of M, and no tuple waits there.
- A plan frees an eighth of the stream buffer with the fewest reads. The oldest tuple's block is always read, so that no tuple
  waits for ever. Blocks are read in the order of R.
- Utility counts the stream tuples that need the block and fades by a tenth with each join phase. Cached blocks change once per
  join phase: one compaction of the cache.
- A key with tuples in several blocks is never taken from the cache; its tuples wait until all its blocks are read at once.
- The stream buffer is H_S and Q of HYBRIDJOIN (`joins/indexed.py`); the tuples that wait for a block are found through its keys.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins.base import NO_MATCH, JoinOutput, JoinState, Partition, SemiStreamJoin
from semistream.joins.front import cache_phase, cached_bytes, has_strings, probe_front
from semistream.joins.indexed import IndexedPhase
from semistream.joins.parts import Cache, mapped
from semistream.joins.spec import JoinSpec

FREED, FADE = 1 / 8, 0.9  # of the stream buffer, by one plan; of a block's utility, what a join phase leaves of it


class SsijParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d, master tuples of a block; 0: chosen from M by the cost model")
    cache_share: float = Field(0.5, ge=0, le=0.9, description="Share of the memory beside the disk buffer that caches blocks")


class BlockCache:
    """Whole blocks of R, found by key; which ones are cached is decided by utility, for a plan at a time."""

    ENTRY, BLOCK = 4, 4 + 1  # bytes beside Cache's: of a key, its block; of a block of R, its utility and whether it is cached

    def __init__(self, join: SemiStreamJoin, share: float):
        spec = join.spec
        self.master, d, n = spec.master, spec.master.partition_tuples, max(spec.master.partition_count, 1)
        self.utility, self.cached = np.zeros(n, np.float32), np.zeros(n, bool)
        join.arena.reserve("utility counters", n * self.BLOCK)
        block_bytes = int(d * (cached_bytes(spec) + Cache.ENTRY + self.ENTRY)) + 1
        self.places = min(int(share * join.arena.free / block_bytes), n)
        self.size = self.places * block_bytes
        join.arena.reserve("block cache", self.size)
        tuples, strings = max(self.places, 1) * d, has_strings(spec.fetched_schema)
        self.cache = Cache(spec.fetched_schema, tuples, tuples, self.size if strings else 0)
        self.block_of = mapped(tuples, np.int32)
        self._entering: set[int] = set()
        self._keys: list[np.ndarray] = []
        self._blocks: list[int] = []

    def make_room(self, plan: np.ndarray) -> None:
        """Evict what the more useful blocks of the plan will replace; ``see`` then takes these in."""
        held = np.flatnonzero(self.cached)
        either = np.concatenate([held, plan[~self.cached[plan]]])
        best = either[np.argsort(-self.utility[either], kind="stable")[:self.places]]
        self._entering = set(best[~self.cached[best]].tolist())
        stays = np.zeros(len(self.cached), bool)
        stays[best] = True
        if not stays[held].all():
            n = self.cache.entries
            keep = stays[self.block_of[:n]]
            self.cache.keep(keep)
            self.block_of[:self.cache.entries] = self.block_of[:n][keep]
            self.cached &= stays

    def see(self, partition: Partition, _: np.ndarray | None = None) -> None:
        """Load a block that was read, if it is to be cached and fits: all tuples whose keys are in no other block."""
        if partition.number not in self._entering:
            return
        self._entering.remove(partition.number)
        keys, owner = np.unique(partition.codes, return_inverse=True)
        if not (self.master.unique and self.master.keys.exact):
            spans = self.master.partitions_of(keys)
            own = spans[:, 1] - spans[:, 0] == 1
            owner, keys = np.where(own, np.cumsum(own) - 1, -1)[owner], keys[own]
        rows, before = np.flatnonzero(owner >= 0), sum(map(len, self._keys))
        budget = self.size - (before + len(keys)) * Cache.ENTRY - (self.cache.entries + before + len(keys)) * self.ENTRY
        if self.cache.load(partition.payload, rows, before + owner[rows], budget):
            self._keys.append(keys)
            self._blocks.append(partition.number)

    def publish(self) -> None:
        """Make the loaded blocks findable."""
        if self._blocks:
            first = self.cache.entries
            self.cache.publish(np.concatenate(self._keys))
            self.block_of[first:self.cache.entries] = np.repeat(self._blocks, [len(k) for k in self._keys])
            self.cached[self._blocks] = True
        self._entering, self._keys, self._blocks = set(), [], []

    def go_on(self, spec: JoinSpec, blocks: np.ndarray) -> None:
        """Read these blocks anew."""
        self._entering = set(blocks.tolist())
        for number in blocks.tolist():
            self.see(Partition(spec, number))
        self.publish()


class Ssij(SemiStreamJoin):
    """Many-to-many, needs an index. M = disk buffer + block cache and counters + stream buffer."""

    def __init__(self, spec: JoinSpec, parameters: SsijParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.blocks = BlockCache(self, parameters.cache_share)
        self.indexed = IndexedPhase(self, self._iterate, self.blocks.see)
        self.indexed.require()

    @property
    def cached(self) -> int:
        """Master tuples in the block cache."""
        return self.blocks.cache.tuples

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        for _, block, keys in cache_phase(batch, codes, self.indexed.room_for(batch).capacity):
            waiting = yield from self._online(block, keys)
            yield from self.indexed.take(block, keys, waiting, arrived)

    def _online(self, block: pa.RecordBatch, codes: np.ndarray) -> Generator[JoinOutput, None, np.ndarray]:
        """The online phase. Returns the rows whose blocks are not cached, int64[n]."""
        blocks, spans = self.blocks, self.master.partitions_of(codes)
        home = np.where(spans[:, 1] - spans[:, 0] == 1, spans[:, 0], -1)
        blocks.utility += np.bincount(home[home >= 0], minlength=len(blocks.utility)).astype(np.float32)
        misses = yield from probe_front(self, blocks.cache, block, codes)
        here = (home[misses] >= 0) & blocks.cached[home[misses]]
        absent = misses[here]  # not in the only block that could have it
        if len(absent):
            self.stats.cache_hits += len(absent)
            yield self._unmatched(block.take(pa.array(absent)).columns, NO_MATCH)
        return misses[~here]

    def _iterate(self) -> Iterator[JoinOutput]:
        """The join phase; each block read is an iteration."""
        room, blocks = self.indexed.room, self.blocks
        waiting = room.waiting(len(blocks.cached))
        plan = self._plan(waiting)
        blocks.make_room(plan)
        oldest = room.span(room.oldest)
        spans = [oldest, *((n, n + 1) for n in plan.tolist() if not oldest[0] <= n < oldest[1])]
        for span, following in itertools.zip_longest(spans, spans[1:]):
            yield from self.indexed.iterate(span, following, expected=waiting[slice(*span)].sum())
        blocks.publish()
        blocks.utility *= FADE

    def _plan(self, waiting: np.ndarray) -> np.ndarray:
        """The blocks to read, in the order of R."""
        order = np.argsort(-waiting, kind="stable")
        count = int(np.searchsorted(np.cumsum(waiting[order]), FREED * self.indexed.live)) + 1
        return np.sort(order[:count][waiting[order[:count]] > 0])

    def _drain(self) -> Iterator[JoinOutput]:
        while self.indexed.live:
            yield from self._iterate()

    def _waiting(self) -> int:
        return self.indexed.live

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Of the cache only the blocks' numbers: their tuples are in R."""
        tables, values = self.indexed.state()
        return tables | {"blocks": pa.table({"utility": self.blocks.utility, "cached": self.blocks.cached})}, {"indexed": values}

    def _go_on(self, state: JoinState) -> None:
        table = state.tables["blocks"]
        self.blocks.utility[:] = table["utility"].to_numpy()
        self.blocks.go_on(self.spec, np.flatnonzero(table["cached"].to_numpy()))
        self.indexed.go_on(state, self.arena.free)
