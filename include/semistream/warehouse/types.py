"""Conversion between Arrow types and column types of the warehouse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Double,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    Time,
    types,
)

from semistream.errors import ConfigError
from semistream.warehouse.dialects import SYSTEMS, system_of, with_variants

KEY_CHARACTERS = 190  # four such utf8mb4 keys fit into an index of InnoDB, 3072 bytes
DECIMAL_DIGITS = 38  # the most that a decimal has here; a longer one is text
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999, in days since 1970


class KeyString(types.TypeDecorator):
    """A string that is compared byte by byte, on every database.

    MySQL's default collations regard 'a', 'A' and 'a ' as equal, so that a join on such a key would
    be wrong.
    """

    impl = String
    cache_ok = True

    def __init__(self, length: int = KEY_CHARACTERS):
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Any) -> Any:
        return dialect.type_descriptor(system_of(dialect).key_string(dialect, self.length))


class LongString(types.TypeDecorator):
    """Text of any length, compared byte by byte."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return dialect.type_descriptor(system_of(dialect).long_string(dialect))


class ExactDecimal(types.TypeDecorator):
    """A decimal that keeps every digit. If a database stores decimals as doubles, long ones are
    stored as text."""

    impl = Numeric
    cache_ok = True

    def __init__(self, precision: int, scale: int):
        super().__init__(precision, scale)
        self.precision, self.scale = precision, scale

    def load_dialect_impl(self, dialect: Any) -> Any:
        if system_of(dialect).decimal_is_text(self.precision):
            return dialect.type_descriptor(String(self.precision + 2))
        return dialect.type_descriptor(Numeric(self.precision, self.scale))

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        if value is not None and system_of(dialect).decimal_is_text(self.precision):
            return f"{value:.{self.scale}f}"
        return value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return Decimal(value) if isinstance(value, str) else value


def big_integer() -> Any:
    """Return the type of a 64-bit integer that can also be an automatic primary key."""
    return with_variants(BigInteger())


# the column type for each Arrow type of a stored schema; the first test that holds decides
SQL_TYPES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[], Any]], ...] = (
    (pa.types.is_boolean, Boolean),
    (pa.types.is_int64, BigInteger),
    (pa.types.is_int16, SmallInteger),
    (pa.types.is_integer, Integer),
    (pa.types.is_floating, Double),  # MySQL shows six digits of a FLOAT, which does not identify it
    (pa.types.is_date, Date),
    (pa.types.is_timestamp, lambda: with_variants(DateTime())),
    (pa.types.is_time, lambda: with_variants(Time())),
)
# the Arrow types that are stored as another one, or as they are
STORED_TYPES = {
    **{t: pa.string() for t in (pa.null(), pa.large_string(), pa.string_view(), pa.string())},
    **{t: pa.binary() for t in (pa.large_binary(), pa.binary_view(), pa.binary())},
    **{t: pa.int16() for t in (pa.int8(), pa.uint8(), pa.int16())},
    **{t: pa.int32() for t in (pa.uint16(), pa.int32())},
    **{t: pa.int64() for t in (pa.uint32(), pa.uint64(), pa.int64())},
    **{t: pa.float32() for t in (pa.float16(), pa.float32())},
    **{t: pa.date32() for t in (pa.date32(), pa.date64())},
    **{t: t for t in (pa.bool_(), pa.float64())},
}
# the Arrow type of each general column type; the first kind decides
ARROW_TYPES: tuple[tuple[Any, pa.DataType], ...] = (
    (Boolean, pa.bool_()),
    (BigInteger, pa.int64()),
    (SmallInteger, pa.int16()),
    (Integer, pa.int64()),  # SQLite's is as wide as it needs to be
    (Float, pa.float64()),
    (Date, pa.date32()),
    (DateTime, pa.timestamp("us")),
    (Time, pa.time64("us")),
    ((String, types.JSON, types.Uuid), pa.string()),
    (types._Binary, pa.binary()),
)


