"""The registry of sources by format. A new source is a file beside this one, and a line in
``SOURCES``.

A micro-batch's offsets are those of Spark's offset log (``log``). For file formats,
``quality.sources`` recounts the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semistream.job import StreamSpec
from semistream.errors import ConfigError
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.files import FileSource, SparkFiles
from semistream.streaming.sources.kafka import KafkaSource
from semistream.streaming.sources.outbox import Outbox
from semistream.streaming.sources.zipf import Zipf

SOURCES: list[type[Source]] = [FileSource, SparkFiles, KafkaSource, Zipf, Outbox]


def find_source(spec: StreamSpec) -> Source:
    """Return the source of a job; for a format that no line names, Spark's own. Raises ConfigError
    if columns have formats that the source would ignore."""
    kind = next((kind for kind in SOURCES if spec.format in kind.formats), Source)
    if spec.formats and not kind.read_by_tasks:
        known = [f for k in SOURCES if k.read_by_tasks for f in k.formats]
        raise ConfigError("stream.formats", f"must be of a source of {', '.join(known)}, as "
                                            f"{spec.format} has values with types",
                          ", ".join(spec.formats),
                          "Leave formats out, of the master's key columns too.")
    return kind(spec)


def read_streams(spark: SparkSession, specs: Sequence[StreamSpec], max_files: int = 0,
                 max_rows: int = 0) -> list[DataFrame]:
    """Return the DataFrame of each stream as Spark reads it.

    max_files, max_rows: limits of a micro-batch for each stream; 0: no limit. Raises ConfigError
    for a source that cannot be read.
    """
    # Spark shows a source's options in its plans, which errors quote. The options of a secret file
    # are redacted, whatever their names.
    secret = [name for spec in specs for name in spec.secrets()]
    spark.conf.set("spark.sql.redaction.options.regex",
                   "|".join(["(?i)url", *map(re.escape, secret)]))
    return [_read_stream(spark, spec, max_files, max_rows) for spec in specs]


def _read_stream(spark: SparkSession, spec: StreamSpec, max_files: int,
                 max_rows: int) -> DataFrame:
    source = find_source(spec)
    source.register(spark)
    reader = spark.readStream.format(spec.format).options(**source.options(max_files, max_rows))
    if (schema := source.schema(spark)) is not None:
        reader = reader.schema(schema)
    try:
        return source.rows(reader.load(spec.path) if spec.path else reader.load())
    except PySparkException as e:
        raise source.refusal(spark, e) from None
