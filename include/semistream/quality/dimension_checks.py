"""The expectations of one dimension in the role in which it was joined: the share of tuples without
a row, the facts' surrogate keys and copied columns, a sample that is joined again, and the number
of rows that sketches of the keys predict."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    func,
    literal,
    null,
    or_,
    select,
)

from semistream.files.near_misses import is_suspicious
from semistream.positions import START
from semistream.quality.checks import Check, listed, load_of
from semistream.quality.inferred import inferred_facts, inferred_open
from semistream.quality.join_size import stage_join_sizes
from semistream.quality.older_versions import Older, stage_older
from semistream.quality.passed_on import Between, rejected_without_row
from semistream.quality.resolved import open_age
from semistream.quality.sample import Sample, stage_sample
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.reasons import Reason
from semistream.streaming.unmatched_keys import Passed, find_near_misses
from semistream.warehouse.load_history import MISSING, newest_rise
from semistream.warehouse.load_ids import first_load
from semistream.warehouse.schema import inferred, load_inputs, load_rejections, unmatched
from semistream.warehouse.tables import ROW_KEY, same_row

log = logging.getLogger(__name__)


def dimension_checks(
    staging: Staging, scope: Scope, role: Role, size: int, seed: int
) -> Iterator[Check]:
    """Yield the checks of a role that are possible. size: the number of facts, and of unmatched
    tuples, that are joined again; seed: the seed for drawing them."""
    yield unmatched_share(scope, role, explain_unmatched(staging, scope, role))
    if role.max_open_hours is not None:
        yield open_age(scope, role, role.max_open_hours)
    # a load has a sketch of keys only if its job has one role
    sizes = stage_join_sizes(staging, scope, role) if role.alone else None
    older = stage_older(staging, scope, role)
    sample = stage_sample(staging, scope, role, size, seed)
    if sizes is not None:
        yield expected_rows(sizes)
    yield surrogate_keys(scope, role)
    if not role.alone:
        yield lacking_rows(scope, role, rejected_without_row(staging, scope, role))
    if role.infers:
        yield inferred_facts(scope, role)
        yield inferred_open(scope, role)
    if role.added and (role.comparable or role.infers or older is not None):
        yield enriched_columns(scope, role, older)
    if sample is not None:
        yield sample_joined(scope, role, sample, staging.count(sample.facts))
        yield sample_unmatched(role, sample, staging.count(sample.unmatched))


def _named(scope: Scope) -> list[ColumnElement]:
    """Return the columns that identify a fact for people: its ids and its load."""
    return [*(scope.fact.c[i] for i in scope.ids), *load_of(scope.fact)]


def surrogate_keys(scope: Scope, role: Role) -> Check:
    """Return the check of the facts' surrogate keys. It also compares those join columns that are
    in the dimension's business key, because these never change for a surrogate key."""
    f, d = scope.fact, role.dimension
    fk, pk = f.c[role.surrogate], d.c[role.surrogate]
    absent: ColumnElement[bool] = pk.is_(None)
    if role.left:
        there = select(1).where(role.same_key(f, d), role.is_master).correlate(f)
        absent = or_(
            and_(role.has_row(f), pk.is_(None)),
            and_(role.lacks_row(f), role.is_current(f), sa.exists(there)),
        )
        if role.unknown is not None:
            absent = or_(absent, pk.is_(None))
    pairs = [(s, m) for s, m in role.on.items() if m in role.business_key and s in f.c]
    other = or_(*(f.c[s] != d.c[m] for s, m in pairs)) if pairs else sa.false()
    shown = [d.c[m].label(f"{d.name}_{m}") for _, m in pairs]
    return Check(
        "surrogate_keys",
        "Every surrogate key is in its dimension and is the right one",
        f"{role.surrogate} of each fact names a row of {d.name}"
        + (f", and that row has the fact's own {listed(role.on)}." if pairs else ".")
        + (" A tuple without one (left join) has no master data." if role.left else ""),
        select(*_named(scope), fk, *(f.c[s] for s, _ in pairs if s not in scope.ids), *shown)
        .select_from(f.outerjoin(d, fk == pk))
        .where(scope.holds(f), or_(absent, and_(pk.is_not(None), other))),
    )


