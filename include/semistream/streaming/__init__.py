"""The join inside Spark: the streaming app, and the join of a batch DataFrame.

``status`` and ``settings`` need no Spark. ``join_dataframe`` is imported on first use.
"""

from typing import Any

__all__ = ["join_dataframe"]


def __getattr__(name: str) -> Any:
    if name == "join_dataframe":
        from semistream.streaming.batch import join_dataframe

        return join_dataframe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
