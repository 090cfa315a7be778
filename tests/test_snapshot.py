import datetime as dt
import os
import re
import threading
from collections import Counter
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.errors import ConfigError, StateError
from semistream.files.inputs import open_star
from semistream.files.settings import JoinFiles
from semistream.joins import REGISTRY
from semistream.keys import buckets, master_keys
from semistream.master import publish as publishing
from semistream.master.publish import publish_snapshot
from semistream.master.published import current_version, pin
from semistream.master.snapshot import SnapshotRelation, open_snapshot
from semistream.progress import silent
from semistream.sizing import open_join

RNG = np.random.default_rng(7)
N = 5000
INTS = RNG.permutation(N * 3)[:N] - 200  # with gaps
MASTERS = {
    "int": (pa.array(INTS, pa.int32()),),
    "repeated": (pa.array(RNG.integers(0, 40, N)),),
    "string": (pa.array([f"k{v}ü" for v in INTS]),),
    "date": (pa.array([dt.date(1970, 1, 1) + dt.timedelta(int(v)) for v in INTS]),),
    "decimal": (pa.array([Decimal(int(v)) / 100 for v in INTS], pa.decimal128(12, 2)),),
    "long": (pa.array([Decimal(int(v)) for v in INTS], pa.decimal128(18, 0)),),
    "wide": (pa.array([Decimal(int(v)) * 10**20 for v in INTS], pa.decimal128(30, 0)),),
    "composite": (pa.array(INTS % 70), pa.array([f"s{v // 70}" for v in INTS])),
}


def master(kind: str) -> tuple[pa.Table, list[str]]:
    columns = MASTERS[kind]
    names = [f"k{i}" for i in range(len(columns))]
    table = pa.table(
        [
            *columns,
            pa.array(np.arange(1, N + 1)),
            pa.array([f"name {i}" * (i % 5) if i % 11 else None for i in range(N)]),
        ],
        names=[*names, "m_sk", "name"],
    )
    return table, names


def publish(table, names, root, **options):
    return publish_snapshot(
        table.to_batches(max_chunksize=700),
        table.schema,
        root,
        "m",
        names,
        **{"page_tuples": 32} | options,
    )


def everything(relation, columns):
    rows = [
        r for i in range(relation.partition_count) for r in relation.read(i, columns).to_pylist()
    ]
    return sorted(rows, key=lambda r: r["m_sk"])


@pytest.mark.parametrize("kind", MASTERS)
@pytest.mark.parametrize("owned", [None, range(1, 64, 3)], ids=["all", "some"])
def test_every_row_is_in_one_partition_with_its_code(tmp_path, kind, owned):
    table, names = master(kind)
    manifest = publish(table, names, tmp_path)
    keys = master_keys(table.schema, names)
    in_bucket = buckets(
        keys.master_codes(table.combine_chunks().to_batches()[0])[0], keys.exact, 64
    )
    expected = table.filter(
        pa.array(np.isin(in_bucket, list(range(64) if owned is None else owned)))
    ).to_pylist()
    for tuples in (1, 32, 333, 10**6):
        relation = open_snapshot(tmp_path, partition_tuples=tuples, buckets=owned)
        assert everything(relation, table.schema.names) == expected
        assert relation.tuple_count == len(expected) and relation.unique == (kind != "repeated")
        for i in range(relation.partition_count):
            batch, codes = relation.read(i, ["name", *names]), relation.read_codes(i)
            assert batch.schema.names == ["name", *names]
            assert (keys.master_codes(batch)[0] == codes).all()
            assert len(codes) <= max(tuples, 32) and len(codes) <= relation.partition_tuples
        relation.close()
    assert manifest.tuple_count == N and manifest.unique == (kind != "repeated")


