"""What sources of numbered tuples share, as Spark Python data sources.

Their offset is one number, so that a micro-batch that is read again has the same tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from semistream.errors import ConfigError


class Range(InputPartition):
    """Ids in (start, end]."""

    def __init__(self, start: int, end: int):
        self.start, self.end = start, end


class RangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads ids in (start, end], at most ``rowsPerBatch`` of them in a micro-batch, split over ``partitions`` tasks."""

    def __init__(self, options: dict[str, str]):
        self.most = whole(options, "rowsPerBatch", 0)
        self.tasks = whole(options, "partitions", 1, least=1)
        self.available_now = False
        self.target: int | None = None

    def newest(self, start: int) -> int:
        """The highest id that may be read now, at least ``start``."""
        raise NotImplementedError

    def initialOffset(self) -> dict[str, int]:
        return {"id": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.most) if self.most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.available_now = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        newest = self.newest(start["id"]) if self.target is None else self.target
        if self.available_now:
            self.target = newest
        if isinstance(limit, ReadMaxRows):
            newest = min(newest, start["id"] + limit.max_rows)
        return {"id": max(newest, start["id"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        low, high = start["id"], end["id"]
        edges = [low + (high - low) * i // self.tasks for i in range(self.tasks + 1)]
        return [Range(a, b) for a, b in pairwise(edges) if a < b]


def option(options: dict[str, str], name: str, default: str) -> str:
    """Spark hands option names on in lower case."""
    return next((v for k, v in options.items() if k.lower() == name.lower()), default)


def whole(options: dict[str, str], name: str, default: int, least: int = 0) -> int:
    value = option(options, name, str(default))
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(name, f"must be a whole number of at least {least}", value, "It is an option of the source.")
    return number
