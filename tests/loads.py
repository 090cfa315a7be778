"""A small load to try the streaming app on: master data, a stream in files, and what the warehouse
must hold afterwards."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from sqlalchemy import Connection, inspect, text

import oracle
from semistream import quality
from semistream.job import AnyJob, Job
from semistream.master.publish import publish_snapshot
from semistream.paths import Paths
from semistream.pipeline import steps
from semistream.quality.verification import VerificationResult
from semistream.streaming.app import App
from semistream.streaming.settings import AppSettings, LoadSettings
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.streaming.summary import RunSummary
from semistream.warehouse import connect
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.tables import dimension_table, ensure

ON, COLUMNS = (("sku", "code"),), ("name", "price")
MASTER = pa.schema(
    [("part_sk", pa.int64()), ("code", pa.string()), ("name", pa.string()), ("price", pa.int32())]
)
STREAM = pa.schema([("id", pa.int64()), ("sku", pa.string()), ("amount", pa.float64())])


@contextmanager
def transaction(url: str) -> Iterator[Connection]:
    """A transaction on a warehouse, by an engine of its own."""
    engine = connect(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


class AnyLoad:
    """A job with a home and a warehouse of its own, and files that come one after the other."""

    paths: Paths
    job: AnyJob
    files = 0

    def settings(self, **values: Any) -> AppSettings:
        raise NotImplementedError

    @property
    def checkpoint(self) -> Path:
        return self.settings().directory(self.paths)

    def put_file(self, directory: Path, table: pa.Table) -> None:
        """A file, complete when it appears, and newer than those before by more than a clock's
        tick."""
        beside = self.paths.home / "next.parquet"
        pq.write_table(table, beside)
        self.appear(directory, beside)

    def appear(self, directory: Path, beside: Path) -> None:
        last = max((f.stat().st_mtime_ns for f in directory.iterdir()), default=0)
        if beside.stat().st_mtime_ns < last + 2_000_000:
            os.utime(beside, ns=(last + 2_000_000,) * 2)
        beside.rename(directory / f"part-{self.files:05d}{beside.suffix}")
        self.files += 1

    def yaml(self) -> Path:
        """The job as a file, for an app in a process of its own."""
        path = self.paths.home / f"{self.job.name}.yaml"
        path.write_text(yaml.safe_dump(self.job.model_dump(mode="json", exclude_defaults=True)))
        return path

    @contextmanager
    def app(self, job: AnyJob | None = None, **values: Any) -> Iterator[App]:
        """The app, to be run in this process."""
        settings = self.settings(**values)
        directory = settings.directory(self.paths)
        with checkpoint_lock(directory), StatusFile(directory, settings.name()) as status:
            yield App(settings, job or self.job, self.paths, status)

    def run(self, spark: Any, job: AnyJob | None = None, **values: Any) -> RunSummary:
        """The whole app in this process."""
        with self.app(job, **values) as app:
            app.check()
            return app.run(spark.sparkContext)

    def replay(self, *file: Path, **how: Any) -> str:
        """Join open tuples again, or those of a file; gives what is said of it."""
        return steps.replay(self.job.name, self.paths, *file, **how)

    def start(self, spark: Any, **values: Any) -> Running:
        return Running(lambda: self.run(spark, **values))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with transaction(self.paths.warehouse_url) as connection:
            return [tuple(row) for row in connection.execute(text(sql))]

    def execute(self, sql: str) -> None:
        with transaction(self.paths.warehouse_url) as connection:
            connection.execute(text(sql))

    def alter(self, *statements: str) -> None:
        """Execute statements, none of which is without an effect."""
        with transaction(self.paths.warehouse_url) as connection:
            assert all(connection.execute(text(sql)).rowcount for sql in statements)


class SmallLoad(AnyLoad):
    """A stream of sales joined with parts on a string key. Some sales have no part, some no key;
    hot keys are hot."""

    script, sink = "semi_stream_join.py", "sql"
    columns = ["id", "sku", "amount", "part_sk", *COLUMNS]  # of the fact table
    versioned: tuple[str, ...] = ("name",)  # those that differ from version to version

    def __init__(self, home: Path, warehouse_url: str, parts: int = 3000, seed: int = 1):
        self.paths = Paths(home=home, warehouse_url=warehouse_url)
        self.parts, self.random = parts, np.random.default_rng(seed)
        self.stream_directory = home / "stream"
        self.stream_directory.mkdir(parents=True)
        self.master: list[dict[str, Any]] = []
        self.stream: list[dict[str, Any]] = []
        self.job = Job.load(
            {
                "name": "sales",
                "stream": {"format": "parquet", "path": str(self.stream_directory), "id": ["id"]},
                "master": {"name": "part"},
                "on": dict(ON),
                "columns": list(COLUMNS),
                "fact_table": "fact_sales",
            }
        )

    def job_of(self, stream: dict[str, Any], **role: Any) -> Job:
        """The job with another stream, and these settings of its dimension's role."""
        job = self.job.model_dump()
        return Job.load(
            job | {"stream": stream, "dimensions": {"part": job["dimensions"]["part"] | role}}
        )

    def first_parts(self, count: int, prefix: str = "part") -> list[dict[str, Any]]:
        return [
            {"part_sk": i + 1, "code": f"c{i}", "name": f"{prefix} {i}", "price": i % 97}
            for i in range(count)
        ]

    def publish(self, prefix: str = "part") -> None:
        """A new version of the master data."""
        self.master = self.first_parts(self.parts, prefix)
        self.publish_rows()

    def publish_rows(self) -> None:
        table = pa.Table.from_pylist(self.master, MASTER)
        publish_snapshot(
            table.to_batches(), MASTER, self.paths.snapshots / "part" / "code", "part", ["code"]
        )

    def sales(self, rows: int) -> pa.Table:
        """The next tuples of the stream; they are remembered."""
        first = len(self.stream)
        keys = self.random.zipf(1.3, rows) % int(self.parts * 1.1)
        tuples = [
            {"id": first + i, "sku": None if k % 101 == 100 else f"c{k}", "amount": float(k) / 8}
            for i, k in enumerate(keys.tolist())
        ]
        self.stream += tuples
        return pa.Table.from_pylist(tuples, STREAM)

    def add_file(self, rows: int) -> None:
        """One more file of the stream, complete when it appears, and newer than the one before by
        more than a clock's tick."""
        self.put_file(self.stream_directory, self.sales(rows))

    def settings(self, **values: Any) -> LoadSettings:
        return LoadSettings.load(
            {
                "job": "sales",
                "algorithm": "elevatorjoin",
                "partitions": 2,
                "memory": "200KB",
                "max_files": 1,
                "parameters": {"disk_tuples": 128},
                "sink": self.sink,
                **values,
            }
        )

    # ---- what came out

    def expected(self, join_type: str = "inner") -> tuple[Counter, Counter]:
        return oracle.join(self.stream, self.master, ON, ("part_sk", *COLUMNS), join_type)

    def facts(self) -> Counter:
        if self.sink != "sql":
            return delta_facts(self.sink, self.columns)
        return Counter(self.query(f"SELECT {', '.join(self.columns)} FROM fact_sales"))

    def lasting(self, facts: Counter) -> Counter:
        """The facts without the columns that differ from version to version."""
        kept = [i for i, name in enumerate(self.columns) if name not in self.versioned]
        return Counter(tuple(row[i] for i in kept) for row in facts.elements())

    def unmatched(self) -> Counter:
        """Tuples by reason, as the oracle gives them."""
        rows = self.query("SELECT reason, stream_id, tuple FROM unmatched")
        assert all(i == str(json.loads(t)["id"]) for r, i, t in rows)
        return Counter((*json.loads(t).values(), reason) for reason, _, t in rows)

    def check(self, join_type: str = "inner") -> None:
        """Facts and unmatched tuples are the oracle's, row for row; the ledger adds up and nothing
        waits."""
        joined, unmatched = self.expected(join_type)
        same(self.facts(), joined)
        same(self.unmatched(), unmatched)
        self.check_ledger()

    def check_ledger(self, rows: int | None = None) -> None:
        totals = self.query(
            "SELECT sum(rows_read), sum(matched) + sum(unmatched) FROM load_batches"
        )[0]
        assert [int(n) for n in totals] == [len(self.stream) if rows is None else rows] * 2
        broken = self.query(
            "SELECT * FROM load_batches WHERE waiting_before + rows_read <> "
            "matched + unmatched + waiting"
        )
        assert broken == []
        assert (
            self.query(
                "SELECT batch FROM load_batches WHERE facts_checksum IS NULL OR "
                "unmatched_checksum IS NULL"
            )
            == []
        )
        commits = self.query(
            "SELECT batch, drain, partitions, rows_read FROM load_commits ORDER BY batch, drain"
        )
        batches = self.query(
            "SELECT batch, drain, count(*), sum(rows_read) FROM load_batches "
            "GROUP BY batch, drain ORDER BY batch, drain"
        )
        assert commits == [(b, d, n, int(r)) for b, d, n, r in batches]
        last = self.query(
            "SELECT sum(waiting) FROM load_batches WHERE 10 * batch + drain = (SELECT "
            "max(10 * batch + drain) FROM load_batches)"
        )
        assert int(last[0][0]) == 0

    def prove(self, **options: Any) -> VerificationResult:
        """The proof holds."""
        result = verify(self, **options)
        assert result.success, result.describe()
        return result


