"""Notifications of a job's failures, incomplete proofs and missed deadlines, through any provider's
notifiers."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert
from airflow.sdk.module_loading import import_string

from semistream.airflow.deadlines import TimeOfDay
from semistream.airflow.links import airflow_url
from semistream.airflow.operators import places
from semistream.errors import ConfigError
from semistream.job import AnyJob
from semistream.pipeline import message
from semistream.pipeline.message import Message
from semistream.workloads import load_any_job

log = logging.getLogger(__name__)


def check_notifiers(notifiers: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for a notifier whose module is not installed. The module is not imported,
    because an import may take long."""
    for number, notifier in enumerate(notifiers):
        module = str(notifier["class"]).rpartition(".")[0]
        found = None
        with suppress(ModuleNotFoundError):
            found = importlib.util.find_spec(module)
        if found is None:
            raise ConfigError(
                f"notify.{number}.class",
                "must be the import path of a notifier that is installed",
                notifier["class"],
                "Install the provider that has it, or correct the path.",
            )


def send(said: Message, notifiers: Sequence[Mapping[str, Any]], context: dict[str, Any]) -> None:
    """Send a message through each notifier. Templates of a notifier find the message under the name
    ``semistream``, with subject, text and html. If a notifier fails, the others are still notified,
    and then its error is raised."""
    errors = []
    for notifier in notifiers:
        try:
            arguments = {name: value for name, value in notifier.items() if name != "class"}
            import_string(notifier["class"])(**arguments)({**context, "semistream": said})
        except Exception as e:
            log.exception("%s has not notified", notifier["class"])
            errors.append(e)
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class FailureCallback:
    """A callback that sends notifications when a task has failed for good."""

    job: str
    owner: str
    notifiers: tuple[Mapping[str, Any], ...]

    def __call__(self, context: dict[str, Any]) -> None:
        ti = context["ti"]
        said = message.failure(
            self.job,
            self.owner,
            ti.task_id.rpartition(".")[2],
            context["run_id"],
            context.get("exception"),
            getattr(ti, "log_url", ""),
        )
        send(said, self.notifiers, context)


def notify_of_load(context: dict[str, Any]) -> None:
    """Send notifications of a failed task to those whom the job of its load names: the job in the
    directory of jobs that is loaded under the name of the task's app. Without one, do nothing."""
    app, here = getattr(context["task"], "app", ""), places()
    for file in sorted(here.jobs.glob("*.yaml")):
        with suppress(ConfigError):  # the import error of its own DAG says it
            job = load_any_job(file, here)
            if app == (job.settings.get("app") or job.name):
                FailureCallback(job.name, job.owner, job.notify)(context)


def deadline_alert(job: AnyJob) -> DeadlineAlert | None:
    """Return the alert of a job's deadline, which an executor that supports callbacks delivers;
    None for a job without one."""
    if not job.deadline:
        return None
    given = {
        "job": job.name,
        "owner": job.owner,
        "deadline": f"{job.deadline} {job.timezone}",
        "notifiers": [dict(notifier) for notifier in job.notify],
    }
    return DeadlineAlert(
        reference=TimeOfDay(job.deadline, job.timezone),
        interval=timedelta(0),
        callback=SyncCallback(notify_of_deadline, given),
    )


def notify_of_deadline(
    job: str, owner: str, deadline: str, notifiers: list[dict[str, Any]], context: dict[str, Any]
) -> None:
    """Notify of a run that is not complete at its deadline."""
    run = context["dag_run"]
    base = airflow_url()
    link = f"{base}/dags/{run['dag_id']}/runs/{run['dag_run_id']}" if base else ""
    said = message.missed_deadline(job, owner, deadline, run["dag_run_id"], link)
    send(said, notifiers, context)
