"""Transfer of Arrow rows into and out of SQLite without a Python object for each value. Kernels
bind values from Arrow's buffers, step the statement, and copy its columns.

Python's ``sqlite3`` spends more time on creating and inspecting objects than SQLite spends on rows.
"""

from __future__ import annotations

import ctypes
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pyarrow as pa

from semistream.compiled import External, njit
from semistream.warehouse.dialects.sqlite_library import library

STATEMENT_ROWS = 16  # of one INSERT; more would not be faster
INTEGER, FLOAT, TEXT, BLOB, NULL = range(1, 6)  # SQLITE_INTEGER and so on: the storage classes
STATIC = 0  # SQLITE_STATIC: a bound value stays in place until the statement is done
ROW, DONE = 100, 101  # SQLITE_ROW, SQLITE_DONE
EXACT = 2**53  # integers up to there are doubles too
TEXT_BYTES = 4_000_000  # of the texts and blobs of a batch, unless one row has more
# the storage class of Arrow types, and the type in which their values are bound
BOUND = (
    (pa.types.is_integer, INTEGER, pa.int64()),
    (pa.types.is_boolean, INTEGER, pa.int64()),
    (pa.types.is_floating, FLOAT, pa.float64()),
    (pa.types.is_binary, BLOB, pa.binary()),
    (pa.types.is_large_binary, BLOB, pa.binary()),
    (pa.types.is_binary_view, BLOB, pa.binary()),
    (pa.types.is_fixed_size_binary, BLOB, pa.binary()),
    (lambda _: True, TEXT, pa.string()),
)

sqlite: Any = library()  # not None: the caller has a handle


def _function(name: str, *takes: str, gives: str = "int32") -> Any:
    llvm.add_symbol(name, ctypes.cast(getattr(sqlite, name), c_void_p).value)
    return External(name, gives, *takes)


_bind_null = _function("sqlite3_bind_null", "intp", "int32")
_bind_int64 = _function("sqlite3_bind_int64", "intp", "int32", "int64")
_bind_double = _function("sqlite3_bind_double", "intp", "int32", "float64")
_bind_text = _function("sqlite3_bind_text", "intp", "int32", "intp", "int32", "intp")
_bind_blob = _function("sqlite3_bind_blob", "intp", "int32", "intp", "int32", "intp")
_step = _function("sqlite3_step", "intp")
_reset = _function("sqlite3_reset", "intp")
_column_type = _function("sqlite3_column_type", "intp", "int32")
_column_int64 = _function("sqlite3_column_int64", "intp", "int32", gives="int64")
_column_double = _function("sqlite3_column_double", "intp", "int32", gives="float64")
_column_text = _function("sqlite3_column_text", "intp", "int32", gives="intp")
_column_blob = _function("sqlite3_column_blob", "intp", "int32", gives="intp")
_column_bytes = _function("sqlite3_column_bytes", "intp", "int32")
_copy: Any = External("memcpy", "intp", "intp", "intp", "intp")


@njit(cache=True)
def _insert(statement, kinds, values, doubles, lengths, first, last, at_once):
    """Insert rows ``first`` to ``last`` (exclusive), ``at_once`` with each step. Return SQLite's
    result code, which is 0 if all rows were inserted.

    statement: sqlite3_stmt *. A value is an integer, the bits of a double (``doubles`` is the same
    memory) or the address of a text or blob, whose size in bytes is in ``lengths``.

    in      kinds int8[columns, n], values int64[columns, n], doubles float64[columns, n],
            lengths int32[columns, n]
    """
    for start in range(first, last, at_once):
        parameter = np.int32(0)
        for row in range(start, start + at_once):
            for column in range(len(values)):
                parameter += np.int32(1)
                kind, value = kinds[column, row], values[column, row]
                if kind == INTEGER:
                    code = _bind_int64(statement, parameter, value)
                elif kind == FLOAT:
                    code = _bind_double(statement, parameter, doubles[column, row])
                elif kind == TEXT:
                    code = _bind_text(statement, parameter, value, lengths[column, row], STATIC)
                elif kind == BLOB:
                    code = _bind_blob(statement, parameter, value, lengths[column, row], STATIC)
                else:
                    code = _bind_null(statement, parameter)
                if code != 0:
                    return code
        code = _step(statement)
        if code != DONE:
            return code
        _reset(statement)
    return np.int32(0)