class SmallJob:
    """A job of the user's own: orders of known and unknown products, and some of none, in Parquet
    files."""

    def __init__(self, directory: Path):
        self.directory, self.orders = directory, 0
        self.file = directory / "small.yaml"
        self.expected = Counter(rows_read=0, matched=0, unmatched=0, facts=0, ids=0)
        (directory / "orders").mkdir(parents=True)
        (directory / "products.csv").write_text(
            "sku,title,price\n" + "".join(f"p{i},Product {i},{i}.50\n" for i in range(300))
        )
        self.file.write_text("""
name: small
stream:
  format: parquet
  path: orders
  columns: order_id BIGINT, sku STRING, n INT
  id: [order_id]
  options: {maxFilesPerTrigger: "1"}
master: {name: product, path: products.csv}
on: {sku: sku}
columns: [title, price]
fact_table: fact_small
""")

    def add(self, count: int) -> None:
        """A further file of orders: every tenth of an unknown product, every 97th of none."""
        ids = range(self.orders, self.orders + count)
        skus = [None if i % 97 == 0 else f"p{i * 7 % 300}" if i % 10 else f"x{i}" for i in ids]
        table = pa.table(
            {
                "order_id": pa.array(ids, pa.int64()),
                "sku": pa.array(skus, pa.string()),
                "n": pa.array([1] * count, pa.int32()),
            }
        )
        beside = self.directory / f".{self.orders}.parquet"
        pq.write_table(table, beside)
        beside.rename(self.directory / "orders" / f"orders-{self.orders:08d}.parquet")
        known = sum(s is not None and s.startswith("p") for s in skus)
        self.orders += count
        self.expected.update(
            rows_read=count, matched=known, unmatched=count - known, facts=known, ids=known
        )


