"""What one Spark task does: join one partition of a micro-batch and load the result, exactly
once."""

from __future__ import annotations

import gc
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import StateError
from semistream.joins import JoinState, SemiStreamJoin
from semistream.joins.output import UNPARSABLE
from semistream.keys import buckets
from semistream.resident import process_peak
from semistream.sizing.plan import Plan
from semistream.source_files import RAW, SourceFile, check_unchanged
from semistream.streaming.sinks.base import Sink, ledger_row
from semistream.streaming.spool import Spool
from semistream.streaming.workers.operators import OperatorCache, use_memory_files
from semistream.streaming.workers.parquet import read_partition
from semistream.warehouse.ids import LONG_ID, has_long_id

SUMMARY = "summary STRING"  # what a task returns to mapInArrow
SUMMED = ("rows_read", "matched", "unmatched", "output_rows", "cache_hits", "disk_tuples_read",
          "bytes_read", "seconds")

# workers are reused, so that the next micro-batch need not read the state back
operators = OperatorCache()


@dataclass(frozen=True)
class Work:
    """One micro-batch, or the drain after it, as every task of it is told.

    checkpoint: directory of the join states, shared by all workers; stream: schema of the tuples,
    ``_corrupt_record`` left out; files: of the micro-batch, which the tasks read themselves; none
    where Spark brings the tuples. sources: its files, whoever reads them.
    """

    app: str
    batch: int
    drain: int
    plan: Plan
    states: dict[int, str]
    checkpoint: str
    stream: pa.Schema
    stream_id: tuple[str, ...]
    sink: Sink = field(repr=False)  # it knows the warehouse's password
    files: tuple[str, ...] = ()
    sources: tuple[SourceFile, ...] = ()

    def of_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for ``mapInArrow``: one row, the JSON of the partition's ledger row."""
        names = [*self.stream.names, RAW]
        named = (batch.rename_columns(names[:batch.num_columns]) for batch in batches)
        yield pa.record_batch([pa.array([self._summary(named)])], names=["summary"])

    def of_nothing(self, _: Iterator[object]) -> Iterator[tuple[str]]:
        """The function for ``mapPartitions``, where Spark brings no tuples; gives the same."""
        yield (self._summary(iter(())),)

    def _summary(self, batches: Iterator[pa.RecordBatch]) -> str:
        from pyspark import TaskContext

        use_memory_files()
        process_peak()
        context = TaskContext.get()
        assert context is not None
        entry = self.join_partition(context.partitionId(), batches)
        keep_modules()
        return json.dumps(entry)

    def join_partition(self, partition: int, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """Join and load one partition, unless that has been done; gives the ledger row that
        counts."""
        done = self.sink.loaded(self.app, self.batch, self.drain, partition)
        if done is not None:
            for _ in batches:  # a worker that leaves input unread cannot be reused
                pass
            return done
        join = self._operator(partition)
        stats = deepcopy(join.stats.as_dict())
        load = {"app": self.app, "batch": self.batch, "drain": self.drain, "partition": partition}
        with Spool(join.output_schema, self.stream, self.stream_id,
                   self.sink.data_file(join.output_schema, load)) as spool:
            refused = self._run(join, self._tuples(partition, batches), spool)
            entry = self._entry(partition, join, stats, refused)
            name = entry["state_file"]
            state, before = Path(self.checkpoint) / "state" / name, self.states.get(partition, "")
            if name != before:
                join.save(state, before)
            check_unchanged(self.sources)
            entry = self.sink.write(entry, spool)
        if entry["state_file"] == name:
            operators.put((self.checkpoint, partition, name), join)
        else:  # another attempt was first
            state.unlink(missing_ok=True)
            join.master.close()
        return entry

    def _tuples(self, partition: int,
                batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        key = self.checkpoint, self.batch, self.files, self.plan
        yield from read_partition(self.files, self.plan, self.stream, partition, key)

    def _operator(self, partition: int) -> SemiStreamJoin:
        """The operator as it stood after the batch before: the one at hand, or a new one that takes
        up the state."""
        before = self.states.get(partition, "")
        cached = operators.take((self.checkpoint, partition, before)) if before else None
        if cached is not None:
            return cached
        operators.clear()  # its memory, before the next one takes its own
        join = self.plan.open(self.stream, partition)
        if before:
            join.restore(*JoinState.read(Path(self.checkpoint) / "state" / before))
        return join

    def _run(self, join: SemiStreamJoin, batches: Iterator[pa.RecordBatch],
             spool: Spool) -> Counter[str]:
        """Feed the operator; gives the number of tuples that it was not given, by reason."""
        refused: Counter[str] = Counter()
        for batch in batches:
            batch, rejected = split_unparsable(batch)
            if rejected is not None:
                refused[UNPARSABLE] += rejected.num_rows
                spool.reject(rejected)
            batch, rejected = split(batch, has_long_id(batch, self.stream_id))
            if rejected is not None:
                refused[LONG_ID] += rejected.num_rows
                spool.keep(rejected, pa.repeat(LONG_ID, rejected.num_rows))
            for output in join.process(batch):
                spool.write(output)
        if self.drain:
            for output in join.drain():
                spool.write(output)
        return refused

    def _entry(self, partition: int, join: SemiStreamJoin, before: dict[str, Any],
               refused: Counter[str]) -> dict[str, Any]:
        """The partition's ledger row. Raises StateError when its tuples do not add up: then nothing
        is loaded."""
        now = join.stats.as_dict()
        entry = {name: now[name] - before[name] for name in SUMMED}
        rejected = {r: n for r in now["rejected"]
                    if (n := now["rejected"][r] - before["rejected"].get(r, 0))}
        rejected |= refused
        entry["rows_read"] += refused.total()
        entry["unmatched"] += refused.total()
        finished = entry["matched"] + entry["unmatched"]
        if (before["waiting"] + entry["rows_read"] != finished + now["waiting"]
                or sum(rejected.values()) != entry["unmatched"]):
            raise StateError(f"partition {partition} of batch {self.batch} does not add up: "
                             f"{before['waiting']} waited, {entry}, {rejected}, {now['waiting']} "
                             f"wait; {self.plan.algorithm} lost or doubled tuples. Not loaded.")
        return entry | {"app": self.app, "batch": self.batch, "drain": self.drain,
                        "partition": partition, "algorithm": self.plan.algorithm,
                        "reason": self.plan.reason or None, "master": join.master.name,
                        "master_version": join.master.version, "waiting_before": before["waiting"],
                        "waiting": now["waiting"],
                        "r_cycles": entry["disk_tuples_read"] / max(join.master.tuple_count, 1),
                        "service_rate": finished / entry["seconds"] if entry["seconds"] else 0.0,
                        "memory_budget": self.plan.memory, "memory_peak": now["memory_peak"],
                        "resident_peak": process_peak().read(), "memory": now["memory"],
                        "rejected": rejected,
                        "state_file": self._state_file(partition, entry["rows_read"])}

    def _state_file(self, partition: int, rows_read: int) -> str:
        """A new name; that of the state before where no tuple has come, and nothing has changed."""
        before = self.states.get(partition)
        if before and not rows_read and not self.drain:
            return before
        return f"{self.batch:09d}-{self.drain}-{partition:04d}-{uuid.uuid4().hex}"


@cache
def keep_modules() -> None:
    """Once in a process, when all is imported and compiled: Spark's daemon collects garbage after
    every task, which takes a tenth of a second if it looks at all of that."""
    gc.freeze()


def get_ready(_: Iterator[object]) -> None:
    """A task after which its worker has imported what a micro-batch's needs; PyArrow and Numba do
    so at their first calls."""
    buckets(pa.array([0]).to_numpy(), True, 1)


def split_unparsable(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """(tuples without ``_corrupt_record``, those that could not be parsed or None)."""
    if RAW not in batch.schema.names:
        return batch, None
    good, broken = split(batch, pc.is_valid(batch.column(RAW)))
    return good.drop_columns([RAW]), broken


def split(batch: pa.RecordBatch, wrong: pa.Array) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """(the other tuples, the wrong ones or None)."""
    if not pc.any(wrong).as_py():
        return batch, None
    return batch.filter(pc.invert(wrong)), batch.filter(wrong)


def without_tuples(entry: dict[str, Any], batch: int) -> dict[str, Any]:
    """A partition's ledger row for a batch that brings it nothing, from that of the commit
    before."""
    nothing = dict.fromkeys((*SUMMED, "facts_checksum", "unmatched_checksum"), 0)
    return ledger_row(entry) | nothing | {"batch": batch, "drain": 0,
                                          "waiting_before": entry["waiting"], "r_cycles": 0.0,
                                          "service_rate": 0.0, "rejected": {}}
