"""The streaming app: reads micro-batches, joins and loads each exactly once, drains, stops.

A micro-batch is repartitioned by the key's bucket, so that partition p of P has every tuple whose key lies in the buckets of R
that operator p owns; ``mapInArrow`` joins and loads it and returns one summary row. Rows cross into Python once, never back.
Parquet files the tasks read themselves (``columnar``): their job has partitions and no rows.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from semistream.config import Job, Places
from semistream.durable import write_json
from semistream.errors import ConfigError, StateError
from semistream.joins import JoinState
from semistream.joins.registry import find_algorithm
from semistream.keys_spark import partition_expression
from semistream.master import Manifest
from semistream.published import current_version, pin
from semistream.sizing import known_costs
from semistream.sizing.plan import Plan
from semistream.source_files import RAW, SourceFile, look_at
from semistream.streaming.columnar import can_read, first_tuples, tuple_count
from semistream.streaming.progress import RESTORE, Progress
from semistream.streaming.session import DrainFirst
from semistream.streaming.settings import AVAILABLE_NOW, LoadSettings
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sinks.delta import INTENT, DeltaSink, keep_promise
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sources.files import check_files, read_files, schema_before_session
from semistream.streaming.sources.log import SourceLog
from semistream.streaming.sources.registry import read_stream
from semistream.streaming.sources.schema import stream_schema
from semistream.streaming.status import StatusFile, clear_stop, stop_requested
from semistream.streaming.task import SUMMARY, Work, get_ready, without_tuples
from semistream.warehouse import create_all, migrate
from semistream.warehouse.ledger import retrying

log = logging.getLogger(__name__)
SAMPLE = 100_000  # stream tuples that auto looks at
WORKERS_READY = 30  # s
POLL = 0.25  # s between looks for a stop request
ATTEMPTS = 3  # at a job whose Python worker was killed, where Spark itself does not try again
WORKER_DIED = ("Python worker exited unexpectedly", "Python worker process terminated", "SIGKILL", "EOFException")
SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",  # partitions keep their numbers, also when they are empty
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",  # no stack trace for every column expression
    # Its rename is as atomic, and the default's starts two processes for each.
    "spark.sql.streaming.checkpointFileManagerClass":
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
}


class Stopped(Exception):
    """A micro-batch that came after the stop; Spark gives it again at the next start."""


@dataclass
class Totals:
    """Of this run. service_rate counts the slowest partition of each batch."""

    rows_read: int = 0
    matched: int = 0
    unmatched: int = 0
    output_rows: int = 0
    cache_hits: int = 0
    bytes_read: int = 0
    waiting: int = 0
    batches: int = 0
    seconds: float = 0.0
    memory_peak: int = 0
    rejected: dict[str, int] | None = None

    def add(self, entries: list[dict[str, Any]]) -> None:
        for name in ("rows_read", "matched", "unmatched", "output_rows", "cache_hits", "bytes_read"):
            setattr(self, name, getattr(self, name) + sum(e[name] for e in entries))
        self.waiting = sum(e["waiting"] for e in entries)
        self.batches += 1
        self.seconds += max(e["seconds"] for e in entries)
        self.memory_peak = max(self.memory_peak, sum(e["memory_peak"] for e in entries))
        self.rejected = self.rejected or {}
        for entry in entries:
            for reason, count in entry["rejected"].items():
                self.rejected[reason] = self.rejected.get(reason, 0) + count

    @property
    def service_rate(self) -> float:
        return (self.matched + self.unmatched) / self.seconds if self.seconds else 0.0


class Load:
    """One app on one checkpoint. Only one at a time may exist for it (``status.checkpoint_lock``)."""

    def __init__(self, settings: LoadSettings, job: Job, places: Places, status: StatusFile):
        self.settings, self.job, self.places, self.status = settings, settings.with_source(job), places, status
        self.app, self.checkpoint = settings.name(), settings.directory(places)
        self.warehouse = SqlSink(places.warehouse_url, job.fact_table, job.master.name, settings.retry, job.index_ids)
        self.sink: Sink = self.warehouse
        if settings.sink != "sql":
            self.sink = DeltaSink(settings.sink, str(self.checkpoint), self.warehouse)
        self.ledger = self.warehouse.ledger(self.app)
        self.snapshots = places.snapshots / job.master.name
        self.totals, self.started = Totals(), time.monotonic()
        self._border = threading.Lock()  # held while a batch or a drain is worked on
        self._stopping, self._signalled = False, threading.Event()
        self._takes_signals = False
        self._drain_first: DrainFirst | None = None
        self._starting: threading.Thread | None = None  # of the Python workers
        self._called = time.time()  # Spark last, with a batch; it lists the source after that
        self.failure: BaseException | None = None
        self.last: tuple[int, int] | None = None  # (batch, drain) of the newest commit
        self._pending: tuple[int, int] | None = None  # begun, and not yet sure to be committed
        self._committer = ThreadPoolExecutor(1, "commit")
        self._committing: Future[None] | None = None  # the newest commit
        self.entries: list[dict[str, Any]] = []  # ledger rows of the newest commit; none under a new plan
        self.plan: Plan
        self._partition: Column  # of the plan: the number of the partition that a stream tuple belongs to
        self.costs = known_costs(places.home)
        self._chosen = False  # what was open, from tuples of this run or by the run that left some waiting
        self._progressed = self._waits_since = time.monotonic()  # the newest commit; the oldest tuple that waits came no sooner

    # ---- before the session

    def check(self) -> None:
        """What can be known to fail without Spark. Raises ConfigError."""
        if not self.settings.auto:
            find_algorithm(self.settings.algorithm)
        self.job.stream.all_options()
        schema = schema_before_session(self.job.stream)
        if current_version(self.snapshots) is None:
            raise ConfigError("snapshot", "must have been published", str(self.snapshots),
                              "Run `semistream snapshot`, or the DAG provision_master_data, first.")
        if schema is not None:
            self._plan(max(self.settings.partitions, 1)).choose(nothing(schema), self.costs)

    def _plan(self, partitions: int) -> Plan:
        """The plan that the settings and the current master version ask for. Raises ConfigError."""
        version = current_version(self.snapshots)
        assert version is not None
        directory = self.snapshots / version
        buckets = Manifest.read(directory).bucket_count
        if partitions > buckets:
            raise ConfigError("partitions", f"must be at most {buckets}, the buckets of the master snapshot", partitions,
                              "Ask for fewer, or publish the snapshot with more buckets.")
        s = self.settings
        return Plan(s.algorithm.lower(), int(s.memory) // partitions, s.join_type, dict(s.parameters), tuple(self.job.on.items()),
                    self.job.columns or None, partitions, str(directory), reason=s.reason, auto=s.auto)

    # ---- the run

    def run(self, spark: SparkSession) -> dict[str, Any]:
        """Until the source is empty (availableNow), or a stop request or SIGTERM; drained. Gives the summary."""
        try:
            with self._committer:  # a commit is not left half-way, whatever fails meanwhile
                return self._run_to_end(spark)
        finally:
            if self._starting is not None:  # a refusal may come before the workers are ready, which Spark then calls crashed
                self._starting.join(WORKERS_READY)

    def _run_to_end(self, spark: SparkSession) -> dict[str, Any]:
        self.spark = spark.newSession()
        for name, value in SESSION.items():
            self.spark.conf.set(name, value)
        buckets = Manifest.read(self.snapshots / (current_version(self.snapshots) or "")).bucket_count
        self.partitions = self.settings.partitions or min(spark.sparkContext.defaultParallelism, buckets)
        if self._takes_signals:
            self._drain_first = DrainFirst(spark.sparkContext, self._signalled.set)
        self._starting = threading.Thread(target=_start_workers, args=(spark.sparkContext, self.partitions), daemon=True)
        self._starting.start()
        stream = read_stream(self.spark, self.job.stream, self.settings.max_files, self.settings.max_rows)
        self.stream = stream_schema(stream)
        self.log = SourceLog(self.checkpoint / "query", self.job.stream.format)
        self._take_up()
        self.status.update(state="running", master_version=Path(self.plan.snapshot).name, waiting=self.totals.waiting)
        self.ledger.forget_files()
        self._called = listed = time.time()
        self._consume(stream)
        self.status.update(state="draining")
        with self._border:
            self._drain()
            self._settle()
        if self.settings.trigger == AVAILABLE_NOW and not self._stopping and self.last is not None:
            self.ledger.source_was_listed(self.last[0], listed)
        summary = self._summary()
        clear_stop(self.checkpoint)
        self.status.update(state="stopped")
        return summary

    def _consume(self, stream: DataFrame) -> None:
        forget_unbegun(self.checkpoint / "query")
        writer = stream.writeStream.foreachBatch(self._on_batch).option("checkpointLocation", str(self.checkpoint / "query"))
        trigger = {"availableNow": True} if self.settings.trigger == AVAILABLE_NOW else {"processingTime": self.settings.trigger}
        query = writer.queryName(f"semistream {self.app}").trigger(**trigger).start()
        try:
            while not query.awaitTermination(POLL):
                if self._committing is not None and self._committing.done():
                    self._settle()
                if self._stop_asked() and self._stop_at_border():
                    query.stop()
                elif self._drain_due():
                    with self._border:
                        if self._drain_due():  # still: a batch may have failed meanwhile
                            self._drain()
        except PySparkException:
            if self.failure is not None:
                raise self.failure from None
            if not self._stopping and not self._signalled.is_set():  # a signal to all processes ends Spark's helpers, too
                raise
        finally:
            query.stop()

    def _on_batch(self, df: DataFrame, batch: int) -> None:
        """Called by Spark with each micro-batch, and with one again that it does not know to be finished."""
        with self._border:
            if self._stopping:
                raise Stopped
            try:
                self._batch(df, batch)
            except Stopped:
                self._stopping = True
                raise
            except BaseException as e:
                self.failure = e
                raise
            finally:
                self._called = time.time()

    def _batch(self, df: DataFrame, batch: int) -> None:
        paths = self.log.files(batch)
        if self._pending == (batch, 0):
            if self._has_changed(batch, paths):
                self.sink.take_back(self.app, batch, 0)
                source = self._source(batch, paths, self.plan.partitions)
                self._begin(replace(self.progress, **source))
            self._finish(read_files(df, self.job.stream, paths) if paths else df)
            return
        last = self.last[0] if self.last else -1
        if batch <= last:  # committed, but Spark had no time to note it
            self._check_same_source(batch, paths)
            return
        if batch > last + 1:
            raise StateError(f"{self.checkpoint} goes on with batch {batch}, but the ledger of {self.app} ends with {last}. "
                             f"Restore the warehouse or the checkpoint, or begin again: semistream reset {self.app}.")
        source = self._source(batch, paths, self.partitions)
        df = read_files(df, self.job.stream, paths) if paths else df
        self._change_plan(df, paths if source["own"] else [])
        self._begin(Progress(batch, 0, self.plan, self.states, **source))
        if self._changes_nothing():
            entries = [without_tuples(e, batch) for e in self.entries]
            self.ledger.commit(self._row(entries), entries)
            self._committed(entries)
        else:
            self._finish(df)

    def _source(self, batch: int, paths: list[str], partitions: int) -> dict[str, Any]:
        """What ``Progress`` says of a batch's part of the source. The tasks read its files, if they can, without Spark."""
        self.log.flush(batch)
        rested = self._rested(paths)
        check_files(self.job.stream, paths, self.stream.names)
        own = self.job.stream.format == "parquet" and can_read(paths, self.stream, partitions)
        return {"source": self.log.offsets(batch), "sources": rested, "own": own}

    def _has_changed(self, batch: int, paths: list[str]) -> bool:
        """Whether the batch that was begun is no longer the same part of the source: a file has changed since, or Spark's note of
        it was lost."""
        at = self.progress
        return at.source != self.log.offsets(batch) or [s.path for s in at.sources] != paths \
            or any(s.known and s.now() != s for s in at.sources)

    def _check_same_source(self, batch: int, paths: list[str]) -> None:
        """A batch that is passed over, as its number is in the ledger, must be the very one. Raises StateError."""
        said, known = self.ledger.source(batch)
        given = self.log.offsets(batch)
        same = all(said[name] == given[name] for name in ("format", "offsets", "start"))
        complete = not paths or len(paths) == (len(known) if isinstance(said["files"], list) else said["files"])
        if same and complete and set(known) <= set(paths):
            return
        raise StateError(f"Batch {batch} of {self.checkpoint / 'query'} is another part of the source than batch {batch} of "
                         f"{self.app} in the ledger. Passing it over would lose tuples, loading it would double some. Restore "
                         f"that directory as it was after batch {self.last[0] if self.last else batch}, or load the source "
                         f"anew: semistream reset {self.app}.")

    def _rested(self, paths: list[str]) -> tuple[SourceFile, ...]:
        """The files of a batch as they are, when none has changed for ``min_age``. Raises StateError for one that is gone, and
        Stopped if a stop is asked for before."""
        files = look_at(paths)
        while (newest := max((f.modified / 1e9 for f in files), default=0.0)) > 0:
            until = min(newest, time.time()) + self.settings.min_age  # a file may be dated in the future
            if until <= time.time():
                return files
            log.info("waiting %.0f s for the newest of %d files to be complete (min_age)", until - time.time(), len(files))
            while time.time() < until:
                if self._stop_asked():
                    raise Stopped
                time.sleep(POLL)
            before, files = files, look_at(paths)
            if files == before:
                return files
        return files

    def _change_plan(self, df: DataFrame, files: list[str]) -> None:
        """Take up a new master version, or changed settings, once nothing waits under the old plan; what a sample of the stream
        is to decide is decided in the first batch of a run that nothing waits before."""
        wanted = self._plan(self.partitions)
        if wanted == self.plan.asked() and (self._chosen or not self.plan.open_questions):
            return
        if wanted.open_questions:
            sample = self._sample(df, files)
            wanted = wanted.choose(sample, self.costs, self.plan)
            self._chosen = sample.num_rows > 0
            if wanted.auto:
                log.info("%s", wanted.reason)
        if replace(wanted, reason="") == replace(self.plan, reason=""):
            self.plan = wanted
            return
        self._drain()
        self._open(wanted)
        self.entries = []
        log.info("master version %s, %s with %d partitions", Path(wanted.snapshot).name, wanted.algorithm, wanted.partitions)
        self.status.update(master_version=Path(wanted.snapshot).name)

    def _sample(self, df: DataFrame, files: list[str]) -> pa.RecordBatch:
        """Some of a batch's tuples, from as few of its files as have them; files: if they are read without Spark."""
        if files:
            return first_tuples(files, self.stream, SAMPLE)
        rows = df.filter(df[RAW].isNull()).drop(RAW) if RAW in df.columns else df
        table = rows.limit(SAMPLE).toArrow().cast(self.stream).combine_chunks()
        return table.to_batches()[0] if table.num_rows else nothing(self.stream)

    def _drain(self) -> None:
        """Finish what waits. The border is held."""
        if self._pending is not None:
            raise StateError(f"Batch {self._pending[0]} was begun, and Spark takes it for done, but it is not committed: "
                             f"{self.checkpoint} lacks {INTENT}, or its directory query is not of the same time. {RESTORE}")
        if self.last is None or not self.totals.waiting:
            return
        self._begin(Progress(self.last[0], 1, self.plan, self.states))
        self._finish(None)

    # ---- one batch or drain

    def _begin(self, progress: Progress) -> None:
        self._settle()
        if not self.totals.waiting:
            self._waits_since = time.monotonic()
        progress.write(self.checkpoint)
        self.progress, self._pending = progress, (progress.batch, progress.drain)

    def _finish(self, df: DataFrame | None) -> None:
        """Join, load and commit what ``progress`` notes; a drain (df None) has no input."""
        at = self.progress
        work = Work(self.app, at.batch, at.drain, at.plan, at.states, str(self.checkpoint), self.stream, self.job.stream.id,
                    self.sink, at.files, at.sources)
        entries = self._run(work, df)
        row = self._row(entries)
        if self.sink.promise(row, entries):  # while the commit is made, Spark plans the next micro-batch
            self._committing = self._committer.submit(self.sink.commit, row, entries)
        else:
            self.sink.commit(row, entries)
        self._committed(entries)

    def _settle(self) -> None:
        """Wait for the newest commit. Raises what it failed with; nothing may begin after that."""
        if self._committing is not None:
            self._committing.result()

    def _changes_nothing(self) -> bool:
        """Whether the batch just begun is of files without tuples, so that states and ledger rows go on as they are: no task is
        needed."""
        return bool(self.entries and self.progress.files) and not any(map(tuple_count, self.progress.files))

    def _row(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """The commit as the ledger has it."""
        at = self.progress
        return {"app": self.app, "batch": at.batch, "drain": at.drain, "job": self.job.to_ledger(),
                "fact_table": self.job.fact_table, "sink": self.settings.sink, "partitions": at.plan.partitions,
                "source_offsets": json.dumps(at.source), "files": at.sources, "source_listed": self._listed(at),
                "rows_read": sum(e["rows_read"] for e in entries)}

    def _listed(self, at: Progress) -> float | None:
        """The time before which all files came that batches up to this one have; None where it is not known, as when Spark is to
        give further batches of what it has listed."""
        more = at.drain or self.settings.trigger == AVAILABLE_NOW or len(at.sources) == self.settings.max_files
        return None if more or not at.sources else self._called

    @property
    def states(self) -> dict[int, str]:
        return {e["partition"]: e["state_file"] for e in self.entries}

    def _committed(self, entries: list[dict[str, Any]]) -> None:
        """Go on from what is committed, or is promised to be."""
        self._at(entries)
        self.totals.add(entries)
        t = self.totals
        self.status.update(batch=self.progress.batch, rows_read=t.rows_read, matched=t.matched, unmatched=t.unmatched,
                           waiting=t.waiting, service_rate=t.service_rate)

    def _at(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries
        self.last, self._pending = (self.progress.batch, self.progress.drain), None
        self._progressed = time.monotonic()
        states = self.checkpoint / "state"
        used = {name for state in self.states.values() for name in JoinState.files(states / state)}
        old = [file for file in states.iterdir() if file.name not in used]
        threading.Thread(target=_remove, args=(old,)).start()  # to give large files' pages back takes its time

    def _run(self, work: Work, df: DataFrame | None) -> list[dict[str, Any]]:
        """The Spark job of a batch: the ledger rows of all partitions."""
        count = work.plan.partitions
        job: RDD[tuple[str]] | DataFrame
        if df is None or work.files:  # without a query to be planned: half the time of an empty micro-batch
            job = self.spark.sparkContext.range(count, numSlices=count).mapPartitions(work.of_nothing)
        else:
            rows = df.repartitionById(count, self._partition)
            plain = rows.toDF(*(f"column_{i}" for i in range(len(df.columns))))  # mapInArrow takes no backticks in names
            job = plain.mapInArrow(work.of_batches, SUMMARY)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                entries = [json.loads(summary) for (summary,) in job.collect()]
                break
            except Exception as e:
                if attempt == ATTEMPTS or not any(sign in str(e) for sign in WORKER_DIED):
                    raise
                log.warning("a Python worker died in batch %d; trying again", work.batch)
        entries.sort(key=lambda e: e["partition"])
        if [e["partition"] for e in entries] != list(range(count)):
            raise StateError(f"batch {work.batch} ran partitions {[e['partition'] for e in entries]}, not 0 to {count - 1}")
        return entries

    # ---- start and stop

    def _take_up(self) -> None:
        """Go on where the checkpoint is. A drain that a crash cut short is finished here, a batch when Spark gives it again."""
        (self.checkpoint / "state").mkdir(exist_ok=True)
        _sweep(self.checkpoint)
        retrying(lambda: create_all(self.warehouse.engine), self.settings.retry)
        retrying(lambda: migrate(self.warehouse.engine), self.settings.retry)
        progress = Progress.read(self.checkpoint)
        self._warn_of_others()
        self.last = self.ledger.last()
        self._check_same_history(progress)
        keep_promise(self.checkpoint, self.warehouse)
        self.last = self.ledger.last()
        self._open(progress.plan if progress else self._plan(self.partitions).choose(nothing(self.stream), self.costs))
        if progress is None:
            return
        self.progress = progress
        if self.last is not None:
            self.entries = self.ledger.partitions(*self.last)
            self._check_entries(progress)
            self.totals.waiting = sum(e["waiting"] for e in self.entries)
        if self.last == (progress.batch, progress.drain):
            self._at(self.entries)
            self._chosen = bool(self.totals.waiting)
            return
        self._chosen, self._pending = True, (progress.batch, progress.drain)
        if progress.drain:
            self._finish(None)

    def _warn_of_others(self) -> None:
        """Two apps on one fact table are proven apart; whoever reads it sees the rows of both."""
        if others := self.ledger.others(self.job.fact_table):
            log.warning("%s also has rows of %s: facts are counted and verified for each app by itself", self.job.fact_table,
                        ", ".join(others))

    def _check_entries(self, progress: Progress) -> None:
        """The newest commit must have its row of each partition, and what goes on from it the same states. Raises StateError."""
        assert self.last is not None
        found, count = [e["partition"] for e in self.entries], self.ledger.partition_count(*self.last)
        if found != list(range(count)):
            raise StateError(f"load_batches has partitions {found} of batch {self.last[0]} (drain {self.last[1]}) of {self.app}, "
                             f"but load_commits says that there are {count}. What waits in the others would be lost: restore the "
                             f"warehouse, or load the source anew: semistream reset {self.app}.")
        if progress.states and (progress.batch, progress.drain) != self.last and progress.states != self.states:
            raise StateError(f"{self.checkpoint / 'progress.json'} goes on from other states than those that load_batches has of "
                             f"batch {self.last[0]} of {self.app}. {RESTORE}")

    def _check_same_history(self, progress: Progress | None) -> None:
        """An app's ledger and its checkpoint must tell of the same batches; else tuples would be skipped. Raises ConfigError."""
        last = self.last
        version = self.sink.version(self.app) if isinstance(self.sink, DeltaSink) else None
        if progress is None and last is None and version is None:
            return
        if progress is not None:
            at = (progress.batch, progress.drain)
            before = last if last is not None else (-1, 1)
            ahead = version is not None and version > 2 * at[0] + at[1]  # the Delta table
            if (before == at or (before < at and at[0] - before[0] <= 1)) and not ahead:
                return
        raise ConfigError("checkpoint", f"must be the one that {self.app} has gone on with so far, to "
                          f"{f'batch {last[0]}' if last else 'no batch'} in this warehouse", str(self.checkpoint),
                          f"Give the former --checkpoint and WAREHOUSE_URL, or load the source anew: semistream reset "
                          f"{self.app}.")

    def _open(self, plan: Plan) -> None:
        """Check the plan against stream, master and sink, and hold its master version. Raises ConfigError."""
        join = plan.open(self.stream, 0)
        n = len(self.stream)
        fields = list(join.output_schema)
        self._partition = partition_expression(plan.placement(self.stream))
        self.sink = retrying(lambda: self.sink.prepare(pa.schema(fields[:n]), pa.schema(fields[n:]), self.job.stream.id),
                             self.settings.retry)
        join.master.close()
        pin(self.snapshots, self.app, Path(plan.snapshot).name)
        self.plan = plan

    def _stop_asked(self) -> bool:
        after = self.settings.stop_after
        over = bool(after) and time.monotonic() - self.started > after
        return over or self._signalled.is_set() or stop_requested(self.checkpoint)

    def _stop_at_border(self) -> bool:
        """Let no further micro-batch begin, unless one is half-way since a crash: that one first."""
        if not self._border.acquire(timeout=POLL):
            return False
        try:
            self._stopping = self._pending is None
            return self._stopping
        finally:
            self._border.release()

    def _drain_due(self) -> bool:
        if not self.totals.waiting or self._pending is not None:
            return False
        now, s = time.monotonic(), self.settings
        return 0 < s.drain_after < now - self._progressed or 0 < s.drain_every < now - self._waits_since

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM asks for a stop, as the stop file does; to the driver's JVM too, which waits for the end of the block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.signal(signal.SIGTERM, lambda *_: self._signalled.set())
        self._takes_signals = True
        try:
            yield
        finally:
            if self._drain_first is not None:
                self._drain_first.end()
            signal.signal(signal.SIGTERM, former)

    def _summary(self) -> dict[str, Any]:
        t = self.totals
        finished = t.matched + t.unmatched
        summary = {
            "app": self.app, "job": self.job.name, "algorithm": self.plan.algorithm, "reason": self.plan.reason,
            "parameters": self.plan.parameters, "partitions": self.plan.partitions,
            "master_version": Path(self.plan.snapshot).name, "batches": t.batches, "rows_read": t.rows_read, "matched": t.matched,
            "unmatched": t.unmatched, "rejected": t.rejected or {}, "waiting": t.waiting, "output_rows": t.output_rows,
            "service_rate": t.service_rate, "cache_hits": t.cache_hits,
            "cache_share": t.cache_hits / finished if finished else 0.0,
            "memory_peak": t.memory_peak, "memory_budget": int(self.settings.memory), "bytes_read": t.bytes_read,
            "seconds": time.monotonic() - self.started}
        write_json(self.checkpoint / "summary.json", summary)
        return summary


def _start_workers(context: SparkContext, count: int) -> None:
    """Have Python workers started and ready, while the driver makes the first micro-batch ready."""
    with suppress(Exception):  # the micro-batch's tasks will tell, or the session has ended
        context.range(count, numSlices=count).foreachPartition(get_ready)


def _sweep(checkpoint: Path) -> None:
    """Remove what a killed process has left half-written; the status is written all the time, also now."""
    for place in (checkpoint, checkpoint / "state"):
        for file in place.glob(".*.*"):
            if not file.name.startswith(".status.json"):
                file.unlink(missing_ok=True)


def forget_unbegun(query: Path) -> None:
    """Clear a query's checkpoint without a batch: from what a crash before the first one leaves there, Spark refuses to start."""
    if query.exists() and not any(path.name.isdigit() for path in (query / "offsets").glob("*")):
        shutil.rmtree(query)


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def describe(summary: dict[str, Any]) -> str:
    """The summary for people."""
    s = summary
    lines = [("rows read", f"{s['rows_read']:,}"), ("matched", f"{s['matched']:,}"), ("unmatched", f"{s['unmatched']:,}"),
             *((f"  {reason}", f"{count:,}") for reason, count in sorted(s["rejected"].items())),
             ("waiting", f"{s['waiting']:,}"), ("output rows", f"{s['output_rows']:,}"),
             ("service rate", f"{s['service_rate']:,.0f} tuples/s"), ("through the cache", f"{s['cache_share']:.1%}"),
             ("peak memory", f"{s['memory_peak']:,} of {s['memory_budget']:,} bytes"), ("seconds", f"{s['seconds']:.1f}")]
    title = (f"{s['app']}: {s['algorithm']} with {s['partitions']} partitions, {s['batches']} batches, "
             f"master {s['master_version']}")
    if s["reason"]:
        title += f"\n  {s['reason']}"
    return "\n".join([title, *(f"  {name:<20}{value:>24}" for name, value in lines)])
