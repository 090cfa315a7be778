"""The most frequent key codes of a stream.

D. Anderson, P. Bevan, K. Lang, E. Liberty, L. Rhodes, J. Thaler: A High-Performance Algorithm for
Identifying Frequent Items in Data Streams (2017): Misra and Gries' counters in a hash table; when
it is full, the median is subtracted from all of them.
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import njit, read_only
from semistream.keys import hash_long

LOAD = 0.75  # share of the slots that may be taken
SLOT_BYTES = 16


class FrequentItems:
    """At most K = 3/4 ``slots`` counters. A code of total weight f has a counter in [f - error, f];
    if f <= error it may have none. error <= 2 N / K for a total weight of N."""

    def __init__(self, slots: int):
        self.slots, self.capacity = slots, max(int(LOAD * slots), 1)
        self.error = 0  # weight subtracted so far
        # count 0: an empty slot
        self._codes, self._counts = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self._used = 0

    @property
    def memory_bytes(self) -> int:
        return SLOT_BYTES * self.slots

    def update(self, codes: np.ndarray, weights: np.ndarray) -> None:
        """Add weights, int64[n], to codes, int64[n]. Weights that are not positive are ignored."""
        self._used, subtracted = _count(
            read_only(codes),
            read_only(weights),
            self._codes,
            self._counts,
            self._used,
            self.capacity,
        )
        self.error += int(subtracted)

    def merge(self, other: FrequentItems) -> None:
        """Add another object's counts. The errors add up."""
        codes, counts = other.items()
        self.update(codes, counts)
        self.error += other.error

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (codes int64[k], counts int64[k]), in ascending order of the codes."""
        taken = np.flatnonzero(self._counts)
        order = taken[np.argsort(self._codes[taken])]
        return self._codes[order], self._counts[order]


@njit(inline="always")
def _slot(code, codes, counts):
    """Return the slot of a code's counter; if the code has no counter, the empty slot for it.

    in      codes int64[slots], counts int64[slots]
    """
    n = np.uint64(len(codes))
    at = np.int64(((np.uint64(hash_long(code, 0)) >> np.uint64(32)) * n) >> np.uint64(32))
    while counts[at] and codes[at] != code:
        at += 1
        if at == len(codes):
            at = np.int64(0)
    return at


@njit(cache=True)
def _count(new_codes, weights, codes, counts, used, capacity):
    """Count codes with their weights. Return (counters used, weight subtracted from all).

    in      new_codes int64[n], weights int64[n]
    in/out  codes int64[slots], counts int64[slots], the table
    """
    subtracted = 0
    for i in range(len(new_codes)):
        weight = int(weights[i])
        if weight <= 0:
            continue
        at = _slot(new_codes[i], codes, counts)
        if counts[at] == 0:
            if used == capacity:
                median, used = _purge(codes, counts)
                subtracted += int(median)
                weight -= int(median)  # as if it had been counted before
                if weight <= 0:
                    continue
                at = _slot(new_codes[i], codes, counts)
            codes[at] = new_codes[i]
            used += 1
        counts[at] += weight
    return used, subtracted


@njit(cache=True)
def _purge(codes, counts):
    """Subtract the median from all counters, and drop those that reach 0. Return (median, counters
    left).

    in/out  codes int64[slots], counts int64[slots], the table
    """
    kept = np.flatnonzero(counts)
    old_codes, old_counts = codes[kept], counts[kept]
    median = np.partition(old_counts, len(kept) // 2)[len(kept) // 2]
    counts[:] = 0
    left = 0
    for i in range(len(kept)):
        if old_counts[i] > median:
            at = _slot(old_codes[i], codes, counts)
            codes[at], counts[at] = old_codes[i], old_counts[i] - median
            left += 1
    return median, left
