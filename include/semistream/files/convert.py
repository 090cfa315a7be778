"""Types of text columns: found from a sample, and cast cell by cell where a batch does not fit as a
whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError

# not a value of any type but a string
NULL_LIKE = pa.array(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "\\N"])
NAN = pa.array(["NaN", "nan"])  # a value of floating types only
TYPES = {"int": pa.int64(), "int64": pa.int64(), "int32": pa.int32(), "string": pa.string(),
         "double": pa.float64(), "float64": pa.float64(), "bool": pa.bool_(), "date": pa.date32(),
         "timestamp": pa.timestamp("us"), "timestamp_utc": pa.timestamp("us", "UTC")}
INTEGER = r"^(0|-?[1-9][0-9]*)$"
PLAIN = r"^-?(0|[1-9][0-9]*)?(\.[0-9]*)?$"
DIGITS = 38  # of a decimal
SURE = 15  # digits that a double keeps
SHOWN = 0.9  # share of a column's cells of one type from which on the others are said to decide
NUMBER = r"^-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$|^-?(inf|nan|NaN)$"
NOTHING = np.zeros(0, np.int64)


def parse_type(column: str, name: str) -> pa.DataType:
    """'int64', 'date', 'decimal(12,2)' as an Arrow type. Raises ConfigError for another name."""
    decimal = re.fullmatch(r"decimal\((\d+)(?:, *(\d+))?\)", name.strip().lower())
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2] or 0) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
    if name.strip().lower() not in TYPES:
        raise ConfigError("types", "must give a column one of the types known", f"{column}={name}",
                          f"Known are: {', '.join(TYPES)} and decimal(PRECISION,SCALE) with a "
                          f"precision of at most 38.")
    return TYPES[name.strip().lower()]


def infer_type(sample: pa.Array) -> pa.DataType:
    """The type of a text column by a sample; null where the sample has no value.

    None that would alter a value: numbers with leading zeros, and integers beyond 64 bits, are
    strings; numbers that a double does not keep are decimals, or strings where they have an
    exponent or more than 38 digits.
    """
    values = _values(sample)
    if not len(values):
        return pa.null()
    if _all(values, lambda v: pc.match_substring_regex(v, INTEGER)):
        return pa.int64() if _casts(values, pa.int64()) else pa.string()
    if _all(values, lambda v: pc.match_substring_regex(v, NUMBER)):
        if len(_altered(values)):
            return _decimal(values)
        return (pa.int64() if pc.any(pc.match_substring_regex(values, INTEGER)).as_py()
                and not len(_no_integers(values)) else pa.float64())
    if _all(values,
            lambda v: pc.is_in(v, pa.array(["true", "false", "True", "False", "TRUE", "FALSE"]))):
        return pa.bool_()
    return infer_time(values)


def exponents(sample: pa.Array, kind: pa.DataType) -> float:
    """Share of an int64 column's values that are written as 4.0128e+10 is; 0 of other columns."""
    values = _values(sample)
    return (pc.mean(pc.match_substring(values, "e", ignore_case=True)).as_py() or 0.0
            if pa.types.is_int64(kind) else 0.0)


def deciding_cells(sample: pa.Array, kind: pa.DataType) -> str:
    """Which few cells of a column made ``infer_type`` give it this type, in place of what most
    have; "" where they are alike."""
    values = _values(sample)
    for narrow, pattern in (("int64", INTEGER), ("double", NUMBER), ("date", r"^\d{4}-\d\d-\d\d$")):
        if (narrow in (str(kind), "date32" if kind == pa.date32() else "")
                or (pa.types.is_decimal(kind) and narrow == "double")):
            return ""
        if (pc.mean(pc.match_substring_regex(values[:1000], pattern)).as_py() or 0) >= SHOWN:
            others = values.filter(pc.invert(pc.match_substring_regex(values, pattern)))
            if 0 < len(others) <= (1 - SHOWN) * len(values):
                return (f"{len(others):,} of {len(values):,} cells that are no {narrow}, the first "
                        f"{others[0].as_py()!r}")
    return ""


def _values(sample: pa.Array) -> pa.Array:
    return sample.filter(pc.and_(sample.is_valid(), pc.invert(pc.is_in(sample, NULL_LIKE))))


def _altered(values: pa.Array) -> list[int]:
    """Positions of the number texts that are another number as a double."""
    is_long = pc.greater(pc.binary_length(values), SURE)
    has_exponent = pc.match_substring(values, "e", ignore_case=True)
    suspects = pc.indices_nonzero(pc.or_(is_long, has_exponent))
    texts = values.take(suspects)
    try:
        same = pc.equal(texts, texts.cast(pa.float64()).cast(pa.string()))
    except pa.ArrowInvalid:
        same = pa.repeat(False, len(texts))
    return [i for i, ok in zip(suspects.to_pylist(), same.to_pylist(), strict=True) if not ok
            and _differs(values[i].as_py())]


def _differs(text: str) -> bool:
    try:
        exact = Decimal(text)
    except ArithmeticError:
        return False  # no number, which a cast tells
    return exact.is_finite() and exact != Decimal(repr(float(text)))


def _no_integers(values: pa.Array) -> list[int]:
    """Positions of the number texts that are no int64, though one may be written with an
    exponent."""
    rest = pc.indices_nonzero(pc.invert(pc.match_substring_regex(values, INTEGER))).to_pylist()
    for i in rest:
        if _whole(values[i].as_py()) is None:
            return [i]
    return [] if _casts(values.filter(pc.match_substring_regex(values, INTEGER)),
                        pa.int64()) else [0]


