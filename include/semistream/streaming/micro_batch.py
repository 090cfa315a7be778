"""One micro-batch as Spark gives it: which part of the source it is, its tuples, and the Spark job
that joins them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.config import SIDES, StreamSpec
from semistream.errors import StateError
from semistream.files.json_source import JsonSource
from semistream.files.text_source import BLOCK
from semistream.keys_spark import quoted
from semistream.source_files import SourceFile, is_remote, look_at
from semistream.streaming.exchange import PLACED, shares
from semistream.streaming.progress import Progress
from semistream.streaming.sources.log import SourceLog
from semistream.streaming.sources.reader import Reader, is_read
from semistream.streaming.sources.registry import find_source
from semistream.streaming.task import SUMMARY, Work, records_of
from semistream.warehouse.records import LoadRecord

log = logging.getLogger(__name__)
POLL = 0.25  # s between checks for a stop request
ATTEMPTS = 3  # attempts at a job whose Python worker was killed, if Spark itself does not retry
WORKER_DIED = ("Python worker exited unexpectedly", "Python worker process terminated", "SIGKILL",
               "EOFException")
# Up to so many tasks each decode all Parquet of a micro-batch, and keep the tuples of their
# partition: some 0.05 s for a million tuples of two columns, cheaper than an exchange.
MOST_DECODING = 16
# Files are small below a mean of so many bytes: opening one takes longer than exchanging its
# tuples. More than FEW_FILES such files are therefore read once, not once in every task.
SMALL_FILE, FEW_FILES = 256_000, 64


class Stopped(Exception):
    """A micro-batch came after the stop; Spark gives it again at the next start."""


@dataclass(frozen=True)
class Stream:
    """A stream of a query. schema: of its rows; reader: of its files or texts, None if Spark brings
    rows; log: Spark's log of its source."""

    spec: StreamSpec
    schema: pa.Schema
    reader: Reader | None
    log: SourceLog


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch. df, number: from Spark; streams: one, or the left and the right one."""

    df: DataFrame
    number: int
    streams: tuple[Stream, ...]

    @cached_property
    def files(self) -> list[list[str]]:
        """The paths of each stream's files; none if its source has no files."""
        return [stream.log.files(self.number) for stream in self.streams]

    @property
    def paths(self) -> list[str]:
        return [path for files in self.files for path in files]

    @cached_property
    def offsets(self) -> dict[str, Any]:
        """The batch's ``source_offsets`` for the ledger."""
        parts = [stream.log.offsets(self.number) for stream in self.streams]
        return parts[0] if len(parts) == 1 else dict(zip(SIDES, parts, strict=True))

    @cached_property
    def read_by_tasks(self) -> list[list[str]]:
        """The paths of each stream's files that tasks read themselves."""
        return [files if stream.reader is not None and not _remote(files) else []
                for stream, files in zip(self.streams, self.files, strict=True)]

    def part_of_source(self, min_age: float, stop_asked: Callable[[], bool]) -> dict[str, Any]:
        """Return the batch's part of the source, as ``Progress`` has it: source, sources.

        Raises ConfigError for a file whose columns are not the stream's, StateError for a file that
        is gone, and Stopped if a stop is requested before its files have been unchanged for
        ``min_age`` seconds.
        """
        for stream in self.streams:
            stream.log.flush(self.number)
        rested = self._rested(min_age, stop_asked)
        for stream, files in zip(self.streams, self.read_by_tasks, strict=True):
            if stream.reader is not None:
                stream.reader.check(stream.spec, files)
        return {"source": self.offsets, "sources": rested}

    def has_changed(self, begun: Progress) -> bool:
        """Return whether this is no longer the part of the source that was begun: a file has
        changed since, or Spark's log was lost."""
        return begun.source != self.offsets or [s.path for s in begun.sources] != self.paths \
            or any(s.known and s.now() != s for s in begun.sources)

    def has_tuples(self) -> bool:
        """Return False if tasks read all of the batch's files and these are empty."""
        if any(len(own) < len(files) or stream.reader is None or not files
               for own, files, stream in zip(self.read_by_tasks, self.files, self.streams,
                                             strict=True)):
            return True
        return any(_may_have_tuples(path) for path in self.paths)

    def frames(self) -> list[DataFrame | None]:
        """Return the DataFrame that Spark brings of each stream, from its files as they are now;
        None if tasks read the files. Lazy."""
        given = [self.df] if len(self.streams) == 1 else of_both(self.df, self.streams)
        out: list[DataFrame | None] = []
        for df, stream, files in zip(given, self.streams, self.files, strict=True):
            if stream.reader is not None and is_read(stream.spec) and not _remote(files):
                out.append(None)
            else:
                out.append(find_source(stream.spec).files(df, files) if files else df)
        return out

    def sample(self, most: int) -> pa.RecordBatch:
        """Return at most ``most`` tuples of the only stream, from as few of its files as
        possible."""
        (stream,), (frame,) = self.streams, self.frames()
        taken = [pa.RecordBatch.from_pylist([], stream.schema)]
        if frame is None:
            source = stream.reader.open() if stream.reader is not None else None
            for path in self.paths:
                assert source is not None
                for chunk in source.read(Path(path)):
                    taken.append(chunk.rows.slice(0, most))
                    most -= taken[-1].num_rows
                    if not most:
                        return pa.concat_batches(taken)
            return pa.concat_batches(taken)
        table = frame.limit(most).toArrow()
        if stream.reader is None:
            taken += table.cast(stream.schema).combine_chunks().to_batches()
        elif isinstance(source := stream.reader.open(), JsonSource) and table.num_columns == 1:
            taken += [source.parse(b.column(0)).rows for b in table.combine_chunks().to_batches()]
        return pa.concat_batches(taken)

    def tuple_count(self) -> int:
        """Count the batch's tuples, unparsable ones included. Everything except Parquet is read for
        that."""
        count = 0
        for frame, stream, files in zip(self.frames(), self.streams, self.files, strict=True):
            if frame is not None:
                count += frame.count()
                continue
            source = stream.reader.open() if stream.reader is not None else None
            for path in files:
                if stream.reader is not None and stream.reader.kind == "parquet":
                    count += pq.read_metadata(path).num_rows
                elif source is not None:
                    count += sum(c.rows.num_rows + len(c.rejected) for c in source.read(Path(path)))
        return count

    def _rested(self, min_age: float, stop_asked: Callable[[], bool]) -> tuple[SourceFile, ...]:
        """Wait until no file has changed for ``min_age`` seconds; return the files as they are
        then."""
        files = look_at(self.paths)
        while (newest := max((f.modified / 1e9 for f in files), default=0.0)) > 0:
            until = min(newest, time.time()) + min_age  # a file may be dated in the future
            if until <= time.time():
                return files
            log.info("waiting %.0f s for the newest of %d files to be complete (min_age)",
                     until - time.time(), len(files))
            while time.time() < until:
                if stop_asked():
                    raise Stopped
                time.sleep(POLL)
            before, files = files, look_at(self.paths)
            if files == before:
                return files
        return files


