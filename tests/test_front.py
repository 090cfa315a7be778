"""Frequency detection: what CMESHJOIN, SSJ and SSCJ hold in H_R."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from key_streams import chunk, hot
from semistream.errors import ConfigError
from semistream.joins import REGISTRY, selection
from semistream.joins.disk_partition import DiskPartition, tuples_of
from semistream.joins.frequency_detection import FrequentTuples
from semistream.master.memory import MemoryRelation
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import open_join

ON = [("k", "k")]


def algorithms():
    """Those whose H_R is a FrequentTuples."""
    return [
        name
        for name in REGISTRY
        if isinstance(getattr(start(name, products(10)), "h_r", None), FrequentTuples)
    ]


def products(count, copies=1, names=("p",)):
    keys = np.repeat(np.arange(count), copies)
    return pa.table(
        {
            "k": keys,
            "v": np.arange(len(keys)),
            "name": [names[i % len(names)] for i in range(len(keys))],
        }
    )


def start(algorithm, master, memory=60_000, part=50, **parameters):
    fields = REGISTRY[algorithm].parameters.model_fields
    parameters = {k: v for k, v in {"disk_tuples": 50, **parameters}.items() if k in fields}
    return open_join(
        algorithm,
        memory=memory,
        stream=chunk([]).schema,
        master=MemoryRelation("r", master, ["k"], part),
        on=ON,
        parameters=parameters,
    )


def feed(join, chunks):
    return [out for keys in chunks for out in join.process(chunk(keys))]


def cached(join):
    cache = join.h_r.cache
    return dict(zip(cache.keys.tolist(), cache.counts.tolist(), strict=True))


@pytest.mark.parametrize("copies", [1, 3])
def test_the_tuples_of_some_keys_are_found_in_any_order(copies, tmp_path):
    table = products(2_000, copies).take(
        pa.array(np.random.default_rng(1).permutation(2_000 * copies))
    )
    publish_snapshot(
        table.to_batches(), table.schema, tmp_path, "m", ["k"], bucket_count=16, page_tuples=32
    )
    for relation in (
        MemoryRelation("r", table, ["k"], 50),
        open_snapshot(tmp_path, partition_tuples=700),
    ):
        spec = open_join(
            "ssbj", memory=1_000_000, stream=chunk([]).schema, master=relation, on=ON
        ).spec
        keys = np.array([1_999, 7, 3, 1_000, 5_000, 0])
        found = [
            (int(keys[i]), row)
            for partition, rows, index in tuples_of(spec, keys)
            for i, row in zip(index, partition.take(rows).to_pylist(), strict=True)
        ]
        assert Counter((k, r["v"]) for k, r in found) == Counter(
            (k, v)
            for k, v in zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True)
            if k in keys
        )


def check(join, outputs, chunks, master):
    stream = [row for keys in chunks for row in chunk(keys).to_pylist()]
    joined, unmatched = oracle.join(stream, master.to_pylist(), ON, ["v", "name"])
    outputs = [*outputs, *join.drain()]
    assert oracle.rows(o.joined for o in outputs) == joined
    assert oracle.rows(o.unmatched for o in outputs) == unmatched


ALGORITHMS = algorithms()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_drift_of_the_hot_set_takes_the_places_of_the_old_one(algorithm):
    rng = np.random.default_rng(1)
    join = start(algorithm, products(1000), cache_tuples=40)
    before, after = set(range(20)), set(range(500, 520))
    feed(join, hot(rng, sorted(before), 100))
    assert before <= set(cached(join))
    share = join.stats.cache_hits / join.stats.rows_read
    assert share > 0.6
    feed(join, hot(rng, sorted(after), 500))
    assert after <= set(cached(join))
    assert not before & set(cached(join))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_threshold_falls_until_h_r_is_full_and_rises_when_too_many_change_places(algorithm):
    rng = np.random.default_rng(2)
    join = start(algorithm, products(1000), cache_tuples=40, threshold=1000)
    feed(join, (rng.integers(0, 1000, 500) for _ in range(150)))
    assert join.h_r.threshold < 20
    assert join.h_r.cache.tuples == join.h_r.capacity == 40
    join.h_r.threshold, join.h_r.evictions = 4, 6  # more than an eighth of H_R
    join.h_r.end_period()
    assert join.h_r.threshold == 5
    join.h_r.evictions = 5
    join.h_r.end_period()
    assert join.h_r.threshold <= 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_partition_that_is_read_again_brings_no_value_twice_into_h_r(algorithm):
    join = start(algorithm, products(1000), cache_tuples=400)
    partition = DiskPartition(join.spec, 3)
    f = np.where(np.arange(len(partition.codes)) < 20, 5, 0).astype(np.int32)
    for _ in range(2):  # before the switching buffer, of 50 tuples, is full
        join.h_r.detect(partition, f)
    assert len(join.h_r.cache.staged) == 20
    join.h_r.end_period()
    join.h_r.detect(partition, f)
    assert len(join.h_r.cache.staged) == 0
    assert cached(join) == dict.fromkeys(partition.codes[:20].tolist(), 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_of_a_duplicate_key_all_master_tuples_are_cached_or_none(algorithm):
    rng = np.random.default_rng(3)
    master = products(400, 3)  # keys 16, 33, 49 ... cross a border of the partitions of 50
    join = start(algorithm, master, cache_tuples=90)
    chunks = list(hot(rng, np.arange(20), 100))
    outputs = feed(join, chunks)
    assert set(cached(join).values()) == {3}
    assert set(range(20)) - {16} <= set(cached(join)) | set(join.h_r.cache.staged.keys)
    assert 16 not in cached(join)
    check(join, outputs, chunks, master)


@pytest.mark.parametrize("copies", [1, 3, 30])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_detection_takes_a_pass_over_h_r_however_many_tuples_a_key_has(algorithm, copies):
    join = start(
        algorithm,
        products(3000 // copies, copies),
        memory=200_000,
        disk_tuples=300,
        part=300,
        cache_tuples=90,
    )  # 11 places in the switching buffer
    h_r, partition, passes = join.h_r, DiskPartition(join.spec, 3), 0

    def index():
        nonlocal passes
        passes += 1
        plain()

    plain, h_r.cache.index = h_r.cache.index, index
    f = np.full(300, 5, np.int32)
    h_r.detect(partition, f)
    keys = np.unique(partition.codes)
    fit = 90 // copies
    assert cached(join) == dict.fromkeys(keys[:fit].tolist(), copies)
    assert passes <= 2  # one to see who stays, one to make the newcomers findable
    before = passes
    for _ in range(5):  # none of the others is more frequent
        h_r.detect(partition, f)
    assert passes == before
    f[partition.codes == keys[-1]] = 11
    h_r.detect(partition, f)
    h_r.end_period()
    assert passes <= before + 2
    assert h_r.threshold == (3 if copies > 11 else 2)  # more than an eighth of H_R changed places
    assert cached(join) == dict.fromkeys([*keys[: fit - 1].tolist(), int(keys[-1])], copies)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_fetched_of_a_key_with_more_tuples_than_h_r_has_places_for(
    algorithm, monkeypatch
):
    fetched = []
    monkeypatch.setattr(DiskPartition, "read", fetched.append)
    join = start(
        algorithm, products(100, 30), memory=200_000, disk_tuples=300, part=300, cache_tuples=29
    )
    join.h_r.detect(DiskPartition(join.spec, 3), np.full(300, 5, np.int32))
    assert not fetched and not len(join.h_r.cache.staged)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keys_of_many_tuples_fill_h_r_and_are_joined_exactly(algorithm):
    rng = np.random.default_rng(8)
    master = products(300, 30, names=("", "a", "bcd"))
    join = start(algorithm, master, memory=200_000, disk_tuples=300, part=300, cache_tuples=200)
    chunks = list(hot(rng, np.arange(30), 40, size=100))
    outputs = feed(join, chunks)
    assert set(cached(join).values()) == {30} and 150 < join.h_r.cache.tuples <= 200
    assert join.stats.cache_hits > 0.05 * join.stats.rows_read
    check(join, outputs, chunks, master)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_strings_of_any_length_stay_within_h_r(algorithm):
    rng = np.random.default_rng(4)
    master = products(600, names=("", "x" * 10, "y" * 100, "z" * 2000))
    join = start(algorithm, master, memory=400_000, cache_tuples=100)
    chunks = list(hot(rng, np.arange(40), 100))
    outputs = feed(join, chunks)
    h_r = join.h_r
    assert h_r.cache.used <= h_r.bytes < h_r.size == join.stats.memory["H_R"]
    assert len(cached(join)) > 20
    check(join, outputs, chunks, master)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_restored_join_holds_what_was_in_h_r_and_in_the_switching_buffer(algorithm):
    rng = np.random.default_rng(5)
    master = products(1000, names=("", "a", "bcd"))
    chunks = list(hot(rng, np.arange(100), 60))
    one = start(algorithm, master, cache_tuples=80)
    outputs = feed(one, chunks[:33])
    staged = one.h_r.cache.staged.keys.tolist()
    other = start(algorithm, master, cache_tuples=80)
    other.restore(one.snapshot())
    before, after = cached(one), cached(other)
    assert set(after) <= set(before) | set(staged)
    assert len(after) == min(len(before) + len(staged), 80)
    assert other.h_r.threshold == one.h_r.threshold
    check(other, outputs + feed(other, chunks[33:]), chunks, master)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_smaller_memory_takes_up_the_most_frequent(algorithm):
    rng = np.random.default_rng(6)
    master = products(1000)
    chunks = list(hot(rng, np.arange(100), 60))
    large = start(algorithm, master, cache_tuples=80)
    outputs = feed(large, chunks)
    small = start(algorithm, master, cache_tuples=10)
    state = large.snapshot()
    small.restore(state)
    saved = Counter(
        dict(
            zip(*(state.tables["cache"][c].to_pylist() for c in ("key", "frequency")), strict=True)
        )
    )
    assert len(cached(small)) == 10
    assert min(saved[k] for k in cached(small)) >= sorted(saved.values())[-10]
    check(small, outputs, chunks, master)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cache_that_does_not_fit_is_named(algorithm):
    with pytest.raises(ConfigError, match="'cache_tuples' must let H_R"):
        start(algorithm, products(5000), cache_tuples=4000)


@pytest.mark.parametrize("algorithm", ["cmeshjoin", "ssj", "ssbj", "sscj", "elevatorjoin"])
def test_a_batch_larger_than_h_s_is_served_by_what_is_cached_while_it_waits_to_get_in(
    algorithm, tmp_path
):
    rng = np.random.default_rng(3)
    keys = np.where(
        rng.random(60_000) < 0.9, rng.integers(0, 20, 60_000) * 977, rng.integers(0, 20_000, 60_000)
    )
    table = pa.table(
        {"k": pa.array(range(20_000), pa.int64()), "v": pa.array(range(20_000), pa.int64())}
    )
    publish_snapshot(
        table.to_batches(), table.schema, tmp_path, "m", ["k"], bucket_count=1, page_tuples=64
    )
    master = open_snapshot(tmp_path, partition_tuples=512)
    join = open_join(
        algorithm,
        memory=60_000,
        stream=chunk([]).schema,
        master=master,
        on=ON,
        parameters={"disk_tuples": 512},
    )
    rows = sum(
        o.joined.num_rows for outputs in (join.process(chunk(keys)), join.drain()) for o in outputs
    )
    assert rows == 60_000 and join.stats.cache_hits > 0.8 * rows


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(1, 9)), max_size=60),
    st.integers(1, 50),
    st.integers(1, 120),
    st.sampled_from([0, selection.FEW]),
)
def test_the_most_frequent_that_have_room(values, tuples, size, few):
    frequencies, counts, sizes = np.array(values, np.int64).reshape(-1, 3).T
    best = sorted(range(len(values)), key=lambda i: -frequencies[i] / max(counts[i], 1))
    room = [
        i
        for i in range(len(best))
        if counts[best[: i + 1]].sum() <= tuples and sizes[best[: i + 1]].sum() <= size
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "PORTION", 7)
        patch.setattr(selection, "FEW", few)
        found = selection.most_frequent(
            len(values), lambda part: (frequencies[part], counts[part], sizes[part]), tuples, size
        )
    assert np.flatnonzero(found).tolist() == sorted(best[: len(room)])
