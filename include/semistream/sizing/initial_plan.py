"""The initial plan of a load. It has what the settings give; the cost models then choose what the
settings leave open."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from semistream.column_format import key_forms
from semistream.errors import ConfigError
from semistream.job import Job, Role, added_columns
from semistream.joins.star import check_unique, execution_order
from semistream.master.manifest import Manifest
from semistream.settings import JoinSettings
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan


def initial_plan(
    settings: JoinSettings,
    job: Job,
    versions: Sequence[Path],
    partitions: int,
    unknown: Callable[[Role], int | None],
    reason: str = "",
) -> Plan[RolePlan]:
    """Return the initial plan of a load. Raises ConfigError for a plan that cannot be executed.

    versions: the directories of the dimensions' versions; unknown: a function that returns
    ``RolePlan.unknown`` of a role; reason: why this algorithm.
    """
    initial = _initial_joins(settings, job.roles, versions, partitions, reason)
    joins = tuple(_checked(join, job, unknown) for join in initial)
    execution_order([join.kind for join in joins])  # there must be one
    return Plan(joins)


def partitions_of(versions: Sequence[Path], wanted: int, cores: int) -> int:
    """Return P, the number of partitions: as many as wanted, or one for each core, if R has so
    many buckets."""
    manifests = [Manifest.read(version) for version in versions]
    return wanted or min(cores, manifests[_largest(manifests, 1)].bucket_count)


def _initial_joins(
    settings: JoinSettings,
    roles: Sequence[Role],
    versions: Sequence[Path],
    partitions: int,
    reason: str,
) -> list[RolePlan]:
    """Return the plan of the join with each role. Only the largest R is split."""
    manifests = [Manifest.read(version) for version in versions]
    columns = added_columns(roles, [manifest.schema.names for manifest in manifests])
    most = _largest(manifests, partitions)
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


def _checked(initial: RolePlan, job: Job, unknown: Callable[[Role], int | None]) -> RolePlan:
    """Return the plan of a join, completed. Raises ConfigError if the version does not fit it."""
    role, manifest = job.role(initial.role), Manifest.read(Path(initial.snapshot))
    if initial.split > (buckets := manifest.bucket_count):
        raise ConfigError(
            "partitions",
            f"must be at most {buckets}, the buckets of the master snapshot",
            initial.partitions,
            "Ask for fewer, or publish the snapshot with more buckets.",
        )
    _check_forms(job, role, manifest)
    plan = replace(initial, unknown=unknown(role))
    if plan.share > 1:
        # rows with one business key become one row when they are provisioned
        unique = {*role.dimension.business_key} <= {*role.key} or manifest.unique
        check_unique(plan.kind, unique, role.key)
    return plan


def _check_forms(job: Job, role: Role, manifest: Manifest) -> None:
    """Raise ConfigError if the stream's key texts are normalised differently than the
    snapshot's."""
    for column, key in role.on.items():
        form = key_forms([column], job.stream.formats).get(column, {})
        if form != (known := manifest.formats.get(key, {})):
            raise ConfigError(
                f"stream.formats.{column}",
                "must give keys the form that they have in the "
                f"master's snapshot {manifest.name} {manifest.version}, {json.dumps(known)}",
                json.dumps(form),
                "Declare it so in the job, or provision the master data "
                "with the job as it is now, under another name.",
            )


def _largest(manifests: Sequence[Manifest], partitions: int) -> int:
    """Return the number of the role with the largest R of those that can be split into so many
    parts. manifests: of the dimensions' versions."""
    return max(
        range(len(manifests)),
        key=lambda i: (
            manifests[i].bucket_count >= partitions,
            manifests[i].tuple_count * manifests[i].tuple_bytes,
        ),
    )
