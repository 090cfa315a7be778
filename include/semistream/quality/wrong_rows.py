"""The wrong rows, by id, of loads whose checksum is not the ledger's: missing rows, surplus rows,
and changed rows with the expected value and the one found.

The database joins these loads again in staging tables, from the source's tuples and the version of
the master data that they were loaded with. The result is compared with the warehouse's rows by
their hashes. If the source cannot be read again, the facts' own stream columns replace it, and only
the columns that the join added are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, and_, func, literal, or_, select

from semistream.quality.recount import read_tuples, with_stream_id
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging, master_table, stage_version, typed
from semistream.quality.stream_checks import Recounted, missing
from semistream.reasons import QUARANTINED, Reason
from semistream.streaming.sources.contract import CannotRecount
from semistream.warehouse.bulk import bulk_insert, fetch
from semistream.warehouse.checksum import row_hashes, signed
from semistream.warehouse.ids import stream_ids
from semistream.warehouse.load_ids import batch_of, drain_of, partition_of
from semistream.warehouse.schema import NAME, load_batches, load_inputs, unmatched
from semistream.warehouse.tables import ROW_KEY, arrow_schema, quoted
from semistream.warehouse.types import KeyString, LongString, big_integer

ROWS_AGAIN = 1_000_000  # the most rows of loads that are joined again; the first load always is
NAMED, AT_ONCE = 1_000, 500  # rows named of each kind; rows looked up at a time
SHOWN = 2_000  # characters of a row
CHANGED, SURPLUS, MISSING = "changed", "surplus", "missing"


@dataclass(frozen=True)
class Load:
    """A load whose checksums differ. facts, kept: the ledger's checksum of its rows in the facts
    and in unmatched where it differs from the computed one; else None."""

    load_id: int
    versions: tuple[str, ...]  # of each role's master data
    rows: int
    facts: int | None
    kept: int | None


@dataclass(frozen=True)
class Unmatched:
    """A tuple that must be in unmatched, and the first role in which it has no master row."""

    role: Role
    values: dict[str, Any]

    @property
    def reason(self) -> Reason:
        lacks_key = any(self.values[name] is None for name in self.role.on)
        return Reason.NULL_KEY if lacks_key else Reason.NO_MATCH


@dataclass(frozen=True)
class Finding:
    load_id: int | None
    table: str
    finding: str
    stream_id: str | None
    column: str | None = None
    old: str | None = None
    new: str | None = None
    batch: int | None = None  # if the load is unknown


@dataclass
class WrongRows:
    """The wrong rows. findings: those that are named; told: sentences that say how many rows of
    each kind there are, and what was not compared."""

    findings: list[Finding] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Again:
    """The data that loads are compared with.

    tuples: a version for each role, quality_batch, stream columns, quality_id (null if taken from
    the facts); masters, by role: quality_version, the dimension's columns; expected:
    quality_number, quality_batch, the fact table's columns; source_ids: ids of the source; absent:
    ids that have not arrived.
    """

    tuples: sa.Table
    masters: dict[str, sa.Table]
    expected: sa.Table
    source_ids: sa.Table | None
    absent: sa.Select | None
    of_source: bool  # False: tuples were taken from the facts


def find_wrong_rows(
    staging: Staging, scope: Scope, commits: list[sa.Row], checksums: sa.Table, recounted: Recounted
) -> WrongRows:
    """Join the loads whose checksums differ again, and return their wrong rows."""
    found, loads = WrongRows(), _differing(staging, scope, checksums)
    if not loads or not scope.ids:
        if loads:
            found.told.append(
                "Name id columns under stream.id, and what is wrong is told row by row."
            )
        return found
    gone = {
        (role.number, version): role
        for load in loads
        for role, version in zip(scope.roles, load.versions, strict=True)
        if not _is_there(role, version)
    }
    ready = [load for load in loads if not gone.keys() & set(enumerate(load.versions))]
    for (_, version), role in sorted(gone.items(), key=lambda each: each[0]):
        found.told.append(
            f"Loads with version {version} of the master data{role.words} were not joined again, "
            f"as it is no longer kept."
        )
    chosen = _first(ready)
    if len(chosen) < len(ready):
        found.told.append(
            f"Of {len(ready):,} such loads the first {len(chosen):,} were joined again."
        )
    try:
        _join_and_compare(staging, scope, commits, chosen, recounted, found)
    except (OSError, pa.ArrowException) as e:
        found.told.append(f"Not all of these loads could be joined again: {e}.")
    return found


def _join_and_compare(
    staging: Staging,
    scope: Scope,
    commits: list[sa.Row],
    chosen: Sequence[Load],
    recounted: Recounted,
    found: WrongRows,
) -> None:
    if chosen:
        again = _join_again(staging, scope, commits, chosen, recounted)
        _compare_facts(staging, scope, again, chosen, found)
        if again.of_source:
            found.findings += _missing_unread(staging, scope, again)
            _compare_unmatched(staging, scope, again, chosen, found)
        else:
            found.told.append(
                "The source cannot be read again with all its columns: those that "
                "the join added are compared, the stream's own are not."
            )


def _differing(staging: Staging, scope: Scope, checksums: sa.Table) -> list[Load]:
    b, c = load_batches.c, checksums.c
    joined, versions = load_batches.outerjoin(checksums, b.load_id == c.load_id), []
    for role in scope.roles:
        i = load_inputs.alias(f"input_{role.number}")
        joined = joined.join(i, and_(i.c.load_id == b.load_id, i.c.role == role.name))
        versions.append(i.c.version)
    facts, kept = (func.coalesce(c[n], 0) for n in ("facts_checksum", "unmatched_checksum"))
    query = (
        select(
            b.load_id,
            (b.output_rows + b.unmatched).label("rows"),
            sa.case((b.facts_checksum != facts, b.facts_checksum)).label("facts"),
            sa.case((b.unmatched_checksum != kept, b.unmatched_checksum)).label("kept"),
            *versions,
        )
        .select_from(joined)
        .where(
            scope.holds(load_batches), or_(b.facts_checksum != facts, b.unmatched_checksum != kept)
        )
        .order_by(b.load_id)
    )
    with staging.engine.connect() as connection:
        return [
            Load(load_id, tuple(versions), rows, facts, kept)
            for load_id, rows, facts, kept, *versions in connection.execute(query)
        ]


def _is_there(role: Role, version: str) -> bool:
    return version == role.version or (role.snapshots / version).is_dir()


def _first(loads: Sequence[Load]) -> list[Load]:
    rows = np.cumsum([load.rows for load in loads])
    return [load for load, n in zip(loads, rows, strict=True) if n <= ROWS_AGAIN] or list(loads[:1])


def stream_columns(scope: Scope) -> list[str]:
    """Return the fact table's columns that come from the stream, its ids first."""
    joined = {c for role in scope.roles for c in (role.surrogate, *role.added)}
    others = {*ROW_KEY, *joined, *scope.ids}
    return [*scope.ids, *(c.name for c in scope.fact.c if c.name not in others)]


