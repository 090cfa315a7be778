"""The present files of the source, compared with the files in the ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, func, select

from semistream.data_files import (
    DataFile,
    Unreadable,
    escaped,
    fixed_part,
    is_remote,
    is_utf8,
    list_files,
)
from semistream.job import FILE_FORMATS, StreamSpec
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Staging
from semistream.warehouse.schema import load_commits, load_files
from semistream.warehouse.types import LongString

AT_ONCE = 10_000  # rows of the ledger read at a time
NOT_SEEN = "could not be looked at"
NOT_LISTED = (
    "It is not known yet which files the source had when it was read last, so that none can be "
    "missed: the ledger notes that when all that was there has been loaded"
)


def stage_file_audit(staging: Staging, scope: Scope, of: Stream) -> sa.Table | None:
    """Stage the wrong files of the source: batch, file, finding. Return None for a source without
    files. Return None, with a note, for a source that cannot be listed from this machine.

    An entry that cannot be read is a finding, because it may be, or contain, a file that is in no
    batch. If the whole source is gone, there are no such findings; the report gets a note instead.
    """
    stream = of.spec
    if stream.format not in FILE_FORMATS or not stream.path:
        return None
    if is_remote(stream.path):
        staging.reserve(
            f"Nobody looked for files of the source {stream.path} that no batch "
            "has, or that were written since: it is not on a file system here.",
            passing=True,
        )
        return None
    path = os.path.abspath(stream.path)
    with staging.engine.connect() as connection:
        listed = last_listed(connection, scope.app)
        names, findings = _changed(connection, scope)
        findings += _passed_over(path, stream, names, listed)
    if not os.path.lexists(fixed_part(path)):
        staging.reserve(
            f"The source {stream.path} is gone. Nobody can tell whether it had "
            "files that no batch has.",
            passing=True,
        )
    if listed is None:
        staging.reserve(f"{NOT_LISTED}.", passing=True)
    return staging.table(
        f"files_{of.name}",
        Column("batch", BigInteger),
        Column("file", LongString()),
        Column("finding", LongString()),
        rows=((batch, escaped(file), found) for batch, file, found in findings),
    )


def last_listed(connection: sa.Connection, app: str) -> float | None:
    """Return a time, in seconds since 1970, such that an app has loaded every file that its source
    had by then; None if no such time is known."""
    c = load_commits.c
    return connection.scalar(select(func.max(c.source_listed)).where(c.app == app))


def _changed(
    connection: sa.Connection, scope: Scope
) -> tuple[set[str], list[tuple[int | None, str, str]]]:
    """Return the files that the ledger names, and findings for files that were written after they
    were loaded."""
    f, names, findings = load_files.c, set(), []
    rows = connection.execution_options(yield_per=AT_ONCE).execute(
        select(f.batch, f.path, f.size, f.modified).where(f.app == scope.app)
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
            before, after = (f"{x.size:,} bytes of {_time(x.modified)}" for x in (file, now))
            findings.append(
                (batch, file.path, f"written since it was loaded: {before} then, {after} now")
            )
    return names, findings


def _passed_over(
    path: str, stream: StreamSpec, names: set[str], listed: float | None
) -> Iterator[tuple[int | None, str, str]]:
    """Yield findings for files that are in no batch, although they existed when the source was
    listed.

    A file's arrival is the time at which its inode last changed, or at which a directory that
    contains it was moved into the stream. Its modification time does not count.
    """
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
            continue
        between = (
            d
            for d in Path(entry.path).parents
            if d.is_relative_to(fixed_part(path)) and d != fixed_part(path)
        )
        try:
            came = max(entry.stat().st_ctime_ns, *(d.stat().st_ctime_ns for d in between), 0)
        except FileNotFoundError:  # gone meanwhile
            continue
        if came < listed * 1e9:
            yield (
                None,
                entry.path,
                f"in no batch, and there since {_time(came)}: {entry.stat().st_size:,} bytes",
            )


def _time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
