"""Schemas in Spark's DDL, parsed to Arrow schemas."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from semistream.errors import ConfigError

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 0),
    "dec": pa.decimal128(10, 0),
    "numeric": pa.decimal128(10, 0),
}
NAMES = {kind: name.upper() for name, kind in reversed(TYPES.items())}
NESTED = ("array", "map", "struct")
TOKEN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<sign>[<>(),:]))"
)


def parse_ddl(text: str, parameter: str = "columns", nested: bool = False) -> pa.Schema:
    """Parse ``'id BIGINT, price DECIMAL(10,2), tags ARRAY<STRING>'`` to an Arrow schema.

    nested: whether arrays, maps and structs are allowed. Raises ConfigError, which names the
    parameter, for a text that is not understood.
    """
    return _Parser(text, parameter, NESTED if nested else ()).schema()


def to_ddl(schema: pa.Schema) -> str:
    """Return a schema of plain types in Spark's DDL, which ``parse_ddl`` accepts."""
    return ", ".join(f"{quoted(field.name)} {type_name(field.type)}" for field in schema)


def quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name.replace('`', '``')}`"


def type_name(kind: pa.DataType) -> str:
    """Return a type's name in Spark's DDL, or Arrow's name if Spark's DDL has none. A type that
    Arrow stores in several ways, such as a time in milliseconds, has one name."""
    if pa.types.is_dictionary(kind):
        return type_name(kind.value_type)
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(f.name)}: {type_name(f.type)}' for f in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_nested(kind) and kind.num_fields == 1:
        return f"ARRAY<{type_name(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return NAMES.get(kind, str(kind))


class _Parser:
    """A recursive descent parser."""

    def __init__(self, text: str, parameter: str, nested: Sequence[str]):
        self.text, self.parameter, self.nested, self.at = text.rstrip(), parameter, nested, 0

    def schema(self) -> pa.Schema:
        fields = self._fields(end="")
        if self.at < len(self.text):
            raise self._error()
        return pa.schema(fields)

    def _fields(self, end: str) -> list[pa.Field]:
        """Parse fields between commas, up to the token ``end`` or the end of the text."""
        fields: list[pa.Field] = []
        while not self._accept(end) if end else self.at < len(self.text):
            if fields and not self._accept(","):
                raise self._error()
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        name = self._next("quoted") or self._next("word")
        if not name:
            raise self._error()
        self._accept(":")
        kind = self._type()
        nullable = not self._accept("not")
        if not nullable and not self._accept("null"):
            raise self._error()
        if self._accept("comment") and not self._next("text"):
            raise self._error()
        return pa.field(name.replace("``", "`"), kind, nullable)

    def _type(self) -> pa.DataType:
        before = self.at
        name = self._next("word").lower()
        if name in self.nested and self._accept("<"):
            return self._nested(name)
        if name not in TYPES:
            self.at = before
            raise self._error()
        kind, numbers = TYPES[name], self._numbers()
        if not numbers:
            return kind
        try:
            return pa.decimal128(*numbers) if pa.types.is_decimal(kind) else pa.string()
        except (ValueError, TypeError):
            self.at = before
            raise self._error() from None

    def _nested(self, name: str) -> pa.DataType:
        if name == "struct":
            return pa.struct(self._fields(end=">"))
        types = [self._type()]
        if name == "map" and self._accept(","):
            types.append(self._type())
        if not self._accept(">") or len(types) != (2 if name == "map" else 1):
            raise self._error()
        return pa.map_(*types) if name == "map" else pa.list_(*types)

    def _numbers(self) -> list[int]:
        """Parse the numbers of a type, such as (10, 2); return an empty list if there are no
        parentheses."""
        numbers: list[int] = []
        if self._accept("("):
            while not self._accept(")"):
                number = self._next("word")
                if not number.isdigit() or len(numbers) == 2:
                    raise self._error()
                numbers.append(int(number))
                self._accept(",")
        return numbers

    def _next(self, kind: str) -> str:
        """Consume and return the next token if its kind is ``kind``; else return ""."""
        match = TOKEN.match(self.text, self.at)
        if match is None or match[kind] is None:
            return ""
        self.at = match.end()
        return match[kind]

    def _accept(self, wanted: str) -> bool:
        """Consume the next token if it is the wanted sign or word. Return whether it was."""
        match = TOKEN.match(self.text, self.at)
        if match is None or (match["word"] or match["sign"] or "").lower() != wanted:
            return False
        self.at = match.end()
        return True

    def _error(self) -> ConfigError:
        rest = self.text[self.at : self.at + 60].strip() or self.text
        return ConfigError(
            self.parameter,
            "must be a schema in Spark's DDL",
            rest,
            f"For instance 'id BIGINT, sku STRING'. Types: {', '.join((*TYPES, *self.nested))}.",
        )
