"""Types of text columns: inferred from a sample, and cast cell by cell if a batch does not fit as a
whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.errors import ConfigError
from semistream.files.formats import check_texts, implied_type, is_text, prepared
from semistream.files.shapes import (
    EXPONENT,
    FRACTION,
    INTEGER,
    NULL,
    OTHER,
    SPECIAL,
    Shapes,
    shapes_of,
)

# words that mean null in a column of any type but string
NULL_LIKE = pa.array(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "\\N"])
NAN = pa.array(["NaN", "nan"])  # values of floating types only
TRUTH = pa.array(["true", "false", "True", "False", "TRUE", "FALSE"])
TYPES = {"int": pa.int64(), "int64": pa.int64(), "int32": pa.int32(), "string": pa.string(),
         "double": pa.float64(), "float64": pa.float64(), "bool": pa.bool_(), "date": pa.date32(),
         "timestamp": pa.timestamp("us"), "timestamp_utc": pa.timestamp("us", "UTC")}
DAY = r"^\d{4}-\d\d-\d\d"  # the start of a date, and of a time
DIGITS = 38  # most digits of a decimal
UNSEEN = 10  # digits of a decimal's fraction, if the sample of a column has no number
SURE = 15  # digits that a double always keeps
FIRST = 1000  # cells that are examined first, to see whether the others need to be
SHOWN = 0.9  # share of cells of a narrower type, from which the others are reported
NUMBERS = (INTEGER, FRACTION, EXPONENT, SPECIAL)
NOTHING = np.zeros(0, np.int64)
NO_UTF8 = "not UTF-8"


def parse_type(column: str, name: str) -> pa.DataType:
    """Return an Arrow type for a name such as 'int64', 'date', 'decimal(12,2)'. Raises ConfigError
    for an unknown name."""
    decimal = re.fullmatch(r"decimal\((\d+)(?:, *(\d+))?\)", name.strip().lower())
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2] or 0) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
    if name.strip().lower() not in TYPES:
        raise ConfigError("types", "must give a column one of the types known", f"{column}={name}",
                          f"Known are: {', '.join(TYPES)} and decimal(PRECISION,SCALE) with a "
                          f"precision of at most 38.")
    return TYPES[name.strip().lower()]


def infer_type(sample: pa.Array, numbers: bool = False) -> pa.DataType:
    """Infer the type of a text column from a sample; null if the sample has no value.

    No type is chosen that would alter a value: numbers with leading zeros, and integers beyond 64
    bits, are strings. Numbers that a double cannot represent are decimals, or strings if they have
    an exponent or more than 38 digits. numbers: the texts are numbers in a format that has such, so
    that an integer beyond 64 bits is a decimal.
    """
    values = _values(sample)
    if not len(values):
        return pa.null()
    shapes = shapes_of(values)
    found = set(np.flatnonzero(np.bincount(shapes.shape)).tolist())
    if found == {INTEGER}:
        return pa.int64() if _casts(values, pa.int64()) else _decimal(shapes, numbers)
    if found.issubset(NUMBERS):
        if len(_altered(values, shapes)):
            return _decimal(shapes)
        return (pa.int64() if INTEGER in found and not len(_no_integers(values, shapes))
                else pa.float64())
    if _all(values, lambda few: pc.is_in(few, TRUTH.cast(values.type))):
        return pa.bool_()
    return infer_time(values)


def deciding_cells(sample: pa.Array, kind: pa.DataType) -> str:
    """Describe the few cells of a column that made ``infer_type`` choose this type instead of the
    one that most cells have; "" if all cells are alike."""
    values = _values(sample)
    if not len(values):
        return ""

    def numbers(some: pa.Array, shapes: Sequence[int]) -> np.ndarray:
        return np.isin(shapes_of(some).shape, shapes)

    def days(some: pa.Array) -> np.ndarray:
        found = pc.match_substring_regex(some, DAY + "$")
        return np.asarray(found.to_numpy(zero_copy_only=False))

    for narrow, fitting in (("int64", partial(numbers, shapes=(INTEGER,))),
                            ("double", partial(numbers, shapes=NUMBERS)), ("date", days)):
        if (narrow in (str(kind), "date32" if kind == pa.date32() else "")
                or (pa.types.is_decimal(kind) and narrow == "double")):
            return ""
        if fitting(values[:FIRST]).mean() >= SHOWN:
            fits = fitting(values)
            others = values.filter(pa.array(~fits))
            if 0 < len(others) <= (1 - SHOWN) * len(values):
                return (f"{len(others):,} of {len(values):,} cells that are no {narrow}, the first "
                        f"{others[0].as_py()!r}")
    return ""


def has_exponents(sample: pa.Array, kind: pa.DataType) -> bool:
    """Return whether some integers of an int64 column are written with an exponent, as
    4.0128e+10."""
    return bool(pa.types.is_int64(kind) and (shapes_of(sample).shape == EXPONENT).any())


def _values(sample: pa.Array) -> pa.Array:
    words = NULL_LIKE.cast(sample.type)
    return sample.filter(pc.and_(sample.is_valid(), pc.invert(pc.is_in(sample, words))))


def _altered(texts: pa.Array, shapes: Shapes) -> np.ndarray:
    """Return the positions, int64[k], of the number texts that a double would change."""
    suspects = np.flatnonzero(((shapes.digits > SURE) & (shapes.shape != OTHER))
                              | (shapes.shape == EXPONENT))
    if not len(suspects):
        return NOTHING
    few = texts.take(pa.array(suspects))
    try:
        same = pc.equal(few, few.cast(pa.float64()).cast(few.type)).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        same = np.zeros(len(few), bool)
    return np.array([i for i in suspects[~same.astype(bool)].tolist()
                     if _differs(_plain(texts[i]))], np.int64)


def _differs(text: str) -> bool:
    try:
        exact = Decimal(text)
    except ArithmeticError:
        return False  # not a number, which a cast reports
    return exact.is_finite() and exact != Decimal(repr(float(text)))


def _no_integers(values: pa.Array, shapes: Shapes) -> list[int]:
    """Return positions of number texts that are not an int64 (an exponent is allowed). The first
    one is enough."""
    for i in np.flatnonzero(shapes.shape != INTEGER).tolist():
        if _whole(_plain(values[i]), pa.int64()) is None:
            return [i]
    return [] if _casts(values.filter(pa.array(shapes.shape == INTEGER)), pa.int64()) else [0]


def _whole(text: str, kind: pa.DataType) -> int | None:
    """Return 4.0128e+10 as an integer. Return None for a value outside of the type, and for any
    number with a fraction but no exponent."""
    if "e" not in text.lower():
        return None
    try:
        value = Decimal(text)
        whole = int(value) if value.is_finite() and abs(value.adjusted()) < DIGITS else None
    except ArithmeticError:
        return None
    bits = kind.bit_width - 1
    return whole if whole is not None and value == whole and -2**bits <= whole < 2**bits else None


def _decimal(shapes: Shapes, wanted: bool = True) -> pa.DataType:
    """Return the decimal type that holds all of these numbers; string if there is none, or none is
    wanted."""
    fraction = int(shapes.fraction.max())
    # at least one digit before the point, as a number below 1 has no significant one there
    whole = int(np.maximum(shapes.digits - shapes.fraction, 1).max())
    if not wanted or not np.isin(shapes.shape, (INTEGER, FRACTION)).all():
        return pa.string()
    return pa.decimal128(DIGITS, fraction) if whole + fraction <= DIGITS else pa.string()


def _all(values: pa.Array, fits: Callable[[pa.Array], pa.Array]) -> bool:
    """Return whether all values fit. The first ones are tested before the others."""
    return bool(pc.all(fits(values[:FIRST])).as_py()
                and (len(values) <= FIRST or pc.all(fits(values)).as_py()))


def infer_time(values: pa.Array) -> pa.DataType:
    """Infer date32, timestamp[us] with or without UTC, or string from texts."""
    if _all(values, lambda few: pc.match_substring_regex(few, DAY)):
        for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
            if _casts(values, kind):
                return kind
    return pa.string()


def cast_cells(column: pa.Array, kind: pa.DataType,
               exact: bool = False) -> tuple[pa.Array, np.ndarray]:
    """Cast a column. Return (cast column, int64 positions of the cells that do not fit, which are
    null).

    exact: the type was inferred, not declared. Then a cell fits only if the type would be inferred
    from cells like it: neither 007 nor +7 is an integer. Otherwise a cell fits if it is a value of
    the type, however it is written.
    """
    if column.type == kind:
        return column, NOTHING
    texts = _is_text(column.type) and not _is_text(kind)
    try:
        cast, bad = _cast(column, kind), NOTHING
    except pa.ArrowInvalid:
        positions: list[int] = []
        cells = _prepared(column, kind, exact) if texts else column
        cast = pa.concat_arrays(_cast_halves(cells, kind, 0, positions))
        bad = np.array(positions, np.int64)
    except pa.ArrowNotImplementedError:
        raise ConfigError("types", f"must be types that {column.type} can become", str(kind),
                          "Choose another type.") from None
    if not exact and texts and pa.types.is_floating(kind):
        bad = np.union1d(bad, _beyond(column, cast))
    if texts and len(column) and (exact or len(bad)):
        bad = np.union1d(bad, _unlike(column, kind)) if exact else bad
        if len(bad) and cast.null_count < len(cast):
            mask = np.zeros(len(cast), bool)
            mask[bad] = True
            cast = pc.if_else(pa.array(mask), pa.scalar(None, cast.type), cast)
    return cast, bad


def _beyond(texts: pa.Array, cast: pa.Array) -> np.ndarray:
    """Return the positions, int64[k], of numbers so large or small that a double represents them as
    infinity or 0."""
    lost = pc.or_(pc.is_inf(cast), pc.equal(cast, 0))
    positions = np.flatnonzero(pc.fill_null(lost, False))
    if not len(positions):
        return NOTHING
    shapes = shapes_of(texts.take(pa.array(positions)))
    return positions[shapes.digits > 0]


def _unlike(column: pa.Array, kind: pa.DataType) -> np.ndarray:
    """Return the positions, int64[k], of texts from which this type would not be inferred."""
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        shapes = shapes_of(column)
        if pa.types.is_integer(kind):
            unlike = ~np.isin(shapes.shape, (NULL, INTEGER, EXPONENT))
        elif pa.types.is_decimal(kind):
            unlike = shapes.shape >= SPECIAL
        else:
            unlike = shapes.shape == OTHER
            unlike[_altered(column, shapes)] = True
    elif pa.types.is_boolean(kind):
        unlike = pc.invert(pc.is_in(column, TRUTH.cast(column.type)))
    else:  # Arrow accepts times only in the forms from which they are inferred
        return NOTHING
    positions = np.flatnonzero(pc.fill_null(unlike, False) if isinstance(unlike, pa.Array)
                               else unlike)
    if len(positions):
        missing = pc.is_in(column.take(pa.array(positions)), _null_words(column, kind))
        missing = pc.or_(missing, column.take(pa.array(positions)).is_null())
        positions = positions[~missing.to_numpy(zero_copy_only=False)]
    return positions


def _null_words(column: pa.Array, kind: pa.DataType) -> pa.Array:
    words = NULL_LIKE if pa.types.is_floating(kind) else pa.concat_arrays([NULL_LIKE, NAN])
    return words.cast(column.type)


def found_type(sample: pa.Array, form: ColumnFormat) -> pa.DataType:
    """Infer the type of a column of times or numbers that has a declared format; never double."""
    if (kind := implied_type(form)) is not None:
        return kind
    values = _values(prepared_cells("", sample, form)[0])
    if not len(values):
        return pa.decimal128(DIGITS, UNSEEN)
    kind = pa.null() if form.decimal or form.percent else infer_type(values, numbers=True)
    return kind if pa.types.is_integer(kind) else _decimal(shapes_of(values))


def prepared_cells(name: str, cells: pa.Array,
                   form: ColumnFormat | None) -> tuple[pa.Array, np.ndarray]:
    """Return (a column's cells as texts that ``cast_cells`` accepts, int64 positions of those that
    do not fit the format, which are null). Raises ConfigError for a format of other values."""
    if form is None:
        return cells, NOTHING
    check_texts(name, cells.type, form)
    if not is_text(cells.type):
        return cells, NOTHING
    texts, bad = cast_cells(cells, pa.string())
    texts, unfit = prepared(texts, form, NULL_LIKE)
    return texts, np.union1d(bad, unfit)


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema, exact: Container[str] = (),
              unlike: Mapping[str, np.ndarray | None] | None = None,
              formats: Mapping[str, ColumnFormat] | None = None
              ) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return (the rows that fit the schema, the reason of each other row by its position). Columns
    are in the schema's order.

    exact: columns whose types were inferred, see ``cast_cells``; unlike: by column, the positions
    of cells that do not fit in any case; formats: of columns with a declared format.
    """
    columns: list[pa.Array] = []
    wrong: dict[int, str] = {}
    for field, column in zip(schema, rows.columns, strict=True):
        form = (formats or {}).get(field.name)
        cells, unfit = prepared_cells(field.name, column, form)
        cast, bad = cast_cells(cells, field.type, field.name in exact)
        columns.append(cast)
        written = f" as {form.shown()}" if form and form.notation else ""
        others = (unlike or {}).get(field.name)
        found = [p for p in (bad, unfit, others) if p is not None and len(p)]
        for i in np.unique(np.concatenate(found)).tolist() if found else ():
            wrong.setdefault(i, f"{field.name}: {_plain(column[i])!r} is not {field.type}{written}"
                             if not _is_text(field.type) else f"{field.name}: {NO_UTF8}")
    fitting = pa.RecordBatch.from_arrays(columns, schema=schema)
    if wrong:
        keep = np.ones(rows.num_rows, bool)
        keep[list(wrong)] = False
        fitting = fitting.filter(pa.array(keep))
    return fitting, dict(sorted(wrong.items()))


