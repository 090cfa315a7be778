"""Data files as a source. Spark finds the files and assigns them to micro-batches; tasks read them.
Formats that only Spark knows are read by Spark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Engine

from semistream.data_files import (
    DataFile,
    Unreadable,
    data_filter,
    fixed_part,
    is_pattern,
    is_remote,
    is_utf8,
    list_files,
)
from semistream.errors import ConfigError, SemistreamError, StateError
from semistream.files.opening import check_partitions
from semistream.scratch import scratch_directory
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.contract import (
    INFERRED,
    CannotRecount,
    Part,
    Records,
    Recount,
    Splits,
)
from semistream.streaming.sources.file_reader import (
    BY_SPARK,
    LISTING,
    READ,
    FileReader,
    find_reader,
    is_local,
    reading_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ANY_AGE = "36500d"  # by default Spark ignores a file a week older than the newest one
SAMPLED = 3  # remote files from which the schema is inferred


class PathSource(Source):
    """Files that appear in a directory."""

    def check(self, max_files: int = 0, max_rows: int = 0) -> None:
        """Check that the directory exists. Files that a pattern names may appear later."""
        super().check(max_files, max_rows)
        path = self.spec.path
        if not path:
            raise ConfigError(
                "stream.path",
                "must be given for files",
                None,
                "Give the directory of the stream's files.",
            )
        if is_local(self.spec) and not is_pattern(path) and not Path(path).exists():
            raise ConfigError(
                "stream.path",
                "must be a directory that is there",
                path,
                "Make it, if the stream's files are still to come, or mend the path.",
            )

    @property
    def location(self) -> str | None:
        """The path for Spark. Spark cannot stream a single file, so that its path becomes a pattern
        that only this file matches."""
        path = self.spec.path
        if not path or not is_local(self.spec) or not Path(path).is_file():
            return path
        return f"{path[:-1]}[{path[-1]}]"

    def splits(self, part: Part) -> list[DataFile]:
        return [DataFile(path) for path in part.files]

    def recount(self, split: DataFile, warehouse: Engine) -> Recount:
        raise CannotRecount(
            f"files of the format {self.spec.format} cannot be read again; those "
            f"that can are {', '.join(READ)}"
        )


class FileStream(PathSource):
    """Files that tasks read. Files on a file system that is not local come through Spark; each is
    held in memory as a whole."""

    texts = True

    @cached_property
    def reader(self) -> FileReader | None:
        """The reader of the files; None if Spark has to find their columns. Raises ConfigError."""
        if is_local(self.spec):
            return find_reader(self.spec, schema=self.former)
        return find_reader(self.spec) if self.spec.columns else None

    @cached_property
    def schema(self) -> pa.Schema | None:
        return None if self.reader is None else self.reader.schema

    def entries(self) -> Iterator[os.DirEntry[str] | Unreadable] | None:
        if not is_local(self.spec) or not self.spec.path:
            return None
        return list_files(os.path.abspath(self.spec.path), self.spec.options, self.spec.format)

    @property
    def is_listed_by_driver(self) -> bool:
        path, options = self.spec.path, {name.lower() for name in self.spec.all_options()}
        if not path or not is_local(self.spec) or "{" in path:
            return False
        of_spark = Path(path) / "_spark_metadata"  # Spark takes the files that are named there
        return options.isdisjoint(BY_SPARK) and not of_spark.exists()

    def most_files(self, max_files: int) -> int:
        """Return the limit of a micro-batch, in files; 0 if there is none. max_files: the limit if
        the job has none."""
        given = self._option("maxFilesPerTrigger", str(max_files))
        if not given.isdecimal():
            raise ConfigError(
                "stream.options.maxFilesPerTrigger",
                "must be a whole number",
                given,
                "Leave it out, or give the most files of a micro-batch.",
            )
        return int(given)

    def present(self) -> Iterator[DataFile]:
        """List the files that Spark would list. These are the files in the directory itself, and
        those below it only if recursiveFileLookup is set. An entry that cannot be examined is left
        out, and the proof reports it. Raises StateError if the directory itself cannot be read, and
        ConfigError if there is a directory of a partition such as day=1."""
        root, found = os.path.abspath(self.spec.path or ""), []
        for entry in list_files(root, self.spec.all_options(), self.spec.format):
            if not isinstance(entry, Unreadable):
                found.append(entry)
            elif entry.path == str(fixed_part(root)):
                raise StateError(f"The stream's directory {entry.path} cannot be read: {entry.why}")
        deep = self._option("recursiveFileLookup", "").lower() == "true"
        if not deep and os.path.isdir(root):
            partitions = [Path(entry.path) for entry in found if "=" in entry.path]
            check_partitions("stream.path", Path(root), partitions)
        level = root.count(os.sep) + 1
        for entry in found:
            # a file whose name is not UTF-8 is unknown to Spark, and reported by the proof
            if (deep or entry.path.count(os.sep) <= level) and is_utf8(entry.path):
                with suppress(FileNotFoundError):  # gone meanwhile
                    status = entry.stat()
                    yield DataFile(entry.path, status.st_size, status.st_mtime_ns)

    def _option(self, name: str, default: str) -> str:
        """Return the value of an option, whose name may be written in any case."""
        given = {k.lower(): v for k, v in self.spec.all_options().items()}
        return given.get(name.lower(), default)

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        given = {k: v for k, v in self.spec.all_options().items() if k.lower() in LISTING}
        only_data = data_filter(self.spec.format, self.spec.path or "", given)
        return listing_options(max_files) | only_data | given

    def spark_schema(self, spark: SparkSession) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        return StructType([StructField("value", StringType())])  # nobody reads this column

    def open(self, df: DataFrame) -> pa.Schema:
        if self.reader is None:
            self.reader = self._remote_reader(df.sparkSession)
        return self.reader.schema

    def _remote_reader(self, spark: SparkSession) -> FileReader:
        """Return the reader of files on a file system that is not local, from a sample that Spark
        reads."""
        from pyspark.errors import PySparkException

        with tempfile.TemporaryDirectory(dir=scratch_directory()) as directory:
            files = []
            try:
                found = (
                    spark.read.format("binaryFile")
                    .options(**self.options())
                    .load(self.spec.path)
                    .limit(SAMPLED)
                    .toLocalIterator()
                )
                for number, row in enumerate(found):
                    files.append(Path(directory) / f"{number}-{Path(row.path).name}")
                    files[-1].write_bytes(row.content)
            except PySparkException as e:
                raise self.refusal(spark, e) from None
            if not files:
                raise ConfigError(
                    "stream.path",
                    "must be a directory with at least one file, or stream.columns must be given",
                    self.spec.path,
                    "Put the first file there, or write the schema as DDL.",
                )
            return find_reader(self.spec, files)

    def input(self, df: DataFrame, part: Part) -> Splits[Any] | Records:
        from semistream.streaming.sources.decoders import ContentDecoder

        assert self.reader is not None
        if not any(map(is_remote, part.files)):
            return Splits(self.reader, [_now(file) for file in self.splits(part)])
        return Records(
            df.sparkSession.read.format("binaryFile")
            .option("__globPaths__", "false")
            .load(list(part.files))
            .select("path", "content"),
            ContentDecoder(self.reader),
        )

    def recount(self, split: DataFile, warehouse: Engine) -> Recount:
        """Return a file in the form in which the proof reads it again, which is the same as in a
        load. A line that is not a row, or whose columns cannot be read, is only counted. The
        columns of text files are texts."""
        file = _local(split.path)

        def located(columns: tuple[str, ...]) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
            for _, lines, rows in self._read_again(file, columns):
                yield lines, rows

        def read(columns: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
            for count, _, rows in self._read_again(file, columns):
                yield count, rows

        return Recount(split.path, read, located)

    def _read_again(
        self, file: Path, columns: tuple[str, ...]
    ) -> Iterator[tuple[int, np.ndarray, pa.RecordBatch]]:
        """Yield (number of rows, the line of each readable row, these columns of the rows). Raises
        CannotRecount."""
        try:
            yield from self._rows_of(file, columns)
        except (pa.ArrowException, OSError, SemistreamError) as e:
            raise CannotRecount(f"{file} cannot be read ({e})") from None

    def _rows_of(
        self, file: Path, columns: tuple[str, ...]
    ) -> Iterator[tuple[int, np.ndarray, pa.RecordBatch]]:
        from semistream.files.opening import read_files

        kind, mark, declared = self.spec.format, self.spec.mark, self.spec.declared
        typed = kind == "parquet"  # the values of other files are texts
        if mark is not None and not typed:
            raise CannotRecount(f"rows that are punctuations are not told apart in {kind} files")
        if not file.stat().st_size:
            return
        wanted, reading = [*columns, *([] if mark is None else [mark])], reading_of(self.spec)
        names = [] if declared is None else declared.names
        source = read_files("stream", [], kind, reading, _texts(names))
        found = source.columns(file) or names
        if lacking := (
            [i for i in self.spec.id if i not in found] if kind != "json" or not names else []
        ):
            raise CannotRecount(f"{file} has no column {lacking[0]}")
        there = [n for n in wanted if n in found]
        source = (
            read_files("stream", [file], kind, reading)
            if typed
            else read_files("stream", [], kind, reading, _texts(found), found)
        )
        source.only(there or found[:1])  # without a column the rows could not be counted
        for chunk in source.read(file):
            rows, lines = chunk.rows, chunk.lines
            if mark is not None:
                tuples = is_tuple(rows.column(mark))
                rows, lines = rows.filter(tuples), lines[np.asarray(tuples)]
            rows = rows.select([n for n in there if n in columns])
            if not typed and declared is None:
                rows = rows.replace_schema_metadata(INFERRED)
            yield rows.num_rows + len(chunk.rejected), lines, rows


class SparkFileStream(PathSource):
    """Files of a format that only Spark knows."""

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        return listing_options(max_files) | self.spec.all_options()

    def spark_schema(self, spark: SparkSession) -> StructType:
        from pyspark.errors import PySparkException

        if (declared := super().spark_schema(spark)) is not None:
            return declared
        try:
            return (
                spark.read.format(self.spec.format)
                .options(**self.options())
                .load(self.spec.path)
                .schema
            )
        except PySparkException as e:
            raise ConfigError(
                "stream.path", f"must hold {self.spec.format} files", self.spec.path, str(e)
            ) from None

    def input(self, df: DataFrame, part: Part) -> Splits[Any] | Records:
        """Return the rows of the part's files, which Spark reads in their present state. If the
        part names no files, return the rows of `df`."""
        if not part.files:
            return super().input(df, part)
        # a file's name may contain the characters of a pattern
        options = self.options() | {"__globPaths__": "false"}
        if self.spec.path and Path(self.spec.path).is_dir():
            options["basePath"] = self.spec.path
        files = df.sparkSession.read.format(self.spec.format).options(**options)
        return Records(files.schema(df.schema).load(list(part.files)), self.decoder)


def listing_options(max_files: int) -> dict[str, str]:
    options = {"maxFileAge": ANY_AGE}
    if max_files:
        # Listed files are not cached for later batches: so a batch with fewer files than the limit
        # has all that there are.
        options |= {"maxFilesPerTrigger": str(max_files), "maxCachedFiles": "0"}
    return options


def _now(file: DataFile) -> DataFile:
    """Return a file with its present size. The size is unknown if the file cannot be examined,
    because the task that reads it will report the error."""
    with suppress(OSError):
        return file.now() or file
    return file


def _local(path: str) -> Path:
    """Return the path of an existing local file. Raises CannotRecount."""
    if is_remote(path):
        raise CannotRecount(f"{path} is not on a file system here")
    try:
        there = Path(path).is_file()
    except OSError as e:
        raise CannotRecount(f"{path} cannot be looked at ({e.strerror or e})") from None
    if not there:
        raise CannotRecount(f"the source file {path} is gone")
    return Path(path)


def _texts(names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def is_tuple(marks: pa.Array) -> pa.Array:
    """Return for each row whether it is a tuple, and not a punctuation; see
    ``stream_joins.sources.PunctuationRows``."""
    marked = marks if pa.types.is_boolean(marks.type) else pc.not_equal(marks, "")
    return pc.invert(pc.fill_null(marked, False))
