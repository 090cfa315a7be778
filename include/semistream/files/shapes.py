"""The shape of a cell's text: an integer, a fraction, a number with an exponent, or none of
these."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.compiled import njit

# Each shape is plain: no sign +, no leading zeros, no blanks. "-0" is a FRACTION, as no integer
# keeps its sign. NULL: the cell is null.
NULL, INTEGER, FRACTION, EXPONENT, SPECIAL, OTHER = range(6)
MINUS, POINT, ZERO, NINE = ord("-"), ord("."), ord("0"), ord("9")


class Shapes(NamedTuple):
    """The shapes of cells. shape: uint8[n], one of the constants; digits: int32[n], significant
    digits, including trailing zeros; fraction: int32[n], digits after the point."""

    shape: np.ndarray
    digits: np.ndarray
    fraction: np.ndarray


def shapes_of(texts: pa.Array) -> Shapes:
    """Classify each cell of a string or binary array."""
    n = len(texts)
    shape, digits = np.empty(n, np.uint8), np.empty(n, np.int32)
    fraction = np.empty(n, np.int32)
    offsets, data, valid = text_buffers(texts)
    _shapes(offsets, data, valid, shape, digits, fraction)
    return Shapes(shape, digits, fraction)


def text_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the buffers of a string or binary array: (offsets int32[n + 1], data uint8[…], valid
    bool[n])."""
    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8), np.zeros(0, bool)
    starts = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    valid = (
        texts.is_valid().to_numpy(zero_copy_only=False)
        if texts.null_count
        else np.ones(len(texts), bool)
    )
    return starts, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8), valid


@njit(cache=True)
def _shapes(offsets, data, valid, shape, digits, fraction):  # noqa: PLR0912 - one compiled loop
    """Determine the shape of each cell.

    in      offsets int32[n + 1], data uint8[…], valid bool[n]
    out     shape uint8[n], digits int32[n], fraction int32[n]
    """
    for r in range(len(shape)):
        digits[r] = fraction[r] = 0
        if not valid[r]:
            shape[r] = NULL
            continue
        i, end = offsets[r], offsets[r + 1]
        negative = i < end and data[i] == MINUS
        if negative:
            i += 1
        shape[r] = _special(data, i, end)
        if shape[r] != OTHER or i >= end:
            continue
        first = i
        while i < end and ZERO <= data[i] <= NINE:
            i += 1
        whole = i - first
        if whole > 1 and data[first] == ZERO:
            continue
        zero = whole == 0 or data[first] == ZERO
        count = 0 if zero else whole
        behind = 0
        pointed = i < end and data[i] == POINT
        if pointed:
            i += 1
            while i < end and ZERO <= data[i] <= NINE:
                behind += 1
                if count or data[i] != ZERO:
                    count += 1
                i += 1
        if whole + behind == 0:
            continue
        digits[r], fraction[r] = count, behind
        if i == end:
            shape[r] = FRACTION if pointed or (negative and zero) else INTEGER
        elif data[i] | 32 == 101:  # e or E
            i += 1
            if i < end and (data[i] == MINUS or data[i] == 43):
                i += 1
            first = i
            while i < end and ZERO <= data[i] <= NINE:
                i += 1
            if i == end and i > first:
                shape[r] = EXPONENT


@njit(cache=True)
def _special(data, i, end):
    """Return SPECIAL for the texts inf, Infinity, nan and NaN; OTHER for any other text.

    in      data uint8[…]
    """
    if end - i == 3:
        a, b, c = data[i], data[i + 1], data[i + 2]
        if (a == 105 and b == 110 and c == 102) or (a | 32 == 110 and b == 97 and c == a):
            return SPECIAL
    if end - i == 8:
        word = (73, 110, 102, 105, 110, 105, 116, 121)
        for k in range(8):
            if data[i + k] != word[k]:
                return OTHER
        return SPECIAL
    return OTHER
