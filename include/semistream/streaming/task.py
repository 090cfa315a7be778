"""One Spark task: it joins one partition of a micro-batch and loads the result exactly once.
``joining`` has the operator that it runs."""

from __future__ import annotations

import gc
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import SemistreamError, StateError
from semistream.keys import buckets
from semistream.partitioning import Placement
from semistream.reasons import Reason
from semistream.resident import process_peak
from semistream.sizing.plan import Plan
from semistream.sizing.stream_stream_plan import StreamStreamPlan
from semistream.sketches import SampledSketch
from semistream.source_files import SourceFile, check_unchanged
from semistream.streaming.exchange import Input, Side, TaskFailed, inputs
from semistream.streaming.joining import Joining, OfTwoStreams, Refused, WithMaster
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sources.reader import Reader
from semistream.streaming.spool import Spool
from semistream.streaming.waiting import Pace
from semistream.streaming.workers.operators import OperatorCache, use_memory_files
from semistream.warehouse.ids import has_long_id
from semistream.warehouse.records import LoadRecord, unaccounted

SUMMARY = "summary STRING"  # schema of the row that a task returns to mapInArrow
AnyPlan = Plan | StreamStreamPlan
Placing = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
REFUSED = "refused"  # key of a result that says why the partition was not loaded

# Spark reuses a worker: the next micro-batch takes its operator from here and reads no state
operators = OperatorCache()


@dataclass(frozen=True)
class Work:
    """The input of all tasks of a micro-batch, or of the drain after it.

    states: name of the state file by partition; checkpoint: directory of the join states, shared by
    all workers; streams: schemas of the tuples; ids: each stream's id columns; readers: of each
    stream, None if Spark brings rows; files: each stream's paths that every task reads, keeping its
    own tuples; sources: all files of the micro-batch.
    """

    app: str
    batch: int
    drain: int
    plan: AnyPlan
    states: dict[int, str]
    checkpoint: str
    streams: tuple[pa.Schema, ...]
    ids: tuple[tuple[str, ...], ...]
    sink: Sink = field(repr=False)  # not shown: it has the warehouse's password
    files: tuple[tuple[str, ...], ...] = ()
    sources: tuple[SourceFile, ...] = ()
    readers: tuple[Reader | None, ...] = ()
    sketched: bool = True  # whether the ledger keeps a sketch of the load's keys
    pace: Pace | None = None  # see ``Joining.settle``

    def reading(self, files: Sequence[Sequence[str]]) -> Work:
        return replace(self, files=tuple(map(tuple, files)))

    def side(self, number: int) -> Side:
        reader = self.readers[number] if self.readers else None
        return Side(number, placement_of(self.plan, self.streams, number), reader)

    def place_files(self, shares: Sequence[Sequence[Sequence[str]]]) -> Placing:
        """Return the function for ``mapInArrow`` of the tasks that read files. Each input row is
        the number of a share, [share][side] paths."""
        def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for side, paths in enumerate(shares[number]):
                        if paths:
                            yield from self.side(side).place_files(paths)

        return place

    def place_frame(self, number: int, contents: bool) -> Placing:
        """Return the function for ``mapInArrow`` over what Spark brings of a side: rows, messages,
        or files with their contents."""
        def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            side = self.side(number)
            return (side.place_rows if side.reader is None else side.place_contents if contents
                    else side.place_values)(batches)

        return place

    def of_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the messages of a partition, see ``exchange``; the function for ``mapInArrow``.
        Yields one row: the load's record as JSON."""
        yield pa.record_batch([pa.array([self._summary(inputs(batches, self.streams))])],
                              names=["summary"])

    def of_nothing(self, _: Iterator[object]) -> Iterator[tuple[str]]:
        """Join a partition that gets no messages; the function for ``mapPartitions``. Yields the
        same row as ``of_batches``."""
        yield (self._summary(iter(())),)

    def _summary(self, batches: Iterator[Input]) -> str:
        from pyspark import TaskContext

        use_memory_files()
        process_peak()
        context = TaskContext.get()
        assert context is not None
        try:
            record = self.join_partition(context.partitionId(), batches)
        except SemistreamError as e:  # another attempt would fail alike
            for _ in batches:
                pass
            return json.dumps({REFUSED: str(e)})
        keep_modules()
        return record.to_json()

    def join_partition(self, partition: int, batches: Iterator[Input]) -> LoadRecord:
        """Join and load one partition, unless an earlier attempt did so. Return the record of the
        attempt that was first. batches: the partition's tuples."""
        began = time.perf_counter()
        done = self.sink.loaded(self.app, self.batch, self.drain, partition)
        if done is not None:
            for _ in batches:  # Spark does not reuse a worker that leaves input unread
                pass
            return done
        join = self._operator(partition)
        join.begin(began)
        before = join.count()
        sketch = (SampledSketch((self.batch, self.drain, partition))
                  if self.sketched and join.sketched else None)
        with Spool(join.output_schema, self.streams, self.ids,
                   self.sink.data_files(join.output_schema, self.app, self.batch, self.drain,
                                        partition),
                   join.first, closes=self.sink.closing is not None) as spool:
            refused, changed = self._run(join, self._tuples(partition, batches), spool, sketch)
            name, former = self._state_file(partition, changed), self.states.get(partition, "")
            record = self._checked(join.counted(self._load(partition), before, refused, name))
            if sketch is not None and record.rows_read:
                record = replace(record, key_sketch=sketch.sketch.to_bytes())
            state = Path(self.checkpoint) / "state" / name
            if name != former:
                join.save(state, former)
            check_unchanged(self.sources)
            record = self.sink.write(record, spool)
        if record.state_file == name:
            operators.put((self.checkpoint, partition, name), join)
        else:  # another attempt was first
            state.unlink(missing_ok=True)
            join.close()
        return record

    def _tuples(self, partition: int, batches: Iterator[Input]) -> Iterator[Input]:
        yield from batches
        for number, files in enumerate(self.files):
            if not files:
                continue
            side = self.side(number)
            for numbered in side.files(files):
                own = side.of_partition(partition, numbered)
                if own.tuples.num_rows or own.rejected:
                    yield own

    def _operator(self, partition: int) -> Joining:
        """Return the operator in its state after the previous batch: the cached one, or a new one
        that restores the state."""
        before = self.states.get(partition, "")
        cached = operators.take((self.checkpoint, partition, before)) if before else None
        if cached is not None:
            return cached
        operators.clear()  # frees its memory before the next one is allocated
        join = open_joining(self.plan, self.streams, partition)
        if before:
            join.restore(Path(self.checkpoint) / "state" / before)
        return join

    def _run(self, join: Joining, batches: Iterator[Input], spool: Spool,
             sketch: SampledSketch | None) -> tuple[Refused, bool]:
        """Feed the operator with the input, and the sketch with its keys. Return the counts of
        tuples rejected before the operator, and whether the operator's state may have changed."""
        refused, read = Refused(), False
        for side, batch, unparsable in batches:
            read = read or bool(batch.num_rows or unparsable)
            if unparsable:
                refused[side, Reason.UNPARSABLE] += len(unparsable)
                spool.reject(unparsable, side)
            batch, rejected = split(batch, has_long_id(batch, self.ids[side]))
            if rejected is not None:
                refused[side, Reason.LONG_ID] += rejected.num_rows
                spool.keep(rejected, pa.repeat(Reason.LONG_ID, rejected.num_rows), side)
            if sketch is not None:
                join.sketch(sketch, batch)
            for output in join.process(side, batch):
                spool.write(*output)
        goes_on = read or (self.pace is not None and join.waiting > 0)
        for output in (join.drain() if self.drain else join.settle(self.pace) if goes_on else ()):
            spool.write(*output)
        return refused, goes_on or bool(self.drain)

    def _load(self, partition: int) -> LoadRecord:
        """Return the partition's record, without counts."""
        return LoadRecord(
            self.app, self.batch, self.drain, partition, self.plan.algorithm, inputs=(),
            rows_read=0, matched=0, output_rows=0, memory_budget=self.plan.memory,
            resident_peak=process_peak().read(), reason=self.plan.reason or None)

    def _checked(self, record: LoadRecord) -> LoadRecord:
        """Return the record with its service rate. Raises StateError if its tuples do not add up;
        then nothing is loaded."""
        if any(map(unaccounted, (record, *record.inputs))):
            raise StateError(f"partition {record.partition} of batch {self.batch} does not add up: "
                             f"{record}; {self.plan.algorithm} lost or doubled tuples. Not loaded.")
        finished = record.matched + record.unmatched
        return replace(record, service_rate=finished / record.seconds if record.seconds else 0.0)

    def _state_file(self, partition: int, changed: bool) -> str:
        """Return a new name for the state file, or the former name if the state has not changed."""
        before = self.states.get(partition)
        if before and not changed:
            return before
        return f"{self.batch:09d}-{self.drain}-{partition:04d}-{uuid.uuid4().hex}"


