"""The key of a load, ``load_id``: one integer that identifies app, batch, drain and partition.

A load consists of everything that one partition of a micro-batch, a drain or a resolving load
writes. Its key is not drawn from a sequence but computed, in decimal digits, from the number that
``load_apps`` gives the app::

    load_id = 3 000000012 0 0005        app number 3, batch 12, drain 0, partition 5

Hence every attempt at a load, in any process and after any crash, has the same key, and the
database itself refuses a second one. Rows can be written before their ledger row. The loads of an
app up to a batch are one range of the fact table's primary key. A row identifies its app, batch and
partition even if its ledger row is lost.
"""

from __future__ import annotations

from typing import Any

from semistream.errors import StateError
from semistream.positions import KINDS, Kind, Position, resolves

# upper bounds (exclusive) of each number; a key is less than 2**63
APPS, BATCHES, PARTITIONS = 92_000, 10**9, 10**4


def load_id(number: int, batch: int, drain: int, partition: int) -> int:
    """Return the key of a load. number: the app's number. Raises StateError for numbers that exceed
    the key's digits."""
    if not (
        0 < number < APPS
        and 0 <= batch < BATCHES
        and 0 <= drain < KINDS
        and 0 <= partition < PARTITIONS
    ):
        raise StateError(
            f"No load_id for app number {number}, batch {batch}, drain {drain}, "
            f"partition {partition}: there may be {APPS:,} apps, {BATCHES:,} batches "
            f"of each and {PARTITIONS:,} partitions. Begin under another --app "
            "name, with fewer partitions, or in a new warehouse."
        )
    return key_of(number, batch, drain, partition)


def first_load(number: int, position: Position) -> int:
    """Return the least key of an app's loads at a position, which may be START."""
    return key_of(number, *position, 0)


def last_load(number: int, position: Position) -> int:
    """Return the greatest key of an app's loads at a position."""
    return first_load(number, position) + PARTITIONS - 1


def app_loads(number: int) -> tuple[int, int]:
    """Return the least and the greatest key that an app's loads can have."""
    return first_load(number, (0, Kind.BATCH)), first_load(number + 1, (0, Kind.BATCH)) - 1


# These take integers, NumPy arrays and SQL columns. Each division is exact, so no database rounds.


def key_of(number: Any, batch: Any, drain: Any, partition: Any) -> Any:
    """Return the ``load_id`` without checking the numbers."""
    return ((number * BATCHES + batch) * KINDS + drain) * PARTITIONS + partition


def batch_of(key: Any) -> Any:
    """Return the batch of a ``load_id``."""
    return _quotient(key, KINDS * PARTITIONS) % BATCHES


def drain_of(key: Any) -> Any:
    """Return the Kind (batch, drain or resolving load) of a ``load_id``."""
    return _quotient(key, PARTITIONS) % KINDS


def resolving(key: Any) -> Any:
    """Return whether a ``load_id`` belongs to a resolving load."""
    return resolves(drain_of(key))


def partition_of(key: Any) -> Any:
    """Return the partition of a ``load_id``."""
    return key % PARTITIONS


def _quotient(key: Any, by: int) -> Any:
    return (key - key % by) // by
