"""Short-lived tables in the warehouse that the expectations compare with: what the source has, the sample, the master rows for it.

GX opens its own connections, so these cannot be temporary tables. They are named quality_<epoch>_<pid>_…, dropped after the run,
and a run that was killed has its own dropped by a later one.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, Integer, String, and_, func, insert, select

from semistream.quality.scope import Scope
from semistream.warehouse.schema import NAME, load_batches, unmatched

NO_MATCH = "no_match"  # as joins.base has it; importing that would bring in Numba
ROWS_AT_ONCE = 50_000
PARTITIONS_SAMPLED = 64
STALE_SECONDS = 86_400
LOAD = ("batch", "drain", "partition")


@dataclass
class Staging:
    """The staging tables of one run; those that could not be made are None, and `notes` says why."""

    engine: sa.Engine
    seed: int
    prefix: str = field(default_factory=lambda: f"quality_{int(time.time())}_{os.getpid()}")
    metadata: sa.MetaData = field(default_factory=sa.MetaData)
    sources: sa.Table | None = None
    source_ids: sa.Table | None = None
    rejected: sa.Table | None = None
    sample: sa.Table | None = None
    unmatched_sample: sa.Table | None = None
    master: sa.Table | None = None
    sampled: int = 0
    unmatched_sampled: int = 0
    notes: list[str] = field(default_factory=list)

    def __enter__(self) -> Staging:
        drop_stale(self.engine)
        return self

    def __exit__(self, *_: object) -> None:
        self.metadata.drop_all(self.engine)

    def table(self, name: str, *columns: Column) -> sa.Table:
        table = sa.Table(f"{self.prefix}_{name}", self.metadata, *columns, mysql_engine="InnoDB", mysql_charset="utf8mb4")
        table.create(self.engine)
        return table

    def insert(self, table: sa.Table, rows: Iterable[Sequence[Any]]) -> int:
        """Several short transactions: a loader may be waiting to write."""
        names, count = [c.name for c in table.columns], 0
        rows = iter(rows)
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            with self.engine.begin() as connection:
                connection.execute(insert(table), [dict(zip(names, row, strict=True)) for row in chunk])
            count += len(chunk)
        return count

    def index(self, table: sa.Table, *columns: str) -> None:
        Index(f"ix_{table.name}_{columns[0]}"[:64], *(table.c[c] for c in columns)).create(self.engine)


def drop_stale(engine: sa.Engine) -> None:
    """Tables left over by runs that were killed."""
    for name in sa.inspect(engine).get_table_names():
        found = re.fullmatch(r"quality_(\d+)_\d+_\w+", name)
        if found and time.time() - int(found[1]) > STALE_SECONDS:
            with engine.begin() as connection:
                sa.Table(name, sa.MetaData()).drop(connection, checkfirst=True)


def stage_rejected(staging: Staging, scope: Scope) -> None:
    """The ledger's unmatched tuples by reason, one row each."""
    table = staging.table("rejected", Column("batch", BigInteger), Column("drain", Integer), Column("partition", Integer),
                          Column("reason", String(40)), Column("rows_in_ledger", BigInteger))
    with staging.engine.connect() as connection:
        ledger = connection.execute(select(*(load_batches.c[k] for k in LOAD), load_batches.c.rejected)
                                    .where(scope.holds(load_batches))).all()
    staging.insert(table, [(*row[:3], reason, n) for row in ledger for reason, n in json.loads(row.rejected).items() if n])
    staging.index(table, *LOAD)
    staging.rejected = table


def stage_sample(staging: Staging, scope: Scope, size: int, snapshots: Path | None) -> None:
    """A seeded random sample of facts and of unmatched tuples, and the master rows with their keys."""
    rng = np.random.default_rng(staging.seed)
    if not size or not scope.ids:
        return
    staging.sample = _sample_facts(staging, scope, size, rng)
    staging.unmatched_sample = _sample_unmatched(staging, scope, size, rng)
    _stage_master(staging, scope, snapshots)


def _sample_facts(staging: Staging, scope: Scope, size: int, rng: np.random.Generator) -> sa.Table:
    """Drawn in two stages, so that its cost does not grow with the table: partitions of batches, then rows of these."""
    f = scope.fact
    table = staging.table("sample", Column("app", NAME), Column("batch", BigInteger), Column("drain", Integer),
                          Column("partition", Integer), Column("version", NAME), *(Column(i, f.c[i].type) for i in scope.ids))
    counted = select(*(f.c[k] for k in LOAD), func.count().label("n")).where(scope.holds(f)).group_by(*(f.c[k] for k in LOAD))
    with staging.engine.connect() as connection:
        parts = connection.execute(counted.order_by(*(f.c[k] for k in LOAD))).all()
        if parts:
            weights = np.array([p.n for p in parts], float)
            chosen = sorted(rng.choice(len(parts), min(len(parts), PARTITIONS_SAMPLED), replace=False, p=weights / weights.sum()))
            parts = [parts[i] for i in chosen]
        rows = _draw(connection, scope, parts, size, rng)
        staging.sampled = staging.insert(table, rows)
    staging.index(table, "version")
    return table


def _draw(connection: sa.Connection, scope: Scope, parts: Sequence[sa.Row], size: int, rng: np.random.Generator) -> list[tuple]:
    f, out = scope.fact, []
    total = sum(p.n for p in parts)
    wanted = np.sort(rng.choice(total, min(size, total), replace=False)) if total else []
    start = 0
    for part in parts:
        positions = iter([int(w) - start for w in wanted if start <= w < start + part.n])
        ids = select(*(f.c[i] for i in scope.ids)).where(f.c.app == scope.app, *(f.c[k] == v for k, v in zip(LOAD, part, strict=False))) \
            .order_by(*(f.c[i] for i in scope.ids)).execution_options(yield_per=10_000)
        version = scope.versions.get((part.batch, part.drain), "")
        out += [(scope.app, *part[:3], version, *row) for row in _at(connection.execute(ids), positions)]
        start += part.n
    return out


