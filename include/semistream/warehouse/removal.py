"""An app's rows and everything that the warehouse knows of it, taken out again."""

from __future__ import annotations

from sqlalchemy import Connection, Table, func, inspect, select

from semistream.errors import ConfigError
from semistream.warehouse.schema import load_batches, load_commits, load_files, quality_runs, unmatched
from semistream.warehouse.tables import existing_table

LEDGER = (unmatched, load_batches, load_commits, load_files, quality_runs)


def rows_of(connection: Connection, app: str) -> dict[str, int]:
    """How many rows of each table are an app's; tables without any are left out.

    Raises ConfigError where the app has loaded into Delta tables, which this does not change.
    """
    counts = {t.name: connection.scalar(select(func.count()).select_from(t).where(t.c.app == app)) or 0
              for t in _tables(connection, app)}
    return {name: count for name, count in counts.items() if count}


def remove_rows(connection: Connection, app: str) -> None:
    """Delete them, as a part of the connection's transaction. Raises ConfigError as ``rows_of``."""
    for table in _tables(connection, app):
        connection.execute(table.delete().where(table.c.app == app))


def _tables(connection: Connection, app: str) -> list[Table]:
    c = load_commits.c
    loads = connection.execute(select(c.fact_table, c.sink).where(c.app == app).distinct()).all()
    delta = next((sink for _, sink in loads if sink != "sql"), None)
    if delta is not None:
        raise ConfigError("app", "must load into the warehouse's tables", f"{app}, which has loaded into {delta}",
                          "Delete that Delta table, or load into another one, under another --app name.")
    there = inspect(connection)
    return [*(existing_table(connection, name) for name in sorted({fact for fact, _ in loads}) if there.has_table(name)), *LEDGER]
