"""Load a stream, enriched with master data, into the warehouse, by a Spark app that outlives
Airflow and stops by draining.

The run is started by hand for one job, or by new versions of dimensions for the jobs with which
they were provisioned.
``trigger`` and ``stop_after`` are the stop policy: availableNow ends when all available input is
loaded; an interval goes on until it is stopped, from the page "Semistream", by marking the task
failed or succeeded, or after ``stop_after`` seconds. A retry continues from the checkpoint. With
the algorithm ``auto``, the settings are those that the job's latest tuning sweep recommends for the
memory; without a sweep the app chooses.
"""

from datetime import timedelta

from airflow.sdk import Context, dag, task

from semistream.airflow.operators import (
    BYTES,
    DIMENSIONS,
    FACTS,
    OPEN,
    TUNED,
    LoadOperator,
    form,
    jobs_of,
    offered,
    spark_app,
)
from semistream.job import Job
from semistream.joins.registry import REGISTRY
from semistream.settings import AUTO
from semistream.streaming.settings import LoadSettings

PARAMS = form(
    LoadSettings,
    {
        OPEN: ("job", "memory", "trigger"),
        "Data": ("app", "sink"),
        "Join": ("algorithm", "join_type", "parameters", "partitions"),
        "Rows": ("max_output_rows", "key_sketch"),
        "Stop policy": ("stop_after", "max_wait"),
        "Source": (
            "source_format",
            "source_path",
            "source_options",
            "source_options_file",
            "source_columns",
            "max_files",
            "max_rows",
            "min_age",
        ),
        "Failure": ("retry",),
    },
    job={"default": "tpch", "examples": offered(Job.shipped), "minLength": 1},
    algorithm={
        "enum": [AUTO, *REGISTRY],
        "values_display": {AUTO: "auto: the cost models choose"}
        | {a.name: a.title for a in REGISTRY.values()},
    },
    parameters={
        "description": 'Further parameters of the algorithm as JSON, {"name": value}; see '
        "`semistream algorithms`"
    },
    memory=BYTES | {"default": "64MB"},
    trigger={"examples": ["availableNow", "5 seconds", "1 minute"]},
    sink={"examples": ["sql"]},
    source_format={"examples": ["parquet", "csv", "json", "kafka", "zipf", "outbox"]},
    source_options={
        "description": 'Source options besides the job\'s as JSON, {"name": "value"}, '
        "as Spark takes them"
    },
)


@dag(
    schedule=[DIMENSIONS],
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    params=PARAMS,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=10)},
)
def semi_stream_load() -> None:
    @task
    def jobs(**context: Context) -> list[str]:
        """Return the jobs to load: those whose dimensions started this run, or the one of the
        form."""
        return jobs_of(context)

    LoadOperator.partial(
        task_id="load",
        application=spark_app("semi_stream_join.py"),
        name="semistream load",
        driver_memory="1g",
        inlets=[TUNED],
        outlets=[FACTS],
        map_index_template="{{ task.job }}",
    ).expand(job=jobs())


semi_stream_load()
