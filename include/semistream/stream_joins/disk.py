"""The disk-resident portion of a stream's join state: for each hash bucket, the runs that state
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

from semistream.compiled import read_only
from semistream.durable import naming
from semistream.joins.state_file import link
from semistream.stream_joins.kernels import BUCKETS, DEAD, MATCHED, NEVER
from semistream.stream_joins.memory import TupleLog

# the fields of a tuple on disk that can change; they lie behind the Arrow file of its columns
MARKS: dict[str, np.dtype[Any]] = {"flags": np.dtype("u1"), "pid": np.dtype("<i4")}
MARK = sum(kind.itemsize for kind in MARKS.values())  # bytes
CODE, ATS = "__code", "__ats"


class MemoryBlock:
    """The tuples in live slots of a log, int[n]."""

    dts = NEVER
    number = 0

    def __init__(self, log: TupleLog, slots: np.ndarray):
        self.code, self.ats = read_only(log.code[slots]), read_only(log.ats[slots])
        self.pid, self.flags = log.pid[slots], log.flags[slots]
        self._log, self._slots = log, slots.astype(np.int64)

    @property
    def newest(self) -> int:
        return int(self.ats.max(initial=-1))

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        return self._log.columns(self._slots[rows])

    def match(self, rows: np.ndarray) -> None:
        self._log.match(self._slots[rows])


class RunBlock:
    """A part of a run, as stored in the file. batch: the stream's columns, followed by key code and
    arrival time (ats)."""

    number = 0

    def __init__(
        self, run: Run, batch: pa.RecordBatch, code: np.ndarray, ats: np.ndarray, first: int
    ):
        self.batch, self.code, self.ats, self._run = batch, code, ats, run
        marks = slice(first, first + len(code))
        self.pid, self.flags = run.file.pid[marks], run.file.flags[marks]
        self.dts, self.newest = run.dts, run.dts - 1

    @property
    def live(self) -> np.ndarray:
        """The live rows, int64[n]."""
        return np.flatnonzero(self.flags & DEAD == 0)

    @property
    def bytes(self) -> int:
        return self._run.file.size * len(self.code) // self._run.file.rows

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        at = pa.array(rows)
        return [c.take(at) for c in self.batch.columns[:-2]]

    def column(self, name: str, rows: np.ndarray) -> pa.Array:
        return self.batch.column(name).take(pa.array(rows))

    def match(self, rows: np.ndarray) -> None:
        self.flags[rows] |= MATCHED
        self._run.changed = True

    def remove(self, rows: np.ndarray) -> None:
        self.flags[rows] |= DEAD
        self._run.changed = True

    def assign(self, rows: np.ndarray, pids: np.ndarray) -> None:
        self.pid[rows] = pids
        self._run.changed = True


# Tuples of one hash bucket, including dead ones. code, ats (arrival times): int64[n], read-only;
# pid: int32[n]; flags: uint8[n]; dts: the time when they left memory; newest: no tuple arrived
# later than this; number: of the first row among the rows of ``disk_join.Blocks``
Block = MemoryBlock | RunBlock


class RunFile:
    """Tuples that left memory together: an Arrow file of their columns, key codes and arrival times
    (ats), followed by their marks (flags, and pid, the number of a punctuation). Both are mapped as
    long as the file is in use.

    One file has the runs of many hash buckets, because creating and opening a file takes longer
    than reading a few tuples. size: bytes of the Arrow file. marks_in: a separate file with the
    marks, used for saved states, whose files other processes may also read. runs: the number of
    runs in use; the file is deleted with the last run.
    """

    def __init__(self, path: Path, size: int, rows: int, runs: int, marks_in: Path | None = None):
        self.path, self.size, self.rows, self.runs = path, size, rows, runs
        self._marks_in = marks_in

    @cached_property
    def _mapped(self) -> mmap.mmap:
        return _mapped(self.path, "rb" if self._marks_in else "r+b")

    @cached_property
    def batches(self) -> list[tuple[int, pa.RecordBatch, np.ndarray, np.ndarray]]:
        """The batches, as (first row, batch, its key codes, its arrival times)."""
        reader = pa.ipc.open_file(pa.py_buffer(self._mapped).slice(0, self.size))
        first, found = 0, []
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            found.append((first, batch, *(batch.column(c).to_numpy() for c in (CODE, ATS))))
            first += batch.num_rows
        return found

    @cached_property
    def _marks(self) -> tuple[mmap.mmap, int]:
        return (_mapped(self._marks_in, "r+b"), 0) if self._marks_in else (self._mapped, self.size)

    @cached_property
    def flags(self) -> np.ndarray:
        """The flags, uint8[rows]. Writing to the array changes the file."""
        return np.frombuffer(self._marks[0], MARKS["flags"], self.rows, self._marks[1])

    @cached_property
    def pid(self) -> np.ndarray:
        """The punctuations' pids, int32[rows]. Writing to the array changes the file."""
        return np.frombuffer(self._marks[0], MARKS["pid"], self.rows, self._marks[1] + self.rows)

    def leave(self) -> None:
        """Release one run of this file. Delete the file after its last run has been released."""
        self.runs -= 1
        if not self.runs:
            for path in filter(None, (self.path, self._marks_in)):
                path.unlink()


def _mapped(path: Path, mode: str) -> mmap.mmap:
    with open(path, mode) as file:
        return mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_WRITE if "+" in mode else mmap.ACCESS_READ
        )


