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

from pyspark import daemon

from semistream.resident import spare_pandas

GONE = 1  # the exit code of a worker that Spark needs no more

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task like Spark's worker. Return the exit code. After an exit code of 0, the process
    continues with another task."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return GONE


if __name__ == "__main__":
    spare_pandas()
    # imported only here, because PyArrow would import pandas for it
    from semistream.streaming.task import warm_up

    warm_up(iter(()))
    gc.freeze()  # a collection in a worker would copy what it shares with the others
    daemon.worker = worker
    daemon.manager()
