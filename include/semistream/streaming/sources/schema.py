"""The stream's schema, out of what the job says or of the DataFrame that reads it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from semistream.errors import ConfigError
from semistream.source_files import RAW


def stream_schema(df: DataFrame) -> pa.Schema:
    """The Arrow schema of the stream's tuples as the tasks get them, ``_corrupt_record`` left out."""
    return to_arrow_schema(StructType([f for f in df.schema if f.name != RAW]), timezone="UTC")


def from_ddl(text: str) -> StructType:
    try:
        return StructType.fromDDL(text)
    except PySparkException as e:
        raise ConfigError("stream.columns", "must be a schema in Spark's DDL", text, str(e).split("\n")[0]) from None
