"""Data files as a source: a micro-batch's tuples out of its files as they are, and the schema that
the first one has."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import reduce
from operator import or_
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DoubleType, MapType, StringType, StructField, StructType

from semistream.config import FILE_FORMATS, StreamSpec
from semistream.errors import ConfigError
from semistream.files.source import CsvSource, check_partitions, file_columns, open_source
from semistream.keys_spark import quoted
from semistream.source_files import RAW, is_remote
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.documents import document, with_raw
from semistream.streaming.sources.numbers import CONVERTED, convert

log = logging.getLogger(__name__)
FILE = "_file"  # beside the tuples of text files: its URI
TEXTS = ("csv", "json")  # file formats whose tuples may be unparsable
SAME_TYPES = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
              pa.string(), pa.binary(),
              pa.date32(), pa.timestamp("us", "UTC")}  # Parquet's, that Arrow and Spark read alike
LATIN = "ISO-8859-1"
ANY_AGE = "36500d"  # Spark by default never loads a file a week older than the newest one
SAMPLE_FILES = 1  # that the schema of files without one is taken from


class FileSource(Source):
    """Files of a format of Spark's, as they appear in a directory."""

    formats = FILE_FORMATS

    def options(self, max_files: int = 0, max_rows: int = 0) -> dict[str, str]:
        return file_options(self.spec, max_files)

    def schema(self, spark: SparkSession) -> StructType:
        found = super().schema(spark) or infer(spark, self.spec)
        return with_raw(found) if self.spec.format in TEXTS else found


def read_files(df: DataFrame, spec: StreamSpec, paths: list[str]) -> DataFrame:
    """A micro-batch's tuples out of its files as they are now. Spark reads no more of a file than
    there was when it listed it.

    df: the micro-batch as Spark gives it. Lazy.
    """
    wanted = [name for name in df.columns if name != RAW]
    # a CSV file's columns go by its header, which Spark does not read
    orders: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        found = _columns(spec, path) if spec.format == "csv" else None
        orders.setdefault(tuple(found or wanted), []).append(path)
    fields = {field.name: field for field in df.schema}
    raw = [fields[RAW]] if RAW in fields else []
    origin = [F.col("_metadata.file_path").alias(FILE)] if raw else []
    parts = [_part(df, spec, alike, [fields[n] for n in order],
                   raw).select(*map(quoted, df.columns), *origin)
             for order, alike in orders.items()]
    tuples = reduce(DataFrame.unionAll, parts)
    return _with_documents(tuples, spec) if raw else tuples


def check_files(spec: StreamSpec, paths: list[str], wanted: list[str]) -> None:
    """Raises ConfigError for a file with other columns than the stream's."""
    for path in paths:
        if (found := _columns(spec, path, wanted)) is not None:
            _check_columns(spec, path, found, wanted)


def schema_before_session(spec: StreamSpec) -> pa.Schema | None:
    """The stream's schema as far as it can be known without Spark: that of the first Parquet file,
    else None."""
    if spec.format != "parquet" or spec.columns or not spec.path or "://" in spec.path:
        return None
    first = next((p for p in sorted(Path(spec.path).rglob("*.parquet"))
                  if not p.name.startswith(("_", "."))), None)
    if first is None:
        return None
    fields = [f.with_type(pa.timestamp("us", f.type.tz)) if pa.types.is_timestamp(f.type) else f
              for f in pq.read_schema(first)]
    return pa.schema(fields)


