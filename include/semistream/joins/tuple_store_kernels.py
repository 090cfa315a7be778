"""Numba kernels of values of variable length, which lie in a heap of bytes.

A column's value in a slot is heap[starts[slot]:starts[slot] + lengths[slot]]: starts and lengths
are uint32[slots], heap is uint8[bytes], slots int64[n] the slots that are meant. An Arrow column is
given as offsets, int32[rows + 1], and data, uint8[].
"""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def put(offsets, data, rows, starts, lengths, heap, slots, at):
    """Copy the values of rows, int64[n], to heap[at:], one after the other. Returns the end.

    Reads offsets, data, rows, slots; writes heap, and starts and lengths at slots[i].
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
    """Write the Arrow offsets of the values of slots to out_offsets, int32[n + 1]. Returns their
    bytes together."""
    total = 0
    out_offsets[0] = 0
    for i in range(len(slots)):
        total += lengths[slots[i]]
        out_offsets[i + 1] = total
    return total


@njit(cache=True)
def get(starts, lengths, heap, slots, out):
    """Copy the values of slots to out, uint8[], one after the other. Reads starts, lengths, heap,
    slots."""
    at = 0
    for i in range(len(slots)):
        a = starts[slots[i]]
        for j in range(a, a + lengths[slots[i]]):
            out[at] = heap[j]
            at += 1


@njit(cache=True)
def slide(starts, lengths, heap, slots, at):
    """Move the values of slots, whose addresses ascend, down to heap[at:]. Returns the end.

    Reads lengths and slots; reads and writes starts and heap.
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

    Reads starts and lengths, uint32[n], of the values; writes heap, and to moved, uint32[n], where
    each one is.
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
    """Subtract a rotation of the heap, of `size` bytes, from the first `live` of starts, in
    place."""
    for i in range(live):
        starts[i] = starts[i] - by if starts[i] >= by else starts[i] + size - by
