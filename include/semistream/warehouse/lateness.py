"""The lateness of the master data of an app's tuples, and the numbers of tuples and facts that are
still without master data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Row, and_, func, select

from semistream.durations import duration_text
from semistream.reasons import Reason
from semistream.warehouse.inferred import is_open
from semistream.warehouse.ledger import app_number, newest_commit
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.resolution import open_rows
from semistream.warehouse.schema import inferred, load_batches, unmatched

MEDIAN, MOST = 0.5, 0.99


@dataclass(frozen=True)
class Late:
    """Statistics of late master data. done: the number of tuples or facts that now have their
    master data; median, p99: seconds until they had them, None if there are none; open: the number
    that still has none; since: when the oldest of these was loaded, UTC."""

    done: int = 0
    median: float | None = None
    p99: float | None = None
    open: int = 0
    since: datetime | None = None

    def sentence(self, done: tuple[str, str], still: tuple[str, str]) -> list[str]:
        """Return the statistics as parts of a sentence. done, still: words for the two groups, for
        one and for several. The result is empty if both groups are empty."""
        parts = []
        if self.done and self.median is not None and self.p99 is not None:
            parts.append(
                f"{self.done:,} {done[self.done > 1]}, {duration_text(self.median)} late "
                f"(median; 99% of them at most {duration_text(self.p99)})"
            )
        if self.open and self.since is not None:
            parts.append(
                f"{self.open:,} {still[self.open > 1]}, the oldest since "
                f"{self.since:%Y-%m-%d %H:%M} UTC"
            )
        return parts


@dataclass(frozen=True)
class Lateness:
    """The lateness of an app's master data. resolved: tuples that were joined again with a changed
    result, and tuples that still have no row of a dimension, in roles with ``late: resolve``;
    filled: facts with an inferred member, in all roles."""

    resolved: Late = field(default_factory=Late)
    filled: Late = field(default_factory=Late)

    def __str__(self) -> str:
        """Return the statistics as a sentence; "" if there are none."""
        return "; ".join(
            (
                *self.resolved.sentence(
                    ("tuple was resolved", "tuples were resolved"),
                    ("has no match still", "have no match still"),
                ),
                *self.filled.sentence(
                    (
                        "fact with an inferred member was filled in",
                        "facts with an inferred member were filled in",
                    ),
                    ("fact has an inferred member still", "facts have an inferred member still"),
                ),
            )
        )


def lateness(connection: Connection, app: str) -> Lateness | None:
    """Return the lateness for everything that an app has loaded. Return None if the app has
    resolved no tuple and inferred no member, and its job does not request either."""
    b, number, newest = load_batches.c, app_number(connection, app), newest_commit(connection, app)
    roles = json.loads(newest.job if newest else "{}").get("dimensions", {})
    resolved = connection.scalar(select(func.sum(b.resolved)).where(b.app == app))
    some = select(1).where(inferred.c.load_id.between(*app_loads(number))).limit(1)
    if not (
        resolved
        or connection.execute(some).first()
        or any(role.get("late", "reject") != "reject" for role in roles.values())
    ):
        return None
    # a job of one role names none in its rows
    named = func.coalesce(unmatched.c.role, next(iter(roles), ""))
    comes = named.in_([name for name, role in roles.items() if role.get("late") == "resolve"])
    return Lateness(_resolved(connection, number, comes), _filled(connection, number))


def _resolved(connection: Connection, number: int, comes: ColumnElement[bool]) -> Late:
    """Count the rows of ``unmatched`` of an app that were resolved, by the times of the loads that
    kept and resolved them, and those that will be. number: the app's number in its load_ids; comes:
    the condition for rows of a role whose late master data resolve them."""
    u, kept, by = unmatched.c, load_batches.alias("kept"), load_batches.alias("resolver")
    pairs = connection.execute(
        select(kept.c.committed_at, by.c.committed_at, func.count())
        .select_from(
            unmatched.join(kept, kept.c.load_id == u.load_id).join(
                by, by.c.load_id == u.resolved_by
            )
        )
        .where(u.load_id.between(*app_loads(number)))
        .group_by(kept.c.committed_at, by.c.committed_at)
    ).all()
    open_ = connection.execute(
        select(func.count(), func.min(kept.c.committed_at))
        .select_from(unmatched.join(kept, kept.c.load_id == u.load_id))
        .where(and_(open_rows(number), u.reason == Reason.NO_MATCH, comes))
    ).one()
    return _late(pairs, open_)


def _filled(connection: Connection, number: int) -> Late:
    """Count all rows of ``inferred`` of an app, by the times at which they were loaded and filled
    in."""
    b, i = load_batches.c, inferred.c
    facts = inferred.join(load_batches, b.load_id == i.load_id)
    pairs = connection.execute(
        select(b.committed_at, i.filled_at, func.count())
        .select_from(facts)
        .where(i.load_id.between(*app_loads(number)), i.version.is_not(None))
        .group_by(b.committed_at, i.filled_at)
    ).all()
    open_ = connection.execute(
        select(func.count(), func.min(b.committed_at)).select_from(facts).where(is_open(number))
    ).one()
    return _late(pairs, open_)


def _late(pairs: Sequence[Row], open_: Row) -> Late:
    """Compute the statistics. pairs: (start, end, number of rows with these times); open_: (number,
    time of the oldest)."""
    waits = sorted(((end - begin).total_seconds(), n) for begin, end, n in pairs)
    total = sum(n for _, n in waits)
    return Late(total, _quantile(waits, MEDIAN), _quantile(waits, MOST), *open_)


def _quantile(values: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the smallest value such that at least this share of all values are not above it.
    values: (value, number of its occurrences), in ascending order."""
    total, seen = sum(n for _, n in values), 0
    for value, n in values:
        seen += n
        if seen >= share * total:
            return value
    return None
