"""Where a load is: at a batch, or at what follows it under the same number."""

from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """The kind of a commit under a batch's number, in the order of commits. The ledger stores it in
    the column ``drain``.

    A drain finishes the tuples that still waited after the batch. A resolving load joins tuples of
    ``unmatched`` again, and reads no source. As several may follow a batch, each number from
    RESOLVE on is one.
    """

    BATCH = 0
    DRAIN = 1
    RESOLVE = 2


KINDS = 10  # all of them: a digit of load_id
Position = tuple[int, int]  # (batch, Kind)
START: Position = (-1, Kind.DRAIN)  # before the first batch


def resolves(kind: Any) -> Any:
    """Return whether a position's kind is that of a resolving load. Takes a number or a column."""
    return kind >= Kind.RESOLVE


def ordinal(batch: Any, kind: Any) -> Any:
    """Return a number by which positions can be compared. Takes numbers or columns."""
    return batch * KINDS + kind


def next_resolve(last: Position) -> Position | None:
    """Return the position of a resolving load that follows ``last``; None if as many as there are
    numbers for have followed that batch."""
    kind = max(last[1] + 1, Kind.RESOLVE)
    return (last[0], int(kind)) if kind < KINDS else None


def named(at: Position) -> str:
    """Return a position as words: "batch 3", or what follows it."""
    what = "" if at[1] == Kind.BATCH else "the drain behind "
    if resolves(at[1]):
        what = f"resolving load {at[1] - Kind.RESOLVE + 1} behind "
    return f"{what}batch {at[0]}"
