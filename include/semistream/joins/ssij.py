"""SSIJ, the Semi-Streamed Index Join.

M. A. Bornea, A. Deligiannakis, Y. Kotidis, V. Vassalos: *Semi-Streamed Index Join for Near-Real
Time Execution of ETL Transformations*, ICDE 2011; as described in section 2 of Naeem, Weber,
Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join*.

    loop
        pending phase: COLLECT stream tuples in the input buffer, until it is full or the stream
                       ends
        online phase:  for each of them, count its block's utility
                           if its block is cached OUTPUT its matches, else ADD it to the stream
                           buffer, to wait for its block
        join phase, when the stream buffer is full:
                       PLAN to read the blocks of R for which the most tuples wait
                       for each block of the plan
                           READ it, OUTPUT and DELETE the tuples that wait for it
                           CACHE it in the place of the blocks with the lowest utility, if its own
                           is higher

A block is a disk partition. The papers at hand describe the algorithm and give no pseudocode: this
reading is ours. What they leave open, and deviations:

- The input buffer is the chunk that the caller collected. It needs no memory of M, and no tuple
  waits there.
- A plan frees an eighth of the stream buffer with the fewest reads. The oldest tuple's block is
  always read, so that no tuple waits for ever. Blocks are read in the order of R.
- Utility counts the stream tuples that need the block and fades by a tenth with each join phase.
  Cached blocks change once per join phase: one compaction of the cache.
- A key with tuples in several blocks is never taken from the cache; its tuples wait until all its
  blocks are read at once.
- The stream buffer is H_S and Q of HYBRIDJOIN (`joins/stream_table/by_key.py`); the tuples that
  wait for a block are found through its keys.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins.admission import fill
from semistream.joins.arena import Arena, mapped
from semistream.joins.contract import SemiStreamJoin, State
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.index_phase import IndexReader
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.output import NO_MATCH, JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState
from semistream.joins.stored_types import has_strings
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_probing import probe, steps
from semistream.joins.stream_table.by_key import ByKey, Span

# of the stream buffer, by one plan; of a block's utility, what a join phase leaves of it
FREED, FADE = 1 / 8, 0.9


class SsijParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d, master tuples of a block; 0: chosen from M "
                                                  "by the cost model")
    cache_share: float = Field(0.5, ge=0, le=0.9, description="Share of the memory beside the disk "
                                                              "buffer that caches blocks")


class BlockCache:
    """Whole blocks of R, found by key; which ones are cached is decided by utility, for a plan at a
    time.

    utility: float32[N]; cached: bool[N], which blocks are.
    """

    # bytes beside MasterCache's: of a key, its block; of a block of R, its utility and whether
    # cached
    ENTRY, BLOCK = 4, 4 + 1

    def __init__(self, spec: JoinSpec, arena: Arena, share: float):
        self.spec, self.master = spec, spec.master
        d, n = spec.master.partition_tuples, max(spec.master.partition_count, 1)
        self.utility, self.cached = np.zeros(n, np.float32), np.zeros(n, bool)
        arena.reserve("utility counters", n * self.BLOCK)
        block_bytes = int(d * (cached_bytes(spec) + MasterCache.ENTRY + self.ENTRY)) + 1
        self.places = min(int(share * arena.free / block_bytes), n)
        self.size = self.places * block_bytes
        arena.reserve("block cache", self.size)
        tuples, strings = max(self.places, 1) * d, has_strings(spec.fetched_schema)
        self.cache = MasterCache(spec.fetched_schema, tuples, tuples, self.size if strings else 0)
        self.block_of = mapped(tuples, np.int32)  # of each entry of the cache
        self._entering: set[int] = set()
        self._staged: list[tuple[int, int]] = []  # blocks, and the keys of each

    def replace(self, plan: np.ndarray) -> None:
        """Evict what the more useful blocks of the plan, int64[n], will replace; ``see`` then takes
        these in."""
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

    def see(self, partition: DiskPartition) -> None:
        """Stage a block that was read, if it is to be cached and fits: all tuples whose keys are in
        no other block."""
        if partition.number not in self._entering:
            return
        self._entering.remove(partition.number)
        keys, owner = np.unique(partition.codes, return_inverse=True)
        if not (self.master.unique and self.master.keys.exact):
            spans = self.master.partitions_of(keys)
            own = spans[:, 1] - spans[:, 0] == 1
            owner, keys = np.where(own, np.cumsum(own) - 1, -1)[owner], keys[own]
        rows, cache, payload = np.flatnonzero(owner >= 0), self.cache, partition.payload
        entries = cache.entries + len(cache.staged) + len(keys)
        budget = self.size - entries * self.ENTRY
        if cache.fits(payload, rows, budget - len(keys) * MasterCache.ENTRY):
            first = cache.stage(keys, np.zeros(len(keys)))
            cache.stage_tuples(payload, rows, first + owner[rows], budget)
            self._staged.append((partition.number, len(keys)))

    def switch(self) -> None:
        """Make the staged blocks findable."""
        if self._staged:
            first = self.cache.entries
            self.cache.switch()
            blocks, keys = map(list, zip(*self._staged, strict=True))
            self.block_of[first:self.cache.entries] = np.repeat(blocks, keys)
            self.cached[blocks] = True
        self._entering, self._staged = set(), []

    def restore(self, utility: np.ndarray, cached: np.ndarray) -> None:
        """Take up the utility of blocks, and read the cached ones anew."""
        self.utility[:] = utility
        blocks = np.flatnonzero(cached)
        self._entering = set(blocks.tolist())
        for number in blocks.tolist():
            self.see(DiskPartition(self.spec, number))
        self.switch()


class Ssij(SemiStreamJoin):
    """Many-to-many, needs an index. M = disk buffer + block cache and counters + stream buffer."""

    h_s: ByKey

    def __init__(self, spec: JoinSpec, parameters: SsijParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.blocks = BlockCache(self.spec, self.arena, parameters.cache_share)
        self.index = IndexReader(self.spec)
        self.h_s = ByKey(self.layout, self.master.partition_count)
        self._require(self.h_s.least_bytes, self.arena.free)

    @property
    def cached(self) -> int:
        """Master tuples in the block cache."""
        return self.blocks.cache.tuples

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        for tuples, keys in steps(batch, codes, self.h_s.capacity):
            waiting = yield from self._online(tuples, keys)
            buffer = StreamBuffer(self.layout, tuples, keys, waiting, arrived)
            absent = buffer.look_up(self.master)
            if len(absent):
                yield from self.output.unmatched(tuples.take(pa.array(absent)).columns, NO_MATCH)
            while (yield from fill(self.h_s, buffer, self.output)):  # ADD to the stream buffer
                yield from self.iterate()

    def _online(self, batch: pa.RecordBatch,
                codes: np.ndarray) -> Generator[JoinOutput, None, np.ndarray]:
        """The online phase. Returns the rows whose blocks are not cached, int64[n]."""
        blocks, spans = self.blocks, self.master.partitions_of(codes)
        home = np.where(spans[:, 1] - spans[:, 0] == 1, spans[:, 0], -1)
        blocks.utility += np.bincount(home[home >= 0],
                                      minlength=len(blocks.utility)).astype(np.float32)
        misses = yield from probe(blocks.cache, batch, codes, self.output)
        here = (home[misses] >= 0) & blocks.cached[home[misses]]
        absent = misses[here]  # not in the only block that could have it
        if len(absent):
            self.stats.cache_hits += len(absent)
            yield from self.output.unmatched(batch.take(pa.array(absent)).columns, NO_MATCH)
        return misses[~here]

    def iterate(self) -> Iterator[JoinOutput]:
        """The join phase; each block read is an iteration."""
        h_s, blocks = self.h_s, self.blocks
        plan = self._plan(h_s.waiting(len(blocks.cached)))
        blocks.replace(plan)
        oldest = h_s.span(h_s.oldest)
        spans = [oldest, *((n, n + 1) for n in plan.tolist() if not oldest[0] <= n < oldest[1])]
        for span, following in itertools.zip_longest(spans, spans[1:]):
            yield from self._read(span, following or h_s.following(span))
        blocks.switch()
        blocks.utility *= FADE

    def _read(self, span: Span, following: Span) -> Iterator[JoinOutput]:
        """READ blocks, OUTPUT and DELETE the tuples that wait for them, and CACHE them."""
        begun, h_s, read = self._begin(), self.h_s, 0
        for block in self.index.read(span, following):
            found = h_s.find(block.codes, block.firsts(span), span)
            yield from self.output.matches(block, h_s, h_s.pairs(found))
            self.blocks.see(block)
            read += len(block.codes)
        removed = h_s.remove(h_s.within(span))
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.index.cycles)

    def _plan(self, waiting: np.ndarray) -> np.ndarray:
        """The blocks to read, in the order of R, int64[n]; waiting: int64[N], tuples for each."""
        order = np.argsort(-waiting, kind="stable")
        count = int(np.searchsorted(np.cumsum(waiting[order]), FREED * self.h_s.live)) + 1
        return np.sort(order[:count][waiting[order[:count]] > 0])

    @property
    def passes(self) -> float:
        return self.index.passes

    def _is_due(self, passes: float, age: float) -> bool:
        return self.h_s.age >= age

    def _state(self) -> State:
        """Of the cache only the blocks' numbers: their tuples are in R."""
        blocks = pa.table({"utility": self.blocks.utility, "cached": self.blocks.cached})
        tables = self.h_s.tables() | {"blocks": blocks}
        return tables, {"disk buffer": self.index.values(), "H_S": self.h_s.values()}

    def _restore(self, state: JoinState) -> None:
        blocks = state.tables["blocks"]
        self.blocks.restore(blocks["utility"].to_numpy(), blocks["cached"].to_numpy())
        self.index.restore(state.values["disk buffer"])
        if "waiting" in state.tables:
            values = state.values["H_S"]
            self._open(values["strings"])
            self.h_s.restore(state.tables["waiting"], values, self.spec)