def _with_documents(df: DataFrame, spec: StreamSpec) -> DataFrame:
    """df, of text files, with documents in ``_corrupt_record``, and without FILE. Tuples that are
    not UTF-8 are unparsable ones: Spark would pass on their bytes, on which Python fails, or has
    put U+FFFD in their place where a CSV file's encoding is told.
    """
    if _byte_by_byte(spec):
        latin = {f.name for f in df.schema if isinstance(f.dataType, StringType) and f.name != FILE}
        df = df.select(*(F.encode(quoted(n), LATIN).cast("string").alias(n) if n in latin
                         else quoted(n) for n in df.columns))
    others = [f for f in df.schema if f.name not in (RAW, FILE)]
    texts = [quoted(f.name) if isinstance(f.dataType, StringType)
             else F.to_json(F.struct(quoted(f.name))) for f in others
             if isinstance(f.dataType, (StringType, StructType, ArrayType, MapType))]
    decoded = spec.format == "csv" and not _byte_by_byte(spec)
    wrong = [F.coalesce(F.contains(t, F.lit("\ufffd")) if decoded else ~F.is_valid_utf8(t),
                        F.lit(False)) for t in [*texts, quoted(RAW)]]
    bad = reduce(or_, wrong)
    delimiter = _delimiter(spec) if spec.format == "csv" else ""
    row = F.struct(*(quoted(f.name) for f in others))
    whole = F.to_csv(row, {"sep": delimiter or ",",
                           "escape": '"'}) if spec.format == "csv" else F.to_json(row)
    text = F.when(bad, F.make_valid_utf8(F.coalesce(quoted(RAW), whole))).otherwise(quoted(RAW))
    columns = [F.when(~bad, quoted(f.name)).alias(f.name)
               if isinstance(f.dataType, (StringType, StructType, ArrayType, MapType))
               else quoted(f.name) for f in others]
    return df.select(*columns, document(text, spec.format, F.col(FILE), bad, delimiter).alias(RAW))


def _byte_by_byte(spec: StreamSpec) -> bool:
    """Whether a CSV file is read as LATIN, a character a byte, so that its texts can be told from
    what is not UTF-8."""
    options = {k.lower(): v for k, v in spec.all_options().items()}
    return (spec.format == "csv" and not {"encoding", "charset"} & options.keys()
            and all(v.isascii() for v in options.values()))


def _delimiter(spec: StreamSpec) -> str:
    options = {k.lower(): v for k, v in spec.all_options().items()}
    return options.get("sep", options.get("delimiter", ""))


def _columns(spec: StreamSpec, path: str, wanted: Sequence[str] = ()) -> list[str] | None:
    """What columns a local file has, by itself, as ``file_columns`` tells them; None where it does
    not say."""
    options = {k.lower(): v for k, v in spec.all_options().items()}
    if (spec.format not in (*TEXTS, "parquet") or is_remote(path)
        or options.get("header", "true").lower() != "true" or "encoding" in options
        or not Path(path).is_file()):
        return None
    return file_columns(Path(path), spec.format, _delimiter(spec), wanted)


def _check_columns(spec: StreamSpec, path: str, found: list[str], wanted: list[str]) -> None:
    """Raises ConfigError. With ``stream.columns`` given, a JSON file may lack some of them, and any
    but CSV may have more."""
    told = bool(spec.columns)
    lacking = ([] if told and spec.format == "json"
               else [name for name in wanted if name not in found])
    new = [] if told and spec.format != "csv" else [name for name in found if name not in wanted]
    if lacking and spec.path and Path(path).is_relative_to(spec.path):
        check_partitions("stream.path", Path(spec.path), [Path(path)])
    if lacking or new:
        what = (lacking and f"lacks {', '.join(lacking)}",
                new and f"has {', '.join(new)}, which the stream has not")
        raise ConfigError("stream", "must have the same columns in every file",
                          f"{path} {' and '.join(w for w in what if w)}",
                          f"The stream's columns are {', '.join(wanted)}. Nothing of this batch is "
                          "loaded: mend the file and start the app again. Where columns "
                          "vary, stream.columns says which ones to read (a schema as DDL).")


def _part(df: DataFrame, spec: StreamSpec, paths: list[str], fields: list[StructField],
          raw: list[StructField]) -> DataFrame:
    """The tuples of files whose columns are in the same order. Where types were found from the
    first CSV file, and not told, a tuple with a number that its type would alter is an unparsable
    one."""
    found = {f.name: f.dataType for f in fields if isinstance(f.dataType, CONVERTED)}
    if spec.format != "csv" or spec.columns or not found:
        return _load(df, spec, paths, StructType([*fields, *raw]))
    texts = StructType(
        [StructField(f.name, StringType()) if f.name in found else f for f in fields])
    loaded = _load(df, spec, paths, StructType([*texts, *raw]))
    numbers = {name: convert(quoted(name), kind) for name, kind in found.items()}
    altered = reduce(
        or_, ((F.trim(quoted(name)) != "") & number.isNull() for name, number in numbers.items()))
    row = F.to_csv(F.struct(*(quoted(f.name) for f in fields)),
                   {"sep": _delimiter(spec) or ",", "escape": '"'})
    return loaded.withColumns({**numbers, RAW: F.coalesce(F.col(RAW), F.when(altered, row))})