def enriched_columns(scope: Scope, role: Role, older: Older | None) -> Check:
    """Return the check that compares facts with the dimension, or with the master rows of the
    version with which they were loaded."""
    f, d = scope.fact, role.dimension
    shown = [*_named(scope), f.c[role.surrogate]]
    queries = []
    if role.comparable:
        queries.append(
            select(*shown, *_first_that_differs(scope, role, d, "in_dimension"))
            .select_from(f.join(d, f.c[role.surrogate] == d.c[role.surrogate]))
            .where(scope.holds(f), role.is_current(f), ~role.is_inferred(f), role.differ(f, d))
        )
    if role.infers:
        n = inferred.c
        these = and_(same_row(inferred, f), n.role == role.name)
        queries.append(
            select(*shown, *_first_that_differs(scope, role, d, "in_dimension"))
            .select_from(
                inferred.join(f, these).join(d, f.c[role.surrogate] == d.c[role.surrogate])
            )
            .where(scope.until(inferred), n.version == role.version, role.differ(f, d))
        )
    if older is not None:
        o, m = older.facts, older.master
        own = and_(
            m.c.quality_version == o.c.quality_version, m.c[role.surrogate] == o.c[role.surrogate]
        )
        queries.append(
            select(*shown, *_first_that_differs(scope, role, m, "in_dimension"))
            .select_from(o.join(f, same_row(o, f)).outerjoin(m, own))
            .where(role.differ(f, m))
        )
    return Check(
        "enriched_columns",
        "Enriched columns are what the master data says",
        f"Compared for every fact, with {d.name}, or with the version of the master data "
        f"that it was loaded with where that is another: {listed(role.added)}."
        + (
            " A fact with an inferred member is compared with the version that it was filled in "
            "from."
            if role.infers
            else ""
        ),
        sa.union_all(*queries) if len(queries) > 1 else queries[0],
        expected="in_dimension",
        found="loaded",
    )


def _first_that_differs(
    scope: Scope, role: Role, master: FromClause, expected: str, absent: str = ""
) -> list[ColumnElement]:
    """Return three columns of a query that describe the first column of a fact that differs from
    its master row: the column's name, the loaded value, and the value of the master row under the
    name ``expected``. absent: the text that replaces the column's name if there is no master row.
    """
    pairs = [(scope.fact.c[a], master.c[m]) for a, m in role.added.items()]
    values: dict[str, list[ColumnElement[Any]]] = {
        "column": [literal(str(a.name), sa.String) for a, _ in pairs],
        "loaded": [sa.cast(a, sa.String(255)) for a, _ in pairs],
        expected: [sa.cast(m, sa.String(255)) for _, m in pairs],
    }
    differ = [a.is_distinct_from(m) for a, m in pairs]
    if absent:
        differ.insert(0, master.c[role.surrogate].is_(None))
        for what, each in values.items():
            each.insert(0, literal(absent) if what == "column" else sa.cast(null(), sa.String(255)))
    return [case(*zip(differ, each, strict=True)).label(what) for what, each in values.items()]


def sample_joined(scope: Scope, role: Role, sample: Sample, size: int) -> Check:
    """Return the check that compares sampled facts with the master rows of their version. The
    staging tables contain these rows, from the dimension or from a snapshot."""
    f, s, m = scope.fact, sample.facts, sample.master
    same_master = and_(
        m.c.quality_version == s.c.quality_version,
        m.c[role.surrogate] == f.c[role.surrogate],
        role.same_key(f, m),
    )
    differ = (
        select(
            *_named(scope),
            f.c[role.surrogate],
            *(f.c[a] for a in role.on if a not in scope.ids),
            s.c.quality_version.label("master_version"),
            *_first_that_differs(scope, role, m, "joined_again", "(no such master row)"),
        )
        .select_from(f.join(s, same_row(f, s)).outerjoin(m, same_master))
        .where(role.has_row(f) if role.left else sa.true(), role.differ(f, m))
        .distinct()
    )
    return Check(
        "sample_joined",
        "A sample of facts, joined again by the database, is the same",
        f"{size:,} facts drawn at random (seed {sample.seed}) are joined by "
        "the database with the master data of the version that they were loaded with, "
        "and compared column by column.",
        differ if role.unique else sa.union_all(differ, _matches_lost(scope, role, sample)),
        expected="joined_again",
        found="loaded",
    )


