"""Did everything arrive? Great Expectations over the warehouse, after each load and once a day; a failed one fails the task."""

from airflow.sdk import AssetOrTimeSchedule, Context, CronTriggerTimetable, Param, dag, task

from semistream import pipeline
from semistream_operators import FACTS, VERIFIED, apps_of, attempt, places


@dag(schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 5 * * *", timezone="UTC"), assets=[FACTS]), catchup=False,
     tags=["semistream"], doc_md=__doc__,
     params={"app": Param(None, type=["null", "string"], section="What",
                          description="The load to verify; empty: every one that has committed since it was last found complete"),
             "since_last": Param(True, type="boolean", section="What",
                                 description="Only what was committed since the last verification; otherwise everything")})
def verify_completeness() -> None:
    @task
    def apps(**context: Context) -> list[str]:
        """What to verify: the loads that started this run, the one of the form, or whatever has new commits."""
        return apps_of(context) or pipeline.unverified(places())

    @task(outlets=[VERIFIED], map_index_template="{{ app }}")
    def verify(app: str, params: dict, *, outlet_events: dict) -> dict:
        """Fails, naming rows, when an expectation does not hold."""
        result = attempt(pipeline.verify, app, places(), since_last=params["since_last"])
        outlet_events[VERIFIED].extra = result
        return result

    verify.expand(app=apps())


verify_completeness()
