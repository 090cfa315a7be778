"""Spark's daemon of Python workers. It imports the modules that tasks need before it forks a
worker, so that the workers share that memory, and start faster. They end quietly when Spark closes
their connections.

At its end Spark closes these connections a moment before it ends the daemon. Without this module,
workers that notice the closed connection would try to send an error to nobody, and print a
traceback.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from functools import partial

from semistream.imports import leave_out_archives
from semistream.resident import spare_pandas

GONE = 1  # the exit code of a worker that Spark needs no more
Worker = Callable[[socket.socket, bool], int]


def worker(run: Worker, sock: socket.socket, authenticated: bool) -> int:
    """Run one task by Spark's function ``run``. Return the exit code. After an exit code of 0, the
    process continues with another task."""
    try:
        return run(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return GONE


def main() -> None:
    leave_out_archives("pyspark")
    spare_pandas()
    # imported only here, because PyArrow would import pandas for it, and PySpark is now another one
    import pyspark.worker  # noqa: F401 - each worker would
    from pyspark import daemon

    from semistream.streaming.task import warm_up

    warm_up(iter(()))
    gc.freeze()  # a collection in a worker would copy what it shares with the others
    daemon.worker = partial(worker, daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
