"""`semistream init`, `check` and `schema`: from a user's files to a job that can be loaded."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import inspect

from semistream.ddl import parse_ddl, type_name
from semistream.errors import ConfigError
from semistream.files.source import row_text
from semistream.paths import Paths
from semistream.pipeline.job_schema import job_schema
from semistream.pipeline.provision_steps import provision_changed
from semistream.settings import read_yaml
from semistream.warehouse import connect, open_warehouse
from semistream.workloads import load_job

SALES = "".join(
    f"{100 + i};{i % 60:05d};{i % 9 + 1};{i},{i % 100:02d};{i % 28 + 1:02d}.03.2025\r\n"
    for i in range(600)
)
PRODUCTS = "".join(f"{i:05d};Größe {i};1.2{i:02d},5\r\n" for i in range(57))


@pytest.fixture
def german(tmp_path) -> Path:
    """Files as Excel writes them in Germany; 3 of 60 products are not in the master file."""
    (tmp_path / "verkauf.csv").write_text(
        "Beleg;Artikel;Menge;Preis;Datum\r\n" + SALES, encoding="utf-8-sig"
    )
    (tmp_path / "artikel.csv").write_text(
        "Nr;Bezeichnung;EK-Preis\r\n" + PRODUCTS, encoding="cp1252"
    )
    return tmp_path


def tree(directory: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in [directory, *directory.rglob("*")]}


def valid(*files: Path, schema: Path) -> bool:
    words = [sys.executable, "-m", "check_jsonschema", "--schemafile", schema, *files]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_german_files_become_a_job_that_is_checked_without_writing(run, german):
    code, out, err = run("init", "verkauf.csv", "artikel.csv", "--out", "jobs/v.yaml")
    assert code == 0, err
    assert "Artikel = Nr" in out
    assert "95.0%" in out
    job = load_job("jobs/v.yaml")
    assert job.stream.options == {"sep": ";"}
    assert job.stream.id == ("Beleg",)
    assert (job.stream.formats["Preis"].point, job.stream.formats["Datum"].time) == (
        ",",
        "%d.%m.%Y",
    )
    assert job.stream.declared.field("Artikel").type == pa.string()
    (role,) = job.roles
    assert role.on == {"Artikel": "Nr"}
    assert role.dimension.options == {"encoding": "cp1252", "sep": ";"}
    assert role.dimension.formats["EK-Preis"].thousands == "."
    assert valid(Path("jobs/v.yaml"), schema=Path("jobs/job.schema.json"))
    assert run("init", "verkauf.csv", "artikel.csv", "--out", "jobs/v.yaml")[0] == 2

    before = tree(german)
    limits = ("--max-wait", "60", "--rate", "1000")
    code, out, err = run("check", "jobs/v.yaml", "--json", *limits)
    assert code == 0, out + err
    found = json.loads(out)
    assert (found["ok"], found["roles"][0]["matched"]) == (True, 0.95)
    assert found["roles"][0]["unmatched"] == ["'00057'", "'00058'", "'00059'"]
    (stream,) = found["streams"]
    assert (stream["rows"], stream["about"], stream["unparsable"]) == (600, 600, 0)
    assert {c["name"]: c["type"] for c in stream["columns"]}["Preis"] == "DECIMAL(15,2)"
    (prediction,) = found["predictions"]
    assert prediction["memory"] == found["memory"] == 64_000_000
    assert (prediction["algorithm"], prediction["rate"]) == ("hash-join", None)
    code, out, err = run("check", "jobs/v.yaml", "--json", "--memory", "100KB", *limits)
    assert code == 0, out + err
    (prediction,) = json.loads(out)["predictions"]
    assert prediction["rate"] > 1000 > prediction["busy"]
    assert prediction["idle_bytes_read"] >= prediction["bytes_read"] > 0
    read = [prediction["bytes_read"]]
    for given in (("--max-wait", "60", "--rate", "1"), ()):
        code, out, err = run("check", "jobs/v.yaml", "--json", "--memory", "100KB", *given)
        assert code == 0, out + err
        read.append(json.loads(out)["predictions"][0]["bytes_read"])
    assert read[1] < read[0] < read[2]  # at 1 tuple/s, at 1,000, and at most
    code, out, _ = run("check", "jobs/v.yaml")
    assert "v.yaml" not in out
    assert out.endswith("verkauf can be loaded.\n")
    assert tree(german) == before


def test_a_job_is_found_by_its_name(run, german):
    assert run("init", "verkauf.csv", "artikel.csv", "--name", "mine")[0] == 0
    assert (Paths.from_environment().jobs / "mine.yaml").exists()
    assert run("check", "mine")[0] == 0


def proposed(run, *words) -> dict:
    code, out, err = run("init", *words, "--json", "--force")
    assert code == 0, err
    return json.loads(out)


def test_keys_that_one_column_does_not_identify(run, tmp_path):
    stations, hours = "ABCD", range(24)
    n = 2000
    readings = {
        "station": [stations[i * 7 % 4] for i in range(n)],
        "hour": [i * 5 % 24 for i in range(n)],
        "value": [i / 7 for i in range(n)],
    }
    tariffs = {
        "place": [s for s in stations for _ in hours],
        "hour": [h for _ in stations for h in hours],
        "tariff": [float(i) for i in range(96)],
    }
    pq.write_table(pa.table(readings), tmp_path / "readings.parquet")
    pq.write_table(pa.table(tariffs), tmp_path / "tariffs.parquet")
    found = proposed(run, "readings.parquet", "tariffs.parquet")
    role = found["roles"]["tariffs"]
    assert role["on"] == {"station": "place", "hour": "hour"}
    assert (role["match_rate"], role["distinct"], role["business_key"]) == (1, 1, [])
    assert found["stream"]["id"] == []
    assert run("check", found["file"])[0] == 0

    # each has two rows: nothing but both columns identifies a master row
    (tmp_path / "calls.csv").write_text(
        "number|seconds\n" + "".join(f"{i % 50 + 490000}|{i % 77}\n" for i in range(500))
    )
    (tmp_path / "owners.csv").write_text(
        "msisdn,since,plan\n"
        + "".join(f"{i + 490000},{y}-01-01,p\n" for i in range(50) for y in (2023, 2024))
    )
    found = proposed(run, "calls.csv", "owners.csv")
    role = found["roles"]["owners"]
    assert (role["on"], role["distinct"]) == ({"number": "msisdn"}, 0.5)
    assert role["business_key"] == ["msisdn", "since"]
    assert load_job(found["file"]).roles[0].many


def test_keys_that_are_written_in_two_ways(run, tmp_path):
    names = ["ann", "Ann "]  # the first of them as it is among the people
    (tmp_path / "orders.jsonl").write_text(
        "".join(
            json.dumps({"id": i, "cust": i % 40 + 1, "by": names[i % 2]}) + "\n" for i in range(200)
        )
    )
    (tmp_path / "customers.csv").write_text(
        "customer_id,name\n" + "".join(f"{i:06d},n{i}\n" for i in range(1, 41))
    )
    (tmp_path / "people.csv").write_text("person,town\nann,Rom\nbob,Ulm\n")
    found = proposed(run, "orders.jsonl", "customers.csv", "people.csv")
    job = load_job(found["file"])
    assert job.stream.declared.field("cust").type == pa.string()
    assert job.stream.formats["cust"].normal_form == {"zeros": "strip"}
    assert job.stream.formats["by"].normal_form == {"trim": True, "case": "fold"}
    code, out, _ = run("check", found["file"], "--json")
    assert (code, [r["matched"] for r in json.loads(out)["roles"]]) == (0, [1, 1])

    text = Path(found["file"]).read_text().replace("cust: {zeros: strip}", "")
    Path(found["file"]).write_text(text)
    code, out, _ = run("check", found["file"])
    assert code == 1
    assert "40 would match without leading zeros in cust" in out
    assert "formats: {cust: {zeros: strip}}" in out
    assert "the proof fails above max_unmatched, 0.01" in out


def test_a_type_that_nearly_all_cells_fit_is_taken_with_or_without_a_format(run, tmp_path):
    """Of 1,000 rows 3 have a wrong quantity, 7 a wrong time, and 4 a wrong day."""

    def row(i):
        quantity = "many" if i in (70, 170, 270) else i % 9
        at = "not yet" if i % 150 == 3 else f"2026-01-{i % 28 + 1:02d} 10:00:{i % 60:02d}"
        day = "?" if i % 250 == 9 else f"{i % 28 + 1:02d}.01.2026"
        code, key = f"{'00' if i == 500 else ''}{i + 1000}", i % 5 if i != 600 else "x7"
        half = "half" if i % 50 == 1 else f"{i}"
        return f"{i},{key},{quantity},{at},{day},{code},{half}\n"

    (tmp_path / "s.csv").write_text(
        "id,k,quantity,ordered_at,day,code,half\n" + "".join(map(row, range(1000)))
    )
    (tmp_path / "m.csv").write_text(
        "k,price\n" + "".join(f"{i},{'free' if i == 50 else i / 8}\n" for i in range(150))
    )
    found = proposed(run, "s.csv", "m.csv", "--on", "k=k")
    types = {c["name"]: c["type"] for c in found["stream"]["columns"]}
    assert types["quantity"] == "BIGINT" and types["ordered_at"].startswith("TIMESTAMP")
    assert types["day"] == "DATE"
    assert [types[name] for name in ("k", "code", "half")] == ["STRING"] * 3
    notes = "\n".join(found["notes"])
    assert "s.csv: quantity: 3 of 996 cells are no BIGINT, the first 'many': their rows" in notes
    assert "s.csv: ordered_at: 7 of 996 cells are no TIMESTAMP" in notes
    assert "s.csv: 14 of 1,000 rows cannot be read" in notes
    assert "m.csv: price: 1 of 150 cells are no DOUBLE, the first 'free'" in notes
    job = Path(found["file"]).read_text()
    assert "  max_unparsable: 0.02  #" in job and "    max_rejected: 0.01  #" in job
    code, out, _ = run("check", found["file"])
    assert code == 0 and "14 of 1,000 rows cannot be read" in out and "error" not in out


NUMBERS = {
    # as a program writes money; a whole amount may have no decimals
    "374.50,12.00,7.25": "DECIMAL(15,2)",
    "374.50,12,": "DECIMAL(15,2)",
    "0.1250,-17.2504,1.5": "DECIMAL(15,4)",
    "0.50,0.25,-0.75": "DECIMAL(15,2)",
    # as a floating-point number is written
    "374.5,12.25,7.125": "DOUBLE",
    "2.0,3.25,1.5": "DOUBLE",
    "0.5,12.0,7.3": "DOUBLE",
    "1e3,374.50,12.00": "DOUBLE",
    # of too many digits, behind the point or in all
    "52.52000,13.40495,1.00000": "DOUBLE",
    "12345678901.50,1.00,2.00": "DOUBLE",
}


@pytest.mark.parametrize("comma", [False, True])
def test_fixed_point_numbers_are_decimals(run, tmp_path, comma):
    """They are with a decimal comma, too. A number that a double would change makes a decimal of
    any column."""
    wanted = {text: kind for text, kind in NUMBERS.items() if not (comma and "e" in text)}
    columns = {f"c{i}": text.split(",") for i, text in enumerate(wanted)}
    columns["exact"] = ["123456789012345678.5", "1.25", "2.0"]
    separator, point = (";", ",") if comma else (",", ".")
    lines = [separator.join(["id", "k", *columns])]
    for i in range(60):
        numbers = (column[i % 3].replace(".", point) for column in columns.values())
        lines.append(separator.join([str(i), "abc"[i % 3], *numbers]))
    (tmp_path / "s.csv").write_text("\n".join(lines) + "\n")
    prices = (separator.join((k, f"{n}{point}50\n")) for n, k in enumerate("abc"))
    (tmp_path / "m.csv").write_text(separator.join(("k", "price\n")) + "".join(prices))
    found = proposed(run, "s.csv", "m.csv", "--on", "k=k")
    job = load_job(found["file"])
    types = {field.name: type_name(field.type) for field in parse_ddl(job.stream.columns)}
    assert types.pop("exact") == "DECIMAL(38,2)"
    assert list(types.values()) == ["BIGINT", "STRING", *wanted.values()]
    assert job.roles[0].dimension.columns == "k STRING, price DECIMAL(15,2)"
    code, out, err = run("check", found["file"])
    assert code == 0 and "unparsable" not in out.replace("null  unparsable", ""), out + err


def test_dates_of_two_formats_stay_texts_and_are_told(run, tmp_path):
    (tmp_path / "s.csv").write_text(
        "id,k,day,us,at\n"
        + "".join(
            f"{i},{i % 5},{'2025-03-04' if i % 2 else '04.03.2025'},03/{i % 28 + 1:02d}/2025,"
            f"{i % 28 + 1}.11.2025 07:{i % 60:02d}:26+0100\n"
            for i in range(100)
        )
    )
    (tmp_path / "m.csv").write_text("k,v\n" + "".join(f"{i},{i}\n" for i in range(5)))
    found = proposed(run, "s.csv", "m.csv")
    assert {c["name"]: c["type"] for c in found["stream"]["columns"]}["day"] == "STRING"
    assert any("day: 50% of the values are written as %d.%m.%Y" in n for n in found["notes"])
    assert found["stream"]["formats"]["us"] == {"time": "%m/%d/%Y"}
    assert found["stream"]["formats"]["at"] == {"time": "%d.%m.%Y %H:%M:%S%z"}
    assert load_job(found["file"]).stream.declared.field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("0,x,2025-03-04", "'0', '2025-03-04'"),
        ("id,1,day", "'1'"),
        ("id;7,5;day", "'7,5'"),
        ("id,,day", "'column_2'"),
        ("a17,x,04.03.2025", "'04.03.2025'"),
        ("id,k,2025-03-04 10:00:00", "'2025-03-04 10:00:00'"),
    ],
)
def test_a_header_that_looks_like_data_is_told(run, tmp_path, first, said):
    cells = ("{0}", "{1}", "2025-01-02")
    row = (";" if ";" in first else ",").join(cells)
    rows = "".join(row.format(i, i % 5) + "\n" for i in range(1, 50))
    (tmp_path / "s.csv").write_text(f"{first}\n{rows}")
    (tmp_path / "m.csv").write_text("k,v1,2nd\n" + "".join(f"{i},{i},{i}\n" for i in range(5)))
    column = first.replace(";", ",") if ";" not in first else first
    column = column.split(";" if ";" in first else ",")[1] or "column_2"
    found = proposed(run, "s.csv", "m.csv", "--on", f"{column}=k")
    warned = f"the first line looks like data, and is taken for the header: {said}."
    assert [n for n in found["notes"] if "looks like" in n and warned in n][0].startswith("s.csv:")
    assert not any("looks like data" in n for n in found["notes"] if n.startswith("m.csv"))
    _, out, _ = run("check", found["file"])
    assert f"warning: stream: {warned}" in out and out.count("looks like data") == 1
    (tmp_path / "n.csv").write_text("7,8\n" + "".join(f"{i},{i}\n" for i in range(5)))
    found = proposed(run, "m.csv", "n.csv", "--on", "k=7")
    assert any("'7', '8'" in n for n in found["notes"] if n.startswith("n.csv"))
    _, out, _ = run("check", found["file"])
    assert "warning: n: the first line looks like data" in out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format: csv", "format: cvs", "Did you mean csv?"),
        ("fact_table:", "fact_tabel:", "Did you mean fact_table?"),
        ("fact_table:", "colunms: [EK-Preis]\nfact_table:", "Did you mean columns?"),
        ("on: {Artikel: Nr}", "on: {Artikle: Nr}", "'on' must name a column of the stream"),
        ("on: {Artikel: Nr}", "on: {Menge: Nr}", "'on' must join columns of one type"),
        ("id: [Beleg]", "id: [Belge]", "Did you mean Beleg?"),
        ("id: [Beleg]", "id: [Menge]", "591 of 600 tuples have the id of another one"),
        ("verkauf.csv ", "verkuf.csv ", "'stream.path' must be a directory that is there"),
        ("cp1252, sep: ;", "cp1252, spe: ;", "Did you mean sep?"),
    ],
)
def test_what_cannot_work_is_told_by_check_and_writes_nothing(run, german, old, new, said):
    assert run("init", "verkauf.csv", "artikel.csv", "--out", "v.yaml")[0] == 0
    job = Path("v.yaml")
    job.write_text((before := job.read_text()).replace(old, new))
    assert job.read_text() != before
    code, out, _ = run("check", "v.yaml")
    assert code == 1
    assert said in out
    if "ids" not in said and "id of" not in said and "stream.path" not in said:
        code, _, err = run("provision", "v.yaml")
        assert code == 2
        assert said in err
        assert not list(german.glob("var/snapshots/*"))


STAR = """
name: sales
stream: {format: csv, path: sales.csv, id: [id]}
dimensions:
  product: {path: products.csv, on: sku, max_unmatched: 0.05%s}
  other: {path: products.csv, on: {other: sku}}
