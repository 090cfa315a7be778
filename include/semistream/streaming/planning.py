"""The plan with which an app joins a stream and master data: what settings and master version ask
for, and when the plan changes. ``stream_stream_planning`` is the counterpart for two streams."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import Engine

from semistream.column_format import key_forms
from semistream.job import Job
from semistream.cost_models.costs import Costs
from semistream.errors import ConfigError
from semistream.joins.registry import find_algorithm
from semistream.master.manifest import Manifest
from semistream.master.published import current_version, pin
from semistream.sizing.plan import Plan
from semistream.sketches import SkimmedSketch
from semistream.streaming.settings import LoadSettings
from semistream.streaming.waiting import WaitingBound, pass_seconds
from semistream.warehouse.identity import check_snapshot

log = logging.getLogger(__name__)
PUBLISH = "Run `semistream provision JOB`, or the DAG provision_master_data, first."


class Planner:
    """The planner of a join with master data.

    plan: the one in use; chosen: a sample of the stream has decided what the settings leave open,
    in this run or in the run that left tuples waiting.
    """

    def __init__(self, settings: LoadSettings, job: Job, app: str, snapshots: Path, costs: Costs,
                 warehouse: Engine):
        """Prepare the planner. snapshots: the directory of the master's versions."""
        self.settings, self.job, self.app, self.snapshots = settings, job, app, snapshots
        self.costs, self.warehouse = costs, warehouse
        self._of_warehouse = ""  # the version that is known to be of this warehouse
        self._cores = 1
        self.bound = WaitingBound(settings.max_wait, settings.interval)
        self.chosen = False
        self.plan: Plan

    def check(self, streams: tuple[pa.Schema, ...] | None) -> None:
        """Check everything that can be checked without Spark. streams: None if the schemas are not
        known yet. Raises ConfigError."""
        if not self.settings.auto:
            find_algorithm(self.settings.algorithm)
        if (version := current_version(self.snapshots)) is None:
            raise ConfigError("snapshot", "must have been published", str(self.snapshots), PUBLISH)
        self._check_version(self.snapshots / version)
        if streams is not None:
            self.without_sample(streams, max(self.settings.partitions, 1))

    def partitions(self, cores: int) -> int:
        """Return P, the number of partitions."""
        self._cores = cores
        return self.settings.partitions or min(cores, self.bucket_count)

    def ends(self, exhausted: bool) -> bool:
        """Return whether waiting tuples are finished at the end of a run. They always are, because
        all of R is known. exhausted: the source has no more tuples."""
        return True

    def check_open(self, last: tuple[int, int] | None) -> None:
        """Do nothing: a load can continue after a drain. last: the newest commit."""

    @property
    def bucket_count(self) -> int:
        """The number of buckets of the current master version."""
        return Manifest.read(self.snapshots / (current_version(self.snapshots) or "")).bucket_count

    def wanted(self, partitions: int) -> Plan:
        """Return the plan that the settings and the current master version ask for. Raises
        ConfigError."""
        version = current_version(self.snapshots)
        if version is None:
            raise ConfigError("snapshot", "must have been published", str(self.snapshots), PUBLISH)
        self._check_version(self.snapshots / version)
        if partitions > (buckets := self.bucket_count):
            raise ConfigError("partitions",
                              f"must be at most {buckets}, the buckets of the master snapshot",
                              partitions,
                              "Ask for fewer, or publish the snapshot with more buckets.")
        self._check_forms(Manifest.read(self.snapshots / version))
        s = self.settings
        return Plan(s.algorithm.lower(), int(s.memory) // partitions, s.join_type,
                    dict(s.parameters), tuple(self.job.on.items()), self.job.columns or None,
                    partitions, str(self.snapshots / version), reason=s.reason, auto=s.auto)

    def _check_version(self, directory: Path) -> None:
        """Raise ConfigError if the master version was published from another warehouse than the
        loaded one."""
        if directory.name == self._of_warehouse:
            return
        check_snapshot(self.warehouse, Manifest.read(directory).source, str(directory),
                       self.job.master.name, self.settings.retry)
        self._of_warehouse = directory.name

    def _check_forms(self, manifest: Manifest) -> None:
        """Raise ConfigError if the stream's key texts are normalised differently than the
        snapshot's were."""
        for column, key in self.job.on.items():
            form = key_forms([column], self.job.stream.formats).get(column, {})
            if form != (known := manifest.formats.get(key, {})):
                raise ConfigError(
                    f"stream.formats.{column}", "must give keys the form that they have in the "
                    f"master's snapshot {manifest.name} {manifest.version}, {json.dumps(known)}",
                    json.dumps(form), "Declare it so in the job, or provision the master data "
                                      "with the job as it is now, under another name.")

    def without_sample(self, streams: tuple[pa.Schema, ...], partitions: int) -> Plan:
        """Return the wanted plan, with open questions decided without a sample of the stream.
        Raises ConfigError."""
        nothing = pa.RecordBatch.from_pylist([], streams[0])
        return self.wanted(partitions).choose(nothing, self.costs)

    def change(self, sample: Callable[[], pa.RecordBatch],
               history: Callable[[], SkimmedSketch | None], partitions: int) -> Plan | None:
        """Return a new plan, to be opened once nothing waits, or None to continue with the present
        one.

        The plan changes with the master version and with the settings. Questions that a sample of
        the stream decides are decided in the first batch of a run before which nothing waits.
        sample: gives some of the batch's tuples; history: gives the sketch of former loads' keys.
        """
        wanted = self.wanted(partitions)
        if wanted == self.plan.asked() and (self.chosen or not self.plan.open_questions):
            return None
        if wanted.open_questions:
            tuples = sample()
            known = history() if partitions > 1 and tuples.num_rows else None
            wanted = wanted.choose(tuples, self.costs, self.plan, known,
                                   self.bound.demand(tuples.num_rows))
            self.chosen = tuples.num_rows > 0
            if wanted.auto:
                log.info("%s", wanted.reason)
        if replace(wanted, reason="") == replace(self.plan, reason=""):
            self.plan = wanted
            return None
        return wanted

    def open(self, plan: Any, streams: tuple[pa.Schema, ...]) -> tuple[pa.Schema, pa.Schema]:
        """Start using a plan, and pin its master version. Return the joined rows' columns from the
        stream, and the others.

        Raises ConfigError if the plan does not fit stream and master.
        """
        join = plan.open(streams[0], 0)
        joined = join.output_schema
        plan.placement(streams[0])
        turns = math.ceil(plan.partitions / self._cores)
        self.bound.choose(turns * pass_seconds(join, self.costs))
        join.master.close()
        pin(self.snapshots, self.app, Path(plan.snapshot).name)
        self.plan = plan
        return split(joined, len(streams[0]))


def split(joined: pa.Schema, first: int) -> tuple[pa.Schema, pa.Schema]:
    """Return the first columns, and the others."""
    return pa.schema(list(joined)[:first]), pa.schema(list(joined)[first:])
