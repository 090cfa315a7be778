"""Numba kernels of H_S by partition (`ByPartition`).

Tuples lie in blocks of ``width`` slots, tuple i of block b in slot b * width + i. A partition's
blocks are linked, beginning with the block that is being filled. Free blocks below the high-water
mark are linked by NEXT.

Arrays: key int64[slots], key codes; block int32[blocks, 4]; head int32[partitions], the first block
of each partition, or -1; waiting int32[partitions], the number of waiting tuples; q int64[5], whose
elements are the constants FREE to LIVE.

The tuples' strings lie in pages of 2**shift bytes. The pages of a partition are linked in the order
in which they were filled (`PagedStore`): link int32[pages], the next page of each page, or -1; page
int32[partitions], the first page of each partition, or -1; end int64[partitions], where the
partition's last string ends, in its last page; pages int64[4], with the same elements as the first
four of q.
"""

from __future__ import annotations

from semistream.compiled import njit
from semistream.joins.intrinsics import move
from semistream.joins.key_table import bucket

NEXT, PREV, OWNER, COUNT = range(4)  # columns of block; OWNER is a partition, or -1
# of q, int64[5]: first free block, high-water mark, blocks used, most blocks; tuples
FREE, HIGH, USED, MOST, LIVE = range(5)


@njit(inline="always")
def taken(number, next_free):
    """Return a free block or page, and count it as used.

    in      next_free int32[n], which links the free ones
    in/out  number int64[4]
    """
    n = number[FREE]
    if n >= 0:
        number[FREE] = next_free[n]
    else:
        n = number[HIGH]
        number[HIGH] += 1
    number[USED] += 1
    return n


@njit(cache=True)
def append(
    codes,
    rows,
    partition,
    sizes,
    width,
    shift,
    head,
    waiting,
    key,
    block,
    q,
    page,
    end,
    link,
    pages,
    slots,
    at,
):
    """Put the tuples codes[rows] into blocks: the i-th tuple into a block of partition[i], in
    slots[i]. Add pages to the partition for the tuple's strings of sizes[i] bytes; the first string
    goes to at[i]. Return how many tuples fitted.

    in      codes int64[m], rows int64[n], partition int32[n], sizes int64[n]
    in/out  head int32[partitions], waiting int32[partitions], block int32[blocks, 4], q int64[5],
            page int32[partitions], end int64[partitions], link int32[pages], pages int64[4]
    out     key int64[slots], slots int64[n], at int64[n]
    """
    for i in range(len(rows)):
        p, b = partition[i], head[partition[i]]
        full, room = b < 0 or block[b, COUNT] == width, -end[p] & ((1 << shift) - 1)
        missing = (max(sizes[i] - room, 0) + (1 << shift) - 1) >> shift
        if (full and q[USED] >= q[MOST]) or pages[USED] + missing > pages[MOST]:
            q[LIVE] += i
            return i
        if full:
            n = taken(q, block[:, NEXT])
            block[n, NEXT], block[n, PREV], block[n, OWNER], block[n, COUNT] = b, -1, p, 0
            if b >= 0:
                block[b, PREV] = n
            head[p] = n
            b = n
        s = b * width + block[b, COUNT]
        block[b, COUNT] += 1
        waiting[p] += 1
        key[s], slots[i], at[i] = codes[rows[i]], s, end[p]
        left, last = sizes[i], (end[p] - 1) >> shift
        for _ in range(missing):
            n = taken(pages, link)
            link[n] = -1
            if page[p] < 0:
                page[p] = n
            else:
                link[last] = n
            if room == 0:
                at[i] = n << shift
            left -= room
            last, room, end[p] = n, 1 << shift, n << shift
        end[p] += left
    q[LIVE] += len(rows)
    return len(rows)


@njit(cache=True)
def note(spans, now, reach, arrived, first):
    """Record the arrival of newly appended tuples at `now`, in seconds, and the last partition to
    which their keys extend.

    in      spans int32[n, 2]
    in/out  reach int32[partitions], arrived float64[partitions], first float64[partitions]
    """
    for i in range(len(spans)):
        p = spans[i, 0]
        reach[p] = max(reach[p], spans[i, 1])
        if arrived[p] == 0.0:
            first[p] = now
        arrived[p] += now


@njit(cache=True)
def slots_of(first, number, width, head, block, slots):
    """Write the slots of the newest number[i] tuples of each partition first + i.

    in      number int32[n], head int32[partitions], block int32[blocks, 4]
    out     slots int64[sum of number]
    """
    k = 0
    for i in range(len(number)):
        left, b = number[i], head[first + i]
        while left > 0:
            n = min(block[b, COUNT], left)
            for j in range(block[b, COUNT] - n, block[b, COUNT]):
                slots[k] = b * width + j
                k += 1
            left -= n
            b = block[b, NEXT]


@njit(cache=True)
def slots_from(b, at, width, block, slots):
    """Write the slots of a partition's tuples, from tuple `at` of block b on. Return (block,
    position) after the last tuple.

    in      block int32[blocks, 4]
    out     slots int64[n]
    """
    for k in range(len(slots)):
        while at == block[b, COUNT]:
            b, at = block[b, NEXT], 0
        slots[k] = b * width + at
        at += 1
    return b, at


