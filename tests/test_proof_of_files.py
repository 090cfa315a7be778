"""Loads of files by Spark, altered in the warehouse or in the source: what their proof names."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from provisioned import provision, publish
from semistream.paths import Paths
from semistream.pipeline import steps
from semistream.quality import VerificationFailed
from semistream.streaming.app import App
from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.warehouse import open_warehouse
from semistream.workloads import load_job

COLUMNS = (
    "id BIGINT, sku STRING, amount DECIMAL(10,2), share DOUBLE, sold_at TIMESTAMP, note STRING"
)
HEADER = "id,sku,amount,share,sold_at,note"
PRODUCTS = "sku,category\n" + "".join(f"p{i},c{i % 3}\n" for i in range(20))


def sale(i: int) -> str:
    sku = "" if i % 31 == 30 else f"x{i}" if i % 29 == 28 else f"p{i % 20}"
    return (
        f"{i},{sku},{i}.{i % 100:02d},{i / 8},2026-01-{1 + i % 28:02d} 10:00:{i % 60:02d},"
        f"{'' if i % 5 == 0 else f'note {i}'}"
    )


class CsvLoad:
    def __init__(self, home: Path, **stream):
        self.places = Paths(home=home / "var", warehouse_url=f"sqlite:///{home / 'warehouse.db'}")
        self.home, self.files = home, home / "sales"
        self.files.mkdir()
        (home / "products.csv").write_text(PRODUCTS)
        self.file = home / "job.yaml"
        self.write_job(**stream)
        with open_warehouse(self.places.warehouse_url) as engine:
            provision(self.job, engine)
            publish(self.job, engine, self.places.snapshots)

    def write_job(self, **stream) -> None:
        self.file.write_text(
            yaml.safe_dump(
                {
                    "name": "sales",
                    "stream": {
                        "format": "csv",
                        "path": str(self.files),
                        "columns": COLUMNS,
                        "id": ["id"],
                        "options": {"header": "true"},
                        "max_unparsable": 1,
                        **stream,
                    },
                    "master": {"name": "product", "path": str(self.home / "products.csv")},
                    "on": "sku",
                    "fact_table": "fact_sales",
                }
            )
        )
        self.job = load_job(self.file, self.places)

    def add(self, name: str, *lines: str) -> Path:
        (file := self.files / name).write_text("\n".join([HEADER, *lines, ""]))
        return file

    def run(self, spark) -> None:
        settings = LoadSettings.load(
            {"job": str(self.file), "app": "sales", "partitions": 2, "memory": "2MB"}
        )
        directory = settings.directory(self.places)
        with checkpoint_lock(directory), StatusFile(directory, "sales") as status:
            load = App(settings, self.job, self.places, status)
            load.check()
            load.run(spark)

    def alter(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.home / "warehouse.db")) as connection, connection:
            for statement in statements:
                assert connection.execute(statement).rowcount

    def verify(self, since_last: bool = False, job: Path | str = "") -> str:
        """What is said where it holds."""
        return steps.verify("sales", self.places, since_last=since_last, sample=100, job=str(job))[
            "text"
        ]

    def failures(self, **options) -> dict[str, list[dict]]:
        with pytest.raises(VerificationFailed) as failed:
            self.verify(**options)
        self.said = str(failed.value)
        return {r.name: r.rows for r in failed.value.result.failed}


UNPARSABLE = [f"{500 + i},p1,much,1,2026-01-01 10:00:00,x" for i in range(5)] + ["601,p1,1.00"]


def test_altered_facts_are_named_beside_as_many_unparsable_tuples(spark, tmp_path):
    load = CsvLoad(tmp_path)
    load.add("a.csv", *map(sale, range(200)), *UNPARSABLE)
    load.run(spark)
    assert "checks hold" in load.verify()
    load.alter(
        "DELETE FROM fact_sales WHERE id IN (11, 12, 16)",
        "UPDATE fact_sales SET amount = 0.5 WHERE id = 21",
        "UPDATE fact_sales SET sold_at = '2020-01-01 00:00:00.000000' WHERE id = 26",
        "UPDATE fact_sales SET category = 'c9' WHERE id = 41",
        "UPDATE unmatched SET reason = 'null_key' WHERE stream_id = '28'",
    )
    found = load.failures()
    assert [r["id"] for r in found["none_missing"]] == [11, 12, 16]
    named = {
        (r["finding"], r["stream_id"], r["column"], r["old"], r["new"])
        for r in found["same_rows"]
        if r["finding"] != "missing"
    }
    assert named == {
        ("changed", "21", "amount", "21.21", "0.50"),
        ("changed", "41", "category", "c1", "c9"),
        ("changed", "28", "reason", "no_match", "null_key"),
        ("changed", "26", "sold_at", "2026-01-27 10:00:26", "2020-01-01 00:00:00"),
    }
    lost = {
        r["stream_id"]: json.loads(r["old"])
        for r in found["same_rows"]
        if r["finding"] == "missing"
    }
    assert set(lost) == {"11", "12", "16"} and lost["11"]["category"] == "c2"
    assert "`semistream reset sales`" in load.said


def test_a_file_under_two_names(spark, tmp_path):
    """The daily verification does not close what the one after the load has found; who says that
    copies are right, has them told."""
    load = CsvLoad(tmp_path)
    first = load.add("a.csv", *map(sale, range(50)))
    load.run(spark)
    assert "checks hold" in load.verify(since_last=True)
    second = load.add("b.csv", *map(sale, range(10, 30)))
    load.run(spark)
    for since_last in (True, False):
        found = load.failures(since_last=since_last)
        assert set(found) == {"unique_ids"} and len(found["unique_ids"]) == 20
        assert {(r["first_file"], r["last_file"]) for r in found["unique_ids"]} == {
            (str(first), str(second))
        }
        assert "20 ids come more than once" in Path(steps_report(load)).read_text()
    load.write_job(unique_ids=False)
    assert "checks hold" in load.verify(job=load.file)
    with pytest.raises(VerificationFailed):
        load.verify()


def steps_report(load: CsvLoad) -> str:
    return load.said.split("Report: ")[1].strip()
