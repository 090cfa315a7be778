"""The present files of an app's source, compared with the files in the ledger."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import func, select

from semistream.counted import counted
from semistream.data_files import DataFile, Unreadable, fixed_part, is_remote, is_utf8, list_files
from semistream.errors import SemistreamError
from semistream.job import FILE_FORMATS, SideSpec, StreamSpec, job_of
from semistream.warehouse.schema import load_commits, load_files

AT_ONCE = 10_000  # rows of the ledger read at a time
NOT_SEEN = "could not be looked at"
Finding = tuple[int | None, str, str]  # batch, path, what is wrong


@dataclass(frozen=True)
class SourceFiles:
    """The result of the comparison. findings: files that have changed since they were loaded, that
    a load has passed over, or that could not be looked at; left: how many files the next load
    reads; taken_out: whether files were taken out, and no batch has been loaded since."""

    findings: tuple[Finding, ...] = ()
    left: int = 0
    taken_out: bool = False

    @property
    def not_loaded(self) -> str:
        """A clause about the files that are not loaded; "" if all are loaded."""
        if not self.left:
            return ""
        files = f"{counted(self.left, 'file')} of the source {'is' if self.left == 1 else 'are'}"
        if self.taken_out:
            return f"{files} not loaded: files were taken out, and no load has run since"
        return f"{files} not loaded yet"

    def __str__(self) -> str:
        found = len({path for _, path, _ in self.findings})
        wrong = (
            f"{counted(found, 'file')} of the source {'is' if found == 1 else 'are'} not as "
            "loaded, or could not be looked at: `semistream verify` says which"
        )
        return "; ".join(filter(None, (self.not_loaded, wrong if found else "")))


def source_files(connection: sa.Connection, app: str) -> SourceFiles:
    """Compare the files of all streams of an app's newest job with the ledger. A source that has no
    files, or none on a file system here, has no result."""
    c = load_commits.c
    newest = select(c.job).where(c.app == app).order_by(c.batch.desc(), c.drain.desc()).limit(1)
    try:
        job = job_of(json.loads(connection.scalar(newest) or "{}"))
    except SemistreamError:  # nothing is loaded, or by a later version
        return SourceFiles()
    found = [of for spec in job.streams if (of := compare(connection, app, spec)) is not None]
    left = sum(of.left for of in found)
    findings = dict.fromkeys(finding for of in found for finding in of.findings)
    return SourceFiles(tuple(findings), left, bool(left) and _was_taken_out(connection, app))


def compare(
    connection: sa.Connection, app: str, stream: StreamSpec | SideSpec
) -> SourceFiles | None:
    """Compare the files of a stream with the ledger. Return None if it has no files, or none on a
    file system here. No file is read: size and time of modification tell whether one has
    changed."""
    if stream.format not in FILE_FORMATS or not stream.path or is_remote(stream.path):
        return None
    path, left = os.path.abspath(stream.path), 0
    names, findings = _changed(connection, app)
    for found in _passed_over(path, stream, names, _last_listed(connection, app)):
        if found is None:
            left += 1
        else:
            findings.append(found)
    return SourceFiles(tuple(findings), left)


def _last_listed(connection: sa.Connection, app: str) -> float | None:
    """Return a time, in seconds since 1970, such that an app has loaded every file that its source
    had by then; None if no such time is known."""
    c = load_commits.c
    return connection.scalar(select(func.max(c.source_listed)).where(c.app == app))


def _was_taken_out(connection: sa.Connection, app: str) -> bool:
    """Return whether no batch has been loaded since files were taken out."""
    c = load_commits.c
    newest = connection.scalar(select(func.max(c.batch)).where(c.app == app))
    out = connection.scalars(
        select(c.source_offsets).where(c.app == app, c.source_offsets.contains('"taken_out"'))
    )
    return any(json.loads(said).get("newest") == newest for said in out)


def _changed(connection: sa.Connection, app: str) -> tuple[set[str], list[Finding]]:
    """Return the files that the ledger names, and findings for files that were written after they
    were loaded."""
    f, names, findings = load_files.c, set[str](), list[Finding]()
    rows = connection.execution_options(yield_per=AT_ONCE).execute(
        select(f.batch, f.path, f.size, f.modified).where(f.app == app)
    )
    for batch, *noted in rows:
        names.add(noted[0])
        file = DataFile(*noted)
        try:
            now = file.now()
        except OSError as e:
            findings.append((batch, file.path, f"{NOT_SEEN}: {e.strerror or e}"))
            continue
        if file.known and now is not None and now != file:
            exact = file.size == now.size  # the time alone tells
            before, after = (f"{x.size:,} bytes of {_time(x.modified, exact)}" for x in (file, now))
            findings.append(
                (batch, file.path, f"written since it was loaded: {before} then, {after} now")
            )
    return names, findings


def _passed_over(
    path: str, stream: StreamSpec | SideSpec, names: set[str], listed: float | None
) -> Iterator[Finding | None]:
    """Yield findings for files that are in no batch, although they existed when the source was
    listed; None for a file that the next load reads.

    A file's arrival is the time at which its inode last changed, or at which a directory that
    contains it was moved into the stream. Its modification time does not count.
    """
    root = str(fixed_part(path))

    @cache
    def moved_in(directory: str) -> int:
        """Return when a directory below the stream's own, or one above it, last changed."""
        if not Path(directory).is_relative_to(root) or directory == root:
            return 0
        return max(os.stat(directory).st_ctime_ns, moved_in(os.path.dirname(directory)))

    for entry in list_files(path, stream.options, stream.format):
        if entry.path in names:
            continue
        if isinstance(entry, Unreadable):
            yield None, entry.path, f"{NOT_SEEN}: {entry.why}"
            continue
        if not is_utf8(entry.path):
            yield None, entry.path, "its name is not UTF-8, so that no load takes it: rename it"
            continue
        if listed is None:
            yield None
            continue
        try:
            came = max(entry.stat().st_ctime_ns, moved_in(os.path.dirname(entry.path)))
        except FileNotFoundError:  # gone meanwhile
            continue
        if came < listed * 1e9:
            yield (
                None,
                entry.path,
                f"in no batch, and there since {_time(came)}: {entry.stat().st_size:,} bytes",
            )
        else:
            yield None


def _time(ns: int, exact: bool = False) -> str:
    """Return a time in a form that ``touch -d`` takes. exact: whether to tell nanoseconds."""
    seconds, fraction = divmod(ns, 10**9)
    more = f".{fraction:09}" if exact else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}{more} UTC"
