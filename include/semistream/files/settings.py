"""The settings of the commands on files. This module imports nothing heavy."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, model_validator

from semistream.column_format import Formats
from semistream.durations import seconds_of
from semistream.errors import ConfigError
from semistream.job import Role, with_roles
from semistream.settings import (
    Bytes,
    JoinSettings,
    Names,
    Pairs,
    Publishing,
    Settings,
    Share,
    Types,
)

Format = Literal["csv", "json", "parquet"]
FORMATS = (
    "How columns are written that are not written as usual, COLUMN=FORMAT: a time format "
    "such as %d/%m/%Y, an example number such as 1.234,56, words such as trim or fold; see "
    "docs/input.md"
)
ALLOW_EMPTY = "Whether the master data may have no row; otherwise they are refused"


# settings of the only dimension; each of several roles has its own
OF_ONE = (
    "snapshot",
    "master_types",
    "master_format",
    "master_formats",
    "master_options",
    "allow_empty",
)


class FileRole(Role):
    """A role of a dimension in a join of files: a job's role, with the options for reading its
    file."""

    snapshot: Path | None = Field(
        None,
        description="Directory where the dimension's snapshot is kept for a next time, or without "
        "a path was published before",
    )
    types: Types = Field({}, description="Types of the dimension's columns, over those found")
    format: Format | None = Field(
        None, description="Format of the dimension's file, where its name does not tell"
    )


class StreamAndMaster(Settings):
    """The files of a stream and of its master data, how they are read, and the join columns."""

    stream: Path | None = Field(
        None,
        description="A sample of the stream: a CSV, JSON lines or Parquet file, or a directory",
    )
    master: Path | None = Field(
        None, description="The master data, likewise; not needed with a --snapshot published before"
    )
    on: Pairs = Field(
        {}, description="Join columns: a name, or STREAM=MASTER; repeat it for a composite key"
    )
    columns: Names = Field(
        (),
        description="Master columns to add, separated by commas; default: all but the join columns",
    )
    snapshot: Path | None = Field(
        None, description="Directory of the master data's snapshot, in the place of their file"
    )
    null_values: Names = Field(
        (),
        description="Texts that mean null in a CSV file besides an "
        "empty cell, separated by commas, for instance NA; "
        "columns of numbers and times know the usual ones",
    )
    types: Types = Field(
        {},
        description="Types of stream columns, COLUMN=TYPE, over those found: "
        "int64, double, string, bool, date, timestamp, "
        "timestamp_utc, decimal(P,S)",
    )
    master_types: Types = Field({}, description="Types of master columns, likewise")
    stream_format: Format | None = Field(
        None, description="Format of the stream, where its name does not tell"
    )
    master_format: Format | None = Field(None, description="Format of the master data, likewise")
    delimiter: str = Field(
        "",
        max_length=1,
        description="Character between the cells of CSV files; default: a comma, or a tab in .tsv",
    )
    formats: Formats = Field({}, description=FORMATS)
    master_formats: Formats = Field({}, description="How master columns are written, likewise")


class JoinFiles(StreamAndMaster, JoinSettings):
    """The settings of a join of files. To join several dimensions, ``dimensions`` replaces
    ``master``, ``on``, ``columns`` and the other settings of a single dimension."""

    stream: Path = Field(
        description="The stream's tuples: a CSV, JSON lines or Parquet file "
        "(.csv, .tsv, .jsonl, .parquet; text also as .gz, .zst), or a "
        "directory of such files"
    )
    dimensions: dict[str, FileRole] = Field(
        {},
        description="Several dimensions by role, in the place of master, on and columns. Each has "
        "a path, or a snapshot published before, and as in a job: on, a name, a list of names or "
        "{STREAM: DIMENSION}; columns, a list or {DIMENSION: OUTPUT}; join_type; max_unmatched; "
        "also types, format and many, and of the dimension formats and options",
    )
    out: Path = Field(description="File for the joined rows: .parquet, .csv, .tsv or .jsonl")
    unmatched: Path | None = Field(
        None,
        description="File for the unmatched stream rows and why they are; default: counted only",
    )
    stats: Path | None = Field(
        None, description="JSON file for the summary and the join's statistics"
    )
    snapshot: Path | None = Field(
        None,
        description="Directory where the master data's snapshot is "
        "kept for a next time; default: a temporary "
        "one, under $TMPDIR",
    )
    stream_options: Pairs = Field(
        {},
        description="How the stream's CSV or JSON files are written, NAME=VALUE, in the place of "
        "--delimiter and --null-values: sep, quote, escape, encoding, nullValue",
    )
    master_options: Pairs = Field(
        {}, description="How the master data's CSV or JSON files are written, likewise"
    )
    max_unmatched: Share | None = Field(
        None,
        description="Share of the stream's rows that may have no master row; when more have none, "
        "the command fails and writes no output; default: any, of which the summary warns",
    )
    allow_empty: bool = Field(False, description=ALLOW_EMPTY)

    @classmethod
    def read_config(cls, path: str | Path) -> dict[str, Any]:
        """Return the settings that a configuration file gives: by name, or as a job, whose files
        are joined then."""
        values = super().read_config(path)
        if not isinstance(values.get("stream"), dict):
            return values
        from semistream.files.of_job import join_of_job

        return join_of_job(path)

    @model_validator(mode="before")
    @classmethod
    def _with_roles(cls, values: Any) -> Any:
        """Check the form of ``dimensions``, and give each role its name and its dimension."""
        if not isinstance(values, dict) or not values.get("dimensions"):
            return values
        if given := [name for name in OF_ONE if name in values]:
            raise ConfigError(
                given[0],
                "must not be given with dimensions",
                values[given[0]],
                "Each role has its own: path, snapshot, types, format, formats, options, or "
                "dimension: {path: …, formats: …, allow_empty: true}.",
            )
        roles = values["dimensions"]
        if isinstance(roles, dict):
            roles = {name: _read_here(role) for name, role in roles.items()}
        found = with_roles({**values, "dimensions": roles})
        for name, role in found["dimensions"].items():
            if isinstance(role, dict) and not isinstance(role["dimension"], dict):
                raise ConfigError(
                    f"dimensions.{name}",
                    "must have a path, or a snapshot published before",
                    None,
                    f"For instance {name}: {{path: {name}.csv, on: …}}. Dimensions that are "
                    "declared elsewhere are those of jobs.",
                )
        return found

    @model_validator(mode="after")
    def _from_files(self) -> JoinFiles:
        for name, role in self.dimensions.items():
            if role.dimension.table is not None:
                raise ConfigError(
                    f"dimensions.{name}.table",
                    "must not be given: this command reads files",
                    role.dimension.table,
                    "Give a path; a job reads tables.",
                )
        return self


def _read_here(role: Any) -> Any:
    """Return the settings of a role. If the role names only a snapshot, its dimension is declared
    in it."""
    if isinstance(role, dict) and "snapshot" in role and not {"path", "dimension"} & role.keys():
        return {**role, "dimension": {}}
    return role


class MasterFile(Publishing):
    """The settings of ``semistream snapshot``."""

    master: Path = Field(
        description="The master data: a CSV, JSON lines or Parquet file, or a "
        "directory of such files"
    )
    on: Names = Field(description="Columns that it will be joined on, separated by commas")
    out: Path = Field(description="Directory of the snapshot; it gets a new version each time")
    name: str = Field("", description="Name of the master relation; default: the file's")
    types: Types = Field({}, description="Types of columns, COLUMN=TYPE, over those found")
    null_values: Names = Field(
        (), description="Texts that mean null besides an empty cell, separated by commas"
    )
    delimiter: str = Field(
        "",
        max_length=1,
        description="Character between the cells of CSV files; default: a comma, or a tab in .tsv",
    )
    formats: Formats = Field(
        {},
        description="How columns are written that are not written as "
        "usual, COLUMN=FORMAT; see docs/input.md",
    )
    allow_empty: bool = Field(False, description=ALLOW_EMPTY)


def duration(text: Any) -> Any:
    """Convert a text such as 10s, 5min or 1h to a timedelta, and a text without a unit to an
    integer."""
    if not isinstance(text, str):
        return text
    if text.strip().isdigit():
        return int(text)
    if (seconds := seconds_of(text)) is None:
        raise ValueError(
            "must be a time such as 500ms, 10s, 5min, 1h or 2d, or a number where the "
            "columns are integers"
        )
    return timedelta(seconds=seconds)


Duration = Annotated[timedelta | int, BeforeValidator(duration)]
Side = Literal["left", "right", "both"]


class JoinStreams(Settings):
    """A join of two streams' files."""

    left: Path = Field(
        description="One stream's tuples: a CSV, JSON lines or Parquet file, or a "
        "directory of such files"
    )
    right: Path = Field(description="The other stream's, likewise")
    on: Pairs = Field(
        description="Join columns: a name, or LEFT=RIGHT; repeat it for a composite key"
    )
    out: Path = Field(description="File for the joined rows: .parquet, .csv, .tsv or .jsonl")
    join_type: Literal["inner", "left", "right", "full"] = Field(
        "inner",
        description="inner: pairs only; left, right, full: also that side's tuples that "
        "have no partner, with nulls",
    )
    algorithm: Literal["pjoin", "xjoin"] = Field(
        "pjoin", description="pjoin, or xjoin, which takes no punctuations"
    )
    memory: Bytes = Field(
        ByteSize(64_000_000),
        description="M, bytes that the join may hold; what does not fit waits on disk",
    )
    unique: Side | None = Field(
        None,
        description="The side whose tuples differ in the join "
        "columns: each is the last one of its key",
    )
    clustered: Side | None = Field(
        None, description="The side whose tuples of one key come together: another key ends one"
    )
    punctuations: Path | None = Field(
        None,
        description='JSON lines such as {"side": "left", "after": 1000, "match": '
        '{"id": 7}}: behind the first 1000 rows of the left stream no tuple of '
        'id 7 comes; a pattern is a value, {"range": [low, high]} or {"in": '
        "[values]}",
    )
    left_punctuations: str = Field(
        "",
        description="Column of the left stream that marks rows "
        "which are punctuations: true, or a pattern as "
        "JSON",
    )
    right_punctuations: str = Field("", description="Column of the right stream, likewise")
    left_time: str = Field(
        "", description="Column of the left stream's event times; needs --within"
    )
    right_time: str = Field("", description="Column of the right stream's event times, likewise")
    within: Duration | None = Field(
        None, description="Join only tuples whose times differ by at most this, for instance 1h"
    )
    delay: Duration | None = Field(
        None,
        description="How much older than the newest tuple of its "
        "stream a tuple may be; default: any age",
    )
    purge_threshold: int = Field(
        1, ge=1, description="Punctuations between two purges of the state"
    )
    propagate: Literal["push", "pull"] = Field(
        "push",
        description="push: punctuations are propagated by --propagate-count and "
        "--propagate-seconds; pull: behind each chunk of rows, with the disk "
        "join that it takes",
    )
    propagate_count: int | None = Field(
        None,
        ge=0,
        description="Punctuations between two propagations; 0: not by their count; default: 1",
    )
    propagate_seconds: float | None = Field(
        None, gt=0, description="Seconds between two propagations; default: not by time"
    )
    index: Literal["lazy", "eager"] = Field(
        "lazy",
        description="When tuples are indexed by their own stream's punctuations: lazy: at "
        "a propagation; eager: at each punctuation",
    )
    left_unmatched: Path | None = Field(
        None,
        description="File for the left stream's rows without a partner, and why they have none",
    )
    right_unmatched: Path | None = Field(None, description="File for the right stream's, likewise")
    propagated: Path | None = Field(
        None,
        description="JSON lines file for the punctuations that "
        "hold for the output, as they come to hold",
    )
    stats: Path | None = Field(
        None, description="JSON file for the summary, with the state over time"
    )
    null_values: Names = Field(
        (),
        description="Texts that mean null in a CSV file besides an empty cell, separated by commas",
    )
    left_types: Types = Field(
        {}, description="Types of the left stream's columns, COLUMN=TYPE, over those found"
    )
    right_types: Types = Field({}, description="Types of the right stream's columns, likewise")
    left_format: Format | None = Field(
        None, description="Format of the left stream, where its name does not tell"
    )
    right_format: Format | None = Field(None, description="Format of the right stream, likewise")
    left_formats: Formats = Field({}, description=FORMATS)
    right_formats: Formats = Field(
        {}, description="How the right stream's columns are written, likewise"
    )
    delimiter: str = Field(
        "",
        max_length=1,
        description="Character between the cells of CSV files; default: a comma, or a tab in .tsv",
    )
