"""The position of a load: at a batch, or at a drain or resolving load that follows the batch under
the same number."""

from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """The kind of a commit under a batch's number, in the order of commits. The ledger stores it in
    the column ``drain``.

    A drain finishes the tuples that still waited after the batch. A resolving load joins tuples of
    ``unmatched`` again, and reads no source. Several resolving loads may follow a batch; each of
    them has a number, from RESOLVE on.
    """

    BATCH = 0
    DRAIN = 1
    RESOLVE = 2


KINDS = 10  # possible kinds: a decimal digit of load_id
Position = tuple[int, int]  # (batch, Kind)
START: Position = (-1, Kind.DRAIN)  # before the first batch


def resolves(kind: Any) -> Any:
    """Return whether a position's kind is that of a resolving load. kind: a number or a column."""
    return kind >= Kind.RESOLVE


def ordinal(batch: Any, kind: Any) -> Any:
    """Return a number by which positions can be compared. Takes numbers or columns."""
    return batch * KINDS + kind


def next_resolve(last: Position) -> Position | None:
    """Return the position of a resolving load that follows ``last``; None if no numbers are left
    for further resolving loads after that batch."""
    kind = max(last[1] + 1, Kind.RESOLVE)
    return (last[0], int(kind)) if kind < KINDS else None


def named(at: Position) -> str:
    """Return a position as words: "batch 3", or the kind of load that follows batch 3."""
    what = "" if at[1] == Kind.BATCH else "the drain behind "
    if resolves(at[1]):
        what = f"resolving load {at[1] - Kind.RESOLVE + 1} behind "
    return f"{what}batch {at[0]}"
