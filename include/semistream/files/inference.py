"""Types of text columns, inferred from a sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.errors import ConfigError
from semistream.files.convert import (
    DIGITS,
    NULL_LIKE,
    TRUTH,
    as_integer,
    changed_by_double,
    prepared_cells,
    text_of,
)
from semistream.files.formats import implied_type
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

TYPES = {
    "int": pa.int64(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "string": pa.string(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_utc": pa.timestamp("us", "UTC"),
}
DAY = r"^\d{4}-\d\d-\d\d"  # the start of a date, and of a time
UNSEEN = 10  # digits of a decimal's fraction, if the sample of a column has no number
FIRST = 1000  # cells that are examined first, to see whether the others need to be
REPORTED_SHARE = 0.9  # share of cells of a narrower type, from which the others are reported
NUMBERS = (INTEGER, FRACTION, EXPONENT, SPECIAL)
# digits behind the point that fixed-point numbers may have: with a single one, as in 2.0 and 0.5,
# they are written as floating-point numbers are, too
FIXED_SCALES = range(2, 5)
FIXED_DIGITS = 12  # the most digits of a fixed-point number
INT64_DIGITS = 19  # digits of the largest int64


def parse_type(column: str, name: str) -> pa.DataType:
    """Return an Arrow type for a name such as 'int64', 'date', 'decimal(12,2)'. Raises ConfigError
    for an unknown name."""
    decimal = re.fullmatch(r"decimal\((\d+)(?:, *(\d+))?\)", name.strip().lower())
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2] or 0) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
    if name.strip().lower() not in TYPES:
        raise ConfigError(
            "types",
            "must give a column one of the types known",
            f"{column}={name}",
            f"Known are: {', '.join(TYPES)} and decimal(PRECISION,SCALE) with a "
            f"precision of at most 38.",
        )
    return TYPES[name.strip().lower()]


class SampledCells:
    """The cells of a text column's sample that have a value. shapes: their shapes."""

    def __init__(self, sample: pa.Array):
        self._sample, shapes = sample, shapes_of(sample)
        self._kept = shapes.shape != NULL
        others = np.flatnonzero(shapes.shape == OTHER)  # no word that means null is a number
        if len(others):
            texts = sample if len(others) == len(sample) else sample.take(pa.array(others))
            words = pc.is_in(texts, NULL_LIKE.cast(sample.type))
            self._kept[others[words.to_numpy(zero_copy_only=False)]] = False
        self.shapes = shapes
        if not self._kept.all():
            self.shapes = Shapes(*(part[self._kept] for part in shapes))

    @cached_property
    def values(self) -> pa.Array:
        """The texts of these cells."""
        return self._sample if self._kept.all() else self._sample.filter(pa.array(self._kept))

    def infer_type(self, numbers: bool = False) -> pa.DataType:
        """Infer the column's type; null if no cell has a value.

        No type is chosen that would alter a value: numbers with leading zeros, and integers beyond
        64 bits, are strings. Numbers that a double cannot represent are decimals, or strings if
        they have an exponent or more than 38 digits.

        numbers: whether a declared format or JSON says that the column has numbers; then an integer
        beyond 64 bits is a decimal and not a string.
        """
        shapes = self.shapes
        if not len(shapes.shape):
            return pa.null()
        found = set(np.flatnonzero(np.bincount(shapes.shape)).tolist())
        if found == {INTEGER}:
            return pa.int64() if self._integers() else _decimal(shapes, numbers)
        if found.issubset(NUMBERS):
            if not self.fits_double():
                return _decimal(shapes)
            return pa.int64() if INTEGER in found and self._integers() else pa.float64()
        if _all(self.values, lambda cells: pc.is_in(cells, TRUTH.cast(cells.type))):
            return pa.bool_()
        return infer_time(self.values)

    def fixed_point(self) -> int:
        """Return the number of decimals if the cells are fixed-point numbers, such as amounts of
        money; otherwise 0.

        All of them are plain numbers of few digits, and either all have as many decimals, or some
        of those with the most decimals end with a zero.
        """
        shapes = self.shapes
        if not np.isin(shapes.shape, (INTEGER, FRACTION)).all():
            return 0
        scale = int(shapes.fraction.max(initial=0))
        whole = int(np.maximum(shapes.digits - shapes.fraction, 1).max(initial=1))
        if scale not in FIXED_SCALES or whole + scale > FIXED_DIGITS:
            return 0
        longest = shapes.fraction == scale
        if longest.all():
            return scale
        padded = pc.ends_with(self.values, "0").to_numpy(zero_copy_only=False)
        return scale if (longest & padded).any() else 0

    def fits_double(self) -> bool:
        """Return whether a double keeps each of these numbers."""
        return not len(changed_by_double(self.values, self.shapes))

    def deciding_cells(self, kind: pa.DataType) -> str:
        """Describe the few cells for which ``infer_type`` chose this type, if most cells of the
        column would fit a narrower type; otherwise return ""."""
        count = len(self.shapes.shape)
        if not count:
            return ""

        def numbers(cells: slice, shapes: Sequence[int]) -> np.ndarray:
            return np.isin(self.shapes.shape[cells], shapes)

        def days(cells: slice) -> np.ndarray:
            found = pc.match_substring_regex(self.values[cells], DAY + "$")
            return np.asarray(found.to_numpy(zero_copy_only=False))

        for narrow, fitting in (
            ("int64", partial(numbers, shapes=(INTEGER,))),
            ("double", partial(numbers, shapes=NUMBERS)),
            ("date", days),
        ):
            if narrow in (str(kind), "date32" if kind == pa.date32() else "") or (
                pa.types.is_decimal(kind) and narrow == "double"
            ):
                return ""
            if fitting(slice(FIRST)).mean() >= REPORTED_SHARE:
                others = self.values.filter(pa.array(~fitting(slice(None))))
                if 0 < len(others) <= (1 - REPORTED_SHARE) * count:
                    return (
                        f"{len(others):,} of {count:,} cells that are no {narrow}, the first "
                        f"{others[0].as_py()!r}"
                    )
        return ""

    def has_exponents(self, kind: pa.DataType) -> bool:
        """Return whether some integers of an int64 column have an exponent, such as 4.0128e+10."""
        return bool(pa.types.is_int64(kind) and (self.shapes.shape == EXPONENT).any())

    def _integers(self) -> bool:
        """Return whether all cells, which are numbers, fit into int64. They may have an
        exponent."""
        plain = self.shapes.shape == INTEGER
        return all(
            as_integer(text_of(self.values[i]), pa.int64()) is not None
            for i in np.flatnonzero(~plain).tolist()
        ) and (
            self.shapes.digits.max(where=plain, initial=0) < INT64_DIGITS
            or _fits(self.values.filter(pa.array(plain)), pa.int64())
        )


