"""Columns of any name, and numbers that a database lacks, from provisioning to the proof."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from sqlalchemy import inspect, select

from loads import transaction
from provisioned import provision, publish
from semistream import quality
from semistream.errors import ConfigError
from semistream.job import Job
from semistream.paths import Paths
from semistream.streaming.app import App
from semistream.streaming.settings import LoadSettings
from semistream.streaming.sinks.delta import DeltaSink
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import TEXT
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.streaming.summary import describe
from semistream.warehouse import connect, create_all
from semistream.warehouse.schema import load_batches, unmatched
from semistream.warehouse.tables import existing_table


def load_and_verify(spark, home, url, stream, master, on, ids, sink="sql"):
    """A job's whole way in this process: (summary, verification)."""
    paths = Paths(home=home, warehouse_url=url)
    (home / "s").mkdir(parents=True)
    pq.write_table(stream, home / "s" / "a.parquet")
    pq.write_table(master, home / "m.parquet")
    job = Job.load(
        {
            "name": "j",
            "stream": {"format": "parquet", "path": str(home / "s"), "id": ids},
            "master": {"name": "m", "path": str(home / "m.parquet")},
            "on": on,
            "fact_table": "facts",
        }
    )
    engine = connect(url)
    provision(job, engine)
    publish(job, engine, paths.snapshots)
    settings = LoadSettings.load(
        {"job": "j", "algorithm": "ssbj", "partitions": 1, "sink": sink, "memory": "200KB"}
    )
    directory = settings.directory(paths)
    with checkpoint_lock(directory), StatusFile(directory, settings.name()) as status:
        load = App(settings, job, paths, status)
        load.check()
        summary = load.run(spark.sparkContext)
    result = quality.verify(
        url, "j", job=job, reports_dir=home / "reports", snapshots=paths.snapshots
    )
    engine.dispose()
    return summary, result


STRANGE = [
    "b`t",
    "``",
    "100%",
    'q"q',
    "x y",
    "order",
    "lateral",
    "a.b",
    "c:d",
    "?",
    "[",
    "back\\",
    "it's",
    "é",
    " lead",
    "tab\tbed",
    "%(x)s",
    "batch",
    "version",
    "stream_id",
    "source",
    "key_0",
    "app",
    "drain",
    "partition",
    "reason",
    "tuple",
    "fact_table",
    "side",
    "file",
]


def test_columns_of_any_name_are_loaded_and_proven(spark, tmp_path, warehouse_url, sink):
    stream = pa.table(
        {"batch": range(20), "version": [str(i) for i in range(20)], "stream_id": range(20)}
        | {n: range(20) for n in STRANGE if n not in ("batch", "version", "stream_id")}
    )
    master = pa.table({"key": range(15)} | {n: [f"{i} {n}" for i in range(15)] for n in STRANGE})
    summary, result = load_and_verify(
        spark,
        tmp_path / "home",
        warehouse_url,
        stream,
        master,
        {"b`t": "key"},
        ["batch", "version", "stream_id"],
        sink,
    )
    assert summary.matched == 15 and summary.rejected == {"no_match": 5}
    assert result.success, result.describe()


INFINITY, NAN = float("inf"), float("nan")


def test_numbers_that_the_sink_lacks_are_counted_and_proven(spark, tmp_path, warehouse_url, sink):
    stream = pa.table(
        {
            "id": range(4),
            "k": [1, 1, 1, 2],
            "x": [NAN, INFINITY, -INFINITY, NAN],
            "y": pa.array([1.5, NAN, NAN, NAN], pa.float32()),
        }
    )
    sqlite = warehouse_url.startswith("sqlite")
    nulled = {"x": 1 if sqlite else 3, "y": 2} if sink == "sql" else {}
    summary, result = load_and_verify(
        spark,
        tmp_path / "home",
        warehouse_url,
        stream,
        pa.table({"k": [1], "name": ["one"]}),
        {"k": "k"},
        ["id"],
        sink,
    )
    assert result.success, result.describe()
    assert summary.nulled == nulled
    said = [note for note in result.notes if "stored as NULL" in note]
    assert len(said) == (1 if nulled else 0)
    assert ("NULL, not a number: x" in describe(summary)) == bool(nulled)
    assert f"{summary.rows_read / summary.seconds:,.0f} tuples/s" in describe(summary)
    assert " with 1 partition, 1 batch, " in describe(replace(summary, partitions=1, batches=1))
    assert " with 2 partitions, 3 batches" in describe(replace(summary, partitions=2, batches=3))
    engine = connect(warehouse_url)
    with engine.connect() as connection:
        kept = connection.scalars(select(load_batches.c.nulled)).all()
        assert [json.loads(text) for text in kept if text] == ([nulled] if nulled else [])
        facts = (
            connection.execute(select(existing_table(engine, "facts"))).mappings().all()
            if sink == "sql"
            else DeltaTable(sink).to_pyarrow_table().to_pylist()
        )
    engine.dispose()
    found = {row["id"]: row["x"] for row in facts}
    assert (found[0] is None) if sink == "sql" else (found[0] != found[0])
    whole = sink != "sql" or sqlite
    assert (found[1], found[2]) == ((INFINITY, -INFINITY) if whole else (None, None))


