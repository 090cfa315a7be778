"""The index-based joins step by step, on examples worked by hand, and what a real index asks of
them beyond ``test_joins``.

R has the keys 10, 20 … 80 in partitions p0 = 10 20, p1 = 30 40, p2 = 50 60, p3 = 70 80. It is a
snapshot, whose index knows the first and the last key of each partition: 35 may be in p1, 45 is
nowhere. Tuples are written id:key.
"""

import numpy as np
import pyarrow as pa
import pytest

import oracle
from semistream.errors import StateError
from semistream.joins import REGISTRY, JoinState, cost_balance
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.stream_table import by_key_kernels
from semistream.joins.stream_table.by_key import ByKey
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import open_join

INDEXED = sorted(a.name for a in REGISTRY.values() if a.needs_index)
STREAM = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("rest", pa.binary(200))])
SLOT = ByKey.bytes_per_tuple(pa.schema([STREAM.field("id"), STREAM.field("rest")]), 0)


def snapshot(path, table, partition_tuples=2, page_tuples=2, bucket_count=1):
    publish_snapshot(
        table.to_batches(),
        table.schema,
        path / "r",
        "r",
        ["k"],
        bucket_count=bucket_count,
        page_tuples=page_tuples,
    )
    return open_snapshot(path / "r", partition_tuples=partition_tuples)


@pytest.fixture
def master(tmp_path):
    keys = list(range(10, 90, 10))
    return snapshot(
        tmp_path, pa.table({"k": pa.array(keys, pa.int64()), "v": [f"v{k}" for k in keys]})
    )


def open_with(algorithm, master, h_s, **parameters):
    """The join with an H_S of exactly so many tuples."""

    def make(memory):
        return open_join(
            algorithm,
            memory=memory,
            stream=STREAM,
            master=master,
            on=[("k", "k")],
            parameters={"disk_tuples": 2} | parameters,
        )

    used = make(1_000_000).arena.components
    return make(int(sum(used[c] for c in used if c != "block cache") + h_s * SLOT))


def chunk(first, *keys):
    return pa.RecordBatch.from_pylist(
        [{"id": first + i, "k": k, "rest": b"." * 200} for i, k in enumerate(keys)], STREAM
    )


def run(join, *chunks):
    """(ids of each joined batch, ids of each unmatched batch)."""
    out = [o for c in chunks for o in join.process(c)] + list(join.drain())
    assert all(r["v"] == f"v{r['k']}" for o in out for r in o.joined.to_pylist())
    return tuple(
        [sorted(b["id"].to_pylist()) for b in batches if b.num_rows]
        for batches in zip(*out, strict=True)
    )


def trace(join, *columns):
    return [tuple(getattr(i, c) for c in columns) for i in join.stats.iterations]


def test_hybridjoin(master):
    # h_S = 4. 7:45 is nowhere: unmatched at once.
    #                           H_S and Q, oldest first  read  leave (* unmatched)
    # 1                         0:30 1:10 2:40 3:55      p1    0 2
    # 2 refill 4:30 5:60        1:10 3:55 4:30 5:60      p0    1
    # 3 refill 6:57             3:55 4:30 5:60 6:57      p2    5 3* 6* (belongs there too)
    # 4 refill 8:20 9:80 10:10  4:30 8:20 9:80 10:10     p1    4
    #   refill 11:55; the stream ends, drain
    # 5                         8:20 9:80 10:10 11:55    p0    8 10
    # 6                         9:80 11:55               p3    9
    # 7                         11:55                    p2    11*
    join = open_with("hybridjoin", master, 4)
    joined, unmatched = run(join, chunk(0, 30, 10, 40, 55, 30, 60, 57, 45, 20, 80, 10, 55))
    assert joined == [[0, 2], [1], [5], [4], [8, 10], [9]]
    assert unmatched == [[7], [3, 6], [11]]
    assert trace(join, "w_s", "disk_tuples", "waiting", "r_cycles") == [
        (2, 2, 2, 0),
        (1, 2, 3, 0),
        (3, 2, 1, 0),
        (1, 2, 3, 1),
        (2, 2, 2, 1),
        (1, 2, 1, 1),
        (1, 2, 0, 1),
    ]


