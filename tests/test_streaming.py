"""The streaming app in this process: sources, sinks, drains, stops, restarts."""

import gc
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import zipimport
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from sqlalchemy import text

import faults
from loads import MASTER, SmallLoad, same, until, verify, with_options
from semistream.errors import ConfigError, TooManyRows
from semistream.job import Job, StreamSpec
from semistream.master.publish import publish_snapshot
from semistream.sketches import read_sketch
from semistream.streaming import app, micro_batch, query
from semistream.streaming.commit import Commits
from semistream.streaming.phases import PHASES
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sources.file_reader import FEW_FILES, loaded_type
from semistream.streaming.sources.kafka import KafkaSource
from semistream.streaming.status import read_status, request_stop
from semistream.streaming.task import Work
from semistream.streaming.waiting import WaitingBound
from semistream.warehouse import connect
from semistream.warehouse.ledger import Ledger


@pytest.mark.parametrize("join_type", ["inner", "left"])
def test_load_is_the_oracles_join_and_a_second_run_is_incremental(spark, load, join_type):
    for rows in (2500, 0, 3000):
        load.add_file(rows)
    summary = load.run(spark, join_type=join_type)
    load.check(join_type)
    joined, unmatched = load.expected(join_type)
    assert summary.rows_read == 5500 and summary.waiting == 0
    assert summary.output_rows == joined.total() and summary.unmatched == unmatched.total()
    assert summary.rejected.keys() == {"no_match", "null_key"}
    assert sum(summary.rejected.values()) == unmatched.total()
    assert summary.memory_peak <= summary.memory_budget == 200_000
    status = read_status(load.paths.checkpoints / "sales")
    assert status.state == "stopped" and status.rows_read == 5500 and status.waiting == 0

    before = load.facts()
    assert load.run(spark, join_type=join_type).rows_read == 0
    same(load.facts(), before)
    load.add_file(2000)
    assert load.run(spark, join_type=join_type).rows_read == 2000
    load.check(join_type)
    states = load.paths.checkpoints / "sales" / "state"
    until(lambda: len(list(states.iterdir())) == 2)  # of the latest commit only


def test_files_without_tuples_need_no_task(spark, sqlite_load, tmp_path, monkeypatch, sink):
    """Not even where the driver has died at it: then it is done again, as any batch."""
    for rows in (0, 900, 0, 0, 700):
        sqlite_load.add_file(rows)
    # Spark takes them by age
    for second, file in enumerate(sorted(sqlite_load.stream_directory.iterdir())):
        os.utime(file, (second + 1, second + 1))
    sqlite_load.sink, settings = sink, {"algorithm": "meshjoin"}
    ran, run, commit = [], app.run_tasks, Ledger.commit

    def noted(spark, work, batch):
        ran.append((work.batch, work.drain))
        return run(spark, work, batch)

    def dies(self, row, *rows):
        if row.batch == 3:
            raise OSError("the driver dies")
        commit(self, row, *rows)

    monkeypatch.setattr(app, "run_tasks", noted)
    monkeypatch.setattr(Ledger, "commit", dies)
    with pytest.raises(OSError, match="driver dies"):
        sqlite_load.run(spark, **settings)
    assert ran == [(0, 0), (1, 0)]  # the first makes the states
    waiting = (
        "SELECT partition, i.waiting_before, i.waiting, state_file FROM load_inputs i JOIN "
        "load_batches USING (load_id) WHERE batch = {} AND drain = 0"
    )
    after, idle = (Counter(sqlite_load.query(waiting.format(batch))) for batch in (1, 2))
    assert {(p, now, now, s) for p, _, now, s in after} == set(idle)
    assert sum(now for _, _, now, _ in idle) > 0
    monkeypatch.setattr(Ledger, "commit", commit)
    assert sqlite_load.run(spark, **settings).rows_read == 700
    assert ran[2:] == [(3, 0), (4, 0), (4, 1)]
    sqlite_load.check()


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_many_small_files_are_decoded_once_each_and_have_no_task_of_their_own(
    spark, sqlite_load, monkeypatch, format
):
    for _ in range(FEW_FILES + 1):
        sqlite_load.add_file(10)
    job = sqlite_load.job
    if format == "csv":
        for file in sqlite_load.stream_directory.iterdir():
            csv.write_csv(pq.read_table(file), file.with_suffix(".csv"))
            file.unlink()
        spec = job.stream.model_copy(update={"format": "csv"})
        job = job.model_copy(update={"stream": spec})
    files = Counter(map(str, sqlite_load.stream_directory.iterdir()))
    decoded, place, exchange = Counter(), micro_batch.place, Work.place_splits

    def exchanged(self, shares):
        decoded.update(file.path for share in shares for _, of in share for file in of.splits)
        return exchange(self, shares)

    def placed(*args):
        work, messages = place(*args)
        decoded.update(
            {file.path: work.plan.partitions for _, of in work.replicated for file in of.splits}
        )
        return work, messages

    monkeypatch.setattr(Work, "place_splits", exchanged)
    monkeypatch.setattr(micro_batch, "place", placed)
    before = finished_tasks(spark)
    assert sqlite_load.run(spark, job, max_files=0).rows_read == 10 * len(files)
    sqlite_load.check()
    assert decoded == files
    # two each that get workers ready, read, join, and finish what waits
    assert finished_tasks(spark) - before <= 8
    decoded.clear()
    sqlite_load.add_file(10)
    if format == "parquet":  # of a few files, each task reads all, without a shuffle
        assert sqlite_load.run(spark, job).rows_read == 10 and set(decoded.values()) == {2}