@pytest.mark.parametrize("kind", MASTERS)
def test_partitions_of_names_exactly_where_a_key_may_be(tmp_path, kind):
    table, names = master(kind)
    publish(table, names, tmp_path)
    relation = open_snapshot(tmp_path, partition_tuples=100)
    held = {}
    for i in range(relation.partition_count):
        for code in relation.read_codes(i).tolist():
            held.setdefault(code, set()).add(i)
    known = np.array(list(held))
    for code, (first, last) in zip(
        known.tolist(), relation.partitions_of(known).tolist(), strict=True
    ):
        assert held[code] == set(range(first, last))
    strangers = np.setdiff1d(np.concatenate([known - 1, known + 1, [-(2**63), 2**63 - 1]]), known)
    ranges = relation.partitions_of(strangers)
    assert (ranges[:, 1] - ranges[:, 0] <= 1).all()
    assert (ranges[:, 1] <= relation.partition_count).all()


def test_keys_of_other_buckets_are_nowhere(tmp_path):
    table, names = master("int")
    publish(table, names, tmp_path)
    mine = open_snapshot(tmp_path, buckets=range(0, 64, 2))
    other = open_snapshot(tmp_path, buckets=range(1, 64, 2))
    codes = np.concatenate([other.read_codes(i) for i in range(other.partition_count)])
    assert (mine.partitions_of(codes) == 0).all()


def test_null_keys_are_left_out_and_counted(tmp_path):
    table = pa.table({"a": [1, None, 3, None], "b": ["x", "y", None, None], "m_sk": [0, 1, 2, 3]})
    assert publish(table, ["a", "b"], tmp_path / "composite").null_keys == 3
    assert publish(table, ["b"], tmp_path / "string").null_keys == 2
    manifest = publish(table.slice(1, 1), ["a"], tmp_path / "none")
    assert (manifest.null_keys, manifest.tuple_count) == (1, 0)


def test_an_empty_master_has_one_empty_partition(tmp_path):
    table, names = master("composite")
    publish(table.slice(0, 0), names, tmp_path)
    relation = open_snapshot(tmp_path)
    assert relation.partition_count == 1 and relation.tuple_count == 0 and relation.unique
    assert len(relation.read_codes(0)) == 0 and relation.read(0, ["name"]).schema.names == ["name"]
    assert (relation.partitions_of(np.array([1, 2])) == 0).all()


def test_only_asked_columns_are_read(tmp_path):
    table, names = master("int")
    publish(table.append_column("wide", pa.array(["x" * 200] * N)), names, tmp_path, bucket_count=4)
    relation = open_snapshot(tmp_path)
    for i in range(relation.partition_count):
        relation.read_codes(i)
    assert relation.bytes_read == 8 * N
    narrow, wide = relation.with_partition(4096), relation.with_partition(4096)
    for i in range(narrow.partition_count):
        narrow.read(i, ["m_sk"])
        wide.read(i, ["wide"])
    assert narrow.bytes_read < 10 * N < 200 * N < wide.bytes_read
    assert relation.tuple_bytes > 200
    assert relation.partition_bytes >= relation.partition_tuples * 200
    assert relation.read(0, []).num_rows == len(relation.read_codes(0))


def test_direct_reads_give_the_same(tmp_path):
    table, names = master("string")
    publish(
        table.append_column(
            "wide", pa.array([None if i % 7 == 0 else "x" * (i % 90) for i in range(N)])
        ),
        names,
        tmp_path,
        bucket_count=3,
    )
    for size in (1, 1000):
        cached, direct = (
            open_snapshot(tmp_path, partition_tuples=size, direct=d) for d in (False, True)
        )
        for i in range(cached.partition_count):
            assert (cached.read_codes(i) == direct.read_codes(i)).all()
            for columns in (["wide", "m_sk"], ["m_sk"]):
                assert cached.read(i, columns).equals(direct.read(i, columns))


@pytest.mark.parametrize("columns", [["m_sk"], ["m_sk", "wide"]])
@pytest.mark.parametrize("algorithm", REGISTRY)
def test_what_is_read_ahead_is_not_read_again(tmp_path, algorithm, columns, monkeypatch):
    here, read = [], SnapshotRelation._read

    def watched(*arguments):
        here.append(threading.current_thread() is threading.main_thread())
        return read(*arguments)

    monkeypatch.setattr(SnapshotRelation, "_read", watched)

    def read_from_files():
        return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])

    table, names = master("int")
    publish(table.append_column("wide", pa.array(["x" * 500] * N)), names, tmp_path, bucket_count=2)
    relation = open_snapshot(tmp_path, direct=True)
    stream = table.select(names)
    join = open_join(
        algorithm,
        memory=1_000_000,
        stream=stream.schema,
        master=relation,
        on=[(names[0], names[0])],
        columns=columns,
        parameters={"disk_tuples": 256},
    )
    before = read_from_files()
    for _ in range(4):
        for chunk in stream.to_batches(max_chunksize=500):
            list(join.process(chunk))
    list(join.drain())
    assert join.stats.bytes_read > 0 and sum(here) < len(here) / 4, (
        "who reads ahead, reads in the background"
    )
    assert read_from_files() - before < 1.2 * join.stats.bytes_read + join.spec.memory


