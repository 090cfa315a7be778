"""A new sink, and a new source, is a file of its own and a line in its registry: here a toy of each
loads and is proven."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource
from sqlalchemy import inspect

from loads import STREAM, SmallLoad, provision_beside, same
from semistream.errors import ConfigError
from semistream.files.source import Chunk
from semistream.job import Job
from semistream.quality.verification import verify
from semistream.streaming.settings import LoadSettings
from semistream.streaming.sinks import registry as sinks
from semistream.streaming.sinks.base import (
    StoredRows,
    attempt_name,
    rejected_rows,
    stored_checksum,
    with_key,
)
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.sources import registry as sources
from semistream.streaming.sources.contract import SplitReader, Splits
from semistream.streaming.sources.numbered import NOTHING, Numbered
from semistream.streaming.sources.ranges import NumberedSource, Range, RangeReader
from semistream.warehouse import connect
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.closing import Closing
from semistream.warehouse.resolution import mark_resolved
from semistream.warehouse.schema import unmatched

ROWS = 500


@dataclass(frozen=True)
class FileSink:
    """A Parquet file a partition; those count that a directory's commit has named."""

    directory: Path
    warehouse: Warehouse
    two_phase: ClassVar[bool] = True
    in_warehouse: ClassVar[bool] = False
    put_back: ClassVar[str] = "put the file of {app} back."

    @staticmethod
    def accepts(setting):
        return setting.startswith("toy://")

    @classmethod
    def open(cls, setting, warehouse, checkpoint):
        return cls(Path(setting.removeprefix("toy://")), warehouse)

    def loaded(self, app, batch, drain, partition):
        return None

    closing = None

    def take_back(self, app, batch, drain):
        return None

    def writer(self, schema, app, batch, drain, partition):
        return None

    def prepare(self, stream, added, id_columns):
        self.directory.mkdir(exist_ok=True)
        pq.write_table(
            with_key(pa.schema([*stream, *added]).empty_table(), 0),
            self.directory / "empty.parquet",
        )
        return self

    def write(self, record, spool):
        name, engine = attempt_name(record), self.warehouse.engine
        key = self.warehouse.ledger(record.app).load_id(
            record.batch, record.drain, record.partition
        )
        pq.write_table(with_key(spool.joined(), key), self.directory / f"{name}.joined")
        pq.write_table(
            rejected_rows(spool.unmatched(), key, self.warehouse.fact),
            self.directory / f"{name}.unmatched",
        )
        pq.write_table(spool.resolved(), self.directory / f"{name}.resolved")
        return replace(
            record,
            prepared={"data": name},
            facts_checksum=stored_checksum(spool.joined(), engine),
            unmatched_checksum=stored_checksum(spool.unmatched(), engine),
        )

    def commit(self, commit, loads):
        names = [load.prepared["data"] for load in loads]
        for name in names:
            if (made := self.directory / f"{name}.joined").exists():
                made.rename(made.with_suffix(".parquet"))
        ledger = self.warehouse.ledger(commit.app)

        def write(connection):
            for load, name in zip(loads, names, strict=True):
                kept = pq.read_table(self.directory / f"{name}.unmatched")
                bulk_insert(connection, unmatched, kept)
                key = ledger.load_id(load.batch, load.drain, load.partition)
                resolved = pq.read_table(self.directory / f"{name}.resolved")
                mark_resolved(connection, key, resolved.to_batches())

        ledger.commit(commit, loads, write)

    def clean_up(self):
        for file in [*self.directory.glob("*.unmatched"), *self.directory.glob("*.resolved")]:
            file.unlink()

    def missing(self, app):
        return None

    def newest(self, app):
        return None

    def stored(self, app):
        return StoredRows(
            pq.read_schema(self.directory / "empty.parquet"),
            (
                (str(f), lambda f=f: iter(pq.read_table(f).to_batches()))
                for f in self.directory.glob("*.parquet")
            ),
        )


