"""The key of a load, ``load_id``: one integer that names app, batch, drain and partition.

A load is what one partition of one micro-batch, or of the drain behind it, writes. Its key is not
drawn from a sequence but computed, in decimal digits, from the number that ``load_apps`` gives the
app::

    load_id = 3 000000012 0 0005        app number 3, batch 12, drain 0, partition 5

Hence every attempt at a load, in whatever process and after whatever crash, has the same key, so
that the database itself refuses a second one. Rows can be written before their ledger row is, the
loads of an app up to a batch are one range of the fact table's primary key, and a row says whose it
is even where its ledger row is lost.
"""

from __future__ import annotations

from typing import Any

from semistream.errors import StateError

# there may be fewer of each than so many; in all, less than 2**63
APPS, BATCHES, PARTITIONS = 92_000, 10**9, 10**4
_DRAINS = 10  # a digit


def load_id(number: int, batch: int, drain: int, partition: int) -> int:
    """The key of a load; number: of the app. Raises StateError for what no key can hold."""
    if not (0 < number < APPS and 0 <= batch < BATCHES and drain in (0, 1)
            and 0 <= partition < PARTITIONS):
        raise StateError(f"No load_id for app number {number}, batch {batch}, drain {drain}, "
                         f"partition {partition}: there may be {APPS:,} apps, {BATCHES:,} batches "
                         f"of each and {PARTITIONS:,} partitions. Begin under another --app "
                         "name, with fewer partitions, or in a new warehouse.")
    return key_of(number, batch, drain, partition)


def first_load(number: int, position: tuple[int, int]) -> int:
    """The least key of an app's loads at (batch, drain). Positions before the first batch, (-1, 1),
    are allowed."""
    return key_of(number, *position, 0)


def last_load(number: int, position: tuple[int, int]) -> int:
    """The greatest key of an app's loads at (batch, drain)."""
    return first_load(number, position) + PARTITIONS - 1


def app_loads(number: int) -> tuple[int, int]:
    """The least and the greatest key that an app's loads can have."""
    return first_load(number, (0, 0)), first_load(number + 1, (0, 0)) - 1


# These take integers, NumPy arrays and columns of SQL. No quotient is left for a database to round.


def key_of(number: Any, batch: Any, drain: Any, partition: Any) -> Any:
    """``load_id`` without its checks."""
    return ((number * BATCHES + batch) * _DRAINS + drain) * PARTITIONS + partition


def batch_of(key: Any) -> Any:
    """The batch of a ``load_id``."""
    return _quotient(key, _DRAINS * PARTITIONS) % BATCHES


def drain_of(key: Any) -> Any:
    """1 for rows that a drain wrote, else 0."""
    return _quotient(key, PARTITIONS) % _DRAINS


def partition_of(key: Any) -> Any:
    """The partition of a ``load_id``."""
    return key % PARTITIONS


def _quotient(key: Any, by: int) -> Any:
    return (key - key % by) // by