class Run:
    """The tuples of one hash bucket that were moved from memory to disk at the same time. They are
    the rows from `first` to `first + rows - 1` of a file. dts: the time of the move; changed:
    whether the run, or its flags and pids, have changed since the last snapshot."""

    def __init__(self, file: RunFile, dts: int, first: int, rows: int, *, changed: bool = True):
        self.file, self.dts, self.first, self.rows = file, dts, first, rows
        self.changed = changed

    @property
    def name(self) -> str:
        """The name under which a snapshot stores the run's marks."""
        return f"{self.file.path.name} {self.first}"

    @property
    def pid(self) -> np.ndarray:
        return self.file.pid[self.first : self.first + self.rows]

    @property
    def flags(self) -> np.ndarray:
        return self.file.flags[self.first : self.first + self.rows]

    def blocks(self) -> Iterator[RunBlock]:
        for first, batch, code, ats in self.file.batches:
            a, b = max(self.first - first, 0), min(self.first + self.rows - first, len(code))
            if a < b:
                yield RunBlock(self, batch.slice(a, b - a), code[a:b], ats[a:b], first + a)


class DiskPortion:
    """The disk portion of one stream."""

    def __init__(self, directory: Path, schema: pa.Schema):
        self.directory, self.schema = (
            directory,
            schema.append(pa.field(CODE, pa.int64())).append(pa.field(ATS, pa.int64())),
        )
        self.runs: list[list[Run]] = [[] for _ in range(BUCKETS)]
        # (last departure, time) of each probe
        self.history: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]
        self.tuples = np.zeros(BUCKETS, np.int64)  # live tuples
        self.written = self.read = 0  # bytes

    @property
    def total(self) -> int:
        return int(self.tuples.sum()) if self.directory.parts else 0

    def write(
        self, blocks: Iterable[tuple[Block, np.ndarray]], buckets: Mapping[int, int], dts: int
    ) -> None:
        """Write rows of blocks to a file. buckets: for each hash bucket, in the order of the rows,
        its number of rows; the rows of a bucket become a run. dts: departure time of the rows."""
        path = self.directory / f"runs-{uuid.uuid4().hex}.arrow"
        marks: dict[str, list[np.ndarray]] = {name: [np.zeros(0, k)] for name, k in MARKS.items()}
        with naming(path), open(path, "wb") as file:
            with pa.ipc.new_file(file, self.schema) as writer:
                for block, rows in blocks:
                    columns = [
                        *block.columns(rows),
                        pa.array(block.code[rows]),
                        pa.array(block.ats[rows]),
                    ]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
                    for name, parts in marks.items():
                        parts.append(getattr(block, name)[rows])
            size = file.tell()
            for parts in marks.values():
                file.write(np.concatenate(parts).tobytes())
            self.written += file.tell()
        written, first = RunFile(path, size, sum(buckets.values()), len(buckets)), 0
        for bucket, count in buckets.items():
            self._add(bucket, Run(written, dts, first, count))
            first += count

    def _add(self, bucket: int, run: Run) -> None:
        self.runs[bucket].append(run)
        self.tuples[bucket] += np.count_nonzero(run.flags & DEAD == 0)

    def saved(self) -> list[list[Any]]:
        """Return a snapshot's entry for each run: file, the file's size, the file's rows, bucket,
        dts (departure time), first row, rows."""
        return [
            [run.file.path.name, run.file.size, run.file.rows, bucket, run.dts, run.first, run.rows]
            for bucket, runs in enumerate(self.runs)
            for run in runs
        ]

    def take_up(
        self,
        saved: Sequence[Sequence[Any]],
        files: Mapping[str, Path],
        marks: Callable[[str], pa.Table],
    ) -> None:
        """Restore the runs of a saved state. marks: a function that returns a run's marks by its
        name."""
        of: dict[str, list[Sequence[Any]]] = {}
        for run in saved:
            of.setdefault(run[0], []).append(run)
        for name, runs in of.items():
            path, (_, size, rows, *_) = self.directory / name, runs[0]
            link(files[name], path)
            with naming(path), open(marks_in := path.with_suffix(".marks"), "wb") as file:
                file.truncate(rows * MARK)
            taken = RunFile(path, size, rows, len(runs), marks_in)
            for _, _, _, bucket, dts, *where in runs:
                one = Run(taken, dts, *where, changed=False)
                table = marks(one.name)
                one.flags[:], one.pid[:] = (table[column].to_numpy() for column in MARKS)
                self._add(bucket, one)

    def blocks(self, bucket: int) -> Iterator[RunBlock]:
        for run in self.runs[bucket]:
            yield from run.blocks()

    def rewrite(self, bucket: int, dts: int) -> None:
        """Replace all runs of a bucket by one run that has only the live tuples."""
        old = self.runs[bucket]
        self.runs[bucket], live, self.tuples[bucket] = [], int(self.tuples[bucket]), 0
        if live:
            self.write(((b, b.live) for run in old for b in run.blocks()), {bucket: live}, dts)
        for run in old:
            run.file.leave()

    def clear(self, bucket: int) -> None:
        """Delete the bucket's tuples on disk."""
        self.tuples[bucket] = 0
        self.rewrite(bucket, 0)

    def probes(self, bucket: int) -> np.ndarray:
        """Return the history of probes of a hash bucket's disk portion, int64[k, 2]. Each row has
        two times: until when tuples on disk had left memory, and when the probe took place."""
        return np.array(self.history[bucket], np.int64).reshape(-1, 2)
