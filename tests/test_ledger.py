"""Whoever commits a partition first has loaded it: the ledger, and the task that every Spark
partition runs."""

import gc
import json
import os
import signal
import threading
import time
import traceback
import weakref
from collections import Counter
from contextlib import contextmanager, nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from loads import COLUMNS, ON, STREAM, SmallLoad, same
from semistream.durable import read_checked, write_checked
from semistream.errors import StateError
from semistream.gathering import COLUMN_OVERHEAD
from semistream.reasons import Reason
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.streaming import join_operator, task
from semistream.streaming.exchange import Input
from semistream.streaming.progress import Progress
from semistream.streaming.sinks import delta_files
from semistream.streaming.sinks import sql as sql_sink
from semistream.streaming.sinks.delta import DeltaSink
from semistream.streaming.sinks.delta_files import DataFiles
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.warehouse import connect, create_all, shared_engine
from semistream.warehouse.ledger import Ledger, retrying
from semistream.warehouse.records import Commit, InputCounts, LoadRecord, Timed
from semistream.warehouse.schema import load_batches, load_commits


@contextmanager
def no_cached_operator():
    """Before and after, so that the state is read."""
    task.operators.clear()
    try:
        yield
    finally:
        task.operators.clear()


class Tasks:
    """The tasks of one load without Spark: chunks of a stream go to the partitions that own their
    keys."""

    def __init__(self, tmp_path, url, algorithm="meshjoin"):
        self.load = SmallLoad(tmp_path / "home", url)
        self.load.publish()
        join = RolePlan(
            algorithm,
            100_000,
            "inner",
            {"disk_tuples": 128},
            ON,
            2,
            str(self.load.paths.snapshots / "part" / "code" / "v000001"),
            {c: c for c in COLUMNS},
        )
        self.plan = Plan((join,))
        self.checkpoint = tmp_path / "checkpoint"
        (self.checkpoint / "state").mkdir(parents=True)
        self.warehouse = Warehouse(url, "fact_sales", ("part_sk",), 30)
        self.sink = SqlSink(self.warehouse)
        create_all(self.warehouse.engine)
        join = join.open(STREAM, 0)
        fields = list(join.output_schema)
        self.sink.prepare(pa.schema(fields[:3]), pa.schema(fields[3:]), ("id",))
        # again is harmless
        self.sink.prepare(pa.schema(fields[:3]), pa.schema(fields[3:]), ("id",))
        self.placement = self.plan.placement((STREAM,))
        self.states, self.batch = {}, -1

    def work(self, batch, drain=0):
        return task.Work(
            "sales",
            batch,
            drain,
            self.plan,
            self.states,
            str(self.checkpoint),
            (STREAM,),
            (("id",),),
            self.sink,
        )

    def chunks(self, rows):
        """A micro-batch by partition."""
        chunk = pa.RecordBatch.from_pylist(self.load.sales(rows).to_pylist(), STREAM)
        owner = self.placement.partitions(chunk)
        return [chunk.filter(pa.array(owner == p)) for p in range(2)]

    def run(self, rows=None):
        """One micro-batch, or the drain, to its end."""
        drain = rows is None
        self.batch += not drain
        chunks = [None, None] if drain else self.chunks(rows)
        work = self.work(self.batch, int(drain))
        entries = [
            work.join_partition(p, iter([Input(0, c)] if c is not None else []))
            for p, c in enumerate(chunks)
        ]
        self.committed(entries)
        return entries

    def committed(self, entries):
        self.states = {e.partition: e.state_files for e in entries}

    def check(self):
        same(self.load.facts(), self.load.expected()[0])
        same(self.load.unmatched(), self.load.expected()[1])


@pytest.fixture
def tasks(tmp_path, warehouse_url):
    with no_cached_operator():
        yield Tasks(tmp_path, warehouse_url)


