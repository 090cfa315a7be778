"""Other people's files: what a header, a dialect, an encoding or a number may be, for `semistream
join` and for the app alike."""

import gzip
import json
import os
import shlex
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from csv_loads import COLUMNS, HEADER, CsvLoad, sale
from loads import verify
from semistream.data_files import LEAVE_OUT
from semistream.errors import ConfigError, StateError
from semistream.files.convert import cast_cells
from semistream.files.inference import SampledCells
from semistream.files.opening import SOURCES, open_source
from semistream.files.settings import JoinFiles
from semistream.files.sink import OutputFile
from semistream.files.source import Reading
from semistream.job import Job

BERLIN = "Europe/Berlin"
NASTY = (
    'id,k,note\r\n1,c1,"says ""hi"", ok"\r\n2,c2,"two\nlines"\r\n3,c3,\'\r\n4,c4,"a,b"\r\n'
    '5,c5,back\\slash\r\n6,c6,""\r\n7,c7,"ends with \\"\r\n8,c8,"ü\n漢字 😀"\r\n'
    "9,c9,was \ufffd before\r\n"
)
NOTES = {
    1: 'says "hi", ok',
    2: "two\nlines",
    3: "'",
    4: "a,b",
    5: "back\\slash",
    6: "",
    7: "ends with \\",
    8: "ü\n漢字 😀",
    9: "was \ufffd before",
}


def source(tmp_path, name, content, **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_source("stream", path, **options)


def file_columns(path, kind):
    return SOURCES[kind]("stream", [], {}, Reading(), pa.schema([])).columns(path)


def rows(found):
    chunks = list(found.chunks())
    return [r for c in chunks for r in c.rows.to_pylist()], [r for c in chunks for r in c.rejected]


def app_job(load, form, columns=None):
    directory = load.paths.home / form
    directory.mkdir(exist_ok=True)
    stream = {"format": form, "path": str(directory), "id": ["id"], "columns": columns}
    return directory, load.job_of(stream, on={"k": "code"})


# ---- types


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["9007199254740993", "1"], pa.int64()),
        (["1.5", "9007199254740993"], pa.decimal128(38, 1)),
        (["0.12345678901234567890"], pa.decimal128(38, 20)),
        (["1e400", "1"], pa.string()),
        (["12345678901234567890"], pa.string()),
        (["0.6180339887498949", "1e-7", "1E+5", "1.50"], pa.float64()),
        (["1", "4.0128e+10"], pa.int64()),
        (["007"], pa.string()),
        (["1.0", "2.0"], pa.float64()),
        (["-0", "1"], pa.float64()),
        (["1" * 30 + "." + "1" * 20], pa.string()),
    ],
)
def test_no_type_alters_a_value(cells, kind):
    column = pa.array(cells)
    assert SampledCells(column).infer_type() == kind
    cast, wrong = cast_cells(column.cast(pa.binary()), kind, exact=True)
    assert len(wrong) == 0
    if kind == pa.int64():
        assert cast.to_pylist() == [int(float(c)) if "e" in c else int(c) for c in cells]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([-0.0, float("nan"), float("-inf"), 5e-324, 1.7976931348623157e308, 0.1]),
        pa.array([-0.0, 0.1], pa.float32()),
        pa.array([2**63 - 1, -(2**63)]),
        pa.array([2**64 - 1, 0], pa.uint64()),
        pa.array([Decimal("0E-10"), Decimal("-" + "9" * 28 + ".0123456789")]),
        pa.array([-719_162, 2_932_896], pa.int32()).cast(pa.date32()),  # of the years 1 and 9999
        pa.array([-62_135_596_800_000_000, -1, 253_402_300_799_999_999], pa.timestamp("us")),
        pa.array([1000, 1001], pa.timestamp("ns")),
        pa.array(
            [-3719792000000001, 1698541200000000, 1698537600000000], pa.timestamp("us", BERLIN)
        ),
        pa.array([1, 86_399], pa.time32("s")),
        pa.array([1, 86_399_999_999_999], pa.time64("ns")),
        pa.array([1, 86_399_999_999], pa.time64("us")),
    ],
    ids=lambda of: str(of.type) if isinstance(of, pa.Array) else None,
)
def test_what_is_written_as_text_is_read_as_it_was(tmp_path, ending, column):
    rows = pa.record_batch([pa.array(range(len(column))), column], names=["id", "of"])
    path = tmp_path / f"a.{ending}"
    with OutputFile("out", path, rows.schema) as file:
        file.write(rows)
        file.finish()
        file.publish()
    source = open_source("stream", path)
    source.read_as(rows.schema, rows.schema.names)
    (chunk,) = source.chunks()
    again = chunk.rows.column("of")
    assert not chunk.rejected and again.type == column.type
    # with the sign of 0 and every bit of a time, which Python's values lack
    assert (
        again.buffers()[1].to_pybytes()[: column.nbytes]
        == column.buffers()[1].to_pybytes()[: column.nbytes]
    )