# ---- the join


def _join_again(
    staging: Staging,
    scope: Scope,
    commits: list[sa.Row],
    loads: Sequence[Load],
    recounted: Recounted,
) -> Again:
    (stream,), source_ids, absent = scope.streams, recounted.ids, None
    if source_ids is not None and recounted.unparsable is not None:
        absent = missing(scope, stream, source_ids, recounted.unparsable.ids)
    f, names = scope.fact, stream_columns(scope)
    kinds = {n: f.c[n].type for n in names}
    tuples = staging.table(
        "tuples",
        *(Column(_version(role), NAME) for role in scope.roles),
        Column("quality_batch", BigInteger),
        *(Column(quoted(n), kind) for n, kind in kinds.items()),
        Column("quality_id", KeyString()),
    )
    of_source = absent is not None
    if absent is not None:
        wanted = _wanted(staging, scope, loads, absent)
        try:
            for batch, found in read_tuples(staging.engine, stream.spec, commits, kinds):
                if set(names) - set(found.schema.names):
                    raise CannotRecount("the source does not give all columns")
                _stage_tuples(staging, scope, tuples, batch, found, wanted)
        except CannotRecount:
            of_source = False
    staging.index(tuples, *scope.ids)
    if not of_source:
        with staging.engine.begin() as connection:
            connection.execute(tuples.delete())
    _fill_gaps(staging, scope, tuples, loads, source_ids if of_source else None)
    masters = {role.name: _masters(staging, role, tuples) for role in scope.roles}
    expected = _expected(staging, scope, tuples, masters, loads)
    return Again(tuples, masters, expected, source_ids, absent, of_source)


