"""Tuples that a left join has passed on without a row of its dimension, and that a later role has
rejected. They are in ``unmatched`` under the later role, so that only their keys tell that the
earlier role had no row for them. The keys are looked up in the version with which each load was
joined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from sqlalchemy import Select, and_, func, select

from semistream.errors import SemistreamError, StateError
from semistream.keys import buckets, codes
from semistream.master.snapshot import SnapshotRelation
from semistream.quality.scope import Role, Scope
from semistream.quality.staging import Staging
from semistream.streaming.resolving import typed_tuples
from semistream.warehouse.bulk import fetch
from semistream.warehouse.load_history import MISSING
from semistream.warehouse.resolution import in_parts
from semistream.warehouse.schema import load_inputs, unmatched

CODES = 1_000_000  # key codes in memory; R's codes are read once for so many


class Between(NamedTuple):
    """A number that is known to be within these bounds, both included."""

    least: int
    most: int


def rejected_without_row(staging: Staging, scope: Scope, role: Role) -> Between:
    """Return how many tuples a role has passed on without a row, and a later role has rejected, in
    the loads since the last time that no tuple waited. It is known exactly, unless a version is no
    longer kept or cannot be read, or the role infers members: a tuple has got one then, unless it
    has no key."""
    u, i = unmatched.c, load_inputs.c
    later = (
        select(i.version, u.tuple)
        .select_from(unmatched.join(load_inputs, and_(i.load_id == u.load_id, i.role == role.name)))
        .where(
            u.load_id.between(*scope.later_loads),
            scope.kept(),
            u.reason.in_(MISSING),
            u.role != role.name,
            role.has_met(unmatched),
        )
    )
    found = later.subquery("later").c
    of_versions = select(found.version, func.count()).group_by(found.version)
    least = most = 0
    for version, count in staging.all(of_versions):
        tuples = later.with_only_columns(u.tuple).where(i.version == version)
        known = None if role.infers else _with_row(staging, role, version, tuples)
        least += 0 if known is None else count - known
        most += count - (known or 0)
    return Between(least, most)


def _with_row(staging: Staging, role: Role, version: str, tuples: Select[tuple[str]]) -> int | None:
    """Return how many of the tuples, texts of ``unmatched``, have a row of a version of the role's
    dimension; None if that cannot be told."""
    try:
        with (
            closing(SnapshotRelation(role.snapshots / version)) as relation,
            staging.engine.connect() as connection,
        ):
            rows = fetch(connection, tuples, pa.schema([("tuple", pa.string())]))
            parts = in_parts(_codes(rows, role, relation), CODES)
            return sum(_there(part, relation) for part in parts)
    except (SemistreamError, OSError, pa.ArrowException):
        return None


def _codes(
    rows: Iterator[pa.RecordBatch], role: Role, relation: SnapshotRelation
) -> Iterator[np.ndarray]:
    """Yield the codes of the tuples' keys in a role, int64[n], without those that have no key.
    Raises StateError for a tuple whose key has another type than the dimension's."""
    keys, stream = relation.keys, {m: s for s, m in role.on.items()}
    columns = zip((stream[m] for m in keys.master), keys.types, strict=True)
    schema = pa.schema([pa.field(name, kind) for name, kind in columns])
    for batch in rows:
        tuples, wrong = typed_tuples(batch.column(0), schema)
        if wrong:
            raise StateError(next(iter(wrong.values())))
        of, valid = codes(tuples.columns, keys.types)
        yield of[valid]


def _there(of: np.ndarray, relation: SnapshotRelation) -> int:
    """Return how many of these key codes, int64[n], R has."""
    bucket = buckets(of, relation.keys.exact, relation.manifest.bucket_count)
    return sum(
        int(np.isin(of[bucket == b], relation.bucket_codes(b)).sum())
        for b in np.unique(bucket).tolist()
    )