def test_times_that_python_lacks_are_written(tmp_path):
    days = pa.array([-800_000, 3_000_000], pa.int32()).cast(pa.date32())
    times = pa.array([-(10**17), 4 * 10**17], pa.timestamp("us", "UTC"))
    rows = pa.record_batch([days, times], names=["day", "at"])
    with OutputFile("out", tmp_path / "a.jsonl", rows.schema) as file:
        file.write(rows)
        file.finish()
        file.publish()
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [list(json.loads(line).values()) for line in lines] == [
        ["-0221-09-04", "-1199-02-15T14:13:20Z"],
        ["10183-09-21", "14645-06-30T15:06:40Z"],
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(2),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)
def test_bytes_are_hexadecimal_digits_in_json_and_refused_in_csv(tmp_path, kind):
    cells = pa.array([b"\x00\xff", None, b"ab"], pa.binary())
    column = (
        cells.dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array(cells.to_pylist(), kind)
    )
    schema = pa.schema([("of", column.type)])
    with OutputFile("out", tmp_path / "a.jsonl", schema) as file:
        file.write(pa.record_batch([column], schema))
        file.finish()
        file.publish()
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["of"] for line in lines] == ["00ff", None, "6162"]
    with pytest.raises(ConfigError, match="can hold every column"):
        OutputFile("out", tmp_path / "a.csv", schema)


def test_a_later_number_that_a_double_would_alter_makes_its_row_unparsable(tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.source.SAMPLE", 1)
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 16)
    text = "k,v\n1,1.5\n2,2.5\n3,9007199254740993\n4,4.5\n"
    good, bad = rows(source(tmp_path, "a.csv", text))
    assert [r["k"] for r in good] == [1, 2, 4]
    assert (bad[0].text, bad[0].line) == ("3,9007199254740993", 4)
    # who asks for a double gets one
    good, bad = rows(source(tmp_path, "b.csv", text, types={"v": "double"}))
    assert len(good) == 4 and not bad


def test_it_is_said_when_a_cell_decides_a_type(tmp_path):
    found = source(tmp_path, "a.csv", "k,v\n" + "".join(f"{i},{i}\n" for i in range(500)) + "x,1\n")
    assert found.notes == [
        "stream column k is read as string, for 1 of 501 cells that are no int64, the first 'x'"
    ]
    assert (
        SampledCells(pa.array(["a", "b"])).deciding_cells(pa.string())
        == ""
        == SampledCells(pa.array(["1", "2"])).deciding_cells(pa.int64())
    )


# ---- files


def test_columns_go_by_their_names(tmp_path):
    for name, text in {
        "a.csv": "id,home,away\n1,h1,a1\n",
        "b.csv": "away,id,home\na2,2,h2\n",
    }.items():
        (tmp_path / name).write_text(text)
    good, _ = rows(open_source("stream", tmp_path))
    assert good == [{"id": 1, "home": "h1", "away": "a1"}, {"id": 2, "home": "h2", "away": "a2"}]
    (tmp_path / "c.csv").write_text("id,home,guest\n3,h3,a3\n")
    with pytest.raises(ConfigError, match=r"c\.csv: it lacks away; it has guest besides"):
        rows(open_source("stream", tmp_path))


