"""The combined result of all verifications of an app, and the failures that are still open.

A failure stays open until a later verification that covers all of the same batches succeeds. Until
then nothing after the beginning of the failed batches counts as proven, even if later batches were
verified.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import func, select

from semistream.counted import counted
from semistream.positions import START, Position
from semistream.warehouse.ledger import newest_commit
from semistream.warehouse.schema import quality_runs
from semistream.warehouse.source_files import source_files


@dataclass(frozen=True)
class Run:
    """A verification of the batches after ``first`` and up to ``last``."""

    first: Position
    last: Position
    at: datetime  # UTC
    checks: int
    failed: tuple[str, ...]
    success: bool
    report: str
    unseen: tuple[str, ...] = ()  # what could not be checked of the batches, although it succeeded
    passing: tuple[str, ...] = ()  # likewise of source and checkpoint as they were then
    filled: int = 0  # how many facts had been filled in when it began

    def covers(self, other: Run) -> bool:
        return self.first <= other.first and self.last >= other.last

    @property
    def batches(self) -> str:
        return f"{self.first[0] + (self.first[1] > 0)} to {self.last[0]}"


@dataclass(frozen=True)
class Proof:
    """The verified part of an app's loads. until: the position up to which everything is proven;
    held: the position up to which everything was proven before an open failure; failures: the open
    failures, newest first; run: the verification that extended the proof last; unseen: descriptions
    of what the verifications could not check; left: a clause about the files of the source that
    the app has not loaded, "" if there are none or the source was not examined."""

    app: str
    last: Position  # the newest commit
    until: Position
    held: Position
    failures: tuple[Run, ...]
    run: Run | None
    unseen: tuple[str, ...] = ()
    left: str = ""

    @property
    def complete(self) -> bool:
        return not self.failures and self.until >= self.last

    def __str__(self) -> str:
        """Return a sentence: which batches are complete, since when and by which checks; or what is
        not complete."""
        at = "{:%Y-%m-%d %H:%M} UTC".format
        if self.failures:
            run = self.failures[0]
            return f"NO: batches {run.batches} failed {', '.join(run.failed)} on {at(run.at)}"
        if self.run is None:
            return "NO: never verified"
        checks = f"{counted(self.run.checks, 'check')} on {at(self.run.at)}"
        proven = f"batches 0 to {self.until[0]}, {checks}"
        if self.unseen:
            proven = "; ".join((f"{proven}, but not all could be looked at", *self.unseen))
        if not self.complete:
            return f"NO: there are newer batches, which are not verified yet; verified are {proven}"
        if self.left:
            return f"yes, so far: {self.left}; proven are {proven}"
        return f"yes: {proven}"


def proof_and_source(connection: sa.Connection, app: str) -> Proof | None:
    """Return the proof of an app, and compare the source's present files with the ledger."""
    proof = read_proof(connection, app)
    return proof and replace(proof, left=str(source_files(connection, app)))


def read_proof(connection: sa.Connection, app: str) -> Proof | None:
    """Return the proof of an app for its present fact table; None if the app has committed
    nothing."""
    q, commit = quality_runs.c, newest_commit(connection, app)
    if commit is None:
        return None
    mine = counting(app, commit.fact_table)
    # A successful verification of everything settles all earlier runs, unless one failed at later
    # batches.
    everything = sa.and_(mine, q.success == 1, q.from_batch.is_(None))
    whole = connection.execute(select(func.max(q.id), func.max(q.to_batch)).where(everything)).one()
    needed = (
        sa.true()
        if whole[0] is None
        else sa.or_(q.id >= whole[0], sa.and_(q.success == 0, q.to_batch >= whole[1]))
    )
    rows = connection.execute(select(quality_runs).where(mine, needed).order_by(q.id)).all()
    return _proof(app, (commit.batch, commit.drain), [as_run(row) for row in rows])


def counting(app: str, fact_table: str) -> sa.ColumnElement[bool]:
    """Return the condition for the verifications of a fact table that still count: no batches of
    their range were taken out."""
    q = quality_runs.c
    return sa.and_(q.app == app, q.fact_table == fact_table, q.outdated.is_(None))


def _proof(app: str, last: Position, runs: Sequence[Run]) -> Proof:
    until, held, failures, proving, unseen = START, START, list[Run](), None, dict[str, None]()
    for run in runs:
        if run.success:
            held = max(held, run.last) if run.first <= held else held
            failures = [f for f in failures if not run.covers(f)]
            if run.first <= until:
                again = run.first == START and run.last >= until  # everything was checked again
                unseen = dict.fromkeys((*(() if again else unseen), *run.unseen))
                until, proving = max(until, run.last), run
        else:
            failures.append(run)
            until = min(until, run.first)
    # the newest one has looked at source and checkpoint again
    unseen |= dict.fromkeys(proving.passing if proving is not None else ())
    return Proof(app, last, until, held, tuple(reversed(failures)), proving, tuple(unseen))


def as_run(row: sa.Row) -> Run:
    """Convert a row of ``quality_runs`` to a Run."""
    first = START if row.from_batch is None else (row.from_batch, row.from_drain)
    return Run(
        first,
        (row.to_batch, row.to_drain),
        row.started_at,
        row.expectations,
        tuple(json.loads(row.failed)),
        bool(row.success),
        row.report,
        tuple(json.loads(row.unseen)),
        tuple(json.loads(row.passing or "[]")),
        row.filled or 0,
    )
