"""The record of the part of the source that each micro-batch reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from semistream.durable import sync, write_text
from semistream.job import FILE_FORMATS


class SourceLog:
    """A reader of Spark's logs below the query's checkpoint, which say which part of a source each
    micro-batch reads. number: the source's number, in a query of several sources."""

    def __init__(self, query_checkpoint: Path, source_format: str, number: int = 0):
        self.directory, self.format, self.number = query_checkpoint, source_format, number

    def offsets(self, batch: int) -> dict[str, Any]:
        """Return the ``load_commits.source_offsets`` of a batch; see ``warehouse.ledger``."""
        start, end = self._read(batch - 1) if batch else None, self._read(batch)
        out: dict[str, Any] = {"format": self.format, "offsets": end, "start": start}
        return (
            out | {"files": len(self.files(batch))} if self.format in FILE_FORMATS and end else out
        )

    def files(self, batch: int) -> list[str]:
        """Return the files of a batch from the source's log: plain paths, or URIs of files that are
        not local."""
        if self.format not in FILE_FORMATS:
            return []
        after, last = (
            o[0]["logOffset"] if o and o[0] else -1
            for o in (self._read(batch - 1), self._read(batch))
        )
        entries: dict[str, None] = {}
        for number in range(after + 1, last + 1):
            for line in self._log(number).read_text().splitlines()[1:]:
                entry = json.loads(line)
                if after < entry["batchId"] <= last:
                    entries[plain_path(entry["path"])] = None
        return list(entries)

    def entries(self, after: int, last: int) -> list[str]:
        """Return the paths of the files that the source's log lists under the numbers above
        ``after`` and up to ``last``."""
        paths: dict[str, None] = {}
        for log in self._logs():
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                if after < entry["batchId"] <= last:
                    paths[plain_path(entry["path"])] = None
        return list(paths)

    def forget(self, after: int, last: int) -> None:
        """Delete files from the source's log, so that Spark gives them again in a later batch.
        after, last: see ``entries``. No query may run. A repeated call is harmless."""
        for log in self._logs():
            version, *lines = log.read_text().splitlines()
            kept = [line for line in lines if not after < json.loads(line)["batchId"] <= last]
            if kept != lines:
                # Hadoop's checksum of the file; one without is read as it is
                log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
                write_text(log, "\n".join([version, *kept]))

    def _logs(self) -> list[Path]:
        """Return the files of the source's log, in order. A compacted file repeats the entries of
        earlier files."""
        numbered = (
            (int(path.stem), path)
            for path in self._own.glob("[0-9]*")
            if path.suffix in ("", ".compact")
        )
        return [path for _, path in sorted(numbered)]

    def flush(self, batch: int) -> None:
        """Flush Spark's logs of a batch to disk, because Spark does not flush them, and the ledger
        will say that the batch is loaded."""
        offsets, end = self.directory / "offsets", self._read(batch)
        paths = [offsets / str(batch), offsets]
        if self.format in FILE_FORMATS and end and end[0]:
            paths += [self._log(end[0]["logOffset"]), self._own]
        for path in paths:
            sync(path)

    @property
    def _own(self) -> Path:
        return self.directory / "sources" / str(self.number)

    def _log(self, number: int) -> Path:
        """Return the path of an entry of the source's log. Spark compacts the log from time to
        time."""
        path = self._own / str(number)
        return path if path.exists() else path.with_name(f"{number}.compact")

    def _read(self, batch: int) -> list[Any] | None:
        """Return the batch's end offset as a list of one element, which is None if the source has
        given no data yet. Return None for a batch that Spark has not begun."""
        try:
            lines = (self.directory / "offsets" / str(batch)).read_text().splitlines()[2:]
        except FileNotFoundError:
            return None
        line = lines[self.number]
        return [None if line == "-" else json.loads(line)]


def plain_path(uri: str) -> str:
    """Return the path of a local file's URI. Any other URI is returned unchanged."""
    parts = urlparse(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else uri