def test_times_that_no_database_holds_are_unparsable(spark, tmp_path, warehouse_url, sink):
    late = [569_039_644_800_000_000, None, 253_402_300_800_000_000]
    stream = pa.table({"id": range(3), "k": [1, 1, 2], "until": pa.array(late, pa.timestamp("us"))})
    summary, result = load_and_verify(
        spark,
        tmp_path / "home",
        warehouse_url,
        stream,
        pa.table({"k": [1], "name": ["one"]}),
        {"k": "k"},
        ["id"],
        sink,
    )
    assert summary.rejected == {"unparsable": 2} and summary.matched == 1
    assert {r.name for r in result.failed} == {"unparsable"}, result.describe()
    with transaction(warehouse_url) as connection:
        kept = connection.scalars(select(unmatched.c.tuple).order_by(unmatched.c.stream_id)).all()
    assert [json.loads(text)["why"] for text in kept] == [
        "until: 20002-02-24 00:00:00 is not in the years 1 to 9999",
        "until: 10000-01-01 00:00:00 is not in the years 1 to 9999",
    ]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_that_are_finer_than_the_warehouse_s_are_unparsable(
    spark, tmp_path, warehouse_url, sink, zone
):
    kind = pa.timestamp("ns", zone)
    stream = pa.table({"id": range(3), "k": [1, 1, 2], "at": pa.array([1_000, 1_001, None], kind)})
    paths = Paths(home=tmp_path / "home", warehouse_url=warehouse_url)
    summary, result = load_and_verify(
        spark,
        paths.home,
        warehouse_url,
        stream,
        pa.table({"k": [1, 2], "seen": pa.array([1_000_000, 2_000], kind)}),
        {"k": "k"},
        ["id"],
        sink,
    )
    assert summary.rejected == {"unparsable": 1} and summary.matched == 2
    assert {r.name for r in result.failed} <= {"unparsable"}, result.describe()
    with transaction(warehouse_url) as connection:
        (kept,) = connection.scalars(select(unmatched.c.tuple)).all()
    at = "1970-01-01 00:00:00.000001001" + ("Z" if zone else "")
    name = "TIMESTAMP" if zone else "TIMESTAMP_NTZ"
    assert json.loads(kept)["why"] == f"at: '{at}' is not {name}"
    assert json.loads(json.loads(kept)[TEXT]) == {"id": 1, "k": 1, "at": at}


def test_facts_too_wide_for_mysql_end_the_load_or_go_to_delta(spark, tmp_path, mariadb, sink):
    stream = pa.table({"id": [1], "k": [1]} | {f"c{i}": ["y" * 39] for i in range(300)})
    arguments = (
        spark,
        tmp_path / "home",
        mariadb.fresh(),
        stream,
        pa.table({"k": [1], "name": ["one"]}),
        {"k": "k"},
        ["id"],
    )
    if sink == "sql":
        with pytest.raises(Exception, match=r"'facts' must have rows that fit .* Leave columns"):
            load_and_verify(*arguments)
    else:
        summary, result = load_and_verify(*arguments, sink)
        assert result.success, result.describe()
        assert summary.matched == 1


@pytest.mark.parametrize("name", ["load_row", "LOAD_ROW", "load_id", "m_sk", "M_SK"])
@pytest.mark.parametrize("kind", ["sql", "delta"])
def test_columns_that_a_load_adds_itself_are_refused_in_a_stream(tmp_path, kind, name):
    warehouse = Warehouse(f"sqlite:///{tmp_path / 'w.db'}", "facts", ("m_sk",), 60.0)
    create_all(warehouse.engine)
    sink = (
        SqlSink(warehouse)
        if kind == "sql"
        else DeltaSink(str(tmp_path / "d"), str(tmp_path), warehouse)
    )
    for stream, added in (
        ({"id": pa.int64(), name: pa.int64()}, {}),
        ({"id": pa.int64()}, {name: pa.int64()}),
    ):
        if added and name.lower() == "m_sk":
            continue  # it is the surrogate key
        with pytest.raises(ConfigError, match=f"repeat a column of the table. Got '{name}'"):
            sink.prepare(pa.schema(list(stream.items())), pa.schema(list(added.items())), ("id",))
    assert not (tmp_path / "d").exists() and not inspect(warehouse.engine).has_table("facts")
