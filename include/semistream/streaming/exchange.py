"""Tuples that the tasks of one machine decode for each other.

A task decodes its share of a micro-batch, and keeps what belongs to the others in a file without a name, which they ask it for
when they have joined their own. Nothing depends on it: who gets nothing decodes the files itself.
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
WHO, SIZE = struct.Struct("<I"), struct.Struct("<I")  # a request: the partition that asks; an answer: bytes of its JSON
Spans = dict[int, list[tuple[int, int]]]  # piece: (start, bytes) of each of its Arrow messages in the file


class Exchange:
    """One task's end of it. A piece is what one task decodes for all: its number is the same for all of them.

    key: what a micro-batch is known by, and what its partitions are; of the one before, nothing is kept.
    """

    _open: list[Exchange] = []  # of this process: a task may have ended long before its neighbours ask

    def __init__(self, key: object, partition: int, count: int, schema: pa.Schema):
        self.key, self.partition, self.schema = key, partition, schema
        self._given: list[Spans] = [{} for _ in range(count)]  # to each partition
        self._next: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # of the piece that is being decoded
        self._found: dict[int, tuple[mmap.mmap, Spans]] = {}  # by partition: its file and what it gave at the latest
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
        if not self._listening:
            return
        with self._lock:
            for spans, more in zip(self._given, self._next, strict=True):
                spans[piece] = more
            self._next = [[] for _ in self._given]

    def ask(self, owner: int, piece: int) -> Iterator[pa.RecordBatch] | None:
        """This partition's tuples of a piece that another one's task has decoded, or None."""
        if owner not in self._found or piece not in self._found[owner][1]:
            found = receive((self.key, owner), self.partition)
            if found is None or piece not in found[1]:
                return None
            self._found[owner] = found
        file, spans = self._found[owner]
        data = pa.py_buffer(file)
        return (pa.ipc.read_record_batch(data.slice(*span), self.schema) for span in spans[piece])

    def forget(self) -> None:
        """What the others have given has been read."""
        self._found.clear()

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
                partition, = WHO.unpack(exactly(asking, WHO.size))
                with self._lock:
                    if not self._listening:
                        return
                    answer = json.dumps(self._given[partition]).encode()
                    socket.send_fds(asking, [SIZE.pack(len(answer))], [self._file.fileno()])
                asking.sendall(answer)
            except (OSError, EOFError) as e:
                log.warning("tuples were not given to another task: %s", e)


def receive(key: object, partition: int) -> tuple[mmap.mmap, Spans] | None:
    """What the neighbour who listens under a key has for a partition so far, or None."""
    other = visit(key)
    if other is None:
        return None
    with closing(other):
        try:
            other.sendall(WHO.pack(partition))
            size, handles, *_ = socket.recv_fds(other, SIZE.size, 1)
            if not handles:
                return None
            try:
                spans = json.loads(exactly(other, *SIZE.unpack(size)))
                if not os.fstat(handles[0]).st_size:  # which cannot be mapped
                    return None
                file = mmap.mmap(handles[0], 0, prot=mmap.PROT_READ)
            finally:
                os.close(handles[0])
        except (OSError, EOFError):
            return None
    return file, {int(piece): of for piece, of in spans.items()}


def scratch() -> str | None:
    """Where what a task needs for a while may be on disk; None: where the system has such things."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
