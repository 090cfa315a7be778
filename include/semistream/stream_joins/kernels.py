"""Numba kernels of the stream-stream joins: arrays in, arrays out; no configuration, no Arrow.

**Directory**: an open-addressing table of key codes with linear probing, one memory seen as ``t64``
(int64[size, 2]) and ``t32`` (int32[size, 4]). For position p, ``t64[p, 0]`` is the code, and
``t32[p, 2 + side]`` is the list of the side's tuples with that code: its newest slot + 1; 0 if the
list never had a tuple, -1 if its tuples have left. ``t64[p, 1]`` is 0 if the position was never
used. A new tuple finds its partners and the list of its code with one look-up. Positions ascend
with the hash, so that a table is copied into another size in order.

**Log**: per slot ``code`` (int64), ``ats`` (int64, arrival time), ``same`` (int32, the next older
slot of the same list, -1, or UNLINKED), ``pid`` (int32, the punctuation that the tuple matches, or
-1) and ``flags`` (uint8).
"""

from __future__ import annotations

import numpy as np

from semistream.compiled import njit
from semistream.joins.intrinsics import prefetch
from semistream.joins.key_table import bucket as place
from semistream.joins.key_table import mix

# flags: a DEAD slot is garbage; a BUFFERED one is in the purge buffer and in no list; a CHANGED one
# has other flags or another pid in the last snapshot
MATCHED, DEAD, BUFFERED, CHANGED = 1, 2, 4, 8
UNLINKED = -2  # in the place of an older slot: removed from its list
BUCKETS = 64  # hash buckets
GROUP = 32  # tuples of a disk join in progress at once
LANES = 16  # searches side by side, so that their cache misses overlap
NEVER = np.iinfo(np.int64).max  # departure time of a tuple in memory


@njit(inline="always")
def _bucket(code):
    """Return the hash bucket of a code. It is computed from bits on which the position in a table
    does not depend, so that the codes of a hash bucket are spread over a table."""
    return np.int64((mix(code) >> np.uint64(20)) % np.uint64(BUCKETS))


@njit(inline="always")
def _position(code, t64):
    """Return the position of the code in a table; if the table lacks the code, the free position
    for it.

    in      t64 int64[size, 2], code and use of each position
    """
    size = len(t64)
    p = place(code, size)
    while t64[p, 1] != 0 and t64[p, 0] != code:
        p += 1
        if p == size:
            p = 0
    return p


@njit(cache=True)
def buckets(codes, out):
    """Compute the hash bucket of each code.

    in      codes int64[n]
    out     out int32[n]
    """
    for i in range(len(codes)):
        out[i] = _bucket(codes[i])


@njit(cache=True)
def bucket_slots(code, flags, end, at, out):
    """Write the live slots below `end` of each hash bucket b to out[at[b]:], in ascending order.
    Buckets with a negative at[b] are skipped.

    in      code int64[slots], flags uint8[slots]
    in/out  at int64[BUCKETS], afterwards the end of each bucket's slots
    out     out int32[m]
    """
    for s in range(end):
        if not flags[s] & DEAD:
            b = _bucket(code[s])
            if at[b] >= 0:
                out[at[b]] = s
                at[b] += 1


@njit(cache=True)
def bucket_counts(code, flags, end, out):
    """Count the live slots below `end` of each hash bucket.

    in      code int64[slots], flags uint8[slots]
    out     out int64[BUCKETS]
    """
    out[:] = 0
    for s in range(end):
        if not flags[s] & DEAD:
            out[_bucket(code[s])] += 1


@njit(cache=True)
def join_and_insert(codes, keep, side, t64, t32, code, same, slot, found):
    """Look up tuples for the memory join. found[i] becomes the newest slot of the opposite side
    with codes[i], or -1. Insert the tuples with keep[i] into the lists of their side, in slots from
    `slot` on. Return the number of table positions that were not used before.

    in      codes int64[n], keep uint8[n]
    in/out  t64 int64[size, 2], t32 int32[size, 4]
    out     code int64[slots], same int32[slots], found int32[n]
    """
    new = 0
    for i in range(len(codes)):
        p = _position(codes[i], t64)
        if t64[p, 1] == 0:
            found[i] = -1
            if keep[i]:
                new += 1
                t64[p, 0] = codes[i]
                t32[p, 3 - side] = -1
                same[slot] = -1
                code[slot] = codes[i]
                t32[p, 2 + side] = slot + 1
                slot += 1
            continue
        first = t32[p, 3 - side]
        found[i] = first - 1 if first > 0 else -1
        if keep[i]:
            first = t32[p, 2 + side]
            same[slot] = first - 1 if first > 0 else -1
            code[slot] = codes[i]
            t32[p, 2 + side] = slot + 1
            slot += 1
    return new