def test_elevatorjoin(master):
    # h_S = 4, h_R = 4. There is memory to spare, so that every value met is worth caching. 7:45 is
    # nowhere: unmatched at once. So few wait that no value is kept back until the end of the sweep;
    # but the first chunk was looked up before the first stop.
    # What leaves is unmatched where it has a *; what H_R gets is absent from R where it has a -.
    #                            H_S by partition                  stop  leave    to H_R
    # 1                          p0 1:10  p1 0:30 2:40  p2 3:55    p0    1        10
    # 2 refill 4:30              p1 0:30 2:40 4:30  p2 3:55        p1    0 2 4    30 40
    # 3 refill 5:60 6:57 8:20    p0 8:20  p2 3:55 5:60 6:57        p2    3* 5 6*  60 -55 -57
    #   refill 9:80 10:10 11:55  p0 8:20 10:10  p2 11:55  p3 9:80
    # 4 12:70 comes                                                p3    9        no place for 80
    #   end of the sweep; refill 12:70; 13:30 and 14*:57, which is nowhere, through H_R; drain
    # 5                          p0 8:20 10:10  p2 11:55  p3 12:70 p0    8 10
    # 6                                                            p2    11*
    # 7                                                            p3    12
    join = open_join(
        "elevatorjoin",
        memory=1_000_000,
        stream=STREAM,
        master=master,
        on=[("k", "k")],
        parameters={"disk_tuples": 2, "waiting_tuples": 4, "cache_tuples": 4},
    )
    joined, unmatched = run(
        join,
        chunk(0, 30, 10, 40, 55, 30, 60, 57, 45, 20, 80, 10, 55),
        chunk(12, 70),
        chunk(13, 30, 57),
    )
    assert joined == [[1], [0, 2, 4], [5], [9], [13], [8, 10], [12]]
    assert unmatched == [[7], [3, 6], [14], [11]]
    assert trace(join, "w_n", "w_s", "disk_tuples", "waiting", "cached", "r_cycles") == [
        (0, 1, 2, 3, 1, 0),
        (0, 3, 2, 1, 3, 0),
        (0, 3, 2, 1, 4, 0),
        (0, 1, 2, 3, 4, 0),
        (2, 2, 2, 2, 4, 1),
        (0, 1, 2, 1, 4, 1),
        (0, 1, 2, 0, 4, 1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("skew", "cached"), [(0, range(60)), (1, range(100, 400))])
def test_elevatorjoin_caches_what_is_worth_its_bytes(skew, cached, tmp_path):
    """A uniform stream fills H_S and caches hardly anything; when the hot values change, H_R
    follows within two sweeps."""
    table = pa.table(
        {"k": pa.array(range(20_000), pa.int64()), "v": [f"v{k}" for k in range(20_000)]}
    )
    master, rng = snapshot(tmp_path, table, page_tuples=64), np.random.default_rng(3)
    join = open_join(
        "elevatorjoin",
        memory=150_000,
        stream=STREAM,
        master=master,
        on=[("k", "k")],
        parameters={"disk_tuples": 256, "disk_share": 1.0},
    )
    weights = (np.arange(20_000) + 1.0) ** -skew
    for drift in (0, 7_000):
        for _ in range(60):
            hits = join.stats.cache_hits
            keys = (rng.choice(20_000, 500, p=weights / weights.sum()) + drift) % 20_000
            assert all(
                r["v"] == f"v{r['k']}"
                for o in join.process(chunk(0, *keys))
                for r in o.joined.to_pylist()
            )
        assert join.cached in cached and join.stats.rejected == {}
        assert (join.stats.cache_hits - hits > 200) == (skew == 1)


def test_elevatorjoin_indexes_no_more_of_h_r_than_misses_pay_for(tmp_path, monkeypatch):
    """Few tuples wait beside many join values in H_R: what each stop finds is kept back until a
    share of H_R has missed."""
    table = pa.table(
        {"k": pa.array(range(20_000), pa.int64()), "v": pa.array(range(20_000), pa.int64())}
    )
    join = open_join(
        "elevatorjoin",
        memory=4_000_000,
        stream=STREAM,
        master=snapshot(tmp_path, table, page_tuples=64),
        on=[("k", "k")],
        parameters={"disk_tuples": 256, "waiting_tuples": 200, "cache_tuples": 8_000},
    )
    indexed, index = [], join.h_r.index

    def count(known=0):
        index(known)
        indexed.append(join.h_r.entries)

    monkeypatch.setattr(join.h_r, "index", count)
    keys = np.random.default_rng(3).zipf(1.2, 60_000) % 20_000
    for first in range(0, len(keys), 1_000):
        list(join.process(chunk(first, *keys[first : first + 1_000])))
    misses = join.stats.rows_read - join.stats.cache_hits
    assert join.cached > 2_000 and 0 < sum(indexed) < cost_balance.INDEXED * misses


@pytest.mark.parametrize("note", [False, True])
@pytest.mark.parametrize("most", [3, 100])
@pytest.mark.parametrize("algorithm", ["elevatorjoin", "partition-join"])
def test_the_state_is_kept_by_its_changes(algorithm, note, most, tmp_path, monkeypatch):
    """From any snapshot, a whole one and the changes since, the same goes on; together they are
    little more than what came. Most strings are longer than the first ones, so that H_S's heap is
    full."""
    monkeypatch.setattr("semistream.joins.stream_table.snapshots.MOST_CHANGES", most)
    table = pa.table(
        {
            "k": pa.array(range(0, 50_000, 2), pa.int64()),
            "v": pa.array(range(0, 50_000, 2), pa.int64()),
        }
    )
    master, rng = snapshot(tmp_path, table, page_tuples=64), np.random.default_rng(3)
    keys = rng.permutation(np.r_[rng.zipf(1.2, 15_000), rng.integers(0, 50_000, 30_000)]) % 50_000
    stream = pa.table({"id": range(len(keys)), "k": keys})
    if note:
        stream = stream.append_column(
            "note", pa.array(["n" * (20 if i < 500 else 23) for i in range(len(keys))])
        )
    sizes = {"disk_tuples": 512} | ({"disk_share": 1.0} if algorithm == "elevatorjoin" else {})
    make = lambda: open_join(
        algorithm,
        memory=300_000,
        stream=stream.schema,
        master=master,
        on=[("k", "k")],
        parameters=sizes,
    )
    join, outputs, kept, files, cached = make(), [], 0, [], []
    for i, batch in enumerate(stream.to_batches(max_chunksize=500)):
        outputs += join.process(batch)
        state = join.snapshot(changes=i > 0)
        kept += state.tables["waiting"].num_rows
        state.write(tmp_path / f"s{i}", files[-1] if files else "")
        files = JoinState.files(tmp_path / f"s{i}")
        assert state.whole == (len(files) == 1) and len(files) <= 1 + most
        if i % 7 == 0:
            waiting, join, states = join.stats.waiting, make(), JoinState.read(tmp_path / files[-1])
            assert not any(
                b.address % 8
                for s in states
                for b in s.tables["waiting"]["s0"].chunk(0).buffers()
                if b
            )
            join.restore(*states)
            assert join.stats.waiting == waiting
            cached.append(join.cached)
    (tmp_path / files[0]).unlink()
    with pytest.raises(StateError, match=f"{files[0]} cannot be read"):
        JoinState.read(tmp_path / files[-1])
    outputs += join.drain()
    joined, unmatched = oracle.join(stream.to_pylist(), table.to_pylist(), [("k", "k")], ["v"])
    assert oracle.rows(o.joined for o in outputs) == joined
    assert oracle.rows(o.unmatched for o in outputs) == unmatched
    assert join.stats.memory_peak <= 300_000
    assert max(cached) > 20 and (most == 3 or kept < 2 * len(keys))


@pytest.mark.parametrize("memory", [400_000, 4_000_000])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 0.9])
def test_elevatorjoin_tells_the_unmatched_of_a_stop_at_which_h_s_shrinks(memory, share, tmp_path):
    table = pa.table(
        {
            "k": pa.array(range(0, 20_000, 2), pa.int64()),
            "v": pa.array(range(0, 20_000, 2), pa.int64()),
        }
    )
    master = snapshot(tmp_path, table, page_tuples=64)
    keys = np.random.default_rng(3).zipf(1.3, 20_000) * 7 % 20_000
    join = open_join(
        "elevatorjoin",
        memory=memory,
        stream=STREAM,
        master=master,
        on=[("k", "k")],
        parameters={"disk_tuples": 512, "disk_share": 1.0},
    )
    outputs = []
    for first in range(0, 20_000, 5_000):
        outputs += join.process(chunk(first, *keys[first : first + 5_000]))
        join.parameters = join.parameters.model_copy(
            update={"waiting_tuples": int(share * join.stats.waiting)}
        )
    outputs += join.drain()
    joined, unmatched = (
        sorted(i for b in batches for i in b["id"].to_pylist())
        for batches in zip(*outputs, strict=True)
    )
    assert joined == np.flatnonzero(keys % 2 == 0).tolist()
    assert unmatched == np.flatnonzero(keys % 2).tolist()


