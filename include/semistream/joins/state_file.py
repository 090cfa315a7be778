"""Saved states of joins: one file each, with checksums."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from semistream.durable import replacing
from semistream.errors import StateError

MAGIC = b"semistream join state 2\n"  # of 24 bytes, so that what follows is aligned
WRITTEN_ROWS = 131_072  # of a state's table at a time


@dataclass
class JoinState:
    """Everything that an operator needs to go on elsewhere: waiting tuples, and where the algorithm
    stands; or, if not whole, what of it has changed since the snapshot before.

    tables: Arrow tables by name, or readers of such, which can be written once; values: JSON-able
    settings and counters, among them ``identity`` (what the operator was opened with), which
    ``restore`` compares.
    """

    tables: dict[str, Any]
    values: dict[str, Any]
    whole: bool = True

    def write(self, path: str | Path, before: str = "") -> None:
        """One file, written beside, flushed to disk and renamed into place.

        before: name of the file, in the same directory, of the state that changes are told of.
        Raises StateError when that is damaged.
        """
        path, parts = Path(path), []
        adds_to = [] if self.whole else self.files(path.with_name(before))
        with replacing(path) as file:
            file.write(MAGIC)
            for name, table in self.tables.items():
                part = _Checked(file)
                batches = table.to_batches(WRITTEN_ROWS) if isinstance(table, pa.Table) else table
                with pa.ipc.new_stream(part, table.schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
                parts.append([name, part.size, part.check])
            foot = json.dumps({"values": self.values, "tables": parts, "adds_to": adds_to}).encode()
            file.write(foot + len(foot).to_bytes(8, "little")
                       + zlib.crc32(foot).to_bytes(4, "little"))

    @classmethod
    def files(cls, path: str | Path) -> list[str]:
        """Names of the files that a state consists of: a whole one, and what has changed since,
        oldest first. Raises StateError when this one is missing or damaged."""
        return [*_foot(path)[0]["adds_to"], Path(path).name]

    @classmethod
    def read(cls, path: str | Path) -> list[JoinState]:
        """The whole state and what has changed since, oldest first. Raises StateError when a file
        is missing or damaged."""
        return [cls._read(Path(path).with_name(name)) for name in cls.files(path)]

    @classmethod
    def _read(cls, path: Path) -> JoinState:
        foot, data = _foot(path)
        at, tables = len(MAGIC), {}
        for name, length, check in foot["tables"]:
            part = data.slice(at, length)
            if zlib.crc32(part) != check:
                raise StateError(f"the join state {path} is damaged at {name!r}")
            tables[name] = pa.ipc.open_stream(part).read_all()
            at += length
        return cls(tables, foot["values"], not foot["adds_to"])


def _foot(path: str | Path) -> tuple[dict[str, Any], pa.Buffer]:
    """What the end of a state's file tells of it, and the file."""
    try:
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
    except (OSError, pa.ArrowInvalid) as e:
        raise StateError(f"the join state {path} cannot be read: {e}") from e
    end = data.size - 12
    size, check = (int.from_bytes(data[a:b], "little")
                   for a, b in ((end, end + 8), (end + 8, end + 12)))
    foot = data[end - size:end].to_pybytes() if end - size >= len(MAGIC) else b""
    if data[:len(MAGIC)].to_pybytes() != MAGIC or zlib.crc32(foot) != check or not foot:
        raise StateError(f"the join state {path} is damaged, of another version, or not one. Go on "
                         f"with the version that "
                         "wrote it, or begin again with another app name and checkpoint.")
    return json.loads(foot), data


class _Checked(io.RawIOBase):
    """Writes to a file, and keeps size and checksum of what it wrote."""

    def __init__(self, file: IO[bytes]):
        self._file, self.size, self.check = file, 0, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.check = zlib.crc32(data, self.check)
        written = self._file.write(data)
        self.size += written
        return written
