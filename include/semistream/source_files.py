"""A stream's files on a local file system: which files there are, and whether one has changed since
it was first examined.

A batch records its files, with size and time of modification, before it begins. The files that are
read later must be unchanged, or the batch would mix two contents.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, NamedTuple

from semistream.durable import naming
from semistream.errors import StateError
from semistream.scratch import task_directory

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow.parquet import FileMetaData, ParquetFile

# bytes that are read at a time: of a column; of all columns of a file, about; least of a column
COLUMN_BUFFER, FILE_BUFFER, LEAST_BUFFER = 1_000_000, 4_000_000, 16_384
ENDINGS = {"csv": (".csv", ".tsv", ".txt"), "json": (".json", ".jsonl", ".ndjson"),
           "parquet": (".parquet", ".pq")}  # endings of the names of data files, by format
PACKED_ENDINGS = ("", ".gz", ".bz2", ".zst", ".lz4", ".xz")
GLOB_FILTER = "pathGlobFilter"
LOOKED_AT = 256  # rows from which the width of a row group's rows is estimated
# A decoded page of each column is held, and its dictionary. With more columns than FEW_COLUMNS,
# about HELD_BYTES are read at a time at most. PAGE: bytes of a page, as most writers have it.
FEW_COLUMNS, HELD_BYTES, PAGE = 32, 8_000_000, 1_000_000


class SourceFile(NamedTuple):
    """A file of a source. path: plain if it is local, else a URI; size in bytes and modified in ns
    since 1970, -1 if unknown."""

    path: str
    size: int = -1
    modified: int = -1

    @property
    def known(self) -> bool:
        return self.size >= 0

    def now(self) -> SourceFile | None:
        """Return the same file as it is at present; None when it is gone."""
        if is_remote(self.path):
            return SourceFile(self.path)
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return SourceFile(self.path, status.st_size, status.st_mtime_ns)


def is_remote(path: str) -> bool:
    return "://" in path


def is_utf8(path: str) -> bool:
    """Return whether a file's name is UTF-8. Python represents other names with surrogates."""
    return plainly(path) == path


def plainly(path: str) -> str:
    """Return a path with backslash escapes for bytes that are not UTF-8, for databases and
    pages."""
    return os.fsencode(path).decode(errors="backslashreplace")


def fixed_part(path: str) -> Path:
    """Return the part of a path before the first pattern."""
    parts = Path(path).parts
    return Path(*takewhile(lambda part: not is_pattern(part), parts))


def is_pattern(part: str) -> bool:
    """Return whether Hadoop treats a part of a path as a pattern."""
    return glob.has_magic(part) or "{" in part


def same_names(path: str, former: str) -> bool:
    """Return whether files below a former path, or of a former pattern, have the same relative
    names below the present one."""
    if is_remote(path) or is_remote(former):
        return former.rstrip("/") == path.rstrip("/")
    both = zip(Path(os.path.abspath(path)).parts, Path(os.path.abspath(former)).parts, strict=False)
    return all(now == then or "{" in now + then or fnmatchcase(then, now) or fnmatchcase(now, then)
               for now, then in both)


