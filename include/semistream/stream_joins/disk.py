"""The disk-resident portion of a stream's join state: per hash bucket the runs that state
relocation wrote."""

from __future__ import annotations

import mmap
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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


class Run:
    """Tuples that left memory together: an Arrow stream, read by mapping, and their marks.

    marks_in: the file that has the marks from the byte ``marks_at`` on: the same one, behind the
    stream, as to make a file takes longer than to fill a small one; or, of a saved state's stream,
    which others may read too, one that is the operator's alone. changed: whether the last snapshot
    has other marks, or none.
    """

    def __init__(self, path: Path, rows: int, dts: int, live: int, marks_in: Path,
                 marks_at: int = 0, changed: bool = True):
        self.path, self.rows, self.dts, self.live = path, rows, dts, live
        self._marks_in, self._marks_at, self.changed = marks_in, marks_at, changed

    def blocks(self, most: int) -> Iterator[RunBlock]:
        """most: tuples of a block."""
        mapped = _mapped(self._marks_in)
        marks, first = self._marks(mapped), 0
        stream = mapped if self.path == self._marks_in else _mapped(self.path, "rb")
        for batch in pa.ipc.open_stream(pa.py_buffer(stream)):
            for at in range(0, batch.num_rows, most):
                part = batch.slice(at, most)
                yield RunBlock(part, marks[first:first + part.num_rows], self)
                first += part.num_rows

    def marks(self) -> np.ndarray:
        """MARKS[rows]; what is written there is in the file."""
        return self._marks(_mapped(self._marks_in))

    def _marks(self, mapped: mmap.mmap) -> np.ndarray:
        return np.frombuffer(mapped, MARKS, self.rows, self._marks_at)

    def marks_table(self) -> pa.Table:
        """The marks as they are."""
        marks = self.marks()
        return pa.table({"pid": np.ascontiguousarray(marks["pid"]),
                         "flags": np.ascontiguousarray(marks["flags"])})

    def delete(self) -> None:
        for path in {self.path, self._marks_in}:
            path.unlink()


def _mapped(path: Path, mode: str = "r+b") -> mmap.mmap:
    with open(path, mode) as file:
        return mmap.mmap(file.fileno(), 0,
                         access=mmap.ACCESS_WRITE if "+" in mode else mmap.ACCESS_READ)


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
        return int(self.tuples.sum())

    def write(self, bucket: int, blocks: Iterator[tuple[Block, np.ndarray]], dts: int) -> None:
        """A run of the rows of these blocks, which are at most `block_rows` each."""
        path = self.directory / f"run-{uuid.uuid4().hex}.arrow"
        marks, rows = [], 0
        with naming(path), open(path, "wb") as file:
            with pa.ipc.new_stream(file, self.schema) as writer:
                for block, which in blocks:
                    columns = [*block.columns(which), pa.array(block.code[which]),
                               pa.array(block.ats[which])]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
                    mark = np.zeros(len(which), MARKS)
                    mark["pid"], mark["flags"] = block.pid[which], block.flags[which]
                    marks.append(mark)
                    rows += len(which)
            marks_at = file.tell()
            file.write(np.concatenate(marks).tobytes())
            self.written += file.tell()
        live = int(sum(np.count_nonzero(m["flags"] & DEAD == 0) for m in marks))
        self.runs[bucket].append(Run(path, rows, dts, live, path, marks_at))
        self.tuples[bucket] += live

    def take_up(self, bucket: int, file: Path, marks: pa.Table, dts: int) -> None:
        """A run of a saved state, whose file this is."""
        path = self.directory / file.name
        link(file, path)
        mark = np.zeros(marks.num_rows, MARKS)
        for name in ("pid", "flags"):
            mark[name] = marks.column(name).to_numpy()
        with naming(path):
            mark.tofile(marks_in := path.with_suffix(".marks"))
        live = int(np.count_nonzero(mark["flags"] & DEAD == 0))
        self.runs[bucket].append(Run(path, len(mark), dts, live, marks_in, changed=False))
        self.tuples[bucket] += live

    def blocks(self, bucket: int) -> Iterator[RunBlock]:
        for run in self.runs[bucket]:
            self.read += run.path.stat().st_size
            for block in run.blocks(self.block_rows):
                if len(block.code):
                    yield block

    def rewrite(self, bucket: int, dts: int) -> None:
        """One run of what lives, in the place of all."""
        old = self.runs[bucket]
        self.runs[bucket], live, self.tuples[bucket] = [], int(self.tuples[bucket]), 0
        if live:
            self.write(bucket, ((b, np.arange(len(b.code))) for run in old
                                for b in run.blocks(self.block_rows) if len(b.code)), dts)
        for run in old:
            run.delete()

    def clear(self, bucket: int) -> None:
        """Delete what is there."""
        self.tuples[bucket] = 0
        self.rewrite(bucket, 0)

    def probes(self, bucket: int) -> np.ndarray:
        """int64[k, 2]."""
        return np.array(self.history[bucket], np.int64).reshape(-1, 2)