@njit(cache=True)
def release(p, shift, head, waiting, block, q, page, end, link, pages):
    """Free the blocks and the pages of partition p. The pages stay linked, so that strings in them
    can be read until the pages are used again.

    in/out  head int32[partitions], waiting int32[partitions], block int32[blocks, 4], q int64[5],
            page int32[partitions], end int64[partitions], link int32[pages], pages int64[4]
    """
    b = head[p]
    while b >= 0:
        after = block[b, NEXT]
        block[b, NEXT], block[b, OWNER], block[b, COUNT] = q[FREE], -1, 0
        q[FREE] = b
        q[USED] -= 1
        b = after
    q[LIVE] -= waiting[p]
    n = page[p]
    if n >= 0:
        while n >= 0:
            pages[USED] -= 1
            n = link[n]
        link[(end[p] - 1) >> shift] = pages[FREE]
        pages[FREE] = page[p]
    head[p], waiting[p], page[p], end[p] = -1, 0, -1, 0


@njit(cache=True)
def shrink(most, head, block, q, source, target):
    """Move blocks so that all block numbers are below `most` >= q[USED]. Return how many blocks
    were moved.

    in/out  head int32[partitions], block int32[blocks, 4], q int64[5]
    out     source int32[k], target int32[k], the old and new number of each moved block
    """
    moved, high = 0, q[HIGH]
    q[FREE], q[HIGH] = -1, min(high, most)
    for b in range(q[HIGH] - 1, -1, -1):
        if block[b, OWNER] < 0:
            block[b, NEXT] = q[FREE]
            q[FREE] = b
    for b in range(q[HIGH], high):
        if block[b, OWNER] < 0:
            continue
        n = q[FREE]
        q[FREE] = block[n, NEXT]
        for c in range(4):
            block[n, c] = block[b, c]
        if block[n, PREV] >= 0:
            block[block[n, PREV], NEXT] = n
        else:
            head[block[n, OWNER]] = n
        if block[n, NEXT] >= 0:
            block[block[n, NEXT], PREV] = n
        source[moved], target[moved] = b, n
        moved += 1
    return moved


@njit(cache=True)
def shrink_pages(most, shift, page, end, link, pages, heap, moved, touched):
    """Move pages so that all page numbers are below `most` >= pages[USED].

    in/out  page int32[partitions], end int64[partitions], link int32[pages], pages int64[4], heap
            uint8[pages << shift]
    out     moved int32[pages[HIGH]], the new number of each page in use; touched bool[partitions],
            whose pages have moved
    """
    moved[:] = -1
    for p in range(len(page)):
        n = page[p]
        while n >= 0:
            moved[n] = n
            n = link[n]
    pages[HIGH], pages[FREE] = min(pages[HIGH], most), -1
    for n in range(pages[HIGH] - 1, -1, -1):
        if moved[n] < 0:
            link[n] = pages[FREE]
            pages[FREE] = n
    for old in range(pages[HIGH], len(moved)):
        if moved[old] < 0:
            continue
        n = pages[FREE]
        pages[FREE] = link[n]
        move(heap, n << shift, heap, old << shift, 1 << shift)
        link[n], moved[old] = link[old], n
    for p in range(len(page)):
        n, touched[p] = page[p], False
        if n < 0:
            continue
        last = (end[p] - 1) >> shift
        if moved[n] != n:
            touched[p], page[p] = True, moved[n]
        if moved[last] != last:
            end[p] += (moved[last] - last) << shift
        n = page[p]
        while link[n] >= 0:
            if moved[link[n]] != link[n]:
                touched[p], link[n] = True, moved[link[n]]
            n = link[n]


@njit(cache=True)
def next_waiting(waiting, first):
    """Return the first partition, from `first` on, for which tuples wait; -1 if there is none.

    in      waiting int32[partitions]
    """
    for p in range(first, len(waiting)):
        if waiting[p] > 0:
            return p
    return -1


@njit(cache=True)
def group(keys, table, same, number):
    """Group a visit's tuples by key. The first tuple of a key is its leader. number: for a leader
    the number of the key's tuples, otherwise 0; same: links from a leader to the other tuples of
    its key; table: the leaders, by open addressing.

    in      keys int64[n]
    out     table int32[m], m > n, same int32[n], number int32[n]
    """
    table[:] = -1
    for i in range(len(keys)):
        t = bucket(keys[i], len(table))
        while table[t] >= 0 and keys[table[t]] != keys[i]:
            t = t + 1 if t + 1 < len(table) else 0
        leader = table[t]
        if leader < 0:
            table[t], same[i], number[i] = i, -1, 1
        else:
            same[i], same[leader], number[i] = same[leader], i, 0
            number[leader] += 1


@njit(cache=True)
def find(codes, keys, table, number, met, found, counts):
    """Find the leader of each code, -1 if there is none, and the number of tuples of the code's
    key. Mark the found leaders in met. Return the sum of counts.

    in      codes int64[k], keys int64[n], table int32[m], number int32[n]
    in/out  met bool[n]
    out     found int32[k], counts int32[k]
    """
    total = 0
    for i in range(len(codes)):
        t = bucket(codes[i], len(table))
        while table[t] >= 0 and keys[table[t]] != codes[i]:
            t = t + 1 if t + 1 < len(table) else 0
        leader = table[t]
        found[i] = leader
        counts[i] = 0
        if leader >= 0:
            counts[i] = number[leader]
            met[leader] = True
            total += number[leader]
    return total