@njit(cache=True)
def find(codes, side, t64, t32, found):
    """Find the newest slot of the side with each code; -1 if there is none.

    in      codes int64[n], t64 int64[size, 2], t32 int32[size, 4]
    out     found int32[n]
    """
    for i in range(len(codes)):
        first = t32[_position(codes[i], t64), 2 + side]
        found[i] = first - 1 if first > 0 else -1


@njit(cache=True)
def pairs(found, same, i, slot, out_row, out_slot):
    """Write (row, slot) pairs until the output is full. Begin with row i, at `slot` in its list
    (-1: at the start of the list). Return (pairs, row, slot) for the next call; row is len(found)
    at the end.

    in      found int32[n], same int32[slots]
    out     out_row int64[m], out_slot int64[m]
    """
    k, most = 0, len(out_row)
    while i < len(found):
        s = found[i] if slot < 0 else slot
        while s >= 0 and k < most:
            out_row[k] = i
            out_slot[k] = s
            k += 1
            s = same[s]
        if s >= 0:
            return k, i, s
        slot = -1
        i += 1
    return k, i, -1


@njit(cache=True)
def unlink(slots, side, t64, t32, code, same, flags):
    """Remove dead tuples, and tuples in the purge buffer, from their lists. All other such tuples
    of these lists are removed, too. Each list is traversed once. slots: the tuples' slots.

    in      slots integers[n], t64 int64[size, 2], code int64[slots], flags uint8[slots]
    in/out  t32 int32[size, 4], same int32[slots]
    """
    gone = DEAD | BUFFERED
    for i in range(len(slots)):
        if same[slots[i]] == UNLINKED:
            continue
        p = _position(code[slots[i]], t64)
        newest = t32[p, 2 + side] - 1
        before, s = -1, newest
        while s >= 0:
            after = same[s]
            if flags[s] & gone:
                same[s] = UNLINKED
                if before < 0:
                    newest = after
                else:
                    same[before] = after
            else:
                before = s
            s = after
        t32[p, 2 + side] = newest + 1 if newest >= 0 else -1


@njit(cache=True)
def directory_live(t32):
    """Return the number of positions of the directory whose code has a tuple.

    in      t32 int32[size, 4]
    """
    n = 0
    for p in range(len(t32)):
        if t32[p, 2] > 0 or t32[p, 3] > 0:
            n += 1
    return n


@njit(cache=True)
def directory_copy(t64, t32, u64):
    """Copy the positions of the directory whose code has a tuple into a zeroed table. Both tables
    are traversed in order.

    in      t64 int64[size, 2], t32 int32[size, 4]
    out     u64 int64[m, 2]
    """
    for p in range(len(t64)):
        if t32[p, 2] > 0 or t32[p, 3] > 0:
            q = _position(t64[p, 0], u64)
            u64[q, 0] = t64[p, 0]
            u64[q, 1] = t64[p, 1]


@njit(cache=True)
def directory_clear(t64, t32, wanted):
    """Empty the lists of each side and hash bucket b with wanted[side, b], and remove codes without
    tuples. Codes after a removed one in a probe sequence move up. Return the number of positions in
    use.

    The scan starts after a free position and continues from the table's end at its beginning, so
    that it reaches a code after all codes that may precede it in its probe sequence.

    in      wanted uint8[2, BUCKETS]
    in/out  t64 int64[size, 2], t32 int32[size, 4]
    """
    p, size, used = 0, len(t64), 0
    while t64[p, 1] != 0:
        p += 1
    moves = False
    for _ in range(size):
        p = p + 1 if p + 1 < size else 0
        if t64[p, 1] == 0:
            moves = False
            continue
        code = t64[p, 0]
        b = _bucket(code)
        for side in range(2):
            if wanted[side, b]:
                t32[p, 2 + side] = -1
        if t32[p, 2] <= 0 and t32[p, 3] <= 0:
            t64[p, 1] = 0
            moves = True
            continue
        used += 1
        if moves:
            lists = t64[p, 1]
            t64[p, 1] = 0
            q = _position(code, t64)
            t64[q, 0], t64[q, 1] = code, lists
    return used


