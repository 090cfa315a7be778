"""The sequential disk phase that MESHJOIN brought, and that the scan-based joins share.

R is read cyclically in N partitions. Each iteration closes the chunk of newly arrived stream tuples, reads the next partition,
probes each of its tuples in H_S, and removes the oldest chunk once it has met all N partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins import kernels
from semistream.joins.base import NO_MATCH, JoinOutput, JoinState, Partition, SemiStreamJoin
from semistream.joins.front import join_long
from semistream.joins.parts import TupleStore, WaitingRoom, is_variable, variable_bytes
from semistream.joins.spec import JoinSpec

# Orders of magnitude, in seconds: of an iteration whatever its size; of a disk tuple; of a stream tuple.
ITERATION_COST, TUPLE_COST, STREAM_COST = 400e-6, 60e-9, 300e-9


def largest_chunk(disk_tuples: float) -> float:
    """The most stream tuples that an iteration over so many disk tuples waits for: as many as make the iteration's own cost a
    fifth of theirs. Beyond, tuples would wait for nothing."""
    return 5 * (ITERATION_COST + disk_tuples * TUPLE_COST) / STREAM_COST


class StreamTuples:
    """How stream tuples are held: an integer key that is its own code is not held twice."""

    def __init__(self, spec: JoinSpec):
        self.schema = spec.stream
        index = spec.stream.get_field_index(spec.keys.stream[0])
        self.key = index if spec.keys.exact and pa.types.is_integer(spec.stream.field(index).type) else None
        self.held = pa.schema([f for i, f in enumerate(spec.stream) if i != self.key])

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The held columns."""
        if self.key is None:
            return batch
        columns = [c for i, c in enumerate(batch.columns) if i != self.key]
        if not columns:  # a record batch without columns has no length
            return pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])).fill_null({}))
        return pa.RecordBatch.from_arrays(columns, schema=self.held)

    def columns(self, codes: np.ndarray, held: list[pa.Array]) -> list[pa.Array]:
        """All columns of the stream."""
        if self.key is None:
            return held
        kind = self.schema.field(self.key).type
        key = pa.array(codes.view(np.uint64) if kind == pa.uint64() else codes).cast(kind)
        return [*held[:self.key], key, *held[self.key:]]


