"""The open rows of ``unmatched``, and the marking of rows that a resolving load has joined again.

A row is open until a load has joined its tuple again with a changed result. That load then has the
tuple, as facts or as a row of ``unmatched``. In the load's transaction, the former row's
``resolved_by`` is set to that load. So a tuple is in one place at every moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, Row, and_, func, select, tuple_, update

from semistream.errors import StateError
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.schema import unmatched

AT_ONCE = 1_000  # rows, or codes, of a statement
ORIGINS = pa.schema([("load_id", pa.int64()), ("load_row", pa.int32())])  # the key of ``unmatched``
COLUMNS = [
    unmatched.c[name]
    for name in ("load_id", "load_row", "reason", "role", "stream_id", "tuple", "resolved_by")
]


def open_rows(number: int) -> ColumnElement[bool]:
    """Return the condition for the open rows of an app. number: the app's number in its
    load_ids."""
    return and_(unmatched.c.load_id.between(*app_loads(number)), unmatched.c.resolved_by.is_(None))


def mark_resolved(connection: Connection, load: int, origins: Iterable[pa.RecordBatch]) -> None:
    """Mark rows of ``unmatched``, identified by batches of ``ORIGINS``, as resolved by a load.
    Raises StateError if one of them is not open, so that the transaction is rolled back."""
    u = unmatched.c
    for batch in origins:
        rows = defaultdict[int, list[int]](list)
        for of, row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            rows[of].append(row)
        for of, numbers in rows.items():
            for first in range(0, len(numbers), AT_ONCE):
                some = numbers[first : first + AT_ONCE]
                mark = update(unmatched).where(
                    u.load_id == of, u.load_row.in_(some), u.resolved_by.is_(None)
                )
                marked = connection.execute(mark.values(resolved_by=load)).rowcount
                if marked != len(some):
                    raise StateError(
                        f"{len(some) - marked} of {len(some)} tuples that load {load} has joined "
                        f"again are no longer open rows of unmatched (load {of}). Not loaded."
                    )


def with_keys(
    connection: Connection, number: int, where: ColumnElement[bool], codes: Sequence[int]
) -> Iterator[Sequence[Row]]:
    """Yield the open rows of an app that have one of these key codes and satisfy a condition, with
    the columns ``COLUMNS``."""
    u, mine = unmatched.c, and_(open_rows(number), where)
    for first in range(0, len(codes), AT_ONCE):
        some = codes[first : first + AT_ONCE]
        yield connection.execute(select(*COLUMNS).where(u.key_code.in_(some), mine)).all()


def all_open(
    connection: Connection, number: int, where: ColumnElement[bool]
) -> Iterator[Sequence[Row]]:
    """Yield the open rows of an app that satisfy a condition, in the order of their keys, with the
    columns ``COLUMNS``."""
    u = unmatched.c
    rows = select(*COLUMNS).where(open_rows(number), where).order_by(u.load_id, u.load_row)
    yield from connection.execution_options(yield_per=AT_ONCE).execute(rows).partitions(AT_ONCE)


def by_key(
    connection: Connection, number: int, keys: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Row]:
    """Return the rows of an app with these keys, open or not, with the columns ``COLUMNS``."""
    u, found = unmatched.c, dict[tuple[int, int], Row]()
    mine = u.load_id.between(*app_loads(number))
    for first in range(0, len(keys), AT_ONCE):
        some = list(keys[first : first + AT_ONCE])
        rows = connection.execute(
            select(*COLUMNS).where(mine, tuple_(u.load_id, u.load_row).in_(some))
        )
        found |= {(row.load_id, row.load_row): row for row in rows}
    return found


def count_open(connection: Connection, number: int) -> int:
    """Return the number of an app's open rows."""
    query = select(func.count()).select_from(unmatched).where(open_rows(number))
    return connection.scalar(query) or 0
