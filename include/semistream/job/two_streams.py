"""A job that joins two streams with each other, and what it may promise of their tuples."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from semistream.column_format import paired
from semistream.expect import Expectations
from semistream.job.streams import BaseJob, StreamSpec
from semistream.settings import Pairs, Settings

SIDES = ("left", "right")  # the sides of a job of two streams
SideJoinType = Literal["inner", "left", "right", "full"]
TOTAL = re.compile(r"(count|sum|min|max)\((.+)\)|count")


class WatermarkSpec(Settings):
    """A column with the event time, which advances in the stream."""

    column: str = Field(description="Column of times: a join column, or one of within")
    delay: float = Field(
        0,
        ge=0,
        description="How much older a tuple may be than the newest "
        "before it, in seconds; of a column of integers in "
        "its unit",
    )


class SideSpec(StreamSpec):
    """One of two streams, and its guarantees about tuples that are still to come. Each guarantee
    lets the job drop waiting tuples. A tuple that violates a guarantee is not joined; it is kept in
    unmatched with the reason against_punctuation."""

    unique: bool = Field(False, description="No two tuples have the same join columns")
    clustered: bool = Field(
        False,
        description="Tuples with the same join columns come one after "
        "the other; they are complete once a later "
        "micro-batch brings others and none of them",
    )
    watermark: WatermarkSpec | None = Field(
        None, description="No tuple is older than the newest before it by more than a delay"
    )
    punctuation: str | None = Field(
        None,
        description="Column that tells rows that are no tuples: "
        "true: no later tuple has this row's join "
        "columns, of which null means any; or a "
        "text, the patterns as JSON by join column",
    )

    @property
    def mark(self) -> str | None:
        return self.punctuation

    @property
    def promises(self) -> dict[str, Any]:
        """The guarantees that are given, as JSON."""
        names = {"unique", "clustered", "watermark", "punctuation"}
        return self.model_dump(include=names, exclude_defaults=True)


class WithinSpec(Settings):
    """A further join condition: two times are close to each other. With a watermark, the condition
    lets the join drop tuples that are too old for all tuples still to come."""

    left: str = Field(description="Column of times of the left stream")
    right: str = Field(description="Column of times of the right stream")
    distance: float = Field(
        ge=0,
        description="The most that they differ, in seconds; of columns of integers in their unit",
    )


def parse_total(text: str) -> tuple[str, str | None]:
    """Parse a total such as ``max(price)``. Return (function, column); ``count`` has no column.
    Raises ValueError for any other text."""
    found = TOTAL.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"must be count, or count, sum, min or max of a column, as max(price) is, "
            f"and not {text}"
        )
    return found[1] or "count", found[2]


class StreamStreamJob(BaseJob):
    """A load of two streams: the streams, their join, and the table for the result.

    The fact table has the columns of the left stream, then those of the right one. If a right
    column has the name of a left one, it is called right_COLUMN.
    """

    shipped = ("tpch_orders", "auctions")
    stream_names = SIDES

    left: SideSpec
    right: SideSpec
    on: Pairs = Field(
        description="Join columns: a name, or LEFT=RIGHT; several for a composite key"
    )
    join_type: SideJoinType = Field(
        "inner",
        description="inner: joined tuples only; left, right, "
        "full: also those of that stream, or of "
        "both, that certainly have no partner, "
        "with nulls",
    )
    within: WithinSpec | None = Field(None, description="Times of both streams that differ little")
    fact_table: str = Field(description="Table that receives the joined tuples")
    index_ids: bool = Field(
        False,
        description="Whether the fact table has an index on both "
        "streams' id columns; the load takes longer with "
        "it",
    )
    totals: Pairs = Field(
        {},
        description="Totals of each join key, written to FACT_TABLE_closed "
        "once no later row can have that key: NAME=count, or "
        "count, sum, min or max of a column of the fact table, "
        "NAME=max(price)",
    )
    expect: Expectations = Field(
        Expectations.load({}),
        description="What is expected of each load (volume, match_rate, freshness), as part of the "
        "proof of completeness",
    )

    @model_validator(mode="after")
    def _expected_of_its_streams(self) -> Self:
        self.expect.check_roles(SIDES)
        return self

    @model_validator(mode="after")
    def _totals_that_close(self) -> Self:
        for total in self.totals.values():
            parse_total(total)
        if self.totals and self.join_type not in ("inner", "left"):
            raise ValueError(
                "totals need a join_type of inner or left: of another one, rows that "
                "have no key of the left stream come until the end"
            )
        return self

    @model_validator(mode="after")
    def _one_form_of_keys(self) -> Self:
        """Apply the normal form that is declared for one side's join column to the other side's,
        too."""
        left, right = paired(self.on.items(), self.left.formats, self.right.formats, SIDES)
        return self.model_copy(
            update={
                "left": self.left.model_copy(update={"formats": left}),
                "right": self.right.model_copy(update={"formats": right}),
            }
        )

    @property
    def streams(self) -> tuple[SideSpec, ...]:
        return (self.left, self.right)

    def in_fact(self, side: int, names: Iterable[str], columns: Collection[str]) -> dict[str, str]:
        """Return the names that a side's columns have in the fact table. columns: the fact table's
        columns."""
        return {n: f"right_{n}" if side and f"right_{n}" in columns else n for n in names}

    @property
    def dimension_names(self) -> tuple[str, ...]:
        return ()

    def fact_ids(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the fact table's columns that identify the tuples from which a row was joined."""
        return tuple(
            of
            for side, stream in enumerate(self.streams)
            for of in self.in_fact(side, stream.id, columns).values()
        )
