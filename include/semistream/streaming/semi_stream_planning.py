"""The plan with which an app joins a stream with dimensions. It changes with the dimensions'
versions and the settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import Engine

from semistream.cost_models.costs import Costs
from semistream.errors import ConfigError
from semistream.job import UNKNOWN, Job, Role
from semistream.joins.registry import find_algorithm
from semistream.master.manifest import Manifest
from semistream.master.published import current_version, pin, snapshot_root
from semistream.provisioning.inferred import check_inferring
from semistream.provisioning.publishing import check_unknown_member
from semistream.sizing.initial_plan import initial_plan, partitions_of
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan, open_star
from semistream.sizing.star_plan import choose_plan, has_open_questions
from semistream.sketches import SkimmedSketch
from semistream.streaming.planning import split
from semistream.streaming.settings import LoadSettings
from semistream.streaming.waiting import WaitingBound, pass_seconds
from semistream.warehouse.identity import check_snapshot

log = logging.getLogger(__name__)
Opened = tuple[float, tuple[pa.Schema, pa.Schema]]
PUBLISH = "Run `semistream provision JOB`, or the DAG provision_master_data, first."


class SemiStreamPlanner:
    """The planner of a join of one stream with dimensions."""

    def __init__(
        self,
        settings: LoadSettings,
        job: Job,
        app: str,
        snapshots: Path,
        costs: Costs,
        warehouse: Engine,
    ):
        """Prepare the planner. snapshots: the directory of all snapshots."""
        self.settings, self.job, self.app = settings, job, app
        self.costs, self.warehouse = costs, warehouse
        self._roots = {
            role.name: snapshot_root(snapshots, role.dimension.name, role.key) for role in job.roles
        }
        self._of_warehouse = set[str]()  # directories that are known to be of this warehouse
        self._with_unknown = set[str]()  # dimensions whose unknown member was found
        self._cores, self.one_machine = 1, False
        self.bound = WaitingBound(settings.max_wait, settings.interval)
        self.chosen = False
        self.plan: Plan[RolePlan]
        # what `without_sample` has returned last, and for what
        self._unsampled: tuple[tuple[Any, ...], Plan[RolePlan]] | None = None
        # the last plan that was opened, for which streams, and what `_opened` has returned
        self._last: tuple[Plan[RolePlan], tuple[pa.Schema, ...], Opened] | None = None

    def check(self, streams: tuple[pa.Schema, ...] | None) -> None:
        if not self.settings.auto:
            find_algorithm(self.settings.algorithm)
        for role in self.job.roles:
            role.check_late(self.settings.join_type)
            if role.late == "infer":
                check_inferring(self.warehouse, role, self.settings.retry)
            self._current(role)
        if streams is not None:
            self.without_sample(streams, max(self.settings.partitions, 1))

    @property
    def outdated(self) -> bool:
        """Return whether a dimension has a newer version than the plan's."""
        return any(
            join.snapshot != str(self._current(self.job.role(join.role)))
            for join in self.plan.joins
        )

    def partitions(self, cores: int) -> int:
        self._cores = cores
        versions = [self._current(role) for role in self.job.roles]
        return partitions_of(versions, self.settings.partitions, cores)

    def ends(self, exhausted: bool) -> bool:
        return True  # all of R is known

    def check_open(self, last: tuple[int, int] | None) -> None:
        """Do nothing, because a load can continue after a drain."""

    def wanted(self, partitions: int) -> Plan[RolePlan]:
        versions = [self._current(role) for role in self.job.roles]
        return initial_plan(
            self.settings, self.job, versions, partitions, self._unknown, self.settings.reason
        )

    def _current(self, role: Role) -> Path:
        """Return the directory of the current version of a role's dimension. Raises ConfigError if
        there is none, or if it was published from a warehouse other than the loaded one."""
        root = self._roots[role.name]
        if (version := current_version(root)) is None:
            raise ConfigError("snapshot", "must have been published", str(root), PUBLISH)
        directory = root / version
        if str(directory) not in self._of_warehouse:
            check_snapshot(
                self.warehouse,
                Manifest.read(directory).source,
                str(directory),
                role.dimension.name,
                self.settings.retry,
            )
            self._of_warehouse.add(str(directory))
        return directory

    def _unknown(self, role: Role) -> int | None:
        """Return the surrogate key for tuples without a row in a left join, see ``RolePlan``.
        Raises ConfigError if the dimension should have an unknown member, but has none."""
        left = (role.join_type or self.settings.join_type) == "left"
        if not (left and role.dimension.unknown_member):
            return None
        name = role.dimension.name
        if name not in self._with_unknown:
            check_unknown_member(self.warehouse, name, self.settings.retry)
            self._with_unknown.add(name)
        return UNKNOWN

    def without_sample(self, streams: tuple[pa.Schema, ...], partitions: int) -> Plan[RolePlan]:
        wanted = self.wanted(partitions)
        # only an R that is held whole is shared by the operators of a machine
        may_share = partitions > 1 and any(join.may_be_whole for join in wanted.joins)
        shared = self.one_machine and may_share
        asked = wanted, streams, shared
        if self._unsampled is None or self._unsampled[0] != asked:
            nothing = pa.RecordBatch.from_pylist([], streams[0])
            self._unsampled = asked, choose_plan(wanted, nothing, self.costs, one_machine=shared)
        return self._unsampled[1]

    def change(
        self,
        sample: Callable[[], pa.RecordBatch],
        history: Callable[[], SkimmedSketch | None],
        partitions: int,
    ) -> Plan[RolePlan] | None:
        """Return a new plan, or None to keep the present one. Questions that need a sample of the
        stream are decided in the first batch of a run for which no earlier tuple waits."""
        wanted = self.wanted(partitions)
        if wanted == self.plan.initial() and (self.chosen or not has_open_questions(self.plan)):
            return None
        if has_open_questions(wanted):
            tuples = sample()
            if not tuples.num_rows and (renewed := self._renewed(wanted, tuples.schema)):
                self.chosen = False
                return None if renewed == self.plan else renewed
            known = history() if partitions > 1 and tuples.num_rows else None
            demand = self.bound.demand(tuples.num_rows)
            wanted = choose_plan(
                wanted, tuples, self.costs, self.plan, known, demand, one_machine=self.one_machine
            )
            self.chosen = tuples.num_rows > 0
            for join in wanted.joins:
                if join.auto:
                    log.info("%s", "; ".join(filter(None, join.reasons)))
        if _unexplained(wanted) == _unexplained(self.plan):
            self.plan = wanted
            return None
        return wanted

    def _renewed(self, wanted: Plan[RolePlan], stream: pa.Schema) -> Plan[RolePlan] | None:
        """Return the plan in use with the versions of a wanted one: until tuples tell more, its
        choices stay. Return None if something else has changed, or if R has outgrown them."""
        version = {join.role: join.snapshot for join in wanted.joins}
        plan = Plan(
            tuple(replace(join, snapshot=version.get(join.role, "")) for join in self.plan.joins)
        )
        if plan.initial() != wanted:
            return None
        try:
            if plan != self.plan:
                self._opened(plan, (stream,))
        except ConfigError:
            return None
        return plan

    def open(
        self, plan: Plan[RolePlan], streams: tuple[pa.Schema, ...]
    ) -> tuple[pa.Schema, pa.Schema]:
        """Start using a plan, and pin its dimensions' versions."""
        seconds, columns = self._opened(plan, streams)
        plan.placement(streams)
        self.bound.choose(math.ceil(plan.partitions / self._cores) * seconds)
        for each in plan.joins:
            pin(Path(each.snapshot).parent, self.app, each.version)
        self.plan = plan
        return columns

    def _opened(self, plan: Plan[RolePlan], streams: tuple[pa.Schema, ...]) -> Opened:
        """Open the joins of a plan, unless it was the last one that was opened. Return the seconds
        of a pass over R, and the joined rows' columns. Raises ConfigError if the plan does not
        fit."""
        if self._last is not None and self._last[:2] == (plan, streams):
            return self._last[2]
        star = open_star(plan.joins, streams[0], 0)
        seconds = sum(
            pass_seconds(each.join, self.costs) / part
            for each, part in zip(star.joins, star.bound_parts(), strict=True)
            if part
        )
        star.close()
        found = seconds, split(star.output_schema, star.first)
        self._last = plan, streams, found
        return found

    def columns(
        self, plan: Plan[RolePlan], streams: tuple[pa.Schema, ...]
    ) -> tuple[pa.Schema, pa.Schema]:
        """Return the columns of the rows that a plan's joins give. The plan in use stays."""
        return self._opened(plan, streams)[1]


def _unexplained(plan: Plan[RolePlan]) -> Plan[RolePlan]:
    return Plan(tuple(replace(join, reason="", sizes_reason="") for join in plan.joins))
