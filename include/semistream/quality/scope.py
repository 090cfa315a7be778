"""The scope of one verification: the app and its batches, the fact table, and the inputs from which
the facts were joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, ColumnElement, FromClause, and_, func, or_, select

from semistream.errors import ConfigError
from semistream.job import SIDES, UNKNOWN, AnyJob, Job, SideSpec, StreamSpec
from semistream.job import Role as JobRole
from semistream.master.manifest import decode_schema
from semistream.master.published import snapshot_root
from semistream.positions import START, Position, ordinal, resolves
from semistream.quality.commit_range import Range
from semistream.reasons import QUARANTINED, Reason
from semistream.warehouse.ledger import app_number, committed_apps
from semistream.warehouse.load_ids import app_loads, first_load, last_load
from semistream.warehouse.schema import (
    inferred,
    load_batches,
    load_commits,
    load_inputs,
    masters,
    unmatched,
)
from semistream.warehouse.tables import (
    IS_INFERRED,
    copied_columns,
    dimension_name,
    existing_table,
    same_row,
)

UNPUBLISHED = "not published yet"  # stands for a version of the master data


@dataclass(frozen=True)
class Stream:
    """A stream, and how its tuples are found in the fact table.

    name: "left" or "right" for one of two streams, otherwise ""; ids, keys: its id columns and join
    columns, each with its name in the fact table; partner: the columns that identify the master
    row, or the other stream's tuple; if they are null, the fact's tuple is in ``unmatched``, too;
    single: whether a tuple has at most one fact; waiting: the number of tuples that wait after the
    verified batches; if there are two streams, these may be among the facts.
    """

    name: str
    spec: StreamSpec | SideSpec
    ids: dict[str, str]
    keys: dict[str, str]
    partner: tuple[str, ...]
    single: bool
    waiting: int
    unknown: int | None = None  # a value of partner that means no master row, as null does

    def has_partner(self, facts: FromClause) -> list[ColumnElement[bool]]:
        """Return the conditions for facts whose tuple is not also in ``unmatched``."""
        partner = [facts.c[name] for name in self.partner]
        known = [] if self.unknown is None else [column != self.unknown for column in partner]
        return [*(column.is_not(None) for column in partner), *known]

    @property
    def side(self) -> int | None:
        """The stream's number if there are two streams; otherwise None."""
        return SIDES.index(self.name) if self.name else None

    def named(self, what: str) -> str:
        """Return the name of a staging table that is this stream's own."""
        return f"{self.name}_{what}" if self.name else what

    @property
    def word(self) -> str:
        """The stream's name for use before another word; "" if there is only one stream."""
        return f"{self.name} " if self.name else ""


