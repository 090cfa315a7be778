"""A job as a task group: provision, load, verify."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import AssetAlias, TaskGroup, TriggerRule, task

from semistream import workloads
from semistream.airflow.hook import DEFAULT
from semistream.airflow.notifying import Addressees
from semistream.airflow.operators import (
    PROPAGATED,
    TUNED,
    LoadOperator,
    ProvisionOperator,
    StreamStreamLoadOperator,
    VerifyOperator,
    paths,
)
from semistream.airflow.retries import RETRIES
from semistream.job import AnyJob, Job
from semistream.paths import Paths
from semistream.scheduling import check_notifiers
from semistream.streaming.settings import checked_settings
from semistream.workloads.jobs import SHIPPED, job_file


class SemistreamTaskGroup(TaskGroup):
    """The tasks of a job, for use in any DAG.

    provision: upserts the dimensions whose source has changed and publishes their snapshots, in one
    mapped task for each dimension; load: runs the load, or is skipped while another load of the job
    runs; verify: proves what is new, and emits an event of the fact table's asset. If a task fails
    for good, or ``verify`` warns, the addressees in the job's ``notify`` are notified.

        with DAG("nightly", schedule="@daily"):
            SemistreamTaskGroup("sales.yaml") >> report()
    """

    def __init__(
        self,
        job: str | Path,
        *,
        group_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        from_form: bool = False,
        semistream_conn_id: str = DEFAULT,
        **kwargs: Any,
    ):
        """Create the tasks.

        job: the path of a job's YAML file, which may be relative to the directory of jobs, or the
        name of a shipped job. group_id: by default the job's name. settings: the load's settings
        that replace those in the job. from_form: whether the load takes its settings from the DAG's
        form. semistream_conn_id: connection of the type Semistream. Raises ConfigError for a job,
        or settings, that cannot work.
        """
        file = find_job(job)
        loaded = workloads.load_any_job(file, Paths.from_environment())
        given = checked_settings(loaded, file, loaded.settings | dict(settings or {}))
        check_notifiers(loaded.notify)
        defaults = dict(RETRIES)
        if loaded.owner:
            defaults["owner"] = loaded.owner
        if loaded.notify:
            notified = Addressees.of(loaded)
            defaults["on_failure_callback"] = notified.on_failure
            defaults["on_success_callback"] = notified.on_success
        super().__init__(
            group_id=group_id or loaded.name,
            tooltip=loaded.description,
            default_args=defaults | kwargs.pop("default_args", {}),
            **kwargs,
        )
        with self:
            _tasks(loaded, file, None if from_form else given, semistream_conn_id)


def _tasks(job: AnyJob, file: str, given: dict[str, Any] | None, connection: str) -> None:
    """Create the tasks of a job. given: the load's settings; None takes those of the DAG's form."""
    common: dict[str, Any] = {"task_id": "load", "job": file, "given": given, "if_running": "skip"}
    common |= {"semistream_conn_id": connection}
    common |= {"trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS}
    app = f"{{{{ params.app or {job.name!r} }}}}" if given is None else given.get("app") or job.name
    verify = VerifyOperator(task_id="verify", job=file, app=app, semistream_conn_id=connection)
    if not isinstance(job, Job):

        @task
        def prepare() -> None:
            """Make the missing data files of a shipped job."""
            workloads.prepare_target(file, paths(connection))

        prepare() >> StreamStreamLoadOperator(outlets=[PROPAGATED], **common) >> verify
        return

    @task
    def changed() -> list[str]:
        """Return the dimensions that must be provisioned: those whose source has changed."""
        from semistream.pipeline import provision_steps

        workloads.prepare_target(file, paths(connection))
        return provision_steps.changed_dimensions(file, paths(connection))

    names = changed()
    provision = ProvisionOperator.partial(
        task_id="provision",
        job=file,
        semistream_conn_id=connection,
        outlets=[AssetAlias(f"dimensions of {job.name}")],
        map_index_template="{{ task.dimension }}",
        max_active_tis_per_dag=1,
    ).expand(dimension=names)
    load = LoadOperator(inlets=[TUNED], **common)
    names >> [provision, load]
    provision >> load >> verify


def find_job(job: str | Path) -> str:
    """Return the name of a job for all of its tasks, whose connection may give another home: the
    name of a shipped job, or the path of the file that is found here."""
    name = str(job)
    return name if name in SHIPPED else str(job_file(job, Paths.from_environment()).absolute())
