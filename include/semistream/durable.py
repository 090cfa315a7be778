"""Files that are whole or not there, whatever crashes: written beside, flushed to disk, renamed into place."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: Path, mode: str = "wb", *, flush: bool = True) -> Iterator[IO[Any]]:
    """A file that takes the place of ``path`` when the block ends, and is then on disk. If the block raises, nothing changes.

    flush: without it, a crash of the machine may leave an older file, or none.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
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


def write_text(path: Path, text: str, *, flush: bool = True) -> None:
    with replacing(path, "w", flush=flush) as file:
        file.write(text)


def write_json(path: Path, values: Any, *, flush: bool = True) -> None:
    write_text(path, json.dumps(values), flush=flush)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's list of files, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
