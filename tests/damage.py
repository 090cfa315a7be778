"""Damage to what lies on disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from semistream.joins.state_file import FORMAT, HEADER, MAGIC


def copy(source: Path, target: Path) -> None:
    """Into the very file, which workers have open."""
    with closing(sqlite3.connect(source)) as a, closing(sqlite3.connect(target)) as b:
        a.backup(b)


def flip(path: Path, share: float = 0.5) -> Path:
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 4
    path.write_bytes(data)
    return path


def of_former_version(state: Path) -> Path:
    """A join state, in the format before the present one: its header is all that is read of it."""
    data = state.read_bytes()
    assert data.startswith(HEADER)
    state.write_bytes(b"%s%d\n" % (MAGIC, FORMAT - 1) + data[len(HEADER) :])
    return state
