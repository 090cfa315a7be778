"""Estimate how many rows a join of two inputs would have, from sketches of their keys in a fixed
amount of memory, without joining.

Inputs are files, directories, published snapshots, or tables of the warehouse. A DAG that will join
them can run this one first: it fails if the estimate exceeds ``max_output_rows``.
"""

from typing import Any

from airflow.sdk import dag, task

from semistream.airflow.operators import BYTES, form, paths
from semistream.pipeline import steps
from semistream.pipeline.settings import JoinSizeSettings

PARAMS = form(
    JoinSizeSettings,
    {
        "Data": ("left", "right", "on"),
        "Estimate": ("sum", "method", "memory", "seed", "max_output_rows"),
        "Files": (
            "left_types",
            "right_types",
            "left_formats",
            "right_formats",
            "null_values",
            "delimiter",
        ),
    },
    left={"default": ""},
    right={"default": ""},
    on={"default": {}, "description": 'Join columns as JSON, {"column of A": "column of B"}'},
    memory=BYTES | {"default": "2MB"},
    left_types={
        "description": 'Types of columns of A as JSON, {"column": "type"}, over those '
        "found in its file"
    },
    left_formats={
        "description": "How columns of A are written that are not written as usual, as "
        'JSON, {"column": "%d/%m/%Y"}; see docs/input.md'
    },
)


@dag(schedule=None, catchup=False, tags=["semistream"], doc_md=__doc__, params=PARAMS)
def estimate_join_size() -> None:
    @task
    def estimate(params: dict[str, Any]) -> dict[str, Any]:
        """Return the estimate, its greatest error, how it was made, and what was read."""
        return steps.estimate_join_size(params, paths())

    estimate()


estimate_join_size()
