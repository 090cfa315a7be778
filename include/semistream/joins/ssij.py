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

- The input buffer is the chunk that the caller collected. It takes no memory of M, and no tuple
  waits there.
- A plan frees an eighth of the stream buffer with the fewest reads. The oldest tuple's block is
  always read, so that no tuple waits for ever. Blocks are read in the order of R.
- Utility counts the stream tuples that need the block and fades by a tenth with each join phase.
  Cached blocks change once per join phase: one compaction of the cache.
- Keys with tuples in several blocks are never joined from the cache; their tuples wait until all
  their blocks are read together.
- The stream buffer is H_S and Q of HYBRIDJOIN (`joins/stream_table/by_key.py`); the tuples that
  wait for a block are found through its keys.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.admission import fill
from semistream.joins.block_cache import FADE, BlockCache, BlockCacheParameters
from semistream.joins.index_phase import Indexed
from semistream.joins.output import JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_probing import steps
from semistream.joins.stream_table.by_key import ByKey, Span

FREED = 1 / 8  # share of the stream buffer that one plan frees


class Ssij(Indexed):
    """The operator of SSIJ: many-to-many, with an index. M = disk buffer + block cache and counters
    + stream buffer."""

    h_s: ByKey

    def __init__(self, spec: JoinSpec, parameters: BlockCacheParameters):
        super().__init__(spec, parameters)
        self.blocks = self.held = BlockCache(self.spec, self.arena, parameters.cache_share)
        self.parts = (self.blocks, self.index)
        self.h_s = ByKey(self.layout, self.master.partition_count)
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        for tuples, keys in steps(batch, codes, self.h_s.capacity):
            buffer = yield from self.blocks.online(self.layout, tuples, keys, arrived, self.output)
            while (yield from fill(self.h_s, buffer, self.output)):  # ADD to the stream buffer
                yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        """Run the join phase. Each block read counts as an iteration."""
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
        """READ blocks, OUTPUT and DELETE the tuples that wait for them, and CACHE the blocks."""
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
        """Return the blocks to read, in the order of R, int64[n]. waiting: int64[N], the tuples
        that wait for each block."""
        order = np.argsort(-waiting, kind="stable")
        count = int(np.searchsorted(np.cumsum(waiting[order]), FREED * self.h_s.live)) + 1
        return np.sort(order[:count][waiting[order[:count]] > 0])