def open_parquet(path: str | Path) -> ParquetFile:
    """Open a Parquet file so that it is read a little at a time, whatever the size of its row
    groups. By default PyArrow reads whole row groups ahead, and keeps them until the file is
    closed."""
    from pyarrow.parquet import ParquetFile, read_metadata

    of = read_metadata(path)
    buffer = max(min(COLUMN_BUFFER, FILE_BUFFER // max(of.num_columns, 1)), LEAST_BUFFER)
    # times of Spark 2 and of Hive exceed the range of nanoseconds
    return ParquetFile(path, metadata=of, buffer_size=buffer, pre_buffer=False,
                       coerce_int96_timestamp_unit="us")


def parquet_batches(file: ParquetFile, columns: Sequence[str], rows: int, size: int,
                    threads: bool = False) -> Iterator[RecordBatch]:
    """Yield the columns of a file in batches of at most `rows` rows and about ``size`` bytes in
    memory. There a dictionary's values, for instance, can take many times their bytes in the
    file."""
    for near in _row_groups(file.metadata, rows):
        together = _read_together(file.metadata, near, columns)
        first = [next(file.iter_batches(LOOKED_AT, near, names, use_threads=False), None)
                 for names in together]
        looked_at = [batch for batch in first if batch is not None and batch.num_rows]
        if not looked_at:
            continue
        width = max(sum(batch.nbytes / batch.num_rows for batch in looked_at),
                    _stored_width(file.metadata, near, columns))
        step = max(min(rows, int(size / max(width, 1))), 1)
        del first, looked_at
        parts = [file.iter_batches(step, near, names, use_threads=threads) for names in together]
        yield from parts[0] if len(parts) == 1 else _side_by_side(parts)


def _read_together(of: FileMetaData, groups: Sequence[int],
                   columns: Sequence[str]) -> Sequence[Sequence[str]]:
    """Split the columns into parts that are read one after the other. There is one part if the
    columns are few, or their pages small."""
    if len(columns) <= FEW_COLUMNS:
        return [columns]
    held = dict.fromkeys(columns, 0)
    for group in map(of.row_group, groups):
        size = dict.fromkeys(columns, 0)
        for chunk in map(group.column, range(group.num_columns)):
            if (name := chunk.path_in_schema.partition(".")[0]) in size:
                first = (chunk.dictionary_page_offset if chunk.has_dictionary_page
                         else chunk.data_page_offset)
                packed = chunk.total_uncompressed_size / max(chunk.total_compressed_size, 1)
                dictionary = int(packed * (chunk.data_page_offset - first))
                size[name] += (min(chunk.total_uncompressed_size, dictionary + PAGE) + dictionary
                               + LEAST_BUFFER)
        held = {name: max(held[name], size[name]) for name in held}
    parts: list[list[str]] = [[]]
    total = 0
    for name, size_of in held.items():
        if parts[-1] and total + size_of > HELD_BYTES:
            parts.append([])
            total = 0
        parts[-1].append(name)
        total += size_of
    return parts


def _side_by_side(parts: Iterable[Iterator[RecordBatch]]) -> Iterator[RecordBatch]:
    """Yield batches of all columns from parts that have the same rows and different columns.

    The parts are read one after the other, each into an unnamed temporary file. The batches are
    mapped from there, and the system loads their pages on access.
    """
    import pyarrow as pa

    directory = task_directory() or gettempdir()
    with ExitStack() as stack:
        readers = []
        for part in parts:
            file = stack.enter_context(TemporaryFile(dir=directory))
            writer = None
            for batch in part:
                with naming(Path(directory)):
                    writer = writer or pa.ipc.new_stream(file, batch.schema)
                    writer.write_batch(batch)
            if writer is not None:
                with naming(Path(directory)):
                    writer.close()
                    file.flush()
                readers.append(pa.ipc.open_stream(pa.memory_map(f"/proc/self/fd/{file.fileno()}")))
        batches: list[RecordBatch | None] = [None] * len(readers)
        # a batch of a part with dictionaries ends at a row group's end
        while batches := [batch for batch in map(_next, readers, batches) if batch is not None]:
            if len(batches) < len(readers):
                raise pa.ArrowInvalid("its columns are not of the same number of rows")
            rows = min(batch.num_rows for batch in batches)
            yield pa.RecordBatch.from_arrays(
                [column for batch in batches for column in batch.slice(0, rows).columns],
                schema=pa.schema([field for batch in batches for field in batch.schema]))
            batches = [batch.slice(rows) for batch in batches]


def _next(part: Iterator[RecordBatch], left: RecordBatch | None) -> RecordBatch | None:
    """Return the rest of a part's batch, or the next batch that has rows; None at the end."""
    while left is None or not left.num_rows:
        if (left := next(part, None)) is None:
            break
    return left


def _row_groups(of: FileMetaData, rows: int) -> Iterator[list[int]]:
    """Yield lists of consecutive row groups. Small ones are combined up to `rows` rows."""
    near, count = list[int](), 0
    for group in range(of.num_row_groups):
        more = of.row_group(group).num_rows
        if near and count + more > rows:
            yield near
            near, count = [], 0
        near, count = [*near, group], count + more
    if near:
        yield near


def _stored_width(of: FileMetaData, groups: Sequence[int], columns: Sequence[str]) -> float:
    """Return the decompressed bytes of a row in the file."""
    wanted, size = set(columns), 0
    for group in map(of.row_group, groups):
        chunks = (group.column(i) for i in range(group.num_columns))
        size += sum(c.total_uncompressed_size for c in chunks
                    if c.path_in_schema.partition(".")[0] in wanted)
    return size / max(sum(of.row_group(group).num_rows for group in groups), 1)


def look_at(paths: Iterable[str]) -> tuple[SourceFile, ...]:
    """Return files with their present size and time of modification. Raises StateError for one that
    is gone."""
    found = []
    for path in paths:
        file = SourceFile(path).now()
        if file is None:
            raise StateError(f"The stream's file {path} is gone, and has not been loaded. Put it "
                             "back and start the app again; if its tuples are not to be loaded, "
                             "put a file without tuples in its place.")
        found.append(file)
    return tuple(found)


def check_unchanged(files: Iterable[SourceFile]) -> None:
    """Check files. Raises StateError for a file that has changed since it was first examined."""
    for file in files:
        now = file.now() if file.known else file
        if now != file:
            what = ("was deleted" if now is None
                    else f"has changed, from {file.size:,} bytes to {now.size:,}")
            raise StateError(f"The stream's file {file.path} {what} while it was being loaded. "
                             f"Nothing of this batch counts; "
                             "start the app again. Write files beside, and rename them into the "
                             "stream's directory when they are complete, or set min_age to the "
                             "seconds after which a file is.")


def data_filter(kind: str, path: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's option that leaves out files beside the data in a directory, such as a README:
    files whose names do not have an ending of this kind. The result is empty if a pattern is given,
    or the kind has no endings."""
    told = any(k.lower() == GLOB_FILTER.lower() for k in options)
    if told or kind not in ENDINGS or glob.has_magic(path) or (
            not is_remote(path) and not os.path.isdir(path)):
        return {}
    endings = (e + packed for e in ENDINGS[kind] for packed in PACKED_ENDINGS)
    alternatives = ("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in e) for e in endings)
    return {GLOB_FILTER: f"*{{{','.join(alternatives)}}}"}


class Unseen(NamedTuple):
    """An entry of a source that could not be examined, and the reason."""

    path: str
    why: str


def list_files(path: str, options: Mapping[str, str],
               kind: str = "") -> Iterator[os.DirEntry[str] | Unseen]:
    """Yield the files that Spark's file source takes from a local directory or pattern. Names that
    begin with "_" or ".", and files below such directories, are skipped.

    options: of the source; kind: csv, json or parquet, see ``data_filter``.

    Files that disappear meanwhile are left out. An entry that cannot be examined for another reason
    is yielded as `Unseen`, and all others are still listed. The ``stat`` of each file is known.
    """
    options = {**data_filter(kind, path, options), **options}
    pattern = next((v for k, v in options.items() if k.lower() == GLOB_FILTER.lower()), "*")
    for spelled in sorted(set(_spelled(path))):
        fixed = fixed_part(spelled)
        yield from _matching(str(fixed), Path(spelled).parts[len(fixed.parts):], pattern)


def _spelled(path: str) -> Iterator[str]:
    """Yield the patterns that {a,b} in a pattern stands for."""
    if (braces := re.search(r"\{([^{}]*)\}", path)) is None:
        yield path
        return
    for part in braces[1].split(","):
        yield from _spelled(path[:braces.start()] + part + path[braces.end():])


def _matching(place: str, parts: Sequence[str],
              pattern: str) -> Iterator[os.DirEntry[str] | Unseen]:
    """Yield the files below a directory that match the remaining parts of a pattern."""
    try:
        if not parts:
            if stat.S_ISDIR(os.stat(place).st_mode):
                yield from _below(place, pattern, ())
            else:
                name = Path(place).name
                with os.scandir(Path(place).parent) as entries:
                    yield from (e for e in entries if e.name == name and _counts(name, pattern))
            return
        if not is_pattern(parts[0]):
            yield from _matching(os.path.join(place, parts[0]), parts[1:], pattern)
            return
        with os.scandir(place) as entries:
            found = sorted(e.path for e in entries if fnmatchcase(e.name, parts[0])
                           and (not e.name.startswith(".") or parts[0].startswith(".")))
    except NotADirectoryError:  # a file where the pattern goes on
        return
    except OSError as e:
        yield from _unseen(place, e)
        return
    for inner in found:
        yield from _matching(inner, parts[1:], pattern)


def _below(directory: str, pattern: str,
           above: tuple[tuple[int, int], ...]) -> Iterator[os.DirEntry[str] | Unseen]:
    """Yield the files below a directory. above: device and inode of the directories on the way to
    it."""
    try:
        status = os.stat(directory)
        here = status.st_dev, status.st_ino
        if here in above:
            yield Unseen(directory, "it leads to a directory above it")
            return
        with os.scandir(directory) as found:
            entries = [entry for entry in found if _is_shown(entry.name)]
    except OSError as e:
        yield from _unseen(directory, e)
        return
    for entry in entries:
        try:
            entry.stat()
            inner = entry.is_dir()
        except OSError as e:
            yield from _unseen(entry.path, e)
            continue
        if inner:
            yield from _below(entry.path, pattern, (*above, here))
        elif _counts(entry.name, pattern):
            yield entry


def _unseen(path: str, error: OSError) -> Iterator[Unseen]:
    """Yield nothing if the path is gone, but yield a broken link, and any other error, as
    `Unseen`."""
    if not isinstance(error, FileNotFoundError):
        yield Unseen(path, error.strerror or str(error))
    elif os.path.islink(path):
        yield Unseen(path, f"a link to {os.readlink(path)}, which is not there")


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and (not name.startswith("_")
                                         or "=" in name) and not name.endswith("._COPYING_")


def _counts(name: str, pattern: str) -> bool:
    head, brace, rest = pattern.partition("{")
    if not brace:
        return _is_shown(name) and fnmatchcase(name, pattern)
    alternatives, _, tail = rest.partition("}")
    return _is_shown(name) and any(fnmatchcase(name, head + a + tail)
                                   for a in alternatives.split(","))
