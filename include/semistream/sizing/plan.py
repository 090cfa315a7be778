"""The plan of a load: the joins through which each task passes its part of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from semistream.counted import counted
from semistream.errors import NotEnoughMemory
from semistream.partitioning import Placement


@dataclass(frozen=True)
class JoinPlan:
    """The settings of a join that the operators of all partitions share."""

    algorithm: str
    memory: int  # bytes of one partition, M/P
    join_type: str
    parameters: dict[str, Any]
    on: tuple[tuple[str, str], ...]  # (stream column, dimension column), or (left, right)
    partitions: int  # P
    reason: str = field(default="", kw_only=True)  # why this algorithm
    share: int = field(default=1, kw_only=True)  # M is divided among so many joins
    number: int = field(default=0, kw_only=True)  # of the role in the job
    # bytes of an even split of M if the cost models have split M; otherwise 0
    even: int = field(default=0, kw_only=True)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Restore a plan. Values that the class does not know are ignored."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        return cls(**{**known, "on": tuple((a, b) for a, b in values["on"])})

    @property
    def label(self) -> str:
        """The role of the dimension; "" for two streams."""
        return ""

    @property
    def version(self) -> str:
        """The dimension's version; "" for two streams."""
        return ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the plan's choices; some may be empty."""
        return (self.reason,)

    @property
    def split(self) -> int:
        """The number of parts into which R is split, or both streams."""
        return self.partitions

    @property
    def largest(self) -> bool:
        """Whether this is the join of a star with the largest R, which is always split."""
        return True

    def initial(self) -> Self:
        """Return the user's original plan, without the choices made from a sample."""
        return self

    def placement(self, streams: Sequence[pa.Schema], side: int = 0) -> Placement:
        """Return the assignment of a stream's tuples to the partitions, by their key in this
        join."""
        raise NotImplementedError

    def not_enough(self, error: NotEnoughMemory) -> NotEnoughMemory:
        """Return an error about the M of all partitions, given an error about the M of one
        partition's operator."""
        joins = self.partitions * self.share
        parts = [f"in {counted(self.partitions, 'partition')}"] if self.partitions > 1 else []
        parts += [f"of {self.share} dimensions"] if self.share > 1 else []
        return NotEnoughMemory(
            joins * error.least,
            joins * (self.even or self.memory),
            " ".join((self.algorithm, *parts)),
        )


J = TypeVar("J", bound=JoinPlan)


@dataclass(frozen=True)
class Plan(Generic[J]):
    """The settings that all partitions of a micro-batch share. A micro-batch that has begun with a
    plan is always finished with it.

    joins: one for each role of the job, in the order of execution, or in the job's order before the
    order is chosen; a single join for two streams.
    """

    joins: tuple[J, ...]

    @classmethod
    def from_json(cls, values: dict[str, Any], kind: type[J]) -> Self:
        return cls(tuple(kind.from_json(join) for join in values["joins"]))

    @property
    def partitions(self) -> int:
        return self.joins[0].partitions

    @property
    def memory(self) -> int:
        """The bytes of one partition for all joins together."""
        return sum(join.memory for join in self.joins)

    @property
    def algorithm(self) -> str:
        return ", ".join(join.algorithm for join in self.joins)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the join. If there are several joins, the names are ROLE.NAME."""
        several = len(self.joins) > 1
        return {
            f"{join.label}.{name}" if several else name: value
            for join in self.joins
            for name, value in join.parameters.items()
        }

    @property
    def reason(self) -> str:
        reasons = (reason for join in self.joins for reason in join.reasons)
        return "; ".join(filter(None, reasons))

    @property
    def version(self) -> str:
        """The dimensions' versions; "" for two streams."""
        return ", ".join(filter(None, (join.version for join in self.joins)))

    def with_memory(self, memory: int) -> Plan[J]:
        """Return the plan with another M, bytes of all partitions together, evenly split."""
        each = memory // (self.partitions * len(self.joins))
        return Plan(tuple(replace(join, memory=each, even=0) for join in self.joins))

    def initial(self) -> Plan[J]:
        """Return the user's original plan, without the choices made from a sample."""
        initial = (join.initial() for join in self.joins)
        return Plan(tuple(sorted(initial, key=lambda join: join.number)))

    @property
    def largest(self) -> int:
        """The number of the join with the largest R."""
        return next(i for i, join in enumerate(self.joins) if join.largest)

    @property
    def shares(self) -> dict[str, int]:
        """The number of parts into which R is split, by role; empty if there is only one join."""
        return {j.label: j.split for j in self.joins} if len(self.joins) > 1 else {}

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of M, of all partitions together, by role; empty if there is only one
        join."""
        each = {j.label: j.partitions * j.memory for j in self.joins}
        return each if len(each) > 1 else {}

    def placement(self, streams: Sequence[pa.Schema], side: int = 0) -> Placement:
        """Return the assignment of a stream's tuples to the partitions, by their keys in all joins
        whose R is split."""
        placements = [join.placement(streams, side) for join in self.joins]
        axes = tuple(axis for placement in placements for axis in placement.axes)
        return replace(placements[0], axes=axes)
