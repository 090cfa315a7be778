"""The Spark session of the streaming app."""

from __future__ import annotations

import os
import sys

from pyspark import SparkConf
from pyspark.sql import SparkSession

LOCAL = "local[*,4]"  # a task whose Python worker died is tried four times, as on a cluster


def open_session(app: str) -> SparkSession:
    """On the master that spark-submit, PYSPARK_SUBMIT_ARGS or spark-defaults.conf name; on this machine where none does."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"semistream {app}")
    if not SparkConf().contains("spark.master"):
        builder = builder.master(LOCAL)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session
