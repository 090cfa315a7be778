"""A clear error for a table that exceeds a limit of its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from semistream.errors import ConfigError
from semistream.warehouse.dialects import system_of


@contextmanager
def said(of: Engine | Connection, table: str) -> Iterator[None]:
    """Raise ConfigError in place of the error of a database that has no room for a table's columns
    or for one of its rows."""
    try:
        yield
    except DBAPIError as e:
        if (refusal := system_of(of).refusal(e.orig)) is None:
            raise
        constraint, remedy = refusal
        raise ConfigError(table, constraint, str(e.orig), remedy) from None
