"""The encoding of each column of a Parquet file, chosen by one rule from a sample of the rows that
are written first."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SAMPLED_ROWS = 8192
# The sample is taken in pieces of this many neighbouring rows, evenly spaced: the first rows of a
# join may all be of one partition of R, and have few distinct values
PIECE = 512
# A column has a dictionary if at most this share of its sampled values is distinct. Otherwise a
# dictionary takes four to ten times as long as plain values, and makes random numbers larger.
MOST_DISTINCT = 0.25
# With more distinct numbers than this share, a dictionary takes two to three times as long as
# compressing plain values, which is about as small where equal numbers follow each other: a join
# finishes the tuples of a partition of R together.
FEW_DISTINCT = 1 / 64
# a column of numbers is compressed if that saves this share of its bytes; below, compressing
# takes longer than writing, and reading is slower too
LEAST_SAVED = 0.5
# a page ends at 1 MB, or at this many rows: with PyArrow's default, 20,000, encoding numbers takes
# a quarter longer
PAGE_ROWS = 131_072
LIMITS_ROWS = "max_rows_per_page" in pq.write_table.__code__.co_varnames  # since PyArrow 23
# Zstandard takes half of Snappy's bytes for texts, but twice its time for numbers
NUMBERS, OTHERS = "snappy", "zstd"


def encoding(first: pa.Table, constant: Collection[str] = ()) -> dict[str, Any]:
    """Return the options of ``ParquetWriter`` for a file that begins with these rows.

    constant: columns that have the same value in all rows.
    """
    dictionaries, codecs = list[str](), dict[str, str]()
    step = max(len(first) * PIECE // SAMPLED_ROWS, PIECE)
    pieces = [first.slice(start, PIECE) for start in range(0, len(first), step)]
    sample = pa.concat_tables([first.slice(0, 0), *pieces]).combine_chunks()
    for field, column, whole in zip(sample.schema, sample.columns, first.columns, strict=True):
        few, codec = _encoding_of(column, whole, field.name in constant)
        for leaf in _leaves(field.name, field.type):
            codecs[leaf] = codec
            if few:
                dictionaries.append(leaf)
    return {"compression": codecs, "use_dictionary": dictionaries} | page_of(PAGE_ROWS)


def page_of(rows: int) -> dict[str, int]:
    """Return the option of ``ParquetWriter`` by which a page has at most so many rows; none where
    PyArrow has no such limit, nor a default."""
    return {"max_rows_per_page": rows} if LIMITS_ROWS else {}


def _encoding_of(
    sample: pa.ChunkedArray, whole: pa.ChunkedArray, constant: bool
) -> tuple[bool, str]:
    """Return whether a column has a dictionary, and its compression, by a sample and by all of its
    first rows. Nested columns and dictionaries are assumed to have few distinct values."""
    kind = sample.type
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        return True, OTHERS
    distinct = sample.unique()
    share = 0.0 if constant else len(distinct) / max(len(sample), 1)
    few = share <= MOST_DISTINCT and not pa.types.is_boolean(kind)
    if not pa.types.is_primitive(kind) or kind.bit_width < 8:
        return few, OTHERS
    if share <= FEW_DISTINCT:
        return True, NUMBERS
    piece, width = pa.concat_arrays(sample.chunks), kind.bit_width // 8
    values = piece.buffers()[1].slice(piece.offset * width, len(piece) * width)
    left = len(pa.compress(values, NUMBERS)) / len(values)
    if few:  # a row group repeats more than a sample of it
        distinct = whole.unique()
        indices = len(whole) * len(distinct).bit_length() / 8  # bytes
        few = distinct.nbytes + indices < left * len(whole) * width
    return few, NUMBERS if few or left <= 1 - LEAST_SAVED else "none"


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the paths under which the file stores a column's values."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path
