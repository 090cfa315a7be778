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
def replacing(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """A file that takes the place of ``path`` when the block ends, and is then on disk. If the block raises, nothing changes."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(beside, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    with replacing(path, "w") as file:
        file.write(text)


def write_json(path: Path, values: Any) -> None:
    write_text(path, json.dumps(values))


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's list of files, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
