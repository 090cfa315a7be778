"""The ledger compared with other records of an app's loads: its checkpoint, and the existing rows.

A ledger that was restored from an older backup is consistent in itself, and so are the tables that
were restored with it. Only the checkpoint knows of more batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, and_, func, or_, select

from semistream.errors import StateError
from semistream.positions import START, Position, named
from semistream.quality.checks import Check
from semistream.quality.scope import Scope
from semistream.quality.staging import Staging
from semistream.streaming.position import check_no_reset, done_by_query, follows, position, prepared
from semistream.streaming.sinks.base import StoredRows
from semistream.warehouse.ledger import Ledger, checkpoint_of
from semistream.warehouse.load_ids import app_loads, last_load
from semistream.warehouse.schema import (
    NAME,
    load_apps,
    load_batches,
    load_commits,
    load_inputs,
    load_rejections,
    propagated,
    unmatched,
)
from semistream.warehouse.types import LongString

FIRST, LAST = -(2**63), 2**63 - 1  # the range of a 64-bit load_id
GAPS_AT_ONCE = 50
LOADS_NAMED = 50


class Ahead(NamedTuple):
    """The batches that a checkpoint has but the ledger lacks. findings: (file, finding) of each, or
    None if the checkpoint could not be read; unknown: the reason for this."""

    findings: list[tuple[str, str]] | None
    unknown: str = ""


def checks(
    staging: Staging,
    scope: Scope,
    ahead: Ahead,
    stored: StoredRows | None,
    gone: str,
    closed: sa.Table | None = None,
) -> Iterator[Check]:
    """Yield the checks of the ledger's history. stored: the rows of a sink outside the warehouse;
    gone: the reason why the fact table cannot be read, "" if it can; closed: the table of totals of
    the fact table's keys, if there is one."""
    if ahead.unknown:
        staging.reserve(ahead.unknown, passing=True)
    if ahead.findings is not None:
        table = staging.table(
            "history",
            Column("file", LongString()),
            Column("finding", LongString()),
            rows=ahead.findings,
        )
        yield Check(
            "ledger_is_newest",
            "The ledger has every batch that the load has finished",
            "The load's checkpoint says which batch it works on, and which ones Spark takes for "
            "done. Where these are ahead, an older backup of the warehouse was put back. Restore "
            "the warehouse as the checkpoint knows it, or load the source anew "
            f"(semistream reset {scope.app}).",
            select(table),
            found="finding",
        )
    if gone:
        table = staging.table(
            "gone",
            Column("fact_table", NAME),
            Column("finding", LongString()),
            rows=[(scope.fact_name, gone)],
        )
        yield Check(
            "fact_table",
            f"{scope.fact_name} is there",
            "Nothing of what was loaded can be proven without it. Restore it from a backup of the "
            f"same time as the ledger, or load the source anew (semistream reset {scope.app}).",
            select(table),
            found="finding",
        )
        return
    table = staging.table(
        "unknown",
        Column("table", NAME),
        Column("load_id", BigInteger),
        Column("rows", BigInteger),
        rows=_unknown_loads(staging, scope, stored, closed),
    )
    yield Check(
        "known_loads",
        "Every row belongs to a load that the ledger has",
        "Each row names the load that wrote it. The ledger has no load of the key listed here: the "
        "rows were put there by another, or their ledger row is lost.",
        select(table),
        found="rows",
    )


# ---- the checkpoint


def lost_batches(engine: sa.Engine, app: str, default: Path) -> Ahead:
    """Compare the app's checkpoint with its ledger. default: the checkpoint's path if the ledger
    has no path.

    The checkpoint is read first and the ledger last, because a load may be running.
    """
    with engine.connect() as connection:
        noted = checkpoint_of(connection, app)
    checkpoint = Path(noted) if noted else default
    if not checkpoint.is_dir():
        return Ahead(
            None,
            f"Nothing tells whether the ledger lacks the newest batches: the "
            f"checkpoint {checkpoint} is not here."
            if noted
            else "",
        )
    try:
        check_no_reset(checkpoint)
        done, at, soon = done_by_query(checkpoint), position(checkpoint), prepared(checkpoint)
    except StateError as e:
        return Ahead([(str(checkpoint), str(e))])
    ledger = Ledger(engine, app)
    last = ledger.last()
    ends = f"and the ledger ends with {named(last)}" if last else "and the ledger has no batch"
    if soon is not None:
        last = max(last or soon, soon)
    findings = []
    if done > (last[0] if last else -1):
        findings.append((str(checkpoint / "query"), f"Spark takes batch {done} for done, {ends}"))
    if at is not None and not follows(at, last) and at > (last or START):
        findings.append(
            (str(checkpoint / "progress.json"), f"the load works on {named(at)}, {ends}")
        )
    return Ahead(findings + _lost_states(ledger, checkpoint, last))


