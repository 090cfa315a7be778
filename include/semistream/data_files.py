"""A stream's files on a local file system: which files exist, and whether a file has changed since
it was first examined.

A batch records its files, with size and time of modification, before it begins. Files that are read
again later must be unchanged, because the batch would otherwise mix two contents.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from semistream.errors import StateError

ENDINGS = {
    "csv": (".csv", ".tsv", ".txt"),
    "json": (".json", ".jsonl", ".ndjson"),
    "parquet": (".parquet", ".pq"),
}  # endings of the names of data files, by format
PACKED_ENDINGS = ("", ".gz", ".bz2", ".zst", ".lz4", ".xz")
GLOB_FILTER = "pathGlobFilter"
LEAVE_OUT = (
    "To leave a file out, move it out of the stream's directory, put an empty file of the same "
    "name in its place (of Parquet, one with the stream's columns and no rows), and start the app "
    "again; then the empty file can be deleted."
)


class DataFile(NamedTuple):
    """A file of a source. path: a plain path if the file is local, otherwise a URI; size: bytes;
    modified: nanoseconds since 1970; both are -1 if unknown."""

    path: str
    size: int = -1
    modified: int = -1

    @property
    def known(self) -> bool:
        return self.size >= 0

    def now(self) -> DataFile | None:
        """Return the file with its present size and time of modification; None if it is gone."""
        if is_remote(self.path):
            return DataFile(self.path)
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return DataFile(self.path, status.st_size, status.st_mtime_ns)


def is_remote(path: str) -> bool:
    return "://" in path


def is_utf8(path: str) -> bool:
    """Return whether a file's name is UTF-8. Python represents other names with surrogates."""
    return escaped(path) == path


def escaped(path: str) -> str:
    """Return a path with backslash escapes for bytes that are not UTF-8, for databases and
    pages."""
    return os.fsencode(path).decode(errors="backslashreplace")


def fixed_part(path: str) -> Path:
    """Return the part of a path before its first pattern."""
    parts = Path(path).parts
    return Path(*takewhile(lambda part: not is_pattern(part), parts))


def is_pattern(part: str) -> bool:
    """Return whether Hadoop treats a part of a path as a pattern."""
    return glob.has_magic(part) or "{" in part


def same_names(path: str, former: str) -> bool:
    """Return whether the files have the same names below a path as below its former path, relative
    to each. Both may be patterns."""
    if is_remote(path) or is_remote(former):
        return former.rstrip("/") == path.rstrip("/")
    both = zip(Path(os.path.abspath(path)).parts, Path(os.path.abspath(former)).parts, strict=False)
    return all(
        now == then or "{" in now + then or fnmatchcase(then, now) or fnmatchcase(now, then)
        for now, then in both
    )


def examine(paths: Iterable[str]) -> tuple[DataFile, ...]:
    """Return files with their present size and time of modification. Raises StateError for a file
    that is gone."""
    found = []
    for path in paths:
        file = DataFile(path).now()
        if file is None:
            raise StateError(
                f"The stream's file {path} is gone, and has not been loaded. Put it back and start "
                f"the app again. {LEAVE_OUT}"
            )
        found.append(file)
    return tuple(found)


def check_unchanged(files: Iterable[DataFile]) -> None:
    """Check files. Raises StateError for a file that has changed since it was first examined."""
    for file in files:
        now = file.now() if file.known else file
        if now != file:
            what = (
                "was deleted"
                if now is None
                else f"has changed, from {file.size:,} bytes to {now.size:,}"
            )
            raise StateError(
                f"The stream's file {file.path} {what} while it was being loaded. "
                f"Nothing of this batch counts; "
                "start the app again. Write files beside, and rename them into the "
                "stream's directory when they are complete, or set min_age to the "
                "seconds after which a file is."
            )


