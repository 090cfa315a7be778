"""The result of a job's check: what was found out about its streams and roles, what its load will
do, and what the user should know before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from semistream.files.column_facts import ColumnFacts
from semistream.pipeline.load_prediction import RolePrediction

BASE = 220_000_000  # bytes that a worker's process needs with an empty join
OVER = 1.1  # bytes of a worker's process for each of its part of M

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A finding that the user should know before the load. level: "error" if the load or its proof
    would fail; about: the stream or a role."""

    level: Level
    about: str
    text: str


@dataclass(frozen=True)
class StreamFacts:
    """Facts about a stream's files. rows: the number of rows that were read; about: the estimated
    total number; unparsable: how many of the read rows cannot be parsed; duplicates: how many of
    the read tuples have the id of an earlier one; punctuations: how many of the read rows are no
    tuples, but punctuations."""

    name: str
    format: str
    path: str | None
    files: int = 0
    bytes: int = 0
    rows: int = 0
    about: int = 0
    unparsable: int = 0
    duplicates: int = 0
    columns: tuple[ColumnFacts, ...] = ()
    punctuations: int = 0


@dataclass(frozen=True)
class RoleFacts:
    """Facts about a role's dimension, and about its matches with the stream's tuples.

    rows: rows that were read, which are all rows if whole; rejected: read rows that cannot be
    stored; duplicates: read rows with the business key of an earlier one; matched, null_keys:
    shares of the sampled tuples, None if there are none; unmatched: the most frequent keys without
    a row; declaration: the setting ``formats`` with which more keys would match.
    """

    role: str
    dimension: str
    source: str
    on: Mapping[str, str]
    rows: int = 0
    whole: bool = True
    rejected: int = 0
    duplicates: int = 0
    matched: float | None = None
    null_keys: float | None = None
    unmatched: tuple[str, ...] = ()
    near_misses: str = ""
    declaration: str = ""
    columns: tuple[ColumnFacts, ...] = ()


@dataclass
class JobCheck:
    """The result of a check. sink: the setting's value; ok: whether no finding is an error."""

    job: str
    streams: list[StreamFacts] = field(default_factory=list)
    roles: list[RoleFacts] = field(default_factory=list)
    predictions: list[RolePrediction] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    memory: int = 0
    partitions: int = 1
    worker_bytes: int = 0
    sink: str = ""
    fact_table: str = ""
    costs: str = ""

    @property
    def ok(self) -> bool:
        return not any(found.level == "error" for found in self.findings)

    def divide(self, partitions: int) -> None:
        """Note among how many partitions M is divided."""
        self.partitions = partitions
        self.worker_bytes = BASE + round(OVER * self.memory / partitions)

    def add(self, level: Level, about: str, text: str) -> None:
        self.findings.append(Finding(level, about, text))

    def judge(self, fails: bool, about: str, text: str, why: str) -> None:
        """Note something. It is an error if it fails for a reason."""
        self.add("error" if fails else "note", about, f"{text}; {why}" if fails else text)