@njit(cache=True)
def _read(statement, kinds, values, doubles, lengths, texts, state):
    """Read rows until the arrays are full. Return SQLite's result code, which is ROW if there may
    be more rows.

    statement: sqlite3_stmt *. A value is an integer, the bits of a double (``doubles`` is the same
    memory) or the position in ``texts`` where a text or blob begins, whose size in bytes is in
    ``lengths``. state: the number of rows read, and whether the statement has already stepped to
    one more row, which did not fit.

    in/out  state int64[2]
    out     kinds int8[columns, n], values int64[columns, n], doubles float64[columns, n],
            lengths int32[columns, n], texts uint8[bytes]
    """
    used = 0
    for row in range(kinds.shape[1]):
        state[0] = row
        if not state[1]:
            code = _step(statement)
            if code != ROW:
                return code
            state[1] = 1
        for column in range(len(kinds)):
            kind = _column_type(statement, np.int32(column))
            kinds[column, row], length, value = kind, np.int32(0), np.int64(0)
            if kind == INTEGER:
                value = _column_int64(statement, np.int32(column))
            elif kind in (TEXT, BLOB):
                if kind == TEXT:  # in UTF-8, whatever the database has
                    address = _column_text(statement, np.int32(column))
                else:
                    address = _column_blob(statement, np.int32(column))
                length = _column_bytes(statement, np.int32(column))
                if used + length > len(texts):
                    return np.int32(ROW)
                if length > 0:
                    _copy(texts.ctypes.data + used, address, length)
                value = np.int64(used)
                used += length
            values[column, row], lengths[column, row] = value, length
            if kind == FLOAT:
                doubles[column, row] = _column_double(statement, np.int32(column))
        state[1] = 0
    state[0] = kinds.shape[1]
    return np.int32(ROW)


@njit(cache=True)
def _gather(texts, starts, lengths, offsets, gathered):
    """Copy the texts of a column into one buffer, one after the other.

    in      texts uint8[bytes], starts int64[n], lengths int32[n]
    out     offsets int32[n + 1], gathered uint8[sum of lengths]
    """
    offsets[0] = 0
    for row in range(len(starts)):
        if lengths[row] > 0:
            _copy(
                gathered.ctypes.data + offsets[row], texts.ctypes.data + starts[row], lengths[row]
            )
        offsets[row + 1] = offsets[row] + lengths[row]


def read(handle: int, query: str, rows: int) -> Iterator[list[pa.Array | list[Any]]]:
    """Yield the columns of a query's rows, at most ``rows`` at a time.

    A column is an int64, float64, string, binary or null array, or a list of Python values if it
    has several storage classes. Texts that are not UTF-8 are binary. Raises sqlite3's errors.
    """
    statement = _prepare(handle, query)
    try:
        columns = sqlite.sqlite3_column_count(c_void_p(statement))
        values, texts = np.empty((columns, rows), np.int64), np.empty(TEXT_BYTES, np.uint8)
        kinds, lengths = np.empty(values.shape, np.int8), np.empty(values.shape, np.int32)
        code, state = ROW, np.zeros(2, np.int64)
        while code == ROW:
            code = _read(statement, kinds, values, values.view(np.float64), lengths, texts, state)
            n = int(state[0])
            if code not in (ROW, DONE):
                raise _error(handle)
            if n:
                yield [
                    _column(kinds[i, :n], values[i, :n], lengths[i, :n], texts)
                    for i in range(columns)
                ]
            elif code == ROW:  # one row is larger than the buffer
                texts = np.empty(2 * len(texts), np.uint8)
    finally:
        sqlite.sqlite3_finalize(c_void_p(statement))


def _column(
    kinds: np.ndarray, values: np.ndarray, lengths: np.ndarray, texts: np.ndarray
) -> pa.Array | list[Any]:
    """Return a copy of a column. A copy is necessary because the next batch overwrites the
    arguments."""
    null = kinds == NULL
    found = set(np.flatnonzero(np.bincount(kinds, minlength=NULL + 1)).tolist()) - {NULL}
    if not found:
        return pa.nulls(len(kinds))
    if found == {INTEGER}:
        return pa.array(values.copy(), mask=null)
    if found == {FLOAT}:
        return pa.array(values.view(np.float64).copy(), mask=null)
    integers = values[kinds == INTEGER]
    if found == {INTEGER, FLOAT} and ((integers >= -EXACT) & (integers <= EXACT)).all():
        return pa.array(np.where(kinds == INTEGER, values, values.view(np.float64)), mask=null)
    if found in ({TEXT}, {BLOB}):
        offsets = np.empty(len(kinds) + 1, np.int32)
        gathered = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
        _gather(texts, values, lengths, offsets, gathered)
        valid = pa.array(~null).buffers()[1] if null.any() else None
        array = pa.Array.from_buffers(
            pa.binary(), len(kinds), [valid, pa.py_buffer(offsets), pa.py_buffer(gathered)]
        )
        with suppress(pa.ArrowInvalid):  # texts that are not UTF-8
            return array.cast(pa.string()) if TEXT in found else array
        return array
    return [_value(*v, texts) for v in zip(kinds.tolist(), values, lengths.tolist(), strict=True)]