def data_filter(kind: str, path: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark option that excludes other files in a directory of data, such as a README:
    files whose names lack an ending of this kind. The result is empty if the options already have a
    pattern, or the kind has no endings."""
    has_pattern = any(k.lower() == GLOB_FILTER.lower() for k in options)
    if (
        has_pattern
        or kind not in ENDINGS
        or glob.has_magic(path)
        or (not is_remote(path) and not os.path.isdir(path))
    ):
        return {}
    endings = (e + packed for e in ENDINGS[kind] for packed in PACKED_ENDINGS)
    alternatives = ("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in e) for e in endings)
    return {GLOB_FILTER: f"*{{{','.join(alternatives)}}}"}


class Unreadable(NamedTuple):
    """An entry of a source that could not be examined, and the reason."""

    path: str
    why: str


def list_files(
    path: str, options: Mapping[str, str], kind: str = ""
) -> Iterator[os.DirEntry[str] | Unreadable]:
    """Yield the files that Spark's file source takes from a local directory or pattern. Names that
    begin with "_" or ".", and files below such directories, are skipped.

    options: options of the source; kind: csv, json or parquet, see ``data_filter``.

    Files that disappear meanwhile are left out. If an entry cannot be examined for another reason,
    it is yielded as `Unreadable`, and all others are still listed. Each yielded entry has its
    ``stat`` in memory.
    """
    options = {**data_filter(kind, path, options), **options}
    pattern = next((v for k, v in options.items() if k.lower() == GLOB_FILTER.lower()), "*")
    names = list(_without_braces(pattern))
    for plain in sorted(set(_without_braces(path))):
        fixed = fixed_part(plain)
        yield from _matching(str(fixed), Path(plain).parts[len(fixed.parts) :], names)


def _without_braces(path: str) -> Iterator[str]:
    """Yield the patterns that {a,b} in a pattern stands for."""
    if (braces := re.search(r"\{([^{}]*)\}", path)) is None:
        yield path
        return
    for part in braces[1].split(","):
        yield from _without_braces(path[: braces.start()] + part + path[braces.end() :])


def _matching(
    place: str, parts: Sequence[str], names: Sequence[str]
) -> Iterator[os.DirEntry[str] | Unreadable]:
    """Yield the files below a directory that match the remaining parts of a pattern. names: the
    patterns of the names of files, of which one must match."""
    try:
        if not parts:
            if stat.S_ISDIR(os.stat(place).st_mode):
                yield from _below(place, names, ())
            else:
                name = Path(place).name
                with os.scandir(Path(place).parent) as entries:
                    yield from (e for e in entries if e.name == name and _is_taken(name, names))
            return
        if not is_pattern(parts[0]):
            yield from _matching(os.path.join(place, parts[0]), parts[1:], names)
            return
        with os.scandir(place) as entries:
            found = sorted(
                e.path
                for e in entries
                if fnmatchcase(e.name, parts[0])
                and (not e.name.startswith(".") or parts[0].startswith("."))
            )
    except NotADirectoryError:  # a file where the pattern goes on
        return
    except OSError as e:
        yield from _unreadable(place, e)
        return
    for inner in found:
        yield from _matching(inner, parts[1:], names)


def _below(
    directory: str, names: Sequence[str], above: tuple[tuple[int, int], ...]
) -> Iterator[os.DirEntry[str] | Unreadable]:
    """Yield the files below a directory. names: see ``_matching``; above: device and inode of each
    parent directory, by which a loop of links is recognised."""
    try:
        status = os.stat(directory)
        here = status.st_dev, status.st_ino
        if here in above:
            yield Unreadable(directory, "it leads to a directory above it")
            return
        with os.scandir(directory) as found:
            entries = [entry for entry in found if _is_visible(entry.name)]
    except OSError as e:
        yield from _unreadable(directory, e)
        return
    for entry in entries:
        try:
            entry.stat()
            inner = entry.is_dir()
        except OSError as e:
            yield from _unreadable(entry.path, e)
            continue
        if inner:
            yield from _below(entry.path, names, (*above, here))
        elif _is_taken(entry.name, names):
            yield entry


def _unreadable(path: str, error: OSError) -> Iterator[Unreadable]:
    """Yield `Unreadable` for an error. Nothing is yielded if the path is gone, unless it is a
    broken link."""
    if not isinstance(error, FileNotFoundError):
        yield Unreadable(path, error.strerror or str(error))
    elif os.path.islink(path):
        yield Unreadable(path, f"a link to {os.readlink(path)}, which is not there")


def _is_visible(name: str) -> bool:
    return (
        not name.startswith(".")
        and (not name.startswith("_") or "=" in name)
        and not name.endswith("._COPYING_")
    )


def _is_taken(name: str, patterns: Sequence[str]) -> bool:
    return _is_visible(name) and any(fnmatchcase(name, pattern) for pattern in patterns)
