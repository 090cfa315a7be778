"""The sizes of a star in a load: how the shares of its roles, M, the order of execution and the
roles held whole change a plan. The user's original settings can be restored from the changed plan.

The shares with the lowest cost are chosen. The cost is the predicted time of the slowest operator
for a stream tuple: its part of the tuples, times the seconds of a tuple in its joins, with the
parts of R that it has and the best split of its memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.cost_models import Costs
from semistream.cost_models.bound import Demand
from semistream.errors import NotEnoughMemory
from semistream.joins.registry import HASH_JOIN
from semistream.master.manifest import Manifest
from semistream.settings import AUTO
from semistream.sizing.enough import with_enough
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.sizing.search import EVEN
from semistream.sizing.shares import choices
from semistream.sizing.star import (
    GAIN,
    Described,
    RoleShare,
    StarRole,
    StarSizes,
    is_small,
    size_star,
)
from semistream.sketches import SkimmedSketch


def choose_plan(
    initial: Plan[RolePlan],
    sample: pa.RecordBatch,
    costs: Costs,
    former: Plan[RolePlan] | None = None,
    history: SkimmedSketch | None = None,
    demand: Demand | None = None,
    *,
    one_machine: bool = False,
) -> Plan[RolePlan]:
    """Return the plan with choices for everything that the user left open: first how M is split,
    then the algorithm and sizes of each role. See ``size_plan`` and ``RolePlan.choose``. Raises
    NotEnoughMemory with an M that suffices."""

    def choose(memory: int) -> Plan[RolePlan]:
        plan = initial if memory == given else initial.with_memory(memory)
        sized = size_plan(plan, sample, costs, former, history, one_machine=one_machine)
        return choose_joins(sized, sample, costs, former, history, demand)

    given = initial.memory * initial.partitions
    return with_enough(choose, given, len(initial.joins))


def choose_joins(
    plan: Plan[RolePlan],
    sample: pa.RecordBatch,
    costs: Costs,
    former: Plan[RolePlan] | None = None,
    history: SkimmedSketch | None = None,
    demand: Demand | None = None,
) -> Plan[RolePlan]:
    """Return the plan with the choices of ``RolePlan.choose`` for each join. The stream of a join
    consists of the tuples that the previous join passes on. history: a sketch of the keys of the
    largest R."""
    before = {join.role: join for join in former.joins} if former is not None else {}
    chosen: list[RolePlan] = []
    for join in plan.joins:
        if chosen:
            sample = chosen[-1].joined(sample)
        of_keys = history if join.largest else None
        chosen.append(join.choose(sample, costs, before.get(join.role), of_keys, demand))
    return Plan(tuple(chosen))


def has_open_questions(plan: Plan[RolePlan]) -> bool:
    """Return whether a sample of the stream is needed to choose settings that the user left
    open."""
    return any(join.open_questions for join in plan.joins)


def size_plan(
    initial: Plan[RolePlan],
    sample: pa.RecordBatch,
    costs: Costs,
    former: Plan[RolePlan] | None = None,
    history: SkimmedSketch | None = None,
    *,
    one_machine: bool = False,
) -> Plan[RolePlan]:
    """Return the plan of a star with the shares of lowest cost, and with the sizes of
    ``size_star``. A plan with a single role is returned unchanged, unless its R is so small that it
    is held whole.

    sample: stream tuples, of which those of the slowest partition count. former: the plan in use,
    whose shares are kept unless others are faster by GAIN, if they were chosen from a sample.
    Otherwise only the largest R is split, unless other shares are faster by EVEN. history: see
    ``RolePlan.balance``, of the keys of the largest R; one_machine: whether all operators run on
    one machine, and so share an R held whole. Otherwise the memory of each operator includes all of
    it, because each operator may be on a different machine.
    """
    if len(initial.joins) == 1 and not _is_small(initial, one_machine):
        return initial
    plans, margin = choices(initial), EVEN
    if former is not None and any(join.owners for join in former.joins):
        plans.sort(key=lambda plan: plan.shares != former.shares)
        margin = GAIN
    if not sample.num_rows:
        plans = plans[:1]
    return size_plans(plans, sample, costs, former, history, margin, one_machine=one_machine)


def _is_small(plan: Plan[RolePlan], one_machine: bool) -> bool:
    """Return whether the only R of a plan is small, and the user named no algorithm."""
    (join,) = plan.joins
    manifest = Manifest.read(Path(join.snapshot))
    memory = plan.memory * (plan.partitions if one_machine else 1)
    return join.auto and is_small(manifest.tuple_count * manifest.tuple_bytes, memory)


def size_plans(
    plans: Sequence[Plan[RolePlan]],
    sample: pa.RecordBatch,
    costs: Costs,
    former: Plan[RolePlan] | None = None,
    history: SkimmedSketch | None = None,
    margin: float = 0.0,
    *,
    one_machine: bool = False,
) -> Plan[RolePlan]:
    """Return the plan of lowest cost, with sizes. The first one is preferred unless another one is
    faster by this margin, 0 to 1. The plans differ in their shares; see ``size_plan``."""
    sharers = plans[0].partitions if one_machine else 1
    waiting: list[str] = []  # roles that were found not to fit their share
    with ExitStack() as stack:
        parts = _Parts(sample, former, history, stack)
        while True:
            found = [parts.price(plan, costs, sharers, waiting) for plan in plans]
            best = min(found, key=lambda priced: priced.cost)
            if found[0].cost <= (1 + margin) * best.cost:
                best = found[0]
            reason = best.sizes.reason + _explained(best, found)
            sized = Plan(
                tuple(
                    _sized(join, share, sharers, reason if number == 0 else "")
                    for number, share in enumerate(best.sizes.shares)
                    for join in best.plan.joins
                    if join.role == share.role
                )
            )
            try:
                for join in sized.joins:
                    if join.whole:  # before the first task needs its files
                        join.open(sample.schema, 0).master.close()
                return sized
            except NotEnoughMemory:
                waiting.append(join.role)


class _Priced(NamedTuple):
    """A plan with the sizes that are best for it. cost: the seconds of the slowest operator for a
    tuple of the whole stream."""

    cost: float
    plan: Plan[RolePlan]
    sizes: StarSizes


@dataclass
class _Parts:
    """The parts of R with which the slowest operators join, by role and number of parts."""

    sample: pa.RecordBatch
    former: Plan[RolePlan] | None
    history: SkimmedSketch | None
    stack: ExitStack
    _roles: dict[tuple[str, int], StarRole] = field(default_factory=dict)
    _owners: dict[tuple[str, int], tuple[tuple[int, ...], int]] = field(default_factory=dict)
    _described: Described = field(default_factory=dict)

    def price(
        self, plan: Plan[RolePlan], costs: Costs, sharers: int, waiting: Sequence[str]
    ) -> _Priced:
        """Return a plan with its sizes and cost. sharers, waiting: see ``size_star``."""
        tuples, share = self._of_slowest(plan)
        first, former = plan.joins[plan.largest], self.former
        sizes = size_star(
            [self._roles[join.role, join.split] for join in plan.joins],
            tuples,
            plan.memory,
            costs,
            algorithm=AUTO if first.auto else first.algorithm,
            sharers=sharers,
            waiting=waiting,
            former=_shares(former) if former and former.shares == plan.shares else (),
            described=self._described,
        )
        return _Priced(share * sizes.seconds, plan, sizes)

    def _of_slowest(self, plan: Plan[RolePlan]) -> tuple[pa.RecordBatch, float]:
        """Describe the roles of a plan. Return the sample's tuples of the slowest partition, and
        the share of the stream, 0 to 1, of the partition with the most tuples. The slowest
        partition is the one with the slowest part of each R."""
        joins, slowest = list[RolePlan](), 0
        for join in plan.joins:
            owners, part = self._slowest(join)
            joins.append(replace(join, owners=owners))
            slowest += part * join.stride
        if not self.sample.num_rows:
            return self.sample, 1.0
        of = Plan(tuple(joins)).placement((self.sample.schema,)).partitions(self.sample)
        keyed = np.ones(len(of), bool)
        for join in joins:
            if join.split > 1 or join.largest:
                keyed &= join.keys(self.sample.schema).stream_codes(self.sample)[1]
        most = int(np.bincount(of, minlength=plan.partitions).max())
        return self.sample.filter(pa.array(keyed & (of == slowest))), most / len(of)

    def _slowest(self, join: RolePlan) -> tuple[tuple[int, ...], int]:
        """Return the owners of R's buckets, and the slowest of its parts."""
        at = join.role, join.split
        if at not in self._owners:
            before = [j for j in self.former.joins if j.role == join.role] if self.former else []
            history = self.history if join.largest else None
            join = join.balance(self.sample, before[0] if before else None, history)
            partition = join.slowest(self.sample)[0] if self.sample.num_rows else 0
            relation = self.stack.enter_context(closing(join.relation(partition)))
            columns = join.added(self.sample.schema, relation)
            self._roles[at] = StarRole(
                join.role, relation, join.on, columns, join.join_type, join.many
            )
            self._owners[at] = join.owners, join.part(partition)
        return self._owners[at]