fact_table: fact_sales
"""


@pytest.fixture
def star(tmp_path) -> Path:
    """The files of ``STAR``: of 100 tuples 8 have no product, and 2 more no key."""
    keys = [""] * 2 + ["later"] * 8 + ["p1"] * 90
    lines = (f"{i},{key},p1" for i, key in enumerate(keys))
    (tmp_path / "sales.csv").write_text("\n".join(["id,sku,other", *lines, ""]))
    (tmp_path / "products.csv").write_text("sku,name\np1,P\np2,Q\n")
    return tmp_path


@pytest.mark.parametrize("digits", [15, 18])
def test_decimals_that_are_texts_in_the_warehouse_are_told(run, star, digits):
    columns = f"columns: 'id DECIMAL({digits},0), sku STRING, other STRING'"
    (star / "star.yaml").write_text(
        (STAR % "").replace("path: sales.csv", f"path: sales.csv, {columns}")
    )
    _, out, _ = run("check", "star.yaml")
    assert ("id: decimals with so many digits are texts" in out) == (digits > 15), out


@pytest.mark.parametrize(
    ("more", "rest", "code", "said"),
    [
        ("", [], 1, "error: product: 10.0% of the tuples have no row"),
        (", grace: 2 hours", [], 0, "max_unmatched, 0.05, when their grace of 2 hours has ended"),
        (", grace: 2 versions, late: infer", [], 0, "when their grace of 2 versions has ended"),
        (", grace: 2 versions, late: infer", ["--join-type", "left"], 0, "has ended"),
        # inferred facts count; in a left join of several roles nothing can come later
        (", late: infer", [], 1, "error: product: 10.0% of the tuples have no row"),
        (", grace: 2 hours", ["--join-type", "left"], 1, "error: product: 10.0% of the tuples"),
    ],
)
def test_the_share_without_a_row_is_judged_as_the_proof_does(run, star, more, rest, code, said):
    (star / "star.yaml").write_text(STAR % more)
    found, out, _ = run("check", "star.yaml", *rest)
    assert said in out
    assert found == code
    # a tuple without a key has no grace
    (star / "star.yaml").write_text(STAR.replace("0.05", "0.01") % more)
    assert run("check", "star.yaml", *rest)[0] == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://x/y", "'WAREHOUSE_URL' must start with"),
        ("nothing://x", "'WAREHOUSE_URL' must start with"),
        ("a place", "'WAREHOUSE_URL' must be a database URL"),
        ("mysql+pymysql://u:p@127.0.0.1:1/x", "the warehouse does not answer: (2003, "),
        ("sqlite:///products.csv", "the warehouse does not answer: file is not a database"),
    ],
)
def test_a_warehouse_that_cannot_be_used_is_an_error(run, star, monkeypatch, url, said):
    (star / "star.yaml").write_text((STAR % "").replace("0.05", "0.5"))
    assert run("check", "star.yaml")[0] == 0
    monkeypatch.setenv("WAREHOUSE_URL", url)
    code, out, err = run("check", "star.yaml")
    assert code == 1, out + err
    assert f"error: job: {said}" in out


def test_an_empty_expectation_is_an_error(run, star):
    (star / "star.yaml").write_text(STAR % "" + "expect:\n  volume:\n")
    code, out, _ = run("check", "star.yaml")
    assert code == 1
    assert "'expect.volume' must not be empty" in out
    assert "volume: learned" in out


def test_rows_with_one_key_are_named_before_and_while_they_are_provisioned(run, star):
    (star / "star.yaml").write_text(STAR.replace("0.05", "0.5") % "")
    with (star / "products.csv").open("a") as file:
        file.write("p1,Again\n")
    code, out, _ = run("check", "star.yaml")
    assert code == 0
    assert "1 row has the business key of another one (sku), for instance 'p1'" in out
    code, out, _ = run("provision", "star.yaml")
    assert code == 0
    assert "rejected 1 (duplicate_key 1)" in out
    assert "Of rows with the same sku the last is taken, for instance of 'p1'" in out


def test_rows_that_are_gone_from_a_source_are_told_before_and_while_it_is_provisioned(run, star):
    """The unknown member and inferred ones have never come from it."""
    for more in ("", ", late: infer"):
        (star / "star.yaml").write_text(STAR.replace("0.05", "0.5") % more)
        (star / "products.csv").write_text(
            "sku,name\n" + "".join(f"p{i},P\n" for i in range(1, 41))
        )
        code, out, _ = run("provision", "star.yaml")
        assert code == 0 and "any more" not in out
        assert "any more" not in run("check", "star.yaml")[1]
    with connect(f"sqlite:///{star / 'var' / 'warehouse.db'}").begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO dim_product (product_sk, sku, is_inferred) "
            "VALUES (0, '-', 0), (99, 'n', 1)"
        )
    (star / "products.csv").write_text("sku,name\np1,P\np2,P\nnew,P\n")
    code, out, _ = run("check", "star.yaml")
    assert code == 0
    assert "at least 37 of the 40 rows of dim_product are not in its source any more" in out
    code, out, _ = run("provision", "star.yaml")
    assert code == 0 and "38 rows of dim_product are not in its source any more" in out


@pytest.mark.parametrize("left", ["role", "command"])
def test_a_left_join_that_is_to_resolve_is_refused_before_anything_is_written(run, star, left):
    more = ", late: resolve" + (", join_type: left" if left == "role" else "")
    (star / "star.yaml").write_text(STAR % more)
    rest = [] if left == "role" else ["--join-type", "left"]
    said = "'dimensions.product.late' must be reject where the join is a left one"
    code, out, _ = run("check", "star.yaml", *rest)
    assert code == 1
    assert said in out
    code, _, err = run("load", "star.yaml", *rest)
    assert code == 2
    assert said in err
    assert not [*star.rglob("*.arrow"), *star.rglob("warehouse.db")]


@pytest.fixture
def nested(tmp_path) -> Path:
    """Return the directory of a stream whose key has leading zeros, and of Parquet master data with
    integers as keys and with a nested column; 60% of the tuples match."""
    (tmp_path / "sales.csv").write_text(
        "id;shop\n" + "".join(f"{i};{i % 10:02d}\n" for i in range(200))
    )
    columns = {
        "shop": pa.array(range(6), pa.int16()),
        "town": pa.array(["a", "b"] * 3).dictionary_encode(),
        "since": pa.array(range(6), pa.timestamp("ms", "Europe/Berlin")),
        "opens": pa.array(range(6), pa.time32("s")),
        "at": [{"street": "x", "number": i} for i in range(6)],
    }
    pq.write_table(pa.table(columns), tmp_path / "shops.parquet")
    return tmp_path


def test_nested_columns_are_left_out_of_a_proposal_that_can_be_loaded(run, nested):
    code, out, err = run("init", "sales.csv", "shops.parquet", "--out", "v.yaml")
    assert code == 0, err
    text = Path("v.yaml").read_text()
    (role,) = load_job("v.yaml").roles
    assert role.dimension.columns == "shop SMALLINT, town STRING, since TIMESTAMP, opens TIME"
    assert list(role.columns) == ["town", "since", "opens"]
    assert load_job("v.yaml").stream.declared.field("shop").type == pa.int64()
    assert "zeros" not in text
    assert "dictionary" not in text
    assert "timestamp[" not in text
    assert "left out, as no database column can hold them: at" in text
    assert "max_unmatched: 0.51  # share of the tuples that may have no row, with room" in text
    assert "the 40.0% that have none" in text
    code, out, err = run("check", "v.yaml")
    assert code == 0, out + err
    assert run("provision", "v.yaml")[0] == 0
    assert run("provision", "v.yaml")[0] == 0  # again, beside its table


def test_a_key_that_is_no_integer_everywhere_is_proposed_as_text_on_both_sides(run, nested):
    with Path("sales.csv").open("a") as file:
        file.write("200;other\n")
    assert run("init", "sales.csv", "shops.parquet", "--out", "v.yaml")[0] == 0
    (role,) = load_job("v.yaml").roles
    assert role.dimension.columns == "shop STRING, town STRING, since TIMESTAMP, opens TIME"
    code, out, err = run("check", "v.yaml")
    assert code == 0, out + err
    assert run("provision", "v.yaml")[0] == 0


@pytest.mark.parametrize("key", ["shop", "code"])
def test_bytes_are_shown_as_hexadecimal_digits(run, tmp_path, key):
    """Of columns and of keys, in a proposal and in a check."""
    names = {"shop": ["a", "b", "c"], "code": [b"\xff\x00", b"\xfe", b"c"]}
    pq.write_table(pa.table({"id": [1, 2, 3], **names}), "sales.parquet")
    more = {"shop": ["a", "b", "d"], "code": [b"\xff\x00", b"\xfe", b"d"], "name": list("xyz")}
    pq.write_table(pa.table(more), "shops.parquet")
    code, _, err = run(
        "init", "sales.parquet", "shops.parquet", "--on", f"{key}={key}", "--out", "v.yaml"
    )
    assert code == 0, err
    text = Path("v.yaml").read_text()
    assert text.count("BINARY  ff00, fe, 6") == 2
    code, out, err = run("check", "v.yaml")
    assert code == 0, out + err
    assert "ff00, fe, 63" in out
    Path("v.yaml").write_text(text.replace("max_unmatched: 0.42", "max_unmatched: 0.1"))
    code, out, _ = run("check", "v.yaml")
    assert code == 1 and f"for instance '{'c' if key == 'shop' else '63'}'" in out, out


def test_tuples_without_a_key_count_as_they_do_in_a_check(run, tmp_path):
    """Of 400 tuples 100 have no key; an empty text is one, and matches."""
    keys = ["", '""', "a", "b"] * 100
    Path("s.csv").write_text("id,k\n" + "".join(f"{i},{key}\n" for i, key in enumerate(keys)))
    Path("m.csv").write_text('k,name\n"",none\na,A\nb,B\n')
    code, out, err = run("init", "s.csv", "m.csv", "--out", "v.yaml")
    assert code == 0 and re.search(r"\b75\.0%", out), out + err
    text = Path("v.yaml").read_text()
    assert "75.0% of 400 tuples have a row" in text and "max_unmatched: 0.32" in text
    code, out, err = run("check", "v.yaml")
    assert code == 0 and "75.0%" in out and "25.0%" in out, out + err


@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.string_view()], ids=str
)
@pytest.mark.parametrize("side", ["stream", "master"])
def test_texts_of_any_layout_may_be_keys(run, tmp_path, kind, side):
    """Such as a category of pandas."""
    texts = pa.array(["b", "a", "b", None, "a"], pa.string())
    keys = texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts.cast(kind)
    stream = pa.table({"id": range(5), "k": keys if side == "stream" else texts})
    master = pa.table({"k": (keys if side == "master" else texts)[:2], "name": ["x", "y"]})
    pq.write_table(stream, "s.parquet")
    pq.write_table(master, "m.parquet")
    code, out, err = run("init", "s.parquet", "m.parquet", "--out", "v.yaml")
    assert code == 0, err
    assert load_job("v.yaml").roles[0].on == {"k": "k"} and "80.0%" in out
    code, out, err = run("check", "v.yaml")
    assert code == 0, out + err


FINE = """
name: v
stream: {format: parquet, path: sales.parquet, id: [id]%s}
dimensions:
  shop: {dimension: {path: shops.parquet, max_rejected: %s}, on: shop, columns: [since]}
