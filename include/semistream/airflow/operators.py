"""The Spark app as an Airflow task. The task starts the app detached, a trigger follows the app,
and a stop lets it drain. The app survives a restart of Airflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import Asset, AssetAlias, BaseHook, BaseOperator, Param
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)
from airflow.triggers.base import BaseTrigger, TriggerEvent

from semistream import spark_apps
from semistream.airflow import spark_submit
from semistream.airflow.hook import DEFAULT, SemistreamHook
from semistream.airflow.links import LoadLink, ReportLink, SparkLink
from semistream.airflow.retries import RETRIES
from semistream.airflow.spark_submit import Submission, Target
from semistream.errors import WarehouseAway
from semistream.paths import Paths
from semistream.pipeline import drivers
from semistream.settings import MEMORY, Settings
from semistream.streaming.settings import AppSettings, LoadSettings, StreamStreamSettings
from semistream.streaming.status import request_stop

WAREHOUSE = "warehouse"  # the Airflow connection
DIMENSIONS = AssetAlias("dimensions")  # stands for the asset of each dimension table
FACT_TABLES = AssetAlias("fact_tables")  # stands for the asset of each fact table
FACTS, VERIFIED = Asset("facts_loaded"), Asset("completeness_verified")
TUNED, PROPAGATED = Asset("settings_recommended"), Asset("punctuations_propagated")
# a field of a form that takes a number of bytes
BYTES = {"type": "string", "pattern": r"^\d+(\.\d+)? *([kKMGT]i?)?[bB]?$", "minLength": 1}
JOIN_MEMORY = f"{MEMORY // 1_000_000}MB"  # the default of M, as a form shows it
SPARK = "spark_default"  # the default connection to Spark
LATEST = 50  # recommendations that a load reads
SAMPLE = 1000  # facts, and unmatched tuples, that a verification joins again


def spark_app(name: str) -> str:
    """Return the path of an app for spark-submit: semi_stream_join.py, stream_stream_join.py,
    publish_snapshot.py."""
    return str(Path(spark_apps.__file__).with_name(name))


def form(
    settings: type[Settings], sections: Mapping[str, tuple[str, ...]], **overrides: dict[str, Any]
) -> dict[str, Param]:
    """Return the trigger form of the named settings, section by section."""
    fields = settings.airflow_params(overrides)
    for field in fields.values():
        # the form treats an empty text as missing unless the schema allows null
        if field["default"] == "":
            field |= {"default": None, "type": ["null", "string"]}
    return {
        name: Param(**fields[name], section=section)
        for section, names in sections.items()
        for name in names
    }


def paths(semistream_conn_id: str = DEFAULT) -> Paths:
    """Return the paths and URLs that the connection and the environment give."""
    return SemistreamHook(semistream_conn_id).get_conn()


def table_asset(table: str) -> Asset:
    """Return the asset of a table of the warehouse: ``semistream://warehouse/fact_sales``. The
    URI's authority is the name of the Airflow connection of the warehouse, not a database address.
    """
    return Asset(f"semistream://{WAREHOUSE}/{table}")


def announce(
    context: Mapping[str, Any],
    outlets: Iterable[Asset | AssetAlias],
    table: str,
    extra: dict[str, Any],
) -> None:
    """Emit an event for each outlet. If an outlet is an alias, the event belongs to the table's
    asset."""
    for outlet in outlets:
        event = context["outlet_events"][outlet]
        if isinstance(outlet, AssetAlias):
            event.add(table_asset(table), extra=extra)
        else:
            event.extra = extra


def jobs_of(context: Mapping[str, Any]) -> list[str]:
    """Return the jobs whose dimensions triggered this run. If there are none, return the job that
    the form names. A dimension that was provisioned outside of a job names no job."""
    if context.get("triggering_asset_events"):
        return _events(context, "job")
    return [context["params"]["job"]]


def apps_of(context: Mapping[str, Any]) -> list[str]:
    """Return the apps whose loads triggered this run. If there are none, return the app given in
    the form, if any."""
    return _events(context, "app") or [app for app in [context["params"]["app"]] if app]


def recommendations(context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the recommendations of tuning sweeps, the newest first. The events are read lazily."""
    yield from (
        dict(event.extra) for event in context["inlet_events"][TUNED].ascending(False).limit(LATEST)
    )


def _events(context: Mapping[str, Any], key: str) -> list[str]:
    events = context.get("triggering_asset_events") or {}
    return sorted(
        {event.extra[key] for each in events.values() for event in each if event.extra.get(key)}
    )


