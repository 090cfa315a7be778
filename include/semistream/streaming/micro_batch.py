"""One micro-batch: the part of the source that it reads, its tuples, and the Spark job that joins
them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from semistream.data_files import DataFile, examine
from semistream.errors import StateError
from semistream.job import SIDES
from semistream.keys_spark import quoted
from semistream.streaming.exchange import PLACED, shares
from semistream.streaming.progress import Progress
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.contract import Part, Records, Splits
from semistream.streaming.sources.log import SourceLog
from semistream.streaming.task import SUMMARY, Work, records_of
from semistream.warehouse.records import LoadRecord

if TYPE_CHECKING:
    from semistream.streaming.query import Query

log = logging.getLogger(__name__)
POLL = 0.02  # s between checks for a stop request, or for newer versions of dimensions
ATTEMPTS = 3  # attempts at a job whose Python worker was killed, if Spark itself does not retry
WORKER_DIED = (
    "Python worker exited unexpectedly",
    "Python worker process terminated",
    "SIGKILL",
    "EOFException",
)


class Stopped(Exception):
    """A micro-batch came after the stop; the query gives it again at the next start."""


@dataclass(frozen=True)
class Stream:
    """A stream of a query. schema: schema of its tuples; columns: names of the columns that Spark
    brings; log: the log of its source."""

    source: Source
    schema: pa.Schema
    columns: tuple[str, ...]
    log: SourceLog


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch. number: counted from 0; frames: a DataFrame for each stream, with what Spark
    brings of it; streams: one stream, or the left and the right stream."""

    number: int
    frames: Sequence[DataFrame]
    streams: tuple[Stream, ...]

    @cached_property
    def files(self) -> list[list[str]]:
        """The paths of each stream's files; an empty list if its source has no files."""
        return [stream.log.files(self.number) for stream in self.streams]

    @property
    def paths(self) -> list[str]:
        return [path for files in self.files for path in files]

    @cached_property
    def _offsets(self) -> list[dict[str, Any]]:
        return [stream.log.offsets(self.number) for stream in self.streams]

    @property
    def offsets(self) -> dict[str, Any]:
        """The batch's ``source_offsets`` for the ledger."""
        parts = self._offsets
        return parts[0] if len(parts) == 1 else dict(zip(SIDES, parts, strict=True))

    @cached_property
    def inputs(self) -> list[Splits[Any] | Records]:
        """The inputs from which the tasks read the tuples of each stream."""
        return [
            stream.source.input(df, Part.of(offsets, files))
            for df, stream, offsets, files in zip(
                self.frames, self.streams, self._offsets, self.files, strict=True
            )
        ]

    def complete_files(
        self, min_age: float, stop_requested: Callable[[], bool]
    ) -> tuple[DataFile, ...]:
        """Wait until the batch's files are complete, and check them. Return the files in this
        state.

        Raises ConfigError for a file whose columns differ from the stream's, StateError for a file
        that is gone, and Stopped if a stop is requested before the files have been unchanged for
        ``min_age`` seconds.
        """
        files = self._rested(min_age, stop_requested)
        for each in self.inputs:
            each.check()
        return files

    def has_changed(self, begun: Progress) -> bool:
        """Return whether the part of the source differs from the one with which the batch began,
        because a file has changed since, or Spark's log was lost."""
        return (
            begun.source != self.offsets
            or [s.path for s in begun.sources] != self.paths
            or any(s.known and s.now() != s for s in begun.sources)
        )

    def is_empty(self) -> bool:
        """Return whether there are certainly no tuples."""
        return all(each.is_empty() for each in self.inputs)

    def sample(self, most: int) -> pa.RecordBatch:
        """Return at most ``most`` tuples of the only stream."""
        (stream,), (each,) = self.streams, self.inputs
        taken = [pa.RecordBatch.from_pylist([], stream.schema)]
        for rows in each.sample(most):
            taken.append(rows.slice(0, most))
            most -= taken[-1].num_rows
            if not most:
                break
        return pa.concat_batches(taken)

    def tuple_count(self) -> int:
        """Count the batch's tuples, unparsable ones included."""
        return sum(each.count() for each in self.inputs)

    def _rested(self, min_age: float, stop_requested: Callable[[], bool]) -> tuple[DataFile, ...]:
        """Wait until no file has changed for ``min_age`` seconds. Return the files in this
        state."""
        files = examine(self.paths)
        while (newest := max((f.modified / 1e9 for f in files), default=0.0)) > 0:
            until = min(newest, time.time()) + min_age  # a file's time may be in the future
            if until <= time.time():
                return files
            log.info(
                "waiting %.0f s for the newest of %d files to be complete (min_age)",
                until - time.time(),
                len(files),
            )
            while time.time() < until:
                if stop_requested():
                    raise Stopped
                time.sleep(POLL)
            before, files = files, examine(self.paths)
            if files == before:
                return files
        return files


