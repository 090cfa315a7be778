"""Load a stream, enriched with master data, into the warehouse, by a Spark app that outlives
Airflow and stops by draining.

The run is started by hand for one job, or by new versions of dimensions for the jobs with which
they were provisioned.

``trigger`` and ``stop_after`` are the stop policy: availableNow ends when all available input is
loaded; an interval continues until the load is stopped, from the page "Semistream", by marking the
task failed or succeeded, or after ``stop_after`` seconds. A retry continues from the checkpoint.
With the algorithm ``auto``, the settings are those that the job's latest tuning sweep recommends
for the memory; without a sweep the app chooses.
"""

from airflow.sdk import Context, dag, task

from semistream.airflow.forms import load_form
from semistream.airflow.operators import DIMENSIONS, FACTS, TUNED, LoadOperator, jobs_of
from semistream.airflow.retries import RETRIES


@dag(
    schedule=[DIMENSIONS],
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    params=load_form(),
    default_args=RETRIES,
)
def semi_stream_load() -> None:
    @task
    def jobs(**context: Context) -> list[str]:
        """Return the jobs to load: the jobs whose dimensions started this run, or the job of the
        form."""
        return jobs_of(context)

    LoadOperator.partial(
        task_id="load", inlets=[TUNED], outlets=[FACTS], map_index_template="{{ task.job }}"
    ).expand(job=jobs())


semi_stream_load()