fact_table: fact_v
"""


def test_a_time_finer_than_microseconds_is_told_and_its_row_left_out(run, tmp_path):
    """By a proposal, too."""
    times = pa.array([1_000, 1_001, None], pa.timestamp("ns"))
    said = "'1970-01-01 00:00:00.000001001' is not TIMESTAMP_NTZ"
    pq.write_table(pa.table({"id": [1, 2, 3], "shop": [1, 1, 1], "at": times}), "sales.parquet")
    pq.write_table(pa.table({"shop": [1, 2, 3], "since": times}), "shops.parquet")
    Path("v.yaml").write_text(FINE % ("", 0.01))
    code, out, _ = run("check", "v.yaml")
    assert code == 1 and f"at: {said}" in out and f"since: {said}" in out
    code, _, err = run("provision", "v.yaml")
    assert code == 1 and f"since: {said}" in err
    Path("v.yaml").write_text(FINE % (", max_unparsable: 0.5", 0.5))
    code, out, err = run("check", "v.yaml")
    assert code == 0, out + err
    code, out, err = run("provision", "v.yaml")
    assert code == 0 and "rejected 1 (unparsable 1)" in out, out + err
    code, out, err = run("init", "sales.parquet", "shops.parquet", "--out", "w.yaml")
    assert code == 0 and f"at: {said}" in out and f"since: {said}" in out, out + err
    text = Path("w.yaml").read_text()
    assert "max_unparsable: 0.42" in text and "max_rejected: 0.42" in text


def test_a_row_left_out_is_told_with_what_python_has_no_value_for(run, tmp_path):
    """Nanoseconds, years after 9999 and durations, at any depth."""
    fine, day = 1_600_000_000_123_456_789, pa.scalar(9_000_000, pa.date32())
    ns = pa.timestamp("ns")
    columns = {
        "at": pa.array([fine], ns),
        "list": pa.array([[fine, None]], pa.list_(ns)),
        "struct": pa.array([{"t": fine}], pa.struct([("t", ns)])),
        "map": pa.array([[("a", fine)]], pa.map_(pa.string(), ns)),
        "day": pa.array([[day, None]], pa.list_(pa.date32())),
        "kind": pa.array([fine], ns).dictionary_encode(),
        "span": pa.array([fine], pa.duration("ns")),
    }
    text = "2020-09-13 12:26:40.123456789"
    assert json.loads(row_text(pa.record_batch(columns), 0)) == {
        "at": text,
        "list": [text, None],
        "struct": {"t": text},
        "map": [{"key": "a", "value": text}],
        "day": ["26611-03-02", None],
        "kind": text,
        "span": f"{fine} ns",
    }
    pq.write_table(pa.table({"id": [1]} | columns), "sales.parquet")
    pq.write_table(pa.table({"id": [1]}), "ids.parquet")
    code, out, err = run("init", "sales.parquet", "ids.parquet", "--on", "id=id", "--out", "v.yaml")
    assert code == 0 and f"at: '{text}' is not TIMESTAMP_NTZ" in out, out + err


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("", "'columns' must have types that a database column can hold"),
        (", columns: 'shop INT, at STRING'", "STRUCT<street: STRING, number: BIGINT> can become"),
        (", columns: 'shop INT, away INT'", "must name columns of"),
    ],
)
def test_a_nested_column_is_refused_with_the_way_out(run, nested, columns, said):
    Path("v.yaml").write_text(NESTED % columns)
    code, out, _ = run("check", "v.yaml")
    assert code == 1
    assert said in out
    assert "dim_shops" not in out  # no such table is there
    if not columns:
        assert "Declare the columns without it: `columns` of the dimension" in out
    Path("v.yaml").write_text(NESTED % ", columns: 'shop INT, town STRING'")
    assert run("check", "v.yaml")[0] == 0


NESTED = """
name: v
stream: {format: csv, path: sales.csv, id: [id], columns: 'id INT, shop INT', options: {sep: ;}}
dimensions:
  shops: {dimension: {path: shops.parquet%s}, on: shop, columns: [], max_unmatched: 0.5}
