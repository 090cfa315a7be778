"""The wrong facts of loads, by id. Hashes of the warehouse's rows are compared with hashes of the
rows that result from joining the loads again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import and_, select

from semistream.quality import findings
from semistream.quality.findings import (
    CHANGED,
    MISSING,
    SURPLUS,
    Finding,
    Load,
    WrongRows,
    differing,
    id_text,
    row_text,
    same,
)
from semistream.quality.joined_again import Again
from semistream.quality.scope import Scope
from semistream.quality.staging import Staging
from semistream.warehouse.bulk import fetch
from semistream.warehouse.checksum import row_hashes, signed
from semistream.warehouse.tables import ROW_KEY, arrow_schema


@dataclass(frozen=True)
class Hashed:
    """Rows, represented by their hashes, uint64[n]. at: the key values by which each row is found,
    int64[n, 1 or 2]."""

    hashes: np.ndarray
    at: np.ndarray

    def without(self, other: Hashed) -> np.ndarray:
        """Return the numbers, int64[m], of the rows whose hash occurs in ``other`` less often than
        here. Of equal rows the first ones are returned."""
        order = np.argsort(self.hashes, kind="stable")
        mine, its = self.hashes[order], np.sort(other.hashes)
        first = np.searchsorted(mine, mine)
        surplus = np.searchsorted(mine, mine, "right") - first
        surplus -= np.searchsorted(its, mine, "right") - np.searchsorted(its, mine)
        return np.sort(order[np.arange(len(mine)) - first < surplus])


@dataclass(frozen=True)
class Row:
    """A row and its hash. at: the key values by which the row is found."""

    at: tuple[int, ...]
    hash: int
    values: dict[str, Any]


def _hashed(batches: Iterable[pa.RecordBatch], at: Sequence[str]) -> Hashed:
    hashes, keys = [np.empty(0, np.uint64)], [np.empty((0, len(at)), np.int64)]
    for batch in batches:
        hashes.append(row_hashes(batch.drop_columns(list(at))))
        keys.append(np.column_stack([batch.column(n).to_numpy() for n in at]).astype(np.int64))
    return Hashed(np.concatenate(hashes), np.concatenate(keys))


def compare_facts(
    staging: Staging, scope: Scope, again: Again, loads: Sequence[Load], found: WrongRows
) -> None:
    """Find the wrong rows of loads whose checksum of facts differs."""
    chosen = [load for load in loads if load.facts is not None]
    if not chosen:
        return
    f, e, name, most = scope.fact.c, again.expected.c, scope.fact_name, findings.NAMED
    schema = arrow_schema(scope.fact)
    values = [field for field in schema if field.name not in ROW_KEY]
    columns = [field.name for field in values]
    keyed = pa.schema([*values, *(schema.field(n) for n in ROW_KEY)])
    numbered = pa.schema([*values, pa.field("quality_number", pa.int64())])
    these = select(*(f[n] for n in keyed.names)).where(*(f[i].is_not(None) for i in scope.ids))
    with staging.engine.connect() as connection:
        there = _hashed(
            (
                batch
                for load in chosen
                for batch in fetch(connection, these.where(f.load_id == load.load_id), keyed)
            ),
            ROW_KEY,
        )
        wanted = _hashed(
            fetch(connection, select(*(e[n] for n in numbered.names)), numbered), ["quality_number"]
        )
        wrong, lost = there.without(wanted), wanted.without(there)
        now = _rows(connection, scope.fact, ROW_KEY, there, wrong[:most], columns)
        of_these = [  # the numbers of the expected rows that have the same ids
            n
            for row in now
            for n in connection.scalars(
                select(e.quality_number).where(*(e[i] == row.values[i] for i in scope.ids))
            )
        ]
        then = _rows(
            connection,
            again.expected,
            ["quality_number"],
            wanted,
            lost[(np.arange(len(lost)) < most) | np.isin(wanted.at[lost, 0], of_these)],
            ["quality_batch", *columns],
        )
        pairs, surplus, absent = _paired(scope, now, then)
        if len(wrong) > most:  # the further rows may be changed versions of the absent ones
            absent = [row for row in absent if not _has_facts(connection, scope, row)]
    found.findings += [
        Finding(
            a.at[0],
            name,
            CHANGED,
            id_text(scope, a.values),
            n,
            *differing(b.values[n], a.values[n]),
        )
        for a, b in pairs
        for n in columns
        if not same(a.values[n], b.values[n])
    ]
    found.findings += [
        Finding(a.at[0], name, SURPLUS, id_text(scope, a.values), new=row_text(a.values))
        for a in surplus
    ]
    if again.absent is not None:
        lacking = _lacking(chosen, there, wrong, pairs)
        for row, finding in _missing(scope, lacking, absent):
            found.findings.append(finding)
            if finding.load_id is not None:
                lacking[finding.load_id] -= row.hash
        if more := sum(n % 2**64 != 0 for n in lacking.values()):
            found.notes.append(
                f"In {more:,} of these loads there is more that is wrong, and could not be named."
            )
    if len(wrong) > most or len(lost) > most:
        found.notes.append(
            f"{len(wrong):,} rows of {name} are not as they were loaded, and "
            f"{len(lost):,} that were loaded are not there; the first {most:,} are "
            f"compared."
        )


def _rows(
    connection: sa.Connection,
    table: sa.Table,
    key: Sequence[str],
    hashed: Hashed,
    chosen: np.ndarray,
    columns: Sequence[str],
) -> list[Row]:
    out = []
    for row in chosen.tolist():
        at = tuple(hashed.at[row].tolist())
        one = select(*(table.c[n] for n in columns)).where(
            *(table.c[k] == v for k, v in zip(key, at, strict=True))
        )
        values = connection.execute(one).mappings().first()
        if values is not None:
            out.append(Row(at, int(hashed.hashes[row]), dict(values)))
    return out


def _has_facts(connection: sa.Connection, scope: Scope, row: Row) -> bool:
    f = scope.by_id
    there = select(1).where(*(f.c[i] == row.values[i] for i in scope.ids), scope.recounted(f))
    return connection.execute(there.limit(1)).first() is not None


def _paired(
    scope: Scope, now: list[Row], then: list[Row]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """Pair present rows with expected rows of the same ids. Return (pairs of present and expected
    row, surplus present rows, missing expected rows)."""
    by_id: dict[tuple[Any, ...], list[Row]] = {}
    for row in then:
        by_id.setdefault(tuple(row.values[i] for i in scope.ids), []).append(row)
    pairs, surplus = [], []
    for row in now:
        candidates = by_id.get(tuple(row.values[i] for i in scope.ids), [])
        same = [
            c for c in candidates if all(c.values[k] == row.values[k] for k in scope.surrogates)
        ]
        if best := (same or candidates)[:1]:
            candidates.remove(best[0])
            pairs.append((row, best[0]))
        else:
            surplus.append(row)
    return pairs, surplus, [row for each in by_id.values() for row in each]


def _lacking(
    loads: Sequence[Load], there: Hashed, wrong: np.ndarray, pairs: list[tuple[Row, Row]]
) -> dict[int, int]:
    """Return, by load, the difference between the ledger's checksum and the checksum of the load's
    correct and corrected rows. Loads without a difference are left out."""
    right = np.ones(len(there.hashes), bool)
    right[wrong] = False
    sums = {
        load.load_id: int(
            there.hashes[right & (there.at[:, 0] == load.load_id)].sum(dtype=np.uint64)
        )
        for load in loads
    }
    for a, b in pairs:
        sums[a.at[0]] += b.hash
    lacking = {load.load_id: signed((load.facts or 0) - sums[load.load_id]) for load in loads}
    return {load_id: n for load_id, n in lacking.items() if n}


def _missing(
    scope: Scope, lacking: dict[int, int], absent: list[Row]
) -> Iterator[tuple[Row, Finding]]:
    """Yield missing rows with a finding that names their load. That is the load whose checksum
    lacks exactly this row, or the only load that lacks anything. If tuples wait, a row counts as
    missing only if a checksum lacks it."""
    by_sum = {n: load_id for load_id, n in lacking.items()}
    only = next(iter(lacking)) if len(lacking) == 1 else None
    for row in absent:
        load_id = by_sum.get(signed(row.hash), None if scope.waiting else only)
        if load_id is not None or not scope.waiting:
            shown = {k: v for k, v in row.values.items() if k != "quality_batch"}
            yield (
                row,
                Finding(
                    load_id,
                    scope.fact_name,
                    MISSING,
                    id_text(scope, row.values),
                    old=row_text(shown),
                    batch=row.values["quality_batch"],
                ),
            )


def missing_unread(
    staging: Staging, scope: Scope, tuples: sa.Table, absent: sa.Select
) -> list[Finding]:
    """Return findings for ids that have not arrived, and whose tuples cannot be read completely
    from the source."""
    lost, t = absent.subquery("lost"), tuples.c
    unread = (
        select(lost)
        .outerjoin(tuples, and_(*(t[i] == lost.c[i] for i in scope.ids)))
        .where(t.quality_batch.is_(None))
        .limit(findings.NAMED)
    )
    return [
        Finding(
            None,
            scope.fact_name,
            MISSING,
            id_text(scope, dict(row._mapping)),
            batch=row.source_batch,
        )
        for row in staging.all(unread)
    ]
