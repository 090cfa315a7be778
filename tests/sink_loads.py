"""Loads through the product's own sink, without Spark, and their verification."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from semistream import quality
from semistream.data_files import DataFile
from semistream.files.source import Rejected
from semistream.job import Job
from semistream.keys import codes
from semistream.master.publish import publish_snapshot
from semistream.quality.verification import VerificationResult
from semistream.reasons import Reason
from semistream.sketches import SampledSketch
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import Spool
from semistream.warehouse import connect, create_all
from semistream.warehouse.bulk import bulk_insert, fetch
from semistream.warehouse.records import Commit, InputCounts, LoadRecord
from semistream.warehouse.schema import load_commits, load_files, quality_runs
from semistream.warehouse.tables import (
    arrow_schema,
    dimension_table,
    ensure,
    existing_table,
    fact_table,
)

BATCHES, PER_BATCH, PARTITIONS = 3, 60, 2
ON_SQLITE = pytest.mark.parametrize("warehouse_url", ["sqlite"], indirect=True)


MASTER = pa.schema(
    [
        pa.field("sku", pa.string()),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("colour", pa.string()),
        pa.field("day", pa.date32()),
    ]
)


STREAM = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("sku", pa.string()),
        pa.field("quantity", pa.int32()),
        pa.field("day", pa.date32()),
    ]
)


ADDED = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("colour", pa.string()),
        pa.field("sales_day", pa.date32()),
    ]
)


def products(many: bool = False) -> list[dict]:
    """Master rows; `many`: two for every sku."""
    return [
        {
            "sku": f"p{i // 2 if many else i:02d}",
            "name": f"Product {i} 100%: 'new'",
            "price": Decimal(i * 125) / 100,
            "colour": None if i % 4 == 0 else f"colour {i}",
            "day": date(2026, 1, 1 + i % 28),
        }
        for i in range(40)
    ]


def orders(batch: int) -> list[dict]:
    """Stream tuples; every 10th has a sku without a product, every 15th has none."""
    first = batch * PER_BATCH
    return [
        {
            "order_id": i,
            "sku": None if i % 15 == 14 else f"x{i}" if i % 10 == 9 else f"p{i * 7 % 20:02d}",
            "quantity": i % 5,
            "day": date(2026, 2, 1 + i % 28),
        }
        for i in range(first, first + PER_BATCH)
    ]


JOINED = pa.schema([*STREAM, pa.field("sales_sk", pa.int64()), *ADDED])


KEPT = pa.schema([*STREAM, pa.field("reason", pa.string())])


def commit_of(
    job: Job, batch: int, drain: int, partitions: int, rows_read: int, files: Sequence[Path] = ()
) -> Commit:
    """The ledger's record of a batch of these Parquet files, or of a drain."""
    offsets = {"format": "parquet", "offsets": [], "start": None, "files": len(files)}
    return Commit(
        "sales",
        batch,
        drain,
        "fact_sales",
        "sql",
        partitions,
        rows_read,
        job.to_ledger(),
        json.dumps(offsets if files else {}),
        time.time(),
        tuple(DataFile(str(file)) for file in files),
    )


