"""The disk-resident portion of a stream's join state: per hash bucket the runs that state
relocation wrote."""

from __future__ import annotations

import mmap
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.durable import naming
from semistream.joins.state_file import link
from semistream.stream_joins.kernels import DEAD, MATCHED, NEVER
from semistream.stream_joins.memory import TupleLog

# what changes of a tuple on disk, in a file of its own
MARKS = np.dtype([("pid", "<i4"), ("flags", "u1")])
CODE, ATS = "__code", "__ats"


class Block:
    """Tuples of one hash bucket that a disk join holds against others. dts: when each left
    memory."""

    def __init__(self, code: np.ndarray, ats: np.ndarray, dts: np.ndarray, pid: np.ndarray,
                 flags: np.ndarray):
        self.code, self.ats, self.dts, self.pid, self.flags = code, ats, dts, pid, flags
        self.newest = int(ats.max()) if len(ats) else -1

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        raise NotImplementedError

    def match(self, rows: np.ndarray) -> None:
        raise NotImplementedError


class MemoryBlock(Block):
    """Slots of a log."""

    def __init__(self, log: TupleLog, slots: np.ndarray):
        super().__init__(log.code[slots], log.ats[slots], np.full(len(slots), NEVER),
                         log.pid[slots], log.flags[slots])
        self._log, self._slots = log, slots

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        return self._log.columns(self._slots[rows])

    def match(self, rows: np.ndarray) -> None:
        self._log.match(self._slots[rows])


class RunBlock(Block):
    """Live tuples of a part of a run."""

    def __init__(self, batch: pa.RecordBatch, marks: np.ndarray, run: Run):
        self._rows = np.flatnonzero(marks["flags"] & DEAD == 0)
        code, ats = (batch.column(c).to_numpy()[self._rows] for c in (CODE, ATS))
        super().__init__(code, ats, np.full(len(code), run.dts), marks["pid"][self._rows],
                         marks["flags"][self._rows])
        self._batch, self._marks, self._run = batch, marks, run

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        at = pa.array(self._rows[rows])
        return [c.take(at) for c in self._batch.columns[:-2]]

    def match(self, rows: np.ndarray) -> None:
        self._marks["flags"][self._rows[rows]] |= MATCHED
        self._run.changed = True

    def remove(self, rows: np.ndarray) -> None:
        self._marks["flags"][self._rows[rows]] |= DEAD
        self._run.changed = True

    def assign(self, rows: np.ndarray, pids: np.ndarray) -> None:
        self._marks["pid"][self._rows[rows]] = pids
        self._run.changed = True


class Gathered(Block):
    """Several blocks as one, so that others are held against all of them at a time."""

    def __init__(self, blocks: Sequence[Block]):
        super().__init__(*(np.concatenate([getattr(b, name) for b in blocks])
                           for name in ("code", "ats", "dts", "pid", "flags")))
        self._blocks = blocks
        self._first = np.cumsum([0, *(len(b.code) for b in blocks)])

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        order = np.argsort(rows)
        parts = [block.columns(mine) for block, mine in self._by_block(rows[order])]
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        at = pa.array(back)
        return [pa.concat_arrays(c).take(at) for c in zip(*parts, strict=True)]

    def match(self, rows: np.ndarray) -> None:
        for block, mine in self._by_block(np.sort(rows)):
            block.match(mine)

    def _by_block(self, rows: np.ndarray) -> Iterator[tuple[Block, np.ndarray]]:
        """Those of ascending rows that each block has, by its own numbers."""
        bounds = np.searchsorted(rows, self._first)
        for k, block in enumerate(self._blocks):
            if bounds[k] < bounds[k + 1]:
                yield block, rows[bounds[k]:bounds[k + 1]] - self._first[k]


def gathered(blocks: Iterable[Block], most: int) -> Iterator[Block]:
    """Blocks as few that have at most so many tuples, where each has no more."""
    held, rows = list[Block](), 0
    for block in blocks:
        if held and rows + len(block.code) > most:
            yield Gathered(held) if len(held) > 1 else held[0]
            held, rows = [], 0
        held.append(block)
        rows += len(block.code)
    if held:
        yield Gathered(held) if len(held) > 1 else held[0]


class RunFile:
    """Tuples that left memory together: an Arrow file of their columns, code and ats, and behind it
    their marks. Both are mapped as long as the file is in use.

    One file has runs of many hash buckets, as to make and open a file takes longer than to read a
    few tuples. size: bytes of the Arrow file. marks_in: another file that has the marks, for a
    saved state's, which others may read too. runs: how many are in use; the file goes with the last
    of them.
    """

    def __init__(self, path: Path, size: int, rows: int, runs: int, marks_in: Path | None = None):
        self.path, self.size, self.rows, self.runs = path, size, rows, runs
        self._marks_in = marks_in

    @cached_property
    def _mapped(self) -> mmap.mmap:
        return _mapped(self.path, "rb" if self._marks_in else "r+b")

    @cached_property
    def batches(self) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.py_buffer(self._mapped).slice(0, self.size))

    @cached_property
    def marks(self) -> np.ndarray:
        """MARKS[rows]; what is written there is in the file."""
        if self._marks_in:
            return np.frombuffer(_mapped(self._marks_in, "r+b"), MARKS, self.rows)
        return np.frombuffer(self._mapped, MARKS, self.rows, self.size)

    def leave(self) -> None:
        """A run of it is not in use any more."""
        self.runs -= 1
        if not self.runs:
            for path in filter(None, (self.path, self._marks_in)):
                path.unlink()


def _mapped(path: Path, mode: str) -> mmap.mmap:
    with open(path, mode) as file:
        return mmap.mmap(file.fileno(), 0,
                         access=mmap.ACCESS_WRITE if "+" in mode else mmap.ACCESS_READ)