def test_a_json_file_that_lacks_a_column_is_refused_unless_its_type_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 30)
    (tmp_path / "a.jsonl").write_text('{"id": 1, "k": 1}\n{"id": 2, "k": 2}\n')
    (tmp_path / "b.jsonl").write_text('{"id": 3}\n{"id": 4, "k": null}\n')
    (tmp_path / "c.jsonl").write_text("")
    assert [r["k"] for r in rows(open_source("stream", tmp_path))[0]] == [1, 2, None, None]
    for content in ('{"id": 3}\n{"id": 4, "note": "k"}\n', '{"id": 3, "key": 3}\n'):
        (tmp_path / "b.jsonl").write_text(content)
        for sample in (1, 1000):
            monkeypatch.setattr("semistream.files.source.SAMPLE", sample)
            with pytest.raises(ConfigError, match=r"[ab]\.jsonl: it lacks"):
                rows(open_source("stream", tmp_path))
    monkeypatch.setattr("semistream.files.source.SAMPLE", 1)
    types = {"k": "int64", "key": "int64"}
    assert len(rows(open_source("stream", tmp_path, types=types))[0]) == 3


def test_types_are_found_from_a_bounded_sample_of_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.source.SAMPLED_FILES", 5)
    for i in range(20):
        (tmp_path / f"{i:02}.jsonl").write_text(f'{{"id": {i}, "k{i}": 1}}\n')
    assert open_source("stream", tmp_path).schema.names == ["id", "k0", "k4", "k8", "k12", "k16"]


def test_columns_of_a_json_file_beyond_the_sample(tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.source.SAMPLE", 1)
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 40)
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": 1, "other": "late"}\n' * 5 + '{"id": 2, "k": "none", "sp": 1, "sp\\u00e4t": 1}\n'
    )
    assert file_columns(path, "json") == ["id", "other", "k", "sp", "spät"]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_header_that_is_not_utf8_is_refused(tmp_path, kind):
    content = "id,caf\xe9\n1,2\n".replace(",", "\t" if kind == "tsv" else ",").encode("latin-1")
    with pytest.raises(ConfigError, match=r"header line in UTF-8.*caf\\+xe9"):
        source(tmp_path, f"a.{kind}", content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,k\n1,é\n".encode("utf-16"), "UTF-16"),
        ("a.csv", gzip.compress(b"id,k\n1,2\n", mtime=0), r"end in \.gz"),
        ("a.jsonl", gzip.compress(b'{"id": 1}\n', mtime=0), r"end in \.gz"),
        ("a.csv", "id;k\n1;2\n", "--delimiter ';'"),
        ("a.csv", b"PK\3\4rest", "spreadsheet"),
    ],
)
def test_what_is_no_such_text_is_said(tmp_path, name, content, message):
    with pytest.raises(ConfigError, match=message):
        source(tmp_path, name, content)


def test_a_directory_in_the_way_of_hive_is_refused(tmp_path):
    (tmp_path / "year=2026").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "year=2026" / "a.parquet")
    with pytest.raises(ConfigError, match="column year is in the name of a directory"):
        open_source("stream", tmp_path)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["Order ID", "a,b"], ("Order ID", "a,b")),
        ('a, "b, c",store name', ("a", "b, c", "store name")),
    ],
)
def test_a_name_may_have_blanks_and_commas(given, wanted):
    job = {
        "name": "j",
        "stream": {"id": given},
        "master": {"name": "m"},
        "on": "k",
        "fact_table": "f",
    }
    assert Job.load(job).stream.id == wanted


def test_the_types_that_an_error_proposes_are_taken(tmp_path, monkeypatch, capsys):
    from semistream.cli import main

    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text('id,"the, key",day\n1,x1,2\n')
    Path("m.csv").write_text("the key,day,v\n1,x,p\n")
    command = [
        "join",
        "--stream",
        "s.csv",
        "--master",
        "m.csv",
        "--on",
        "the, key=the key",
        "--on",
        "day",
        "--out",
        "o.csv",
    ]
    for _ in range(2):  # a column each
        assert main(command) == 2
        proposed = capsys.readouterr().err.split("should have: ")[1].strip().removesuffix(".")
        command += shlex.split(proposed)
    assert main(command) == 0


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            "a=string, b, c=decimal(12, 2),d=int64",
            {"a": "string", "b, c": "decimal(12, 2)", "d": "int64"},
        ),
        (["a=b=string", "c=date"], {"a=b": "string", "c": "date"}),
        ("a=int64,b", {"a": "int64,b"}),
        ({"x, y": "date"}, {"x, y": "date"}),
    ],
)
def test_types_of_columns_with_any_signs(given, wanted):
    assert JoinFiles.load({"stream": "s", "on": "k", "out": "o", "types": given}).types == wanted


