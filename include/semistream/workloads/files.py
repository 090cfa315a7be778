"""Rows of CSV, JSON-lines and Parquet files as record batches of one schema; rows that do not fit it are set aside."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from semistream.errors import ConfigError
from semistream.warehouse.types import stored_schema

BLOCK_BYTES = 16_000_000  # read at a time; the first block fixes the types
ROWS = 65_536
NULLS = ["", "NA", "N/A", "#N/A", "NULL", "null", "NaN", "nan"]  # in columns that are not strings
FORMATS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
           ".pq": "parquet"}


@dataclass(frozen=True)
class Rejected:
    """A row that was set aside: why, and what it was."""

    reason: str
    detail: str
    tuple: str


class FileRows:
    """The rows of a file, or of all files in a directory, in batches of ``schema``; iterate once.

    schema: what they are read as; default: what the first file has (Parquet) or its first block suggests (CSV, JSON lines).
    ``rejected`` gathers the rows that do not fit, for the reader to take away. Raises ConfigError for no or unknown files.
    """

    def __init__(self, path: str | Path, schema: pa.Schema | None = None):
        self.files = _files(Path(path))
        self.format = _format(self.files[0])
        self.found = _SCHEMAS[self.format](self.files[0])
        self.schema = stored_schema(schema or self.found)
        self.rejected: list[Rejected] = []
        self.bytes = sum(f.stat().st_size for f in self.files)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for file in self.files:
            yield from _READERS[self.format](file, self)

    def take_rejected(self) -> list[Rejected]:
        taken, self.rejected = self.rejected, []
        return taken


def conform(batch: pa.RecordBatch, schema: pa.Schema, rejected: list[Rejected]) -> pa.RecordBatch:
    """The batch in another schema; rows with a value that cannot be converted go to ``rejected``. Missing columns are null."""
    columns: list[pa.Array] = []
    wrong: dict[int, str] = {}
    for field in schema:
        i = batch.schema.get_field_index(field.name)
        column, bad = convert(batch.column(i), field.type) if i >= 0 else (pa.nulls(batch.num_rows, field.type), {})
        columns.append(column)
        for row, why in bad.items():
            wrong.setdefault(row, f"{field.name}: {why}")
    if wrong:
        for row, why in wrong.items():
            rejected.append(Rejected("unparsable", why, json.dumps(batch.slice(row, 1).to_pylist()[0], default=str)))
        keep = pa.array([i not in wrong for i in range(batch.num_rows)])
        return pa.record_batch([c.filter(keep) for c in columns], schema=schema)
    return pa.record_batch(columns, schema=schema)


def convert(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """(the column in another type, why by row where that fails and null stands)."""
    if column.type == kind:
        return column, {}
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.is_in(column, pa.array(NULLS)), pa.scalar(None, pa.string()), column)
    try:
        return _cast(column, kind), {}
    except pa.ArrowInvalid:
        pass
    bad, values = {}, []
    for i in range(len(column)):
        try:
            values.append(_cast(column.slice(i, 1), kind))
        except pa.ArrowInvalid:
            bad[i] = f"{column[i].as_py()!r} is no {kind}"
            values.append(pa.nulls(1, kind))
    return pa.concat_arrays(values), bad


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(column.type) and pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01", column, " ").cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    if pa.types.is_string(column.type) and pa.types.is_timestamp(kind) and kind.tz:
        column = pc.if_else(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$"), column,
                            pc.binary_join_element_wise(column, "Z", ""))  # no zone: UTC
    return column.cast(kind)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(f for f in path.glob("**/*") if f.is_file() and not f.name.startswith((".", "_"))) if path.is_dir() else []
    if not files:
        raise ConfigError("path", "must be a file or a directory with files", str(path), "Check the path.")
    return files


def _format(file: Path) -> str:
    if file.suffix.lower() not in FORMATS:
        raise ConfigError("path", "must have a known extension", file.name, f"Known: {', '.join(FORMATS)}.")
    return FORMATS[file.suffix.lower()]


# ---- CSV


def _csv_options(file: Path, **convert_options: Any) -> dict[str, Any]:
    return {"read_options": csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            "parse_options": csv.ParseOptions(delimiter="\t" if file.suffix.lower() == ".tsv" else ",", newlines_in_values=True),
            "convert_options": csv.ConvertOptions(**convert_options)}


def _csv_schema(file: Path) -> pa.Schema:
    options = _csv_options(file)
    options["parse_options"].invalid_row_handler = lambda row: "skip"
    try:
        with csv.open_csv(file, **options) as reader:
            return reader.schema
    except pa.ArrowInvalid as e:
        raise ConfigError("path", "must be a CSV file with a header", str(file), str(e)) from None


def _csv_rows(file: Path, rows: FileRows) -> Iterator[pa.RecordBatch]:
    """Every column is read as text first: a value that is no number costs its row, not the load."""
    text = {n: pa.string() for n in rows.found.names}
    options = _csv_options(file, column_types=text, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)

    def reject(row: Any) -> str:
        why = f"line {row.number}: " if row.number else ""
        rows.rejected.append(Rejected("unparsable", f"{why}{row.actual_columns} columns, not {row.expected_columns}", row.text
                                      or ""))
        return "skip"

    options["parse_options"].invalid_row_handler = reject
    with csv.open_csv(file, **options) as reader:
        for batch in reader:
            for start in range(0, batch.num_rows, ROWS):
                yield conform(batch.slice(start, ROWS), rows.schema, rows.rejected)


# ---- JSON lines


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines, about BLOCK_BYTES at a time."""
    while block := file.read(BLOCK_BYTES):
        yield block + file.readline()


