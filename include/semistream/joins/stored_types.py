"""The Arrow types in which the joins hold columns: no nested types, and strings with 32-bit
offsets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError


def is_variable(kind: pa.DataType) -> bool:
    """Return whether values of this type have no fixed width: strings and binaries."""
    return kind in (pa.string(), pa.binary())


def has_strings(schema: pa.Schema) -> bool:
    """Return whether any column has values of variable length."""
    return any(is_variable(f.type) for f in schema)


def stored_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is stored. Raises ConfigError for nested and null
    columns."""
    if pa.types.is_dictionary(kind):
        return stored_type(name, kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise ConfigError(
            "columns",
            "must be flat and typed",
            f"{name}: {kind}",
            "Leave the column out, or turn it into a string.",
        )
    return kind


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with each column in the type in which it is stored. Raises ConfigError for
    nested and null columns."""
    return pa.schema([pa.field(f.name, stored_type(f.name, f.type)) for f in schema])


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch's columns that the schema names, cast to the schema's types."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for f in schema:
        column = batch.column(f.name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns.append(column if column.type == f.type else pc.cast(column, f.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def offsets_and_data(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets int32[n + 1], data uint8[bytes]) of a string or binary array of length n."""
    if not len(column):
        return np.zeros(1, np.int32), np.zeros(1, np.uint8)
    _, offsets, data = column.buffers()
    return (
        np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1],
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8),
    )


def variable_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """Return the bytes of each row's variable-length values, int64[n]."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if is_variable(column.type):
            total += np.diff(offsets_and_data(column)[0])
    return total