def _wanted(staging: Staging, scope: Scope, loads: Sequence[Load], absent: sa.Select) -> pa.Array:
    """Return the ids of the loads' tuples, and of the tuples that have not arrived."""
    f, u, schema = scope.fact, unmatched.c, arrow_schema(scope.fact)
    ids = pa.schema([schema.field(i) for i in scope.ids])
    found = []
    with staging.engine.connect() as connection:
        for load in loads:
            if load.facts is not None:
                of_load = select(*(f.c[i] for i in scope.ids)).where(f.c.load_id == load.load_id)
                found += [stream_ids(b, ids.names) for b in fetch(connection, of_load, ids)]
            if load.kept is not None:
                kept = select(u.stream_id).where(u.load_id == load.load_id)
                found.append(pa.array(connection.scalars(kept).all(), pa.string()))
        lost = absent.subquery("lost")
        of_lost = select(*(lost.c[i] for i in scope.ids)).limit(ROWS_AGAIN)
        found += [stream_ids(b, ids.names) for b in fetch(connection, of_lost, ids)]
    return pc.unique(pa.chunked_array(found, pa.string())).drop_null()


def _stage_tuples(
    staging: Staging,
    scope: Scope,
    tuples: sa.Table,
    batch: int,
    found: pa.RecordBatch,
    wanted: pa.Array,
) -> None:
    ids = len(scope.ids)
    versions = [_version(role) for role in scope.roles]
    names = [c.name for c in tuples.columns if c.name not in versions]
    schema = arrow_schema(tuples)
    rows = with_stream_id(
        batch,
        found.select(stream_columns(scope)),
        ids,
        pa.schema([schema.field(n) for n in names]),
        whole=True,
    )
    rows = rows.filter(pc.is_in(rows["quality_id"], value_set=wanted))
    for role, name in zip(scope.roles, versions, strict=True):
        version = role.versions.get((batch, 0), "")
        rows = rows.append_column(name, pa.repeat(version, rows.num_rows))
    with staging.engine.begin() as connection:
        bulk_insert(connection, tuples, rows)


def _fill_gaps(
    staging: Staging,
    scope: Scope,
    tuples: sa.Table,
    loads: Sequence[Load],
    source_ids: sa.Table | None,
) -> None:
    """Stage tuples from the facts where the source does not give them completely: those whose ids
    the source has, or all if it is not read again."""
    f, t, names = scope.fact, tuples.c, stream_columns(scope)
    columns = [
        *(t[_version(role)] for role in scope.roles),
        t.quality_batch,
        *(t[n] for n in names),
    ]
    known = []
    if source_ids is not None:
        read = select(1).select_from(tuples).where(*(t[i] == f.c[i] for i in scope.ids))
        there = (
            select(1).select_from(source_ids).where(*(source_ids.c[i] == f.c[i] for i in scope.ids))
        )
        known = [~read.correlate(f).exists(), there.correlate(f).exists()]
    for load in loads:
        rows = select(
            *map(literal, load.versions),
            literal(int(batch_of(load.load_id))),
            *(f.c[n] for n in names),
        ).where(f.c.load_id == load.load_id, *known)
        with staging.engine.begin() as connection:
            connection.execute(tuples.insert().from_select(columns, rows.distinct()))


def _version(role: Role) -> str:
    """Return the name of the column of staged tuples that has the version of a role's master
    data."""
    return f"quality_version_{role.number}"


