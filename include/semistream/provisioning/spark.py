"""Publishing a master snapshot on Spark: read, hash, sort and write in parallel.

Spark sorts within the JVM's memory and spills to disk. A task's Python process holds a page and
some batches, which ``memory`` bounds, so that the size of R is not limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from sqlalchemy import func, select

from semistream.keys import JoinKeys
from semistream.keys_spark import bucket_expression, order_expression, quoted
from semistream.master.bucket_writer import BUCKETS, BucketWriter, choose_page_tuples
from semistream.master.manifest import BucketInfo, Manifest
from semistream.master.publish import Publication
from semistream.master.published import snapshot_root
from semistream.paths import Paths
from semistream.provisioning.publishing import (
    DimensionTable,
    check_unchanged,
    needs_publishing,
    open_dimension,
    read_dimension,
)
from semistream.settings import Publishing
from semistream.warehouse.dialects import connect, shared_engine
from semistream.workloads import load_dimensions

TASK_ROWS = 250_000  # rows read, or written, by one task
SAMPLE = 1000  # surrogate keys whose rows are read to learn how wide rows are
MOST_BATCH_BYTES = 16_000_000
BUCKET, ORDER = "bucket", "order"
WRITTEN = "bucket int, rows bigint, bytes bigint, unique boolean, null_keys bigint"


class PublishSettings(Publishing):
    """The settings of the publishing app."""

    job: str = Field(
        description="Job whose dimensions are published (tpch, nycflights13, tpcds or the "
        "path of a YAML file), or a dimension, by its name or its file's "
        "path"
    )
    dimension: str = Field(
        "", description="The one of the job's dimensions that is published; default: all"
    )
    buckets: int = Field(
        BUCKETS,
        ge=1,
        le=4096,
        description="Buckets that rows are hashed into, the most partitions of a load",
    )
    page_tuples: int = Field(
        0, ge=0, le=1_000_000, description="Tuples of a page, the least read at once; 0: by R"
    )
    force: bool = Field(
        False, description="Publish a version even if nothing has changed since the current one"
    )


def publications(settings: PublishSettings, paths: Paths) -> list[Publish]:
    """Return the publications that the settings request. Raises ConfigError before any session is
    opened."""
    wanted = [
        d
        for d in load_dimensions(settings.job, paths)
        if settings.dimension in ("", d.dimension.name)
    ]
    return [Publish(settings, d.dimension.name, key, paths) for d in wanted for key in d.keys]


class Publish:
    """The publication of a dimension's snapshot for one key: what is read, and where it is written.
    Raises ConfigError before any session is opened."""

    def __init__(self, settings: PublishSettings, name: str, key: Sequence[str], paths: Paths):
        self.settings, self.name, self.key_columns = settings, name, tuple(key)
        self.url, self.root = paths.warehouse_url, snapshot_root(paths.snapshots, name, key)
        self.engine = shared_engine(self.url)
        self.dimension = open_dimension(self.engine, self.name)

    @property
    def needed(self) -> bool:
        return self.settings.force or needs_publishing(self.engine, self.dimension, self.root)

    def run(self, spark: SparkSession) -> Manifest:
        """Write the new version and make it the current one."""
        publication = Publication(
            self.root,
            self.name,
            self.dimension.schema,
            self.key_columns,
            source=self.dimension.source(self.engine),
            bucket_count=self.settings.buckets,
            formats=self.dimension.key_forms(self.key_columns),
            page_tuples=self.settings.page_tuples or self._page_tuples(),
        )
        # some of the batches between Spark and Python are held at a time
        spark.conf.set(
            "spark.sql.execution.arrow.maxBytesPerBatch",
            min(int(self.settings.memory) // 16, MOST_BATCH_BYTES),
        )
        tasks = task_count(spark, self.dimension.rows)
        with publication:
            infos = write_buckets(
                read_table(spark, self.url, self.dimension, tasks),
                publication,
                min(tasks, publication.bucket_count),
            )
            check_unchanged(self.engine, self.name, self.dimension)
            return publication.commit(infos)

    def _page_tuples(self) -> int:
        with self.engine.connect() as connection:
            sk = self.dimension.table.c[self.dimension.schema.names[0]]
            low = connection.scalar(select(func.min(sk))) or 0
            found = list(read_dimension(connection, self.dimension, range(low, low + SAMPLE)))
        rows = sum(batch.num_rows for batch in found)
        return choose_page_tuples(
            self.dimension.rows, sum(batch.nbytes for batch in found) / max(rows, 1)
        )


def task_count(spark: SparkSession, rows: int) -> int:
    """Return the number of tasks for `rows` rows: one per core, more for many rows."""
    return max(min(spark.sparkContext.defaultParallelism, rows), -(-rows // TASK_ROWS), 1)


def read_table(spark: SparkSession, url: str, dimension: DimensionTable, tasks: int) -> DataFrame:
    """Return a dimension table as a DataFrame whose tasks each read a range of surrogate keys."""
    sk = dimension.table.c[dimension.schema.names[0]]
    engine = connect(url)
    with engine.connect() as connection:
        low, high = connection.execute(select(func.min(sk), func.max(sk))).one()
    engine.dispose()
    low, high = low or 0, (high or 0) + 1
    step, given = -(-(high - low) // tasks), spark_schema(dimension.schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = connect(url)
        with source.connect() as connection:
            for batch in batches:
                for i in batch.column(0).to_pylist():
                    keys = range(low + i * step, low + (i + 1) * step)
                    for rows in read_dimension(connection, dimension, keys):
                        yield rows.cast(given)
        source.dispose()

    return spark.range(0, tasks, 1, tasks).mapInArrow(read, from_arrow_schema(given))


def write_buckets(rows: DataFrame, publication: Publication, tasks: int) -> list[BucketInfo]:
    """Hash, sort and write the rows. Each task writes some buckets, one after the other, into a
    directory that driver and executors share."""
    keys, count = publication.keys, publication.bucket_count
    # mapInArrow does not quote names
    own = [quoted(name).alias(f"column_{i}") for i, name in enumerate(publication.schema.names)]
    ordered = (
        rows.select(
            bucket_expression(keys.master, keys.types, count).alias(BUCKET),
            order_expression(keys.master, keys.types).alias(ORDER),
            *own,
        )
        .repartitionById(tasks, F.col(BUCKET))
        .sortWithinPartitions(BUCKET, ORDER)
        .drop(ORDER)
    )
    write = bucket_writer(publication.directory, publication.schema, keys, publication.page_tuples)
    return [BucketInfo(**r.asDict()) for r in ordered.mapInArrow(write, WRITTEN).collect()]


def bucket_writer(
    directory: Path, schema: pa.Schema, keys: JoinKeys, page_tuples: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function with which a task writes its rows. The rows are sorted by bucket and key
    code."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer: BucketWriter | None = None
        with ExitStack() as opened:
            for batch in batches:
                for bucket, rows in _runs(batch, schema):
                    if writer is None or writer.bucket != bucket:
                        if writer is not None:
                            yield _written(writer)
                        opened.pop_all()  # only an incomplete file is closed on exit
                        writer = opened.enter_context(
                            BucketWriter(directory, bucket, schema, keys, page_tuples)
                        )
                    writer.write(rows)
            if writer is not None:
                yield _written(writer)

    return write


def _runs(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each bucket in a batch that is sorted by bucket."""
    bucket = batch.column(0)
    columns = [c.cast(f.type) for c, f in zip(batch.columns[1:], schema, strict=True)]
    rows, start = pa.record_batch(columns, schema=schema), 0
    for run in pc.run_end_encode(bucket).run_ends.to_pylist():
        yield bucket[start].as_py(), rows.slice(start, run - start)
        start = run


def _written(writer: BucketWriter) -> pa.RecordBatch:
    info = pa.RecordBatch.from_pylist([asdict(writer.close())])
    return info.set_column(0, "bucket", info["bucket"].cast(pa.int32()))


# ---- columns on their way through Spark: times of day as microseconds


def spark_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            pa.field(f.name, pa.int64()) if pa.types.is_time(f.type) else pa.field(f.name, f.type)
            for f in schema
        ]
    )
