"""Spark's own stream-static join as a program: reads S as micro-batches of one file, joins each
with R, writes Parquet.

"nothing" is what the app's micro-batches of Parquet files cost without the app: its session, its
job of one Python task a partition, no join and no output.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

VARIANTS = {
    "as is": lambda stream, static: stream.join(static, "key"),
    "broadcast S": lambda stream, static: static.join(F.broadcast(stream), "key"),
    "R cached": lambda stream, static: static.persist().join(F.broadcast(stream), "key"),
    "broadcast R": lambda stream, static: stream.join(F.broadcast(static), "key"),
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
    a = parser.parse_args()
    if a.variant == NOTHING:
        # not in the others: Spark alone does not import the app
        from semistream.streaming.app import SESSION
        from semistream.streaming.session import open_session

        spark = open_session(NOTHING)
        for name, value in SESSION.items():
            spark.conf.set(name, value)
    else:
        spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    schema = spark.read.parquet(str(a.stream)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger",
                                                    "1").parquet(str(a.stream))
    if a.variant == NOTHING:
        writer = stream.writeStream.foreachBatch(run_nothing)
    else:
        joined = VARIANTS[a.variant](stream, spark.read.parquet(str(a.master)))
        writer = joined.writeStream.format("parquet").option("path", str(a.output))
    query = writer.option("checkpointLocation",
                          str(a.checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
