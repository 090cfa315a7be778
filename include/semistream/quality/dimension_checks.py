"""The expectations of one dimension, in the role in which it was joined: the facts' surrogate keys
and copied columns, a sample joined again, and how many rows its keys tell."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import and_, case, literal, null, or_, select
from sqlalchemy.sql import ColumnElement, FromClause, Select

from semistream.quality.checks import Check, listed, load_of
from semistream.quality.join_size import stage_join_sizes
from semistream.quality.older_versions import stage_older
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Older, Sample, Staging, drawn_facts, stage_sample


def dimension_checks(
    staging: Staging, scope: Scope, role: Role, size: int, seed: int
) -> Iterator[Check]:
    """Yield the checks of a role that are possible. size: how many facts, and how many unmatched
    tuples, are joined again; seed: by which they are drawn."""
    # a load's sketch is of the keys of its only role
    sizes = stage_join_sizes(staging, scope, role) if role.alone else None
    older = stage_older(staging, scope, role)
    sample = stage_sample(staging, scope, role, size, seed)
    if sizes is not None:
        yield expected_rows(sizes)
    yield surrogate_keys(scope, role)
    if role.added and (role.comparable or older is not None):
        yield enriched_columns(scope, role, older)
    if sample is not None:
        yield sample_joined(scope, role, sample)
        yield sample_unmatched(role, sample)


def _named(scope: Scope) -> list[ColumnElement]:
    """Return the columns of a fact that name it: its ids and its load."""
    return [*(scope.fact.c[i] for i in scope.ids), *load_of(scope.fact)]


def surrogate_keys(scope: Scope, role: Role) -> Check:
    """Return the check of the facts' surrogate keys. It also compares those join columns that are
    in the dimension's business key, because these never change for a surrogate key."""
    f, d = scope.fact, role.dimension
    fk, pk = f.c[role.surrogate], d.c[role.surrogate]
    absent: ColumnElement[bool] = pk.is_(None)
    if role.left:
        there = select(1).where(*(d.c[m] == f.c[s] for s, m in role.on.items())).correlate(f)
        absent = or_(
            and_(fk.is_not(None), pk.is_(None)),
            and_(fk.is_(None), role.is_current(f), sa.exists(there)),
        )
    pairs = [(s, m) for s, m in role.on.items() if m in role.business_key and s in f.c]
    other = or_(*(f.c[s] != d.c[m] for s, m in pairs)) if pairs else sa.false()
    shown = [d.c[m].label(f"{d.name}_{m}") for _, m in pairs]
    return Check(
        role.named("surrogate_keys"),
        "Every surrogate key is in its dimension and is the right one",
        f"{role.surrogate} of each fact names a row of {d.name}"
        + (f", and that row has the fact's own {listed(role.on)}." if pairs else ".")
        + (" A tuple without one (left join) has no master data." if role.left else ""),
        select(*_named(scope), fk, *(f.c[s] for s, _ in pairs), *shown)
        .select_from(f.outerjoin(d, fk == pk))
        .where(scope.holds(f), or_(absent, and_(pk.is_not(None), other))),
    )


def enriched_columns(scope: Scope, role: Role, older: Older | None) -> Check:
    """Return the check that compares facts with the dimension, or with the master rows of the
    version that they were loaded with."""
    f, d = scope.fact, role.dimension
    queries = (
        []
        if not role.comparable
        else [
            _enriched(scope, role, d)
            .select_from(f.join(d, f.c[role.surrogate] == d.c[role.surrogate]))
            .where(scope.holds(f), role.is_current(f), _differs(scope, role, d))
        ]
    )
    if older is not None:
        o, m = older.facts, older.master
        own = and_(
            m.c.quality_version == o.c.quality_version, m.c[role.surrogate] == o.c[role.surrogate]
        )
        queries.append(
            _enriched(scope, role, m)
            .select_from(
                o.join(f, and_(f.c.load_id == o.c.load_id, f.c.load_row == o.c.load_row)).outerjoin(
                    m, own
                )
            )
            .where(_differs(scope, role, m))
        )
    return Check(
        role.named("enriched_columns"),
        "Enriched columns are what the master data says",
        f"Compared for every fact, with {d.name}, or with the version of the master data "
        f"that it was loaded with where that is another: {listed(role.added)}.",
        sa.union_all(*queries) if len(queries) > 1 else queries[0],
    )


