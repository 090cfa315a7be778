"""The specification with which an operator is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins.stored_types import stored_schema
from semistream.keys import JoinKeys, resolve_keys
from semistream.master.relation import MasterRelation

# master columns to add; a mapping gives their names in the output; None: all but the join columns
Columns = Sequence[str] | Mapping[str, str] | None


@dataclass(frozen=True)
class JoinSpec:
    """The settings with which an operator is opened, checked and resolved by ``join_spec``."""

    algorithm: str
    memory: int  # M, bytes
    stream: pa.Schema  # in stored types
    master: MasterRelation
    keys: JoinKeys
    columns: tuple[str, ...]  # master columns to add
    names: tuple[str, ...]  # their names in the output
    join_type: str

    @cached_property
    def fetched(self) -> list[str]:
        """The columns of R that are read: the columns to add, and the join columns if codes can
        collide."""
        return list(dict.fromkeys((*self.columns, *(() if self.keys.exact else self.keys.master))))

    @cached_property
    def fetched_schema(self) -> pa.Schema:
        return stored_schema(pa.schema([self.master.schema.field(c) for c in self.fetched]))

    @property
    def one_tuple(self) -> bool:
        """Whether each key code has at most one master tuple."""
        return self.master.unique and self.keys.exact

    def in_one_partition(self, codes: np.ndarray) -> np.ndarray:
        """Return which key codes, int64[n], have all their master tuples in one disk partition,
        bool[n]."""
        if self.one_tuple:
            return np.ones(len(codes), bool)
        spans = self.master.partitions_of(codes)
        return spans[:, 1] - spans[:, 0] <= 1

    def identity(self) -> dict[str, Any]:
        """Return the settings in which a saved state and the operator that restores it must
        agree."""
        return {
            "algorithm": self.algorithm,
            "stream": str(self.stream),
            "columns": list(self.columns),
            "join_type": self.join_type,
            "on": [list(p) for p in zip(self.keys.stream, self.keys.master, strict=True)],
            "master": self.master.name,
            "master_version": self.master.version,
            "disk_partitions": self.master.partition_count,
            "disk_partition_tuples": self.master.partition_tuples,
        }

    def with_disk_buffer(self, tuples: int) -> JoinSpec:
        """Return a copy in which R is cut into partitions of `tuples` tuples, the size of the disk
        buffer. Raises ConfigError when the disk buffer takes more than half of M."""
        master = self.master.with_partition(tuples)
        if master.partition_bytes > self.memory // 2:
            raise ConfigError(
                "memory",
                f"must be at least {2 * master.partition_bytes:,} bytes, "
                f"twice a disk buffer of {master.partition_tuples:,} "
                f"tuples",
                self.memory,
                "Give more memory, or a smaller disk buffer.",
            )
        return replace(self, master=master)


def join_spec(
    algorithm: str,
    memory: int,
    stream: pa.Schema,
    master: MasterRelation,
    on: Sequence[tuple[str, str]],
    columns: Columns = None,
    join_type: str = "inner",
) -> JoinSpec:
    """Check the settings of a join and resolve them. Raises ConfigError for settings that cannot
    work.

    stream: schema of the chunks that ``process`` will get; on: (stream column, master column)
    pairs; columns: master columns to add. If the stream also has a column of this name, the added
    column is called ``<master>_<column>``, unless a mapping names it.
    """
    if join_type not in ("inner", "left"):
        raise ConfigError("join_type", "must be inner or left", join_type, "Choose one.")
    keys = resolve_keys(stream, master.schema, list(on))
    if set(keys.master) != set(master.keys.master):
        raise ConfigError(
            "on",
            f"must join on the columns that {master.name} is organised by",
            list(keys.master),
            f"They are: {', '.join(master.keys.master)}.",
        )
    # codes of a composite key depend on its order
    order = [keys.master.index(m) for m in master.keys.master]
    keys = resolve_keys(stream, master.schema, [(keys.stream[i], keys.master[i]) for i in order])
    added = (
        tuple(c for c in master.schema.names if c not in keys.master)
        if columns is None
        else tuple(columns)
    )
    for c in added:
        if c not in master.schema.names:
            raise ConfigError(
                "columns",
                f"must be columns of {master.name}",
                c,
                f"It has: {', '.join(master.schema.names)}.",
            )
    names = tuple(
        columns.values()
        if isinstance(columns, Mapping)
        else output_names(stream, master.name, added).values()
    )
    _check_names(stream, names)
    return JoinSpec(
        algorithm, int(memory), stored_schema(stream), master, keys, added, names, join_type
    )


def output_names(stream: pa.Schema, prefix: str, columns: Sequence[str]) -> dict[str, str]:
    """Return the names of added master columns in the output. If the stream also has a column of
    this name, the added column is called ``<prefix>_<column>``."""
    return {c: f"{prefix}_{c}" if c in stream.names else c for c in columns}


def _check_names(stream: pa.Schema, names: tuple[str, ...]) -> None:
    """Raise ConfigError when a name would occur twice in the output."""
    doubled = [n for i, n in enumerate(names) if n in stream.names or n in names[:i]]
    if doubled:
        raise ConfigError(
            "columns",
            "must have names that differ from the stream's",
            doubled[0],
            "Rename it, or leave it out.",
        )
