"""One Spark task: it joins one partition of a micro-batch and loads the result exactly once.
``join_operator`` has the operator that it runs."""

from __future__ import annotations

import gc
import json
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.data_files import DataFile, check_unchanged
from semistream.errors import SemistreamError, StateError
from semistream.joins.output import UNPARSABLE
from semistream.keys import buckets
from semistream.partitioning import Placement
from semistream.resident import process_peak
from semistream.sizing.plan import Plan
from semistream.sizing.stream_stream_plan import StreamStreamPlan
from semistream.sketches import SampledSketch
from semistream.streaming.exchange import Input, Side, TaskFailed, read_messages
from semistream.streaming.join_operator import (
    SUMMED,
    Finished,
    JoinOperator,
    Refused,
    SemiStreamOperator,
    StreamStreamOperator,
)
from semistream.streaming.sinks.base import Sink, ledger_row
from semistream.streaming.sources.contract import Decoder, Splits
from semistream.streaming.spool import Spool
from semistream.streaming.waiting import Pace
from semistream.streaming.workers.operators import OperatorCache, use_memory_files
from semistream.warehouse.ids import LONG_ID, has_long_id

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
    all workers; streams: schemas of the tuples; ids: each stream's id columns; replicated: the
    splits that every task reads, keeping the tuples of its partition, each with its side; sources:
    all files of the micro-batch.
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
    replicated: tuple[tuple[int, Splits[Any]], ...] = ()
    sources: tuple[DataFile, ...] = ()
    sketched: bool = True  # whether the ledger keeps a sketch of the load's keys
    pace: Pace | None = None  # see ``JoinOperator.end_batch``

    def side(self, number: int) -> Side:
        return Side(number, placement_of(self.plan, self.streams, number))

    def place_splits(self, shares: Sequence[Sequence[tuple[int, Splits[Any]]]]) -> Placing:
        """Return the function for ``mapInArrow`` of the tasks that read splits for others. Each
        input row is the number of a share: splits, each with their side."""
        def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for side, of in shares[number]:
                        yield from self.side(side).messages(of.reader.read(of.splits))

        return place

    def place_records(self, number: int, decoder: Decoder) -> Placing:
        """Return the function for ``mapInArrow`` over the records that Spark brings of a side."""
        def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self.side(number).messages(decoder.decode(batches))

        return place

    def join_messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the messages of a partition, see ``exchange``; the function for ``mapInArrow``.
        Yields one row: the partition's ledger row as JSON."""
        yield pa.record_batch([pa.array([self._summary(read_messages(batches, self.streams))])],
                              names=["summary"])

    def join_nothing(self, _: Iterator[object]) -> Iterator[tuple[str]]:
        """Join a partition that gets no messages; the function for ``mapPartitions``. Yields the
        same row as ``join_messages``."""
        yield (self._summary(iter(())),)

    def _summary(self, batches: Iterator[Input]) -> str:
        from pyspark import TaskContext

        use_memory_files()
        process_peak()
        context = TaskContext.get()
        assert context is not None
        try:
            entry = self.join_partition(context.partitionId(), batches)
        except SemistreamError as e:  # another attempt would fail, too
            for _ in batches:
                pass
            return json.dumps({"partition": context.partitionId(), REFUSED: str(e)})
        keep_modules()
        return json.dumps(entry)

    def join_partition(self, partition: int, batches: Iterator[Input]) -> dict[str, Any]:
        """Join and load one partition, unless an earlier attempt did so. Return the ledger row of
        the attempt that was first. batches: the partition's tuples."""
        began = time.perf_counter()
        done = self.sink.loaded(self.app, self.batch, self.drain, partition)
        if done is not None:
            for _ in batches:  # Spark does not reuse a worker that leaves input unread
                pass
            return done
        operator = self._operator(partition)
        operator.begin(began)
        before = operator.count()
        load = {"app": self.app, "batch": self.batch, "drain": self.drain, "partition": partition}
        sketch = (SampledSketch((self.batch, self.drain, partition))
                  if self.sketched and operator.sketched else None)
        with Spool(operator.output_schema, self.streams, self.ids,
                   self.sink.writer(operator.output_schema, load), operator.first,
                   closes=self.sink.closing is not None) as spool:
            refused, changed = self._run(operator, self._tuples(partition, batches), spool, sketch)
            entry = self._entry(partition, operator.entry(before, refused), changed)
            if sketch is not None and entry["rows_read"]:
                entry["key_sketch"] = b64encode(sketch.sketch.to_bytes()).decode()
            name = entry["state_file"]
            state, former = Path(self.checkpoint) / "state" / name, self.states.get(partition, "")
            if name != former:
                operator.save(state, former)
            check_unchanged(self.sources)
            entry = self.sink.write(entry, spool)
        if entry["state_file"] == name:
            operators.put((self.checkpoint, partition, name), operator)
        else:  # another attempt was first
            state.unlink(missing_ok=True)
            operator.close()
        return entry

    def _tuples(self, partition: int, batches: Iterator[Input]) -> Iterator[Input]:
        yield from batches
        for number, of in self.replicated:
            side = self.side(number)
            for numbered in of.reader.read(of.splits):
                mine = side.of_partition(partition, numbered)
                if mine.tuples.num_rows or mine.rejected:
                    yield mine

    def _operator(self, partition: int) -> JoinOperator:
        """Return the operator in its state after the previous batch: the cached one, or a new one
        that restores the state."""
        before = self.states.get(partition, "")
        cached = operators.take((self.checkpoint, partition, before)) if before else None
        if cached is not None:
            return cached
        operators.clear()  # frees its memory before the next one is allocated
        operator = open_operator(self.plan, self.streams, partition)
        if before:
            operator.restore(Path(self.checkpoint) / "state" / before)
        return operator

    def _run(self, operator: JoinOperator, batches: Iterator[Input], spool: Spool,
             sketch: SampledSketch | None) -> tuple[Refused, bool]:
        """Feed the operator with the input, and the sketch with its keys. Return the counts of
        tuples rejected before the operator, and whether the operator's state may have changed."""
        refused, read = Refused(), False
        for side, batch, unparsable in batches:
            read = read or bool(batch.num_rows or unparsable)
            if unparsable:
                refused[side, UNPARSABLE] += len(unparsable)
                spool.reject(unparsable, side)
            batch, rejected = split(batch, has_long_id(batch, self.ids[side]))
            if rejected is not None:
                refused[side, LONG_ID] += rejected.num_rows
                spool.keep(rejected, pa.repeat(LONG_ID, rejected.num_rows), side)
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

    def _entry(self, partition: int, entry: dict[str, Any], changed: bool) -> dict[str, Any]:
        """Return the partition's ledger row. Raises StateError if its tuples do not add up; then
        nothing is loaded."""
        finished = entry["matched"] + entry["unmatched"]
        parts = [entry, *({**side, "unmatched": sum(side["rejected"].values())}
                          for side in entry.get("sides", {}).values())]
        if not all(map(_adds_up, parts)):
            raise StateError(f"partition {partition} of batch {self.batch} does not add up: "
                             f"{entry['waiting_before']} waited, {entry}; {self.plan.algorithm} "
                             f"lost or doubled tuples. Not loaded.")
        return entry | {
            "app": self.app, "batch": self.batch, "drain": self.drain, "partition": partition,
            "algorithm": self.plan.algorithm, "reason": self.plan.reason or None,
            "service_rate": finished / entry["seconds"] if entry["seconds"] else 0.0,
            "memory_budget": self.plan.memory, "resident_peak": process_peak().read(),
            "state_file": self._state_file(partition, changed)}

    def _state_file(self, partition: int, changed: bool) -> str:
        """Return a new name for the state file, or the former name if the state has not changed."""
        before = self.states.get(partition)
        if before and not changed:
            return before
        return f"{self.batch:09d}-{self.drain}-{partition:04d}-{uuid.uuid4().hex}"


