"""Damage to what lies on disk, and how it was before."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from semistream.joins.state_file import FORMAT, HEADER, MAGIC


def copy(source: Path, target: Path) -> None:
    """Into the very file, which workers have open."""
    with closing(sqlite3.connect(source)) as a, closing(sqlite3.connect(target)) as b:
        a.backup(b)


class Kept:
    """A load's place as it is now, with its warehouse in SQLite, which can be brought back."""

    def __init__(self, place: Path):
        self.place, self.before = place, place.with_name(f"{place.name}-kept")
        self._copy(self.place, self.before)

    def bring_back(self) -> None:
        for path in self.place.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith("warehouse.db"):
                path.unlink()
        self._copy(self.before, self.place)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        ignored = shutil.ignore_patterns("warehouse.db*")
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        copy(source / "warehouse.db", target / "warehouse.db")


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
