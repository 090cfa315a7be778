"""The durable record of which micro-batch is being processed, and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from semistream.data_files import DataFile
from semistream.durable import read_checked, write_checked
from semistream.errors import StateError
from semistream.sizing.plan import JoinPlan, Plan
from semistream.streaming.position import PROGRESS, RESTORE
from semistream.streaming.resolving import Again


@dataclass(frozen=True)
class Progress:
    """``<checkpoint>/progress.json``: the batch, drain or resolving load that is being processed or
    was processed last.

    It is written before any task starts. The recorded batch is finished, with this plan and from
    these states, before anything else begins. So a task that outlives its driver does the same work
    as its successor, and the ledger keeps one of both. states: by partition, the join state files
    after the previous batch, one for each join; empty if no state is carried over. source: the
    micro-batch's part of the source, as in ``load_commits.source_offsets``; sources: its files at
    the time it began, those of a left stream before those of the right one. again: the input of a
    resolving load; looked_up: by role, the directory of a version whose keys have already been
    looked up: no open tuple of ``unmatched`` that lacks a row in this role has one of them. sink:
    the setting of the sink into which the batch goes, see ``position.begun_sink``.
    """

    batch: int
    drain: int
    plan: Plan[Any]
    states: dict[int, tuple[str, ...]] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    sources: tuple[DataFile, ...] = ()
    again: Again | None = None
    looked_up: dict[str, str] = field(default_factory=dict)
    sink: str = ""

    @classmethod
    def read(cls, checkpoint: Path, kind: type[JoinPlan]) -> Progress | None:
        """Read the record; return None if there is none. kind: the class of the plan's joins.
        Raises StateError if the record is damaged."""
        path = checkpoint / PROGRESS
        values = read_checked(path, RESTORE)
        if values is None:
            return None
        try:
            again = values["again"]
            return cls(
                values["batch"],
                values["drain"],
                Plan.from_json(values["plan"], kind),
                {int(p): tuple(f) for p, f in values["states"].items()},
                values["source"],
                tuple(DataFile(*s) for s in values["sources"]),
                again and Again(again["file"], Plan.from_json(again["plan"], kind)),
                values["looked_up"],
                values["sink"],
            )
        except (ValueError, KeyError, TypeError) as e:
            raise StateError(f"{path} is of another version: {e!r}. {RESTORE}") from None

    def write(self, checkpoint: Path) -> None:
        write_checked(checkpoint / PROGRESS, asdict(self))
