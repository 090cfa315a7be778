"""The facts with an inferred member of a dimension, and the completion of their columns.

If no row of a dimension has a tuple's key, the tuple can still become a fact at once, in a role
with ``late: infer``. Its surrogate key is that of a member that was created for it. The member's
columns are null, and so are the columns that the fact copies. ``inferred`` has a row for each such
fact and role, written in the transaction of the fact's load.

When provisioning brings the member's row, the member is filled in and keeps its surrogate key. Each
app then fills in the columns of its facts from the dimension table, as soon as the app uses a
version that has the row. This changes facts of former loads. Their checksums in the ledger change
in the same transaction.

A sink outside the warehouse writes its facts anew before that transaction commits. If a crash comes
between the two, the facts have their values and ``inferred`` does not say so: the same is done
again, with the same result, since a fact's checksum before it was filled in is the one without the
added columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, func, select, update

from semistream.job import Role
from semistream.positions import Position
from semistream.warehouse.bulk import fetch
from semistream.warehouse.checksum import checksum, signed
from semistream.warehouse.ledger import Ledger, utc_now
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.resolution import AT_ONCE, ORIGINS
from semistream.warehouse.schema import inferred, load_batches, masters
from semistream.warehouse.tables import IS_INFERRED, ROW_KEY, arrow_schema, copied_columns

# of a load's facts with inferred members: the number of the fact among the load's, the role, and
# the member's surrogate key
INFERRED = pa.schema([("load_row", pa.int32()), ("role", pa.string()), ("member", pa.int64())])


class NotThatVersion(Exception):
    """The dimension table is not in the state of the version from which facts are to be filled
    in."""


@dataclass(frozen=True)
class Filling:
    """The completion of facts whose inferred members have got rows in a dimension.

    table: the dimension's table; schema: its columns; version: the dimension's version that the
    facts get; changes: the value of ``changes`` in ``masters`` when the version was published, None
    if unknown.
    """

    role: Role
    table: Table
    schema: pa.Schema
    version: str
    changes: int | None

    def added(self, facts: Container[str]) -> dict[str, str]:
        """Return the columns to fill in: by column of the facts, the dimension's column. facts: the
        names of all columns of the facts."""
        return copied_columns(facts, self.table, self.role)

    @property
    def _key(self) -> ColumnElement[int]:
        """The dimension table's surrogate key."""
        return self.table.c[self.role.dimension.surrogate_key]

    def _open(self, number: int) -> ColumnElement[bool]:
        """Return the condition for an app's rows of ``inferred`` that are not filled in, in this
        role. number: the app's number in its load_ids."""
        return and_(is_open(number), inferred.c.role == self.role.name)

    def _due(self, number: int, *columns: ColumnElement) -> Select:
        """Return a query of the load_id and load_row of the facts to fill in, and of columns of
        their members' rows, in the order of the facts."""
        i = inferred.c
        return (
            select(i.load_id, i.load_row, *columns)
            .select_from(inferred.join(self.table, self._key == i.member))
            .where(self._open(number), self.table.c[IS_INFERRED] == 0)
            .order_by(i.load_id, i.load_row)
        )

    def state(self, connection: Connection) -> int | None:
        """Return the time of the dimension table's last change, and lock it until the transaction
        ends. Raises NotThatVersion if the table has changed since the version."""
        name = self.role.dimension.name
        now = connection.scalar(
            select(masters.c.changes).where(masters.c.name == name).with_for_update()
        )
        if None not in (now, self.changes) and now != self.changes:
            raise NotThatVersion
        return now

    # ---- facts in the warehouse

    def fill(self, ledger: Ledger, fact: Table) -> int:
        """Fill in the columns of an app's facts in a table of the warehouse. Return the number of
        these facts. Each transaction leaves facts, ``inferred`` and ledger consistent. Raises
        NotThatVersion if the dimension table was provisioned again after the version."""
        due, done = self._due(ledger.number()).limit(AT_ONCE), 0
        while rows := ledger.run(lambda connection: connection.execute(due).all()):
            loads = defaultdict[int, list[int]](list)
            for load, row in rows:
                loads[load].append(row)
            ledger.run(lambda connection, loads=loads: self._fill(connection, fact, loads))  # type: ignore[misc]
            done += len(rows)
        return done

    def _fill(self, connection: Connection, fact: Table, loads: Mapping[int, list[int]]) -> None:
        """Fill in some facts, given by load. The first statement is a change, so that SQLite takes
        its lock before it reads."""
        i, f, d = inferred.c, fact.c, self.table.c
        values = {
            a: select(d[m]).where(self._key == f[self.role.surrogate_key]).scalar_subquery()
            for a, m in self.added(f.keys()).items()
        }
        for load, rows in loads.items():
            self._mark(connection, i.load_id == load, i.load_row.in_(rows))
            if not values:
                continue
            mine = and_(f.load_id == load, f.load_row.in_(rows))
            before = self._checksum(connection, fact, mine)
            connection.execute(update(fact).where(mine).values(values))
            self._add(connection, load, self._checksum(connection, fact, mine) - before)
        # read last, and under a lock: the facts contain everything that was provisioned until then
        self.state(connection)

    def _mark(self, connection: Connection, *which: ColumnElement[bool]) -> int:
        """Mark rows of ``inferred`` in this role as filled in. Return their number."""
        mark = update(inferred).where(*which, inferred.c.role == self.role.name)
        return connection.execute(mark.values(version=self.version, filled_at=utc_now())).rowcount

    def _add(self, connection: Connection, load: int, more: int) -> None:
        """Add `more` to the checksum of a load's facts in the ledger."""
        b, of_load = load_batches.c, load_batches.c.load_id == load
        known = connection.scalar(select(b.facts_checksum).where(of_load)) or 0
        connection.execute(
            update(load_batches).where(of_load).values(facts_checksum=signed(known + more))
        )

    def _checksum(self, connection: Connection, fact: Table, which: ColumnElement[bool]) -> int:
        schema = pa.schema([f for f in arrow_schema(fact) if f.name not in ROW_KEY])
        rows = select(*(fact.c[name] for name in schema.names)).where(which)
        return sum(checksum(batch) for batch in fetch(connection, rows, schema))

    # ---- facts elsewhere

    def loads(self, connection: Connection, number: int) -> set[int]:
        """Return the load_ids of the facts to fill in."""
        load = inferred.c.load_id
        query = self._due(number).with_only_columns(load).order_by(None).distinct()
        return set(connection.scalars(query))

    def values(
        self,
        connection: Connection,
        number: int,
        loads: AbstractSet[int],
        facts: pa.RecordBatch,
        added: Mapping[str, str],
    ) -> tuple[np.ndarray, pa.Table]:
        """Find those of some facts that are to be filled in. Return their positions, int64[k], and
        the values of their columns. loads: see ``loads``; facts: with load_id and load_row; added:
        see ``added``. Memory grows only with the number of given facts."""
        i, d = inferred.c, self.table.c
        columns = [self.schema.field(m).with_name(a) for a, m in added.items()]
        query = self._due(number, *(d[m].label(a) for a, m in added.items()))
        of, rows = (pc.fill_null(facts[name], -1).to_numpy() for name in ROW_KEY)
        at, found = [np.empty(0, np.int64)], list[pa.RecordBatch]()
        for load in loads & {*np.unique(of).tolist()}:
            mine = np.flatnonzero(of == load)
            some = i.load_row.between(int(rows[mine].min()), int(rows[mine].max()))
            these = query.where(i.load_id == load, some)
            for part in fetch(connection, these, pa.schema([*ORIGINS, *columns])):
                _, here, there = np.intersect1d(rows[mine], part.column(1), return_indices=True)
                at.append(mine[here])
                found.append(part.select([*added]).take(pa.array(there)))
        return np.concatenate(at), pa.Table.from_batches(found, pa.schema(columns))

    def record(
        self, connection: Connection, number: int, state: int | None, more: Mapping[int, int]
    ) -> int:
        """Record that all facts whose members have rows are filled in. Return their number. state:
        what ``state`` has returned before they were looked for; more: by load, what the checksum of
        its facts grows by. Raises NotThatVersion if the dimension table has changed since."""
        known = select(self._key).where(self.table.c[IS_INFERRED] == 0)
        facts = self._mark(connection, self._open(number), inferred.c.member.in_(known))
        for load, growth in more.items():
            self._add(connection, load, growth)
        if self.state(connection) != state:
            raise NotThatVersion
        return facts


