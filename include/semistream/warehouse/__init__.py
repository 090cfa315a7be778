"""The warehouse: dimension, fact and ledger tables on SQLite or MySQL."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Column, DefaultClause, Engine, Table, inspect
from sqlalchemy.exc import DBAPIError

from semistream.warehouse.dialects import connect, existing, shared_engine
from semistream.warehouse.migration import migrate
from semistream.warehouse.schema import metadata
from semistream.warehouse.tables import create_missing

__all__ = ["connect", "create_all", "existing", "migrate", "open_warehouse", "shared_engine"]


@contextmanager
def open_warehouse(url: str) -> Iterator[Engine]:
    """Open an engine on the warehouse. All its tables then exist, in the form that this version
    writes."""
    engine = connect(url)
    try:
        create_all(engine)
        migrate(engine)
        yield engine
    finally:
        engine.dispose()


def create_all(engine: Engine) -> None:
    """Create missing tables of the warehouse, and add columns that tables of an earlier version
    lack.

    Primary keys are not changed here; ``migration`` changes them.
    """
    create_missing(engine, list(metadata.tables.values()))
    for table, column in _lacking(engine):
        try:
            _add(engine, table, column)
        except DBAPIError:
            if (table, column) in _lacking(engine):  # else another process was first
                raise


def _lacking(engine: Engine) -> list[tuple[Table, Column]]:
    found = inspect(engine).get_multi_columns(filter_names=list(metadata.tables))
    return [
        (table, column)
        for (_, name), columns in found.items()
        for table in [metadata.tables[name]]
        for column in table.columns
        if not column.primary_key and column.name not in {c["name"] for c in columns}
    ]


def _add(engine: Engine, table: Table, column: Column) -> None:
    """Add a column. In existing rows it has its default, or null if there is no default."""
    quote, kind = engine.dialect.identifier_preparer.quote, column.type.compile(engine.dialect)
    default = column.server_default
    if isinstance(default, DefaultClause):
        kind += f" NOT NULL DEFAULT {default.arg}"
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"ALTER TABLE {quote(table.name)} ADD COLUMN {quote(column.name)} {kind}"
        )
