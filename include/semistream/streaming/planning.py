"""Which plan an app joins a stream and master data with: what settings and master version ask for,
and when it changes. ``stream_stream_planning`` has the same of two streams."""

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
from semistream.config import Job
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
    """plan: the one in use.

    chosen: whether a sample of the stream has decided what the settings leave open, in this run or
    in the one that left tuples waiting.
    """

    def __init__(self, settings: LoadSettings, job: Job, app: str, snapshots: Path, costs: Costs,
                 warehouse: Engine):
        """snapshots: the directory of the master's versions."""
        self.settings, self.job, self.app, self.snapshots = settings, job, app, snapshots
        self.costs, self.warehouse = costs, warehouse
        self._of_warehouse = ""  # the version that was found to be
        self._cores = 1
        self.bound = WaitingBound(settings.max_wait, settings.interval)
        self.chosen = False
        self.plan: Plan

    def check(self, streams: tuple[pa.Schema, ...] | None) -> None:
        """What can be known to fail without Spark. streams: None where they are not known yet.
        Raises ConfigError."""
        if not self.settings.auto:
            find_algorithm(self.settings.algorithm)
        if (version := current_version(self.snapshots)) is None:
            raise ConfigError("snapshot", "must have been published", str(self.snapshots), PUBLISH)
        self._check_version(self.snapshots / version)
        if streams is not None:
            self.without_sample(streams, max(self.settings.partitions, 1))

    def partitions(self, cores: int) -> int:
        """P."""
        self._cores = cores
        return self.settings.partitions or min(cores, self.bucket_count)

    def ends(self, exhausted: bool) -> bool:
        """Whether what waits is finished at the end of a run; it always is, as all of R is known.
        exhausted: the source has no more."""
        return True

    def check_open(self, last: tuple[int, int] | None) -> None:
        """What was drained is no obstacle to more. last: the newest commit."""

    @property
    def bucket_count(self) -> int:
        """Of the current master version."""
        return Manifest.read(self.snapshots / (current_version(self.snapshots) or "")).bucket_count

    def wanted(self, partitions: int) -> Plan:
        """The plan that the settings and the current master version ask for. Raises ConfigError."""
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
        """Raises ConfigError for a version of the master data that was published from another
        warehouse than the one that is loaded."""
        if directory.name == self._of_warehouse:
            return
        check_snapshot(self.warehouse, Manifest.read(directory).source, str(directory),
                       self.job.master.name, self.settings.retry)
        self._of_warehouse = directory.name

    def _check_forms(self, manifest: Manifest) -> None:
        """Raise ConfigError where texts of the stream's keys become others than the snapshot's
        have become."""
        for column, key in self.job.on.items():
            form = key_forms([column], self.job.stream.formats).get(column, {})
            if form != (known := manifest.formats.get(key, {})):
                raise ConfigError(
                    f"stream.formats.{column}", "must give keys the form that they have in the "
                    f"master's snapshot {manifest.name} {manifest.version}, {json.dumps(known)}",
                    json.dumps(form), "Declare it so in the job, or provision the master data "
                                      "with the job as it is now, under another name.")

    def without_sample(self, streams: tuple[pa.Schema, ...], partitions: int) -> Plan:
        """The same, with what is open decided without a look at the stream. Raises ConfigError."""
        nothing = pa.RecordBatch.from_pylist([], streams[0])
        return self.wanted(partitions).choose(nothing, self.costs)

    def change(self, sample: Callable[[], pa.RecordBatch],
               history: Callable[[], SkimmedSketch | None], partitions: int) -> Plan | None:
        """Another plan than the present one, to be opened once nothing waits; None to go on with
        the present one.

        The plan changes with the master version and with the settings. What a sample of the stream
        is to decide is decided in the first batch of a run that nothing waits before. sample: gives
        some of the batch's tuples; history: the sketch of former loads' keys.
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
        """Take up a plan, and hold its master version; gives the joined rows' columns of the
        stream, and the others.

        Raises ConfigError where the plan does not fit stream and master.
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
    """The first columns, and the others."""
    return pa.schema(list(joined)[:first]), pa.schema(list(joined)[first:])
