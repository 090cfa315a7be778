"""The indexed disk phase that HYBRIDJOIN brought, and that the index-based joins share.

H_S is kept full. Each iteration takes the oldest key of Q, reads through the index the disk partition that may hold it, and
finishes every stream tuple whose key is there.

What is beyond the papers: a key's master tuples may lie in several partitions (many-to-many across a border, or keys of one hash
code). A stream tuple knows its key's partition range. It takes part in an iteration only if that reads the whole range, and then
leaves in it, with a match or without; the oldest key's iteration reads all partitions of its range.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins import kernels, room_kernels
from semistream.joins.base import NO_MATCH, JoinOutput, JoinState, Partition, SemiStreamJoin
from semistream.joins.front import join_long
from semistream.joins.keyroom import APPEND_ROWS, KeyRoom
from semistream.joins.parts import OUTPUT_ROWS, is_variable, variable_bytes
from semistream.joins.sequential import StreamTuples

Span = tuple[int, int]  # disk partitions, (first, last + 1)
EVERYWHERE: Span = (0, 2**31 - 1)  # contains every other


@dataclass
class Resident:
    """Master tuples in memory: all that their keys have."""

    codes: np.ndarray
    payload: pa.RecordBatch

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        return self.payload.take(pa.array(rows))


class IndexedPhase:
    """H_S, Q and the reads through the index, on behalf of a join that decides what enters.

    on_full: the join's iteration, run whenever H_S is full and more comes. on_partition, if given, sees every disk partition that
    was probed, and how many waiting tuples each of its tuples met.
    """

    def __init__(self, join: SemiStreamJoin, on_full: Callable[[], Iterator[JoinOutput]],
                 on_partition: Callable[[Partition, np.ndarray], None] | None = None):
        self.join, self.spec, self.master = join, join.spec, join.spec.master
        self.tuples, self.on_full, self.on_partition = StreamTuples(join.spec), on_full, on_partition
        self._room: KeyRoom | None = None
        self.sweeping = False  # the last search for absent keys found some: look for more in each iteration
        self.variable = 0.0  # bytes of strings of an average stream tuple
        self.read = 0  # partitions so far

    @property
    def room(self) -> KeyRoom:
        assert self._room is not None
        return self._room

    @property
    def live(self) -> int:
        return self._room.live if self._room else 0

    def require(self) -> None:
        """Raises ConfigError when the memory that is left does not hold one stream tuple, its strings aside."""
        least = KeyRoom.tuple_bytes(self.tuples.held, 0)
        if self.join.arena.free < least:
            raise ConfigError("memory", f"must hold one stream tuple of {int(least):,} bytes beside {self.join.arena.components}",
                              self.spec.memory, "Give more memory.")

    def build(self, sample: pa.RecordBatch | None, size: int) -> None:
        """Make H_S of so many bytes, with the strings' average length taken from the first tuples seen."""
        if sample is not None and sample.num_rows:
            self.variable = float(variable_bytes(sample).mean()) + 1
        self.join.arena.reserve("H_S", size)
        self._room = KeyRoom(self.tuples.held, size, self.variable if any(is_variable(f.type) for f in self.tuples.held) else 0)

    def room_for(self, batch: pa.RecordBatch) -> KeyRoom:
        """H_S, which is made of the memory that is free when the first tuples come."""
        if not self._room:
            self.build(batch, self.join.arena.free)
        return self.room

    def take(self, batch: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, arrived: float) -> Iterator[JoinOutput]:
        """Let the tuples of these rows into H_S; iterate whenever it is full.

        A key that the index has no partition for is unmatched at once.
        """
        self.room_for(batch)
        held = self.tuples.batch(batch)
        sizes = variable_bytes(held)
        for first in range(0, len(rows), APPEND_ROWS):
            part = rows[first:first + APPEND_ROWS]
            spans = self.master.partitions_of(codes[part])
            somewhere = spans[:, 0] < spans[:, 1]
            if not somewhere.all():
                yield self.join._unmatched(batch.take(pa.array(part[~somewhere])).columns, NO_MATCH)
                part, spans = part[somewhere], spans[somewhere]
            while len(part):
                at = self.admit(held, codes, part, spans, sizes[part], arrived)
                part, spans = part[at:], spans[at:]
                if not len(part):
                    break
                if self.live:
                    yield from self.on_full()
                else:
                    left = yield from join_long(self.join, self.tuples.columns, held, codes, part, sizes[part])
                    part, spans = part[left], spans[left]

    def admit(self, held: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, spans: np.ndarray, sizes: np.ndarray,
              arrived: float) -> int:
        """Refill H_S with the tuples of these rows, whose spans and sizes follow, as many as fit. Returns how many; none, when it
        is empty: the first is too long."""
        room = self.room
        count = room.fits(sizes)
        if count:
            room.append(held, codes, rows[:count], spans, int(sizes[:count].sum()))
            self.join.stats.waited_seconds += count * (time.perf_counter() - arrived)
        return count

    def iterate(self, span: Span | None = None, following: Span | None = None, resident: Resident | None = None,
                expected: float = 0) -> Iterator[JoinOutput]:
        """Read the oldest key's partitions, or `span`, and finish all stream tuples whose keys' partitions are among them.

        following: what will be read next, if it is known; else it is thought to be the next oldest key's. resident: probed first.
        When the oldest key turns out to be absent, or fewer than `expected` tuples were met, all absent keys that would have been
        in these partitions are looked for: each would cost the same read again.
        """
        started, read_before, room, stats = time.perf_counter(), self.master.bytes_read, self.room, self.join.stats
        removed, disk_tuples, met = 0, 0, []
        if resident is not None:
            leaders, _ = yield from self.probe(resident, EVERYWHERE)
            stats.cache_hits += yield from self.finish(leaders)
        if room.live or span:
            span = span or room.span(room.oldest)
            self.master.prefetch([*range(*span), *range(*(following or room.following(*span)))], self.spec.fetched)
            for number in range(*span):
                partition = Partition(self.spec, number)
                leaders, counts = yield from self.probe(partition, span)
                met.append(leaders)
                if self.on_partition:
                    self.on_partition(partition, counts)
                disk_tuples += len(partition.codes)
            few = room_kernels.count(np.concatenate(met), room.link) < min(expected, room.live)
            if few or self.sweeping or self._oldest_is_absent(span):
                met.append(room.unmet(*span))
                self.sweeping = len(met[-1]) > 0
            removed = yield from self.finish(np.concatenate(met))
            self.read += span[1] - span[0]
        self.join._iterated(started, read_before, removed, disk_tuples, self.read // max(self.master.partition_count, 1))

    def _oldest_is_absent(self, span: Span) -> bool:
        oldest = self.room.oldest
        if oldest < 0:
            return False
        first, last = self.room.span(oldest)
        return span[0] <= first and last <= span[1] and not self.room.flags[oldest] & room_kernels.MET

    def probe(self, partition: Partition | Resident, span: Span) -> Generator[JoinOutput, None, tuple[np.ndarray, np.ndarray]]:
        """Join a partition with the waiting tuples whose keys are in no other than those of `span`.

        Returns the leaders that this iteration had not met before, and how many tuples met each of the partition's.
        """
        room = self.room
        found, counts, met = room.find(partition.codes, *span)
        for rows, slots in room.pairs(found, counts):
            master = partition.take(rows).columns
            stream = self.tuples.columns(room.key[slots], room.store.get(slots))
            stream, master, slots = self.join._equal(stream, master, slots)
            kernels.mark(room.flags, slots, room_kernels.MATCHED)
            if len(slots):
                yield self.join._joined(stream, master)
        return met, counts

    def finish(self, leaders: np.ndarray) -> Generator[JoinOutput, None, int]:
        """Remove all tuples of these keys: all of R that they can match was read. Returns how many they are."""
        if not len(leaders):
            return 0
        slots, matched = self.room.remove(leaders)
        stats, (total, most) = self.join.stats, self.room.ages(slots)
        stats.processed_seconds += total
        stats.processed_seconds_max = max(stats.processed_seconds_max, most)
        stats.matched += int(matched.sum())
        lost = slots[~matched]
        for first in range(0, len(lost), OUTPUT_ROWS):
            part = lost[first:first + OUTPUT_ROWS]
            yield self.join._unmatched(self.tuples.columns(self.room.key[part], self.room.store.get(part)), NO_MATCH)
        return len(slots)

    def state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """The waiting tuples in the order of age."""
        values = {"variable": self.variable, "read": self.read}
        if not self._room:
            return {}, values
        values["capacity"] = self.room.capacity
        slots = self.room.in_age_order()
        columns = self.tuples.columns(self.room.key[slots], self.room.store.get(slots))
        return {"waiting": pa.Table.from_arrays(columns, [f"s{i}" for i in range(len(columns))])}, values

    def go_on(self, state: JoinState, size: int) -> None:
        """Take up the waiting tuples in an H_S of so many bytes."""
        values, table = state.values["indexed"], state.tables.get("waiting")
        self.variable, self.read = values["variable"], values["read"]
        if table is None:
            return
        self.build(None, size)
        self.room.divide(min(values["capacity"], self.room.slots))
        for part in table.to_batches(max_chunksize=APPEND_ROWS):
            batch = pa.RecordBatch.from_arrays(part.columns, schema=self.spec.stream)
            codes, _ = self.spec.keys.stream_codes(batch)
            held, spans = self.tuples.batch(batch), self.master.partitions_of(codes)
            if self.admit(held, codes, np.arange(len(codes)), spans, variable_bytes(held), time.perf_counter()) < len(codes):
                raise ConfigError("memory", f"must hold the {table.num_rows:,} tuples that wait", self.spec.memory,
                                  "Give as much memory as before, or drain first.")