@njit(cache=True)
def directory_move(t32, side, moved):
    """Replace the slots of a side by their new numbers, moved[slot].

    in      moved int32[slots]
    in/out  t32 int32[size, 4]
    """
    for p in range(len(t32)):
        if t32[p, 2 + side] > 0:
            t32[p, 2 + side] = moved[t32[p, 2 + side] - 1] + 1


@njit(cache=True)
def compact(end, flags, same, moved, kept):
    """Give the live slots new consecutive numbers, without changing their order. Return the number
    of live slots.

    in      flags uint8[slots]
    in/out  same int32[slots], renumbered accordingly
    out     moved int32[slots], the new number of each live slot; kept int32[slots], the old number
            of each new one, ascending
    """
    n = 0
    for s in range(end):
        if not flags[s] & DEAD:
            moved[s] = n
            kept[n] = s
            n += 1
    for k in range(n):
        s = kept[k]
        same[k] = moved[same[s]] if same[s] >= 0 else same[s]
    return n


@njit(cache=True)
def match(flags, slots):
    """Mark tuples as having had a partner.

    in      slots integers[n]
    in/out  flags uint8[slots]
    """
    for i in range(len(slots)):
        if not flags[slots[i]] & MATCHED:
            flags[slots[i]] |= MATCHED | CHANGED


@njit(cache=True)
def hold(code, ats, flags, dts, i, number, h64, h32, n):
    """Add a block's live rows, from row i on, to the n tuples that a disk join holds, as far as
    they fit. Return (tuples, row) for the next call. number: the number of row 0; dts: departure
    time of the block.

    in      code int64[m], ats int64[m], flags uint8[m]
    out     h64 int64[rows, 4], h32 int32[rows, 8], a view of h64; both from n on
    """
    while i < len(code) and n < len(h64):
        if not flags[i] & DEAD:
            h64[n, 0], h64[n, 1], h64[n, 2] = code[i], ats[i], dts
            h32[n, 6] = number + i
            n += 1
        i += 1
    return n, i


@njit(cache=True)
def chain(h64, h32, heads):
    """Build the hash table of the tuples that a disk join holds.

    in      h64 int64[rows, 4]
    out     h32 int32[rows, 8], the chains; heads int32[m]
    """
    heads[:] = -1
    for i in range(len(h64)):
        b = place(h64[i, 0], len(heads))
        h32[i, 7] = heads[b]
        heads[b] = i


@njit(inline="always")
def _probed(history, dts, other_ats, other_dts):
    """Return whether a probe of a disk portion met the other tuple in memory. Probe k covers tuples
    that left memory until history[k, 0], and took place at history[k, 1].

    in      history int64[k, 2]
    """
    for k in range(len(history)):
        if dts <= history[k, 0] and other_ats < history[k, 1] and history[k, 1] < other_dts:
            return True
    return False


@njit(cache=True)
def leftover_pairs(
    heads,
    h64,
    h32,
    x_history,
    code,
    ats,
    flags,
    dts,
    y_history,
    done,
    number,
    i,
    x,
    k,
    out_x,
    out_y,
):
    """Find pairs of held tuples and live rows of a block that have not been joined yet. Begin with
    row i, or within its chain at x. Write pairs from number k on until the output is full. Return
    (row, x, pairs) for the next call; row is len(code) at the end.

    dts: departure time of the block, NEVER if it is in memory; x_history, y_history: the probes of
    the two disk portions; done: the time before which all arrived tuples have been joined with each
    other; number: the number of row 0.

    A pair was already joined in three cases: both tuples were in memory at the same time (the
    memory join), both arrived before `done` (a disk join of the whole bucket), or a probe of one
    tuple's disk portion met the other tuple in memory.

    in      heads int32[m], h64 int64[rows, 4], h32 int32[rows, 8], x_history int64[k, 2],
            code int64[n], ats int64[n], flags uint8[n], y_history int64[k, 2]
    out     out_x int64[p], the held tuples; out_y int64[p], the numbers of the rows
    """
    first = np.empty(GROUP, np.int64)
    while i < len(code):
        last = min(i + GROUP, len(code))
        for g in range(last - i):
            first[g] = place(code[i + g], len(heads))
            prefetch(heads, first[g])
        for g in range(last - i):
            first[g] = -1 if flags[i + g] & DEAD else heads[first[g]]
            if first[g] >= 0:
                prefetch(h64, first[g])
        if x >= 0:
            first[0] = x
        for y in range(i, last):
            x = first[y - i]
            while x >= 0:
                if h64[x, 0] == code[y]:
                    if k == len(out_x):
                        return y, x, k
                    a, b, x_dts = h64[x, 1], ats[y], h64[x, 2]
                    if not (
                        (a < dts and b < x_dts)
                        or (a < done and b < done)
                        or _probed(x_history, x_dts, b, dts)
                        or _probed(y_history, dts, a, x_dts)
                    ):
                        out_x[k], out_y[k] = x, number + y
                        k += 1
                x = h32[x, 7]
        i, x = last, -1
    return i, -1, k


