"""The Spark session of the streaming app."""

from __future__ import annotations

import os
import sys

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
