"""An estimate of how many rows the load should have written, from the sketches of its keys in the
ledger and the master data's snapshots. This check does not depend on the join."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, func, select

from semistream.errors import StateError
from semistream.master.frequencies import key_frequencies
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.sketches import SampledSketch, SkimmedSketch
from semistream.sketches.sampled import add_load, join_size
from semistream.warehouse.load_ids import resolving
from semistream.warehouse.schema import NAME

FAILURE = 1e-6  # probability that a bound does not hold


# of a version: a sketch of the keys that were read, the number of tuples, the number of loads
_Read = tuple[SkimmedSketch, int, int]


def stage_join_sizes(staging: Staging, scope: Scope, role: Role) -> sa.Table | None:
    """Stage a table of version, estimate, bound, at_least, at_most, rows_loaded, for all loads
    since the last moment at which no tuple waited. Return None if nothing can be estimated.

    A version is omitted if none of its loads kept a sketch. A version is omitted with a note if
    only some of its loads kept one, or if its snapshot is gone or damaged.
    """
    read, unknown = _read(staging, scope, role)
    for version in sorted(unknown & set(read)):
        staging.reserve(
            f"Some loads with version {version} of the master data kept no sketch "
            f"of their keys, or one of another size: how many rows they should "
            f"have brought is not estimated."
        )
    rows = [
        row
        for version, each in sorted(read.items())
        if version not in unknown
        for row in _row(staging, scope, role, version, each)
    ]
    if not rows:
        return None
    return staging.table(
        "join_sizes",
        Column("version", NAME),
        *(
            Column(name, BigInteger)
            for name in ("estimate", "bound", "at_least", "at_most", "rows_loaded")
        ),
        rows=rows,
    )


def _read(staging: Staging, scope: Scope, role: Role) -> tuple[dict[str, _Read], set[str]]:
    """Return the sketches and counts of the keys that were read with each version, and the versions
    for which some loads have no usable sketch."""
    loads = role.loads()
    query = (
        select(loads.c.version, loads.c.rows_read, loads.c.key_sketch)
        .where(_since(scope, loads), loads.c.rows_read > 0)
        .order_by(loads.c.load_id)
    )
    found: dict[str, _Read] = {}
    unknown = set()
    with staging.engine.connect() as connection:
        for version, tuples, blob in connection.execution_options(yield_per=100).execute(query):
            if blob is None:
                unknown.add(version)
                continue
            sketch, read, count = found.get(version) or (SampledSketch().sketch, 0, 0)
            if not add_load(sketch, blob):
                unknown.add(version)
            found[version] = sketch, read + tuples, count + 1
    return found, unknown


def _row(
    staging: Staging, scope: Scope, role: Role, version: str, read: _Read
) -> Iterator[tuple[str | int, ...]]:
    snapshot = role.snapshots / version
    if not snapshot.is_dir():
        staging.reserve(
            f"Version {version} of the master data is no longer kept: how many "
            f"rows its loads should have brought is not estimated."
        )
        return
    try:
        (value, bound), most = join_size(*read, key_frequencies(snapshot), FAILURE)
    except StateError as e:
        staging.reserve(
            f"How many rows the loads with version {version} of the master data "
            f"should have brought is not estimated: {e}"
        )
        return
    waiting = most * scope.waiting if version == role.versions.get(scope.last) else 0
    yield (
        version,
        round(value),
        round(bound),
        max(round(value - bound) - waiting, 0),
        round(value + bound),
        _loaded(staging, scope, role, version),
    )


def _loaded(staging: Staging, scope: Scope, role: Role, version: str) -> int:
    """Count the facts with master data in the fact table."""
    loads, f = role.loads(), scope.fact.c
    (count,) = staging.scalars(
        select(func.count())
        .select_from(loads.join(scope.fact, f.load_id == loads.c.load_id))
        .where(
            _since(scope, loads),
            loads.c.version == version,
            role.has_row(scope.fact),
            ~role.is_inferred(scope.fact),
        )
    )
    return count


def _since(scope: Scope, table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition for loads after the last moment, before the first verified batch, at
    which no tuple waited. Every tuple read since then is in the output of these loads, or waits at
    the end. Loads that join tuples again are excluded, because they have no sketch of their keys.
    """
    return sa.and_(
        scope.until(table), table.c.load_id > scope.last_complete_load, ~resolving(table.c.load_id)
    )
