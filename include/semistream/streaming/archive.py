"""``python -m semistream.streaming.archive FILE``: archive the classes that Spark loads, so that
Spark starts faster.

This uses the JVM's class data sharing (JEP 350): with ``-XX:SharedArchiveFile=FILE`` the JVM maps
classes that it would otherwise read, verify and link at each start. The JVM ignores an archive of
another JVM, or of other jars.

There are two archives, of which the JVM maps both. The classes of every load are in the base, and
those of a session of Spark SQL, which few loads open, in the file that is named: in one archive
they would lie among the others, and be in memory with them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

# the second argument of a process whose classes are archived: what it does
TASKS, SESSIONS = "tasks", "sessions"


def write_archive(path: Path) -> None:
    """Write the archive, and beside it the one that it is based on. Raises
    subprocess.CalledProcessError if Spark fails, and OSError if the JVM has written no archive."""
    base = path.with_name(f"{path.stem}-base{path.suffix}")
    with tempfile.TemporaryDirectory() as home:
        classes, new = f"{home}/classes", Path(f"{path}.new")
        loaded = _load(path, TASKS, f"-XX:DumpLoadedClassList='{classes}'")
        java, class_path = loaded.splitlines()[-2:]
        base.unlink(missing_ok=True)
        new.unlink(missing_ok=True)
        _run(
            [
                java,
                "-Xshare:dump",
                f"-XX:SharedClassListFile={classes}",
                f"-XX:SharedArchiveFile={base}",
                *("-cp", class_path),
            ]
        )
    _load(path, SESSIONS, f"-XX:SharedArchiveFile='{base}' -XX:ArchiveClassesAtExit='{new}'")
    new.replace(path)


def _load(path: Path, what: str, options: str) -> str:
    """Run ``load_classes`` in a JVM with these options. Return what it prints."""
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
        "SPARK_SUBMIT_OPTS": options,
    }
    return _run(
        [sys.executable, "-m", "semistream.streaming.archive", str(path), what], environment
    )


def _run(command: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a program. Return what it prints."""
    return subprocess.run(
        command,
        env=os.environ | environment,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    ).stdout


def load_classes(what: str) -> None:
    """Run the same operations as an app: Python tasks; for ``SESSIONS`` also micro-batches of
    files, and a shuffle. Print the paths of the JVM and of its classes, a line each."""
    from semistream.streaming.session import open_context
    from semistream.streaming.task import warm_up

    context = open_context("archive")
    context.range(2, numSlices=2).foreachPartition(warm_up)
    context.parallelize([], 2).mapPartitions(lambda _: ["row"]).collect()
    if what == SESSIONS:
        _use_session()
    assert context._jvm is not None
    of = context._jvm.java.lang.System.getProperty
    print(f"{of('java.home')}/bin/java", of("java.class.path"), sep="\n")
    context.stop()


def _use_session() -> None:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.streaming.query import SESSION

    def run(tuples: DataFrame, _: int) -> None:
        tuples.repartition(2, "key").mapInArrow(lambda batches: batches, tuples.schema).collect()

    spark = SparkSession.builder.getOrCreate()
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


def main() -> int:
    parser = argparse.ArgumentParser("python -m semistream.streaming.archive", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("what", nargs="?", choices=[TASKS, SESSIONS], help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.what:
        load_classes(a.what)
        return 0
    try:
        write_archive(a.file.absolute())
    except subprocess.CalledProcessError as e:
        print(e.stderr[-2000:], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
