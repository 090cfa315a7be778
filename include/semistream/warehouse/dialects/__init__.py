"""The database systems that a warehouse can use. Each has a module, and a line in this registry."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from sqlalchemy import URL, Connection, Dialect, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from semistream.errors import ConfigError
from semistream.warehouse.dialects.mysql import Mysql
from semistream.warehouse.dialects.protocol import System
from semistream.warehouse.dialects.rows import BulkError
from semistream.warehouse.dialects.sqlite import Sqlite

__all__ = [
    "SYSTEMS",
    "BulkError",
    "System",
    "connect",
    "existing",
    "index_options",
    "may_exist",
    "name_length",
    "refusals_as_errors",
    "scheme_of",
    "shared_engine",
    "system_of",
    "table_options",
    "with_variants",
]

SYSTEMS: list[System] = [Sqlite(), Mysql()]
IN_MEMORY = "sqlite://"
_shared = WeakSet[Engine]()  # not those that gave way to others: their connections are closed


def system_of(of: Engine | Connection | Dialect) -> System:
    """Return the system of an engine, a connection or a dialect. SQLAlchemy's default dialect,
    which it uses to show types without a database, counts as SQLite."""
    dialect = of if isinstance(of, Dialect) else of.dialect
    return next((s for s in SYSTEMS if dialect.name in s.names), SYSTEMS[0])


def scheme_of(name: str) -> str:
    """Return the scheme of the URLs of a system that is given by the name of a dialect. A name that
    no system has is returned unchanged."""
    return next((s.url.partition(":")[0] for s in SYSTEMS if name in s.names), name)


def connect(url: str) -> Engine:
    """Return an engine for a warehouse URL; no connection is opened yet.

    On a full disk, its statements raise OSError, which names the database's file if there is one.
    Raises ConfigError for a URL of no known system.
    """
    system, parsed = _parsed(url)
    return system.engine(parsed)


def may_exist(url: str) -> bool:
    """Return whether the database of a URL may exist; see ``System.may_exist``. Raises ConfigError
    for a URL of no known system."""
    system, parsed = _parsed(url)
    return system.may_exist(parsed)


def existing(url: str) -> str:
    """Return a warehouse URL for reading: that of an empty database in memory if there is no
    database yet, so that reading leaves none behind. Raises ConfigError for a URL of no known
    system."""
    return url if may_exist(url) else IN_MEMORY


def _parsed(url: str) -> tuple[System, URL]:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "WAREHOUSE_URL",
            "must be a database URL",
            re.sub(":[^:]*@", ":***@", url),  # hides what may be a password
            "For instance sqlite:///var/warehouse.db.",
        ) from None
    for system in SYSTEMS:
        if parsed.get_backend_name() in system.names:
            return system, parsed
    starts, titles = (
        " or ".join(each) for each in zip(*((s.url, s.title) for s in SYSTEMS), strict=True)
    )
    raise ConfigError(
        "WAREHOUSE_URL",
        f"must start with {starts}",
        parsed.render_as_string(),
        f"The warehouse is {titles}.",
    )


def shared_engine(url: str) -> Engine:
    """Return the engine that this process has for a warehouse URL, like ``connect``. It is closed
    when the process ends: a connection that is open then would leave a -wal file beside SQLite's
    file."""
    return _of_process(url, os.getpid())


@lru_cache(maxsize=4)
def _of_process(url: str, _process: int) -> Engine:
    engine = connect(url)
    _shared.add(engine)
    return engine


@atexit.register
def _close() -> None:
    for engine in list(_shared):
        engine.dispose()


@contextmanager
def refusals_as_errors(of: Engine | Connection, table: str) -> Iterator[None]:
    """Raise ConfigError instead of the error of a database that has no room for a table's columns
    or for one of its rows."""
    try:
        yield
    except DBAPIError as e:
        if (refusal := system_of(of).refusal(e.orig)) is None:
            raise
        constraint, remedy = refusal
        raise ConfigError(table, constraint, str(e.orig), remedy) from None


def table_options(*, clustered: bool = False, numbered: bool = False) -> dict[str, Any]:
    """Return the options of a new table for all systems; see ``System``."""
    return {
        name: value
        for system in SYSTEMS
        for name, value in system.table_options(clustered, numbered).items()
    }


def index_options(long: Collection[str], length: int) -> dict[str, Any]:
    """Return the options of a new index for all systems; see ``System``."""
    return {
        name: value
        for system in SYSTEMS
        for name, value in system.index_options(long, length).items()
    }


def name_length() -> int:
    """Return the largest number of characters that all systems allow in the name of an index."""
    return min(system.name_length for system in SYSTEMS)


def with_variants(kind: Any) -> Any:
    """Return a general column type together with the type that each system uses instead."""
    for system in SYSTEMS:
        if (variant := system.variant(kind)) is not None:
            kind = kind.with_variant(variant, *system.names)
    return kind
