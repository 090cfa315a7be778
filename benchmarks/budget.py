"""The cost of a tuple in the app: each step alone, with a bound for the step, and the whole app.

The steps are the app's own parts, in one process and one thread, on the app's files, which are in
the page cache. "decode": decode the Parquet files of S; "split": select the tuples of one of two
partitions; "join, S only": run the operator, with only the columns of S in its output; "join": run
the operator, with all columns of R; "checksum": compute the checksum of joined rows; "encode":
encode a Delta table's data file, into memory; "write": write its bytes to disk, flushed. Bounds:
for decoding, split and join, a copy of the same bytes in memory; for the checksum, a sum of the
same bytes; for encoding, plain values without compression and statistics.

A tuple goes through all steps except "join, S only". "tasks, without Spark" do all steps as the
app's tasks do: one task for each core at the same time, each in a separate process on a partition
of all files, into data files that are flushed. The app's further time is spent in Spark, in the
commits, and while tasks wait for one another. The difference between "join" and the tasks is spent
in the other steps, and arises because cores share memory and a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import COLUMNS, MASTER_BYTES, ON, STREAM, Answer, Stream
from benchmarks.harness import Bench, Remote, Result, Sample, peak_rss
from benchmarks.spark_join import App, AppPeer, Case
from benchmarks.warm_up import warm_up
from semistream.cost_models.costs import TYPICAL
from semistream.durable import DirectFile
from semistream.files.source import Chunk
from semistream.job import StreamSpec
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.spec import join_spec
from semistream.master.published import current_version
from semistream.partitioning import Axis, Placement
from semistream.sizing import open_join
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.sinks.delta_files import GROUP_ROWS, DataFiles, data_writer
from semistream.streaming.sources.file_reader import TASK_ROWS as ROWS
from semistream.streaming.sources.file_reader import find_reader
from semistream.warehouse.checksum import checksum

NANOSECONDS = "ns of a core"
SAMPLED = 100_000  # stream tuples from which the tasks' plan is made, as the app's is
KEY = {"load_id": pa.scalar(1, pa.int64())}


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 10.0  # M, percent of R
    batch: int = 500_000  # tuples of a micro-batch
    batches: int = 12
    warm_up: int = 4
    seconds: float = 1.0  # least seconds of a step
    settle: float = 30.0  # most seconds of a join's warm-up
    algorithm: str = "elevatorjoin"
    driver_memory: str = "2g"
    cores: int = 2


SCALES = {
    "smallest": Settings(
        master=50_000, share=30.0, batch=20_000, batches=3, warm_up=1, seconds=0.02, settle=0.3
    ),
    "small": Settings(),
    "full": Settings(master=20_000_000, batch=1_000_000, seconds=3.0, settle=600.0),
}


def run(bench: Bench, s: Settings) -> None:
    memory = int(s.share / 100 * s.master * MASTER_BYTES)
    case = Case(
        bench.files,
        Stream(s.master),
        s.batch,
        s.batches,
        s.warm_up,
        s.driver_memory,
        f"local[{s.cores},4]",
    )
    case.make()
    steps = {name: Step(case, s, name, memory) for name in STEPS}
    bench.compare(
        "budget",
        f"R={s.master:,} M={memory / 1e6:,.0f}MB batch={s.batch:,}",
        {"app": Whole(App(case, s.algorithm, memory)), **steps, TASKS: Tasks(steps[TASKS])},
        "app",
    )


@dataclass(frozen=True)
class Whole:
    of: App

    def __call__(self) -> WholePeer:
        return WholePeer(self.of, MappingProxyType({}))


class WholePeer(AppPeer):
    def _run(self) -> Sample:
        sample = super()._run()
        return _told(sample, sample.extra["busy cores"] * sample.seconds)


def _told(sample: Sample, cpu_seconds: float) -> Sample:
    sample.cpu_seconds = cpu_seconds
    sample.extra[NANOSECONDS] = 1e9 * cpu_seconds / sample.tuples
    return sample


@dataclass(frozen=True)
class Step:
    case: Case
    settings: Settings
    name: str
    memory: int  # of all partitions
    partition: int = 0

    def __call__(self) -> StepPeer:
        return StepPeer(self)


class StepPeer:
    """A step that is repeated until the time is over."""

    def __init__(self, of: Step):
        pa.set_cpu_count(1)
        self.of, self.rows = of, 0
        self.once = STEPS[of.name](of)
        self.once()

    def measure(self) -> Sample:
        tuples, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < self.of.settings.seconds:
            tuples += self.once()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        self.rows += tuples
        return _told(Sample(tuples, seconds), cpu)

    def finish(self) -> Result:
        """Return a result without checking, because a step's output is part of the app's, whose
        answer is checked."""
        return Result(Answer(self.rows), Answer(self.rows), rss_peak=peak_rss())


@dataclass(frozen=True)
class Tasks:
    of: Step

    def __call__(self) -> TasksPeer:
        return TasksPeer(self.of)


class TasksPeer:
    """All tasks at once, each in a separate process, once over all files."""

    def __init__(self, of: Step):
        self.tasks = [Remote(replace(of, partition=p)) for p in range(of.settings.cores)]

    def measure(self) -> Sample:
        samples = self._all("measure")
        return _told(
            Sample(sum(s.tuples for s in samples), max(s.seconds for s in samples)),
            sum(s.cpu_seconds for s in samples),
        )

    def finish(self) -> Result:
        results = self._all("finish")
        for running in self.tasks:
            running.close()
        rows = sum(r.answer.rows for r in results)
        return Result(Answer(rows), Answer(rows), rss_peak=sum(r.rss_peak for r in results))

    def _all(self, method: str) -> list[Any]:
        with ThreadPoolExecutor(len(self.tasks)) as threads:
            return list(threads.map(lambda running: running.call(method), self.tasks))


Once = Callable[[], int]  # does a step with some tuples and returns their number


# ---- inputs of the steps


def files(of: Step) -> list[str]:
    return sorted(map(str, of.case.tuples.glob("*.parquet")))


def tuples(of: Step) -> list[pa.RecordBatch]:
    """Return the decoded tuples of a micro-batch."""
    return [chunk.rows for chunk in decode(files(of)[0])]


def placement(of: Step) -> Placement:
    master = of.case.files.relation(of.case.stream.master, COLUMNS)
    spec = join_spec(of.settings.algorithm, of.memory, STREAM, master, ON)
    axis = Axis(spec.keys, np.arange(master.manifest.bucket_count, dtype=np.int32) % 2, 2)
    return Placement(STREAM, (axis,), 2)


def operator(of: Step, columns: list[str] | None = None) -> SemiStreamJoin:
    master = of.case.files.relation(of.case.stream.master, COLUMNS)
    return open_join(
        of.settings.algorithm,
        memory=of.memory,
        stream=STREAM,
        master=master,
        on=ON,
        columns=columns,
    )


def fed(of: Step) -> Iterator[pa.RecordBatch]:
    return (of.case.stream.batch(first, ROWS) for first in range(0, 2**62, ROWS))


def joined(of: Step) -> pa.Table:
    """Return the rows of a row group of a data file, in which frequent keys, and their master
    tuples, are repeated."""
    join, rows = operator(of), list[pa.RecordBatch]()
    for batch in fed(of):
        rows += [output.joined for output in join.process(batch)]
        if sum(r.num_rows for r in rows) >= GROUP_ROWS:
            return pa.Table.from_batches(rows).slice(0, GROUP_ROWS).combine_chunks()
    raise AssertionError  # not reached: the stream is endless


def copying(batches: list[pa.RecordBatch]) -> Once:
    """Return a step that copies the bytes of the values."""
    values = [
        np.frombuffer(b, np.uint8)
        for batch in batches
        for c in batch.columns
        for b in c.buffers()[1:]
    ]
    copies = [np.empty_like(v) for v in values]

    def once() -> int:
        for copy, value in zip(copies, values, strict=True):
            np.copyto(copy, value)
        return sum(b.num_rows for b in batches)

    return once


# ---- the steps


def decode(file: str) -> Iterator[Chunk]:
    """Read a file as a task does."""
    return find_reader(StreamSpec(), schema=STREAM).open().read(Path(file))


def decoding(of: Step) -> Once:
    which = cycle(files(of))
    return lambda: sum(chunk.rows.num_rows for chunk in decode(next(which)))


def splitting(of: Step) -> Once:
    batches, place = tuples(of), placement(of)

    def once() -> int:
        for batch in batches:
            place.only(0, batch, np.arange(batch.num_rows))
        return sum(b.num_rows for b in batches)

    return once


def joining(of: Step, columns: list[str] | None = None) -> Once:
    """Return a step that runs the operator, warmed up as in all benchmarks."""
    join, more = operator(of, columns), fed(of)

    def feed(batch: pa.RecordBatch | None = None) -> None:
        for _ in join.process(next(more) if batch is None else batch):
            pass

    warm_up(join, feed, of.settings.seconds, of.case.stream.drift, of.settings.settle)
    batches = [next(more) for _ in range(16)]

    def once() -> int:
        before = join.stats.matched
        for batch in batches:
            feed(batch)
        return join.stats.matched - before

    return once


def summing(of: Step) -> Once:
    columns = [c.to_numpy() for c in joined(of).columns]

    def once() -> int:
        for column in columns:
            column.sum()
        return len(columns[0])

    return once


def checking(of: Step) -> Once:
    rows = joined(of)

    def once() -> int:
        checksum(rows)
        return rows.num_rows

    return once


def encoding(of: Step, plain: bool = False) -> Once:
    rows = joined(of)
    for name, value in KEY.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    options = (
        {"compression": "none", "use_dictionary": False, "write_statistics": False} if plain else {}
    )

    room = pa.allocate_buffer(2 * rows.nbytes)  # large enough to never grow

    def once() -> int:
        with data_writer(pa.FixedSizeBufferWriter(room), rows, KEY, **options) as writer:
            writer.write_table(rows.cast(writer.schema), GROUP_ROWS * 2)
        return rows.num_rows

    return once


def writing(of: Step) -> Once:
    rows, out, path = joined(of), pa.BufferOutputStream(), of.case.files.runs / "written"
    path.parent.mkdir(parents=True, exist_ok=True)
    with data_writer(out, rows, KEY) as writer:
        writer.write_table(rows.cast(writer.schema), GROUP_ROWS * 2)
    data = out.getvalue()

    def once() -> int:
        _written(path, iter([data] * 8))
        return 8 * rows.num_rows

    return once


def _written(path: Path, pieces: Iterator[pa.Buffer]) -> None:
    with closing(DirectFile(path)) as file:
        for piece in pieces:
            file.write(piece)
    path.unlink()


def task(of: Step) -> Once:
    """Return a step that performs all steps on a partition of each file in turn."""
    s, stream = of.settings, of.case.stream
    root = of.case.files.snapshot(stream.master, COLUMNS)
    plan = RolePlan(
        s.algorithm,
        of.memory // s.cores,
        "inner",
        {},
        tuple(ON),
        s.cores,
        str(root / str(current_version(root))),
    )
    sample = pa.Table.from_batches(chunk.rows for chunk in decode(files(of)[0]))
    plan = plan.choose(sample.slice(0, SAMPLED).combine_chunks().to_batches()[0], TYPICAL)
    placement, join = plan.placement((STREAM,)), plan.open(STREAM, of.partition)
    directory = of.case.files.runs / f"task-{of.partition}"
    directory.mkdir(parents=True, exist_ok=True)
    load = {"batch": 0, "drain": 0, "partition": of.partition}
    more = fed(of)

    def own(rows: pa.RecordBatch, numbers: np.ndarray | None) -> pa.RecordBatch:
        return placement.only(
            of.partition, rows, np.arange(len(rows)) if numbers is None else numbers
        )

    def feed() -> None:
        for _ in join.process(own(next(more), None)):
            pass

    def once() -> int:
        before = join.stats.matched
        for file in files(of)[s.warm_up :]:
            data = DataFiles(str(directory), join.output_schema, load, KEY)
            for chunk in decode(file):
                for output in join.process(own(chunk.rows, chunk.lines - 1)):
                    data.write(output.joined)
            data.close()
            data.discard()
        return join.stats.matched - before

    warm_up(join, feed, s.seconds, stream.drift, s.settle)
    return once


TASKS = "tasks, without Spark"
STEPS: dict[str, Callable[[Step], Once]] = {
    TASKS: task,
    "decode": decoding,
    "split": splitting,
    "bound of each of these: a copy": lambda of: copying(tuples(of)),
    "join, S only": lambda of: joining(of, []),
    "join": joining,
    "bound: a copy of joined rows": lambda of: copying(joined(of).to_batches()),
    "checksum": checking,
    "bound: a sum of joined rows": summing,
    "encode": encoding,
    "bound: plain, uncompressed": lambda of: encoding(of, plain=True),
    "write": writing,
}