def _explained(best: _Priced, found: Sequence[_Priced]) -> str:
    """Return a clause that says which part of each R an operator has, and how much faster that is
    than the best other shares."""
    plan = best.plan
    if plan.partitions == 1:
        return ""
    parts = " and ".join(f"1/{join.split} of {join.role}" for join in plan.joins if join.split > 1)
    clause = f"; each of {plan.partitions} operators has {parts}"
    others = [each for each in found if each is not best and math.isfinite(each.cost)]
    if not others or not best.cost:
        return clause
    other = min(others, key=lambda each: each.cost)
    instead = " x ".join(f"{j.split} for {j.role}" for j in other.plan.joins if j.split > 1)
    return f"{clause}, {other.cost / best.cost:.2f} times the rate of {instead}"


def _sized(join: RolePlan, share: RoleShare, sharers: int, reason: str) -> RolePlan:
    sized = replace(join, memory=share.memory, even=join.memory, sizes_reason=reason)
    if not share.whole:
        return sized
    return replace(
        sized,
        algorithm=HASH_JOIN.name,
        parameters={"sharers": sharers} | join.parameters,
        chosen=() if "sharers" in join.parameters else ("sharers",),
        reason=f"{join.role} is held whole" if join.auto else join.reason,
    )


def _shares(plan: Plan[RolePlan] | None) -> list[RoleShare]:
    """Return the shares of a plan with sizes; an empty list for a plan without sizes."""
    if plan is None or not all(join.even for join in plan.joins):
        return []
    return [RoleShare(join.role, join.memory, join.whole) for join in plan.joins]