def test_join_with_odd_names_and_a_column_reason(tmp_path, monkeypatch, capsys):
    from semistream.cli import main

    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_bytes(b"id,the `key`,reason\n1,1,late\n2,9,early\n3,\xe9,x\n")
    Path("m.csv").write_text('"the, key",store name\n1,north\n')
    assert (
        main(
            [
                "join",
                "--stream",
                "s.csv",
                "--master",
                "m.csv",
                "--on",
                "the `key`=the, key",
                "--columns",
                "store name",
                "--types",
                "the `key`=int64,id=int64",
                "--out",
                "o.jsonl",
                "--unmatched",
                "u.jsonl",
            ]
        )
        == 0
    )
    assert [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()] == [
        {"id": 1, "the `key`": 1, "reason": "late", "store name": "north"}
    ]
    kept = [json.loads(line) for line in Path("u.jsonl").read_text().splitlines()]
    assert [(k.get("reason"), k["_reason"]) for k in kept] == [
        (None, "unparsable"),
        ("early", "no_match"),
    ]
    assert kept[0]["text"] == "3,\\xe9,x" and kept[0]["detail"].startswith("s.csv, line 4: ")
    assert (
        main(
            [
                "join",
                "--stream",
                "m.csv",
                "--master",
                "m.csv",
                "--on",
                "the, key",
                "--out",
                "self.csv",
            ]
        )
        == 0
    )
    assert (
        main(
            ["join", "--stream", "m.csv", "--master", "m.csv", "--on", "the, key", "--out", "m.csv"]
        )
        == 2
    )
    capsys.readouterr()


# ---- the app


def test_the_app_reads_a_nasty_file_as_the_console_does(spark, sqlite_load, tmp_path):
    good, bad = rows(source(tmp_path, "nasty.csv", NASTY))
    assert {r["id"]: r["note"] for r in good} == NOTES and not bad
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, "csv")
    (directory / "nasty.csv").write_text(NASTY, newline="")
    assert sqlite_load.run(spark, job).matched == len(NOTES)
    assert dict(sqlite_load.query("SELECT id, note FROM fact_sales")) == NOTES
    assert verify(sqlite_load, job).success


@pytest.mark.parametrize(
    "content", [b'id,"k\n' + b"1,c1\n" * 40_000, b'id,"k\n1,c1\n', b'"id"x,k\n1,c1\n']
)
def test_a_header_whose_quotes_do_not_match_is_refused(tmp_path, content):
    (path := tmp_path / "a.csv").write_bytes(content)
    for read in (lambda: file_columns(path, "csv"), lambda: open_source("stream", path)):
        with pytest.raises(
            ConfigError,
            match=r"a header line that names each column "
            r"once.*a\.csv.*quotes do not match",
        ) as e:
            read()
        assert len(str(e.value)) < 500


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (b'id,"a\nb","c ""d"""\n1,2,3\n', ["id", "a\nb", 'c "d"']),
        (b'\xef\xbb\xbf"x,y",k\n', ["x,y", "k"]),
        (b"\n\n", None),
        (b"\n\nid,,k", ["id", "column_2", "k"]),
        (b'na"me,k\n', ['na"me', "k"]),
    ],
)
def test_the_columns_of_a_csv_file(tmp_path, content, columns):
    (path := tmp_path / "a.csv").write_bytes(content)
    assert file_columns(path, "csv") == columns


