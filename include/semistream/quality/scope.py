"""The scope of one verification: which batches of which app, and which tables and columns of the
warehouse."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import and_, func, select
from sqlalchemy.sql import ColumnElement, FromClause

from semistream.errors import ConfigError
from semistream.job import Job, Role, only_role
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import app_loads, first_load, last_load
from semistream.warehouse.proof import START, Position
from semistream.warehouse.schema import load_batches, load_commits
from semistream.warehouse.tables import dimension_name, existing_table

UNPUBLISHED = "not published yet"  # stands for a version of the master data


@dataclass(frozen=True)
class Scope:
    """The scope: the batches of one app after `first` (None: from the beginning) up to `last`."""

    app: str
    number: int  # the app's number in its load_ids
    first: Position | None
    last: Position
    # the last position at or before `first` after which no tuple waited
    source_first: Position | None
    commits: int
    sink: str
    fact_name: str
    fact: sa.Table  # the fact table itself, or what was staged of a Delta table
    # the facts indexed by their ids: the fact table, or a staged copy if it has no such index
    by_id: sa.Table
    dimension: sa.Table
    surrogate: str
    ids: tuple[str, ...]
    on: dict[str, str]  # stream column -> master column
    added: dict[str, str]  # fact column -> master column
    business_key: tuple[str, ...]
    unique: bool  # whether a stream tuple matches one master row at most
    left: bool
    version: str  # the version of the master data that the dimension table has
    versions: dict[Position, str] = field(default_factory=dict)
    waiting: int = 0  # tuples that wait after `last`
    max_unparsable: float = 0.01  # the share of the tuples read that may be unparsable

    def until(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of this app up to `last`. The table has load_id, or app,
        batch and drain."""
        if "load_id" in table.c:
            return table.c.load_id.between(first_load(self.number, START),
                                           last_load(self.number, self.last))
        return and_(table.c.app == self.app, table.c.batch <= self.last[0],
                    _at(table) <= _number(self.last))

    def recounted(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of loads that can contain tuples of the recounted part of
        the source.

        Such rows are looked up by their stream ids. `+ 0` keeps SQLite, which has no statistics,
        from using the primary key instead.
        """
        return (table.c.load_id + 0).between(self.settled + 1, last_load(self.number, self.last))

    def before(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of loads before the recounted ones."""
        return (table.c.load_id + 0).between(first_load(self.number, START), self.settled)

    @property
    def settled(self) -> int:
        """The greatest load_id up to which no tuple waited, before the first verified load."""
        return last_load(self.number, self.source_first or START)

    def after(self, table: FromClause) -> ColumnElement[bool]:
        if self.first is None:
            return sa.true()
        if "load_id" in table.c:
            return table.c.load_id > last_load(self.number, self.first)
        return and_(table.c.batch >= self.first[0], _at(table) > _number(self.first))

    def holds(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of the verified batches."""
        if "load_id" in table.c and self.first is not None:
            return table.c.load_id.between(last_load(self.number, self.first) + 1,
                                           last_load(self.number, self.last))
        return and_(self.until(table), self.after(table))

    def is_current(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows that were loaded with the dimension table's present master
        data."""
        if not self.comparable:
            return sa.false()
        b = load_batches.c
        old = select(b.load_id).where(b.app == self.app, b.master_version != self.version)
        return table.c.load_id.not_in(old) if len(set(self.versions.values())) > 1 else sa.true()

    @property
    def comparable(self) -> bool:
        return self.version in self.versions.values()


def _at(table: FromClause) -> ColumnElement[int]:
    return table.c.batch * 2 + table.c.drain


def _number(position: Position) -> int:
    return position[0] * 2 + position[1]


def committed(connection: sa.Connection, app: str) -> list[sa.Row]:
    """Return the app's commits in order. Raises ConfigError if it has none."""
    c = load_commits.c
    commits = list(
        connection.execute(select(load_commits).where(c.app == app).order_by(c.batch, c.drain)))
    if not commits:
        known = list(connection.scalars(select(c.app).distinct().order_by(c.app)))
        raise ConfigError("app", "must have committed batches in the warehouse", app,
                          f"Apps that have: {', '.join(known) or 'none; load something first'}.")
    return commits


def drained_until(connection: sa.Connection, app: str, at: Position | None) -> Position | None:
    """Return the last position up to `at` after which no tuple waited."""
    if at is None:
        return None
    b = load_batches.c
    found = connection.execute(select(b.batch, b.drain)
                               .where(b.app == app, b.batch * 2 + b.drain <= _number(at))
                               .group_by(b.batch, b.drain).having(func.sum(b.waiting) == 0)
                               .order_by(b.batch.desc(), b.drain.desc()).limit(1)).first()
    return None if found is None else (found.batch, found.drain)


def added_columns(fact: sa.Table, dimension: sa.Table, role: Role) -> dict[str, str]:
    """Return the columns that the join added: fact column -> dimension column. A name that the
    stream has too was added as ROLE_name."""
    names = role.columns or {c.key: c.key for c in dimension.columns
                             if c.key not in role.on.values()}
    out = {}
    for m, given in names.items():
        for a in (f"{role.name}_{m}", m) if given == m else (given,):
            if a in fact.columns and m in dimension.columns and a != role.surrogate_key:
                out[a] = m
                break
    return out


def compared_columns(connection: sa.Connection, job: Job) -> set[str]:
    """Return the columns of facts that checks may read, except the ids."""
    out = set[str]()
    for role in job.roles:
        names = _dimension(connection, role).columns.keys()
        out |= {*role.on, *names, *(f"{role.name}_{name}" for name in names),
                *role.columns.values()}
    return out


def _dimension(connection: sa.Connection, role: Role) -> sa.Table:
    """Return a role's dimension table; ``Table.c`` has its surrogate key by the role's name of it.
    """
    return existing_table(connection, dimension_name(role.dimension.name),
                          {role.dimension.surrogate_key: role.surrogate_key})


def is_unique(connection: sa.Connection, dimension: sa.Table, columns: list[str],
              business_key: tuple[str, ...]) -> bool:
    """Return whether no two dimension rows have equal join columns."""
    if business_key and set(business_key) <= set(columns):
        return True
    key = [dimension.c[m] for m in columns]
    many = select(*key).where(*(k.is_not(None)
                                for k in key)).group_by(*key).having(func.count() > 1).limit(1)
    return connection.execute(many).first() is None


def make_scope(connection: sa.Connection, app: str, job: Job, commits: list[sa.Row],
               first: Position | None, fact: sa.Table, version: str | None) -> Scope:
    """Return the scope of the verified `commits` (in order), with the job's tables looked up."""
    last = (commits[-1].batch, commits[-1].drain)
    role = only_role(job)
    dimension, surrogate = _dimension(connection, role), role.surrogate_key
    b, number = load_batches.c, app_number(connection, app) or 0
    versions = {(r.batch, r.drain): r.master_version for r in connection.execute(
        select(b.batch, b.drain, b.master_version).where(b.app == app).distinct())}
    waiting = connection.scalar(select(func.coalesce(func.sum(b.waiting), 0)).where(
        b.app == app, b.batch == last[0], b.drain == last[1]))
    sums = [func.coalesce(func.sum(n), 0) for n in (b.output_rows, b.matched, b.unmatched)]
    output, matched, kept = connection.execute(select(*sums).where(b.app == app)).one()
    # An inner join with unique keys writes as many facts as matched tuples; then there is no need
    # to look at the facts.
    without = select(1).select_from(fact).where(fact.c.load_id.between(*app_loads(number)),
                                                fact.c[surrogate].is_(None))
    left = (output > matched and kept > 0
            and connection.execute(without.limit(1)).first() is not None)
    unique = is_unique(connection, dimension, list(role.on.values()),
                       role.dimension.business_key)
    return Scope(app=app, number=number, first=first, last=last,
                 source_first=drained_until(connection, app, first), commits=len(commits),
                 sink=commits[-1].sink, fact_name=commits[-1].fact_table, fact=fact, by_id=fact,
                 dimension=dimension, surrogate=surrogate,
                 ids=tuple(i for i in job.stream.id if i in fact.columns), on=dict(role.on),
                 added=added_columns(fact, dimension, role),
                 business_key=role.dimension.business_key, unique=unique,
                 left=left, version=versions.get(last, "") if version is None else version,
                 versions=versions, waiting=int(waiting or 0),
                 max_unparsable=job.stream.max_unparsable)