class CountingReader(RangeReader):
    def newest(self, start):
        return ROWS

    def read(self, partition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        yield pa.RecordBatch.from_pylist(
            [a_tuple(n) for n in range(partition.start + 1, partition.end + 1)], STREAM
        )


class CountingData(DataSource):
    @classmethod
    def name(cls):
        return "counting"

    def schema(self):
        return "id BIGINT, sku STRING, amount DOUBLE"

    def streamReader(self, schema):
        return CountingReader(dict(self.options))


class Counting(NumberedSource):
    data_source = CountingData


class RangeSplits(SplitReader):
    schema = STREAM

    def read(self, splits):
        for split in splits:
            numbers = np.arange(split.start + 1, split.end + 1)
            rows = pa.RecordBatch.from_pylist([a_tuple(int(n)) for n in numbers], STREAM)
            yield Numbered(Chunk(rows, []), numbers, NOTHING)


class CountingInRanges(Counting):
    """The same tuples, which tasks read in ranges of numbers."""

    def splits(self, part):
        (whole,) = super().splits(part)
        return [
            Range(first, min(first + 30, whole.end)) for first in range(whole.start, whole.end, 30)
        ]

    def input(self, df, part):
        return Splits(RangeSplits(), self.splits(part))


def a_tuple(n):
    return {"id": n, "sku": f"c{n % 37}", "amount": n / 4}


@pytest.fixture
def registered(monkeypatch):
    """In Spark's workers, which cannot import the tests, too."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(sinks, "SINKS", [FileSink, *sinks.SINKS])
    monkeypatch.setitem(sys.modules, f"{sources.__package__}.counting", sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def proven(load: SmallLoad, job: Job):
    if not inspect(connect(load.paths.warehouse_url)).has_table("dim_part"):
        provision_beside(load)
    return verify(
        load.paths.warehouse_url,
        "sales",
        job=job,
        reports_dir=load.paths.reports,
        snapshots=load.paths.snapshots,
    )


def test_a_sink_is_a_class_and_a_line(spark, sqlite_load, tmp_path, registered):
    for rows in (400, 300):
        sqlite_load.add_file(rows)
    directory = tmp_path / "toy"
    sqlite_load.run(spark, sink=f"toy://{directory}")
    rows = [r for f in directory.glob("*.parquet") for r in pq.read_table(f).to_pylist()]
    joined, unmatched = sqlite_load.expected()
    same(
        Counter(
            tuple(r[n] for n in ("id", "sku", "amount", "part_sk", "name", "price")) for r in rows
        ),
        joined,
    )
    same(sqlite_load.unmatched(), unmatched)
    sqlite_load.check_ledger()
    result = proven(sqlite_load, sqlite_load.job)
    assert result.success, result.describe()
    next(directory.glob("0*.parquet")).write_text("damaged")
    assert "table_files" in [r.name for r in proven(sqlite_load, sqlite_load.job).failed]


@pytest.mark.parametrize("kind", [Counting, CountingInRanges])
def test_a_source_is_a_class_and_a_line(spark, sqlite_load, registered, monkeypatch, kind):
    """Spark brings its tuples, or tasks read its splits."""
    monkeypatch.setitem(sources.SOURCES, "counting", f"counting.{kind.__name__}")
    job = sqlite_load.job.model_copy(
        update={
            "stream": sqlite_load.job.stream.model_copy(
                update={"format": "counting", "path": None, "options": {}}
            )
        }
    )
    sqlite_load.stream = [a_tuple(n) for n in range(1, ROWS + 1)]
    sqlite_load.run(spark, job, max_files=0, max_rows=200)
    sqlite_load.check()
    assert sqlite_load.query(
        "SELECT rows_read FROM load_commits WHERE drain = 0 ORDER BY batch"
    ) == [(200,), (200,), (100,)]
    result = proven(sqlite_load, job)
    assert result.success, result.describe()
    assert not result.notes, "the source was counted again"


def test_settings_name_sinks_as_before():
    for setting, kind in (
        ("sql", "SqlSink"),
        ("/data/facts", "DeltaSink"),
        ("s3://bucket/facts", "DeltaSink"),
    ):
        wanted = LoadSettings.load({"job": "tpch", "sink": setting}).sink
        assert next(k for k in sinks.SINKS if k.accepts(wanted)).__name__ == kind


def test_a_sink_that_closes_no_keys_takes_no_job_with_totals(sqlite_load, tmp_path, registered):
    url = sqlite_load.paths.warehouse_url
    warehouse = replace(Warehouse.of(url, sqlite_load.job), closing=Closing(("id",), ()))
    for setting in (f"toy://{tmp_path / 'toy'}", str(tmp_path / "delta")):
        with pytest.raises(ConfigError, match="must be sql where a job has totals"):
            sinks.open_sink(setting, warehouse)
    assert sinks.open_sink("sql", warehouse).closing is warehouse.closing
