"""The settings of ``semistream estimate-join-size`` and ``semistream check``."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field, model_validator

from semistream.column_format import Formats
from semistream.errors import ConfigError
from semistream.settings import MEMORY, Bytes, JoinType, Names, Pairs, Settings, Types
from semistream.streaming.settings import AppName, SinkSetting

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
        ByteSize(2_000_000), description="Bytes that both sketches take together, for instance 64KB"
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


class CheckSettings(Settings):
    """The settings of ``semistream check``: the job, and those settings of its load on which the
    prediction depends."""

    job: str = Field(description="What is checked: a shipped job, or a job's name or YAML file")
    app: AppName = Field("", description="Name of the load; default: the job's name")
    sink: SinkSetting = Field(
        "sql", description="Where joined tuples go: sql, or the directory or URI of a Delta table"
    )
    memory: Bytes = Field(
        MEMORY, description="M, bytes that the load's join may hold, for instance 64MB"
    )
    partitions: int = Field(
        0, ge=0, le=4096, description="P, join operators side by side; 0: one a core"
    )
    join_type: JoinType = Field(
        "inner", description="inner or left, of roles that do not say it themselves"
    )
    max_wait: float = Field(
        0,
        ge=0,
        description="Most seconds that a tuple may wait, of a load that runs on, at least two of "
        "its triggers; with rate",
    )
    rate: float = Field(0, ge=0, description="Stream tuples a second, for max_wait")
    rows: int = Field(50_000, ge=1, description="Stream tuples that are looked at")
    master_rows: int = Field(
        2_000_000,
        ge=1,
        description="Rows of each dimension that are read; match rates and "
        "predictions are of these",
    )

    @model_validator(mode="after")
    def _both(self) -> CheckSettings:
        if bool(self.max_wait) != bool(self.rate):
            missing, given = ("rate", "max_wait") if self.max_wait else ("max_wait", "rate")
            raise ConfigError(
                missing, f"must be given with {given}", None, "Give both, or neither."
            )
        return self
