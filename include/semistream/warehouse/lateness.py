"""How late the master data of an app's tuples came, and how many tuples wait for them still."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, func, select

from semistream.reasons import Reason
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.resolution import open_rows
from semistream.warehouse.schema import load_batches, load_commits, unmatched

MEDIAN, MOST = 0.5, 0.99


@dataclass(frozen=True)
class Lateness:
    """resolved: tuples that were joined again with another result than before; median, p99: hours
    from the load that kept such a tuple in ``unmatched`` to the one that resolved it, None without
    any; open: tuples that have no row of a dimension still; since: when the oldest of them was
    kept, UTC."""

    resolved: int = 0
    median: float | None = None
    p99: float | None = None
    open: int = 0
    since: datetime | None = None

    def __str__(self) -> str:
        """Return it as a sentence; empty if there is nothing to tell."""
        parts = []
        if self.resolved and self.median is not None and self.p99 is not None:
            parts.append(
                f"{self.resolved:,} tuples were resolved, {_time(self.median)} late (median; 99% "
                f"of them at most {_time(self.p99)})"
            )
        if self.open and self.since is not None:
            parts.append(
                f"{self.open:,} are open, the oldest since {self.since:%Y-%m-%d %H:%M} UTC"
            )
        return "; ".join(parts)


def lateness(connection: Connection, app: str) -> Lateness | None:
    """Return the lateness of all that an app has loaded; None if it has resolved no tuple, and is
    not to resolve any."""
    b, c = load_batches.c, load_commits.c
    job = connection.scalar(
        select(c.job).where(c.app == app).order_by(c.batch.desc(), c.drain.desc()).limit(1)
    )
    roles = json.loads(job or "{}").get("dimensions", {}).values()
    resolved = connection.scalar(select(func.sum(b.resolved)).where(b.app == app))
    if not resolved and not any(role.get("late") == "resolve" for role in roles):
        return None
    return _read(connection, app_number(connection, app) or 0)


def _read(connection: Connection, number: int) -> Lateness:
    """Count all rows of ``unmatched`` of an app, by the loads that kept and resolved them. number:
    of the app in its load_ids."""
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
    hours = sorted(((end - begin).total_seconds() / 3600, n) for begin, end, n in pairs)
    count, since = connection.execute(
        select(func.count(), func.min(kept.c.committed_at))
        .select_from(unmatched.join(kept, kept.c.load_id == u.load_id))
        .where(and_(open_rows(number), u.reason == Reason.NO_MATCH))
    ).one()
    return Lateness(
        sum(n for _, n in hours), _quantile(hours, MEDIAN), _quantile(hours, MOST), count, since
    )


def _quantile(values: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the least value that so large a share of all are not above. values: (value, how many
    have it), in order."""
    total, seen = sum(n for _, n in values), 0
    for value, n in values:
        seen += n
        if seen >= share * total:
            return value
    return None


def _time(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
