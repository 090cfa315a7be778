"""Arrow rows into SQLite without a Python object per value: a kernel binds them from Arrow's
buffers, and steps the statement.

Python's ``executemany`` spends more time on making and looking at objects than SQLite does on
inserting.
"""

from __future__ import annotations

import ctypes
import sqlite3
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pyarrow as pa
from numba import njit, types

from semistream.warehouse.sqlite_library import library

STATEMENT_ROWS = 16  # of one INSERT; beyond, more do not make it faster
NULL, INTEGER, FLOAT, TEXT, BLOB = range(5)
STATIC = 0  # SQLITE_STATIC: what is bound stays where it is until the statement is done
DONE = 101  # SQLITE_DONE


sqlite: Any = library()  # there, as a handle is


def _function(name: str, *arguments: types.Type) -> types.ExternalFunction:
    llvm.add_symbol(name, ctypes.cast(getattr(sqlite, name), c_void_p).value)
    return types.ExternalFunction(name, types.int32(*arguments))


_bind_null = _function("sqlite3_bind_null", types.intp, types.int32)
_bind_int64 = _function("sqlite3_bind_int64", types.intp, types.int32, types.int64)
_bind_double = _function("sqlite3_bind_double", types.intp, types.int32, types.float64)
_bind_text = _function("sqlite3_bind_text", types.intp, types.int32, types.intp, types.int32,
                       types.intp)
_bind_blob = _function("sqlite3_bind_blob", types.intp, types.int32, types.intp, types.int32,
                       types.intp)
_step = _function("sqlite3_step", types.intp)
_reset = _function("sqlite3_reset", types.intp)


@njit(types.int32(types.intp, types.int8[:, ::1], types.int64[:, ::1], types.float64[:, ::1],
                  types.int32[:, ::1], types.int64, types.int64, types.int64),
      cache=True, nogil=True)
def _insert(statement, kinds, values, doubles, lengths, first, last, at_once):
    """Insert rows ``first`` to ``last`` (not itself), ``at_once`` with each step; gives SQLite's
    result code, 0 for all.

    statement: sqlite3_stmt *; kinds: int8[columns, n]; values: int64[columns, n], an integer, the
    bits of a double (``doubles`` is the same memory) or the address of a text or blob; lengths:
    int32[columns, n], its bytes. All are read.
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


def insert(handle: int, into: str, rows: pa.Table) -> None:
    """Insert rows into the columns of the same order, in the transaction that the connection has
    begun.

    handle: its ``sqlite3 *``; into: the statement's beginning, up to VALUES; rows: of integers,
    floats, strings and binaries, booleans among the integers. Raises sqlite3's errors.
    """
    values = np.empty((rows.num_columns, rows.num_rows), np.int64)
    kinds, lengths = np.empty(values.shape, np.int8), np.empty(values.shape, np.int32)
    # what addresses point into must stay until the last step
    held = [_fill(column, kinds[i], values[i], lengths[i]) for i, column in enumerate(rows.columns)]
    whole = rows.num_rows // STATEMENT_ROWS * STATEMENT_ROWS
    for first, last, at_once in ((0, whole, STATEMENT_ROWS),
                                 (whole, rows.num_rows, rows.num_rows - whole)):
        if first == last:
            continue
        row = f"({', '.join('?' * rows.num_columns)})"
        statement = _prepare(handle, f"{into} VALUES {', '.join([row] * at_once)}")
        try:
            if _insert(statement, kinds, values, values.view(np.float64), lengths, first, last,
                       at_once):
                raise _error(handle)
        finally:
            sqlite.sqlite3_finalize(c_void_p(statement))
    del held


def _fill(column: pa.ChunkedArray, kinds: np.ndarray, values: np.ndarray,
          lengths: np.ndarray) -> pa.Array:
    """Write a column's kinds, values and lengths; gives the array that the values point into."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        kinds[:], array = INTEGER, _one_array(column, pa.int64())
    elif pa.types.is_floating(kind):
        kinds[:], array = FLOAT, _one_array(column, pa.float64())
    elif any(test(kind) for test in (pa.types.is_binary, pa.types.is_large_binary,
                                     pa.types.is_binary_view, pa.types.is_fixed_size_binary)):
        kinds[:], array = BLOB, _one_array(column, pa.binary())
    else:
        kinds[:], array = TEXT, _one_array(column, pa.string())
    if kinds[0] == INTEGER or kinds[0] == FLOAT:
        bits = np.frombuffer(array.buffers()[1], np.int64)
        values[:] = bits[array.offset:array.offset + len(array)]
    else:
        offsets = np.frombuffer(array.buffers()[1], np.int32)
        offsets = offsets[array.offset:array.offset + len(array) + 1]
        # the address of an empty text is not null
        data = array.buffers()[2]
        values[:] = offsets[:-1]
        values += data.address if data is not None and data.size else array.buffers()[1].address
        np.subtract(offsets[1:], offsets[:-1], out=lengths)
    if array.null_count:
        kinds[array.is_null().to_numpy(zero_copy_only=False)] = NULL
    return array


def _one_array(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.cast(kind).combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def _prepare(handle: int, sql: str) -> int:
    statement, text = c_void_p(), sql.encode()
    prepare = sqlite.sqlite3_prepare_v2
    prepare.argtypes = [c_void_p, c_char_p, c_int, POINTER(c_void_p), c_void_p]
    if prepare(handle, text, len(text), byref(statement), None):
        raise _error(handle)
    return statement.value or 0


def _error(handle: int) -> sqlite3.Error:
    """What went wrong last on a connection."""
    message = sqlite.sqlite3_errmsg
    message.restype = c_char_p
    code = sqlite.sqlite3_extended_errcode(c_void_p(handle))
    kind = sqlite3.IntegrityError if code & 0xFF == sqlite3.SQLITE_CONSTRAINT else \
        sqlite3.OperationalError
    error = kind(message(c_void_p(handle)).decode())
    error.sqlite_errorcode = code
    return error
