"""Inferred members of a dimension: rows that are created for the keys of facts that arrive before
their master data.

The unique index on the business key ensures that each member is created once, even if several tasks
create it at the same time, or repeatedly. The surrogate key of a member is the table's next number,
which is read from the table. A member is committed before the load that needs it. If the load dies,
there is a member without facts, which the load's next attempt finds, but never a fact without a
member.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Engine, Table, insert, inspect, select, tuple_
from sqlalchemy.exc import DBAPIError, IntegrityError

from semistream.errors import ConfigError
from semistream.job import Job, Role, surrogate_key
from semistream.master.manifest import Manifest, decode_schema
from semistream.provisioning.publishing import master_row
from semistream.reasons import Reason
from semistream.sizing.role_plan import RolePlan
from semistream.warehouse.bulk import fetch
from semistream.warehouse.ids import is_long
from semistream.warehouse.inferred import Filling
from semistream.warehouse.ledger import retrying
from semistream.warehouse.tables import IS_INFERRED, dimension_name, dimension_table, existing_table
from semistream.warehouse.types import outside_years

AT_ONCE = 500  # keys of a statement
TRIES = 20  # attempts to create members while other tasks create some of them
NUMBER = "number of the tuple"


class Database(Protocol):
    """A database to which a process opens a connection. retry: seconds for which an operation is
    retried when the database is locked or lost."""

    @property
    def engine(self) -> Engine: ...

    @property
    def retry(self) -> float: ...


class Members:
    """The inferred members of a dimension in one of its roles.

    column: the facts' column with the surrogate keys; tuples: how many tuples have got a member so
    far. The object moves between processes together with the operator of a join.
    """

    def __init__(self, warehouse: Database, dimension: str, on: Mapping[str, str], column: str):
        """Prepare for a dimension. on: the stream's columns, each with its column of the business
        key."""
        self._warehouse, self._dimension, self._on = warehouse, dimension, dict(on)
        self.column, self.tuples = column, 0

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_schema", "_table")}

    def find(self, tuples: pa.RecordBatch) -> pa.Array:
        """Return the surrogate keys of the inferred members for unmatched tuples, int64[n]. Missing
        members are created. The key is null for a tuple without a join key, or with a join key that
        the dimension cannot store. tuples: their last column is ``reason``."""
        names, numbers = [*self._on.values()], pa.array(np.arange(tuples.num_rows))
        keys = [_cast(tuples.column(s), self._schema.field(k).type) for s, k in self._on.items()]
        storable = pc.equal(tuples.column(tuples.num_columns - 1), Reason.NO_MATCH)
        for column in keys:
            bad = pc.or_kleene(is_long(column), outside_years(column))
            storable = pc.and_(storable, pc.and_not(column.is_valid(), pc.fill_null(bad, True)))
        keyed = pa.table([*keys, numbers], names=[*names, NUMBER]).filter(storable)
        distinct = _in_order(keyed.select(names).group_by(names).aggregate([]))
        parts = [
            self._minted(distinct.slice(first, AT_ONCE))
            for first in range(0, distinct.num_rows, AT_ONCE)
        ]
        if not parts:
            return pa.nulls(tuples.num_rows, pa.int64())
        found = keyed.join(pa.concat_tables(parts), names, join_type="inner")
        self.tuples += found.num_rows
        members = np.zeros(tuples.num_rows, np.int64)
        members[found[NUMBER].to_numpy()] = found[self._key].to_numpy()
        return pa.array(members, mask=members == 0)

    def _minted(self, keys: pa.Table) -> pa.Table:
        """Return these keys with the surrogate keys of their members, and create missing members.
        keys: distinct, in order."""
        for attempt in range(1, TRIES + 1):
            known = retrying(partial(self._known, keys), self._warehouse.retry)
            lacking = keys.join(known, keys.column_names, join_type="left anti")
            if not lacking.num_rows:
                break
            try:
                retrying(partial(self._mint, _in_order(lacking)), self._warehouse.retry)
            except IntegrityError:  # another task was first with one of them
                if attempt == TRIES:
                    raise
        return known

    def _mint(self, keys: pa.Table) -> None:
        rows = [row | {IS_INFERRED: 1} for row in keys.to_pylist()]
        with self._warehouse.engine.begin() as connection:
            connection.execute(insert(self._table), rows)

    def _known(self, keys: pa.Table) -> pa.Table:
        """Return the keys that the dimension has, with their surrogate keys."""
        names, of, rows = keys.column_names, self._table.c, keys.to_pylist()
        if len(names) == 1:
            there = of[names[0]].in_([row[names[0]] for row in rows])
        else:
            there = tuple_(*(of[n] for n in names)).in_([tuple(row.values()) for row in rows])
        schema = pa.schema([*keys.schema, (self._key, pa.int64())])
        query = select(*(of[n] for n in schema.names)).where(there)
        with self._warehouse.engine.connect() as connection:
            return pa.Table.from_batches(fetch(connection, query, schema), schema)

    @property
    def _key(self) -> str:
        return surrogate_key(self._dimension)

    @cached_property
    def _schema(self) -> pa.Schema:
        """The columns of the dimension, without the surrogate key."""
        with self._warehouse.engine.connect() as connection:
            row = master_row(connection, self._dimension)
        assert row is not None  # `check_inferring` made sure
        return decode_schema(row.arrow_schema).remove(0)

    @cached_property
    def _table(self) -> Table:
        return dimension_table(
            self._dimension, self._schema, list(self._on.values()), inferred=True
        )


def _in_order(keys: pa.Table) -> pa.Table:
    """Return the keys in a fixed order. Tasks that create the same members in the same order seldom
    run into a deadlock."""
    return keys.sort_by([(name, "ascending") for name in keys.column_names])


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to the type of the dimension's column. A value that does not fit becomes
    null."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_one(value, kind) for value in column], kind)


def _one(value: pa.Scalar, kind: pa.DataType) -> Any:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


def check_inferring(engine: Engine, role: Role, retry: float) -> None:
    """Raise ConfigError if no members can be inferred for a role, because it is not joined on the
    whole business key, or its dimension table was provisioned without ``late: infer``."""
    name = role.dimension.name

    def found() -> tuple[Sequence[str], bool] | None:
        with engine.connect() as connection:
            row = master_row(connection, name)
        return None if row is None else (json.loads(row.business_key), may_infer(engine, name))

    state = retrying(found, retry)
    if state is not None:
        role.check_inferred(state[0])
    if state is None or not state[1]:
        raise ConfigError(
            f"dimensions.{role.name}.late",
            f"can be infer only where {dimension_name(name)} has a column {IS_INFERRED}",
            role.late,
            "Run `semistream provision JOB`, or the DAG provision_master_data, which adds it.",
        )


def filling_of(engine: Engine, job: Job, plan: RolePlan) -> Filling:
    """Return a description of how a job's facts are filled in from the version of a dimension in a
    plan."""
    role, manifest = job.role(plan.role), Manifest.read(Path(plan.snapshot))
    table = existing_table(engine, dimension_name(role.dimension.name))
    changes = manifest.source.get("changes")
    return Filling(role, table, manifest.schema, plan.version, changes)


def may_infer(engine: Engine, dimension: str) -> bool:
    """Return whether a dimension table has a column for inferred members."""
    columns = inspect(engine).get_columns(dimension_name(dimension))
    return IS_INFERRED in {column["name"] for column in columns}


def let_infer(engine: Engine, dimension: str) -> None:
    """Add the column for inferred members to an existing dimension table. Other processes may do so
    at the same time."""
    quote = engine.dialect.identifier_preparer.quote
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"ALTER TABLE {quote(dimension_name(dimension))} "
                f"ADD COLUMN {IS_INFERRED} INTEGER NOT NULL DEFAULT 0"
            )
    except DBAPIError:
        if not may_infer(engine, dimension):
            raise