def infer_time(values: pa.Array) -> pa.DataType:
    """Infer the type of times from texts: date32, timestamp[us] with or without UTC; string if they
    are not times."""
    if _all(values, lambda cells: pc.match_substring_regex(cells, DAY)):
        for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
            if _fits(values, kind):
                return kind
    return pa.string()


def infer_formatted_type(sample: pa.Array, form: ColumnFormat) -> pa.DataType:
    """Infer the type of a column with a declared format of times or numbers: a date, a timestamp,
    int64 or a decimal, never double."""
    if (kind := implied_type(form)) is not None:
        return kind
    cells = SampledCells(prepared_cells("", sample, form)[0])
    if not len(cells.shapes.shape):
        return pa.decimal128(DIGITS, UNSEEN)
    kind = pa.null() if form.decimal or form.percent else cells.infer_type(numbers=True)
    return kind if pa.types.is_integer(kind) else _decimal(cells.shapes)


def _decimal(shapes: Shapes, wanted: bool = True) -> pa.DataType:
    """Return the decimal type that holds all of these numbers; string if no decimal type does, or
    if ``wanted`` is false."""
    fraction = int(shapes.fraction.max())
    # at least one digit before the point, as a number below 1 has no significant one there
    whole = int(np.maximum(shapes.digits - shapes.fraction, 1).max())
    if not wanted or not np.isin(shapes.shape, (INTEGER, FRACTION)).all():
        return pa.string()
    return pa.decimal128(DIGITS, fraction) if whole + fraction <= DIGITS else pa.string()


def _all(values: pa.Array, fits: Callable[[pa.Array], pa.Array]) -> bool:
    """Return whether all values fit. The first ones are tested before the others."""
    return bool(
        pc.all(fits(values[:FIRST])).as_py()
        and (len(values) <= FIRST or pc.all(fits(values)).as_py())
    )


def _fits(values: pa.Array, kind: pa.DataType) -> bool:
    """Return whether all values can be cast. The first ones are tried before the others, as Arrow
    goes on after a value that does not fit."""
    try:
        values[:FIRST].cast(kind)
        values[FIRST:].cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
