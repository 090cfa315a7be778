"""Join keys as 64-bit codes, the same in Arrow (here) and in Spark (``keys_spark``).

One integer, date, timestamp, boolean or narrow-decimal column is *exact*: its code is its value.
Every other key (strings, wide decimals, composites) is hashed by Spark's ``xxhash64`` and compared
in full after the match, so that a collision costs time, never a row. A key with a null in any
column has no code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.compiled import filled, intrinsic, njit, read_only
from semistream.ddl import type_name
from semistream.errors import ConfigError, check_name

SEED = 42  # Spark's seed
NO_TEXT = np.zeros(1, np.uint8)
# kinds of types, and the type in which all types of a kind are compared
CANONICAL = (
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_binary, pa.binary()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)
NARROW_DECIMAL_DIGITS = 18  # the most that fit an int64 unscaled


@dataclass(frozen=True)
class JoinKeys:
    """The join columns of both sides, and the canonical Arrow types in which they are compared.

    ``types[i]`` is int64, string, date32, timestamp[us], bool, binary or decimal128(p, s).
    """

    stream: tuple[str, ...]
    master: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    @cached_property
    def exact(self) -> bool:
        return len(self.types) == 1 and is_exact(self.types[0])

    def canonical(self, columns: Iterable[pa.Array]) -> list[pa.Array]:
        """Convert join columns of either side to their canonical types."""
        return [canonical(c, kind) for c, kind in zip(columns, self.types, strict=True)]

    def stream_codes(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return (codes int64[n], valid bool[n]) of a batch of stream tuples. Invalid codes are
        0."""
        return codes([batch.column(c) for c in self.stream], self.types)

    def master_codes(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return (codes int64[n], valid bool[n]) of a batch of master tuples. Invalid codes are
        0."""
        return codes([batch.column(c) for c in self.master], self.types)


def canonical_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type in which a key column is compared. Raises ConfigError for a type that is not
    suited for equality."""
    if pa.types.is_dictionary(kind):
        return canonical_type(name, kind.value_type)
    for is_like, canonical_kind in CANONICAL:
        if is_like(kind):
            return canonical_kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    raise ConfigError(
        "on",
        "must name columns of an integer, string, date, timestamp, boolean, binary or decimal type",
        f"{name}: {type_name(kind)}",
        "Cast the column, for instance a floating-point number to a decimal.",
    )


def resolve_keys(
    stream: pa.Schema,
    master: pa.Schema,
    on: list[tuple[str, str]],
    sides: tuple[str, str] = ("stream", "master"),
) -> JoinKeys:
    """Check the join columns of both schemas. Return the keys with their canonical types, which are
    the master's.

    on: (stream column, master column) pairs; sides: names of the two sides in errors. Raises
    ConfigError for a missing column, or for types that differ.
    """
    if not on:
        raise ConfigError(
            "on",
            "must name at least one pair of columns",
            on,
            "Give --on COLUMN or --on STREAM=MASTER.",
        )
    kinds = []
    for s, m in on:
        for side, name, schema in ((sides[0], s, stream), (sides[1], m, master)):
            check_name("on", f"must name a column of the {side}", name, schema.names)
        left = canonical_type(s, stream.field(s).type)
        right = canonical_type(m, master.field(m).type)
        if not _fits(left, right):
            raise ConfigError(
                "on",
                "must join columns of one type",
                f"{s}: {type_name(stream.field(s).type)} with "
                f"{m}: {type_name(master.field(m).type)}",
                f"Tell both one type: columns of the stream and of the master in a "
                f"job. Or cast {s} to {type_name(right)} in the source.",
            )
        kinds.append(right)
    return JoinKeys(tuple(s for s, _ in on), tuple(m for _, m in on), tuple(kinds))


def master_keys(master: pa.Schema, columns: list[str]) -> JoinKeys:
    """Return the keys of a master relation without a stream, for writing a snapshot."""
    return resolve_keys(master, master, [(c, c) for c in columns])


def key_text(rows: pa.RecordBatch, columns: Iterable[str], i: int) -> str:
    """Return the key of a row as people read it."""
    return ", ".join(str(rows.column(column)[i]) for column in columns)


def _fits(stream: pa.DataType, master: pa.DataType) -> bool:
    if pa.types.is_decimal(stream) and pa.types.is_decimal(master):
        return (
            stream.scale <= master.scale
            and stream.precision - stream.scale <= master.precision - master.scale
        )
    return stream == master


def is_exact(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return kind.precision <= NARROW_DECIMAL_DIGITS
    return not (pa.types.is_string(kind) or pa.types.is_binary(kind))


def canonical(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert the column to its canonical type. Integers wrap to int64. Raises ConfigError for a
    time that is finer than a microsecond."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == kind:
        return column
    try:
        return pc.cast(column, kind, safe=not pa.types.is_uint64(column.type))
    except pa.ArrowInvalid as e:
        raise ConfigError(
            "on",
            "must join times that are whole microseconds",
            str(e),
            "Cast the column in the source, to microseconds or to a text.",
        ) from None


def equal_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> np.ndarray:
    """Compare keys pairwise. Return whether the two keys of each pair are equal, bool[n]. left,
    right: an array of length n for each join column, in canonical types, without nulls."""
    same = np.ones(len(left[0]), bool)
    for a, b in zip(left, right, strict=True):
        same &= pc.equal(a, b).to_numpy(zero_copy_only=False)
    return same


def codes(columns: list[pa.Array], kinds: tuple[pa.DataType, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return (codes int64[n], valid bool[n]) of key columns, each cast to its canonical type
    first. The arrays are read-only."""
    found, valid = _codes(columns, kinds)
    return read_only(found), read_only(valid)


def _codes(
    columns: list[pa.Array], kinds: tuple[pa.DataType, ...]
) -> tuple[np.ndarray, np.ndarray]:
    arrays = [canonical(c, k) for c, k in zip(columns, kinds, strict=True)]
    valid = np.ones(len(arrays[0]), bool)
    for a in arrays:
        if a.null_count:
            valid &= a.is_valid().to_numpy(zero_copy_only=False)
    if len(arrays) == 1 and is_exact(kinds[0]):
        out = _longs(arrays[0])
        return (out if valid.all() else np.where(valid, out, 0)), valid
    h = np.full(len(valid), SEED, np.int64)
    for a, k in zip(arrays, kinds, strict=True):
        if is_exact(k):
            _hash_longs(_longs(a), h)
        elif pa.types.is_decimal(k):
            words = np.frombuffer(a.buffers()[1], np.uint8)
            _hash_decimals(read_only(words[a.offset * 16 : (a.offset + len(a)) * 16]), h)
        elif len(a):
            offsets = np.frombuffer(a.buffers()[1], np.int32)[a.offset : a.offset + len(a) + 1]
            data = a.buffers()[2]
            text = np.frombuffer(data, np.uint8) if data is not None and data.size else NO_TEXT
            _hash_bytes(read_only(offsets), read_only(text), h)
    h[~valid] = 0
    return h, valid


def buckets(key_codes: np.ndarray, exact: bool, count: int) -> np.ndarray:
    """Return the bucket of each key code, int32[n], 0 <= bucket < count.
    ``keys_spark.bucket_expression`` computes the same buckets in Spark."""
    return filled(_buckets, len(key_codes), np.int32, key_codes, exact, count)


def _longs(a: pa.Array) -> np.ndarray:
    """Return the elements of an exact key column as int64[n]. Nulls have arbitrary values."""
    n, k = len(a), a.type
    if pa.types.is_decimal(k):
        # the low word is the value
        return np.frombuffer(a.buffers()[1], np.int64)[2 * a.offset : 2 * (a.offset + n) : 2].copy()
    if pa.types.is_boolean(k):
        return pc.fill_null(a, False).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_date32(k):
        return np.frombuffer(a.buffers()[1], np.int32)[a.offset : a.offset + n].astype(np.int64)
    return (
        np.frombuffer(a.buffers()[1], np.int64)[a.offset : a.offset + n]
        if n
        else np.zeros(0, np.int64)
    )


# XXH64 as in Spark's XXH64.java: hashLong, and hashUnsafeBytes with little-endian words.
P1, P2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4, P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


@njit(inline="always")
def _rotl(x, r):
    return (x << np.uint64(r)) | (x >> np.uint64(64 - r))


@njit(inline="always")
def _fmix(h):
    h ^= h >> np.uint64(33)
    h *= P2
    h ^= h >> np.uint64(29)
    h *= P3
    return h ^ (h >> np.uint64(32))


@njit(inline="always")
def _round(acc, word):
    return _rotl(acc + word * P2, 31) * P1


@njit(inline="always")
def hash_long(value, seed):
    """Return XXH64.hashLong(value, seed) as int64."""
    h = np.uint64(seed) + P5 + np.uint64(8)
    h = _rotl(h ^ _round(np.uint64(0), np.uint64(value)), 27) * P1 + P4
    return np.int64(_fmix(h))


@njit(cache=True)
def _hash_longs(values, h):
    """Set each h to XXH64.hashLong(value, h).

    in      values int64[n]
    in/out  h int64[n]
    """
    for i in range(len(values)):
        h[i] = hash_long(values[i], h[i])


@njit(inline="always")
def bucket_of(code, exact, count):
    """Return the bucket of one key code, with the same result as ``buckets``, for use in
    kernels."""
    h = hash_long(code, SEED) if exact else code
    # floor modulo, as Spark's pmod
    return h & (count - 1) if count & (count - 1) == 0 else h % count


@njit(cache=True)
def _buckets(codes, exact, count, out):
    """Write ``bucket_of`` each code.

    in      codes int64[n]
    out     out int32[n]
    """
    for i in range(len(codes)):
        out[i] = bucket_of(codes[i], exact, count)


@intrinsic
def _load64(typingctx, array, index):
    """Return the 8 bytes of a uint8 array from `index` on, as one little-endian uint64."""
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.gep(struct.data, [args[1]])
        word = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(array, types.intp), codegen


@njit(cache=True)
def _xxh64(data, start, length, seed):
    """Return the XXH64 of data[start:start + length], as int64.

    in      data uint8[bytes]
    """
    i, end = start, start + length
    seed = np.uint64(seed)
    if length >= 32:
        v1, v2, v3, v4 = seed + P1 + P2, seed + P2, seed, seed - P1
        while i <= end - 32:
            v1 = _round(v1, _load64(data, np.intp(i)))
            v2 = _round(v2, _load64(data, np.intp(i + 8)))
            v3 = _round(v3, _load64(data, np.intp(i + 16)))
            v4 = _round(v4, _load64(data, np.intp(i + 24)))
            i += 32
        h = _rotl(v1, 1) + _rotl(v2, 7) + _rotl(v3, 12) + _rotl(v4, 18)
        for v in (v1, v2, v3, v4):
            h = (h ^ _round(np.uint64(0), v)) * P1 + P4
    else:
        h = seed + P5
    h += np.uint64(length)
    while i <= end - 8:
        h = _rotl(h ^ _round(np.uint64(0), _load64(data, np.intp(i))), 27) * P1 + P4
        i += 8
    if i <= end - 4:
        word = (
            np.uint64(data[i])
            | np.uint64(data[i + 1]) << np.uint64(8)
            | np.uint64(data[i + 2]) << np.uint64(16)
            | np.uint64(data[i + 3]) << np.uint64(24)
        )
        h = _rotl(h ^ word * P1, 23) * P2 + P3
        i += 4
    while i < end:
        h = _rotl(h ^ np.uint64(data[i]) * P5, 11) * P1
        i += 1
    return np.int64(_fmix(h))


@njit(cache=True)
def _hash_bytes(offsets, data, h):
    """Set each h to XXH64(value, h).

    in      offsets int32[n + 1], data uint8[bytes]
    in/out  h int64[n]
    """
    for i in range(len(h)):
        h[i] = _xxh64(data, offsets[i], offsets[i + 1] - offsets[i], h[i])


@njit(cache=True)
def _hash_decimals(words, h):
    """Hash wide decimals in the form of BigInteger.toByteArray: big-endian, with the fewest bytes
    that keep the sign.

    in      words uint8[16 n], little-endian
    in/out  h int64[n]
    """
    big = np.empty(16, np.uint8)
    for i in range(len(h)):
        for j in range(16):
            big[j] = words[16 * i + 15 - j]
        first, sign = 0, 0xFF if big[0] & 0x80 else 0
        while first < 15 and big[first] == sign and (big[first + 1] & 0x80) == (sign & 0x80):
            first += 1
        h[i] = _xxh64(big, first, 16 - first, h[i])
