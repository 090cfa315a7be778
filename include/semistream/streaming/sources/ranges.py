"""Sources of numbered tuples, as Spark Python data sources.

Their offset is one number, so that a micro-batch has the same tuples when it is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from sqlalchemy import Engine

from semistream.errors import ConfigError
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.contract import RECOUNT_ROWS, CannotRecount, Part, Recount


class Range(InputPartition):
    """Ids in (start, end]."""

    def __init__(self, start: int, end: int):
        self.start, self.end = start, end

    @property
    def label(self) -> str:
        return f"ids {self.start + 1} to {self.end}"

    @property
    def size(self) -> int:
        return -1


class NumberedSource(Source):
    """A source of tuples numbered from 1. A Spark data source reads it, with offsets {"id": the
    last number read}."""

    rows_option = "rowsPerBatch"
    data_source: ClassVar[type[DataSource]]

    def check(self, max_files: int = 0, max_rows: int = 0) -> None:
        source = self.data_source(self.options(max_files, max_rows))
        source.streamReader(source.schema())

    def register(self, spark: SparkSession) -> None:
        try:
            spark.dataSource.register(self.data_source)
        except AnalysisException as e:  # by the other stream, or earlier in this session
            if e.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise

    def splits(self, part: Part) -> list[Range]:
        first, last = (0 if at is None else at["id"] for at in (part.start, part.end))
        return [Range(first, last)]

    def recount(self, split: Range, warehouse: Engine) -> Recount:
        if self.spec.mark is not None:
            raise CannotRecount("rows that are punctuations are not told apart in this source")
        return Recount(
            self.label(split), lambda columns: self.read_again(split, columns, warehouse)
        )

    def label(self, split: Range) -> str:
        """Return the name of a range for reports."""
        return split.label

    def read_again(
        self, split: Range, columns: tuple[str, ...], warehouse: Engine
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (number of rows, these columns of the rows) of a range, some rows at a time. The
        default implementation is for generated tuples, whose number is the column id."""
        for start in range(split.start, split.end, RECOUNT_ROWS):
            end = min(start + RECOUNT_ROWS, split.end)
            numbers = pa.array(range(start + 1, end + 1), pa.int64())
            yield (
                len(numbers),
                pa.record_batch([numbers], names=["id"]).select(
                    [name for name in columns if name == "id"]
                ),
            )


class RangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of ids in (start, end], at most ``rowsPerBatch`` of them in a micro-batch, divided
    among ``partitions`` tasks."""

    def __init__(self, options: dict[str, str]):
        self.most = whole(options, "rowsPerBatch", 0)
        self.tasks = whole(options, "partitions", 1, least=1)
        self.available_now = False
        self.target: int | None = None

    def newest(self, start: int) -> int:
        """Return the highest id that may be read now, at least ``start``."""
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
    """Return an option's value. The case of the name is ignored, because Spark passes names in
    lower case."""
    return next((v for k, v in options.items() if k.lower() == name.lower()), default)


def whole(options: dict[str, str], name: str, default: int, least: int = 0) -> int:
    value = option(options, name, str(default))
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(
            name,
            f"must be a whole number of at least {least}",
            value,
            "It is an option of the source.",
        )
    return number
