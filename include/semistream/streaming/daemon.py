"""Spark's daemon of Python workers. It imports what tasks need before it forks a worker, so that
the workers share that memory, and are ready at once. They end quietly when Spark closes their
connections.

At its end Spark closes these a moment before it ends the daemon. Workers that read that before they
are ended answer with an error, which nobody takes, and would print a traceback of that.
"""

from __future__ import annotations

import gc
import socket

from pyspark import daemon

from semistream.streaming.task import warm_up

GONE = 1  # the exit code of a worker that Spark needs no more

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task, as Spark's own. Returns its exit code, after which the process goes on if that
    is 0."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return GONE


if __name__ == "__main__":
    warm_up(iter(()))
    gc.freeze()  # a collection in a worker would copy what it shares with the others
    daemon.worker = worker
    daemon.manager()
