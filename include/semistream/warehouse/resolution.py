"""The open rows of ``unmatched``, and the marking of rows that a resolving load has joined again.

A row is open until a load has joined its tuple again with a changed result. That load then has the
tuple, as facts or as a row of ``unmatched``. In the load's transaction, the former row's
``resolved_by`` is set to that load. So a tuple is in one place at every moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    tuple_,
    update,
)

from semistream.errors import StateError
from semistream.warehouse.bulk import fetch
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.schema import unmatched

AT_ONCE = 5_000  # rows, or codes, of a statement
CODES = 10 * AT_ONCE  # codes whose rows are looked for together
SEEK = 2  # rows that are read one after the other in the time in which one is sought, about
ORIGINS = pa.schema([("load_id", pa.int64()), ("load_row", pa.int32())])  # the key of ``unmatched``
# the columns of ``unmatched`` that tell of a tuple
TUPLES = pa.schema(
    [
        *ORIGINS,
        ("reason", pa.string()),
        ("role", pa.string()),
        ("stream_id", pa.string()),
        ("tuple", pa.string()),
        ("resolved_by", pa.int64()),
    ]
)
COLUMNS = [unmatched.c[name] for name in TUPLES.names]
# those of them that are not known before where a role's late tuples are looked for
LATE = pa.schema([*ORIGINS, TUPLES.field("role"), TUPLES.field("tuple")])
KEYED = pa.schema([*LATE, ("key_code", pa.int64())])


UNCACHED: dict[str, Any] = {"compiled_cache": None}  # of SQLAlchemy: execution options


class Unmatched(NamedTuple):
    """A row of ``unmatched``, with the columns of ``TUPLES``."""

    load_id: int
    load_row: int
    reason: str
    role: str | None
    stream_id: str | None
    tuple: str
    resolved_by: int | None


def open_rows(number: int) -> ColumnElement[bool]:
    """Return the condition for the open rows of an app. number: the app's number in its
    load_ids."""
    return and_(unmatched.c.load_id.between(*app_loads(number)), unmatched.c.resolved_by.is_(None))


def mark_resolved(connection: Connection, load: int, origins: Iterable[pa.RecordBatch]) -> None:
    """Mark rows of ``unmatched``, identified by batches of ``ORIGINS``, as resolved by a load.
    Raises StateError if one of them is not open, so that the transaction is rolled back."""
    u, rows = unmatched.c, pa.Table.from_batches(origins, ORIGINS)
    loads, numbers = (column.to_numpy() for column in rows.columns)
    # a statement for rows of one load: in any other order there would be one for a few rows
    order = np.lexsort((numbers, loads))
    loads, numbers = loads[order], numbers[order]
    mark = update(unmatched).where(u.resolved_by.is_(None)).values(resolved_by=load)
    marked, ranges = 0, list[dict[str, int]]()
    for start, end in pairwise(np.flatnonzero(np.diff(loads, prepend=0, append=0)).tolist()):
        of = int(loads[start])
        for first in range(start, end, AT_ONCE):
            some = numbers[first : min(first + AT_ONCE, end)]
            if _is_range(some):
                ranges.append({"of": of, "from": int(some[0]), "to": int(some[-1])})
                continue
            these = mark.where(u.load_id == of, _one_of(u.load_row, some))
            marked += connection.execute(these, execution_options=UNCACHED).rowcount
    if ranges:
        within = u.load_row.between(bindparam("from"), bindparam("to"))
        marked += connection.execute(
            mark.where(u.load_id == bindparam("of"), within), ranges
        ).rowcount
    if marked != len(numbers):
        raise StateError(
            f"{len(numbers) - marked} of {len(numbers)} tuples that load {load} has joined again "
            "are no longer open rows of unmatched. Not loaded."
        )


def _one_of(column: ColumnElement[int], numbers: np.ndarray) -> ColumnElement[bool]:
    """Return the condition that a column has one of these integers, of which there is at least one.
    Unless they are a range, they are in the statement's text, because a parameter for each would
    take more time than its row. Such a statement is not to be cached."""
    if _is_range(numbers):
        return column.between(int(numbers[0]), int(numbers[-1]))
    texts = ", ".join(map(str, numbers.tolist()))
    return column.op("IN", is_comparison=True)(literal_column(f"({texts})"))


def _is_range(numbers: np.ndarray) -> bool:
    return bool((np.diff(numbers) == 1).all())


def with_keys(
    connection: Connection, number: int, where: ColumnElement[bool], codes: Iterable[np.ndarray]
) -> Iterator[pa.RecordBatch]:
    """Yield the open rows of an app that have one of these key codes and satisfy a condition, in
    batches of ``LATE``. codes: int64[n] each, any number of arrays.

    Rows are found by the index of their keys. If they are many of the rows of their loads, these
    loads are read instead, row after row, because that is faster than to seek each row.
    """
    u, mine = unmatched.c, and_(unmatched.c.resolved_by.is_(None), where)
    columns = [u[name] for name in KEYED.names]
    connection = connection.execution_options(**UNCACHED)
    for many in in_parts(codes, CODES):
        # `+ 0` keeps SQLite, which has no statistics, from reading all rows of the app: for so many
        # codes, it would not use their index
        with_code = [
            and_(_one_of(u.key_code, some), (u.load_id + 0).between(*app_loads(number)))
            for some in in_parts([many], AT_ONCE)
        ]
        found = [
            some
            for one in with_code
            for some in fetch(connection, select(u.load_id, u.load_row).where(one), ORIGINS)
        ]
        rows = pa.Table.from_batches(found, ORIGINS)
        of = rows["load_id"].combine_chunks().dictionary_encode()
        loads, there = of.dictionary.to_numpy(), np.zeros(len(of.dictionary), np.int32)
        # a load's rows are numbered from 0
        np.maximum.at(there, of.indices.to_numpy(), rows["load_row"].to_numpy() + 1)
        wanted = with_code
        if there.sum() < SEEK * rows.num_rows:
            wanted = [_one_of(u.load_id, some) for some in in_parts([np.sort(loads)], AT_ONCE)]
        these = pa.array(many)
        for one in wanted:
            for read in fetch(connection, select(*columns).where(one, mine), KEYED):
                yield read.filter(pc.is_in(read["key_code"], these)).select(LATE.names)


def in_parts(codes: Iterable[np.ndarray], most: int) -> Iterator[np.ndarray]:
    """Yield the elements of arrays in arrays of at most `most` elements, of which all but the last
    one are full."""
    held = np.empty(0, np.int64)
    for more in codes:
        held = np.concatenate([held, more])
        whole = len(held) // most * most
        yield from (held[first : first + most] for first in range(0, whole, most))
        held = held[whole:]
    if len(held):
        yield held


def all_open(
    connection: Connection, number: int, where: ColumnElement[bool]
) -> Iterator[pa.RecordBatch]:
    """Yield the open rows of an app that satisfy a condition, in the order of their keys, in
    batches of ``TUPLES``."""
    u = unmatched.c
    rows = select(*COLUMNS).where(open_rows(number), where).order_by(u.load_id, u.load_row)
    return fetch(connection, rows, TUPLES)


def by_key(
    connection: Connection, number: int, keys: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Unmatched]:
    """Return the rows of an app with these keys, open or not."""
    u, found = unmatched.c, dict[tuple[int, int], Unmatched]()
    mine = u.load_id.between(*app_loads(number))
    for first in range(0, len(keys), AT_ONCE):
        some = list(keys[first : first + AT_ONCE])
        rows = connection.execute(
            select(*COLUMNS).where(mine, tuple_(u.load_id, u.load_row).in_(some))
        )
        found |= {(row.load_id, row.load_row): Unmatched(*row) for row in rows}
    return found


def count_open(connection: Connection, number: int) -> int:
    """Return the number of an app's open rows."""
    query = select(func.count()).select_from(unmatched).where(open_rows(number))
    return connection.scalar(query) or 0
