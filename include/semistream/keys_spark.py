"""Join keys, buckets and partitions as Spark column expressions, with the same numbers as in
``keys`` and ``partitioning``."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from semistream.keys import is_exact
from semistream.partitioning import DEALT, Placement


def quoted(name: str) -> Column:
    """Return the Spark column with this name, which may contain any characters."""
    return F.col("`" + name.replace("`", "``") + "`")


def bucket_expression(
    columns: tuple[str, ...], kinds: tuple[pa.DataType, ...], count: int
) -> Column:
    """Return the bucket of a key as a Spark column expression over the named columns. The
    expression equals the bucket of ``keys.buckets``. The bucket of a null key is arbitrary but
    fixed."""
    return F.pmod(
        F.xxhash64(*[_spark_canonical(quoted(c), k) for c, k in zip(columns, kinds, strict=True)]),
        F.lit(count),
    ).cast("int")


def order_expression(columns: tuple[str, ...], kinds: tuple[pa.DataType, ...]) -> Column:
    """Return a Spark column expression that sorts rows by their key codes. The position of null
    keys is arbitrary."""
    canonical = [_spark_canonical(quoted(c), k) for c, k in zip(columns, kinds, strict=True)]
    return canonical[0] if len(kinds) == 1 and is_exact(kinds[0]) else F.xxhash64(*canonical)


def _spark_canonical(column: Column, kind: pa.DataType) -> Column:
    if pa.types.is_date(kind):
        return F.unix_date(column).cast("bigint")
    if pa.types.is_timestamp(kind):
        return column
    return column.cast(
        f"decimal({kind.precision},{kind.scale})"
        if pa.types.is_decimal(kind)
        else str(kind)
        if pa.types.is_string(kind) or pa.types.is_binary(kind)
        else "bigint"
    )


def partition_expression(placement: Placement) -> Column:
    """Return the partition of a stream tuple of a join with one R as a Spark column expression. A
    tuple that may go to any partition is assigned by a hash of its columns, because rows have no
    number in Spark."""
    (axis,) = placement.axes
    keys = axis.keys
    owner = F.get(
        F.lit(axis.owners.tolist()), bucket_expression(keys.stream, keys.types, len(axis.owners))
    )
    without_key = reduce(or_, (quoted(name).isNull() for name in keys.stream))
    tuple_hash = F.xxhash64(
        *(quoted(f.name) for f in placement.stream if not pa.types.is_nested(f.type))
    )
    dealt = F.pmod(tuple_hash, F.lit(placement.count)).cast("int")
    return F.when(without_key | (owner == DEALT), dealt).otherwise(owner)
