"""Numba kernels of tuples in rows of bytes, and of their values of variable length, which lie in a
heap of bytes.

A tuple takes ``width`` bytes: that of slot s is rows[s * width:(s + 1) * width], and each of its
columns has the same place in all of them. What a column of variable length has there is its value's
address and size, views of which are starts and lengths: heap[starts[slot]:starts[slot] +
lengths[slot]]. slots, int64[n], are those that are meant. An Arrow column of variable length is
given as offsets, int32[rows + 1], and data, uint8[].
"""

from __future__ import annotations

from semistream.compiled import njit
from semistream.joins.intrinsics import move, prefetch

GROUP, LINE = 64, 64  # tuples under way at once; bytes of a cache line


@njit(inline="always")
def copy(to, at, source, begin, size):
    """to[at:at + size] = source[begin:begin + size].

    in      source uint8[]
    out     to uint8[]
    """
    if size == 8:
        move(to, at, source, begin, 8)
    elif size == 4:
        move(to, at, source, begin, 4)
    elif size == 1:
        move(to, at, source, begin, 1)
    elif size == 16:
        move(to, at, source, begin, 16)
    elif size == 2:
        move(to, at, source, begin, 2)
    else:
        move(to, at, source, begin, size)


@njit(cache=True)
def scatter(source, size, of, rows, width, first, slots):
    """Copy the values of a column, of `size` bytes, to their place, which begins at `first`: value
    of[i] into the tuple in slots[i].

    in      source uint8[bytes], of int64[n], slots int64[n]
    out     rows uint8[slots * width]
    """
    for i in range(len(slots)):
        copy(rows, slots[i] * width + first, source, of[i] * size, size)


@njit(cache=True)
def gather(rows, width, slots, columns, out):
    """Copy columns of the tuples in slots, each column's values one after the other. While those of
    a group are copied, its tuples are in the cache: each is fetched from memory once, whole.

    in      rows uint8[slots * width], slots int64[n], columns int64[k, 3]: of each where it begins
            in a tuple, its bytes, and where its values begin in out
    out     out uint8[bytes]
    """
    for a in range(0, len(slots), GROUP):
        b = min(a + GROUP, len(slots))
        for i in range(a, b):
            for j in range(0, width, LINE):
                prefetch(rows, slots[i] * width + j)
            prefetch(rows, (slots[i] + 1) * width - 1)
        for c in range(len(columns)):
            first, size, at = columns[c]
            for i in range(a, b):
                copy(out, at + i * size, rows, slots[i] * width + first, size)


@njit(cache=True)
def put(offsets, data, rows, starts, lengths, heap, slots, at):
    """Copy the values of rows to heap[at:], one after the other. Returns the end.

    in      offsets int32[rows + 1], data uint8[bytes], rows int64[n], slots int64[n]
    out     heap uint8[capacity], starts uint32[slots], lengths uint32[slots]
    """
    for i in range(len(rows)):
        a, b = offsets[rows[i]], offsets[rows[i] + 1]
        starts[slots[i]] = at
        lengths[slots[i]] = b - a
        for j in range(a, b):
            heap[at] = data[j]
            at += 1
    return at


@njit(cache=True)
def get(starts, lengths, heap, offsets, out):
    """Copy n values, one after the other.

    in      starts uint32[n], lengths uint32[n], heap uint8[capacity]
    out     offsets int32[n + 1], their Arrow offsets; out uint8[bytes]
    """
    at = offsets[0] = 0
    for i in range(len(starts)):
        a = starts[i]
        for j in range(a, a + lengths[i]):
            out[at] = heap[j]
            at += 1
        offsets[i + 1] = at


@njit(cache=True)
def slide(starts, lengths, heap, slots, at):
    """Move the values of slots, whose addresses ascend, down to heap[at:]. Returns the end.

    in      lengths uint32[slots], slots int64[n]
    in/out  starts uint32[slots], heap uint8[capacity]
    """
    for i in range(len(slots)):
        a = starts[slots[i]]
        starts[slots[i]] = at
        for j in range(a, a + lengths[slots[i]]):
            heap[at] = heap[j]
            at += 1
    return at


@njit(cache=True)
def close(starts, lengths, heap, at, moved):
    """Move values in the order given, in which their addresses ascend, down to heap[at:]. Returns
    the end.

    in      starts uint32[n], lengths uint32[n]
    in/out  heap uint8[capacity]
    out     moved uint32[n], where each one is now
    """
    for i in range(len(starts)):
        a = starts[i]
        moved[i] = at
        for j in range(a, a + lengths[i]):
            heap[at] = heap[j]
            at += 1
    return at


@njit(cache=True)
def shift(starts, live, by, size):
    """Subtract a rotation of the heap, of `size` bytes, from the first `live` addresses.

    in/out  starts uint32[slots]
    """
    for i in range(live):
        starts[i] = starts[i] - by if starts[i] >= by else starts[i] + size - by
