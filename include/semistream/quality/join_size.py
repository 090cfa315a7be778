"""How many rows the load should have brought, from the sketches of its keys in the ledger and the
master data's snapshots: an expectation that owes nothing to the join."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, func, select

from semistream.errors import StateError
from semistream.master.frequencies import key_frequencies
from semistream.quality.scope import Scope
from semistream.quality.staging import Staging
from semistream.sketches import SampledSketch, SkimmedSketch
from semistream.sketches.sampled import add_load, join_size
from semistream.warehouse.load_ids import last_load
from semistream.warehouse.proof import START
from semistream.warehouse.schema import NAME, load_batches

FAILURE = 1e-6  # probability that a bound does not hold


class _Read(NamedTuple):
    """What was read under a version of the master data: the keys, the tuples, in how many loads."""

    sketch: SkimmedSketch
    tuples: int
    loads: int


def stage_join_sizes(staging: Staging, scope: Scope, snapshots: Path) -> sa.Table | None:
    """Table of version, estimate, bound, at_least, at_most, rows_loaded, of what was loaded since
    nothing waited last; None where nothing can be said. snapshots: of the master's versions.

    Left out is a version of whose loads none kept a sketch; left out and noted one of whose loads
    some kept none, and one whose snapshot is gone or damaged.
    """
    read, unknown = _read(staging, scope)
    for version in sorted(unknown & set(read)):
        staging.reserve(f"Some loads with version {version} of the master data kept no sketch "
                             f"of their keys, or one of another size: how many rows they should "
                             f"have brought is not estimated.")
    rows = [row for version, each in sorted(read.items()) if version not in unknown
            for row in _row(staging, scope, version, each, snapshots / version)]
    if not rows:
        return None
    table = staging.table("join_sizes", Column("version", NAME),
                          *(Column(name, BigInteger) for name in
                            ("estimate", "bound", "at_least", "at_most", "rows_loaded")))
    staging.insert(table, rows)
    return table


def _read(staging: Staging, scope: Scope) -> tuple[dict[str, _Read], set[str]]:
    """(what the ledger tells of each version, versions of which it does not tell all)."""
    b = load_batches.c
    query = select(b.master_version, b.rows_read, b.key_sketch).where(
        _since(scope, load_batches), b.rows_read > 0).order_by(b.load_id)
    found: dict[str, _Read] = {}
    unknown = set()
    with staging.engine.connect() as connection:
        for version, tuples, blob in connection.execution_options(yield_per=100).execute(query):
            if blob is None:
                unknown.add(version)
                continue
            before = found.setdefault(version, _Read(SampledSketch().sketch, 0, 0))
            if not add_load(before.sketch, blob):
                unknown.add(version)
            found[version] = _Read(before.sketch, before.tuples + tuples, before.loads + 1)
    return found, unknown


def _row(staging: Staging, scope: Scope, version: str, read: _Read,
         snapshot: Path) -> Iterator[tuple[str | int, ...]]:
    if not snapshot.is_dir():
        staging.reserve(f"Version {version} of the master data is no longer kept: how many "
                             f"rows its loads should have brought is not estimated.")
        return
    try:
        (value, bound), most = join_size(read.sketch, read.tuples, read.loads,
                                         key_frequencies(snapshot), FAILURE)
    except StateError as e:
        staging.reserve(f"How many rows the loads with version {version} of the master data "
                             f"should have brought is not estimated: {e}")
        return
    waiting = most * scope.waiting if version == scope.versions.get(scope.last) else 0
    yield (version, round(value), round(bound), max(round(value - bound) - waiting, 0),
           round(value + bound), _loaded(staging, scope, version))


def _loaded(staging: Staging, scope: Scope, version: str) -> int:
    """Facts with master data, counted in the table itself."""
    b, f = load_batches.c, scope.fact.c
    count = select(func.count()).select_from(
        load_batches.join(scope.fact, f.load_id == b.load_id)).where(
            _since(scope, load_batches), b.master_version == version,
            f[scope.surrogate].is_not(None))
    with staging.engine.connect() as connection:
        return connection.scalar(count) or 0


def _since(scope: Scope, table: sa.Table) -> sa.ColumnElement[bool]:
    """Loads since nothing waited last, at or before the first one verified: what they have read is
    what they have loaded, but for what waits at the end."""
    after = last_load(scope.number, scope.source_first or START)
    return sa.and_(scope.until(table), table.c.load_id > after)
