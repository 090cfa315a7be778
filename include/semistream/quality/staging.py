"""Short-lived tables in the warehouse with which the expectations compare: ids of the source, a
sample and its master rows.

GX opens separate connections, so that these cannot be temporary tables. They are named
quality_<epoch>_<pid>_… and dropped after the run. The tables of a run that was killed are dropped
by a later run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Column,
    FromClause,
    Index,
    Integer,
    String,
    and_,
    func,
    insert,
    select,
)

from semistream.quality.scope import Role, Scope
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.dialects import name_length, system_of, table_options
from semistream.warehouse.load_ids import last_load
from semistream.warehouse.schema import NAME, load_batches, load_inputs, unmatched
from semistream.warehouse.types import KeyString, LongString

ROWS_AT_ONCE = 50_000
PARTITIONS_SAMPLED = 64
STALE_SECONDS = 86_400
FACTS_AT_ONCE = 1_000_000  # copied in one transaction, approximately


@dataclass(frozen=True)
class Sources:
    """The recounted source. counts: a table of batch, source, rows_in_source; ids: a table of
    quality_batch, quality_place, the id columns, quality_id (None if the job names no id columns);
    places: a table of place, path (see ``sources.PLACES``). The prefix ``quality_`` avoids the
    names of data columns."""

    counts: sa.Table
    ids: sa.Table | None
    places: sa.Table | None = None


@dataclass(frozen=True)
class Unparsable:
    """The tuples that could not be parsed. ids: a table of stream_id, the ids found in the tuples'
    texts; unknown: the number of texts without an id; lost: the number of missing tuples that may
    be among these texts."""

    ids: sa.Table
    unknown: int
    lost: int = 0


@dataclass(frozen=True)
class Older:
    """Facts that were loaded with another version of the master data and differ from today's
    dimension. facts: a table of load_id, load_row, quality_version, surrogate key; master: a table
    of quality_version and dimension columns."""

    facts: sa.Table
    master: sa.Table


@dataclass(frozen=True)
class Sample:
    """The sampled rows, as tables. facts: load_id, load_row, quality_version, ids; unmatched:
    quality_id, load_id, quality_version, key_0 …; master: quality_version, dimension columns."""

    facts: sa.Table
    unmatched: sa.Table
    master: sa.Table
    seed: int


@dataclass
class Staging:
    """The staging tables of one run, which are dropped at its end. notes: notes for a reader of the
    report; unseen: descriptions of what could not be checked, which the verdict does not cover."""

    engine: sa.Engine
    prefix: str = field(default_factory=lambda: f"quality_{int(time.time())}_{os.getpid()}")
    metadata: sa.MetaData = field(default_factory=sa.MetaData)
    notes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    def reserve(self, what: str) -> None:
        """Record a description of something that could not be checked. The verdict does not cover
        it."""
        self.notes.append(what)
        self.unseen.append(what.rstrip("."))

    def __enter__(self) -> Staging:
        drop_stale(self.engine)
        return self

    def __exit__(self, *_: object) -> None:
        self.metadata.drop_all(self.engine)

    def table(self, name: str, *columns: Column, rows: Iterable[Sequence[Any]] = ()) -> sa.Table:
        """Create a table with these rows."""
        table = sa.Table(f"{self.prefix}_{name}", self.metadata, *columns, **table_options())
        table.create(self.engine)
        self.insert(table, rows)
        return table

    def insert(self, table: sa.Table, rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows in several short transactions, because a loader may be waiting to write."""
        names, rows = [c.name for c in table.columns], iter(rows)
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            with self.engine.begin() as connection:
                connection.execute(
                    insert(table), [dict(zip(names, row, strict=True)) for row in chunk]
                )

    def fill(self, table: sa.Table, query: sa.Select, *columns: str) -> None:
        """Insert the rows of a query. columns: the table's columns to fill, in the query's order;
        by default all."""
        with self.engine.begin() as connection:
            connection.execute(table.insert().from_select(columns or table.columns.keys(), query))

    def write(self, table: sa.Table, rows: pa.RecordBatch | pa.Table) -> None:
        """Insert Arrow rows in bulk."""
        with self.engine.begin() as connection:
            bulk_insert(connection, table, rows)

    def all(self, query: sa.Select) -> Sequence[sa.Row]:
        """Return the rows of a query."""
        with self.engine.connect() as connection:
            return connection.execute(query).all()

    def scalars(self, query: sa.Select) -> list[Any]:
        """Return the first column of a query's rows."""
        return [row[0] for row in self.all(query)]

    def count(self, table: FromClause) -> int:
        """Return the number of rows of a table or a subquery."""
        return self.scalars(select(func.count()).select_from(table))[0]

    def index(self, table: sa.Table, *columns: str) -> None:
        # an index name must be unique in the whole SQLite database
        Index(
            f"ix_{table.name}_{len(table.indexes)}"[: name_length()],
            *system_of(self.engine).indexable([table.c[c] for c in columns]),
        ).create(self.engine)

    def analyze(self, table: sa.Table) -> None:
        """Update the database's statistics of a table, so that the database knows how few rows it
        has."""
        with self.engine.begin() as connection:
            system_of(self.engine).analyze(connection, table)


