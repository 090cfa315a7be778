"""The Spark session of the streaming app."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

# Where the user's configuration says nothing else.
DEFAULTS = {
    "spark.master": "local[*,4]",  # a task whose Python worker died is tried four times, as on a cluster
    "spark.python.unix.domain.socket.enabled": "true",  # over TCP each task waits 40 ms for a delayed acknowledgement
    # Without Hadoop's native library the default, which keeps a checksum file beside each file, starts two processes for each.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def open_session(app: str) -> SparkSession:
    """On the master that spark-submit, PYSPARK_SUBMIT_ARGS or spark-defaults.conf name; on this machine where none does."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    SparkContext._ensure_initialized()  # a SparkConf knows what was given only once there is a JVM
    builder, given = SparkSession.builder.appName(f"semistream {app}"), SparkConf()
    for name, value in DEFAULTS.items():
        if not given.contains(name):
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def start_session(app: str) -> Callable[[], SparkSession]:
    """Open it in the background; the result waits for it, and raises what that raised. A process may end without waiting."""
    opened: Future[SparkSession] = Future()

    def run() -> None:
        try:
            opened.set_result(open_session(app))
        except BaseException as e:
            opened.set_exception(e)

    threading.Thread(target=run, daemon=True, name="session").start()
    return opened.result