@pytest.mark.parametrize("algorithm", ["meshjoin", "sscj"])
def test_a_tuple_that_leaves_at_once_waited_as_long_as_its_micro_batch_ran(
    tmp_path, warehouse_url, algorithm, monkeypatch
):
    """What brings a tuple to the operator takes an hour, by the clock; another one goes by before
    the drain."""
    late = [0.0]
    for clock in ("perf_counter", "time"):
        real = getattr(time, clock)
        monkeypatch.setattr(time, clock, lambda real=real: real() + late[0])

    def slowly(chunk):
        late[0] += 3600.0
        yield Input(0, chunk)

    with no_cached_operator():
        tasks = Tasks(tmp_path, warehouse_url, algorithm)
        work, tasks.batch = tasks.work(0), 0
        entries = [work.join_partition(p, slowly(c)) for p, c in enumerate(tasks.chunks(500))]
        assert all(3600 <= e.wait_longest <= 1.2 * 3600 for e in entries if e.unmatched)
        tasks.committed(entries)
        assert sum(e.waiting for e in entries) > 0
        late[0] += 3600.0
        for entry in tasks.run():
            assert 7200 <= entry.wait_median <= entry.wait_longest <= 1.2 * 10_800
        tasks.check()


def test_waiting_tuples_go_from_batch_to_batch(tasks):
    waited = [sum(e.waiting for e in tasks.run(rows)) for rows in (500, 900, 0, 700)]
    assert all(waited)
    assert sum(e.waiting for e in tasks.run()) == 0
    tasks.check()


def test_another_workers_operator_is_taken_and_its_state_not_read(tmp_path, monkeypatch):
    """Another process runs the first micro-batch of a partition, this one the next."""
    tasks = Tasks(tmp_path, f"sqlite:///{tmp_path / 'w.db'}")
    chunks, (reading, writing) = tasks.chunks(900), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            task.use_memory_files()
            entries = [
                tasks.work(0).join_partition(p, iter([Input(0, c)]))
                for p, c in reversed(list(enumerate(chunks)))
            ]
            os.write(writing, json.dumps([e.to_json() for e in entries]).encode() + b"\n")
            time.sleep(60)
        finally:
            traceback.print_exc()
            os._exit(9)
    os.close(writing)  # the child's death ends the line
    try:
        with os.fdopen(reading) as file:
            entries = [LoadRecord.from_json(e) for e in json.loads(file.readline())]
        assert entries[1].waiting
        tasks.committed(entries)
        tasks.batch = 0
        with monkeypatch.context() as patch:  # partition 0's operator is the one that it holds
            patch.setattr(
                join_operator.JoinState, "read", lambda path: pytest.fail("the state was read")
            )
            tasks.work(1).join_partition(0, iter([Input(0, chunks[0].slice(0, 0))]))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        task.operators.clear()
    tasks.run()
    tasks.check()


def test_a_batch_without_tuples_keeps_the_state(tasks):
    before = [e.state_files for e in tasks.run(900)]
    assert [e.state_files for e in tasks.run(0)] == before
    with no_cached_operator():
        after = [e.state_files for e in tasks.run(600)]
    assert not set(after) & set(before)
    tasks.run()
    tasks.check()


def test_a_load_that_a_former_release_began_is_gone_on_with(tasks):
    """Its progress names the one state file of a partition."""
    states = {0: ("a",), 1: ("b",)}
    Progress(3, 0, tasks.plan, states).write(tasks.checkpoint)
    values = read_checked(tasks.checkpoint / "progress.json", "")
    assert Progress.read(tasks.checkpoint, RolePlan).states == states
    write_checked(tasks.checkpoint / "progress.json", values | {"states": {"0": "a", "1": "b"}})
    assert Progress.read(tasks.checkpoint, RolePlan).states == states


def test_second_attempt_of_a_loaded_partition_writes_nothing(tasks):
    tasks.run(500)
    chunks = tasks.chunks(600)
    first = [tasks.work(1).join_partition(p, iter([Input(0, c)])) for p, c in enumerate(chunks)]
    again = [tasks.work(1).join_partition(p, iter([Input(0, c)])) for p, c in enumerate(chunks)]
    assert [e.state_files for e in again] == [e.state_files for e in first]
    tasks.committed(again)
    tasks.batch = 1
    tasks.run()
    tasks.check()


