"""The settings of the commands on files. Nothing heavy is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from semistream.column_format import Formats
from semistream.settings import JoinSettings, Names, Pairs, Publishing, Types

Format = Literal["csv", "json", "parquet"]
FORMATS = ("How columns are written that are not written as usual, COLUMN=FORMAT: a time format "
           "such as %d/%m/%Y, an example number such as 1.234,56, words such as trim or fold; see "
           "docs/input.md")


class JoinFiles(JoinSettings):
    """The settings of a join of files."""

    stream: Path = Field(description="The stream's tuples: a CSV, JSON lines or Parquet file "
                                     "(.csv, .tsv, .jsonl, .parquet; text also as .gz, .zst), or a "
                                     "directory of such files")
    master: Path | None = Field(None, description="The master data, likewise; not needed with a "
                                                  "--snapshot published before")
    on: Pairs = Field(description="Join columns: a name, or STREAM=MASTER; repeat it for a "
                                  "composite key")
    columns: Names = Field((), description="Master columns to add, separated by commas; default: "
                                           "all but the join columns")
    out: Path = Field(description="File for the joined rows: .parquet, .csv, .tsv or .jsonl")
    unmatched: Path | None = Field(None, description="File for the unmatched stream rows and why "
                                                     "they are; default: counted only")
    stats: Path | None = Field(None,
                               description="JSON file for the summary and the join's statistics")
    snapshot: Path | None = Field(None, description="Directory where the master data's snapshot is "
                                                    "kept for a next time; default: a temporary "
                                                    "one, under $TMPDIR")
    null_values: Names = Field((), description="Texts that mean null in a CSV file besides an "
                                               "empty cell, separated by commas, for instance NA; "
                                               "columns of numbers and times know the usual ones")
    types: Types = Field({}, description="Types of stream columns, COLUMN=TYPE, over those found: "
                                         "int64, double, string, bool, date, timestamp, "
                                         "timestamp_utc, decimal(P,S)")
    master_types: Types = Field({}, description="Types of master columns, likewise")
    stream_format: Format | None = Field(None, description="Format of the stream, where its name "
                                                           "does not tell")
    master_format: Format | None = Field(None, description="Format of the master data, likewise")
    delimiter: str = Field("", max_length=1,
                           description="Character between the cells of CSV files; default: a "
                                       "comma, or a tab in .tsv")
    formats: Formats = Field({}, description=FORMATS)
    master_formats: Formats = Field({}, description="How master columns are written, likewise")


class MasterFile(Publishing):
    """The settings of ``semistream snapshot``."""

    master: Path = Field(description="The master data: a CSV, JSON lines or Parquet file, or a "
                                     "directory of such files")
    on: Names = Field(description="Columns that it will be joined on, separated by commas")
    out: Path = Field(description="Directory of the snapshot; it gets a new version each time")
    name: str = Field("", description="Name of the master relation; default: the file's")
    types: Types = Field({}, description="Types of columns, COLUMN=TYPE, over those found")
    null_values: Names = Field((), description="Texts that mean null besides an empty cell, "
                                               "separated by commas")
    delimiter: str = Field("", max_length=1,
                           description="Character between the cells of CSV files; default: a "
                                       "comma, or a tab in .tsv")
    formats: Formats = Field({}, description="How columns are written that are not written as "
                                             "usual, COLUMN=FORMAT; see docs/input.md")
