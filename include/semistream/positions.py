"""Where a load is: at a batch, or at what follows it under the same number."""

from enum import IntEnum


class Kind(IntEnum):
    """The kind of a commit under a batch's number, in the order of commits. The ledger stores it in
    the column ``drain``. A drain finishes the tuples that still waited after the batch."""

    BATCH = 0
    DRAIN = 1


Position = tuple[int, int]  # (batch, Kind)
START: Position = (-1, Kind.DRAIN)  # before the first batch
