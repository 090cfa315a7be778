"""Load master data into their dimension tables, then publish these as the snapshots that loads
read. Each dimension has its own mapped tasks, and its own asset."""

from typing import Any

from airflow.sdk import Param, dag, task

from semistream import workloads
from semistream.airflow.operators import BYTES, DIMENSIONS, ProvisionOperator, form, paths
from semistream.airflow.retries import RETRIES
from semistream.job import Job
from semistream.settings import Publishing


@dag(
    schedule=None,
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    default_args=RETRIES,
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
        workloads.prepare_target(params["job"], paths())

    @task
    def dimensions(params: dict[str, Any]) -> list[str]:
        """Return the dimensions to provision."""
        from semistream.pipeline import provision_steps

        return provision_steps.dimensions(params["job"], paths())

    names = dimensions()
    provision = ProvisionOperator.partial(
        task_id="provision",
        job="{{ params.job }}",
        memory="{{ params.memory }}",
        outlets=[DIMENSIONS],
        map_index_template="{{ task.dimension }}",
    ).expand(dimension=names)
    prepare() >> names >> provision


provision_master_data()
