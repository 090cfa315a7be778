"""The removal of whole batches from a load. Their rows are deleted, and in the ledger they become
batches that have read nothing.

A tuple that waited becomes a fact, or an unmatched tuple, in a later load than the one that read
it. Therefore a whole *stretch* is taken out: all commits between two moments at which no tuple
waited. All rows of its loads belong to tuples that the stretch has read. All tuples that it has
read are in its loads, or in resolving loads that have joined them again; these resolving loads are
taken out, too, and the tuples of other stretches that they have joined are open again. The batches
keep their numbers, by which Spark and the checkpoint know them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    func,
    inspect,
    not_,
    or_,
    select,
    update,
)

from semistream.positions import START, Kind, Position, ordinal
from semistream.warehouse.ledger import app_number, utc_now
from semistream.warehouse.load_ids import app_loads, batch_of, drain_of, last_load
from semistream.warehouse.schema import (
    inferred,
    load_apps,
    load_batches,
    load_commits,
    load_files,
    load_inputs,
    load_rejections,
    quality_failures,
    quality_runs,
    unmatched,
)
from semistream.warehouse.tables import existing_table

# columns of a load that has read nothing
NOTHING = (
    *("waiting_before", "rows_read", "resolved", "matched", "unmatched", "waiting"),
    "output_rows",
    *("cache_hits", "disk_tuples_read", "bytes_read", "r_cycles", "service_rate", "seconds"),
    *("facts_checksum", "unmatched_checksum"),
)
UNKNOWN = ("wait_median", "wait_longest", "nulled", "key_sketch")
NOTHING_OF_INPUT = (
    *("waiting_before", "rows_read", "resolved", "matched", "unmatched", "waiting", "on_disk"),
    *("cache_hits", "bytes_read", "missed", "inferred", "lacking"),
)


class Stretch(NamedTuple):
    """The commits after ``first`` and up to ``last``. After both positions no tuple waits, except
    that tuples may wait after the newest commit."""

    first: Position
    last: Position

    @classmethod
    def only(cls, at: Position) -> Stretch:
        """Return a stretch of a single commit, for conditions on its loads."""
        return cls((at[0], at[1] - 1), at)

    def holds(self, at: Position) -> bool:
        return self.first < at <= self.last

    def loads(self, number: int) -> tuple[int, int]:
        """Return the least and the greatest load_id of the stretch. number: the app's number."""
        return last_load(number, self.first) + 1, last_load(number, self.last)


class Content(NamedTuple):
    """The content of stretches. facts: the number of rows of the fact table; unmatched: the number
    of open rows of ``unmatched``; commits: the rows of ``load_commits``."""

    facts: int
    unmatched: int
    rows_read: int
    commits: Sequence[Row[Any]]


def stretches(connection: Connection, app: str) -> list[Stretch]:
    """Return the stretches of an app's loads, in order. Tuples may wait after the last stretch."""
    b = load_batches.c
    counted = connection.execute(
        select(b.batch, b.drain, func.sum(b.waiting))
        .where(b.app == app)
        .group_by(b.batch, b.drain)
        .order_by(b.batch, b.drain)
    ).all()
    ends = [(int(batch), int(drain)) for batch, drain, waiting in counted if not waiting]
    newest = [(int(batch), int(drain)) for batch, drain, _ in counted[-1:]]
    return [Stretch(*of) for of in pairwise([START, *ends, *(p for p in newest if p not in ends)])]


def with_resolving(connection: Connection, app: str, of: Sequence[Stretch]) -> list[Stretch]:
    """Return these stretches of an app together with the stretches of loads that have joined their
    tuples again, in order."""
    number, u, every = app_number(connection, app), unmatched.c, stretches(connection, app)
    chosen = set(of)
    while True:
        mine = or_(*(u.load_id.between(*stretch.loads(number)) for stretch in chosen))
        resolving = connection.scalars(select(u.resolved_by).where(mine).distinct()).all()
        at = [(int(batch_of(load)), int(drain_of(load))) for load in resolving if load is not None]
        more = {stretch for stretch in every if any(map(stretch.holds, at))} - chosen
        if not more:
            return [stretch for stretch in every if stretch in chosen]
        chosen |= more


def reopened(connection: Connection, app: str, of: Sequence[Stretch]) -> int:
    """Return the number of tuples of other stretches that were joined again by loads in these
    stretches, and that are open again without these loads."""
    number, u = app_number(connection, app), unmatched.c
    within = [
        or_(*(column.between(*stretch.loads(number)) for stretch in of))
        for column in (u.load_id, u.resolved_by)
    ]
    query = select(func.count()).where(
        u.load_id.between(*app_loads(number)), not_(within[0]), within[1]
    )
    return connection.scalar(query) or 0


