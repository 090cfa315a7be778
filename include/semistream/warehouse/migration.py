"""The migration of a warehouse from a former version: its ledger, and the indexes of its tables.
``create_all`` has already added missing columns.

In a former version there is no ``load_inputs``. Instead, ``load_batches`` has columns for the
counts of a load's inputs: master, master_version and state_file, and as JSON texts rejected (by
reason) and sides (of two streams).

SQLite does the migration in one transaction. In MySQL each statement about tables is a separate
transaction. Hence a column is renamed first, so that loads of the former version, which must be
stopped, fail from then on. Then ``load_inputs`` and ``load_rejections`` are filled, in one
transaction. Then the former columns are dropped, the renamed one last. The existing columns show
which steps are done, so that after a crash at any point the next call continues.

New indexes, such as that of ``unmatched`` by key code, are created last. Former rows have no key
code. They are found by a load that examines all open rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

from sqlalchemy import Connection, Engine, Index, MetaData, Row, Table, inspect, select

from semistream.reasons import Reason
from semistream.warehouse.dialects import system_of
from semistream.warehouse.ledger import insert_inputs
from semistream.warehouse.records import InputCounts
from semistream.warehouse.schema import load_batches, load_inputs, load_rejections, unmatched

log = logging.getLogger(__name__)
RENAMED = "former_rejected"
# in the order in which they are dropped
FORMER = ("sides", "master", "master_version", "state_file", RENAMED)
LOADS = 1_000  # read at a time
LOCK = "semistream_migration"


def migrate(engine: Engine) -> None:
    """Migrate a warehouse from a former version to the present one. Return at once if it is up to
    date."""
    with engine.connect() as connection:
        if not _former_columns(connection) and not _lacking_indexes(connection):
            return
    log.warning(
        "%s is of a former version: it gets the form of this one, which may take a while",
        engine.url.render_as_string(),
    )
    with system_of(engine).alone(engine, LOCK) as connection:
        found = _former_columns(connection)
        if "rejected" in found:
            _alter(connection, f"RENAME COLUMN rejected TO {RENAMED}")
            found = _former_columns(connection)
        if found == {*FORMER}:
            _fill(connection)
        for name in FORMER:
            if name in found:
                _alter(connection, f"DROP COLUMN {name}")
        for index in _lacking_indexes(connection):
            index.create(connection)
    log.warning("%s has the form of this version now", engine.url.render_as_string())


def _former_columns(connection: Connection) -> set[str]:
    found = inspect(connection)
    if not found.has_table(load_batches.name):
        return set()
    return {c["name"] for c in found.get_columns(load_batches.name)} & {*FORMER, "rejected"}


def _lacking_indexes(connection: Connection) -> list[Index]:
    """Return the indexes of ``unmatched`` that the existing table lacks."""
    found = inspect(connection)
    if not found.has_table(unmatched.name):
        return []
    known = {index["name"] for index in found.get_indexes(unmatched.name)}
    return [i for i in sorted(unmatched.indexes, key=lambda i: str(i.name)) if i.name not in known]


def _alter(connection: Connection, change: str) -> None:
    connection.exec_driver_sql(f"ALTER TABLE {load_batches.name} {change}")


def _fill(connection: Connection) -> None:
    """Write the inputs of all loads, and how many keys each load has closed. They are committed by
    the next statement about tables."""
    former = Table(load_batches.name, MetaData(), autoload_with=connection)
    connection.execute(load_rejections.delete())
    connection.execute(load_inputs.delete())
    after = -1
    while rows := connection.execute(
        select(former).where(former.c.load_id > after).order_by(former.c.load_id).limit(LOADS)
    ).all():
        insert_inputs(
            connection,
            [
                (row.load_id, number, counts)
                for row in rows
                for number, counts in enumerate(_inputs(row))
            ],
        )
        for row in rows:
            closed = json.loads(row.sides)["left"].get("closed") if row.sides else None
            if closed is not None:
                connection.execute(
                    former.update().where(former.c.load_id == row.load_id).values(closed=closed)
                )
        after = rows[-1].load_id


def _inputs(row: Row) -> Iterator[InputCounts]:
    """Yield the inputs of a load of the former version. They are its master, as a role of the same
    name, or two streams."""
    if not row.sides:
        yield InputCounts(
            row.master,
            row.waiting_before,
            row.rows_read,
            row.matched,
            _reasons(json.loads(row._mapping[RENAMED])),
            row.waiting,
            row.state_file,
            row.master,
            row.master_version,
            0,
            row.cache_hits,
            row.bytes_read,
        )
        return
    for side, of in json.loads(row.sides).items():
        yield InputCounts(
            side,
            of["waiting_before"],
            of["rows_read"],
            of["matched"],
            _reasons(of["rejected"]),
            of["waiting"],
            row.state_file,
            on_disk=of["on_disk"],
        )


def _reasons(counts: dict[str, int]) -> dict[Reason, int]:
    return {Reason(reason): n for reason, n in counts.items()}
