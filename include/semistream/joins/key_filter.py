"""A filter of R's keys, which recognises most keys that R lacks.

F. Putze, P. Sanders, J. Singler: *Cache-, Hash- and Space-Efficient Bloom Filters*, 2007: a Bloom
filter in which all bits of a key lie in one word, so that a look-up is one access to memory.

The filter is filled from the partitions that the join reads anyway. A key whose bits are not all
set is rejected once all partitions that may hold the key were read.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from semistream.compiled import njit
from semistream.joins.arena import mapped
from semistream.joins.key_table import bucket
from semistream.keys import hash_long
from semistream.master.relation import MasterRelation

WORD = 64  # bits
MOST_SET = 8  # bits of a key: as many as 6 bits of a hash value each can name


def false_positives(bits: float) -> float:
    """Return the share of absent keys that a filter with `bits` bits per key does not reject; 1
    without a filter. The keys of a word are assumed to be Poisson distributed, and each of its k
    bits to be set independently."""
    return _false_positives(bits, bits_set(bits)) if bits > 0 else 1.0


@cache
def bits_set(bits: float) -> int:
    """Return k, the number of bits set per key that lets the fewest absent keys pass."""
    return min(range(1, MOST_SET + 1), key=lambda k: _false_positives(bits, k))


def _false_positives(bits: float, k: int) -> float:
    mean = WORD / bits  # keys of a word
    keys = np.arange(int(mean + 12 * math.sqrt(mean)) + 12)
    log_share = keys * math.log(mean) - mean - np.array([math.lgamma(n + 1) for n in keys])
    return float(np.exp(log_share) @ (1 - (1 - 1 / WORD) ** (k * keys)) ** k)


def filter_bytes(bits: float, master_tuples: float, partitions: float) -> float:
    """Return the bytes of a filter: ``bits`` for each master tuple, and a flag for each
    partition."""
    return WORD // 8 * math.ceil(master_tuples * bits / WORD) + partitions if bits > 0 else 0.0


class KeyFilter:
    """A filter of R's keys with `bits` bits per master tuple. With 0 bits it rejects nothing and
    takes no memory."""

    def __init__(self, master: MasterRelation, bits: int):
        self.k = bits_set(bits) if bits else 0
        self.size = int(filter_bytes(bits, master.tuple_count, master.partition_count))
        words = math.ceil(master.tuple_count * bits / WORD)
        self._words = mapped(words, np.uint64)
        # 1 for partitions whose keys are in the filter
        self._read = np.zeros(master.partition_count if words else 0, np.uint8)

    def add(self, partition: int, codes: np.ndarray) -> None:
        """Add the key codes, int64[n], of a partition that was read."""
        if len(self._read) and not self._read[partition]:
            _add(codes, self.k, self._words)
            self._read[partition] = 1

    def rejects(self, codes: np.ndarray, spans: np.ndarray) -> np.ndarray:
        """Return which keys are certainly not in R, bool[n]. codes: int64[n]; spans: int32[n, 2],
        the partitions that may hold each key."""
        out = np.zeros(len(codes), bool)
        if len(self._read):
            _reject(codes, spans, self.k, self._words, self._read, out)
        return out


@njit(inline="always")
def _bits(code, k):
    """Return a word in which k bits are set for a key. Each bit is chosen by 6 bits of a hash
    value."""
    h, word = np.uint64(hash_long(code, 0)), np.uint64(0)
    for _ in range(k):
        word |= np.uint64(1) << (h & np.uint64(WORD - 1))
        h >>= np.uint64(6)
    return word


@njit(cache=True)
def _add(codes, k, words):
    """Set the bits of each key.

    in      codes int64[n]
    in/out  words uint64[m]
    """
    for i in range(len(codes)):
        words[bucket(codes[i], len(words))] |= _bits(codes[i], k)


@njit(cache=True)
def _reject(codes, spans, k, words, read, out):
    """Find the keys whose partitions have all been read and whose bits are not all set.

    in      codes int64[n], spans int32[n, 2], words uint64[m], read uint8[partitions]
    out     out bool[n]
    """
    for i in range(len(codes)):
        known = True
        for p in range(spans[i, 0], spans[i, 1]):
            known = known and read[p] == 1
        bits = _bits(codes[i], k)
        out[i] = known and words[bucket(codes[i], len(words))] & bits != bits
