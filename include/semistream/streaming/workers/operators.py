"""Join operators that stay in a Python worker from one micro-batch to the next, or are passed to
another worker that needs them.

The operator's arrays are memory files. Their file descriptors are sent over a Unix socket, and the
rest of the operator is pickled, so that its arrays are neither copied nor held twice. If a worker
gets no operator, it restores the saved state.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import resource
import socket
import struct
import threading
from typing import Any

import numpy as np

from semistream.joins.arena import Region
from semistream.streaming.join_operator import JoinOperator
from semistream.streaming.workers.sockets import (
    close,
    connect,
    connections,
    listen,
    receive_exactly,
)

log = logging.getLogger(__name__)
# checkpoint, partition, files of the operator's state
Key = tuple[str, int, tuple[str, ...]]
HEAD = struct.Struct("<QI")  # size of the pickle in bytes, number of handles
HANDLES = 200  # in one message; the system takes 253
MOST_FILES = 65_536


class OperatorCache:
    """The operator that this process ran last. It is kept for the next micro-batch, for use here or
    in another worker of the machine.

    The cache holds only one operator, because each may take M/P bytes. While another operator runs
    here, the cached operator stays until it is fetched by the worker that gets its partition. So
    the machine holds as many operators as there are partitions, whichever workers run them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[Key, JoinOperator] | None = None
        self._listening: socket.socket | None = None

    def put(self, key: Key, operator: JoinOperator) -> None:
        """Cache an operator, in place of the former one."""
        self.clear()
        with self._lock:
            self._held = key, operator
            if operator.portable:
                self._listen(key)

    def take(self, key: Key) -> JoinOperator | None:
        """Take the operator out of the cache of this worker or of another one. Return None if no
        worker has the operator."""
        with self._lock:
            if self._held and self._held[0] == key:
                operator = self._held[1]
                self._remove()
                return operator
        return fetch(key)

    def clear(self) -> None:
        """Free the cached operator's memory."""
        with self._lock:
            if self._held:
                operator = self._held[1]
                self._remove()
                operator.close()

    def _remove(self) -> None:
        if self._listening:
            close(self._listening)
        self._held = self._listening = None

    def _listen(self, key: Key) -> None:
        self._listening = listen(key)
        if self._listening:  # else another attempt at the same task listens
            threading.Thread(target=self._serve, args=(self._listening, key), daemon=True).start()

    def _serve(self, listening: socket.socket, key: Key) -> None:
        """Send the operator to the first worker that connects."""
        for other in connections(listening):
            with self._lock:
                if self._held is None or self._held[0] != key:
                    return
                operator = self._held[1]
                self._remove()
                try:
                    send(other, operator)
                except OSError as e:
                    log.warning("an operator could not be passed to another worker: %s", e)
                operator.close()
                return


def send(to: socket.socket, operator: JoinOperator) -> None:
    """Send an operator: sizes, file descriptors of its arrays, then the pickle of the rest."""
    out = io.BytesIO()
    pickler = _Pickler(out)
    pickler.dump(operator)
    data, handles = out.getvalue(), [r.handle for r in pickler.regions]
    to.sendall(HEAD.pack(len(data), len(handles)))
    for first in range(0, len(handles), HANDLES):
        socket.send_fds(to, [b"."], handles[first : first + HANDLES])
    to.sendall(data)


def fetch(key: Key) -> JoinOperator | None:
    """Fetch the operator from the cache of another worker; return None if no worker has it."""
    other = connect(key)
    if other is None:
        return None
    handles: list[int] = []
    with other:
        try:
            size, count = HEAD.unpack(receive_exactly(other, HEAD.size))
            while len(handles) < count:
                more = socket.recv_fds(other, 1, HANDLES)[1]
                if not more:
                    raise EOFError
                handles += more
            data = receive_exactly(other, size)
        except (OSError, EOFError):
            for handle in handles:
                os.close(handle)
            return None
    return _Unpickler(io.BytesIO(data), handles).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=5)
        self.regions: list[Region] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        region = Region.of(value) if isinstance(value, np.ndarray) else None
        if region is None:
            return None
        number = self._numbers.setdefault(id(region), len(self.regions))
        if number == len(self.regions):
            self.regions.append(region)
        start = np.frombuffer(region, np.uint8).ctypes.data
        return (
            number,
            len(region),
            value.dtype.str,
            value.shape,
            value.strides,
            value.ctypes.data - start,
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, handles: list[int]):
        super().__init__(file)
        self._handles, self._regions = handles, {}  # type: ignore[var-annotated]

    def persistent_load(self, what: Any) -> np.ndarray:
        number, size, dtype, shape, strides, offset = what
        if number not in self._regions:
            self._regions[number] = Region(size, self._handles[number])
        return np.ndarray(shape, dtype, self._regions[number], offset, strides)


def use_memory_files() -> None:
    """Let operators that are opened from now on allocate arrays as memory files.

    Wide tuples need many files, so that the limit of open files is raised to the hard limit.
    """
    Region.wanted = True
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