def _matches(role: Role, tuples: sa.Table, masters: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that joins staged tuples with a role's staged master rows."""
    t, m = tuples.c, masters.c
    return and_(m.quality_version == t[_version(role)], *(t[a] == m[b] for a, b in role.on.items()))


def _masters(staging: Staging, role: Role, tuples: sa.Table) -> sa.Table:
    table, d, t = master_table(staging, role, role.staged("masters")), role.dimension, tuples.c
    stream_key, master_key = next(iter(role.on.items()))
    of_tuple = t[_version(role)]
    with staging.engine.connect() as connection:
        versions = list(connection.scalars(select(of_tuple).distinct()))
    for version in versions:
        if version == role.version:
            names = [c.name for c in table.columns if c.name != "quality_version"]
            same = and_(of_tuple == version, *(t[a] == d.c[b] for a, b in role.on.items()))
            rows = (
                select(literal(version), *(d.c[n] for n in names))
                .select_from(tuples.join(d, same))
                .distinct()
            )
            with staging.engine.begin() as connection:
                connection.execute(table.insert().from_select(["quality_version", *names], rows))
        elif (role.snapshots / version).is_dir():
            with staging.engine.connect() as connection:
                keys = connection.scalars(
                    select(t[stream_key]).where(of_tuple == version).distinct()
                ).all()
            stage_version(staging, role, table, version, master_key, keys)
    staging.index(table, master_key)
    return table


def _expected(
    staging: Staging,
    scope: Scope,
    tuples: sa.Table,
    masters: dict[str, sa.Table],
    loads: Sequence[Load],
) -> sa.Table:
    """Stage the facts that the tuples should have, except those found in loads that are right."""
    f, t = scope.fact, tuples.c
    columns = [c for c in f.columns if c.name not in ROW_KEY]
    table = staging.table(
        "expected",
        Column("quality_number", big_integer(), primary_key=True, autoincrement=True),
        Column("quality_batch", BigInteger),
        *(Column(quoted(c.name), c.type) for c in columns),
    )
    of: dict[str, sa.Column] = {}
    joined: sa.FromClause = tuples
    for role in scope.roles:
        m = masters[role.name]
        of |= {role.surrogate: m.c[role.surrogate], **{a: m.c[b] for a, b in role.added.items()}}
        joined = joined.join(m, _matches(role, tuples, m), isouter=role.left)
    rows = (
        select(t.quality_batch, *(of[c.name] if c.name in of else t[c.name] for c in columns))
        .select_from(joined)
        .where(~_refused(scope, tuples))
    )
    e, g = table.c, scope.by_id.alias("elsewhere")
    with staging.engine.begin() as connection:
        connection.execute(
            table.insert().from_select(["quality_batch", *(c.name for c in columns)], rows)
        )
    staging.index(table, *scope.ids)
    elsewhere = (
        select(e.quality_number)
        .select_from(
            table.join(
                g,
                and_(
                    *(g.c[i] == e[i] for i in scope.ids),
                    scope.recounted(g),
                    *(g.c[k].is_not_distinct_from(e[k]) for k in scope.surrogates),
                ),
            )
        )
        .where(g.c.load_id.not_in([load.load_id for load in loads if load.facts is not None]))
    )
    with staging.engine.begin() as connection:
        numbers = connection.scalars(elsewhere).all()
        for start in range(0, len(numbers), 500):
            some = numbers[start : start + 500]
            connection.execute(table.delete().where(e.quality_number.in_(some)))
    return table


# ---- facts


@dataclass(frozen=True)
class Hashed:
    """Rows by their hashes, uint64[n]. at: the key values that find each row, int64[n, 1 or 2]."""

    hashes: np.ndarray
    at: np.ndarray

    def without(self, other: Hashed) -> np.ndarray:
        """Return the numbers, int64[m], of the rows whose hash ``other`` does not have, or has less
        often."""
        mine, my_count = np.unique(self.hashes, return_counts=True)
        its, its_count = np.unique(other.hashes, return_counts=True)
        place = np.minimum(np.searchsorted(its, mine), max(len(its) - 1, 0))
        there = (
            np.where(its[place] == mine, its_count[place], 0)
            if len(its)
            else np.zeros(len(mine), np.int64)
        )
        more = my_count > there
        left = dict(zip(mine[more].tolist(), (my_count - there)[more].tolist(), strict=True))
        rows = []
        for row in np.flatnonzero(np.isin(self.hashes, mine[more])).tolist():
            if left[h := int(self.hashes[row])]:
                left[h] -= 1
                rows.append(row)
        return np.array(rows, np.int64)


@dataclass(frozen=True)
class Row:
    """A row and its hash. at: the values of the key that finds it."""

    at: tuple[int, ...]
    hash: int
    values: dict[str, Any]


def _hashed(batches: Iterable[pa.RecordBatch], at: Sequence[str]) -> Hashed:
    hashes, places = [np.empty(0, np.uint64)], [np.empty((0, len(at)), np.int64)]
    for batch in batches:
        hashes.append(row_hashes(batch.drop_columns(list(at))))
        places.append(np.column_stack([batch.column(n).to_numpy() for n in at]).astype(np.int64))
    return Hashed(np.concatenate(hashes), np.concatenate(places))


def _compare_facts(
    staging: Staging, scope: Scope, again: Again, loads: Sequence[Load], found: WrongRows
) -> None:
    chosen = [load for load in loads if load.facts is not None]
    if not chosen:
        return
    f, e, name = scope.fact.c, again.expected.c, scope.fact_name
    schema = arrow_schema(scope.fact)
    columns = [n for n in schema.names if n not in ROW_KEY]
    values = [schema.field(n) for n in columns]
    keyed = [*values, *(schema.field(n) for n in ROW_KEY)]
    identified = [f[i].is_not(None) for i in scope.ids]
    with staging.engine.connect() as connection:
        there = _hashed(
            (
                batch
                for load in chosen
                for batch in fetch(
                    connection,
                    select(*(f[n] for n in (*columns, *ROW_KEY))).where(
                        f.load_id == load.load_id, *identified
                    ),
                    pa.schema(keyed),
                )
            ),
            ROW_KEY,
        )
        numbered = pa.schema([*values, pa.field("quality_number", pa.int64())])
        wanted = _hashed(
            fetch(connection, select(*(e[n] for n in numbered.names)), numbered), ["quality_number"]
        )
        wrong, lost = there.without(wanted), wanted.without(there)
        now = _rows(connection, scope.fact, ROW_KEY, there, wrong[:NAMED], columns)
        of_these = _numbers(connection, scope, again.expected, now)
        then = _rows(
            connection,
            again.expected,
            ["quality_number"],
            wanted,
            lost[(np.arange(len(lost)) < NAMED) | np.isin(wanted.at[lost, 0], of_these)],
            ["quality_batch", *columns],
        )
        pairs, surplus, absent = _paired(scope, now, then)
        if len(wrong) > NAMED:  # rows beyond NAMED may be what the absent ones have become
            absent = [row for row in absent if not _has_facts(connection, scope, row)]
    for a, b in pairs:
        found.findings += [
            Finding(
                a.at[0],
                name,
                CHANGED,
                _id_text(scope, a.values),
                n,
                _text(b.values[n]),
                _text(a.values[n]),
            )
            for n in columns
            if not _same(a.values[n], b.values[n])
        ]
    found.findings += [
        Finding(a.at[0], name, SURPLUS, _id_text(scope, a.values), None, None, _row(a.values))
        for a in surplus
    ]
    if again.of_source:
        lacking = _lacking(chosen, there, wrong, pairs)
        lost_rows = list(_missing(scope, lacking, absent))
        found.findings += [finding for _, finding in lost_rows]
        for row, finding in lost_rows:
            if finding.load_id is not None:
                lacking[finding.load_id] -= row.hash
        if more := sum(n % 2**64 != 0 for n in lacking.values()):
            found.told.append(
                f"In {more:,} of these loads there is more that is wrong, and could not be named."
            )
    if len(wrong) > NAMED or len(lost) > NAMED:
        found.told.append(
            f"{len(wrong):,} rows of {name} are not as they were loaded, and "
            f"{len(lost):,} that were loaded are not there; the first {NAMED:,} are "
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


def _numbers(
    connection: sa.Connection, scope: Scope, expected: sa.Table, rows: list[Row]
) -> list[int]:
    """Return the numbers of the expected rows that have the same ids as these rows."""
    return [
        n
        for row in rows
        for n in connection.scalars(
            select(expected.c.quality_number).where(
                *(expected.c[i] == row.values[i] for i in scope.ids)
            )
        )
    ]


def _has_facts(connection: sa.Connection, scope: Scope, row: Row) -> bool:
    f = scope.by_id
    there = select(1).where(*(f.c[i] == row.values[i] for i in scope.ids), scope.recounted(f))
    return connection.execute(there.limit(1)).first() is not None


def _paired(
    scope: Scope, now: list[Row], then: list[Row]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """Pair present rows with expected ones of the same ids. Return (pairs of present and expected
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
    """Return, by load, by how much the ledger's checksum exceeds that of the load's right rows and
    corrected rows; only loads where this is not 0."""
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
    """Yield missing rows with a finding that names their load: the load whose checksum lacks just
    this row, or the only load that lacks anything. If tuples wait, a row counts as missing only if
    a checksum lacks it."""
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
                    _id_text(scope, row.values),
                    None,
                    _row(shown),
                    None,
                    row.values["quality_batch"],
                ),
            )


def _missing_unread(staging: Staging, scope: Scope, again: Again) -> list[Finding]:
    """Return findings for ids that have not arrived and whose tuples the source does not give
    completely."""
    if again.absent is None or scope.waiting:
        return []
    lost, t = again.absent.subquery("lost"), again.tuples.c
    unread = (
        select(lost)
        .select_from(lost.outerjoin(again.tuples, and_(*(t[i] == lost.c[i] for i in scope.ids))))
        .where(t.quality_batch.is_(None))
        .limit(NAMED)
    )
    with staging.engine.connect() as connection:
        return [
            Finding(
                None,
                scope.fact_name,
                MISSING,
                _id_text(scope, dict(row)),
                batch=row["source_batch"],
            )
            for row in connection.execute(unread).mappings()
        ]


# ---- unmatched tuples


def _compare_unmatched(
    staging: Staging, scope: Scope, again: Again, loads: Sequence[Load], found: WrongRows
) -> None:
    chosen = [load for load in loads if load.kept is not None]
    if not chosen:
        return
    staging.index(again.tuples, "quality_id")
    t, u, named = again.tuples.c, unmatched.c, list[Finding]()
    mine = and_(
        u.fact_table == scope.fact_name,
        u.reason.in_((Reason.NO_MATCH, Reason.NULL_KEY)),
        u.stream_id.is_not(None),
    )
    wanted, names = _expected_unmatched(scope, again), stream_columns(scope)
    kept = and_(mine, u.stream_id == t.quality_id, scope.recounted(unmatched))
    with staging.engine.connect() as connection, staging.engine.connect() as other:
        for load in chosen:
            of_load = select(u.stream_id, u.role, u.reason, u.tuple).where(
                mine, u.load_id == load.load_id
            )
            result = connection.execution_options(yield_per=AT_ONCE).execute(of_load)
            for rows in result.partitions(AT_ONCE):
                these = wanted.where(t.quality_id.in_([row.stream_id for row in rows]))
                was: dict[str, list[Unmatched]] = {}
                for stream_id, _, role, *values in other.execute(these):
                    lacks = Unmatched(scope.roles[role], dict(zip(names, values, strict=True)))
                    was.setdefault(stream_id, []).append(lacks)
                known = _known(other, again, [row.stream_id for row in rows])
                for row in rows:
                    named += _changes(scope, load.load_id, *row, was.get(row.stream_id, []), known)
                if len(named) > NAMED:
                    break
        lost = wanted.outerjoin(unmatched, kept).where(u.load_id.is_(None)).limit(NAMED)
        only = chosen[0].load_id if len(chosen) == 1 else None
        # if tuples wait, nobody knows which ones
        for stream_id, batch, role, *values in () if scope.waiting else other.execute(lost):
            was_it = Unmatched(scope.roles[role], dict(zip(names, values, strict=True)))
            named.append(
                Finding(
                    only,
                    unmatched.name,
                    MISSING,
                    stream_id,
                    None,
                    f"{was_it.reason} {_row(was_it.values)}",
                    None,
                    batch,
                )
            )
    if len(named) > NAMED:
        found.told.append(f"Of {unmatched.name} the first {NAMED:,} findings are named.")
    found.findings += named[:NAMED]


def _expected_unmatched(scope: Scope, again: Again) -> sa.Select:
    """Select stream_id, batch, the number of the first role without a master row, and stream
    columns of the tuples that lack one and are not in unmatched for another reason."""
    t = again.tuples.c
    joined: sa.FromClause = again.tuples
    absent: list[tuple[sa.ColumnElement[bool], int]] = []
    for role in scope.roles:
        if role.rejects:
            m = again.masters[role.name]
            joined = joined.outerjoin(m, _matches(role, again.tuples, m))
            absent.append((m.c[role.surrogate].is_(None), role.number))
    return (
        select(
            t.quality_id,
            t.quality_batch,
            sa.case(*absent).label("quality_role") if absent else literal(0),
            *(t[n] for n in stream_columns(scope)),
        )
        .select_from(joined)
        .where(
            or_(sa.false(), *(is_absent for is_absent, _ in absent)),
            t.quality_id.is_not(None),
            ~_refused(scope, again.tuples),
        )
    )


def _refused(scope: Scope, tuples: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition for tuples that were written to unmatched without being joined."""
    u = unmatched.alias("refused").c
    return (
        select(1)
        .where(
            u.fact_table == scope.fact_name,
            u.stream_id == tuples.c.quality_id,
            u.reason.in_(QUARANTINED),
        )
        .correlate(tuples)
        .exists()
    )


def _known(connection: sa.Connection, again: Again, ids: list[str]) -> set[str]:
    """Return those of the ids that have no staged tuple but are in the source."""
    s, t = again.source_ids, again.tuples.c
    if s is None:
        return set()
    return set(
        connection.scalars(
            select(s.c.quality_id).where(
                s.c.quality_id.in_(ids),
                s.c.quality_id.not_in(select(t.quality_id).where(t.quality_id.in_(ids))),
            )
        )
    )


def _changes(
    scope: Scope,
    load_id: int,
    stream_id: str,
    role: str | None,
    reason: str,
    text: str,
    was: list[Unmatched],
    known: set[str],
) -> list[Finding]:
    """Return findings for the differences between a row of unmatched and its tuple. was: all tuples
    with its id; known: ids of the source whose tuples may be incomplete."""
    if not was:
        return (
            []
            if stream_id in known
            else [
                Finding(
                    load_id,
                    unmatched.name,
                    SURPLUS,
                    stream_id,
                    None,
                    None,
                    f"{reason} {text}"[:SHOWN],
                )
            ]
        )
    kept = json.loads(text)
    candidates = []
    for lacks in was:
        pairs = [
            ("reason", lacks.reason, reason),
            *((n, v, _kept(kept.get(n), scope.fact.c[n].type)) for n, v in lacks.values.items()),
        ]
        if not lacks.role.alone:
            pairs.append(("role", lacks.role.name, role))
        candidates.append(
            [
                Finding(load_id, unmatched.name, CHANGED, stream_id, n, _text(old), _text(new))
                for n, old, new in pairs
                if not _same(old, new)
            ]
        )
    return min(candidates, key=len)


def _kept(value: Any, kind: sa.types.TypeEngine) -> Any:
    """Convert a value in a tuple's JSON to the value that a column of that type returns."""
    try:
        if value is None or isinstance(kind, sa.Boolean):
            return value
        if isinstance(kind, sa.DateTime):
            at = datetime.fromisoformat(str(value))
            return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
        if isinstance(kind, sa.Time):
            return time.fromisoformat(str(value))
        if isinstance(kind, sa.LargeBinary):
            return bytes.fromhex(str(value))
        found = typed(value, kind)
    except (ValueError, ArithmeticError):
        return str(value)
    return found


# ---- words


def _id_text(scope: Scope, row: dict[str, Any]) -> str:
    return "|".join(str(_text(row[i])) for i in scope.ids)


def _same(a: Any, b: Any) -> bool:
    both_nan = a != a and b != b  # noqa: PLR0124 - of any type, not only a float
    return a == b or both_nan or _text(a) == _text(b)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)[:SHOWN]


def _row(values: dict[str, Any]) -> str:
    return json.dumps(values, default=_text, ensure_ascii=False)[:SHOWN]


# ---- the table that the check reads


def stage_wrong_rows(
    staging: Staging, scope: Scope, checksums: sa.Table, found: WrongRows
) -> sa.Table:
    """Stage a table of the wrong rows, with the columns number, batch, drain, partition, table,
    finding, stream_id, column, old and new. A load whose checksum differs, but of which no wrong
    row was found, has one row for its checksum."""
    table = staging.table(
        "wrong",
        Column("number", Integer),
        *(Column(n, BigInteger) for n in ("batch", "drain", "partition")),
        *(
            Column(n, LongString())
            for n in ("table", "finding", "stream_id", "column", "old", "new")
        ),
    )
    rows = [
        _place(f) + (f.table, f.finding, f.stream_id, f.column, f.old, f.new)
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
        with staging.engine.connect() as connection:
            rows += [
                (
                    batch_of(load),
                    drain_of(load),
                    partition_of(load),
                    of,
                    "another checksum; no row of it could be named",
                    None,
                    None,
                    str(old),
                    str(new),
                )
                for load, old, new in connection.execute(differing)
                if (load, of) not in named
            ]
    staging.insert(table, [(n, *row) for n, row in enumerate(rows)])
    return table


def _place(finding: Finding) -> tuple[int | None, int | None, int | None]:
    load = finding.load_id
    return (
        (finding.batch, None, None)
        if load is None
        else (batch_of(load), drain_of(load), partition_of(load))
    )
