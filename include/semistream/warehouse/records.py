"""The records of the ledger: a task reports one for its load, the ledger stores it, and summary,
status, page and proof read it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from semistream.data_files import DataFile
from semistream.job import SIDES
from semistream.positions import Kind
from semistream.reasons import QUARANTINED, Reason


def unaccounted(counts: Any) -> Any:
    """Return how many tuples are not accounted for. Each tuple must be matched, unmatched or still
    waiting.

    counts: the counts of a load or of one of its inputs, as a record or as the columns of a table.
    """
    return (
        counts.waiting_before
        + counts.rows_read
        + counts.resolved
        - counts.matched
        - counts.unmatched
        - counts.waiting
    )


def still_unmatched(counts: Any) -> Any:
    """Return how many tuples are unmatched and were not joined again since. Over all loads of an
    app, the tuples that were read are matched, still unmatched, or waiting.

    counts: sums over loads, as a record or as the columns of a table.
    """
    return counts.unmatched - counts.resolved


@dataclass(frozen=True)
class InputCounts:
    """The counts of one input of a load, which is a dimension in a role, or one of two streams.

    role: the dimension's role, or "left" or "right"; dimension, version: the master data, "" for a
    stream; resolved: tuples that a resolving load has taken from ``unmatched``; rejected: the
    unmatched tuples by reason; on_disk: the part of ``waiting`` that is on disk; state_file: the
    join state after the load; two streams share one file. Cache hits and bytes read are 0 for a
    stream, because the bytes that two streams read from disk are known only in total.

    If there are several roles: missed: the number of matched tuples that a left join has passed on
    without a row of the dimension; passed: the number of rows that the next role reads, None if it
    is one row for each matched tuple.

    inferred: the number of rows of the fact table with an inferred member of the dimension;
    lacking: in a left join of several, the number of those without a row of the dimension.
    """

    role: str
    waiting_before: int
    rows_read: int
    matched: int
    rejected: Mapping[Reason, int]
    waiting: int
    state_file: str = ""
    dimension: str = ""
    version: str = ""
    on_disk: int = 0
    cache_hits: int = 0
    bytes_read: int = 0
    resolved: int = 0
    missed: int = 0
    passed: int | None = None
    inferred: int = 0
    lacking: int = 0

    @property
    def unmatched(self) -> int:
        return sum(self.rejected.values())

    @property
    def missing(self) -> int:
        """The number of tuples that are unmatched in this role or stream. Tuples that were refused
        before the join are left out: they were joined in no role, although the counts of the first
        role include them."""
        return sum(
            tuples
            for reason, tuples in self.rejected.items()
            if self.role in SIDES or reason not in QUARANTINED
        )

    def without_tuples(self) -> InputCounts:
        """Return the counts of a following load that reads and finishes no tuples."""
        return replace(
            self,
            waiting_before=self.waiting,
            rows_read=0,
            resolved=0,
            matched=0,
            rejected={},
            cache_hits=0,
            bytes_read=0,
            missed=0,
            passed=None if self.passed is None else 0,
            inferred=0,
            lacking=0,
        )


@dataclass(frozen=True)
class LoadRecord:
    """The record of a load, which is a partition of a batch, a drain or a resolving load.

    rows_read, resolved, matched, output_rows: counts of the whole load, because a second dimension
    reads only what the first one has passed on; cache_hits: with several dimensions the share of
    hits among all that these have read, as a count of the load's tuples; see
    ``schema.load_batches`` for the other fields. closed: the number of keys whose totals the load
    has written, None if the job has no totals. Not stored: prepared, the data for the sink's
    ``commit``; read_seconds and task_seconds, the time that the task spent on reading its tuples,
    and in total.
    """

    app: str
    batch: int
    drain: int
    partition: int
    algorithm: str
    inputs: tuple[InputCounts, ...]
    rows_read: int
    matched: int
    output_rows: int
    cache_hits: int = 0
    disk_tuples_read: int = 0
    bytes_read: int = 0
    r_cycles: float = 0.0
    service_rate: float = 0.0
    seconds: float = 0.0
    wait_median: float | None = None
    wait_longest: float | None = None
    memory_budget: int = 0
    memory_peak: int = 0
    resident_peak: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    nulled: Mapping[str, int] = field(default_factory=dict)
    facts_checksum: int = 0
    unmatched_checksum: int = 0
    reason: str | None = None
    closed: int | None = None
    key_sketch: bytes | None = None
    prepared: dict[str, Any] = field(default_factory=dict)
    resolved: int = 0
    read_seconds: float = field(default=0.0, compare=False)
    task_seconds: float = field(default=0.0, compare=False)

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64"
    )

    @property
    def waiting_before(self) -> int:
        return sum(i.waiting_before for i in self.inputs)

    @property
    def waiting(self) -> int:
        return sum(i.waiting for i in self.inputs)

    @property
    def rejected(self) -> Counter[Reason]:
        """The unmatched tuples of all inputs by reason."""
        return sum((Counter(i.rejected) for i in self.inputs), Counter[Reason]())

    @property
    def unmatched(self) -> int:
        return sum(i.unmatched for i in self.inputs)

    @property
    def state_files(self) -> tuple[str, ...]:
        """The files of the join states after the load: one for each role, or one for two
        streams."""
        return tuple(dict.fromkeys(i.state_file for i in self.inputs if i.state_file))

    def to_json(self) -> str:
        return _RECORD.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> LoadRecord:
        return _RECORD.validate_json(text)

    def without_tuples(self, batch: int) -> LoadRecord:
        """Return the record of a following batch that reads and finishes no tuples."""
        return LoadRecord(
            self.app,
            batch,
            Kind.BATCH,
            self.partition,
            self.algorithm,
            tuple(i.without_tuples() for i in self.inputs),
            rows_read=0,
            matched=0,
            output_rows=0,
            memory_budget=self.memory_budget,
            memory_peak=self.memory_peak,
            resident_peak=self.resident_peak,
            memory=self.memory,
            reason=self.reason,
            closed=None if self.closed is None else 0,
        )


class Timed(NamedTuple):
    """A commit that was made, and the duration of all its phases, as in ``load_commits``."""

    batch: int
    drain: int
    phases: str


@dataclass(frozen=True)
class Commit:
    """The record of a batch, a drain or a resolving load, all of whose partitions are loaded: the
    columns of its row of ``load_commits``, and the batch's files. before: the previous commit,
    whose row gets its phases when this one is written."""

    app: str
    batch: int
    drain: int
    fact_table: str
    sink: str
    partitions: int
    rows_read: int
    job: str = "{}"
    source_offsets: str = "{}"
    source_listed: float | None = None
    files: tuple[DataFile, ...] = ()
    run_started: float | None = None
    phases: str | None = None
    before: Timed | None = None


def waiting_by_role(loads: Iterable[LoadRecord]) -> dict[str, int]:
    """Return the number of waiting tuples of each input, over all partitions."""
    found: dict[str, int] = {}
    for load in loads:
        for i in load.inputs:
            found[i.role] = found.get(i.role, 0) + i.waiting
    return found


@dataclass(frozen=True)
class Intent:
    """A commit that will be made, with the records of its loads."""

    commit: Commit
    loads: Sequence[LoadRecord]

    def to_json(self) -> dict[str, Any]:
        return _INTENT.dump_python(self, mode="json")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Intent:
        # as text: only there a key sketch is known to be base64
        return _INTENT.validate_json(json.dumps(values))


_RECORD, _INTENT = TypeAdapter(LoadRecord), TypeAdapter(Intent)
