"""Load two streams, joined with each other, into the warehouse, by a Spark app that outlives
Airflow.

``trigger`` and ``stop_after`` are the stop policy, as in ``semi_stream_load``. A stop does not
drain: tuples that are held wait in the checkpoint for their partners, and the next run continues
with them. Only ``end`` says that no more tuples will come.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from semistream.airflow.operators import (
    BYTES,
    FACTS,
    OPEN,
    PROPAGATED,
    StreamStreamLoadOperator,
    attempt,
    form,
    places,
    spark_app,
)
from semistream.job import StreamStreamJob
from semistream.pipeline import steps
from semistream.streaming.settings import StreamStreamSettings

PARAMS = form(
    StreamStreamSettings,
    {
        OPEN: ("job", "memory", "trigger"),
        "Data": ("app", "sink"),
        "Join": ("algorithm", "parameters", "partitions"),
        "Stop policy": ("stop_after", "end"),
        "Source": ("max_files", "max_rows", "min_age"),
        "Failure": ("retry",),
    },
    job={"default": "tpch_orders", "examples": list(StreamStreamJob.shipped), "minLength": 1},
    algorithm={"enum": ["pjoin", "xjoin"]},
    parameters={
        "description": 'Further parameters of the algorithm as JSON, {"name": value}: '
        "purge_threshold, propagate (push or pull), propagate_count, "
        "propagate_seconds, index (lazy or eager)"
    },
    memory=BYTES | {"default": "64MB"},
    trigger={"examples": ["availableNow", "5 seconds", "1 minute"]},
    sink={"examples": ["sql"]},
)


@dag(
    schedule=None,
    catchup=False,
    tags=["semistream"],
    doc_md=__doc__,
    params=PARAMS,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=10)},
)
def stream_stream_load() -> None:
    @task
    def prepare(params: dict[str, Any]) -> None:
        """Make the missing data files of a shipped job."""
        attempt(steps.prepare, params["job"], places())

    load = StreamStreamLoadOperator(
        task_id="load",
        job="{{ params.job }}",
        name="semistream load",
        driver_memory="1g",
        application=spark_app("stream_stream_join.py"),
        outlets=[FACTS, PROPAGATED],
    )

    prepare() >> load


stream_stream_load()