def write_file(path, **columns):
    """Write a file in the form of its suffix."""
    rows = pa.table(columns)
    if path.suffix == ".csv":
        lines = [columns, *zip(*columns.values(), strict=True)]
        path.write_text("\n".join(",".join(map(str, line)) for line in lines))
    elif path.suffix == ".json":
        path.write_text("\n".join(json.dumps(row) for row in rows.to_pylist()))
    else:
        pq.write_table(rows, path)
    return path


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_the_app_takes_columns_by_name_and_refuses_others(spark, sqlite_load, form):
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, form)
    write_file(directory / f"a.{form}", id=[1], k=["c1"], home=["h1"], away=["a1"])
    write_file(directory / f"b.{form}", id=[2], k=["c2"], away=["a2"], home=["h2"])
    sqlite_load.run(spark, job)
    loaded = [(1, "h1", "a1"), (2, "h2", "a2")]
    assert sqlite_load.query("SELECT id, home, away FROM fact_sales ORDER BY id") == loaded
    for lacking, new in (("home", ""), ("k", "key"), ("", "guest")):
        columns = {"id": [3], "k": ["c3"], "home": ["h3"], "away": ["a3"]}
        if lacking:
            del columns[lacking]
        write_file(directory / f"c.{form}", **columns, **({new: ["x"]} if new else {}))
        told = (f"lacks {lacking}" if lacking else "") + ".*" + (f"has {new}" if new else "")
        with pytest.raises(ConfigError, match=rf"c\.{form} .*{told}"):
            sqlite_load.run(spark, job)
    assert sqlite_load.query("SELECT id, home, away FROM fact_sales ORDER BY id") == loaded
    write_file(directory / f"c.{form}", home=["h3"], id=[3], k=["c3"], away=["a3"])
    sqlite_load.run(spark, job)
    assert sqlite_load.query("SELECT id, home, away FROM fact_sales ORDER BY id") == [
        *loaded,
        (3, "h3", "a3"),
    ]


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_files_with_other_columns_are_all_named_and_can_be_left_out(spark, tmp_path, form):
    def write(name, **columns):
        return write_file(load.stream_directory / f"{name}.{form}", **columns)

    load = CsvLoad(tmp_path, format=form, columns=None, options={})
    write("a", id=[1], sku=["p1"])
    load.run(spark)
    wrong = [write("b", id=[2], sku=["p2"], guest=["x"]), write("d", id=[4])]
    write("c", id=[3], sku=["p3"])
    with pytest.raises(ConfigError, match=r"b\.\w+ has guest, which.*; .*d\.\w+ lacks sku") as told:
        load.run(spark)
    assert LEAVE_OUT in str(told.value)
    assert ("stream.columns" in str(told.value)) == (form != "csv")
    for file in wrong:
        file.rename(tmp_path / file.name)
    with pytest.raises(StateError, match="is gone, and has not been loaded") as told:
        load.run(spark)
    assert LEAVE_OUT in str(told.value)
    for file in wrong:
        if form == "parquet":
            pq.write_table(pq.read_schema(load.stream_directory / "a.parquet").empty_table(), file)
        else:
            file.touch()
    load.run(spark)
    assert load.query("SELECT id FROM fact_sales ORDER BY id") == [(1,), (3,)]
    assert "checks hold" in load.verify()
    for file in wrong:
        file.unlink()
    load.run(spark)
    assert "checks hold" in load.verify()


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_what_to_do_about_other_columns_fits_the_job(spark, tmp_path, columns):
    """More columns of a CSV file are refused, whether the job declares its columns or not."""
    load = CsvLoad(tmp_path, columns=columns)
    load.add("a.csv", sale(1))
    load.run(spark)
    (load.stream_directory / "b.csv").write_text(f"{HEADER},guest\n{sale(2)},x\n")
    with pytest.raises(ConfigError, match="has guest, which the stream has not") as told:
        load.run(spark)
    assert "stream.columns" not in str(told.value)


