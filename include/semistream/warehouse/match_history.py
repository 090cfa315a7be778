"""How many tuples of each load had no row of a dimension, and whether there are more than before.

A load is here what was read between two moments at which no tuple waited: a run of the app, which
ends with a drain, or a part of a run that goes on. The share of a single micro-batch would say
little: its tuples without master data wait longest, and are finished in a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from semistream.positions import START, Position
from semistream.reasons import Reason
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import batch_of, drain_of, first_load, last_load
from semistream.warehouse.schema import load_commits, load_inputs, load_rejections

BEFORE = 10  # loads with which one is compared
RISE = 0.2  # by which the share must be greater than theirs
LEAST = 100  # tuples of a load that is compared; the share of fewer varies by chance
COMMITS = 1000  # the newest commits, whose loads are looked at
MISSING = (Reason.NO_MATCH, Reason.NULL_KEY)  # why a tuple has no row of a dimension


class LoadShare(NamedTuple):
    """A load: its first and last commit, the tuples that it has finished, and those of them that
    have no row of the dimension."""

    first: Position
    last: Position
    finished: int
    missing: int


class Rise(NamedTuple):
    """A load of which more tuples have no row of a dimension than of the loads before it."""

    role: str
    load: LoadShare
    before: tuple[LoadShare, ...]

    def __str__(self) -> str:
        first, last = self.load.first[0], self.load.last[0]
        batches = f"batch {first}" if first == last else f"batches {first} to {last}"
        loads = f"{len(self.before)} loads" if len(self.before) > 1 else "load"
        return (
            f"{_share([self.load]):.1%} of the {self.load.finished:,} tuples of {batches} have no "
            f"row of {self.role}, against {_share(self.before):.1%} of the {loads} before"
        )


def newest_rise(
    connection: Connection, app: str, role: str, after: Position | None, until: Position
) -> Rise | None:
    """Return the newest load that ends after a position (None: any) of which the share of tuples
    without a row is greater than that of up to ``BEFORE`` loads before it by more than ``RISE``;
    None if there is none."""
    loads = [of for of in _loads(connection, app, role, until) if of.finished >= LEAST]
    for n in range(len(loads) - 1, 0, -1):
        if after is not None and loads[n].last <= after:
            break
        before = tuple(loads[max(n - BEFORE, 0) : n])
        if _share([loads[n]]) > _share(before) + RISE:
            return Rise(role, loads[n], before)
    return None


def _share(loads: Sequence[LoadShare]) -> float:
    return sum(of.missing for of in loads) / sum(of.finished for of in loads)


def _loads(connection: Connection, app: str, role: str, until: Position) -> list[LoadShare]:
    """Return the loads up to a position, in order. The last one may have tuples that wait."""
    number, c = app_number(connection, app) or 0, load_commits.c
    oldest = connection.execute(
        select(c.batch, c.drain)
        .where(c.app == app)
        .order_by(c.batch.desc(), c.drain.desc())
        .limit(1)
        .offset(COMMITS)
    ).first()
    begin = START if oldest is None else (oldest.batch, oldest.drain)
    i, r = load_inputs.c, load_rejections.c
    loads = (first_load(number, begin), last_load(number, until))
    at = batch_of(i.load_id), drain_of(i.load_id)
    counted = connection.execute(
        select(*at, func.sum(i.rows_read), func.sum(i.waiting), func.sum(i.missed))
        .where(i.load_id.between(*loads), i.role == role)
        .group_by(*at)
        .order_by(*at)
    ).all()
    at = batch_of(r.load_id), drain_of(r.load_id)
    missing = {
        (int(batch), int(drain)): int(tuples)
        for batch, drain, tuples in connection.execute(
            select(*at, func.sum(r.tuples))
            .where(r.load_id.between(*loads), r.role == role, r.reason.in_(MISSING))
            .group_by(*at)
        )
    }
    return _cut(
        [
            (
                position := (int(batch), int(drain)),
                int(read),
                int(waiting),
                missing.get(position, 0) + int(missed),
            )
            for batch, drain, read, waiting, missed in counted
        ],
        begins_anew=begin == START,
    )


def _cut(commits: Sequence[tuple[Position, int, int, int]], begins_anew: bool) -> list[LoadShare]:
    """Cut commits, each (position, tuples read, waiting, missing), into loads. begins_anew: nothing
    waited before the first commit; otherwise the first load, of which a part is unknown, is left
    out."""
    loads, open_ = list[LoadShare](), False
    for position, read, waiting, missing in commits:
        if open_:
            former = loads.pop()
            loads.append(
                LoadShare(former.first, position, former.finished + read, former.missing + missing)
            )
        else:
            loads.append(LoadShare(position, position, read, missing))
        open_ = waiting > 0
    if open_:
        last = loads.pop()
        loads.append(last._replace(finished=last.finished - commits[-1][2]))
    return loads if begins_anew else loads[1:]