def _json_schema(file: Path) -> pa.Schema:
    with open(file, "rb") as f:
        block = next(_blocks(f), b"")
    try:
        return pajson.read_json(io.BytesIO(block)).schema
    except pa.ArrowInvalid:
        good = [line for line in block.splitlines() if isinstance(_parse(line), dict)]
    if not good:
        raise ConfigError("path", "must have JSON objects, one a line", str(file), "Check the file.")
    values = [json.loads(line) for line in good]
    return pa.schema([(n, _value_type([v[n] for v in values if v.get(n) is not None]))
                      for n in dict.fromkeys(n for v in values for n in v)])


def _value_type(values: list[Any]) -> pa.DataType:
    """The type of a column's JSON values; text where they are mixed."""
    try:
        return pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _json_rows(file: Path, rows: FileRows) -> Iterator[pa.RecordBatch]:
    options = pajson.ParseOptions(explicit_schema=rows.schema, unexpected_field_behavior="ignore")
    with open(file, "rb") as f:
        for block in _blocks(f):
            try:
                table = pajson.read_json(io.BytesIO(block), pajson.ReadOptions(False, len(block) + 1), options).combine_chunks()
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                yield _json_one_by_one(block, rows)
                continue
            for batch in table.to_batches(ROWS):
                yield conform(batch, rows.schema, rows.rejected)


def _json_one_by_one(block: bytes, rows: FileRows) -> pa.RecordBatch:
    """A block with something wrong in it, line by line, its values as text."""
    good = []
    for line in filter(bytes.strip, block.splitlines()):
        value = _parse(line)
        if isinstance(value, dict):
            good.append({k: v if v is None or isinstance(v, str) else json.dumps(v) for k, v in value.items()})
        else:
            rows.rejected.append(Rejected("unparsable", "no JSON object", line.decode(errors="replace")))
    text = pa.schema([(n, pa.string()) for n in rows.schema.names])
    return conform(pa.RecordBatch.from_pylist(good, text), rows.schema, rows.rejected)


# ---- Parquet


def _parquet_schema(file: Path) -> pa.Schema:
    try:
        return pq.read_schema(file)
    except (pa.ArrowInvalid, OSError) as e:
        raise ConfigError("path", "must be a Parquet file", str(file), str(e)) from None


def _parquet_rows(file: Path, rows: FileRows) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as f:
        for batch in f.iter_batches(ROWS):
            yield conform(batch, rows.schema, rows.rejected)


_SCHEMAS = {"csv": _csv_schema, "json": _json_schema, "parquet": _parquet_schema}
_READERS = {"csv": _csv_rows, "json": _json_rows, "parquet": _parquet_rows}