class Loader:
    """Fills a warehouse through the product's own sink: batch after batch, partition by partition,
    with tuples that wait."""

    def __init__(self, url: str, directory: Path, many: bool = False, left: bool = False):
        self.url, self.directory, self.left = url, directory / "orders", left
        self.reports = directory / "reports"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.engine, self.sink = (
            connect(url),
            SqlSink(Warehouse(url, "fact_sales", ("sales_sk",), 30)),
        )
        create_all(self.engine)
        business = ["sku", "name"] if many else ["sku"]
        self.job = Job.load(
            {
                "name": "sales",
                "stream": {"format": "parquet", "path": str(self.directory), "id": ["order_id"]},
                "master": {"name": "sales", "business_key": business},
                "on": {"sku": "sku"},
                "columns": ["name", "price", "colour", "day"],
                "fact_table": "fact_sales",
            }
        )
        self.dimension = ensure(self.engine, dimension_table("sales", MASTER, business, [["sku"]]))
        self.fact = ensure(
            self.engine,
            fact_table("fact_sales", STREAM, ["sales_sk"], ADDED, ["order_id"], index_ids=left),
        )
        with self.engine.begin() as connection:
            bulk_insert(connection, self.dimension, pa.Table.from_pylist(products(many), MASTER))
        self.version, self.waiting = "v000001", {p: [] for p in range(PARTITIONS)}
        self.sketched = False

    def load(self, batches: range, drain: bool = True) -> None:
        for b in batches:
            file = self.directory / f"orders-{b}.parquet"
            pq.write_table(pa.Table.from_pylist(orders(b), STREAM), file)
            self.commit(b, 0, orders(b), [file])
        if drain:
            self.commit(batches[-1], 1)

    def commit(
        self,
        batch: int,
        drain: int,
        rows: Sequence[dict] = (),
        files: Sequence[Path] = (),
        rejected: Sequence[Rejected] = (),
    ) -> None:
        """Load a batch of these rows, or a drain. rejected: what is unparsable, in partition 0."""
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(self.dimension)).mappings().all()
        products: dict[str, list] = {}
        for row in found:
            products.setdefault(row["sku"], []).append(row)
        loads = [
            self._load(
                batch,
                drain,
                p,
                [r for r in rows if r["order_id"] % PARTITIONS == p],
                products,
                () if p else rejected,
            )
            for p in range(PARTITIONS)
        ]
        read = len(rows) + len(rejected)
        self.sink.commit(commit_of(self.job, batch, drain, PARTITIONS, read, files), loads)

    def _load(
        self,
        batch: int,
        drain: int,
        partition: int,
        rows: list[dict],
        products: dict[str, list],
        rejected: Sequence[Rejected],
    ) -> LoadRecord:
        before = self.waiting[partition]
        waits = set() if drain else {r["order_id"] for r in rows if r["order_id"] % 7 == 3}
        finished = before + [r for r in rows if r["order_id"] not in waits]
        self.waiting[partition] = [r for r in rows if r["order_id"] in waits]
        facts, kept = [], []
        for r in finished:
            facts += [
                {
                    **r,
                    "sales_sk": m["sales_sk"],
                    "name": m["name"],
                    "price": m["price"],
                    "colour": m["colour"],
                    "sales_day": m["day"],
                }
                for m in products.get(r["sku"], [])
            ]
            if r["sku"] not in products:
                kept.append(
                    {**r, "reason": Reason.NULL_KEY if r["sku"] is None else Reason.NO_MATCH}
                )
                facts += [r] if self.left else []
        reasons = Counter(u["reason"] for u in kept) + Counter({Reason.UNPARSABLE: len(rejected)})
        counts = InputCounts(
            "sales",
            len(before),
            len(rows) + len(rejected),
            len(finished) - len(kept),
            reasons,
            len(self.waiting[partition]),
            "",
            "sales",
            self.version,
        )
        record = LoadRecord(
            "sales",
            batch,
            drain,
            partition,
            "ssbj",
            (counts,),
            counts.rows_read,
            counts.matched,
            len(facts),
            key_sketch=self._sketch((batch, drain, partition), rows),
        )
        with Spool(JOINED, (STREAM,), (("order_id",),), None, len(STREAM)) as spool:
            spool.write(
                pa.RecordBatch.from_pylist(facts, JOINED), pa.RecordBatch.from_pylist(kept, KEPT)
            )
            if rejected:
                spool.reject(rejected)
            return self.sink.write(record, spool)

    def _sketch(self, load: tuple[int, int, int], rows: list[dict]) -> bytes | None:
        if not self.sketched:
            return None
        sketch, skus = SampledSketch(load), pa.array([r["sku"] for r in rows], pa.string())
        keys, valid = codes([skus.take(pa.array(sketch.draw(len(rows))))], (pa.string(),))
        sketch.add(keys[valid])
        return sketch.sketch.to_bytes()

    def read_from(self, batch: int, file: Path, kind: str) -> None:
        """Say that a batch was read from another file."""
        c, f = load_commits.c, load_files.c
        with self.engine.begin() as connection:
            connection.execute(
                load_commits.update()
                .where(c.batch == batch, c.drain == 0)
                .values(source_offsets=json.dumps({"format": kind, "files": 1}))
            )
            connection.execute(load_files.update().where(f.batch == batch).values(path=str(file)))


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def check(loader: Loader, **options) -> VerificationResult:
    options = {"sample": 1000, "snapshots": loader.reports / "none"} | options
    return quality.verify(
        loader.url, "sales", job=loader.job, reports_dir=loader.reports, **options
    )


def run_count(loader: Loader) -> int:
    with loader.engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(quality_runs))


def failed(result: VerificationResult) -> set[str]:
    return {r.name for r in result.failed}


def rows_of(result: VerificationResult, name: str) -> list[dict]:
    return next(r.rows for r in result.results if r.name == name)


def change(connection: sa.Connection, statement: str) -> None:
    assert connection.exec_driver_sql(statement.replace("%", "%%")).rowcount > 0


def alter(loader: Loader, *statements: str) -> None:
    with loader.engine.begin() as connection:
        for statement in statements:
            change(connection, statement)


def publish(loader: Loader, snapshots: Path, changes: int | None = None) -> str:
    schema = arrow_schema(existing_table(loader.engine, "dim_sales"))
    schema = schema.set(schema.get_field_index("price"), pa.field("price", pa.decimal128(12, 2)))
    with loader.engine.connect() as connection:
        batches = list(fetch(connection, sa.select(loader.dimension), schema))
    return publish_snapshot(
        batches, schema, snapshots / "sales" / "sku", "sales", ["sku"], source={"changes": changes}
    ).version