def drop_stale(engine: sa.Engine) -> None:
    """Drop tables that remain from killed runs."""
    for name in sa.inspect(engine).get_table_names():
        found = re.fullmatch(r"quality_(\d+)_\d+_\w+", name)
        if found and time.time() - int(found[1]) > STALE_SECONDS:
            with engine.begin() as connection:
                sa.Table(name, sa.MetaData()).drop(connection, checkfirst=True)


def stage_by_id(staging: Staging, scope: Scope) -> sa.Table:
    """Return a table that finds facts by each stream's ids: the fact table if it has indexes on
    them, otherwise an indexed copy of ids, load_id and surrogate keys.

    The copy has only the loads that may contain tuples of the recounted part of the source.
    """
    f, known = scope.fact, sa.inspect(staging.engine).get_indexes(scope.fact.name)
    wanted = [list(stream.ids.values()) for stream in scope.streams]
    if not all(wanted) or all(
        any(i["column_names"][: len(ids)] == ids for i in known) for ids in wanted
    ):
        return f
    names = [*scope.ids, "load_id", *(role.surrogate for role in scope.roles)]
    table = staging.table("by_id", *(Column(n, f.c[n].type) for n in names))
    copy_facts(staging, scope, table)
    for ids in wanted:
        staging.index(table, *ids)
    return table


def copy_facts(staging: Staging, scope: Scope, table: sa.Table) -> None:
    """Copy the table's columns from the facts of those loads that may contain tuples of the
    recounted part of the source."""
    f, b, after = scope.fact, load_batches.c, scope.settled
    rows, ends = 0, list[int]()
    for load in staging.all(
        select(b.load_id, b.output_rows)
        .where(scope.until(load_batches), b.load_id > after)
        .order_by(b.load_id)
    ):
        rows += load.output_rows
        if rows >= FACTS_AT_ONCE:
            rows = 0
            ends.append(load.load_id)
    for end in [*ends, last_load(scope.number, scope.last)]:
        some = select(*(f.c[c.name] for c in table.columns))
        staging.fill(table, some.where(f.c.load_id > after, f.c.load_id <= end))
        after = end


def stage_sample(staging: Staging, scope: Scope, role: Role, size: int, seed: int) -> Sample | None:
    """Stage a random sample of facts and of unmatched tuples, and the master rows with the sample's
    keys. seed: makes the sample reproducible."""
    if not size or not scope.ids:
        return None
    rng = np.random.default_rng(seed)
    facts = _sample_facts(staging, scope, role, size, rng)
    others = _sample_unmatched(staging, scope, role, size, rng)
    sample = Sample(facts, others, master_table(staging, role, role.staged("master")), seed)
    _stage_dimension(staging, scope, role, sample)
    for version in sorted({v for v in role.versions.values() if v != role.version}):
        _stage_snapshot(staging, scope, role, sample, version)
    staging.index(sample.master, role.surrogate)
    return sample


def _compared(role: Role) -> list[str]:
    return list(dict.fromkeys([role.surrogate, *role.on.values(), *role.added.values()]))