@dataclass(frozen=True)
class Role:
    """A dimension that was joined to the stream, in one of its roles."""

    name: str
    dimension: sa.Table
    surrogate: str
    on: dict[str, str]  # stream column -> master column
    added: dict[str, str]  # fact column -> master column
    business_key: tuple[str, ...]
    unique: bool  # whether a stream tuple matches one master row at most
    left: bool
    max_unmatched: float
    version: str  # the version of the master data that the dimension table has
    snapshots: Path  # the directory of the master data's versions
    versions: dict[Position, str] = field(default_factory=dict)
    number: int = 0
    max_open_hours: float | None = None
    alone: bool = True  # the job has no other role
    unknown: int | None = None  # the surrogate key of facts without a master row; None: null
    infers: bool = False  # whether facts of the app may name inferred members of the dimension
    grace_hours: float = 0.0
    grace_versions: int = 0
    has_members: bool = False  # whether the dimension table may have inferred members, of any app

    def in_grace(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows, with a load_id, that may still be without a row of the
        dimension, because their load is recent or few versions have been used since."""
        b, i = load_batches.c, load_inputs.c
        young = list[ColumnElement[bool]]()
        if self.grace_hours:
            loads = select(b.load_id).where(b.committed_at >= hours_ago(self.grace_hours))
            young.append(table.c.load_id.in_(loads))
        if self.grace_versions:
            latest = sorted({*self.versions.values()})[-self.grace_versions :]
            versions = select(i.load_id).where(i.role == self.name, i.version.in_(latest))
            young.append(table.c.load_id.in_(versions))
        return or_(sa.false(), *young)

    @property
    def is_master(self) -> ColumnElement[bool]:
        """The condition for rows of the dimension table that the snapshot of its version has, too.
        Inferred members are only in the table, whichever role or app they were created for."""
        return self.dimension.c[IS_INFERRED] == 0 if self.has_members else sa.true()

    @property
    def words(self) -> str:
        """The role's name for use in a sentence after "master data"; "" if there is only one
        role."""
        return "" if self.alone else f" of {self.name}"

    def staged(self, what: str) -> str:
        """Return the name of this role's staging table for `what`. The name has the role's number
        if the job has several roles."""
        return what if self.alone else f"{what}_{self.number}"

    @property
    def rejects(self) -> bool:
        """Whether tuples without a match are kept in ``unmatched``. If there are several roles,
        tuples of a left join are kept in the fact table alone."""
        return self.alone or not self.left

    def lacks(self, unmatched: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of ``unmatched`` that have no match in this role."""
        no_match = unmatched.c.reason == Reason.NO_MATCH
        return no_match if self.alone else and_(no_match, unmatched.c.role == self.name)

    def keeps(self, unmatched: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of ``unmatched`` that have no match in this role, or no
        key."""
        missing = unmatched.c.reason.in_((Reason.NO_MATCH, Reason.NULL_KEY))
        return missing if self.alone else and_(missing, unmatched.c.role == self.name)

    def has_met(self, unmatched: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of ``unmatched`` whose tuples their load has joined in this
        role. A tuple that was not joined at all counts as one of the first role."""
        if self.alone:
            return sa.true()
        mine, its = load_inputs.alias("mine").c, load_inputs.alias("its").c
        same_load = (mine.load_id == unmatched.c.load_id, mine.role == self.name)
        where = select(its.number).where(
            its.load_id == unmatched.c.load_id, its.role == unmatched.c.role
        )
        number = func.coalesce(where.correlate(unmatched).scalar_subquery(), 0)
        return select(1).where(*same_load, mine.number <= number).correlate(unmatched).exists()

    @property
    def comparable(self) -> bool:
        return self.version in self.versions.values()

    def is_current(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows that were loaded with the present master data of the
        dimension table."""
        if not self.comparable:
            return sa.false()
        i = load_inputs.c
        others = select(i.load_id).where(i.role == self.name, i.version != self.version)
        return table.c.load_id.not_in(others) if len({*self.versions.values()}) > 1 else sa.true()

    def has_row(self, facts: FromClause) -> ColumnElement[bool]:
        """Return the condition for facts with a master row other than the unknown member."""
        key = facts.c[self.surrogate]
        # no parameter: in SQLite's IS, SQLAlchemy renders one although literals are wanted
        unknown = sa.literal_column(f"{self.unknown}", BigInteger)
        return key.is_not(None) if self.unknown is None else key != unknown

    def lacks_row(self, facts: FromClause) -> ColumnElement[bool]:
        """Return the condition for facts of tuples for which a left join found no master row."""
        key = facts.c[self.surrogate]
        return key.is_(None) if self.unknown is None else key == self.unknown

    def is_inferred(self, facts: FromClause, *more: ColumnElement[bool]) -> ColumnElement[bool]:
        """Return the condition for facts that were loaded with an inferred member. more: further
        conditions on their rows of ``inferred``."""
        if not self.infers:
            return sa.false()
        mine = (same_row(inferred, facts), inferred.c.role == self.name)
        return select(1).where(*mine, *more).correlate(facts).exists()

    def differ(self, facts: FromClause, master: FromClause) -> ColumnElement[bool]:
        """Return the condition for facts without a master row, or whose values differ from it. The
        unknown member's values are not compared, because facts do not copy them."""

        def wanted(column: ColumnElement[Any]) -> ColumnElement[Any]:
            return column if self.unknown is None else sa.case((self.has_row(facts), column))

        return or_(
            master.c[self.surrogate].is_(None),
            *(facts.c[a].is_distinct_from(wanted(master.c[m])) for a, m in self.added.items()),
        )

    def same_key(self, tuples: FromClause, master: FromClause) -> ColumnElement[bool]:
        """Return the condition that joins tuples, or facts, with master rows by the role's key."""
        return and_(*(tuples.c[s] == master.c[m] for s, m in self.on.items()))

    def loads(self) -> FromClause:
        """Return a subquery of the loads that were joined with this role, with the columns of
        ``load_batches`` and the master data's version."""
        b, i = load_batches.c, load_inputs.c
        return (
            select(*b, i.version)
            .join(load_inputs, and_(i.load_id == b.load_id, i.role == self.name))
            .subquery(f"loads_of_{self.name}")
        )


@dataclass(frozen=True)
class Scope(Range):
    """The verified batches, the facts and the inputs."""

    sink: str
    fact_name: str
    fact: sa.Table  # the fact table itself, or what was staged of another sink
    # the facts indexed by each stream's ids: the fact table, or a staged copy
    by_id: sa.Table
    streams: tuple[Stream, ...] = ()
    roles: tuple[Role, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The columns of the fact table that identify the tuples from which a row was joined."""
        return tuple(of for stream in self.streams for of in stream.ids.values())

    @property
    def surrogates(self) -> tuple[str, ...]:
        """The surrogate keys of the fact table."""
        return tuple(role.surrogate for role in self.roles)

    @property
    def waiting(self) -> int:
        return sum(stream.waiting for stream in self.streams)

    @property
    def judged(self) -> tuple[Scope, ...]:
        """The scopes for which a share of the tuples, such as that of unmatched ones, is compared
        with its limit: the whole range, and, if there is one, its part that is not proven yet. In
        the whole range alone, many proven tuples would hide a fault of the latest ones."""
        return (self,) if self.news is None else (self, replace(self, **vars(self.news)))

    def kept(self, stream: Stream | None = None) -> ColumnElement[bool]:
        """Return the condition for rows of ``unmatched`` that belong to the fact table, or to one
        of its streams."""
        mine = unmatched.c.fact_table == self.fact_name
        return mine & (unmatched.c.side == stream.name) if stream and stream.name else mine

    def refused(self, stream: Stream, tuples: sa.Table) -> ColumnElement[bool]:
        """Return the condition for tuples, with quality_id, that were written to ``unmatched``
        without having been joined."""
        u = unmatched.c
        mine = and_(self.kept(stream), u.reason.in_(QUARANTINED), self.recounted(unmatched))
        return select(1).where(mine, u.stream_id == tuples.c.quality_id).correlate(tuples).exists()


def committed(connection: sa.Connection, app: str) -> list[sa.Row]:
    """Return the app's commits in order. Raises ConfigError if it has none."""
    c = load_commits.c
    commits = list(
        connection.execute(select(load_commits).where(c.app == app).order_by(c.batch, c.drain))
    )
    if not commits:
        known = committed_apps(connection)
        raise ConfigError(
            "app",
            "must have committed batches in the warehouse",
            app,
            f"Apps that have: {', '.join(known) or 'none; load something first'}.",
        )
    return commits


def compared_columns(connection: sa.Connection, job: AnyJob) -> set[str] | None:
    """Return the columns of facts that checks may read, in addition to the ids; None for all
    columns."""
    if not isinstance(job, Job):
        return None
    out = set[str]()
    for role in job.roles:
        names = _dimension(connection, role).columns.keys()
        out |= {
            *role.on,
            *names,
            *(f"{role.name}_{name}" for name in names),
            *role.columns.values(),
        }
    return out


def _dimension(connection: sa.Connection, role: JobRole) -> sa.Table:
    """Return a role's dimension table, in which the surrogate key has the role's name for it."""
    return existing_table(
        connection,
        dimension_name(role.dimension.name),
        {role.dimension.surrogate_key: role.surrogate_key},
    )


def is_unique(
    connection: sa.Connection,
    dimension: sa.Table,
    columns: list[str],
    business_key: tuple[str, ...],
) -> bool:
    """Return whether no two dimension rows have equal join columns."""
    if business_key and set(business_key) <= set(columns):
        return True
    key = [dimension.c[m] for m in columns]
    many = (
        select(*key)
        .where(*(k.is_not(None) for k in key))
        .group_by(*key)
        .having(func.count() > 1)
        .limit(1)
    )
    return connection.execute(many).first() is None


def range_of(
    connection: sa.Connection,
    app: str,
    commits: Sequence[sa.Row],
    first: Position | None,
    proven: Position = START,
) -> Range:
    """Return the range of the verified `commits`, which are in order. proven: the position up to
    which verifications of them have succeeded."""
    b, last = load_batches.c, (commits[-1].batch, commits[-1].drain)
    drained = connection.execute(
        select(b.batch, b.drain)
        .where(b.app == app, ordinal(b.batch, b.drain) <= ordinal(*(first or START)))
        .group_by(b.batch, b.drain)
        .having(func.sum(b.waiting) == 0)
        .order_by(b.batch.desc(), b.drain.desc())
        .limit(1)
    ).first()
    source_first = None if drained is None else (drained.batch, drained.drain)
    return Range(
        app,
        app_number(connection, app),
        first,
        last,
        source_first,
        len(commits),
        any(resolves(c.drain) and (c.batch, c.drain) > (source_first or START) for c in commits),
        range_of(connection, app, commits, proven) if (first or START) < proven < last else None,
    )


def make_scope(
    connection: sa.Connection,
    of: Range,
    job: AnyJob,
    commit: sa.Row,
    fact: sa.Table,
    versions: Sequence[str | None],
    snapshots: Path,
) -> Scope:
    """Return the scope of a verification.

    commit: the last commit; versions: for each role, the version of the master data in its
    dimension table, None for the version that was loaded last; snapshots: the directory of all
    versions of master data.
    """
    roles: tuple[Role, ...] = ()
    streams: tuple[Stream, ...]
    if isinstance(job, Job):
        roles = tuple(
            _role(connection, of, role, fact, version, snapshots, number, len(job.roles) == 1)
            for number, (role, version) in enumerate(zip(job.roles, versions, strict=True))
        )
        on = [column for role in job.roles for column in role.on]
        ids, keys = ({n: n for n in names if n in fact.c} for names in (job.stream.id, on))
        streams = (
            Stream(
                "",
                job.stream,
                ids,
                keys,
                tuple(r.surrogate for r in roles if r.alone),
                all(r.unique for r in roles),
                _waiting(connection, of),
                roles[0].unknown,
            ),
        )
    else:
        ids_of = [
            job.in_fact(side, spec.id, fact.c.keys()) for side, spec in enumerate(job.streams)
        ]
        streams = tuple(
            Stream(
                SIDES[side],
                spec,
                ids_of[side],
                job.in_fact(side, [pair[side] for pair in job.on.items()], fact.c.keys()),
                tuple(ids_of[1 - side].values()),
                False,
                _waiting(connection, of, SIDES[side]),
            )
            for side, spec in enumerate(job.streams)
        )
    return Scope(
        **vars(of),
        sink=commit.sink,
        fact_name=commit.fact_table,
        fact=fact,
        by_id=fact,
        streams=streams,
        roles=roles,
    )


def _waiting(connection: sa.Connection, of: Range, role: str | None = None) -> int:
    """Return the number of tuples that wait after the verified batches, in a role or in total."""
    i, last = load_inputs.c, of.last
    return int(
        connection.scalar(
            select(func.coalesce(func.sum(i.waiting), 0)).where(
                i.load_id.between(first_load(of.number, last), last_load(of.number, last)),
                sa.true() if role is None else i.role == role,
            )
        )
        or 0
    )


def _role(
    connection: sa.Connection,
    of: Range,
    role: JobRole,
    fact: sa.Table,
    version: str | None,
    snapshots: Path,
    number: int,
    alone: bool,
) -> Role:
    """Return a job's role, together with its dimension table."""
    name, surrogate, dimension = role.name, role.surrogate_key, _dimension(connection, role)
    business_key = role.dimension.business_key
    b, i = load_batches.c, load_inputs.c
    versions: dict[Position, str] = {
        (r.batch, r.drain): r.version
        for r in connection.execute(
            select(b.batch, b.drain, i.version)
            .join(load_inputs, i.load_id == b.load_id)
            .where(b.app == of.app, i.role == name)
            .distinct()
        )
    }
    unknown = UNKNOWN if role.dimension.unknown_member else None
    left = _has_missed(connection, of, name)
    if alone:
        sums = [func.coalesce(func.sum(n), 0) for n in (b.output_rows, b.matched, b.unmatched)]
        output, matched, kept = connection.execute(select(*sums).where(b.app == of.app)).one()
        # An inner join with unique keys writes as many facts as matched tuples; then there is no
        # need to look at the facts.
        without = (
            select(1)
            .select_from(fact)
            .where(
                fact.c.load_id.between(*app_loads(of.number)),
                fact.c[surrogate].is_not_distinct_from(unknown),
            )
        )
        possible = output > matched and kept > 0
        left = possible and connection.execute(without.limit(1)).first() is not None
    return Role(
        name,
        dimension,
        surrogate,
        dict(role.on),
        copied_columns(fact.c.keys(), dimension, role),
        business_key,
        is_unique(connection, dimension, list(role.key), business_key),
        left,
        role.max_unmatched,
        versions.get(of.last, "") if version is None else version,
        snapshot_root(snapshots, role.dimension.name, role.key),
        versions,
        number,
        role.max_open_hours,
        alone,
        unknown if left else None,
        role.late == "infer" or _has_inferred(connection, of, name),
        role.grace_hours,
        role.grace_versions,
        _has_members(connection, role.dimension.name, dimension),
    )


def hours_ago(hours: float) -> datetime:
    """Return the time, UTC, this number of hours ago."""
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0) - timedelta(hours=hours)


def _has_inferred(connection: sa.Connection, of: Range, role: str) -> bool:
    """Return whether the ledger or ``inferred`` knows facts with inferred members in a role."""
    i, f, loads = load_inputs.c, inferred.c, app_loads(of.number)
    counted = select(1).where(i.load_id.between(*loads), i.role == role, i.inferred > 0)
    noted = select(1).where(f.load_id.between(*loads), f.role == role)
    return any(connection.execute(some.limit(1)).first() for some in (counted, noted))


def _has_members(connection: sa.Connection, name: str, dimension: sa.Table) -> bool:
    """Return whether a dimension's table has a column for inferred members. A column of that name
    may also be one of the dimension's own."""
    if IS_INFERRED not in dimension.c:
        return False
    m = masters.c
    schema = connection.scalar(select(m.arrow_schema).where(m.name == name))
    return schema is not None and IS_INFERRED not in decode_schema(schema).names


def _has_missed(connection: sa.Connection, of: Range, role: str) -> bool:
    """Return whether a left join has passed on tuples without a row of a role's dimension."""
    i = load_inputs.c
    some = select(1).where(i.load_id.between(*app_loads(of.number)), i.role == role, i.missed > 0)
    return connection.execute(some.limit(1)).first() is not None