def _load(df: DataFrame, spec: StreamSpec, paths: list[str], schema: StructType) -> DataFrame:
    # a file's name may have a pattern's signs
    options = file_options(spec) | {"__globPaths__": "false"}
    if _byte_by_byte(spec):
        options["encoding"] = LATIN
    if spec.path and Path(spec.path).is_dir():
        options["basePath"] = spec.path
    return df.sparkSession.read.format(spec.format).options(**options).schema(schema).load(paths)


def file_options(spec: StreamSpec, max_files: int = 0) -> dict[str, str]:
    options: dict[str, str] = {"maxFileAge": ANY_AGE}
    if spec.format == "csv":
        # RFC 4180, as `semistream join` has it
        options |= {"header": "true", "escape": '"', "multiLine": "true"}
    if spec.format in TEXTS:
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW}
    if spec.format == "json":
        options["allowSingleQuotes"] = "false"  # as `semistream join` has it
    if max_files:
        # What was listed is not kept for later batches: then a batch that has fewer files than it
        # may has all that there are.
        options |= {"maxFilesPerTrigger": str(max_files), "maxCachedFiles": "0"}
    return options | spec.all_options()


def infer(spark: SparkSession, spec: StreamSpec) -> StructType:
    """The schema that the first files have, or seem to have."""
    if not spec.path:
        raise ConfigError("stream.path", "must be given for files", None,
                          "Give the directory of the stream's files.")
    if "://" in spec.path:
        files = [spec.path]
    else:
        files = sorted(str(p) for p in Path(spec.path).rglob("*") if p.is_file()
                       and not p.name.startswith(("_", ".")))
        if not files:
            raise ConfigError("stream.path", "must be a directory with at least one file, or "
                                             "stream.columns must be given",
                              spec.path, "Put the first file there, or write the schema as DDL.")
    if spec.format == "parquet" and (schema := schema_of(files[0])) is not None:
        return schema
    if "://" not in spec.path and Path(spec.path).is_dir():
        check_partitions("stream.path", Path(spec.path), [Path(f) for f in files])
    options = file_options(spec) | ({"inferSchema": "true"} if spec.format == "csv" else {})
    try:
        found = spark.read.format(spec.format).options(**options).load(files[:SAMPLE_FILES]).schema
        return (found if spec.format != "csv" or is_remote(files[0])
                else _unaltered(spec, Path(files[0]), found))
    except PySparkException as e:
        raise ConfigError("stream.path", f"must hold {spec.format} files", spec.path,
                          str(e).split("\n")[0]) from None


def _unaltered(spec: StreamSpec, file: Path, found: StructType) -> StructType:
    """A CSV file's schema as Spark finds it, but for types that would alter values: numbers that a
    double does not keep are decimals or texts, leading zeros and fractions of a microsecond make
    texts, and exponents no doubles of integers."""
    options = {k.lower(): v for k, v in spec.all_options().items()}
    if "encoding" in options or options.get("header", "true").lower() != "true":
        return found
    source = open_source("stream", file, kind="csv", delimiter=_delimiter(spec))
    assert isinstance(source, CsvSource)
    for note in source.notes:
        log.warning("%s", note)
    kinds = {f.name: f.type for f in source.schema if pa.types.is_string(f.type)}
    doubles = {f.name for f in found if isinstance(f.dataType, DoubleType)}
    kinds |= {f.name: f.type for f in source.schema if f.name in doubles
              and pa.types.is_decimal(f.type)}
    for name in doubles & {n for n, share in source.exponents.items() if share}:
        kinds[name] = pa.int64()
        log.warning("stream column %s is read as int64; numbers with an exponent are integers "
                    "there, too", name)
    return StructType([StructField(f.name, from_arrow_type(kinds[f.name])) if f.name in kinds else f
                       for f in found])


def schema_of(file: str) -> StructType | None:
    """A Parquet file's schema without the Spark job that takes a second of the start; None where
    Spark must tell."""
    try:
        fields = list(pq.read_schema(file))
    except (OSError, pa.ArrowException):
        return None
    same = all(f.type in SAME_TYPES or pa.types.is_decimal128(f.type) for f in fields)
    if not same or len({f.name.lower() for f in fields}) < len(fields):
        return None
    return StructType([StructField(f.name, from_arrow_type(f.type)) for f in fields])
