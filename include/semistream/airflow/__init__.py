"""Semistream in Airflow: operators, the trigger that follows a load, and the page "Semistream".

    from semistream.airflow import LoadOperator

A name is imported when it is first used. Neither PySpark nor Great Expectations is imported when a
DAG file is parsed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "DagsBundle": "bundle",
    "DriverTrigger": "operators",
    "LoadOperator": "operators",
    "JobsBundle": "bundle",
    "ProvisionOperator": "operators",
    "SemistreamTaskGroup": "task_group",
    "SemistreamHook": "hook",
    "SparkAppOperator": "operators",
    "StreamStreamLoadOperator": "operators",
    "SweepPointOperator": "operators",
    "VerifyOperator": "operators",
    "job_dag": "job_dags",
    "spark_app": "operators",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
