"""The contract that every semi-stream join meets, and its statistics."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from semistream.master import MasterRelation

NO_MATCH, NULL_KEY, UNPARSABLE = "no_match", "null_key", "unparsable"  # why a tuple is unmatched


class JoinOutput(NamedTuple):
    """What one step finished.

    joined: stream columns, then master columns (``SemiStreamJoin.output_schema``). In a left join the unmatched tuples are
    here too, with nulls. unmatched: stream columns and ``reason`` (``SemiStreamJoin.unmatched_schema``).
    """

    joined: pa.RecordBatch
    unmatched: pa.RecordBatch


@dataclass
class JoinState:
    """Everything that an operator needs to go on elsewhere: waiting tuples, and where the algorithm stands.

    tables: Arrow tables by name; values: JSON-able settings and counters, among them ``identity`` (what the operator was
    opened with), which ``restore`` compares.
    """

    tables: dict[str, pa.Table]
    values: dict[str, Any]

    def write(self, path: str | Path) -> None:
        """One file, written beside, flushed to disk and renamed into place."""
        ...

    @classmethod
    def read(cls, path: str | Path) -> JoinState:
        """Raises StateError when the file is missing or damaged."""
        ...


@dataclass
class JoinStatistics:
    """Totals since the operator was opened or restored; ``iterations`` keeps the latest iterations one by one."""

    rows_read: int = 0  # stream tuples taken in
    matched: int = 0  # stream tuples finished with a match
    unmatched: int = 0  # stream tuples finished without
    output_rows: int = 0  # pairs (and, in a left join, unmatched tuples)
    cache_hits: int = 0  # stream tuples finished through H_R, or at once otherwise than through H_S
    disk_tuples_read: int = 0
    bytes_read: int = 0
    r_cycles: int = 0
    iteration_count: int = 0
    seconds: float = 0.0  # spent inside the operator
    waiting: int = 0  # tuples in H_S and the stream buffer now
    waited_seconds: float = 0.0  # summed over finished tuples: arrival to finish
    waited_seconds_max: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)  # bytes reserved now, by component
    memory_peak: int = 0  # bytes, the most that the components ever had together
    rejected: dict[str, int] = field(default_factory=dict)  # unmatched tuples by reason

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class SemiStreamJoin(ABC):
    """A single-threaded join of a stream with R in at most M bytes."""

    output_schema: pa.Schema
    unmatched_schema: pa.Schema
    stats: JoinStatistics

    @abstractmethod
    def process(self, chunk: pa.RecordBatch) -> Iterator[JoinOutput]:
        """Take in stream tuples; give what that finished, in batches of bounded size. Consume it to the end."""

    @abstractmethod
    def drain(self) -> Iterator[JoinOutput]:
        """Finish everything that waits. Afterwards matched + unmatched = rows_read, and waiting = 0."""

    @abstractmethod
    def snapshot(self) -> JoinState: ...

    @abstractmethod
    def restore(self, state: JoinState) -> None:
        """Go on from a snapshot of an operator opened alike. Raises StateError when it does not fit."""
