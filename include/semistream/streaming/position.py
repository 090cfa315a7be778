"""The position of a load according to its checkpoint. It can be read for a checkpoint of any
version, and with few imports."""

from __future__ import annotations

from pathlib import Path

from semistream.durable import read_checked
from semistream.errors import StateError
from semistream.positions import START, Kind, Position, next_resolve

PROGRESS, INTENT = "progress.json", "intent.json"
RESET = "reset.json"  # what is being taken out of the load, see pipeline/day_again.py
RESTORE = "Restore it, or load the source anew after: semistream reset APP."


def position(checkpoint: Path) -> Position | None:
    """Return the position of the batch, drain or resolving load that is being processed or was
    processed last; None if there is none. Raises StateError if the record is damaged."""
    values = read_checked(checkpoint / PROGRESS, RESTORE)
    return None if values is None else (values["batch"], values["drain"])


def begun_sink(checkpoint: Path) -> str:
    """Return the sink into which the batch goes that is being processed or was processed last; ""
    if there is none. Raises StateError if the record is damaged."""
    values = read_checked(checkpoint / PROGRESS, RESTORE)
    return "" if values is None else values["sink"]


def prepared(checkpoint: Path) -> Position | None:
    """Return the position of a commit that is recorded, and will be made even after a crash; None
    if there is none. Raises StateError if the record is damaged."""
    values = read_checked(checkpoint / INTENT, RESTORE)
    return None if values is None else (values["commit"]["batch"], values["commit"]["drain"])


def check_no_reset(checkpoint: Path) -> None:
    """Raise StateError if a reset of some files was interrupted, because ledger and checkpoint may
    then contradict each other."""
    if (values := read_checked(checkpoint / RESET, RESTORE)) is not None:
        raise StateError(
            f"{checkpoint / RESET}: a reset of {len(values['files']):,} files was cut short. "
            f"Finish it: {values['command']}."
        )


def follows(at: Position, last: Position | None) -> bool:
    """Return whether an app's position ``at`` is possible if its newest commit is ``last``: it is
    the same position, a drain or resolving load under the same number, or the next batch."""
    last = last if last is not None else START
    drain = (last[0], int(Kind.DRAIN)) if last[1] == Kind.BATCH else last
    return at in (last, drain, next_resolve(last), (last[0] + 1, Kind.BATCH)) and at[0] >= 0


def done_by_query(checkpoint: Path) -> int:
    """Return the newest batch that the query will not give again, according to its logs; -1 before
    the first."""
    offsets, commits = (_numbers(checkpoint / "query" / name) for name in ("offsets", "commits"))
    return max([*(offsets & commits), max(offsets, default=0) - 1])


def begun_by_query(checkpoint: Path) -> int:
    """Return the newest batch that the query has begun, according to its logs; -1 before the
    first."""
    return max(_numbers(checkpoint / "query" / "offsets"), default=-1)


def _numbers(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.glob("*") if path.name.isdigit()}