fact_table: fact_v
"""


REFUSED = {
    "a member inferred from a part of its key": (
        STAR.replace("on: sku,", "on: sku, business_key: [sku, name], late: infer,"),
        "'dimensions.product.late' can be infer only where the role is joined on the dimension's "
        "business key, sku, name",
    ),
    "a column that the stream has, too": (
        STAR.replace("on: sku,", "on: sku, columns: {name: other},"),
        "columns' must have names that differ from the stream's. Got 'other' instead.",
    ),
    "a stream with the facts' key": (
        STAR.replace("path: sales.csv, id: [id]", "path: keyed.csv, id: [load_id]"),
        "'load_id'",
    ),
    "a dimension with its own surrogate key": (
        STAR.replace(
            "product: {path: products.csv", "product: {path: keyed.csv, business_key: sku"
        ),
        "'product_sk'",
    ),
    "two streams, by columns of other types": (
        "name: sales\nleft: {format: csv, path: sales.csv, id: [id]}\n"
        "right: {format: csv, path: products.csv, id: [sku]}\non: {id: sku}\nfact_table: f\n",
        "'on'",
    ),
    "two streams with a window over texts": (
        "name: sales\nleft: {format: csv, path: sales.csv, id: [id]}\n"
        "right: {format: csv, path: products.csv, id: [sku]}\non: sku\nfact_table: f\n"
        "within: {left: other, right: name, distance: 3600}\n",
        "within",
    ),
}


@pytest.mark.parametrize(
    ("fact_table", "said"),
    [
        ("load_batches", "'fact_table' must not be one of Semistream's own tables"),
        ("unmatched", "'fact_table' must not be one of Semistream's own tables"),
        ("dim_product", "'fact_table' must not be the table of a dimension"),
        ("customers", "'fact_table' must not be an existing table that is no fact table"),
    ],
)
def test_a_table_of_another_kind_is_no_fact_table(run, star, fact_table, said):
    with connect(Paths.from_environment().warehouse_url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE customers (id INTEGER)")
    job = STAR.replace("0.05%s", "0.5")
    (star / "star.yaml").write_text(re.sub("fact_table: .*", f"fact_table: {fact_table}", job))
    code, out, _ = run("check", "star.yaml")
    assert code == 1
    assert said in out
    code, _, err = run("load", "star.yaml")
    assert code == 2
    assert said in err
    assert "Choose another name" in err
    code, _, err = run("provision", "star.yaml")
    assert code == 2
    assert said in err
    assert not inspect(connect(Paths.from_environment().warehouse_url)).has_table("dim_product")
    assert not [*star.rglob("*.arrow")]  # nothing is provisioned


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("other BIGINT, other_name TEXT", "'fact_sales.other' must be a column of type string"),
        ("other TEXT", "'other_name' must be a column of the table fact_sales"),
    ],
)
def test_a_fact_table_of_other_columns_is_refused_before_anything_is_written(
    run, star, columns, said
):
    """Such as another job's."""
    (star / "star.yaml").write_text(STAR.replace("0.05%s", "0.5"))
    paths = Paths.from_environment()
    with open_warehouse(paths.warehouse_url) as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE fact_sales (id BIGINT, sku TEXT, product_sk BIGINT, other_sk BIGINT, "
                f"product_name TEXT, {columns}, load_id BIGINT, load_row INTEGER, "
                "PRIMARY KEY (load_id, load_row))"
            )
            connection.exec_driver_sql("INSERT INTO fact_sales (load_id, load_row) VALUES (1, 1)")
        code, out, _ = run("check", "star.yaml")
        assert code == 1 and said in out, out
        for command in ("provision", "load"):
            code, _, err = run(command, "star.yaml")
            assert code == 2 and said in err, err
        if "other_name" in columns:  # a task of Airflow knows its own dimension's columns
            with pytest.raises(ConfigError, match=said):
                provision_changed("star.yaml", "product", "9MB", paths, lambda: None)
        assert not inspect(engine).has_table("dim_product")
        with engine.begin() as connection:  # as a first load leaves it that was refused
            connection.exec_driver_sql("DELETE FROM fact_sales")
        code, out, _ = run("check", "star.yaml")
        assert code == 0, out