class MeshPhase:
    """H_S, Q and the cyclic scan of R, on behalf of a join that decides what enters.

    on_partition, if given, gets every partition after it was probed, and f, how many matches each of its tuples had in H_S.
    on_cycle, if given, is called when R has been read through, while the chunks of the whole R-cycle still wait.
    slices: q, in how many slices a partition is joined, each an iteration (R-MESHJOIN).
    """

    def __init__(self, join: SemiStreamJoin, on_partition: Callable[[Partition, np.ndarray], None] | None = None,
                 slices: int = 1, on_cycle: Callable[[], None] | None = None):
        self.join, self.spec, self.master, self.slices = join, join.spec, join.spec.master, slices
        self.tuples, self.on_partition, self.on_cycle = StreamTuples(join.spec), on_partition, on_cycle
        self._room: WaitingRoom | None = None
        self.variable = 0.0  # bytes of strings of an average stream tuple
        self.position = self.cycles = 0  # iterations of this R-cycle; R-cycles
        self._partition: Partition | None = None  # in the disk buffer

    @property
    def started(self) -> bool:
        """Whether H_S was made: the first stream tuples tell how much room their strings take."""
        return self._room is not None

    @property
    def room(self) -> WaitingRoom:
        assert self._room is not None
        return self._room

    @property
    def chunks(self) -> int:
        """Chunks of Q, and iterations per R-cycle: N q, at least 1. An empty R is passed over in one iteration."""
        return max(self.master.partition_count * self.slices, 1)

    @property
    def tuple_bytes(self) -> float:
        """v_S as held: payload, key, links, flags and place in the table."""
        return WaitingRoom.tuple_bytes(self.tuples.held, self.variable)

    @property
    def live(self) -> int:
        return self._room.live if self._room else 0

    def w(self, capacity: int) -> int:
        """Stream tuples per iteration for an H_S of so many tuples: what fills it in one R-cycle, and no more than
        ``largest_chunk``."""
        return max(min(capacity // self.chunks, self.largest_w), 1)

    @property
    def largest_w(self) -> int:
        return int(largest_chunk(self.master.partition_tuples / self.slices))

    def require(self, size: int, tuples: int = 1) -> None:
        """Raises ConfigError when an H_S of so many bytes holds fewer tuples for each chunk, their strings aside."""
        if size < WaitingRoom.tuple_bytes(self.tuples.held, 0) * self.chunks * tuples:
            raise ConfigError("memory", f"must hold the disk buffer and {tuples} tuples for each of {self.chunks:,} chunks",
                              self.spec.memory, "Give more memory.")

    def build(self, sample: pa.RecordBatch | None, most_bytes: int) -> None:
        """Make H_S for at most so many bytes, with the strings' average length taken from the first tuples seen; where they are
        too long for a tuple in each chunk, fewer wait."""
        variable = any(is_variable(f.type) for f in self.tuples.held)
        if variable and sample is not None and sample.num_rows:
            self.variable = float(variable_bytes(sample).mean()) + 1
        slot = WaitingRoom.OVERHEAD + TupleStore.slot_bytes(self.tuples.held)
        self.variable = max(min(self.variable, most_bytes / self.chunks - slot), 0.0)
        self._room = WaitingRoom(self.tuples.held, max(most_bytes // slot, 1), most_bytes if variable else 0)

    def fill(self, sample: pa.RecordBatch | None) -> None:
        """Make H_S of all memory that is left."""
        size = self.join.arena.free
        self.build(sample, size)
        self.resize(size)

    def resize(self, size: int) -> bool:
        """Give H_S that many bytes, or as many as its largest chunks need. False when more wait there now."""
        size = min(size, int(self.tuple_bytes * max(self.largest_w, 1) * self.chunks) + 1)
        capacity = int(size // self.tuple_bytes)
        heap = int(size - capacity * (self.tuple_bytes - self.variable)) if self.room.most_heap else 0
        done = self.room.resize(capacity, heap)
        if done:
            self.join.arena.reserve("H_S", size)
        return done

    def admit(self, held: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, sizes: np.ndarray, most: int,
              arrived: float) -> int:
        """Let stream tuples held[rows] into the open chunk, as many as fit and at most `most`. Returns how many; none, when H_S
        is empty: the first is too long (`pass_by`)."""
        count = self.room.fits(sizes, most)
        if count < min(len(rows), most) and self._longer(sizes):
            count = self.room.fits(sizes, most)
        if count:
            now = time.perf_counter()
            self.room.append(held, codes, rows[:count], int(sizes[:count].sum()), now)
            self.join.stats.waited_seconds += count * (now - arrived)
        return count

    def pass_by(self, held: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray,
                sizes: np.ndarray) -> Generator[JoinOutput, None, tuple[np.ndarray, np.ndarray]]:
        """Join the tuples that are too long for H_S. Returns the rows that are left, and their sizes."""
        left = yield from join_long(self.join, self.tuples.columns, held, codes, rows, sizes)
        return rows[left], sizes[left]

    def take(self, held: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, arrived: float) -> Iterator[JoinOutput]:
        """Let the rows into H_S; iterate whenever w have come, or H_S is full."""
        at, sizes = 0, variable_bytes(held)[rows]
        while at < len(rows):
            wanted = self.w(self.room.capacity) - self.room.open_count
            taken = self.admit(held, codes, rows[at:], sizes[at:], wanted, arrived)
            at += taken
            if not taken and not self.live:
                rows, sizes = yield from self.pass_by(held, codes, rows[at:], sizes[at:])
                at = 0
            elif taken == wanted or at < len(rows):
                yield from self.iterate()

    def _longer(self, sizes: np.ndarray) -> bool:
        """Where strings are longer than assumed, divide H_S's bytes anew between slots and strings. False: nothing changed."""
        room, before = self.room, self.variable
        if not room.most_heap or room.live >= room.capacity:
            return False
        size = self.join.arena.components["H_S"]
        self.variable = min(max(float(sizes.mean()), room.heap_live / max(room.live, 1)), size - self.tuple_bytes + before)
        if self.variable > 1.1 * before and self.resize(size):
            return True
        self.variable = before
        return False

    def iterate(self) -> Iterator[JoinOutput]:
        """One outer loop of MESHJOIN."""
        started, read_before, room = time.perf_counter(), self.master.bytes_read, self.room
        room.close(started)
        disk_tuples = yield from self._disk()
        self.position += 1
        if self.position >= self.chunks:
            self.position, self.cycles = 0, self.cycles + 1
            if self.on_cycle:
                self.on_cycle()
        removed = 0
        if len(room.queue) >= self.chunks:
            removed = room.queue[0].count
            yield from self.expire()
        self.join._iterated(started, read_before, removed, disk_tuples, self.cycles)

    def _disk(self) -> Generator[JoinOutput, None, int]:
        """Read the next partition, if the last one is through, and join its next slice. Returns the tuples read."""
        if not self.master.partition_count:
            return 0
        number, piece = divmod(self.position, self.slices)
        read = 0
        if self._partition is None or self._partition.number != number:
            ahead = [(number + i) % self.master.partition_count for i in range(self.master.buffers)]
            self.master.prefetch(ahead, self.spec.fetched)
            self._partition = Partition(self.spec, number)
            read = len(self._partition.codes)
        count = len(self._partition.codes)
        f = yield from self.probe(self._partition, count * piece // self.slices, count * (piece + 1) // self.slices)
        if self.on_partition:
            self.on_partition(self._partition, f)
        if piece == self.slices - 1:
            self._partition = None
        return read

    def probe(self, partition: Partition, first: int, last: int) -> Generator[JoinOutput, None, np.ndarray]:
        """Join the partition's tuples first..last-1 with everything that waits. Returns how many matches each has, int32[n]."""
        room = self.room
        found, counts, total = room.find(partition.codes[first:last])
        if not total:
            return counts
        for rows, slots in room.pairs(found, counts):
            master = partition.take(rows + first).columns
            stream = self.tuples.columns(room.key[slots], room.store.get(slots))
            stream, master, slots = self.join._equal(stream, master, slots)
            kernels.mark(room.flags, slots, kernels.MATCHED)
            if len(slots):
                yield self.join._joined(stream, master)
        return counts

    def expire(self) -> Iterator[JoinOutput]:
        """Remove the oldest chunk: it has met all of R, and what had no match has none."""
        chunk, slots, matched = self.room.expire()
        stats, age = self.join.stats, time.perf_counter() - chunk.arrived
        stats.processed_seconds += chunk.count * age
        stats.processed_seconds_max = max(stats.processed_seconds_max, age if chunk.count else 0.0)
        stats.matched += int(matched.sum())
        lost = slots[~matched]
        if len(lost):
            yield self.join._unmatched(self.tuples.columns(self.room.key[lost], self.room.store.get(lost)), NO_MATCH)

    def drain(self) -> Iterator[JoinOutput]:
        """Iterate without input until nothing waits: at most one R-cycle."""
        while self.live:
            yield from self.iterate()
        if self._room:
            self._room.queue.clear()

    def state(self) -> tuple[pa.Table | None, dict[str, Any]]:
        """The waiting tuples in order of age, and the position in the cycle."""
        values = {"position": self.position, "cycles": self.cycles, "variable": self.variable, "chunks": []}
        if not self._room:
            return None, values
        slots = self.room.slots(0, self.room.live)
        values["chunks"] = [[c.count, c.closed] for c in self.room.queue]
        columns = self.tuples.columns(self.room.key[slots], self.room.store.get(slots))
        matched = pa.array(self.room.flags[slots] & kernels.MATCHED != 0)
        return pa.Table.from_arrays([*columns, matched], [*(f"s{i}" for i in range(len(columns))), "matched"]), values

    def resume(self, state: JoinState) -> None:
        """Take up a saved state in all memory that is left."""
        values = state.values["mesh"]
        self.position, self.cycles = values["position"], values["cycles"]
        if "waiting" in state.tables:
            self.variable = values["variable"]
            self.fill(None)
            self.go_on(state.tables["waiting"], values)

    def go_on(self, table: pa.Table, values: dict[str, Any]) -> None:
        """Take up the waiting tuples; H_S is built and has its size."""
        self.position, self.cycles = values["position"], values["cycles"]
        now, at = time.perf_counter(), 0
        for count, closed in values["chunks"]:
            if count:
                *columns, matched = table.slice(at, count).combine_chunks().to_batches()[0].columns
                part = pa.RecordBatch.from_arrays(columns, schema=self.spec.stream)
                codes, _ = self.spec.keys.stream_codes(part)
                held = self.tuples.batch(part)
                first = self.room.live
                if self.admit(held, codes, np.arange(count), variable_bytes(held), count, now) < count:
                    raise ConfigError("memory", f"must hold the {table.num_rows:,} tuples that wait", self.spec.memory,
                                      "Give as much memory as before, or drain first.")
                slots = self.room.slots(first, count)[matched.to_numpy(zero_copy_only=False)]
                kernels.mark(self.room.flags, slots, kernels.MATCHED)
            if closed:
                self.room.close(now)
            at += count
