"""Columns cast to their types: as a whole, or cell by cell if some cells do not fit."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.ddl import type_name
from semistream.errors import ConfigError
from semistream.files.formats import NOTHING, check_texts, is_text, prepared
from semistream.files.shapes import EXPONENT, INTEGER, NULL, OTHER, SPECIAL, Shapes, shapes_of

# words that mean null in a column of any type but string
NULL_LIKE = pa.array(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "\\N"])
NAN = pa.array(["NaN", "nan"])  # values of floating types only
TRUTH = pa.array(["true", "false", "True", "False", "TRUE", "FALSE"])
DIGITS = 38  # most digits of a decimal
SURE = 15  # digits that a double always keeps
NO_UTF8 = "not UTF-8"


def changed_by_double(texts: pa.Array, shapes: Shapes) -> np.ndarray:
    """Return the positions, int64[k], of texts whose number changes when it is read as a double and
    written again."""
    suspects = np.flatnonzero(
        ((shapes.digits > SURE) & (shapes.shape != OTHER)) | (shapes.shape == EXPONENT)
    )
    if not len(suspects):
        return NOTHING
    cells = texts.take(pa.array(suspects))
    try:
        same = pc.equal(cells, cells.cast(pa.float64()).cast(cells.type)).to_numpy(
            zero_copy_only=False
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        same = np.zeros(len(cells), bool)
    return np.array(
        [i for i in suspects[~same.astype(bool)].tolist() if _differs(text_of(texts[i]))], np.int64
    )


def _differs(text: str) -> bool:
    try:
        exact = Decimal(text)
    except ArithmeticError:
        return False  # not a number, which a cast reports
    return exact.is_finite() and exact != Decimal(repr(float(text)))


def as_integer(text: str, kind: pa.DataType) -> int | None:
    """Return the integer that a text with an exponent, such as 4.0128e+10, denotes. Return None if
    the text denotes no integer, if the integer is outside of the type, and for a text without an
    exponent."""
    if "e" not in text.lower():
        return None
    try:
        value = Decimal(text)
        whole = int(value) if value.is_finite() and abs(value.adjusted()) < DIGITS else None
    except ArithmeticError:
        return None
    bits = kind.bit_width - 1
    return whole if whole is not None and value == whole and -(2**bits) <= whole < 2**bits else None


def cast_cells(
    column: pa.Array, kind: pa.DataType, exact: bool = False
) -> tuple[pa.Array, np.ndarray]:
    """Cast a column. Return (cast column, int64 positions of the cells that do not fit, which are
    null).

    exact: whether the type was inferred and not declared. Then a cell fits only if the type would
    also be inferred from that cell: neither 007 nor +7 is an integer. Otherwise a cell fits if it
    is a value of the type, however it is written.
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
        raise ConfigError(
            "columns, types",
            f"must give each column a type that {type_name(column.type)} can become",
            type_name(kind),
            "Choose another type, or leave the column out where the columns are named.",
        ) from None
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
            unlike[changed_by_double(column, shapes)] = True
    elif pa.types.is_boolean(kind):
        unlike = pc.invert(pc.is_in(column, TRUTH.cast(column.type)))
    else:  # Arrow accepts times only in the forms from which they are inferred
        return NOTHING
    positions = np.flatnonzero(
        pc.fill_null(unlike, False) if isinstance(unlike, pa.Array) else unlike
    )
    if len(positions):
        missing = pc.is_in(column.take(pa.array(positions)), _null_words(column, kind))
        missing = pc.or_(missing, column.take(pa.array(positions)).is_null())
        positions = positions[~missing.to_numpy(zero_copy_only=False)]
    return positions


def _null_words(column: pa.Array, kind: pa.DataType) -> pa.Array:
    words = NULL_LIKE if pa.types.is_floating(kind) else pa.concat_arrays([NULL_LIKE, NAN])
    return words.cast(column.type)


def prepared_cells(
    name: str, cells: pa.Array, form: ColumnFormat | None
) -> tuple[pa.Array, np.ndarray]:
    """Return a column's cells as texts that ``cast_cells`` accepts, and int64 positions of the
    cells that do not fit the format, which become null. Raises ConfigError if the format is for
    texts and the column has other values."""
    if form is None:
        return cells, NOTHING
    check_texts(name, cells.type, form)
    if not is_text(cells.type):
        return cells, NOTHING
    texts, bad = cast_cells(cells, pa.string())
    texts, unfit = prepared(texts, form, NULL_LIKE)
    return texts, np.union1d(bad, unfit)