def _lost_states(ledger: Ledger, checkpoint: Path, last: Position | None) -> list[tuple[str, str]]:
    """Return the missing state files of tuples that wait after the newest commit. If there are any,
    the newest commit is read again, because a later commit of a running load removes such files."""
    if last is None:
        return []
    lost = [
        (str(state), f"the tuples that wait after {named(last)} are gone")
        for load in ledger.partitions(*last)
        for file in dict.fromkeys(i.state_file for i in load.inputs if i.waiting)
        if file and not (state := checkpoint / "state" / file).exists()
    ]
    return lost if lost and ledger.last() == last else []


# ---- the rows


def _unknown_loads(
    staging: Staging, scope: Scope, stored: StoredRows | None, closed: sa.Table | None
) -> Iterator[tuple[str, int | None, int]]:
    """Yield (table, load_id, rows) of rows whose load is not in the ledger, and that belong to this
    app or to no app. The rows of other apps are proven by verifications of those apps."""
    c, b = load_commits.c, load_batches.c
    same = and_(c.app == b.app, c.batch == b.batch, c.drain == b.drain)
    loads = staging.all(
        select(b.load_id, c.fact_table)
        .select_from(load_batches.outerjoin(load_commits, same))
        .order_by(b.load_id)
    )
    others = staging.all(
        select(load_apps.c.number, c.fact_table)
        .join(load_commits, c.app == load_apps.c.app)
        .where(load_apps.c.app != scope.app)
        .distinct()
    )
    of_others = [app_loads(app.number) for app in others]
    of_others_here = [app_loads(app.number) for app in others if app.fact_table == scope.fact_name]
    everywhere = [load.load_id for load in loads]
    here = [load.load_id for load in loads if load.fact_table in (None, scope.fact_name)]
    first, last = (
        (FIRST, LAST)
        if scope.first is None
        else (last_load(scope.number, scope.first) + 1, app_loads(scope.number)[1])
    )
    for table, known, theirs in (
        (scope.fact, here, of_others_here),
        *([] if closed is None else [(closed, here, of_others_here)]),
        *(
            (table, everywhere, of_others)
            for table in (unmatched, propagated, load_inputs, load_rejections)
        ),
    ):
        name = scope.fact_name if table is scope.fact else table.name
        gaps = list(_gaps([(load, load) for load in known] + theirs, first, last))
        yield from ((name, load, rows) for load, rows in _rows_in(staging, table, gaps))
    if stored is not None and scope.first is None:
        mine, known_loads = app_loads(scope.number), set(everywhere)
        for other, rows in _of_nobody(stored):
            if other is None or not (
                other in known_loads or any(a <= other <= z for a, z in [mine, *of_others_here])
            ):
                yield scope.fact_name, other, rows


def _gaps(covered: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges between first and last that are not covered."""
    for start, end in sorted(covered):
        if start > first:
            yield first, min(start - 1, last)
        first = max(first, end + 1)
        if first > last:
            return
    yield first, last


def _rows_in(
    staging: Staging, table: sa.Table, gaps: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield (load_id, rows) of the rows in the gaps between known loads, found through the primary
    key. Loads that were committed meanwhile are excluded."""
    key, known = table.c.load_id, load_batches.c.load_id
    found = 0
    for i in range(0, len(gaps), GAPS_AT_ONCE):
        within = or_(*(key.between(*gap) for gap in gaps[i : i + GAPS_AT_ONCE]))
        if found >= LOADS_NAMED or not staging.all(select(key).where(within).limit(1)):
            continue
        rows = staging.all(
            select(key, func.count())
            .where(within, key.not_in(select(known)))
            .group_by(key)
            .order_by(key)
            .limit(LOADS_NAMED)
        )
        found += len(rows)
        yield from map(tuple, rows)


def _of_nobody(stored: StoredRows) -> Iterator[tuple[int | None, int]]:
    """Yield (load_id, rows) of the stored rows that do not belong to the app."""
    counts: Counter[int | None] = Counter()
    for _, read in stored.others:
        with suppress(OSError, pa.ArrowException):  # the check of the sink's files reports it
            for batch in read():
                for pair in batch.column("load_id").value_counts().to_pylist():
                    counts[pair["values"]] += pair["counts"]
    yield from counts.items()
