"""What one Spark task does: join one partition of a micro-batch and load the result, exactly once."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.durable import naming
from semistream.errors import StateError
from semistream.joins import JoinOutput, JoinState, SemiStreamJoin
from semistream.joins.output import UNPARSABLE
from semistream.keys import buckets
from semistream.sizing.plan import Plan
from semistream.source_files import RAW, SourceFile, check_unchanged
from semistream.streaming.columnar import read_partition
from semistream.streaming.exchange import scratch
from semistream.streaming.handover import Holder, prepare
from semistream.streaming.sinks import DataFile, Sink, ledger_row
from semistream.warehouse.ids import LONG_ID, has_long_id, stream_ids

SUMMARY = "summary STRING"  # what a task returns to mapInArrow
SUMMED = ("rows_read", "matched", "unmatched", "output_rows", "cache_hits", "disk_tuples_read", "bytes_read", "seconds")

holder = Holder()  # workers are reused, so that the next micro-batch need not read the state back


@dataclass(frozen=True)
class Work:
    """One micro-batch, or the drain after it, as every task of it is told.

    checkpoint: directory of the join states, shared by all workers; stream: schema of the tuples, ``_corrupt_record`` left out;
    files: of the micro-batch, which the tasks read themselves; none where Spark brings the tuples. sources: its files, whoever
    reads them.
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

        prepare()
        context = TaskContext.get()
        assert context is not None
        entry = self.load(context.partitionId(), batches)
        keep_modules()
        return json.dumps(entry)

    def load(self, partition: int, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """Join and load one partition, unless that has been done; gives the ledger row that counts."""
        done = self.sink.loaded(self.app, self.batch, self.drain, partition)
        if done is not None:
            for _ in batches:  # a worker that leaves input unread cannot be reused
                pass
            return done
        join = self._operator(partition)
        stats = deepcopy(join.stats.as_dict())
        load = {"app": self.app, "batch": self.batch, "drain": self.drain, "partition": partition}
        with Spool(join, self, self.sink.data_file(join.output_schema, load)) as spool:
            refused = self._run(join, self._tuples(partition, batches), spool)
            entry = self._entry(partition, join, stats, refused)
            name = entry["state_file"]
            state, before = Path(self.checkpoint) / "state" / name, self.states.get(partition, "")
            if name != before:
                join.snapshot(changes=bool(before)).write(state, before)
            check_unchanged(self.sources)
            entry = self.sink.load(entry, spool)
        if entry["state_file"] == name:
            holder.hold((self.checkpoint, partition, name), join)
        else:  # another attempt was first
            state.unlink(missing_ok=True)
            join.master.close()
        return entry

    def _tuples(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        key = self.checkpoint, self.batch, self.files, self.plan
        yield from read_partition(self.files, self.plan, self.stream, partition, key)

    def _operator(self, partition: int) -> SemiStreamJoin:
        """The operator as it stood after the batch before: the one at hand, or a new one that takes up the state."""
        before = self.states.get(partition, "")
        held = holder.take((self.checkpoint, partition, before)) if before else None
        if held is not None:
            return held
        holder.forget()  # its memory, before the next one takes its own
        join = self.plan.open(self.stream, partition)
        if before:
            join.restore(*JoinState.read(Path(self.checkpoint) / "state" / before))
        return join

    def _run(self, join: SemiStreamJoin, batches: Iterator[pa.RecordBatch], spool: Spool) -> Counter[str]:
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
        """The partition's ledger row. Raises StateError when its tuples do not add up: then nothing is loaded."""
        now = join.stats.as_dict()
        entry = {name: now[name] - before[name] for name in SUMMED}
        rejected = {r: n for r in now["rejected"] if (n := now["rejected"][r] - before["rejected"].get(r, 0))}
        rejected |= refused
        entry["rows_read"] += refused.total()
        entry["unmatched"] += refused.total()
        finished = entry["matched"] + entry["unmatched"]
        if before["waiting"] + entry["rows_read"] != finished + now["waiting"] or sum(rejected.values()) != entry["unmatched"]:
            raise StateError(f"partition {partition} of batch {self.batch} does not add up: {before['waiting']} waited, {entry}, "
                             f"{rejected}, {now['waiting']} wait; {self.plan.algorithm} lost or doubled tuples. Not loaded.")
        return entry | {
            "app": self.app, "batch": self.batch, "drain": self.drain, "partition": partition, "algorithm": self.plan.algorithm,
            "reason": self.plan.reason or None, "master": join.master.name, "master_version": join.master.version,
            "waiting_before": before["waiting"],
            "waiting": now["waiting"], "r_cycles": entry["disk_tuples_read"] / max(join.master.tuple_count, 1),
            "service_rate": finished / entry["seconds"] if entry["seconds"] else 0.0, "memory_budget": self.plan.memory,
            "memory_peak": now["memory_peak"], "memory": now["memory"], "rejected": rejected,
            "state_file": self._state_file(partition, entry["rows_read"])}

    def _state_file(self, partition: int, rows_read: int) -> str:
        """A new name; that of the state before where no tuple has come, and nothing has changed."""
        before = self.states.get(partition)
        if before and not rows_read and not self.drain:
            return before
        return f"{self.batch:09d}-{self.drain}-{partition:04d}-{uuid.uuid4().hex}"


@cache
def keep_modules() -> None:
    """Once in a process, when all is imported and compiled: Spark's daemon collects garbage after every task, which takes a tenth
    of a second if it looks at all of that."""
    gc.freeze()


def get_ready(_: Iterator[object]) -> None:
    """A task after which its worker has imported what a micro-batch's needs; PyArrow and Numba do so at their first calls."""
    buckets(pa.array([0]).to_numpy(), True, 1)


def without_tuples(entry: dict[str, Any], batch: int) -> dict[str, Any]:
    """A partition's ledger row for a batch that brings it nothing, from that of the commit before."""
    nothing = dict.fromkeys((*SUMMED, "facts_checksum", "unmatched_checksum"), 0)
    return ledger_row(entry) | nothing | {"batch": batch, "drain": 0, "waiting_before": entry["waiting"], "r_cycles": 0.0,
                                          "service_rate": 0.0, "rejected": {}}


class Spool:
    """A task's output on local disk, until it is loaded in one short transaction that can be tried again.

    ``joined()`` and ``unmatched()`` are tables whose pages the system reads from the files when they are touched. data: where the
    sink has joined rows written at once.
    """

    def __init__(self, join: SemiStreamJoin, work: Work, data: DataFile | None = None):
        self.work, self.output_schema, self.data = work, join.output_schema, data
        self._added = len(join.output_schema) - len(work.stream)
        self._directory = tempfile.TemporaryDirectory(prefix="semistream-", dir=scratch())
        self._schemas = {"joined": join.output_schema, "unmatched": UNMATCHED}
        self._rejected: list[pa.RecordBatch] = []  # unparsable ones that are not written yet
        self._rejected_bytes, self._explained = 0, 0
        self._writers: dict[str, pa.RecordBatchStreamWriter] = {}

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers.values():
            with suppress(OSError):  # a full disk, say, which is being reported already
                writer.close()
        self._directory.cleanup()
        if failed and self.data is not None:
            self.data.discard()

    @property
    def stream_schema(self) -> pa.Schema:
        """The stream's columns in the types that the join gives them out in."""
        return pa.schema(list(self.output_schema)[:len(self.work.stream)])

    @property
    def added_schema(self) -> pa.Schema:
        return pa.schema(list(self.output_schema)[len(self.work.stream):])

    def write(self, output: JoinOutput) -> None:
        if output.joined.num_rows and self.data is not None:
            self.data.write(output.joined)
        elif output.joined.num_rows:
            self._append("joined", output.joined)
        if output.unmatched.num_rows:
            *columns, reasons = output.unmatched.columns  # the stream may have a column of that name, too
            self.keep(pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(output.unmatched.schema)[:-1])), reasons)

    def keep(self, tuples: pa.RecordBatch, reasons: pa.Array) -> None:
        """Keep tuples that are not loaded."""
        self._append("unmatched", unmatched_rows(tuples, reasons, self.work.stream_id))

    def reject(self, batch: pa.RecordBatch) -> None:
        """Keep tuples that could not be parsed: their text, and why."""
        self._rejected.append(pa.record_batch([stream_ids(batch, self.work.stream_id), batch.column(RAW)], names=["id", RAW]))
        self._rejected_bytes += self._rejected[-1].nbytes
        if self._rejected_bytes > GATHERED_BYTES:
            self._explain()

    def _explain(self) -> None:
        """Of many at once, as their lines are looked for in their files."""
        if not self._rejected:
            return
        from semistream.streaming.unparsable import explain  # what imports pandas, for the few that need it

        rows = pa.Table.from_batches(self._rejected).combine_chunks().to_batches()[0]
        kept = explain(rows.column(RAW).to_pylist(), self.work.stream, self._explained)
        columns = [pa.repeat(UNPARSABLE, len(kept)), rows.column("id"), pa.array([json.dumps(row) for row in kept])]
        self._append("unmatched", pa.record_batch(columns, schema=UNMATCHED))
        self._explained += len(kept)
        self._rejected, self._rejected_bytes = [], 0

    def joined(self) -> pa.Table:
        return self._read("joined")

    def unmatched(self) -> pa.Table:
        """Columns reason, stream_id, tuple."""
        self._explain()
        return self._read("unmatched")

    def _append(self, name: str, batch: pa.RecordBatch) -> None:
        path = os.path.join(self._directory.name, name)
        with naming(path):
            if name not in self._writers:
                self._writers[name] = pa.ipc.new_stream(path, self._schemas[name])
            self._writers[name].write_batch(batch)

    def _read(self, name: str) -> pa.Table:
        if name not in self._writers:
            return self._schemas[name].empty_table()
        self._writers[name].close()
        with pa.memory_map(os.path.join(self._directory.name, name)) as file:
            return pa.ipc.open_stream(file).read_all()


GATHERED_BYTES = 16_000_000  # of unparsable tuples
UNMATCHED = pa.schema([("reason", pa.string()), ("stream_id", pa.string()), ("tuple", pa.string())])


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


def unmatched_rows(tuples: pa.RecordBatch, reasons: pa.Array, id_columns: tuple[str, ...]) -> pa.RecordBatch:
    """Tuples as rows of the table ``unmatched``."""
    texts = [json.dumps(row, default=_plain) for row in tuples.to_pylist()]
    return pa.record_batch([reasons, stream_ids(tuples, id_columns), pa.array(texts, pa.string())], schema=UNMATCHED)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


@contextmanager
def forgetting() -> Iterator[None]:
    """Without the operator that this process may still hold, before and after."""
    holder.forget()
    try:
        yield
    finally:
        holder.forget()
