"""Types of text columns: found from a sample, and cast cell by cell where a batch does not fit as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError

NULL_LIKE = pa.array(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "\\N"])  # not a value of any type but a string
NAN = pa.array(["NaN", "nan"])  # a value of floating types only
TYPES = {"int": pa.int64(), "int64": pa.int64(), "int32": pa.int32(), "string": pa.string(), "double": pa.float64(),
         "float64": pa.float64(), "bool": pa.bool_(), "date": pa.date32(), "timestamp": pa.timestamp("us"),
         "timestamp_utc": pa.timestamp("us", "UTC")}
INTEGER = r"^-?(0|[1-9][0-9]*)$"
NUMBER = r"^-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$|^-?(inf|nan|NaN)$"
NOTHING = np.zeros(0, np.int64)


def parse_type(column: str, name: str) -> pa.DataType:
    """'int64', 'date', 'decimal(12,2)' as an Arrow type. Raises ConfigError for another name."""
    decimal = re.fullmatch(r"decimal\((\d+)(?:, *(\d+))?\)", name.strip().lower())
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2] or 0) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
    if name.strip().lower() not in TYPES:
        raise ConfigError("types", "must give a column one of the types known", f"{column}={name}",
                          f"Known are: {', '.join(TYPES)} and decimal(PRECISION,SCALE) with a precision of at most 38.")
    return TYPES[name.strip().lower()]


def infer_type(sample: pa.Array) -> pa.DataType:
    """The type of a text column by a sample; null where the sample has no value.

    Numbers with leading zeros, and integers beyond 64 bits, are strings: as numbers they would not be the same any more.
    """
    values = sample.filter(pc.and_(sample.is_valid(), pc.invert(pc.is_in(sample, NULL_LIKE))))
    if not len(values):
        return pa.null()
    if _all(values, lambda v: pc.match_substring_regex(v, INTEGER)):
        return pa.int64() if _casts(values, pa.int64()) else pa.string()
    if _all(values, lambda v: pc.match_substring_regex(v, NUMBER)):
        return pa.float64() if _casts(values, pa.float64()) else pa.string()
    if _all(values, lambda v: pc.is_in(v, pa.array(["true", "false", "True", "False", "TRUE", "FALSE"]))):
        return pa.bool_()
    return infer_time(values)


def infer_time(values: pa.Array) -> pa.DataType:
    """date32, timestamp[us] with or without UTC, or string."""
    if _all(values, lambda v: pc.match_substring_regex(v, r"^\d{4}-\d\d-\d\d")):
        for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
            if _casts(values, kind):
                return kind
    return pa.string()


def cast_cells(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """(the column cast, int64 positions of the cells that do not fit, which are null)."""
    if column.type == kind:
        return column, NOTHING
    try:
        return _cast(column, kind), NOTHING
    except pa.ArrowInvalid:
        pass
    except pa.ArrowNotImplementedError:
        raise ConfigError("types", f"must be types that {column.type} can become", str(kind), "Choose another type.") from None
    if _is_text(column.type) and not _is_text(kind):
        column = _stripped(column, kind)
    bad: list[int] = []
    pieces = _cast_halves(column, kind, 0, bad)
    return pa.concat_arrays(pieces), np.array(bad, np.int64)


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """(the rows that fit the schema, whose columns are in the same order; why each of the others does not, by position)."""
    columns: list[pa.Array] = []
    wrong: dict[int, str] = {}
    for field, column in zip(schema, rows.columns, strict=True):
        cast, bad = cast_cells(column, field.type)
        columns.append(cast)
        for i in bad.tolist():
            wrong.setdefault(i, f"{field.name}: {_shown(column[i])} is not {field.type}")
    fitting = pa.RecordBatch.from_arrays(columns, schema=schema)
    if wrong:
        keep = np.ones(rows.num_rows, bool)
        keep[list(wrong)] = False
        fitting = fitting.filter(pa.array(keep))
    return fitting, dict(sorted(wrong.items()))


def _stripped(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts or bytes without spaces around them and without those that mean null; a time without a zone is UTC's."""
    nulls = NULL_LIKE if pa.types.is_floating(kind) else pa.concat_arrays([NULL_LIKE, NAN])
    column = pc.replace_substring_regex(column, r"^\s+|\s+$", "")
    column = pc.if_else(pc.is_in(column, nulls.cast(column.type)), pa.scalar(None, column.type), column)
    if pa.types.is_timestamp(kind) and kind.tz:
        utc = pc.binary_join_element_wise(column, pa.scalar("Z", column.type), pa.scalar("", column.type))
        column = pc.if_else(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$"), column, utc)
    return column


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bytes go through text, which checks that they are UTF-8; times of day, which Arrow does not parse, through timestamps."""
    if pa.types.is_binary(column.type) and not pa.types.is_binary(kind):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) and pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01", column, " ").cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    return column.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def _shown(value: pa.Scalar) -> str:
    value = value.as_py()
    return repr(value.decode(errors="replace") if isinstance(value, bytes) else value)


def _cast_halves(column: pa.Array, kind: pa.DataType, start: int, bad: list[int]) -> list[pa.Array]:
    """Halve where the cast fails until the cells that are at fault are alone."""
    try:
        return [_cast(column, kind)]
    except pa.ArrowInvalid:
        if len(column) == 1:
            bad.append(start)
            return [pa.nulls(1, kind)]
        half = len(column) // 2
        return _cast_halves(column[:half], kind, start, bad) + _cast_halves(column[half:], kind, start + half, bad)


def _all(values: pa.Array, test: Callable[[pa.Array], pa.Array]) -> bool:
    head = test(values[:64])
    return pc.all(head).as_py() is not False and pc.all(test(values)).as_py() is not False


def _casts(values: pa.Array, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
