"""The streaming app. It reads micro-batches of one or two streams, joins and loads each exactly
once, drains, and stops.

A micro-batch is partitioned by the key's bucket, so that partition p of P has every tuple whose key
lies in the buckets of R that operator p owns (``exchange``). A task joins and loads its partition
and returns one summary row. Joined rows never enter the JVM. A source says whether tasks read its
tuples themselves or Spark brings them (``sources``).

``App`` is the life cycle of the load: what happens in a micro-batch, between two micro-batches, and
at a stop. ``query`` has the Spark query that brings the micro-batches, ``commit`` the commit
protocol, ``planning`` (for two streams ``stream_stream_planning``) chooses the plan of the join, a
task runs ``join_operator``, and ``summary`` describes the results of the run.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame

from semistream.durable import read_checked, write_checked, write_json
from semistream.errors import ConfigError, SemistreamError, StateError, TooManyRows
from semistream.job import AnyJob, Job, StreamStreamJob
from semistream.master.manifest import encode_schema
from semistream.master.published import ANEW
from semistream.paths import Paths
from semistream.positions import Kind, Position
from semistream.resident import give_back
from semistream.sizing import known_costs
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.sketches.sampled import merged
from semistream.streaming.commit import Commits
from semistream.streaming.explaining import explain_unmatched
from semistream.streaming.file_query import FileQuery
from semistream.streaming.idle import is_loaded, plan_of_idle_load
from semistream.streaming.kept_settings import check_same_types
from semistream.streaming.micro_batch import POLL, MicroBatch, Stopped, run_tasks
from semistream.streaming.output_size import CONFIDENCE, estimate_output, many_to_many
from semistream.streaming.phases import phases
from semistream.streaming.planning import Planner
from semistream.streaming.position import RESTORE
from semistream.streaming.progress import Progress
from semistream.streaming.query import SESSION, Query, starting_workers
from semistream.streaming.replaying import Replayed
from semistream.streaming.resolving import resolve
from semistream.streaming.resolving_loads import ResolvingLoads, pin_versions
from semistream.streaming.semi_stream_planning import SemiStreamPlanner
from semistream.streaming.settings import (
    AVAILABLE_NOW,
    AppSettings,
    LoadSettings,
    StreamStreamSettings,
)
from semistream.streaming.signals import StopSignals
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.registry import find_source
from semistream.streaming.spark_master import is_local
from semistream.streaming.status import StatusFile, clear_stop, stop_requested
from semistream.streaming.stream_schemas import SCHEMAS, former_schema
from semistream.streaming.stream_stream_planning import StreamStreamPlanner
from semistream.streaming.summary import RunSummary, Totals, end_to_end
from semistream.streaming.task import Work
from semistream.streaming.waiting import SAMPLED
from semistream.warehouse.ledger import parts_of
from semistream.warehouse.records import LoadRecord

__all__ = ["SESSION", "App", "make_planner"]
log = logging.getLogger(__name__)
FIRST_CHECK = 1000  # finished tuples
HISTORY = 200  # partition commits whose sketches tell which keys are frequent


class App:
    """One app on one checkpoint. Only one may exist at a time (``status.checkpoint_lock``)."""

    def __init__(self, settings: AppSettings, job: AnyJob, paths: Paths, status: StatusFile):
        """Prepare the app. settings: ``LoadSettings`` for a job of one stream,
        ``StreamStreamSettings`` for a job of two."""
        self.settings, self.status = settings, status
        self.app, self.checkpoint = settings.name(), settings.directory(paths)
        self.planner = make_planner(settings, job, self.app, paths)
        self.job = self.planner.job
        warehouse = Warehouse.of(paths.warehouse_url, self.job, settings.retry)
        self.commits = Commits(self.app, self.job, self.checkpoint, settings.sink, warehouse)
        self.resolving = (  # two streams wait for each other, and resolve nothing
            ResolvingLoads(self.planner, self.commits, partial(self._finish, None))
            if isinstance(self.planner, SemiStreamPlanner)
            else None
        )
        self.totals, self.started = Totals(), time.monotonic()
        self._border = threading.Lock()  # held while a batch or a drain is processed
        self._begun = self.started  # when the planning of a batch began
        self._estimated = False  # an estimate of a batch's output was logged in this run
        self._stopping, self.signals = False, StopSignals()
        # the end of the last batch; the source is listed after that; None while one is repeated
        self._called: float | None = time.time()
        self._unlisted = False  # the newest batch does not tell which files the source had
        self._before: Position | None = None  # the newest commit of former runs
        # number of finished tuples at which the unmatched ones are looked at next
        self._check_at: float = FIRST_CHECK
        self.query: Query | None = None  # a replay needs none

    def check(self) -> None:
        """Check everything that can be checked without Spark. Raises ConfigError."""
        for source in self.sources:
            source.check(self.settings.max_files, self.settings.max_rows)
        self.planner.check(None)
        schemas = tuple(source.schema for source in self.sources if source.schema is not None)
        self.planner.check(schemas if len(schemas) == len(self.sources) else None)
        self._check_types([source.schema for source in self.sources])

    def _check_types(self, schemas: Sequence[pa.Schema | None]) -> None:
        check_same_types(self.app, self.job, self.checkpoint, schemas)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The source of each stream. Raises ConfigError."""
        return tuple(
            find_source(spec, former_schema(self.checkpoint, side))
            for side, spec in enumerate(self.job.streams)
        )

    # ---- the query's life

    def run(self, context: SparkContext) -> RunSummary:
        """Run until the source is empty (availableNow), or until a stop request, SIGTERM or SIGINT.
        Then drain. Return the summary."""
        self.partitions = self.planner.partitions(context.defaultParallelism)
        self.planner.one_machine = is_local(context.master)
        self.status.update(spark_ui=context.uiWebUrl or "")
        self.signals.take_jvm(context)
        listed = all(source.is_listed_by_driver for source in self.sources)
        kind = FileQuery if listed else Query
        self.query = kind(context, self.app, self.checkpoint, self.settings.trigger)
        with starting_workers(context, self.partitions), self.commits:
            return self._run_to_end(self.query)

    def leave(self) -> RunSummary:
        """End a run that was asked to stop before Spark was ready. Return its summary. Unfinished
        work of a former run is left to the next run."""
        log.info("asked to stop before Spark was there: nothing was begun")
        self._stopping = True
        with self.commits:
            progress, asked = self.commits.take_up(), max(self.settings.partitions, 1)
            self.planner.plan = self.planner.wanted(asked) if progress is None else progress.plan
            return self._ended(time.time())

    def _run_to_end(self, query: Query) -> RunSummary:
        self.streams = query.open(self.sources, self.settings.max_files, self.settings.max_rows)
        self.schemas = tuple(stream.schema for stream in self.streams)
        self._check_types(self.schemas)
        self._take_up()
        if self.resolving is not None and self.settings.trigger != AVAILABLE_NOW:
            self.resolving.warm_up()
        self.status.update(
            state="running",
            master_version=self.planner.plan.version,
            shares=self.planner.plan.shares,
            sizes=self.planner.plan.sizes,
            max_wait=self.planner.bound.seconds or 0.0,
            waiting=self.commits.waiting,
            inputs=self.commits.waiting_by_input,
        )
        self.commits.ledger.forget_files()
        self._called = listed = time.time()
        self._unlisted = True
        self._stopping = self.commits.pending is None and self.stop_requested()
        if not self._stopping:
            query.run(
                self._on_batch, self._between, lambda: self._stopping or self.signals.came.is_set()
            )
        self.status.update(state="draining")
        with self._border:
            if self.planner.ends(self.settings.trigger == AVAILABLE_NOW and not self._stopping):
                self._drain()
            if self.settings.trigger == AVAILABLE_NOW and not self._stopping:
                self._take_up_versions()
            self.commits.wait_for_commit()
        return self._ended(listed)

    def idle(self) -> RunSummary | None:
        """Run without Spark if there is nothing to do. Return the summary; None if there is
        something to do. Raises SemistreamError in the same cases as ``run``."""
        listed = time.time()
        with self.commits:
            plan = plan_of_idle_load(self.settings, self.job, self.commits, self.planner)
            if plan is None:
                return None
            self.planner.plan = plan
            if self.resolving is not None:
                self.resolving.filling.fill()
            return self._ended(listed)

    def replay(self, file: Path | None) -> Replayed:
        """Join open tuples of ``unmatched`` again in this process, with the dimensions' current
        versions. These are all open tuples, or the tuples of a file, with the user's corrections.
        Raises ConfigError if nothing was loaded, if a batch is unfinished, and for a file that
        cannot be used."""
        assert self.resolving is not None
        with self.commits:
            progress, schema = self.commits.take_up(), former_schema(self.checkpoint, 0)
            if progress is None or schema is None or self.commits.last is None:
                raise ConfigError(
                    "app",
                    "must have loaded something, with this version of Semistream",
                    self.app,
                    "Run the load first.",
                )
            self.planner.plan, self.schemas = progress.plan, (schema,)
            at = self.resolving.before_replay(schema)
            replayed = self.resolving.replay(at, file, schema)
            self.commits.end_run(None)
        self.status.update(state="stopped")
        return replayed

    def _ended(self, listed: float) -> RunSummary:
        """Record the end of a run and return its summary. listed: the time at which the source was
        listed, in seconds since 1970."""
        ends = self.settings.trigger == AVAILABLE_NOW
        self.commits.end_run(listed if ends and not self._stopping else None)
        summary = replace(
            self.totals.summary(self.planner.plan, self.commits.waiting_by_input),
            app=self.app,
            stopped=ends and self._stopping and self._interrupted(),
            job=self.job.name,
            filled=0 if self.resolving is None else self.resolving.filling.filled,
            warnings=self._explain_unmatched(),
            waiting=self.commits.waiting,
            memory_budget=int(self.planner.settings.memory),
            seconds=time.monotonic() - self.started,
        )
        write_json(self.checkpoint / "summary.json", summary.to_json())
        clear_stop(self.checkpoint)
        self.status.update(state="stopped", rate=summary.end_to_end)
        return summary

    def _take_up(self) -> None:
        """Continue from the checkpoint. Finish a drain that a crash interrupted; Spark itself
        repeats an interrupted batch."""
        progress = self.commits.take_up()
        self._before = self.commits.last
        self._check_lists()
        plan = None if progress is None else progress.plan
        try:
            columns = None if plan is None else self.planner.open(plan, self.schemas)
        except SemistreamError as e:
            assert plan is not None
            if self.commits.needs_plan:
                raise self._cannot_go_on(plan, e) from e
            log.info("nothing waits, so that the load goes on without its former plan: %s", e)
            columns = None
            self.commits.start_anew()
        self._note_schemas(progress is None)
        if columns is None:
            columns = self.planner.open(
                self.planner.without_sample(self.schemas, self.partitions), self.schemas
            )
        self.commits.prepare_sink(*columns)
        pending = self.commits.pending
        self.planner.chosen = bool(self.commits.waiting) or (
            pending is not None and pending[1] == Kind.BATCH
        )
        if progress is not None and progress.drain and pending is not None:
            self._finish(None)

    def _note_schemas(self, first: bool) -> None:
        """Record the streams' columns. If the columns have changed, a drained load continues with
        the new columns. A load with waiting tuples continues with the former columns. first:
        whether no batch has begun before."""
        now = [encode_schema(schema) for schema in self.schemas]
        known = read_checked(self.checkpoint / SCHEMAS, RESTORE)
        if not first and (known is None or known["streams"] != now):
            if not self.commits.drained:
                return  # restoring the state will report what does not fit
            self.commits.start_anew()
        write_checked(self.checkpoint / SCHEMAS, {"streams": now})

    def _check_lists(self) -> None:
        """Check that Spark's lists of files reach up to the newest commit. Raises StateError."""
        if self.commits.last is None:
            return
        try:
            for stream in self.streams:
                stream.log.files(self.commits.last[0])
        except FileNotFoundError as e:
            raise StateError(
                f"{e.filename} is gone, in which Spark notes the files that it has "
                f"given. Restore {self.checkpoint / 'query'} as it was after batch "
                f"{self.commits.last[0]}, or load the source anew: semistream reset "
                f"{self.app}."
            ) from None

    def _cannot_go_on(self, plan: Plan[Any], error: SemistreamError) -> SemistreamError:
        """Return the error for a plan that cannot be opened, although waiting tuples or an
        unfinished batch need it."""
        snapshots = [join.snapshot for join in plan.joins if isinstance(join, RolePlan)]
        if not snapshots or not isinstance(error, StateError):
            return error
        begun = self.commits.pending
        what = (
            f"batch {begun[0]} of {self.app} was begun"
            if begun is not None and not begun[1]
            else f"{self.commits.waiting:,} tuples of {self.app} wait to be joined"
        )
        return StateError(
            f"{str(error).removesuffix(ANEW).strip()} But {what} with that very "
            f"version of the master data, and a newer one does not help: restore "
            f"{', '.join(snapshots)} from a backup, or load the source anew: "
            f"semistream reset {self.app}."
        )

    def _between(self) -> bool:
        """Do the work that is due between two micro-batches. Return whether no further micro-batch
        shall begin."""
        self.commits.check()
        if self._stopping or (self.stop_requested() and self._stop_at_border()):
            return True
        if self.settings.trigger != AVAILABLE_NOW and self.totals.finished >= self._check_at:
            sentences = self._explain_unmatched()
            self._check_at = math.inf if sentences else 2 * self.totals.finished
            return False
        for due, do in (
            (self._drain_due, self._drain),
            (self._versions_due, self._take_up_versions),
            (self._listing_due, self._note_listing),
        ):
            if due():
                with self._border:
                    if due():  # under the lock: a batch may have failed
                        do()
                break
        return False

    def _on_batch(self, batch: int, frames: Sequence[DataFrame]) -> None:
        """Process a micro-batch. Raises Stopped for a micro-batch that comes after the stop."""
        with self._border:
            self._begun = time.monotonic()
            try:
                if self._stopping or (self.commits.pending is None and self.stop_requested()):
                    raise Stopped
                self._batch(MicroBatch(batch, frames, self.streams))
            except Stopped:
                self._stopping = True
                raise
            finally:
                self._called = time.time()

    # ---- one batch or drain

    def _batch(self, batch: MicroBatch) -> None:
        commits = self.commits
        if commits.pending == (batch.number, Kind.BATCH):
            self._finish_begun(batch)
        # committed, but a crash kept Spark from recording it
        elif commits.last is not None and batch.number <= commits.last[0]:
            commits.check_same_source(batch.number, batch.offsets, batch.paths)
        else:
            commits.check_follows(batch.number)
            self.planner.check_open(commits.last)
            files = batch.complete_files(self.settings.min_age, self.stop_requested)
            self._change_plan(batch)
            if self.resolving is not None:
                self.resolving.resolve(self.schemas[0])
            self._check_output(batch)
            plan, states = self.planner.plan, commits.states
            commits.begin(Progress(batch.number, Kind.BATCH, plan, states, batch.offsets, files))
            bound = self.planner.bound.seconds is not None and commits.waiting
            if commits.loads and not bound and batch.is_empty():
                self._committed(commits.finish_without_tuples(self._listed(commits.progress)), {})
            else:
                self._finish(batch)

    def _finish_begun(self, batch: MicroBatch) -> None:
        """Finish a batch that a crash interrupted, with the plan and the states with which it had
        begun."""
        begun, self._called = self.commits.progress, None
        if batch.has_changed(begun):
            self.commits.take_back()
            files = batch.complete_files(self.settings.min_age, self.stop_requested)
            self.commits.begin(replace(begun, source=batch.offsets, sources=files))
        self._finish(batch)

    def _change_plan(self, batch: MicroBatch | None) -> None:
        """Start using a new master version, or changed settings, after draining the tuples that
        wait under the old plan. batch: the micro-batch that begins, None if none does."""
        plan = self.planner.change(
            lambda: (
                pa.RecordBatch.from_pylist([], self.schemas[0])
                if batch is None
                else batch.sample(SAMPLED)
            ),
            lambda: merged(self.commits.ledger.key_sketches(HISTORY)),
            self.partitions,
        )
        if plan is None:
            return
        self._drain()
        self.commits.prepare_sink(*self.planner.open(plan, self.schemas))
        self.commits.start_anew()
        log.info(
            "master version %s, %s with %d partitions",
            plan.version,
            plan.algorithm,
            plan.partitions,
        )
        self.status.update(master_version=plan.version, shares=plan.shares, sizes=plan.sizes)
        give_back()  # what planning has used, before the tasks use theirs

    def _take_up_versions(self) -> None:
        """Start using newer versions of dimensions although no micro-batch begins, if they resolve
        tuples or complete facts."""
        if self.resolving is None:
            return
        self._begun = time.monotonic()
        if self.resolving.due:
            self._change_plan(None)
        self.resolving.resolve(self.schemas[0])

    def _check_output(self, batch: MicroBatch) -> None:
        """Estimate how many rows the batch will write if several master rows can match a tuple. The
        first estimate is logged. Raises TooManyRows for a batch that would exceed max_output_rows.
        """
        if not isinstance(self.settings, LoadSettings):
            return
        joins = [join for join in self.planner.plan.joins if many_to_many(join)]
        limit = self.settings.max_output_rows
        if (self._estimated and not limit) or not joins:
            return
        tuples = batch.sample(SAMPLED)
        if not tuples.num_rows:
            return
        count = batch.tuple_count() if tuples.num_rows == SAMPLED else tuples.num_rows
        (rows, bound), self._estimated = estimate_output(joins, tuples, count), True
        log.info(
            "batch %d will have %s joined rows of %s tuples, off by at most %s with a "
            "probability of %.0f%%, if all of it is like the first %s",
            batch.number,
            f"{rows:,}",
            f"{count:,}",
            f"{bound:,}",
            100 * CONFIDENCE,
            f"{tuples.num_rows:,}",
        )
        if not limit:
            return
        self.commits.wait_for_commit()
        if (loaded := self.commits.ledger.output_rows()) + rows > limit:
            raise TooManyRows(
                limit,
                loaded + rows,
                bound,
                CONFIDENCE,
                f"{self.app} with batch {batch.number}, of {count:,} tuples,",
            )

    def _drain(self) -> None:
        """Finish the waiting tuples. The caller must hold the border lock."""
        self.commits.check_nothing_pending()
        if self.commits.last is None or not self.commits.waiting:
            return
        self._begun = time.monotonic()
        self.commits.begin(
            Progress(self.commits.last[0], Kind.DRAIN, self.planner.plan, self.commits.states)
        )
        self._finish(None)

    def _finish(self, batch: MicroBatch | None, former: Progress | None = None) -> None:
        """Join, load and commit the begun micro-batch. batch: None for a drain or a resolving load,
        which read no source; former: of a resolving load, the record before it; with it, a load
        that has changed nothing is taken back, so that its number is free."""
        at = self.commits.progress
        work = Work(
            self.app,
            at.batch,
            at.drain,
            at.plan if at.again is None else at.again.plan,
            at.states,
            str(self.checkpoint),
            self.schemas,
            tuple(spec.id for spec in self.job.streams),
            self.commits.sink,
            sources=at.sources,
            sketched=(isinstance(self.settings, LoadSettings) and self.settings.key_sketch),
            pace=None if batch is None else self.planner.bound.pace(),
        )
        tasks_begun = time.monotonic()
        if at.again is None:
            assert self.query is not None
            loads = run_tasks(self.query, work, batch)
        else:
            loads = resolve(work, at.again.file)
        now = time.monotonic()
        seconds = phases(loads, tasks_begun - self._begun, now - tasks_begun)
        if former is not None and not any(load.resolved for load in loads):
            self.commits.give_up(former)
        else:
            self.commits.finish(loads, self._listed(at), seconds)
            self._committed(loads, seconds)
        self._begun = time.monotonic()
        if at.again is not None:
            self.commits.wait_for_commit()
            pin_versions(self.app, at.again.plan, keep=False)
            give_back()

    def _committed(self, loads: list[LoadRecord], seconds: Mapping[str, float]) -> None:
        """Tell that a batch is committed. seconds: of each of its phases."""
        self.totals.add(loads)
        self.planner.bound.check(self.totals.latest_wait, seconds)
        self.status.update(
            batch=self.commits.progress.batch,
            waiting=self.commits.waiting,
            inputs=self.commits.waiting_by_input,
            max_wait=self.planner.bound.seconds or 0.0,
            rate=end_to_end(self.totals.sums["rows_read"], time.monotonic() - self.started),
            **self.totals.status(),
        )

    def _listed(self, at: Progress) -> float | None:
        """Return a time such that every older file of the source is in this batch or an earlier
        one. Return None if no such time is known, for instance because Spark will give further
        batches of the files that it has already listed."""
        if at.drain:
            return None
        more = self.settings.trigger == AVAILABLE_NOW or any(
            part.get("files") == self.settings.max_files for part in parts_of(at.source)
        )
        listed = None if more or not at.sources else self._called
        self._unlisted = listed is None
        return listed

    def _explain_unmatched(self) -> tuple[str, ...]:
        """Log warnings about tuples of this run without master data if there are many of them, or
        more than in former runs, with likely reasons. Return the sentences.

        A run with trigger availableNow calls this at its end. Other runs also call it whenever the
        number of their tuples has doubled, until there is a warning.
        """
        said = explain_unmatched(
            self.commits, self.job, self.planner.plan, self._before, self.totals
        )
        for sentence in said:
            log.warning("%s: %s", self.app, sentence)
        return said

    def _listing_due(self) -> bool:
        """Return whether an interval trigger's load is to list the source itself, because no commit
        tells which files there were, and no micro-batch has come for longer than the interval."""
        commits, interval, called = self.commits, self.settings.interval, self._called
        begun = commits.last is not None and commits.pending is None
        idle = interval is not None and called is not None and time.time() - called > interval
        return self._unlisted and begun and idle

    def _note_listing(self) -> None:
        """Record the present time as that at which the source was listed, if all of its files are
        loaded. Otherwise a micro-batch will bring the others. The caller must hold the border lock.
        """
        self._unlisted, listed = False, time.time()
        self.commits.wait_for_commit()
        if all(is_loaded(source, self.commits.ledger) for source in self.sources):
            self.commits.end_run(listed)

    # ---- stop

    def stop_requested(self) -> bool:
        """Return whether the app was asked to stop."""
        after = self.settings.stop_after
        over = bool(after) and time.monotonic() - self.started > after
        return over or self._interrupted()

    def _interrupted(self) -> bool:
        return self.signals.came.is_set() or stop_requested(self.checkpoint)

    def _stop_at_border(self) -> bool:
        """Prevent further micro-batches from beginning, and return True. Return False if a batch is
        being processed, or must still be finished after a crash."""
        if not self._border.acquire(timeout=POLL):
            return False
        try:
            self._stopping = self.commits.pending is None
            return self._stopping
        finally:
            self._border.release()

    def _drain_due(self) -> bool:
        if not self.commits.waiting or self.commits.pending is not None:
            return False
        return self.planner.bound.idle(time.monotonic() - self.commits.committed_at)

    def _versions_due(self) -> bool:
        """Return whether an interval trigger's load is to take up newer versions of dimensions now,
        because they resolve tuples or fill facts in, and no micro-batch need come that does so."""
        commits, endless = self.commits, self.settings.trigger != AVAILABLE_NOW
        begun = commits.last is not None and commits.pending is None
        return endless and begun and self.resolving is not None and self.resolving.due


def make_planner(settings: AppSettings, job: AnyJob, app: str, paths: Paths) -> Planner:
    """Return the planner for the settings and the job, which has either one stream with dimensions
    or two streams."""
    if isinstance(settings, StreamStreamSettings) and isinstance(job, StreamStreamJob):
        return StreamStreamPlanner(settings, job)
    assert isinstance(settings, LoadSettings) and isinstance(job, Job)
    return SemiStreamPlanner(
        settings,
        settings.applied(job),
        app,
        paths.snapshots,
        known_costs(paths.home),
        Warehouse.of(paths.warehouse_url, job, settings.retry).engine,
    )
