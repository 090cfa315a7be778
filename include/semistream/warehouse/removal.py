"""The removal of an app's rows and of everything that the warehouse knows about the app."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Table, func, inspect, select
from sqlalchemy.sql import ColumnElement

from semistream.errors import ConfigError
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.schema import (
    load_batches,
    load_commits,
    load_files,
    load_inputs,
    load_rejections,
    propagated,
    quality_runs,
    unmatched,
)
from semistream.warehouse.tables import existing_table, fact_tables

LEDGER = (
    unmatched,
    propagated,
    load_rejections,
    load_inputs,
    load_batches,
    load_commits,
    load_files,
    quality_runs,
)


def rows_of(connection: Connection, app: str, is_gone: Callable[[str], bool]) -> dict[str, int]:
    """Count the rows of each table that belong to an app; tables without any are left out.

    is_gone: tells whether the target of another sink no longer exists. Raises ConfigError if the
    app has loaded into one that exists: this does not change it.
    """
    counts = {
        table.name: connection.scalar(select(func.count()).select_from(table).where(mine)) or 0
        for table, mine in _rows(connection, app, is_gone)
    }
    return {name: count for name, count in counts.items() if count}


def remove_rows(connection: Connection, app: str, is_gone: Callable[[str], bool]) -> None:
    """Delete an app's rows within the connection's transaction. Raises ConfigError as ``rows_of``
    does.

    The app keeps its number in ``load_apps``, so that no other app's rows can be mistaken for its
    own.
    """
    for table, mine in _rows(connection, app, is_gone):
        connection.execute(table.delete().where(mine))


def _rows(
    connection: Connection, app: str, is_gone: Callable[[str], bool]
) -> list[tuple[Table, ColumnElement[bool]]]:
    """Return the tables that may have rows of the app, each with the condition that selects these
    rows."""
    c = load_commits.c
    others = select(c.sink).where(c.app == app, c.sink != "sql").distinct()
    for setting in connection.scalars(others).all():
        if not is_gone(setting):
            raise ConfigError(
                "app",
                "must load into the warehouse's tables",
                f"{app}, which has loaded into {setting}",
                "Delete that table or directory and do this again, or load into another "
                "one, under another --app name.",
            )
    # Also tables without a commit of the app: a crash may have left a part of its first batch.
    tables = [
        *(existing_table(connection, name) for name in fact_tables(inspect(connection))),
        *LEDGER,
    ]
    number = app_number(connection, app) or 0
    return [
        (t, t.c.app == app if "app" in t.c else t.c.load_id.between(*app_loads(number)))
        for t in tables
    ]
