"""The identity of a stream tuple in the warehouse: its id columns, and one text that combines them.

No database indexes ids of unlimited length. A tuple with an id of more than KEY_CHARACTERS is
therefore not loaded, with any sink, but kept in ``unmatched`` with ``Reason.LONG_ID``. Wherever
such an id is stored, it is shortened to its beginning and a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from semistream.warehouse.dialects.rows import hex_texts
from semistream.warehouse.types import KEY_CHARACTERS

DIGITS = 64  # of SHA-256 in hexadecimal


def stream_ids(tuples: pa.RecordBatch, id_columns: Sequence[str]) -> pa.Array:
    """Return the id columns joined by "|" and shortened. The result is null if there are no id
    columns or one of them is null. Bytes are written in hexadecimal."""
    if not id_columns:
        return pa.nulls(tuples.num_rows, pa.string())
    texts = [_text(tuples.column(c)) for c in id_columns]
    return shorten(pc.binary_join_element_wise(*texts, "|") if len(texts) > 1 else texts[0])


def has_long_id(tuples: pa.RecordBatch, id_columns: Sequence[str]) -> pa.Array:
    """Return, for each tuple, whether one of its id columns is too long for an index of the
    warehouse."""
    found = pa.repeat(False, tuples.num_rows)
    for column in id_columns:
        found = pc.or_(found, is_long(tuples.column(column)))
    return found


def shorten(column: pa.Array) -> pa.Array:
    """Return the column with each text or bytes of more than KEY_CHARACTERS replaced by its
    beginning, "#" and its SHA-256."""
    rows = pc.indices_nonzero(is_long(column)).to_pylist()
    if not rows:
        return column
    values = column.to_pylist()
    for i in rows:
        is_bytes, start = isinstance(values[i], bytes), values[i][: KEY_CHARACTERS - DIGITS - 1]
        digest = hashlib.sha256(values[i] if is_bytes else values[i].encode()).hexdigest()
        values[i] = start + (f"#{digest}".encode() if is_bytes else f"#{digest}")
    return pa.array(values, column.type)


def is_long(column: pa.Array) -> pa.Array:
    """Return, for each value, whether it is too long for an index of the warehouse."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        lengths = pc.utf8_length(column)
    elif _is_bytes(column.type):
        lengths = pc.binary_length(column)
    else:
        return pa.repeat(False, len(column))
    return pc.fill_null(pc.greater(lengths, KEY_CHARACTERS), False)


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _text(column: pa.Array) -> pa.Array:
    return hex_texts(column) if _is_bytes(column.type) else column.cast(pa.string())
