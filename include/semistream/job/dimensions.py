"""Dimensions, and the roles in which a job's stream is joined with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from semistream.column_format import Formats
from semistream.durations import seconds_of
from semistream.errors import ConfigError
from semistream.settings import JoinType, Names, Pairs, Settings, Share

UNKNOWN = 0  # surrogate key of a dimension's unknown member


def surrogate_key(name: str) -> str:
    """Return the name of the surrogate key of a dimension, or of a dimension's role."""
    return f"{name}_sk"


class Dimension(Settings):
    """Rows that facts refer to: their source, and their table."""

    name: str = Field(
        description="Name of the dimension; its table is dim_NAME with surrogate key NAME_sk"
    )
    path: str | None = Field(
        None,
        description="CSV, JSON lines or Parquet file (or directory) that it is provisioned from",
    )
    table: str | None = Field(
        None, description="Existing table that it is provisioned from, in the warehouse or at --url"
    )
    columns: str | None = Field(
        None,
        description="Schema of the rows as Spark DDL ('sku STRING, "
        "price DECIMAL(10,2)'); default: what the table "
        "has or the file's first 16 MB suggest",
    )
    formats: Formats = Field({}, description="How columns are written, as a stream's formats")
    options: dict[str, str] = Field(
        {},
        description="How its CSV or JSON files are written, as a stream's options: sep, quote, "
        "escape, encoding, nullValue",
    )
    business_key: Names = Field(
        (),
        description="Columns that identify a row; default, of a "
        "dimension that is declared inside a job: the join "
        "columns",
    )
    max_rejected: Share = Field(
        0.01,
        description="Share of the rows that may be left out, as unparsable "
        "or for their keys; when more are, nothing is "
        "provisioned. Rows whose key a later row has "
        "do not count",
    )
    allow_empty: bool = Field(
        False,
        description="Whether its source may have no row that can be taken; "
        "otherwise nothing is provisioned then",
    )
    unknown_member: bool = Field(
        False,
        description="Whether its table has a row with surrogate key 0, which the facts "
        "name that a left join finds no row for; otherwise they name none (null)",
    )

    @property
    def surrogate_key(self) -> str:
        return surrogate_key(self.name)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path and self.table:
            raise ConfigError(
                f"dimension {self.name}",
                "must have a path or a table, not both",
                self.path,
                "Leave one out.",
            )
        return self


