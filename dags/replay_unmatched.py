"""Join the unmatched tuples of a load again, in this task: all open tuples, with the present master
data, or the tuples of a file, as they were corrected there.

The file is the output of ``semistream unmatched APP --out FILE``. The load must not run meanwhile.
Each tuple becomes a fact once, however often this is run; the DAG verify_completeness proves what
has come.
"""

from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from semistream.airflow.operators import FACTS, paths
from semistream.airflow.retries import RETRIES
from semistream.pipeline import steps


@dag(
    schedule=None,
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    default_args=RETRIES,
    params={
        "app": Param(
            "",
            type="string",
            section="What",
            description="The load whose tuples are joined again",
            examples=["tpch", "nycflights13"],
        ),
        "file": Param(
            None,
            type=["null", "string"],
            section="What",
            description="CSV, JSON lines or Parquet file of tuples that were mended, on a disk of "
            "Airflow's workers; empty: all that are open, as they are",
        ),
        "job": Param(
            None,
            type=["null", "string"],
            section="What",
            description="The job's YAML file, after columns or formats were changed in it by which "
            "texts are parsed; empty: the job as it was loaded",
        ),
    },
)
def replay_unmatched() -> None:
    @task(outlets=[FACTS])
    def replay(params: dict[str, Any], *, outlet_events: dict[str, Any]) -> dict[str, str]:
        """Return the outcome for the tuples."""
        file = Path(params["file"]) if params["file"] else None
        said = steps.replay(params["app"], paths(), file, job=params["job"] or "")
        outlet_events[FACTS].extra = {"app": params["app"]}
        return {"app": params["app"], "text": said}

    replay()


replay_unmatched()
