"""How far a load is, by what its checkpoint says; of every version, and without what a load needs.
"""

from __future__ import annotations

from pathlib import Path

from semistream.durable import read_checked

PROGRESS, INTENT = "progress.json", "intent.json"
RESTORE = "Restore it, or load the source anew after: semistream reset APP."
Position = tuple[int, int]  # (batch, drain)


def position(checkpoint: Path) -> Position | None:
    """The batch, or drain, being worked on, or the latest one that was. Raises StateError when the
    note of it is damaged."""
    values = read_checked(checkpoint / PROGRESS, RESTORE)
    return None if values is None else (values["batch"], values["drain"])


def promised(checkpoint: Path) -> Position | None:
    """The commit that is noted, and made also after a crash. Raises StateError when the note is
    damaged."""
    values = read_checked(checkpoint / INTENT, RESTORE)
    return None if values is None else (values["commit"]["batch"], values["commit"]["drain"])


def follows(at: Position, last: Position | None) -> bool:
    """Whether one works at ``at`` when the newest commit is ``last``: that itself, the drain behind
    it, or the next batch."""
    batch, drain = last if last is not None else (-1, 1)
    return at in ((batch, drain), (batch, 1), (batch + 1, 0)) and at[0] >= 0


def done_by_spark(checkpoint: Path) -> int:
    """The newest batch that Spark will not give again, by its own notes; -1 before the first."""
    offsets, commits = (_numbers(checkpoint / "query" / name) for name in ("offsets", "commits"))
    return max([*(offsets & commits), max(offsets, default=0) - 1])


def begun_by_spark(checkpoint: Path) -> int:
    """The newest batch that Spark has begun, by its own notes; -1 before the first."""
    return max(_numbers(checkpoint / "query" / "offsets"), default=-1)


def _numbers(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.glob("*") if path.name.isdigit()}
