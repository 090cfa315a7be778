"""Tuples of text that could not be parsed, marked and not lost: ``_corrupt_record`` is a document
for ``unparsable.explain``."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from semistream.source_files import RAW


def document(text: Column, kind: str, file: Column | None = None, unreadable: Column | None = None,
             delimiter: str = "") -> Column:
    """The document of ``unparsable.explain``: JSON of ``text`` and its origin; null where text is.

    kind: csv or json. unreadable: whether the bytes are not UTF-8.
    """
    parts = [text.alias(RAW), F.lit(kind).alias("format")]
    parts += [] if file is None else [file.alias("file")]
    parts += [] if unreadable is None else [F.when(unreadable, True).alias("unreadable")]
    parts += [F.lit(delimiter).alias("delimiter")] if delimiter else []
    return F.when(text.isNotNull(), F.to_json(F.struct(*parts)))


def with_raw(schema: StructType) -> StructType:
    return StructType([*(f for f in schema if f.name != RAW), StructField(RAW, StringType())])
