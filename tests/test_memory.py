"""What processes take beside M, as the operating system or Arrow counts it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from loads import SmallLoad
from provisioned import provision
from semistream.files.opening import open_source
from semistream.gathering import Gathered
from semistream.job import Job
from semistream.joins.arena import Arena
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.frequency_detection import FrequencyParameters, FrequentTuples
from semistream.joins.master_cache import MasterCache
from semistream.joins.non_swappable import NonSwappablePart
from semistream.joins.output import OUTPUT_BYTES
from semistream.joins.spec import join_spec
from semistream.master.memory import MemoryRelation
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.parquet_decoding import FEW_COLUMNS, open_parquet, parquet_batches
from semistream.resident import resident
from semistream.sizing import open_join
from semistream.stream_joins import open_stream_join
from semistream.streaming.spool import WRITTEN_BYTES, Spool

MEGABYTE = 1_000_000


@pytest.mark.parametrize("groups", [1, 8])
def test_reading_parquet_takes_memory_neither_by_the_file_nor_by_its_row_groups(tmp_path, groups):
    rows = 2_000_000
    random = np.random.default_rng(1)
    table = pa.table({name: random.integers(0, 2**60, rows) for name in ("k", "a", "b", "c")})
    pq.write_table(
        table, tmp_path / "m.parquet", row_group_size=rows // groups, use_dictionary=False
    )
    assert (tmp_path / "m.parquet").stat().st_size > 60 * MEGABYTE
    before, peak, seen = pa.total_allocated_bytes(), 0, 0
    for chunk in open_source("stream", tmp_path / "m.parquet").chunks():
        seen += chunk.rows.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert seen == rows and peak < 20 * MEGABYTE
    with open_parquet(tmp_path / "m.parquet") as file:
        for _ in file.iter_batches(65_536, use_threads=False):
            assert pa.total_allocated_bytes() - before < 20 * MEGABYTE


def columns(count, rows, name, seed=6):
    """Numbers, some of them null, and texts, {name}0, {name}1 and so on."""
    random = np.random.default_rng(seed)
    words = pa.array([f"text {i:015d}" for i in range(5000)])
    kinds = [
        lambda: random.random(rows),
        lambda: words.take(random.integers(0, 5000, rows)),
        lambda: pa.array(random.integers(0, 10**6, rows), mask=random.random(rows) < 0.1),
    ]
    return {f"{name}{i}": pa.array(kinds[i % 3]()) for i in range(count)}


def test_the_columns_of_a_wide_parquet_file_are_not_all_read_at_the_same_time(tmp_path):
    table, path = pa.table(columns(400, 20_000, "c")), tmp_path / "wide.parquet"
    pq.write_table(table, path, row_group_size=12_000)
    before, peak, first = pa.total_allocated_bytes(), 0, 0
    with open_parquet(path) as file:
        for rows in parquet_batches(file, table.column_names, 65_536, 8 * MEGABYTE):
            peak = max(peak, pa.total_allocated_bytes() - before)
            assert rows.equals(table.slice(first, len(rows)).combine_chunks().to_batches()[0])
            first += len(rows)
    assert first == 20_000 and peak < 40 * MEGABYTE


@pytest.mark.parametrize("names", [slice(None), slice(None, None, -3), slice(FEW_COLUMNS)])
def test_columns_that_are_read_apart_are_put_side_by_side(tmp_path, monkeypatch, names):
    monkeypatch.setattr("semistream.parquet_decoding.HELD_BYTES", 100_000)
    table = pa.table(
        {
            "list": [[i, None] for i in range(3000)],
            "struct": [{"a": i, "b": str(i)} for i in range(3000)],
            "kind": pa.array(list("abc") * 1000).dictionary_encode(),
            "nothing": pa.nulls(3000, pa.string()),
            **columns(50, 3000, "a."),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    table = pq.read_table(tmp_path / "t.parquet").select(table.column_names[names])
    with open_parquet(tmp_path / "t.parquet") as file:
        batches = list(parquet_batches(file, table.column_names, 1500, 300_000))
    assert pa.Table.from_batches(batches).select(table.column_names).equals(table)
    assert all(0 < b.num_rows <= 1500 for b in batches)


def test_many_batches_of_one_row_take_no_more_than_their_rows():
    """Of 401 columns they would take 200 MB."""
    table = pa.table({"n": np.arange(800), **columns(400, 800, "c")})
    wide, gathered = table.combine_chunks().to_batches()[0], Gathered(table.schema)
    before, most = resident(), 0
    for row in range(len(wide)):
        gathered.add(wide.take(pa.array([row])))
        most = max(most, resident() - before)
    assert gathered.take().equals(table) and gathered.size == 0
    assert most < 40 * MEGABYTE


def test_a_task_s_rows_are_stored_in_large_pieces():
    """A join's outputs of some hundred rows each would be as many statements of a sink."""
    table = pa.table({"n": np.arange(100_000), **columns(15, 100_000, "c")})
    with Spool(table.schema, (table.schema,), ((),)) as spool:
        for first in range(0, len(table), 1000):
            rows = table.take(pa.array(range(first, first + 1000)))
            spool.write(rows.combine_chunks().to_batches()[0], None)
        stored = spool.joined()
        sizes = [batch.nbytes for batch in stored.to_batches()]
        assert stored.equals(table) and len(sizes) < 8
        assert max(sizes) < 2 * WRITTEN_BYTES


