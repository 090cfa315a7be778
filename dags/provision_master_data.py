"""Load master data into their dimension table, then publish them as the snapshot that loads
read."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from semistream.config import Job, Publishing
from semistream.pipeline import steps
from semistream_operators import MASTER, PublishOperator, attempt, form, places

MEMORY = {"type": "string", "default": "256MB", "minLength": 1,
          "pattern": r"^\d+(\.\d+)? *([kKMGT]i?)?[bB]?$"}
SPARK_APPS = Path(__file__).resolve().parents[1] / "spark_apps"


@dag(schedule=None, catchup=False, tags=["semistream"], doc_md=__doc__,
     default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
     params={"job": Param("tpch", type="string", minLength=1, examples=list(Job.shipped),
                          section="Data",
                          description="Whose master data: a shipped job, or the path of a job's "
                                      "YAML file"),
             **form(Publishing, {"Publishing": ("memory",)}, memory=MEMORY)})
def provision_master_data() -> None:
    @task
    def prepare(params: dict[str, Any]) -> None:
        """Make the missing data files of a shipped job."""
        attempt(steps.prepare, params["job"], places())

    @task
    def provision(params: dict[str, Any]) -> dict[str, Any]:
        """Upsert the dimension table by business key."""
        return attempt(steps.provision, params["job"], places())

    publish = PublishOperator(
        task_id="publish", job="{{ params.job }}", memory="{{ params.memory }}",
        application=str(SPARK_APPS / "publish_snapshot.py"), name="semistream publish",
        driver_memory="1g")

    @task(outlets=[MASTER])
    def announce(params: dict[str, Any], *, outlet_events: dict[str, Any]) -> dict[str, Any]:
        """Emit an asset event that says which version of the master data is current."""
        version = steps.published(params["job"], places())
        outlet_events[MASTER].extra = version
        return version

    prepare() >> provision() >> publish >> announce()


provision_master_data()
