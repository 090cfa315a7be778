"""The settings of tuning, for ``semistream tune`` and the form of the sweep. This module imports
nothing heavy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from semistream.files.settings import StreamAndMaster
from semistream.settings import MEMORY, Bytes, Names, names

Budgets = Annotated[tuple[Bytes, ...], BeforeValidator(names)]


class TuneSettings(StreamAndMaster):
    """The settings of tuning: what is tuned, and for how much memory."""

    job: str = Field(
        "",
        description="Whose stream and master data: tpch, nycflights13, tpcds, or a job's "
        "YAML file; or give a stream and its master data instead",
    )
    role: str = Field(
        "", description="Role of a job of several that is tuned by itself; default: the first"
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
        "best is what `auto` would take; with rate",
    )
    rate: float = Field(0, ge=0, description="Stream tuples a second, for max_wait")