def test_hashed_keys_that_collide_are_still_unique(tmp_path, monkeypatch):
    table, names = master("string")
    monkeypatch.setattr("semistream.keys._hash_bytes", lambda offsets, data, h: h.fill(5))
    assert publish(table, names, tmp_path).unique
    again = pa.concat_tables([table, table.slice(N - 1)])
    assert not publish(again, names, tmp_path).unique


def test_a_failed_publish_changes_nothing(tmp_path):
    table, names = master("int")
    publish(table, names, tmp_path)

    def broken():
        yield from table.to_batches()
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        publish_snapshot(broken(), table.schema, tmp_path, "m", names)
    assert current_version(tmp_path) == "v000001"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "CURRENT", "v000001"]


def test_a_publisher_that_died_leaves_nothing_behind(tmp_path):
    table, names = master("int")
    pid = os.fork()
    if not pid:  # dies before it makes its version the current one
        publishing.write_text = lambda *_: os._exit(9)
        publishing.Manifest.write = lambda *_, **__: os._exit(9)
        publish(table, names, tmp_path)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert list(tmp_path.glob(".publishing-*")) and current_version(tmp_path) is None
    publish(table, names, tmp_path)
    assert not list(tmp_path.glob(".publishing-*")) and current_version(tmp_path) == "v000001"


def test_old_versions_go_and_pinned_ones_stay(tmp_path):
    table, names = master("int")
    publish(table, names, tmp_path, bucket_count=2)
    pin(tmp_path, "app/one", "v000001")
    for _ in range(4):
        publish(table, names, tmp_path, bucket_count=2)
    assert sorted(p.name for p in tmp_path.glob("v*")) == [
        "v000001",
        "v000003",
        "v000004",
        "v000005",
    ]
    pin(tmp_path, "app/one", "v000005")
    publish(table, names, tmp_path, bucket_count=2)
    assert sorted(p.name for p in tmp_path.glob("v*")) == ["v000004", "v000005", "v000006"]
    assert current_version(tmp_path) == "v000006"


def test_damage_and_absence_are_told(tmp_path):
    with pytest.raises(ConfigError, match="semistream snapshot"):
        open_snapshot(tmp_path)
    table, names = master("int")
    publish(table, names, tmp_path, bucket_count=1)
    path = tmp_path / "v000001" / "bucket-00000.codes"
    before = path.read_bytes()
    path.write_bytes(before[: 8 * table.num_rows + 8])
    with pytest.raises(StateError, match="damaged"):
        open_snapshot(tmp_path)
    path.write_bytes(before)
    with pytest.raises(ConfigError, match="must name a column"):
        publish(table, ["nope"], tmp_path)


