"""A cache of whole blocks of R: the blocks with the most stream tuples."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.arena import Arena, mapped
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.index_phase import IndexParameters
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.output import JoinOutput, Output
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import Part
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_probing import probe


class BlockCacheParameters(IndexParameters):
    """The parameters of a join with a block cache: SSIJ and the partition-based join."""

    disk_tuples: int = Field(
        0, ge=0, description="d, master tuples of a block; 0: chosen from M by the cost model"
    )
    cache_share: float = Field(
        0.5,
        ge=0,
        le=0.9,
        description="Share of the memory beside the disk buffer that caches blocks",
    )


FADE = 0.9  # share of a block's utility that remains at each choice of the cached blocks


class BlockCache(Part):
    """A cache of whole blocks of R, with a hash table over their keys. At each plan, the blocks'
    utility decides which of them are cached.

    utility: float32[N]; cached: bool[N], whether each block is cached.
    """

    # bytes in addition to those of MasterCache: a key's block number; a block's utility and its
    # flag ``cached``
    ENTRY, BLOCK = 4, 4 + 1

    def __init__(self, spec: JoinSpec, arena: Arena, share: float):
        self.spec, self.master = spec, spec.master
        d, n = spec.master.partition_tuples, max(spec.master.partition_count, 1)
        self.utility, self.cached = np.zeros(n, np.float32), np.zeros(n, bool)
        arena.reserve("utility counters", n * self.BLOCK)
        block_bytes = int(d * (cached_bytes(spec) + MasterCache.ENTRY + self.ENTRY)) + 1
        self.capacity = min(int(share * arena.free / block_bytes), n)
        self.size = self.capacity * block_bytes
        arena.reserve("block cache", self.size)
        tuples = max(self.capacity, 1) * d
        self.cache = MasterCache(spec.fetched_schema, tuples, tuples, self.size)
        self.block_of = mapped(tuples, np.int32)  # the block of each entry of the cache
        self._entering: set[int] = set()
        self._staged: list[tuple[int, int]] = []  # blocks, and the keys of each

    @property
    def tuples(self) -> int:
        """The number of master tuples in the cached blocks."""
        return self.cache.tuples

    def online(
        self,
        layout: StreamLayout,
        batch: pa.RecordBatch,
        codes: np.ndarray,
        arrived: float,
        output: Output,
    ) -> Generator[JoinOutput, None, StreamBuffer]:
        """Join the tuples whose blocks are cached, and count the utility of all blocks. A tuple
        whose key is in no block is unmatched at once. Return the tuples that have to wait for a
        block. codes: int64[n]; arrived: the time at which the tuples came."""
        spans = self.master.partitions_of(codes)
        if not self.capacity:
            buffer = StreamBuffer(layout, batch, codes, None, arrived)
            yield from output.absent(batch, buffer.look_up(self.master, spans))
            return buffer
        home = np.where(spans[:, 1] - spans[:, 0] == 1, spans[:, 0], -1)
        self.utility += np.bincount(home[home >= 0], minlength=len(self.utility)).astype(np.float32)
        misses = yield from probe(self.cache, batch, codes, output)
        here = (home[misses] >= 0) & self.cached[home[misses]]
        absent = misses[here]  # the key's block is cached, so R lacks the key
        output.statistics.cache_hits += len(absent)
        yield from output.absent(batch, absent)
        rows = misses[~here]
        buffer = StreamBuffer(layout, batch, codes, rows, arrived)
        yield from output.absent(batch, buffer.look_up(self.master, spans[rows]))
        return buffer

    def replace(self, plan: np.ndarray) -> None:
        """Evict the cached blocks that are less useful than blocks of the plan, int64[n]. ``see``
        caches the blocks of the plan when they are read."""
        held = np.flatnonzero(self.cached)
        either = np.concatenate([held, plan[~self.cached[plan]]])
        best = either[np.argsort(-self.utility[either], kind="stable")[: self.capacity]]
        self._entering = set(best[~self.cached[best]].tolist())
        stays = np.zeros(len(self.cached), bool)
        stays[best] = True
        if not stays[held].all():
            n = self.cache.entries
            keep = stays[self.block_of[:n]]
            self.cache.keep(keep)
            self.block_of[: self.cache.entries] = self.block_of[:n][keep]
            self.cached &= stays

    def see(self, partition: DiskPartition) -> None:
        """Stage the tuples of a block that was read, if the block was chosen for the cache and
        fits. Keys that also occur in other blocks are left out."""
        if partition.number not in self._entering:
            return
        self._entering.remove(partition.number)
        keys, owner = np.unique(partition.codes, return_inverse=True)
        here = self.spec.in_one_partition(keys)
        if not here.all():
            owner, keys = np.where(here, np.cumsum(here) - 1, -1)[owner], keys[here]
        rows, cache, payload = np.flatnonzero(owner >= 0), self.cache, partition.payload
        entries = cache.entries + len(cache.staged) + len(keys)
        budget = self.size - entries * self.ENTRY
        if cache.fits(payload, rows, budget - len(keys) * MasterCache.ENTRY):
            first = cache.stage(keys, np.zeros(len(keys)))
            cache.stage_tuples(payload, rows, first + owner[rows], budget)
            self._staged.append((partition.number, len(keys)))

    def switch(self) -> None:
        """Add the staged blocks to the hash table, so that probes find them."""
        if self._staged:
            first = self.cache.entries
            self.cache.switch()
            blocks, keys = map(list, zip(*self._staged, strict=True))
            self.block_of[first : self.cache.entries] = np.repeat(blocks, keys)
            self.cached[blocks] = True
        self._entering, self._staged = set(), []

    def tables(self) -> dict[str, pa.Table]:
        """Return, for each block, its utility and whether it is cached. The cached tuples can be
        read from R."""
        return {"blocks": pa.table({"utility": self.utility, "cached": self.cached})}

    def restore(self, tables: dict[str, pa.Table], values: dict[str, Any]) -> None:
        """Restore the blocks' utility, and read the cached blocks from R."""
        blocks = tables["blocks"]
        self.utility[:] = blocks["utility"].to_numpy()
        numbers = np.flatnonzero(blocks["cached"].to_numpy()).tolist()
        self._entering = set(numbers)
        for number in numbers:
            self.see(DiskPartition(self.spec, number))
        self.switch()