def cast_rows(
    rows: pa.RecordBatch,
    schema: pa.Schema,
    exact: Container[str] = (),
    unlike: Mapping[str, np.ndarray | None] | None = None,
    formats: Mapping[str, ColumnFormat] | None = None,
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Cast rows, whose columns are in the schema's order. Return the rows that fit the schema, and
    for each other row, by its position, the reason why it does not fit.

    exact: columns whose types were inferred, see ``cast_cells``; unlike: by column, the positions
    of cells that do not fit in any case; formats: the declared formats by column.
    """
    columns: list[pa.Array] = []
    wrong: dict[int, str] = {}
    for field, column in zip(schema, rows.columns, strict=True):
        form = (formats or {}).get(field.name)
        cells, unfit = prepared_cells(field.name, column, form)
        cast, bad = cast_cells(cells, field.type, field.name in exact)
        columns.append(cast)
        written = f" as {form.describe()}" if form and form.notation else ""
        others = (unlike or {}).get(field.name)
        found = [p for p in (bad, unfit, others) if p is not None and len(p)]
        for i in np.unique(np.concatenate(found)).tolist() if found else ():
            wrong.setdefault(
                i,
                f"{field.name}: {text_of(column[i])!r} is not {type_name(field.type)}{written}"
                if not _is_text(field.type)
                else f"{field.name}: {NO_UTF8}",
            )
    fitting = pa.RecordBatch.from_arrays(columns, schema=schema)
    return without(fitting, wrong) if wrong else fitting, dict(sorted(wrong.items()))


def without(rows: pa.RecordBatch, positions: Iterable[int]) -> pa.RecordBatch:
    """Return the rows except those at these positions."""
    keep = np.ones(rows.num_rows, bool)
    keep[list(positions)] = False
    return rows.filter(pa.array(keep))


def _prepared(column: pa.Array, kind: pa.DataType, exact: bool) -> pa.Array:
    """Convert texts or bytes into the form that Arrow's cast accepts. Words that mean null become
    null. Unless ``exact``, blanks at the ends, a plus sign, and the fraction of a whole number are
    removed, and a time without a zone counts as UTC."""
    if not exact:
        column = pc.replace_substring_regex(column, r"^\s+|\s+$", "")
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            column = pc.replace_substring_regex(column, r"^\+([0-9.])", r"\1")
        if pa.types.is_integer(kind):
            column = pc.replace_substring_regex(column, r"^(-?[0-9]+)\.0*$", r"\1")
    column = pc.if_else(
        pc.is_in(column, _null_words(column, kind)), pa.scalar(None, column.type), column
    )
    if pa.types.is_timestamp(kind) and kind.tz and not exact:
        utc = pc.binary_join_element_wise(
            column, pa.scalar("Z", column.type), pa.scalar("", column.type)
        )
        column = pc.if_else(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$"), column, utc)
    return column


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column. Bytes are cast through text, which checks that they are UTF-8; times of day,
    which Arrow does not parse, are cast through timestamps."""
    if pa.types.is_binary(column.type) and not pa.types.is_binary(kind):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) and pa.types.is_time(kind):
        day = pc.binary_join_element_wise("1970-01-01", column, " ")
        return day.cast(pa.timestamp(kind.unit)).cast(kind)
    return column.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a column has bytes, in any of Arrow's layouts."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if pa.types.is_dictionary(kind):
        return is_bytes(kind.value_type)
    return any(test(kind) for test in (*kinds, pa.types.is_binary_view))


def is_time(kind: pa.DataType) -> bool:
    """Return whether a column has dates, times of day or timestamps."""
    return any(test(kind) for test in (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp))


def text_of(value: pa.Scalar) -> Any:
    """Return a cell for a reason: bytes as the text that they are, with escapes where they are no
    UTF-8; others as `plain` does."""
    found = plain(value)
    return found.decode(errors="backslashreplace") if isinstance(found, bytes) else found


def plain(value: pa.Scalar) -> Any:
    """Return a cell as a Python value, with dates and times at any depth as text, as Python has
    neither nanoseconds nor years after 9999."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return plain(value.value)
    if is_time(kind):
        return time_text(value)
    if pa.types.is_duration(kind):
        return f"{value.value} {kind.unit}"
    if pa.types.is_struct(kind):
        return {name: plain(of) for name, of in value.items()}
    if pa.types.is_nested(kind):  # a list, or the entries of a map
        return [plain(of) for of in value.values]
    return value.as_py()


def json_text(value: Any) -> str:
    """Return a value that JSON does not have as text, bytes in hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else str(value)


def readable(column: pa.Array) -> pa.Array:
    """Return a column as texts for people, bytes in hexadecimal digits."""
    if is_bytes(column.type):
        return pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def time_text(value: pa.Scalar) -> str | None:
    """Return a date or time as text, with all of its digits; one with a zone in UTC."""
    text: str | None = time_texts(value).as_py()
    return text


def time_texts(times: Any) -> Any:
    """Return dates or times as texts, as `time_text` does. times: a column or a scalar."""
    if pa.types.is_timestamp(times.type) and times.type.tz:
        times = times.cast(pa.timestamp(times.type.unit, "UTC"))
    return pc.replace_substring_regex(times.cast(pa.string()), r"\.0+(Z?)$", r"\1")


def _cast_halves(column: pa.Array, kind: pa.DataType, start: int, bad: list[int]) -> list[pa.Array]:
    """Cast a column. If the cast fails, the column is halved and each half is cast, until each
    wrong cell is alone."""
    try:
        return [_cast(column, kind)]
    except pa.ArrowInvalid:
        if len(column) == 1:
            whole = (
                as_integer(text_of(column[0]) or "", kind)
                if pa.types.is_signed_integer(kind) and _is_text(column.type)
                else None
            )
            if whole is None:
                bad.append(start)
            return [pa.array([whole], kind)]
        half = len(column) // 2
        return _cast_halves(column[:half], kind, start, bad) + _cast_halves(
            column[half:], kind, start + half, bad
        )
