"""The resolving loads of an app: which open tuples of ``unmatched`` are joined again, when, and
with which versions of the dimensions.

A load starts a resolving load when a version of a dimension has new keys for such tuples;
``replay`` starts one on request. ``resolving`` has the staging for both, and the work of a task;
``replaying`` reads the file of a replay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy.exc import SQLAlchemyError

from semistream.errors import ConfigError
from semistream.master.published import pin
from semistream.positions import KINDS, Kind, Position, named, next_resolve
from semistream.sizing.choice import SMALLEST
from semistream.sizing.plan import Plan
from semistream.sizing.precompile import precompile
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.commit import Commits
from semistream.streaming.filling import FactFilling
from semistream.streaming.precompile import call_kernels
from semistream.streaming.progress import Progress
from semistream.streaming.replaying import Replayed, stage_file, stage_open
from semistream.streaming.resolving import Again, Staging, lacks, plan_again, stage_late
from semistream.streaming.semi_stream_planning import SemiStreamPlanner
from semistream.warehouse.dialects import system_of
from semistream.warehouse.records import LoadRecord
from semistream.warehouse.resolution import with_keys

log = logging.getLogger(__name__)


# Finishes the load that has begun. Given the record of the commit before it, it takes a load that
# has changed nothing back.
Finish = Callable[[Progress | None], None]


class ResolvingLoads:
    """The resolving loads of an app."""

    def __init__(self, planner: SemiStreamPlanner, commits: Commits, finish: Finish):
        """Prepare the loads. finish: a function that joins, loads and commits the begun load."""
        self.planner, self.commits, self._finish = planner, commits, finish
        self.filling = FactFilling(planner, commits)

    @property
    def due(self) -> bool:
        """Return whether a newer version of a dimension may have keys that resolve tuples or
        complete facts."""
        waits = any(role.late != "reject" for role in self.planner.job.roles)
        return waits and self.planner.outdated

    def warm_up(self) -> None:
        """Let the kernels be loaded, in the background, with which late tuples are found and joined
        again. The first of them would wait for that."""
        if any(role.late == "resolve" for role in self.planner.job.roles):
            threading.Thread(target=self._load_kernels, daemon=True).start()

    def _load_kernels(self) -> None:
        precompile(SMALLEST)
        call_kernels(system_of(self.commits.warehouse.engine))
        no_key = [np.empty(0, np.int64), np.zeros(1, np.int64)]
        with (
            suppress(SQLAlchemyError),  # whoever needs the warehouse will say so
            self.commits.warehouse.engine.connect() as connection,
        ):
            number = self.commits.ledger.number()
            list(with_keys(connection, number, lacks("", alone=False), no_key))

    def resolve(self, stream: pa.Schema) -> None:
        """Join open tuples of ``unmatched`` again if their keys are new in the plan's versions of
        dimensions, and the job requests it (``late: resolve``). Complete the facts whose members
        these versions have. stream: the stream's schema."""
        self.filling.fill()
        commits, plan = self.commits, self.planner.plan
        roles = self.planner.job.roles
        current = versions(plan)
        due = {
            role.name: current[role.name]
            for role in roles
            if role.late == "resolve" and commits.looked_up.get(role.name) != current[role.name]
        }
        former = {role: commits.looked_up.get(role) for role in due}
        # if keys are not looked up now, the next load looks up all keys: those that are new since
        # the former version would be too few
        commits.looked_up = {
            role: known for role, known in commits.looked_up.items() if current.get(role) == known
        }
        if commits.last is None:  # there is no tuple yet
            commits.looked_up |= due
        if not due or commits.last is None or commits.waiting:
            return
        if (at := next_resolve(commits.last)) is None:
            log.warning(
                "batch %d was followed by %d resolving loads, which is the most: late tuples are "
                "resolved with the next batch",
                commits.last[0],
                KINDS - Kind.RESOLVE,
            )
            return
        commits.wait_for_commit()
        brought = [(role, former[role], snapshot) for role, snapshot in due.items()]
        with (
            Staging(commits.checkpoint, stream) as staging,
            commits.warehouse.engine.connect() as connection,
        ):
            stage_late(connection, commits.ledger.number(), brought, staging, alone=len(roles) == 1)
        commits.looked_up |= due
        if staging.rows:
            self._join_again(at, staging, plan_again(plan, stream))

    def replay(self, at: Position, file: Path | None, stream: pa.Schema) -> Replayed:
        """Join all open tuples of ``unmatched`` again with the dimensions' current versions, or
        only the tuples of a file, with the user's corrections. Then complete the facts whose
        members these versions have. at: the position of the load; stream: the stream's schema.
        Raises ConfigError for a file that cannot be used."""
        commits = self.commits
        wanted = self.planner.wanted(commits.progress.plan.partitions)
        left = len(wanted.joins) == 1 and wanted.joins[0].join_type == "left"
        with (
            Staging(commits.checkpoint, stream) as staging,
            commits.warehouse.engine.connect() as connection,
        ):
            number, spec = commits.ledger.number(), self.planner.job.stream
            taken = (
                stage_open(connection, number, spec, staging, left=left)
                if file is None
                else stage_file(
                    connection, number, spec, file, staging, commits.sink, commits.app, left=left
                )
            )
        loads = list[LoadRecord]()
        if staging.rows:
            plan = plan_again(wanted, stream)
            commits.prepare_sink(*self.planner.columns(plan, (stream,)))
            if versions(plan) != versions(self.planner.plan):
                # tuples may be kept whose keys the load's own version has
                commits.looked_up = {}
            if self._join_again(at, staging, plan):
                commits.wait_for_commit()
                loads = commits.loads
        return replace(Replayed.of(commits.app, taken, loads), filled=self.filling.fill(wanted))

    def before_replay(self, stream: pa.Schema) -> Position:
        """Return the position for a replay. First finish a resolving load that a crash interrupted,
        if there is one. Raises ConfigError if the load itself must be finished first, or if no
        position is left."""
        commits, progress = self.commits, self.commits.progress
        if commits.pending is not None and progress.again is not None:
            commits.prepare_sink(*self.planner.columns(progress.again.plan, (stream,)))
            self._finish(None)
        elif (pending := commits.pending) is not None or commits.waiting:
            raise ConfigError(
                "app",
                "must have finished what it has begun",
                named(pending) if pending else f"{commits.waiting:,} tuples wait",
                "Run the load: it goes on where it was, and ends with nothing that waits.",
            )
        assert commits.last is not None
        if (at := next_resolve(commits.last)) is None:
            raise ConfigError(
                "app",
                f"must have loaded a batch since its last {KINDS - Kind.RESOLVE} resolving loads",
                commits.app,
                "No number is left for another one. Load something new first: an empty file in the "
                "stream's directory is enough, of CSV one with the header alone.",
            )
        return at

    def _join_again(self, at: Position, staging: Staging, plan: Plan[RolePlan]) -> bool:
        """Run a resolving load of the staged tuples with a plan. Return whether it is in the
        ledger: a load that has changed nothing is not."""
        again, former = Again(staging.file, plan), self.commits.recorded
        if versions(plan) != versions(self.planner.plan):  # the app keeps those of its own plan
            pin_versions(self.commits.app, plan)
        self.commits.begin(Progress(*at, self.planner.plan, self.commits.states, again=again))
        self._finish(former)
        committed = self.commits.last == at
        log.info(
            "%d tuples of unmatched were joined again, %d have another result than before",
            staging.rows,
            sum(load.resolved for load in self.commits.loads) if committed else 0,
        )
        return committed


def versions(plan: Plan[RolePlan]) -> dict[str, str]:
    """Return the directories of the versions with which a plan joins, by role."""
    return {join.role: join.snapshot for join in plan.joins}


def pin_versions(app: str, plan: Plan[Any], *, keep: bool = True) -> None:
    """Keep the versions that a resolving load of an app uses until the load is finished, or release
    them."""
    for join in plan.joins:
        # no app has a name with a blank
        root, version = Path(join.snapshot).parent, join.version if keep else None
        pin(root, f"{app} again", version)
