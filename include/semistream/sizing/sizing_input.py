"""The input of a choice of sizes: a sample of a stream, and a snapshot of its master data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from semistream.cost_models import MODELS, Workload
from semistream.job import Job, Role
from semistream.joins.registry import find_algorithm
from semistream.joins.spec import join_spec
from semistream.master.snapshot import SnapshotRelation
from semistream.settings import AUTO
from semistream.sizing.role_plan import RolePlan
from semistream.sizing.workload import describe


@dataclass(frozen=True)
class SizingInput:
    """The input of a choice of sizes for the join with one role of a job.

    job: the job, whose stream is not read because there is a sample; snapshot: directory of the
    master's version; partitions: P, the number of operators; role_name: the role's name, "" for the
    first role.
    """

    job: Job
    sample: pa.RecordBatch
    snapshot: Path
    partitions: int
    role_name: str = ""

    @property
    def role(self) -> Role:
        return self.job.role(self.role_name)

    def plan(self, memory: int) -> RolePlan:
        """Return the plan of a load in which all operators together have M bytes, and the algorithm
        is open."""
        role = self.role
        return RolePlan(
            AUTO,
            int(memory) // self.partitions,
            "inner",
            {},
            tuple(role.on.items()),
            self.partitions,
            str(self.snapshot),
            role.columns or None,
            role.name,
            auto=True,
        )

    @cached_property
    def _balanced(self) -> RolePlan:
        return self.plan(1).balance(self.sample)

    @cached_property
    def _slowest(self) -> tuple[int, pa.RecordBatch]:
        return self._balanced.slowest(self.sample)

    @property
    def tuples(self) -> pa.RecordBatch:
        """The tuples of the sample that go to the slowest partition, for which the others wait."""
        return self._slowest[1]

    @property
    def share(self) -> float:
        """The share of the stream that goes to the slowest partition, 0 to 1."""
        return max(self.tuples.num_rows, 1) / max(self.sample.num_rows, 1)

    @cached_property
    def relation(self) -> SnapshotRelation:
        """The part of R with which the slowest partition joins."""
        return self._balanced.relation(self._slowest[0])

    @property
    def whole_reads(self) -> float:
        """How many bytes of R all operators read, per byte that the slowest partition's reads."""
        return self._balanced.whole_reads(self.relation)

    @cached_property
    def added(self) -> dict[str, str]:
        """The dimension columns to add, with their names in the output."""
        return self.plan(1).added(self.sample.schema, self.relation)

    @property
    def on(self) -> list[tuple[str, str]]:
        return list(self.role.on.items())

    @cached_property
    def workload(self) -> Workload:
        """The workload of the slowest partition's operator, for the cost models."""
        spec = join_spec("", 0, self.tuples.schema, self.relation, self.on, self.added)
        return describe(spec, self.tuples)

    def algorithms(self, names: tuple[str, ...]) -> list[str]:
        """Return the requested algorithms' names. If none are requested, return all algorithms that
        have a cost model. Raises ConfigError for an unknown algorithm."""
        return [find_algorithm(a).name for a in names] or list(MODELS)
