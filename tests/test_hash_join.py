"""The hash join over snapshots: R whole, in files that are built once and mapped by all."""

import dataclasses
import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import oracle
import strategies
from semistream.errors import ConfigError, NotEnoughMemory
from semistream.joins import whole_master
from semistream.joins.hash_join import HashJoin
from semistream.joins.registry import REGISTRY
from semistream.joins.whole_master import whole_bytes
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import open_join

ROWS = 3000
ON = [("k", "k")]


def master(rows=ROWS, each=1):
    return pa.table(
        {
            "k": [f"key {i // each}" for i in range(rows)],
            "price": [None if i % 7 == 3 else i / 4 for i in range(rows)],
            "new": [i % 3 == 0 for i in range(rows)],
            "name": [None if i % 5 == 2 else f"name {i}" for i in range(rows)],
        }
    )


def stream(count=4000):
    return pa.table(
        {
            "n": range(count),
            "k": [None if i % 50 == 0 else f"key {i * 7919 % 4000}" for i in range(count)],
        }
    )


def published(directory, table, key=("k",)):
    publish_snapshot(table.to_batches(), table.schema, directory, "r", list(key))
    return open_snapshot(directory)


def opened(relation, *, tuples=None, on=ON, memory=2_000_000, join_type="left", **parameters):
    return open_join(
        "hash-join",
        memory=memory,
        stream=(tuples or stream()).schema,
        master=relation,
        on=on,
        join_type=join_type,
        parameters=parameters,
    )


def check(join, tuples, table, on=ON):
    out = [o for b in tuples.to_batches(max_chunksize=700) for o in join.process(b)]
    out += join.drain()
    columns = [c for c in table.column_names if c not in [m for _, m in on]]
    joined, unmatched = oracle.join(
        tuples.to_pylist(), table.to_pylist(), on, columns, join.spec.join_type
    )
    assert oracle.rows(o.joined for o in out) == joined
    assert oracle.rows(o.unmatched for o in out) == unmatched


