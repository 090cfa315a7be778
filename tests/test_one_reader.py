"""One reader, one result: what console, load and dimension make of other people's files.

Each case is a kind of file that some system reads wrongly. Values are compared as texts, so that
none may be altered.
"""

import bz2
import datetime as dt
import gzip
import json
import lzma
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loads import MASTER, verify
from provisioned import provision
from semistream.errors import ConfigError, SemistreamError
from semistream.files.join import join_files
from semistream.files.opening import open_source
from semistream.files.settings import JoinFiles
from semistream.job import Job, StreamSpec
from semistream.master.publish import publish_snapshot
from semistream.quality.recount import ids_of_file
from semistream.streaming.sources.file_reader import find_reader
from semistream.warehouse import connect

FAR = dt.datetime(9999, 12, 31)
OLD = dt.datetime(1500, 1, 1)
NEW = dt.datetime(2020, 1, 1, 1, 2, 3, 456789)
DUPLICATES = pa.table([[1], [2], [3]], ["id", "x", "x"])
INT96 = {"use_deprecated_int96_timestamps": True}
# name: (files, rows as texts, rows that are not read: line and the reason's beginning)
CASES = {
    "a number with zeros before it in a later file": (
        {"a.csv": "id,x\n1,10115\n2,20095\n", "b.csv": "id,x\n3,01067\n4,7\n"},
        ["1 10115", "2 20095", "3 01067", "4 7"],
        [],
    ),
    "a decimal comma": (
        {"a.csv": 'id,x\n1,"613,01"\n2,"1,234.56"\n'},
        ["1 613,01", "2 1,234.56"],
        [],
    ),
    "integers of JSON beyond 64 bits": (
        {"a.jsonl": '{"id": 1, "x": 18446744073709551615}\n{"id": 2, "x": 18446744073709551614}\n'},
        ["1 18446744073709551615", "2 18446744073709551614"],
        [],
    ),
    "fractions of JSON": (
        {"a.jsonl": '{"id": 1, "x": 9007199254740993}\n{"id": 2, "x": 0.50}\n'},
        ["1 9007199254740993.00", "2 0.50"],
        [],
    ),
    "JSON over several lines": (
        {"a.jsonl": '{\n  "id": 1,\n  "x": "a"\n}\n{\n  "id": 2,\n  "x": "b"\n}\n'},
        ["1 a", "2 b"],
        [],
    ),
    "a list of JSON": (
        {"a.json": '[{"id": 1, "x": "a"},\n {"id": 2, "x": "b"}]\n'},
        ["1 a", "2 b"],
        [],
    ),
    "half a surrogate pair": (
        {"a.jsonl": '{"id": 1, "x": "\\ud83d\\ude00"}\n{"id": 2, "x": "\\ud83d"}\n'},
        ["1 \U0001f600"],
        [(2, "x: half of a surrogate pair")],
    ),
    "JSON that names a key in two ways": (
        {"a.jsonl": '{"id": 1, "x": "a"}\n{"\\u0069d": 2, "x": "b"}\n'},
        ["1 a", "2 b"],
        [],
    ),
    "a quoted empty cell": ({"a.csv": 'id,x\n1,""\n2,\n3," "\n'}, ["1 ", "2 NULL", "3  "], []),
    "a hyphen for what is missing": ({"a.csv": "id,x\n1,-\n2,5\n"}, ["1 -", "2 5"], []),
    "a point for what is missing": ({"a.csv": "id,x\n1,.\n2,5.5\n"}, ["1 .", "2 5.5"], []),
    "a column called BZh": ({"a.csv": "BZhID,id,x\nq,1,1\n"}, ["q 1 1"], []),
    "a column called PAR1": ({"a.csv": "PAR1,id,x\nq,1,1\n"}, ["q 1 1"], []),
    "Excel's first line": ({"a.csv": "sep=;\r\nid;x\r\n1;a,b\r\n"}, ["1 a,b"], []),
    "files packed in all ways": (
        {
            "a.csv.xz": lzma.compress(b"id,x\n1,a\n"),
            "b.csv.gz": gzip.compress(b"id,x\n2,b\n"),
            "c.CSV.bz2": bz2.compress(b"id,x\n3,c\n"),
        },
        ["1 a", "2 b", "3 c"],
        [],
    ),
    "names with signs": (
        {
            "a b%20c#d?e*[x]{y}.csv": "id,x\n1,a\n",
            "caf\u00e9 'q'.csv": "id,x\n2,b\n",
            "sales_2020-01-01T10:00:00.csv": "id,x\n3,c\n",
            "p=1.csv": "id,x\n4,d\n",
        },
        ["1 a", "2 b", "3 c", "4 d"],
        [],
    ),
    "a README beside the data": (
        {"a.csv": "id,x\n1,a\n", "README.md": "# Sales\n", ".b.csv": "z\n", "_SUCCESS": ""},
        ["1 a"],
        [],
    ),
    "what is not UTF-8": ({"a.csv": b"id,x\n1,a\n2,\xe9\n"}, ["1 a"], [(3, "x: not UTF-8")]),
    "times beyond nanoseconds": (
        {"a.parquet": (pa.table({"id": [1, 2, 3], "x": pa.array([FAR, OLD, NEW])}), INT96)},
        [f"1 {FAR}", f"2 {OLD}", f"3 {NEW}"],
        [],
    ),
    "nanoseconds": (
        {"a.parquet": pa.table({"id": [1], "x": pa.array([NEW], pa.timestamp("ns"))})},
        [f"1 {NEW}"],
        [],
    ),
    "a first file without any value": (
        {
            "a.parquet": pa.table({"id": [1], "x": pa.nulls(1)}),
            "b.parquet": pa.table({"id": [2], "x": ["b"]}),
        },
        ["1 NULL", "2 b"],
        [],
    ),
    "files that differ in width": (
        {
            "a.parquet": pa.table(
                {"id": pa.array([1], pa.int32()), "x": pa.array([1], pa.int64())}
            ),
            "b.parquet": pa.table({"id": [2**40], "x": [1.5]}),
        },
        ["1 1.0", f"{2**40} 1.5"],
        [],
    ),
    "unsigned integers": (
        {"a.parquet": pa.table({"id": [1], "x": pa.array([2**64 - 1], pa.uint64())})},
        [f"1 {2**64 - 1}"],
        [],
    ),
}
REFUSED = {
    "a column name twice": ({"a.parquet": DUPLICATES}, r"a\.parquet.*'x' 2 times"),
    "a first file that is garbage": (
        {"a.parquet": b"no Parquet at all", "b.parquet": pa.table({"id": [1]})},
        r"a\.parquet",
    ),
    "a first file without a byte": (
        {"a.parquet": b"", "b.parquet": pa.table({"id": [1]})},
        r"a\.parquet",
    ),
    "files that differ in columns": (
        {"a.csv": "id,x\n1,2\n", "b.csv": "id,y\n1,2\n"},
        r"b\.csv: it lacks x; it has y",
    ),
    "what is packed without saying so": (
        {"a.csv": lzma.compress(b"id,x\n1,a\n")},
        r"a\.csv.*end in \.xz",
    ),
}


