"""A user's expectations of a job's loads: number of rows, share of matched rows, and age."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from semistream.durations import seconds_of
from semistream.errors import ConfigError
from semistream.settings import Names, Settings, Share, percent

LEARNED = "learned"  # stands in the place of a mapping if no limit is given


def difference(value: Any) -> Any:
    """Convert '20%' to 0.2. Raises ValueError for a text that is not a share."""
    try:
        share = float(percent(value))
    except (TypeError, ValueError):
        share = -1.0
    if isinstance(value, bool) or not 0 < share <= 1:
        raise ValueError("must be a percentage such as 20%, or a share of at most 1")
    return share


def _duration(value: Any) -> Any:
    if value is not None and seconds_of(str(value)) is None:
        raise ValueError("must be a time such as 2 hours, in seconds, minutes, hours or days")
    return value if value is None else value.strip()


def _mapping(value: Any) -> Any:
    if value is not None and value != LEARNED and not isinstance(value, (Mapping, Settings)):
        raise ValueError(f"must be a mapping of limits, or the word {LEARNED}")
    return {} if value == LEARNED else value


def check_given(given: Any) -> None:
    """Raise ConfigError for an expectation that stands in a job's file without a content. It would
    check nothing, as one that is left out. given: what the file has under ``expect``."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if value is None:
            raise ConfigError(
                f"expect.{name}",
                "must not be empty",
                None,
                f"Give its limits, or the word {LEARNED}: expect: {{{name}: {LEARNED}}}.",
            )


Difference = Annotated[float, BeforeValidator(difference)]


class Expectation(Settings):
    """One expectation, and what happens to a load that does not meet it."""

    action: Literal["warn", "fail"] = Field(
        "fail",
        description="fail: the proof of completeness fails; warn: its report and the log say it, "
        "and those in notify are notified",
    )


class Volume(Expectation):
    """The number of rows that a load reads. Without a limit, the last loads show what is usual."""

    at_least: int | None = Field(None, ge=0, description="Rows that each load reads at least")
    at_most: int | None = Field(None, ge=0, description="Rows that each load reads at most")
    below: Difference | None = Field(
        None, description="How far a load may be below the median of the last loads, as 20%"
    )
    above: Difference | None = Field(
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

    at_least: Share | None = Field(
        None, description="Share of the tuples that are matched at least"
    )
    below: Difference | None = Field(
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

    within: Annotated[str | None, BeforeValidator(_duration)] = Field(
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
