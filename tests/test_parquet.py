"""Parquet files of the stream that the tasks read themselves: when they can, and that it is what
Spark would give."""

from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from loads import ON, same
from semistream.sizing.plan import Plan
from semistream.streaming import micro_batch
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.workers import parquet
from semistream.warehouse import connect

OF = "JOIN load_batches USING (load_id) WHERE app"



@pytest.mark.parametrize("partitions", [1, 3])
def test_parquet_is_read_by_the_tasks_and_gives_what_spark_gives(
        spark, sqlite_load, monkeypatch, partitions):
    """Of every partition the same numbers, tuples without a key left out: those may be any
    partition's."""
    for rows in (3000, 0, 2000):
        sqlite_load.add_file(rows)
    asked, sampled = [], []
    monkeypatch.setattr(micro_batch, "can_read",
                        lambda *a: asked.append(parquet.can_read(*a)) or asked[-1])
    monkeypatch.setattr(micro_batch, "first_tuples",
                        lambda *a: sampled.append(parquet.first_tuples(*a)) or sampled[-1])
    sqlite_load.run(spark, app="tasks", partitions=partitions, algorithm="ssbj",
                    parameters={"disk_tuples": 64})
    assert [sample.num_rows for sample in sampled] == ([3000] if partitions > 1
                                                       else []), "one operator has no question"
    monkeypatch.setattr(micro_batch, "can_read", lambda *_: False)
    sqlite_load.run(spark, app="spark", partitions=partitions, algorithm="ssbj",
                    parameters={"disk_tuples": 64})
    assert len(asked) >= 3 and all(asked) and len(sampled) <= 1
    rows = [Counter(sqlite_load.query("SELECT batch, drain, partition, matched FROM load_batches "
                                      f"b WHERE app = '{name}'")) for name in ("tasks", "spark")]
    assert rows[0] == rows[1] and rows[0].total() >= 3 * partitions
    facts = [Counter(sqlite_load.query("SELECT batch, partition, id, sku, name FROM fact_sales "
                                       f"{OF} = '{name}'")) for name in ("tasks", "spark")]
    same(*facts)
    lost = [Counter(sqlite_load.query("SELECT stream_id, tuple, unmatched.reason FROM unmatched "
                                      f"{OF} = '{name}'")) for name in ("tasks", "spark")]
    same(*lost)


def test_a_batch_is_finished_as_it_was_begun_whoever_reads(spark, sqlite_load, monkeypatch):
    """Tuples without a key, or of a very frequent one, are in other partitions where Spark reads:
    one of five is to be done again."""
    sqlite_load.add_file(3000)
    settings = {"partitions": 5, "join_type": "left", "algorithm": "ssbj", "parameters": {},
                "memory": "2MB"}
    commit = SqlSink.commit

    def fails(*_):
        raise OSError("the driver dies")

    monkeypatch.setattr(SqlSink, "commit", fails)
    with pytest.raises(Exception, match="the driver dies"):
        sqlite_load.run(spark, **settings)
    engine = connect(sqlite_load.places.warehouse_url)
    with engine.begin() as connection:
        first = "SELECT load_id FROM load_batches WHERE partition = 0"
        for table in ("fact_sales", "unmatched", "load_batches"):
            connection.execute(text(f"DELETE FROM {table} WHERE load_id IN ({first})"))
    engine.dispose()
    monkeypatch.setattr(SqlSink, "commit", commit)
    monkeypatch.setattr(micro_batch, "can_read", lambda *_: False)
    sqlite_load.run(spark, **settings)
    sqlite_load.check("left")


def test_parquet_of_other_types_or_places_is_left_to_spark(tmp_path):
    stream = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    rows = {"id": [1, 2], "at": [datetime(2024, 1, 1, tzinfo=UTC)] * 2, "more": ["a", "b"]}

    def written(name, schema):
        path = tmp_path / name
        pq.write_table(pa.table({n: rows[n] for n in schema.names}, schema), path)
        return str(path)

    good = written("good", pa.schema([*reversed(stream), pa.field("more", pa.string())]))
    assert parquet.can_read([good, good], stream, 4)
    for other in (written("narrow", pa.schema([("id", pa.int32()), stream.field("at")])),
                  written("local", pa.schema([stream.field("id"), ("at", pa.timestamp("us"))])),
                  written("lacks", pa.schema([stream.field("id")])),
                  written("legacy", stream.with_metadata({"org.apache.spark.legacyDateTime": ""})),
                  f"hdfs://{good}", str(tmp_path / "none"), __file__):
        assert not parquet.can_read([good, other], stream, 4)
    assert not parquet.can_read([], stream, 4)
    assert not parquet.can_read([good], stream, parquet.MOST_PARTITIONS + 1)


def test_wide_tuples_are_decoded_fewer_at_a_time(sqlite_load, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BYTES", 100_000)
    version = next((sqlite_load.places.snapshots / "part").glob("v*"))
    plan = Plan("ssbj", 1_000_000, "inner", {}, ON, None, 2, str(version))
    stream = pa.schema([("sku", pa.string()), ("text", pa.string())])
    keys = [f"c{i}" if i % 10 else None for i in range(1000)]
    texts = [f"{i:1000}" for i in range(1000)]
    rows = pa.table({"sku": keys, "text": texts}, stream)
    pq.write_table(rows, tmp_path / "wide.parquet", use_dictionary=False)
    files, placement = [str(tmp_path / "wide.parquet")], plan.placement(stream)
    pieces = [list(parquet.read_partition(files, placement, p))
              for p in (0, 1)]
    assert max(piece.nbytes for of in pieces for piece in of) < 100_000
    assert min(map(len, pieces)) >= 10
    read = [pa.Table.from_batches(of) for of in pieces]
    same(Counter(pa.concat_tables(read)["text"].to_pylist()), Counter(rows["text"].to_pylist()))
    assert read[0]["sku"].null_count + read[1]["sku"].null_count == 100
    assert all(of["sku"].null_count > 30 for of in read)  # without a key: any partition's


def test_the_first_tuples_of_all_partitions_are_a_sample(tmp_path, monkeypatch):
    stream = pa.schema([("id", pa.int64()), ("text", pa.string())])
    files, rows = [], 0
    for count in (0, 700, 1000):
        files.append(str(tmp_path / f"{rows}-{count}"))
        ids = range(rows, rows := rows + count)
        pq.write_table(pa.table({"more": ids, "text": map(str, ids), "id": ids}), files[-1])
    monkeypatch.setattr(parquet, "ROWS", 300)
    for most in (1, 300, 700, 701, 1400, 5000):
        found = parquet.first_tuples(files, stream, most)
        assert found.schema == stream and found["id"].to_pylist() == list(range(min(most, rows)))
    assert parquet.first_tuples(files[:1], stream, 5).num_rows == 0


def test_narrower_columns_of_later_files_are_widened_by_spark(spark, sqlite_load):
    sqlite_load.add_file(500)
    table = sqlite_load.sales(300)
    narrow = table.set_column(2, "amount", table["amount"].cast(pa.float32()))
    pq.write_table(narrow, sqlite_load.stream_directory / "part-1.parquet")
    sqlite_load.run(spark)
    sqlite_load.check()