@pytest.mark.parametrize("distinct", [1, 50, 10**15])
def test_a_bucket_larger_than_the_memory_is_sorted_in_pieces(tmp_path, distinct):
    rows = 400_000
    random = np.random.default_rng(2)
    table = pa.table(
        {
            "k": random.integers(0, distinct, rows),
            "v": np.arange(rows),
            "s": [f"{i % 1000:040d}" for i in range(rows)],
        }
    )
    before, peak = pa.total_allocated_bytes(), [0]

    def watch(_):
        peak[0] = max(peak[0], pa.total_allocated_bytes() - before)

    manifest = publish_snapshot(
        (b for b in table.to_batches(max_chunksize=5000)),
        table.schema,
        tmp_path,
        "m",
        ["k"],
        bucket_count=1,
        memory=4 * MEGABYTE,
        progress=watch,
    )
    assert manifest.tuple_count == rows and manifest.unique == (distinct > rows)
    assert peak[0] < 4 * MEGABYTE
    relation = open_snapshot(tmp_path)
    seen = []
    for number in range(relation.partition_count):
        codes, read = relation.read_codes(number), relation.read(number, ["k", "v", "s"])
        assert (np.diff(codes) >= 0).all()
        seen.append(read)
    found = pa.Table.from_batches(seen).sort_by("v")
    assert found.equals(table.cast(found.schema))
    assert not list(tmp_path.glob("*/run-*"))


# ---- the console command, as the operating system sees it


def wide(rows, first=0):
    """Rows of some 900 bytes, which take a fiftieth of that in a Parquet file."""
    random = np.random.default_rng(3)
    words = pa.array([f"a text of eighty characters {i:052d}" for i in range(1000)])
    columns = {"k": np.arange(first, first + rows)}
    columns |= {f"n{i}": random.integers(0, 1000, rows) for i in range(6)}
    columns |= {f"s{i}": words.take(pa.array(random.integers(0, 1000, rows))) for i in range(10)}
    return pa.table(columns)


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory):
    """Files of so many wide rows, each written once."""
    directory = tmp_path_factory.mktemp("wide")

    def of(rows, kind="parquet"):
        path = directory / f"m{rows}.{kind}"
        if not path.exists():
            write(path, rows)
        return path

    return of


def write(path, rows):
    """In one row group, without holding all rows here. Small pages, so that few rows fill those
    that are read."""
    if path.suffix == ".parquet":
        pq.write_table(wide(rows), path, row_group_size=rows, data_page_size=100_000)
        return
    with csv.CSVWriter(path, wide(1).schema) as writer:
        for first in range(0, rows, 20_000):
            writer.write_table(wide(min(20_000, rows - first), first))