def check_same(one: Dimension, where: str, other: Dimension, elsewhere: str) -> None:
    """Check that two declarations of a dimension are equal. Raises ConfigError that names both
    places otherwise."""
    mine, theirs = one.model_dump(), other.model_dump()
    different = {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
    if different:
        raise ConfigError(
            f"dimension {one.name}",
            f"must be declared the same way in {where} and in {elsewhere}",
            different,
            f"Declare it once, in dimensions/{one.name}.yaml, or give one of them another name.",
        )


def _text(value: Any) -> Any:
    return value if value is None else str(value)


VERSIONS = re.compile(r"(\d+) *versions?")


class Role(Settings):
    """The part that a dimension plays in a job's facts: the dimension airport may be the origin or
    the destination of a flight."""

    name: str = Field(
        description="Name of the role; the fact table's column NAME_sk has the "
        "dimension's surrogate keys"
    )
    dimension: Dimension
    on: Pairs = Field(
        description="Join columns: a name, a list of names, or STREAM=DIMENSION; "
        "several for a composite key"
    )
    columns: Pairs = Field(
        {},
        description="Dimension columns to add, or DIMENSION=FACT; default: "
        "all but the join columns. One that the stream has too "
        "is called NAME_COLUMN",
    )
    join_type: JoinType | None = Field(None, description="inner or left; default: the load's")
    many: bool = Field(
        False,
        description="Whether a tuple may have several rows of the dimension, and becomes a fact "
        "with each; of a job with one role it may always",
    )
    max_unmatched: Share = Field(
        0.5,
        description="Share of the tuples that may have no row of the dimension, or no key; the "
        "proof of completeness fails when more have none",
    )
    late: Literal["reject", "resolve", "infer"] = Field(
        "reject",
        description="What becomes of a tuple whose row of the dimension comes later. reject: it "
        "stays in unmatched; resolve: it is joined again when a version of the dimension has the "
        "row, and becomes a fact; infer: it is a fact at once, with an inferred member of the "
        "dimension, which the row fills in",
    )
    max_open_hours: float | None = Field(
        None,
        gt=0,
        description="Hours that a tuple may be in unmatched without a row of the dimension; the "
        "proof of completeness fails when one is there for longer; default: any time",
    )

    grace: Annotated[str | None, BeforeValidator(_text)] = Field(
        None,
        description="How long a tuple may have no row of the dimension before max_unmatched and "
        "max_open_hours count it: a time such as '90 minutes', '2 hours', '1 day', or versions of "
        "the dimension that loads have taken up since, such as '3 versions'; default: not at all",
    )

    @model_validator(mode="after")
    def _a_grace(self) -> Self:
        if self.grace is not None and not (self.grace_hours or self.grace_versions):
            raise ConfigError(
                f"dimensions.{self.name}.grace",
                "must be a number of minutes, hours, days or versions",
                self.grace,
                "For instance grace: 2 hours, or grace: 3 versions.",
            )
        return self

    @model_validator(mode="after")
    def _late_of_its_join(self) -> Self:
        self.check_late(self.join_type)
        return self

    def check_late(self, join_type: JoinType | None) -> None:
        """Raise ConfigError if tuples are to be resolved that a join of this type has made facts.
        The type is used where the role has none."""
        if self.late == "resolve" and (self.join_type or join_type) == "left":
            raise ConfigError(
                f"dimensions.{self.name}.late",
                "must be reject where the join is a left one, as a tuple without a match is in the "
                "fact table already",
                self.late,
                "Make the join an inner one, or leave late out.",
            )

    def check_inferred(self, business_key: Sequence[str]) -> None:
        """Raise ConfigError if members are to be inferred although the role is not joined on the
        dimension's whole business key."""
        if self.late == "infer" and {*business_key} != {*self.key}:
            raise ConfigError(
                f"dimensions.{self.name}.late",
                "can be infer only where the role is joined on the dimension's business key, "
                f"{', '.join(business_key)}, as a member cannot be minted without it",
                ", ".join(self.key),
                "Join on it, or let late be resolve.",
            )

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the settings of a role, and of its dimension, which may stand beside
        them."""
        return list(dict.fromkeys((*cls.model_fields, *Dimension.model_fields)))

    @property
    def grace_hours(self) -> float:
        """The grace in hours; 0 if there is none, or if the grace is a number of versions."""
        return (seconds_of(self.grace or "") or 0.0) / 3600

    @property
    def grace_versions(self) -> int:
        """The grace in versions; 0 if there is none, or if the grace is a time."""
        found = VERSIONS.fullmatch(self.grace or "")
        return int(found[1]) if found else 0

    @property
    def surrogate_key(self) -> str:
        """The fact table's column of the dimension's surrogate keys."""
        return surrogate_key(self.name)

    @property
    def key(self) -> tuple[str, ...]:
        """The dimension's join columns."""
        return tuple(self.on.values())


def added_columns(
    roles: Sequence[Role], dimensions: Sequence[Sequence[str]]
) -> list[dict[str, str] | None]:
    """Return the columns that each role adds, in the form of ``RolePlan.columns``. A column that
    several roles add is called ROLE_column. dimensions: the columns of each role's dimension."""
    if len(roles) == 1:
        return [roles[0].columns or None]
    wanted = [
        role.columns or {c: c for c in columns if c not in role.key}
        for role, columns in zip(roles, dimensions, strict=True)
    ]
    times = Counter(name for columns in wanted for name in columns.values())
    return [
        {
            c: f"{role.name}_{c}" if c == name and times[name] > 1 else name
            for c, name in columns.items()
        }
        for role, columns in zip(roles, wanted, strict=True)
    ]
