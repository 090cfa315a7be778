"""Data files as a source. Spark finds the files and assigns them to micro-batches; tasks read them.
Formats that only Spark knows are read by Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from semistream.job import FILE_FORMATS
from semistream.errors import ConfigError
from semistream.scratch import scratch_directory
from semistream.source_files import data_filter, is_pattern, is_remote
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.reader import LISTING, READ, Reader, find_reader, is_local

ANY_AGE = "36500d"  # by default Spark ignores a file a week older than the newest one
SAMPLED = 3  # remote files from which the schema is inferred


class PathSource(Source):
    """Files that appear in a directory."""

    def check(self, max_files: int = 0, max_rows: int = 0) -> None:
        """Check that the directory exists. Files that a pattern names may appear later."""
        super().check(max_files, max_rows)
        path = self.spec.path
        if not path:
            raise ConfigError("stream.path", "must be given for files", None,
                              "Give the directory of the stream's files.")
        if is_local(self.spec) and not is_pattern(path) and not Path(path).exists():
            raise ConfigError("stream.path", "must be a directory that is there", path,
                              "Make it, if the stream's files are still to come, or mend the path.")


class FileSource(PathSource):
    """Files in a directory that tasks read as they appear."""

    formats = READ
    read_by_tasks = True

    def reader(self) -> Reader | None:
        if is_local(self.spec) or self.spec.columns:
            return find_reader(self.spec)
        return None

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        given = {k: v for k, v in self.spec.all_options().items() if k.lower() in LISTING}
        beside = data_filter(self.spec.format, self.spec.path or "", given)
        return listing_options(max_files) | beside | given

    def schema(self, spark: SparkSession) -> StructType | None:
        return StructType([StructField("value", StringType())])  # nobody reads this column

    def remote_reader(self, spark: SparkSession) -> Reader:
        """Find the schema of files on another file system through Spark, and return their
        reader."""
        with tempfile.TemporaryDirectory(dir=scratch_directory()) as directory:
            files = []
            try:
                found = spark.read.format("binaryFile").options(**self.options()).load(
                    self.spec.path).limit(SAMPLED).toLocalIterator()
                for number, row in enumerate(found):
                    files.append(Path(directory) / f"{number}-{Path(row.path).name}")
                    files[-1].write_bytes(row.content)
            except PySparkException as e:
                raise self.refusal(spark, e) from None
            if not files:
                raise ConfigError("stream.path", "must be a directory with at least one file, or "
                                                 "stream.columns must be given", self.spec.path,
                                  "Put the first file there, or write the schema as DDL.")
            return find_reader(self.spec, files)

    def files(self, df: DataFrame, paths: list[str]) -> DataFrame | None:
        """Return path and content of remote files, each held in memory as a whole; None for local
        files."""
        if not any(map(is_remote, paths)):
            return None
        return df.sparkSession.read.format("binaryFile").option(
            "__globPaths__", "false").load(paths).select("path", "content")


class SparkFiles(PathSource):
    """Files of a format that only Spark knows."""

    formats = tuple(f for f in FILE_FORMATS if f not in READ)

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        return listing_options(max_files) | self.spec.all_options()

    def schema(self, spark: SparkSession) -> StructType:
        if (told := super().schema(spark)) is not None:
            return told
        try:
            return spark.read.format(self.spec.format).options(**self.options()).load(
                self.spec.path).schema
        except PySparkException as e:
            raise ConfigError("stream.path", f"must hold {self.spec.format} files", self.spec.path,
                              str(e)) from None

    def files(self, df: DataFrame, paths: list[str]) -> DataFrame | None:
        # a file's name may contain the characters of a pattern
        options = self.options() | {"__globPaths__": "false"}
        if self.spec.path and Path(self.spec.path).is_dir():
            options["basePath"] = self.spec.path
        return df.sparkSession.read.format(self.spec.format).options(**options).schema(
            df.schema).load(paths)


def listing_options(max_files: int) -> dict[str, str]:
    options = {"maxFileAge": ANY_AGE}
    if max_files:
        # Listed files are not cached for later batches: so a batch with fewer files than the limit
        # has all that there are.
        options |= {"maxFilesPerTrigger": str(max_files), "maxCachedFiles": "0"}
    return options