def _differs(scope: Scope, role: Role, master: FromClause) -> ColumnElement[bool]:
    return or_(
        master.c[role.surrogate].is_(None),
        *(scope.fact.c[a].is_distinct_from(master.c[m]) for a, m in role.added.items()),
    )


def _enriched(scope: Scope, role: Role, master: FromClause) -> Select:
    """Select the first column of a fact that differs from its master row."""
    f = scope.fact
    pairs = [(f.c[a], master.c[m]) for a, m in role.added.items()]
    differ = [a.is_distinct_from(m) for a, m in pairs]
    values: dict[str, list[ColumnElement[str]]] = {
        "column": [literal(str(a.name), sa.String) for a, _ in pairs],
        "loaded": [sa.cast(a, sa.String(255)) for a, _ in pairs],
        "in_dimension": [sa.cast(m, sa.String(255)) for _, m in pairs],
    }
    shown = [case(*zip(differ, each, strict=True)).label(what) for what, each in values.items()]
    return select(*_named(scope), f.c[role.surrogate], *shown)


def sample_joined(scope: Scope, role: Role, sample: Sample) -> Check:
    """Return the check that compares sampled facts with the master rows of their version. Staging
    has these, from the dimension or from a snapshot."""
    f, s, m = scope.fact, sample.facts, sample.master
    same_row = and_(
        m.c.quality_version == s.c.quality_version,
        m.c[role.surrogate] == f.c[role.surrogate],
        *(f.c[a] == m.c[b] for a, b in role.on.items()),
    )
    absent = m.c[role.surrogate].is_(None)
    pairs = [(f.c[a], m.c[b]) for a, b in role.added.items()]

    def first_that_differs(what: str) -> ColumnElement:
        def show(a: ColumnElement, b: ColumnElement) -> ColumnElement:
            return (
                literal(str(a.name), sa.String)
                if what == "column"
                else sa.cast(a if what == "loaded" else b, sa.String(255))
            )

        missing = (
            literal("(no such master row)") if what == "column" else sa.cast(null(), sa.String(255))
        )
        return case(
            (absent, missing), *((a.is_distinct_from(b), show(a, b)) for a, b in pairs)
        ).label(what)

    differ = (
        select(
            *_named(scope),
            f.c[role.surrogate],
            *(f.c[a] for a in role.on),
            s.c.quality_version.label("master_version"),
            *map(first_that_differs, ("column", "loaded", "joined_again")),
        )
        .select_from(f.join(s, drawn_facts(scope, sample)).outerjoin(m, same_row))
        .where(
            f.c[role.surrogate].is_not(None) if role.left else sa.true(),
            or_(absent, *(a.is_distinct_from(b) for a, b in pairs)),
        )
        .distinct()
    )
    return Check(
        role.named("sample_joined"),
        "A sample of facts, joined again by the database, is the same",
        f"{sample.fact_count:,} facts drawn at random (seed {sample.seed}) are joined by "
        "the database with the master data of the version that they were loaded with, "
        "and compared column by column.",
        differ if role.unique else sa.union_all(differ, _matches_lost(scope, role, sample)),
    )


def _matches_lost(scope: Scope, role: Role, sample: Sample) -> Select:
    """Select the master rows that a sampled stream tuple matches but was not joined with, where a
    tuple may match several."""
    f, s, m, g = scope.fact, sample.facts, sample.master, scope.by_id.alias("other")
    joined = select(1).where(
        *(g.c[i] == s.c[i] for i in scope.ids),
        scope.recounted(g),
        g.c[role.surrogate] == m.c[role.surrogate],
    )
    rows = s.join(f, drawn_facts(scope, sample)).join(
        m,
        and_(
            m.c.quality_version == s.c.quality_version,
            *(f.c[a] == m.c[b] for a, b in role.on.items()),
        ),
    )
    return (
        select(
            *_named(scope),
            m.c[role.surrogate],
            *(f.c[a] for a in role.on),
            s.c.quality_version,
            literal("(match not loaded)"),
            null(),
            null(),
        )
        .select_from(rows)
        .where(~sa.exists(joined.correlate(s, m)))
        .distinct()
    )


def sample_unmatched(role: Role, sample: Sample) -> Check:
    s, m = sample.unmatched, sample.master
    return Check(
        role.named("sample_unmatched"),
        "A sample of unmatched tuples, joined again by the database, has no match",
        f"{sample.unmatched_count:,} tuples that were put aside for lack of master data, "
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
    )