class Run:
    """Tuples of one hash bucket that left memory together: rows first..first + rows of a file, its
    batches from ``batch`` to ``last``. changed: whether the last snapshot has other marks, or
    none."""

    def __init__(self, file: RunFile, dts: int, batch: int, last: int, first: int, rows: int, *,
                 changed: bool = True):
        self.file, self.dts, self.batch, self.last = file, dts, batch, last
        self.first, self.rows, self.changed = first, rows, changed

    @property
    def name(self) -> str:
        """Of a snapshot's table of its marks."""
        return f"{self.file.path.name} {self.first}"

    @property
    def marks(self) -> np.ndarray:
        return self.file.marks[self.first:self.first + self.rows]

    @property
    def bytes(self) -> int:
        return self.file.size * self.rows // self.file.rows

    def blocks(self, most: int) -> Iterator[RunBlock]:
        """most: tuples of a block."""
        first, marks = 0, self.marks
        for number in range(self.batch, self.last):
            batch = self.file.batches.get_batch(number)
            for at in range(0, batch.num_rows, most):
                part = batch.slice(at, most)
                yield RunBlock(part, marks[first:first + part.num_rows], self)
                first += part.num_rows


class DiskPortion:
    """Of one stream. block_rows: the most tuples of a block."""

    def __init__(self, directory: Path, schema: pa.Schema, buckets: int, block_rows: int):
        self.directory, self.block_rows, self.schema = directory, block_rows, schema.append(
            pa.field(CODE, pa.int64())).append(pa.field(ATS, pa.int64()))
        self.runs: list[list[Run]] = [[] for _ in range(buckets)]
        # (last departure, time) of each probe
        self.history: list[list[tuple[int, int]]] = [[] for _ in range(buckets)]
        self.tuples = np.zeros(buckets, np.int64)  # live ones
        self.written = self.read = 0  # bytes

    @property
    def total(self) -> int:
        return int(self.tuples.sum()) if self.directory.parts else 0

    def write(self, buckets: Iterable[tuple[int, Iterator[tuple[Block, np.ndarray]]]],
              dts: int) -> None:
        """A file with a run of each of these hash buckets: the rows of blocks, which are at most
        `block_rows` each."""
        path = self.directory / f"runs-{uuid.uuid4().hex}.arrow"
        marks, runs, batches, rows = [np.zeros(0, MARKS)], [], 0, 0
        with naming(path), open(path, "wb") as file:
            with pa.ipc.new_file(file, self.schema) as writer:
                for bucket, blocks in buckets:
                    batch, first = batches, rows
                    for block, which in blocks:
                        columns = [*block.columns(which), pa.array(block.code[which]),
                                   pa.array(block.ats[which])]
                        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
                        mark = np.zeros(len(which), MARKS)
                        mark["pid"], mark["flags"] = block.pid[which], block.flags[which]
                        marks.append(mark)
                        batches, rows = batches + 1, rows + len(which)
                    runs.append((bucket, batch, batches, first, rows - first))
            size = file.tell()
            file.write(np.concatenate(marks).tobytes())
            self.written += file.tell()
        written = RunFile(path, size, rows, len(runs))
        for bucket, *where in runs:
            self._add(bucket, Run(written, dts, *where))

    def _add(self, bucket: int, run: Run) -> None:
        self.runs[bucket].append(run)
        self.tuples[bucket] += np.count_nonzero(run.marks["flags"] & DEAD == 0)

    def saved(self) -> list[list[Any]]:
        """What a snapshot tells of each run: file, its size, its rows, bucket, dts, and where."""
        return [[run.file.path.name, run.file.size, run.file.rows, bucket, run.dts, run.batch,
                 run.last, run.first, run.rows]
                for bucket, runs in enumerate(self.runs) for run in runs]

    def take_up(self, saved: Sequence[Sequence[Any]], files: Mapping[str, Path],
                marks: Callable[[str], pa.Table]) -> None:
        """The runs of a saved state. marks: gives a run's, by its name."""
        of: dict[str, list[Sequence[Any]]] = {}
        for run in saved:
            of.setdefault(run[0], []).append(run)
        for name, runs in of.items():
            path, (_, size, rows, *_) = self.directory / name, runs[0]
            link(files[name], path)
            with naming(path), open(marks_in := path.with_suffix(".marks"), "wb") as file:
                file.truncate(rows * MARKS.itemsize)
            taken = RunFile(path, size, rows, len(runs), marks_in)
            for _, _, _, bucket, dts, *where in runs:
                one = Run(taken, dts, *where, changed=False)
                for column in MARKS.names or ():
                    one.marks[column] = marks(one.name)[column].to_numpy()
                self._add(bucket, one)

    def blocks(self, bucket: int) -> Iterator[RunBlock]:
        for run in self.runs[bucket]:
            self.read += run.bytes
            for block in run.blocks(self.block_rows):
                if len(block.code):
                    yield block

    def rewrite(self, bucket: int, dts: int) -> None:
        """One run of what lives, in the place of all."""
        old = self.runs[bucket]
        self.runs[bucket], live, self.tuples[bucket] = [], int(self.tuples[bucket]), 0
        if live:
            blocks = ((b, np.arange(len(b.code))) for run in old
                      for b in run.blocks(self.block_rows) if len(b.code))
            self.write([(bucket, blocks)], dts)
        for run in old:
            run.file.leave()

    def clear(self, bucket: int) -> None:
        """Delete what is there."""
        self.tuples[bucket] = 0
        self.rewrite(bucket, 0)

    def probes(self, bucket: int) -> np.ndarray:
        """int64[k, 2]."""
        return np.array(self.history[bucket], np.int64).reshape(-1, 2)
