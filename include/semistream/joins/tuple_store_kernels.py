"""Numba kernels of values of variable length, which lie in a heap of bytes.

A column's value in a slot is heap[starts[slot]:starts[slot] + lengths[slot]]: starts and lengths
are uint32[slots], heap is uint8[bytes], slots int64[n] the slots that are meant. An Arrow column is
given as offsets, int32[rows + 1], and data, uint8[].
"""

from __future__ import annotations

from semistream.compiled import njit


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
def sizes(lengths, slots, out_offsets):
    """The Arrow offsets of the values of slots. Returns their bytes together.

    in      lengths uint32[slots], slots int64[n]
    out     out_offsets int32[n + 1]
    """
    total = 0
    out_offsets[0] = 0
    for i in range(len(slots)):
        total += lengths[slots[i]]
        out_offsets[i + 1] = total
    return total


@njit(cache=True)
def get(starts, lengths, heap, slots, out):
    """Copy the values of slots, one after the other.

    in      starts uint32[slots], lengths uint32[slots], heap uint8[capacity], slots int64[n]
    out     out uint8[bytes]
    """
    at = 0
    for i in range(len(slots)):
        a = starts[slots[i]]
        for j in range(a, a + lengths[slots[i]]):
            out[at] = heap[j]
            at += 1


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
