"""What a stream-stream join is opened with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError
from semistream.joins.stored_types import stored_schema
from semistream.keys import JoinKeys, canonical, resolve_keys

LEFT, RIGHT = 0, 1  # the streams A and B of the paper
SIDES = ("left", "right")
JOIN_TYPES = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}  # whose outer rows


@dataclass(frozen=True)
class StreamJoinSpec:
    """Checked and resolved by ``stream_join_spec``."""

    algorithm: str
    memory: int  # M, bytes
    schemas: tuple[pa.Schema, pa.Schema]  # in stored types
    keys: JoinKeys  # ``stream`` are the left stream's join columns, ``master`` the right one's
    join_type: str

    def key_columns(self, side: int) -> tuple[str, ...]:
        return self.keys.master if side else self.keys.stream

    def codes(self, side: int, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """(codes int64[n], valid bool[n])."""
        return self.keys.master_codes(batch) if side else self.keys.stream_codes(batch)

    def key_values(self, side: int, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The join columns, in their canonical types, of a side's columns."""
        schema = self.schemas[side]
        return [canonical(columns[schema.get_field_index(c)], k)
                for c, k in zip(self.key_columns(side), self.keys.types, strict=True)]

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of the left stream, then of the right one; those whose names the left one has are called ``right_…``."""
        left, right = self.schemas
        return pa.schema([*left, *(f.with_name(f"right_{f.name}") if f.name in left.names else f for f in right)])

    def identity(self) -> dict[str, Any]:
        """What a saved state must agree in with the operator that takes it up."""
        return {"algorithm": self.algorithm, "left": str(self.schemas[0]), "right": str(self.schemas[1]),
                "on": [list(p) for p in zip(self.keys.stream, self.keys.master, strict=True)], "join_type": self.join_type}


def stream_join_spec(algorithm: str, memory: int, left: pa.Schema, right: pa.Schema, on: Sequence[tuple[str, str]],
                     join_type: str = "inner") -> StreamJoinSpec:
    """on: (left column, right column) pairs. Raises ConfigError for whatever cannot work."""
    if join_type not in JOIN_TYPES:
        raise ConfigError("join_type", f"must be one of {', '.join(JOIN_TYPES)}", join_type, "Choose one.")
    keys = resolve_keys(left, right, list(on), sides=SIDES)
    spec = StreamJoinSpec(algorithm, int(memory), (stored_schema(left), stored_schema(right)), keys, join_type)
    names = spec.output_schema.names
    doubled = [n for i, n in enumerate(names) if n in names[:i]]
    if doubled:
        raise ConfigError("columns", "must have names that differ", doubled[0], "Rename the column.")
    return spec


def equal_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> np.ndarray:
    """Which of the pairs of keys are equal, bool[n]; both in canonical types."""
    same = np.ones(len(left[0]), bool)
    for a, b in zip(left, right, strict=True):
        same &= pc.equal(a, b).to_numpy(zero_copy_only=False)
    return same
