"""Hashing of key codes, and a hash table of distinct ones.

A look-up in a large table waits for memory twice, for its place and for the key that is meant. What
a processor has guessed wrong until then it does for nothing; so look-ups are made ``GROUP`` at a
time, each step for all of them, while the next step's memory is on its way (S. Chen, A. Ailamaki,
P. B. Gibbons, T. C. Mowry: *Improving Hash Join Performance through Prefetching*, group
prefetching).
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import njit
from semistream.joins.intrinsics import prefetch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
GROUP = 64  # look-ups under way at once
PLACES = 2  # of a table, a key
TABLE_BYTES = 8 * PLACES


class KeyTable:
    """Distinct key codes, findable.

    keys: int64[n].
    """

    def __init__(self, keys: np.ndarray):
        self.keys = keys
        self._table = np.empty(places(len(keys)), np.int64)
        build(self._table, keys)

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Index of each code among the keys, or -1, int32[codes]."""
        out = np.empty(len(codes), np.int32)
        find(codes, self._table, self.keys, out)
        return out


def places(keys: int) -> int:
    """Of a table for so many keys."""
    return PLACES * keys + 2


@njit(inline="always")
def mix(code):
    """A Fibonacci hash, uint64, whose high and low bits depend on all of the code's."""
    h = np.uint64(code) * GOLDEN
    h ^= h >> np.uint64(29)
    return h * GOLDEN


@njit(inline="always")
def scale(h, count):
    """A bucket in [0, count) by the high bits of a hash."""
    return np.int64(((h >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@njit(inline="always")
def bucket(code, count):
    """A bucket in [0, count) for a key code."""
    return scale(mix(code), count)


@njit(inline="always")
def tag(h):
    """The low bits of a hash, which a table has of each key."""
    return np.int64(h & np.uint64(0xFFFFFFFF))


@njit(cache=True)
def build(table, keys):
    """Open addressing with linear probing: the index of each key, and its tag, where its code
    leads, -1 elsewhere.

    in      keys int64[n], distinct
    out     table int64[m], m > n: index << 32 | tag
    """
    table[:] = -1
    for i in range(len(keys)):
        h = mix(keys[i])
        t = scale(h, len(table))
        while table[t] >= 0:
            t = t + 1 if t + 1 < len(table) else 0
        table[t] = np.int64(i) << 32 | tag(h)


@njit(inline="always")
def candidate(code, table):
    """Index of the first key with the code's tag, or -1.

    in      table int64[m]
    """
    h = mix(code)
    t = scale(h, len(table))
    while table[t] >= 0 and (table[t] & 0xFFFFFFFF) != tag(h):
        t = t + 1 if t + 1 < len(table) else 0
    return table[t] >> 32


@njit(inline="always")
def lookup(code, table, keys):
    """Index of the code among the keys that `build` put into the table, or -1.

    in      table int64[m], keys int64[n]
    """
    t = bucket(code, len(table))
    while table[t] >= 0 and keys[table[t] >> 32] != code:
        t = t + 1 if t + 1 < len(table) else 0
    return table[t] >> 32


@njit(inline="always")
def find_group(codes, first, last, table, keys, out):
    """The index of codes[first:last], at most GROUP of them, among the keys, or -1. What lies
    beside a found key is in the cache.

    in      codes int64[k], table int64[m], keys int64[n]
    out     out int32[k]
    """
    for i in range(first, last):
        prefetch(table, bucket(codes[i], len(table)))
    for i in range(first, last):
        out[i] = candidate(codes[i], table)
        if out[i] >= 0:
            prefetch(keys, out[i])
    for i in range(first, last):
        if out[i] >= 0 and keys[out[i]] != codes[i]:  # another key with its tag
            out[i] = lookup(codes[i], table, keys)


@njit(cache=True)
def find(codes, table, keys, out):
    """The index of each code among the keys, or -1.

    in      codes int64[k], table int64[m], keys int64[n]
    out     out int32[k]
    """
    for first in range(0, len(codes), GROUP):
        find_group(codes, first, min(first + GROUP, len(codes)), table, keys, out)


@njit(inline="always")
def fetch_chains(codes, first, last, head, key, link):
    """Have fetched what codes[first:last] lead to in a table of chains.

    in      codes int64[n], head int32[buckets], slots or -1, key int64[slots],
            link int32[slots, ...]
    """
    for i in range(first, last):
        prefetch(head, bucket(codes[i], len(head)))
    for i in range(first, last):
        s = max(head[bucket(codes[i], len(head))], 0)
        prefetch(key, s)
        prefetch(link, s)


@njit(cache=True)
def count_by(index, counts):
    """Add 1 to counts[index[i]] for each index that is not negative.

    in      index int32[n] or int64[n]
    in/out  counts, integers[m]
    """
    for i in range(len(index)):
        if index[i] >= 0:
            counts[index[i]] += 1