def peak_of(*arguments):
    """The most anonymous memory of the command's process, in bytes, looked at from outside."""
    return peak_of_python("-m", "semistream.cli", *arguments)


def peak_of_python(*arguments):
    program, most = [sys.executable, *map(str, arguments)], 0
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as command:
        while command.poll() is None:
            most = max(most, resident(command.pid))
            time.sleep(0.005)
        assert command.returncode == 0, command.stdout.read().decode()
    return most


# Whose buffers, of which none grows with R, are full: the base; and more than 20 times MEMORY.
FEW, MANY, MEMORY = 40_000, 370_000, 16 * MEGABYTE
BASE = 180 * MEGABYTE  # of publishing, that docs/loading.md tells
JOIN_BASE = 220 * MEGABYTE  # of a process that joins, that README tells


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_publishing_takes_its_memory_whatever_the_size_of_the_master_data(
    tmp_path, wide_file, kind
):
    def publish(rows):
        return peak_of(
            "snapshot",
            "--master",
            wide_file(rows, kind),
            "--on",
            "k",
            "--memory",
            MEMORY,
            "--out",
            tmp_path / f"snapshot{rows}",
        )

    # below this, not all of a reader's buffers are full; from there on nothing grows any more
    base = min(publish(5 * FEW), BASE)
    assert publish(MANY) < base + 1.1 * MEMORY


PUBLISH = """
import sys
from pathlib import Path
from semistream.provisioning.publishing import publish
from semistream.warehouse import connect
url, snapshots, memory = sys.argv[1:]
publish("m", ["k"], connect(url), Path(snapshots), memory=int(memory))
"""


@pytest.mark.slow
def test_publishing_takes_its_memory_from_a_database(warehouse, warehouse_url, tmp_path, wide_file):
    rows = 5 * FEW  # 180 MB: its buffers are full, and all of them would be too much
    values = {
        "name": "wide",
        "stream": {},
        "on": {"k": "k"},
        "fact_table": "facts",
        "master": {"name": "m", "path": str(wide_file(rows))},
    }
    provision(Job.load(values), warehouse)
    peak = peak_of_python("-c", PUBLISH, warehouse_url, tmp_path / "snapshots", MEMORY)
    assert open_snapshot(tmp_path / "snapshots" / "m" / "k").tuple_count == rows
    assert peak < BASE + 1.1 * MEMORY


@pytest.mark.slow
@pytest.mark.parametrize(("out", "tuples"), [("parquet", 200_000), ("jsonl", 40_000)])
def test_a_join_takes_its_memory_whatever_the_size_of_the_master_data(
    tmp_path, wide_file, out, tuples
):
    random, stats = np.random.default_rng(4), tmp_path / "stats.json"
    pq.write_table(
        pa.table({"id": np.arange(tuples), "k": random.zipf(1.3, tuples) % FEW}),
        tmp_path / "s.parquet",
        row_group_size=tuples,
    )

    def join(rows):
        return peak_of(
            "join",
            "--stream",
            tmp_path / "s.parquet",
            "--master",
            wide_file(rows),
            "--on",
            "k",
            "--memory",
            MEMORY,
            "--algorithm",
            "elevatorjoin",
            "--stats",
            stats,
            "--out",
            tmp_path / f"out.{out}",
        )

    base, peak = join(FEW), join(MANY)
    told = json.loads(stats.read_text())
    assert peak < base + 1.1 * MEMORY
    assert told["memory_peak"] <= MEMORY and 0.9 * peak < told["resident_peak"] < 1.1 * peak


