"""Spark's own join of two streams as a program: reads both as micro-batches of one file each, joins
by key and by time, forgets by watermarks, and writes Parquet."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("left", type=Path)
    parser.add_argument("right", type=Path)
    parser.add_argument("span", type=int, help="seconds that a line is behind its order at most")
    parser.add_argument("output", type=Path)
    parser.add_argument("checkpoint", type=Path)
    a = parser.parse_args()
    spark = (SparkSession.builder.config("spark.sql.shuffle.partitions", "4")
             .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB).getOrCreate())

    def read(path: Path, column: str) -> DataFrame:
        schema = spark.read.parquet(str(path)).schema
        return (spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
                .parquet(str(path)).withColumn(column, F.col(column).cast("timestamp"))
                .withWatermark(column, "0 seconds"))

    orders, lines = read(a.left, "o_time"), read(a.right, "l_time")
    later = lines.l_time.between(orders.o_time,
                                 orders.o_time + F.expr(f"INTERVAL {a.span} SECONDS"))
    joined = orders.join(lines, (orders.key == lines.key) & later).drop(lines.key)
    query = (joined.writeStream.format("parquet").option("path", str(a.output))
             .option("checkpointLocation", str(a.checkpoint)).trigger(availableNow=True).start())
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
