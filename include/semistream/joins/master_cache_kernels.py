"""Numba kernels of H_R (`MasterCache`).

H_R is a table of entries, one per cached join value, found by open addressing (`key_table`).

Arrays by entry: ekey int64[], its key code; efirst int32[], its first tuple, ABSENT if it is known
to have none; ecount int32[], its number of tuples; efreq uint32[], the stream tuples that it served
(the papers' f_count). Array by tuple: tnext int32[], the next tuple of its entry, or -1. Hash
table: table int64[], entries.
"""

from __future__ import annotations

from semistream.compiled import njit
from semistream.joins.key_table import GROUP, find_group

ABSENT, UNKNOWN = -1, -2  # in the place of a first tuple: R has none; H_R does not know


@njit(cache=True)
def probe(codes, table, ekey, efreq, efirst, ecount, firsts, counts):
    """Find the first master tuple of each code, ABSENT or UNKNOWN, and the number of its tuples.
    Count the stream tuple in the code's entry. Return how many codes H_R knows.

    in      codes int64[n], table int64[m], ekey int64[entries], efirst int32[entries],
            ecount int32[entries]
    in/out  efreq uint32[entries]
    out     firsts int32[n], counts int32[n]
    """
    hits = 0
    for first in range(0, len(codes), GROUP):
        last = min(first + GROUP, len(codes))
        find_group(codes, first, last, table, ekey, firsts)
        for i in range(first, last):
            e = firsts[i]
            if e >= 0:
                efreq[e] += 1
                firsts[i], counts[i] = efirst[e], ecount[e]
                hits += 1
            else:
                firsts[i], counts[i] = UNKNOWN, 0
    return hits


@njit(cache=True)
def pairs(first, last, firsts, counts, tnext, out_row, out_slot):
    """Write the (row, tuple) pairs of rows first..last-1. Each row has counts[row] tuples, the
    first of which is firsts[row].

    in      firsts int32[n], counts int32[n], tnext int32[tuples]
    out     out_row int64[pairs], out_slot int64[pairs]
    """
    k = 0
    for i in range(first, last):
        s = firsts[i]
        for left in range(counts[i], 0, -1):
            out_row[k], out_slot[k] = i, s
            k += 1
            if left > 1:
                s = tnext[s]


@njit(cache=True)
def link(first_entry, entry_count, slots_entry, first_slot, efirst, ecount, tnext):
    """Link the tuples from first_slot on to their entries. slots_entry[i] is the entry of tuple
    first_slot + i.

    in      slots_entry int32[n]
    in/out  ecount int32[entries], efirst int32[entries], both of entries first_entry..
    out     tnext int32[tuples]
    """
    for e in range(first_entry, first_entry + entry_count):
        efirst[e] = ABSENT
        ecount[e] = 0
    for i in range(len(slots_entry)):
        e = slots_entry[i]
        tnext[first_slot + i] = efirst[e]
        efirst[e] = first_slot + i
        ecount[e] += 1


@njit(cache=True)
def compact(keep, ekey, efirst, ecount, efreq, tnext, tuples, rows):
    """Drop the entries that `keep` does not select, and their tuples. The remaining entries and
    tuples move to the front of the arrays. Return how many (entries, tuples) remain.

    in      keep bool[entries]; tuples, their number
    in/out  ekey int64[entries], efirst int32[entries], ecount int32[entries],
            efreq uint32[entries], tnext int32[slots], rows uint8[slots, width], the tuples
    """
    entries = 0
    for e in range(len(keep)):
        entry = entries if keep[e] else ABSENT
        s = efirst[e]
        while s >= 0:  # each tuple's link becomes its entry
            following = tnext[s]
            tnext[s] = entry
            s = following
        if keep[e]:
            ekey[entries], efreq[entries] = ekey[e], efreq[e]
            entries += 1
    for e in range(entries):
        efirst[e] = ABSENT
        ecount[e] = 0
    left = 0
    for s in range(tuples):
        e = tnext[s]
        if e >= 0:
            tnext[left] = efirst[e]
            efirst[e] = left
            ecount[e] += 1
            if left < s:
                for i in range(rows.shape[1]):
                    rows[left, i] = rows[s, i]
            left += 1
    return entries, left
