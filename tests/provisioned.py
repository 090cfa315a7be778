"""Provisioning the dimension of a job of one role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from semistream.job import Job
from semistream.master.manifest import Manifest
from semistream.provisioning import dimensions, publishing
from semistream.workloads.jobs import JoinedDimension


def provision(job: Job, engine: Engine, **options: Any) -> dimensions.ProvisionResult:
    role = job.role("")
    joined = JoinedDimension(role.dimension, (role,), (role.key,))
    return dimensions.provision(joined, engine, **options)


def publish(job: Job, engine: Engine, snapshots: Path, **options: Any) -> tuple[Manifest, bool]:
    role = job.role("")
    return publishing.publish(role.dimension.name, role.key, engine, snapshots, **options)