def test_facts_that_go_elsewhere_may_be_named_like_any_table(run, star):
    with connect(Paths.from_environment().warehouse_url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE fact_sales (id INTEGER)")
    job = STAR.replace("0.05%s", "0.5")
    (star / "star.yaml").write_text(job)
    assert run("check", "star.yaml")[0] == 1
    (star / "star.yaml").write_text(job + "settings: {sink: sales}\n")
    code, out, _ = run("check", "star.yaml")
    assert code == 0, out
    code, _, err = run("provision", "star.yaml")
    assert code == 0, err


@pytest.mark.parametrize("business_key", ["sku", "name", "[sku, name]"])
def test_an_unknown_member_that_the_table_cannot_have_is_an_error(run, star, business_key):
    """The table was made before the dimension had one, for the same business key or another."""
    job = STAR.replace("products.csv", "products.csv, business_key: %s")
    job = job.replace("0.05%s", "0.5") % (business_key, business_key)
    (star / "star.yaml").write_text(job)
    assert run("provision", "star.yaml")[0] == 0
    text = job.replace(f"business_key: {business_key}", "unknown_member: true")
    (star / "star.yaml").write_text(text)
    said = "'unknown_member' needs a table dim_product whose business key may be null"
    code, out, _ = run("check", "star.yaml")
    assert code == 1
    assert said in out
    code, _, err = run("load", "star.yaml")
    assert code == 2
    assert said in err


def test_a_dimension_that_another_job_declares_otherwise_is_refused_by_a_check(run, star):
    job = STAR.replace("0.05%s", "0.5")
    (star / "star.yaml").write_text(job)
    assert run("provision", "star.yaml")[0] == 0
    other = job.replace("on: sku,", "on: sku, max_rejected: 0.5,")
    (star / "other.yaml").write_text(other)
    code, out, _ = run("check", "other.yaml")
    assert code == 1
    assert "'dimension product' must be declared the same way in" in out
    code, _, err = run("load", "other.yaml")
    assert code == 2
    assert "must be declared the same way" in err


@pytest.mark.parametrize("name", ["../x", '"a b;drop"', "''"])
def test_a_name_that_a_load_refuses_is_refused_when_the_job_is_read(run, star, name):
    job = STAR.replace("0.05%s", "0.5")
    (star / "star.yaml").write_text(re.sub("name: .*", f"name: {name}", job, count=1))
    for command, expected in (("check", 1), ("provision", 2)):
        code, out, err = run(command, "star.yaml")
        assert code == expected
        assert "'name' must be at most 190 letters, digits" in out + err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("load_id", "Give it another name: columns: {name_there: other_name}"),
        ("product_sk", "must have names that differ from the surrogate keys of the fact table"),
    ],
)
def test_names_that_facts_have_anyway_are_no_names_of_added_columns(run, star, name, said):
    job = STAR.replace("0.05%s", "0.5").replace("on: sku,", f"on: sku, columns: {{name: {name}}},")
    (star / "star.yaml").write_text(job)
    code, out, _ = run("check", "star.yaml")
    assert code == 1
    assert said in out


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_load_refuses_a_check_refuses(run, star, what):
    job, said = REFUSED[what]
    (star / "star.yaml").write_text(job.replace("0.05%s", "0.5"))
    (star / "keyed.csv").write_text("load_id,sku,other,product_sk\n1,p1,p1,7\n2,p2,p1,8\n")
    code, out, _ = run("check", "star.yaml")
    assert code == 1 and said in out, out
    code, _, err = run("load", "star.yaml")
    assert code == 2 and said in err, err


