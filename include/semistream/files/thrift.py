"""Thrift's compact protocol, in which Parquet files describe themselves.

A struct is a mapping from a field's number to (type, value); a list is (type of its elements, list
of their values).
"""

from __future__ import annotations

import struct
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET = range(1, 11)
STRUCT = 12
Struct = dict[int, tuple[int, Any]]


def read(data: memoryview) -> tuple[Struct, int]:
    """Return the struct at the beginning of some bytes, and the bytes that it takes."""
    reader = _Reader(data.cast("B"))  # the bytes of a buffer of Arrow are signed
    return reader.value(STRUCT), reader.at


def write(fields: Struct) -> bytes:
    out = bytearray()
    _write(out, STRUCT, fields)
    return bytes(out)


def varint(number: int) -> bytes:
    """Return a number, not negative, with 7 bits in a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Reader:
    def __init__(self, data: memoryview):
        self.data, self.at = data, 0

    def take(self, size: int) -> memoryview:
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def integer(self) -> int:
        number = self.varint()
        return number >> 1 ^ -(number & 1)

    def value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self.take(1)[0]
        if kind in (I16, I32, I64):
            return self.integer()
        if kind == DOUBLE:
            return struct.unpack("<d", self.take(8))[0]
        if kind == BINARY:
            return bytes(self.take(self.varint()))
        if kind in (LIST, SET):
            head = self.take(1)[0]
            count = head >> 4 if head >> 4 < 15 else self.varint()
            # a boolean takes a byte in a list, and none in a struct
            of = BYTE if head & 15 in (TRUE, FALSE) else head & 15
            return head & 15, [self.value(of) for _ in range(count)]
        if kind != STRUCT:
            raise ValueError(f"a value of Thrift's type {kind}")
        fields, number = Struct(), 0
        while head := self.take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.integer()
            fields[number] = head & 15, self.value(head & 15)
        return fields


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in (TRUE, FALSE):
        return
    if kind == BYTE:
        out.append(value)
    elif kind in (I16, I32, I64):
        out += varint(value << 1 ^ value >> 63)
    elif kind == DOUBLE:
        out += struct.pack("<d", value)
    elif kind == BINARY:
        out += varint(len(value)) + value
    elif kind in (LIST, SET):
        of, values = value
        out += bytes([len(values) << 4 | of]) if len(values) < 15 else bytes([15 << 4 | of])
        if len(values) >= 15:
            out += varint(len(values))
        for each in values:
            _write(out, BYTE if of in (TRUE, FALSE) else of, each)
    else:
        before = 0
        for number, (of, each) in sorted(value.items()):
            step = number - before
            out += bytes([step << 4 | of]) if 0 < step < 16 else bytes([of]) + varint(2 * number)
            _write(out, of, each)
            before = number
        out.append(0)
