"""Numbers of a text column, converted only where they stay the numbers that are written."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, IntegerType, LongType

CONVERTED = (DoubleType, DecimalType, IntegerType, LongType)
NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
SPECIAL = r"(?i)^([-+]?inf(inity)?|nan)$"
SURE = 15  # digits that a double keeps


def convert(text: Column, kind: DataType) -> Column:
    """The number that a text says; null where it is no number of the type, or would be another
    one."""
    text = F.trim(text)
    value = text.try_cast(kind)
    if isinstance(kind, DoubleType):
        kept = F.when(text.rlike(SPECIAL), True).otherwise(
            ~F.isnan(value) & (F.abs(value) < float("inf"))
            & (((F.length(_digits(text)) <= SURE) & ((value != 0) | (_digits(text) == "")))
               | _same(text, value)))
    elif isinstance(kind, DecimalType):
        kept = _same(text, value)
    else:  # also where it is written with an exponent
        written = text.try_cast(DecimalType(38, 0))
        value = F.coalesce(value, F.when(text.rlike("[eE]") & _same(text, written),
                                         written).try_cast(kind))
        kept = F.lit(True)
    number = (text.rlike(NUMBER) | text.rlike(SPECIAL) if isinstance(kind, DoubleType)
              else text.rlike(NUMBER))
    return F.when(number & kept, value)


def _same(text: Column, value: Column) -> Column:
    """Whether a number's text, and a value, are the same number."""
    shown = value.cast("string")
    return ((_digits(text) == _digits(shown))
            & (F.startswith(text, F.lit("-")) == F.startswith(shown, F.lit("-")))
            & (_power(text) == _power(shown)) | (_digits(text) == "") & (value == 0))


def _digits(text: Column) -> Column:
    """The significant digits; none of zero."""
    return F.regexp_replace(F.concat(*_parts(text)), "^0+|0+$", "")


def _power(text: Column) -> Column:
    """The power of ten of the last significant digit."""
    whole, fraction = _parts(text)
    exponent = F.coalesce(F.regexp_extract(text, "[eE]([-+]?[0-9]+)$", 1).try_cast("int"), F.lit(0))
    zeros = F.length(F.regexp_extract(F.concat(whole, fraction), "(0*)$", 1))
    return exponent - F.length(fraction) + zeros


def _parts(text: Column) -> tuple[Column, Column]:
    """(the digits before the point, those behind it)."""
    pattern = r"^[-+]?([0-9]*)\.?([0-9]*)"
    return F.regexp_extract(text, pattern, 1), F.regexp_extract(text, pattern, 2)
