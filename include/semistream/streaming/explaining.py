"""Why many tuples of a run have no master data: sentences for its log and its summary."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from semistream.files.near_misses import is_suspicious
from semistream.job import AnyJob, Job
from semistream.positions import START, Position
from semistream.reasons import Reason
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.commit import Commits
from semistream.streaming.summary import Totals
from semistream.streaming.unmatched_keys import Passed, find_near_misses
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_history import newest_rise
from semistream.warehouse.load_ids import last_load
from semistream.warehouse.tables import existing_table


def explain_unmatched(
    commits: Commits, job: AnyJob, plan: Plan[Any], before: Position | None, totals: Totals
) -> tuple[str, ...]:
    """Return sentences about the tuples of a run without a row in a role: whether their share has
    risen, and which keys would match in another form. before: the newest commit before the run;
    totals: the run's totals."""
    app, newest, before = commits.app, commits.last, before or START
    misses = any(of["unmatched"] or of["missed"] for of in totals.inputs.values())
    if not isinstance(job, Job) or newest is None or not misses:
        return ()
    said = list[str]()
    # an error in the explanation must not fail the load
    with suppress(SQLAlchemyError), commits.warehouse.engine.connect() as connection:
        number = app_number(connection, app) or 0
        loads = last_load(number, before) + 1, last_load(number, newest)
        for each in plan.joins:
            role, counts = job.role(each.role), totals.inputs[each.role]
            if (rise := newest_rise(connection, app, role.name, before, newest)) is not None:
                said.append(f"{rise}")
            missed = counts["missed"]
            if is_suspicious(counts["matched"] - missed, counts[Reason.NO_MATCH] + missed):
                passed = _passed(commits, job, each) if len(job.roles) > 1 else None
                of_role = role.name, role.on, Path(each.snapshot), passed
                if (found := find_near_misses(connection, loads, *of_role)) is not None:
                    said.append(f"{found}: formats: {found.declaration}")
    return tuple(said)


def _passed(commits: Commits, job: Job, plan: RolePlan) -> Passed | None:
    """Return the tuples that a left join has passed on without a match, if there are several
    joins. Return None for an inner join, or if the tuples are not in the warehouse."""
    if plan.join_type == "inner" or not commits.sink.in_warehouse:
        return None
    facts = existing_table(commits.warehouse.engine, job.fact_table)
    return Passed(facts, facts.c[plan.fact_key].is_not_distinct_from(plan.unknown))
