"""The totals of each app over the whole load ledger. Commits change only when they are taken out,
so that only commits after the last reading need to be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, Row, and_, case, func, or_, select, true

from semistream.positions import Kind, resolves
from semistream.warehouse.records import still_unmatched
from semistream.warehouse.schema import load_apps, load_batches, load_commits, load_inputs

HITS = "cache_hits"  # without those of resolving loads
SUMS = ("rows_read", "resolved", "matched", "unmatched", "output_rows", HITS)
# the greatest of a batch; a batch's value is the sum of its partitions
MOST = ("memory_peak", "memory_budget")
RESIDENT = "resident_peak"  # the greatest value of a worker
WAIT = "wait_longest"  # s, the longest wait of a tuple


@dataclass(frozen=True)
class Totals:
    """The totals of everything that an app has committed, up to its newest commit (batch, drain).
    Memory is in bytes; committed_at is UTC. unmatched: includes tuples that have been resolved
    since."""

    app: str
    batch: int = -1
    drain: int = Kind.DRAIN
    committed_at: datetime = datetime.min
    fact_table: str = ""
    sink: str = ""
    algorithm: str = ""
    master_version: str = ""
    batches: int = 0
    rows_read: int = 0
    resolved: int = 0
    matched: int = 0
    unmatched: int = 0
    waiting: int = 0
    output_rows: int = 0
    cache_hits: int = 0
    memory_peak: int = 0
    memory_budget: int = 0
    resident_peak: int = 0
    wait_longest: float = 0.0  # s
    resets: int = 0  # how often batches were taken out

    @property
    def open(self) -> int:
        """The number of tuples that are still unmatched."""
        return still_unmatched(self)

    @property
    def match_rate(self) -> float | None:
        """The share of the finished tuples that are matched now; None if no tuple is finished."""
        done = self.matched + self.open
        return self.matched / done if done else None


def read_totals(
    connection: Connection, app: str | None = None, known: Mapping[str, Totals] | None = None
) -> dict[str, Totals]:
    """Return, by app, the totals of one app or of all apps. known: an earlier result, which is
    updated."""
    c, known = load_commits.c, known or {}
    resets = func.coalesce(load_apps.c.resets, 0).label("resets")
    newest = (
        select(c.app, func.max(c.batch).label("batch"))
        .where(c.app == app if app else true())
        .group_by(c.app)
        .subquery()
    )
    commits = (
        select(c.app, c.batch, c.drain, c.committed_at, c.fact_table, c.sink, resets)
        .join(newest, and_(c.app == newest.c.app, c.batch == newest.c.batch))
        .outerjoin(load_apps, load_apps.c.app == c.app)
        .order_by(c.app, c.drain)
    )
    # later rows replace earlier ones: a drain or resolving load comes after its batch
    last = {commit.app: commit for commit in connection.execute(commits)}
    return {
        name: _up_to(connection, commit, known.get(name, Totals(name)))
        for name, commit in last.items()
    }


def _up_to(connection: Connection, last: Row, known: Totals) -> Totals:
    """Return the totals up to the commit ``last``. known: earlier totals, to which the later
    commits are added."""
    position = ("batch", "drain", "committed_at")
    if known.resets != last.resets:
        known = Totals(last.app)
    if all(getattr(known, n) == getattr(last, n) for n in position):
        return known
    c, b, i = load_commits.c, load_batches.c, load_inputs.c
    same = select(c.app).where(c.app == known.app, *(c[n] == getattr(known, n) for n in position))
    # the app was started from the beginning
    if known.batches and connection.execute(same).first() is None:
        known = Totals(last.app)
    sums = [func.sum(b[name]).label(name) for name in SUMS + MOST if name != HITS]
    # of the tuples that were read: those that are joined again are not in rows_read
    sums.append(func.sum(case((resolves(b.drain), 0), else_=b[HITS])).label(HITS))
    sums += [func.max(b[name]).label(name) for name in (RESIDENT, WAIT)]
    newer = (
        select(b.batch, b.drain, *sums)
        .where(
            b.app == last.app,
            b.batch.between(known.batch, last.batch),
            or_(b.batch > known.batch, b.drain > known.drain),
            or_(b.batch < last.batch, b.drain <= last.drain),
        )
        .group_by(b.batch, b.drain)
        .subquery()
    )
    n = newer.c
    more = (
        connection.execute(
            select(
                func.count(case((n.drain == Kind.BATCH, 1))).label("batches"),
                *(func.sum(n[name]).label(name) for name in SUMS),
                *(func.max(n[name]).label(name) for name in (*MOST, RESIDENT, WAIT)),
            )
        )
        .one()
        ._mapping
    )
    state = connection.execute(
        select(func.sum(b.waiting), func.max(b.algorithm)).where(
            b.app == last.app, b.batch == last.batch, b.drain == last.drain
        )
    ).one()
    versions = connection.scalars(
        select(func.max(i.version))
        .join(load_batches, b.load_id == i.load_id)
        .where(b.app == last.app, b.batch == last.batch, b.drain == last.drain, i.dimension != "")
        .group_by(i.number)
        .order_by(i.number)
    )
    added = {name: getattr(known, name) + _integer(more[name]) for name in ("batches", *SUMS)}
    most = {name: max(getattr(known, name), _integer(more[name])) for name in (*MOST, RESIDENT)}
    return replace(
        known,
        batch=last.batch,
        drain=last.drain,
        committed_at=last.committed_at,
        fact_table=last.fact_table,
        sink=last.sink,
        waiting=_integer(state[0]),
        algorithm=state[1] or "",
        master_version=", ".join(versions),
        wait_longest=max(known.wait_longest, more[WAIT] or 0.0),
        resets=last.resets,
        **added,
        **most,
    )


def _integer(total: int | Decimal | None) -> int:
    """Convert a sum to an integer. MySQL's sums are decimals, and a sum of no rows is null."""
    return int(total or 0)
