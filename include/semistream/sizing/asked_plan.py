"""The plan of a load as its settings ask for it, before the cost models choose what they leave
open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from semistream.job import Role, added_columns
from semistream.master.manifest import Manifest
from semistream.settings import JoinSettings
from semistream.sizing.role_plan import RolePlan


def asked_joins(
    settings: JoinSettings,
    roles: Sequence[Role],
    versions: Sequence[Path],
    partitions: int,
    reason: str = "",
) -> list[RolePlan]:
    """Return the plan of the join with each role. Only the largest R is split. versions: the
    directories of the dimensions' versions; reason: why this algorithm."""
    manifests = [Manifest.read(version) for version in versions]
    columns = added_columns(roles, [manifest.schema.names for manifest in manifests])
    most = largest(manifests, partitions)
    return [
        RolePlan(
            settings.algorithm.lower(),
            int(settings.memory) // (partitions * len(roles)),
            role.join_type or settings.join_type,
            dict(settings.parameters),
            tuple(role.on.items()),
            partitions,
            str(version),
            added,
            role.name,
            parts=0 if number == most else 1,
            stride=1 if number == most else 0,
            reason=reason,
            share=len(roles),
            auto=settings.auto,
            many=role.many,
            number=number,
            infer=role.late == "infer",
        )
        for number, (role, version, added) in enumerate(zip(roles, versions, columns, strict=True))
    ]


def largest(manifests: Sequence[Manifest], partitions: int) -> int:
    """Return the number of the role with the largest R of those that can be split into so many
    parts. manifests: of the dimensions' versions."""
    return max(
        range(len(manifests)),
        key=lambda i: (
            manifests[i].bucket_count >= partitions,
            manifests[i].tuple_count * manifests[i].tuple_bytes,
        ),
    )
