"""Hash functions of key codes, and a hash table of distinct codes.

A look-up in a large table waits for memory twice: for its element of the table, and for the key to
which the element refers. Work that the processor does speculatively in between is often wasted.
Therefore look-ups are made ``GROUP`` at a time: each step is done for the whole group, while the
memory of the next step is being fetched (S. Chen, A. Ailamaki, P. B. Gibbons, T. C. Mowry:
*Improving Hash Join Performance through Prefetching*, group prefetching).
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import filled, njit
from semistream.joins.intrinsics import prefetch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
GROUP = 64  # look-ups in progress at once
SLOTS_PER_KEY = 2  # of a hash table
TABLE_BYTES = 8 * SLOTS_PER_KEY


class KeyTable:
    """A hash table of distinct key codes.

    keys: int64[n], the codes.
    """

    def __init__(self, keys: np.ndarray):
        self.keys = keys
        self._table = np.empty(table_size(len(keys)), np.int64)
        build(self._table, keys)

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Return the index of each code among the keys, int32[n]; -1 for a code that is not
        there."""
        return filled(find, len(codes), np.int32, codes, self._table, self.keys)


def table_size(keys: int) -> int:
    """Return the number of elements of a hash table for `keys` keys."""
    return SLOTS_PER_KEY * keys + 2


@njit(inline="always")
def mix(code):
    """Return a Fibonacci hash, uint64, whose high and low bits depend on all bits of the code."""
    h = np.uint64(code) * GOLDEN
    h ^= h >> np.uint64(29)
    return h * GOLDEN


@njit(inline="always")
def scale(h, count):
    """Return a bucket in [0, count) from the high bits of a hash."""
    return np.int64(((h >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@njit(inline="always")
def bucket(code, count):
    """Return a bucket in [0, count) for a key code."""
    return scale(mix(code), count)


@njit(inline="always")
def tag(h):
    """Return the tag of a key: the low bits of its hash, which a table stores with the key."""
    return np.int64(h & np.uint64(0xFFFFFFFF))


@njit(cache=True)
def build(table, keys):
    """Fill the table by open addressing with linear probing. Each element holds the index and the
    tag of a key, or -1.

    in      keys int64[n], distinct
    out     table int64[m], m > n: index << 32 | tag
    """
    table[:] = -1
    insert(table, keys, 0)


@njit(cache=True)
def insert(table, keys, first):
    """Add the keys from `first` on to a table of those before.

    in      keys int64[n], distinct
    in/out  table int64[m], m > n
    """
    for i in range(first, len(keys)):
        h = mix(keys[i])
        t = scale(h, len(table))
        while table[t] >= 0:
            t = t + 1 if t + 1 < len(table) else 0
        table[t] = np.int64(i) << 32 | tag(h)


@njit(inline="always")
def candidate(code, table):
    """Return the index of the first key whose tag equals the code's tag; -1 if there is none.

    in      table int64[m]
    """
    h = mix(code)
    t = scale(h, len(table))
    while table[t] >= 0 and (table[t] & 0xFFFFFFFF) != tag(h):
        t = t + 1 if t + 1 < len(table) else 0
    return table[t] >> 32


@njit(inline="always")
def lookup(code, table, keys):
    """Return the index of the code among the keys from which `build` made the table; -1 if it is
    not there.

    in      table int64[m], keys int64[n]
    """
    t = bucket(code, len(table))
    while table[t] >= 0 and keys[table[t] >> 32] != code:
        t = t + 1 if t + 1 < len(table) else 0
    return table[t] >> 32


@njit(inline="always")
def find_group(codes, first, last, table, keys, out):
    """Find the index of each of codes[first:last], at most GROUP codes, among the keys; -1 for a
    code that is not there. Afterwards the processor's cache holds the memory around each key that
    was found.

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
    """Find the index of each code among the keys; -1 for a code that is not there.

    in      codes int64[k], table int64[m], keys int64[n]
    out     out int32[k]
    """
    for first in range(0, len(codes), GROUP):
        find_group(codes, first, min(first + GROUP, len(codes)), table, keys, out)


@njit(cache=True)
def distinct(numbers, table, different, index):
    """Find the different ones of some numbers, in the order of their first occurrence. Return how
    many there are.

    in      numbers int64[n]
    out     table int32[m], m > n, for the function's use; different int64[n]; index int32[n], for
            each number its index among the different ones
    """
    table[:] = -1
    count = 0
    for i in range(len(numbers)):
        if i > 0 and numbers[i] == numbers[i - 1]:
            index[i] = index[i - 1]
            continue
        t = bucket(numbers[i], len(table))
        while table[t] >= 0 and different[table[t]] != numbers[i]:
            t = t + 1 if t + 1 < len(table) else 0
        if table[t] < 0:
            table[t] = count
            different[count] = numbers[i]
            count += 1
        index[i] = table[t]
    return count


@njit(inline="always")
def fetch_chains(codes, first, last, head, key, link):
    """Prefetch the chain heads of codes[first:last] and the first slots of their chains.

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
def count_by(index, counts, by=1):
    """Add `by` to counts[index[i]] for each index that is not negative.

    in      index int32[n] or int64[n]
    in/out  counts, integers[m]
    """
    for i in range(len(index)):
        if index[i] >= 0:
            counts[index[i]] += by
