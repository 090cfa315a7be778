"""The wrong rows of loads in ``unmatched``, by id. They are compared with the tuples that have no
master row when the loads are joined again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import and_, func, or_, select

from semistream.quality import findings
from semistream.quality.findings import (
    CHANGED,
    MISSING,
    ROW_CHARACTERS,
    SURPLUS,
    Finding,
    Load,
    WrongRows,
    differing,
    row_text,
    same,
)
from semistream.quality.joined_again import Again, joined, stream_columns
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.reasons import Reason
from semistream.warehouse.load_ids import app_loads, batch_of, resolving
from semistream.warehouse.schema import load_inputs, unmatched
from semistream.warehouse.types import typed

AT_ONCE = 500  # rows looked up at a time


@dataclass(frozen=True)
class Unmatched:
    """A tuple that must be in unmatched, and the role in which it has no master row. If there are
    several such roles, this is the first in the order in which they were joined."""

    role: Role
    values: dict[str, Any]

    @property
    def reason(self) -> Reason:
        lacks_key = any(self.values[name] is None for name in self.role.on)
        return Reason.NULL_KEY if lacks_key else Reason.NO_MATCH


def compare_unmatched(
    staging: Staging, scope: Scope, again: Again, loads: Sequence[Load], found: WrongRows
) -> None:
    """Find the wrong rows of loads whose checksum of rows in unmatched differs."""
    chosen = [load for load in loads if load.kept is not None and not resolving(load.load_id)]
    if not chosen:
        return
    staging.index(again.tuples, "quality_id")
    t, u, named = again.tuples.c, unmatched.c, list[Finding]()
    mine = and_(
        scope.kept(), u.reason.in_((Reason.NO_MATCH, Reason.NULL_KEY)), u.stream_id.is_not(None)
    )
    wanted, names, orders = _expected(scope, again), stream_columns(scope), _orders(staging, chosen)
    rejecting = [role for role in scope.roles if role.rejects]

    def lacks(load_id: int, flags_and_values: Sequence[Any]) -> Unmatched:
        flags, values = (flags_and_values[: len(rejecting)], flags_and_values[len(rejecting) :])
        lacking = {role.name: role for role, lacks in zip(rejecting, flags, strict=True) if lacks}
        first = next(name for name in orders[load_id] if name in lacking)
        return Unmatched(lacking[first], dict(zip(names, values, strict=True)))

    with staging.engine.connect() as connection:
        for load in chosen:
            of_load = select(u.stream_id, u.role, u.reason, u.tuple).where(
                mine, u.load_id == load.load_id
            )
            result = connection.execution_options(yield_per=AT_ONCE).execute(of_load)
            for rows in result.partitions(AT_ONCE):
                ids, was = [row.stream_id for row in rows], dict[str, list[Unmatched]]()
                these = wanted.where(t.quality_id.in_(ids))
                for stream_id, _, *values in staging.all(these):
                    was.setdefault(stream_id, []).append(lacks(load.load_id, values))
                known = _known(staging, again, ids)
                for row in rows:
                    named += _changes(scope, load.load_id, *row, was.get(row.stream_id, []), known)
                if len(named) > findings.NAMED:
                    break
    kept = and_(mine, u.stream_id == t.quality_id, scope.recounted(unmatched))
    lost = wanted.outerjoin(unmatched, kept).where(u.load_id.is_(None)).limit(findings.NAMED)
    # if tuples wait, it is unknown which ones
    for stream_id, batch, *values in () if scope.waiting else staging.all(lost):
        was_it = lacks(chosen[0].load_id, values)
        named.append(
            Finding(
                chosen[0].load_id if len(chosen) == 1 else None,
                unmatched.name,
                MISSING,
                stream_id,
                old=f"{was_it.reason} {row_text(was_it.values)}",
                batch=batch,
            )
        )
    if len(named) > findings.NAMED:
        found.notes.append(f"Of {unmatched.name} the first {findings.NAMED:,} findings are named.")
    found.findings += named[: findings.NAMED]


def _orders(staging: Staging, loads: Sequence[Load]) -> dict[int, list[str]]:
    """Return the roles of each load in the order in which they were joined."""
    i, orders = load_inputs.c, dict[int, list[str]]()
    mine = i.load_id.in_([load.load_id for load in loads])
    for load_id, role in staging.all(
        select(i.load_id, i.role).where(mine).order_by(i.load_id, i.number)
    ):
        orders.setdefault(load_id, []).append(role)
    return orders


def _expected(scope: Scope, again: Again) -> sa.Select:
    """Select the tuples that lack a master row and are not in unmatched for another reason. The
    columns are stream_id, batch, for each role that rejects tuples whether the tuple has no master
    row, and the stream columns."""
    t, tuples = again.tuples.c, again.tuples
    together: sa.FromClause = tuples
    absent: list[sa.ColumnElement[bool]] = []
    for role in scope.roles:
        if role.rejects:
            m = again.masters[role.name]
            together = together.outerjoin(m, joined(role, tuples, m))
            lacks_row: sa.ColumnElement[bool] = m.c[role.surrogate].is_(None)
            if role.infers:  # such a tuple goes on, since the role infers members
                lacks_key = [t[name].is_(None) for name in role.on]
                lacks_row = and_(lacks_row, or_(*lacks_key, t.quality_batch < _since(scope, role)))
            absent.append(lacks_row)
    return (
        select(
            t.quality_id,
            t.quality_batch,
            *(sa.case((of, 1), else_=0).label(f"quality_{n}") for n, of in enumerate(absent)),
            *(t[n] for n in stream_columns(scope)),
        )
        .select_from(together)
        .where(
            or_(sa.false(), *absent),
            t.quality_id.is_not(None),
            ~scope.refused(scope.streams[0], tuples),
        )
    )


def _since(scope: Scope, role: Role) -> sa.ScalarSelect[Any]:
    """Return the first batch of which tuples got inferred members in a role."""
    i = load_inputs.c
    mine = (i.load_id.between(*app_loads(scope.number)), i.role == role.name, i.inferred > 0)
    return select(func.min(batch_of(i.load_id))).where(*mine).scalar_subquery()


def _known(staging: Staging, again: Again, ids: list[str]) -> set[str]:
    """Return the ids that are in the source but have no staged tuple."""
    assert again.source_ids is not None
    s, t = again.source_ids.c.quality_id, again.tuples.c.quality_id
    return set(staging.scalars(select(s).where(s.in_(ids), s.not_in(select(t).where(t.in_(ids))))))


def _changes(
    scope: Scope,
    load_id: int,
    stream_id: str,
    role: str | None,
    reason: str,
    kept: str,
    was: list[Unmatched],
    known: set[str],
) -> list[Finding]:
    """Return findings for the differences between a row of unmatched and its tuple. was: all tuples
    with the row's id; known: ids of the source whose tuples may be incomplete."""
    if not was and stream_id in known:
        return []
    if not was:
        new = f"{reason} {kept}"[:ROW_CHARACTERS]
        return [Finding(load_id, unmatched.name, SURPLUS, stream_id, new=new)]
    there = json.loads(kept)
    candidates = [
        [
            Finding(load_id, unmatched.name, CHANGED, stream_id, n, *differing(old, new))
            for n, old, new in (
                ("reason", lacks.reason, reason),
                *(
                    (n, v, _value(there.get(n), scope.fact.c[n].type))
                    for n, v in lacks.values.items()
                ),
                ("role", None if lacks.role.alone else lacks.role.name, role),
            )
            if not same(old, new)
        ]
        for lacks in was
    ]
    return min(candidates, key=len)


def _value(value: Any, kind: sa.types.TypeEngine) -> Any:
    """Convert a value in a tuple's JSON to the value that a column of this type returns."""
    try:
        return typed(value, kind)
    except (ValueError, ArithmeticError):
        return str(value)