def test_x_hybridjoin(master):
    # h_S = 6, d_N = d_S = 2. When H_S is full: 30 three times, 10 twice, 70 once; the non-swappable
    # part will be 30 10.
    #                                     H_S and Q, oldest first         non-swappable  read  leave
    # 1                                   0:30 1:10 2:30 3:70 4:10 5:30   loading        p0    1 4
    # 2                                   0:30 2:30 3:70 5:30             loading        p1    0 2 5
    # 3 refill 6:30 7:60 8:10 9:20 10:50  3:70 6:30 7:60 8:10 9:20 10:50  6 8            p3    3
    #   refill 11:30; drain
    # 4                                   7:60 9:20 10:50 11:30           11             p2    7 10
    # 5                                   9:20                                           p0    9
    join = open_with("x-hybridjoin", master, 6)
    joined, unmatched = run(join, chunk(0, 30, 10, 30, 70, 10, 30, 30, 60, 10, 20, 50, 30))
    assert joined == [[1, 4], [0, 2, 5], [6, 8], [3], [11], [7, 10], [9]] and not unmatched
    assert trace(join, "w_n", "w_s", "waiting", "cached") == [
        (0, 2, 4, 0),
        (0, 3, 1, 0),
        (2, 1, 3, 2),
        (1, 2, 1, 2),
        (0, 1, 0, 2),
    ]


