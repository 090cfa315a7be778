"""Settings of a job that stay after its first load: another value is refused before anything is
written, by the load as by its check."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from csv_loads import COLUMNS, CsvLoad, sale
from damage import copy
from provisioned import provision, publish
from semistream import cli
from semistream.errors import ConfigError
from semistream.warehouse import open_warehouse


@pytest.fixture(scope="module")
def of_csv(spark, tmp_path_factory):
    load = CsvLoad(tmp_path_factory.mktemp("kept"))
    load.add("0.csv", *map(sale, range(50)))
    load.run(spark)
    return load


@pytest.fixture
def load(of_csv, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(of_csv.places.home))
    monkeypatch.setenv("WAREHOUSE_URL", of_csv.places.warehouse_url)
    yield of_csv
    of_csv.write_job()


def rewrite(load: CsvLoad, **settings) -> None:
    job = yaml.safe_load(load.file.read_text())
    stream = job["stream"] | settings.pop("stream", {})
    load.file.write_text(yaml.safe_dump(job | settings | {"stream": stream}))


def errors(load: CsvLoad, capsys) -> str:
    """What the check of the job finds that its load would refuse."""
    capsys.readouterr()
    cli.main(["check", str(load.file), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return "\n".join(f["text"] for f in found if f["level"] == "error")


def typed(name: str, kind: str) -> dict:
    columns = [f"{c.split()[0]} {kind}" if c.split()[0] == name else c for c in COLUMNS.split(", ")]
    return {"stream": {"columns": ", ".join(columns)}}


@pytest.mark.parametrize(
    ("setting", "was", "settings"),
    [
        ("dimensions.product.on", "{'sku': 'sku'}", {"on": {"note": "sku"}}),
        ("stream.columns.share", "DOUBLE", typed("share", "DECIMAL(12,3)")),
        ("stream.columns.share", "DOUBLE", typed("share", "FLOAT")),
        ("stream.columns.amount", "DECIMAL(10,2)", typed("amount", "DOUBLE")),
        ("stream.columns.note", "STRING", typed("note", "BINARY")),
        ("stream.id", "['id']", {"stream": {"id": ["sku"]}}),
        ("fact_table", "fact_sales", {"fact_table": "fact_others"}),
    ],
)
def test_another_value_is_refused(load, spark, capsys, setting, was, settings):
    load.add("1.csv", *map(sale, range(50, 60)))
    before = load.query("SELECT load_id FROM load_batches"), load.query("SELECT * FROM fact_sales")
    rewrite(load, **settings)
    job = load.file.read_text()
    load.job = type(load.job).load(yaml.safe_load(job))
    for _ in range(2):
        with pytest.raises(ConfigError) as e:
            load.run(spark)
        assert f"'{setting}' must stay {was}" in str(e.value), e.value
        assert "semistream reset sales" in str(e.value)
    assert f"'{setting}' must stay {was}" in errors(load, capsys)
    now = load.query("SELECT load_id FROM load_batches"), load.query("SELECT * FROM fact_sales")
    assert now == before
    load.write_job()
    assert not errors(load, capsys)
    (load.stream_directory / "1.csv").unlink()
    assert load.verify()


def test_what_may_change(load, spark, capsys):
    rewrite(load, max_unmatched=0.9, stream={"formats": {"note": {"missing": "-"}}})
    load.job = type(load.job).load(yaml.safe_load(load.file.read_text()))
    load.add("2.csv", *map(sale, range(60, 70)))
    assert not errors(load, capsys)
    assert load.run(spark)["rows_read"] == 10
    assert load.verify()


def of_left_role(load: CsvLoad, *, unknown_member: bool) -> None:
    """Let the job have a left role, with a dimension that is not provisioned yet."""
    job = yaml.safe_load(load.file.read_text())
    of = {"path": str(load.home / "products.csv"), "unknown_member": unknown_member}
    role = {"dimension": of, "on": "sku", "join_type": "left", "max_unmatched": 1}
    kept = {name: job[name] for name in ("name", "stream", "fact_table")}
    load.file.write_text(yaml.safe_dump(kept | {"dimensions": {"item": role}}))
    load.job = type(load.job).load(yaml.safe_load(load.file.read_text()))


def test_the_unknown_member_of_a_left_join_stays(spark, tmp_path, monkeypatch, capsys):
    """Facts without a row of before and of now would have two surrogate keys."""
    load = CsvLoad(tmp_path)
    monkeypatch.setenv("SEMISTREAM_HOME", str(load.places.home))
    monkeypatch.setenv("WAREHOUSE_URL", load.places.warehouse_url)
    of_left_role(load, unknown_member=True)
    with open_warehouse(load.places.warehouse_url) as engine:
        provision(load.job, engine)
        publish(load.job, engine, load.places.snapshots)
    load.add("0.csv", *map(sale, range(50)))
    load.run(spark)
    of_left_role(load, unknown_member=False)
    load.add("1.csv", *map(sale, range(50, 60)))
    refusal = "'dimensions.item.dimension.unknown_member' must stay True"
    with pytest.raises(ConfigError, match=refusal):
        load.run(spark)
    assert refusal in errors(load, capsys)
    of_left_role(load, unknown_member=True)
    assert load.run(spark)["rows_read"] == 10 and load.verify()


def test_a_verification_leaves_no_file_beside_the_warehouse(load, tmp_path):
    """So that a copy of the warehouse's file is all of it. This process has connections of its
    own to the first one."""
    copy(load.home / "warehouse.db", tmp_path / "warehouse.db")
    url = f"sqlite:///{tmp_path / 'warehouse.db'}"
    command = [str(Path(sys.executable).with_name("semistream")), "verify", "sales"]
    subprocess.run(command, check=True, env=os.environ | {"WAREHOUSE_URL": url})
    assert [f.name for f in tmp_path.iterdir()] == ["warehouse.db"]
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as connection:
        assert connection.execute("SELECT count(*) FROM quality_runs").fetchone()[0] > 0