def test_a_proposed_job_is_joined_without_a_warehouse(run, german, monkeypatch):
    """From another directory, and with the job's own settings."""
    assert run("init", "verkauf.csv", "artikel.csv", "--out", "jobs/v.yaml")[0] == 0
    with open("jobs/v.yaml", "a") as file:
        file.write("settings: {memory: 8MB, max_files: 3}\nschedule: none\n")
    (german / "elsewhere").mkdir()
    monkeypatch.chdir(german / "elsewhere")
    given = ("join", "--config", "../jobs/v.yaml", "--out", "o.parquet", "--json")
    code, out, err = run(*given)
    assert code == 0, err
    told, rows = json.loads(out), pq.read_table("o.parquet").to_pylist()
    assert (told["rows_read"], told["matched"], told["memory_budget"]) == (600, 570, 8_000_000)
    assert min(rows, key=lambda row: row["Beleg"]) == {
        "Beleg": 100,
        "Artikel": "00000",
        "Menge": 1,
        "Preis": Decimal("0.00"),
        "Datum": date(2025, 3, 1),
        "Bezeichnung": "Größe 0",
        "EK-Preis": Decimal("1200.50"),
    }
    assert not list(german.rglob("warehouse.db"))
    job = Path("../jobs/v.yaml")
    job.write_text(re.sub("max_unmatched: [0-9.]+", "max_unmatched: 0.01", job.read_text()))
    code, _, err = run(*given[:-3], "--out", "other.parquet")
    assert code != 0 and "max_unmatched" in err and not Path("other.parquet").exists(), err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format: csv", "format: kafka", "'stream.format' must be csv, json, parquet"),
        ("Menge BIGINT", "Menge SMALLINT", "'stream.columns' must have types"),
        ("options: {sep: ;}", "options: {sep: ;, pathGlobFilter: v*}", "no option of how files"),
    ],
)
def test_a_job_that_is_no_join_of_files_is_told_so(run, german, old, new, said):
    assert run("init", "verkauf.csv", "artikel.csv", "--out", "v.yaml")[0] == 0
    job = Path("v.yaml")
    job.write_text((before := job.read_text()).replace(old, new))
    assert job.read_text() != before
    code, _, err = run("join", "--config", "v.yaml", "--out", "o.parquet")
    assert code == 2 and said in err, err


