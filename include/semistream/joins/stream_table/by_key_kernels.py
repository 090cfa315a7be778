"""Numba kernels of H_S by key (`ByKey`).

Each disk partition has a part of the hash table of the same size, ``share`` buckets. A key's bucket
is in the part of the first partition that may hold it. So the tuples that wait for a partition are
found without examining the others.

A waiting tuple has a slot. The *leader* of a key is its oldest tuple. ``head`` and CHAIN hash the
leaders, SAME links a leader to the other tuples of its key, and COUNT is the number of the key's
tuples (0: not a leader). PREV and NEXT are Q, the tuples in the order of age. FIRST and LAST are
the disk partitions that may hold the key, [FIRST, LAST). ARRIVED is the number of the tuple's
batch. Free slots below the high-water mark are linked by SAME.

Arrays: key int64[slots], key codes; link int32[slots, 8], with the columns just named; flags
uint8[slots], MATCHED and MET; head int32[buckets], a leader or -1; share float64; q int64[5], the
ends of Q, the first free slot, the high-water mark, the tuples.
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import njit
from semistream.joins.intrinsics import prefetch
from semistream.joins.key_table import GROUP, mix, scale

CHAIN, SAME, PREV, NEXT, FIRST, LAST, ARRIVED, COUNT = range(8)  # columns of link, int32[n, 8]
# of q, int64[5]: ends of Q, first free slot, high-water mark, tuples
OLDEST, NEWEST, FREE, HIGH, LIVE = range(5)
MET = 2  # a flag like MATCHED: the leader was found, and leaves in this iteration


@njit(inline="always")
def _bucket(code, first, share):
    """Return the bucket of a key whose first possible partition is `first`."""
    part = np.int64(first * share)
    return part + scale(mix(code), np.int64((first + 1) * share) - part)


@njit(inline="always")
def _leader(code, b, head, key, link):
    """Return the leader of the code's key, which is in bucket b; -1 if there is none.

    in      head int32[buckets], key int64[slots], link int32[slots, 8]
    """
    s = head[b]
    while s >= 0 and key[s] != code:
        s = link[s, CHAIN]
    return s


@njit(inline="always")
def _fetch(buckets, head, key, link):
    """Prefetch the heads of these buckets and the slots that they lead to.

    in      buckets int64[n], head int32[buckets], key int64[slots], link int32[slots, 8]
    """
    for b in buckets:
        prefetch(head, b)
    for b in buckets:
        s = max(head[b], 0)
        prefetch(key, s)
        prefetch(link, s)


@njit(cache=True)
def append(codes, spans, arrived, share, head, key, link, flags, q, slots):
    """Append tuples to H_S and Q, the i-th with the partition range spans[i], in slots[i].

    in      codes int64[n], spans int32[n, 2]
    in/out  head int32[buckets], key int64[slots], link int32[slots, 8], q int64[5]
    out     flags uint8[slots], slots int64[n]
    """
    group = np.empty(GROUP, np.int64)
    for i in range(len(codes)):
        if i % GROUP == 0:
            n = min(GROUP, len(codes) - i)
            for j in range(n):
                group[j] = _bucket(codes[i + j], spans[i + j, 0], share)
            _fetch(group[:n], head, key, link)
        code, s, b = codes[i], q[FREE], group[i % GROUP]
        if s >= 0:
            q[FREE] = link[s, SAME]
            prefetch(link, max(q[FREE], 0))
        else:
            s = q[HIGH]
            q[HIGH] += 1
        slots[i], key[s], flags[s] = s, code, 0
        link[s, FIRST], link[s, LAST], link[s, ARRIVED] = spans[i, 0], spans[i, 1], arrived
        leader = _leader(code, b, head, key, link)
        if leader >= 0:
            link[s, SAME], link[leader, SAME] = link[leader, SAME], s
            link[s, COUNT] = 0
            link[leader, COUNT] += 1
        else:
            link[s, CHAIN], link[s, SAME], link[s, COUNT] = head[b], -1, 1
            head[b] = s
        link[s, PREV], link[s, NEXT] = q[NEWEST], -1
        if q[NEWEST] >= 0:
            link[q[NEWEST], NEXT] = s
        else:
            q[OLDEST] = s
        q[NEWEST] = s
    q[LIVE] += len(codes)


@njit(cache=True)
def find(codes, firsts, first, last, share, head, key, link, flags, found, counts, met):
    """Find the leader of each code, -1 if there is none, and the number of tuples of the code's
    key. Only keys whose partitions all lie in [first, last) count. Leaders found for the first time
    in this iteration get the flag MET. Return (sum of counts, leaders that got MET).

    firsts: the first partition that may hold each code.

    in      codes int64[n], firsts int32[n], head int32[buckets], key int64[slots],
            link int32[slots, 8]
    in/out  flags uint8[slots]
    out     found int32[n], counts int32[n], met int32[n]
    """
    total, n, group = 0, 0, np.empty(GROUP, np.int64)
    for i in range(len(codes)):
        if i % GROUP == 0:
            some = min(GROUP, len(codes) - i)
            for j in range(some):
                group[j] = _bucket(codes[i + j], firsts[i + j], share)
            _fetch(group[:some], head, key, link)
        s = _leader(codes[i], group[i % GROUP], head, key, link)
        if s < 0 or link[s, FIRST] < first or link[s, LAST] > last:
            found[i], counts[i] = -1, 0
            continue
        found[i], counts[i] = s, link[s, COUNT]
        total += link[s, COUNT]
        if not flags[s] & MET:
            flags[s] |= MET
            met[n] = s
            n += 1
    return total, n


@njit(cache=True)
def within(first, last, share, head, link, out):
    """Find the leaders (the oldest tuple of each key) whose partitions all lie in [first, last).
    Return their number.

    in      head int32[buckets], link int32[slots, 8]
    out     out int32[k], the first k of them
    """
    n = 0
    # if there are more partitions than buckets, neighbours share one
    end = max(np.int64(last * share), np.int64((last - 1) * share) + 1)
    for b in range(np.int64(first * share), end):
        s = head[b]
        while s >= 0:
            if link[s, FIRST] >= first and link[s, LAST] <= last:
                if n < len(out):
                    out[n] = s
                n += 1
            s = link[s, CHAIN]
    return n


@njit(cache=True)
def count(leaders, link):
    """Return how many tuples the keys of these leaders have together.

    in      leaders int32[n], link int32[slots, 8]
    """
    total = 0
    for i in range(len(leaders)):
        total += link[leaders[i], COUNT]
    return total


@njit(cache=True)
def remove(leaders, share, head, key, link, q, out):
    """Remove all tuples of these leaders' keys from H_S and Q. The contents of their slots remain
    until the next `append`.

    in      leaders int32[n], key int64[slots]
    in/out  head int32[buckets], link int32[slots, 8], q int64[5]
    out     out int64[tuples], their slots
    """
    k = 0
    for i in range(len(leaders)):
        s = leaders[i]
        b = _bucket(key[s], link[s, FIRST], share)
        if head[b] == s:
            head[b] = link[s, CHAIN]
        else:
            before = head[b]
            while link[before, CHAIN] != s:
                before = link[before, CHAIN]
            link[before, CHAIN] = link[s, CHAIN]
        link[s, COUNT] = 0
        while s >= 0:
            after, older, newer = link[s, SAME], link[s, PREV], link[s, NEXT]
            if older >= 0:
                link[older, NEXT] = newer
            else:
                q[OLDEST] = newer
            if newer >= 0:
                link[newer, PREV] = older
            else:
                q[NEWEST] = older
            link[s, SAME] = q[FREE]
            q[FREE] = s
            out[k] = s
            k += 1
            s = after
    q[LIVE] -= k


@njit(cache=True)
def in_age_order(slot, one_batch, link, out):
    """Write the slots of Q in the order of age, from `slot` on, until out is full or, for
    one_batch, the slot's batch ends. Return (number of slots written, the slot after them).

    in      link int32[slots, 8]
    out     out int64[k]
    """
    n, arrived = 0, link[slot, ARRIVED]
    while slot >= 0 and n < len(out) and (not one_batch or link[slot, ARRIVED] == arrived):
        out[n] = slot
        n += 1
        slot = link[slot, NEXT]
    return n, slot


@njit(cache=True)
def outside(slot, first, last, link):
    """Return the first slot of Q, from `slot` on, whose partitions do not all lie in [first, last);
    -1 if there is none.

    in      link int32[slots, 8]
    """
    while slot >= 0 and link[slot, FIRST] >= first and link[slot, LAST] <= last:
        slot = link[slot, NEXT]
    return slot


@njit(cache=True)
def frequent(link, q, least, below, histogram, out):
    """Find leaders with at least `least` and fewer than `below` tuples. Return their number;
    histogram[min(n, len - 1)] counts the leaders with n tuples.

    in      link int32[slots, 8], q int64[5]
    in/out  histogram int64[h]
    out     out int32[k], the first k of them
    """
    n = 0
    for s in range(q[HIGH]):
        if least <= link[s, COUNT] < below:
            histogram[min(link[s, COUNT], len(histogram) - 1)] += 1
            if n < len(out):
                out[n] = s
            n += 1
    return n


@njit(cache=True)
def waiting(link, q, counts):
    """Add to counts[p] the number of tuples whose key can be in partition p only.

    in      link int32[slots, 8], q int64[5]
    in/out  counts int64[partitions]
    """
    for s in range(q[HIGH]):
        if link[s, COUNT] and link[s, LAST] - link[s, FIRST] == 1:
            counts[link[s, FIRST]] += link[s, COUNT]


@njit(cache=True)
def ages(slots, link, now):
    """Return (sum, maximum) of the ticks since the arrival of the tuples in slots. Ticks wrap at
    2^32.

    in      slots int64[n], link int32[slots, 8]
    """
    total, most = np.int64(0), np.int64(0)
    for i in range(len(slots)):
        age = np.int64(np.uint32(np.int64(now) - np.int64(link[slots[i], ARRIVED])))
        # a batch that came within the tick of the last one was given the next tick
        if age > np.int64(0xFFFF0000):
            age = np.int64(0)
        total += age
        most = max(most, age)
    return total, most
