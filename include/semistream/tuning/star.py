"""The cost models' choice of shares, and their split of M, for a load of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semistream.cost_models import Costs
from semistream.master.published import snapshot_root
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.settings import JoinSettings
from semistream.sizing.initial_plan import initial_plan
from semistream.sizing.sizing_input import SizingInput
from semistream.sizing.star_plan import size_plan


@dataclass(frozen=True)
class RolesSizes:
    """The sizes of a load of all roles. shares: by role, the parts into which its dimension is
    split; reason: how M is split among the roles, and why."""

    shares: dict[str, int]
    reason: str


def splits(
    sizing: SizingInput, paths: Paths, budgets: Iterable[int], costs: Costs
) -> dict[int, RolesSizes]:
    """Return the sizes by M, in bytes. For a job with one role, the result has only an M in which
    its R is held whole. Each operator has the P-th part of M, and all operators run on this
    machine. Raises ConfigError for a dimension that was not published."""
    roles = sizing.job.roles
    versions = [sizing.snapshot] if len(roles) == 1 else []
    for role in roles if len(roles) > 1 else ():
        master = open_snapshot(snapshot_root(paths.snapshots, role.dimension.name, role.key))
        master.close()
        versions.append(master.directory)
    found = dict[int, RolesSizes]()
    for memory in budgets:
        settings = JoinSettings.load({"memory": memory})
        initial = initial_plan(settings, sizing.job, versions, sizing.partitions, lambda _: None)
        plan = size_plan(initial, sizing.sample, costs, one_machine=True)
        if reason := plan.joins[0].sizes_reason:
            found[memory] = RolesSizes(plan.shares, reason)
    return found
