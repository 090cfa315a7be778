"""The join state of both streams: memory and disk portions under one budget, state relocation, and
the disk joins that it requires."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.compiled import filled
from semistream.errors import NotEnoughMemory
from semistream.job import SIDES
from semistream.joins.arena import Arena
from semistream.joins.output import OUTPUT_BYTES, OUTPUT_ROWS
from semistream.joins.state_file import JoinState
from semistream.joins.stored_types import variable_bytes
from semistream.joins.tuple_store import rows_in
from semistream.scratch import scratch_directory
from semistream.stream_joins import kernels
from semistream.stream_joins.disk import ATS, CODE, MARKS, Block, DiskPortion, MemoryBlock
from semistream.stream_joins.disk_join import Blocks, HeldTuples, Leftover
from semistream.stream_joins.kernels import BUCKETS, CHANGED, DEAD, NEVER
from semistream.stream_joins.memory import Directory, TupleLog
from semistream.stream_joins.spec import LEFT, RIGHT, StreamJoinSpec

# parts of M: held by a disk join; freed by a relocation; garbage that is left alone
DISK_SHARE, FREED_SHARE, GARBAGE_SHARE = 16, 4, 16
LEAST_GARBAGE = 4096  # tuples; less garbage is not worth a pass
LEAST_ROWS, MOST_PIECE = 256, 65_536  # tuples held by a disk join; written or read at a time
TOGETHER = 16_384  # rows of small blocks whose columns are gathered at once
LEAST_PIECE = 256  # tuples that are taken in together
MOST_CHANGES = 100  # snapshots of changes between two whole ones
PID, FLAGS = "__pid", "__flags"


def held_rows(memory: float) -> int:
    """Return the largest number of tuples that a disk join holds before the streams end, for M of
    `memory` bytes."""
    return max(int(memory // DISK_SHARE // HeldTuples.ROW), LEAST_ROWS)


@lru_cache(maxsize=1)
def _scratch(_process: int) -> Path:
    """Return the scratch directory, which all operators of a process share."""
    return scratch_directory()


class State:
    """The join state: ``memory[side]`` and ``disk[side]``, and the clock of arrivals (ATS),
    departures (DTS) and probes.

    The clock advances for each tuple, relocation and disk join, so that no two times are equal.
    """

    def __init__(self, spec: StreamJoinSpec):
        self.spec, self.arena, self.clock = spec, Arena(spec.memory), 0
        self._held = HeldTuples(
            rows := held_rows(spec.memory), max(spec.memory // HeldTuples.ROW, rows)
        )
        fit = min(rows_in(schema, OUTPUT_BYTES) for schema in spec.schemas)
        self._piece, self._together = min(rows, MOST_PIECE, fit), min(rows, TOGETHER, fit)
        self.directory = Directory(spec.memory // Directory.POSITION)
        self.memory = [
            TupleLog(s, self.directory, side, spec.memory) for side, s in enumerate(spec.schemas)
        ]
        self.disk = [DiskPortion(Path(), s) for s in spec.schemas]
        # per bucket: the time before which all arrivals have been joined
        self.done = np.zeros(BUCKETS, np.int64)
        self.relocations = self.relocated = self.disk_joins = 0
        self.punctuation_bytes = 0
        # snapshots since the last whole one, or 0; tuples that changed since then
        self._saves = self._changed = 0
        self.account()

    def account(self) -> None:
        """Update the arena's components. Raises NotEnoughMemory when M is exceeded."""
        a = self.arena
        a.components = self._components()
        if a.used > a.budget:
            raise NotEnoughMemory(2 * a.used, a.budget, f"{self.spec.algorithm}: {a.components}")
        a.peak = max(a.peak, a.used)

    def tick(self, count: int = 1) -> int:
        """Return the clock's time, then advance the clock by `count`."""
        now = self.clock
        self.clock += count
        return now

    def held(self, side: int) -> int:
        """Return the number of the side's tuples in memory and on disk."""
        return self.memory[side].live + self.disk[side].total

    def marks(self, side: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (pid, flags) of the tuples in memory and of each run on disk, including dead
        tuples. Both arrays are writable."""
        log = self.memory[side]
        yield log.pid[: log.end], log.flags[: log.end]
        for run in chain(*self.disk[side].runs):
            yield run.pid, run.flags

    def fitting(self, side: int, sizes: np.ndarray) -> int:
        """Return how many of the next tuples can be stored now. sizes: heap bytes of each tuple.

        While tuples can be moved to disk, a nearly full directory is not filled to its last
        position, because it would then accept the remaining tuples only one by one.
        """
        slot, count, directory = self.memory[side].slot_bytes, len(sizes), self.directory
        live = 0 if directory.fits(count) else directory.live
        least = min(max(count, 1), LEAST_PIECE) if any(log.live for log in self.memory) else 1
        while count >= least:  # fewer tuples need a smaller directory
            free = self.free - directory.growth(count, live)
            if fits := int(np.searchsorted(np.cumsum(sizes[:count] + slot), free, side="right")):
                return fits
            count //= 2
        return 0

    def _components(self) -> dict[str, int]:
        """Return the bytes that each component takes now."""
        return {
            "disk join": self._held.bytes,
            "directory": self.directory.bytes,
            "punctuations": self.punctuation_bytes,
            **{side: log.bytes for side, log in zip(SIDES, self.memory, strict=True)},
        }

    @property
    def free(self) -> int:
        """Bytes of M that no component uses."""
        return self.arena.budget - sum(self._components().values())

    # Garbage of tuples that have left

    def compact(self, share: int = GARBAGE_SHARE) -> bool:
        """Compact each log whose garbage is at least 1/share of M. Return whether there was such a
        log."""
        found = [m for m in self.memory if m.dead and m.garbage * share >= self.spec.memory]
        for log in found:
            log.compact()
        return bool(found)

    def tidy(self) -> None:
        """Compact each log that has more garbage than live tuples, so that a small state stays
        small."""
        for log in self.memory:
            if log.dead > max(log.live, LEAST_GARBAGE):
                log.compact()

    # State relocation

    def relocate(self) -> None:
        """Move the largest hash buckets of either stream to disk, a quarter of M in total. Raises
        NotEnoughMemory when no bucket can be moved."""
        counts = [log.bucket_counts() for log in self.memory]
        sizes = np.concatenate(
            [c * (m.bytes / max(m.end, 1)) for c, m in zip(counts, self.memory, strict=True)]
        )
        order = np.argsort(-sizes, kind="stable")
        goal = self.spec.memory / FREED_SHARE
        chosen = order[: int(np.searchsorted(np.cumsum(sizes[order]), goal)) + 1]
        chosen = chosen[sizes[chosen] > 0]
        wanted = np.zeros((2, BUCKETS), np.uint8)
        if not len(chosen):
            if self.directory.clear(wanted):
                return
            raise NotEnoughMemory(
                2 * self.spec.memory, self.spec.memory, f"a tuple of {self.spec.algorithm}"
            )
        moved, dts = [], self.tick()
        wanted.ravel()[chosen] = 1
        for side, log in enumerate(self.memory):
            buckets = np.flatnonzero(wanted[side])
            moved.append(slots := log.of_buckets(buckets, of_each := counts[side][buckets]))
            if len(slots):
                self._on_disk(side).write(
                    ((block, np.arange(len(block.code))) for block in self._pieces(log, slots)),
                    dict(zip(buckets.tolist(), of_each.tolist(), strict=True)),
                    dts,
                )
        self.directory.clear(wanted)
        for log, slots in zip(self.memory, moved, strict=True):
            if len(slots):
                log.remove_buckets(slots)
            self.relocated += len(slots)
        self.relocations += 1

    def _pieces(self, log: TupleLog, slots: np.ndarray) -> Iterator[MemoryBlock]:
        for first in range(0, len(slots), self._piece):
            yield MemoryBlock(log, slots[first : first + self._piece])

    def _on_disk(self, side: int) -> DiskPortion:
        disk = self.disk[side]
        if disk.directory == Path():
            disk.directory = Path(tempfile.mkdtemp(dir=_scratch(os.getpid())))
        return disk

    def remove(self) -> None:
        """Delete the files on disk. The state cannot be used afterwards."""
        for disk in self.disk:
            if disk.directory != Path():
                shutil.rmtree(disk.directory, ignore_errors=True)

    @property
    def uses_disk(self) -> bool:
        """Whether any tuples have been on disk since the operator was opened."""
        return any(disk.directory != Path() for disk in self.disk)

    # Disk join

    def empty_blocks(self) -> Blocks:
        """Return an empty collection of blocks."""
        return Blocks(self._together)

    def probe(self, side: int, bucket: int) -> Iterator[Leftover]:
        """Join the bucket's disk portion of one stream with the memory portion of the other, and
        record the probe in the history."""
        disk = self.disk[side]
        last = disk.runs[bucket][-1].dts
        yield from self._left_over(
            bucket, side, self._from_disk(side, bucket), lambda: self._in_memory(1 - side, bucket)
        )
        disk.history[bucket].append((last, self.tick()))
        self.disk_joins += 1

    def finish(self, bucket: int) -> Iterator[Leftover]:
        """Join all pairs of the bucket that have not been joined yet: disk with disk, and each disk
        portion with the other stream's memory."""
        yield from self._left_over(
            bucket, LEFT, self._blocks(LEFT, bucket), lambda: self._blocks(RIGHT, bucket)
        )
        self.done[bucket] = self.tick()
        for disk in self.disk:
            disk.history[bucket].clear()
        self.disk_joins += 1

    def waits(self, side: int, codes: np.ndarray, ats: np.ndarray) -> np.ndarray:
        """Return which tuples of a memory portion may still match tuples of the other stream's disk
        portion, bool[n]. These are tuples that came after a tuple of the disk portion had left
        memory, and after the last disk join with the whole disk portion."""
        disk = self.disk[1 - side]
        if not disk.total:
            return np.zeros(len(codes), bool)
        left, met = np.full(BUCKETS, NEVER, np.int64), self.done.copy()
        for bucket in np.flatnonzero(disk.tuples):
            left[bucket] = min(r.dts for r in disk.runs[bucket])
            met[bucket] = max(
                [
                    met[bucket],
                    *(at for last, at in disk.history[bucket] if last >= disk.runs[bucket][-1].dts),
                ]
            )
        of = filled(kernels.buckets, len(codes), np.int32, codes)
        return (ats > left[of]) & (ats >= met[of])

    def compact_disk(self, bucket: int) -> None:
        """Free the disk space of dead tuples, after `finish`."""
        for disk in self.disk:
            runs = disk.runs[bucket]
            rows = sum(r.rows for r in runs)
            if rows > 2 * disk.tuples[bucket] or len(runs) > 16:
                disk.rewrite(bucket, int(self.done[bucket]))

    def _blocks(self, side: int, bucket: int) -> Iterator[Block]:
        yield from self._in_memory(side, bucket)
        yield from self._from_disk(side, bucket)

    def _from_disk(self, side: int, bucket: int) -> Iterator[Block]:
        disk = self.disk[side]
        for block in disk.blocks(bucket):
            disk.read += block.bytes
            yield block

    def _in_memory(self, side: int, bucket: int) -> Iterator[Block]:
        """Yield the blocks of the bucket's memory portion, including the purge buffer."""
        log = self.memory[side]
        return self._pieces(log, log.of_buckets(np.array([bucket]), log.bucket_counts()[[bucket]]))

    def _left_over(
        self, bucket: int, side: int, blocks: Iterable[Block], others: Callable[[], Iterable[Block]]
    ) -> Iterator[Leftover]:
        """Run a block nested loop: hold as many tuples of one side as fit into memory, join them
        with all blocks of the other side, and repeat with the next tuples. side: the side of
        `blocks`; others: a function that returns the blocks of the other side; it is called for
        each round."""
        histories = self.disk[side].probes(bucket), self.disk[1 - side].probes(bucket)
        done, held = int(self.done[bucket]), self._held
        for _ in held.fill(blocks, self._together):
            met, pairs, count = self.empty_blocks(), np.empty((2, OUTPUT_ROWS), np.int64), 0

            for block in others():
                if held.newest < done and block.newest < done:
                    continue
                row, x, number = 0, -1, met.add(block)
                while row < len(block.code):
                    row, x, count = held.pairs(
                        histories[0], block, histories[1], done, number, row, x, count, *pairs
                    )
                    if count == OUTPUT_ROWS:
                        yield Leftover.of(side, held, met, pairs[:, :count])
                        met, count = self.empty_blocks(), 0
                        number = met.add(block)
            if count:
                yield Leftover.of(side, held, met, pairs[:, :count])

    def end(self) -> bool:
        """Prepare for the end of the streams. If a hash bucket is larger than a disk join can hold,
        all tuples in memory must be moved to disk, and their memory is used for the disk join.
        Return whether there are more tuples to move."""
        on_disk = self.disk[LEFT].tuples
        rows = int((self.memory[LEFT].bucket_counts() + on_disk).max(initial=0))
        if rows <= self._held.rows or not any(disk.total for disk in self.disk):
            return False
        if any(log.live for log in self.memory):
            return True
        self._held.rows += self.free // HeldTuples.ROW
        return False

    def empty(self) -> None:
        """Free the memory after all tuples have left."""
        for log in self.memory:
            log.compact()
        self._held.rows = held_rows(self.spec.memory)
        self._held.release()

    # Snapshots

    def saved(self, changes: bool) -> JoinState:
        """Return a snapshot. changes: whether the changes since the last snapshot suffice; a whole
        snapshot is returned anyway if it is smaller than the changes since the last whole one.

        For each stream (here the left one) the snapshot has these tables: ``left``, tuples in
        memory, either all or the new ones, whose reader must be read before the state changes;
        ``left gone``, the arrival times of tuples that have left; ``left changed``, tuples whose
        pid or flags have changed; and a table of the marks of each run on disk. Files of runs are
        linked.
        """
        since = [log.changes() for log in self.memory]
        self._changed += sum(
            len(gone) + len(changed) + int(np.count_nonzero(came)) for gone, changed, came in since
        )
        changes = (
            changes
            and 0 < self._saves <= MOST_CHANGES
            and self._changed <= sum(log.live for log in self.memory)
        )
        self._saves = self._saves + 1 if changes else 1
        tables: dict[str, pa.Table | pa.RecordBatchReader] = {}
        linked: dict[str, Path] = {}
        for side, log in enumerate(self.memory):
            gone, changed, came = since[side]
            if changes:
                tables[f"{SIDES[side]} gone"] = pa.table({ATS: gone})
                tables[f"{SIDES[side]} changed"] = pa.table(
                    {
                        ATS: log.ats[changed],
                        PID: log.pid[changed],
                        FLAGS: log.flags[changed] & (255 - CHANGED),
                    }
                )
            else:
                came, self._changed = log.flags[: log.end] & DEAD == 0, 0
            tables[SIDES[side]] = self._in_pieces(log, came)
            log.saved(self.clock)
            for run in chain(*self.disk[side].runs):
                if run.changed or not changes:
                    tables[run.name] = pa.table({name: getattr(run, name).copy() for name in MARKS})
                run.changed = False
                linked[run.file.path.name] = run.file.path
        values = {
            "clock": self.clock,
            "done": self.done.tolist(),
            "disk": [disk.saved() for disk in self.disk],
            "history": [disk.history for disk in self.disk],
            "changed": self._changed,
        }
        return JoinState(tables, {"state": values}, not changes, linked)

    @staticmethod
    def _in_pieces(log: TupleLog, which: np.ndarray) -> pa.RecordBatchReader:
        """Return a reader of the tuples that the mask `which`, bool[slots], selects."""
        schema = pa.schema(
            [
                *log.schema,
                *(
                    (name, pa.from_numpy_dtype(kind))
                    for name, kind in (
                        (CODE, np.int64),
                        (ATS, np.int64),
                        (PID, np.int32),
                        (FLAGS, np.uint8),
                    )
                ),
            ]
        )

        def batches() -> Iterator[pa.RecordBatch]:
            rows = min(OUTPUT_ROWS, rows_in(log.schema, OUTPUT_BYTES))
            for first in range(0, len(which), rows):
                slots = first + np.flatnonzero(which[first : first + rows])
                numbers = (
                    log.code[slots],
                    log.ats[slots],
                    log.pid[slots],
                    log.flags[slots] & (255 - CHANGED),
                )
                yield pa.RecordBatch.from_arrays(
                    [*log.columns(slots), *map(pa.array, numbers)], schema=schema
                )

        return pa.RecordBatchReader.from_batches(schema, batches())

    def restore(self, *states: JoinState) -> None:
        """Restore a whole snapshot and the changes after it. If M is now smaller, tuples that no
        longer fit into memory are moved to disk."""
        last = states[-1]
        values = last.values["state"]
        self.clock, self.done = values["clock"], np.array(values["done"], np.int64)
        self._saves, self._changed = len(states), values["changed"]
        for side, saved in enumerate(values["disk"]):
            if saved:
                self._on_disk(side).take_up(
                    saved,
                    last.linked,
                    lambda name: next(s.tables[name] for s in reversed(states) if name in s.tables),
                )
        for disk, history in zip(self.disk, values["history"], strict=True):
            disk.history = [[(a, b) for a, b in one] for one in history]
        for side, log in enumerate(self.memory):
            log.saved_until = self.clock
            since = _Since(side, states[1:])
            for state in states:
                for batch in state.tables[SIDES[side]].to_batches(self._piece):
                    self._take_up(side, since.apply(batch))
        self.account()

    def _take_up(self, side: int, batch: pa.RecordBatch) -> None:
        """Put the tuples of a snapshot back into a side's memory portion. Tuples that do not fit
        are moved to disk."""
        log = self.memory[side]
        rows = pa.RecordBatch.from_arrays(batch.columns[:-4], schema=log.schema)
        sizes, first = variable_bytes(rows), 0
        while first < batch.num_rows:
            count = self.fitting(side, sizes[first:])
            if not count:
                self.relocate()
                continue
            part = batch.slice(first, count)
            code, ats, pid, flags = (part.column(c).to_numpy() for c in (CODE, ATS, PID, FLAGS))
            self.directory.grow(count)
            slots = log.append(part.columns[:-4], code, ats, flags & kernels.BUFFERED == 0)
            log.pid[slots], log.flags[slots] = pid, flags
            first += count


class _Since:
    """The changes of one stream's tuples that later snapshots have recorded."""

    def __init__(self, side: int, states: Sequence[JoinState]):
        gone = [s.tables[f"{SIDES[side]} gone"][ATS].to_numpy() for s in states]
        self._gone = np.sort(np.concatenate([np.empty(0, np.int64), *gone]))
        changed = [s.tables[f"{SIDES[side]} changed"] for s in states]
        ats, self._pid, self._flags = (
            np.concatenate([np.empty(0, kind), *(t[name].to_numpy() for t in changed)])
            for name, kind in ((ATS, np.int64), (PID, np.int32), (FLAGS, np.uint8))
        )
        self._order = np.argsort(ats, kind="stable")  # the newest of a tuple comes last
        self._ats = ats[self._order]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the tuples of a snapshot without those that were removed later, with their newest
        flags and pids."""
        ats = batch.column(ATS).to_numpy()
        at = np.searchsorted(self._ats, ats, "right") - 1
        known = np.flatnonzero(at >= 0)
        rows = known[self._ats[at[known]] == ats[known]]
        newest = self._order[at[rows]]
        pid, flags = (batch.column(c).to_numpy().copy() for c in (PID, FLAGS))
        pid[rows], flags[rows] = self._pid[newest], self._flags[newest]
        now = pa.RecordBatch.from_arrays(
            [*batch.columns[:-2], pa.array(pid), pa.array(flags)], schema=batch.schema
        )
        at = np.searchsorted(self._gone, ats)
        known = np.flatnonzero(at < len(self._gone))
        still = np.ones(len(ats), bool)
        still[known] = self._gone[at[known]] != ats[known]
        return now if still.all() else now.filter(pa.array(still))