def _remote(paths: Sequence[str]) -> bool:
    return any(map(is_remote, paths))


def _size(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_size
    return 0  # the task that reads it will report the error


def _may_have_tuples(path: str) -> bool:
    with suppress(OSError, pa.ArrowException):
        return (pq.read_metadata(path).num_rows > 0 if path.endswith((".parquet", ".pq"))
                else _size(path) > 0)
    return True


def one_frame(frames: Sequence[DataFrame]) -> DataFrame:
    """Combine two streams in one DataFrame: side, the left columns, the right columns. A row has
    nulls for the other side's columns."""
    parts = []
    for side, df in enumerate(frames):
        own = [F.lit(side)]
        for of, other in enumerate(frames):
            own += [quoted(f.name) if of == side else F.lit(None).cast(f.dataType)
                    for f in other.schema]
        parts.append(df.select(*(c.alias(f"column_{i}") for i, c in enumerate(own))))
    return parts[0].unionAll(parts[1])


def of_both(df: DataFrame, streams: Sequence[Stream]) -> list[DataFrame]:
    """Separate the two streams that ``one_frame`` has combined."""
    side, *columns = df.columns
    widths = [1 if stream.reader is not None else len(stream.schema) for stream in streams]
    out = []
    for number, (stream, width) in enumerate(zip(streams, widths, strict=True)):
        first = number * widths[0]
        names = ["value"] if stream.reader is not None else stream.schema.names
        out.append(df.filter(F.col(side) == number).select(
            *(F.col(c).alias(n) for c, n in zip(columns[first:first + width], names,
                                                strict=True))))
    return out


def run_tasks(spark: SparkSession, work: Work, batch: MicroBatch | None) -> list[LoadRecord]:
    """Run the Spark job of a micro-batch, or of a drain (None). Return the records of all
    partitions, in order."""
    count = work.plan.partitions
    parts: list[DataFrame] = []
    if batch is not None:
        to_place = [[] if own else files
                    for files, own in zip(batch.read_by_tasks, _own(work, batch), strict=True)]
        work = work.reading([files if not placed else [] for files, placed
                             in zip(batch.read_by_tasks, to_place, strict=True)])
        if any(to_place):
            tasks = min(spark.sparkContext.defaultParallelism, sum(map(len, to_place)))
            shared = shares(to_place, _size, max(tasks, 1))
            parts.append(spark.range(0, len(shared), 1, len(shared)).mapInArrow(
                work.place_files(shared), PLACED))
        for side, frame in enumerate(batch.frames()):
            if frame is not None:
                # mapInArrow takes no backticks in names
                plain = frame.toDF(*(f"column_{i}" for i in range(len(frame.columns))))
                contents = bool(batch.files[side]) and batch.streams[side].reader is not None
                parts.append(plain.mapInArrow(work.place_frame(side, contents), PLACED))
    job: RDD[tuple[str]] | DataFrame
    if not parts:
        # no query to plan, which would be half the time of an empty micro-batch
        job = spark.sparkContext.range(count, numSlices=count).mapPartitions(work.of_nothing)
    else:
        placed = reduce(DataFrame.unionAll, parts)
        job = placed.repartitionById(count, F.col("partition")).mapInArrow(work.of_batches,
                                                                         SUMMARY)
    records = _collect(job, work.batch)
    if (ran := [record.partition for record in records]) != list(range(count)):
        raise StateError(f"batch {work.batch} ran partitions {ran}, not 0 to {count - 1}")
    return records


def _own(work: Work, batch: MicroBatch) -> list[bool]:
    """Return, for each stream, whether every task reads all files and keeps its own tuples.
    Otherwise some tasks read and distribute the tuples. Each partition gets the same tuples either
    way."""
    def own(stream: Stream, files: list[str]) -> bool:
        if work.plan.partitions == 1:
            return True
        size = sum(map(_size, files))
        if len(files) > FEW_FILES and size < SMALL_FILE * len(files):
            return False
        if stream.reader is not None and stream.reader.kind == "parquet":
            return work.plan.partitions <= MOST_DECODING
        return size < BLOCK

    return [own(stream, files)
            for stream, files in zip(batch.streams, batch.read_by_tasks, strict=True)]


def _collect(job: RDD[tuple[str]] | DataFrame, batch: int) -> list[LoadRecord]:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            summaries = [summary for (summary,) in job.collect()]
        except Exception as e:
            if attempt == ATTEMPTS or not any(sign in str(e) for sign in WORKER_DIED):
                raise
            log.warning("a Python worker died in batch %d; trying again", batch)
            continue
        return records_of(summaries)
    raise AssertionError