def sql_type(field: pa.Field, key: bool) -> Any:
    """Return the column type for an Arrow field in a stored schema. key: whether the column is
    indexed."""
    k = field.type
    if (made := next((make for test, make in SQL_TYPES if test(k)), None)) is not None:
        return made()
    if pa.types.is_decimal(k):
        return ExactDecimal(k.precision, k.scale)
    if pa.types.is_binary(k):
        return with_variants(LargeBinary(KEY_CHARACTERS)) if key else LargeBinary(2**32 - 1)
    return KeyString() if key else LongString()


def stored_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which a column of any type is stored. Raises ConfigError for a type
    that no database column can hold."""
    if pa.types.is_dictionary(kind):
        return stored_type(name, kind.value_type)
    if kind in STORED_TYPES:
        return STORED_TYPES[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_decimal(kind) and kind.precision <= DECIMAL_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    raise ConfigError(
        "columns",
        "must have types that a database column can hold",
        f"{name}: {kind}",
        "Declare the columns without it: `columns` of the dimension or the stream, as "
        "'sku STRING, price DECIMAL(10,2)', names those that are read. Or write it as a text in "
        "the source.",
    )


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which the warehouse stores these columns, without metadata."""
    return pa.schema([pa.field(f.name, stored_type(f.name, f.type), f.nullable) for f in schema])


def arrow_type(name: str, kind: Any) -> pa.DataType:
    """Return the Arrow type for a column of an existing table. Raises ConfigError for a type
    without an Arrow type."""
    if isinstance(kind, ExactDecimal):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.TypeDecorator):
        return arrow_type(name, kind.impl)
    for found in (
        *(system.arrow_type(kind) for system in SYSTEMS),
        *(arrow for kinds, arrow in ARROW_TYPES if isinstance(kind, kinds)),
    ):
        if found is not None:
            return found
    if isinstance(kind, Numeric):
        if kind.precision and kind.precision > DECIMAL_DIGITS:
            return pa.string()
        return pa.decimal128(kind.precision, kind.scale or 0) if kind.precision else pa.float64()
    raise ConfigError(
        "table",
        "must have columns of types that Arrow knows",
        f"{name}: {'unknown' if isinstance(kind, types.NullType) else kind}",
        "Make a view that casts the column.",
    )


def outside_years(column: pa.Array) -> pa.Array:
    """Return, for each value, whether it is a date or time that no database column can hold: before
    the year 1 or after the year 9999."""
    if pa.types.is_date32(column.type):
        numbers, unit = column.cast(pa.int32()), 1
    elif pa.types.is_timestamp(column.type):
        numbers = column.cast(pa.int64())
        unit = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    else:
        return pa.repeat(False, len(column))
    first, end = FIRST_DAY * unit, min((LAST_DAY + 1) * unit, 2**63 - 1)
    outside = pc.or_(pc.less(numbers, max(first, -(2**63))), pc.greater_equal(numbers, end))
    return pc.fill_null(outside, False)


def python_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows like ``to_pylist``, but with dates and times outside the years 1 to 9999 as
    texts, because Python cannot represent them."""
    columns, texts = list(rows.columns), list[tuple[int, str, str]]()
    for c, (name, column) in enumerate(zip(rows.schema.names, columns, strict=True)):
        outside = outside_years(column)
        if pc.any(outside).as_py():
            texts += [
                (i, name, column[i].cast(pa.string()).as_py())
                for i in pc.indices_nonzero(outside).to_pylist()
            ]
            columns[c] = pc.if_else(outside, pa.scalar(None, column.type), column)
    found: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, rows.schema.names).to_pylist()
    for i, name, text in texts:
        found[i][name] = text
    return found


def typed(value: Any, kind: types.TypeEngine) -> Any:
    """Convert a JSON value to the Python value that a column of this type accepts and returns."""
    if value is None or isinstance(kind, Boolean):
        return value
    if isinstance(kind, LargeBinary):
        return bytes.fromhex(str(value))
    if isinstance(kind, DateTime):
        at = datetime.fromisoformat(str(value))
        return at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at
    if isinstance(kind, Numeric):
        return Decimal(str(value)) if kind.asdecimal else float(value)
    for plain, convert in (
        (Date, lambda text: date.fromisoformat(text[:10])),
        (Time, time_of_day.fromisoformat),
        (Integer, int),
    ):
        if isinstance(kind, plain):
            return convert(str(value))
    return str(value)
