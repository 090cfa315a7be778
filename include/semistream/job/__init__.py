"""Jobs: their streams, the dimensions that they are joined with, and the table for the result."""

from __future__ import annotations

from typing import Any

from semistream.job.dimensions import (
    UNKNOWN,
    Dimension,
    Role,
    added_columns,
    check_same,
    surrogate_key,
)
from semistream.job.one_stream import Job
from semistream.job.short_form import SHORT_FORM, as_given, with_roles
from semistream.job.streams import FILE_FORMATS, StreamSpec
from semistream.job.two_streams import (
    SIDES,
    SideSpec,
    StreamStreamJob,
    WatermarkSpec,
    WithinSpec,
    parse_total,
)

__all__ = [
    "FILE_FORMATS",
    "SHORT_FORM",
    "SIDES",
    "UNKNOWN",
    "AnyJob",
    "Dimension",
    "Job",
    "Role",
    "SideSpec",
    "StreamSpec",
    "StreamStreamJob",
    "WatermarkSpec",
    "WithinSpec",
    "added_columns",
    "as_given",
    "check_same",
    "job_of",
    "parse_total",
    "surrogate_key",
    "with_roles",
]

AnyJob = Job | StreamStreamJob


def job_of(values: dict[str, Any]) -> AnyJob:
    """Return the job that a mapping describes. The job has two streams if the mapping has ``left``
    or ``right``. Raises ConfigError for a wrong mapping."""
    two = "left" in values or "right" in values
    return StreamStreamJob.load(values) if two else Job.load(values)
