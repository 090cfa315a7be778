"""The settings of the steps."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field

from semistream.column_format import Formats
from semistream.settings import Bytes, Names, Pairs, Settings, Types

INPUT = (
    "a CSV, JSON lines or Parquet file, a directory of such files, a published snapshot's "
    "directory, or a table of the warehouse"
)


class JoinSizeSettings(Settings):
    """The settings of ``semistream estimate-join-size`` and of the DAG with that name."""

    left: str = Field(description=f"A: {INPUT}")
    right: str = Field(description="B: an input likewise")
    on: Pairs = Field(description="Join columns: a name, or A=B; repeat it for a composite key")
    sum: str = Field(
        "",
        description="A numeric column of A, whose sum over the rows of the join "
        "is estimated in the place of their number",
    )
    method: Literal["skimmed", "agms"] = Field(
        "skimmed",
        description="Kind of sketch: skimmed is far better where some keys are "
        "frequent, agms a little where none is",
    )
    memory: Bytes = Field(
        ByteSize(64_000), description="Bytes that both sketches take together, for instance 64KB"
    )
    seed: int = Field(
        0,
        ge=0,
        description="Of the hash functions; another one gives another estimate of the same join",
    )
    left_types: Types = Field(
        {}, description="Types of A's columns, COLUMN=TYPE, over those found in its file"
    )
    right_types: Types = Field({}, description="Types of B's columns, likewise")
    null_values: Names = Field(
        (),
        description="Texts that mean null in a CSV file besides an empty cell, separated by commas",
    )
    delimiter: str = Field(
        "",
        max_length=1,
        description="Character between the cells of CSV files; default: a comma, or a tab in .tsv",
    )
    left_formats: Formats = Field(
        {},
        description="How A's columns are written that are not "
        "written as usual, COLUMN=FORMAT; see "
        "docs/input.md",
    )
    right_formats: Formats = Field({}, description="How B's columns are written, likewise")
    max_output_rows: int = Field(
        0,
        ge=0,
        description="Most rows that the join may be estimated to have; fails where it is "
        "more; 0: any number",
    )