def content(connection: Connection, app: str, of: Sequence[Stretch]) -> Content:
    """Return the content of these stretches of an app."""
    b, c, number = load_batches.c, load_commits.c, app_number(connection, app)
    sums = [
        func.coalesce(func.sum(column), 0)
        # a tuple that was joined again is where its resolving load has put it
        for column in (b.output_rows, b.unmatched - b.resolved, b.rows_read)
    ]
    loads = or_(*(b.load_id.between(*stretch.loads(number)) for stretch in of))
    facts, rejected, read = connection.execute(select(*sums).where(loads)).one()
    commits = connection.execute(
        select(load_commits)
        .where(c.app == app, or_(*(_within(stretch, c) for stretch in of)))
        .order_by(c.batch, c.drain)
    ).all()
    return Content(int(facts), int(rejected), int(read), commits)


def take_out(connection: Connection, app: str, of: Sequence[Stretch], listed: float | None) -> None:
    """Take stretches of an app out of the warehouse, within the connection's transaction. A
    repeated call is harmless. Tuples of other stretches that these have joined again become open.

    Verifications of these batches no longer count. listed: a time, in seconds since 1970, before
    which the source had none of the files that were taken out; None if unknown.
    """
    b, c, i, f, q = load_batches.c, load_commits.c, load_inputs.c, load_files.c, quality_runs.c
    number, now, u = app_number(connection, app), utc_now().isoformat(), unmatched.c
    newest = connection.scalar(select(func.max(c.batch)).where(c.app == app))
    for stretch in of:
        loads = stretch.loads(number)
        commits = content(connection, app, [stretch]).commits
        for name in {commit.fact_table for commit in commits}:
            if not inspect(connection).has_table(name):
                continue  # the facts are outside the warehouse
            fact = existing_table(connection, name)
            connection.execute(delete(fact).where(fact.c.load_id.between(*loads)))
        for table in (unmatched, inferred, load_rejections):
            connection.execute(delete(table).where(table.c.load_id.between(*loads)))
        connection.execute(
            update(unmatched)
            .where(u.load_id.between(*app_loads(number)), u.resolved_by.between(*loads))
            .values(resolved_by=None)
        )
        connection.execute(
            update(load_inputs)
            .where(i.load_id.between(*loads))
            .values(dict.fromkeys(NOTHING_OF_INPUT, 0) | {"state_file": "", "passed": None})
        )
        connection.execute(
            update(load_batches)
            .where(b.load_id.between(*loads))
            .values(dict.fromkeys(NOTHING, 0) | dict.fromkeys(UNKNOWN))
        )
        for commit in commits:
            at = (commit.batch, commit.drain)
            if commit.drain == Kind.BATCH:
                connection.execute(delete(load_files).where(f.app == app, f.batch == commit.batch))
            connection.execute(
                update(load_commits)
                .where(c.app == app, c.batch == at[0], c.drain == at[1])
                .values(
                    rows_read=0,
                    source_offsets=json.dumps(
                        _taken_out(json.loads(commit.source_offsets), now, newest)
                    ),
                )
            )
        covering = and_(
            q.app == app,
            ordinal(q.to_batch, q.to_drain) > ordinal(*stretch.first),
            or_(
                q.from_batch.is_(None), ordinal(q.from_batch, q.from_drain) < ordinal(*stretch.last)
            ),
        )
        by = quality_failures.c.verification
        connection.execute(delete(quality_failures).where(by.in_(select(q.id).where(covering))))
        connection.execute(update(quality_runs).where(covering).values(outdated=1))
    a = load_apps.c
    connection.execute(
        update(load_apps).where(a.app == app).values(resets=func.coalesce(a.resets, 0) + 1)
    )
    later = c.source_listed.is_not(None) if listed is None else c.source_listed > listed
    connection.execute(update(load_commits).where(c.app == app, later).values(source_listed=listed))


def _taken_out(offsets: dict[str, Any], at: str, newest: int) -> dict[str, Any]:
    """Return the ``source_offsets`` of a batch whose files were taken out. at: the time of the
    removal, UTC; newest: the app's newest batch then."""
    files = {"files": 0} if "files" in offsets else {}
    return offsets | files | {"taken_out": at, "newest": newest}


def _within(stretch: Stretch, of: Any) -> ColumnElement[bool]:
    """Return the condition for rows, with batch and drain, that belong to a stretch."""
    at = ordinal(of.batch, of.drain)
    return and_(at > ordinal(*stretch.first), at <= ordinal(*stretch.last))