PAIR = """name: orders
left: {format: csv, path: left, id: [id]}
right: {format: csv, path: right, id: [line]}
on: {order_no: order}
fact_table: fact_orders
"""


def test_match_rates_of_two_streams_are_told(run, tmp_path):
    for side, text in (
        ("left", "id,order_no\n" + "".join(f"{i},{i % 20 or ''}\n" for i in range(100))),
        ("right", "line,order\n" + "".join(f"{i},{i % 10 + 1}\n" for i in range(40))),
    ):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.csv").write_text(text)
    Path("pair.yaml").write_text(PAIR)
    code, out, _ = run("check", "pair.yaml")
    assert code == 0
    assert "note: left: 50.0% of the 100 tuples looked at have a partner among 40" in out
    assert "note: right: 100.0% of the 40 tuples looked at have a partner among 100" in out
    (tmp_path / "right" / "a.csv").write_text("line,order\n1,77\n")
    code, out, _ = run("check", "pair.yaml")
    assert code == 0 and "warning: left: 0.0% of the 100" in out


@pytest.mark.parametrize("form", ["booleans", "patterns"])
def test_punctuations_are_no_tuples_of_a_check(run, tmp_path, form):
    """They have no id, and no partner."""
    kind, marks = ("BOOLEAN", ("true", "false"))
    if form == "patterns":
        kind, marks = ("STRING", ('"{""order"": {""range"": [1, 9]}}"', ""))
    bids = [f"{i},{i % 10 + 1},{marks[1]}" for i in range(40)]
    bids += [f",{i},{marks[0]}" for i in range(60)] + ["x,1,"]
    for side, lines in (
        ("left", ["id,order_no", *(f"{i},{i}" for i in range(50))]),
        ("right", ["line,order,complete", *bids]),
    ):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.csv").write_text("\n".join([*lines, ""]))
    columns = f"columns: 'line BIGINT, order BIGINT, complete {kind}', punctuation: complete"
    Path("pair.yaml").write_text(
        PAIR.replace("id: [line]", f"id: [line], {columns}, max_unparsable: 0.03")
    )
    code, out, _ = run("check", "pair.yaml")
    assert code == 0, out
    assert "101 rows, 60 of them punctuations" in out
    assert "have no id" not in out
    assert "1 of 41 rows cannot be read" in out
    assert "left: 20.0% of the 50 tuples looked at have a partner among 40" in out
    assert "right: 100.0% of the 40 tuples looked at have a partner among 50" in out
    found = json.loads(run("check", "pair.yaml", "--json")[1])
    assert [of["punctuations"] for of in found["streams"]] == [0, 60]