@pytest.mark.parametrize(
    ("form", "content", "read", "unparsable"),
    [
        ("csv", b"id,k\n1,c1\n2,\xe9\n3,c3\n", 3, 1),
        ("csv", b'id,k\n1,c1\n2,"c2\n3,c3\n', 3, 1),
        ("json", b'{"id": 1, "k": "c1"}\n{"id": 2, "k": "\xe9"}\n{"id": 3, "k": "c3"}\n', 3, 1),
        (
            "json",
            b'{"id": 1, "k": "c1"}\n[{"id": 2, "k": "c2"}, {"id": 3, "k": "c3"}]\n{"id": 4, "k": '
            b'"c4"}{"id": 5, "k": "c5"}\n',
            None,
            None,
        ),
        ("csv", b"\xef\xbb\xbfid,k\n1,c1\n2,c2\n", 2, None),
        ("csv", b"", 0, None),
        (
            "csv",
            b'id,k\n1,c1\n2,"c2\n' + b"".join(b"%d,c3\n" % i for i in range(3, 40_003)),
            40_002,
            1,
        ),
        ("json", b'\xef\xbb\xbf{"id": 1, "k": "c1"}\n{"id": 2, "k": "c2"}\n', 2, None),
        ("json", b'{"id": 1, "k": "c1"}\n' + b"{'id': 2, 'k': 'c2'}\n", 2, 1),
        (
            "json",
            b'{"id": 1, "k": "c1"}\n[1, 2]\n[{"id": 3, "k": "c3"}, 5]\n[null, {"id": 4}]\n[]\n',
            5,
            4,
        ),
        (
            "json",
            b'{"id": 1, "k": "c1"}\n[{"id": 3, "k": "c3"}, {"id": "x"}]\n[[{"id": 3}]]\n[{"id": '
            b'3}, {"id": 4\n',
            None,
            None,
        ),
        (
            "json",
            b'{"id": 99999999999999999999, "k": "c"}\n{"id": 1.5}\n{"id": "7"}\n{"id": '
            b'01}\n{"id": 9, "k": NaN}\n',
            5,
            None,
        ),
        ("json", b'null\n3\n"x"\n{}\n', 4, None),
        (
            "json",
            b'{"id": 1, "x": +INF}\n{"id": 2, "x": -INF, "k": "c2"}\n{"id": 3, "x": +Infinity, '
            b'"y": "a \\" +INF"}\n{"id": 4, "x": NaN}\n{"id": 5, "x": INF}\n{"id": 6, "x": '
            b'1e400}\n{"id": 7, "k": -INF}\n{"id": +INF}\n',
            8,
            None,
        ),
    ],
)
def test_what_the_app_cannot_read_is_unparsable_and_the_proof_holds(
    spark, sqlite_load, form, content, read, unparsable
):
    sqlite_load.publish()
    more = ", x DOUBLE, y STRING" if b'"x":' in content else ""
    directory, job = app_job(sqlite_load, form, f"id BIGINT, k STRING{more}")
    job = job.model_copy(update={"stream": job.stream.model_copy(update={"max_unparsable": 1.0})})
    (directory / f"a.{form}").write_bytes(content)
    summary = sqlite_load.run(spark, job)
    assert read is None or summary.rows_read == read
    assert unparsable is None or summary.rejected == {"unparsable": unparsable}
    result = verify(sqlite_load, job)
    assert result.success, [(r.name, r.rows) for r in result.results if not r.success]
    assert not [note for note in result.notes if "not counted again" in note]


def test_the_app_keeps_numbers_that_a_double_would_alter(spark, sqlite_load):
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, "csv")
    (directory / "a.csv").write_text(
        "id,k,price,big\n1,c1,0.12345678901234567890,1e400\n2,c2,9007199254740993,7\n"
    )
    sqlite_load.run(spark, job)
    found = sqlite_load.query("SELECT id, price, big FROM fact_sales ORDER BY id")
    assert [big for *_, big in found] == ["1e400", "7"]
    assert "12345678901234567890" in str(found[0][1]) and "9007199254740993" in str(found[1][1])


def test_the_app_infers_no_type_that_alters_a_value(spark, sqlite_load, caplog):
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, "csv")
    lines = "".join(
        f"{i},c{i},{i:05},2026-01-01 00:00:00.123456789,{i}e3,{i},{i}\n" for i in range(1, 40)
    )
    (directory / "a.csv").write_text(
        f"id,k,zip,at,scale,day,n\n{lines}4.0128e+10,c1,00001,2026-01-01 00:00:00,5,40,x\n"
    )
    summary = sqlite_load.run(spark, job)
    assert (summary.matched, summary.rejected) == (40, {})
    found = sqlite_load.query("SELECT id, zip, at, scale, day FROM fact_sales ORDER BY id")
    assert found.pop() == (40_128_000_000, "00001", "2026-01-01 00:00:00", 5, 40)
    assert found == [
        (i, f"{i:05}", "2026-01-01 00:00:00.123456789", i * 1000, i) for i in range(1, 40)
    ]
    assert {type(v) for v, *_ in found} == {int}
    assert (
        "stream column id is read as int64; numbers with an exponent are integers there, "
        "too" in caplog.text
    )
    assert (
        "stream column n is read as string, for 1 of 40 cells that are no int64, the first "
        "'x'" in caplog.text
    )


