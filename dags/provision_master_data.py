"""Load master data into their dimension tables, then publish these as the snapshots that loads
read. Each dimension has its own mapped tasks, and its own asset."""

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from semistream.airflow.operators import (
    BYTES,
    DIMENSIONS,
    PublishOperator,
    attempt,
    dimension_asset,
    form,
    places,
    spark_app,
)
from semistream.job import Job
from semistream.pipeline import steps
from semistream.settings import Publishing


@dag(
    schedule=None,
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "job": Param(
            "tpch",
            type="string",
            minLength=1,
            examples=list(Job.shipped),
            section="Data",
            description="Whose dimensions: a shipped job, or the path of a job's "
            "YAML file; or a dimension, by its name or its file's "
            "path",
        ),
        **form(Publishing, {"Publishing": ("memory",)}, memory=BYTES | {"default": "256MB"}),
    },
)
def provision_master_data() -> None:
    @task
    def prepare(params: dict[str, Any]) -> None:
        """Make the missing data files of a shipped job."""
        attempt(steps.prepare, params["job"], places())

    @task
    def dimensions(params: dict[str, Any]) -> list[str]:
        """Return the dimensions to provision."""
        return attempt(steps.dimensions, params["job"], places())

    @task(map_index_template="{{ task.op_kwargs['dimension'] }}")
    def provision(dimension: str, params: dict[str, Any]) -> dict[str, Any]:
        """Upsert the dimension table by business key."""
        return attempt(steps.provision, params["job"], dimension, places())

    @task(outlets=[DIMENSIONS], map_index_template="{{ task.op_kwargs['dimension'] }}")
    def announce(
        dimension: str, params: dict[str, Any], *, outlet_events: dict[str, Any]
    ) -> dict[str, Any]:
        """Emit an event of the dimension's asset that says which versions are current."""
        versions = attempt(steps.published, params["job"], dimension, places())
        outlet_events[DIMENSIONS].add(dimension_asset(dimension), extra=versions)
        return versions

    names = dimensions()
    publish = PublishOperator.partial(
        task_id="publish",
        job="{{ params.job }}",
        memory="{{ params.memory }}",
        application=spark_app("publish_snapshot.py"),
        name="semistream publish",
        driver_memory="1g",
        map_index_template="{{ task.dimension }}",
    ).expand(dimension=names)
    prepare() >> names
    provision.expand(dimension=names) >> publish >> announce.expand(dimension=names)


provision_master_data()
