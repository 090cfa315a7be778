"""The sizes of a star in a load: how M, the order of execution and the roles held whole change a
plan. The user's original settings can be restored from the changed plan."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace

import pyarrow as pa

from semistream.cost_models import Costs
from semistream.errors import NotEnoughMemory
from semistream.joins.registry import HASH_JOIN
from semistream.settings import AUTO
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.sizing.star import RoleShare, StarRole, size_star
from semistream.sketches import SkimmedSketch


def size_plan(
    asked: Plan[RolePlan],
    sample: pa.RecordBatch,
    costs: Costs,
    former: Plan[RolePlan] | None = None,
    history: SkimmedSketch | None = None,
    *,
    one_machine: bool = False,
) -> Plan[RolePlan]:
    """Return the plan of a star with the sizes of ``size_star``. A plan with a single role is
    returned unchanged.

    sample: stream tuples, of which those of the slowest partition count. former: the plan in use;
    history: see ``RolePlan.balance``; one_machine: whether all operators run on one machine, and so
    share an R held whole. Otherwise the memory of each operator includes all of it, because each
    operator may be on a different machine.
    """
    if len(asked.joins) == 1:
        return asked
    before = {join.role: join for join in former.joins} if former is not None else {}
    placing = asked.joins[asked.placing]
    placing = placing.balance(sample, before.get(placing.role), history)
    mine, tuples = placing.slowest(sample) if sample.num_rows else (0, sample)
    sharers = asked.partitions if one_machine else 1
    waiting: list[str] = []  # roles that were found not to fit their share
    with ExitStack() as stack:
        roles = []
        for join in asked.joins:
            part = placing if join.role == placing.role else join
            relation = stack.enter_context(closing(part.relation(mine)))
            columns = join.added(sample.schema, relation)
            roles.append(StarRole(join.role, relation, join.on, columns, join.join_type, join.many))
        while True:
            sizes = size_star(
                roles,
                tuples,
                asked.memory,
                costs,
                algorithm=AUTO if placing.auto else placing.algorithm,
                sharers=sharers,
                waiting=waiting,
                former=_shares(former),
            )
            plan = Plan(
                tuple(
                    _sized(join, share, sharers, sizes.reason if number == 0 else "")
                    for number, share in enumerate(sizes.shares)
                    for join in asked.joins
                    if join.role == share.role
                )
            )
            try:
                for join in plan.joins:
                    if join.whole:  # before the first task needs its files
                        join.open(sample.schema, mine).master.close()
                return plan
            except NotEnoughMemory:
                waiting.append(join.role)


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
