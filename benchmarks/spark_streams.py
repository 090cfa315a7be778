"""Spark's own join of two streams as a program. It reads both as micro-batches, joins by key and by
time, forgets tuples by watermarks, and writes Parquet."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

STATE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {"rocksdb": "RocksDBStateStoreProvider", "heap": "HDFSBackedStateStoreProvider"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", choices=PROVIDERS)
    parser.add_argument("left", type=Path)
    parser.add_argument("right", type=Path)
    for side in ("left", "right"):
        parser.add_argument(f"{side}_key")
        parser.add_argument(f"{side}_time")
    parser.add_argument("span", type=int, help="seconds that a line is behind its order at most")
    parser.add_argument("delay", type=int, help="seconds that a line may come out of order")
    parser.add_argument("files", type=int, help="of each stream in a micro-batch")
    parser.add_argument("output", type=Path)
    parser.add_argument("checkpoint", type=Path)
    a = parser.parse_args()
    spark = (
        SparkSession.builder.config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.streaming.stateStore.providerClass", STATE + PROVIDERS[a.state])
        .getOrCreate()
    )

    def read(path: Path, column: str, delay: int) -> DataFrame:
        schema = spark.read.parquet(str(path)).schema
        return (
            spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", str(a.files))
            .parquet(str(path))
            .withColumn(column, F.col(column).cast("timestamp"))
            .withWatermark(column, f"{delay} seconds")
        )

    orders, lines = read(a.left, a.left_time, 0), read(a.right, a.right_time, a.delay)
    ordered, key = orders[a.left_time], lines[a.right_key]
    later = lines[a.right_time].between(ordered, ordered + F.expr(f"INTERVAL {a.span} SECONDS"))
    joined = orders.join(lines, (orders[a.left_key] == key) & later).drop(key)
    query = (
        joined.writeStream.format("parquet")
        .option("path", str(a.output))
        .option("checkpointLocation", str(a.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
