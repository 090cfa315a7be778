"""Load two streams, joined with each other, into the warehouse, by a Spark app that outlives
Airflow.

``trigger`` and ``stop_after`` are the stop policy, as in ``semi_stream_load``. A stop does not
drain: tuples that are held wait in the checkpoint for their partners, and the next run continues
with them. Only ``end`` declares that no more tuples will come.
"""

from typing import Any

from airflow.sdk import dag, task

from semistream import workloads
from semistream.airflow.forms import stream_stream_form
from semistream.airflow.operators import FACTS, PROPAGATED, StreamStreamLoadOperator, paths
from semistream.airflow.retries import RETRIES


@dag(
    schedule=None,
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    params=stream_stream_form(),
    default_args=RETRIES,
)
def stream_stream_load() -> None:
    @task
    def prepare(params: dict[str, Any]) -> None:
        """Make the missing data files of a shipped job."""
        workloads.prepare_target(params["job"], paths())

    load = StreamStreamLoadOperator(
        task_id="load", job="{{ params.job }}", outlets=[FACTS, PROPAGATED]
    )
    prepare() >> load


stream_stream_load()
