"""What a user may leave behind, a backup that was put back, a table that was dropped, half a reset:
the load refuses to go on and says what helps, and the proof does not hold."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from damage import Kept, copy, of_former_version
from loads import SmallLoad, provision_beside, verify
from semistream import cli, quality
from semistream.durable import read_checked, write_checked
from semistream.errors import SemistreamError
from semistream.pipeline import steps
from stream_pairs import Pair


class Loaded:
    """A load of two batches in two runs, with the warehouse as it was after the first one, and its
    place, which can be brought back."""

    def __init__(self, spark, place: Path, sink: str):
        self.spark, self.place = spark, place
        self.load = SmallLoad(place / "home", f"sqlite:///{place / 'warehouse.db'}", parts=300)
        self.sink = self.load.sink = sink if sink == "sql" else str(place / "home" / "delta")
        self.load.publish()
        provision_beside(self.load)
        for name in ("older", "newest"):
            self.load.add_file(400)
            self.run()
            copy(place / "warehouse.db", place / f"{name}.db")
        self.bring_back = Kept(place).bring_back

    def run(self, **settings):
        """Let tuples wait until the drain: with little R, ELEVATORJOIN would answer all at once."""
        return self.load.run(self.spark, partitions=1, algorithm="meshjoin", **settings)

    def put_back(self, backup: str) -> None:
        copy(self.place / f"{backup}.db", self.place / "warehouse.db")

    def refused(self, *words: str, **settings) -> None:
        """Twice, and nothing is loaded."""
        for _ in range(2):
            with pytest.raises(SemistreamError) as e:
                self.run(**settings)
            assert not [w for w in words if w not in str(e.value)], str(e.value)

    def failed(self, **options) -> dict[str, list]:
        result = verify(self.load, **options)
        return {r.name: r.rows for r in result.failed}

    def load_anew(self, monkeypatch) -> None:
        """By the way out that refusals name."""
        monkeypatch.setenv("SEMISTREAM_HOME", str(self.load.paths.home))
        monkeypatch.setenv("WAREHOUSE_URL", self.load.paths.warehouse_url)
        assert cli.main(["reset", "sales", "--yes"]) == 0
        assert self.run().rows_read == 800
        self.check()
        assert not self.failed()

    def check(self) -> None:
        self.load.check()


@pytest.fixture(scope="module")
def of_sql(spark, tmp_path_factory):
    return Loaded(spark, tmp_path_factory.mktemp("sql"), "sql")


@pytest.fixture(scope="module")
def of_delta(spark, tmp_path_factory):
    return Loaded(spark, tmp_path_factory.mktemp("delta"), "delta")


def as_it_was(loaded):
    loaded.bring_back()
    yield loaded
    del loaded.load.stream[800:]


@pytest.fixture
def sql(of_sql):
    yield from as_it_was(of_sql)


@pytest.fixture
def delta(of_delta):
    yield from as_it_was(of_delta)


@pytest.fixture(params=["sql", "delta"])
def loaded(request, spark):
    yield from as_it_was(request.getfixturevalue(f"of_{request.param}"))


def test_an_older_warehouse_is_put_back(loaded, monkeypatch):
    assert not loaded.failed()
    loaded.put_back("older")
    (finding, *_) = loaded.failed()["ledger_is_newest"]
    assert "Spark takes batch 1 for done, and the ledger ends with" in finding["finding"]
    assert "ledger_is_newest" in loaded.failed(since_last=True), "also where all was proven"
    loaded.refused("to batch 0 in this warehouse", "put back from an older backup")
    loaded.put_back("newest")
    assert loaded.run().rows_read == 0 and not loaded.failed()
    loaded.check()


def test_an_older_warehouse_is_put_back_and_all_is_loaded_anew(loaded, monkeypatch):
    loaded.put_back("older")
    if loaded.sink != "sql":
        shutil.rmtree(loaded.sink)
    loaded.load_anew(monkeypatch)


def test_a_proven_ledger_is_put_back(sql):
    """Its own verifications came back with it, and nothing was committed since the last one."""
    sql.put_back("older")
    sql.load.alter(
        "INSERT INTO quality_runs (app, fact_table, started_at, seconds, to_batch, to_drain, "
        "success, expectations, failed, unseen, report) VALUES ('sales', 'fact_sales', "
        "'2026-01-01 00:00:00.000000', 1, 0, 1, 1, 21, '[]', '[]', '')"
    )
    assert "ledger_is_newest" in sql.failed(since_last=True)


def test_the_drain_is_gone_from_an_older_warehouse(sql):
    [(state,)] = sql.load.query(
        "SELECT state_file FROM load_inputs JOIN load_batches USING "
        "(load_id) WHERE batch = 1 AND drain = 0"
    )
    (sql.load.checkpoint / "state" / state).unlink(missing_ok=True)  # as a later commit does
    drain = "load_id IN (SELECT load_id FROM load_batches WHERE batch = 1 AND drain = 1)"
    sql.load.alter(
        "DELETE FROM load_commits WHERE batch = 1 AND drain = 1",
        *(
            f"DELETE FROM {table} WHERE {drain}"
            for table in ("load_rejections", "load_inputs", "load_batches")
        ),
    )
    (finding,) = sql.failed()["ledger_is_newest"]
    assert "the tuples that wait after batch 1 are gone" in finding["finding"]
    sql.refused("join state")


def test_rows_of_a_load_that_nobody_knows(loaded):
    table = "fact_sales"
    if loaded.sink == "sql":
        columns = "id, sku, amount, part_sk, name, price"
        loaded.load.alter(
            f"INSERT INTO fact_sales ({columns}, load_id, load_row) "
            f"SELECT {columns}, k.load_id, 0 FROM fact_sales, (SELECT 7 load_id UNION "
            "SELECT 100000990000000 UNION SELECT 900000000000000000) k "
            "GROUP BY k.load_id"
        )
    else:
        from deltalake import DeltaTable, write_deltalake

        rows = DeltaTable(loaded.sink).to_pyarrow_table().slice(0, 3).to_pylist()
        keys = (7, 100000990000000, 900000000000000000)
        for row, key in zip(rows, keys, strict=True):
            row["load_id"] = key
        import pyarrow as pa

        write_deltalake(
            loaded.sink,
            pa.Table.from_pylist(rows, DeltaTable(loaded.sink).to_pyarrow_table().schema),
            mode="append",
        )
    loaded.load.alter(
        "INSERT INTO unmatched (load_id, load_row, fact_table, reason, tuple) VALUES "
        "(8, 0, 'fact_sales', 'no_match', '{}')"
    )
    found = {(r["table"], r["load_id"], r["rows"]) for r in loaded.failed()["known_loads"]}
    assert found == {
        (table, 7, 1),
        (table, 100000990000000, 1),
        (table, 900000000000000000, 1),
        ("unmatched", 8, 1),
    }


def test_rows_of_another_app_are_its_own(sql):
    sql.run(app="other")
    assert not sql.failed()
    job = sql.load.job.model_copy(update={"fact_table": "fact_more"})
    sql.run(app="more", job=job)
    for app in ("other", "more"):
        sql.load.alter(f"DELETE FROM load_batches WHERE app = '{app}' AND batch = 1")
    assert not sql.failed()


def test_the_table_is_gone(loaded, monkeypatch):
    if loaded.sink == "sql":
        loaded.load.alter("DROP TABLE fact_sales")
    else:
        shutil.rmtree(loaded.sink)
    loaded.load.add_file(100)
    loaded.refused("is gone, but the ledger says that sales has loaded", "semistream reset sales")
    assert "fact_table" in loaded.failed()
    max(loaded.load.stream_directory.iterdir()).unlink()
    del loaded.load.stream[800:]
    loaded.load_anew(monkeypatch)


def test_the_table_is_emptied(loaded):
    if loaded.sink == "sql":
        loaded.load.alter("DELETE FROM fact_sales")
    else:
        from deltalake import DeltaTable

        DeltaTable(loaded.sink).delete()
    loaded.refused("but the ledger says that sales has loaded")
    assert {"fact_rows", "same_rows", "none_missing"} <= loaded.failed().keys()


def test_the_log_of_a_delta_table_lacks_its_newest_entry(delta):
    newest = max((Path(delta.sink) / "_delta_log").glob("*.json"))
    aside = shutil.move(newest, delta.place)
    delta.refused("does not have", "batch 1", "but the ledger says that sales has loaded")
    shutil.move(aside, newest)
    delta.load.add_file(100)
    delta.run()
    delta.check()


@pytest.mark.parametrize("which", ["first", "all"])
def test_the_log_of_a_delta_table_is_damaged(delta, which):
    log = Path(delta.sink) / "_delta_log"
    for entry in sorted(log.glob("*.json"))[: 1 if which == "first" else None]:
        entry.unlink()
    delta.refused(delta.sink)
    assert "fact_table" in delta.failed()


def test_another_fact_table_is_asked_for(loaded):
    job = loaded.load.job.model_copy(update={"fact_table": "fact_others"})
    loaded.refused(
        "must stay fact_sales", "fact_others", "--app", "semistream reset sales", job=job
    )


def test_other_columns_are_to_identify_the_tuples(sql):
    stream = sql.load.job.stream.model_copy(update={"id": ("sku",)})
    sql.refused(
        "stream.id",
        "must stay ['id']",
        "semistream reset sales",
        job=sql.load.job.model_copy(update={"stream": stream}),
    )


def test_the_stream_s_path_is_another(sql):
    directory = sql.load.stream_directory
    moved = directory.with_name("moved")
    directory.rename(moved)
    sql.refused(str(directory), str(moved), "put a link", source_path=str(moved))
    directory.symlink_to(moved)
    sql.load.add_file(100)
    assert sql.run().rows_read == 100
    sql.check()


def test_the_stream_s_path_has_the_former_one_in_it(sql):
    sql.load.add_file(100)
    wider = str(sql.load.stream_directory.with_name("str*"))
    columns = "id BIGINT, sku STRING, amount DOUBLE"
    assert sql.run(source_path=wider, source_columns=columns).rows_read == 100
    sql.check()


HALVES = {  # what half a reset has left of the checkpoint
    "progress.json is gone": ["progress.json"],
    "the query is gone": ["query"],
    "all but the query": ["progress.json", "state", "summary.json", "status.json"],
    "the query's offsets are gone": ["progress.json", "query/offsets"],
    "the query's commits are gone": ["progress.json", "query/commits"],
    "the query's list of files is gone": ["progress.json", "query/sources"],
    "nothing": [],
}


@pytest.mark.parametrize("gone", HALVES.values(), ids=HALVES)
def test_a_reset_was_cut_short(sql, gone, monkeypatch):
    tables = (
        "unmatched",
        "load_rejections",
        "load_inputs",
        "load_batches",
        "load_commits",
        "load_files",
        "fact_sales",
    )
    with sqlite3.connect(sql.place / "warehouse.db") as connection:
        for table in tables:
            connection.execute(f"DELETE FROM {table}")
    connection.close()
    for name in gone:
        path = sql.load.checkpoint / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    try:
        summary = sql.run()
    except SemistreamError as e:
        assert "semistream reset sales" in str(e)
        sql.load_anew(monkeypatch)
    else:
        assert summary.rows_read == 800
        sql.check()


def test_a_reset_is_killed_while_it_deletes_the_checkpoint(sql, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(steps.shutil, "rmtree", lambda path, **_: killed(path))
        steps.reset("sales", sql.load.paths)
    assert sql.run().rows_read == 800
    sql.check()


def killed(path: Path) -> None:
    if path.is_dir():
        (path / "progress.json").unlink()
        raise OSError("killed")


def test_the_list_of_files_is_gone(sql):
    aside = shutil.move(sql.load.checkpoint / "query" / "sources", sql.place)
    sql.refused(f"{sql.load.checkpoint}/query/sources/0/1", "is gone", "semistream reset sales")
    shutil.move(aside, sql.load.checkpoint / "query" / "sources")
    assert sql.run().rows_read == 0


def test_a_drained_load_goes_on_without_what_only_waiting_tuples_need(sql):
    """The states of a former format, its plan, and its version of the master data."""
    for state in (sql.load.checkpoint / "state").iterdir():
        of_former_version(state)
    assert sql.run().rows_read == 0
    sql.load.add_file(100)
    assert sql.run().rows_read == 100
    sql.check()
    sql.load.publish("later")
    shutil.rmtree(sql.load.paths.snapshots / "part" / "code" / "v000001")
    assert sql.run().rows_read == 0
    note = sql.load.checkpoint / "progress.json"
    values = read_checked(note, "")
    del values["sources"]
    write_checked(note, values)
    sql.load.add_file(100)
    assert sql.run().rows_read == 100
    sql.load.check_ledger()


def test_two_streams(spark, tmp_path):
    """Their load goes by the same checks; an ended one needs no state."""
    pair = Pair(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    pair.add(300, 300)
    pair.run(spark, end=True)

    def failed():
        result = quality.verify(
            pair.paths.warehouse_url, "orders", reports_dir=tmp_path / "reports"
        )
        return {r.name for r in result.failed}

    assert not failed()
    for state in (pair.checkpoint / "state").iterdir():
        of_former_version(state)
    assert pair.run(spark, end=True).rows_read == 0
    pair.check()
    pair.execute(
        "INSERT INTO propagated (load_id, load_row, fact_table, side, pattern) "
        "VALUES (9, 0, 'fact_orders', 'left', '{}')"
    )
    assert failed() == {"known_loads"}
    pair.execute("DROP TABLE fact_orders")
    with pytest.raises(SemistreamError, match="fact_orders is gone, but the ledger says"):
        pair.run(spark, end=True)
    assert "fact_table" in failed()
