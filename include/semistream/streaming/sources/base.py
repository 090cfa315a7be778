"""What every source is: how it is read, which limits a micro-batch of it takes, and how its proof
counts it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from sqlalchemy import Engine

from semistream.config import StreamSpec
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
    """The part of a source that one batch read. read(ids): pieces of (rows, the ids of those that
    have readable ones)."""

    label: str
    read: Callable[[tuple[str, ...]], Iterator[tuple[int, pa.RecordBatch]]]


class Source:
    """Any source of Spark's, by its format and options.

    formats: that name sources of the kind; rows_option: the option that bounds the tuples of a
    micro-batch, if there is one; read_by_tasks: whether tasks read its texts, and not Spark.
    """

    formats: ClassVar[tuple[str, ...]] = ()
    rows_option: ClassVar[str] = ""
    read_by_tasks: ClassVar[bool] = False

    def __init__(self, spec: StreamSpec):
        self.spec = spec

    def reader(self) -> Reader | None:
        """Return how tasks read its texts or files, with the schema that was told or that they
        have; None where Spark brings rows. Raises ConfigError."""
        return None

    def check(self, max_files: int = 0, max_rows: int = 0) -> None:
        """Raise ConfigError for what can be known to fail without Spark. max_files, max_rows: as of
        ``options``."""
        self.options(max_files, max_rows)

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        """Return options as Spark takes them. max_files, max_rows: of a micro-batch, where the
        source can limit them; 0: no limit."""
        limit = {self.rows_option: str(max_rows)} if max_rows and self.rows_option else {}
        return limit | self.spec.all_options()

    def schema(self, spark: SparkSession) -> StructType | None:
        """Return the schema to read with; None lets Spark's source tell its own. Raises
        ConfigError."""
        from semistream.streaming.sources.schema import told_schema  # a proof needs no Spark

        return told_schema(self.spec) if self.spec.columns else None

    def register(self, spark: SparkSession) -> None:
        """Tell Spark of a source that it does not have."""

    def rows(self, df: DataFrame) -> DataFrame:
        """Take what tasks need out of what Spark's source gives."""
        return df

    def files(self, df: DataFrame, paths: list[str]) -> DataFrame | None:
        """Return what tasks need of a micro-batch's files, as these are now; None where they read
        the files themselves. df: the micro-batch as Spark gives it."""
        return df

    def refusal(self, spark: SparkSession, error: PySparkException) -> ConfigError:
        """Return what to say where Spark cannot read the source."""
        what = f"{self.spec.format} {self.spec.path or ''}".strip()
        return ConfigError("stream", "must be a source that Spark can read", what, str(error))

    def recount(self, offsets: dict[str, Any], warehouse: Engine) -> Part:
        """Return a batch's part of the source, to be read again; offsets: its
        ``load_commits.source_offsets``. Raises CannotRecount."""
        raise CannotRecount(
            f"a source of format {self.spec.format} is not kept for a second reading")