def _sample_facts(
    staging: Staging, scope: Scope, role: Role, size: int, rng: np.random.Generator
) -> sa.Table:
    """Draw facts in two stages, first loads from the ledger, then rows of these loads, so that the
    cost does not grow with the table."""
    loads = role.loads()
    table = staging.table(
        role.staged("sample"),
        Column("load_id", BigInteger),
        Column("load_row", Integer),
        Column("quality_version", NAME),
        *(Column(i, scope.fact.c[i].type) for i in scope.ids),
    )
    parts = staging.all(
        select(loads.c.load_id, loads.c.output_rows.label("n"), loads.c.version)
        .where(scope.holds(loads), loads.c.output_rows > 0)
        .order_by(loads.c.load_id)
    )
    if len(parts) > PARTITIONS_SAMPLED:
        weights = np.array([p.n for p in parts], float)
        some = rng.choice(len(parts), PARTITIONS_SAMPLED, False, weights / weights.sum())
        parts = [parts[i] for i in sorted(some)]
    staging.insert(table, _draw(staging, scope, role, parts, size, rng))
    staging.index(table, "quality_version")
    staging.analyze(table)
    return table


def _draw(
    staging: Staging,
    scope: Scope,
    role: Role,
    parts: Sequence[sa.Row],
    size: int,
    rng: np.random.Generator,
) -> Iterator[tuple]:
    """Yield (load_id, load_row, version, *ids) of rows whose numbers are drawn. A row that is gone
    is skipped, because other checks report it. A row with an inferred member is skipped, because it
    had no master row."""
    f, start, wanted = scope.fact, 0, _chosen(sum(p.n for p in parts), size, rng)
    for part in parts:
        chosen = wanted[(start <= wanted) & (wanted < start + part.n)] - start
        rows = select(f.c.load_row, *(f.c[i] for i in scope.ids)).where(
            f.c.load_id == part.load_id, f.c.load_row.in_(chosen.tolist()), ~role.is_inferred(f)
        )
        for row in staging.all(rows.order_by(f.c.load_row)):
            yield part.load_id, row[0], part.version, *row[1:]
        start += part.n


