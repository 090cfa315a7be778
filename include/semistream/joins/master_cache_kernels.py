"""Numba kernels of H_R (`MasterCache`).

H_R is a table of entries, one a cached join value, found by open addressing (`key_table`).

Arrays, by entry: ekey int64[], its key code; efirst int32[], its first tuple, -1 where it is known
to have no master tuple; ecount int32[], its tuples; efreq uint32[], the stream tuples that it
served (the papers' f_count). By tuple: tnext int32[], the next one of its entry, or -1. table
int32[], entries or -1.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from semistream.joins.key_table import lookup


@njit(cache=True)
def probe(codes, table, ekey, efreq, ecount, entries, counts):
    """The entry of each code, or -1, and its tuples; the entry counts the stream tuple. Returns
    (hits, their master tuples).

    in      codes int64[n], table int32[m], ekey int64[entries], ecount int32[entries]
    in/out  efreq uint32[entries]
    out     entries int32[n], counts int32[n]
    """
    hits, total = 0, 0
    for i in range(len(codes)):
        e = lookup(codes[i], table, ekey)
        entries[i] = e
        if e >= 0:
            efreq[e] += 1
            counts[i] = ecount[e]
            total += ecount[e]
            hits += 1
        else:
            counts[i] = 0
    return hits, total


@njit(cache=True)
def pairs(first, last, entries, efirst, tnext, out_row, out_slot):
    """The (stream row, tuple) pairs of stream rows first..last-1, as `probe` found them.

    in      entries int32[n], efirst int32[entries], tnext int32[tuples]
    out     out_row int64[pairs], out_slot int64[pairs]
    """
    k = 0
    for i in range(first, last):
        if entries[i] < 0:
            continue
        s = efirst[entries[i]]
        while s >= 0:
            out_row[k] = i
            out_slot[k] = s
            k += 1
            s = tnext[s]


@njit(cache=True)
def link(first_entry, entry_count, slots_entry, first_slot, efirst, ecount, tnext):
    """Link the tuples first_slot.. to their entries; slots_entry[i] is that of tuple first_slot +
    i.

    in      slots_entry int32[n]
    in/out  ecount int32[entries], efirst int32[entries], both of entries first_entry..
    out     tnext int32[tuples]
    """
    for e in range(first_entry, first_entry + entry_count):
        efirst[e] = -1
        ecount[e] = 0
    for i in range(len(slots_entry)):
        e = slots_entry[i]
        tnext[first_slot + i] = efirst[e]
        efirst[e] = first_slot + i
        ecount[e] += 1


@njit(cache=True)
def compact(keep, ekey, efirst, ecount, efreq, tnext, moved):
    """Drop the entries that `keep` does not keep, and their tuples; the others move down. Returns
    (entries, tuples) left. moved[new slot] = old slot, ascending, for the payload to follow.

    in      keep bool[entries]
    in/out  ekey int64[entries], efirst int32[entries], ecount int32[entries],
            efreq uint32[entries], tnext int32[tuples]
    out     moved int64[tuples]
    """
    owner = np.full(len(moved), -1, np.int32)
    entries = 0
    for e in range(len(keep)):
        if not keep[e]:
            continue
        s = efirst[e]
        while s >= 0:
            owner[s] = entries
            s = tnext[s]
        ekey[entries], efreq[entries] = ekey[e], efreq[e]
        entries += 1
    for e in range(entries):
        efirst[e] = -1
        ecount[e] = 0
    tuples = 0
    for s in range(len(owner)):
        if owner[s] >= 0:
            e = owner[s]
            tnext[tuples] = efirst[e]
            efirst[e] = tuples
            ecount[e] += 1
            moved[tuples] = s
            tuples += 1
    return entries, tuples
