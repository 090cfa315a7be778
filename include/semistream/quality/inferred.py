"""The expectations of facts with inferred members of a dimension."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import func, literal, null, or_, select

from semistream.quality.checks import Check, load_of
from semistream.quality.scope import Role, Scope
from semistream.warehouse.schema import inferred, load_inputs
from semistream.warehouse.tables import IS_INFERRED, same_row


def inferred_facts(scope: Scope, role: Role) -> Check:
    """Return the check that exactly the facts that the loads counted have inferred members, and
    that each of them names its member."""
    i, n, f, d = load_inputs.c, inferred.c, scope.fact, role.dimension
    noted = (
        select(n.load_id, func.count().label("rows_in_table"))
        .where(scope.holds(inferred), n.role == role.name)
        .group_by(n.load_id)
        .subquery("noted")
    )
    found = func.coalesce(noted.c.rows_in_table, 0)
    counted = (
        select(
            *(null().label(name) for name in scope.ids),
            *load_of(load_inputs),
            null().label("load_row"),
            i.inferred.label("expected"),
            found.label("found"),
        )
        .select_from(load_inputs.outerjoin(noted, noted.c.load_id == i.load_id))
        .where(scope.holds(load_inputs), i.role == role.name, i.inferred != found)
    )
    ids = [f.c[name] for name in scope.ids]
    named = (
        select(*ids, *load_of(inferred), n.load_row, n.member, f.c[role.surrogate])
        .select_from(
            inferred.outerjoin(f, same_row(inferred, f)).outerjoin(
                d, d.c[role.surrogate] == n.member
            )
        )
        .where(
            scope.until(inferred),
            n.role == role.name,
            or_(f.c[role.surrogate].is_distinct_from(n.member), d.c[role.surrogate].is_(None)),
        )
    )
    queries = [counted, named]
    if role.has_members:
        unnoted = ~select(1).where(same_row(inferred, f), n.role == role.name).correlate(f).exists()
        queries.append(
            select(*ids, *load_of(f), f.c.load_row, f.c[role.surrogate], null())
            .select_from(f.join(d, d.c[role.surrogate] == f.c[role.surrogate]))
            .where(scope.holds(f), d.c[IS_INFERRED] == 1, unnoted)
        )
    return Check(
        "inferred_facts",
        f"Every fact with an inferred member of {d.name} is there, and its member is, too",
        "A tuple that came before its master row is a fact with an inferred member, whose key and "
        "fact the table inferred has. Listed are loads that have noted another number of them than "
        "they counted, then facts that are gone, that name another row, or whose member is gone, "
        "and facts with an inferred member that the table inferred does not have.",
        sa.union_all(*queries),
        expected="expected",
        found="found",
    )


def inferred_open(scope: Scope, role: Role) -> Check:
    """Return the check that a fact has null in the columns of a dimension as long as its member has
    no master row, and that it is filled in when the row has come."""
    n, f, d = inferred.c, scope.fact, role.dimension
    # the newest load has taken up the version that the dimension table has; a table without members
    # may be where a count of the ledger is wrong
    current = role.has_members and role.versions.get(scope.last) == role.version
    wrong = [
        (sa.false(), literal("")),
        *((f.c[a].is_not(None), literal(f"{a} is not null")) for a in role.added),
        *([(d.c[IS_INFERRED] == 0, literal("not filled in"))] if current else []),
    ]
    return Check(
        "inferred_open",
        f"No fact keeps an inferred member of {d.name} without columns when its row has come",
        "The columns that a fact copies of the dimension are null as long as its member is "
        "inferred. When a load takes up the version that has the member's row, it fills them in.",
        select(
            *(f.c[name] for name in scope.ids),
            *load_of(inferred),
            n.load_row,
            n.member,
            sa.case(*wrong).label("finding"),
        )
        .select_from(
            inferred.join(f, same_row(inferred, f)).join(d, d.c[role.surrogate] == n.member)
        )
        .where(
            scope.until(inferred),
            n.role == role.name,
            n.version.is_(None),
            or_(*(condition for condition, _ in wrong)),
        ),
        f"Run the load, or `semistream replay {scope.app}`, which fills in the columns of facts. "
        "Where a column has been changed by hand, set it to null.",
        found="finding",
    )
