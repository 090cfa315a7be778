"""Numba kernels of the joins: arrays in, arrays out; no configuration, no Arrow.

**H_S** is a hash multimap in a ring of ``cap`` slots, oldest tuple at ``oldest``, ``live`` tuples. A bucket's chain links the
newest tuple of each distinct key (``back``), newest first; ``same`` links a tuple to the next older one of its key. Expiry only
moves ``oldest``: a link is valid as long as it leads to an older tuple of the window (`_older`), so nothing is searched for and
deleted.
``flags``: bit 0 matched, bit 1 a newer tuple of this key exists.

**H_R** is an open-addressing table of entries, one a cached join value: ``ekey``, first tuple ``efirst`` (-1: known to have no
master tuple), ``ecount`` tuples linked by ``tnext``, and ``efreq``, the stream tuples that it served (the papers' f_count).
"""

from __future__ import annotations

import numpy as np
from numba import njit

MATCHED, SUPERSEDED = 1, 2
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def bucket(code, count):
    """A bucket in [0, count) for a key code: the high bits of a Fibonacci hash, scaled."""
    h = np.uint64(code) * GOLDEN
    h ^= h >> np.uint64(29)
    return np.int64((((h * GOLDEN) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@njit(inline="always")
def _position(slot, oldest, cap):
    p = slot - oldest
    return p + cap if p < 0 else p


@njit(inline="always")
def _older(link, position, oldest, cap):
    """The link, if it leads to a tuple older than `position` in the window; else -1 (its tuple expired)."""
    if link >= 0 and _position(link, oldest, cap) < position:
        return link
    return -1


@njit(inline="always")
def _head(code, head, key, oldest, live, cap):
    """Newest tuple of the code's bucket, or -1. A slot taken over by a tuple of another bucket is no head."""
    b = bucket(code, len(head))
    s = head[b]
    if s < 0 or _position(s, oldest, cap) >= live or bucket(key[s], len(head)) != b:
        return -1
    return s


@njit(inline="always")
def _link(slot, code, head, key, back, same, flags, oldest, live, cap):
    """Put the tuple at `slot`, the newest of the window, in front of its chain."""
    key[slot] = code
    first = _head(code, head, key, oldest, live, cap)
    head[bucket(code, len(head))] = slot
    before, s = -1, first
    while s >= 0 and key[s] != code:
        before, s = s, _older(back[s], _position(s, oldest, cap), oldest, cap)
    same[slot] = s
    if s < 0:
        back[slot] = first
        return
    flags[s] |= SUPERSEDED
    after = _older(back[s], _position(s, oldest, cap), oldest, cap)
    if before < 0:
        back[slot] = after
    else:
        back[before] = after
        back[slot] = first


@njit(cache=True)
def hs_append(codes, rows, head, key, back, same, flags, oldest, live, cap):
    """Append the tuples codes[rows] to H_S. The caller has made sure of live + len(rows) <= cap."""
    for i in range(len(rows)):
        slot = oldest + live + i
        if slot >= cap:
            slot -= cap
        flags[slot] = 0
        _link(slot, codes[rows[i]], head, key, back, same, flags, oldest, live + i, cap)


@njit(cache=True)
def hs_rebuild(head, key, back, same, flags, live, cap):
    """Link the tuples 0..live-1 anew after the ring was moved; `matched` stays."""
    head[:] = -1
    for slot in range(live):
        flags[slot] &= MATCHED
        _link(slot, key[slot], head, key, back, same, flags, 0, slot, cap)


@njit(cache=True)
def hs_find(codes, head, key, back, same, oldest, live, cap, found, counts):
    """found[i] = newest tuple of codes[i] in H_S or -1; counts[i] = how many there are. Returns their sum."""
    total = 0
    for i in range(len(codes)):
        s = _head(codes[i], head, key, oldest, live, cap)
        while s >= 0 and key[s] != codes[i]:
            s = _older(back[s], _position(s, oldest, cap), oldest, cap)
        found[i] = s
        n = 0
        while s >= 0:
            n += 1
            s = _older(same[s], _position(s, oldest, cap), oldest, cap)
        counts[i] = n
        total += n
    return total


@njit(cache=True)
def hs_pairs(first, last, found, same, oldest, cap, out_row, out_slot):
    """The (master row, H_S slot) pairs of master rows first..last-1, as `hs_find` found them."""
    k = 0
    for i in range(first, last):
        s = found[i]
        while s >= 0:
            out_row[k] = i
            out_slot[k] = s
            k += 1
            s = _older(same[s], _position(s, oldest, cap), oldest, cap)


@njit(cache=True)
def mark(flags, slots, bit):
    for i in range(len(slots)):
        flags[slots[i]] |= bit


@njit(cache=True)
def hs_frequent(key, same, flags, oldest, live, cap, present_n, absent_n, out_key, out_n, histogram):
    """Join values of H_S with at least `present_n` waiting tuples, or with `absent_n` of which the oldest is in the older half of
    the window and still unmatched, so that the value probably has no master tuple.

    Fills out_key and out_n as far as they reach, and histogram[min(n, len - 1)] for all. Returns how many there are.
    """
    found = 0
    for p in range(live):
        slot = oldest + p
        if slot >= cap:
            slot -= cap
        if flags[slot] & SUPERSEDED:
            continue
        n, s, last = 0, slot, slot
        while s >= 0:
            n += 1
            last = s
            s = _older(same[s], _position(s, oldest, cap), oldest, cap)
        absent = n >= absent_n and not flags[last] & MATCHED and 2 * _position(last, oldest, cap) < live
        if n >= present_n or absent:
            if found < len(out_key):
                out_key[found] = key[slot]
                out_n[found] = n
            found += 1
            histogram[min(n, len(histogram) - 1)] += 1
    return found


@njit(cache=True)
def rotate(array, shift):
    """array[i] = array[(i + shift) % n] in place, by three reversals; array is (n, k)."""
    n = len(array)
    for first, last in ((0, shift), (shift, n), (0, n)):
        i, j = first, last - 1
        while i < j:
            for c in range(array.shape[1]):
                array[i, c], array[j, c] = array[j, c], array[i, c]
            i += 1
            j -= 1


@njit(cache=True)
def table_build(table, keys):
    """Open addressing, linear probing: table[...] = index of each of the distinct keys."""
    table[:] = -1
    for i in range(len(keys)):
        t = bucket(keys[i], len(table))
        while table[t] >= 0:
            t = t + 1 if t + 1 < len(table) else 0
        table[t] = i


@njit(inline="always")
def _lookup(code, table, keys):
    t = bucket(code, len(table))
    while True:
        e = table[t]
        if e < 0 or keys[e] == code:
            return e
        t = t + 1 if t + 1 < len(table) else 0


@njit(cache=True)
def table_find(codes, table, keys, out):
    """out[i] = index of codes[i] among the keys, or -1."""
    for i in range(len(codes)):
        out[i] = _lookup(codes[i], table, keys)


@njit(cache=True)
def hr_probe(codes, table, ekey, efreq, ecount, entries, counts):
    """The cache phase: entries[i] = H_R's entry of codes[i] or -1, counts[i] = its tuples; served entries count the tuple.

    Returns (hits, their master tuples).
    """
    hits, total = 0, 0
    for i in range(len(codes)):
        e = _lookup(codes[i], table, ekey)
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
def hr_pairs(first, last, entries, efirst, tnext, out_row, out_slot):
    """The (stream row, H_R slot) pairs of stream rows first..last-1."""
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
def hr_link(first_entry, entry_count, slots_entry, first_slot, efirst, ecount, tnext):
    """Link the tuples first_slot.. to their entries; slots_entry[i] is the entry of tuple first_slot + i."""
    for e in range(first_entry, first_entry + entry_count):
        efirst[e] = -1
        ecount[e] = 0
    for i in range(len(slots_entry)):
        e = slots_entry[i]
        tnext[first_slot + i] = efirst[e]
        efirst[e] = first_slot + i
        ecount[e] += 1


@njit(cache=True)
def hr_compact(keep, ekey, efirst, ecount, efreq, tnext, moved):
    """Drop the entries that keep[e] does not keep, and their tuples; the others slide down.

    moved[new slot] = old slot, ascending, for the payload to follow. Returns (entries, tuples) left.
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


@njit(cache=True)
def count_by(index, counts):
    """counts[index[i]] += 1 for each index that is not negative."""
    for i in range(len(index)):
        if index[i] >= 0:
            counts[index[i]] += 1


@njit(cache=True)
def var_put(offsets, data, rows, starts, lengths, heap, slots, at):
    """Copy the variable-length values of `rows` to heap[at:], one after the other. Returns the end."""
    for i in range(len(rows)):
        a, b = offsets[rows[i]], offsets[rows[i] + 1]
        starts[slots[i]] = at
        lengths[slots[i]] = b - a
        for j in range(a, b):
            heap[at] = data[j]
            at += 1
    return at


@njit(cache=True)
def var_sizes(lengths, slots, out_offsets):
    total = 0
    out_offsets[0] = 0
    for i in range(len(slots)):
        total += lengths[slots[i]]
        out_offsets[i + 1] = total
    return total


@njit(cache=True)
def var_get(starts, lengths, heap, slots, out):
    at = 0
    for i in range(len(slots)):
        a = starts[slots[i]]
        for j in range(a, a + lengths[slots[i]]):
            out[at] = heap[j]
            at += 1


@njit(cache=True)
def var_slide(starts, lengths, heap, slots, at):
    """Move the values of `slots` (heap addresses ascending) down to heap[at:], in place. Returns the end."""
    for i in range(len(slots)):
        a = starts[slots[i]]
        starts[slots[i]] = at
        for j in range(a, a + lengths[slots[i]]):
            heap[at] = heap[j]
            at += 1
    return at


@njit(cache=True)
def var_close(starts, lengths, heap, at, moved):
    """Move values that lie in this order (heap addresses ascending) down to heap[at:]; moved[i] is where. Returns the end."""
    for i in range(len(starts)):
        a = starts[i]
        moved[i] = at
        for j in range(a, a + lengths[i]):
            heap[at] = heap[j]
            at += 1
    return at


@njit(cache=True)
def var_shift(starts, live, shift, size):
    """Follow a rotation of the heap."""
    for i in range(live):
        starts[i] = starts[i] - shift if starts[i] >= shift else starts[i] + size - shift
