"""Saved states of joins: one file each, with checksums."""

from __future__ import annotations

import io
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from semistream.durable import naming, replacing, sync
from semistream.errors import StateError

FORMAT = 8  # increased whenever the meaning of a state's tables or values changes
MAGIC = b"semistream join state "
HEADER = MAGIC + b"%d\n" % FORMAT  # 24 bytes, so that the tables are aligned
BEGIN_AGAIN = "Restore it from a backup, or load the source anew: semistream reset APP."
WRITTEN_ROWS = 131_072  # rows of a state's table written at a time


Tables = Mapping[str, pa.Table | pa.RecordBatchReader]
State = tuple[Tables, dict[str, Any]]  # tables and values of a ``JoinState``


class Part:
    """A part of a join, other than H_S, whose state is saved."""

    def tables(self) -> Tables:
        """Return the tables to save. Their names differ from those of all other parts."""
        return {}

    def values(self) -> dict[str, Any]:
        """Return the values to save. Their names differ from those of all other parts."""
        return {}

    def restore(self, tables: dict[str, pa.Table], values: dict[str, Any]) -> None:
        """Restore the part. tables, values: those of the whole join."""
        raise NotImplementedError


@dataclass
class JoinState:
    """Everything that an operator needs to continue in another process: waiting tuples, and the
    algorithm's state. If ``whole`` is false, only the changes since the previous snapshot.

    tables: Arrow tables by name, or readers of them, which can be written once; values: settings
    and counters that JSON can hold, among them ``identity`` (the settings of the operator), which
    ``restore`` compares. linked: immutable files that belong to the state, by their names in the
    state's directory; hard links to them are made there, so that their contents are not written
    again.
    """

    tables: dict[str, Any]
    values: dict[str, Any]
    whole: bool = True
    linked: dict[str, Path] = field(default_factory=dict)

    def check_identity(self, identity: dict[str, Any]) -> None:
        """Check that an operator with this identity may continue from the state. Raises StateError
        when the settings differ."""
        saved = self.values.get("identity", {})
        wrong = [
            f"{k} is {saved.get(k)!r} there and {v!r} here"
            for k, v in identity.items()
            if saved.get(k) != v
        ]
        if wrong:
            raise StateError(
                f"the saved state is of another join: {'; '.join(wrong)}. Go on with "
                "the former settings until the join is drained, then change them."
            )

    def held(self) -> JoinState:
        """Return a copy whose readers have been read into tables."""
        return replace(
            self,
            tables={
                name: table.read_all() if isinstance(table, pa.RecordBatchReader) else table
                for name, table in self.tables.items()
            },
        )

    def write(self, path: str | Path, before: str = "") -> None:
        """Write the state to a temporary file, flush it to disk and rename it into place.

        before: name of the state to which the changes refer, in the same directory. Raises
        StateError if that file is damaged.
        """
        path, parts = Path(path), []
        adds_to = [] if self.whole else self._parts(path.with_name(before))
        for name, immutable in self.linked.items():
            link(immutable, path.with_name(name))
        with replacing(path) as file:
            file.write(HEADER)
            for name, table in self.tables.items():
                part = _Checked(file)
                batches = table.to_batches(WRITTEN_ROWS) if isinstance(table, pa.Table) else table
                with pa.ipc.new_stream(part, table.schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
                parts.append([name, part.size, part.check])
            foot = json.dumps(
                {
                    "values": self.values,
                    "tables": parts,
                    "adds_to": adds_to,
                    "linked": {name: of.stat().st_size for name, of in self.linked.items()},
                }
            ).encode()
            file.write(
                foot + len(foot).to_bytes(8, "little") + zlib.crc32(foot).to_bytes(4, "little")
            )

    @classmethod
    def files(cls, path: str | Path) -> list[str]:
        """Return the names of the files that make up a state. Raises StateError when this file is
        missing or damaged."""
        return [*cls._parts(path), *_foot(path)[0].get("linked", {})]

    @classmethod
    def _parts(cls, path: str | Path) -> list[str]:
        """Return the file names of the whole state and of the changes after it, oldest first."""
        return [*_foot(path)[0]["adds_to"], Path(path).name]

    @classmethod
    def read(cls, path: str | Path) -> list[JoinState]:
        """Read the whole state and the changes after it, oldest first. Only the last state has
        linked files, because those of earlier states may have been removed. Raises StateError when
        a file is missing or damaged."""
        parts = [Path(path).with_name(name) for name in cls._parts(path)]
        return [*(cls._read(part, last=False) for part in parts[:-1]), cls._read(parts[-1])]

    @classmethod
    def _read(cls, path: Path, last: bool = True) -> JoinState:
        """Read one state file. last: whether its linked files are needed. Raises StateError if the
        file, or a linked one, is damaged or missing."""
        foot, data = _foot(path)
        at, tables = len(HEADER), {}
        for name, length, check in foot["tables"]:
            part = data.slice(at, length)
            if zlib.crc32(part) != check:
                raise StateError(f"the join state {path} is damaged at {name!r}")
            tables[name] = pa.ipc.open_stream(part).read_all()
            at += length
        linked = foot.get("linked", {}) if last else {}
        for name, size in linked.items():
            file = path.with_name(name)
            if not file.exists() or file.stat().st_size != size:
                raise StateError(f"the join state {path} lacks its file {file}, of {size:,} bytes")
        return cls(
            tables,
            foot["values"],
            not foot["adds_to"],
            {name: path.with_name(name) for name in linked},
        )


def link(file: Path, to: Path) -> None:
    """Link an immutable file under another name, or copy the file if the file system cannot link.
    The file is flushed to disk. Do nothing if the name exists."""
    if to.exists():
        return
    temporary = to.with_name(f".{to.name}.{uuid.uuid4().hex}")
    try:
        os.link(file, temporary)
    except OSError:
        with naming(to):
            shutil.copyfile(file, temporary)
    sync(temporary)
    os.replace(temporary, to)


def _foot(path: str | Path) -> tuple[dict[str, Any], pa.Buffer]:
    """Return the description at the end of a state's file, and the content of the file. Raises
    StateError for a file that is damaged, or of another format."""
    try:
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
    except (OSError, pa.ArrowInvalid) as e:
        raise StateError(f"the join state {path} cannot be read: {e}. {BEGIN_AGAIN}") from e
    header = data[: len(HEADER)].to_pybytes()
    if header.startswith(MAGIC) and header != HEADER and header.endswith(b"\n"):
        former = header[len(MAGIC) : -1].decode(errors="replace")
        raise StateError(
            f"the join state {path} is of format {former}, and this version reads "
            f"format {FORMAT}. Go on with the version that wrote it until the join is "
            "drained, or load the source anew: semistream reset APP."
        )
    end = data.size - 12
    size = int.from_bytes(data[end : end + 8], "little")
    check = int.from_bytes(data[end + 8 :], "little")
    foot = data[end - size : end].to_pybytes() if end - size >= len(HEADER) else b""
    if header != HEADER or zlib.crc32(foot) != check or not foot:
        raise StateError(f"the join state {path} is damaged, or not one. {BEGIN_AGAIN}")
    return json.loads(foot), data


class _Checked(io.RawIOBase):
    """A file writer that records the size and the checksum of the bytes written."""

    def __init__(self, file: IO[bytes]):
        self._file, self.size, self.check = file, 0, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.check = zlib.crc32(data, self.check)
        written = self._file.write(data)
        self.size += written
        return written
