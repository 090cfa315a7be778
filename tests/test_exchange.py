"""How tuples come to the tasks that join them: read by every one of these, or by others that hand
them on."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from loads import ON, same
from semistream.data_files import DataFile
from semistream.errors import SemistreamError
from semistream.files.source import Rejected
from semistream.job import StreamSpec
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.exchange import Input, Side, TaskFailed, read_messages, shares
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sources.contract import Splits
from semistream.streaming.sources.decoders import ContentDecoder, MessageDecoder, RowDecoder
from semistream.streaming.sources.file_reader import FileReader, find_reader

OF = "JOIN load_batches USING (load_id) WHERE app"
FORMS = ("parquet", "csv", "json")


def write(load, form, rows):
    """A file of the stream in another format, some of whose tuples cannot be read."""
    table = load.sales(rows)
    load.files += 1
    path = load.stream_directory / f"{load.files}.{form}"
    if form == "parquet":
        pq.write_table(table, path)
        return
    if form == "csv":
        arrow_csv.write_csv(table, path)
        bad = "x,c1,1\n9\n"
    else:
        path.write_text("".join(json.dumps(r) + "\n" for r in table.to_pylist()))
        bad = '{"id": "x"}\n{\n'
    with open(path, "a") as file:
        file.write(bad)


@pytest.mark.parametrize(("form", "partitions"), [*((f, 3) for f in FORMS), ("csv", 1)])
def test_read_by_all_tasks_or_handed_on_it_is_the_same(
    spark, sqlite_load, monkeypatch, form, partitions
):
    """Of every partition the same tuples, those without a key and those that cannot be read
    too."""
    for rows in (3000, 0, 2000):
        write(sqlite_load, form, rows)
    stream = sqlite_load.job.stream.model_copy(
        update={"format": form, "columns": "id BIGINT, sku STRING, amount DOUBLE"}
    )
    job = sqlite_load.job.model_copy(update={"stream": stream})
    for app, replicated in (("replicated", True), ("exchanged", False)):
        monkeypatch.setattr(FileReader, "replicated", lambda *_, all=replicated: all)
        sqlite_load.run(
            spark,
            job,
            app=app,
            partitions=partitions,
            algorithm="ssbj",
            parameters={"disk_tuples": 64},
        )
    for query, least in (
        (
            "SELECT batch, drain, partition, rows_read, matched, unmatched FROM "
            "load_batches b WHERE app",
            3 * partitions,
        ),
        (f"SELECT batch, partition, id, sku, name FROM fact_sales {OF}", 3000),
        (
            f"SELECT partition, stream_id, tuple, unmatched.reason FROM unmatched {OF}",
            6 if form != "parquet" else 1,
        ),
    ):
        found = [
            Counter(sqlite_load.query(f"{query} = '{app}'")) for app in ("replicated", "exchanged")
        ]
        same(*found)
        assert found[0].total() >= least


def test_a_batch_is_finished_as_it_was_begun_whoever_reads(spark, sqlite_load, monkeypatch):
    sqlite_load.add_file(3000)
    settings = {
        "partitions": 5,
        "join_type": "left",
        "algorithm": "ssbj",
        "parameters": {},
        "memory": "2MB",
    }
    commit = SqlSink.commit

    def fails(*_):
        raise OSError("the driver dies")

    monkeypatch.setattr(SqlSink, "commit", fails)
    with pytest.raises(Exception, match="the driver dies"):
        sqlite_load.run(spark, **settings)
    first = "SELECT load_id FROM load_batches WHERE partition = 0"
    for table in ("fact_sales", "unmatched", "load_rejections", "load_inputs", "load_batches"):
        sqlite_load.execute(f"DELETE FROM {table} WHERE load_id IN ({first})")
    monkeypatch.setattr(SqlSink, "commit", commit)
    monkeypatch.setattr(FileReader, "replicated", lambda *_: False)
    sqlite_load.run(spark, **settings)
    sqlite_load.check("left")


@pytest.mark.parametrize("exchanged", [True, False])
def test_what_a_reading_task_cannot_read_stops_the_load_in_one_sentence(
    spark, sqlite_load, monkeypatch, exchanged
):
    """A damaged page: none of the partitions counts, and the file is named."""
    monkeypatch.setattr(FileReader, "replicated", lambda *_: not exchanged)
    sqlite_load.add_file(3000)
    (file,) = sqlite_load.stream_directory.iterdir()
    data = bytearray(file.read_bytes())
    data[100:3000] = bytes(2900)
    file.write_bytes(data)
    with pytest.raises(SemistreamError) as e:
        sqlite_load.run(spark)
    assert str(file) in str(e.value) and len(str(e.value)) < 500
    assert sqlite_load.query("SELECT count(*) FROM load_commits") == [(0,)]
    assert sqlite_load.query("SELECT count(*) FROM fact_sales") == [(0,)]


@pytest.fixture
def reader(tmp_path):
    return find_reader(
        StreamSpec(format="csv", path=str(tmp_path), columns="sku STRING, n INT", id=["n"])
    )


@pytest.fixture
def side(sqlite_load, reader):
    version = next((sqlite_load.paths.snapshots / "part" / "code").glob("v*"))
    plan = RolePlan("ssbj", 1_000_000, "inner", {}, ON, 3, str(version))
    return Side(0, plan.placement((reader.schema,)))


def files(directory, pattern="*"):
    return [DataFile(str(path)) for path in sorted(directory.glob(pattern))]


def test_messages_are_read_as_they_were_written(side, reader, tmp_path):
    (tmp_path / "a.csv").write_text(
        "sku,n\n" + "".join(f"c{i},{i}\n" for i in range(500)) + ",501\nc1,x\n1\n"
    )
    messages = list(side.messages(reader.read(files(tmp_path, "a.csv"))))
    found = list(read_messages(iter(messages), [side.placement.stream]))
    assert sum(i.tuples.num_rows for i in found) == 501
    rejected = [r for i in found for r in i.rejected]
    assert sorted(rejected, key=lambda r: r.line) == [
        Rejected("c1,x", "n: 'x' is not INT", str(tmp_path / "a.csv"), 503, None),
        Rejected("1", "1 fields in place of 2", str(tmp_path / "a.csv"), 504, None),
    ]
    of = {p.as_py() for batch in messages for p in batch.column(0)}
    assert of == {0, 1, 2}


def test_rows_that_spark_brings_go_by_their_key_and_else_by_what_they_are(side):
    rows = pa.record_batch({"column_0": ["c1", "c2", None, None], "column_1": [1, 2, 3, 4]})
    decoder = RowDecoder(side.placement.stream)
    once, again = (
        list(read_messages(side.messages(decoder.decode(iter(batches))), [side.placement.stream]))
        for batches in ([rows], [rows.slice(2), rows.slice(0, 2)])
    )
    of = [
        Counter((i.side, *r.values()) for i in found for r in i.tuples.to_pylist())
        for found in (once, again)
    ]
    same(*of)


def test_messages_go_by_what_they_are_however_spark_cuts_their_batches(side, reader):
    """Those that are no objects too: else a batch that is begun again would keep one twice, or
    lose it."""
    decoder = MessageDecoder(replace(reader, kind="json"))
    values = [b'{"sku": "c%d", "n": %d}' % (i, i) for i in range(20)]
    values += [b"no %d" % i for i in range(30)] + [b'{"n": 1}', None]

    def where(size):
        found = {}
        batches = pa.Table.from_arrays([pa.array(values, pa.binary())], ["value"]).to_batches(size)
        for message in side.messages(decoder.decode(iter(batches))):
            for row in range(message.num_rows):
                p = message.column(0)[row].as_py()
                for each in read_messages(iter([message.slice(row, 1)]), [decoder.schema]):
                    found |= {str(r): p for r in each.tuples.to_pylist()}
                    found |= {r.text: p for r in each.rejected}
        return found

    assert where(7) == where(100) and len(where(7)) == len(values)
    assert len({p for text, p in where(7).items() if text.startswith("no")}) == 3


def test_a_failure_is_said_to_every_partition(side, reader, tmp_path):
    (tmp_path / "a.csv").write_text("other,n\n1,2\n")
    (message,) = side.messages(reader.read(files(tmp_path, "a.csv")))
    assert message.column(0).to_pylist() == [0, 1, 2]
    for p in range(3):
        with pytest.raises(TaskFailed, match=r"a\.csv: it lacks sku; it has other"):
            list(read_messages(iter([message.slice(p, 1)]), [side.placement.stream]))


def test_files_are_shared_out_by_their_size(reader):
    sizes = {"a": 100, "b": 60, "c": 50, "d": 1}
    found = shares(
        {
            side: Splits(reader, [DataFile(p, sizes[p]) for p in paths])
            for side, paths in enumerate(("ab", "cd"))
        },
        2,
    )
    assert sorted(sum(f.size for _, of in share for f in of.splits) for share in found) == [
        101,
        110,
    ]
    assert sorted((side, f.path) for share in found for side, of in share for f in of.splits) == [
        (0, "a"),
        (0, "b"),
        (1, "c"),
        (1, "d"),
    ]


def test_wide_tuples_are_decoded_fewer_at_a_time(tmp_path, side, monkeypatch):
    monkeypatch.setattr("semistream.streaming.sources.file_reader.TASK_BYTES", 100_000)
    monkeypatch.setattr("semistream.streaming.sources.numbered.GATHERED_BYTES", 100_000)
    stream = pa.schema([("sku", pa.string()), ("text", pa.string())])
    rows = pa.table(
        {
            "sku": [f"c{i}" if i % 10 else None for i in range(1000)],
            "text": [f"{i:1000}" for i in range(1000)],
        },
        stream,
    )
    pq.write_table(rows, tmp_path / "wide.parquet", use_dictionary=False)
    reader = find_reader(StreamSpec(format="parquet", path=str(tmp_path)))
    of = Side(0, replace(side.placement, stream=stream))
    pieces = [n.chunk.rows for n in reader.read(files(tmp_path, "*.parquet"))]
    assert max(piece.nbytes for piece in pieces) < 110_000 and len(pieces) >= 10
    parts = [
        [
            of.of_partition(p, numbered).tuples.num_rows
            for numbered in reader.read(files(tmp_path, "*.parquet"))
        ]
        for p in range(3)
    ]
    assert np.sum(parts) == 1000 and min(map(sum, parts)) > 200


def test_tuples_of_small_files_are_read_together(tmp_path):
    """In one piece, each with its place in its own file, and what could not be read."""
    for number in range(20):
        (tmp_path / f"{number:02}.csv").write_text(
            "sku,id\n" + "".join(f"c{i},{i}\n" for i in range(number)) + "c1,x\n"
        )
    reader = find_reader(StreamSpec(format="csv", path=str(tmp_path), columns="sku STRING, id INT"))
    (piece,) = reader.read(files(tmp_path, "*.csv"))
    assert piece.chunk.rows["id"].to_pylist() == [i for n in range(20) for i in range(n)]
    assert piece.tuples.tolist() == [i + 1 for n in range(20) for i in range(n)]
    assert (
        piece.rejected.tolist()
        == [r.line for r in piece.chunk.rejected]
        == [n + 2 for n in range(20)]
    )


def test_narrower_columns_of_later_files_are_widened(spark, sqlite_load):
    sqlite_load.add_file(500)
    table = sqlite_load.sales(300)
    narrow = table.set_column(2, "amount", table["amount"].cast(pa.float32()))
    pq.write_table(narrow, sqlite_load.stream_directory / "part-1.parquet")
    sqlite_load.run(spark)
    sqlite_load.check()


def test_an_input_has_nothing_rejected_by_default():
    assert Input(0, pa.record_batch({"a": [1]})).rejected == ()


def test_files_of_another_file_system_come_with_their_contents(side, reader):
    batch = pa.record_batch(
        {
            "path": ["s3a://b/a.csv", "s3a://b/b.csv"],
            "content": [b"sku,n\nc1,1\nc2,x\n", b"n,sku\n3,c3\n"],
        }
    )
    decoded = ContentDecoder(reader).decode(iter([batch]))
    found = list(read_messages(side.messages(decoded), [side.placement.stream]))
    rows = [r for i in found for r in i.tuples.to_pylist()]
    assert sorted(r["n"] for r in rows) == [1, 3]
    assert [(r.file, r.line) for i in found for r in i.rejected] == [("s3a://b/a.csv", 3)]


def test_a_remote_stream_is_sampled_and_read_through_spark(spark, sqlite_load):
    """As far as a file system without a server can show it: Spark gives local files as file:."""
    sqlite_load.add_file(700)
    stream = sqlite_load.job.stream.model_copy(
        update={"path": f"file://{sqlite_load.stream_directory}"}
    )
    sqlite_load.run(spark, sqlite_load.job.model_copy(update={"stream": stream}))
    sqlite_load.check()
