"""Jobs: the shipped ones, the user's own, and the preparation of their data."""

from semistream.workloads.arrivals import ArrivalTimes
from semistream.workloads.jobs import (
    load_any_job,
    load_dimensions,
    load_job,
    load_stream_stream_job,
    prepare,
    prepare_target,
)
from semistream.workloads.zipf import ZipfKeys

__all__ = [
    "ArrivalTimes",
    "ZipfKeys",
    "load_any_job",
    "load_dimensions",
    "load_job",
    "load_stream_stream_job",
    "prepare",
    "prepare_target",
]