def is_open(number: int) -> ColumnElement[bool]:
    """Return the condition for an app's rows of ``inferred`` whose facts are not filled in. number:
    the app's number in its load_ids."""
    return and_(inferred.c.load_id.between(*app_loads(number)), inferred.c.version.is_(None))


def count_filled(connection: Connection, number: int) -> int:
    """Return the number of an app's facts that have been filled in, once for each role."""
    mine = and_(inferred.c.load_id.between(*app_loads(number)), inferred.c.version.is_not(None))
    return connection.scalar(select(func.count()).select_from(inferred).where(mine)) or 0


def oldest_filled(connection: Connection, number: int, since: datetime) -> Position | None:
    """Return the position of an app's first load with facts that were filled in since a time, UTC;
    None if there is none."""
    b, i = load_batches.c, inferred.c
    query = (
        select(b.batch, b.drain)
        .join(inferred, i.load_id == b.load_id)
        .where(i.load_id.between(*app_loads(number)), i.filled_at >= since)
        .order_by(i.load_id)
        .limit(1)
    )
    row = connection.execute(query).first()
    return (row.batch, row.drain) if row else None


def open_roles(connection: Connection, number: int) -> set[str]:
    """Return the roles in which facts of an app have inferred members and are not filled in."""
    role = inferred.c.role
    return set(connection.scalars(select(role).where(is_open(number)).group_by(role)))


def count_open(connection: Connection, number: int) -> int:
    """Return the number of an app's facts that have an inferred member and are not filled in. A
    fact counts once for each such role."""
    query = select(func.count()).select_from(inferred).where(is_open(number))
    return connection.scalar(query) or 0
