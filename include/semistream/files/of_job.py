"""A job's files as those of a join without a warehouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.ddl import type_name
from semistream.errors import ConfigError
from semistream.files.inference import TYPES
from semistream.files.opening import FORMATS
from semistream.settings import JoinSettings
from semistream.workloads.jobs import load_job

# options that have no effect on a join of all files
IDLE = {"maxfilespertrigger", "maxbytespertrigger", "latestfirst", "header=true"}
NAMES = {kind: name for name, kind in TYPES.items()}


def join_of_job(path: str | Path) -> dict[str, Any]:
    """Return the join of a job's stream with its dimensions, as ``JoinFiles`` takes it. Raises
    ConfigError for a job that a join of files cannot do."""
    job = load_job(path)
    stream = job.stream
    if stream.format not in FORMATS.values() or not stream.path:
        raise ConfigError(
            "stream.format",
            f"must be {', '.join(sorted({*FORMATS.values()}))}, with a path, for a join of files",
            stream.format,
            f"`semistream load {path}` loads the job into the warehouse.",
        )
    options = {
        name: value
        for name, value in stream.options.items()
        if not {name.lower(), f"{name}={value}".lower()} & IDLE
    }
    # of files in a directory, their names tell it
    kind = {"stream_format": stream.format} if Path(stream.path).is_file() else {}
    own = {k: v for k, v in job.settings.items() if k in JoinSettings.model_fields}
    return {
        **own,
        **kind,
        "stream": stream.path,
        "stream_options": options,
        "types": {field.name: _type_name(field) for field in stream.declared or ()},
        "formats": stream.model_dump(mode="json")["formats"],
        "dimensions": {
            role.name: role.model_dump(mode="json", exclude_unset=True) for role in job.roles
        },
    }


def _type_name(field: pa.Field) -> str:
    """Return the name of a column's type, as the setting ``types`` of a join of files spells it.
    Raises ConfigError for a type that has no name there."""
    if pa.types.is_decimal(field.type):
        return f"decimal({field.type.precision},{field.type.scale})"
    if field.type not in NAMES:
        raise ConfigError(
            "stream.columns",
            "must have types that a join of files gives to columns",
            f"{field.name}: {type_name(field.type)}",
            f"They are {', '.join(TYPES)} and decimal; or leave the columns out in a copy.",
        )
    return NAMES[field.type]
