"""A Delta table as the sink: in exactly once, its commits beside Spark, compacted meanwhile."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from loads import same
from semistream.errors import ConfigError
from semistream.paths import Paths
from semistream.reasons import Reason
from semistream.streaming import app
from semistream.streaming.progress import Progress
from semistream.streaming.sinks.delta import WAREHOUSE, DeltaSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import Spool
from semistream.warehouse import connect, create_all
from semistream.warehouse.identity import warehouse_identity
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.records import InputCounts, LoadRecord


def test_a_table_that_another_warehouse_loads_is_refused(tmp_path):
    """Their loads would have the same load_ids. One that nobody has claimed is the first's."""
    stream, added = pa.schema([("id", pa.int64())]), pa.schema([("name", pa.string())])
    former = pa.schema([*stream, *added, ("load_id", pa.int64())])
    for place, first, second in (("new", "a", "b"), ("unclaimed", "b", "a")):
        uri = str(tmp_path / place)
        if place == "unclaimed":
            DeltaTable.create(uri, former)
        sinks = {}
        for name in "ab":
            warehouse = Warehouse(f"sqlite:///{tmp_path / name}.db", "fact", ("m_sk",), 60.0)
            create_all(warehouse.engine)
            sinks[name] = DeltaSink(uri, str(tmp_path), warehouse)
        for _ in range(2):
            sinks[first].prepare(stream, added, ("id",))
            with pytest.raises(ConfigError, match="that no other warehouse loads"):
                sinks[second].prepare(stream, added, ("id",))
        assert DeltaTable(uri).metadata().configuration[WAREHOUSE] == warehouse_identity(
            sinks[first].warehouse.engine, 60.0
        )


def test_a_warehouse_has_one_identity_whoever_asks(warehouse):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: warehouse_identity(warehouse, 60.0), range(16)))
    assert len(found) == 1 and uuid.UUID(found.pop())


def test_attempts_of_a_load_stage_files_of_their_own(tmp_path):
    """Also where both leave the join's state as it was, and so name the same state file."""
    stream = pa.schema([("id", pa.int64())])
    warehouse = Warehouse(f"sqlite:///{tmp_path / 'warehouse.db'}", "fact", (), 60.0)
    create_all(warehouse.engine)
    (tmp_path / "delta").mkdir()
    sink = DeltaSink(str(tmp_path / "delta"), str(tmp_path), warehouse)
    counts = InputCounts("part", 0, 1, 0, {Reason.NULL_KEY: 1}, 0, "000000000-0-0000-state")
    record = LoadRecord("sales", 1, 0, 0, "ssbj", (counts,), 1, 0, 0)

    def attempt():
        writer = sink.writer(stream, "sales", 1, 0, 0)
        with Spool(stream, (stream,), (("id",),), writer) as spool:
            spool.keep(pa.table({"id": [7]}).to_batches()[0], pa.array([Reason.NULL_KEY]))
            return sink.write(record, spool).prepared["staged"]["unmatched"]

    assert attempt() != attempt()
    assert len([*(tmp_path / "staging").iterdir()]) == 2, "a lost attempt's file is left alone"


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj"])
def test_delta_sink(spark, sqlite_load, tmp_path, algorithm):
    for rows in (2500, 3000):
        sqlite_load.add_file(rows)
    sqlite_load.sink = str(tmp_path / "delta")
    sqlite_load.run(spark, algorithm=algorithm)
    sqlite_load.check()
    # batch 1, drained or with nothing left to drain
    assert DeltaTable(sqlite_load.sink).transaction_version("sales") in (2, 3)


def test_delta_table_may_be_compacted_while_the_app_runs(spark, sqlite_load, tmp_path, monkeypatch):
    for _ in range(3):
        sqlite_load.add_file(400)
    commit, sqlite_load.sink = DeltaSink.commit, str(tmp_path / "delta")

    def compacting(self, *args):
        DeltaTable(sqlite_load.sink).optimize.compact()
        commit(self, *args)

    monkeypatch.setattr(DeltaSink, "commit", compacting)
    sqlite_load.run(spark)
    table = DeltaTable(sqlite_load.sink)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(table.file_uris()) == len(list((tmp_path / "delta").glob("*.parquet"))) == 1
    sqlite_load.check()


