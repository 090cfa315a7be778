"""The facts with an inferred member of a dimension, and the completion of their columns.

If no row of a dimension has a tuple's key, the tuple can still become a fact at once, in a role
with ``late: infer``. Its surrogate key is that of a member that was created for it. The member's
columns are null, and so are the columns that the fact copies. ``inferred`` has a row for each such
fact and role, written in the transaction of the fact's load.

When provisioning brings the member's row, the member is filled in and keeps its surrogate key. Each
app then fills in the columns of its facts from the dimension table, as soon as the app uses a
version that has the row. This changes facts of former loads. Their checksums in the ledger change
in the same transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, Table, and_, func, select, update

from semistream.warehouse.bulk import fetch
from semistream.warehouse.checksum import checksum, signed
from semistream.warehouse.ledger import Ledger, utc_now
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.resolution import AT_ONCE
from semistream.warehouse.schema import inferred, load_batches, masters
from semistream.warehouse.tables import IS_INFERRED, ROW_KEY, arrow_schema

# of a load's facts with inferred members: the number of the fact among the load's, the role, and
# the member's surrogate key
INFERRED = pa.schema([("load_row", pa.int32()), ("role", pa.string()), ("member", pa.int64())])


class NotThatVersion(Exception):
    """The dimension table is not in the state of the version from which facts are to be filled
    in."""


@dataclass(frozen=True)
class Filling:
    """The completion of facts whose inferred members have got rows in a dimension.

    dimension: the dimension's name; surrogate: the name of the surrogate key in the dimension's
    table; fact_key: the name of the same key in the fact table; added: fact columns, each with its
    dimension column; version: the dimension's version that the facts get; changes: the value of
    ``changes`` in ``masters`` when the version was published, None if unknown.
    """

    role: str
    dimension: str
    table: Table
    surrogate: str
    fact: Table
    fact_key: str
    added: Mapping[str, str]
    version: str
    changes: int | None

    def fill(self, ledger: Ledger) -> int:
        """Fill in the columns of an app's facts whose members have been filled in. Return the
        number of these facts. Each transaction leaves facts, ``inferred`` and ledger consistent.
        Raises NotThatVersion if the dimension table was provisioned again after the version."""
        i, d, done = inferred.c, self.table.c, 0
        due = (
            select(i.load_id, i.load_row)
            .join(self.table, d[self.surrogate] == i.member)
            .where(is_open(ledger.number()), i.role == self.role, d[IS_INFERRED] == 0)
            .order_by(i.load_id, i.load_row)
            .limit(AT_ONCE)
        )
        while rows := ledger.run(lambda connection: connection.execute(due).all()):
            loads = defaultdict[int, list[int]](list)
            for load, row in rows:
                loads[load].append(row)
            ledger.run(lambda connection, loads=loads: self._fill(connection, loads))  # type: ignore[misc]
            done += len(rows)
        return done

    def _fill(self, connection: Connection, loads: Mapping[int, list[int]]) -> None:
        """Fill in some facts, given by load. The first statement is a change, so that SQLite takes
        its lock before it reads."""
        b, i, f, d = load_batches.c, inferred.c, self.fact.c, self.table.c
        values = {
            a: select(d[m]).where(d[self.surrogate] == f[self.fact_key]).scalar_subquery()
            for a, m in self.added.items()
        }
        for load, rows in loads.items():
            connection.execute(
                update(inferred)
                .where(i.load_id == load, i.load_row.in_(rows), i.role == self.role)
                .values(version=self.version, filled_at=utc_now())
            )
            if not values:
                continue
            mine = and_(f.load_id == load, f.load_row.in_(rows))
            before = self._checksum(connection, mine)
            connection.execute(update(self.fact).where(mine).values(values))
            more = self._checksum(connection, mine) - before
            of_load = b.load_id == load
            known = connection.scalar(select(b.facts_checksum).where(of_load)) or 0
            connection.execute(
                update(load_batches).where(of_load).values(facts_checksum=signed(known + more))
            )
        # read last, and under a lock: the facts contain everything that was provisioned until then
        now = connection.scalar(
            select(masters.c.changes).where(masters.c.name == self.dimension).with_for_update()
        )
        if None not in (now, self.changes) and now != self.changes:
            raise NotThatVersion

    def _checksum(self, connection: Connection, which: ColumnElement[bool]) -> int:
        schema = pa.schema([f for f in arrow_schema(self.fact) if f.name not in ROW_KEY])
        rows = select(*(self.fact.c[name] for name in schema.names)).where(which)
        return sum(checksum(batch) for batch in fetch(connection, rows, schema))


def is_open(number: int) -> ColumnElement[bool]:
    """Return the condition for an app's rows of ``inferred`` whose facts are not filled in. number:
    the app's number in its load_ids."""
    return and_(inferred.c.load_id.between(*app_loads(number)), inferred.c.version.is_(None))


def open_roles(connection: Connection, number: int) -> set[str]:
    """Return the roles in which facts of an app have inferred members and are not filled in."""
    role = inferred.c.role
    return set(connection.scalars(select(role).where(is_open(number)).group_by(role)))


def count_open(connection: Connection, number: int) -> int:
    """Return the number of an app's facts that have an inferred member and are not filled in. A
    fact counts once for each such role."""
    query = select(func.count()).select_from(inferred).where(is_open(number))
    return connection.scalar(query) or 0