def test_tuned_x_hybridjoin(master):
    # As above with d_N = 1: the non-swappable part will be 30.
    # 1                                 0:30 1:10 2:30 3:70 4:10 5:30  loading  p1  0 2 5
    # 2 refill 6:30 7:60 8:10           1:10 3:70 4:10 6:30 7:60 8:10  6        p0  1 4 8
    #   refill 9:20 10:50 11:30; drain
    # 3                                 3:70 7:60 9:20 10:50 11:30     11       p3  3
    # 4                                 7:60 9:20 10:50                         p2  7 10
    # 5                                 9:20                                    p0  9
    join = open_with("tuned-x-hybridjoin", master, 6, resident_tuples=1)
    joined, unmatched = run(join, chunk(0, 30, 10, 30, 70, 10, 30, 30, 60, 10, 20, 50, 30))
    assert joined == [[0, 2, 5], [6], [1, 4, 8], [11], [3], [7, 10], [9]] and not unmatched
    assert trace(join, "w_n", "w_s", "waiting", "cached") == [
        (0, 3, 3, 0),
        (1, 3, 2, 1),
        (1, 1, 3, 1),
        (0, 2, 1, 1),
        (0, 1, 0, 1),
    ]


def test_sscj(master):
    # h_S = 4, h_R = 2, threshold 2. When a chunk has entered, the stream buffer is empty and the
    # disk-probing phase begins.
    #                            H_S and Q, oldest first     read  leave    H_R behind it
    # chunk 0:30 1:10 2:30 3:70 4:20
    # 1                          0:30 1:10 2:30 3:70         p1    0 2      30 (f = 2)
    # 2 refill 4                 1:10 3:70 4:20              p0    1 4      30
    # chunk 5:30 6:60 7:20 8:10 9:30; 5 9 meet H_R
    # 3                          3:70 6:60 7:20 8:10         p3    3        30
    # chunk 10:20 11:30; 11 meets H_R
    # 4                          6:60 7:20 8:10 10:20        p2    6        30
    #   N partitions were read: a period. H_R is not full, the threshold falls to 1.
    # drain
    # 5                          7:20 8:10 10:20             p0    7 8 10   30 20 (10: f = 1)
    join = open_with("sscj", master, 4, cache_tuples=2, threshold=2)
    joined, unmatched = run(
        join, chunk(0, 30, 10, 30, 70, 20), chunk(5, 30, 60, 20, 10, 30), chunk(10, 20, 30)
    )
    assert joined == [[0, 2], [1, 4], [5, 9], [3], [11], [6], [7, 8, 10]] and not unmatched
    assert trace(join, "w_n", "w_s", "waiting", "cached") == [
        (0, 2, 2, 1),
        (0, 2, 1, 1),
        (2, 1, 3, 1),
        (1, 1, 3, 1),
        (0, 3, 0, 2),
    ]
    assert sorted(join.h_r.cache.keys) == [20, 30] and join.h_r.threshold == 1


