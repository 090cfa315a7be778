"""Types of text columns: found from a sample, and cast cell by cell where a batch does not fit as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError

NULL_LIKE = pa.array(["", "NA", "N/A", "NULL", "null", "None", "\\N"])  # not a value of any type but a string
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
    if pa.types.is_binary(column.type) and not pa.types.is_string(kind):
        null_like = pc.is_in(column, NULL_LIKE.cast(pa.binary()))
        column = pc.if_else(null_like, pa.scalar(None, column.type), column)
    bad: list[int] = []
    pieces = _cast_halves(column, kind, 0, bad)
    return pa.concat_arrays(pieces), np.array(bad, np.int64)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bytes go through text, which checks that they are UTF-8."""
    if pa.types.is_binary(column.type) and not pa.types.is_binary(kind):
        column = column.cast(pa.string())
    return column.cast(kind)


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