def written(directory, files):
    directory.mkdir()
    for name, content in files.items():
        table, options = content if isinstance(content, tuple) else (content, {})
        if isinstance(table, pa.Table):
            pq.write_table(table, directory / name, **options)
        else:
            (directory / name).write_bytes(table if isinstance(table, bytes) else table.encode())
    return directory


def texts(rows):
    def text(value):
        if isinstance(value, Decimal):
            return f"{value:f}"
        return "NULL" if value is None else str(value)

    return sorted(" ".join(map(text, r.values())) for r in rows)


def of_console(directory):
    source = open_source("stream", directory)
    source.assign_types()
    chunks = list(source.chunks())
    return chunks


def of_load(directory):
    reader = find_reader(StreamSpec(format=kind_of(directory), path=str(directory)))
    source = reader.open()
    from semistream.data_files import DataFile, list_files

    files = sorted(e.path for e in list_files(str(directory), {}, reader.kind))
    reader.check(list(map(DataFile, files)))
    return [chunk for file in files for chunk in source.read(directory / file)]


def kind_of(directory):
    suffixes = {s for p in directory.iterdir() for s in p.suffixes}
    return (
        "parquet" if ".parquet" in suffixes else "json" if suffixes & {".json", ".jsonl"} else "csv"
    )


@pytest.mark.parametrize("read", [of_console, of_load])
@pytest.mark.parametrize("name", CASES)
def test_console_and_load(tmp_path, name, read):
    files, rows, rejected = CASES[name]
    chunks = read(written(tmp_path / "s", files))
    assert texts([r for c in chunks for r in c.rows.to_pylist()]) == sorted(rows)
    found = [(r.line, r.detail) for c in chunks for r in c.rejected]
    assert [line for line, _ in found] == [line for line, _ in rejected]
    assert all(
        why.startswith(wanted) for (_, why), (_, wanted) in zip(found, rejected, strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_dimension(tmp_path, name):
    files, rows, rejected = CASES[name]
    directory = written(tmp_path / "s", files)
    job = Job.load(
        {
            "name": "j",
            "stream": {},
            "master": {
                "name": "m",
                "path": str(directory),
                "business_key": ["id"],
                "max_rejected": 1.0,
            },
            "on": "id",
            "fact_table": "f",
        }
    )
    engine = connect(f"sqlite:///{tmp_path / 'w.db'}")
    result = provision(job, engine)
    assert (result.inserted, result.rejected) == (len(rows), len(rejected))
    with engine.connect() as connection:
        found = [dict(r._mapping) for r in connection.exec_driver_sql("SELECT * FROM dim_m")]
    for row in found:
        del row["m_sk"]
    engine.dispose()
    stored = [r.removesuffix(".000000") for r in texts(found)]
    assert stored == sorted(rows)


@pytest.mark.parametrize("read", [of_console, of_load])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_named(tmp_path, name, read):
    files, message = REFUSED[name]
    with pytest.raises(SemistreamError, match=message) as e:
        read(written(tmp_path / "s", files))
    assert len(str(e.value)) < 700


def test_a_year_that_no_warehouse_has(tmp_path):
    times = pa.array([0, 569_022_883_200, -70_000_000_000], pa.timestamp("s")).cast(
        pa.timestamp("us")
    )
    pq.write_table(
        pa.table({"id": [1, 2, 3], "x": times, "d": times.cast(pa.date32())}),
        tmp_path / "a.parquet",
    )
    found = find_reader(StreamSpec(path=str(tmp_path))).open().read(tmp_path / "a.parquet")
    (chunk,) = found
    assert chunk.rows.column("id").to_pylist() == [1]
    assert [(r.line, r.detail) for r in chunk.rejected] == [
        (2, "x: 20001-08-14 00:00:00 is not in the years 1 to 9999"),
        (3, "x: -0249-10-15 19:33:20 is not in the years 1 to 9999"),
    ]
    (chunk,) = open_source("stream", tmp_path).chunks()  # which loads nothing
    assert chunk.rows.num_rows == 3


def test_a_file_without_a_byte_has_no_rows_to_count(tmp_path):
    """So that the others are counted."""
    for name in ("a.csv", "a.json", "a.parquet"):
        (tmp_path / name).touch()
        kind = name.partition(".")[2]
        spec = StreamSpec(format=kind, id=["id"])
        assert list(ids_of_file(tmp_path / name, spec, None)) == []


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_number_that_no_double_comes_near_is_none(tmp_path, name):
    cells = ["1e400", "0.1234567890123456789", "1e-400", "-1e999", "0.0", "inf", "0e5"]
    lines = (
        ["n", *cells]
        if name == "a.csv"
        else [f'{{"n": {c if c != "inf" else "Infinity"}}}' for c in cells]
    )
    (tmp_path / name).write_text("\n".join([*lines, ""]))
    (chunk, *_) = open_source("stream", tmp_path / name, types={"n": "double"}).chunks()
    assert chunk.rows.column(0).to_pylist() == [0.12345678901234568, 0.0, float("inf"), 0.0]
    assert [r.detail for r in chunk.rejected] == [
        f"n: '{c}' is not DOUBLE" for c in ("1e400", "1e-400", "-1e999")
    ]


def test_nanoseconds_are_kept_in_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    times = pa.array([1_704_164_645_123_456_789, None], pa.timestamp("ns"))
    pq.write_table(pa.table({"k": [1, 1], "t": times}), "s.parquet")
    (tmp_path / "m.csv").write_text("k,v\n1,a\n")
    join_files(
        JoinFiles.load(
            {"stream": "s.parquet", "master": "m.csv", "on": "k", "out": "o.jsonl", "memory": "1MB"}
        )
    )
    found = [json.loads(line)["t"] for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert set(found) == {"2024-01-02T03:04:05.123456789", None}


def load_job(load, directory, **stream):
    stream = {"format": "csv", "path": str(directory), "id": ["id"]} | stream
    return load.job_of(stream, on={"k": "code"}, columns=["name"])


def test_a_key_that_its_type_would_alter_comes_in_a_later_batch(spark, sqlite_load, tmp_path):
    sqlite_load.publish()
    stream = written(tmp_path / "s", {"a.csv": "id,k,x\n1,c1,123\n"})
    job = load_job(sqlite_load, stream, max_unparsable=1)
    sqlite_load.run(spark, job)
    (stream / "b:c.csv").write_text("id,k,x\n2,c2,0123\n3,c3,123\n4,c4,00123\n")
    assert sqlite_load.run(spark, job).rejected == {"unparsable": 2}
    assert sqlite_load.query("SELECT id, x FROM fact_sales ORDER BY id") == [(1, 123), (3, 123)]
    assert sqlite_load.query("SELECT stream_id FROM unmatched ORDER BY stream_id") == [
        ("2",),
        ("4",),
    ]
    assert verify(sqlite_load, job).success


def test_types_hold_from_the_first_batch_on_not_from_a_start_that_failed(
    spark, sqlite_load, tmp_path
):
    sqlite_load.publish()
    stream = written(tmp_path / "s", {"a.csv": "id,k\n1,7\n"})
    job = load_job(sqlite_load, stream)
    with pytest.raises(ConfigError, match="join columns of one type"):
        sqlite_load.run(spark, job)
    (stream / "a.csv").write_text("id,k,x\n1,c7,2\n")
    assert sqlite_load.run(spark, job).matched == 1


def test_a_first_load_that_was_refused_leaves_no_table_of_other_types(spark, sqlite_load, tmp_path):
    sqlite_load.publish()
    stream = written(
        tmp_path / "s",
        {
            "a.json": '{"id": 1, "k": "c1", "n": 1, "c": "x"}\n',
            "b.json": '{"id": 2, "k": "c2", "n": 2.5}\n',
        },
    )
    job = load_job(sqlite_load, stream, format="json")
    with pytest.raises(ConfigError, match=r"b\.json lacks c"):
        sqlite_load.run(spark, job)
    (stream / "b.json").write_text('{"id": 2, "k": "c2", "n": 2, "c": "y"}\n')
    assert sqlite_load.run(spark, job).matched == 2
    (stream / "c.json").write_text('{"id": 3, "k": "c2", "n": 3, "c": "y"}\n')
    with pytest.raises(ConfigError, match="must stay DOUBLE"):  # it has rows
        sqlite_load.run(
            spark,
            load_job(
                sqlite_load,
                stream,
                format="json",
                columns="id BIGINT, k STRING, n STRING, c STRING",
            ),
        )


def test_a_drained_load_goes_on_with_wider_integers(spark, sqlite_load, tmp_path):
    sqlite_load.publish()
    stream = written(tmp_path / "s", {"a.csv": "id,k\n1,c1\n"})
    sqlite_load.run(spark, load_job(sqlite_load, stream, columns="id INT, k STRING"))
    (stream / "b.csv").write_text(f"id,k\n{2**40},c2\n")
    job = load_job(sqlite_load, stream, columns="id BIGINT, k STRING")
    assert sqlite_load.run(spark, job).matched == 1
    assert sqlite_load.query("SELECT id FROM fact_sales ORDER BY id") == [(1,), (2**40,)]
    assert verify(sqlite_load, job).success
    with pytest.raises(ConfigError, match="must stay BIGINT"):
        sqlite_load.run(spark, load_job(sqlite_load, stream, columns="id INT, k STRING"))


def test_what_is_written_with_a_comma_is_no_decimal(spark, sqlite_load, tmp_path):
    sqlite_load.publish()
    stream = written(
        tmp_path / "s", {"a.csv": 'id,k,x\n1,c1,"613,01"\n2,c2,"1,234.56"\n3,c3,7.5\n4,c4,7.555\n'}
    )
    job = load_job(
        sqlite_load, stream, columns="id BIGINT, k STRING, x DECIMAL(10,2)", max_unparsable=1
    )
    assert sqlite_load.run(spark, job).rejected == {"unparsable": 3}
    assert [(i, str(x)) for i, x in sqlite_load.query("SELECT id, x FROM fact_sales")] == [
        (3, "7.5")
    ]
    assert verify(sqlite_load, job).success


def test_an_empty_key_is_joined_and_quotes_are_as_told(spark, sqlite_load, tmp_path):
    stream = written(tmp_path / "s", {"a.csv": "'id';'k';'x'\n1;'';'a;b'\n2;;c\n"})
    sqlite_load.master = [{"part_sk": 1, "code": "", "name": "none", "price": 1}]
    rows = pa.Table.from_pylist(sqlite_load.master, MASTER)
    publish_snapshot(
        rows.to_batches(), MASTER, sqlite_load.paths.snapshots / "part" / "code", "part", ["code"]
    )
    job = load_job(sqlite_load, stream, options={"sep": ";", "quote": "'"})
    summary = sqlite_load.run(spark, job)
    assert (summary.matched, summary.rejected) == (1, {"null_key": 1})
    assert sqlite_load.query("SELECT id, k, x, name FROM fact_sales") == [(1, "", "a;b", "none")]
    result = verify(sqlite_load, job)
    assert result.success, [(r.name, r.rows) for r in result.results if not r.success]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dateFormat": "dd.MM.yyyy"}, "told by formats"),
        ({"seperator": ";"}, "sep, delimiter"),
        ({"sep": ";;"}, "one ASCII character"),
        ({"encoding": "klingon"}, "encoding"),
        ({"header": "false"}, "columns.*without a header"),
        ({"mode": "DROPMALFORMED"}, "no option"),
    ],
)
def test_an_option_that_would_not_be_heeded_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        find_reader(StreamSpec(format="csv", path="/", options=options))


def test_a_file_in_another_encoding_and_without_a_header(tmp_path):
    (tmp_path / "a.csv").write_bytes("1|Köln|§x§\n2||\n".encode("latin-1"))
    spec = StreamSpec(
        format="csv",
        path=str(tmp_path),
        columns="id INT, town STRING, note STRING",
        options={"encoding": "ISO-8859-1", "header": "false", "sep": "|"},
    )
    (chunk, *_) = find_reader(spec).open().read(tmp_path / "a.csv")
    assert chunk.rows.to_pylist() == [
        {"id": 1, "town": "Köln", "note": "§x§"},
        {"id": 2, "town": None, "note": None},
    ]
