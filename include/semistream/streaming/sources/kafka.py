"""Kafka records. Their values are JSON objects if the job declares columns."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.files.formats import check_formats
from semistream.files.source import Reading
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.decoders import MessageDecoder
from semistream.streaming.sources.file_reader import FileReader

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
log = logging.getLogger(__name__)


class KafkaSource(Source):
    texts = True
    rows_option = "maxOffsetsPerTrigger"

    @cached_property
    def schema(self) -> pa.Schema | None:
        declared, formats = self.spec.declared, self.spec.formats
        if declared is not None:
            check_formats(declared, formats, "stream")
        elif formats:
            raise ConfigError(
                "stream.columns",
                "must be given with formats",
                None,
                "Name the columns of the messages with their types.",
            )
        return declared

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        """Return the options. The first load starts at the earliest offsets, because Spark's
        default would skip all existing records."""
        given = super().options(max_files, max_rows)
        if any(name.lower() in STARTS for name in given):
            return given
        log.info("a first load begins with the earliest records of the topic (startingOffsets)")
        return given | {"startingOffsets": "earliest"}

    def spark_schema(self, spark: SparkSession) -> StructType | None:
        return None  # Spark has its own schema of Kafka records

    def columns(self, df: DataFrame) -> DataFrame:
        return df.select("value") if self.spec.columns else df

    def open(self, df: DataFrame) -> pa.Schema:
        if self.schema is None:
            return super().open(df)
        self.decoder = MessageDecoder(
            FileReader(
                "json",
                Reading(formats=self.spec.formats),
                self.schema,
                tuple(self.schema.names),
                self.spec.id,
            )
        )
        return self.schema

    def refusal(self, spark: SparkSession, error: PySparkException) -> ConfigError:
        if "kafka" not in str(error).lower():
            return super().refusal(spark, error)
        return ConfigError(
            "source_format",
            "needs Spark's Kafka connector",
            "kafka",
            f"Submit with --packages {PACKAGE}:{spark.version}.",
        )
