"""Spark's own stream-static join as a program: reads S as micro-batches of one file, joins each
with R, writes Parquet.

"nothing" is the cost of the app's micro-batches of Parquet files without the app: its session, and
its job of one Python task a partition, without a join and output.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

VARIANTS = {
    "as is": lambda stream, static, how: stream.join(static, "key", how),
    "broadcast S": lambda stream, static, how: static.join(F.broadcast(stream), "key", how),
    "R cached": lambda stream, static, how: static.persist().join(F.broadcast(stream), "key", how),
    "broadcast R": lambda stream, static, how: stream.join(F.broadcast(static), "key", how),
}


NOTHING = "nothing"


def run_nothing(stream: DataFrame, _: int) -> None:
    context = stream.sparkSession.sparkContext
    count = context.defaultParallelism
    context.range(count, numSlices=count).mapPartitions(lambda _: ["{}"]).collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", choices=[*VARIANTS, NOTHING])
    for name in ("master", "stream", "output", "checkpoint"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--how", default="inner")
    parser.add_argument("--trigger", help="an interval; else the program ends with the files")
    a = parser.parse_args()
    if a.variant == NOTHING:
        # imported only here: the other variants do not import the app
        from semistream.streaming.app import SESSION
        from semistream.streaming.session import open_session

        spark = open_session(NOTHING)
        for name, value in SESSION.items():
            spark.conf.set(name, value)
    else:
        spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    schema = spark.read.parquet(str(a.stream)).schema
    reader = spark.readStream.schema(schema)
    if not a.trigger:
        reader = reader.option("maxFilesPerTrigger", "1")
    stream = reader.parquet(str(a.stream))
    if a.variant == NOTHING:
        writer = stream.writeStream.foreachBatch(run_nothing)
    else:
        joined = VARIANTS[a.variant](stream, spark.read.parquet(str(a.master)), a.how)
        writer = joined.writeStream.format("parquet").option("path", str(a.output))
    trigger = {"processingTime": a.trigger} if a.trigger else {"availableNow": True}
    query = writer.option("checkpointLocation", str(a.checkpoint)).trigger(**trigger).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