def _matches_lost(scope: Scope, role: Role, sample: Sample) -> Select:
    """Select the master rows that a sampled stream tuple matches without having been joined with
    them, for joins in which a tuple may match several rows."""
    f, s, m, g = scope.fact, sample.facts, sample.master, scope.by_id.alias("other")
    joined = select(1).where(
        *(g.c[i] == s.c[i] for i in scope.ids),
        scope.recounted(g),
        g.c[role.surrogate] == m.c[role.surrogate],
    )
    rows = s.join(f, same_row(s, f)).join(
        m, and_(m.c.quality_version == s.c.quality_version, role.same_key(f, m))
    )
    return (
        select(
            *_named(scope),
            m.c[role.surrogate],
            *(f.c[a] for a in role.on if a not in scope.ids),
            s.c.quality_version,
            literal("(match not loaded)"),
            null(),
            null(),
        )
        .select_from(rows)
        .where(~sa.exists(joined.correlate(s, m)))
        .distinct()
    )


def sample_unmatched(role: Role, sample: Sample, size: int) -> Check:
    s, m = sample.unmatched, sample.master
    return Check(
        "sample_unmatched",
        "A sample of unmatched tuples, joined again by the database, has no match",
        f"{size:,} tuples that were put aside for lack of master data, "
        f"drawn at random (seed {sample.seed}). One listed here does have master data.",
        select(
            s.c.quality_id.label("stream_id"),
            *load_of(s),
            *(s.c[f"key_{i}"].label(k) for i, k in enumerate(role.on)),
            s.c.quality_version.label("master_version"),
            m.c[role.surrogate],
        ).select_from(
            s.join(
                m,
                and_(
                    m.c.quality_version == s.c.quality_version,
                    *(s.c[f"key_{i}"] == m.c[k] for i, k in enumerate(role.on.values())),
                ),
            )
        ),
    )


def explain_unmatched(staging: Staging, scope: Scope, role: Role) -> str:
    """Write notes to the log and the report about tuples without a row of the dimension: a rise of
    their number, and keys that would match in another form. Return a sentence about these keys; ""
    if there are none."""
    r, said = load_rejections.c, list[str]()
    with staging.engine.connect() as connection:
        rise = newest_rise(connection, scope.app, role.name, scope.first, scope.last)
        said += [] if rise is None else [f"{rise}."]
        counts = _counts(scope, role)
        read, missing = connection.execute(select(counts.c.rows_read, counts.c.unmatched)).one()
        rejected = _total(scope, role, r.tuples, r.reason == Reason.NO_MATCH)
        no_match = connection.scalar(select(rejected))
        passed, found = None, None
        if not role.rejects:
            passed, no_match = Passed(scope.fact, role.lacks_row(scope.fact)), missing
        if is_suspicious(int(read - missing), int(no_match or 0)):
            snapshot = role.snapshots / role.versions.get(scope.last, "")
            found = find_near_misses(
                connection, scope.later_loads, role.name, role.on, snapshot, passed
            )
    why = "" if found is None else f"{found}: formats: {found.declaration}."
    why = why[:1].upper() + why[1:]
    said += [why] if why else []
    for sentence in said:
        log.warning("%s: %s", scope.app, sentence)
    staging.notes += said
    return why


