"""The provisioning of a job's dimensions by tasks, one a dimension, without Airflow."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from semistream import workloads
from semistream.durable import write_text
from semistream.errors import ConfigError
from semistream.job import Job
from semistream.master.published import read_manifest, snapshot_root
from semistream.paths import Paths
from semistream.pipeline.input_checks import check_inputs
from semistream.provisioning import publishing
from semistream.provisioning.dimensions import provision as upsert
from semistream.settings import Publishing
from semistream.streaming.stream_schemas import former_schema
from semistream.warehouse import open_warehouse
from semistream.workloads.jobs import JoinedDimension

log = logging.getLogger(__name__)


def dimensions(job: str, paths: Paths) -> list[str]:
    """Return the names of a job's dimensions, or the dimension's name if ``job`` names a dimension.
    Raises ConfigError."""
    return [joined.dimension.name for joined in workloads.load_dimensions(job, paths)]


def changed_dimensions(job: str, paths: Paths) -> list[str]:
    """Return the names of a job's dimensions that must be provisioned. A dimension must be
    provisioned if its files or its declaration have changed since the last time, if a snapshot
    differs from its table, or if its source is a table, whose changes only reading shows. Raises
    ConfigError."""

    def is_current(joined: JoinedDimension) -> bool:
        mark = _mark_of(joined.dimension.name, paths)
        source = source_of(joined, paths)
        if source is None or not mark.exists() or mark.read_text() != source:
            return False
        name = joined.dimension.name
        try:
            table = publishing.open_dimension(engine, name)
        except ConfigError:  # another warehouse, or an emptied one
            return False
        return not any(
            publishing.needs_publishing(engine, table, snapshot_root(paths.snapshots, name, key))
            for key in joined.keys
        )

    with open_warehouse(paths.warehouse_url) as engine:
        return [
            joined.dimension.name
            for joined in workloads.load_dimensions(job, paths)
            if not is_current(joined)
        ]


def source_of(joined: JoinedDimension, paths: Paths) -> str | None:
    """Return a digest of a dimension's declaration, its keys, and the size and time of modification
    of each of its files. Return None if the source is a table, or a file that is not local."""
    dimension = joined.dimension
    path = Path(dimension.path or "")
    if not dimension.path or not path.exists():
        return None
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    seen = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    keys = sorted(sorted(key) for key in joined.keys)
    of = [paths.warehouse_url, dimension.model_dump(mode="json"), keys, seen]
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()


def _mark_of(name: str, paths: Paths) -> Path:
    """Return the file that stores the digest ``source_of`` of a dimension's last provisioning."""
    return paths.snapshots / name / "provisioned"


def provision_changed(
    job: str, name: str, memory: str, paths: Paths, publish_large: Callable[[], Any]
) -> dict[str, Any]:
    """Upsert a dimension's rows into its table and publish its snapshots. Return the counts of rows
    and the result of ``published``.

    memory: bytes that publishing may use; publish_large: a function that publishes the snapshots of
    a large dimension by Spark. Raises ConfigError, before anything is written, for a job whose
    stream cannot be read or does not fit the dimension.
    """
    joined = _joined(job, name, paths)
    if joined.roles:
        _check_stream(workloads.load_job(job, paths), joined, paths)
    source = source_of(joined, paths)  # before it is read
    counts = provision(job, name, paths)
    if not publish(job, name, memory, paths):
        publish_large()
    versions = published(job, name, paths)
    if source is not None and source == source_of(_joined(job, name, paths), paths):
        write_text(_mark_of(name, paths), source)
    return counts | versions


def _check_stream(job: Job, joined: JoinedDimension, paths: Paths) -> None:
    """Raise ConfigError if a job's stream cannot be read or does not fit a dimension."""
    # the columns of an earlier load count, as the newest file may still be growing
    former = former_schema(paths.checkpoints / (job.settings.get("app") or job.name), 0)
    with open_warehouse(paths.warehouse_url) as engine:
        sink = job.settings.get("sink", "sql")
        check_inputs(job, [joined], engine, former=former, sink=sink)


def provision(job: str, name: str, paths: Paths) -> dict[str, Any]:
    """Upsert a dimension's rows into its table. Return the counts of rows. job: the job that uses
    the dimension, or the dimension's name."""
    with open_warehouse(paths.warehouse_url) as engine:
        return asdict(upsert(_joined(job, name, paths), engine))


def publish(job: str, name: str, memory: str, paths: Paths) -> bool:
    """Publish a dimension's snapshots in this process if the dimension has changed and is small.
    Return False for a large dimension that has changed, because Spark publishes it faster.

    memory: bytes that publishing may use.
    """
    keys, given = _joined(job, name, paths).keys, Publishing.load({"memory": memory})
    with open_warehouse(paths.warehouse_url) as engine:
        table = publishing.open_dimension(engine, name)
        if not table.is_small and any(
            publishing.needs_publishing(engine, table, snapshot_root(paths.snapshots, name, key))
            for key in keys
        ):
            return False
        for key in keys:
            manifest, changed = publishing.publish(
                name, key, engine, paths.snapshots, memory=int(given.memory)
            )
            log.info(
                "%s by %s, %s, is %s",
                name,
                ", ".join(key),
                manifest.version,
                "published" if changed else "current: nothing to publish",
            )
    return True


def published(job: str, name: str, paths: Paths) -> dict[str, Any]:
    """Return the snapshots of a dimension that loads read from now on, by the columns of their
    keys. The result has no ``job`` if the dimension was provisioned outside of a job. Raises
    ConfigError if there is no snapshot for a key of the job."""
    joined = _joined(job, name, paths)
    versions, rows = {}, 0
    for key in joined.keys:
        root = snapshot_root(paths.snapshots, name, key)
        if (manifest := read_manifest(root)) is None:
            raise ConfigError(
                "snapshot", "must have been published", str(root), "Run `semistream provision JOB`."
            )
        versions[",".join(key)] = manifest["version"]
        rows = manifest["tuple_count"]
    return {
        **({"job": job} if joined.roles else {}),
        "dimension": name,
        "versions": versions,
        "tuples": rows,
    }


def _joined(job: str, name: str, paths: Paths) -> JoinedDimension:
    for joined in workloads.load_dimensions(job, paths):
        if joined.dimension.name == name:
            return joined
    raise ConfigError(
        "dimension",
        f"must be one of the job {job}",
        name,
        f"They are: {', '.join(dimensions(job, paths))}.",
    )
