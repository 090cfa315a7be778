"""The durable note of which micro-batch is being worked on, and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from semistream.durable import read_checked, write_checked
from semistream.errors import StateError
from semistream.sizing.plan import Plan
from semistream.sizing.stream_stream_plan import StreamStreamPlan
from semistream.source_files import SourceFile
from semistream.streaming.position import PROGRESS, RESTORE


@dataclass(frozen=True)
class Progress:
    """``<checkpoint>/progress.json``: the batch, or drain, being worked on, or the latest one that
    was.

    It is written before any task starts. Whatever is noted here is finished, with this plan and
    from these states, before anything else is begun; so a task that outlives its driver does the
    same work as its successor, and the ledger keeps one. states: join state files after the batch
    before, by partition; none where nothing is taken over. source: which part of the source the
    micro-batch is, as ``load_commits.source_offsets`` says it; sources: its files, as they were
    when it began, those of a left stream before those of the right one; same_reader: whether
    it was begun by a release whose tasks read as those of today.
    """

    batch: int
    drain: int
    plan: Plan | StreamStreamPlan
    states: dict[int, str] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    sources: tuple[SourceFile, ...] = ()
    same_reader: bool = True

    @classmethod
    def read(cls, checkpoint: Path) -> Progress | None:
        """Raises StateError when the note is damaged."""
        path = checkpoint / PROGRESS
        values = read_checked(path, RESTORE)
        if values is None:
            return None
        try:
            return cls(values["batch"], values["drain"], _plan(values["plan"]),
                       {int(p): f for p, f in values["states"].items()}, values["source"],
                       tuple(SourceFile(*s) for s in values["sources"]),
                       values.get("same_reader", values.get("own", False)))
        except (ValueError, KeyError, TypeError) as e:
            raise StateError(f"{path} is of another version: {e!r}. {RESTORE}") from None

    def write(self, checkpoint: Path) -> None:
        write_checked(checkpoint / PROGRESS, asdict(self))


def _plan(values: dict[str, Any]) -> Plan | StreamStreamPlan:
    """Only a plan with master data has a snapshot."""
    kind = Plan if "snapshot" in values else StreamStreamPlan
    return kind.from_json(values)