def _adds_up(part: dict[str, Any]) -> bool:
    """Return whether the counts of all tuples, or of one side's, add up."""
    finished = part["matched"] + part["unmatched"]
    return part["waiting_before"] + part["rows_read"] == finished + part["waiting"] \
        and sum(part["rejected"].values()) == part["unmatched"]


def raise_refusal(entries: list[dict[str, Any]]) -> None:
    """Raise TaskFailed if a partition was refused."""
    for entry in entries:
        if REFUSED in entry:
            raise TaskFailed(entry[REFUSED])


def open_operator(plan: AnyPlan, streams: tuple[pa.Schema, ...], partition: int) -> JoinOperator:
    """Return a new operator of a partition. Raises ConfigError for a plan that cannot work."""
    if isinstance(plan, StreamStreamPlan):
        # imported only here: one stream does not need it
        from semistream.streaming.punctuating import punctuation_sources

        sources = tuple(punctuation_sources(plan, side, streams, partition)
                        for side in range(len(streams)))
        return StreamStreamOperator(plan.open(streams), sources, plan.partitions == 1)
    return SemiStreamOperator(plan.open(streams[0], partition))


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


def warm_up(_: Iterator[object]) -> None:
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


def without_tuples(entry: dict[str, Any], batch: int) -> dict[str, Any]:
    """Return a partition's ledger row for a batch without tuples, made from the row of the previous
    commit."""
    nothing: dict[str, Any] = dict.fromkeys((*SUMMED, "facts_checksum", "unmatched_checksum"), 0)
    nothing |= {"wait_median": None, "wait_longest": None, "nulled": None}
    if entry.get("sides"):
        nothing["sides"] = {side: {"waiting_before": of["waiting"], "rows_read": 0, "matched": 0,
                                   "rejected": {}, "waiting": of["waiting"],
                                   "on_disk": of["on_disk"]}
                            for side, of in entry["sides"].items()}
    return ledger_row(entry) | nothing | {"key_sketch": None, "batch": batch, "drain": 0,
                                          "waiting_before": entry["waiting"], "r_cycles": 0.0,
                                          "service_rate": 0.0, "rejected": {}}
