"""The specification with which a stream-stream join is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError, check_name
from semistream.job import SIDES
from semistream.joins.stored_types import stored_schema
from semistream.keys import JoinKeys, resolve_keys

LEFT, RIGHT = 0, 1  # the streams A and B of the paper
# sides whose outer rows are output
JOIN_TYPES = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
}


class Within(NamedTuple):
    """An additional join condition: the times of the left and of the right tuple differ by at most
    the distance.

    With this condition a watermark can purge tuples. A watermark guarantees that no later tuple of
    its stream has an older time. With an equijoin on other columns alone, such a tuple may still
    match a tuple of any age. With the condition, as in Spark's time-range join, a tuple that is
    older than the other stream's watermark by the distance or more has met all its partners.
    """

    left: str
    right: str
    distance: timedelta | int  # int for integer columns


@dataclass(frozen=True)
class Band:
    """The condition `Within`, with the types of its columns resolved. kind: timestamp[us] or int64;
    distance: microseconds, or the unit of the integer columns."""

    columns: tuple[str, str]
    kind: pa.DataType
    distance: int

    def times(self, column: pa.Array) -> np.ndarray:
        """Return the values of a time column, int64[n], in microseconds or in the unit of the
        integer column; 0 for null."""
        return pc.fill_null(
            pc.cast(pc.cast(column, self.kind, safe=False), pa.int64()), 0
        ).to_numpy()


@dataclass(frozen=True)
class StreamJoinSpec:
    """The settings of a stream-stream join, checked and resolved by ``stream_join_spec``."""

    algorithm: str
    memory: int  # M, bytes
    schemas: tuple[pa.Schema, pa.Schema]  # in stored types
    keys: JoinKeys  # ``stream`` are the left stream's join columns, ``master`` the right one's
    join_type: str
    within: Band | None = None

    def key_columns(self, side: int) -> tuple[str, ...]:
        return self.keys.master if side else self.keys.stream

    def codes(self, side: int, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return (key codes int64[n], valid bool[n]) of a batch. A tuple is not valid if a join
        column, or the time column of ``within``, is null. Such a tuple has no partner."""
        codes, valid = self.keys.master_codes(batch) if side else self.keys.stream_codes(batch)
        if self.within and (times := batch.column(self.within.columns[side])).null_count:
            valid = valid & times.is_valid().to_numpy(zero_copy_only=False)
        return codes, valid

    def times(self, side: int, columns: Sequence[pa.Array]) -> np.ndarray:
        """Return the times of one side's tuples, int64[n]. columns: all columns of the side, in the
        order of its schema. The spec must have ``within``."""
        assert self.within
        return self.within.times(
            columns[self.schemas[side].get_field_index(self.within.columns[side])]
        )

    def key_values(self, side: int, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the join columns of one side, in canonical types. columns: all columns of the
        side, in the order of its schema."""
        schema = self.schemas[side]
        join_columns = [columns[schema.get_field_index(c)] for c in self.key_columns(side)]
        return self.keys.canonical(join_columns)

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the joined rows: the columns of the left stream, then those of the right
        stream. A right column with the name of a left column is called ``right_NAME``."""
        left, right = self.schemas
        return pa.schema(
            [*left, *(f.with_name(f"right_{f.name}") if f.name in left.names else f for f in right)]
        )

    def identity(self) -> dict[str, Any]:
        """Return the settings in which a saved state and the operator that restores it must
        agree."""
        return {
            "algorithm": self.algorithm,
            "left": str(self.schemas[0]),
            "right": str(self.schemas[1]),
            "on": [list(p) for p in zip(self.keys.stream, self.keys.master, strict=True)],
            "join_type": self.join_type,
            "within": [*self.within.columns, self.within.distance] if self.within else None,
        }


def stream_join_spec(
    algorithm: str,
    memory: int,
    left: pa.Schema,
    right: pa.Schema,
    on: Sequence[tuple[str, str]],
    join_type: str = "inner",
    within: Within | None = None,
) -> StreamJoinSpec:
    """Check and resolve the settings of a join. on: (left column, right column) pairs. Raises
    ConfigError for settings that cannot work."""
    if join_type not in JOIN_TYPES:
        raise ConfigError(
            "join_type", f"must be one of {', '.join(JOIN_TYPES)}", join_type, "Choose one."
        )
    keys = resolve_keys(left, right, list(on), sides=SIDES)
    schemas = stored_schema(left), stored_schema(right)
    spec = StreamJoinSpec(
        algorithm, int(memory), schemas, keys, join_type, within and _band(within, schemas)
    )
    names = spec.output_schema.names
    doubled = [n for i, n in enumerate(names) if n in names[:i]]
    if doubled:
        raise ConfigError(
            "columns", "must have names that differ", doubled[0], "Rename the column."
        )
    return spec


def _band(within: Within, schemas: tuple[pa.Schema, pa.Schema]) -> Band:
    """Resolve the types of the columns of `within`, and the distance. Raises ConfigError for
    columns without times, and for types that do not fit each other."""
    kinds: list[pa.DataType] = []
    for side, name, schema in zip(SIDES, within[:2], schemas, strict=True):
        check_name("within", f"must name a column of the {side}", name, schema.names)
        kind = schema.field(name).type
        if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
            kinds.append(pa.int64())
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            kinds.append(
                pa.timestamp("us", "UTC" if pa.types.is_timestamp(kind) and kind.tz else None)
            )
        else:
            raise ConfigError(
                "within",
                "must name timestamps, dates or integers",
                f"{name}: {kind}",
                "Cast the column.",
            )
    distance = (
        within.distance // timedelta(microseconds=1)
        if isinstance(within.distance, timedelta)
        else within.distance
    )
    if (
        kinds[0] != kinds[1]
        or isinstance(within.distance, timedelta) == pa.types.is_integer(kinds[0])
        or distance < 0
    ):
        raise ConfigError(
            "within",
            "must have two columns of one type, and a distance of it that is not negative",
            f"{within.left}: {kinds[0]}, {within.right}: {kinds[1]}, {within.distance}",
            "Give seconds with timestamps and dates, and a number with integers.",
        )
    return Band(within[:2], kinds[0], distance)