def records_of(summaries: Iterable[str]) -> list[LoadRecord]:
    """Return the records in the rows that the tasks have returned, by partition. Raises TaskFailed
    if a partition was refused."""
    records = []
    for summary in summaries:
        if (why := json.loads(summary).get(REFUSED)) is not None:
            raise TaskFailed(why)
        records.append(LoadRecord.from_json(summary))
    return sorted(records, key=lambda record: record.partition)


def open_joining(plan: AnyPlan, streams: tuple[pa.Schema, ...], partition: int) -> Joining:
    """Return a new operator of a partition. Raises ConfigError for a plan that cannot work."""
    if isinstance(plan, StreamStreamPlan):
        from semistream.streaming.promises import promises_of  # one stream does not need it

        promises = tuple(promises_of(plan, side, streams, partition)
                         for side in range(len(streams)))
        return OfTwoStreams(plan.open(streams), promises, plan.partitions == 1)
    return WithMaster(plan.open(streams[0], partition))


def placement_of(plan: AnyPlan, streams: tuple[pa.Schema, ...], side: int) -> Placement:
    """Return the placement that says which partition a tuple of a side belongs to."""
    if isinstance(plan, StreamStreamPlan):
        return plan.placement(side, streams)
    return plan.placement(streams[0])


@cache
def keep_modules() -> None:
    """Exclude all modules and compiled kernels from garbage collection, once per process. Spark's
    daemon collects garbage after every task; scanning them would take 0.1 s each time."""
    gc.freeze()


def get_ready(_: Iterator[object]) -> None:
    """Let a worker import what a micro-batch's tasks need; the function of a task. PyArrow and
    Numba import and compile at their first calls."""
    buckets(pa.array([0]).to_numpy(), True, 1)
    SampledSketch().add(np.zeros(1, np.int64))


def split(batch: pa.RecordBatch, wrong: pa.Array) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Return the tuples for which `wrong`, bool[n], is false, and those for which it is true, or
    None."""
    if not pc.any(wrong).as_py():
        return batch, None
    return batch.filter(pc.invert(wrong)), batch.filter(wrong)
