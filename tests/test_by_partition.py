"""Waiting tuples grouped by partition, whose strings lie in pages."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from semistream.joins.paged_store import PagedStore
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_table import by_partition
from semistream.joins.stream_table.by_partition import ByPartition
from semistream.joins.stream_table.by_partition_kernels import HIGH, USED, append

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.string()), ("n", pa.int32()), ("b", pa.binary())])
PARTITIONS = 20


def arrivals(rng, rows, longest):
    """In a stream buffer, each for one partition."""

    def values(make):
        return [
            None if rng.random() < 0.1 else make(chr(97 + i % 26) * size)
            for i, size in enumerate(rng.integers(0, longest + 1, rows))
        ]

    batch = pa.record_batch(
        [
            rng.integers(0, 10**9, rows),
            values(str),
            np.arange(rows, dtype="i4"),
            values(str.encode),
        ],
        schema=SCHEMA,
    )
    buffer = StreamBuffer(StreamLayout(SCHEMA, 0), batch, batch["k"].to_numpy())
    first = rng.integers(0, PARTITIONS, rows).astype(np.int32)
    buffer.spans = np.stack([first, first + 1], axis=1)
    return buffer


def rows_of(columns):
    return sorted(map(repr, pa.table(columns, schema=SCHEMA).to_pylist()))


def slots_of(h_s, partition):
    return np.concatenate([np.zeros(0, np.int64), *(v.slots for v in h_s.visits(partition))])


def all_are_there(h_s, waiting):
    for p in range(PARTITIONS):
        assert rows_of(h_s.get(slots_of(h_s, p))) == sorted(waiting[p])


@pytest.mark.parametrize("longest, shift", [(0, 6), (3, 6), (40, 6), (40, 9), (700, 6), (700, 9)])
def test_tuples_stay_what_they_are_while_others_come_leave_and_move(monkeypatch, longest, shift):
    monkeypatch.setattr(by_partition, "VISITED", 7)
    rng = np.random.default_rng(longest + shift)
    h_s, waiting = ByPartition(StreamLayout(SCHEMA, 0), PARTITIONS), defaultdict(list)
    size = 40_000 + 400 * longest
    h_s.open(longest + 1.0, size, 4, shift)
    h_s.resize(size)
    full = shrunk = 0
    for step in range(300):
        buffer = arrivals(rng, int(rng.integers(1, 60)), longest)
        of, rows = buffer.spans[:, 0], pa.Table.from_batches([buffer.held])
        n = h_s.admit(buffer)
        full += n < len(of)
        rows = rows.add_column(0, "k", pa.array(buffer.codes)).to_pylist()[:n]
        for p, row in zip(of, rows, strict=False):
            waiting[int(p)].append(repr(row))
        if full or rng.random() < 0.4:
            p = int(rng.integers(0, PARTITIONS))
            slots = slots_of(h_s, p)
            h_s.remove(p)
            # what has left can be fetched until others come
            assert rows_of(h_s.get(slots)) == sorted(waiting.pop(p, []))
        if step % 10 == 0:
            asked = size if step % 20 else size * 2 // 3
            shrunk += h_s.resize(asked) <= asked < size
            h_s.store.heap[h_s.page_count << shift :] = 255  # nobody's
            all_are_there(h_s, waiting)
        assert h_s.live == sum(map(len, waiting.values())) and h_s.pages[HIGH] <= h_s.page_count
    assert full and shrunk
    all_are_there(h_s, waiting)
    for p in range(PARTITIONS):
        h_s.remove(p)
    assert h_s.pages[USED] == h_s.live == 0


def test_a_partition_s_strings_take_its_pages_alone():
    rng = np.random.default_rng(0)
    h_s = ByPartition(StreamLayout(SCHEMA, 0), PARTITIONS)
    h_s.open(40.0, 100_000, 4, 6)
    h_s.resize(100_000)
    buffer = arrivals(rng, 300, 40)
    taken = np.bincount(buffer.spans[:, 0], buffer.sizes, PARTITIONS)
    assert h_s.admit(buffer) == 300
    assert h_s.pages[USED] == sum(np.ceil(taken / 64))
    h_s.remove(7)
    assert h_s.pages[USED] == sum(np.ceil(np.delete(taken, 7) / 64))


def test_pages_are_as_large_as_leaves_each_partition_some():
    for most, bytes_ in ((20_000, 64), (200_000, 512), (10**7, 4096)):
        h_s = ByPartition(StreamLayout(SCHEMA, 0), PARTITIONS)
        h_s.open(40.0, most)
        assert 1 << h_s.store.shift == bytes_
        assert h_s.resize(most) <= most
        assert h_s.page_count >= 8 * PARTITIONS or bytes_ == 64


def test_longer_strings_than_expected_get_the_bytes_of_tuples():
    rng = np.random.default_rng(1)
    h_s = ByPartition(StreamLayout(SCHEMA, 0), PARTITIONS)
    h_s.open(4.0, 1_000_000)
    h_s.resize(1_000_000)
    before, came = h_s.blocks, 0
    while n := h_s.admit(arrivals(rng, 50, 400)):
        came += n
    assert h_s.blocks < before and 300 < h_s.strings < 500 and h_s.size <= 1_000_000
    assert came * 360 > 700_000


def test_a_page_and_its_link_are_what_is_counted():
    store = PagedStore(SCHEMA, 10, 10_000, 6)
    assert store.page_bytes == 68 and len(store.link) == 147 and len(store.heap) == 147 * 64


def test_one_tuple_enters_by_the_kernel_of_many(monkeypatch):
    """Otherwise the machine code for a single one would be compiled when it comes."""
    monkeypatch.setattr(append, "_entries", {})
    rng = np.random.default_rng(2)
    h_s = ByPartition(StreamLayout(SCHEMA, 0), PARTITIONS)
    h_s.open(40.0, 100_000, 4, 6)
    h_s.resize(100_000)
    assert h_s.admit(arrivals(rng, 30, 40)) == 30 and h_s.admit(arrivals(rng, 1, 40)) == 1
    assert len(set(map(id, append._entries.values()))) == 1