def _counts(scope: Scope, role: Role) -> sa.Subquery:
    """Return a query of (rows_read, unmatched): the tuples that the role has met in the loads since
    the last moment at which no tuple waited, and those of them that are without a row. A tuple may
    be read in an earlier load than the one that finishes it.

    A tuple counts where its present result is: a row of unmatched that was joined again counts in
    the load that did so. A role that passes on tuples without a row knows that only of facts, so
    that its tuples which another role rejected do not count. Neither does a tuple that has met the
    role before these loads, and was joined again in them.
    """
    r, u = load_rejections.c, unmatched.c
    of_range = (u.load_id.between(*scope.later_loads), scope.kept())
    graced = and_(u.reason == Reason.NO_MATCH, role.in_grace(unmatched))
    resolved = (
        select(func.count())
        .select_from(unmatched)
        .where(*of_range, role.keeps(unmatched), or_(~scope.is_open(unmatched), graced))
        .scalar_subquery()
    )
    lacking = _total(scope, role, r.tuples, r.reason.in_(MISSING)) - resolved
    if not role.rejects and role.left:
        lacking += _tuples(scope, role, role.lacks_row(scope.fact))
    if role.infers:
        still = (inferred.c.version.is_(None), ~role.in_grace(inferred))
        lacking += _tuples(scope, role, role.is_inferred(scope.fact, *still))
    gone = [~scope.is_open(unmatched)]
    in_unmatched = role.alone or (role.rejects and not role.infers)
    if not in_unmatched:
        gone.append(or_(u.role.is_(None), u.role != role.name))
    elsewhere = select(func.count()).select_from(unmatched)
    not_here = elsewhere.where(*of_range, role.has_met(unmatched), or_(*gone)).scalar_subquery()
    met = _met(scope, role) - not_here
    if scope.rejoins and in_unmatched:
        before = _left_before(scope, role)
        lacks = (role.keeps(unmatched), scope.is_open(unmatched), ~graced, _is_of(before))
        lacking -= elsewhere.where(*of_range, *lacks).scalar_subquery()
        met -= select(func.count()).select_from(before).scalar_subquery()
    return select(met.label("rows_read"), lacking.label("unmatched")).subquery("counts")


def _left_before(scope: Scope, role: Role) -> sa.Subquery:
    """Return a subquery of the rows of ``unmatched`` that loads before these have left, that these
    have joined again, and that have met the role."""
    old = unmatched.alias("old")
    mine = (
        old.c.fact_table == scope.fact_name,
        old.c.load_id.between(first_load(scope.number, START), scope.last_complete_load),
        old.c.resolved_by.between(*scope.later_loads),
    )
    return (
        select(old.c.stream_id, old.c.resolved_by)
        .where(*mine, role.has_met(old))
        .subquery("left_before")
    )


def _is_of(before: sa.Subquery) -> ColumnElement[bool]:
    """Return the condition for rows of ``unmatched`` of these tuples. Of tuples without an id, it
    holds for all that the same load has joined again."""
    u = unmatched.c
    loads = select(before.c.resolved_by).where(before.c.stream_id.is_(None))
    by_load = and_(u.stream_id.is_(None), u.load_id.in_(loads))
    return or_(u.stream_id.in_(select(before.c.stream_id)), by_load)


def _met(scope: Scope, role: Role) -> ColumnElement[Any]:
    """Return the number of tuples that reached a role in these loads: the tuples that the first
    role has read, less those that earlier roles have not passed on. The rows that this role has
    read are not counted, because an earlier role may have passed on several rows of a tuple."""
    i, mine = load_inputs.c, load_inputs.alias("mine")
    first = case((i.number == 0, i.rows_read + i.resolved), else_=0)
    kept = case((i.number < mine.c.number, i.unmatched + i.waiting - i.waiting_before), else_=0)
    return (
        select(func.coalesce(func.sum(first - kept), 0))
        .select_from(load_inputs.join(mine, mine.c.load_id == i.load_id))
        .where(mine.c.role == role.name, mine.c.load_id.between(*scope.later_loads))
        .scalar_subquery()
    )


def _tuples(scope: Scope, role: Role, condition: ColumnElement[bool]) -> sa.ScalarSelect[Any]:
    """Return the number of tuples with facts of these loads for which a condition holds. A tuple
    without a row of this role is one fact, unless another role has many rows for it."""
    f = scope.fact
    mine = (f.c.load_id.between(*scope.later_loads), condition)
    if all(other.unique for other in scope.roles if other.name != role.name):
        return select(func.count()).select_from(f).where(*mine).scalar_subquery()
    tuples = select(*(f.c[i] for i in scope.ids or ROW_KEY)).where(*mine).distinct().subquery()
    return select(func.count()).select_from(tuples).scalar_subquery()