class SemistreamOperator(BaseOperator):
    """A task with a connection of the type Semistream. It is tried again by the policy of
    ``RETRIES``, unless it is given another one."""

    def __init__(self, *, semistream_conn_id: str = DEFAULT, **kwargs: Any):
        super().__init__(**kwargs)
        self.retry_policy = getattr(self, "retry_policy", None) or RETRIES["retry_policy"]
        self.semistream_conn_id = semistream_conn_id

    def paths(self) -> Paths:
        """Return the paths and URLs that the operator's connection and the environment give."""
        return paths(self.semistream_conn_id)


class SparkAppOperator(SemistreamOperator):
    """An app that spark-submit runs in client mode. The app gets the warehouse's URL only through
    its environment.

    application: path of the app; name: its name in Spark; conf: Spark settings by name;
    driver_memory: short for the setting spark.driver.memory; env_vars: environment variables;
    semistream_conn_id: connection of the type Semistream; conn_id: connection of the type Spark,
    which is used unless the Semistream connection gives a master. If neither default connection
    exists, spark-defaults.conf names the master; without that file, the app runs on this machine.
    """

    template_fields: Sequence[str] = ("application", "application_args", "name", "conf", "env_vars")

    def __init__(
        self,
        *,
        application: str,
        application_args: Sequence[str] = (),
        name: str = "semistream",
        conf: Mapping[str, Any] | None = None,
        driver_memory: str = "",
        env_vars: Mapping[str, str] | None = None,
        conn_id: str = SPARK,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        memory = {"spark.driver.memory": driver_memory} if driver_memory else {}
        self.application, self.application_args = application, list(application_args)
        self.name, self.conf, self.env_vars = name, memory | dict(conf or {}), dict(env_vars or {})
        self.conn_id = conn_id
        self._target = Target()
        self._submission: Submission | None = None

    def execute(self, context: Any) -> Any:
        self.use_connections()
        self.submit()

    def use_connections(self) -> None:
        """Read the connections: the target of spark-submit, and the app's environment."""
        hook = SemistreamHook(self.semistream_conn_id)
        found = hook.environment()
        self._target = Target(hook.master) if hook.master else self._spark_target()
        self.env_vars = spark_submit.environment(self._target) | found | self.env_vars

    def _spark_target(self) -> Target:
        try:
            return spark_submit.target_of(BaseHook.get_connection(self.conn_id))
        except AirflowNotFoundException:
            if self.conn_id == SPARK:
                return Target()
            raise AirflowFailException(
                f"There is no Airflow connection {self.conn_id!r} to a "
                f"Spark master. Set AIRFLOW_CONN_{self.conn_id.upper()} or "
                f"add it under Admin > Connections."
            ) from None

    def command(self) -> list[str]:
        """Return the command line of spark-submit."""
        line = spark_submit.command(
            self._target, self.application, self.application_args, self.name, self.conf
        )
        self.log.info("Submitting %s to %s", self.application, self._target.master or "Spark")
        return line

    def submit(self) -> None:
        """Run the app until it ends. Raises AirflowException if it fails."""
        self._submission = Submission(self.command(), self.env_vars)
        self._submission.wait(self.log.info)

    def on_kill(self) -> None:
        if self._submission is not None:
            self._submission.end()


class ProvisionOperator(SparkAppOperator):
    """Provisions one dimension of a job: upserts the rows into the dimension's table, and publishes
    its snapshots. A small dimension is provisioned in this process, a large one by a Spark app.
    Nothing is done if the source has not changed, and nothing is written if the job's stream cannot
    be read or does not fit the dimension.

    The operator emits an event of the dimension's asset, through the alias among its outlets. The
    event says which versions are current.
    """

    template_fields = (*SparkAppOperator.template_fields, "job", "dimension", "memory")

    def __init__(self, *, job: str, dimension: str, memory: str = "256MB", **kwargs: Any):
        app = {
            "application": spark_app("publish_snapshot.py"),
            "name": "semistream publish",
            "driver_memory": "1g",
            "outlets": [DIMENSIONS],
        }
        super().__init__(
            application_args=["--job", job, "--dimension", dimension, "--memory", memory],
            **app | kwargs,
        )
        self.job, self.dimension, self.memory = job, dimension, memory

    def execute(self, context: Any) -> Any:
        from semistream.pipeline import provision_steps

        done = provision_steps.provision_changed(
            self.job, self.dimension, self.memory, self.paths(), partial(super().execute, context)
        )
        announce(context, self.outlets, f"dim_{self.dimension}", done)
        return done


class LoadOperator(SparkAppOperator):
    """Runs the load of one job until its source is exhausted, the load is stopped, or
    ``stop_after`` has passed.

    The driver is detached from the task: it outlives scheduler, worker and triggerer. The next
    attempt of the task finds the driver by its checkpoint, or restarts the load from the checkpoint
    if the driver is gone. A stop drains the load; no process is killed.
    """

    template_fields = (*SparkAppOperator.template_fields, "job", "given")
    operator_extra_links = (LoadLink(), SparkLink())
    app = "semi_stream_join.py"

    def __init__(
        self,
        *,
        job: str = "",
        given: Mapping[str, Any] | None = None,
        if_running: Literal["fail", "skip"] = "fail",
        **kwargs: Any,
    ):
        """Store which load to run, and its settings.

        given: the load's settings; None takes those of the DAG's form. if_running: whether the task
        fails or is skipped if the load of another run is still running.
        """
        app = {
            "application": spark_app(self.app),
            "name": "semistream load",
            "driver_memory": "1g",
            "inlets": [TUNED],
        }
        super().__init__(**app | kwargs)
        self.job, self.given, self.if_running = job, given, if_running
        self.checkpoint: Path | None = None

    @property
    def app_name(self) -> str:
        """The name of the load; "" before the settings are known."""
        return self.checkpoint.name if self.checkpoint else ""

    def execute(self, context: Any) -> Any:
        self.use_connections()
        settings = self.settings(context)
        self.checkpoint = checkpoint = settings.directory(self.paths())
        ti = context["ti"]
        owner = f"{ti.dag_id} {ti.run_id} {ti.map_index}"
        with drivers.launching(checkpoint):
            if drivers.is_alive(checkpoint):
                by_asset = context["dag_run"].run_type == "asset_triggered"
                self.reattach(checkpoint, owner, skip=by_asset or self.if_running == "skip")
            elif self.is_idle(settings):
                self.log.info("%s has nothing to do: Spark is not started", self.job)
                return self.finish(context, {"checkpoint": str(checkpoint), "state": "stopped"})
            else:
                self.application_args = settings.to_arguments()
                launched = drivers.launch(self.command(), checkpoint, owner, self.env_vars)
                self.log.info(
                    "Started the driver of %s, process %d; its output is %s/driver.log",
                    self.job,
                    launched.pid,
                    checkpoint,
                )
        self.defer(trigger=DriverTrigger(str(checkpoint)), method_name="finish")

    def values(self, context: Any) -> dict[str, Any]:
        """Return the settings given to the operator, or those of the DAG's form if there are
        none."""
        return dict(context["params"] if self.given is None else self.given)

    def settings(self, context: Any) -> AppSettings:
        """Return the load's settings, including what tuning sweeps recommended."""
        from semistream.pipeline import steps

        advice = recommendations(context) if TUNED in self.inlets else ()
        return steps.load_settings(self.job, self.values(context), advice)

    def is_idle(self, settings: AppSettings) -> bool:
        """Return whether the load has nothing to do. If so, record a run that loaded nothing."""
        from semistream.pipeline import steps

        return isinstance(settings, LoadSettings) and steps.load_without_spark(
            settings, self.paths()
        )

    def reattach(self, checkpoint: Path, owner: str, skip: bool) -> None:
        record = drivers.last_launch(checkpoint)
        if record is not None and record.owner == owner:
            self.log.info(
                "The driver that this task started, process %d, still runs: following it again",
                record.pid,
            )
            return
        whose = (
            f"process {record.pid}, started by {record.owner},"
            if record
            else "one that Airflow did not start"
        )
        if skip:
            raise AirflowSkipException(
                f"A load of {self.job} runs already ({whose}); it takes up "
                f"the new master data itself"
            )
        raise AirflowFailException(
            f"A load of {self.job} runs already on checkpoint {checkpoint} "
            f"({whose}). Stop it (page Semistream, or `semistream stop`), "
            "or give this run another app name."
        )

    def finish(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Return the summary of the ended driver. Raises the error with which the driver failed."""
        from semistream.pipeline import steps
        from semistream.streaming.summary import read_summary

        self.checkpoint = checkpoint = Path(event["checkpoint"])
        if event["state"] != "stopped":
            self.log.error("The end of the driver's output:\n%s", drivers.log_tail(checkpoint))
            if refused := drivers.refusal(checkpoint, event["why"]):
                raise AirflowFailException(refused)
            if not steps.warehouse_answers(self.paths()):
                raise WarehouseAway(f"The warehouse is away. {self.job} {event['why']}")
            raise AirflowException(
                f"The driver of {self.job} {event['why']}. A retry goes on from "
                f"its checkpoint {checkpoint}."
            )
        summary = read_summary(checkpoint).to_json()
        self.log.info("Loaded: %s", summary)
        if FACTS in self.outlets:
            context["outlet_events"][FACTS].extra = {"job": self.job, "app": checkpoint.name}
        return summary

    def on_kill(self) -> None:
        if self.checkpoint is not None:
            request_stop(self.checkpoint)


class StreamStreamLoadOperator(LoadOperator):
    """Runs the load of a job of two streams. Events of ``punctuations_propagated`` announce the
    values that no later row can have."""

    app = "stream_stream_join.py"

    def settings(self, context: Any) -> AppSettings:
        from semistream.pipeline import steps

        return steps.from_form(StreamStreamSettings, self.values(context), job=self.job)

    def finish(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        from semistream.pipeline import steps

        summary = super().finish(context, event)
        checkpoint = Path(event["checkpoint"])
        context["outlet_events"][PROPAGATED].extra = {
            "job": self.job,
            **steps.propagated(checkpoint.name, self.paths(), checkpoint),
        }
        return summary


class VerifyOperator(SemistreamOperator):
    """Verifies everything that an app has loaded, or only what has not been proven yet. If an
    expectation does not hold, the task fails with an error that names the checks and rows.

    If there was anything new, the operator emits an event of the fact table's asset, through the
    alias among its outlets. The event gives the number of rows and batches proven since the last
    event, and the share of tuples that matched.
    """

    template_fields = ("app", "job")
    operator_extra_links = (LoadLink(), ReportLink())

    def __init__(
        self,
        *,
        app: str,
        job: str = "",
        since_last: bool = True,
        sample: int = SAMPLE,
        **kwargs: Any,
    ):
        """Keep what is verified. app: the load; job, since_last, sample: see ``steps.verify``."""
        super().__init__(**{"outlets": [FACT_TABLES]} | kwargs)
        self.app, self.job, self.since_last, self.sample = app, job, since_last, sample
        self.report = ""  # its path below the directory of reports
        self.result: dict[str, Any] = {}  # see ``steps.verify``, once everything holds

    @property
    def app_name(self) -> str:
        """The name of the load."""
        return self.app

    def execute(self, context: Any) -> dict[str, Any]:
        from semistream import quality
        from semistream.pipeline import steps

        here = self.paths()
        try:
            self.result = result = steps.verify(
                self.app, here, since_last=self.since_last, sample=self.sample, job=self.job
            )
        except quality.VerificationFailed as e:
            self.report = page_of(e.result.report, here)
            raise
        self.report = page_of(result["report"], here)
        self.log.info("%s", result["text"])
        outlets = self.outlets if result["report"] else set(self.outlets) - {FACT_TABLES}
        announce(context, outlets, result["fact_table"], result)
        return result


def page_of(report: str | Path | None, paths: Paths) -> str:
    """Return a report's path relative to the directory of reports; "" for None."""
    return str(Path(report).relative_to(paths.reports)) if report else ""


class SweepPointOperator(SparkAppOperator):
    """Measures one point of a tuning sweep by running the app in a separate home directory."""

    template_fields = (*SparkAppOperator.template_fields, "point")

    def __init__(self, *, point: Mapping[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.point = point

    def execute(self, context: Any) -> Any:
        from semistream.pipeline import steps

        self.use_connections()
        self.application_args, own = steps.sweep(context["run_id"], self.paths()).app(self.point)
        self.env_vars |= own
        self.submit()


class DriverTrigger(BaseTrigger):
    """Follows a driver through its checkpoint. If a user kills the task, the driver is asked to
    drain and stop."""

    def __init__(self, checkpoint: str, poll: float = 1.0):
        super().__init__()
        self.checkpoint, self.poll = checkpoint, poll

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {
            "checkpoint": self.checkpoint,
            "poll": self.poll,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        checkpoint, said = Path(self.checkpoint), ""
        while (end := await asyncio.to_thread(drivers.ending, checkpoint)) is None:
            if (progress := await asyncio.to_thread(drivers.progress, checkpoint)) != said:
                self.log.info("%s", said := progress)
            await asyncio.sleep(self.poll)
        yield TriggerEvent({"checkpoint": self.checkpoint, "state": end[0], "why": end[1]})

    async def on_kill(self) -> None:
        await asyncio.to_thread(request_stop, self.checkpoint)