def files(relation):
    """The files of R whole, with what changes when one is written."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in (relation.directory / "whole").iterdir()
    }


@pytest.mark.parametrize("join_type", ["inner", "left"])
@pytest.mark.parametrize("each", [1, 3], ids=["unique", "many"])
def test_a_snapshot_is_joined_as_by_the_oracle(each, join_type, tmp_path):
    table = master(each=each)
    check(opened(published(tmp_path, table), join_type=join_type), stream(), table)


@pytest.mark.parametrize("kind", strategies.KEY_KINDS)
def test_keys_of_every_kind_alone_and_with_another(kind, tmp_path):
    numbers = [i % 40 for i in range(60)]
    table = pa.table(
        {
            "a": strategies.keys(kind, numbers),
            "b": pa.array([i % 3 for i in numbers], pa.int64()),
            "v": range(60),
        }
    )
    tuples = pa.table(
        {
            "a": strategies.keys(kind, [None if i % 11 == 0 else i % 50 for i in range(300)]),
            "b": pa.array([None if i % 13 == 0 else i % 4 for i in range(300)], pa.int64()),
        }
    )
    for key in (["a"], ["a", "b"]):
        rows, some, on = table.select([*key, "v"]), tuples.select(key), [(c, c) for c in key]
        relation = published(tmp_path / "+".join(key), rows, key)
        check(opened(relation, tuples=some, on=on), some, rows, on)


def test_an_empty_snapshot_leaves_all_unmatched(tmp_path):
    table = master(0).cast(master().schema)
    check(opened(published(tmp_path, table)), stream(), table)


def test_the_machine_holds_r_once_read_only(tmp_path):
    relation = published(tmp_path, master())
    one = opened(relation)
    built = files(relation)
    assert {"keys.arrow", "table.arrow", "column-3.arrow"} <= built.keys()
    two = opened(open_snapshot(tmp_path))
    assert files(relation) == built and two.whole.size == one.whole.size
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/whole/" in line]
    assert len(maps) >= 2 * len(built) and all(line.split()[1] == "r--s" for line in maps)
    check(two, stream(), master())


def test_a_role_with_other_columns_adds_only_their_files(tmp_path):
    relation = published(tmp_path, master())
    some = {"memory": 2_000_000, "stream": stream().schema, "master": relation, "on": ON}
    open_join("hash-join", columns=["name"], **some)
    before = files(relation)
    open_join("hash-join", columns=["price", "name"], **some)
    after = files(relation)
    assert after.keys() - before.keys() == {"column-1.arrow"}
    assert {name: after[name] for name in before} == before


def test_an_operator_that_is_passed_on_takes_no_array_along(tmp_path):
    table = master()
    join = opened(published(tmp_path, table))
    sent = pickle.dumps(join)
    assert len(sent) < join.whole.size / 5
    check(pickle.loads(sent), stream(), table)  # noqa: S301 - our own


def test_memory_counts_and_is_shared_among_operators(tmp_path):
    relation = published(tmp_path, master())
    alone = opened(relation).stats
    assert alone.memory == {"R": opened(relation).whole.size}
    shared = opened(relation, memory=alone.memory_peak // 4 + 1, sharers=4)
    assert shared.stats.memory_peak == -(-alone.memory_peak // 4)
    size = sum(path.stat().st_size for path in (relation.directory / "whole").iterdir())
    assert alone.memory_peak == size
    assert 0.8 * size < whole_bytes(shared.spec) < 1.6 * size


def test_an_r_that_does_not_fit_is_refused_with_a_memory_that_suffices(tmp_path):
    relation = published(tmp_path, master())
    with pytest.raises(NotEnoughMemory) as refusal:
        opened(relation, memory=30_000)
    check(opened(relation, memory=refusal.value.least), stream(), master())


def test_an_r_that_is_far_too_large_is_not_even_read(tmp_path):
    relation = published(tmp_path, master())
    join = opened(relation)
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_master._Codes, "_fill", read.append)
        with pytest.raises(ConfigError, match="must hold r whole"):
            HashJoin(dataclasses.replace(join.spec, memory=20_000), join.parameters)
    assert not read


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_built_anew(damage, tmp_path):
    table = master()
    relation = published(tmp_path, table)
    opened(relation)
    for path in (relation.directory / "whole").iterdir():
        data = path.read_bytes()
        middle = len(data) // 2
        path.unlink()  # the operator before has mapped it
        path.write_bytes(
            {
                "cut": data[:middle],
                "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "empty": b"",
            }[damage]
        )
    check(opened(relation), stream(), table)


def test_a_snapshot_that_may_only_be_read_is_held_by_each_process(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    table = master(each=2)
    relation = published(tmp_path, table)
    monkeypatch.setattr(Path, "mkdir", refused)
    join = opened(relation)
    assert not (relation.directory / "whole").exists() and join.whole.size > 50_000
    check(join, stream(), table)


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    relation = published(tmp_path, master())
    monkeypatch.setattr(whole_master, "replacing", full)
    with pytest.raises(OSError, match="No space"):
        opened(relation)


def test_no_tuple_waits(tmp_path):
    join = opened(published(tmp_path, master()))
    for batch in stream().to_batches(max_chunksize=500):
        list(join.process(batch))
        assert join.stats.waiting == 0
    assert list(join.keep_up(1.0, 1.0)) == [] and join.keeps_all
    state = join.snapshot()
    again = opened(open_snapshot(tmp_path))
    again.restore(state)
    assert not state.tables and again.stats.waiting == 0


def test_joined_rows_come_in_batches_of_bounded_size(tmp_path):
    table = pa.table({"k": ["a"] * 2000, "v": range(2000)})
    tuples = pa.table({"k": ["a"] * 200, "n": np.arange(200)})
    join = opened(published(tmp_path, table), tuples=tuples)
    sizes = [o.joined.num_rows for b in tuples.to_batches() for o in join.process(b)]
    assert sum(sizes) == 400_000 and len(sizes) > 2


def test_the_hash_join_is_no_semi_stream_join():
    assert "hash-join" not in REGISTRY
