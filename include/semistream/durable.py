"""Files that are whole or not there, whatever crashes: written beside, flushed to disk, renamed
into place."""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from semistream.errors import StateError


@contextmanager
def replacing(path: Path, mode: str = "wb", *, flush: bool = True) -> Iterator[IO[Any]]:
    """A file that takes the place of ``path`` when the block ends, and is then on disk. If the
    block raises, nothing changes.

    flush: without it, a crash of the machine may leave an older file, or none.
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
    """An OSError that names no file, as that of a full disk, names this one."""
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


def write_checked(path: Path, values: dict[str, Any]) -> None:
    """As JSON with a checksum, so that ``read_checked`` gives what was written, or nothing."""
    write_json(path, {"crc32": _crc32(values), "values": values})


def read_checked(path: Path, remedy: str) -> dict[str, Any] | None:
    """None where there is no such file. Raises StateError, with what to do, when it is not as it
    was written."""
    try:
        found = json.loads(path.read_bytes())
        if found["crc32"] != _crc32(found["values"]):
            raise ValueError("its checksum differs")
        return found["values"]
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
