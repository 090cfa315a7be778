"""The trigger forms of loads."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from semistream.airflow.operators import BYTES, JOIN_MEMORY, form
from semistream.job import AnyJob, Job, StreamStreamJob
from semistream.joins.registry import REGISTRY
from semistream.paths import Paths
from semistream.settings import AUTO
from semistream.streaming.settings import LoadSettings, StreamStreamSettings

OPEN = "Run Parameters"  # the section that Airflow shows unfolded
SECTIONS = {
    OPEN: ("job", "memory", "trigger"),
    "Data": ("app", "sink"),
    "Join": ("algorithm", "join_type", "parameters", "partitions"),
    "Rows": ("max_output_rows", "key_sketch"),
    "Stop policy": ("stop_after", "max_wait"),
    "Source": (
        "source_format",
        "source_path",
        "source_options",
        "source_options_file",
        "source_columns",
        "max_files",
        "max_rows",
        "min_age",
    ),
    "Failure": ("retry",),
}
PAIR_SECTIONS = {
    OPEN: ("job", "memory", "trigger"),
    "Data": ("app", "sink"),
    "Join": ("algorithm", "parameters", "partitions"),
    "Stop policy": ("stop_after", "end"),
    "Source": ("max_files", "max_rows", "min_age"),
    "Failure": ("retry",),
}
BOTH: dict[str, dict[str, Any]] = {
    "memory": BYTES | {"default": JOIN_MEMORY},
    "trigger": {"examples": ["availableNow", "5 seconds", "1 minute"]},
    "sink": {"examples": ["sql"]},
}
ONE_STREAM: dict[str, dict[str, Any]] = BOTH | {
    "job": {"default": "tpch", "minLength": 1},
    "algorithm": {
        "enum": [AUTO, *REGISTRY],
        "values_display": {AUTO: "auto: the cost models choose"}
        | {a.name: a.title for a in REGISTRY.values()},
    },
    "parameters": {
        "description": 'Further parameters of the algorithm as JSON, {"name": value}; see '
        "`semistream algorithms`"
    },
    "source_format": {"examples": ["parquet", "csv", "json", "kafka", "zipf", "outbox"]},
    "source_options": {
        "description": 'Source options besides the job\'s as JSON, {"name": "value"}, '
        "as Spark takes them"
    },
}
TWO_STREAMS: dict[str, dict[str, Any]] = BOTH | {
    "job": {"default": "tpch_orders", "examples": list(StreamStreamJob.shipped), "minLength": 1},
    "algorithm": {"enum": ["pjoin", "xjoin"]},
    "parameters": {
        "description": 'Further parameters of the algorithm as JSON, {"name": value}: '
        "purge_threshold, propagate (push or pull), propagate_count, "
        "propagate_seconds, index (lazy or eager)"
    },
}


def offered() -> list[str]:
    """Return the jobs that a form offers: the shipped jobs, and the jobs in the jobs' directory."""
    files = Paths.from_environment().jobs.glob("*.yaml")
    return [*Job.shipped, *map(str, sorted(files))]


def load_form() -> dict[str, Param]:
    """Return the form of a load of one stream."""
    given = ONE_STREAM | {"job": ONE_STREAM["job"] | {"examples": offered()}}
    return form(LoadSettings, SECTIONS, **given)


def stream_stream_form() -> dict[str, Param]:
    """Return the form of a load of two streams."""
    return form(StreamStreamSettings, PAIR_SECTIONS, **TWO_STREAMS)


def job_form(job: AnyJob) -> dict[str, Param]:
    """Return the form of a job's load. The defaults are the job's settings."""
    params = load_form() if isinstance(job, Job) else stream_stream_form()
    for name, value in job.settings.items():
        if name in params:
            # the form takes a number of bytes as text
            params[name].value = str(value) if name == "memory" else value
    return {name: param for name, param in params.items() if name != "job"}
