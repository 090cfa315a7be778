"""Find the join and the sizes that suit a stream. Each setting of a grid is run as a Spark app and
compared with the cost model; the best are reported and recommended.

A point that fails is shown and does not fail the sweep. Points run one after the other, because
they would disturb each other. ``semi_stream_load`` uses the recommended settings with the algorithm
``auto``.
"""

from typing import Any

from airflow.sdk import TriggerRule, dag, task, task_group

from semistream.airflow.operators import (
    JOIN_MEMORY,
    TUNED,
    SweepPointOperator,
    form,
    paths,
    spark_app,
)
from semistream.job import Job
from semistream.joins.registry import REGISTRY
from semistream.pipeline import steps
from semistream.tuning.settings import TuneSettings

PARAMS = form(
    TuneSettings,
    {
        "Data": ("job", "stream", "snapshot", "on", "columns", "rows"),
        "Grid": ("algorithms", "memory", "partitions", "grid", "calibrate"),
    },
    job={"default": "tpch", "examples": list(Job.shipped)},
    stream={"type": "string", "default": ""},
    snapshot={"type": "string", "default": ""},
    on={
        "description": 'Join columns of your own sample as JSON, {"stream column": "master column"}'
    },
    columns={"type": "string", "default": ""},
    algorithms={
        "type": "array",
        "default": [],
        "items": {"type": "string", "enum": list(REGISTRY)},
        "examples": list(REGISTRY),
        "values_display": {a.name: a.title for a in REGISTRY.values()},
        "description": "Those to compare; none chosen: all that can join with the master data",
    },
    memory={"type": "string", "default": JOIN_MEMORY, "minLength": 1},
    calibrate={"default": True},
)


@dag(schedule=None, catchup=False, tags=["semistream"], doc_md=__doc__, params=PARAMS)
def tuning_sweep() -> None:
    @task
    def points(params: dict[str, Any], run_id: str) -> list[dict[str, Any]]:
        """Return the points of the grid, around the model's best settings, and write the bounded
        stream with which they are measured."""
        settings = steps.from_form(TuneSettings, params)
        return steps.sweep(run_id, paths()).begin(settings)

    @task_group
    def point(setting: dict[str, Any]) -> None:
        measure = SweepPointOperator(
            task_id="measure",
            point=setting,
            application=spark_app("semi_stream_join.py"),
            name="semistream sweep",
            driver_memory="1g",
            retries=0,
            max_active_tis_per_dag=1,
        )

        @task(trigger_rule=TriggerRule.ALL_DONE)
        def record(setting: dict[str, Any], run_id: str) -> dict[str, Any]:
            """Record a point in ``tuning_runs``, also if it failed."""
            return steps.sweep(run_id, paths()).record(setting)

        measure >> record(setting)

    @task(outlets=[TUNED], trigger_rule=TriggerRule.ALL_DONE)
    def publish(run_id: str, *, outlet_events: dict[str, Any]) -> dict[str, Any]:
        """Publish the report, and the settings that loads use from now on."""
        result = steps.sweep(run_id, paths()).publish()
        outlet_events[TUNED].extra = result
        return result

    point.expand(setting=points()) >> publish()


tuning_sweep()
