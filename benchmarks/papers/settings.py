"""The settings of ``python -m benchmarks.papers``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from semistream.settings import Names, Settings


class ExperimentSettings(Settings):
    """The settings of a run of experiments."""

    scale: float | None = Field(
        None,
        gt=0,
        le=10,
        description="|R|, and M with it, as a part of the papers' own; 1 "
        "is theirs, up to 100M tuples; default: each "
        "experiment's, for some minutes",
    )
    algorithms: Names = Field(
        (),
        description="Algorithms, separated by commas; default: those of "
        "the paper, and our own beside",
    )
    seconds: float = Field(
        1.0,
        gt=0,
        description="Least time that each point is measured after "
        "its warm-up; scanning joins are measured for at "
        "least three passes over R",
    )
    repetitions: int = Field(
        3,
        ge=1,
        description="How often each point is measured, in another "
        "process and order each time; intervals are over "
        "these, and with 1 nothing is decided",
    )
    up_to: int = Field(
        0,
        ge=0,
        description="Repetitions in all where, after the first ones, a "
        "claim is not decided; 0: no more",
    )
    output: Path | None = Field(
        None, description="Directory of the results; default: $SEMISTREAM_HOME/experiments"
    )
    data: Path | None = Field(
        None,
        description="Directory where R is kept for a next time; "
        "default: $SEMISTREAM_HOME/experiments/data",
    )
    costs: Path | None = Field(
        None,
        description="The costs of this machine, as `calibrate` wrote "
        "them; default: they are measured first, and kept "
        "with the results",
    )
    clock: Literal["wall", "cpu"] = Field(
        "wall", description="cpu where others use the machine too; reading then costs nothing"
    )
    pace: bool = Field(
        False, description="Divide times by how much slower a fixed piece of work is just then"
    )
    burstiness: float = Field(
        0.5,
        ge=0.5,
        lt=1,
        description="Of arrivals, where these have a rate: 0.5 steady; more, "
        "bursty and self-similar by the b-model",
    )
    again: bool = Field(
        False, description="Measure anew what an earlier run with the same settings has measured"
    )
    master: Names = Field(
        ("500000", "1000000"),
        description="|R| in tuples, separated by commas, of cost-models and tuned-sizes",
    )
    memory: Names = Field(("1", "3", "10"), description="M in percent of R, likewise")
    skew: Names = Field(("0", "0.5", "1"), description="Zipf exponents, likewise")