def _prepared(column: pa.Array, kind: pa.DataType, exact: bool) -> pa.Array:
    """Return texts or bytes in the form that Arrow's cast accepts: words that mean null become
    null. Unless ``exact``, blanks at the ends, a plus sign, and the fraction of a whole number are
    removed too, and a time without a zone is taken as UTC."""
    if not exact:
        column = pc.replace_substring_regex(column, r"^\s+|\s+$", "")
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            column = pc.replace_substring_regex(column, r"^\+([0-9.])", r"\1")
        if pa.types.is_integer(kind):
            column = pc.replace_substring_regex(column, r"^(-?[0-9]+)\.0*$", r"\1")
    column = pc.if_else(pc.is_in(column, _null_words(column, kind)),
                        pa.scalar(None, column.type), column)
    if pa.types.is_timestamp(kind) and kind.tz and not exact:
        utc = pc.binary_join_element_wise(column, pa.scalar("Z", column.type),
                                          pa.scalar("", column.type))
        column = pc.if_else(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$"), column, utc)
    return column


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column. Bytes are cast through text, which checks that they are UTF-8; times of day,
    which Arrow does not parse, are cast through timestamps."""
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
    """Cast a column, halving it while the cast fails, until each cell at fault is alone."""
    try:
        return [_cast(column, kind)]
    except pa.ArrowInvalid:
        if len(column) == 1:
            whole = (_whole(_plain(column[0]) or "", kind) if pa.types.is_signed_integer(kind)
                     and _is_text(column.type) else None)
            if whole is None:
                bad.append(start)
            return [pa.array([whole], kind)]
        half = len(column) // 2
        return _cast_halves(column[:half], kind, start,
                            bad) + _cast_halves(column[half:], kind, start + half, bad)


def _casts(values: pa.Array, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