@pytest.mark.parametrize("direct", [False, True])
def test_any_flipped_bit_is_told_or_is_in_what_is_not_read(tmp_path, direct):
    """Of a payload with every kind of column, read whole and column by column: what comes is as it
    was written, or an error."""
    rows = 300
    table = pa.table(
        {
            "k": np.arange(rows),
            "t": [f"text {i}" if i % 7 else None for i in range(rows)],
            "b": [i % 3 == 0 for i in range(rows)],
            "l": [[i, i + 1] for i in range(rows)],
            "x": np.arange(rows) / 8,
            "wide": ["w" * 50] * rows,
        }
    )
    publish(table, ["k"], tmp_path, bucket_count=1, page_tuples=128)

    def everything() -> list:
        relation = open_snapshot(tmp_path, direct=direct)
        out = [relation.read_codes(p).tolist() for p in range(relation.partition_count)]
        for columns in (table.schema.names, ["k"], ["b"], ["x"]):
            out += [relation.read(p, columns).to_pydict() for p in range(relation.partition_count)]
        relation.close()
        return out

    wanted, random, refused = everything(), np.random.default_rng(5), Counter()
    for path in [tmp_path / "v000001" / f"bucket-00000.{s}" for s in ("arrow", "codes")] + [
        tmp_path / "v000001/manifest.json",
        tmp_path / "CURRENT",
    ]:
        before = path.read_bytes()
        for at in random.choice(len(before), min(60, len(before)), replace=False).tolist():
            flipped = bytearray(before)
            flipped[at] ^= 1 << int(random.integers(8))
            path.write_bytes(flipped)
            try:
                assert everything() == wanted, (path.name, at)
            except StateError as e:
                assert str(path) in str(e) and "published anew" in str(e)
                refused[path.name] += 1
        path.write_bytes(before)
    assert (
        min(
            refused[n]
            for n in ("bucket-00000.arrow", "bucket-00000.codes", "manifest.json", "CURRENT")
        )
        > 20
    )


def test_rows_out_of_order_are_refused(tmp_path):
    table, names = master("int")
    with (
        publishing.Publication(tmp_path, "m", table.schema, names) as publication,
        pytest.raises(StateError, match="order"),
        publication.writer(0) as writer,
    ):
        writer.write(table.to_batches()[0])


def written_to_files():
    return int(re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())[1])


@pytest.mark.parametrize(("memory", "times"), [(40_000_000, 1), (14_000_000, 1.4), (4_000_000, 2)])
def test_as_many_rows_as_fit_into_the_memory_are_written_once(memory, times, tmp_path):
    rows = 150_000
    table = pa.table({f"c{i}": np.arange(rows) * 31 + i for i in range(14)})
    before, allocated, most = written_to_files(), pa.total_allocated_bytes(), [0]

    def watch(_):
        most[0] = max(most[0], pa.total_allocated_bytes() - allocated)

    manifest = publish_snapshot(
        table.to_batches(max_chunksize=10_000),
        table.schema,
        tmp_path,
        "m",
        ["c0"],
        memory=memory,
        progress=watch,
    )
    written = (written_to_files() - before) / (table.nbytes + 8 * rows)
    assert times * 0.85 < written < times * 1.15 and manifest.tuple_count == rows
    assert most[0] < memory
    assert not list(tmp_path.glob("v*/run-*"))
    relation = open_snapshot(tmp_path)
    found = pa.Table.from_batches(
        [relation.read(number, table.column_names) for number in range(relation.partition_count)]
    )
    assert found.sort_by("c0").equals(table.cast(found.schema))


@pytest.mark.parametrize("flush", [True, False])
def test_only_a_snapshot_that_stays_is_flushed_to_disk(flush, tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    table, names = master("int")
    publish_snapshot(table.to_batches(), table.schema, tmp_path, "m", names, flush=flush)
    assert bool(flushed) is flush


@pytest.mark.parametrize(
    ("kept", "bytes_of_r", "number"),
    [(False, 100_000, 1), (False, 5_000_000, 4), (True, 100_000, 64)],
)
def test_a_snapshot_for_one_join_has_as_many_buckets_as_its_size_needs(
    kept, bytes_of_r, number, tmp_path
):
    """Operators of a load may each own some buckets of a snapshot that is kept."""
    codes = np.random.default_rng(1).integers(0, 2**62, bytes_of_r // 8)
    pq.write_table(pa.table({"k": codes}), tmp_path / "m.parquet")
    pq.write_table(pa.table({"k": codes[:10]}), tmp_path / "s.parquet")
    names = {"stream": "s", "master": "m", "out": "o"}
    settings = JoinFiles.load(
        {name: tmp_path / f"{file}.parquet" for name, file in names.items()}
        | {"on": "k"}
        | ({"snapshot": tmp_path / "kept"} if kept else {})
    )
    with ExitStack() as stack:
        [role] = open_star(settings, stack, silent, 16_000_000).roles
        assert role.master.manifest.bucket_count == number
        assert role.master.tuple_count == len(codes)
