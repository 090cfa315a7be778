"""The contract of the stream-stream joins, against a join by plain loops."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream.keys as keys_module
import strategies
from semistream.errors import ConfigError, StateError
from semistream.joins import output
from semistream.joins.output import OUTPUT_BYTES
from semistream.joins.state_file import JoinState
from semistream.resident import ResidentPeak, resident
from semistream.stream_joins import LEFT, RIGHT, XJoin, kernels, state, stream_join_spec
from semistream.stream_joins.memory import Directory
from semistream.stream_joins.xjoin import XJoinParameters
from stream_oracle import OUTER, Restarts, complete, expected, forget_others, found, step_alone


def start(left, right, on, join_type="inner", memory=100_000):
    return XJoin(
        stream_join_spec("xjoin", memory, left.schema, right.schema, on, join_type),
        XJoinParameters(),
    )


@settings(max_examples=150)
@given(data=st.data(), join_type=st.sampled_from(OUTER), restarts=st.booleans())
def test_equals_the_oracle_whatever_is_relocated_probed_or_restarted(
    data, join_type, restarts, tmp_path_factory
):
    """Also where a disk join holds a few tuples and gives a few pairs at a time."""
    few = data.draw(st.sampled_from([1, 4, 1000]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "DISK_SHARE", 1_000_000)
        for name in ("LEAST_ROWS", "MOST_PIECE", "TOGETHER", "OUTPUT_ROWS"):
            patch.setattr(state, name, few)
        for name in ("OUTPUT_ROWS", "FIRST_ROWS"):
            patch.setattr(output, name, few)
        equals_the_oracle(data, join_type, restarts, tmp_path_factory)


def equals_the_oracle(data, join_type, restarts, tmp_path_factory):
    left, right, on, _ = data.draw(strategies.joins())
    begin = lambda: start(left, right, on, join_type)
    join, outputs, at, ended = begin(), [], [0, 0], []
    states = Restarts(tmp_path_factory.mktemp("state"), begin)
    steps = data.draw(
        st.lists(st.sampled_from(["left", "right", "relocate", "idle", "finish"]), max_size=25)
    )
    for step in [*steps, "left", "right"]:
        if step in ("left", "right"):
            side = LEFT if step == "left" else RIGHT
            table = (left, right)[side]
            count = data.draw(st.integers(0, 20)) if len(steps) else table.num_rows
            for batch in table.slice(at[side], count).combine_chunks().to_batches():
                outputs += join.process(side, batch)
            at[side] += min(count, table.num_rows - at[side])
        else:
            outputs += step_alone(join, step)
        if restarts:
            before, join = join, states.save(join, data.draw(st.booleans()))
            ended += [before] * (before is not join)
    for side, table in enumerate((left, right)):
        for batch in table.slice(at[side]).combine_chunks().to_batches():
            outputs += join.process(side, batch)
    outputs += join.drain()
    assert found(outputs) == expected(left, right, on, join_type)
    for side, table in enumerate((left, right)):
        sides = [each.stats.sides[side] for each in (*ended, join)]
        assert table.num_rows == sum(s.rows_read for s in sides)
        assert table.num_rows == sum(s.matched + sum(s.unmatched.values()) for s in sides)


@pytest.mark.parametrize("memory", [60_000, 200_000, 20_000_000])
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_large_streams_stay_within_memory(memory, skew):
    rng = np.random.default_rng(7)
    weights = 1 / np.arange(1, 3001) ** skew
    tables = [
        pa.table(
            {
                "id": range(6000),
                "k": rng.choice(3000, 6000, p=weights / weights.sum()) + shift,
                "note": ["n" * (i % 9) for i in range(6000)],
            }
        )
        for shift in (0, 1500)
    ]
    join, outputs = start(*tables, [("k", "k")], "full", memory), []
    for i, pair in enumerate(zip(*(t.to_batches(max_chunksize=500) for t in tables), strict=True)):
        for side, batch in enumerate(pair):
            for out in join.process(side, batch):
                outputs.append(out)
                assert join.state.arena.used <= memory
        if i % 3 == 2:
            outputs += join.idle(1.0)
    assert (join.stats.relocations > 0) == (memory < 1_000_000)
    outputs += join.drain()
    assert join.stats.memory_peak <= memory
    complete(join)
    counts = [np.bincount(t["k"].to_numpy(), minlength=4501) for t in tables]
    assert sum(found(outputs)[0].values()) == int(
        (counts[0] * counts[1]).sum()
        + counts[0][counts[1] == 0].sum()
        + counts[1][counts[0] == 0].sum()
    )
    assert max(found(outputs)[0].values()) == 1


@pytest.mark.parametrize("memory", [120_000, 20_000_000])
def test_a_state_is_saved_by_its_changes(memory, tmp_path):
    """Twenty more tuples of 2,000 that are held cost their own bytes, in memory and on disk."""
    left, right = (
        pa.table(
            {
                "id": range(1200),
                "k": [i * 7 % 1500 for i in range(1200)],
                "note": [f"a note of tuple {i}" for i in range(1200)],
            }
        )
        for _ in range(2)
    )
    join, outputs, saved = start(left, right, [("k", "k")], "full", memory), [], []

    def save():
        path = tmp_path / f"{len(saved)}"
        join.snapshot(changes=bool(saved)).write(path, f"{len(saved) - 1}" if saved else "")
        saved.append(path.stat().st_size)
        return JoinState.files(path)

    for first, last in ((0, 1000), (1000, 1010), (1010, 1020)):
        for side, table in enumerate((left, right)):
            for batch in table.slice(first, last - first).to_batches():
                outputs += join.process(side, batch)
        files = save()
    assert (join.state.disk[0].total > 0) == (memory == 120_000)
    assert files[:3] == ["0", "1", "2"] and max(saved[1:]) < saved[0] / 4
    again = start(left, right, [("k", "k")], "full", memory)
    again.restore(*JoinState.read(tmp_path / "2"))
    assert [again.state.held(side) for side in (0, 1)] == [1020, 1020]
    for side, table in enumerate((left, right)):
        for batch in table.slice(1020).to_batches():
            outputs += again.process(side, batch)
    outputs += again.drain()
    assert found(outputs) == expected(left, right, [("k", "k")], "full")


def test_files_that_only_a_former_state_needs_may_be_gone(tmp_path):
    left = pa.table({"id": range(1000), "k": range(1000)})
    join = start(left, left, [("k", "k")], memory=400_000)
    for batch in left.to_batches():
        assert not list(join.process(LEFT, batch))
    join.state.relocate()
    join.save(tmp_path / "0")
    [former] = {run.file.path.name for runs in join.state.disk[LEFT].runs for run in runs}
    for bucket in map(int, np.flatnonzero(join.state.disk[LEFT].tuples)):
        join.state.disk[LEFT].rewrite(bucket, join.state.tick())
    join.save(tmp_path / "1", "0")
    assert {"0", "1"} < {*JoinState.files(tmp_path / "1")} and (tmp_path / former).exists()
    forget_others(tmp_path / "1")
    again = start(left, left, [("k", "k")], memory=400_000)
    again.restore(*JoinState.read(tmp_path / "1"))
    assert not (tmp_path / former).exists() and again.state.held(LEFT) == 1000


def test_a_state_is_saved_without_a_second_one_in_memory(tmp_path):
    memory, rows = 240_000_000, 1_350_000
    table = pa.table({name: np.arange(rows) for name in ("id", "k", "a", "b", "c", "d")})
    join = start(table, table, [("k", "k")], "inner", memory)
    for batch in table.to_batches(max_chunksize=50_000):
        assert not list(join.process(LEFT, batch))
    assert join.stats.memory_peak > 0.5 * memory and not join.stats.relocations
    for number in range(2):
        before, peak = resident(), ResidentPeak()
        join.save(tmp_path / f"{number}", "0" if number else "")
        peak.stop()
        assert peak.read() < before + 0.1 * memory + 2 * OUTPUT_BYTES


def test_a_directory_forgets_hash_buckets_and_finds_what_is_left():
    """However full it is, and where codes have come round its end."""
    rng = np.random.default_rng(3)
    for used, size in ((10, 1024), (400, 1024), (700, 1024), (30, 4096)):
        directory, bucket = Directory(4096), np.empty(1, np.int32)
        directory.grow(size // 3)
        codes = rng.choice(2**62, used, replace=False)
        kernels.put(codes, np.zeros(used, np.int64), directory.t64)  # of no side yet
        sides = rng.integers(1, 4, used)
        for slot, (code, side) in enumerate(zip(codes, sides, strict=True)):
            at = np.flatnonzero(directory.t64[:, 0] == code)[0]
            directory.t32[at, 2:] = [slot + 1 if side & 1 else 0, slot + 1 if side & 2 else 0]
        wanted = rng.integers(0, 2, (2, kernels.BUCKETS), dtype=np.uint8)
        size = directory.size
        smaller = directory.clear(wanted)
        assert smaller == (directory.size < size) == (used == 30)
        left = 0
        for slot, (code, side) in enumerate(zip(codes, sides, strict=True)):
            kernels.buckets(np.array([code]), bucket)
            stays = [bool(side & 1 << k) and not wanted[k, bucket[0]] for k in range(2)]
            found = np.empty(1, np.int32)
            for k in range(2):
                kernels.find(np.array([code]), k, directory.t64, directory.t32, found)
                assert found[0] == (slot if stays[k] else -1)
            left += any(stays)
        assert directory.used == directory.live == left == np.count_nonzero(directory.t64[:, 1])


def test_codes_of_a_hash_bucket_are_all_over_a_table():
    codes = np.random.default_rng(1).integers(0, 2**62, 640_000)
    bucket = np.empty(len(codes), np.int32)
    kernels.buckets(codes, bucket)
    assert np.bincount(bucket, minlength=kernels.BUCKETS).min() > 9_000
    mine = codes[bucket == 5]
    h64, heads = np.zeros((len(mine), 4), np.int64), np.empty(2 * len(mine), np.int32)
    h64[:, 0] = mine
    kernels.chain(h64, h64.view(np.int32), heads)
    # half as many tuples as chains, at random: 39% of the chains have one
    assert np.count_nonzero(heads >= 0) == pytest.approx(0.393 * len(heads), rel=0.03)


@pytest.mark.parametrize("at_a_time", [7, 100_000])
def test_hash_collisions_cost_time_and_no_row(at_a_time, monkeypatch):
    """Neither where the pairs of a tuple do not fit one output."""
    monkeypatch.setattr(state, "OUTPUT_ROWS", at_a_time)
    real = keys_module.codes
    monkeypatch.setattr(
        keys_module,
        "codes",
        lambda columns, kinds: (real(columns, kinds)[0] % 5, real(columns, kinds)[1]),
    )
    left = pa.table({"a": range(300), "k": [f"key{i * i % 70}" for i in range(300)]})
    right = pa.table({"b": range(200), "k": [f"key{i}" for i in range(200)]})
    join, outputs = start(left, right, [("k", "k")], "full"), []
    for side, table in enumerate((left, right)):
        outputs += join.process(side, table.to_batches()[0])
        join.state.relocate()
    outputs += join.drain()
    assert found(outputs) == expected(left, right, [("k", "k")], "full")


def test_a_golden_trace_of_the_three_stages():
    """Worked by hand: one key, so that one hash bucket has all. A1 B1 | A1 B1 to disk | B2, which
    misses A1 | a probe of A's disk portion gives A1 B2 | B2 to disk, A2 meets nobody in memory |
    the end gives A2 B1 and A2 B2, and nothing a second time."""
    schema = pa.schema([("id", pa.string()), ("k", pa.int64())])
    join = XJoin(
        stream_join_spec("xjoin", 100_000, schema, schema, [("k", "k")]), XJoinParameters()
    )

    def take(side, name):
        return pairs(
            join.process(side, pa.RecordBatch.from_pydict({"id": [name], "k": [7]}, schema))
        )

    def pairs(outputs):
        return sorted(
            (r["id"], r["right_id"])
            for o in outputs
            if o.joined is not None
            for r in o.joined.to_pylist()
        )

    assert take(LEFT, "A1") == [] and take(RIGHT, "B1") == [("A1", "B1")]
    while any(m.live for m in join.state.memory):
        join.state.relocate()
    assert take(RIGHT, "B2") == []
    assert pairs(join.idle(1.0)) == [("A1", "B2")]
    assert pairs(join.idle(1.0)) == []
    while any(m.live for m in join.state.memory):
        join.state.relocate()
    assert take(LEFT, "A2") == []
    assert pairs(join.drain()) == [("A2", "B1"), ("A2", "B2")]
    complete(join)


def test_what_cannot_work_is_refused():
    schema = pa.schema([("id", pa.string()), ("k", pa.int64())])
    with pytest.raises(ConfigError, match="column of the right"):
        stream_join_spec("xjoin", 100_000, schema, schema, [("k", "q")])
    with pytest.raises(ConfigError, match="join_type"):
        stream_join_spec("xjoin", 100_000, schema, schema, [("k", "k")], "outer")
    spec = stream_join_spec("xjoin", (1 << 32) + 1, schema, schema, [("k", "k")])
    with pytest.raises(ConfigError, match="4,294,967,296 bytes at most for each partition"):
        XJoin(spec, XJoinParameters())
    saved = XJoin(
        stream_join_spec("xjoin", 100_000, schema, schema, [("k", "k")]), XJoinParameters()
    ).snapshot()
    with pytest.raises(StateError, match="another join"):
        XJoin(
            stream_join_spec("xjoin", 100_000, schema, schema, [("k", "k")], "full"),
            XJoinParameters(),
        ).restore(saved)
