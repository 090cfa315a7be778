"""The migration of a warehouse whose rows name their load by four columns, the former form.

Formerly each row of the fact tables and of ``unmatched`` had the columns app, batch, drain and
partition, and an index on them. The primary key (load_id, load_row) replaces them. A fact table's
other columns and indexes stay as they are.

SQLite does all in one transaction. In MySQL each statement about tables is a transaction of its
own. Hence, for each table: a new table is made beside the former one and filled; both are renamed
in one statement; the former table is read once more, for loads that were committed meanwhile, and
dropped. The existing tables show which steps are done, so that after a crash at any point the next
call goes on. ``load_batches`` comes last: while it has its former columns, or a former table is
left, there is work to do. Loads of the former version must be stopped: they fail as soon as they
find the new tables.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection, Engine, Index, MetaData, Select, Table, func, inspect, select

from semistream.errors import ConfigError
from semistream.warehouse.dialects import system_of
from semistream.warehouse.load_ids import key_of
from semistream.warehouse.schema import load_apps, load_batches, metadata, row_key
from semistream.warehouse.tables import ROW_KEY, existing_table

log = logging.getLogger(__name__)
FORMER_KEY = ("app", "batch", "drain", "partition")
FORMER, NEXT = "_former", "_next"  # suffixes of the table to be dropped and of the new one
LOCK = "semistream_migration"


def migrate(engine: Engine) -> None:
    """Bring tables of a former version into the present form; return at once if they have it.

    Raises ConfigError for a fact table with a column that is named like one of the new key's.
    """
    with engine.connect() as connection:
        if not _is_due(connection):
            return
    log.warning("%s is of a former version: its tables are written anew, which may take a while",
                engine.url.render_as_string())
    system = system_of(engine)
    with system.alone(engine, LOCK) as connection:
        names = [name for name in _tables(connection) if name != load_batches.name]
        for name in [*names, load_batches.name]:
            (_rewrite if system.one_writer else _replace)(connection, name)
    log.warning("%s has the tables of this version now", engine.url.render_as_string())


def _is_due(connection: Connection) -> bool:
    found = inspect(connection)
    former = found.has_table(load_batches.name + FORMER)
    return former or (found.has_table(load_batches.name)
                      and ROW_KEY[0] not in {c["name"]
                                             for c in found.get_columns(load_batches.name)})


def _tables(connection: Connection) -> list[str]:
    """Return the final names of all tables that are in the former form or half-way to the present
    one."""
    found = inspect(connection)
    indexes = {name: {tuple(i["column_names"]) for i in each}
               for (_, name), each in found.get_multi_indexes().items()}
    keyed = [name for name, each in indexes.items() if FORMER_KEY in each
             and not name.endswith((FORMER, NEXT))]
    half_way = [name.removesuffix(FORMER) for name in indexes if name.endswith(FORMER)]
    return sorted({*keyed, *half_way} - {load_batches.name})


# ---- one table


def _rewrite(connection: Connection, name: str) -> None:
    """Replace a table within the connection's transaction. The new indexes are created last,
    because the former table has their names."""
    if (former := _former(connection, name)) is None:
        return
    new = _successor(former, name, name + NEXT)
    indexes, new.indexes = new.indexes, set()
    new.create(connection)
    _number_apps(connection, former)
    connection.execute(new.insert().from_select([c.name for c in new.columns], _rows(former, new)))
    former.drop(connection)
    quote = connection.dialect.identifier_preparer.quote
    connection.exec_driver_sql(f"ALTER TABLE {quote(new.name)} RENAME TO {quote(name)}")
    present = Table(name, MetaData(), *[c._copy() for c in new.columns])
    for index in indexes:
        Index(index.name, *[present.c[c.name] for c in index.columns],
              unique=index.unique).create(connection)


def _replace(connection: Connection, name: str) -> None:
    """Replace a table by a new one made beside it. A crash after any step loses nothing."""
    quote, inspector = connection.dialect.identifier_preparer.quote, inspect(connection)
    if not inspector.has_table(name + FORMER):
        if (former := _former(connection, name)) is None:
            return
        new = _successor(former, name, name + NEXT)
        new.drop(connection, checkfirst=True)
        new.create(connection)
        _fill(connection, former, new)
        connection.exec_driver_sql(f"RENAME TABLE {quote(name)} TO {quote(name + FORMER)}, "
                                   f"{quote(new.name)} TO {quote(name)}")
        connection.commit()
    former = existing_table(connection, name + FORMER)
    _fill(connection, former, existing_table(connection, name))
    former.drop(connection)
    connection.commit()


def _former(connection: Connection, name: str) -> Table | None:
    """Return the existing table if it has the former key, else None."""
    table = existing_table(connection, name)
    return (table if set(FORMER_KEY) <= set(table.c.keys())
            and ROW_KEY[0] not in table.primary_key.columns else None)


def _fill(connection: Connection, former: Table, new: Table) -> None:
    """Copy the loads that the new table does not have, in one transaction."""
    _number_apps(connection, former)
    connection.execute(new.insert().from_select([c.name for c in new.columns], _rows(former, new)))
    connection.commit()


def _number_apps(connection: Connection, former: Table) -> None:
    """Give a number to each app in the table that has none."""
    missing = select(former.c.app).distinct().where(
        former.c.app.not_in(select(load_apps.c.app))).order_by(former.c.app)
    for app in connection.scalars(missing).all():
        connection.execute(load_apps.insert().values(app=app))


def _successor(former: Table, name: str, beside: str) -> Table:
    """Return the table of the present form that will replace ``former`` under the name ``name``;
    until then it is named ``beside``."""
    if name in metadata.tables:
        return metadata.tables[name].to_metadata(MetaData(), name=beside)
    kept = [c for c in former.columns if c.name not in FORMER_KEY]
    if taken := [c.name for c in kept if c.name.lower() in ROW_KEY]:
        raise ConfigError(f"{name}.{taken[0]}", "must not have the name of a row's key", taken[0],
                          f"Rename that column of the table {name}, and in the source.")
    table = Table(beside, MetaData(), *[c._copy() for c in kept], *row_key(),
                  sqlite_with_rowid=False, mysql_engine="InnoDB", mysql_charset="utf8mb4")
    for index in former.indexes:
        columns = [c.name for c in index.columns]
        if not set(columns) & set(FORMER_KEY):
            Index(index.name, *[table.c[c] for c in columns], unique=index.unique)
    return table


def _rows(former: Table, new: Table) -> Select:
    """Select the former table's rows in the columns of the new table, except loads that the new
    table already has."""
    f = former.c
    key = key_of(load_apps.c.number, f.batch, f.drain, f.partition).label(ROW_KEY[0])
    row = (func.row_number().over(partition_by=key) - 1).label(ROW_KEY[1])
    columns = [{ROW_KEY[0]: key, ROW_KEY[1]: row}[c.name] if c.name in ROW_KEY else f[c.name]
               for c in new.columns]
    there = select(new.c.load_id).distinct()
    return select(*columns).select_from(
        former.join(load_apps, load_apps.c.app == f.app)).where(key.not_in(there)).order_by(key)