def _total(
    scope: Scope, role: Role, column: Column[Any], *conditions: ColumnElement[bool]
) -> sa.ScalarSelect[Any]:
    """Return the sum of a column of the ledger over the role's rows of the loads since the last
    time that no tuple waited."""
    table = column.table.c
    mine = (table.load_id.between(*scope.later_loads), table.role == role.name)
    return select(func.coalesce(func.sum(column), 0)).where(*mine, *conditions).scalar_subquery()


def lacking_rows(scope: Scope, role: Role, rejected: Between) -> Check:
    """Return the check of the ledger's counts of what a left join of several roles has passed on
    without a row of the dimension. rejected: how many of these tuples another role has rejected."""
    i, f = load_inputs.c, scope.fact
    without = (
        select(f.c.load_id, func.count().label("rows_in_table"))
        .where(scope.holds(f), role.lacks_row(f))
        .group_by(f.c.load_id)
        .subquery("without")
    )
    rows = func.coalesce(without.c.rows_in_table, 0)
    of_loads = (
        select(
            *load_of(load_inputs),
            literal("lacking").label("count"),
            i.lacking.label("expected"),
            rows.label("found"),
        )
        .select_from(load_inputs.outerjoin(without, without.c.load_id == i.load_id))
        .where(scope.holds(load_inputs), i.role == role.name, i.lacking != rows)
    )
    # each tuple that was passed on without a row is a fact, or another role has rejected it
    tuples, missed = _tuples(scope, role, role.lacks_row(f)), _total(scope, role, i.missed)
    least = tuples + rejected.least
    # a tuple with many rows of another role was counted for each of them
    single = all(other.unique for other in scope.roles if other.name != role.name)
    most = [missed > tuples + rejected.most + scope.waiting] if single else []
    in_all = select(*(null(), null(), null()), literal("missed"), missed, least).where(
        or_(missed < least, *most)
    )
    return Check(
        "lacking_rows",
        f"There are as many facts without a row of {role.dimension.name} as the ledger says",
        "A left join of several roles passes on a tuple without a row. Each load notes how many it "
        "has passed on (missed), and how many facts are without (lacking). The former are facts, "
        "too, or unmatched in another role, where their keys are looked up in the version of the "
        "master data; they are compared over all loads since the last time that no tuple waited.",
        sa.union_all(of_loads, in_all),
        expected="expected",
        found="found",
    )


def unmatched_share(scope: Scope, role: Role, why: str) -> Check:
    """Return the check of ``max_unmatched``. why: a sentence on near misses, or ""."""
    judged = [_counts(part, role) for part in scope.judged]
    return Check(
        "unmatched_share",
        f"No more than {role.max_unmatched:.4g} of the tuples have no row of {role.name}",
        f"A tuple without a row of {role.dimension.name}, or without a key, is kept in unmatched; "
        "in a left join of several roles it is a fact without its columns. "
        "Where most are, the master data are seldom those that are meant, or the keys are written "
        "otherwise. The limit is max_unmatched of the job's role. Counted is each tuple that the "
        "role has met since the last time that no tuple waited, once, by its present result: one "
        "that a later load has joined again counts there. One within the role's grace is not "
        "unmatched. Batches that are not proven yet are counted by themselves, too.",
        sa.union_all(
            *(select(c).where(c.c.unmatched > role.max_unmatched * c.c.rows_read) for c in judged)
        ),
        f"{why} Where the master data are not those that are meant, provision them, "
        f"`semistream reset {scope.app}`, and load again. Where so many tuples rightly have none, "
        f"raise max_unmatched of the role {role.name} in the job, and `semistream verify "
        f"{scope.app} --job FILE`.".strip(),
        found="unmatched",
    )


def expected_rows(sizes: sa.Table) -> Check:
    s = sizes.c
    return Check(
        "expected_rows",
        "As many rows were loaded as keys of stream and master data tell",
        "Each load keeps a sketch of the keys that it read, made before the join. From these and "
        "the keys of the master data's snapshot the rows of the join are estimated, with a bound "
        "that fails in less than one of a million cases. It is wide where keys are many and skewed "
        "(see the columns estimate and bound): this finds large losses only, but such that the "
        "load's own counting would not tell.",
        select(sizes).where(or_(s.rows_loaded < s.at_least, s.rows_loaded > s.at_most)),
        expected="at_least",
        found="rows_loaded",
    )