def small_load(place: Path, warehouse_url: str) -> SmallLoad:
    """A small load with a home in this directory, its master data published."""
    load = SmallLoad(place / "home", warehouse_url)
    load.publish()
    return load


def with_options(job: Job, **options: str) -> Job:
    """The job with these options of its stream."""
    return job.model_copy(update={"stream": job.stream.model_copy(update={"options": options})})


def provision_beside(load: SmallLoad) -> None:
    """The dimension table of the snapshot that was published without one."""

    engine = connect(load.paths.warehouse_url)
    table = ensure(
        engine, dimension_table("part", pa.schema(list(MASTER)[1:]), ["code"], [["code"]])
    )
    with engine.begin() as connection:
        bulk_insert(connection, table, pa.Table.from_pylist(load.master, MASTER))
    engine.dispose()


def verify(
    load: SmallLoad, job: Job | None = None, app: str = "sales", **options: Any
) -> VerificationResult:
    """Prove what was loaded, the dimension provisioned."""
    if not inspect(connect(load.paths.warehouse_url)).has_table("dim_part"):
        provision_beside(load)
    return quality.verify(
        load.paths.warehouse_url,
        app,
        job=job or (load.job if app == "sales" else None),
        reports_dir=load.paths.home / "reports",
        snapshots=load.paths.snapshots,
        **options,
    )


def check_resolved(load: SmallLoad) -> None:
    """Each tuple was read once, and each resolved row of ``unmatched`` names a load that counted
    it."""
    counted = "SELECT sum(rows_read), sum(resolved), sum(matched), sum(unmatched)"
    read, resolved, matched, rejected = map(int, load.query(f"{counted} FROM load_batches")[0])
    assert read == len(load.stream) and read + resolved == matched + rejected
    marked = "SELECT resolved_by, count(*) FROM unmatched WHERE resolved_by IS NOT NULL"
    by_load = "SELECT load_id, resolved FROM load_batches WHERE resolved > 0"
    assert dict(load.query(f"{marked} GROUP BY resolved_by")) == dict(load.query(by_load))


class Running:
    """An app running in a thread."""

    def __init__(self, work: Callable[[], RunSummary]):
        self.summary: RunSummary | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], RunSummary]) -> None:
        try:
            self.summary = work()
        except BaseException as e:
            self.error = e

    def join(self, timeout: float = 120) -> RunSummary:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the app did not end"
        if self.error is not None:
            raise self.error
        assert self.summary is not None
        return self.summary

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def delta_facts(uri: str | Path, columns: Sequence[str] = SmallLoad.columns) -> Counter:
    """``SmallLoad.facts`` where they are in a Delta table."""
    from deltalake import DeltaTable

    rows = DeltaTable(uri).to_pyarrow_table().select([*columns])
    return Counter(tuple(r.values()) for r in rows.to_pylist())


def same(found: Counter, wanted: Counter) -> None:
    """Equal, or the first few differences."""
    missing, extra = wanted - found, found - wanted
    assert not missing and not extra, (
        f"{missing.total()} missing: {list(missing)[:3]}; {extra.total()} extra: {list(extra)[:3]}"
    )


def until(
    condition: Callable[[], Any],
    timeout: float = 90,
    what: str = "it",
    watch: Callable[[], None] = lambda: None,
) -> Any:
    """Wait for a condition; gives its value. watch: raises when waiting is in vain."""
    looked = time.monotonic()
    deadline = looked + timeout
    while not (value := condition()):
        watch()
        now = time.monotonic()
        assert now < deadline, f"{what} did not happen in {timeout} s"
        # a look that costs much is rare: what is awaited needs the processor, too
        time.sleep(max(0.02, 4 * (now - looked)))
        looked = time.monotonic()
    return value
