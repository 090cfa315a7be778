"""The registry of sources by format. A new source is a module in this package, and a line in
``SOURCES``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.job import FILE_FORMATS, StreamSpec
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.file_reader import READ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# ``module.Class`` of this package by format, imported on first use: the proof needs no Spark
SOURCES: dict[str, str] = {
    **dict.fromkeys(FILE_FORMATS, "file_streams.SparkFileStream"),
    **dict.fromkeys(READ, "file_streams.FileStream"),
    "kafka": "kafka.KafkaSource",
    "outbox": "outbox.Outbox",
    "zipf": "zipf.Zipf",
}


def find_source(spec: StreamSpec, former: pa.Schema | None = None) -> Source:
    """Return the source of a job. If the registry does not have its format, this is a source that
    Spark reads. former: the schema at the time when the app began. Raises ConfigError if columns
    have formats that the source would ignore."""
    kind = _class_of(spec.format)
    if spec.formats and not kind.texts:
        known = [name for name in SOURCES if _class_of(name).texts]
        raise ConfigError(
            "stream.formats",
            f"must be of a source of {', '.join(known)}, as {spec.format} has values with types",
            ", ".join(spec.formats),
            "Leave formats out, of the master's key columns too.",
        )
    return kind(spec, former)


def _class_of(source_format: str) -> type[Source]:
    if source_format not in SOURCES:
        return Source
    module, name = SOURCES[source_format].split(".")
    found: type[Source] = getattr(import_module(f"{__package__}.{module}"), name)
    return found


def read_streams(
    spark: SparkSession, sources: Sequence[Source], max_files: int = 0, max_rows: int = 0
) -> list[DataFrame]:
    """Return the DataFrame that Spark reads from each source.

    max_files, max_rows: limits of a micro-batch for each source; 0 for no limit. Raises ConfigError
    for a source that cannot be read.
    """
    # Spark shows a source's options in its plans, which errors quote. The options of a secret file
    # are redacted, whatever their names.
    secret = [name for source in sources for name in source.spec.secrets()]
    spark.conf.set(
        "spark.sql.redaction.options.regex", "|".join(["(?i)url", *map(re.escape, secret)])
    )
    return [_read_stream(spark, source, max_files, max_rows) for source in sources]


def _read_stream(spark: SparkSession, source: Source, max_files: int, max_rows: int) -> DataFrame:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    source.register(spark)
    path = source.location
    reader = spark.readStream.format(source.spec.format).options(
        **source.options(max_files, max_rows)
    )
    if (schema := source.spark_schema(spark)) is not None:
        reader = reader.schema(schema)
    try:
        return source.columns(reader.load(path) if path else reader.load())
    except PySparkException as e:
        raise source.refusal(spark, e) from None
    except Py4JJavaError as e:
        if "DATA_SOURCE_NOT_FOUND" not in str(e.java_exception):
            raise
        raise _unknown_format(source.spec.format) from None


def _unknown_format(name: str) -> ConfigError:
    near = get_close_matches(name.lower(), SOURCES, 1)
    return ConfigError(
        "stream.format",
        "must be a format that Semistream reads, or a streaming source of Spark's",
        name,
        f"{f'Did you mean {near[0]}? ' if near else ''}Semistream reads {', '.join(SOURCES)}.",
    )
