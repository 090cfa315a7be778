"""ELEVATORJOIN, our own.

What SSBJ's cache inequality, HYBRIDJOIN's index, SSIJ's stream buffer by blocks and a disk arm's elevator give together.

    loop
        cache phase:  READ stream tuples; join each with H_R at once, or ADD it to the waiting tuples of its disk partition,
                      which the index knows, until H_S is full
        disk phase:   GO ON to the next partition of R for which tuples wait, READ it
            OUTPUT each of its tuples r with each of its matches among them, and REMOVE them all
            SWITCH the join values that are worth it into the switching buffer
            MOVE the switching buffer to H_R once much of what waits has waited for its values, or it is full
        at the end of a sweep over R:  MOVE it too, and drop the values that were not worth it in this sweep

Why it is fast:

- A scan-based join keeps each tuple for an R-cycle; here it leaves when its partition comes, after half a sweep on average, so
  that a full H_S finishes 2 h_S tuples a sweep. Every read serves 2 h_S / N tuples, and reads are in the order of the disk.
- A waiting tuple needs no hash entry, no queue node and no links: it lies with those of its partition. h_S is larger by as much.
- The **cost-balanced inequality**: a miss costs c_m of the processor and its share of a sweep's reads, C / (2 h_S). Caching a
  value with m master tuples takes m v_R + v_E bytes from H_S. Setting the derivative of misses (c_m + C / (2 h_S)) to zero gives

      cache j  iff  n_j v_S > 2 phi (m_j v_R + v_E),   phi = (C / 2 h_S) / (c_m + C / 2 h_S),

  where n_j stream tuples of j came since the last sweep's visit and phi is the disk's share of what a miss costs, measured sweep
  by sweep. phi = 1 is SSBJ's inequality (Theorem 2) for tuples that wait half a sweep. A uniform stream caches nothing, and where
  the disk costs nothing any repeated value is cached.
- It follows drift: a value enters H_R by the tuples of one sweep and stays by those of the last one (hysteresis 2), so that what
  has been hot once does not stay.
- Its state is kept by its changes: the tuples that came since the last snapshot and the partitions that were visited. A load
  that keeps it after every micro-batch writes what the batch brought, and not h_S tuples; so all of M can wait.

Where all of R fits into H_R, each visited partition is cached whole: it becomes a join in main memory (SSBJ's Theorem 3).
A join value whose master tuples lie in several partitions is joined, and never cached.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.errors import ConfigError
from semistream.joins import kernels
from semistream.joins.base import NO_MATCH, JoinOutput, JoinState, Partition, SemiStreamJoin
from semistream.joins.front import PROBE_ROWS, cache_phase, cached_bytes, has_strings, join_long, probe_front, tuples_of
from semistream.joins.partitionroom import PARTITION_BYTES, PartitionRoom, Visit
from semistream.joins.parts import OUTPUT_ROWS, Cache, TupleStore, is_variable, variable_bytes
from semistream.joins.sequential import StreamTuples, largest_chunk
from semistream.joins.spec import JoinSpec

LEAST_H_S = 0.05  # of the memory that H_S and H_R share
SWITCH_SHARE = 16  # the switching buffer is this part of the memory that H_S and H_R share
MOST_CHANGES = 100  # snapshots that tell changes, between two whole ones
SOON = 16  # values that so large a part of what waits has waited for are not kept back until the end of the sweep
INDEXED = 64  # join values of H_R are indexed again in the time of one miss
SLACK_SHARE = 32  # H_R is compacted when this part of it is to go


class ElevatorjoinParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="d, master tuples read per iteration; 0: chosen from M by the cost model")
    cache_tuples: int = Field(0, ge=0, description="h_R, the most master tuples in the cache; 0: as many as the inequality gives")
    waiting_tuples: int = Field(0, ge=0, description="h_S, the most stream tuples that wait; 0: as many as the memory holds and "
                                                     "save anything")
    disk_share: float = Field(0.0, ge=0, le=1, description="phi, the disk's share of what a miss costs; 0: measured")


class Staged:
    """The switching buffer: join values whose tuples are loaded and not findable yet."""

    def __init__(self) -> None:
        self.keys: list[np.ndarray] = []
        self.n: list[np.ndarray] = []
        self.count = self.waited = 0  # values, and the stream tuples that waited for them

    def add(self, keys: np.ndarray, n: np.ndarray) -> None:
        self.keys.append(keys)
        self.n.append(n.astype(np.int64))
        self.count += len(keys)
        self.waited += int(n.sum())


class Elevatorjoin(SemiStreamJoin):
    """Many-to-many, needs an index. M = d v_R + h_R v_R + h_S v_S + 32 N."""

    def __init__(self, spec: JoinSpec, parameters: ElevatorjoinParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.parameters: ElevatorjoinParameters
        self.tuples = StreamTuples(self.spec)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.pool = self.arena.free  # for H_S and H_R
        self.v_r = cached_bytes(self.spec)
        schema = self.spec.fetched_schema
        most = int(min(self.pool // (Cache.LINK + TupleStore.slot_bytes(schema)), self.master.tuple_count))
        self.most_cached = min(self.parameters.cache_tuples or most, most)
        self.cache = Cache(schema, most + 1, self.pool // Cache.ENTRY + 1, self.pool if has_strings(schema) else 0)
        all_of_r = self.master.tuple_count * (self.v_r + Cache.ENTRY)
        self.whole = all_of_r <= self.pool * (1 - LEAST_H_S) and self.most_cached >= self.master.tuple_count
        self.staged = Staged()
        self.position = self.sweeps = 0
        self.phi = self.parameters.disk_share or 1.0
        self._disk_seconds = self._miss_seconds = 0.0
        self._room: PartitionRoom | None = None
        self.variable = 0.0  # bytes of strings of an average stream tuple
        self._saves = 0  # snapshots since and with the last whole one
        self._changed = 0  # tuples that they told, and join values cached, since then
        self.arena.reserve("H_R", 0)
        partitions = max(self.master.partition_count, 1)
        if PartitionRoom.least_bytes(self.tuples.held, partitions) > self.pool * (1 - LEAST_H_S):
            raise ConfigError("memory", f"must hold the disk buffer and the heads of {partitions:,} partitions",
                              self.spec.memory, "Give more memory.")

    @property
    def cached(self) -> int:
        """Master tuples in H_R."""
        return self.cache.tuples

    @property
    def room(self) -> PartitionRoom:
        assert self._room is not None
        return self._room

    def _waiting(self) -> int:
        return self._room.live if self._room else 0

    # Memory: H_R has what it uses and the switching buffer, H_S the rest, as far as more tuples waiting save anything

    def _build(self, sample: pa.RecordBatch | None, width: int = 0) -> None:
        if any(is_variable(f.type) for f in self.tuples.held) and sample is not None and sample.num_rows:
            self.variable = float(variable_bytes(sample).mean()) + 1
        partitions, wanted = max(self.master.partition_count, 1), self.parameters.waiting_tuples
        size = int(wanted * PartitionRoom.tuple_bytes(self.tuples.held, self.variable, 1)) + PARTITION_BYTES * partitions
        self._room = PartitionRoom(self.tuples.held, min(size, self.pool) if wanted else self.pool, self.variable, partitions,
                                   width)
        self._divide()

    @property
    def v_s(self) -> float:
        """Bytes of a waiting tuple."""
        return PartitionRoom.tuple_bytes(self.tuples.held, self.variable, self.room.width)

    @property
    def _useful(self) -> int:
        """Bytes of H_S beyond which it saves nothing: an iteration's own cost is less than a fifth of its tuples'."""
        h_s = largest_chunk(self.master.partition_tuples) * max(self.master.partition_count, 1) / 2
        h_s = self.parameters.waiting_tuples or h_s
        return int(h_s * self.v_s) + PARTITION_BYTES * self.room.partitions

    def _divide(self) -> None:
        used = self.cache.used
        single = PartitionRoom.least_bytes(self.tuples.held, self.room.partitions, self.room.width)
        least = max(int(self.pool * LEAST_H_S), single)
        switch = min(self.pool // SWITCH_SHARE, max(self.pool - used - least, 0))
        if self.whole:
            switch = max(self.pool - used - least, 0)
        h_s = min(self.pool - used - switch, max(self._useful, single))
        self.arena.reserve("H_S", 0)
        self.arena.reserve("H_R", used)
        self.arena.reserve("H_S", self.room.resize(h_s))
        self.arena.reserve("H_R", max(min(self.pool - h_s, self.arena.free + used), used))

    # The outer loop

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        held = self.tuples.batch(batch)
        if not self._room:
            self._build(held)
        arrived, sizes = time.perf_counter(), variable_bytes(held)
        for first, block, keys in cache_phase(batch, codes, int(self.room.size / self.v_s)):
            misses = yield from probe_front(self, self.cache, block, keys)
            if len(misses):
                yield from self._wait(batch, held, codes, first + misses, sizes, arrived)

    def _wait(self, batch: pa.RecordBatch, held: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, sizes: np.ndarray,
              arrived: float) -> Iterator[JoinOutput]:
        """Let the misses into H_S; stop at the next partition whenever it is full."""
        started = time.perf_counter()
        spans = self.master.partitions_of(codes[rows])
        somewhere = spans[:, 0] < spans[:, 1]
        if not somewhere.all():
            yield self._unmatched(batch.take(pa.array(rows[~somewhere])).columns, NO_MATCH)
            rows, spans = rows[somewhere], spans[somewhere]
        sizes, at = sizes[rows], 0
        while True:
            now = time.perf_counter()
            n = self._admit(held, codes, rows[at:], spans[at:], sizes[at:], now)
            at += n
            self.stats.waited_seconds += n * (now - arrived)
            self._miss_seconds += time.perf_counter() - started
            if at == len(rows):
                return
            if self.room.live:
                yield from self.iterate()
            else:
                left = yield from join_long(self, self.tuples.columns, held, codes, rows[at:], sizes[at:])
                rows, spans, sizes, at = rows[at:][left], spans[at:][left], sizes[at:][left], 0
            started = time.perf_counter()

    def _admit(self, held: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, spans: np.ndarray, sizes: np.ndarray,
               now: float) -> int:
        """As many of the tuples as H_S has room for; none, when it is empty: the first is too long. Returns how many."""
        room = self.room
        n = room.fits(sizes)
        if n < len(rows) and not n and self._longer(sizes):
            n = room.fits(sizes)
        return room.append(held, codes, rows[:n], spans[:n], sizes[:n], now)

    def _longer(self, sizes: np.ndarray) -> bool:
        """Where strings are longer than assumed, divide H_S's bytes anew between tuples and strings. False: nothing changed."""
        room = self.room
        mean = max(float(sizes[:1000].mean()), room.heap_live / max(room.live, 1))
        if mean <= 1.1 * room.variable and room.live:
            return False
        self.variable = room.variable = mean
        room.resize(room.size)
        return True

    def iterate(self) -> Iterator[JoinOutput]:
        """One iteration: the elevator's next stop, where all tuples that wait for that partition leave."""
        started, read_before = time.perf_counter(), self.master.bytes_read
        at = self.room.next(self.position)
        if at < 0:
            self._end_sweep()
            at = self.room.next(0)
        visit, disk, inside = self.room.visit(at), 0.0, started
        matched, disk_tuples = np.zeros(len(visit.slots), bool), 0
        for number in range(at, visit.reach):
            begun = time.perf_counter()
            if number == at:
                self.master.prefetch(self.room.upcoming(at, self.master.buffers), self.spec.fetched)
            partition = Partition(self.spec, number)
            found, counts, total = self.room.find(partition.codes, visit)
            if total:
                partition.read()
            disk += time.perf_counter() - begun
            disk_tuples += len(partition.codes)
            yield from self._join(visit, partition, found, counts, matched)
        yield from self.finish(visit, matched)
        if visit.reach == at + 1:  # after its tuples left: this may shrink H_S, and move what is in it
            self._switch(visit, partition, counts)
        self.position = at + 1
        now = time.perf_counter()
        self._disk_seconds += disk
        self._miss_seconds += now - inside - disk
        self._iterated(started, read_before, len(visit.slots), disk_tuples, self.sweeps)
        if self.position >= self.master.partition_count:
            self._end_sweep()

    def _join(self, visit: Visit, partition: Partition, found: np.ndarray, counts: np.ndarray,
              matched: np.ndarray) -> Iterator[JoinOutput]:
        for rows, tuples in visit.pairs(found, counts):
            master = partition.take(rows).columns
            stream = self.tuples.columns(visit.keys[tuples], self.room.store.get(visit.slots[tuples]))
            stream, master, tuples = self._equal(stream, master, tuples)
            matched[tuples] = True
            if len(tuples):
                yield self._joined(stream, master)

    def finish(self, visit: Visit, matched: np.ndarray) -> Iterator[JoinOutput]:
        """Remove the partition's tuples: all of R that they can match was read."""
        stats, now, n = self.stats, time.perf_counter(), len(visit.slots)
        stats.processed_seconds += n * now - visit.arrived
        stats.processed_seconds_max = max(stats.processed_seconds_max, now - visit.first)
        stats.matched += int(matched.sum())
        lost = np.flatnonzero(~matched)
        for first in range(0, len(lost), OUTPUT_ROWS):
            part = lost[first:first + OUTPUT_ROWS]
            columns = self.tuples.columns(visit.keys[part], self.room.store.get(visit.slots[part]))
            yield self._unmatched(columns, NO_MATCH)
        self.room.remove(visit)

    # The cache

    def _worth(self, n: np.ndarray, m: np.ndarray | int) -> np.ndarray:
        """The cost-balanced inequality, as its left side over its right one: above 1 a value with n stream tuples a sweep and m
        master tuples is worth caching."""
        return n * self.v_s / (2 * max(self._price, 1e-9) * (m * self.v_r + Cache.ENTRY))

    def _surely(self, n: np.ndarray) -> np.ndarray:
        """n less what chance may have added, one standard deviation, so that not every value that came once is taken for one that
        comes once a sweep; n itself while memory costs nothing."""
        return n - np.sqrt(n) if self._price else n

    @property
    def _price(self) -> float:
        """phi, or nothing while there is memory that H_S has no use for."""
        spare = self.pool - self.cache.used - self.room.size > self.pool // SWITCH_SHARE
        return 0.0 if spare and self.room.size > self._useful - self.room.block_bytes else self.phi

    def _switch(self, visit: Visit, partition: Partition, counts: np.ndarray) -> None:
        """Load the values that satisfy the inequality into the switching buffer, the best first, as far as it has room."""
        budget = self.arena.components["H_R"]
        least = 2 * self._price * (self.v_r + Cache.ENTRY) / self.v_s  # that a value with one master tuple needs
        rows = np.arange(len(counts)) if self.whole else np.flatnonzero(counts > least)
        absent = np.flatnonzero((visit.number > 0) & ~visit.met)
        absent = absent[self._worth(self._surely(visit.number[absent]), 0) > 1]
        if not (len(rows) or len(absent)):
            return
        if self.master.unique and self.spec.keys.exact:
            keys, group, n, m = partition.codes[rows], np.arange(len(rows)), counts[rows], np.ones(len(rows), np.int64)
        else:
            keys, first, group = np.unique(partition.codes[rows], return_index=True, return_inverse=True)
            n, m = counts[rows[first]], np.bincount(group, minlength=len(keys))
        worth = np.full(len(keys), 2.0) if self.whole else self._worth(self._surely(n), m)
        chosen = np.flatnonzero(worth > 1)
        chosen = chosen[self._new(keys[chosen])]
        absent = absent[self._new(visit.keys[absent])] if len(absent) else absent
        if not (len(chosen) or len(absent)):
            return
        chosen = chosen[np.argsort(-worth[chosen], kind="stable")]
        size = m * self.cache.slot + Cache.ENTRY
        if len(chosen) and has_strings(self.spec.fetched_schema):
            size = size + np.bincount(group, variable_bytes(partition.payload)[rows], len(keys))
        free = budget - self.cache.used - self.staged.count * Cache.ENTRY
        places = self.most_cached - self.cache.tuples - self.cache.loaded
        fit = min(np.searchsorted(np.cumsum(size[chosen]), free, side="right"),
                  np.searchsorted(np.cumsum(m[chosen]), places, side="right"))
        full, chosen = fit < len(chosen), chosen[:fit]
        if len(chosen):
            owner = np.full(len(keys), -1, np.int64)
            owner[chosen] = self.staged.count + np.arange(len(chosen))
            mine = owner[group] >= 0
            self.cache.load(partition.take(rows[mine]), np.arange(mine.sum()), owner[group][mine], budget)
            self.staged.add(keys[chosen], n[chosen])
            free -= int(size[chosen].sum())
        absent = absent[:max(int(free // Cache.ENTRY), 0)]
        self.staged.add(visit.keys[absent], visit.number[absent])
        soon = max(self.room.live // SOON, self.cache.entries // INDEXED)
        if full or self.staged.count > max(self.cache.entries // 8, 256) or self.staged.waited > soon:
            self._move()

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """Which of the keys are not in H_R and have all their master tuples in one partition."""
        cached = np.empty(len(keys), np.int32)
        kernels.table_find(keys, self.cache.table, self.cache.ekey, cached)
        new = cached < 0
        if not self.master.unique or not self.spec.keys.exact:
            spans = self.master.partitions_of(keys)
            new &= spans[:, 1] - spans[:, 0] <= 1
        return new

    def _move(self) -> None:
        """The switching buffer becomes a part of H_R."""
        if self.staged.count:
            self.cache.publish(np.concatenate(self.staged.keys), np.minimum(np.concatenate(self.staged.n), 2**32 - 1))
            self._changed += self.staged.count
            self.staged = Staged()
        self._divide()

    def _end_sweep(self) -> None:
        """Move what is staged, measure phi, drop what the sweep has shown to be not worth its place."""
        self.position, self.sweeps = 0, self.sweeps + 1
        self.stats.r_cycles = self.sweeps
        self._move()
        spent = self._disk_seconds + self._miss_seconds
        if not self.parameters.disk_share and spent > 0:
            self.phi = (self.phi + self._disk_seconds / spent) / 2 if self.sweeps > 1 else self._disk_seconds / spent
        self._disk_seconds = self._miss_seconds = 0.0
        n = self.cache.entries
        if n and self._price and not self.whole:  # not while there is memory to spare
            keep = 2 * self._worth(self.cache.efreq[:n], self.cache.ecount[:n]) > 1
            gone = int((~keep).sum()) * Cache.ENTRY + int(self.cache.ecount[:n][~keep].sum()) * self.v_r
            if gone * SLACK_SHARE > self.cache.used:
                self.cache.keep(keep)
                self._divide()
        self.cache.efreq[:self.cache.entries] = 0

    def _drain(self) -> Iterator[JoinOutput]:
        while self._waiting():
            yield from self.iterate()

    # State

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """The waiting tuples by partition; of H_R and the switching buffer the join values: their tuples are in R."""
        self._changed = 0
        if not self._room:
            return {}, self._values()
        self._saves = 1
        n, s = self.cache.entries, self.staged
        cache = {"key": np.concatenate([self.cache.ekey[:n], *s.keys]),
                 "frequency": np.concatenate([self.cache.efreq[:n], *s.n]).astype(np.int64)}
        return {"waiting": self._newest(self.room.waiting), "cache": pa.table(cache)}, self._values()

    def _changes(self) -> tuple[dict[str, pa.Table], dict[str, Any]] | None:
        """The tuples that came since the last snapshot and still wait, and the partitions that were visited. The whole once it is
        less than the changes since the last one: so a tuple is kept twice, however many others wait. H_R is in the whole only."""
        if not self._saves or self._saves > MOST_CHANGES:
            return None
        unsaved = self.room.unsaved
        changed = self._changed + int(unsaved.sum())
        if changed > self.room.live + self.cache.entries:
            return None
        self._saves, self._changed = self._saves + 1, changed
        left = pa.table({"partition": np.flatnonzero(self.room.saved < 0)})
        return {"left": left, "waiting": self._newest(unsaved)}, self._values()

    def _values(self) -> dict[str, Any]:
        values = {"position": self.position, "sweeps": self.sweeps, "phi": self.phi, "variable": self.variable,
                  "changed": self._changed}
        if self._room:
            values |= {"width": self.room.width, "blocks": self.room.blocks, "heap": self.room.heap_capacity}
        return values

    def _newest(self, number: np.ndarray) -> pa.Table:
        """The newest number[p] tuples of each partition p, which the snapshot has from now on."""
        slots = self.room.slots(0, number)
        columns = self.tuples.columns(self.room.key[slots], self.room.store.get(slots))
        self.room.save()
        return pa.Table.from_arrays(columns, [f"s{i}" for i in range(len(columns))])

    def _go_on(self, state: JoinState, *changes: JoinState) -> None:
        if "waiting" not in state.tables:
            return
        values = (state, *changes)[-1].values
        self.position, self.sweeps, self.phi, self.variable = (values[n] for n in ("position", "sweeps", "phi", "variable"))
        self._saves, self._changed = 1 + len(changes), values["changed"]
        self._build(None, values["width"])
        self.arena.reserve("H_R", 0)
        for part in (state, *changes):
            self._wait_again(part)
        self._fetch(*(state.tables["cache"][c].to_numpy() for c in ("key", "frequency")))

    def _wait_again(self, state: JoinState) -> None:
        """Do to H_S what a snapshot tells."""
        room, waiting = self.room, state.tables["waiting"]
        for partition in state.tables["left"]["partition"].to_pylist() if not state.whole else ():
            room.remove(room.visit(partition))
        self.arena.reserve("H_S", room.divide(state.values["blocks"], state.values["heap"]))
        for part in waiting.to_batches(max_chunksize=PROBE_ROWS):
            batch = pa.RecordBatch.from_arrays(part.columns, schema=self.spec.stream)
            codes, _ = self.spec.keys.stream_codes(batch)
            held, spans, rows = self.tuples.batch(batch), self.master.partitions_of(codes), np.arange(batch.num_rows)
            sizes = variable_bytes(held)
            if room.fits(sizes) < len(rows):
                room.compact()
            if self._admit(held, codes, rows, spans, sizes, time.perf_counter()) < len(rows):
                raise ConfigError("memory", f"must hold the {waiting.num_rows:,} tuples that wait", self.spec.memory,
                                  "Give as much memory as before, or drain first.")
        room.save()

    def _fetch(self, keys: np.ndarray, frequencies: np.ndarray) -> None:
        """Load the master tuples of these join values again, through the index, as far as there is room."""
        budget, complete = self.arena.free, np.ones(len(keys), bool)
        self.arena.reserve("H_R", budget)
        for partition, rows, index in tuples_of(self.spec, keys):
            if not self.cache.load(partition.take(rows), np.arange(len(rows)), index, budget - len(keys) * Cache.ENTRY):
                complete[index] = False
        self.cache.publish(keys, frequencies)
        if not complete.all():
            self.cache.keep(complete)
