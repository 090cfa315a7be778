"""The commit protocol of one app on one checkpoint, and its recovery. This module is independent of
Spark.

A micro-batch, or a load that follows it under the same number, passes these steps::

    begin     progress.json is written: which batch, with which plan, from which join states
    (tasks)   join their partitions, write their states and hand their rows to the sink
    finish    the sink commits in one step; or the commit is recorded in intent.json, and made
              while Spark plans the next batch
    wait      the next step waits until that commit is made

A crash leaves the checkpoint between two steps. ``take_up`` makes a commit that was recorded, and
returns a begun batch that was not committed. That batch is finished with the same plan, from the
same states, before anything else begins.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.durable import read_checked, write_checked
from semistream.errors import ConfigError, StateError
from semistream.job import AnyJob, Job
from semistream.joins import JoinState
from semistream.positions import Position
from semistream.sizing.role_plan import RolePlan
from semistream.sizing.stream_stream_plan import StreamStreamPlan
from semistream.streaming.kept_settings import check_same_job
from semistream.streaming.phases import COMMIT
from semistream.streaming.position import (
    INTENT,
    RESTORE,
    check_no_reset,
    done_by_query,
    follows,
    position,
)
from semistream.streaming.progress import Progress
from semistream.streaming.resolving import DIRECTORY
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sinks.registry import open_sink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.warehouse import create_all, migrate
from semistream.warehouse.ledger import parts_of, retrying
from semistream.warehouse.records import Commit, Intent, LoadRecord, Timed, waiting_by_role

log = logging.getLogger(__name__)


class Commits(AbstractContextManager["Commits"]):
    """The commits of an app. last: the newest commit; loads: records of this commit, empty under a
    new plan; pending: the batch that has begun and is not committed; committed_at: the time of the
    newest commit, by ``time.monotonic``; run_started: the start of the run, in seconds since 1970;
    looked_up: see ``Progress``, for batches that begin from now on."""

    def __init__(self, app: str, job: AnyJob, checkpoint: Path, sink: str, warehouse: Warehouse):
        """Open the sink. sink: the setting's value, see ``sinks.registry``."""
        self.app, self.job, self.checkpoint, self.warehouse = app, job, checkpoint, warehouse
        self.sink, self.ledger = open_sink(sink, warehouse, checkpoint), warehouse.ledger(app)
        self._setting = sink
        self._columns: tuple[pa.Schema, pa.Schema] | None = None  # for which the sink is prepared
        self.progress: Progress
        self.last: Position | None = None
        self.pending: Position | None = None
        self.loads: list[LoadRecord] = []
        self.looked_up: dict[str, str] = {}
        self.run_started, self.committed_at = time.time(), time.monotonic()
        self._timed: Timed | None = None  # the newest commit, until its row has its duration
        self._executor = ThreadPoolExecutor(1, "commit")
        self._newest: Future[None] | None = None

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()  # waits: no commit is left half-way, whatever fails

    @property
    def _at(self) -> Position:
        return self.progress.batch, self.progress.drain

    @property
    def states(self) -> dict[int, tuple[str, ...]]:
        """The join state files of each partition."""
        return {load.partition: load.state_files for load in self.loads}

    @property
    def waiting(self) -> int:
        """The number of waiting tuples."""
        return sum(load.waiting for load in self.loads)

    @property
    def waiting_by_input(self) -> dict[str, int]:
        """The number of waiting tuples in each of several roles, or of held tuples of each of two
        streams; empty if there is only one role."""
        one = isinstance(self.job, Job) and len(self.job.roles) == 1
        return {} if one else waiting_by_role(self.loads)

    def prepare_sink(self, stream: pa.Schema, added: pa.Schema) -> None:
        """Prepare the sink for rows with these columns, or check that it fits them, unless that was
        done last. Raises ConfigError."""
        if self._columns == (stream, added):
            return
        sink, ids = self.sink, self.job.fact_ids([*stream.names, *added.names])
        self.sink = retrying(lambda: sink.prepare(stream, added, ids), self.warehouse.retry)
        self._columns = stream, added

    # ---- a batch or a drain

    def begin(self, progress: Progress) -> None:
        """Record the batch that is processed from now on. Raises the error of the previous commit
        if that commit failed."""
        self.wait_for_commit()
        progress = replace(progress, looked_up=self.looked_up, sink=self._setting)
        progress.write(self.checkpoint)
        self.progress, self.pending = progress, (progress.batch, progress.drain)

    def finish(
        self, loads: list[LoadRecord], listed: float | None, seconds: dict[str, float]
    ) -> None:
        """Commit the batch that has begun. loads: the records of all partitions; listed: the time
        at which the source was listed (``load_commits.source_listed``), in seconds since 1970;
        seconds: the duration of each phase before the commit."""
        begun = time.monotonic()
        phases = json.dumps({phase: round(s, 4) for phase, s in seconds.items()})
        intent = Intent(replace(self._commit(loads, listed), phases=phases), loads)
        if self.sink.two_phase:
            self.prepare(intent)
            self._newest = self._executor.submit(self._make, self.sink, intent, begun)
        else:
            self._make(self.sink, intent, begun)
        self._committed(loads, self._at)

    def finish_without_tuples(self, listed: float | None) -> list[LoadRecord]:
        """Commit a batch without tuples. States are carried over, and no task is needed."""
        loads = [load.without_tuples(self.progress.batch) for load in self.loads]
        self.ledger.commit(self._commit(loads, listed), loads)
        self._timed = None
        self._committed(loads, self._at)
        return loads

    def end_run(self, listed: float | None) -> None:
        """Record what is known at the end of a run only: the duration of the newest commit, and the
        time at which the source was listed, if everything that it had then is loaded. listed:
        seconds since 1970."""
        if self.last is not None:
            self.ledger.end_run(self._timed, self.last[0], listed)
            self._timed = None

    def prepare(self, intent: Intent) -> None:
        """Record a commit durably, so that it will be made even after a crash."""
        write_checked(self.checkpoint / INTENT, intent.to_json())

    def wait_for_commit(self) -> None:
        """Wait for the newest commit. Raises the commit's error if it failed; no further batch may
        begin then."""
        if self._newest is not None:
            self._newest.result()

    def check(self) -> None:
        """Raise the error of the newest commit if it has failed. This does not wait."""
        if self._newest is not None and self._newest.done():
            self._newest.result()

    def start_anew(self) -> None:
        """Forget the join states of a former plan, under which no tuple waits any more."""
        self.loads = []
        if self.pending is not None:
            self.progress = replace(self.progress, states={})

    def take_back(self) -> None:
        """Delete everything that partitions have written for the batch that has begun."""
        self.sink.take_back(self.app, self.progress.batch, self.progress.drain)

    @property
    def recorded(self) -> Progress | None:
        """The record of the newest commit, while no load has begun after it; None if another
        version of the program wrote it."""
        return getattr(self, "progress", None)

    def give_up(self, former: Progress) -> None:
        """Withdraw the resolving load that has begun, because it has changed nothing. former: the
        record of the newest commit, from which the app goes on again. If a crash comes before that
        record is written, the load is finished like any other."""
        self.take_back()
        progress = replace(former, looked_up=self.looked_up)
        progress.write(self.checkpoint)
        self.progress, self.pending = progress, None
        self.sink.clean_up()
        _remove([*(self.checkpoint / DIRECTORY).glob("*")])

    def check_nothing_pending(self) -> None:
        """Raise StateError if a batch has begun and is not committed."""
        if self.pending is not None:
            raise StateError(
                f"Batch {self.pending[0]} was begun, and Spark takes it for done, but "
                f"it is not committed: {self.checkpoint} lacks {INTENT}, or its "
                f"directory query is not of the same time. {RESTORE}"
            )

    def check_same_source(self, batch: int, given: dict[str, Any], paths: list[str]) -> None:
        """Check that a skipped batch, whose number is in the ledger, has the same part of the
        source as the committed batch of this number. Raises StateError.

        given: the batch's ``SourceLog.offsets``; paths: its files.
        """
        said, known = self.ledger.source(batch)
        same = all(
            a[name] == b[name]
            for a, b in zip(parts_of(said), parts_of(given), strict=True)
            for name in ("format", "offsets", "start")
        )
        complete = not paths or len(paths) == sum(p.get("files", 0) for p in parts_of(said))
        if same and complete and set(known) <= set(paths):
            return
        raise StateError(
            f"Batch {batch} of {self.checkpoint / 'query'} is another part of the "
            f"source than batch {batch} of {self.app} in the ledger. Passing it over "
            f"would lose tuples, loading it would double some. Restore that directory "
            f"as it was after batch {self.last[0] if self.last else batch}, or load "
            f"the source anew: semistream reset {self.app}."
        )

    def check_follows(self, batch: int) -> None:
        """Raise StateError if a batch is not the next one."""
        last = self.last[0] if self.last else -1
        if batch > last + 1:
            raise StateError(
                f"{self.checkpoint} goes on with batch {batch}, but the ledger of "
                f"{self.app} ends with {last}. Restore the warehouse or the "
                f"checkpoint, or begin again: semistream reset {self.app}."
            )

    def _commit(self, loads: list[LoadRecord], listed: float | None) -> Commit:
        at = self.progress
        return Commit(
            self.app,
            at.batch,
            at.drain,
            self.job.fact_table,
            self._setting,
            len(loads),
            sum(load.rows_read for load in loads),
            self.job.to_ledger(),
            json.dumps(at.source),
            listed,
            at.sources,
            self.run_started,
            before=self._timed,
        )

    def _committed(self, loads: list[LoadRecord], at: Position) -> None:
        """Continue after a commit that has been made, or has been recorded and will certainly be
        made."""
        self.loads = loads
        self.last, self.pending = at, None
        self.committed_at = time.monotonic()
        states = self.checkpoint / "state"
        used = {
            name
            for each in self.states.values()
            for state in each
            for name in JoinState.files(states / state)
        }
        old = [file for file in states.iterdir() if file.name not in used]
        old += (self.checkpoint / DIRECTORY).glob("*")
        # in a thread, because deleting large files takes time
        threading.Thread(target=_remove, args=(old,)).start()

    # ---- recovery

    def take_up(self) -> Progress | None:
        """Return the record of the last processed batch; None on a new checkpoint. ``pending`` says
        whether that batch must still be finished.

        Raises ConfigError if checkpoint and warehouse do not belong together, StateError if one of
        them is damaged.
        """
        check_no_reset(self.checkpoint)
        (self.checkpoint / "state").mkdir(exist_ok=True)
        _sweep(self.checkpoint)
        retrying(lambda: create_all(self.warehouse.engine), self.warehouse.retry)
        retrying(lambda: migrate(self.warehouse.engine), self.warehouse.retry)
        self._warn_of_others()
        self.last = self.ledger.last()
        at = position(self.checkpoint)
        check_same_job(self.ledger, self.job, self._setting, self.checkpoint)
        self._check_same_history(at)
        self._check_rows(self.sink)
        self._commit_former_intent()
        self.last = self.ledger.last()
        self._check_spark()
        self.ledger.note_checkpoint(str(self.checkpoint.absolute()))
        if self.last is not None:
            self.loads = self.ledger.partitions(*self.last)
        if at is None:
            return None
        return self._go_on(at)

    def _go_on(self, at: Position) -> Progress | None:
        """Continue with the last processed batch and return its record. Return None if another
        version of the program wrote the record and no tuple waits, so that the record is not
        needed."""
        try:
            kind = RolePlan if isinstance(self.job, Job) else StreamStreamPlan
            progress = Progress.read(self.checkpoint, kind)
        except StateError as e:
            if self.last != at or not self.drained:
                raise
            log.info("nothing waits, so that the load goes on without this: %s", e)
            self._committed([], at)
            return None
        if progress is None:
            return None
        if self.last is not None:
            self._check_loads(progress)
        try:
            for each in progress.states.values() if self.last != at else self.states.values():
                for state in each:
                    JoinState.files(self.checkpoint / "state" / state)
        except StateError as e:
            if not self.drained:
                raise
            log.info("nothing waits, so that the load goes on without this: %s", e)
            self.loads, progress = [], replace(progress, states={})
        self.progress, self.looked_up = progress, dict(progress.looked_up)
        if self.last == at:
            self._committed(self.loads, at)
        else:
            self.pending = at
        return progress

    @property
    def needs_plan(self) -> bool:
        """Return whether a batch, or a waiting tuple, must still be finished with its former
        plan."""
        return self.pending is not None or not self.drained

    @property
    def drained(self) -> bool:
        """Return whether all loaded tuples are finished, so that no join state is needed. The state
        of two streams is needed until they have ended, because it contains their guarantees about
        later tuples."""
        return (
            self.last is not None
            and not self.waiting
            and (isinstance(self.job, Job) or bool(self.last[1]))
        )

    def _commit_former_intent(self) -> None:
        """Complete a commit that a crash interrupted, through the sink with which it had begun."""
        values = read_checked(self.checkpoint / INTENT, RESTORE)
        if values is not None:
            intent = Intent.from_json(values)
            sink = open_sink(intent.commit.sink, self.warehouse, self.checkpoint)
            self._check_rows(sink)
            self._make(sink, intent, None)

    def _make(self, sink: Sink, intent: Intent, begun: float | None) -> None:
        """Make a commit, and note its duration for the row of ``load_commits`` that it has made,
        which is completed with the next one. begun: the time at which the tasks had ended, by
        ``time.monotonic``; None if that was in a former run."""
        sink.commit(intent.commit, intent.loads)
        if begun is not None:
            commit, took = intent.commit, round(time.monotonic() - begun, 4)
            phases = json.loads(commit.phases or "{}") | {COMMIT: took}
            self._timed = Timed(commit.batch, commit.drain, json.dumps(phases))
        if sink.two_phase:
            (self.checkpoint / INTENT).unlink(missing_ok=True)
            sink.clean_up()

    def _warn_of_others(self) -> None:
        """Warn if other apps load the same fact table, because each app's proof covers only its
        rows, but readers see the rows of all apps."""
        if others := self.ledger.others(self.job.fact_table, self._setting):
            log.warning(
                "%s also has rows of %s: facts are counted and verified for each app by itself",
                self.job.fact_table,
                ", ".join(others),
            )

    def _check_loads(self, progress: Progress) -> None:
        """Check that the newest commit has a row for each partition, and that a batch that
        continues after it has the same states. Raises StateError."""
        assert self.last is not None
        found = [load.partition for load in self.loads if load.inputs]
        count = self.ledger.partition_count(*self.last)
        if found != list(range(count)):
            raise StateError(
                f"load_batches and load_inputs have partitions {found} of batch "
                f"{self.last[0]} (drain {self.last[1]}) of {self.app}, but "
                f"load_commits says that there are {count}. What waits in the others "
                f"would be lost: restore the warehouse, or load the source anew: "
                f"semistream reset {self.app}."
            )
        if (
            progress.states
            and (progress.batch, progress.drain) != self.last
            and progress.states != self.states
        ):
            raise StateError(
                f"{self.checkpoint / 'progress.json'} goes on from other states than "
                f"those that load_batches has of batch {self.last[0]} of {self.app}. "
                f"{RESTORE}"
            )

    def _check_rows(self, sink: Sink) -> None:
        """Check that rows which the ledger lists as loaded are not obviously missing. Raises
        StateError."""
        missing = retrying(lambda: sink.missing(self.app), self.warehouse.retry)
        if missing is not None:
            raise StateError(
                f"{missing}, but the ledger says that {self.app} has loaded rows of "
                f"it there. Restore the table from a backup of the same time as the "
                f"ledger, or load the source anew: semistream reset {self.app}."
            )

    def _check_spark(self) -> None:
        """Raise StateError if Spark regards a batch as finished that the ledger does not have,
        because Spark would never give it again."""
        done = done_by_query(self.checkpoint)
        last = self.last[0] if self.last else -1
        if done > last:
            ends = f"ends with {last}" if self.last else "has no batch"
            raise StateError(
                f"Spark takes batch {done} in {self.checkpoint / 'query'} for done, "
                f"but the ledger of {self.app} {ends}. An older warehouse was put "
                f"back, {INTENT} is gone, or a reset was cut short. Restore the "
                f"warehouse or the checkpoint, or begin again: semistream reset "
                f"{self.app}."
            )

    def _check_same_history(self, at: Position | None) -> None:
        """Check that ledger and checkpoint know the same batches, because tuples would be skipped
        otherwise. at: the position in ``progress.json``. Raises ConfigError."""
        last, newest = self.last, self.sink.newest(self.app)
        if at is None and last is None and newest is None:
            return
        if at is not None and follows(at, last) and not (newest is not None and newest > at):
            return
        raise ConfigError(
            "checkpoint",
            f"must be the one that {self.app} has gone on with so far, "
            f"to {f'batch {last[0]}' if last else 'no batch'} in this "
            f"warehouse",
            str(self.checkpoint),
            f"Give the former --checkpoint and WAREHOUSE_URL. If one of them was put "
            f"back from an older backup, restore the newer one, or load the source "
            f"anew: semistream reset {self.app}.",
        )


def _sweep(checkpoint: Path) -> None:
    """Remove files that a killed process has left incomplete, except the status file, which is
    being written now."""
    for place in (checkpoint, checkpoint / "state"):
        for file in place.glob(".*.*"):
            if not file.name.startswith(".status.json"):
                file.unlink(missing_ok=True)


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
