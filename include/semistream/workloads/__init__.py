"""Jobs: the shipped ones, the user's jobs, and the preparation of their data.

A name is imported when it is first used. Reading a job, as DAG files do, needs no Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.workloads.arrivals import ArrivalTimes
    from semistream.workloads.jobs import (
        load_any_job,
        load_dimensions,
        load_job,
        load_stream_stream_job,
    )
    from semistream.workloads.shipped import prepare, prepare_target
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
_MODULES = {
    "ArrivalTimes": "arrivals",
    "ZipfKeys": "zipf",
    "prepare": "shipped",
    "prepare_target": "shipped",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'jobs')}"), name)
