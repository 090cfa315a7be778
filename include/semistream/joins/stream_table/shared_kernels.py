"""Numba kernels that several layouts of H_S share."""

from __future__ import annotations

from semistream.compiled import njit

MATCHED = 1  # in the flags of a waiting tuple: it has had a match


@njit(cache=True)
def mark(flags, slots, bit):
    """Set a bit of the flags at slots. Return how many flags did not have the bit before.

    in      slots int64[n]
    in/out  flags uint8[capacity]
    """
    new = 0
    for i in range(len(slots)):
        new += flags[slots[i]] & bit == 0
        flags[slots[i]] |= bit
    return new


@njit(cache=True)
def pairs(first, last, found, same, out_row, out_tuple):
    """Write the (master row, waiting tuple) pairs of master rows first..last-1.

    in      found int32[m], the first tuple of each row or -1; same int32[n], the next tuple of each
            tuple's key or -1
    out     out_row int64[pairs], out_tuple int64[pairs]
    """
    k = 0
    for i in range(first, last):
        j = found[i]
        while j >= 0:
            out_row[k], out_tuple[k] = i, j
            k += 1
            j = same[j]
