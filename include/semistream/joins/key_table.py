"""Hashing of key codes, and a hash table of distinct ones."""

from __future__ import annotations

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class KeyTable:
    """Distinct key codes, findable.

    keys: int64[n].
    """

    def __init__(self, keys: np.ndarray):
        self.keys = keys
        self._table = np.empty(len(keys) + len(keys) // 2 + 2, np.int32)
        build(self._table, keys)

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Index of each code among the keys, or -1, int32[codes]."""
        out = np.empty(len(codes), np.int32)
        find(codes, self._table, self.keys, out)
        return out


@njit(inline="always")
def bucket(code, count):
    """A bucket in [0, count) for a key code: the high bits of a Fibonacci hash, scaled."""
    h = np.uint64(code) * GOLDEN
    h ^= h >> np.uint64(29)
    return np.int64((((h * GOLDEN) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@njit(cache=True)
def build(table, keys):
    """Open addressing with linear probing: the index of each key where its code leads, -1
    elsewhere.

    in      keys int64[n], distinct
    out     table int32[m], m > n
    """
    table[:] = -1
    for i in range(len(keys)):
        t = bucket(keys[i], len(table))
        while table[t] >= 0:
            t = t + 1 if t + 1 < len(table) else 0
        table[t] = i


@njit(inline="always")
def lookup(code, table, keys):
    """Index of the code among the keys that `build` put into the table, or -1.

    in      table int32[m], keys int64[n]
    """
    t = bucket(code, len(table))
    while True:
        e = table[t]
        if e < 0 or keys[e] == code:
            return e
        t = t + 1 if t + 1 < len(table) else 0


@njit(cache=True)
def find(codes, table, keys, out):
    """The index of each code among the keys, or -1.

    in      codes int64[k], table int32[m], keys int64[n]
    out     out int32[k]
    """
    for i in range(len(codes)):
        out[i] = lookup(codes[i], table, keys)


@njit(cache=True)
def count_by(index, counts):
    """Add 1 to counts[index[i]] for each index that is not negative.

    in      index int32[n] or int64[n]
    in/out  counts, integers[m]
    """
    for i in range(len(index)):
        if index[i] >= 0:
            counts[index[i]] += 1
