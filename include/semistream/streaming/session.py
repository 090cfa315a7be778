"""The Spark session of the streaming app."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from semistream.config import SECRET

LOOPBACK = "127.0.0.1"
# Where the user's configuration says nothing else.
DEFAULTS = {
    "spark.master": "local[*,4]",  # a task whose Python worker died is tried four times, as on a cluster
    "spark.python.unix.domain.socket.enabled": "true",  # over TCP each task waits 40 ms for a delayed acknowledgement
    # Without Hadoop's native library the default, which keeps a checksum file beside each file, starts two processes for each.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.redaction.regex": f"(?i)access[.]?key|{SECRET}",  # Spark's own does not know what a Kafka login is called
}


def is_local(master: str) -> bool:
    """Whether the driver runs its tasks itself, so that nobody on the network has to reach it."""
    return re.match(r"local(\[|$)", master) is not None


def local_environment(master: str) -> dict[str, str]:
    """What spark-submit is to find in its environment: a local driver, its UI too, listens to this machine only."""
    return {"SPARK_LOCAL_IP": LOOPBACK} if is_local(master) and "SPARK_LOCAL_IP" not in os.environ else {}


def local_defaults() -> dict[str, str]:
    """The same for a driver whose JVM has begun already. The UI's address is the environment's alone; without, there is none.

    The secret is Spark's own, made up in the driver and in its memory only.
    """
    if "SPARK_LOCAL_IP" in os.environ:
        return {"spark.authenticate": "true"}
    return {"spark.authenticate": "true", "spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK,
            "spark.ui.enabled": "false"}


def open_session(app: str) -> SparkSession:
    """On the master that spark-submit, PYSPARK_SUBMIT_ARGS or spark-defaults.conf name; on this machine where none does."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    SparkContext._ensure_initialized()  # a SparkConf knows what was given only once there is a JVM
    builder, given = SparkSession.builder.appName(f"semistream {app}"), SparkConf()
    master = given.get("spark.master", DEFAULTS["spark.master"]) or ""
    for name, value in (DEFAULTS | (local_defaults() if is_local(master) else {})).items():
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
