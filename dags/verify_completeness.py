"""Verify that everything arrived: Great Expectations over the warehouse, after each load and once
a day. A failed verification fails the task.

After a load, everything that is not proven yet is verified: what is new, and what follows a
failure. The daily run, and a run that names an app, verify everything that was ever loaded.
"""

from typing import Any

from airflow.sdk import AssetOrTimeSchedule, Context, CronTriggerTimetable, Param, dag, task

from semistream.airflow.operators import FACTS, VERIFIED, apps_of, attempt, places
from semistream.pipeline import steps


@dag(
    schedule=AssetOrTimeSchedule(
        timetable=CronTriggerTimetable("0 5 * * *", timezone="UTC"), assets=[FACTS]
    ),
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
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
            1000,
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
    def apps(**context: Context) -> list[str]:
        """Return what to verify: the loads that started this run, the one of the form, or all."""
        return apps_of(context) or steps.loaded_apps(places())

    @task(outlets=[VERIFIED], map_index_template="{{ app }}")
    def verify(
        app: str,
        params: dict[str, Any],
        *,
        outlet_events: dict[str, Any],
        triggering_asset_events: dict[str, Any],
    ) -> dict[str, Any]:
        """Verify a load. Fails, naming rows, if an expectation does not hold."""
        after_load = bool(triggering_asset_events) and not params["app"]
        since_last = after_load if params["since_last"] is None else params["since_last"]
        result = attempt(
            steps.verify, app, places(), since_last=since_last, sample=params["sample"]
        )
        outlet_events[VERIFIED].extra = result
        return result

    verify.expand(app=apps())


verify_completeness()
