"""Kafka as a source: records whose value is JSON, as tuples."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from semistream.config import StreamSpec
from semistream.errors import ConfigError
from semistream.source_files import RAW
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.documents import document, with_raw
from semistream.streaming.sources.schema import told_schema

PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13"


class KafkaSource(Source):
    formats = ("kafka",)
    rows_option = "maxOffsetsPerTrigger"

    def schema(self, spark: SparkSession) -> StructType | None:
        return None  # Kafka's own, of records

    def tuples(self, df: DataFrame) -> DataFrame:
        return parse_kafka(df, self.spec) if self.spec.columns else df

    def refusal(self, spark: SparkSession, error: PySparkException) -> ConfigError:
        if "kafka" not in str(error).lower():
            return super().refusal(spark, error)
        return ConfigError("source_format", "needs Spark's Kafka connector", "kafka",
                           f"Submit with --packages {PACKAGE}:{spark.version}.")


def parse_kafka(df: DataFrame, spec: StreamSpec) -> DataFrame:
    """Kafka records whose value is JSON, as tuples of ``spec.columns``; a value that is not goes to
    ``_corrupt_record``."""
    schema = with_raw(told_schema(spec))
    text = F.col("value").cast("string")
    text, bytes_ = F.try_validate_utf8(text), text
    parsed = F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW})
    names = [f.name for f in schema if f.name != RAW]
    out = df.select(F.make_valid_utf8(bytes_).alias("__text"), parsed.alias("__row"))
    raw = F.when(F.col("__row").isNull(),
                 F.coalesce("__text", F.lit(""))).otherwise(F.col(f"__row.{RAW}"))
    return out.select(*[F.col("__row").getField(n).alias(n) for n in names],
                      document(raw, "json").alias(RAW))
