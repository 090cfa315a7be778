"""One Spark task: it joins one partition of a micro-batch and loads the result exactly once.
``join_operator`` has the operator that the task runs."""

from __future__ import annotations

import gc
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.data_files import DataFile, check_unchanged
from semistream.errors import SemistreamError, StateError
from semistream.keys import buckets
from semistream.provisioning.inferred import Members
from semistream.reasons import Reason
from semistream.resident import process_peak
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import open_star
from semistream.sizing.stream_stream_plan import StreamStreamPlan
from semistream.sketches import SampledSketch
from semistream.streaming.exchange import Input, Side, TaskFailed, read_messages
from semistream.streaming.join_operator import (
    Finished,
    JoinOperator,
    Refused,
    SemiStreamOperator,
    StreamStreamOperator,
)
from semistream.streaming.phases import Reading, timed
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sources.contract import Decoder, Splits
from semistream.streaming.spool import Spool
from semistream.streaming.waiting import Pace
from semistream.streaming.workers.operators import OperatorCache, use_memory_files
from semistream.warehouse.ids import has_long_id
from semistream.warehouse.records import LoadRecord, unaccounted

SUMMARY = "summary STRING"  # schema of the row that a task returns to mapInArrow
Placing = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
REFUSED = "refused"  # key of a result that says why the partition was not loaded

# Spark reuses a worker: the next micro-batch takes its operator from here and reads no state
operators = OperatorCache()


@dataclass(frozen=True)
class Work:
    """The input of all tasks of a micro-batch, a drain or a resolving load.

    states: by partition, names of the state files, one for each join; checkpoint: directory of the
    join states, shared by all workers; streams: schemas of the tuples; ids: each stream's id
    columns; replicated: the splits that every task reads, keeping the tuples of its partition, each
    with its side; sources: all files of the micro-batch.
    """

    app: str
    batch: int
    drain: int
    plan: Plan[Any]
    states: dict[int, tuple[str, ...]]
    checkpoint: str
    streams: tuple[pa.Schema, ...]
    ids: tuple[tuple[str, ...], ...]
    sink: Sink = field(repr=False)  # not shown: it has the warehouse's password
    replicated: tuple[tuple[int, Splits[Any]], ...] = ()
    sources: tuple[DataFile, ...] = ()
    sketched: bool = True  # whether the ledger keeps a sketch of the load's keys
    pace: Pace | None = None  # see ``JoinOperator.end_batch``

    def side(self, number: int) -> Side:
        return Side(number, self.plan.placement(self.streams, number))

    def place_splits(self, shares: Sequence[Sequence[tuple[int, Splits[Any]]]]) -> Placing:
        """Return a function for ``mapInArrow`` of tasks that read splits for other tasks. Each
        input row is the number of a share. shares: lists of splits, each with its side."""

        def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for side, of in shares[number]:
                        yield from self.side(side).messages(of.reader.read(of.splits))

        return place

    def place_records(self, number: int, decoder: Decoder) -> Placing:
        """Return a function for ``mapInArrow`` over the records of a side that Spark brings.
        number: the side."""

        def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self.side(number).messages(decoder.decode(batches))

        return place

    def join_messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the messages of a partition, see ``exchange``. This is a function for
        ``mapInArrow``, which yields one row: the load's record as JSON."""
        yield pa.record_batch(
            [pa.array([self._summary(read_messages(batches, self.streams))])], names=["summary"]
        )

    def join_nothing(self, nothing: Iterator[object]) -> Iterator[tuple[str]]:
        """Join a partition that gets no messages. This is a function for ``mapPartitions``, which
        yields the same row as ``join_messages``."""
        for _ in nothing:  # Spark does not reuse a worker that leaves input unread
            pass
        yield (self._summary(iter(())),)

    def _summary(self, batches: Iterator[Input]) -> str:
        from pyspark import TaskContext

        use_memory_files()
        process_peak()
        context = TaskContext.get()
        assert context is not None
        try:
            record = self.join_partition(context.partitionId(), batches)
        except SemistreamError as e:  # another attempt would fail, too
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
        operator = self._operator(partition)
        operator.begin(began)
        seed = self.batch, self.drain, partition
        sketch = SampledSketch(seed) if self.sketched else None
        with Spool(
            operator.output_schema,
            self.streams,
            self.ids,
            self.sink.writer(operator.output_schema, self.app, self.batch, self.drain, partition),
            operator.first,
            closes=self.sink.closing is not None,
        ) as spool:
            tuples = Reading(self._tuples(partition, batches))
            refused, changed = self._run(operator, tuples, spool, sketch)
            former = self.states.get(partition, ())
            names = self._state_files(partition, changed)
            record = self.checked(operator.counted(self.load(partition), refused, names))
            if sketch is not None and record.rows_read:
                record = replace(record, key_sketch=sketch.sketch.to_bytes())
            if names != former:
                operator.save(self._paths(names), former)
            check_unchanged(self.sources)
            record = self.sink.write(record, spool)
        if record.state_files == names:
            operators.put((self.checkpoint, partition, names), operator)
        else:  # another attempt was first
            for state in self._paths(names):
                state.unlink(missing_ok=True)
            operator.close()
        return timed(record, tuples.seconds, began)

    def _tuples(self, partition: int, batches: Iterator[Input]) -> Iterator[Input]:
        yield from batches
        for number, of in self.replicated:
            side = self.side(number)
            for numbered in of.reader.read(of.splits):
                mine = side.of_partition(partition, numbered)
                if mine.tuples.num_rows or mine.rejected:
                    yield mine

    def _operator(self, partition: int) -> JoinOperator:
        """Return the operator in its state after the previous batch: the cached operator, or a new
        one with the restored state."""
        before = self.states.get(partition, ())
        cached = operators.take((self.checkpoint, partition, before)) if before else None
        if cached is not None:
            return cached
        operators.clear()  # frees its memory before the next one is allocated
        operator = open_operator(self.plan, self.streams, partition, self.sink)
        if before:
            operator.restore(self._paths(before))
        return operator

    def _run(
        self,
        operator: JoinOperator,
        batches: Iterable[Input],
        spool: Spool,
        sketch: SampledSketch | None,
    ) -> tuple[Refused, bool]:
        """Give the input to the operator, and its keys to the sketch. Return the counts of tuples
        rejected before the operator, and whether the operator's state may have changed."""
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
                operator.sketch(sketch, batch)
            for output in operator.process(side, batch):
                spool.write(*output)
        continues = read or (self.pace is not None and operator.waiting > 0)
        rest: Iterable[Finished] = ()
        if self.drain:
            rest = operator.drain()
        elif continues:
            rest = operator.end_batch(self.pace)
        for output in rest:
            spool.write(*output)
        return refused, continues or bool(self.drain)

    def load(self, partition: int) -> LoadRecord:
        """Return the partition's record without counts."""
        return LoadRecord(
            self.app,
            self.batch,
            self.drain,
            partition,
            self.plan.algorithm,
            inputs=(),
            rows_read=0,
            matched=0,
            output_rows=0,
            memory_budget=self.plan.memory,
            resident_peak=process_peak().read(),
            reason=self.plan.reason or None,
        )

    def checked(self, record: LoadRecord) -> LoadRecord:
        """Return the record with its service rate. Raises StateError if the numbers of its tuples
        do not add up, so that nothing is loaded."""
        if any(map(unaccounted, (record, *record.inputs))):
            raise StateError(
                f"partition {record.partition} of batch {self.batch} does not add up: "
                f"{record}; {self.plan.algorithm} lost or doubled tuples. Not loaded."
            )
        finished = record.matched + record.unmatched
        return replace(record, service_rate=finished / record.seconds if record.seconds else 0.0)

    def _state_files(self, partition: int, changed: bool) -> tuple[str, ...]:
        """Return a new name for the state file of each join, or the former names if the state has
        not changed."""
        before = self.states.get(partition, ())
        if before and not changed:
            return before
        place = f"{self.batch:09d}-{self.drain}-{partition:04d}"
        return tuple(f"{place}-{uuid.uuid4().hex}" for _ in self.plan.joins)

    def _paths(self, states: Sequence[str]) -> list[Path]:
        return [Path(self.checkpoint) / "state" / state for state in states]