def _whole(text: str) -> int | None:
    """4.0128e+10 as an integer of 64 bits; None for what is none, and for all that is written with
    a fraction but no exponent."""
    if "e" not in text.lower():
        return None
    try:
        value = Decimal(text)
    except ArithmeticError:
        return None
    return int(value) if abs(value) < 2**63 and value == value.to_integral_value() else None


def _decimal(values: pa.Array) -> pa.DataType:
    if not _all(values, lambda v: pc.match_substring_regex(v, PLAIN)):
        return pa.string()
    parts = pc.extract_regex(values, r"^-?(?P<whole>[0-9]*)\.?(?P<fraction>[0-9]*)$")
    whole, fraction = (pc.max(pc.binary_length(pc.struct_field(parts, name))).as_py()
                       for name in ("whole", "fraction"))
    return pa.decimal128(DIGITS, fraction) if whole + fraction <= DIGITS else pa.string()


def infer_time(values: pa.Array) -> pa.DataType:
    """date32, timestamp[us] with or without UTC, or string."""
    if _all(values, lambda v: pc.match_substring_regex(v, r"^\d{4}-\d\d-\d\d")):
        for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
            if _casts(values, kind):
                return kind
    return pa.string()


def cast_cells(column: pa.Array, kind: pa.DataType,
               exact: bool = False) -> tuple[pa.Array, np.ndarray]:
    """(the column cast, int64 positions of the cells that do not fit, which are null).

    exact: a text whose number a double would alter does not fit.
    """
    if column.type == kind:
        return column, NOTHING
    try:
        cast = _cast(column, kind)
        return _unaltered(column, cast) if exact and pa.types.is_floating(kind) else (cast, NOTHING)
    except pa.ArrowInvalid:
        pass
    except pa.ArrowNotImplementedError:
        raise ConfigError("types", f"must be types that {column.type} can become", str(kind),
                          "Choose another type.") from None
    if _is_text(column.type) and not _is_text(kind):
        column = _stripped(column, kind)
    bad: list[int] = []
    cast = pa.concat_arrays(_cast_halves(column, kind, 0, bad))
    if exact and pa.types.is_floating(kind):
        cast, altered = _unaltered(column, cast)
        bad = sorted({*bad, *altered.tolist()})
    return cast, np.array(bad, np.int64)


def _unaltered(column: pa.Array, cast: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The doubles of a text column, and where they are not the same numbers."""
    # 1e99 is kept
    if not _is_text(column.type) or not (pc.max(pc.binary_length(column)).as_py() or 0) > 4:
        return cast, NOTHING
    texts = pc.if_else(cast.is_valid(), column, pa.scalar(None, column.type)).cast(pa.string())
    altered = np.array(_altered(texts), np.int64)
    if len(altered):
        mask = np.zeros(len(cast), bool)
        mask[altered] = True
        cast = pc.if_else(pa.array(mask), pa.scalar(None, cast.type), cast)
    return cast, altered


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema,
              exact: Container[str] = ()) -> tuple[pa.RecordBatch, dict[int, str]]:
    """(the rows that fit the schema, whose columns are in the same order; why each of the others
    does not, by position).

    exact: columns whose numbers must be kept as they are written.
    """
    columns: list[pa.Array] = []
    wrong: dict[int, str] = {}
    for field, column in zip(schema, rows.columns, strict=True):
        cast, bad = cast_cells(column, field.type, field.name in exact)
        columns.append(cast)
        for i in bad.tolist():
            wrong.setdefault(i, f"{field.name}: {_plain(column[i])!r} is not {field.type}")
    fitting = pa.RecordBatch.from_arrays(columns, schema=schema)
    if wrong:
        keep = np.ones(rows.num_rows, bool)
        keep[list(wrong)] = False
        fitting = fitting.filter(pa.array(keep))
    return fitting, dict(sorted(wrong.items()))


def _stripped(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts or bytes without spaces around them and without those that mean null; a time without a
    zone is UTC's."""
    nulls = NULL_LIKE if pa.types.is_floating(kind) else pa.concat_arrays([NULL_LIKE, NAN])
    column = pc.replace_substring_regex(column, r"^\s+|\s+$", "")
    column = pc.if_else(pc.is_in(column, nulls.cast(column.type)), pa.scalar(None, column.type),
                        column)
    if pa.types.is_timestamp(kind) and kind.tz:
        utc = pc.binary_join_element_wise(column, pa.scalar("Z", column.type),
                                          pa.scalar("", column.type))
        column = pc.if_else(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$"), column, utc)
    return column


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bytes go through text, which checks that they are UTF-8; times of day, which Arrow does not
    parse, through timestamps."""
    if pa.types.is_binary(column.type) and not pa.types.is_binary(kind):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) and pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01", column,
                                           " ").cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    return column.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def _plain(value: pa.Scalar) -> Any:
    value = value.as_py()
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _cast_halves(column: pa.Array, kind: pa.DataType, start: int, bad: list[int]) -> list[pa.Array]:
    """Halve where the cast fails until the cells that are at fault are alone."""
    try:
        return [_cast(column, kind)]
    except pa.ArrowInvalid:
        if len(column) == 1:
            whole = (_whole(_plain(column[0])) if pa.types.is_int64(kind)
                     and _is_text(column.type) else None)
            if whole is None:
                bad.append(start)
            return [pa.array([whole], kind)]
        half = len(column) // 2
        return _cast_halves(column[:half], kind, start,
                            bad) + _cast_halves(column[half:], kind, start + half, bad)


def _all(values: pa.Array, test: Callable[[pa.Array], pa.Array]) -> bool:
    head = test(values[:64])
    return pc.all(head).as_py() is not False and pc.all(test(values)).as_py() is not False


def _casts(values: pa.Array, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
