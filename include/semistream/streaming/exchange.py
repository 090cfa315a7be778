"""Tuples that the tasks of one machine decode for each other.

A task decodes a piece of a micro-batch for all, and keeps what belongs to the others in a file without a name, until they ask.
Nothing depends on it: what nobody has decoded, whoever needs it decodes.
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

from semistream.streaming.neighbours import exactly, leave, listen, visit, visitors

log = logging.getLogger(__name__)
ASK, SIZE = struct.Struct("<II"), struct.Struct("<I")  # the partition that asks, pieces it knows of; bytes of the answer's JSON
Spans = list[tuple[int, int]]  # (start, bytes) of each of a piece's Arrow messages in the file


class Exchange:
    """One task's end of it. A piece has the same number for all tasks.

    key: what a micro-batch is known by, and what its partitions are; of the one before, nothing is kept.
    found: the pieces that others have decoded so far, by their number.
    """

    _open: list[Exchange] = []  # of this process: a task may have ended long before its neighbours ask

    def __init__(self, key: object, partition: int, count: int, schema: pa.Schema):
        self.key, self.partition, self.schema = key, partition, schema
        self._given: list[list[tuple[int, Spans]]] = [[] for _ in range(count)]  # (piece, its spans), to each partition
        self._next: list[Spans] = [[] for _ in range(count)]  # of the piece that is being decoded
        self.found: dict[int, tuple[mmap.mmap, Spans]] = {}
        self._known = [0] * count  # pieces that each other partition's task has given
        self._lock, self._file = threading.Lock(), tempfile.TemporaryFile(dir=scratch())  # noqa: SIM115 - open until close()
        for former in [e for e in Exchange._open if e.key != key]:
            former.close()
        self._listening = listen((key, partition))
        if self._listening:  # else another attempt at the same task is there
            Exchange._open.append(self)
            threading.Thread(target=self._answer, args=(self._listening,), daemon=True).start()

    def keep(self, parts: Sequence[pa.RecordBatch]) -> None:
        """Tuples of the piece that is being decoded, by partition."""
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
            log.warning("tuples are not kept for other tasks: %s", e)
            self.close()

    def give(self, piece: int) -> None:
        """The piece is decoded: who asks gets his part."""
        with self._lock:
            for given, spans in zip(self._given, self._next, strict=True):
                given.append((piece, spans))
            self._next = [[] for _ in self._given]

    def look(self) -> None:
        """Ask all others what they have decoded since."""
        for other, known in enumerate(self._known):
            if other != self.partition and (given := ask((self.key, other), self.partition, known)):
                file, pieces = given
                self.found |= {piece: (file, spans) for piece, spans in pieces}
                self._known[other] += len(pieces)

    def take(self, piece: int) -> Iterator[pa.RecordBatch]:
        """This partition's tuples of a piece that was found."""
        file, spans = self.found.pop(piece)
        data = pa.py_buffer(file)
        return (pa.ipc.read_record_batch(data.slice(*span), self.schema) for span in spans)

    def close(self) -> None:
        """Give nothing any more; who has asked before keeps what there was."""
        with self._lock, suppress(OSError):  # of a disk that is full
            if self._listening:
                leave(self._listening)
                self._listening = None
                Exchange._open.remove(self)
                self._file.close()

    def _answer(self, listening: socket.socket) -> None:
        for asking in visitors(listening):
            try:
                partition, known = ASK.unpack(exactly(asking, ASK.size))
                with self._lock:
                    if not self._listening:
                        return
                    answer = json.dumps(self._given[partition][known:]).encode()
                    socket.send_fds(asking, [SIZE.pack(len(answer))], [self._file.fileno()])
                asking.sendall(answer)
            except (OSError, EOFError) as e:
                log.warning("tuples were not given to another task: %s", e)


def ask(key: object, partition: int, known: int) -> tuple[mmap.mmap, list[tuple[int, Spans]]] | None:
    """What the task that listens under a key has decoded for a partition, but for the first pieces known; None if nothing."""
    other = visit(key)
    if other is None:
        return None
    with closing(other):
        try:
            other.sendall(ASK.pack(partition, known))
            size, handles, *_ = socket.recv_fds(other, SIZE.size, 1)
            if not handles:
                return None
            try:
                pieces = json.loads(exactly(other, *SIZE.unpack(size)))
                if not pieces or not os.fstat(handles[0]).st_size:  # which cannot be mapped
                    return None
                return mmap.mmap(handles[0], 0, prot=mmap.PROT_READ), pieces
            finally:
                os.close(handles[0])
        except (OSError, EOFError):
            return None


def scratch() -> str | None:
    """Where what a task needs for a while may be on disk; None: where the system has such things."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