def records_of(summaries: Iterable[str]) -> list[LoadRecord]:
    """Return the records in the rows that the tasks have returned, in the order of the partitions.
    Raises TaskFailed if a partition was refused."""
    records = []
    for summary in summaries:
        if (why := json.loads(summary).get(REFUSED)) is not None:
            raise TaskFailed(why)
        records.append(LoadRecord.from_json(summary))
    return sorted(records, key=lambda record: record.partition)


def open_operator(
    plan: Plan[Any], streams: tuple[pa.Schema, ...], partition: int, sink: Sink
) -> JoinOperator:
    """Return a new operator of a partition. Raises ConfigError for a plan that cannot work."""
    first = plan.joins[0]
    if not isinstance(first, StreamStreamPlan):
        unknown = {j.fact_key: j.unknown for j in plan.joins if j.unknown is not None}
        star = open_star(
            plan.joins,
            streams[0],
            partition,
            members=lambda of, dimension: Members(
                sink.warehouse, dimension, dict(of.on), of.fact_key
            ),
        )
        return SemiStreamOperator(star, plan.largest, unknown)
    # imported only here: one stream does not need it
    from semistream.streaming.punctuating import punctuation_sources

    sources = tuple(
        punctuation_sources(first, side, streams, partition) for side in range(len(streams))
    )
    return StreamStreamOperator(first.open(streams), sources, first.partitions == 1)


@cache
def keep_modules() -> None:
    """Exclude all present modules and compiled kernels from garbage collection, once per process.
    Spark's daemon collects garbage after every task, and scanning them would take 0.1 s each time.
    """
    gc.freeze()


def warm_up(_: Iterator[object]) -> None:
    """Import the modules that a micro-batch's tasks need. This is a task's function that prepares a
    worker. PyArrow and Numba import and compile at their first calls."""
    buckets(pa.array([0]).to_numpy(), True, 1)
    SampledSketch().add(np.zeros(1, np.int64))


def split(batch: pa.RecordBatch, wrong: pa.Array) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Return two batches: the tuples for which `wrong`, bool[n], is false, and those for which it
    is true; None in place of the second batch if it is empty."""
    if not pc.any(wrong).as_py():
        return batch, None
    return batch.filter(pc.invert(wrong)), batch.filter(wrong)
