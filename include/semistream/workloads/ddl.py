"""Spark's DDL for a flat schema, as an Arrow schema."""

from __future__ import annotations

import re

import pyarrow as pa

from semistream.errors import ConfigError

TYPES = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
         "int": pa.int32(),
    "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "varchar": pa.string(), "char": pa.string(), "binary": pa.binary(),
         "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"), "decimal": pa.decimal128(10, 0), "dec": pa.decimal128(10, 0),
         "numeric": pa.decimal128(10, 0),
}
COLUMN = re.compile(r"\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>\w+))\s*:?\s+(?P<type>\w+)\s*"
                    r"(?:\(\s*(?P<p>\d+)\s*(?:,\s*(?P<s>\d+)\s*)?\))?(?P<null>\s+NOT\s+NULL)?(?:\s+COMMENT\s+'[^']*')?\s*(?:,|$)",
                    re.IGNORECASE)


def parse_ddl(text: str) -> pa.Schema:
    """``'id BIGINT, price DECIMAL(10,2)'`` as an Arrow schema. Raises ConfigError for what is not understood."""
    fields, at = [], 0
    while at < len(text.rstrip()):
        match = COLUMN.match(text, at)
        kind = match and TYPES.get(match["type"].lower())
        if match is None or kind is None:
            raise ConfigError("columns", "must be a flat schema in Spark's DDL", text[at:at + 60].strip(),
                              f"For instance 'id BIGINT, sku STRING'. Types: {', '.join(TYPES)}.")
        if match["p"]:
            kind = pa.decimal128(int(match["p"]), int(match["s"] or 0)) if pa.types.is_decimal(kind) else pa.string()
        fields.append(pa.field(match["quoted"] or match["plain"], kind, not match["null"]))
        at = match.end()
    return pa.schema(fields)
