"""Settings of a job that stay after its first load: another value is refused before anything is
written, by the load as by its check."""

from __future__ import annotations

import json
import os
import shutil
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
    monkeypatch.setenv("SEMISTREAM_HOME", str(of_csv.paths.home))
    monkeypatch.setenv("WAREHOUSE_URL", of_csv.paths.warehouse_url)
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
    assert load.run(spark).rows_read == 10
    assert load.verify()


def of_role(load: CsvLoad, *, unknown_member: bool, **given: str) -> None:
    """Let the job have another role, with a dimension that is not provisioned yet."""
    job = yaml.safe_load(load.file.read_text())
    of = {"path": str(load.home / "products.csv"), "unknown_member": unknown_member}
    role = {"dimension": of, "on": "sku", "max_unmatched": 1, **given}
    kept = {name: job[name] for name in ("name", "stream", "fact_table")}
    load.file.write_text(yaml.safe_dump(kept | {"dimensions": {"item": role}}))
    load.job = type(load.job).load(yaml.safe_load(load.file.read_text()))


@pytest.mark.parametrize("of", ["role", "load"])
def test_the_unknown_member_of_a_left_join_stays(spark, tmp_path, monkeypatch, capsys, of):
    """Facts without a row of before and of now would have two surrogate keys."""
    load = CsvLoad(tmp_path)
    monkeypatch.setenv("SEMISTREAM_HOME", str(load.paths.home))
    monkeypatch.setenv("WAREHOUSE_URL", load.paths.warehouse_url)
    left = {"join_type": "left"}
    of_role_, of_load = (left, {}) if of == "role" else ({}, left)
    of_role(load, unknown_member=True, **of_role_)
    with open_warehouse(load.paths.warehouse_url) as engine:
        provision(load.job, engine)
        publish(load.job, engine, load.paths.snapshots)
    load.add("0.csv", *map(sale, range(50)))
    load.run(spark, **of_load)
    of_role(load, unknown_member=False, **of_role_)
    load.add("1.csv", *map(sale, range(50, 60)))
    refusal = "'dimensions.item.dimension.unknown_member' must stay True"
    with pytest.raises(ConfigError, match=refusal):
        load.run(spark, **of_load)
    assert refusal in errors(load, capsys)
    of_role(load, unknown_member=True, **of_role_)
    assert load.run(spark, **of_load).rows_read == 10 and load.verify()


VERIFY = [str(Path(sys.executable).with_name("semistream")), "verify", "sales"]
DRIVER = [sys.executable, "-m", "semistream.streaming.script", "--job", "job.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [VERIFY, DRIVER], ids=["verification", "driver"])
def test_a_process_leaves_no_file_beside_the_warehouse(load, tmp_path, command):
    """So that a copy of the warehouse's file is all of it. This process has connections of its
    own to the first one."""
    place, home = tmp_path / "warehouse", tmp_path / "home"
    shutil.copytree(load.paths.home, home)
    shutil.copy(load.file, tmp_path)
    place.mkdir()
    copy(load.home / "warehouse.db", place / "warehouse.db")
    url = f"sqlite:///{place / 'warehouse.db'}"
    environment = os.environ | {"WAREHOUSE_URL": url, "SEMISTREAM_HOME": str(home)}
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    assert [f.name for f in place.iterdir()] == ["warehouse.db"]
    with closing(sqlite3.connect(place / "warehouse.db")) as connection:
        assert connection.execute("SELECT count(*) FROM load_commits").fetchone()[0] > 0
