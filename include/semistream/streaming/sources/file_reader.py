"""The reader of a stream's files. The console, dimensions and the proof use the same reader."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.counted import counted
from semistream.data_files import (
    ENDINGS,
    GLOB_FILTER,
    LEAVE_OUT,
    DataFile,
    Unreadable,
    escaped,
    is_remote,
    is_utf8,
    list_files,
)
from semistream.errors import ConfigError
from semistream.files import opening
from semistream.files.formats import check_formats
from semistream.files.opening import SOURCES, check_partitions, read_files
from semistream.files.parquet_source import ParquetSource
from semistream.files.source import FileSource, Reading
from semistream.files.text_source import BLOCK
from semistream.job import StreamSpec
from semistream.streaming.sources.contract import SplitReader
from semistream.streaming.sources.numbered import Numbered, by_line, combined
from semistream.warehouse.ids import stream_ids
from semistream.warehouse.types import stored_type

log = logging.getLogger(__name__)
READ = tuple(SOURCES)  # file formats that the reader knows
# options of the reader itself, options that select the stream's files, and options without effect
OURS = (*opening.OPTIONS, "header")
BY_SPARK = (  # only Spark lists the files by these
    "maxbytespertrigger",
    "maxfileage",
    "latestfirst",
    "filenameonly",
    "cleansource",
    "sourcearchivedir",
    "maxcachedfiles",
    "modifiedbefore",
    "modifiedafter",
    "basepath",
    "path",
)
LISTING = (
    "pathglobfilter",
    "recursivefilelookup",
    "maxfilespertrigger",
    *BY_SPARK,
    "ignoremissingfiles",
    "ignorecorruptfiles",
    "compression",
)
HARMLESS = {
    "multiline": ("true", "false"),
    "inferschema": ("true", "false"),
    "enforceschema": ("true", "false"),
    "mergeschema": ("true", "false"),
    "mode": ("permissive",),
    "samplingratio": None,
}
TASK_ROWS, TASK_BYTES = 131_072, 8_000_000  # the most of Parquet that a task decodes at a time
# Up to so many tasks each decode all Parquet of a micro-batch, and keep the tuples of their
# partition: some 0.05 s for a million tuples of two columns, cheaper than an exchange.
MOST_DECODING = 16
# Files are small below a mean of so many bytes: opening one takes longer than exchanging its
# tuples. More than FEW_FILES such files are therefore read once, not once in every task.
SMALL_FILE, FEW_FILES = 256_000, 64
NAMED = 5  # files with other columns that an error names
VARYING = "Where columns vary, stream.columns says which ones to read (a schema as DDL)."


@dataclass(frozen=True)
class FileReader(SplitReader[DataFile]):
    """The reader of a stream's local files. A tuple's number is its line in its file.

    kind: csv, json or parquet; declared: columns whose types the job declares; ids: the columns
    that identify a tuple; path: the stream's path.
    """

    kind: str
    reading: Reading
    schema: pa.Schema
    declared: tuple[str, ...]
    ids: tuple[str, ...]
    path: str | None = None

    def open(self, paths: Sequence[Path] = ()) -> FileSource:
        source = read_files("stream", paths, self.kind, self.reading, self.schema, self.declared)
        source.loaded = True
        source.identify = lambda rows: stream_ids(rows, self.ids)
        source.id_columns = [c for c in self.ids if c in self.schema.names]
        return source

    def read(self, splits: Sequence[DataFile]) -> Iterator[Numbered]:
        source = self.open()
        yield from combined(
            (by_line(chunk) for file in splits for chunk in source.read(Path(file.path))),
            self.schema,
        )

    def check(self, splits: Sequence[DataFile]) -> None:
        """Raise ConfigError for a file whose columns differ from the stream's. If the job declares
        ``stream.columns``, a JSON file may lack some of them, and any file but CSV may have more.
        """
        source, wanted, wrong = self.open(), self.schema.names, list[str]()
        for path in (file.path for file in splits):
            found = source.columns(Path(path))
            if found is None:
                continue
            lacking = (
                []
                if self.declared and self.kind == "json"
                else [name for name in wanted if name not in found]
            )
            new = (
                []
                if self.declared and self.kind != "csv"
                else [name for name in found if name not in wanted]
            )
            if lacking and self.path and Path(path).is_relative_to(self.path):
                check_partitions("stream.path", Path(self.path), [Path(path)])
            what = (
                lacking and f"lacks {', '.join(lacking)}",
                new and f"has {', '.join(new)}, which the stream has not",
            )
            if lacking or new:
                wrong.append(f"{path} {' and '.join(w for w in what if w)}")
        if wrong:
            rest = len(wrong) - NAMED
            more = f"; and {counted(rest, 'more file')}" if rest > 0 else ""
            raise ConfigError(
                "stream",
                "must have the same columns in every file",
                "; ".join(wrong[:NAMED]) + more,
                f"The stream's columns are {', '.join(wanted)}. Nothing of this batch is loaded: "
                f"mend the files and start the app again. {LEAVE_OUT}"
                + (f" {VARYING}" if self.kind != "csv" and not self.declared else ""),
            )

    def replicated(self, splits: Sequence[DataFile], tasks: int) -> bool:
        return not _are_many_small(splits) and _size(splits) < BLOCK


class ParquetReader(FileReader):
    """The reader of a stream's local Parquet files, whose footers tell the number of their rows."""

    def open(self, paths: Sequence[Path] = ()) -> FileSource:
        source = super().open(paths)
        assert isinstance(source, ParquetSource)
        source.rows, source.size, source.threads = TASK_ROWS, TASK_BYTES, False
        return source

    def is_empty(self, split: DataFile) -> bool:
        with suppress(OSError, pa.ArrowException):
            return bool(pq.read_metadata(split.path).num_rows == 0)
        return False  # the task that reads it will report the error

    def count(self, splits: Sequence[DataFile]) -> int:
        return sum(pq.read_metadata(file.path).num_rows for file in splits)

    def replicated(self, splits: Sequence[DataFile], tasks: int) -> bool:
        return not _are_many_small(splits) and tasks <= MOST_DECODING