def test_ssij(master):
    # A stream buffer of 8 tuples, one cached block. waiting: for p0 p1 p2 p3; utility: before.
    #                                   waiting     utility          plan, read      leave
    # 1 chunk 0:30 1:10 2:30 3:40 4:70  3  4  0  1  3   4   1   1    p1 -> cached    0 2 3 6
    #         5:10 6:30 7:20 8:50
    #   8 enters; utilities fade to 2.7 3.6 0.9 0.9
    #   chunk 9:40 10:35 11:20; 9 meets the cache, 10* is of p1 and not in it; 11 enters; drain
    # 2                                 4  0  1  1  3.7 5.6 0.9 0.9  p0, not cached  1 5 7 11
    # 3 p3 for the oldest tuple         0  0  1  1                   p3              4
    # 4 p2 is first among equals        0  0  1  0                   p2              8
    roomy = open_with("ssij", master, 100)
    block = roomy.arena.components["block cache"] / roomy.blocks.capacity
    join = open_with("ssij", master, 8 + block / SLOT, cache_share=0)
    assert not join.blocks.capacity
    join = open_with("ssij", master, 8 + block / SLOT, cache_share=(block + 1) / (block + 8 * SLOT))
    joined, unmatched = run(
        join, chunk(0, 30, 10, 30, 40, 70, 10, 30, 20, 50), chunk(9, 40, 35, 20)
    )
    assert joined == [[0, 2, 3, 6], [9], [1, 5, 7, 11], [4], [8]] and unmatched == [[10]]
    assert trace(join, "w_n", "w_s", "waiting", "cached") == [
        (0, 4, 4, 0),
        (2, 4, 2, 2),
        (0, 1, 1, 2),
        (0, 1, 0, 2),
    ]


class TestPartitionJoin:
    """A waiting area of 5 tuples, and no partition in memory."""

    @pytest.fixture
    def join(self, master):
        open_ = lambda memory: open_join(
            "partition-join",
            memory=memory,
            stream=STREAM,
            master=master,
            on=[("k", "k")],
            parameters={"disk_tuples": 2, "cache_share": 0},
        )
        join = open_(1_000_000)
        return open_(
            sum(join.arena.components.values()) + join.h_s.least_bytes + 4 * join.h_s.block_bytes
        )

    def test_the_fullest_partition_is_read(self, join):
        #                                  waiting     read  leave
        # 1 chunk 0:10 1:30 2:30 3:50 4:30 1  3  1  0  p1    1 2 4
        #   5:70; chunk 6:35 7:70
        # 2                                1  1  1  2  p3    5 7
        #   8:70; drain                    1  1  1  1  all   0, 6 without a match, 3, 8
        joined, unmatched = run(join, chunk(0, 10, 30, 30, 50, 30, 70), chunk(6, 35, 70, 70))
        assert joined[:2] == [[1, 2, 4], [5, 7]] and sorted(joined[2:]) == [[0], [3], [8]]
        assert unmatched == [[6]]
        assert trace(join, "w_s", "waiting") == [(3, 2), (2, 3), (1, 3), (1, 2), (1, 1), (1, 0)]

    def test_with_a_bound_the_oldest_tuples_is(self, join):
        outputs = [*join.process(chunk(0, 10, 30, 30)), *join.keep_up(1e-9, 1e-9)]
        assert [sorted(o.joined["id"].to_pylist()) for o in outputs] == [[0], [1, 2]]
        outputs = [*join.process(chunk(3, 10, 30, 30)), *join.drain()]
        assert [sorted(o.joined["id"].to_pylist()) for o in outputs] == [[4, 5], [3]]

    def test_what_is_asked_for_most_is_in_memory(self, master):
        join = open_with("partition-join", master, 40, cache_share=0.5)
        many = [chunk(100 * i, *[10, 20] * 45, 30, 50, 70) for i in range(8)]
        joined, _ = run(join, *many)
        assert sum(map(len, joined)) == 8 * 93 and join.cached
        assert 0 in np.flatnonzero(join.blocks.cached)
        assert join.stats.cache_hits > 3 * 90


# What a real index asks


