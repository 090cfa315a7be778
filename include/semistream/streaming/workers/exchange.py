"""Tuples of a micro-batch that one task decodes for all tasks of its machine.

A task decodes a piece of the micro-batch, splits it by partition, and writes the other partitions'
tuples as Arrow messages into an unnamed temporary file, whose descriptor it sends to the tasks that
ask. A task decodes for itself what no other task has.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import pyarrow as pa

from semistream.scratch import task_directory
from semistream.streaming.workers.sockets import (
    close,
    connect,
    connections,
    listen,
    receive_exactly,
)

log = logging.getLogger(__name__)
# the partition that asks, pieces it knows of; bytes of the answer's JSON
ASK, SIZE = struct.Struct("<II"), struct.Struct("<I")
Spans = list[tuple[int, int]]  # (start, bytes) of each of a piece's Arrow messages in the file


class Exchange:
    """One task's end of the exchange. A piece has the same number in all tasks.

    key: identifies the micro-batch and its partitions; opening one for another key closes those
    before. found: the pieces that other tasks have published so far, by number.
    """

    # of this process: a task may have ended long before another one asks
    _open: list[Exchange] = []

    def __init__(self, key: object, partition: int, count: int, schema: pa.Schema):
        self.key, self.partition, self.schema = key, partition, schema
        # (piece, its spans), for each partition
        self._published: list[list[tuple[int, Spans]]] = [[] for _ in range(count)]
        self._next: list[Spans] = [[] for _ in range(count)]  # of the piece that is being decoded
        self.found: dict[int, tuple[mmap.mmap, Spans]] = {}
        self._known = [0] * count  # how many pieces each other task has published
        self._lock, self._file = threading.Lock(), tempfile.TemporaryFile(dir=task_directory())  # noqa: SIM115 - open until close()
        for former in [e for e in Exchange._open if e.key != key]:
            former.close()
        self._listening = listen((key, partition))
        if self._listening:  # else another attempt at the same task listens
            Exchange._open.append(self)
            threading.Thread(target=self._answer, args=(self._listening,), daemon=True).start()

    def write(self, parts: Sequence[pa.RecordBatch]) -> None:
        """Write tuples of the piece that is being decoded; parts: by partition."""
        if not self._listening:
            return
        try:
            for partition, part in enumerate(parts):
                if partition != self.partition and part.num_rows:
                    message = part.serialize()
                    self._next[partition].append((self._file.tell(), message.size))
                    self._file.write(message)
            self._file.flush()
        except OSError as e:
            log.warning("decoded tuples are not shared with other tasks: %s", e)
            self.close()

    def publish(self, piece: int) -> None:
        """Publish the piece that was decoded; other tasks may fetch their partition of it."""
        with self._lock:
            for published, spans in zip(self._published, self._next, strict=True):
                published.append((piece, spans))
            self._next = [[] for _ in self._published]

    def poll(self) -> None:
        """Ask all other tasks what they have published since."""
        for other, known in enumerate(self._known):
            if (other != self.partition
                    and (answer := ask((self.key, other), self.partition, known))):
                file, pieces = answer
                self.found |= {piece: (file, spans) for piece, spans in pieces}
                self._known[other] += len(pieces)

    def take(self, piece: int) -> Iterator[pa.RecordBatch]:
        """This partition's tuples of a piece in ``found``."""
        file, spans = self.found.pop(piece)
        data = pa.py_buffer(file)
        return (pa.ipc.read_record_batch(data.slice(*span), self.schema) for span in spans)

    def close(self) -> None:
        """Publish nothing any more; tasks that have asked keep what they got."""
        with self._lock, suppress(OSError):  # of a disk that is full
            if self._listening:
                close(self._listening)
                self._listening = None
                Exchange._open.remove(self)
                self._file.close()

    def _answer(self, listening: socket.socket) -> None:
        for asking in connections(listening):
            try:
                partition, known = ASK.unpack(receive_exactly(asking, ASK.size))
                with self._lock:
                    if not self._listening:
                        return
                    answer = json.dumps(self._published[partition][known:]).encode()
                    socket.send_fds(asking, [SIZE.pack(len(answer))], [self._file.fileno()])
                asking.sendall(answer)
            except (OSError, EOFError) as e:
                log.warning("decoded tuples were not sent to another task: %s", e)


def ask(key: object, partition: int,
        known: int) -> tuple[mmap.mmap, list[tuple[int, Spans]]] | None:
    """What the task that listens for ``key`` has published for a partition; None if nothing.

    known: how many pieces the caller knows, which are left out.
    """
    other = connect(key)
    if other is None:
        return None
    with closing(other):
        try:
            other.sendall(ASK.pack(partition, known))
            size, handles, *_ = socket.recv_fds(other, SIZE.size, 1)
            if not handles:
                return None
            try:
                pieces = json.loads(receive_exactly(other, *SIZE.unpack(size)))
                if not pieces or not os.fstat(handles[0]).st_size:  # which cannot be mapped
                    return None
                return mmap.mmap(handles[0], 0, prot=mmap.PROT_READ), pieces
            finally:
                os.close(handles[0])
        except (OSError, EOFError):
            return None
