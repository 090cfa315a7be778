"""Near misses of a load. Sampled keys from the table ``unmatched``, or from facts that a left join
has passed on without a row, are compared with the master data with which they were joined."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, FromClause, and_, or_, select

from semistream.errors import SemistreamError, StateError
from semistream.files.near_misses import SAMPLE, NearMisses, comparable, near_misses
from semistream.master.snapshot import SnapshotRelation
from semistream.reasons import Reason
from semistream.warehouse.schema import load_batches, load_inputs, load_rejections, unmatched

LOADS = 50  # partitions of micro-batches whose tuples are sampled
MOST = 5 * SAMPLE  # rows of ``unmatched`` that are read, as some of them have no key


class Passed(NamedTuple):
    """The tuples that a left join has passed on without a row of its dimension to another join.
    They are only in the fact table. facts: that table; lacks_row: the condition for these tuples.
    """

    facts: FromClause
    lacks_row: ColumnElement[bool]


def find_near_misses(
    connection: Connection,
    loads: tuple[int, int],
    role: str,
    on: Mapping[str, str],
    snapshot: Path,
    passed: Passed | None = None,
) -> NearMisses | None:
    """Return the near misses of the keys that a range of loads did not find in a version of the
    master data; None if there are none, or if the snapshot is gone.

    loads: the first and the last load_id; on: the stream's columns, each with its master column;
    snapshot: the version's directory; passed: None if the tuples without a match are in
    ``unmatched``, or outside the warehouse.
    """
    try:
        with closing(SnapshotRelation(snapshot)) as relation:
            kinds, stream = relation.keys.types, {m: s for s, m in on.items()}
            if not comparable(kinds):
                return None
            columns = [stream[m] for m in relation.keys.master]
            tuples = (
                _sample(connection, loads, role, relation.version)
                if passed is None
                else _passed(connection, loads, role, relation.version, columns, passed)
            )
            if not tuples:
                return None
            keys = [
                _typed([t.get(column) for t in tuples], kind)
                for column, kind in zip(columns, kinds, strict=True)
            ]
            return near_misses(pa.RecordBatch.from_arrays(keys, names=columns), relation)
    except (SemistreamError, OSError, pa.ArrowException):  # for instance a version that is gone
        return None


def _sample(
    connection: Connection, loads: tuple[int, int], role: str, version: str
) -> list[dict[str, Any]]:
    """Return a sample of the tuples without a match from loads with this version. Raises StateError
    if the ledger contradicts itself."""
    b, i, r, u = load_batches.c, load_inputs.c, load_rejections.c, unmatched.c
    same = and_(r.load_id == i.load_id, r.role == i.role, r.reason == Reason.NO_MATCH)
    found = connection.execute(
        select(b.load_id, b.unmatched, r.tuples)
        .join(load_inputs, i.load_id == b.load_id)
        .join(load_rejections, same)
        .where(b.load_id.between(*loads), i.role == role, i.version == version)
        .order_by(b.load_id)
    ).all()
    found = found[:: -(-len(found) // LOADS) or 1]
    if any(load.unmatched < load.tuples for load in found):
        raise StateError(
            "load_rejections has more tuples of a load than load_batches says are unmatched: "
            "the ledger was changed"
        )
    rows, without = sum(load.unmatched for load in found), sum(load.tuples for load in found)
    if not without:
        return []
    share = min(min(SAMPLE * rows / without, MOST) / rows, 1.0)
    random, texts = np.random.default_rng(0), list[str]()
    for load in found:
        drawn = random.choice(load.unmatched, math.ceil(share * load.unmatched), replace=False)
        texts += connection.scalars(
            select(u.tuple).where(
                u.load_id == load.load_id,
                u.load_row.in_(drawn.tolist()),
                u.reason == Reason.NO_MATCH,
                u.resolved_by.is_(None),
                or_(u.role.is_(None), u.role == role),  # null: the job has one role
            )
        )
    return [json.loads(text) for text in texts]


def _passed(
    connection: Connection,
    loads: tuple[int, int],
    role: str,
    version: str,
    columns: Sequence[str],
    passed: Passed,
) -> list[dict[str, Any]]:
    """Return these columns of some facts without a row from loads with this version. They are the
    first such facts of some loads, because the fact table has no index for drawing them evenly."""
    i, f = load_inputs.c, passed.facts.c
    mine = and_(i.load_id.between(*loads), i.role == role, i.version == version, i.missed > 0)
    found = connection.scalars(select(i.load_id).where(mine).order_by(i.load_id)).all()
    found = found[:: -(-len(found) // LOADS) or 1]
    keys = [f[column] for column in columns]
    lacking = select(*keys).where(passed.lacks_row, *(key.is_not(None) for key in keys))
    return [
        dict(row._mapping)
        for load in found
        for row in connection.execute(
            lacking.where(f.load_id == load).limit(-(-SAMPLE // len(found)))
        )
    ]


def _typed(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert JSON values to a column of a canonical type."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.array(values, kind)
    return pa.array([None if v is None else str(v) for v in values], pa.string()).cast(kind)
