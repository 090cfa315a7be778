"""The choice of the reader for a data file, or for a directory of data files."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa

from semistream.column_format import ColumnFormat
from semistream.data_files import ENDINGS
from semistream.errors import ConfigError
from semistream.files.csv_source import CsvSource
from semistream.files.formats import check_formats
from semistream.files.inference import parse_type
from semistream.files.json_source import JsonSource
from semistream.files.parquet_source import ParquetSource
from semistream.files.source import FileSource, Reading
from semistream.files.text_source import plain_suffix

FORMATS = {ending: kind for kind, endings in ENDINGS.items() for ending in endings}
SOURCES: dict[str, type[FileSource]] = {
    "csv": CsvSource,
    "json": JsonSource,
    "parquet": ParquetSource,
}

# options of files as Spark names them, in lower case; a stream's may have no header, too
OPTIONS = ("sep", "delimiter", "quote", "escape", "encoding", "charset", "nullvalue")


def open_source(
    side: str,
    path: Path,
    *,
    kind: str = "",
    types: Mapping[str, str | pa.DataType] | None = None,
    null_values: Sequence[str] = (),
    delimiter: str = "",
    formats: Mapping[str, ColumnFormat] | None = None,
    options: Mapping[str, str] | None = None,
) -> FileSource:
    """Open a data file or directory, and find its schema.

    side: the input's name in errors; kind: csv, json or parquet, by default according to the file's
    name; types: types, or names of types, by column, which replace inferred ones; formats: by
    column; options: the options of the files, which replace null_values and delimiter.
    Raises ConfigError for a file that cannot be read in this way.
    """
    reading = Reading(tuple(null_values), delimiter, formats=formats or {})
    if options:
        check_options(f"{side}.options", options)
        reading = reading_of(options, formats or {}, f"{side}.options")
    paths = [path]
    if path.is_dir():
        paths = sorted(
            p
            for p in path.rglob("*")
            if p.is_file()
            and _format(p)
            and not any(part[0] in "._" for part in p.relative_to(path).parts)
        )
        check_partitions(side, path, paths)
    if not paths or not paths[0].is_file():
        raise ConfigError(
            side,
            "must be a file or a directory with files that exists",
            str(path),
            "Check the path.",
        )
    kinds = {kind or _format(p) for p in paths}
    if len(kinds) != 1 or not min(kinds):
        raise ConfigError(
            f"{side}_format",
            "must be csv, json or parquet, the same for all files",
            str(path),
            "Name them .csv, .tsv, .jsonl or .parquet, or tell it where "
            f"it can be told: --{side}-format csv.",
        )
    declared = {c: parse_type(c, t) if isinstance(t, str) else t for c, t in (types or {}).items()}
    source = SOURCES[kinds.pop()](side, paths, declared, reading)
    check_formats(source.schema, formats or {}, side)
    return source


def check_options(place: str, options: Mapping[str, str]) -> None:
    """Check the options of files. place: the name of the options in errors. Raises ConfigError for
    an unknown option."""
    for name, value in options.items():
        if name.lower() not in OPTIONS:
            near = get_close_matches(name.lower(), OPTIONS, 1)
            raise ConfigError(
                f"{place}.{name}",
                "is no option of how files are written",
                value,
                "".join(f"Did you mean {n}? " for n in near) + f"Known are: {', '.join(OPTIONS)}.",
            )


def reading_of(
    options: Mapping[str, str], formats: Mapping[str, ColumnFormat], place: str
) -> Reading:
    """Return how files are written, according to options with the names that Spark uses. place: the
    name of the options in errors. Raises ConfigError for an impossible value."""
    options = {k.lower(): v for k, v in options.items()}
    separator = options.get("sep", options.get("delimiter", ""))
    signs = {
        "sep": separator,
        "quote": options.get("quote", '"'),
        "escape": options.get("escape", ""),
    }
    for name, sign in signs.items():
        if len(sign) > 1 or not sign.isascii():
            raise ConfigError(
                f"{place}.{name}", "must be one ASCII character", sign, "Choose another one."
            )
    if (truth := options.get("header", "true").lower()) not in ("true", "false"):
        raise ConfigError(f"{place}.header", "must be true or false", truth, "Give one.")
    null = (options["nullvalue"],) if options.get("nullvalue") else ()
    quote, escape = signs["quote"], signs["escape"]
    return Reading(
        null,
        separator,
        quote,
        "" if escape == quote else escape,
        _encoding(place, options.get("encoding", options.get("charset", ""))),
        truth == "true",
        formats,
    )


def _encoding(place: str, name: str) -> str:
    """Return the encoding of this name; "" for UTF-8. Raises ConfigError for an unknown
    encoding."""
    try:
        found = codecs.lookup(name).name if name else ""
    except LookupError:
        raise ConfigError(
            f"{place}.encoding",
            "must be an encoding that Python knows",
            name,
            "For instance ISO-8859-1.",
        ) from None
    return "" if found == "utf-8" else found


def read_files(
    side: str,
    paths: Sequence[Path],
    kind: str,
    reading: Reading,
    schema: pa.Schema | None = None,
    declared: Sequence[str] = (),
) -> FileSource:
    """Open files of a known format. schema: the schema of the files, if known; declared: the
    columns of this schema whose types were not inferred. Raises ConfigError as ``open_source``
    does."""
    types = {} if schema is None else {name: schema.field(name).type for name in declared}
    return SOURCES[kind](side, paths, types, reading, schema)


def check_partitions(parameter: str, path: Path, files: Sequence[Path]) -> None:
    """Check that no file is in a Hive-style directory such as year=2026, because the files lack
    that column. Raises ConfigError otherwise."""
    for file in files:
        if hive := [part for part in file.relative_to(path).parts[:-1] if "=" in part]:
            raise ConfigError(
                parameter,
                "must be a directory whose files have all columns",
                str(file),
                f"The column {hive[0].split('=')[0]} is in the name of a "
                "directory only. Write it into the files, or give one of "
                f"the directories, as {hive[0]}.",
            )


def _format(path: Path) -> str:
    return FORMATS.get(plain_suffix(path), "")
