"""Spark's own stream-static join as a program. It reads S as micro-batches of one file, joins each
with R, or with several relations one after the other, and writes Parquet. The join columns have the
same names on both sides.

"nothing" is the cost of the app's micro-batches of Parquet files without the app: the app's session
and its job of one Python task for each partition, without a join and output.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

VARIANTS = {
    "as is": lambda stream, static, on, how: stream.join(static, on, how),
    "broadcast S": lambda stream, static, on, how: static.join(F.broadcast(stream), on, how),
    "R cached": lambda stream, static, on, how: static.persist().join(F.broadcast(stream), on, how),
    "broadcast R": lambda stream, static, on, how: stream.join(F.broadcast(static), on, how),
}

NOTHING = "nothing"


def run_nothing(stream: DataFrame, _: int) -> None:
    context = stream.sparkSession.sparkContext
    count = context.defaultParallelism
    context.range(count, numSlices=count).mapPartitions(lambda _: ["{}"]).collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", choices=[*VARIANTS, NOTHING])
    parser.add_argument("master", type=Path, nargs="+")
    for name in ("stream", "output", "checkpoint"):
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
        joined = stream
        for master in a.master:
            static = spark.read.parquet(str(master))
            on = [column for column in static.columns if column in stream.columns]
            joined = VARIANTS[a.variant](joined, static, on, a.how)
        writer = joined.writeStream.format("parquet").option("path", str(a.output))
    trigger = {"processingTime": a.trigger} if a.trigger else {"availableNow": True}
    query = writer.option("checkpointLocation", str(a.checkpoint)).trigger(**trigger).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
