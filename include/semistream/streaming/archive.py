"""``python -m semistream.streaming.archive FILE``: archive the classes that Spark loads, so that
Spark starts faster.

This uses the JVM's class data sharing (JEP 350): with ``-XX:SharedArchiveFile=FILE`` the JVM maps
classes that it would otherwise read, verify and link at each start. The JVM ignores an archive of
another JVM, or of other jars.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LOAD = "load"  # the second argument of the process whose classes are archived


def write_archive(path: Path) -> None:
    """Write the archive. Raises subprocess.CalledProcessError if Spark fails, and OSError if the
    JVM has written no archive."""
    (new := path.with_name(f"{path.name}.new")).unlink(missing_ok=True)
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": tempfile.gettempdir(),
    }
    arguments = " ".join(f"--conf {k}={v}" for k, v in settings.items())
    environment = {
        "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit='{new}'",
    }
    subprocess.run(
        [sys.executable, "-m", "semistream.streaming.archive", str(path), LOAD],
        env=os.environ | environment,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    new.replace(path)


def load_classes() -> None:
    """Run the same operations as an app: micro-batches of files, Python tasks, a shuffle."""
    from pyspark.sql import DataFrame

    from semistream.streaming.query import SESSION
    from semistream.streaming.session import open_session

    def run(tuples: DataFrame, _: int) -> None:
        tuples.repartition(2, "key").mapInArrow(lambda batches: batches, tuples.schema).collect()

    spark = open_session("archive")
    for name, value in SESSION.items():
        spark.conf.set(name, value)
    with tempfile.TemporaryDirectory() as home:
        (files := Path(home) / "files").mkdir()
        table = pa.table({"key": [1, 2], "name": ["a", "b"]})
        for number in range(2):
            pq.write_table(table, files / f"{number}.parquet")
        for kind in ("csv", "json"):
            spark.createDataFrame(table).write.format(kind).save(f"{home}/{kind}")
            spark.read.schema("key BIGINT, name STRING").format(kind).load(
                f"{home}/{kind}"
            ).collect()
        stream = (
            spark.readStream.schema("key BIGINT, name STRING")
            .option("maxFilesPerTrigger", "1")
            .parquet(str(files))
        )
        query = stream.writeStream.foreachBatch(run).option("checkpointLocation", f"{home}/query")
        query.trigger(availableNow=True).start().awaitTermination()
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser("python -m semistream.streaming.archive", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("what", nargs="?", choices=[LOAD], help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.what:
        load_classes()
        return 0
    try:
        write_archive(a.file.absolute())
    except subprocess.CalledProcessError as e:
        print(e.stderr[-2000:], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
