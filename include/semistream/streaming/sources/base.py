"""The base class of all sources, which also represents any source that Spark supports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from sqlalchemy import Engine

from semistream.data_files import Unreadable
from semistream.errors import ConfigError
from semistream.job import StreamSpec
from semistream.streaming.sources.contract import (
    CannotRecount,
    Decoder,
    Part,
    Records,
    Recount,
    Split,
    Splits,
)
from semistream.streaming.sources.decoders import RowDecoder

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Source:
    """Any source that Spark supports, given by its format and options. rows_option: the option that
    limits the tuples of a micro-batch, "" if there is none; texts: whether all values are texts, so
    that the job may declare their formats."""

    rows_option: ClassVar[str] = ""
    texts: ClassVar[bool] = False
    decoder: Decoder  # decodes what Spark delivers; set by ``open``

    def __init__(self, spec: StreamSpec, former: pa.Schema | None = None):
        """Describe the source. former: the schema at the time when the app began."""
        self.spec, self.former = spec, former

    # ---- before there is a Spark session

    def check(self, max_files: int = 0, max_rows: int = 0) -> None:
        """Raise ConfigError for problems that can be found without Spark. max_files, max_rows: see
        ``options``."""
        self.options(max_files, max_rows)

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The schema of the tuples; None if only Spark can find it. Raises ConfigError."""
        return None

    def entries(self) -> Iterator[os.DirEntry[str] | Unreadable] | None:
        """List the present files of the source; return None if only Spark can list them."""
        return None

    @property
    def is_listed_by_driver(self) -> bool:
        """Whether the driver lists the source's files itself, without a query of Spark."""
        return False

    # ---- through Spark

    @property
    def location(self) -> str | None:
        """The path for Spark; None if the source has none."""
        return self.spec.path

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        """Return the options for Spark. max_files, max_rows: limits of a micro-batch, if the source
        supports them; 0 for no limit."""
        limit = {self.rows_option: str(max_rows)} if max_rows and self.rows_option else {}
        return limit | self.spec.all_options()

    def spark_schema(self, spark: SparkSession) -> StructType | None:
        """Return the schema for Spark's source; None if that source finds its schema itself. Raises
        ConfigError."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return (
            from_arrow_schema(self.spec.declared, prefer_timestamp_ntz=True)
            if self.spec.columns
            else None
        )

    def register(self, spark: SparkSession) -> None:
        """Register a data source that Spark does not have."""

    def columns(self, df: DataFrame) -> DataFrame:
        """Select the columns that ``input`` needs from the DataFrame of Spark's source."""
        return df

    def refusal(self, spark: SparkSession, error: PySparkException) -> ConfigError:
        """Return the error to raise if Spark cannot read the source. error: Spark's error."""
        what = f"{self.spec.format} {self.spec.path or ''}".strip()
        return ConfigError("stream", "must be a source that Spark can read", what, str(error))

    def open(self, df: DataFrame) -> pa.Schema:
        """Return the schema of the tuples, with the help of Spark if necessary. df: the stream."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self.decoder = RowDecoder(to_arrow_schema(df.schema, timezone="UTC"))
        return self.decoder.schema

    def input(self, df: DataFrame, part: Part) -> Splits[Any] | Records:
        """Return how a micro-batch's tuples come to the tasks. df: the micro-batch from Spark. The
        caller must have called ``open``."""
        return Records(df, self.decoder)

    # ---- for a second reading

    def splits(self, part: Part) -> Sequence[Split]:
        """Return the splits of a part of the source. Raises CannotRecount if this part cannot be
        read a second time."""
        raise CannotRecount(
            f"a source of format {self.spec.format} is not kept for a second reading"
        )

    def recount(self, split: Any, warehouse: Engine) -> Recount:
        """Return a split in the form in which the proof reads it again. Raises CannotRecount."""
        raise CannotRecount(
            f"a source of format {self.spec.format} is not kept for a second reading"
        )
