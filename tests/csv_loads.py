"""A small load of CSV files whose tuples follow from their numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from loads import AnyLoad
from provisioned import provision, publish
from semistream.paths import Paths
from semistream.pipeline import steps
from semistream.quality import VerificationFailed
from semistream.streaming.settings import LoadSettings
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


class CsvLoad(AnyLoad):
    def __init__(self, home: Path, **stream):
        self.paths = Paths(home=home / "var", warehouse_url=f"sqlite:///{home / 'warehouse.db'}")
        self.home, self.stream_directory = home, home / "sales"
        self.stream_directory.mkdir()
        (home / "products.csv").write_text(PRODUCTS)
        self.file = home / "job.yaml"
        self.write_job(**stream)
        with open_warehouse(self.paths.warehouse_url) as engine:
            provision(self.job, engine)
            publish(self.job, engine, self.paths.snapshots)

    def write_job(self, **stream) -> None:
        self.file.write_text(
            yaml.safe_dump(
                {
                    "name": "sales",
                    "stream": {
                        "format": "csv",
                        "path": str(self.stream_directory),
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
        self.job = load_job(self.file, self.paths)

    def add(self, name: str, *lines: str) -> Path:
        (file := self.stream_directory / name).write_text("\n".join([HEADER, *lines, ""]))
        return file

    def settings(self, **values) -> LoadSettings:
        return LoadSettings.load(
            {"job": str(self.file), "app": "sales", "partitions": 2, "memory": "2MB"} | values
        )

    def rows(self, table: str, *columns: str) -> Counter:
        return Counter(self.query(f"SELECT {', '.join(columns)} FROM {table}"))

    def loaded(self) -> tuple[Counter, Counter]:
        """Facts and unmatched tuples."""
        facts = ("id", "sku", "amount", "share", "sold_at", "note", "category")
        return (
            self.rows("fact_sales", *facts),
            self.rows("unmatched", "reason", "stream_id", "tuple"),
        )

    def verify(self, since_last: bool = False, job: Path | str = "") -> str:
        """What is said where it holds."""
        return steps.verify("sales", self.paths, since_last=since_last, sample=100, job=str(job))[
            "text"
        ]

    def failures(self, **options) -> dict[str, list[dict]]:
        with pytest.raises(VerificationFailed) as failed:
            self.verify(**options)
        self.said = str(failed.value)
        return {r.name: r.rows for r in failed.value.result.failed}
