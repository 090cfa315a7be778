"""The shares of a star: into how many parts P_i each large R is split, P = P_1 x P_2 x ...
(`partitioning.py`). An operator then reads the P_i-th part of R_i, and all operators together read
R_i P / P_i times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from semistream.master.manifest import Manifest
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan

MOST_SPLIT = 3  # roles that are considered, those with the largest R


def choices(initial: Plan[RolePlan]) -> list[Plan[RolePlan]]:
    """Return the plan with each choice of shares, first the plan as it is, in which only the
    largest R is split.

    The largest R is always split, so that nothing is to be chosen if P is prime. Another one is
    large if it exceeds the memory of an operator. No R has more parts than buckets.
    """
    first, *others = sorted(initial.joins, key=lambda join: not join.largest)
    manifests = {join.role: Manifest.read(Path(join.snapshot)) for join in initial.joins}
    size = {role: of.tuple_count * of.tuple_bytes for role, of in manifests.items()}
    large = [join for join in others if size[join.role] > initial.memory]
    large = sorted(large, key=lambda join: -size[join.role])[: MOST_SPLIT - 1]
    roles = [join.role for join in (first, *large)]
    most = [manifests[role].bucket_count for role in roles]
    found = [
        with_shares(initial, dict(zip(roles, shares, strict=True)))
        for shares in products(initial.partitions, most)
        if 1 < shares[0] < initial.partitions
    ]
    return [initial, *found]


def products(count: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a number as a product. most: the largest value of each factor."""
    if not most:
        yield from [()] if count == 1 else []
        return
    for factor in range(min(count, most[0]), 0, -1):
        if count % factor == 0:
            for others in products(count // factor, most[1:]):
                yield (factor, *others)


def with_shares(initial: Plan[RolePlan], shares: Mapping[str, int]) -> Plan[RolePlan]:
    """Return the plan with the R of each role split into so many parts, by default one. Their
    product is P."""
    joins, stride = dict[int, RolePlan](), 1
    for join in sorted(initial.joins, key=lambda join: (not join.largest, join.number)):
        parts = shares.get(join.role, 1)
        axis = stride if parts > 1 else 0
        joins[join.number] = replace(join, parts=parts, stride=axis, owners=())
        stride *= parts
    return Plan(tuple(joins[join.number] for join in initial.joins))
