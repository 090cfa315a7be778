"""Kafka records as tuples."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from semistream.config import StreamSpec
from semistream.source_files import RAW
from semistream.streaming.sources.documents import document, with_raw
from semistream.streaming.sources.schema import told_schema


def parse_kafka(df: DataFrame, spec: StreamSpec) -> DataFrame:
    """Kafka records whose value is JSON, as tuples of ``spec.columns``; a value that is not goes to ``_corrupt_record``."""
    schema = with_raw(told_schema(spec))
    text = F.col("value").cast("string")
    text, bytes_ = F.try_validate_utf8(text), text
    parsed = F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW})
    names = [f.name for f in schema if f.name != RAW]
    out = df.select(F.make_valid_utf8(bytes_).alias("__text"), parsed.alias("__row"))
    raw = F.when(F.col("__row").isNull(), F.coalesce("__text", F.lit(""))).otherwise(F.col(f"__row.{RAW}"))
    return out.select(*[F.col("__row").getField(n).alias(n) for n in names], document(raw, "json").alias(RAW))
