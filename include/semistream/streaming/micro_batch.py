"""One micro-batch as Spark gives it: which part of the source it is, its tuples, and the Spark job
that joins them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.config import SIDES, StreamSpec
from semistream.errors import StateError
from semistream.keys_spark import quoted
from semistream.source_files import RAW, SourceFile, look_at
from semistream.streaming.progress import Progress
from semistream.streaming.sources.files import check_files, read_files
from semistream.streaming.sources.log import SourceLog
from semistream.streaming.task import SUMMARY, Work
from semistream.streaming.workers.parquet import can_read, first_tuples, tuple_count

log = logging.getLogger(__name__)
POLL = 0.25  # s between looks for a stop request
ATTEMPTS = 3  # at a job whose Python worker was killed, where Spark itself does not try again
WORKER_DIED = ("Python worker exited unexpectedly", "Python worker process terminated", "SIGKILL",
               "EOFException")


class Stopped(Exception):
    """A micro-batch that came after the stop; Spark gives it again at the next start."""


@dataclass(frozen=True)
class Stream:
    """A stream of a query. schema: of its rows; raw: whether some may be unparsable; log: Spark's
    notes of its source."""

    spec: StreamSpec
    schema: pa.Schema
    raw: bool
    log: SourceLog


@dataclass(frozen=True)
class MicroBatch:
    """df: as Spark gives it; number: Spark's; streams: one, or the left and the right one."""

    df: DataFrame
    number: int
    streams: tuple[Stream, ...]

    @cached_property
    def files(self) -> list[list[str]]:
        """The paths of each stream's files; none where its source has no files."""
        return [stream.log.files(self.number) for stream in self.streams]

    @property
    def paths(self) -> list[str]:
        return [path for files in self.files for path in files]

    @cached_property
    def offsets(self) -> dict[str, Any]:
        """What the ledger says of it."""
        parts = [stream.log.offsets(self.number) for stream in self.streams]
        return parts[0] if len(parts) == 1 else dict(zip(SIDES, parts, strict=True))

    def part_of_source(self, partitions: int, min_age: float,
                       stop_asked: Callable[[], bool]) -> dict[str, Any]:
        """Its part of the source as ``Progress`` notes it: source, sources, own.

        Raises ConfigError for a file with other columns than the stream, StateError for one that is
        gone, and Stopped where a stop is asked for while its files have not rested for ``min_age``
        seconds.
        """
        for stream in self.streams:
            stream.log.flush(self.number)
        rested = self._rested(min_age, stop_asked)
        for stream, files in zip(self.streams, self.files, strict=True):
            check_files(stream.spec, files, stream.schema.names)
        own = bool(self.paths) and all(
            stream.spec.format == "parquet" and stream.spec.mark is None
            and (not files or can_read(files, stream.schema, partitions))
            for stream, files in zip(self.streams, self.files, strict=True))
        return {"source": self.offsets, "sources": rested, "own": own}

    def has_changed(self, begun: Progress) -> bool:
        """Whether it is no longer the part of the source that was begun: a file has changed since,
        or Spark's note was lost."""
        return begun.source != self.offsets or [s.path for s in begun.sources] != self.paths \
            or any(s.known and s.now() != s for s in begun.sources)

    def tuples(self) -> list[DataFrame]:
        """Of each stream, as its files are now. Lazy."""
        frames = [self.df] if len(self.streams) == 1 else of_both(self.df, self.streams)
        return [read_files(df, stream.spec, files) if files else df
                for df, stream, files in zip(frames, self.streams, self.files, strict=True)]

    def sample(self, most: int, own: bool) -> pa.RecordBatch:
        """Some of the tuples of its only stream, from as few of its files as have them. own:
        whether they are read without Spark."""
        (stream,) = self.streams
        if own:
            return first_tuples(self.paths, stream.schema, most)
        (df,) = self.tuples()
        rows = df.filter(df[RAW].isNull()).drop(RAW) if RAW in df.columns else df
        table = rows.limit(most).toArrow().cast(stream.schema).combine_chunks()
        return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist(
            [], stream.schema)

    def tuple_count(self, own: bool) -> int:
        """How many tuples it has, unparsable ones too; where Spark reads it, that is a job."""
        return (sum(map(tuple_count, self.paths)) if own
                else sum(df.count() for df in self.tuples()))

    def _rested(self, min_age: float, stop_asked: Callable[[], bool]) -> tuple[SourceFile, ...]:
        """Its files as they are, when none has changed for ``min_age`` seconds."""
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


