"""The plan with which an app joins two streams. It does not change while tuples are held."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.job import StreamStreamJob
from semistream.sizing.plan import Plan
from semistream.sizing.stream_stream_plan import BUCKETS, StreamStreamPlan
from semistream.streaming.planning import split
from semistream.streaming.punctuating import punctuation_sources
from semistream.streaming.settings import StreamStreamSettings
from semistream.streaming.waiting import WaitingBound
from semistream.warehouse.closing import closing_of
from semistream.warehouse.tables import fact_table

log = logging.getLogger(__name__)


class StreamStreamPlanner:
    """The planner of a join of two streams."""

    def __init__(self, settings: StreamStreamSettings, job: StreamStreamJob):
        self.settings, self.job, self.chosen = settings, job, True
        self.one_machine = False
        # no bound: however long nothing comes, a partner may still come
        self.bound = WaitingBound(0, None)
        self.plan: Plan[StreamStreamPlan]

    def check(self, streams: tuple[pa.Schema, ...] | None) -> None:
        if streams is not None:
            columns = self._check(self.wanted(max(self.settings.partitions, 1)), streams)
            if (closing := closing_of(self.job)) is not None:
                closing.table(fact_table(self.job.fact_table, columns[0], (), columns[1]))

    def partitions(self, cores: int) -> int:
        return self.settings.partitions or min(cores, BUCKETS)

    def ends(self, exhausted: bool) -> bool:
        """Return whether held tuples are finished at the end of a run. They are finished only if
        the user says that the streams end, because otherwise partners may still come."""
        return self.settings.end and exhausted

    def check_open(self, last: tuple[int, int] | None) -> None:
        """Raise ConfigError if the streams had ended with the newest commit, because a new tuple
        may match one that was reported as unmatched."""
        if last is not None and last[1]:
            raise ConfigError(
                "end",
                f"was given with batch {last[0]}, after which nothing comes",
                True,
                "Load both streams anew: semistream reset APP.",
            )

    def wanted(self, partitions: int) -> Plan[StreamStreamPlan]:
        s = self.settings
        return Plan(
            (
                StreamStreamPlan(
                    s.algorithm.lower(),
                    int(s.memory) // partitions,
                    self.job.join_type,
                    dict(s.parameters),
                    tuple(self.job.on.items()),
                    partitions,
                    (self.job.left.promises, self.job.right.promises),
                    self.job.within.model_dump() if self.job.within else None,
                    reason=s.reason,
                ),
            )
        )

    def without_sample(
        self, streams: tuple[pa.Schema, ...], partitions: int
    ) -> Plan[StreamStreamPlan]:
        return self.wanted(partitions)

    def change(
        self, sample: Callable[[], pa.RecordBatch], history: Callable[[], object], partitions: int
    ) -> None:
        """Check that the held tuples can continue with the present settings. Raises ConfigError for
        any change except an increase of memory."""
        (wanted,), (present,) = (
            self.wanted(self.settings.partitions or self.plan.partitions).joins,
            self.plan.joins,
        )
        for name in (
            "partitions",
            "algorithm",
            "parameters",
            "join_type",
            "on",
            "within",
            "promises",
        ):
            asked, former = getattr(wanted, name), getattr(present, name)
            if asked != former:
                raise ConfigError(
                    name,
                    f"must stay what the load began with, {former!r}, as its state goes by it",
                    asked,
                    "Give the former one, or load anew: semistream reset APP.",
                )
        if wanted.memory < present.memory:
            log.warning(
                "M goes on with %s bytes for each partition, as what is held may need them",
                f"{present.memory:,}",
            )
            wanted = replace(wanted, memory=present.memory)
        self.plan = Plan((wanted,))

    def open(
        self, plan: Plan[StreamStreamPlan], streams: tuple[pa.Schema, ...]
    ) -> tuple[pa.Schema, pa.Schema]:
        self.plan = plan
        return self._check(plan, streams)

    @staticmethod
    def _check(
        plan: Plan[StreamStreamPlan], streams: tuple[pa.Schema, ...]
    ) -> tuple[pa.Schema, pa.Schema]:
        (join,) = plan.joins
        for side in range(len(streams)):
            punctuation_sources(join, side, streams, 0)
        return split(join.open(streams).output_schema, len(join.tuples(streams)[0]))
