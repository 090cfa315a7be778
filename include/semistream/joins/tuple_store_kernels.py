"""Numba kernels of tuples in rows of bytes. Values of variable length lie in a heap of bytes.

A tuple takes ``width`` bytes: the tuple in slot s is rows[s * width:(s + 1) * width], and each
column has the same place in all tuples. For a value of variable length the tuple has its address
and size. starts and lengths are views of these: the value is heap[starts[slot]:starts[slot] +
lengths[slot]]. slots, int64[n], are the slots of the tuples concerned. An Arrow column of variable
length is given as offsets, int32[rows + 1], and data, uint8[].
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import njit
from semistream.joins.intrinsics import move, prefetch

GROUP, LINE = 64, 64  # tuples in progress at once; bytes of a cache line


@njit(inline="always")
def copy(to, at, source, begin, size):
    """Copy source[begin:begin + size] to to[at:at + size].

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
    """Copy the values of a column, of `size` bytes each, into tuples, at the offset `first` in the
    tuple: value of[i] goes into the tuple in slots[i].

    in      source uint8[bytes], of int64[n], slots int64[n]
    out     rows uint8[slots * width]
    """
    for i in range(len(slots)):
        copy(rows, slots[i] * width + first, source, of[i] * size, size)


@njit(cache=True)
def gather(rows, width, slots, columns, out):
    """Copy columns of the tuples in slots, each column's values one after the other. Tuples are
    copied in groups, so that each tuple is fetched from memory only once.

    in      rows uint8[slots * width], slots int64[n], columns int64[k, 3]: of each its offset
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
    """Copy the values of rows to heap[at:], one after the other. Return the end of the last value.

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
def put_paged(offsets, data, rows, starts, lengths, heap, link, shift, slots, at):
    """Copy the value of rows[i] to heap[at[i]:]. A value that does not fit into one page of
    2**shift bytes continues in the linked page.

    in      offsets int32[rows + 1], data uint8[bytes], rows int64[n], link int32[pages],
            slots int64[n]
    in/out  at int64[n], where the next value goes
    out     heap uint8[pages << shift], starts uint32[slots], lengths uint32[slots]
    """
    page = 1 << shift
    for i in range(len(rows)):
        j, b, a = offsets[rows[i]], offsets[rows[i] + 1], at[i]
        starts[slots[i]] = a
        lengths[slots[i]] = b - j
        while j < b:
            n = min(b - j, page - (a & (page - 1)))
            for k in range(n):
                heap[a + k] = data[j + k]
            a, j = a + n, j + n
            if a & (page - 1) == 0 and link[(a >> shift) - 1] >= 0:
                a = np.int64(link[(a >> shift) - 1]) << shift
        at[i] = a


@njit(cache=True)
def get_paged(starts, lengths, heap, link, shift, offsets, out):
    """Copy n values, one after the other, out of linked pages of 2**shift bytes.

    in      starts uint32[n], lengths uint32[n], heap uint8[pages << shift], link int32[pages]
    out     offsets int32[n + 1], their Arrow offsets; out uint8[bytes]
    """
    page = 1 << shift
    at = offsets[0] = 0
    for i in range(len(starts)):
        a, left = np.int64(starts[i]), np.int64(lengths[i])
        while left > 0:
            n = min(left, page - (a & (page - 1)))
            for k in range(n):
                out[at + k] = heap[a + k]
            at, left = at + n, left - n
            if left > 0:
                a = np.int64(link[a >> shift]) << shift
        offsets[i + 1] = at


@njit(cache=True)
def readdress(starts, lengths, slots, moved, shift):
    """Update addresses after pages of 2**shift bytes were moved.

    in      lengths uint32[slots], slots int64[n], moved int32[pages], the new number of each page
    in/out  starts uint32[slots]
    """
    for s in slots:
        if lengths[s]:
            a = np.int64(starts[s])
            starts[s] = (np.int64(moved[a >> shift]) << shift) + (a & ((1 << shift) - 1))


@njit(cache=True)
def slide(starts, lengths, heap, slots, at):
    """Move the values of slots, whose addresses ascend, down to heap[at:]. Return the end of the
    last value.

    in      lengths uint32[slots], slots integers[n]
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
def last(starts, slots):
    """Return the highest address of these slots; 0 if there are no slots.

    in      starts uint32[slots], slots integers[n]
    """
    highest = np.uint32(0)
    for s in slots:
        highest = max(highest, starts[s])
    return np.int64(highest)


@njit(cache=True)
def count(starts, lengths, slots, step, number):
    """Count these slots by the part of the heap, of `step` bytes, in which their addresses lie.
    Empty values do not count.

    in      starts uint32[slots], lengths uint32[slots], slots integers[n]
    out     number int64[parts]
    """
    number[:] = 0
    for i in range(len(slots)):
        if lengths[slots[i]]:
            number[starts[slots[i]] // step] += 1


@njit(cache=True)
def within(starts, lengths, slots, low, high, slot, start, length):
    """Find the slots whose addresses lie in [low, high), with their addresses and sizes. Empty
    values do not count.

    in      starts uint32[slots], lengths uint32[slots], slots integers[n]
    out     slot uint32[m], start uint32[m], length uint32[m]
    """
    k = 0
    for i in range(len(slots)):
        a = starts[slots[i]]
        if low <= a < high and lengths[slots[i]]:
            slot[k], start[k], length[k] = slots[i], a, lengths[slots[i]]
            k += 1


@njit(cache=True)
def by_address(start, low, step, order):
    """Sort distinct addresses from low to low + step - 1. The addresses are sorted by counting, in
    as many ranges as there are addresses. A range has step / n bytes and therefore at most so many
    addresses, so that the sort takes at most a multiple of n + step steps.

    in      start uint32[n]
    out     order uint32[n]
    """
    n = len(start)
    first = np.zeros(n + 1, np.uint32)
    for i in range(n):
        first[(np.int64(start[i]) - low) * n // step + 1] += 1
    for i in range(n):
        first[i + 1] += first[i]
    for i in range(n):
        of = (np.int64(start[i]) - low) * n // step
        order[first[of]] = i
        first[of] += 1
    for i in range(1, n):
        moved, j = order[i], i
        while j > 0 and start[order[j - 1]] > start[moved]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = moved


@njit(cache=True)
def shift(starts, live, by, size):
    """Adjust the first `live` addresses to a rotation of the heap by `by` bytes. size: bytes of the
    heap.

    in/out  starts uint32[slots]
    """
    for i in range(live):
        starts[i] = starts[i] - by if starts[i] >= by else starts[i] + size - by
