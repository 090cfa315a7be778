"""The record of the part of the source that each micro-batch reads.

It is in the form of Spark's own logs, whoever writes it: Spark, or a driver that lists the files of
the source itself (``QueryLog``, ``SourceLog.add``). So each of both continues where the other one
has stopped.
"""

from __future__ import annotations

import json
import string
import time
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlparse

from semistream.data_files import DataFile
from semistream.durable import sync, write_text
from semistream.job import FILE_FORMATS

COMPACTED = 10  # entries of a source's log from one compacted file to the next: Spark's default
KEPT = 100  # batches whose logs are kept: Spark's default
PLAIN = frozenset(f"{string.ascii_letters}{string.digits}_-!.~'()*,;:$&+=/@")  # in a URI's path


class QueryLog:
    """The writer of a query's logs of its batches. A batch is noted durably when it begins."""

    def __init__(self, query_checkpoint: Path):
        self.directory = query_checkpoint

    def begin(self, batch: int, ends: Sequence[int]) -> None:
        """Note which part of the sources a batch reads. ends: for each source, the number of the
        last entry of its log that belongs to the batch; -1 if the log is empty."""
        (self.directory / "offsets").mkdir(parents=True, exist_ok=True)
        (self.directory / "commits").mkdir(exist_ok=True)
        if not (self.directory / "metadata").exists():  # Spark would refuse to continue
            write_text(self.directory / "metadata", json.dumps({"id": str(uuid.uuid4())}))
        about = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 10**6, "conf": {}}
        parts = ["-" if end < 0 else json.dumps({"logOffset": end}) for end in ends]
        text = "\n".join(["v1", json.dumps(about), *parts])
        write_text(self.directory / "offsets" / str(batch), text)

    def end(self, batch: int) -> None:
        """Note that a batch is finished. A crash of the machine may undo the note: the batch is
        then given again, and is recognised by the ledger."""
        done = 'v1\n{"nextBatchWatermarkMs":0}'
        write_text(self.directory / "commits" / str(batch), done, flush=False)
        for log in ("offsets", "commits"):
            (self.directory / log / str(batch - KEPT)).unlink(missing_ok=True)


class SourceLog:
    """The logs below the query's checkpoint, which say which part of a source each micro-batch
    reads. number: the source's number, in a query of several sources."""

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
        after, last = self.end(batch - 1), self.end(batch)
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
        return list(dict.fromkeys(path for number, path in self.listed() if after < number <= last))

    def listed(self) -> Iterator[tuple[int, str]]:
        """Yield (number, path) of all files that the source's log lists, also of those that are
        gone."""
        for line in self._lines():
            entry = json.loads(line)
            yield entry["batchId"], plain_path(entry["path"])

    def end(self, batch: int) -> int:
        """Return the number of the last entry of the source's log that belongs to a batch or to an
        earlier one; -1 if there is none."""
        offset = self._read(batch)
        return offset[0]["logOffset"] if offset and offset[0] else -1

    @property
    def newest(self) -> int:
        """The number of the last entry of the source's log; -1 if there is none."""
        return max((number for number, _ in self._logs()), default=-1)

    def add(self, number: int, files: Sequence[DataFile]) -> None:
        """Note files durably under a number, which must follow ``newest``. Every tenth time all
        entries are written, so that the earlier ones need not be read again."""
        new = [
            json.dumps(
                {"path": file_uri(f.path), "timestamp": f.modified // 10**6, "batchId": number}
            )
            for f in files
        ]
        self._directory.mkdir(parents=True, exist_ok=True)
        if (number + 1) % COMPACTED:
            write_text(self._directory / str(number), "\n".join(["v1", *new]))
            return
        text = "\n".join(["v1", *self._lines(), *new])
        write_text(self._directory / f"{number}.compact", text)
        for earlier, log in self._logs():
            if earlier < number - KEPT:
                log.unlink()

    def forget(self, after: int, last: int) -> None:
        """Delete files from the source's log, so that Spark gives them again in a later batch.
        after, last: see ``entries``. No query may run. A repeated call is harmless."""
        for _, log in self._logs():
            version, *lines = log.read_text().splitlines()
            kept = [line for line in lines if not after < json.loads(line)["batchId"] <= last]
            if kept != lines:
                # Hadoop's checksum of the file; one without is read as it is
                log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
                write_text(log, "\n".join([version, *kept]))

    def _logs(self) -> list[tuple[int, Path]]:
        """Return the numbers and files of the source's log, in order. A compacted file repeats the
        entries of earlier files."""
        return sorted(
            (int(path.stem), path)
            for path in self._directory.glob("[0-9]*")
            if path.suffix in ("", ".compact")
        )

    def _lines(self) -> Iterator[str]:
        """Yield the lines of all entries of the source's log."""
        logs = [log for _, log in self._logs()]
        compact = [place for place, log in enumerate(logs) if log.suffix]
        for log in logs[compact[-1] if compact else 0 :]:
            yield from log.read_text().splitlines()[1:]

    def flush(self, batch: int) -> None:
        """Flush Spark's logs of a batch to disk, because Spark does not flush them, and the ledger
        will say that the batch is loaded."""
        offsets = self.directory / "offsets"
        paths = [offsets / str(batch), offsets]
        if self.format in FILE_FORMATS and self.end(batch) >= 0:
            entries = range(self.end(batch - 1) + 1, self.end(batch) + 1)
            paths += [*map(self._log, entries), self._directory]
        for path in paths:
            sync(path)

    @property
    def _directory(self) -> Path:
        return self.directory / "sources" / str(self.number)

    def _log(self, number: int) -> Path:
        """Return the path of an entry of the source's log. Spark compacts the log from time to
        time."""
        path = self._directory / str(number)
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


def numbers_of(offsets: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers under which the source's log lists the files of a batch: those above the
    first one, and up to the second one. offsets: the batch's ``source_offsets``."""
    start, end = (offsets.get(name) for name in ("start", "offsets"))
    after, last = (known[0]["logOffset"] if known and known[0] else -1 for known in (start, end))
    return after, last


def file_uri(path: str) -> str:
    """Return the URI of a local file as Spark writes it, by which it knows the file."""
    return "file://" + "".join(sign if _stays(sign) else quote(sign) for sign in path)


def _stays(sign: str) -> bool:
    """Return whether Java leaves a sign as it is in the path of a URI."""
    if sign < "\x80":
        return sign in PLAIN
    return unicodedata.category(sign) not in ("Zs", "Zl", "Zp", "Cc")


def plain_path(uri: str) -> str:
    """Return the path of a local file's URI. Any other URI is returned unchanged."""
    parts = urlparse(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else uri
