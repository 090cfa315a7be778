"""Verify that everything arrived: Great Expectations over the warehouse, after each load and once a
day. A failed verification fails the task. Those whom the load's job names are notified of it, and
of one that warns.

After a load, everything that is not proven yet is verified: new batches, and the batches after a
failure. The daily run, and a run that names an app, verify everything that was ever loaded.
"""

from typing import Any

from airflow.sdk import AssetOrTimeSchedule, Context, CronTriggerTimetable, Param, dag, task

from semistream.airflow.notifying import notify_of_failure, notify_of_warning
from semistream.airflow.operators import (
    FACT_TABLES,
    FACTS,
    SAMPLE,
    VERIFIED,
    VerifyOperator,
    apps_of,
    paths,
)
from semistream.airflow.retries import RETRIES
from semistream.pipeline import steps


@dag(
    schedule=AssetOrTimeSchedule(
        timetable=CronTriggerTimetable("0 5 * * *", timezone="UTC"), assets=[FACTS]
    ),
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    default_args=RETRIES
    | {"on_failure_callback": notify_of_failure, "on_success_callback": notify_of_warning},
    params={
        "app": Param(
            None,
            type=["null", "string"],
            section="What",
            description="The load to verify; empty: those that started this run, or all",
        ),
        "since_last": Param(
            None,
            type=["null", "boolean"],
            section="What",
            description="Only what no verification has proven yet; empty: so "
            "after a load, else everything",
        ),
        "sample": Param(
            SAMPLE,
            type="integer",
            minimum=0,
            section="What",
            description="Facts, and unmatched tuples, that the database joins "
            "again, drawn anew each time",
        ),
    },
)
def verify_completeness() -> None:
    @task
    def what(**context: Context) -> list[dict[str, Any]]:
        """Return what to verify: the loads that started this run, the load of the form, or all
        loads."""
        params: dict[str, Any] = context["params"]
        after_load = bool(context["triggering_asset_events"]) and not params["app"]
        since_last = after_load if params["since_last"] is None else params["since_last"]
        how = {"since_last": since_last, "sample": params["sample"]}
        return [{"app": app, **how} for app in apps_of(context) or steps.loaded_apps(paths())]

    VerifyOperator.partial(
        task_id="verify", outlets=[VERIFIED, FACT_TABLES], map_index_template="{{ task.app }}"
    ).expand_kwargs(what())


verify_completeness()