def test_of_two_attempts_at_once_one_counts(tasks, monkeypatch):
    """Both ask, find nothing, and join; the one that commits later finds the other's row and leaves
    nothing behind."""
    tasks.run(500)
    (chunk, other), barrier = tasks.chunks(800), threading.Barrier(2)
    original = SqlSink.write

    def together(self, entry, spool):
        if (entry.partition, entry.batch, entry.drain) == (0, 1, 0):
            barrier.wait(30)
        return original(self, entry, spool)

    monkeypatch.setattr(SqlSink, "write", together)
    entries = []
    threads = [
        threading.Thread(
            target=lambda: entries.append(tasks.work(1).join_partition(0, iter([Input(0, chunk)])))
        )
        for _ in range(2)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(entries) == 2 and entries[0].state_files == entries[1].state_files
    files = [
        f.name for f in (tasks.checkpoint / "state").iterdir() if f.name.startswith("000000001")
    ]
    assert files == [*entries[0].state_files]
    tasks.committed([entries[0], tasks.work(1).join_partition(1, iter([Input(0, other)]))])
    tasks.batch = 1
    tasks.run()
    tasks.check()


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj", "elevatorjoin"])
def test_operator_at_hand_and_operator_from_state_give_the_same(tmp_path, algorithm):
    """The worker's memory is never needed: a new process for every batch loads the same rows."""
    found = []
    for name, fresh in (("held", False), ("restored", True)):
        tasks = Tasks(tmp_path / name, f"sqlite:///{tmp_path / name}.db", algorithm)
        for rows in (500, 800, 900, None):
            with no_cached_operator() if fresh else nullcontext():
                tasks.run(rows)
        tasks.check()
        found.append(tasks.load.facts())
    assert found[0] == found[1]


def test_failed_transaction_leaves_neither_rows_nor_ledger_and_is_tried_again(tasks, monkeypatch):
    original, calls = sql_sink.bulk_insert, []

    def lost(connection, table, rows):
        original(connection, table, rows)
        calls.append(table.name)
        if len(calls) == 1:
            connection.invalidate()
            raise OperationalError(
                "INSERT", {}, Exception(2013, "Lost connection"), connection_invalidated=True
            )

    monkeypatch.setattr(sql_sink, "bulk_insert", lost)
    tasks.run(3000)
    tasks.run()
    assert calls[:2] == ["fact_sales", "fact_sales"]  # the first attempt's rows were rolled back
    tasks.check()


def test_tuples_that_do_not_add_up_are_not_loaded(tasks, monkeypatch):
    from semistream.joins import SemiStreamJoin

    original = SemiStreamJoin._account

    def losing(self, seconds):
        original(self, seconds)
        self.stats.waiting -= 1

    monkeypatch.setattr(SemiStreamJoin, "_account", losing)
    with pytest.raises(StateError, match="does not add up"):
        tasks.run(500)
    assert tasks.load.query("SELECT count(*) FROM load_batches") == [(0,)]


@pytest.fixture
def delta(tasks, tmp_path):
    """Tasks that load a Delta table."""
    tasks.sink = DeltaSink(str(tmp_path / "delta"), str(tasks.checkpoint), tasks.warehouse)
    fields = list(tasks.plan.joins[0].open(STREAM, 0).output_schema)
    tasks.sink.prepare(pa.schema(fields[:3]), pa.schema(fields[3:]), ("id",))
    return tasks


@pytest.mark.parametrize("warehouse_url", ["sqlite"], indirect=True)
def test_a_delta_tables_data_and_log_are_on_disk_before_the_ledger_counts_them(
    delta, tmp_path, monkeypatch
):
    flushed, fsync, commit = [], os.fsync, Ledger.commit

    def noted(handle):
        fsync(handle)
        flushed.append(
            (os.path.basename(os.readlink(f"/proc/self/fd/{handle}")), os.fstat(handle).st_size)
        )

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(
        Ledger, "commit", lambda self, *rows: (flushed.append("ledger"), commit(self, *rows))
    )
    monkeypatch.setattr(delta_files, "GROUP_ROWS", 50)
    entries = delta.run(3000)
    delta.sink.commit(Commit("sales", 0, 0, "fact_sales", "", 2, 3000), entries)
    before = flushed[: flushed.index("ledger")]
    data = list((tmp_path / "delta").glob("*.parquet"))
    log = tmp_path / "delta" / "_delta_log" / f"{1:020d}.json"
    assert len(data) == 2 and {(f.name, f.stat().st_size) for f in (*data, log)} < set(before)
    assert {"delta", "_delta_log"} < {name for name, _ in before}


@pytest.mark.parametrize("warehouse_url", ["sqlite"], indirect=True)
def test_a_data_file_is_written_in_groups_and_goes_where_the_task_fails(
    delta, tmp_path, monkeypatch
):
    monkeypatch.setattr(delta_files, "GROUP_ROWS", 50)
    delta.run(3000)
    files = list((tmp_path / "delta").glob("*.parquet"))
    assert len(files) == 2 and all(pq.ParquetFile(f).num_row_groups > 3 for f in files)

    def failing(*_):
        raise StateError("does not add up")

    monkeypatch.setattr(task.Work, "checked", failing)
    discard, written = DataFiles.discard, []
    monkeypatch.setattr(
        DataFiles, "discard", lambda self: (written.append(self._rows), discard(self))
    )
    with pytest.raises(StateError, match="does not add up"):
        delta.run(3000)
    assert written[0] > 0 and sorted((tmp_path / "delta").glob("*.parquet")) == sorted(files)


@pytest.mark.parametrize(
    ("limit", "most", "groups"),
    [("GROUP_ROWS", 100, [100, 100, 30]), ("GROUP_BYTES", 13 * (8 + COLUMN_OVERHEAD), [13, 13, 4])],
)
def test_small_outputs_share_a_group(limit, most, groups, tmp_path, monkeypatch):
    monkeypatch.setattr(delta_files, limit, most)
    data = DataFiles(
        str(tmp_path), pa.schema([("id", pa.int64())]), "data", {"load_id": pa.scalar(1)}
    )
    for i in range(sum(groups)):
        data.write(pa.record_batch({"id": [i]}))
    (file,) = data.close()
    written = pq.ParquetFile(tmp_path / file["path"])
    assert [written.metadata.row_group(g).num_rows for g in range(written.num_row_groups)] == groups
    assert written.read(["id"])["id"].to_pylist() == list(range(sum(groups)))


def test_a_column_whose_first_null_comes_late_begins_another_file(tmp_path, monkeypatch):
    """Those before it say that they have none; rows, sizes and what a discard leaves are right."""
    monkeypatch.setattr(delta_files, "GROUP_ROWS", 2)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("on", pa.bool_())])
    rows = [
        (1, "a", True),
        (2, "b", False),
        (3, "c", True),
        (4, None, True),
        (None, "e", True),
        (6, None, None),
        (7, "g", False),
    ]

    def written():
        data = DataFiles(str(tmp_path), schema, "data", {"load_id": pa.scalar(1)})
        for row in rows:
            data.write(pa.record_batch([[value] for value in row], schema))
        return data, data.close()

    _, files = written()
    assert [f["rows"] for f in files] == [2, 2, 3]
    assert all((tmp_path / f["path"]).stat().st_size == f["size"] for f in files)
    tables = [pq.read_table(tmp_path / f["path"]) for f in files]
    assert [[f.nullable for f in t.schema] for t in tables] == [
        [False] * 4,
        [False, True, False, False],
        [True, True, True, False],
    ]
    found = pa.concat_tables([t.select(schema.names).cast(schema) for t in tables])
    assert [tuple(row.values()) for row in found.to_pylist()] == rows
    data, more = written()
    data.discard()
    assert {f.name for f in tmp_path.iterdir()} == {f["path"] for f in files} and len(more) == 3