@pytest.mark.slow
def test_a_join_takes_its_memory_though_most_tuples_wait_for_one_partition(tmp_path):
    rows = 3_000_000
    keys = np.random.default_rng(5).integers(0, 1_000_000, rows)
    keys[::2] = 7
    pq.write_table(
        pa.table({"id": np.arange(rows), "k": keys}), tmp_path / "s.parquet", row_group_size=100_000
    )
    pq.write_table(
        pa.table({"k": np.arange(1_000_000), "v": np.arange(1_000_000)}), tmp_path / "m.parquet"
    )

    peak = peak_of(
        "join",
        "--stream",
        tmp_path / "s.parquet",
        "--master",
        tmp_path / "m.parquet",
        "--on",
        "k",
        "--memory",
        40 * MEGABYTE,
        "--algorithm",
        "elevatorjoin",
        "--parameters",
        "waiting_tuples=1500000",
        "--out",
        tmp_path / "out.parquet",
    )
    assert peak < JOIN_BASE + 1.1 * 40 * MEGABYTE


POINTS = """
import json, sys
from semistream import cli
from semistream.resident import ResidentPeak, give_back
for arguments in json.loads(sys.argv[1]):
    peak = ResidentPeak()
    if cli.main(arguments):
        sys.exit(f"{arguments} failed")
    print("PEAK", peak.read(), flush=True)
    peak.stop()
    give_back()
"""