def finished_tasks(spark) -> int:
    """How many tasks of Spark's have ended so far."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return sum(jobs.apply(i).numCompletedTasks() for i in range(jobs.size()))


def test_files_that_a_state_adds_to_stay_as_long_as_it_does(spark, sqlite_load, monkeypatch):
    from semistream.joins import JoinState

    monkeypatch.setattr(app.App, "_drain", lambda self: None)
    for rows in (300, 100, 100):
        sqlite_load.add_file(rows)
    sqlite_load.run(spark)
    states = sqlite_load.checkpoint / "state"
    last = "SELECT state_file FROM load_inputs JOIN load_batches USING (load_id) WHERE batch = 2"
    chains = [JoinState.files(states / name) for (name,) in sqlite_load.query(last)]
    assert max(map(len, chains)) > 1
    assert {name for chain in chains for name in chain} <= {file.name for file in states.iterdir()}


def test_workers_share_what_the_daemon_that_forks_them_has_imported(spark):
    maps = (
        spark.sparkContext.range(2, numSlices=2)
        .mapPartitions(lambda _: [Path(f"/proc/{os.getppid()}/maps").read_text()])
        .collect()
    )
    assert all("libllvmlite" in text and "libarrow" in text for text in maps)


def test_workers_import_spark_from_its_directory_and_hold_no_list_of_its_archives_files(spark):
    def imported(_):
        import pyspark.worker

        yield pyspark.worker.__file__, *zipimport._zip_directory_cache

    ((file, *archives), *_) = (
        spark.sparkContext.range(1, numSlices=1).mapPartitions(imported).collect()
    )
    assert Path(file).is_file() and archives == []


def test_workers_do_not_look_through_their_modules_for_garbage_after_every_task(spark, sqlite_load):
    sqlite_load.add_file(100)
    sqlite_load.run(spark)
    frozen = (
        spark.sparkContext.range(2, numSlices=2)
        .mapPartitions(lambda _: [gc.get_freeze_count()])
        .collect()
    )
    assert max(frozen) > 50_000  # objects


def test_ledger_tells_which_files_a_batch_was(spark, sqlite_load):
    for rows in (100, 200, 300):
        sqlite_load.add_file(rows)
    sqlite_load.run(spark, max_files=2)
    commits = sqlite_load.query(
        "SELECT batch, drain, source_offsets, rows_read FROM load_commits ORDER BY batch, drain"
    )
    ((begun, phases),) = {
        (run, tuple(json.loads(seconds)))
        for run, seconds in sqlite_load.query("SELECT run_started, phases FROM load_commits")
    }
    assert begun > time.time() - 600 and phases == PHASES
    for phase in ("join", "commit"):
        least = f"SELECT min(json_extract(phases, '$.{phase}')) FROM load_commits WHERE drain = 0"
        assert sqlite_load.query(least)[0][0] > 0, phase
    batches = {b: (json.loads(o)["files"], n) for b, d, o, n in commits if not d}
    assert [files for files, _ in batches.values()] == [2, 1]
    named = sqlite_load.query(
        "SELECT batch, path, size, modified FROM load_files ORDER BY batch, number"
    )
    for batch, (_, rows) in batches.items():
        assert sum(pq.read_metadata(f).num_rows for b, f, *_ in named if b == batch) == rows
    assert [json.loads(o) for b, d, o, n in commits if d] in ([{}], [])
    there = {
        (str(p), p.stat().st_size, p.stat().st_mtime_ns)
        for p in sqlite_load.stream_directory.glob("*.parquet")
    }
    assert {tuple(row) for _, *row in named} == there


def test_csv_and_json_tuples_that_cannot_be_parsed_are_kept_whole(spark, sqlite_load):
    texts = {
        "csv": (
            "id,sku,amount\n1,c1,1.5\nbad,c2,2.5\n3,c3\n4,,4.5\n5,c5,5.5\n",
            {"bad,c2,2.5", "3,c3"},
        ),
        "json": (
            '{"id":1,"sku":"c1","amount":1.5}\n{"id":"bad","sku":"c2","amount":2.5}\n'
            '{"id":3,\n{"id":4,"sku":null,"amount":4.5}\n{"id":5,"sku":"c5","amount":5.5}\n',
            {'{"id":"bad","sku":"c2","amount":2.5}', '{"id":3,'},
        ),
    }
    whys = {
        "csv": ["2 fields in place of 3", "id: 'bad' is not BIGINT"],
        "json": ["id: 'bad' is not BIGINT", "not JSON: Expecting prop"],
    }
    for form, (content, broken) in texts.items():
        directory = sqlite_load.paths.home / form
        directory.mkdir()
        (directory / f"a.{form}").write_text(content)
        summary = sqlite_load.run(
            spark,
            app=form,
            source_format=form,
            source_path=str(directory),
            source_columns="id BIGINT, sku STRING, amount DOUBLE",
            join_type="left",
        )
        assert (summary.rows_read, summary.rejected) == (5, {"unparsable": 2, "null_key": 1})
        kept = sqlite_load.query(
            "SELECT tuple FROM unmatched JOIN load_batches USING (load_id) "
            f"WHERE app = '{form}' AND unmatched.reason = 'unparsable'"
        )
        rows = [json.loads(t) for (t,) in kept]
        assert {row["_corrupt_record"] for row in rows} == broken
        lines = content.split("\n")
        assert all(row["file"] == str(directory / f"a.{form}") for row in rows)
        assert all(lines[row["line"] - 1] == row["_corrupt_record"] for row in rows)
        assert sorted(row["why"][:24] for row in rows) == whys[form]
        facts = sqlite_load.query(
            "SELECT id, price FROM fact_sales JOIN load_batches USING "
            f"(load_id) WHERE app = '{form}' ORDER BY id"
        )
        assert facts == [(1, 1), (4, None), (5, 5)]


def test_files_without_a_given_schema_are_sampled(spark, sqlite_load):
    directory = sqlite_load.paths.home / "csv"
    directory.mkdir()
    (directory / "a.csv").write_text("id,sku,amount\n1,c1,1.5\n2,c2,2.5\n")
    settings = {"source_format": "csv", "source_path": str(directory)}
    assert sqlite_load.run(spark, **settings).matched == 2
    (directory / "b.csv").write_text("id,sku,amount\n3,c3,3.5\nx,c4,4.5\n")
    summary = sqlite_load.run(spark, **settings)  # in the types of the first run
    assert summary.matched == 1 and summary.rejected == {"unparsable": 1}
    with pytest.raises(ConfigError, match=r"stream\.path"):
        sqlite_load.run(
            spark, app="other", source_format="csv", source_path=str(directory / "none")
        )


@pytest.mark.parametrize(
    ("found", "loaded"),
    [
        (pa.timestamp("ns", "CET"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.null(), pa.string()),
        (pa.float16(), pa.float32()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.binary(4), pa.binary()),
        (pa.decimal64(9, 2), pa.decimal128(9, 2)),
        (pa.list_(pa.struct([("a", pa.uint16())])), pa.list_(pa.struct([("a", pa.int32())]))),
        *((kind, kind) for kind in (pa.int8(), pa.int64(), pa.float64(), pa.bool_(), pa.date32())),
    ],
)
def test_types_in_which_a_load_takes_what_files_have(found, loaded):
    assert loaded_type(found) == loaded


def test_interval_takes_up_new_master_data_drains_when_idle_and_stops_by_request(
    spark, sqlite_load
):
    load = sqlite_load
    load.add_file(1500)
    checkpoint = load.paths.checkpoints / "sales"
    app = load.start(spark, trigger="100 milliseconds")
    old = load.expected()[0]
    until(
        lambda: (s := read_status(checkpoint)) and s.rows_read == 1500 and s.waiting == 0,
        what="idle drain",
        watch=app.check,
    )
    same(load.facts(), old)  # finished although the stream is idle
    first = len(load.stream)
    load.publish("new part")
    load.add_file(1500)
    until(
        lambda: read_status(checkpoint).rows_read == 3000, what="the second batch", watch=app.check
    )
    request_stop(checkpoint)
    summary = app.join()
    assert summary.waiting == 0 and summary.master_version == "v000002"
    assert read_status(checkpoint).state == "stopped"
    assert not (checkpoint / "stop").exists()
    names = load.query("SELECT id, name FROM fact_sales")
    assert {n.split()[0] for i, n in names if i < first} == {"part"}
    assert {n.split()[0] for i, n in names if i >= first} == {"new"}
    load.check_ledger()
    assert load.query(
        "SELECT DISTINCT version FROM load_inputs JOIN load_batches USING (load_id) WHERE batch = 1"
    ) == [("v000002",)]


LISTED = "SELECT source_listed FROM load_commits WHERE drain = 0 ORDER BY batch DESC"


def test_a_load_that_goes_on_after_a_kill_notes_which_files_there_were(
    spark, sqlite_load, monkeypatch
):
    """Although no file comes any more, so that no micro-batch does."""
    load = sqlite_load
    load.add_file(400)
    with monkeypatch.context() as patch:
        faults.crash_at(patch, "semistream.streaming.commit.Commits.finish", "after", 1)
        with pytest.raises(OSError, match="crash"):
            load.run(spark)
    assert load.query(LISTED) == [(None,)]
    file = load.stream_directory / "part-00000.parquet"
    app = load.start(spark, trigger="100 milliseconds")
    ((listed,),) = until(
        lambda: [row for row in load.query(LISTED) if row[0]], what="it is noted", watch=app.check
    )
    assert file.stat().st_ctime < listed < time.time()
    request_stop(load.checkpoint)
    assert app.join().rows_read == 0
    load.check()


def test_a_batch_that_is_repeated_has_not_the_files_that_came_since(
    spark, sqlite_load, monkeypatch
):
    load, endless = sqlite_load, {"trigger": "100 milliseconds", "max_files": 0}
    load.add_file(400)
    with monkeypatch.context() as patch:
        faults.crash_at(patch, "semistream.warehouse.ledger.Ledger.commit", "before", 1)
        with pytest.raises(OSError, match="crash"):
            load.run(spark, **endless)
    load.add_file(300)
    came = time.time()
    app = load.start(spark, **endless)
    until(
        lambda: (s := read_status(load.checkpoint)) and s.rows_read == 700,
        what="both batches",
        watch=app.check,
    )
    request_stop(load.checkpoint)
    app.join()
    ((second,), first) = load.query(LISTED)
    assert first == (None,) and second > came
    load.check()


@pytest.mark.parametrize("algorithm", ["elevatorjoin", "ssbj", "sscj"])
def test_tuples_that_wait_are_finished_while_new_ones_come(
    spark, sqlite_load, monkeypatch, algorithm
):
    """H_S, which M lets hold all that comes, never fills, and there is no time without input."""
    load, finish = sqlite_load, Commits.finish

    def finished(commits, *args):
        finish(commits, *args)
        load.add_file(50)  # there is always more to load

    load.add_file(50)
    monkeypatch.setattr(Commits, "finish", finished)
    monkeypatch.setattr(WaitingBound, "idle", lambda *_: False)
    app = load.start(
        spark, trigger="50 milliseconds", memory="64MB", algorithm=algorithm, max_wait=1
    )
    status = load.paths.checkpoints / "sales"
    until(
        lambda: (s := read_status(status)) and s.batch and s.longest_wait > 0,
        what="tuples that waited",
        watch=app.check,
    )
    batch, end = read_status(status).batch, time.monotonic() + 3  # three times max_wait
    until(
        lambda: time.monotonic() > end and read_status(status).batch > batch + 12,
        what="twelve batches, and three times the bound",
        watch=app.check,
    )
    assert load.query("SELECT count(*) FROM load_commits WHERE drain = 1") == [(0,)]
    (last,) = load.query(
        "SELECT batch, sum(waiting) FROM load_batches GROUP BY batch ORDER BY batch DESC LIMIT 1"
    )
    assert last[1] < 50 * (last[0] + 1) / 2  # not all that came
    monkeypatch.undo()
    request_stop(status)
    summary = app.join()
    assert summary.median_wait <= summary.longest_wait > 0
    load.run(spark, memory="64MB", algorithm=algorithm)  # the file that came last
    load.check()


def test_files_without_rows_keep_nobody_waiting(spark, sqlite_load, monkeypatch):
    load = sqlite_load
    monkeypatch.setattr(WaitingBound, "idle", lambda *_: False)
    load.add_file(200)
    app = load.start(
        spark, trigger="50 milliseconds", memory="64MB", algorithm="elevatorjoin", max_wait=1
    )
    status = load.paths.checkpoints / "sales"

    def empty_files():
        load.add_file(0)
        return (s := read_status(status)) and s.rows_read == 200 and s.waiting == 0

    until(empty_files, what="the end of waiting", watch=app.check)
    assert load.query("SELECT count(*) FROM load_commits WHERE drain = 1") == [(0,)]
    request_stop(status)
    app.join()
    load.check()


def test_no_drain_is_due_because_nothing_waited_for_long(spark, sqlite_load, monkeypatch):
    begin = app.App.__init__

    def idle_before(load, *args):
        begin(load, *args)
        load.commits.committed_at = time.monotonic() - 7200

    monkeypatch.setattr(app.App, "__init__", idle_before)
    monkeypatch.setattr(query, "POLL", 0.005)
    for rows in (800, 900, 700):
        sqlite_load.add_file(rows)
    sqlite_load.run(spark, memory="64MB")
    sqlite_load.check()
    # at the end
    assert sqlite_load.query("SELECT batch FROM load_commits WHERE drain = 1") == [(2,)]


def test_a_batch_that_fails_while_a_drain_is_due_is_finished_first(spark, sqlite_load, monkeypatch):
    begun, looked = threading.Event(), threading.Event()
    commit, due = SqlSink.commit, app.App._drain_due

    def fails(sink, row, entries):
        if row.batch == 1:
            begun.set()
            assert looked.wait(30)
            raise OSError("the driver dies")
        commit(sink, row, entries)

    def only_meanwhile(load):
        return begun.is_set() and (not looked.is_set() or due(load))

    class Border:
        """A lock that tells when the drain waits at it for the batch."""

        def __init__(self):
            self.lock = threading.Lock()

        def __enter__(self):
            if not self.lock.acquire(blocking=False):
                if begun.is_set():
                    looked.set()
                self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    begin = app.App.__init__

    def with_border(load, *args):
        begin(load, *args)
        load._border = Border()

    for rows in (800, 900):
        sqlite_load.add_file(rows)
    # in a query of Spark, which processes a batch in a thread of its own
    settings = {"memory": "64MB", "job": with_options(sqlite_load.job, maxFileAge="36500d")}
    with monkeypatch.context() as patch:
        patch.setattr(SqlSink, "commit", fails)
        patch.setattr(app.App, "_drain_due", only_meanwhile)
        patch.setattr(app.App, "__init__", with_border)
        with pytest.raises(Exception, match="the driver dies"):
            sqlite_load.run(spark, **settings)
    sqlite_load.run(spark, **settings)
    sqlite_load.check()


def test_changed_settings_are_taken_up_after_a_drain(spark, sqlite_load):
    load = sqlite_load
    for values in (
        {"algorithm": "meshjoin"},
        {"algorithm": "ssbj", "partitions": 3},
        {"memory": "4MB", "partitions": 1},
    ):
        load.add_file(1500)
        load.run(spark, **values)
    load.check()
    counts = load.query(
        "SELECT batch, max(algorithm), count(*) FROM load_batches WHERE drain = 0 "
        "GROUP BY batch ORDER BY batch"
    )
    assert counts == [(0, "meshjoin", 2), (1, "ssbj", 3), (2, "elevatorjoin", 1)]


def test_zipf_source(spark, tmp_path):
    from semistream.master.publish import publish_snapshot
    from semistream.workloads import ZipfKeys

    load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    table = pa.table({"key": pa.array(range(1, 901)), "name": [f"n{i}" for i in range(1, 901)]})
    publish_snapshot(
        table.to_batches(), table.schema, load.paths.snapshots / "r" / "key", "r", ["key"]
    )
    job = Job.load(
        {
            "name": "z",
            "stream": {
                "format": "zipf",
                "id": ["id"],
                "options": {"rows": "5000", "keys": "1000", "seed": "3", "partitions": "2"},
            },
            "master": {"name": "r"},
            "on": {"key": "key"},
            "fact_table": "fact_z",
        }
    )
    summary = load.run(spark, job, app="z", max_rows=2000)
    keys = ZipfKeys(1000, 1.0, 3).draw(0, 5000).tolist()
    assert summary.batches >= 3 and summary.rows_read == 5000
    facts = load.query("SELECT id, `key`, name FROM fact_z ORDER BY id")
    assert facts == [(i, k, f"n{k}") for i, k in enumerate(keys, 1) if k <= 900]
    offsets = load.query("SELECT source_offsets FROM load_commits WHERE drain = 0 ORDER BY batch")
    assert [json.loads(o)["offsets"] for (o,) in offsets] == [
        [{"id": 2000}],
        [{"id": 4000}],
        [{"id": 5000}],
    ]


def test_outbox_source(spark, load):
    engine = connect(load.paths.warehouse_url)
    with engine.begin() as c:
        auto = (
            "INTEGER PRIMARY KEY AUTOINCREMENT"
            if engine.dialect.name == "sqlite"
            else "BIGINT AUTO_INCREMENT PRIMARY KEY"
        )
        c.execute(
            text(f"CREATE TABLE outbox (seq {auto}, sku VARCHAR(20), amount DOUBLE PRECISION)")
        )
    job = load.job.model_copy(
        update={
            "stream": load.job.stream.model_copy(
                update={
                    "format": "outbox",
                    "path": None,
                    "id": ("seq",),
                    "options": {"table": "outbox", "id": "seq", "url": load.paths.warehouse_url},
                }
            )
        }
    )
    for rows in (300, 200):
        with engine.begin() as c:
            tuples = load.sales(rows).select(["sku", "amount"]).to_pylist()
            c.execute(text("INSERT INTO outbox (sku, amount) VALUES (:sku, :amount)"), tuples)
        assert load.run(spark, job, max_rows=180).rows_read == rows
    engine.dispose()
    joined = load.expected()[0]
    facts = load.query("SELECT seq - 1, sku, amount, part_sk, name, price FROM fact_sales")
    assert sorted(facts, key=str) == sorted(joined.elements(), key=str)


def test_outbox_waits_for_a_lower_id_that_commits_later(mariadb):
    import threading

    from semistream.streaming.sources.outbox import OutboxReader

    url = mariadb.fresh()
    engine = connect(url)
    with engine.begin() as c:
        c.execute(text("CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT)"))
    from pyspark.sql.types import LongType, StructField, StructType

    reader = OutboxReader(
        {"url": url, "table": "outbox"}, StructType([StructField("id", LongType())])
    )
    slow, fast = engine.connect(), engine.connect()
    slow.execute(text("INSERT INTO outbox (v) VALUES (1)"))
    fast.execute(text("INSERT INTO outbox (v) VALUES (2)"))
    fast.commit()
    found = []
    thread = threading.Thread(target=lambda: found.append(reader.newest(0)))
    thread.start()
    thread.join(0.3)
    assert not found  # id 2 is visible, id 1 is not
    slow.commit()
    thread.join(20)
    assert found == [2]
    with engine.connect() as c:
        assert c.execute(text("SELECT count(*) FROM outbox WHERE id <= 2")).scalar() == 2
    slow.close()
    fast.close()
    engine.dispose()


def test_kafka_values_become_tuples():
    values = [
        b'{"id": 1, "sku": "a"}',
        b'{"id": "x", "sku": "b"}',
        b"not json",
        None,
        b'{"id": 2,\n "sku": 1.50}',
        b'{"id": 3} {"id": 4}',
    ]
    source = KafkaSource(StreamSpec(format="kafka", columns="id BIGINT, sku STRING", id=["sku"]))
    schema = pa.schema([("value", pa.binary())])
    assert source.open(None) == source.schema
    [(chunk, numbers, _)] = source.decoder.decode(iter([pa.record_batch([values], schema)]))
    assert len(set(numbers.tolist())) == 2
    assert chunk.rows.to_pylist() == [{"id": 1, "sku": "a"}, {"id": 2, "sku": "1.50"}]
    assert chunk.lines.tolist() == [1, 5]
    assert [(r.text, r.id) for r in chunk.rejected] == [
        ('{"id": "x", "sku": "b"}', "b"),
        ("not json", None),
        ("", None),
        ('{"id": 3} {"id": 4}', None),
    ]
    assert [r.detail.split(":")[0] for r in chunk.rejected] == ["id"] + ["not JSON"] * 3


def test_a_first_load_of_kafka_begins_with_the_earliest_records(caplog):
    def options(**given):
        return KafkaSource(StreamSpec(format="kafka", options=given)).options()

    caplog.set_level(logging.INFO)
    assert options(subscribe="t")["startingOffsets"] == "earliest"
    assert "earliest records" in caplog.text
    assert options(startingoffsets="latest") == {"startingoffsets": "latest"}


def test_kafka_without_its_connector_is_named(spark, sqlite_load):
    with pytest.raises(ConfigError, match="--packages org.apache.spark:spark-sql-kafka"):
        sqlite_load.run(
            spark,
            source_format="kafka",
            source_columns="id BIGINT, sku STRING",
            source_options={"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"},
        )


def test_source_options_of_a_file_reach_the_source_and_are_kept_nowhere(
    spark, sqlite_load, tmp_path
):
    for rows in (100, 50, 20):
        sqlite_load.add_file(rows)
    file = tmp_path / "options.yaml"
    file.write_text("{maxFilesPerTrigger: 1, connection.password: hush-hush}")
    file.chmod(0o600)
    assert sqlite_load.run(spark, max_files=0, source_options_file=str(file)).batches >= 3
    sqlite_load.check()
    written = [
        p
        for p in (*sqlite_load.paths.home.rglob("*"), *tmp_path.glob("warehouse.db*"))
        if p.is_file()
    ]
    assert [p for p in written if b"hush-hush" in p.read_bytes()] == []
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        sqlite_load.run(spark, source_options_file=str(file))


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "connection"])
def test_plans_that_errors_quote_do_not_show_options_of_a_file(spark, tmp_path, name):
    from semistream.job import StreamSpec
    from semistream.streaming.sources.registry import find_source, read_streams

    file = tmp_path / "options.yaml"
    file.write_text(f"{name}: hush-hush")
    file.chmod(0o600)
    (stream,) = read_streams(
        spark, [find_source(StreamSpec(format="zipf", options_file=str(file)))]
    )
    plan = stream._jdf.queryExecution().toString()
    spark.conf.unset("spark.sql.redaction.options.regex")
    assert name in plan and "hush-hush" not in plan


def test_ledger_of_another_checkpoint_is_refused(spark, sqlite_load):
    sqlite_load.add_file(100)
    sqlite_load.run(spark)
    with pytest.raises(ConfigError, match="checkpoint"):
        sqlite_load.run(spark, checkpoint=str(sqlite_load.paths.home / "elsewhere"))


@pytest.mark.parametrize(
    "values, parameter",
    [
        ({"algorithm": "meshjion"}, "algorithm"),
        ({"memory": "1KB"}, "memory"),
        ({"partitions": 65}, "partitions"),
    ],
)
def test_settings_that_cannot_work_stop_before_spark(sqlite_load, values, parameter):
    sqlite_load.add_file(100)
    with pytest.raises(ConfigError) as e:
        sqlite_load.run(None, **values)
    assert e.value.parameter == parameter
    assert read_status(sqlite_load.paths.checkpoints / "sales").state == "failed"


def test_missing_join_column_and_missing_snapshot_stop_before_spark(sqlite_load, tmp_path):
    sqlite_load.add_file(100)
    role = sqlite_load.job.roles[0].model_copy(update={"on": {"skew": "code"}})
    job = sqlite_load.job.model_copy(update={"dimensions": {"part": role}})
    with pytest.raises(ConfigError, match="must name a column of the stream"):
        sqlite_load.run(None, job)
    with pytest.raises(ConfigError, match="published"):
        SmallLoad(tmp_path / "other", "sqlite://").run(None)


@pytest.mark.parametrize("join_type", ["inner", "left"])
def test_join_dataframe(spark, sqlite_load, join_type):
    from semistream.streaming import join_dataframe

    table = sqlite_load.sales(4000)
    df = spark.createDataFrame(table)
    out = join_dataframe(
        df,
        sqlite_load.paths.snapshots / "part" / "code",
        [("sku", "code")],
        columns=["part_sk", "name", "price"],
        memory="2MB",
        join_type=join_type,
        partitions=3,
    )
    same(pairs(out.toArrow()), sqlite_load.expected(join_type)[0])
    assert out.filter("price > 90").count() == sum(
        n for r, n in sqlite_load.expected(join_type)[0].items() if (r[5] or 0) > 90
    )


def test_ids_and_keys_too_long_for_an_index_are_kept_and_verified(spark, load, tmp_path, sink):
    """A tuple whose id no index takes is unmatched for that reason; ids that are long together
    only, and long keys, are not."""

    a, b, c = "a" * 300, "b" * 190, "c" * 100
    rows = [
        ("short", "x", "c1"),
        (a, "x", "c1"),
        (a + "2", "x", "c2"),
        (b, b, "c2"),
        (b, b[1:], "nothing"),
        (c, c, "k" * 400),
        (c, c + "é", None),
        ("Short", "x", "c3"),
        (None, "x", "c3"),
        (None, "x", "c3"),
    ]
    directory = tmp_path / "stream"
    directory.mkdir()
    pq.write_table(
        pa.table(dict(zip(("ref", "line", "sku"), zip(*rows, strict=True), strict=True))),
        directory / "a.parquet",
    )
    stream = load.job.stream.model_copy(update={"path": str(directory), "id": ("ref", "line")})
    job = load.job.model_copy(update={"stream": stream})
    summary = load.run(spark, job, join_type="left", sink=sink)
    assert (summary.rows_read, summary.matched) == (10, 5)
    assert summary.rejected == {"long_id": 2, "no_match": 2, "null_key": 1}
    kept = load.query("SELECT reason, stream_id, tuple FROM unmatched")
    assert {json.loads(t)["ref"] for r, _, t in kept if r == "long_id"} == {a, a + "2"}
    assert all(len(i) <= 190 for _, i, _ in kept) and len({i for _, i, _ in kept}) == 5
    result = verify(load, job)
    assert result.success and len(result.results) == 26 + (sink != "sql"), str(result)
    load.alter(f"DELETE FROM unmatched WHERE tuple LIKE '%{a}2%'")
    result = verify(load, job)
    assert {r.name for r in result.failed} == {"unmatched_rows", "none_missing", "same_rows"}
    (missing,) = next(r.rows for r in result.failed if r.name == "none_missing")
    assert missing["ref"].startswith("a" * 125 + "#") and missing["line"] == "x"


def pairs(table):
    return Counter(tuple(r.values()) for r in table.to_pylist())


def test_a_crash_while_the_first_batch_was_planned_leaves_nothing_in_the_way(spark, sqlite_load):
    offsets = sqlite_load.checkpoint / "query" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.942d2945-4d52-4d38-b119-49142442e6db.tmp").write_text("v1")
    (offsets.parent / "metadata").write_text('{"id":"fd1ae345-')
    sqlite_load.add_file(200)
    sqlite_load.run(spark)
    sqlite_load.check()


def test_each_load_keeps_a_sketch_of_its_keys_and_the_proof_expects_as_many_rows(
    spark, sqlite_load, sink
):
    load = sqlite_load
    for _ in range(2):
        load.add_file(3000)
    load.run(spark, sink=sink)
    blobs = load.query("SELECT rows_read, key_sketch FROM load_batches")
    assert len(blobs) > 4 and all((n > 0) == (blob is not None) for n, blob in blobs)
    keyed = sum(row["sku"] is not None for row in load.stream)
    sketches = [read_sketch(blob) for _, blob in blobs if blob]
    assert sum(s.inserted for s in sketches) == pytest.approx(keyed, rel=0.05)
    result = verify(load)
    assert result.success and "expected_rows" in {r.name for r in result.results}
    load.add_file(100)
    load.run(spark, sink=sink, key_sketch=False)
    assert load.query(
        "SELECT count(*) FROM load_batches WHERE batch > 1 AND key_sketch IS NOT NULL"
    ) == [(0,)]


def test_a_many_to_many_load_tells_its_rows_and_is_refused_above_the_limit(
    spark, sqlite_load, caplog, monkeypatch
):
    """The app's rows in all count. What is refused was not begun, and a higher limit lets it go
    on."""
    load = sqlite_load
    load.master = [
        part | {"part_sk": 3 * part["part_sk"] + i, "price": i}
        for part in load.master
        for i in range(3)
    ]
    publish_snapshot(
        pa.Table.from_pylist(load.master, MASTER).to_batches(),
        MASTER,
        load.paths.snapshots / "part" / "code",
        "part",
        ["code"],
    )
    load.add_file(2000)
    rows = load.expected()[0].total()
    caplog.set_level(logging.INFO)
    with pytest.raises(
        TooManyRows,
        match=f"It is estimated that sales with batch 0, of 2,000 tuples, has {rows:,} rows",
    ):
        load.run(spark, max_output_rows=rows - 1)
    told = f"batch 0 will have {rows:,} joined rows of 2,000 tuples, off by at most 0"
    assert told in caplog.text
    assert load.query("SELECT count(*) FROM load_commits") == [(0,)]
    load.run(spark, max_output_rows=rows)
    load.check()
    load.add_file(1000)
    with pytest.raises(TooManyRows, match="that sales with batch 1, of 1,000 tuples, has"):
        load.run(spark, max_output_rows=rows)
    monkeypatch.setattr(app, "SAMPLED", 400)  # less than the batch
    load.run(spark)
    load.check()
    told = re.search(
        r"batch 1 will have ([\d,]+) joined rows of 1,000 tuples.* first 400", caplog.text
    )
    more = load.expected()[0].total() - rows
    assert told and abs(int(told[1].replace(",", "")) - more) < 0.1 * more


READY = """
import sys
import pyarrow as pa
from semistream.sizing.role_plan import RolePlan

