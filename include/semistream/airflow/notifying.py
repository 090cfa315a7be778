"""Notifications of a job's failures, incomplete proofs, warnings and missed deadlines, through any
provider's notifiers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert
from airflow.sdk.module_loading import import_string

from semistream.airflow.deadlines import TimeOfDay
from semistream.airflow.hook import SemistreamHook
from semistream.airflow.links import airflow_url
from semistream.airflow.operators import paths
from semistream.errors import ConfigError
from semistream.job import AnyJob
from semistream.pipeline import message
from semistream.pipeline.message import Message
from semistream.workloads import load_any_job

log = logging.getLogger(__name__)


def send(notice: Message, notifiers: Sequence[Mapping[str, Any]], context: dict[str, Any]) -> None:
    """Send a message through each notifier. Templates of a notifier find the message under the name
    ``semistream``, with subject, text and html. If a notifier fails, the others are still notified,
    and then its error is raised."""
    errors = []
    for notifier in notifiers:
        try:
            arguments = {name: value for name, value in notifier.items() if name != "class"}
            import_string(notifier["class"])(**arguments)({**context, "semistream": notice})
        except Exception as e:
            log.exception("%s has not notified", notifier["class"])
            errors.append(e)
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class Addressees:
    """The people whom a job notifies. The methods are callbacks of the job's tasks."""

    job: str
    owner: str
    notifiers: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, job: AnyJob) -> Addressees:
        return cls(job.name, job.owner, job.notify)

    def on_failure(self, context: dict[str, Any]) -> None:
        """Send notifications of a task that has failed for good."""
        task = context["ti"].task_id.rpartition(".")[2]
        run, link, error = context["run_id"], _link(context), context.get("exception")
        said = message.failure(self.job, self.owner, task, run, error, link)
        send(said, self.notifiers, context)

    def on_success(self, context: dict[str, Any]) -> None:
        """Send notifications of a verification that warns. Do nothing for any other task."""
        if verified := _warning(context):
            run, names, text = context["run_id"], verified["warnings"], verified["text"]
            said = message.warning(self.job, self.owner, run, names, text, _link(context))
            send(said, self.notifiers, context)


def _warning(context: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of the task's verification if it warns, otherwise None."""
    result: dict[str, Any] = getattr(context["task"], "result", {})
    return result if result.get("warnings") else None


def _link(context: Mapping[str, Any]) -> str:
    return getattr(context["ti"], "log_url", "")


def notify_of_failure(context: dict[str, Any]) -> None:
    """Send notifications of a failed task to those whom the job of its load names."""
    for addressees in _of_load(context):
        addressees.on_failure(context)


def notify_of_warning(context: dict[str, Any]) -> None:
    """Send notifications of a verification that warns, likewise."""
    for addressees in _of_load(context) if _warning(context) else ():
        addressees.on_success(context)


def _of_load(context: Mapping[str, Any]) -> Iterator[Addressees]:
    """Yield the addressees of the job, in the directory of jobs, that is loaded under the name of
    the task's app."""
    app, here = getattr(context["task"], "app", ""), paths()
    for file in sorted(here.jobs.glob("*.yaml")):
        with suppress(ConfigError):  # the import error of its own DAG says it
            job = load_any_job(file, here)
            if app == app_of(job):
                yield Addressees.of(job)


def app_of(job: AnyJob) -> str:
    """Return the name of a job's load, unless a form or a task group gives another one."""
    return str(job.settings.get("app") or job.name)


def deadline_alert(job: AnyJob) -> DeadlineAlert | None:
    """Return the alert of a job's deadline, which a triggerer delivers; None for a job without one.

    An executor could deliver it, too, but Airflow 3.3 refuses it the connections that notifiers
    need.
    """
    if not job.deadline:
        return None
    given = {
        "job": job.name,
        "owner": job.owner,
        "app": app_of(job),
        "deadline": f"{job.deadline} {job.timezone}",
        "notifiers": [dict(notifier) for notifier in job.notify],
    }
    return DeadlineAlert(
        reference=TimeOfDay(job.deadline, job.timezone),
        interval=timedelta(0),
        callback=AsyncCallback(notify_of_deadline, given),
    )


async def notify_of_deadline(**given: Any) -> None:
    """Notify of a run that is not complete at its deadline, without holding up the triggerer."""
    await asyncio.to_thread(_notify_of_deadline, **given)


def _notify_of_deadline(
    job: str,
    owner: str,
    app: str,
    deadline: str,
    notifiers: list[dict[str, Any]],
    context: dict[str, Any],
) -> None:
    from semistream.pipeline.summary import proven

    run = context["dag_run"]
    base = airflow_url()
    link = f"{base}/dags/{run['dag_id']}/runs/{run['dag_run_id']}" if base else ""
    until = proven(app, SemistreamHook().paths)
    said = message.missed_deadline(job, owner, deadline, run["dag_run_id"], until, link)
    send(said, notifiers, context)
