"""The join inside Spark: the streaming app, and the join of a batch DataFrame.

``status`` and ``settings`` need no Spark; the rest is imported when it is asked for.
"""

from typing import Any

from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import (
    Status,
    clear_stop,
    read_status,
    request_stop,
    stop_requested,
)

__all__ = ["LoadSettings", "Status", "clear_stop", "join_dataframe", "read_status", "request_stop",
           "stop_requested"]


def __getattr__(name: str) -> Any:
    if name == "join_dataframe":
        from semistream.streaming.batch import join_dataframe

        return join_dataframe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