@pytest.mark.parametrize("algorithm", INDEXED)
@pytest.mark.parametrize("memory", [40_000, 400_000])
def test_keys_across_partitions_and_absent_ones_within(algorithm, memory, tmp_path):
    """Every third key of R is missing, every fourth has 7 tuples, which cross borders; strings get
    longer and longer."""
    rng = np.random.default_rng(5)
    keys = [f"k{i}" for i in range(400) if i % 3 for _ in range(7 if i % 4 == 0 else 1)]
    table = pa.table({"k": keys, "v": range(len(keys))})
    master = snapshot(tmp_path, table, partition_tuples=16, page_tuples=8, bucket_count=3)
    numbers = np.minimum(rng.zipf(1.3, 12_000) - 1, 399)
    stream = pa.table(
        {
            "id": range(12_000),
            "k": [f"k{i}" for i in numbers],
            "note": ["x" * (i // 400) for i in range(12_000)],
        }
    )
    make = lambda: open_join(
        algorithm,
        memory=memory,
        stream=stream.schema,
        master=master,
        on=[("k", "k")],
        parameters={"disk_tuples": 16},
    )
    join = make()
    out = []
    for i, batch in enumerate(stream.to_batches(max_chunksize=500)):
        out += join.process(batch)
        if i == 20:
            state, join = join.snapshot(), make()
            join.restore(state)
    out += join.drain()
    joined, unmatched = oracle.join(stream.to_pylist(), table.to_pylist(), [("k", "k")], ["v"])
    assert oracle.rows(o.joined for o in out) == joined
    assert oracle.rows(o.unmatched for o in out) == unmatched
    assert join.stats.memory_peak <= memory


@pytest.mark.parametrize("algorithm", INDEXED)
def test_a_join_that_adds_no_column(algorithm, master):
    stream = chunk(0, *[10, 20, 35, 30] * 200)
    join = open_join(
        algorithm,
        memory=40_000,
        stream=STREAM,
        master=master,
        on=[("k", "k")],
        columns=[],
        parameters={"disk_tuples": 2},
    )
    out = [o for at in range(0, 800, 50) for o in join.process(stream.slice(at, 50))] + list(
        join.drain()
    )
    assert sum(o.joined.num_rows for o in out) == 600
    assert sum(o.unmatched.num_rows for o in out) == 200


def test_tuples_leave_h_s_by_key_and_its_heap_is_compacted():
    h_s = ByKey(
        StreamLayout(pa.schema([("s", pa.string()), ("n", pa.int32()), ("t", pa.string())])), 1
    )
    h_s.open(30, 20_000)
    rng, waiting, n = np.random.default_rng(2), {}, 0
    for _ in range(300):
        keys = rng.integers(0, 40, 20)
        rows = [{"s": "é" * int(k), "n": int(n + i), "t": f"t{n + i}"} for i, k in enumerate(keys)]
        batch = pa.RecordBatch.from_pylist(rows, schema=h_s.layout.held)
        buffer = StreamBuffer(h_s.layout, batch, keys)
        assert buffer.sizes.tolist() == [len(r["s"].encode()) + len(r["t"]) for r in rows]
        buffer.spans = np.tile(np.int32([0, 1]), (20, 1))
        count = h_s.admit(buffer)
        waiting |= {n + i: (int(keys[i]), *rows[i].values()) for i in range(count)}
        n += 20
        slots = h_s.in_age_order()
        held = zip(h_s.key[slots].tolist(), *(c.to_pylist() for c in h_s.get(slots)), strict=True)
        assert list(held) == list(waiting.values())
        if count < 20:
            gone = np.unique(np.r_[h_s.key[h_s.oldest], rng.integers(0, 40, 12)])
            removed = h_s.remove(h_s.find(gone, np.zeros(len(gone), np.int32), (0, 1)).met).slots
            assert sorted(h_s.key[removed]) == sorted(
                w[0] for w in waiting.values() if w[0] in gone
            )
            waiting = {i: w for i, w in waiting.items() if w[0] not in gone}
    assert n == 6000


def test_those_that_wait_for_a_partition_are_found_without_a_look_at_the_others():
    schema = pa.schema([("id", pa.int64())])
    h_s, partitions = ByKey(StreamLayout(schema), 50), np.arange(1000, dtype=np.int32) // 20
    h_s.open(0, 200_000)
    buffer = StreamBuffer(
        h_s.layout, pa.record_batch([np.arange(1000)], schema=schema), np.arange(1000)
    )
    buffer.spans = np.stack([partitions, partitions + 1], axis=1)
    assert h_s.admit(buffer) == 1000
    mine = h_s.key[:1000] // 20 == 7
    h_s.link[:1000][~mine, by_key_kernels.FIRST] = 7  # whoever looks at them takes them for its own
    h_s.link[:1000][~mine, by_key_kernels.LAST] = 8
    assert sorted(h_s.key[h_s.within((7, 8))]) == list(range(140, 160))
