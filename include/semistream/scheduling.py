"""When a job's loads run in Airflow, who is responsible for them, and who is notified."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field

from semistream.errors import ConfigError
from semistream.settings import Names, Settings

ON_FILES, NO_SCHEDULE = "on_files", "none"
PRESETS = ("@once", "@continuous")  # Airflow's presets that are no cron expressions
CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")

Schedule = str | tuple[str, ...] | dict[Literal["all", "any"], tuple[str, ...]]


def _time(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):  # what YAML 1.1 makes of 16:00
        value = f"{value // 60:02}:{value % 60:02}"
    if value is not None and not (isinstance(value, str) and TIME.fullmatch(value)):
        raise ConfigError(
            "deadline", "must be a time of day, HH:MM", value, "Give for instance '06:00'."
        )
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, OSError, ValueError):  # a KeyError for a name that is none
        raise ConfigError(
            "timezone", "must be a time zone", value, "Give for instance Europe/Vienna."
        ) from None
    return value


def _notifiers(value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    for number, notifier in enumerate(value):
        if not CLASS.fullmatch(str(notifier.get("class"))):
            raise ConfigError(
                f"notify.{number}.class",
                "must be the import path of a notifier",
                notifier.get("class"),
                "For instance airflow.providers.smtp.notifications.smtp.SmtpNotifier.",
            )
    return value


class Scheduling(Settings):
    """The settings of a job that the ledger does not keep. All but ``settings`` are Airflow's."""

    description: str = Field(
        "", description="What the job loads: the DAG's description and its page of documentation"
    )
    owner: str = Field("", description="Who is responsible for the job: the owner of its tasks")
    tags: Names = Field((), description="Tags of the DAG")
    schedule: Schedule | None = Field(
        None,
        description="When the job is loaded: a cron expression, @hourly and the like, on_files "
        "(when files arrive in the stream's directory), none (by hand only), or the assets whose "
        "events start it: a list of all, {all: […]} or {any: […]}",
    )
    timezone: Annotated[str, AfterValidator(_zone)] = Field(
        "UTC", description="Time zone of schedule and deadline"
    )
    deadline: Annotated[str | None, BeforeValidator(_time)] = Field(
        None,
        description="Time of day, HH:MM, by which a run is to be complete; those in notify are "
        "notified when it is not",
    )
    notify: Annotated[tuple[dict[str, Any], ...], AfterValidator(_notifiers)] = Field(
        (),
        description="Notifiers for a failure, an incomplete proof, a warning and a missed "
        "deadline: each has a class, the import path of an Airflow notifier, and that class's "
        "arguments",
    )
    settings: dict[str, Any] = Field(
        {},
        description="Settings of the job's loads, which an option of the command line or the form "
        "in Airflow replaces: memory, trigger, max_wait, …",
    )


def check_scheduling(job: Scheduling) -> None:
    """Raise ConfigError for what Airflow would refuse. Without Airflow, which has the reader of
    cron expressions, an expression's fields are only counted, and notifiers are not looked for."""
    if job.deadline and not job.notify:
        raise ConfigError(
            "deadline", "needs notify", job.deadline, "Name a notifier, or leave it out."
        )
    if isinstance(job.schedule, str) and not _is_schedule(job.schedule):
        raise ConfigError(
            "schedule",
            "must be a cron expression of five fields, @hourly and the like, on_files, none, or "
            "a list of assets",
            job.schedule,
            "For instance schedule: '0 5 * * *'.",
        )
    if importlib.util.find_spec("airflow") is not None:
        check_notifiers(job.notify)


def _is_schedule(text: str) -> bool:
    if text in (ON_FILES, NO_SCHEDULE, *PRESETS):
        return True
    if text[:1] != "@" and len(text.split()) != 5:
        return False
    if importlib.util.find_spec("croniter") is None:
        return True
    import croniter  # Airflow's own

    return bool(croniter.croniter.is_valid(text))


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


SCHEDULING = set(Scheduling.model_fields)
