"""Files that are complete or absent after any crash: they are written under another name, flushed
to disk, and renamed. Also large files that are on disk when they are closed."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import mmap
import os
import uuid
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from semistream import interrupts
from semistream.errors import StateError

T = TypeVar("T")
BLOCK = 2 << 20  # bytes that a `DirectFile` writes at a time; the size of each of its two buffers
SECTOR = 4096  # bytes; direct writes need multiples of it


@contextmanager
def replacing(path: Path, mode: str = "wb", *, flush: bool = True) -> Iterator[IO[Any]]:
    """Open a file that replaces ``path`` when the block ends, and is on disk by then. If the block
    raises an error, ``path`` stays unchanged.

    flush: if False, a crash of the machine may leave an older file, or none.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with naming(path):
            with open(beside, mode) as file:
                yield file
                if flush:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    if flush:
        sync(path.parent)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add this path to an OSError that names no file, such as the error of a full disk."""
    try:
        yield
    except OSError as e:
        if e.filename is not None or e.errno is None:
            raise
        raise OSError(e.errno, os.strerror(e.errno), str(path)) from e


def write_text(path: Path, text: str, *, flush: bool = True) -> None:
    with replacing(path, "w", flush=flush) as file:
        file.write(text)


def write_json(path: Path, values: Any, *, flush: bool = True) -> None:
    write_text(path, json.dumps(values), flush=flush)


def write_checked(path: Path, values: dict[str, Any], *, flush: bool = True) -> None:
    """Write values as JSON with a checksum, which ``read_checked`` verifies."""
    write_json(path, {"crc32": _crc32(values), "values": values}, flush=flush)


def checked(data: bytes) -> dict[str, Any]:
    """Return the values in the content of a file that ``write_checked`` wrote. Raises ValueError,
    KeyError or TypeError for another content."""
    found = json.loads(data)
    if found["crc32"] != _crc32(found["values"]):
        raise ValueError("its checksum differs")
    return found["values"]


def read_checked(path: Path, remedy: str) -> dict[str, Any] | None:
    """Return the values that ``write_checked`` wrote; None if there is no such file. Raises
    StateError, with the remedy, when the file is damaged."""
    return read_parsed(path, remedy, checked)


def read_parsed(path: Path, remedy: str, parse: Callable[[bytes], T]) -> T | None:
    """Return what ``parse`` returns for the content of a file; None if there is no such file.
    Raises StateError, with the remedy, when ``parse`` raises one of the errors of ``checked``."""
    try:
        return parse(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StateError(f"{path} is damaged, or of an earlier version: {e}. {remedy}") from None


def _crc32(values: Any) -> int:
    return zlib.crc32(json.dumps(values).encode())


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's list of files, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class WritingThread(ThreadPoolExecutor):
    """A thread that writes while its caller goes on, one thing after the other."""

    def __init__(self, name: str = ""):
        super().__init__(1, name)
        self._last: Future[Any] | None = None

    def begin(self, write: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in the thread, when the previous call has ended. Raises the error of the
        previous call."""
        self.wait()
        with interrupts.deferred():  # else `shutdown` may not know of the thread that has begun
            self._last = self.submit(write, *arguments)

    def wait(self) -> None:
        """Wait until the last call has ended. Raises its error, once."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


class DirectFile(io.RawIOBase):
    """A new file, written by a thread, and past the page cache if the file system allows. The file
    is on disk when it is closed.

    A large new file is rarely read soon. In the page cache it would take memory, and time for a
    copy, without any use.
    """

    def __init__(self, path: str | Path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with naming(path):
            try:
                self._fd = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
            except OSError as e:
                if e.errno != errno.EINVAL:
                    raise
                self._fd = os.open(path, flags, 0o666)
        # whole pages, as direct writes need; one buffer is filled while the other is written
        self._buffer, self._other = (mmap.mmap(-1, BLOCK) for _ in range(2))
        self._filled = self._at = 0
        self._writing = WritingThread()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view, first = memoryview(data).cast("B"), 0
        while first < len(view):
            part = view[first : first + BLOCK - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled, first = self._filled + len(part), first + len(part)
            if self._filled == BLOCK:
                self._pass_on()
        return len(view)

    def close(self) -> None:
        if self.closed:
            return
        try:
            tail = self._filled % SECTOR
            self._filled -= tail
            rest = self._buffer[self._filled : self._filled + tail]
            self._pass_on()
            self._writing.wait()
            self._buffered()
            self._write(memoryview(rest), self._at)
            os.fsync(self._fd)
        finally:
            self._writing.shutdown()
            os.close(self._fd)
            super().close()

    def _pass_on(self) -> None:
        self._writing.begin(self._write, memoryview(self._buffer)[: self._filled], self._at)
        self._at, self._filled = self._at + self._filled, 0
        self._buffer, self._other = self._other, self._buffer

    def _write(self, data: memoryview, at: int) -> None:
        while len(data):
            try:
                written = os.pwrite(self._fd, data, at)
            except OSError as e:
                if e.errno != errno.EINVAL or not self._buffered():
                    raise
                continue
            data, at = data[written:], at + written
            if written % SECTOR:
                self._buffered()  # the rest of a block that a full disk has cut short

    def _buffered(self) -> bool:
        """Write through the page cache from now on. Return False if the file already did so."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        direct = flags & getattr(os, "O_DIRECT", 0)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~direct)
        return bool(direct)