def test_only_columns_that_become_half_as_large_are_compressed(tmp_path):
    random = np.random.default_rng(0)
    columns = {
        "small": random.integers(0, 100, 10_000),
        "large": random.integers(0, 2**62, 10_000),
        "empty": pa.array([None] * 10_000, pa.int64()),
        "flag": [True] * 10_000,
        "text": [f"{i}" for i in range(10_000)],
    }
    data = DataFiles(
        str(tmp_path),
        pa.table(columns).schema,
        {"batch": 0, "drain": 0, "partition": 0},
        {"load_id": pa.scalar(1)},
    )
    data.write(pa.record_batch(columns).slice(3))
    (file,) = data.close()
    group = pq.ParquetFile(tmp_path / file["path"]).metadata.row_group(0)
    codecs = {
        group.column(i).path_in_schema: group.column(i).compression
        for i in range(group.num_columns)
    }
    assert codecs == dict.fromkeys([*columns, "load_id"], "SNAPPY") | {
        "large": "UNCOMPRESSED",
        "flag": "ZSTD",
        "text": "ZSTD",
    }
    assert (
        pq.read_table(tmp_path / file["path"], columns=list(columns)).to_pydict()
        == pa.table(columns).slice(3).to_pydict()
    )


def test_writers_at_the_same_time_all_get_through(warehouse):
    """SQLite has one writer: the others wait."""
    ledger = Ledger(warehouse, "app")
    with warehouse.begin() as c:
        c.execute(text("CREATE TABLE t (p INTEGER)"))
    done = []

    def write(p):
        def rows(connection):
            for _ in range(50):
                connection.execute(text("INSERT INTO t VALUES (:p)"), {"p": p})

        done.append(ledger.load(record(p), rows).partition)

    threads = [threading.Thread(target=write, args=(p,)) for p in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert sorted(done) == list(range(8))
    with warehouse.connect() as c:
        assert Counter(c.execute(text("SELECT p FROM t")).scalars()) == Counter(list(range(8)) * 50)
    assert [e.partition for e in ledger.partitions(0, 0)] == list(range(8))
    assert ledger.partitions(0, 0)[3] == record(3)


def test_rows_that_break_another_constraint_are_an_error(warehouse):
    with warehouse.begin() as c:
        c.execute(text("CREATE TABLE t (p INTEGER PRIMARY KEY)"))

    def twice(connection):
        connection.execute(text("INSERT INTO t VALUES (1), (1)"))

    ledger = Ledger(warehouse, "app")
    with pytest.raises(IntegrityError):
        ledger.load(record(0), twice)
    assert ledger.partition(0, 0, 0) is None


def test_commit_is_harmless_twice_and_gives_the_newest(warehouse):
    ledger = Ledger(warehouse, "app")
    assert ledger.last() is None
    for batch, drain in ((9, 0), (10, 0), (10, 1), (10, 1)):
        ledger.commit(Commit("app", batch, drain, "f", "sql", 1, 0))
    assert ledger.last() == (10, 1) and ledger.is_committed(10, 1)
    assert not ledger.is_committed(11, 0)
    assert Ledger(warehouse, "other").last() is None


def test_a_commits_duration_comes_with_the_next_commit_or_with_the_runs_end(warehouse):
    create_all(warehouse)
    ledger = Ledger(warehouse, "app")
    first, second = (Timed(batch, 0, f'{{"commit": {batch}}}') for batch in (0, 1))
    ledger.commit(Commit("app", 0, 0, "f", "sql", 1, 0, phases="{}"))
    ledger.commit(Commit("app", 1, 0, "f", "sql", 1, 0, phases="{}", before=first))

    def noted() -> list[tuple]:
        c = load_commits.c
        query = select(c.phases, c.source_listed).order_by(c.batch)
        return ledger.run(lambda connection: [*map(tuple, connection.execute(query))])

    assert noted() == [('{"commit": 0}', None), ("{}", None)]
    ledger.end_run(second, 1, 5.0)
    assert noted() == [('{"commit": 0}', None), ('{"commit": 1}', 5.0)]
    ledger.end_run(None, 1, None)
    assert noted()[1] == ('{"commit": 1}', 5.0)


def test_deadlocked_transaction_is_tried_again(mariadb):
    engine = connect(mariadb.fresh())
    with engine.begin() as c:
        c.execute(text("CREATE TABLE t (id INT PRIMARY KEY, v INT)"))
        c.execute(text("INSERT INTO t VALUES (1, 0), (2, 0)"))
    barrier, ledger = threading.Barrier(2), Ledger(engine, "app")
    met = threading.local()

    def cross(first, second):
        def work(connection):
            connection.execute(text("UPDATE t SET v = v + 1 WHERE id = :i"), {"i": first})
            if not getattr(met, "once", False):
                met.once = True
                barrier.wait(20)
            connection.execute(text("UPDATE t SET v = v + 1 WHERE id = :i"), {"i": second})

        ledger.run(work)

    threads = [threading.Thread(target=cross, args=pair) for pair in ((1, 2), (2, 1))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    with engine.connect() as c:
        assert c.execute(text("SELECT v FROM t ORDER BY id")).scalars().all() == [2, 2]
    engine.dispose()


def test_a_locked_database_is_tried_again_and_a_table_named_so_is_not(tmp_path):
    """SQLite has one class of error for both; the message quotes the statement."""
    url = f"sqlite:///{tmp_path / 'warehouse.db'}"
    holder, engine, calls = connect(url), connect(url), []

    def work():
        calls.append(1)
        with engine.begin() as c:
            c.exec_driver_sql("PRAGMA busy_timeout = 1")
            c.execute(text("INSERT INTO locked VALUES (1)"))
        return len(calls)

    with pytest.raises(OperationalError, match="no such table: locked"):
        retrying(work, 10)
    assert len(calls) == 1
    with holder.begin() as c:
        c.execute(text("CREATE TABLE locked (v INTEGER)"))
    with holder.connect() as c:
        c.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(OperationalError, match="is locked"):
            retrying(work, 0.3)
        assert len(calls) > 1
        c.rollback()
    assert retrying(work, 10) == len(calls)
    holder.dispose()
    engine.dispose()


def test_a_statement_that_is_ended_is_tried_again(mariadb):
    """By an administrator (1317), and by the server's own limit (1969)."""
    engine, calls = connect(mariadb.fresh()), []
    long = "SELECT count(*) FROM seq_1_to_100000000 WHERE md5(seq) = 'x'"

    def work():
        calls.append(1)
        with engine.begin() as c:
            if len(calls) == 1:
                number = c.scalar(text("SELECT connection_id()"))
                threading.Timer(0.2, end, [number]).start()
                c.execute(text(long))
            elif len(calls) == 2:
                c.execute(text(f"SET STATEMENT max_statement_time = 0.1 FOR {long}"))
        return len(calls)

    def end(number):
        with engine.connect() as c:
            c.execute(text(f"KILL QUERY {number}"))

    assert retrying(work, 10) == 3
    engine.dispose()


def test_a_server_that_may_not_write_is_tried_again_over_new_connections(mariadb):
    """As a failover leaves it; whom it was before may be another one's now (1290)."""
    url = make_url(mariadb.fresh())
    root, calls = connect(str(url)), []
    with root.begin() as c:
        c.execute(text("CREATE TABLE t (id INTEGER)"))
        c.execute(text("CREATE OR REPLACE USER loader@127.0.0.1 IDENTIFIED BY 'loader'"))
        c.execute(text(f"GRANT ALL ON {url.database}.* TO loader@127.0.0.1"))
    engine = connect(
        url.set(username="loader", password="loader").render_as_string(hide_password=False)
    )

    def work():
        with engine.begin() as c:
            calls.append(c.scalar(text("SELECT connection_id()")))
            c.execute(text("INSERT INTO t VALUES (1)"))

    def primary(read_only):
        with root.begin() as c:
            c.execute(text(f"SET GLOBAL read_only = {read_only}"))

    try:
        primary(1)
        threading.Timer(0.5, primary, [0]).start()
        retrying(work, 10)
    finally:
        primary(0)
    assert len(set(calls)) == len(calls) > 1
    with root.connect() as c:
        assert c.scalar(text("SELECT count(*) FROM t")) == 1
    for e in (root, engine):
        e.dispose()


def test_other_errors_and_a_database_that_stays_away_are_raised():
    calls = []

    def wrong():
        calls.append(1)
        raise OperationalError("x", {}, Exception(1064, "syntax"))

    with pytest.raises(OperationalError):
        retrying(wrong, 10)
    assert len(calls) == 1

    def away():
        calls.append(1)
        raise OperationalError("x", {}, Exception(2003, "can't connect"))

    with pytest.raises(OperationalError):
        retrying(away, 0.3)
    assert len(calls) > 1


def test_a_process_that_meets_many_warehouses_keeps_connections_to_few(tmp_path):
    engines = []
    for number in range(9):
        engine = shared_engine(f"sqlite:///{tmp_path}/{number}.db")
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        assert shared_engine(f"sqlite:///{tmp_path}/{number}.db") is engine
        engines.append(weakref.ref(engine))
    del engine, connection
    gc.collect()
    assert [number for number, engine in enumerate(engines) if engine()] == [5, 6, 7, 8]


def record(partition):
    counts = InputCounts(
        "part",
        0,
        partition,
        0,
        {Reason.NO_MATCH: partition} if partition else {},
        0,
        f"s{partition}",
        "part",
        "v1",
    )
    return LoadRecord("app", 0, 0, partition, "a", (counts,), partition, 0, 0, memory={"H_S": 1})


def test_columns_that_an_earlier_version_did_not_have_are_added(warehouse):
    with warehouse.begin() as connection:
        for name in ("reason", "key_sketch"):
            connection.exec_driver_sql(f"ALTER TABLE load_batches DROP COLUMN {name}")
    create_all(warehouse)
    create_all(warehouse)  # nothing is missing any more
    with warehouse.connect() as connection:
        columns = select(load_batches.c.reason, load_batches.c.key_sketch)
        assert connection.execute(columns).all() == []