if "ready" in sys.argv:
    from semistream.streaming import task

    task.warm_up(iter(()))
before, stream = set(sys.modules), pa.schema([("sku", pa.string()), ("amount", pa.float64())])
plan = RolePlan("elevatorjoin", 1_000_000, "inner", {"disk_tuples": 1024}, (("sku", "code"),), 1,
                sys.argv[1])
join = plan.open(stream, 0)
from semistream.job import StreamSpec
from semistream.data_files import DataFile
from semistream.streaming.sources.file_reader import find_reader

reader = find_reader(StreamSpec(path=sys.argv[2]), schema=stream)
chunks = reader.read([DataFile(sys.argv[2])])
outputs = [output for n in chunks for output in join.process(n.chunk.rows)]
outputs += join.drain()
print(sum(output.joined.num_rows for output in outputs), len(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_a_worker_that_is_ready_has_hardly_anything_left_to_import(sqlite_load):
    sqlite_load.add_file(1000)
    paths = [
        next((sqlite_load.paths.snapshots / "part" / "code").glob("v*")),
        next(sqlite_load.stream_directory.iterdir()),
    ]
    modules = []
    for ready in ([], ["ready"]):
        run = subprocess.run(
            [sys.executable, "-c", READY, *paths, *ready], capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        rows, count = map(int, run.stdout.split())
        assert rows == sqlite_load.expected()[0].total()
        modules.append(count)
    assert modules[0] > 500 and modules[1] < 50