def test_a_later_number_that_its_type_would_alter_makes_its_tuple_unparsable_to_the_app(
    spark, sqlite_load
):
    """As to ``semistream join``: types were found from the first file."""
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, "csv")
    (directory / "a.csv").write_text(
        "id,k,price,rate,n\n1,c1,9007199254740993.5,0.5,2e3\n2,c2,1.5,1.25,7\n"
    )
    os.utime(directory / "a.csv", (1, 1))
    assert sqlite_load.run(spark, job).rejected == {}
    good = {
        3: ("7.5", "-1.25e-3", "3e2"),
        4: ("-0.0", "-0.0", "0"),
        5: ("", "", ""),
        6: ("1e1", "1E+5", "4.0128e+10"),
        7: ("12345678901234567890.5", "0.6180339887498949", "9007199254740993"),
    }
    bad = {
        10: ("0.25", "1", "1"),
        11: ("1", "9007199254740993.5", "1"),
        12: ("1", "1e400", "1"),
        13: ("1", "1", "1.5"),
        14: ("1", "1e-400", "1"),
        15: ("1", "1", "1e30"),
        16: ("x", "1", "1"),
        17: ("1", "1f", "1"),
        18: ("1", "0x1p3", "1"),
        19: ("1", "1", "-0"),
        20: ("01", "1", "1"),
        21: ("1", "01", "1"),
        22: ("1", "1", "01"),
        23: ("1", "1", "+1"),
        24: ("1", "1", " 1"),
    }
    lines = [f"{i},c{i},{','.join(cells)}\n" for i, cells in (good | bad).items()]
    (directory / "b.csv").write_text("id,k,price,rate,n\n" + "".join(lines))
    assert sqlite_load.run(spark, job).rejected == {"unparsable": len(bad)}
    found = sqlite_load.query("SELECT id, price, rate, n FROM fact_sales WHERE id > 2 ORDER BY id")
    assert [i for i, *_ in found] == list(good)
    assert [[rate, n] for _, _, rate, n in found] == [
        [-0.00125, 300],
        [0.0, 0],
        [None, None],
        [1e5, 40_128_000_000],
        [0.6180339887498949, 9007199254740993],
    ]
    assert [price if price is None else Decimal(str(price)) for _, price, *_ in found] == [
        Decimal("7.5"),
        0,
        None,
        10,
        Decimal("12345678901234567890.5"),
    ]
    kept = [
        json.loads(t)
        for (t,) in sqlite_load.query("SELECT tuple FROM unmatched ORDER BY stream_id, tuple")
    ]
    assert sorted(k["_corrupt_record"] + "\n" for k in kept) == sorted(lines[len(good) :])
    why = {int(k["_corrupt_record"].split(",")[0]): k["why"] for k in kept}
    assert (why[10], why[12]) == (
        "price: '0.25' is not DECIMAL(38,1)",
        "rate: '1e400' is not DOUBLE",
    )
    assert all(w.split(":")[0] in ("price", "rate", "n") for w in why.values()), why
    assert all(
        k["line"] == 1 + len(good) + n
        for n, k in enumerate(sorted(kept, key=lambda k: k["_corrupt_record"]), 1)
    )
    assert verify(
        sqlite_load,
        job.model_copy(update={"stream": job.stream.model_copy(update={"max_unparsable": 1})}),
    ).success


def test_ids_of_json_texts_are_as_they_are_written(spark, sqlite_load):
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, "json", "id STRING, k STRING")
    ids = ["1.50", "-0", "1e400", "NaN", "007", "12345678901234567890123"]
    lines = [f'{{"id": {i if i != "007" else json.dumps(i)}, "k": "c1"}}' for i in ids]
    (directory / "a.json").write_text("\n".join(lines))
    sqlite_load.run(spark, job)
    assert sorted(i for (i,) in sqlite_load.query("SELECT id FROM fact_sales")) == sorted(ids)
    result = verify(sqlite_load, job)
    assert result.success, [(r.name, r.rows) for r in result.results if not r.success]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("columns", [None, "id BIGINT, k STRING"])
