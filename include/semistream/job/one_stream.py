"""A job that joins one stream with dimensions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from pydantic import Field, model_validator

from semistream.column_format import paired
from semistream.errors import ConfigError
from semistream.expect import Expectations
from semistream.job.dimensions import Role, check_same
from semistream.job.short_form import SHORT_FORM, with_roles
from semistream.job.streams import BaseJob, StreamSpec


class Job(BaseJob):
    """A load of one stream: the stream, the dimensions that it is joined with, and the table for
    the result.

    A job with one role may give ``master`` (the dimension), ``on``, ``columns``, ``max_unmatched``,
    ``late``, ``max_open_hours`` and ``grace`` instead of ``dimensions``. The role then has the
    dimension's name.
    """

    shipped = ("tpch", "nycflights13", "tpcds")
    stream_names = ("stream",)

    stream: StreamSpec
    dimensions: dict[str, Role] = Field(
        description="Dimensions that the stream is joined with, by role"
    )
    fact_table: str = Field(description="Table that receives the joined tuples")
    index_ids: bool = Field(
        False,
        description="Whether the fact table has an index on the "
        "stream's id columns, for those who look rows up by "
        "them; the load takes longer with it",
    )
    expect: Expectations = Field(
        Expectations.load({}),
        description="What is expected of each load (volume, match_rate, freshness), as part of the "
        "proof of completeness",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, values: Any) -> Any:
        return with_roles(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _one_form_of_keys(self) -> Self:
        """Apply the normal form that is declared for one side's join column to the other side's,
        too."""
        stream, roles = self.stream.formats, {}
        for name, role in self.dimensions.items():
            dimension = role.dimension
            stream, formats = paired(role.on.items(), stream, dimension.formats)
            roles[name] = role.model_copy(
                update={
                    "dimension": dimension.model_copy(
                        update={
                            "formats": formats,
                            "business_key": dimension.business_key or role.key,
                        }
                    )
                }
            )
        return self.model_copy(
            update={
                "stream": self.stream.model_copy(update={"formats": stream}),
                "dimensions": roles,
            }
        )

    @model_validator(mode="after")
    def _inferred_of_whole_keys(self) -> Self:
        for role in self.roles:
            role.check_inferred(role.dimension.business_key)
        return self

    @model_validator(mode="after")
    def _no_column_named_as_a_surrogate_key(self) -> Self:
        taken = {role.surrogate_key for role in self.roles}
        for role in self.roles:
            for column, name in role.columns.items():
                if name in taken and column != role.dimension.surrogate_key:
                    raise ConfigError(
                        f"dimensions.{role.name}.columns",
                        "must have names that differ from the surrogate keys of the fact table",
                        name,
                        "Give the column another name.",
                    )
        return self

    @model_validator(mode="after")
    def _expected_of_its_roles(self) -> Self:
        self.expect.check_roles(tuple(self.dimensions))
        return self

    @model_validator(mode="after")
    def _one_declaration(self) -> Self:
        declared: dict[str, Role] = {}
        for role in self.roles:
            other = declared.setdefault(role.dimension.name, role)
            check_same(
                role.dimension, f"the role {role.name}", other.dimension, f"the role {other.name}"
            )
        return self

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(self.dimensions.values())

    @property
    def dimension_names(self) -> tuple[str, ...]:
        return tuple(role.dimension.name for role in self.roles)

    def role(self, name: str) -> Role:
        """Return the role of this name; the first role for "". Raises ConfigError."""
        if name and name not in self.dimensions:
            raise ConfigError(
                "role",
                f"must be a role of the job {self.name}",
                name,
                f"It has: {', '.join(self.dimensions)}.",
            )
        return self.dimensions[name] if name else self.roles[0]

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        return (self.stream,)

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the settings of a job, and of those of its only role in the short
        form."""
        return [*cls.model_fields, *SHORT_FORM]

    def fact_ids(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the fact table's columns that identify the tuples from which a row was joined."""
        return self.stream.id
