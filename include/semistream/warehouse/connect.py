"""Engines on the warehouse."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, ExceptionContext, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from semistream.errors import ConfigError
from semistream.warehouse import sqlite_library

HANDLE = "sqlite3 *"  # of a connection to SQLite, in its ``info``; None where it is not known
BUSY_SECONDS = 120  # how long a writer waits for another one's transaction
READ_ONLY = frozenset({1290, 1836})  # MySQL's errors of a server that may not write


def connect(url: str) -> Engine:
    """An engine on a warehouse URL (``sqlite:///…`` or ``mysql+pymysql://…``); it opens no
    connection yet.

    What it does on a full disk raises OSError, with SQLite's file. Raises ConfigError for any other
    URL.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        shown = re.sub(":[^:]*@", ":***@", url)  # what may be a password
        raise ConfigError("WAREHOUSE_URL", "must be a database URL", shown,
                          "For instance sqlite:///var/warehouse.db.") from None
    family = parsed.get_backend_name()
    if family == "sqlite":
        return _sqlite(parsed)
    if family in ("mysql", "mariadb"):
        return _mysql(parsed.set(drivername=f"{family}+pymysql"))
    raise ConfigError("WAREHOUSE_URL", "must start with sqlite:/// or mysql+pymysql://",
                      parsed.render_as_string(), "The warehouse is SQLite or MySQL.")


def _mysql(url: URL) -> Engine:
    engine = create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True,
                           connect_args={"local_infile": True, "charset": "utf8mb4",
                                         "init_command": "SET time_zone = '+00:00'"})

    @event.listens_for(engine, "handle_error")
    def _lost(context: ExceptionContext) -> None:
        """A server that is no longer the one to write to, after a failover, is as good as gone:
        connect anew."""
        if (arguments := getattr(context.original_exception, "args",
                                 ())) and arguments[0] in READ_ONLY:
            context.is_disconnect = True

    return engine


def _sqlite(url: URL) -> Engine:
    if url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    sqlite_library.library()  # so that handles are known
    # IMMEDIATE: a transaction that is going to write waits for its turn at BEGIN; one that started
    # reading could only fail.
    engine = create_engine(url,
                           connect_args={"timeout": BUSY_SECONDS, "isolation_level": "IMMEDIATE"})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        record.info[HANDLE] = sqlite_library.newest_handle()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -32768")  # KiB

    @event.listens_for(engine, "handle_error")
    def _full(context: ExceptionContext) -> None:
        say_where(context.original_exception, url)

    return engine


def say_where(error: BaseException, url: URL) -> None:
    """Raise OSError with SQLite's file when that is what had no room left."""
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), url.database)
