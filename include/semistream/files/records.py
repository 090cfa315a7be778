"""The records of a CSV text, split strictly by RFC 4180. A malformed record does not affect the
others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.compiled import filled, njit

LONGEST = 1 << 20  # bytes that a record with line breaks inside quotes may have
CR, LF = 13, 10


class Records(NamedTuple):
    """The records of a text. starts, ends: int64[n], positions without the line end; fields:
    int32[n], the numbers of fields, 0 if the quotes are wrong; consumed: bytes parsed."""

    starts: np.ndarray
    ends: np.ndarray
    fields: np.ndarray
    consumed: int


def split_records(
    data: np.ndarray, delimiter: int, quote: int, escape: int, final: bool, keep_empty: bool
) -> Records:
    """Find the complete records of data (uint8[n]).

    quote, escape: -1 for none; final: whether nothing follows the data; keep_empty: whether an
    empty line is a record.
    """
    most = np.count_nonzero(data == LF) + np.count_nonzero(data == CR) + 1
    starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    fields = np.empty(most, np.int32)
    count, consumed = _split(
        data, delimiter, quote, escape, final, keep_empty, starts, ends, fields
    )
    return Records(starts[:count], ends[:count], fields[:count], consumed)


@njit(cache=True)
def _split(data, delimiter, quote, escape, final, keep_empty, starts, ends, fields):
    """Split data into records. Return (records, bytes consumed).

    in      data uint8[n]
    out     starts int64[k], ends int64[k], fields int32[k]
    """
    i, n, count = 0, len(data), 0
    while i < n:
        end, found = _record(data, i, n, delimiter, quote, escape)
        if found <= 0:  # the quotes are wrong, or not closed here
            if found < 0 and not final and n - i <= LONGEST:
                break
            found, end = 0, _line_end(data, i, n)
        if end >= n and not final:
            break
        if end + 1 >= n and not final and data[end] == CR:
            break  # a line feed may follow
        if end > i or keep_empty:
            starts[count], ends[count], fields[count] = i, end, found
            count += 1
        i = end + 1
        if i < n and data[end] == CR and data[i] == LF:
            i += 1
    return count, min(i, n)


@njit(cache=True)
def _record(data, i, n, delimiter, quote, escape):
    """Return (end of the record at i, number of its fields). The number is 0 for a malformed
    record, and -1 for a record that does not end before n.

    in      data uint8[n]
    """
    fields = 1
    while True:
        if i < n and data[i] == quote:
            i += 1
            while True:
                while i < n and data[i] != quote:
                    i += 2 if data[i] == escape else 1
                if i >= n:
                    return n, -1
                i += 1
                if i >= n or data[i] != quote:
                    break
                i += 1
            if i < n and data[i] != delimiter and data[i] != LF and data[i] != CR:
                return i, 0
        while i < n and data[i] != delimiter and data[i] != LF and data[i] != CR:
            i += 2 if data[i] == escape else 1
        if i >= n or data[i] != delimiter:
            return min(i, n), fields
        fields += 1
        i += 1


def line_numbers(data: bytes, positions: np.ndarray) -> np.ndarray:
    """Count the line ends (LF, CR, or CR LF) before each position, int64[k], ascending."""
    arrays = np.frombuffer(data, np.uint8), positions.astype(np.int64)
    return filled(_line_numbers, len(positions), np.int64, *arrays)


@njit(cache=True)
def _line_numbers(data, positions, out):
    """Count the line ends before each position.

    in      data uint8[n], positions int64[k]
    out     out int64[k]
    """
    count, i, n = 0, 0, len(data)
    for k in range(len(positions)):
        while i < positions[k]:
            count += data[i] == LF or (data[i] == CR and (i + 1 == n or data[i + 1] != LF))
            i += 1
        out[k] = count


@njit(cache=True)
def _line_end(data, i, n):
    """Return the first line end from position i on; n if there is none.

    in      data uint8[n]
    """
    while i < n and data[i] != LF and data[i] != CR:
        i += 1
    return i
