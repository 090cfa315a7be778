"""The base of all sources: how a source is read, which limits its micro-batches can have, and how
the proof recounts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from sqlalchemy import Engine

from semistream.job import StreamSpec
from semistream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from semistream.streaming.sources.reader import Reader

RECOUNT_ROWS = 100_000  # tuples counted at a time


class CannotRecount(Exception):
    """A part of a source cannot be read again; the message says why."""


@dataclass(frozen=True)
class Part:
    """The part of a source that one batch read. read(ids): yields (rows, the ids of those rows
    whose ids can be read)."""

    label: str
    read: Callable[[tuple[str, ...]], Iterator[tuple[int, pa.RecordBatch]]]


class Source:
    """Any source of Spark, given by its format and options.

    formats: the names of sources of this kind; rows_option: the option that limits the tuples of a
    micro-batch, if there is one; read_by_tasks: tasks, not Spark, parse its texts.
    """

    formats: ClassVar[tuple[str, ...]] = ()
    rows_option: ClassVar[str] = ""
    read_by_tasks: ClassVar[bool] = False

    def __init__(self, spec: StreamSpec):
        self.spec = spec

    def reader(self) -> Reader | None:
        """Return how tasks read its texts or files, with the declared schema or the one that the
        files have; None if Spark brings rows. Raises ConfigError."""
        return None

    def check(self, max_files: int = 0, max_rows: int = 0) -> None:
        """Raise ConfigError for what can be known to fail without Spark. max_files, max_rows: as of
        ``options``."""
        self.options(max_files, max_rows)

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        """Return the options for Spark. max_files, max_rows: limits of a micro-batch, if the source
        can limit them; 0: no limit."""
        limit = {self.rows_option: str(max_rows)} if max_rows and self.rows_option else {}
        return limit | self.spec.all_options()

    def schema(self, spark: SparkSession) -> StructType | None:
        """Return the schema to read with; None if Spark's source knows its own. Raises
        ConfigError."""
        from semistream.streaming.sources.schema import told_schema  # imports Spark

        return told_schema(self.spec) if self.spec.columns else None

    def register(self, spark: SparkSession) -> None:
        """Register a data source that Spark does not have."""

    def rows(self, df: DataFrame) -> DataFrame:
        """Select from the DataFrame of Spark's source what the tasks need."""
        return df

    def files(self, df: DataFrame, paths: list[str]) -> DataFrame | None:
        """Return what tasks need of a micro-batch's files, as these are now; None if tasks read the
        files themselves. df: the micro-batch as Spark gives it."""
        return df

    def refusal(self, spark: SparkSession, error: PySparkException) -> ConfigError:
        """Return the error to raise if Spark cannot read the source."""
        what = f"{self.spec.format} {self.spec.path or ''}".strip()
        return ConfigError("stream", "must be a source that Spark can read", what, str(error))

    def recount(self, offsets: dict[str, Any], warehouse: Engine) -> Part:
        """Return a batch's part of the source, to be read again. offsets: its
        ``load_commits.source_offsets``. Raises CannotRecount."""
        raise CannotRecount(
            f"a source of format {self.spec.format} is not kept for a second reading")
