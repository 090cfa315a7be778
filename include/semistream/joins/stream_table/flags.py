"""The flag that the layouts share: a waiting tuple has had a match."""

from __future__ import annotations

from numba import njit

MATCHED = 1


@njit(cache=True)
def mark(flags, slots, bit):
    """Set a bit of flags, uint8[], at slots, int64[n]."""
    for i in range(len(slots)):
        flags[slots[i]] |= bit
