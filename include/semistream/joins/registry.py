"""Every semi-stream join by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.joins.base import SemiStreamJoin
from semistream.master import MasterRelation


@dataclass(frozen=True)
class Algorithm:
    name: str
    make: type[SemiStreamJoin]
    parameters: type  # a Settings class: the algorithm's own parameters, frozen
    paper: str
    needs_index: bool  # reads the partition of a given key
    unique_keys: bool  # refuses a master with duplicate keys


REGISTRY: dict[str, Algorithm] = {}


def open_join(algorithm: str, *, memory: int, stream: pa.Schema, master: MasterRelation, on: Sequence[tuple[str, str]],
              columns: Sequence[str] | None = None, join_type: str = "inner",
              parameters: dict[str, Any] | None = None) -> SemiStreamJoin:
    """A join operator of the named algorithm, holding at most ``memory`` bytes.

    stream: schema of the chunks that ``process`` will get; on: (stream column, master column) pairs; columns: master columns
    to add (None: all but the join columns). A master column whose name the stream has too is added as ``<master>_<column>``.
    Raises ConfigError for whatever cannot work.
    """
    raise NotImplementedError
