"""The same join as a function on a batch DataFrame, for people who continue in Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from semistream.column_format import ColumnFormat, declared
from semistream.errors import ConfigError
from semistream.files.convert import prepared_cells
from semistream.keys_spark import partition_expression
from semistream.master.manifest import Manifest
from semistream.master.published import current_version
from semistream.paths import Paths
from semistream.settings import parse_bytes
from semistream.sizing import known_costs
from semistream.sizing.role_plan import RolePlan


def join_dataframe(
    df: DataFrame,
    snapshot: str | Path,
    on: Sequence[tuple[str, str]] | Sequence[str] | str,
    *,
    columns: Sequence[str] | None = None,
    algorithm: str = "elevatorjoin",
    memory: int | str = "64MB",
    join_type: str = "inner",
    parameters: dict[str, Any] | None = None,
    partitions: int = 0,
) -> DataFrame:
    """Return ``df`` with the master's columns, joined in at most ``memory`` bytes, which the
    partitions share.

    snapshot: snapshots/<master>, whose current version is taken, or one version's directory; every
    executor reads it. on: a column name, several names, or (stream column, master column) pairs.
    columns: master columns to add (None: all but the join columns). If df also has a column of this
    name, the added column is called <master>_<column>. join_type: inner, or left (tuples without a
    match have nulls). partitions: 0 is Spark's default parallelism. Timestamps are UTC. The result
    is lazy, like every DataFrame; its rows return to the JVM, which the streaming app avoids. Texts
    of key columns are normalised according to the snapshot's formats. Raises ConfigError.
    """
    pairs = (
        [(on, on)]
        if isinstance(on, str)
        else [(c, c) if isinstance(c, str) else (c[0], c[1]) for c in on]
    )
    version = current_version(snapshot)
    directory = Path(snapshot) / version if version else Path(snapshot)
    manifest = Manifest.read(directory)
    count = partitions or min(
        df.sparkSession.sparkContext.defaultParallelism, manifest.bucket_count
    )
    if not 1 <= count <= manifest.bucket_count:
        raise ConfigError(
            "partitions",
            "must be between 1 and the snapshot's number of buckets",
            count,
            "Ask for fewer.",
        )
    plan = RolePlan(
        algorithm.lower(),
        parse_bytes(memory) // count,
        join_type,
        dict(parameters or {}),
        tuple(pairs),
        count,
        str(directory.absolute()),
        None if columns is None else {c: c for c in columns},
        surrogate_key=False,
    )
    stream = to_arrow_schema(df.schema, timezone="UTC")
    plan = plan.choose(
        pa.RecordBatch.from_pylist([], stream), known_costs(Paths.from_environment().home)
    )
    join = plan.open(stream, 0)
    join.master.close()
    if forms := {s: declared(s, manifest.formats[m]) for s, m in pairs if m in manifest.formats}:
        df = df.mapInArrow(_in_form(stream, forms), df.schema)
    placed = df.repartitionById(count, partition_expression(plan.placement((stream,))))
    return placed.mapInArrow(_task(plan, stream), from_arrow_schema(join.output_schema))


def _in_form(
    stream: pa.Schema, forms: dict[str, ColumnFormat]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that normalises key columns according to the snapshot's formats."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [
                prepared_cells(f.name, column, forms.get(f.name))[0]
                for f, column in zip(stream, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, batch.schema.names)

    return run


def _task(
    plan: RolePlan, stream: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context, join = TaskContext.get(), None
        assert context is not None
        for batch in batches:
            join = join or plan.open(stream, context.partitionId())
            yield from (output.joined for output in join.process(batch) if output.joined.num_rows)
        if join is not None:
            yield from (output.joined for output in join.drain() if output.joined.num_rows)
            join.master.close()

    return run
