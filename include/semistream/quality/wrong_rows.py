"""The wrong rows, by id, of loads whose checksum differs from the ledger's: missing rows, surplus
rows, and changed rows with the expected value and the found one.

The database joins these loads again in staging tables (``joined_again``), and the result is
compared with the warehouse's rows. If the source cannot be read again, only the columns that the
join added are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, and_, func, or_, select

from semistream.quality.findings import Load, WrongRows
from semistream.quality.joined_again import ROWS_AGAIN, join_again
from semistream.quality.scope import Scope
from semistream.quality.staging import Staging
from semistream.quality.stream_checks import Recounted
from semistream.quality.wrong_facts import compare_facts, missing_unread
from semistream.quality.wrong_unmatched import compare_unmatched
from semistream.warehouse.load_ids import batch_of, drain_of, partition_of
from semistream.warehouse.schema import load_batches, load_inputs, unmatched
from semistream.warehouse.types import LongString


def find_wrong_rows(
    staging: Staging, scope: Scope, commits: list[sa.Row], checksums: sa.Table, recounted: Recounted
) -> WrongRows:
    """Return the wrong rows of the loads whose checksums differ, found by joining these loads
    again."""
    found, loads = WrongRows(), _differing(staging, scope, checksums)
    if loads and not scope.ids:
        found.notes.append("Name id columns under stream.id, and what is wrong is told row by row.")
        return found
    gone = {
        (role.number, version)
        for load in loads
        for role, version in zip(scope.roles, load.versions, strict=True)
        if version != role.version and not (role.snapshots / version).is_dir()
    }
    found.notes += [
        f"Loads with version {version} of the master data{scope.roles[number].words} were not "
        f"joined again, as it is no longer kept."
        for number, version in sorted(gone)
    ]
    ready = [load for load in loads if not gone & set(enumerate(load.versions))]
    rows = np.cumsum([load.rows for load in ready])
    chosen = ready[: max(int(np.searchsorted(rows, ROWS_AGAIN, "right")), 1)]
    if len(chosen) < len(ready):
        found.notes.append(
            f"Of {len(ready):,} such loads the first {len(chosen):,} were joined again."
        )
    try:
        if chosen:
            _join_and_compare(staging, scope, commits, chosen, recounted, found)
    except (OSError, pa.ArrowException) as e:
        found.notes.append(f"Not all of these loads could be joined again: {e}.")
    return found


def _join_and_compare(
    staging: Staging,
    scope: Scope,
    commits: list[sa.Row],
    chosen: Sequence[Load],
    recounted: Recounted,
    found: WrongRows,
) -> None:
    again = join_again(staging, scope, commits, chosen, recounted)
    compare_facts(staging, scope, again, chosen, found)
    if again.absent is None:
        found.notes.append(
            "The source cannot be read again with all its columns: those that "
            "the join added are compared, the stream's own are not."
        )
        return
    if not scope.waiting:
        found.findings += missing_unread(staging, scope, again.tuples, again.absent)
    compare_unmatched(staging, scope, again, chosen, found)


def _differing(staging: Staging, scope: Scope, checksums: sa.Table) -> list[Load]:
    b, c = load_batches.c, checksums.c
    joined, of_roles = load_batches.outerjoin(checksums, b.load_id == c.load_id), []
    for role in scope.roles:
        i = load_inputs.alias(f"input_{role.number}").c
        joined = joined.join(i.role.table, and_(i.load_id == b.load_id, i.role == role.name))
        of_roles.append(i.version)
    facts, kept = (func.coalesce(c[n], 0) for n in ("facts_checksum", "unmatched_checksum"))
    query = (
        select(
            b.load_id,
            (b.output_rows + b.unmatched).label("rows"),
            sa.case((b.facts_checksum != facts, b.facts_checksum)).label("facts"),
            sa.case((b.unmatched_checksum != kept, b.unmatched_checksum)).label("kept"),
            *of_roles,
        )
        .select_from(joined)
        .where(
            scope.holds(load_batches), or_(b.facts_checksum != facts, b.unmatched_checksum != kept)
        )
        .order_by(b.load_id)
    )
    return [
        Load(load_id, tuple(versions), rows, of_facts, of_kept)
        for load_id, rows, of_facts, of_kept, *versions in staging.all(query)
    ]


def stage_wrong_rows(
    staging: Staging, scope: Scope, checksums: sa.Table, found: WrongRows
) -> sa.Table:
    """Stage a table of the wrong rows, with the columns number, batch, drain, partition, table,
    finding, stream_id, column, old and new. If a load's checksum differs, but none of its wrong
    rows was found, the table has one row for the load."""
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
    """Return batch, drain and partition of a load; only the batch if the load is unknown."""
    return (
        (batch, None, None)
        if load is None
        else (batch_of(load), drain_of(load), partition_of(load))
    )
