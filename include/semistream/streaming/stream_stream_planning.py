"""The plan with which an app joins two streams. It does not change while anything is held."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from semistream.config import StreamStreamJob
from semistream.errors import ConfigError
from semistream.sizing.stream_stream_plan import BUCKETS, StreamStreamPlan
from semistream.streaming.planning import split
from semistream.streaming.punctuating import punctuation_sources
from semistream.streaming.settings import StreamStreamSettings
from semistream.streaming.waiting import WaitingBound
from semistream.warehouse.closing import closing_of
from semistream.warehouse.tables import fact_table

log = logging.getLogger(__name__)


class StreamStreamPlanner:
    """The planner of a join of two streams, with the interface of ``planning.Planner``. plan: the
    one in use."""

    def __init__(self, settings: StreamStreamSettings, job: StreamStreamJob):
        self.settings, self.job, self.chosen = settings, job, True
        # no bound: however long nothing comes, a partner may still come
        self.bound = WaitingBound(0, None)
        self.plan: StreamStreamPlan

    def check(self, streams: tuple[pa.Schema, ...] | None) -> None:
        """Check everything that can be checked without Spark. Raises ConfigError."""
        if streams is not None:
            plan = self.wanted(max(self.settings.partitions, 1))
            columns = split(self._check(plan, streams), len(plan.tuples(streams)[0]))
            if (closing := closing_of(self.job)) is not None:
                closing.table(fact_table(self.job.fact_table, columns[0], "", columns[1]))

    def partitions(self, cores: int) -> int:
        """Return P, the number of partitions."""
        return self.settings.partitions or min(cores, BUCKETS)

    def ends(self, exhausted: bool) -> bool:
        """Return whether held tuples are finished at the end of a run: only if the user says that
        the streams end, because otherwise partners may still come."""
        return self.settings.end and exhausted

    def check_open(self, last: tuple[int, int] | None) -> None:
        """Raise ConfigError if the streams had ended with the newest commit, (batch, drain): a
        tuple that comes now may match one that was reported as unmatched."""
        if last is not None and last[1]:
            raise ConfigError("end", f"was given with batch {last[0]}, after which nothing comes",
                              True, "Load both streams anew: semistream reset APP.")

    def wanted(self, partitions: int) -> StreamStreamPlan:
        """Return the plan that the settings ask for."""
        s = self.settings
        return StreamStreamPlan(s.algorithm.lower(), int(s.memory) // partitions,
                                self.job.join_type, dict(s.parameters), tuple(self.job.on.items()),
                                partitions, (self.job.left.promises, self.job.right.promises),
                                self.job.within.model_dump() if self.job.within else None,
                                s.reason)

    def without_sample(self, streams: tuple[pa.Schema, ...], partitions: int) -> StreamStreamPlan:
        return self.wanted(partitions)

    def change(self, sample: Callable[[], pa.RecordBatch], history: Callable[[], object],
               partitions: int) -> None:
        """Check that what is held can continue with the present settings. Raises ConfigError for
        any change except of memory, which can only grow."""
        wanted = self.wanted(self.settings.partitions or self.plan.partitions)
        for name in ("partitions", "algorithm", "parameters", "join_type", "on", "within",
                     "promises"):
            asked, former = getattr(wanted, name), getattr(self.plan, name)
            if asked != former:
                raise ConfigError(name, f"must stay what the load began with, {former!r}, as its "
                                        "state goes by it", asked,
                                  "Give the former one, or load anew: semistream reset APP.")
        if wanted.memory < self.plan.memory:
            log.warning("M goes on with %s bytes for each partition, as what is held may need them",
                        f"{self.plan.memory:,}")
            wanted = replace(wanted, memory=self.plan.memory)
        self.plan = wanted

    def open(self, plan: Any, streams: tuple[pa.Schema, ...]) -> tuple[pa.Schema, pa.Schema]:
        """Start using a plan. Return the joined rows' columns from the left stream, and the others.
        Raises ConfigError if the plan does not fit the streams."""
        self.plan = plan
        return split(self._check(plan, streams), len(plan.tuples(streams)[0]))

    @staticmethod
    def _check(plan: StreamStreamPlan, streams: tuple[pa.Schema, ...]) -> pa.Schema:
        for side in range(len(streams)):
            punctuation_sources(plan, side, streams, 0)
        return plan.open(streams).output_schema