def has_tuples(progress: Progress) -> bool:
    """False where the tasks read the batch's files themselves, and these are empty."""
    return not progress.own or any(tuple_count(file) for files in progress.files for file in files)


def one_frame(frames: Sequence[DataFrame], partitions: Sequence[Column] = ()) -> DataFrame:
    """Two streams' tuples: partition (where it is told), side, the left columns, the right columns,
    ``_corrupt_record``; a tuple has nulls in place of the other side's columns.

    partitions: of each side, the number of the partition that a tuple belongs to.
    """
    columns = [[f for f in df.schema if f.name != RAW] for df in frames]
    parts = []
    for side, df in enumerate(frames):
        own = [*partitions[side:side + 1], F.lit(side)]
        for of, fields in enumerate(columns):
            own += [quoted(f.name) if of == side else F.lit(None).cast(f.dataType) for f in fields]
        own.append(F.col(RAW) if RAW in df.columns else F.lit(None).cast("string"))
        parts.append(df.select(*(c.alias(f"column_{i}") for i, c in enumerate(own))))
    return parts[0].unionAll(parts[1])


def of_both(df: DataFrame, streams: Sequence[Stream]) -> list[DataFrame]:
    """The two streams that ``one_frame`` has put together, without partitions."""
    side, *columns, raw = df.columns
    out = []
    for number, stream in enumerate(streams):
        first = number * len(streams[0].schema)
        mine = zip(columns[first:], stream.schema.names, strict=False)
        own = [F.col(c).alias(name) for c, name in mine]
        if stream.raw:
            own.append(F.col(raw).alias(RAW))
        out.append(df.filter(F.col(side) == number).select(*own))
    return out


def run_tasks(spark: SparkSession, work: Work, frames: Sequence[DataFrame] | None,
              partitions: Sequence[Column]) -> list[dict[str, Any]]:
    """The Spark job of a micro-batch, or of a drain: the ledger rows of all partitions, in order.

    frames: of each stream, None where Spark brings no tuples; partitions: the number of the
    partition that a tuple of it belongs to.
    """
    count = work.plan.partitions
    job: RDD[tuple[str]] | DataFrame
    # without a query to be planned: half the time of an empty micro-batch
    if frames is None:
        job = spark.sparkContext.range(count, numSlices=count).mapPartitions(work.of_nothing)
    elif len(frames) == 1:
        rows = frames[0].repartitionById(count, partitions[0])
        # mapInArrow takes no backticks in names
        plain = rows.toDF(*(f"column_{i}" for i in range(len(rows.columns))))
        job = plain.mapInArrow(work.of_batches, SUMMARY)
    else:
        rows = one_frame(frames, partitions).repartitionById(count, F.col("column_0"))
        job = rows.drop("column_0").mapInArrow(work.of_batches, SUMMARY)
    entries = _collect(job, work.batch)
    entries.sort(key=lambda e: e["partition"])
    if [e["partition"] for e in entries] != list(range(count)):
        raise StateError(f"batch {work.batch} ran partitions {[e['partition'] for e in entries]}, "
                         f"not 0 to {count - 1}")
    return entries


def _collect(job: RDD[tuple[str]] | DataFrame, batch: int) -> list[dict[str, Any]]:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return [json.loads(summary) for (summary,) in job.collect()]
        except Exception as e:
            if attempt == ATTEMPTS or not any(sign in str(e) for sign in WORKER_DIED):
                raise
            log.warning("a Python worker died in batch %d; trying again", batch)
    raise AssertionError
