"""What ELEVATORJOIN promises beyond the contract: no tuple waits for more than a sweep, and one
whose key R lacks mostly not at all."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from modelled import workload
from semistream.cost_models import TYPICAL, elevatorjoin
from semistream.joins.key_filter import KeyFilter, false_positives
from semistream.master.memory import MemoryRelation
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import open_join, tune

R = 20_000  # tuples, with the even keys up to 2 R


@pytest.fixture
def master(tmp_path):
    table = pa.table(
        {"k": pa.array(range(0, 2 * R, 2), pa.int64()), "v": pa.array(range(R), pa.int64())}
    )
    publish_snapshot(table.to_batches(), table.schema, tmp_path, "r", ["k"], page_tuples=64)
    return open_snapshot(tmp_path)


def chunk(keys, first=0):
    return pa.record_batch(
        {
            "id": pa.array(range(first, first + len(keys)), pa.int64()),
            "k": pa.array(keys, pa.int64()),
        }
    )


def start(master, memory=150_000, sample=None, **parameters):
    return open_join(
        "elevatorjoin",
        memory=memory,
        stream=chunk([]).schema,
        master=master,
        on=[("k", "k")],
        parameters={"disk_tuples": 256} | parameters,
        sample=sample,
    )


@pytest.mark.parametrize("skew", ["uniform", "zipf"])
def test_no_tuple_waits_for_more_than_n_stops(skew, master):
    """Counted in stops of the elevator, between the call that brought the tuple in and its
    output."""
    rng = np.random.default_rng(5)
    join, n, came, waited, size = start(master), 0, {}, [], 50 if skew == "uniform" else 400
    partitions = join.master.partition_count

    def finish(outputs):
        for o in outputs:
            for tuples in (o.joined, o.unmatched):  # the stop that gives them is not counted yet
                waited.extend(
                    join.stats.iteration_count + 1 - came[i]
                    for i in tuples["id"].to_pylist()
                    if i in came
                )

    while join.sweeps < 4:
        keys = rng.integers(0, 2 * R, size) if skew == "uniform" else rng.zipf(1.3, size) % (2 * R)
        finish(join.process(chunk(keys, n)))
        came |= dict.fromkeys(range(n, n + size), join.stats.iteration_count)
        n += size
    finish(join.drain())
    assert partitions / 2 < max(waited) <= partitions and partitions > 50


def test_where_all_of_r_is_cached_an_absent_key_does_not_wait(master):
    join = start(master, 10_000_000, filter_bits=-1, disk_tuples=R)
    list(join.process(chunk(np.arange(0, 2 * R, 2))))
    list(join.drain())
    assert join.cached == R
    stops, gone = join.stats.iteration_count, np.arange(1, 2 * R, 2)
    out = list(join.process(chunk(gone)))
    assert sum(o.unmatched.num_rows for o in out) == len(gone) and not join.stats.waiting
    assert join.stats.iteration_count == stops


def test_tuples_that_are_all_cached_are_probed_by_many(master):
    join = start(master, 10_000_000, filter_bits=-1, disk_tuples=R)
    for _ in range(3):
        list(join.process(chunk(np.arange(0, 2 * R, 2))))
        list(join.drain())
    assert join.h_s.size / join.h_s.tuple_bytes < R
    assert len(list(join.process(chunk(np.arange(0, 2 * R, 2))))) == 1


def test_a_filter_answers_most_keys_that_r_lacks_at_once_after_a_sweep(master):
    rng = np.random.default_rng(5)
    join, n = start(master, filter_bits=8), 0
    while join.sweeps < 1:
        list(join.process(chunk(rng.integers(0, R, 500) * 2, n)))
        n += 500
    stats = join.stats
    before = stats.iteration_count, stats.unmatched
    gone = rng.choice(np.arange(1, 2 * R, 2), 2_000, replace=False)
    out = list(join.process(chunk(gone[:500])))
    assert stats.iteration_count - before[0] < 5
    assert sum(o.unmatched.num_rows for o in out) > 400
    out += [o for a in range(500, 2_000, 500) for o in join.process(chunk(gone[a : a + 500]))]
    out += list(join.drain())
    assert sorted(k for o in out for k in o.unmatched["k"].to_pylist()) == sorted(gone.tolist())


@pytest.mark.parametrize("bits", [2, 4, 8, 12])
def test_as_many_absent_keys_pass_the_filter_as_the_model_says(bits):
    rng, n = np.random.default_rng(bits), 200_000
    keys = rng.integers(0, 2**62, 2 * n)
    table = pa.table({"k": keys[:n], "v": keys[:n]})
    relation = MemoryRelation("r", table, ["k"], n)
    keys_of_r, spans = KeyFilter(relation, bits), np.tile(np.int32([0, 1]), (n, 1))
    assert not keys_of_r.rejects(keys[n:], spans).any()  # R was not read yet
    keys_of_r.add(0, keys[:n])
    assert not keys_of_r.rejects(keys[:n], spans).any()
    passed = 1 - keys_of_r.rejects(keys[n:], spans).mean()
    assert passed == pytest.approx(false_positives(bits), rel=0.1)
    assert keys_of_r.size == pytest.approx(n * bits / 8, rel=0.001)


def test_the_model_takes_a_filter_where_keys_are_absent_and_memory_allows(master):
    keys = np.random.default_rng(5).integers(0, R, 20_000) * 2
    absent = np.where(np.arange(20_000) % 2, keys, keys + 1)
    assert start(master, sample=chunk(keys)).filter.size == 0
    assert start(master).filter.size == 0
    chosen = start(master, sample=chunk(absent))
    assert chosen.parameters.filter_bits in elevatorjoin.FILTER_BITS
    assert chosen.arena.components["filter"] == chosen.filter.size > 0
    assert start(master, sample=chunk(absent), filter_bits=-1).filter.size == 0
    assert start(master, 24_000, sample=chunk(absent)).filter.size < 0.5 * 24_000
    assert not tune("elevatorjoin", workload(), 6e6, TYPICAL).chosen


def test_the_ablation_runs_in_its_smallest_form(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from benchmarks.__main__ import main

    variants = "no filter,no index: ssbj"
    assert (
        main(
            [
                "elevatorjoin-ablation",
                "--scale",
                "smallest",
                "--runs",
                "1",
                "--set",
                f"variants={variants}",
                "--data",
                str(tmp_path / "data"),
                "--output",
                str(tmp_path),
            ]
        )
        == 0
    )
    lines = (tmp_path / "elevatorjoin-ablation-smallest.jsonl").read_text().splitlines()
    rows = {row["peer"]: row for row in map(json.loads, lines)}
    assert set(rows) == {"elevatorjoin", *variants.split(",")}
    assert all(row["right"] and row["rate"] > 0 for row in rows.values())