def test_the_app_refuses_a_directory_in_the_way_of_hive(spark, sqlite_load, form, columns):
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, form, columns)
    (directory / "year=2026").mkdir()
    if form == "csv":
        (directory / "year=2026" / "a.csv").write_text("id,k\n1,c1\n")
    else:
        pq.write_table(pa.table({"id": [1], "k": ["c1"]}), directory / "year=2026" / "a.parquet")
    with pytest.raises(ConfigError, match="column year is in the name of a directory"):
        sqlite_load.run(spark, job)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,k\n1,é\n".encode("utf-16"), "UTF-16"),
        (gzip.compress(b"id,k\n1,2\n", mtime=0), r"end in \.gz"),
        (b"id;k\n1;2\n", "delimiter"),
        (b"id,k,caf\xe9\n1,2,3\n", "header line in UTF-8"),
    ],
)
def test_the_app_says_what_is_no_such_text_with_columns_told_too(
    spark, sqlite_load, content, message
):
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, "csv", "id BIGINT, k STRING")
    (directory / "a.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        sqlite_load.run(spark, job)


def test_the_app_takes_odd_names(spark, sqlite_load):
    sqlite_load.publish()
    directory, _ = app_job(sqlite_load, "csv")
    (directory / "a.csv").write_text('Order ID,"the `kü`, of it",reason\n1,c1,late\n2,none,early\n')
    stream = {"format": "csv", "path": str(directory), "id": ["Order ID"]}
    job = sqlite_load.job_of(stream, on={"the `kü`, of it": "code"})
    assert sqlite_load.run(spark, job).matched == 1
    (kept,) = sqlite_load.query("SELECT stream_id, tuple FROM unmatched WHERE reason = 'no_match'")
    assert kept[0] == "2" and json.loads(kept[1])["reason"] == "early"


@pytest.mark.parametrize(
    ("form", "files"),
    [
        (
            "csv",
            {
                "a day.csv": b"id,k,n\n1,c1,1\n2,c2,x\n3,c3\n4,\xe9,4\n"
                b'5,"two\nlines",5\n6,c6,"x"y\n',
                "b%20.csv": b"n,k,id\r\n1,c1,7\r\n,\xc3\xa9,\r\n1,c9,8,8\r\n9,c2,y\r\n",
            },
        ),
        (
            "json",
            {
                "a day.json": b'{"id": 1, "k": "c1", "n": 1}\n{"id": 2, "k": "c2", "n": 1.5}\n'
                b'{"id": 4, "k": "\xe9", "n": 4}\n',
                "b%20.json": b'{"n": 1, "k": "c1", "id": 3}\n"text"\n'
                b'{"id": {}, "k": "c1", "n": 1}\n',
            },
        ),
    ],
)
def test_unmatched_tells_why_a_tuple_could_not_be_parsed_and_on_which_line_it_stands(
    spark, sqlite_load, form, files
):
    sqlite_load.publish()
    directory, job = app_job(sqlite_load, form, "id BIGINT, k STRING, n BIGINT")
    for name, content in files.items():
        (directory / name).write_bytes(content)
    sqlite_load.run(spark, job, partitions=2)
    kept = [
        json.loads(t)
        for (t,) in sqlite_load.query("SELECT tuple FROM unmatched WHERE reason = 'unparsable'")
    ]
    a, b = (str(directory / name) for name in files)
    expected = {
        "csv": [
            (a, 3, "n: 'x' is not BIGINT"),
            (a, 4, "2 fields in place of 3"),
            (a, 5, "k: not UTF-8"),
            (a, 8, "quotes do not match"),
            (b, 4, "4 fields in place of 3"),
            (b, 5, "id: 'y' is not BIGINT"),
        ],
        "json": [
            (a, 2, "n: '1.5' is not BIGINT"),
            (a, 3, "not UTF-8"),
            (b, 2, "not one JSON object"),
            (b, 3, "id: '{}' is not BIGINT"),
        ],
    }
    assert sorted((k["file"], k.get("line"), k["why"]) for k in kept) == expected[form]
