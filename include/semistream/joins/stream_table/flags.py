"""The flag that all layouts share: a waiting tuple has had a match."""

from __future__ import annotations

from semistream.compiled import njit

MATCHED = 1


@njit(cache=True)
def mark(flags, slots, bit):
    """Set a bit of the flags at slots. Return how many did not have it.

    in      slots int64[n]
    in/out  flags uint8[capacity]
    """
    new = 0
    for i in range(len(slots)):
        new += flags[slots[i]] & bit == 0
        flags[slots[i]] |= bit
    return new