def union_frame(frames: Sequence[DataFrame]) -> DataFrame:
    """Combine two streams in one DataFrame: side, the left columns, the right columns. A row has
    nulls for the other side's columns."""
    parts = []
    for side, df in enumerate(frames):
        columns = [F.lit(side)]
        for of, other in enumerate(frames):
            columns += [
                quoted(f.name) if of == side else F.lit(None).cast(f.dataType) for f in other.schema
            ]
        parts.append(df.select(*(c.alias(f"column_{i}") for i, c in enumerate(columns))))
    return parts[0].unionAll(parts[1])


def split_frame(df: DataFrame, streams: Sequence[Stream]) -> list[DataFrame]:
    """Separate the two streams that ``union_frame`` has combined."""
    side, *columns = df.columns
    out, first = [], 0
    for number, stream in enumerate(streams):
        mine = columns[first : first + len(stream.columns)]
        out.append(
            df.filter(F.col(side) == number).select(
                *(F.col(c).alias(n) for c, n in zip(mine, stream.columns, strict=True))
            )
        )
        first += len(mine)
    return out


def place(query: Query, work: Work, batch: MicroBatch) -> tuple[Work, DataFrame | None]:
    """Assign a micro-batch's tuples to the join tasks. Return (work, messages): the work, with the
    splits that every task reads itself, and a DataFrame that carries the other tuples to their
    tasks, None if there are none."""
    partitions, messages = work.plan.partitions, list[DataFrame]()
    exchanged: dict[int, Splits[Any]] = {}
    for side, each in enumerate(batch.inputs):
        if isinstance(each, Records):
            # mapInArrow takes no backticks in names
            plain = each.frame.toDF(*(f"column_{i}" for i in range(len(each.frame.columns))))
            messages.append(plain.mapInArrow(work.place_records(side, each.decoder), PLACED))
        elif partitions == 1 or each.reader.replicated(each.splits, partitions):
            work = replace(work, replicated=(*work.replicated, (side, each)))
        else:
            exchanged[side] = each
    if count := sum(len(each.splits) for each in exchanged.values()):
        tasks = min(query.context.defaultParallelism, count)
        shared = shares(exchanged, tasks)
        messages.append(
            query.spark.range(0, tasks, 1, tasks).mapInArrow(work.place_splits(shared), PLACED)
        )
    return work, reduce(DataFrame.unionAll, messages) if messages else None


def run_tasks(query: Query, work: Work, batch: MicroBatch | None) -> list[LoadRecord]:
    """Run the Spark job of a micro-batch, or of a drain if ``batch`` is None. Return the records of
    all partitions, in order."""
    count = work.plan.partitions
    work, messages = (work, None) if batch is None else place(query, work, batch)
    job: RDD[tuple[str]] | DataFrame
    if messages is None:
        # no query to plan, which would be half the time of an empty micro-batch
        job = _partitions(query.context, count).mapPartitions(work.join_nothing)
    else:
        job = messages.repartitionById(count, F.col("partition")).mapInArrow(
            work.join_messages, SUMMARY
        )
    records = _collect(job, work.batch)
    if (ran := [record.partition for record in records]) != list(range(count)):
        raise StateError(f"batch {work.batch} ran partitions {ran}, not 0 to {count - 1}")
    return records


@lru_cache(maxsize=1)
def _partitions(context: SparkContext, count: int) -> RDD[Any]:
    """Return an RDD of so many empty partitions. To make one takes a file, and many calls of the
    JVM."""
    return context.parallelize([], count)


def _collect(job: RDD[tuple[str]] | DataFrame, batch: int) -> list[LoadRecord]:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            rows = job.collect()
            break
        except Exception as e:
            if attempt == ATTEMPTS or not any(sign in str(e) for sign in WORKER_DIED):
                raise
            log.warning("a Python worker died in batch %d; trying again", batch)
    return records_of(summary for (summary,) in rows)
