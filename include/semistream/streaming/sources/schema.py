"""The stream's schema, as the job declares it or from the DataFrame that reads it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from semistream.job import StreamSpec


def stream_schema(df: DataFrame) -> pa.Schema:
    """Return the Arrow schema of the rows as the tasks get them."""
    return to_arrow_schema(df.schema, timezone="UTC")


def declared_schema(spec: StreamSpec) -> StructType:
    """Return the schema that ``stream.columns`` declares, as Spark's. Raises ConfigError."""
    return from_arrow_schema(spec.declared, prefer_timestamp_ntz=True)
