"""Spark's own stream-static join as a program: reads S as micro-batches of one file, joins each with R, writes Parquet."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

VARIANTS = {
    "as is": lambda stream, static: stream.join(static, "key"),
    "broadcast S": lambda stream, static: static.join(F.broadcast(stream), "key"),
    "R cached": lambda stream, static: static.persist().join(F.broadcast(stream), "key"),
    "broadcast R": lambda stream, static: stream.join(F.broadcast(static), "key"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", choices=VARIANTS)
    for name in ("master", "stream", "output", "checkpoint"):
        parser.add_argument(name, type=Path)
    a = parser.parse_args()
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    schema = spark.read.parquet(str(a.stream)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(a.stream))
    joined = VARIANTS[a.variant](stream, spark.read.parquet(str(a.master)))
    query = (joined.writeStream.format("parquet").option("path", str(a.output)).option("checkpointLocation", str(a.checkpoint))
             .trigger(availableNow=True).start())
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