def test_delta_commit_is_not_repeated_when_the_ledger_was_not_reached(
    spark, sqlite_load, tmp_path, monkeypatch
):
    for rows in (2500, 3000):
        sqlite_load.add_file(rows)
    commit, crashes = Ledger.commit, iter([True, False, True])
    sqlite_load.sink = str(tmp_path / "delta")

    def crashing(self, *args):
        if next(crashes, False):
            raise OSError("crash between Delta and ledger")
        commit(self, *args)

    monkeypatch.setattr(Ledger, "commit", crashing)
    for _ in range(2):
        with pytest.raises(OSError, match="between"):
            sqlite_load.run(spark)
    sqlite_load.run(spark)
    sqlite_load.check()


def test_a_prepared_delta_commit_is_made_by_the_next_run_and_by_no_other_sink(
    spark, sqlite_load, tmp_path, monkeypatch
):
    def crashing(*_):
        raise OSError("crash")

    elsewhere = Paths(
        home=sqlite_load.paths.home, warehouse_url=f"sqlite:///{tmp_path / 'other.db'}"
    )
    sqlite_load.sink = str(tmp_path / "delta")
    sqlite_load.add_file(300)
    sqlite_load.run(spark)
    sqlite_load.add_file(2500)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="crash"):
        patch.setattr(DeltaSink, "commit", crashing)
        sqlite_load.run(spark)
    # not into another warehouse
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="checkpoint"):
        patch.setattr(sqlite_load, "paths", elsewhere)
        sqlite_load.run(spark)
    sqlite_load.add_file(300)
    before = sqlite_load.facts()
    with pytest.raises(ConfigError, match="'sink' must stay"):
        sqlite_load.run(spark, sink="sql")
    assert sqlite_load.facts() == before
    assert (sqlite_load.checkpoint / "intent.json").exists()
    sqlite_load.run(spark)
    same(sqlite_load.facts(), sqlite_load.expected()[0])
    same(sqlite_load.unmatched(), sqlite_load.expected()[1])
    sqlite_load.check_ledger()


def test_delta_commit_goes_on_while_the_next_batch_is_planned_and_not_longer(
    spark, sqlite_load, tmp_path, monkeypatch
):
    for _ in range(3):
        sqlite_load.add_file(400)
    commit, write, committed, happened = DeltaSink.commit, Progress.write, app.App._committed, []

    def slow(*args):
        time.sleep(0.3)
        commit(*args)
        happened.append("made")

    monkeypatch.setattr(DeltaSink, "commit", slow)
    monkeypatch.setattr(Progress, "write", lambda *args: (happened.append("begun"), write(*args)))
    monkeypatch.setattr(
        app.App, "_committed", lambda *args: (committed(*args), happened.append("prepared"))
    )
    sqlite_load.run(spark, sink=str(tmp_path / "delta"))
    assert len(happened) >= 9 and happened == ["begun", "prepared", "made"] * (len(happened) // 3)
    took = sqlite_load.query("SELECT json_extract(phases, '$.commit') FROM load_commits")
    assert len(took) == len(happened) // 3 and all(seconds >= 0.3 for (seconds,) in took)
    sqlite_load.check_ledger()


def test_apps_that_start_at_the_same_time_make_the_same_delta_table(sqlite_load, tmp_path):
    schema = pa.schema([("id", pa.int64())])
    create_all(connect(sqlite_load.paths.warehouse_url))
    for attempt in range(8):
        together, uri = Barrier(4), str(tmp_path / f"delta{attempt}")

        def prepare(_, together=together, uri=uri):
            sink = DeltaSink(
                uri, str(tmp_path), Warehouse(sqlite_load.paths.warehouse_url, "f", ("m_sk",), 10.0)
            )
            together.wait()
            sink.prepare(schema, pa.schema([]), ("id",))

        with ThreadPoolExecutor(4) as apps:
            list(apps.map(prepare, range(4)))
