"""One micro-batch as Spark gives it: which part of the source it is, its tuples, and the Spark job
that joins them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import Column, DataFrame, SparkSession

from semistream.config import StreamSpec
from semistream.errors import StateError
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
class MicroBatch:
    """df: as Spark gives it; number: Spark's; stream: the schema of the tuples; log: Spark's notes
    of the source."""

    df: DataFrame
    number: int
    spec: StreamSpec
    stream: pa.Schema
    log: SourceLog

    @cached_property
    def paths(self) -> list[str]:
        """Of its files; none where the source has no files."""
        return self.log.files(self.number)

    @cached_property
    def offsets(self) -> dict[str, Any]:
        """What the ledger says of it."""
        return self.log.offsets(self.number)

    def part_of_source(self, partitions: int, min_age: float,
                       stop_asked: Callable[[], bool]) -> dict[str, Any]:
        """Its part of the source as ``Progress`` notes it: source, sources, own.

        Raises ConfigError for a file with other columns than the stream, StateError for one that is
        gone, and Stopped where a stop is asked for while its files have not rested for ``min_age``
        seconds.
        """
        self.log.flush(self.number)
        rested = self._rested(min_age, stop_asked)
        check_files(self.spec, self.paths, self.stream.names)
        own = self.spec.format == "parquet" and can_read(self.paths, self.stream, partitions)
        return {"source": self.offsets, "sources": rested, "own": own}

    def has_changed(self, begun: Progress) -> bool:
        """Whether it is no longer the part of the source that was begun: a file has changed since,
        or Spark's note was lost."""
        return begun.source != self.offsets or [s.path for s in begun.sources] != self.paths \
            or any(s.known and s.now() != s for s in begun.sources)

    def tuples(self) -> DataFrame:
        """As its files are now. Lazy."""
        return read_files(self.df, self.spec, self.paths) if self.paths else self.df

    def sample(self, most: int, own: bool) -> pa.RecordBatch:
        """Some of its tuples, from as few of its files as have them. own: whether they are read
        without Spark."""
        if own:
            return first_tuples(self.paths, self.stream, most)
        df = self.tuples()
        rows = df.filter(df[RAW].isNull()).drop(RAW) if RAW in df.columns else df
        table = rows.limit(most).toArrow().cast(self.stream).combine_chunks()
        return (table.to_batches()[0] if table.num_rows
                else pa.RecordBatch.from_pylist([], self.stream))

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
    return not progress.files or any(map(tuple_count, progress.files))


def run_tasks(spark: SparkSession, work: Work, df: DataFrame | None,
              partition: Column) -> list[dict[str, Any]]:
    """The Spark job of a micro-batch, or of a drain (df None): the ledger rows of all partitions,
    in order.

    partition: the number of the partition that a tuple of df belongs to.
    """
    count = work.plan.partitions
    job: RDD[tuple[str]] | DataFrame
    # without a query to be planned: half the time of an empty micro-batch
    if df is None or work.files:
        job = spark.sparkContext.range(count, numSlices=count).mapPartitions(work.of_nothing)
    else:
        rows = df.repartitionById(count, partition)
        # mapInArrow takes no backticks in names
        plain = rows.toDF(*(f"column_{i}" for i in range(len(df.columns))))
        job = plain.mapInArrow(work.of_batches, SUMMARY)
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
