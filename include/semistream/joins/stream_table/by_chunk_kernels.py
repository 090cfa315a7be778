"""Numba kernels of H_S by chunk (`ByChunk`).

H_S is a hash multimap in a ring of ``cap`` slots, with ``live`` tuples, the oldest of them at
``oldest``. A bucket's chain links the newest tuple of each distinct key (``back``), newest first;
``same`` links a tuple to the next older one of its key. When tuples expire, only ``oldest`` moves.
A link is valid as long as it leads to an older tuple of the window (`_older`), so that links need
not be searched and deleted.

Arrays: key int64[cap], key codes; back, same int32[cap], slots or -1; flags uint8[cap], MATCHED and
SUPERSEDED (a newer tuple of this key exists); head int32[buckets], the newest tuple of each bucket,
or -1.
"""

from __future__ import annotations

from semistream.compiled import njit
from semistream.joins.key_table import GROUP, bucket, fetch_chains
from semistream.joins.stream_table.shared_kernels import MATCHED

SUPERSEDED = 2


@njit(inline="always")
def _position(slot, oldest, cap):
    p = slot - oldest
    return p + cap if p < 0 else p


@njit(inline="always")
def _older(link, position, oldest, cap):
    """Return the link if it leads to a tuple of the window that is older than `position`. Otherwise
    the linked tuple has expired: return -1."""
    if link >= 0 and _position(link, oldest, cap) < position:
        return link
    return -1


@njit(inline="always")
def _head(code, head, key, oldest, live, cap):
    """Return the newest tuple of the code's bucket, or -1. A slot that is now used by a tuple of
    another bucket does not count.

    in      head int32[buckets], key int64[cap]
    """
    b = bucket(code, len(head))
    s = head[b]
    if s < 0 or _position(s, oldest, cap) >= live or bucket(key[s], len(head)) != b:
        return -1
    return s


@njit(inline="always")
def _link(slot, code, head, key, back, same, flags, oldest, live, cap):
    """Put the tuple at `slot`, the newest of the window, in front of its chain.

    in/out  head int32[buckets], key int64[cap], back int32[cap], flags uint8[cap]
    out     same int32[cap]
    """
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
def append(codes, head, key, back, same, flags, oldest, live, cap):
    """Append tuples. The caller ensures live + len(codes) <= cap.

    in      codes int64[n]
    in/out  head int32[buckets], key int64[cap], back int32[cap], flags uint8[cap]
    out     same int32[cap]
    """
    for i in range(len(codes)):
        if i % GROUP == 0:
            fetch_chains(codes, i, min(i + GROUP, len(codes)), head, key, same)
        slot = oldest + live + i
        if slot >= cap:
            slot -= cap
        flags[slot] = 0
        _link(slot, codes[i], head, key, back, same, flags, oldest, live + i, cap)


@njit(cache=True)
def rebuild(head, key, back, same, flags, live, cap):
    """Link the tuples 0..live-1 again after the ring was moved. The flag MATCHED is kept.

    in/out  key int64[cap], flags uint8[cap]
    out     head int32[buckets], back int32[cap], same int32[cap]
    """
    head[:] = -1
    for slot in range(live):
        flags[slot] &= MATCHED
        _link(slot, key[slot], head, key, back, same, flags, 0, slot, cap)


@njit(cache=True)
def find(codes, head, key, back, same, oldest, live, cap, found, counts):
    """Find the newest tuple of each code, -1 if there is none, and the number of the code's tuples.
    Return the sum of these numbers.

    in      codes int64[n], head int32[buckets], key int64[cap], back int32[cap], same int32[cap]
    out     found int32[n], counts int32[n]
    """
    total = 0
    for i in range(len(codes)):
        if i % GROUP == 0:
            fetch_chains(codes, i, min(i + GROUP, len(codes)), head, key, same)
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
def pairs(first, last, found, same, oldest, cap, out_row, out_slot):
    """Write the (master row, slot) pairs of master rows first..last-1, as found by `find`.

    in      found int32[n], same int32[cap]
    out     out_row int64[pairs], out_slot int64[pairs]
    """
    k = 0
    for i in range(first, last):
        s = found[i]
        while s >= 0:
            out_row[k] = i
            out_slot[k] = s
            k += 1
            s = _older(same[s], _position(s, oldest, cap), oldest, cap)


@njit(cache=True)
def frequent(key, same, flags, oldest, live, cap, present_n, absent_n, out_key, out_n, histogram):
    """Find join values with at least `present_n` waiting tuples. Also find values with at least
    `absent_n` waiting tuples of which the oldest is in the older half of the window and still
    unmatched, so that the value probably has no master tuple. Return the number of found values;
    histogram[min(n, len - 1)] counts the values with n tuples.

    in      key int64[cap], same int32[cap], flags uint8[cap]
    in/out  histogram int64[h]
    out     out_key int64[k], out_n int32[k], the first k of them
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
        absent = (
            n >= absent_n and not flags[last] & MATCHED and 2 * _position(last, oldest, cap) < live
        )
        if n >= present_n or absent:
            if found < len(out_key):
                out_key[found] = key[slot]
                out_n[found] = n
            found += 1
            histogram[min(n, len(histogram) - 1)] += 1
    return found


@njit(cache=True)
def rotate(array, shift):
    """Rotate the array by three reversals, so that array[i] becomes the former array[(i + shift) %
    n].

    in/out  array, of any type[n, k]
    """
    n = len(array)
    for first, last in ((0, shift), (shift, n), (0, n)):
        i, j = first, last - 1
        while i < j:
            for c in range(array.shape[1]):
                array[i, c], array[j, c] = array[j, c], array[i, c]
            i += 1
            j -= 1
