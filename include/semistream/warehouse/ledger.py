"""The load ledger: what has been loaded, exactly once.

``load_batches``: one row per (app, batch, drain, partition), written in the very transaction that writes that partition's rows.
Whoever commits it first has loaded the partition; every later attempt finds the row and writes nothing.
``load_commits``: one row per (app, batch, drain) once all its partitions are in. A drain (drain = 1) finishes the tuples that
waited after that batch, reads no source, and exists only where something waited.

``load_commits.source_offsets`` is JSON, and tells which part of the source a batch is, for an independent count of its tuples::

    {"format": "parquet", "offsets": [{"logOffset": 4}], "start": [{"logOffset": 3}], "files": ["/data/stream/part-4.parquet"]}
    {"format": "zipf",    "offsets": [{"id": 200000}],   "start": [{"id": 100000}]}       # ids start < id <= end
    {"format": "outbox",  "offsets": [{"id": 7311}],     "start": [{"id": 7200}]}         # outbox ids start < id <= end
    {"format": "kafka",   "offsets": [{"topic": {"0": 42}}], "start": [{"topic": {"0": 17}}]}   # start <= offset < end

``start`` holds where the batch before ended (null: the source's beginning), one element a source, as Spark's offset log has it.
A drain's is ``{}``. ``files`` are plain paths, or URIs where they are not local.

Every committed partition satisfies waiting_before + rows_read = matched + unmatched + waiting. Tuples that could not be parsed
(reason ``unparsable``), or whose id is too long for an index (``long_id``), are part of rows_read and of unmatched. Rows written
for a partition: output_rows into the fact table (for a left join that includes unmatched tuples, except those two kinds),
``unmatched`` into the table of that name.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
from sqlalchemy import Connection, Engine, Row, func, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.schema import load_batches, load_commits, unmatched

T = TypeVar("T")
# Deadlock, lock wait timeout; server gone, lost, shutting down, not reachable, too many connections; a statement ended by an
# administrator (1317) or by a limit on its time (1969 MariaDB's, 3024 MySQL's).
MYSQL_TRANSIENT = frozenset({1213, 1205, 2006, 2013, 2014, 2055, 1053, 1927, 1080, 1040, 2002, 2003, 0, 1317, 1969, 3024})
SQLITE_TRANSIENT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def is_transient(error: DBAPIError) -> bool:
    """Whether the same transaction may succeed when it is tried again."""
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in SQLITE_TRANSIENT  # the rest of an extended code tells why
    code = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return code in MYSQL_TRANSIENT


def retrying(work: Callable[[], T], seconds: float) -> T:
    """The result of ``work``, run again for at most so many seconds: after a deadlock or a lock timeout, when a connection was
    lost or leads to a server that may not write (any more), or when its statement was ended."""
    deadline, pause = time.monotonic() + seconds, 0.05
    while True:
        try:
            return work()
        except DBAPIError as e:
            if not is_transient(e) or time.monotonic() + pause > deadline:
                raise
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 2.0)


class Ledger:
    """One app's ledger. retry: seconds for which each transaction is tried again when the database is lost or locked."""

    def __init__(self, engine: Engine, app: str, retry: float = 60.0):
        self.engine, self.app, self.retry = engine, app, retry

    def run(self, work: Callable[[Connection], T]) -> T:
        """``work`` in one transaction."""
        def once() -> T:
            with self.engine.begin() as connection:
                return work(connection)
        return retrying(once, self.retry)

    def partition(self, batch: int, drain: int, partition: int) -> dict[str, Any] | None:
        """The row of one partition, or None while it is not loaded."""
        rows = self.run(lambda c: c.execute(select(load_batches).where(*self._load(load_batches, batch, drain),
                                                                       load_batches.c.partition == partition)).all())
        return _entry(rows[0]) if rows else None

    def partitions(self, batch: int, drain: int) -> list[dict[str, Any]]:
        """The rows of a batch, by partition."""
        query = select(load_batches).where(*self._load(load_batches, batch, drain)).order_by(load_batches.c.partition)
        return [_entry(row) for row in self.run(lambda c: c.execute(query).all())]

    def last(self) -> tuple[int, int] | None:
        """(batch, drain) of the newest commit."""
        t = load_commits
        query = select(t.c.batch, t.c.drain).where(t.c.app == self.app).order_by(t.c.batch.desc(), t.c.drain.desc()).limit(1)
        row = self.run(lambda c: c.execute(query).first())
        return (row[0], row[1]) if row else None

    def is_committed(self, batch: int, drain: int) -> bool:
        query = select(func.count()).select_from(load_commits).where(*self._load(load_commits, batch, drain))
        return bool(self.run(lambda c: c.execute(query).scalar()))

    def load(self, entry: dict[str, Any], write: Callable[[Connection], None]) -> dict[str, Any]:
        """Write one partition and its ledger row in one transaction, unless it is loaded already; gives the row that counts.

        The ledger row goes first: its unique key makes a second attempt at the same time wait, then fail.
        """
        def work(connection: Connection) -> None:
            connection.execute(load_batches.insert(), _row(entry))
            write(connection)

        try:
            self.run(work)
            return entry
        except IntegrityError:
            winner = self.partition(entry["batch"], entry["drain"], entry["partition"])
            if winner is None:  # it was something else that was not unique
                raise
            return winner

    def commit(self, commit: dict[str, Any], entries: Sequence[dict[str, Any]] = (), rejected: pa.Table | None = None) -> None:
        """Say that all partitions of a batch are in; again is harmless.

        entries, rejected: partition rows and unmatched tuples that no task has written, for a sink outside the warehouse.
        """
        def work(connection: Connection) -> None:
            connection.execute(load_commits.insert(), {**commit, "committed_at": utc_now()})
            if entries:
                connection.execute(load_batches.insert(), [_row(e) for e in entries])
            if rejected is not None:
                bulk_insert(connection, unmatched, rejected)

        try:
            self.run(work)
        except IntegrityError:
            if not self.is_committed(commit["batch"], commit["drain"]):
                raise

    def _load(self, table: Any, batch: int, drain: int) -> tuple[Any, ...]:
        return table.c.app == self.app, table.c.batch == batch, table.c.drain == drain


def utc_now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "memory": json.dumps(entry["memory"]), "rejected": json.dumps(entry["rejected"]), "committed_at": utc_now()}


def _entry(row: Row[Any]) -> dict[str, Any]:
    values = dict(row._mapping)
    del values["committed_at"]
    return {**values, "memory": json.loads(values["memory"]), "rejected": json.loads(values["rejected"])}
