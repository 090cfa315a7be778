"""The cost models' split of M for a load of a job with several roles."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing

from semistream.cost_models import Costs
from semistream.job import added_columns
from semistream.joins.spec import output_names
from semistream.master.published import snapshot_root
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.sizing.sizing_input import SizingInput
from semistream.sizing.star import StarRole, size_star


def splits(
    case: SizingInput, places: Paths, budgets: Iterable[int], costs: Costs
) -> dict[int, str]:
    """Return by M, in bytes, a text that says how M is split among the roles of the case's job, and
    why. The result is empty for a job with one role. Each operator has the P-th part of M, and all
    operators run on this machine. Raises ConfigError for a dimension that was not published."""
    roles = case.job.roles
    if len(roles) == 1:
        return {}
    with ExitStack() as stack:
        masters = [
            stack.enter_context(
                closing(
                    open_snapshot(snapshot_root(places.snapshots, role.dimension.name, role.key))
                )
            )
            for role in roles
        ]
        columns = added_columns(roles, [master.schema.names for master in masters])
        members = []
        for role, master, added in zip(roles, masters, columns, strict=True):
            assert added is not None
            unnamed = [c for c, name in added.items() if c == name]
            names = added | output_names(case.sample.schema, role.name, unnamed)
            members.append(
                StarRole(
                    role.name,
                    master,
                    tuple(role.on.items()),
                    names,
                    role.join_type or "inner",
                    role.many,
                )
            )
        return {
            int(memory): size_star(
                members, case.sample, int(memory) // case.partitions, costs, sharers=case.partitions
            ).reason
            for memory in budgets
        }
