"""Operators that go from one Python worker to another of the same machine.

Spark gives a partition to whichever worker is free, and not always to the one that holds its operator after the micro-batch
before. A worker therefore listens for the others while it holds one, and gives it away with its memory: arrays go by their file
handles, so that nothing is copied and nothing exists twice. Nothing depends on it: who gets none takes up the saved state.
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

from semistream.joins import SemiStreamJoin
from semistream.joins.arena import Region
from semistream.streaming.neighbours import exactly, leave, listen, visit, visitors

log = logging.getLogger(__name__)
Key = tuple[str, int, str]  # checkpoint, partition, state file: what an operator is the continuation of
HEAD = struct.Struct("<QI")  # bytes of the pickle, handles
HANDLES = 200  # in one message; the system takes 253
MOST_FILES = 65_536


class Holder:
    """The operator that this process ran last. One only, as each may hold M/P bytes; while another runs here, it stays for the
    neighbour that is given its partition: a machine never has more than it had."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[Key, SemiStreamJoin] | None = None
        self._listening: socket.socket | None = None

    def hold(self, key: Key, join: SemiStreamJoin) -> None:
        """Keep it for the next micro-batch, here or wherever that is."""
        self.forget()
        with self._lock:
            self._held = key, join
            self._listen(key)

    def take(self, key: Key) -> SemiStreamJoin | None:
        """The operator, from here or from a neighbour, or None. Another one stays, for the neighbour who wants it."""
        with self._lock:
            if self._held and self._held[0] == key:
                join = self._held[1]
                self._let_go()
                return join
        return receive(key)

    def forget(self) -> None:
        with self._lock:
            if self._held:
                join = self._held[1]
                self._let_go()
                _free(join)

    def _let_go(self) -> None:
        if self._listening:
            leave(self._listening)
        self._held = self._listening = None

    def _listen(self, key: Key) -> None:
        self._listening = listen(key)
        if self._listening:  # else another attempt at the same task is there
            threading.Thread(target=self._give, args=(self._listening, key), daemon=True).start()

    def _give(self, listening: socket.socket, key: Key) -> None:
        """Wait for who wants the operator, and give it away."""
        for asking in visitors(listening):
            with self._lock:
                if self._held is None or self._held[0] != key:
                    return
                join = self._held[1]
                self._let_go()
                try:
                    send(asking, join)
                except OSError as e:
                    log.warning("an operator was not given away: %s", e)
                _free(join)
                return


def _free(join: SemiStreamJoin) -> None:
    """Its memory, now: its parts refer to it, so that it would stay until the next collection of garbage."""
    join.master.close()
    vars(join).clear()


def send(to: socket.socket, join: SemiStreamJoin) -> None:
    out = io.BytesIO()
    pickler = _Pickler(out)
    pickler.dump(join)
    data, handles = out.getvalue(), [r.handle for r in pickler.regions]
    to.sendall(HEAD.pack(len(data), len(handles)))
    for first in range(0, len(handles), HANDLES):
        socket.send_fds(to, [b"."], handles[first:first + HANDLES])
    to.sendall(data)


def receive(key: Key) -> SemiStreamJoin | None:
    """The operator of a neighbour who holds it, or None."""
    other = visit(key)
    if other is None:
        return None
    handles: list[int] = []
    with other:
        try:
            size, count = HEAD.unpack(exactly(other, HEAD.size))
            while len(handles) < count:
                more = socket.recv_fds(other, 1, HANDLES)[1]
                if not more:
                    raise EOFError
                handles += more
            data = exactly(other, size)
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
        return number, len(region), value.dtype.str, value.shape, value.strides, value.ctypes.data - start


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, handles: list[int]):
        super().__init__(file)
        self._handles, self._regions = handles, {}  # type: ignore[var-annotated]

    def persistent_load(self, what: Any) -> np.ndarray:
        number, size, dtype, shape, strides, offset = what
        if number not in self._regions:
            self._regions[number] = Region(size, self._handles[number])
        return np.ndarray(shape, dtype, self._regions[number], offset, strides)


def prepare() -> None:
    """To be called before the first operator is opened: memory with handles, and as many of them as wide tuples need."""
    Region.wanted = True
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