def check_peaks(points):
    """Run commands in one process, and compare the most memory of each with what is promised for
    its M. points: (M in bytes, arguments); in the order of M, as what one has may stay for a
    moment."""
    points = sorted(points, key=lambda point: point[0])
    commands = [[*map(str, arguments), "--memory", str(memory)] for memory, arguments in points]
    run = subprocess.run(
        [sys.executable, "-c", POINTS, json.dumps(commands)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    peaks = [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("PEAK ")]
    assert len(peaks) == len(points)
    wrong = {
        " ".join(command): peak // MEGABYTE
        for command, peak, (memory, _) in zip(commands, peaks, points, strict=True)
        if peak > JOIN_BASE + 1.1 * memory
    }
    assert not wrong


def keyed_file(path, count, rows, keys):
    random = np.random.default_rng(7)
    pq.write_table(
        pa.table(
            {
                "k": random.permutation(keys)[:rows]
                if rows <= keys
                else random.integers(0, keys, rows),
                **columns(count - 1, rows, path.stem[0]),
            }
        ),
        path,
    )
    return path


LEAST = {"meshjoin": 0, "elevatorjoin": 0, "auto": 0, "ssbj": 60_000}  # bytes more than others need


@pytest.mark.slow
def test_a_join_takes_its_memory_whatever_the_number_of_columns(tmp_path):
    """The smaller M, the fewer rows are joined at a time."""
    points = []
    for left, right, rows, smallest in [
        (1, 2, 5000, 20_000),
        (10, 9, 1500, 30_000),
        (200, 200, 600, 250_000),
        (399, 1, 500, 150_000),
    ]:
        stream = keyed_file(tmp_path / f"s{left}.parquet", left, rows, 1200)
        master = keyed_file(tmp_path / f"m{left}_{right}.parquet", right, 1000, 1000)
        points += [
            (
                memory + more,
                [
                    "join",
                    "--stream",
                    stream,
                    "--master",
                    master,
                    "--on",
                    "k",
                    "--algorithm",
                    algorithm,
                    "--join-type",
                    "left",
                    "--out",
                    tmp_path / f"out.{kind}",
                ],
            )
            for algorithm, more in LEAST.items()
            for memory, kind in ((smallest, "parquet"), (64 * MEGABYTE, "jsonl"))
            if memory == smallest or (left, algorithm) == (200, "auto")
        ]
    check_peaks(points)


@pytest.mark.slow
def test_a_join_of_streams_takes_its_memory_whatever_the_number_of_columns(tmp_path):
    points = []
    for count, rows, smallest in [(1, 20_000, 100_000), (200, 2500, 2 * MEGABYTE)]:
        left, right = (
            keyed_file(tmp_path / f"{name}{count}.parquet", count, rows, 2 * rows) for name in "ab"
        )
        points += [
            (
                memory,
                [
                    "join-streams",
                    "--left",
                    left,
                    "--right",
                    right,
                    "--on",
                    "k",
                    "--algorithm",
                    algorithm,
                    "--join-type",
                    "full",
                    "--out",
                    tmp_path / "out.parquet",
                ],
            )
            for algorithm in ("pjoin", "xjoin")
            for memory in (smallest, 64 * MEGABYTE)
        ]
    check_peaks(points)


def least_of(work):
    """The most that Python and NumPy have allocated for the work, beside arrays of the arena."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fill(cache, n):
    """With keys 0, 1, 2, …, each with one tuple and 0 to 4 times used."""
    for first in range(0, n, 100_000):
        part = np.arange(first, first + 100_000)
        stage(cache, part, part % 5)
        cache.switch()


def stage(cache, keys, frequencies):
    cache.stage(keys, frequencies)
    rows = np.arange(len(keys))
    cache.stage_tuples(pa.record_batch([keys], names=["v"]), rows, rows, 1e9)


def test_what_is_done_to_a_cache_takes_little_memory():
    n = 1_000_000
    cache = MasterCache(pa.schema([("v", pa.int64())]), n, n, 0)
    fill(cache, n)

    def save_and_evict():
        written = sum(batch.num_rows for batch in cache.saved())
        cache.keep(cache.entries_where(lambda served, tuples: served * 2.0 > 3 * tuples))
        return written

    written, peak = least_of(save_and_evict)
    left = np.flatnonzero(np.arange(n) % 5 > 1)
    firsts, counts, hits = cache.probe(left)
    assert written == n and hits == len(left) == cache.tuples and (counts == 1).all()
    assert cache.store.get(firsts.astype(np.int64))[0].equals(pa.array(left))
    assert peak < 4 * n  # bytes


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A million master tuples k, v."""
    root, keys = tmp_path_factory.mktemp("narrow"), np.arange(1_000_000)
    table = pa.table({"k": keys, "v": keys})
    publish_snapshot(table.to_batches(), table.schema, root, "m", ["k"], page_tuples=1024)
    return join_spec("", 10**9, pa.schema([("k", pa.int64())]), open_snapshot(root), [("k", "k")])


@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [("elevatorjoin", {"waiting_tuples": 15_000}), ("meshjoin", {}), ("hybridjoin", {})],
)
def test_a_state_of_wide_tuples_is_saved_in_portions_of_some_bytes(narrow, algorithm, parameters):
    rows = 15_000
    keys = np.random.default_rng(9).integers(0, 1_000_000, rows)
    table = pa.table({"k": keys, **columns(200, rows, "s")})
    join = open_join(
        algorithm,
        memory=40 * MEGABYTE,
        stream=table.schema,
        master=narrow.master,
        on=[("k", "k")],
        parameters=parameters,
    )
    for batch in table.to_batches(max_chunksize=2000):
        for _ in join.process(batch):
            pass
    sizes = [portion.nbytes for portion in join._state()[0]["waiting"]]
    assert sum(sizes) > 2 * OUTPUT_BYTES and max(sizes) < 1.1 * OUTPUT_BYTES


def test_batches_of_an_outer_join_are_bounded_though_the_other_side_is_wide():
    wide = pa.table({"k": np.arange(200), **columns(400, 200, "m")})
    lone = pa.record_batch({"k": np.arange(1000, 31_000), "n": np.arange(30_000)})
    join = open_join(
        "meshjoin",
        memory=8 * MEGABYTE,
        stream=lone.schema,
        on=[("k", "k")],
        master=MemoryRelation("m", wide, ["k"]),
        join_type="left",
    )
    streams = open_stream_join(
        "pjoin",
        memory=8 * MEGABYTE,
        left=lone.schema,
        right=wide.schema,
        on=[("k", "k")],
        join_type="full",
    )
    for outputs in (
        [*join.process(lone), *join.drain()],
        [*streams.process(0, lone), *streams.drain()],
    ):
        sizes = [out.joined.nbytes for out in outputs if out.joined is not None]
        assert sum(out.joined.num_rows for out in outputs if out.joined is not None) == 30_000
        assert sum(sizes) > 5 * OUTPUT_BYTES and max(sizes) < 1.1 * OUTPUT_BYTES


def test_frequent_tuples_change_places_in_little_memory(narrow):
    most, n = 750_000, 800_000
    h_r = FrequentTuples(narrow, Arena(10**9), FrequencyParameters(cache_tuples=most))
    fill(h_r.cache, n)
    stage(h_r.cache, np.array([n]), np.array([3]))
    _, peak = least_of(h_r.end_period)
    assert h_r.cache.tuples == most and h_r.least == 0.0  # of those used 0 times, the first
    left = np.sort(h_r.cache.keys)
    assert left.tolist() == [
        *np.flatnonzero((np.arange(n) % 5 > 0) | (np.arange(n) < 5 * (most - 1 - n // 5 * 4))),
        n,
    ]
    assert peak < 10 * n  # bytes, of which half are those of a portion


@pytest.mark.slow
def test_what_stays_in_the_disk_buffer_is_loaded_and_saved_in_little_memory(narrow):
    wanted = np.flatnonzero(np.arange(1_000_000) % 3)
    one, other = (NonSwappablePart(narrow, Arena(10**9), 900_000) for _ in range(2))

    def load():
        for number in one.choose(wanted):
            one.gather(DiskPartition(narrow, number))
        one.complete()

    _, peak = least_of(load)
    written, saving = least_of(lambda: sum(batch.num_rows for batch in one.tables()["resident"]))
    assert written == one.tuples == len(wanted)
    assert peak < 16 * len(wanted) and saving < 4 * len(wanted)  # bytes
    other.restore({"resident": one.tables()["resident"].read_all()}, {})
    for part in (one, other):
        assert np.sort(part.codes).tolist() == wanted.tolist()
        for portion in part.portions():
            rows = np.arange(len(portion.codes))
            assert portion.take(rows)["v"].to_numpy().tolist() == portion.codes.tolist()
    some = NonSwappablePart(narrow, Arena(10**9), len(wanted))
    some.note(np.repeat(wanted, 1 + (wanted % 2))[-len(wanted) :])
    found, peak = least_of(some.most_frequent)
    assert (found[:100] % 2).all() and not (found[-100:] % 2).any()
    assert len(found) > len(wanted) / 2 and peak < 28 * len(wanted)  # bytes, while H_S has room
    less = NonSwappablePart(narrow, Arena(10**9), 300_000)
    less.restore({"resident": one.tables()["resident"].read_all()}, {})
    assert 250_000 < less.tuples <= 300_000 and (np.diff(np.sort(less.codes)) > 0).all()


# ---- the app's Python workers

TASK = """
import json, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.sinks.registry import open_sink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.job import StreamSpec
from semistream.data_files import DataFile
from semistream.streaming.sources.contract import Splits
from semistream.streaming.sources.file_reader import find_reader
from semistream.streaming.task import Work
from semistream.warehouse import create_all
home, setting, memory = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
stream = pq.read_schema(home / "s.parquet").remove_metadata()
warehouse = Warehouse(f"sqlite:///{home / setting}.db", "facts", ("m_sk",), 30)
create_all(warehouse.engine)
checkpoint = home / setting
(checkpoint / "state").mkdir(parents=True)
columns = {c: c for c in pq.read_schema(home / "m.parquet").names if c not in ("k", "m_sk")}
join = RolePlan("meshjoin", memory, "inner", {}, (("k", "k"),), 1,
                str(home / "snapshots" / "m" / "k" / "v000001"), columns)
schema = join.open(stream, 0).output_schema
sink = open_sink(setting if setting == "sql" else str(home / "table"), warehouse, checkpoint)
sink = sink.prepare(stream, pa.schema(list(schema)[len(stream):]), ("id",))
plan = Plan((join,))
work = Work("wide", 0, 0, plan, {}, str(checkpoint), (stream,), (("id",),), sink,
            replicated=((0, Splits(find_reader(StreamSpec(), schema=stream),
                                   [DataFile(str(home / "s.parquet"))])),))
loads = [work.join_partition(0, iter(()))]
drain = Work("wide", 0, 1, plan, {0: loads[0].state_files}, str(checkpoint), (stream,),
             (("id",),), sink)
loads.append(drain.join_partition(0, iter(())))
print(sum(load.matched for load in loads), sum(load.unmatched for load in loads))
"""


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["sql", "delta"])
def test_a_task_takes_its_memory_whatever_the_number_of_columns(tmp_path, sink):
    random, memory = np.random.default_rng(8), 400_000
    pq.write_table(
        pa.table(
            {"id": np.arange(1000), "k": random.integers(0, 1200, 1000), **columns(200, 1000, "s")}
        ),
        tmp_path / "s.parquet",
    )
    master = pa.table({"k": np.arange(1000), "m_sk": np.arange(1000), **columns(200, 1000, "m")})
    pq.write_table(master, tmp_path / "m.parquet")
    publish_snapshot(
        master.to_batches(), master.schema, tmp_path / "snapshots" / "m" / "k", "m", ["k"]
    )
    assert peak_of_python("-c", TASK, tmp_path, sink, memory) < JOIN_BASE + 1.1 * memory


class WideLoad(SmallLoad):
    """A stream of one row group, and master data of wide rows."""

    def __init__(self, home, rows, tuples):
        super().__init__(home, f"sqlite:///{home / 'warehouse.db'}")
        self.job = Job.load(
            {
                "name": "wide",
                "master": {"name": "m"},
                "on": {"k": "k"},
                "columns": ["n0", "s0"],
                "stream": {"format": "parquet", "path": str(self.stream_directory), "id": ["id"]},
                "fact_table": "facts",
            }
        )
        batches = (
            keyed(wide(min(20_000, rows - first), first)) for first in range(0, rows, 20_000)
        )
        publish_snapshot(
            batches, keyed(wide(1)).schema, self.paths.snapshots / "m" / "k", "m", ["k"]
        )
        keys = self.random.zipf(1.3, tuples) % rows
        pq.write_table(
            pa.table({"id": np.arange(tuples), "k": keys, "v": keys / 8}),
            self.stream_directory / "s.parquet",
            row_group_size=tuples,
        )


def keyed(rows):
    return rows.append_column("m_sk", rows["k"]).combine_chunks().to_batches()[0]


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["sql", "delta"])
def test_the_workers_of_an_app_take_their_share_whatever_comes(tmp_path, make_app, sink):
    """R of 20 times M, a stream of one large row group, its rows through either sink."""

    def load(rows, tuples):
        home = tmp_path / f"{rows}"
        load = WideLoad(home, rows, tuples)
        app = make_app(
            load, memory=MEMORY, parameters={}, sink="sql" if sink == "sql" else str(home / "delta")
        )
        peaks, looks = dict[int, int](), itertools.count()
        app.start()
        while app.running:
            if next(looks) % 10 == 0:  # looking through all processes takes its time
                peaks = dict.fromkeys(app.workers(), 0) | peaks
            for worker, most in peaks.items():
                peaks[worker] = max(most, resident(worker))
            time.sleep(0.02)
        assert app.end() == 0, app.output()
        told = json.loads((app.checkpoint / "summary.json").read_text())
        assert told["rows_read"] == tuples and told["memory_peak"] <= MEMORY
        [(most,)] = load.query("SELECT max(resident_peak) FROM load_batches")
        assert most == told["resident_peak"] <= 1.05 * max(peaks.values())
        return max(peaks.values())

    base = load(FEW, 300_000)  # first, as kernels that are not compiled yet take memory, once
    assert load(MANY, 300_000) < base + 1.1 * MEMORY / 2