def _at(rows: Iterable[Any], positions: Iterator[int]) -> Iterator[Any]:
    """The rows at the given ascending positions."""
    position = next(positions, None)
    for i, row in enumerate(rows):
        if position is None:
            return
        if i == position:
            yield row
            position = next(positions, None)


def _sample_unmatched(staging: Staging, scope: Scope, size: int, rng: np.random.Generator) -> sa.Table:
    u, masters = unmatched.c, list(scope.on.values())
    table = staging.table("unmatched", Column("stream_id", String(255)), Column("batch", BigInteger), Column("drain", Integer),
                          Column("partition", Integer), Column("version", NAME),
                          *(Column(f"key_{i}", scope.dimension.c[m].type) for i, m in enumerate(masters)))
    mine = and_(scope.holds(unmatched), u.fact_table == scope.fact_name, u.reason == NO_MATCH)
    with staging.engine.connect() as connection:
        ids = np.array(connection.scalars(select(u.id).where(mine).order_by(u.id)).all(), np.int64)
        chosen = rng.choice(ids, min(size, len(ids)), replace=False).tolist() if len(ids) else []
        rows = connection.execute(select(u.stream_id, u.batch, u.drain, u.partition, u.tuple).where(u.id.in_(chosen))).all()
    staging.unmatched_sampled = staging.insert(table, [(
        *row[:4], scope.versions.get((row.batch, row.drain), ""),
        *(_typed(json.loads(row._mapping["tuple"]).get(s), scope.dimension.c[m].type) for s, m in scope.on.items())) for row in rows])
    return table


def _stage_master(staging: Staging, scope: Scope, snapshots: Path | None) -> None:
    """Master rows with the sample's keys: of the current version from the dimension, by the database; of older ones from their
    snapshots."""
    d, s, u, f = scope.dimension, staging.sample, staging.unmatched_sample, scope.fact
    needed = list(dict.fromkeys([scope.surrogate, *scope.on.values(), *scope.added.values()]))
    m = staging.master = staging.table("master", Column("version", NAME), *(Column(n, d.c[n].type) for n in needed))
    columns = [d.c[n] for n in needed]
    drawn = and_(f.c.app == s.c.app, *(f.c[k] == s.c[k] for k in (*LOAD, *scope.ids)))
    of_facts = select(s.c.version, *columns).select_from(s.join(f, drawn).join(d, and_(*(f.c[a] == d.c[b] for a, b in scope.on.items()))))
    of_others = select(u.c.version, *columns).select_from(
        u.join(d, and_(*(u.c[f"key_{i}"] == d.c[b] for i, b in enumerate(scope.on.values())))))
    with staging.engine.begin() as connection:
        for query, t in ((of_facts, s), (of_others, u)):
            connection.execute(m.insert().from_select(["version", *needed], query.where(t.c.version == scope.version).distinct()))
    for version in sorted({v for v in scope.versions.values() if v != scope.version}):
        _stage_snapshot(staging, scope, version, snapshots, needed, drawn)
    staging.index(m, scope.surrogate)


def _stage_snapshot(staging: Staging, scope: Scope, version: str, snapshots: Path | None, needed: list[str],
                    drawn: sa.ColumnElement[bool]) -> None:
    s, u, f = staging.sample, staging.unmatched_sample, scope.fact
    first_stream, first_master = next(iter(scope.on.items()))
    with staging.engine.connect() as connection:
        keys = set(connection.scalars(select(f.c[first_stream]).select_from(s.join(f, drawn)).where(s.c.version == version).distinct()))
        keys |= set(connection.scalars(select(u.c.key_0).where(u.c.version == version).distinct()))
    if not keys:
        return
    directory = snapshots / version if snapshots else None
    if directory is None or not directory.is_dir():
        with staging.engine.begin() as connection:
            lost = [connection.execute(t.delete().where(t.c.version == version)).rowcount for t in (s, u)]
        staging.sampled, staging.unmatched_sampled = staging.sampled - lost[0], staging.unmatched_sampled - lost[1]
        staging.notes.append(f"{sum(lost)} sampled rows were loaded with version {version} of the master data, which is no longer "
                             f"kept: they are not joined again.")
        return
    files = ds.dataset([str(p) for p in sorted(directory.glob("bucket-*.arrow"))], format="ipc")
    kind = files.schema.field(first_master).type
    wanted = pa.array([k for k in keys if k is not None]).cast(kind)
    for batch in files.to_batches(columns=needed, filter=pc.field(first_master).isin(wanted)):
        staging.insert(staging.master, zip([version] * len(batch), *(c.to_pylist() for c in batch.columns), strict=True))


def _typed(value: Any, kind: sa.types.TypeEngine) -> Any:
    """A value of JSON as what a column of that type takes."""
    if value is None:
        return None
    if isinstance(kind, sa.DateTime):
        return datetime.fromisoformat(str(value))
    if isinstance(kind, sa.Date):
        return date.fromisoformat(str(value)[:10])
    if isinstance(kind, sa.Integer):
        return int(value)
    if isinstance(kind, sa.Numeric):
        return Decimal(str(value)) if kind.asdecimal else float(value)
    return str(value)
