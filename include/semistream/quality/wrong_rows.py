"""The wrong rows, by id, of loads whose checksum is not the ledger's: missing rows, surplus rows,
and changed rows with the expected value and the one found.

The database joins these loads again in staging tables (``joined_again``). The result is compared
with the warehouse's rows. If the source cannot be read again, only the columns that the join added
are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, func, or_, select

from semistream.quality.findings import Load, WrongRows
from semistream.quality.joined_again import ROWS_AGAIN, join_again
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.quality.stream_checks import Recounted
from semistream.quality.wrong_facts import compare_facts, missing_unread
from semistream.quality.wrong_unmatched import compare_unmatched
from semistream.warehouse.load_ids import batch_of, drain_of, partition_of
from semistream.warehouse.schema import load_batches, unmatched
from semistream.warehouse.types import LongString


def find_wrong_rows(
    staging: Staging,
    scope: Scope,
    role: Role,
    commits: list[sa.Row],
    checksums: sa.Table,
    recounted: Recounted,
) -> WrongRows:
    """Join the loads whose checksums differ again, and return their wrong rows."""
    found, loads = WrongRows(), _differing(staging, scope, role, checksums)
    if loads and not scope.ids:
        found.told.append("Name id columns under stream.id, and what is wrong is told row by row.")
        return found
    there = {
        version: version == role.version or (role.snapshots / version).is_dir()
        for version in sorted({load.version for load in loads})
    }
    found.told += [
        f"Loads with version {version} of the master data were not joined again, "
        f"as it is no longer kept."
        for version, is_there in there.items()
        if not is_there
    ]
    ready = [load for load in loads if there[load.version]]
    rows = np.cumsum([load.rows for load in ready])
    chosen = ready[: max(int(np.searchsorted(rows, ROWS_AGAIN, "right")), 1)]
    if len(chosen) < len(ready):
        found.told.append(
            f"Of {len(ready):,} such loads the first {len(chosen):,} were joined again."
        )
    try:
        if chosen:
            _join_and_compare(staging, scope, role, commits, chosen, recounted, found)
    except (OSError, pa.ArrowException) as e:
        found.told.append(f"Not all of these loads could be joined again: {e}.")
    return found


def _join_and_compare(
    staging: Staging,
    scope: Scope,
    role: Role,
    commits: list[sa.Row],
    chosen: Sequence[Load],
    recounted: Recounted,
    found: WrongRows,
) -> None:
    again = join_again(staging, scope, role, commits, chosen, recounted)
    compare_facts(staging, scope, role, again, chosen, found)
    if again.absent is None:
        found.told.append(
            "The source cannot be read again with all its columns: those that "
            "the join added are compared, the stream's own are not."
        )
        return
    if not scope.waiting:
        found.findings += missing_unread(staging, scope, again.tuples, again.absent)
    compare_unmatched(staging, scope, role, again, chosen, found)


def _differing(staging: Staging, scope: Scope, role: Role, checksums: sa.Table) -> list[Load]:
    loads, c = role.loads(), checksums.c
    b = loads.c
    facts, kept = (func.coalesce(c[n], 0) for n in ("facts_checksum", "unmatched_checksum"))
    query = (
        select(
            b.load_id,
            b.version,
            (b.output_rows + b.unmatched).label("rows"),
            sa.case((b.facts_checksum != facts, b.facts_checksum)).label("facts"),
            sa.case((b.unmatched_checksum != kept, b.unmatched_checksum)).label("kept"),
        )
        .select_from(loads.outerjoin(checksums, b.load_id == c.load_id))
        .where(scope.holds(loads), or_(b.facts_checksum != facts, b.unmatched_checksum != kept))
        .order_by(b.load_id)
    )
    return [Load(*row) for row in staging.all(query)]


def stage_wrong_rows(
    staging: Staging, scope: Scope, checksums: sa.Table, found: WrongRows
) -> sa.Table:
    """Stage a table of the wrong rows, with the columns number, batch, drain, partition, table,
    finding, stream_id, column, old and new. A load whose checksum differs, but of which no wrong
    row was found, has one row for its checksum."""
    rows = [
        (*_place(f.load_id, f.batch), f.table, f.finding, f.stream_id, f.column, f.old, f.new)
        for f in found.findings
    ]
    named = {(f.load_id, f.table) for f in found.findings}
    b, c = load_batches.c, checksums.c
    for name, of in (("facts_checksum", scope.fact_name), ("unmatched_checksum", unmatched.name)):
        now = func.coalesce(c[name], 0)
        differing = (
            select(b.load_id, b[name], now)
            .select_from(load_batches.outerjoin(checksums, b.load_id == c.load_id))
            .where(scope.holds(load_batches), b[name] != now)
            .order_by(b.load_id)
        )
        unnamed = "another checksum; no row of it could be named"
        rows += [
            (*_place(load), of, unnamed, None, None, str(old), str(new))
            for load, old, new in staging.all(differing)
            if (load, of) not in named
        ]
    texts = ("table", "finding", "stream_id", "column", "old", "new")
    return staging.table(
        "wrong",
        Column("number", Integer),
        *(Column(n, BigInteger) for n in ("batch", "drain", "partition")),
        *(Column(n, LongString()) for n in texts),
        rows=((n, *row) for n, row in enumerate(rows)),
    )


def _place(load: int | None, batch: int | None = None) -> tuple[int | None, ...]:
    """Return batch, drain and partition of a load, or the batch alone where it is unknown."""
    return (
        (batch, None, None)
        if load is None
        else (batch_of(load), drain_of(load), partition_of(load))
    )
