"""The stream as a Spark DataFrame: any source by format and options."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from semistream.config import FILE_FORMATS, StreamSpec
from semistream.errors import ConfigError
from semistream.streaming.sources.documents import with_raw
from semistream.streaming.sources.files import TEXTS, file_options, infer
from semistream.streaming.sources.kafka import parse_kafka
from semistream.streaming.sources.outbox import OutboxSource
from semistream.streaming.sources.schema import told_schema
from semistream.streaming.sources.zipf import ZipfSource

OWN = {s.name(): s for s in (ZipfSource, OutboxSource)}
KAFKA_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13"


def read_stream(spark: SparkSession, spec: StreamSpec, max_files: int = 0, max_rows: int = 0) -> DataFrame:
    """The stream's tuples, and ``_corrupt_record`` where the format can have unparsable ones.

    max_files, max_rows: of one micro-batch; 0: no limit. Raises ConfigError for a source that cannot be read.
    """
    options = _options(spec, max_files, max_rows)
    # Spark shows a source's options in its plans, which errors quote; whatever a file's are called, they are not shown.
    spark.conf.set("spark.sql.redaction.options.regex", "|".join(["(?i)url", *map(re.escape, spec.secrets())]))
    reader = spark.readStream.format(spec.format).options(**options)
    if spec.format in OWN:
        spark.dataSource.register(OWN[spec.format])
    schema = _read_schema(spark, spec)
    if schema is not None and spec.format != "kafka":
        reader = reader.schema(schema)
    try:
        df = reader.load(spec.path) if spec.path else reader.load()
    except PySparkException as e:
        if spec.format == "kafka" and "kafka" in str(e).lower():
            raise ConfigError("source_format", "needs Spark's Kafka connector", "kafka",
                              f"Submit with --packages {KAFKA_PACKAGE}:{spark.version}.") from None
        what = f"{spec.format} {spec.path or ''}".strip()
        raise ConfigError("stream", "must be a source that Spark can read", what, str(e)) from None
    return parse_kafka(df, spec) if spec.format == "kafka" and spec.columns else df


def _options(spec: StreamSpec, max_files: int, max_rows: int) -> dict[str, str]:
    if spec.format in FILE_FORMATS:
        return file_options(spec, max_files)
    if max_rows and (spec.format in OWN or spec.format == "kafka"):
        return {"maxOffsetsPerTrigger" if spec.format == "kafka" else "rowsPerBatch": str(max_rows)} | spec.all_options()
    return spec.all_options()


def _read_schema(spark: SparkSession, spec: StreamSpec) -> StructType | None:
    """The schema to read with; None lets the source tell its own."""
    if spec.columns:
        schema = told_schema(spec)
    elif spec.format in FILE_FORMATS:
        schema = infer(spark, spec)
    else:
        return None
    return with_raw(schema) if spec.format in TEXTS else schema
