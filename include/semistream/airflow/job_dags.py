"""One DAG for each job: the job's task group, on the job's schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetAll, AssetAny, AssetWatcher, CronTriggerTimetable

from semistream.airflow.files_trigger import FILES, FilesTrigger
from semistream.airflow.forms import job_form
from semistream.airflow.notifying import deadline_alert
from semistream.airflow.operators import table_asset
from semistream.airflow.task_group import SemistreamTaskGroup
from semistream.data_files import is_remote
from semistream.errors import ConfigError, SemistreamError
from semistream.job import FILE_FORMATS, AnyJob, Job
from semistream.paths import Paths
from semistream.scheduling import NO_SCHEDULE, ON_FILES, PRESETS, check_scheduling
from semistream.settings import read_yaml
from semistream.streaming.settings import load_with_settings
from semistream.yaml_lines import line_of


class JobError(SemistreamError):
    """A job's file from which no DAG can be made. The message names file, line and remedy."""


def job_dag(file: str | Path) -> DAG | None:
    """Return the DAG ``load_<job>`` of a job's file; None for a file without ``schedule:``. Raises
    JobError."""
    try:
        if "schedule" not in read_yaml(file):
            return None
        job, _ = load_with_settings(str(file), Paths.from_environment())
        return _dag(job, Path(file))
    except ConfigError as e:
        text = Path(file).read_text()
        raise JobError(
            "\n".join(f"{file}, line {line_of(text, of.parameter)}: {of}" for of in e.errors)
        ) from None


def _dag(job: AnyJob, file: Path) -> DAG:
    check_scheduling(job)
    with DAG(
        dag_id=f"load_{job.name}",
        description=job.description.partition("\n")[0] or f"Load {job.fact_table}",
        doc_md="\n\n".join(part for part in (job.description, f"Job: `{file}`") if part),
        schedule=schedule_of(job),
        catchup=False,
        tags=["semistream", *job.tags],
        params=job_form(job),
        max_active_runs=2,  # one that loads, and one that is skipped meanwhile
        deadline=deadline_alert(job),
    ) as dag:
        SemistreamTaskGroup(file, from_form=True, prefix_group_id=False)
    return dag


def schedule_of(job: AnyJob) -> Any:
    """Return the schedule of a job, in the form that a DAG accepts. Raises ConfigError."""
    given = job.schedule
    if given is None or given == NO_SCHEDULE:
        return None
    if given == ON_FILES:
        return AssetAny(*(arrivals(job, number) for number in range(len(job.streams))))
    if isinstance(given, dict):
        ((how, assets),) = given.items() if len(given) == 1 else ((None, ()),)
    else:
        how, assets = "all", () if isinstance(given, str) else given
    if not isinstance(given, str):
        if not assets:
            raise ConfigError(
                "schedule",
                "must name assets, in a list, or under all or any",
                given,
                "For instance schedule: [dim_product].",
            )
        found = [asset_of(name) for name in assets]
        return (AssetAny if how == "any" else AssetAll)(*found)
    return given if given in PRESETS else CronTriggerTimetable(given, timezone=job.timezone)


def asset_of(name: str) -> Asset:
    """Return the asset with this name or URI. A plain name denotes a table of the warehouse."""
    return Asset(name) if "://" in name else table_asset(name)


def arrivals(job: AnyJob, number: int) -> Asset:
    """Return the asset for the files of a job's stream with this number. A trigger watches the
    files. Raises ConfigError for a stream that is not read from local files."""
    stream, side = job.streams[number], job.stream_names[number]
    if stream.format not in FILE_FORMATS or not stream.path or is_remote(stream.path):
        raise ConfigError(
            "schedule",
            f"may be on_files only if {side} has the path of a local directory of files",
            ON_FILES,
            "Give a cron expression, or schedule: '@continuous'.",
        )
    watched = FilesTrigger(
        stream.path, stream.format, stream.options, float(job.settings.get("min_age", 0))
    )
    uri = f"{FILES}/{job.name}" + ("" if isinstance(job, Job) else f"/{side}")
    return Asset(uri, watchers=[AssetWatcher(f"files of {job.name} {side}", trigger=watched)])
