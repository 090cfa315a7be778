"""The stream's schema, out of what the job says or of the DataFrame that reads it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from semistream.config import StreamSpec
from semistream.source_files import RAW


def stream_schema(df: DataFrame) -> pa.Schema:
    """The Arrow schema of the stream's tuples as the tasks get them, ``_corrupt_record`` left
    out."""
    return to_arrow_schema(StructType([f for f in df.schema if f.name != RAW]), timezone="UTC")


def told_schema(spec: StreamSpec) -> StructType:
    """What ``stream.columns`` says, as Spark's schema. Raises ConfigError."""
    return from_arrow_schema(spec.declared, prefer_timestamp_ntz=True)
