"""The removal of an app's rows and of everything that the warehouse knows about the app."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import ColumnElement, Connection, Table, func, inspect, select

from semistream.errors import ConfigError
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.schema import (
    inferred,
    load_batches,
    load_commits,
    load_files,
    load_inputs,
    load_rejections,
    propagated,
    quality_failures,
    quality_runs,
    unmatched,
)
from semistream.warehouse.tables import existing_table, fact_tables

LEDGER = (
    unmatched,
    inferred,
    propagated,
    load_rejections,
    load_inputs,
    load_batches,
    load_commits,
    load_files,
    quality_failures,
    quality_runs,
)


def rows_of(connection: Connection, app: str, holds: Callable[[str], bool]) -> dict[str, int]:
    """Count the rows of each table that belong to an app. Tables without such rows are left out.

    holds: a function that returns whether a sink has rows of the app outside the warehouse. Raises
    ConfigError if one has, because this module does not change those rows.
    """
    counts = {
        table.name: connection.scalar(select(func.count()).select_from(table).where(mine)) or 0
        for table, mine in _rows(connection, app, holds)
    }
    return {name: count for name, count in counts.items() if count}


def remove_rows(connection: Connection, app: str, holds: Callable[[str], bool]) -> None:
    """Delete an app's rows within the connection's transaction. Raises ConfigError like
    ``rows_of``.

    The app keeps its number in ``load_apps``, so that the rows of another app cannot be mistaken
    for its rows.
    """
    for table, mine in _rows(connection, app, holds):
        connection.execute(table.delete().where(mine))


def _rows(
    connection: Connection, app: str, holds: Callable[[str], bool]
) -> list[tuple[Table, ColumnElement[bool]]]:
    """Return the tables that may have rows of the app, each with the condition that selects these
    rows."""
    c = load_commits.c
    for sink in connection.scalars(select(c.sink).where(c.app == app).distinct()).all():
        if holds(sink):
            raise ConfigError(
                "app",
                "must load into the warehouse's tables",
                f"{app}, which has loaded into {sink}",
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