@njit(cache=True)
def find_intervals(codes, low, high, pid, out):
    """Find the interval low[k]..high[k] that contains each code. The intervals are closed, disjoint
    and ascending.

    in      codes int64[n], low int64[m], high int64[m], pid int32[m]
    out     out int32[n], pid[k]; unchanged if there is no interval
    """
    at = np.empty(LANES, np.int64)
    for first in range(0, len(codes), LANES):
        lanes, n = min(LANES, len(codes) - first), len(low)
        at[:lanes] = 0
        while n > 1:  # without a branch to mispredict
            half = n // 2
            for g in range(lanes):
                k = at[g] + half
                at[g] = k if low[k] <= codes[first + g] else at[g]
            n -= half
        for g in range(lanes):
            k, c = at[g], codes[first + g]
            if n and low[k] <= c <= high[k]:
                out[first + g] = pid[k]


@njit(cache=True)
def put(codes, values, table):
    """Insert codes and their values into a table that has free positions. No code occurs twice.

    in      codes int64[n], values integers[n]
    in/out  table int64[size, 2]: code, and value + 1 or 0 where it is empty
    """
    for i in range(len(codes)):
        p = _position(codes[i], table)
        table[p, 0], table[p, 1] = codes[i], values[i] + 1


@njit(cache=True)
def get(codes, table, out):
    """Look up the values of codes in a table.

    in      codes int64[n], table int64[size, 2]
    out     out int32[n]; unchanged if the table lacks the code
    """
    for i in range(len(codes)):
        value = table[_position(codes[i], table), 1]
        if value != 0:
            out[i] = value - 1


@njit(cache=True)
def take_out(codes, table):
    """Remove codes from a table. Codes after a removed one in a probe sequence move up.

    in      codes int64[n]
    in/out  table int64[size, 2]
    """
    size = len(table)
    for i in range(len(codes)):
        hole = _position(codes[i], table)
        if table[hole, 1] == 0:
            continue
        p = hole
        while True:
            p = p + 1 if p + 1 < size else 0
            if table[p, 1] == 0:
                break
            if (p - place(table[p, 0], size)) % size >= (p - hole) % size:
                table[hole, 0], table[hole, 1] = table[p, 0], table[p, 1]
                hole = p
        table[hole, 1] = 0


@njit(cache=True)
def subtract(low, high, other_low, other_high, open_ends, out_low, out_high):
    """Cut the other intervals out of low..high. open_ends: whether an interval with an open end
    stays whole. Return the number of remaining intervals. All intervals are closed; the intervals
    of each set are disjoint and ascending.

    in      low int64[n], high int64[n], other_low int64[m], other_high int64[m]
    out     out_low int64[n + m], out_high int64[n + m]
    """
    n, j = 0, 0
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for i in range(len(low)):
        a, b = low[i], high[i]
        while j < len(other_low) and other_high[j] < a:
            j += 1
        whole, k = open_ends and (a == least or b == most), j
        while not whole and k < len(other_low) and other_low[k] <= b:
            if other_low[k] > a:
                out_low[n], out_high[n] = a, other_low[k] - 1
                n += 1
            if other_high[k] >= b:
                whole, a, b = True, 1, 0  # nothing is left
                break
            a = other_high[k] + 1
            k += 1
        if a <= b:
            out_low[n], out_high[n] = a, b
            n += 1
    return n
