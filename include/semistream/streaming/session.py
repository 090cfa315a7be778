"""The Spark session of the streaming app."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from semistream import ARROW_POOL
from semistream.imports import without
from semistream.scratch import scratch_directory
from semistream.settings import SECRET
from semistream.streaming.spark_master import LOOPBACK, is_local

STOP_SEEN = 0.2  # s after which a stop during the start of Spark is seen
# Settings that the user's configuration overrides.
DEFAULTS = {
    # a task whose Python worker died is tried four times, as on a cluster
    "spark.master": "local[*,4]",
    # Arrow's allocator in the Python workers, the same as in a `semistream` process
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": ARROW_POOL,
    "spark.python.daemon.module": "semistream.streaming.daemon",
    # over TCP each task would wait 40 ms for a delayed acknowledgement
    "spark.python.unix.domain.socket.enabled": "true",
    # The default file system writes a checksum file for each file. Without Hadoop's native library
    # it starts two processes for each of them.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Spark's default does not match the options of a Kafka login
    "spark.redaction.regex": f"(?i)access[.]?key|{SECRET}",
}


def local_defaults() -> dict[str, str]:
    """Return settings for a driver whose JVM is already running, with the same effect as the
    environment of spark-submit. Only the environment can set the UI's address; if it does not, the
    UI is off.

    The driver generates the secret of ``spark.authenticate`` and keeps it in memory only.
    """
    if "SPARK_LOCAL_IP" in os.environ:
        return {"spark.authenticate": "true"}
    return {
        "spark.authenticate": "true",
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.ui.enabled": "false",
    }


def open_context(app: str) -> SparkContext:
    """Connect to the master in spark-submit, PYSPARK_SUBMIT_ARGS or spark-defaults.conf, or else
    start Spark on this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with without("pandas"):  # the first call of the JVM would import it, and nothing here needs it
        import_module("pyspark.testing.utils")
    SparkContext._ensure_initialized()  # a SparkConf has no settings before there is a JVM
    conf, given = SparkConf().setAppName(f"semistream {app}"), SparkConf()
    master = given.get("spark.master", DEFAULTS["spark.master"]) or ""
    defaults = DEFAULTS | (local_defaults() if is_local(master) else {})
    if (
        is_local(master)
        and "SPARK_LOCAL_DIRS" not in os.environ
        and not given.contains("spark.local.dir")
    ):
        defaults["spark.local.dir"] = str(scratch_directory())
    for name, value in defaults.items():
        if not given.contains(name):
            conf.set(name, value)
    context = SparkContext.getOrCreate(conf)
    context.setLogLevel("WARN")
    return context


def open_session(app: str) -> SparkSession:
    """Open a session where ``open_context`` connects to."""
    open_context(app)
    return SparkSession.builder.getOrCreate()


def silence() -> None:
    """Turn off Spark's log, because the JVM is about to end with this process, and would log a
    stack trace if a session is being opened at that time."""
    if SparkContext._jvm is not None:
        with suppress(Exception):  # the JVM has ended
            log4j = SparkContext._jvm.org.apache.logging.log4j
            log4j.core.config.Configurator.setRootLevel(log4j.Level.OFF)


def start_spark(app: str) -> Callable[[Callable[[], bool]], SparkContext | None]:
    """Open the context in a background thread. Return a function that waits for the context and
    returns it, or returns None as soon as its argument, a function, returns True. It raises the
    error that occurred while opening the context. The process may end without calling it."""
    opened: Future[SparkContext] = Future()

    def run() -> None:
        try:
            opened.set_result(open_context(app))
        except BaseException as e:
            opened.set_exception(e)

    def wait(stopping: Callable[[], bool]) -> SparkContext | None:
        while not stopping():
            with suppress(TimeoutError):
                return opened.result(STOP_SEEN)
        return None

    threading.Thread(target=run, daemon=True, name="spark").start()
    return wait
