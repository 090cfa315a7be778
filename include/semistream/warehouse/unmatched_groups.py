"""The open unmatched tuples of an app, grouped by reason, role and key. This module uses only
SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from semistream.job import SIDES
from semistream.positions import START
from semistream.reasons import QUARANTINED
from semistream.warehouse.dialects import system_of
from semistream.warehouse.ledger import app_number, newest_commit
from semistream.warehouse.load_ids import first_load, last_load
from semistream.warehouse.schema import load_rejections, unmatched

ROWS = 10_000  # fetched at a time


class Kind(NamedTuple):
    """Unmatched tuples of one reason. role: the role in which they have no row of a dimension, or
    "left" or "right" for one of two streams; "" if the tuples reached no role."""

    reason: str
    role: str = ""

    @classmethod
    def of(cls, reason: str, role: str) -> Kind:
        """Return the kind of tuples that the ledger counts in a role, which is the first one for
        those that reached none."""
        return cls(reason, "" if reason in QUARANTINED and role not in SIDES else role)


class Group(NamedTuple):
    """Unmatched tuples of a kind with the same key. key: its values, in the order of the columns;
    newest: the load_id of the newest such tuples."""

    key: tuple[Any, ...]
    tuples: int
    newest: int


class Row(NamedTuple):
    """A row of ``unmatched``, with its tuple as a dict."""

    load_id: int
    load_row: int
    stream_id: str | None
    values: dict[str, Any]


def kinds_of(connection: Connection, app: str) -> list[Kind]:
    """Return the kinds of an app's unmatched tuples, each a reason and a role, according to the
    ledger."""
    r = load_rejections.c
    found = connection.execute(
        select(r.reason, r.role).where(r.load_id.between(*_committed(connection, app))).distinct()
    )
    return sorted({Kind.of(reason, role) for reason, role in found})


def count_open(connection: Connection, loads: tuple[int, int]) -> dict[Kind, int]:
    """Return the numbers of tuples that are still unmatched, by kind. The role of a job that has
    one is "". loads: the least and the greatest load_id."""
    u = unmatched.c
    role = func.coalesce(u.role, u.side, "")
    found = connection.execute(
        select(u.reason, role, func.count())
        .where(u.load_id.between(*loads), u.resolved_by.is_(None))
        .group_by(u.reason, role)
    )
    return {Kind(reason, name): int(count) for reason, name, count in found}


def is_of(connection: Connection, app: str, kind: Kind) -> ColumnElement[bool]:
    """Return the condition for an app's open rows of ``unmatched`` of a kind, without those of a
    batch that is not committed yet."""
    u = unmatched.c
    mine = and_(u.load_id.between(*_committed(connection, app)), u.resolved_by.is_(None))
    # a job of one role names none
    role = or_(u.role == kind.role, u.side == kind.role, and_(u.role.is_(None), u.side.is_(None)))
    return and_(mine, u.reason == kind.reason, *([role] if kind.role else []))


def groups_of(
    connection: Connection, app: str, kind: Kind, columns: Sequence[str], most: int | None
) -> Iterator[Group]:
    """Yield the keys of a kind's tuples, the most frequent first. most: the largest number of keys,
    None for all.

    columns: the columns of the tuples that form the key; without columns, all tuples have the same
    key. The database does the grouping, so that memory grows neither with the tuples nor with their
    keys.
    """
    u, texts = unmatched.c, _texts(connection, columns)
    tuples = func.count().label("tuples")
    query = (
        select(*texts, tuples, func.max(u.load_id))
        .where(is_of(connection, app, kind))
        .group_by(*texts)
        .order_by(tuples.desc(), *texts)
        .limit(most)
    )
    for *key, count, newest in connection.execution_options(yield_per=ROWS).execute(query):
        if newest is not None:
            yield Group(tuple(map(json.loads, key)), int(count), int(newest))


def count_of(
    connection: Connection, app: str, kind: Kind, columns: Sequence[str]
) -> tuple[int, int]:
    """Return the numbers of a kind's tuples, and of their distinct keys."""
    texts = _texts(connection, columns)
    each = (
        select(func.count().label("tuples"))
        .where(is_of(connection, app, kind))
        .group_by(*texts)
        .subquery("keys_of_kind")
    )
    tuples, keys = connection.execute(
        select(func.coalesce(func.sum(each.c.tuples), 0), func.count()).select_from(each)
    ).one()
    return int(tuples), int(keys)


def examples_of(
    connection: Connection, app: str, kind: Kind, columns: Sequence[str], groups: Iterable[Group]
) -> dict[tuple[Any, ...], Row]:
    """Return by key one tuple of each group, from the group's newest load."""
    wanted: dict[int, set[tuple[Any, ...]]] = {}
    for group in groups:
        wanted.setdefault(group.newest, set()).add(group.key)
    u, found = unmatched.c, dict[tuple[Any, ...], Row]()
    for load, keys in wanted.items():
        query = (
            select(u.load_id, u.load_row, u.stream_id, u.tuple)
            .where(is_of(connection, app, kind), u.load_id == load)
            .order_by(u.load_row)
        )
        with connection.execution_options(yield_per=ROWS).execute(query) as rows:
            for load_id, load_row, stream_id, text in rows:
                values = json.loads(text)
                if (key := tuple(values.get(name) for name in columns)) in keys:
                    found[key] = Row(load_id, load_row, stream_id, values)
                    keys.remove(key)
                    if not keys:
                        break
    return found


def _committed(connection: Connection, app: str) -> tuple[int, int]:
    """Return the least and the greatest load_id that an app's committed loads can have."""
    number, newest = app_number(connection, app), newest_commit(connection, app)
    end = START if newest is None else (newest.batch, newest.drain)
    return first_load(number, START), last_load(number, end)


def _texts(connection: Connection, columns: Sequence[str]) -> list[Any]:
    """Return SQL expressions for these columns of the tuples as JSON texts, with labels. If a tuple
    has a former schema that lacks a column, the column is null."""
    value = system_of(connection).json_value
    return [
        func.coalesce(value(unmatched.c.tuple, name), "null").label(f"key_{n}")
        for n, name in enumerate(columns)
    ]