def _size(files: Sequence[DataFile]) -> int:
    return sum(max(file.size, 0) for file in files)


def _are_many_small(files: Sequence[DataFile]) -> bool:
    return len(files) > FEW_FILES and _size(files) < SMALL_FILE * len(files)


def reading_of(spec: StreamSpec) -> Reading:
    """Return how a stream's files are written, according to its options. Raises ConfigError for an
    option of Spark's parser that would have no effect."""
    options = {k.lower(): v for k, v in spec.all_options().items()}
    for name, value in options.items():
        allowed = HARMLESS.get(name, ())
        if (
            name in OURS
            or name in LISTING
            or allowed is None
            or value.lower() in allowed
            or "." in name
        ):  # an option of a file system
            continue
        raise ConfigError(
            f"stream.options.{name}",
            f"is no option of {spec.format} files",
            value,
            "Files are read by Semistream's own reader, not by Spark's parser. Its options are "
            f"{', '.join(OURS)}; of which files are read, {', '.join(LISTING[:4])} and the like. "
            "How dates and numbers are written is told by formats.",
        )
    reading = opening.reading_of(options, spec.formats, "stream.options")
    if spec.format == "csv" and not reading.header and not spec.columns:
        raise ConfigError(
            "stream.columns",
            "must be given for files without a header",
            None,
            "Name the columns with their types, in the order of the files.",
        )
    return reading


def listed(spec: StreamSpec) -> list[Path]:
    """Return the present files of a local stream. Raises ConfigError if there are none."""
    if not spec.path:
        raise ConfigError(
            "stream.path",
            "must be given for files",
            None,
            "Give the directory of the stream's files.",
        )
    files = _paths(spec)
    others = [
        Path(entry.path).name
        for entry in list_files(spec.path, {GLOB_FILTER: "*"})
        if Path(entry.path) not in set(files) and not isinstance(entry, Unreadable)
    ]
    if others:
        log.warning(
            "%d files of %s are not read, as their names do not end as those of %s files "
            "do, or as pathGlobFilter says: %s",
            len(others),
            spec.path,
            spec.format,
            ", ".join(sorted(others)[:3]),
        )
    if not files:
        raise ConfigError(
            "stream.path",
            "must be a directory with at least one file, or stream.columns must be given",
            spec.path,
            "Put the first file there, or write the schema as DDL. "
            f"Names end in {', '.join(ENDINGS[spec.format])}, also packed "
            f"as .gz, or as stream.options.pathGlobFilter says.",
        )
    return files


def _paths(spec: StreamSpec) -> list[Path]:
    """Return the files of a stream. Entries that cannot be read are logged, and the proof reports
    them. Raises ConfigError for a name that Spark would skip."""
    found = []
    for entry in list_files(spec.path or "", spec.options, spec.format):
        if isinstance(entry, Unreadable):
            log.warning("%s could not be looked at: %s", entry.path, entry.why)
        elif not is_utf8(entry.path):
            raise ConfigError(
                "stream.path",
                "must hold files whose names are in UTF-8",
                escaped(entry.path),
                "Rename the file.",
            )
        else:
            found.append(Path(entry.path))
    return sorted(found)


def find_reader(
    spec: StreamSpec, files: Sequence[Path] | None = None, schema: pa.Schema | None = None
) -> FileReader:
    """Return the reader of a stream's files. Its schema is the one that the job declares, or is
    inferred from a sample of the existing files. Raises ConfigError.

    files: files to use instead of the stream's; schema: a schema that was inferred earlier.
    """
    reading, declared = reading_of(spec), spec.declared
    if files is None and is_local(spec) and spec.path and Path(spec.path).is_dir():
        check_partitions("stream.path", Path(spec.path), _paths(spec))
    known = schema if declared is None else declared
    if known is None:
        known = _inferred(spec, reading, listed(spec) if files is None else files)
    else:
        check_formats(known, spec.formats, "stream")
    reader = ParquetReader if spec.format == "parquet" else FileReader
    return reader(
        spec.format,
        reading,
        known,
        () if declared is None else tuple(declared.names),
        spec.id,
        spec.path,
    )


def _inferred(spec: StreamSpec, reading: Reading, files: Sequence[Path]) -> pa.Schema:
    try:
        source = read_files("stream", files, spec.format, reading)
    except ConfigError as e:
        raise ConfigError(
            "stream.path",
            f"must hold {spec.format} files that can be read",
            spec.path,
            f"{e} {VARYING}" if spec.format != "csv" else str(e),
        ) from None
    source.assign_types()
    check_formats(source.schema, spec.formats, "stream")
    for note in source.notes:
        log.warning("%s", note)
    return pa.schema([(f.name, loaded_type(f.type)) for f in source.schema])


def loaded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a load uses for values of a file's type. No value is altered; values
    that do not fit are refused."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(loaded_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, loaded_type(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(loaded_type(kind.key_type), loaded_type(kind.item_type))
    if pa.types.is_signed_integer(kind):
        return kind
    with suppress(ConfigError):  # a sink that cannot hold the type will refuse it
        return stored_type("", kind)
    return kind


def is_local(spec: StreamSpec) -> bool:
    return not is_remote(spec.path or "")