def _value(kind: int, value: np.int64, length: int, texts: np.ndarray) -> Any:
    if kind == NULL:
        return None
    if kind in (INTEGER, FLOAT):
        return value.item() if kind == INTEGER else value.view(np.float64).item()
    found = texts[value : value + length].tobytes()
    if kind == TEXT:
        with suppress(UnicodeDecodeError):
            return found.decode()
    return found


def insert(handle: int, into: str, rows: pa.Table) -> None:
    """Insert rows into the columns named in ``into``, in the same order, within the connection's
    open transaction.

    handle: the connection's ``sqlite3 *``; into: the beginning of the statement, up to VALUES;
    rows: integers, booleans, floats, strings and binaries. Raises sqlite3's errors.
    """
    values = np.empty((rows.num_columns, rows.num_rows), np.int64)
    kinds, lengths = np.empty(values.shape, np.int8), np.empty(values.shape, np.int32)
    # what addresses point into must stay until the last step
    held = [_fill(column, kinds[i], values[i], lengths[i]) for i, column in enumerate(rows.columns)]
    whole = rows.num_rows // STATEMENT_ROWS * STATEMENT_ROWS
    for first, last, at_once in (
        (0, whole, STATEMENT_ROWS),
        (whole, rows.num_rows, rows.num_rows - whole),
    ):
        if first == last:
            continue
        row = f"({', '.join('?' * rows.num_columns)})"
        statement = _prepare(handle, f"{into} VALUES {', '.join([row] * at_once)}")
        try:
            if _insert(
                statement, kinds, values, values.view(np.float64), lengths, first, last, at_once
            ):
                raise _error(handle)
        finally:
            sqlite.sqlite3_finalize(c_void_p(statement))
    del held


def _fill(
    column: pa.ChunkedArray, kinds: np.ndarray, values: np.ndarray, lengths: np.ndarray
) -> pa.Array:
    """Write the kinds, values and lengths of a column. Return the array to which the values
    point."""
    kind, bound = next((k, to) for test, k, to in BOUND if test(column.type))
    kinds[:], array = kind, column.cast(bound).combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if kind in (INTEGER, FLOAT):
        bits = np.frombuffer(array.buffers()[1], np.int64)
        values[:] = bits[array.offset : array.offset + len(array)]
    else:
        offsets = np.frombuffer(array.buffers()[1], np.int32)
        offsets = offsets[array.offset : array.offset + len(array) + 1]
        # the address of an empty text is not null
        data = array.buffers()[2]
        values[:] = offsets[:-1]
        values += data.address if data is not None and data.size else array.buffers()[1].address
        np.subtract(offsets[1:], offsets[:-1], out=lengths)
    if array.null_count:
        kinds[array.is_null().to_numpy(zero_copy_only=False)] = NULL
    return array


def _prepare(handle: int, sql: str) -> int:
    statement, text = c_void_p(), sql.encode()
    prepare = sqlite.sqlite3_prepare_v2
    prepare.argtypes = [c_void_p, c_char_p, c_int, POINTER(c_void_p), c_void_p]
    if prepare(handle, text, len(text), byref(statement), None):
        raise _error(handle)
    return statement.value or 0


def _error(handle: int) -> sqlite3.Error:
    """Return the last error of a connection."""
    message = sqlite.sqlite3_errmsg
    message.restype = c_char_p
    code = sqlite.sqlite3_extended_errcode(c_void_p(handle))
    kind = (
        sqlite3.IntegrityError
        if code & 0xFF == sqlite3.SQLITE_CONSTRAINT
        else sqlite3.OperationalError
    )
    error = kind(message(c_void_p(handle)).decode())
    error.sqlite_errorcode = code
    return error
