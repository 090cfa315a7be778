"""A user's expectations of a job's loads: number of rows, share of matched rows, and age."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from semistream.durations import seconds_of
from semistream.errors import ConfigError
from semistream.settings import Names, Settings

LEARNED = "learned"  # stands in the place of a mapping if no limit is given


def _share(value: Any) -> Any:
    """Convert '20%' to 0.2. Raises ValueError for a text that is not a share."""
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0 < share <= 1:
        raise ValueError("must be a percentage such as 20%, or a share of at most 1")
    return share


def _duration(value: str) -> str:
    if seconds_of(value) is None:
        raise ValueError("must be a time such as 2 hours, in seconds, minutes, hours or days")
    return value.strip()


def _mapping(value: Any) -> Any:
    return {} if value == LEARNED else value


Share = Annotated[float, BeforeValidator(_share)]


class Expectation(Settings):
    """One expectation, and what happens to a load that does not meet it."""

    action: Literal["warn", "fail"] = Field(
        "fail",
        description="fail: the proof of completeness fails; warn: its report and the log say it",
    )


class Volume(Expectation):
    """The number of rows that a load reads. Without a limit, the last loads show what is usual."""

    at_least: int | None = Field(None, ge=0, description="Rows that each load reads at least")
    at_most: int | None = Field(None, ge=0, description="Rows that each load reads at most")
    below: Share | None = Field(
        None, description="How far a load may be below the median of the last loads, as 20%"
    )
    above: Share | None = Field(
        None, description="How far a load may be above the median of the last loads, as 50%"
    )

    @model_validator(mode="after")
    def _one_limit_a_side(self) -> Self:
        for given, learned in (("at_least", "below"), ("at_most", "above")):
            if None not in (getattr(self, given), getattr(self, learned)):
                raise ConfigError(
                    f"expect.volume.{learned}",
                    f"must not be given with {given}",
                    getattr(self, learned),
                    "Leave one out.",
                )
        if self.at_most is not None and self.at_most < (self.at_least or 0):
            raise ConfigError(
                "expect.volume.at_most",
                f"must not be less than at_least, {self.at_least}",
                self.at_most,
                "Raise it, or lower the other.",
            )
        return self


class MatchRate(Expectation):
    """The share of a load's tuples that have a row in each role's dimension, or a partner in the
    other stream. Without a limit, the last loads show what is usual."""

    at_least: float | None = Field(
        None, ge=0, le=1, description="Share of the tuples that are matched at least"
    )
    below: Share | None = Field(
        None, description="Points that a load may be below the median of the last loads, as 5%"
    )
    roles: Names = Field(
        (), description="Roles that it is about, of two streams left or right; default: all"
    )

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in (self.at_least, self.below):
            raise ConfigError(
                "expect.match_rate.below",
                "must not be given with at_least",
                self.below,
                "Leave one out.",
            )
        return self


class Freshness(Expectation):
    """The time since the newest load has ended. Without a limit, the usual time between loads is
    allowed."""

    within: Annotated[str, AfterValidator(_duration)] | None = Field(
        None, description="Time since the end of the newest load, such as 2 hours"
    )

    @property
    def seconds(self) -> float | None:
        return seconds_of(self.within or "")


class Expectations(Settings):
    """The expectations of a job's loads. Each is a mapping of its limits, or the word
    ``learned``."""

    volume: Annotated[Volume | None, BeforeValidator(_mapping)] = Field(
        None, description="How many rows each load reads"
    )
    match_rate: Annotated[MatchRate | None, BeforeValidator(_mapping)] = Field(
        None, description="Which share of each load's tuples is matched"
    )
    freshness: Annotated[Freshness | None, BeforeValidator(_mapping)] = Field(
        None, description="How long ago the newest load has ended"
    )

    def check_roles(self, known: tuple[str, ...]) -> None:
        """Raise ConfigError for a role that the job does not have."""
        for name in self.match_rate.roles if self.match_rate else ():
            if name not in known:
                raise ConfigError(
                    "expect.match_rate.roles",
                    "must be roles of the job",
                    name,
                    f"It has: {', '.join(known)}.",
                )
