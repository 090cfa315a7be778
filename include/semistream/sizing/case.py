"""What sizes are sought for: a sample of a stream, and a snapshot of its master data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from semistream.config import AUTO, Job
from semistream.cost_models import MODELS, Workload
from semistream.joins.registry import find_algorithm
from semistream.joins.spec import join_spec
from semistream.master import SnapshotRelation
from semistream.sizing.plan import Plan
from semistream.sizing.workload import describe


@dataclass(frozen=True)
class Case:
    """job: its stream may be anywhere, the sample is what counts; snapshot: directory of the
    master's version."""

    job: Job
    sample: pa.RecordBatch
    snapshot: Path
    partitions: int

    def plan(self, memory: int) -> Plan:
        """How a load with M bytes in all would be joined; the algorithm is open."""
        return Plan(AUTO, int(memory) // self.partitions, "inner", {}, tuple(self.job.on.items()),
                    self.job.columns or None, self.partitions, str(self.snapshot), auto=True)

    @cached_property
    def _balanced(self) -> Plan:
        return self.plan(1).balance(self.sample)

    @cached_property
    def _slowest(self) -> tuple[int, pa.RecordBatch]:
        return self._balanced.slowest(self.sample)

    @property
    def tuples(self) -> pa.RecordBatch:
        """The sample's tuples of the slowest partition, on which the others wait."""
        return self._slowest[1]

    @property
    def share(self) -> float:
        """Of the stream that comes to that partition."""
        return max(self.tuples.num_rows, 1) / max(self.sample.num_rows, 1)

    @cached_property
    def relation(self) -> SnapshotRelation:
        """That partition's part of R."""
        return self._balanced.relation(self._slowest[0])

    @cached_property
    def added(self) -> tuple[str, ...] | None:
        return self.plan(1).added(self.relation)

    @property
    def on(self) -> list[tuple[str, str]]:
        return list(self.job.on.items())

    @cached_property
    def workload(self) -> Workload:
        """To the cost models, of one operator."""
        spec = join_spec("", 0, self.tuples.schema, self.relation, self.on, self.added)
        return describe(spec, self.tuples)

    def algorithms(self, asked: tuple[str, ...]) -> list[str]:
        """Those asked for, or all that can be used. Raises ConfigError for an unknown one."""
        return [find_algorithm(a).name for a in asked] or list(MODELS)