def test_what_is_not_looked_at_is_told(run, tmp_path):
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "a.csv").write_text("id,order_no\n1,2\n")
    kafka = "{format: kafka, columns: 'line INT, order BIGINT'}"
    Path("pair.yaml").write_text(PAIR.replace("{format: csv, path: right, id: [line]}", kafka))
    code, out, _ = run("check", "pair.yaml")
    assert code == 0
    assert "note: right: its tuples are not looked at, as only local files" in out
    assert "note: job: which tuples have a partner is not looked at" in out
    (tmp_path / "m.csv").write_text("k,v\n1,x\n")
    Path("one.yaml").write_text(
        "name: one\nstream: {format: kafka, columns: 'id BIGINT, k BIGINT', id: [id]}\n"
        "dimensions: {m: {path: m.csv, on: k}}\nfact_table: fact_one\n"
    )
    code, out, _ = run("check", "one.yaml", "--json")
    found = json.loads(out)
    assert (code, found["roles"][0]["matched"], found["roles"][0]["rows"]) == (0, None, 1)
    assert "not looked at" in found["findings"][0]["text"]


def test_files_of_different_columns_are_told_in_one_message(run, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,k\n1,1\n")
    (tmp_path / "in" / "b.csv").write_text("id,other\n1,1\n")
    (tmp_path / "m.csv").write_text("k,v\n1,x\n")
    Path("one.yaml").write_text(
        "name: one\nstream: {format: csv, path: in, id: [id], columns: 'id BIGINT, k BIGINT'}\n"
        "dimensions: {m: {path: m.csv, on: k}}\nfact_table: fact_one\n"
    )
    code, out, _ = run("check", "one.yaml")
    (said,) = [line for line in out.splitlines() if "b.csv" in line]
    assert code == 1 and said.count("instead.") == 1 and "'stream.path' must have" in said


def test_a_date_alone_is_midnight_only_as_a_timestamp_without_a_zone(run, tmp_path):
    """As docs/input.md says."""
    (tmp_path / "s.csv").write_text("id,k,at\n1,1,2026-11-30\n")
    (tmp_path / "m.csv").write_text("k,v\n1,x\n")
    for kind, unread in (("TIMESTAMP", 1), ("TIMESTAMP_NTZ", 0)):
        Path("one.yaml").write_text(
            "name: one\nfact_table: fact_one\ndimensions: {m: {path: m.csv, on: k}}\n"
            "stream: {format: csv, path: s.csv, id: [id], "
            f"columns: 'id BIGINT, k BIGINT, at {kind}'}}\n"
        )
        out = run("check", "one.yaml", "--json")[1]
        assert json.loads(out)["streams"][0]["unparsable"] == unread, out
        assert unread or "2026-11-30 00:00" in out


@pytest.mark.parametrize(
    ("directory", "files", "name"),
    [
        ("sales", ["2026-01-01.csv"], "sales"),
        ("in", ["web_sales-2026-01-01.csv", "web_sales-2026-01-02.csv"], "web_sales"),
        ("shop/data", ["2026-01-01.csv", "2026-01-02.csv"], "shop"),
        ("shop/data", ["part-0000.csv", "part-0001.csv"], "shop"),
        ("in/data", ["part-0000.csv", "part-0001.csv"], "data_products"),
    ],
)
def test_a_directory_gives_a_job_a_name_that_tells_something(
    run, tmp_path, monkeypatch, directory, files, name
):
    (tmp_path / directory).mkdir(parents=True)
    for file in files:
        (tmp_path / directory / file).write_text("id,sku\n1,a\n2,b\n")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "products.csv").write_text("sku,name\na,Apple\nb,Bear\n")
    found = proposed(run, directory, "raw")
    assert (found["name"], [*found["roles"]]) == (name, ["products"])
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "mine")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert proposed(run, directory, "raw")["name"] == "mine"
    assert asked == [f"Name of the job [{name}]: "]
    assert proposed(run, directory, "raw", "--name", "given")["name"] == "given"
    assert len(asked) == 1


def test_without_a_terminal_the_files_must_be_given(run, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, _, err = run("init")
    assert code == 2
    assert "'STREAM_FILE' must be given" in err


def test_the_end_of_the_input_interrupts_it(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, _, err = run("init")
    assert code == 130 and "Interrupted" in err


def test_it_asks_five_questions(run, german, monkeypatch):
    answers = iter(["verkauf.csv", "artikel.csv", "", "Beleg", "mine"])
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or next(answers))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert run("init")[0] == 0
    assert len(asked) == 5
    assert "95% of the tuples have a row" in asked[2]
    assert load_job(Paths.from_environment().jobs / "mine.yaml").stream.id == ("Beleg",)


@pytest.mark.slow
def test_the_schema_of_jobs_accepts_the_shipped_ones_and_no_misspelt_key(tmp_path):
    schema = tmp_path / "job.schema.json"
    schema.write_text(job_schema())
    shipped = sorted((Path(__file__).parents[1] / "include/semistream/workloads").glob("*.yaml"))
    assert len(shipped) >= 5
    assert valid(*shipped, schema=schema)
    wrong, job = tmp_path / "wrong.yaml", STAR.replace("0.05", "5%%") % ""
    for volume, right in (
        ("learned", True),
        ("{below: 20%}", True),
        ("learnd", False),
        ("", False),
    ):
        wrong.write_text(f"{job}expect:\n  volume: {volume}\n")
        assert valid(wrong, schema=schema) == right
    for old, new in (("fact_table", "fact_tabel"), ("path: tpch", "paht: tpch")):
        text = next(f for f in shipped if f.stem == "tpch").read_text()
        wrong.write_text(text.replace(old, new))
        assert read_yaml(wrong)
        assert not valid(wrong, schema=schema)


def test_a_shell_completes_commands_and_flags(tmp_path):
    found = tmp_path / "found"
    for line, word in (("semistream che", "check"), ("semistream check --mas", "--master-rows")):
        environment = os.environ | {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        subprocess.run([sys.executable, "-m", "semistream.cli"], env=environment, check=False)
        assert found.read_text().split() == [word]
