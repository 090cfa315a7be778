"""The reason why Spark could not parse a tuple, and the tuple's line in its file. Spark tells
neither.

The query passes ``_corrupt_record`` as a JSON document (``sources.files``) with the tuple's text
and its file. The task that stores the tuple finds reason and line by the same rules as ``semistream
join``.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.files.convert import cast_cells, cast_rows
from semistream.files.source import file_columns
from semistream.source_files import RAW, is_remote

# tuples per partition of a micro-batch that get a reason and a line; the others keep text and file
EXPLAINED = 10_000
UNKNOWN = "Spark does not read it as these columns' types"
NO_UTF8 = "not UTF-8"


def explain(documents: Sequence[str], stream: pa.Schema, before: int = 0) -> list[dict[str, Any]]:
    """The stored form of each document's tuple: ``_corrupt_record`` (its text), and ``file`` if it
    came from one.

    The first ``EXPLAINED`` tuples also get ``why`` and, if it was found, ``line``: the number, from
    1, of the first line with this text. before: tuples explained already.
    """
    found = [json.loads(d) for d in documents]
    most = max(EXPLAINED - before, 0)
    kept = []
    lines: dict[tuple[str, str, str], dict[Any, int]] = {}
    for n, d in enumerate(found):
        out = {RAW: d[RAW]}
        if n < most:
            out["why"] = NO_UTF8 if d.get("unreadable") else _why(d, stream)
        if "file" in d:
            out["file"] = plain_path(d["file"])
            if n < most:
                lines.setdefault(_origin(d), {})[_mark(d)] = 0
        kept.append(out)
    for origin, wanted in lines.items():
        _find(*origin, wanted)
    for d, out in zip(found[:most], kept, strict=False):
        if "file" in d and (line := lines[_origin(d)][_mark(d)]):
            out["line"] = line
    return kept


def plain_path(uri: str) -> str:
    """A local file's path; any other URI as it is."""
    parts = urlparse(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else uri


def _why(d: Mapping[str, Any], stream: pa.Schema) -> str:
    return _why_csv(d, stream) if d["format"] == "csv" else _why_json(d[RAW], stream)


def _why_csv(d: Mapping[str, Any], stream: pa.Schema) -> str:
    delimiter = d.get("delimiter", ",")
    names = _header(plain_path(d["file"]), delimiter) or stream.names
    try:
        cells = next(csv.reader(io.StringIO(d[RAW], newline=""), delimiter=delimiter, strict=True),
                     [])
    except csv.Error:
        return "quotes do not match"
    if len(cells) != len(names):
        return f"{len(cells)} fields in place of {len(names)}"
    texts = pa.RecordBatch.from_arrays([pa.array([cell or None], pa.string()) for cell in cells],
                                       names=names)
    try:
        texts = texts.select(stream.names)
        return (cast_rows(texts, stream)[1].get(0)
                or cast_rows(texts, stream, stream.names)[1].get(0, UNKNOWN))
    except (KeyError, pa.ArrowException):
        return UNKNOWN


@cache
def _header(file: str, delimiter: str) -> list[str] | None:
    try:
        return None if is_remote(file) else file_columns(Path(file), "csv", delimiter)
    except (OSError, pa.ArrowException, ConfigError):
        return None


def _why_json(text: str, stream: pa.Schema) -> str:
    try:
        tuple_ = json.loads(text)
    except (ValueError, RecursionError) as e:
        return f"not JSON: {e}"
    if not isinstance(tuple_, dict):
        return "not one JSON object"
    wrong = (f for f in stream if tuple_.get(f.name) is not None
             and not _fits(tuple_[f.name], f.type))
    return next((f"{f.name}: {tuple_[f.name]!r} is not {f.type}" for f in wrong), UNKNOWN)


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether Spark takes a JSON value for this type. Spark is strict, except that any value is a
    string."""
    if pa.types.is_boolean(kind) or isinstance(value, bool):
        return isinstance(value, bool) and (pa.types.is_boolean(kind) or pa.types.is_string(kind))
    if pa.types.is_integer(kind) or pa.types.is_nested(kind):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, OverflowError):
            return False
        return not pa.types.is_integer(kind) or isinstance(value, int)
    if isinstance(value, str) and not pa.types.is_string(kind):
        return not len(cast_cells(pa.array([value]), kind)[1])
    return pa.types.is_string(kind) or not isinstance(value, (dict, list))


def _origin(d: Mapping[str, Any]) -> tuple[str, str, str]:
    return plain_path(d["file"]), d["format"], d.get("delimiter", ",")


def _mark(d: Mapping[str, Any]) -> Any:
    """What identifies a tuple's first line in its file: the line's text. If the line is not UTF-8,
    Spark replaces bytes by U+FFFD and may rewrite the rest; then the cells with U+FFFD do."""
    return _damaged(d[RAW],
                    *_origin(d)[1:]) if d.get("unreadable") else d[RAW].split("\n")[0].rstrip("\r")


def _damaged(text: str, kind: str, delimiter: str) -> frozenset[str]:
    try:
        cells: list[Any] = ([json.loads(text)] if kind == "json"
                            else next(csv.reader([text], delimiter=delimiter), []))
    except (ValueError, csv.Error):
        cells = [text]
    return frozenset(cell for cell in _texts(cells) if "\ufffd" in cell)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(part)


def _find(file: str, kind: str, delimiter: str, wanted: dict[Any, int]) -> None:
    """Set the line number of each mark in `wanted`, if the file can be read here and still has the
    line."""
    texts = {mark.encode(): mark for mark in wanted if isinstance(mark, str)}
    damaged = len(texts) < len(wanted)
    left = len(wanted)
    if is_remote(file):
        return
    try:
        with (gzip.open(file) if file.endswith(".gz") else open(file, "rb")) as lines:
            for number, raw in enumerate(lines, 1):
                line = (raw.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf") if number == 1
                        else raw.rstrip(b"\r\n"))
                mark: Any = texts.get(line)
                if (mark is None and damaged and not line.isascii()
                    and (text := line.decode(errors="replace")) != line.decode(errors="ignore")):
                    mark = _damaged(text, kind, delimiter)
                if mark is not None and wanted.get(mark) == 0:
                    wanted[mark], left = number, left - 1
                    if not left:
                        return
    except (OSError, EOFError):
        return  # the file is gone or damaged; the tuple's text is kept anyway