def _chosen(total: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw numbers below ``total``, int64[at most size], in ascending order."""
    return np.sort(rng.choice(max(total, 1), min(size, total), replace=False))


def _sample_unmatched(
    staging: Staging, scope: Scope, role: Role, size: int, rng: np.random.Generator
) -> sa.Table:
    u, i = unmatched.c, load_inputs.c
    table = staging.table(
        role.staged("unmatched"),
        Column("quality_id", KeyString()),
        Column("load_id", BigInteger),
        Column("quality_version", NAME),
        # a master key fits into an index; the key of a tuple without a match may be longer
        *(
            Column(f"key_{i}", LongString() if isinstance(kind, String) else kind)
            for i, kind in enumerate(role.dimension.c[m].type for m in role.on.values())
        ),
    )
    mine = and_(scope.holds(unmatched), scope.kept(), role.lacks(unmatched))
    keys = staging.all(select(u.load_id, u.load_row).where(mine).order_by(u.load_id, u.load_row))
    chosen = [tuple(keys[n]) for n in _chosen(len(keys), size, rng)]
    rows = staging.all(
        select(u.stream_id, u.load_id, i.version, u.tuple)
        .select_from(
            unmatched.outerjoin(load_inputs, and_(i.load_id == u.load_id, i.role == role.name))
        )
        .where(sa.tuple_(u.load_id, u.load_row).in_(chosen))
    )
    tuples = (json.loads(row._mapping["tuple"]) for row in rows)
    keyed = (
        [typed(t.get(s), role.dimension.c[m].type) for s, m in role.on.items()] for t in tuples
    )
    staging.insert(
        table, [(*row[:2], row[2] or "", *key) for row, key in zip(rows, keyed, strict=True)]
    )
    return table


def drawn_facts(scope: Scope, sample: Sample) -> sa.ColumnElement[bool]:
    """Return the condition for joining facts with their sample through the primary key."""
    f, s = scope.fact, sample.facts
    return and_(f.c.load_id == s.c.load_id, f.c.load_row == s.c.load_row)


def _stage_dimension(staging: Staging, scope: Scope, role: Role, sample: Sample) -> None:
    """Stage the master rows of the current version that have the sample's keys, with a join in the
    database."""
    d, f, s, u = role.dimension, scope.fact, sample.facts, sample.unmatched
    same_key = and_(*(f.c[a] == d.c[b] for a, b in role.on.items()))
    same_other = and_(*(u.c[f"key_{i}"] == d.c[b] for i, b in enumerate(role.on.values())))
    for table, joined in (
        (s, s.join(f, drawn_facts(scope, sample)).join(d, same_key)),
        (u, u.join(d, same_other)),
    ):
        rows = (
            select(table.c.quality_version, *(d.c[n] for n in _compared(role)))
            .distinct()
            .select_from(joined)
            .where(table.c.quality_version == role.version)
        )
        staging.fill(sample.master, rows)


def _stage_snapshot(
    staging: Staging, scope: Scope, role: Role, sample: Sample, version: str
) -> None:
    """Stage the master rows of an older version that have the sample's keys, read from the
    version's snapshot. If the snapshot is lost, the version's rows are removed from the sample."""
    s, u, f = sample.facts, sample.unmatched, scope.fact
    stream_key, master_key = next(iter(role.on.items()))
    matched = select(f.c[stream_key]).select_from(s.join(f, drawn_facts(scope, sample)))
    keys = {
        *staging.scalars(matched.where(s.c.quality_version == version).distinct()),
        *staging.scalars(select(u.c.key_0).where(u.c.quality_version == version).distinct()),
    }
    if not keys:
        return
    why = "is no longer kept"
    if (role.snapshots / version).is_dir():
        try:
            stage_version(staging, role, sample.master, version, master_key, keys)
            return
        except (OSError, pa.ArrowException) as e:
            why = f"cannot be read ({e})"
    with staging.engine.begin() as connection:
        lost = [
            connection.execute(t.delete().where(t.c.quality_version == version)).rowcount
            for t in (s, u)
        ]
    staging.notes.append(
        f"{sum(lost)} sampled rows were loaded with version {version} of the "
        f"master data, which {why}: they are not joined again."
    )


def master_table(staging: Staging, role: Role, name: str) -> sa.Table:
    """Create a staging table for master rows: quality_version, and the dimension's compared
    columns."""
    return staging.table(
        name,
        Column("quality_version", NAME),
        *(Column(n, role.dimension.c[n].type) for n in _compared(role)),
    )


def stage_version(
    staging: Staging, role: Role, table: sa.Table, version: str, column: str, values: Iterable[Any]
) -> None:
    """Stage the master rows of a version whose column has one of these values, read from the
    version's snapshot."""
    files = ds.dataset(
        [str(p) for p in sorted((role.snapshots / version).glob("bucket-*.arrow"))], format="ipc"
    )
    stored = {name: str(role.dimension.c[name].name) for name in _compared(role)}
    wanted = pa.array([v for v in values if v is not None]).cast(
        files.schema.field(stored[column]).type
    )
    for batch in files.to_batches(
        columns={name: pc.field(of) for name, of in stored.items()},
        filter=pc.field(stored[column]).isin(wanted),
    ):
        rows = pa.table(
            [pa.repeat(version, len(batch)), *batch.columns],
            names=["quality_version", *batch.schema.names],
        )
        staging.write(table, rows)


def typed(value: Any, kind: sa.types.TypeEngine) -> Any:
    """Convert a JSON value to the Python value that a column of this type accepts and returns."""
    if value is None or isinstance(kind, sa.Boolean):
        return value
    if isinstance(kind, sa.LargeBinary):
        return bytes.fromhex(str(value))
    if isinstance(kind, sa.DateTime):
        at = datetime.fromisoformat(str(value))
        return at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at
    if isinstance(kind, sa.Numeric):
        return Decimal(str(value)) if kind.asdecimal else float(value)
    for plain, convert in (
        (sa.Date, lambda text: date.fromisoformat(text[:10])),
        (sa.Time, time_of_day.fromisoformat),
        (sa.Integer, int),
    ):
        if isinstance(kind, plain):
            return convert(str(value))
    return str(value)
