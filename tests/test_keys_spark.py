"""Key codes and buckets are the same in Arrow and in Spark: a task would otherwise look for its
tuples in others' buckets."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from semistream import keys, keys_spark

N = 400
RNG = np.random.default_rng(3)
LONGS = [0, 1, -1, 2**63 - 1, -(2**63), *RNG.integers(-(2**62), 2**62, N).tolist()]
SMALL = [0, 1, -1, 127, -128, *RNG.integers(-128, 128, N).tolist()]
TEXTS = [
    "",
    "a",
    "Ünïcödé 😀",
    " a ",
    "\0",
    *["x" * n for n in range(1, 40)],
    *[f"key {v}" for v in LONGS],
]
DECIMALS = [Decimal(v).scaleb(-3) for v in LONGS if abs(v) < 10**18]
WIDE = [
    Decimal(0),
    Decimal(-1),
    Decimal(10**27),
    Decimal(-(10**27)),
    Decimal(127),
    Decimal(128),
    Decimal(-128),
    Decimal(-129),
    *[Decimal(v) * 10**8 for v in LONGS],
]
DAYS = [
    dt.date(1970, 1, 1),
    dt.date(1, 1, 1),
    dt.date(9999, 12, 31),
    *[dt.date(1970, 1, 1) + dt.timedelta(v) for v in SMALL],
]
MOMENTS = [
    dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=v)
    for v in RNG.integers(-(10**15), 10**16, N).tolist()
]
COLUMNS = {
    "int8": pa.array(SMALL, pa.int8()),
    "int16": pa.array(SMALL, pa.int16()),
    "int32": pa.array(SMALL, pa.int32()),
    "int64": pa.array(LONGS, pa.int64()),
    "bool": pa.array([True, False]),
    "string": pa.array(TEXTS),
    "binary": pa.array([t.encode() + b"\xff" for t in TEXTS]),
    "date": pa.array(DAYS),
    "timestamp": pa.array(MOMENTS, pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.array(MOMENTS, pa.timestamp("us")),
    "decimal": pa.array(DECIMALS, pa.decimal128(18, 3)),
    "wide decimal": pa.array(WIDE, pa.decimal128(38, 6)),
}
KEYS = [
    *[(name,) for name in COLUMNS],
    ("int32", "string"),
    ("string", "date", "decimal"),
    ("wide decimal", "bool"),
    ("timestamp", "int64"),
    ("string", "string"),
    ("binary", "timestamp_ntz"),
]


def table(names) -> pa.Table:
    """The named columns side by side, repeated to one length, with nulls strewn in."""
    columns = []
    for i, name in enumerate(names):
        values = COLUMNS[name].to_pylist() * (len(TEXTS) // len(COLUMNS[name]) + 1)
        columns.append(
            pa.array(
                [None if (row + i) % 17 == 5 else v for row, v in enumerate(values[: len(TEXTS)])],
                COLUMNS[name].type,
            )
        )
    return pa.table(columns, names=[f"c {i}" for i in range(len(names))])


@pytest.mark.parametrize("names", KEYS, ids="+".join)
def test_buckets_are_sparks(spark, names):
    data = table(names)
    found = keys.master_keys(data.schema, data.schema.names)
    codes, valid = found.master_codes(data.to_batches()[0])
    assert found.exact == (len(names) == 1 and names[0] not in ("string", "binary", "wide decimal"))
    assert (
        valid
        == np.all(
            [c.is_valid().to_numpy(zero_copy_only=False) for c in data.to_batches()[0].columns],
            axis=0,
        )
    ).all()
    rows = (
        spark.createDataFrame(data)
        .select(
            keys_spark.bucket_expression(found.master, found.types, 64).alias("some"),
            keys_spark.bucket_expression(found.master, found.types, 7).alias("odd"),
            keys_spark.order_expression(found.master, found.types).alias("code"),
        )
        .toArrow()
    )
    for column, count in (("some", 64), ("odd", 7)):
        assert (
            keys.buckets(codes, found.exact, count)[valid] == rows[column].to_numpy()[valid]
        ).all()
    order = rows["code"].combine_chunks().filter(pa.array(valid))
    ranks = pa.compute.rank(order, tiebreaker="dense").to_numpy()
    assert (np.argsort(ranks, kind="stable") == np.argsort(codes[valid], kind="stable")).all()
    if not found.exact:
        assert (order.to_numpy() == codes[valid]).all()


@pytest.mark.parametrize(
    "stream, master", [("int8", "int64"), ("int64", "int16"), ("decimal", "wide decimal")]
)
def test_a_stream_of_another_width_meets_its_masters(spark, stream, master):
    data = table([stream])
    kind = COLUMNS[master].type
    found = keys.resolve_keys(data.schema, pa.schema([("m", kind)]), [("c 0", "m")])
    codes, valid = found.stream_codes(data.to_batches()[0])
    bucket = keys_spark.bucket_expression(found.stream, found.types, 64).alias("bucket")
    rows = spark.createDataFrame(data).select(bucket).toArrow()
    assert (keys.buckets(codes, found.exact, 64)[valid] == rows["bucket"].to_numpy()[valid]).all()
