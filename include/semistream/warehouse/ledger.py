"""The load ledger: a record of what has been loaded, exactly once.

``load_batches``: one row per (app, batch, drain, partition), written in the same transaction as
that partition's rows, under the same ``load_id``, which is computed from these four (see
``load_ids``). Whoever commits it first has loaded the partition; every later attempt finds the row
and writes nothing. ``load_commits``: one row per (app, batch, drain) once all its partitions are
loaded. A drain (drain = 1) finishes the tuples that waited after that batch, reads no source, and
exists only where tuples waited.

``load_commits.source_offsets`` is JSON. It says which part of the source a batch is, for an
independent count of its tuples::

    # files: see load_files
    {"format": "parquet", "offsets": [{"logOffset": 4}], "start": [{"logOffset": 3}], "files": 2}
    # ids start < id <= end
    {"format": "zipf", "offsets": [{"id": 200000}], "start": [{"id": 100000}]}
    # ids of the outbox, start < id <= end
    {"format": "outbox", "offsets": [{"id": 7311}], "start": [{"id": 7200}]}
    # start <= offset < end
    {"format": "kafka", "offsets": [{"topic": {"0": 42}}], "start": [{"topic": {"0": 17}}]}

``start`` is where the batch before ended (null: the source's beginning), as in Spark's offset log.
A drain has ``{}``. A batch of two streams has ``{"left": …, "right": …}``, each of them as above.
``files`` is the number of files (an earlier version stored their paths). ``load_files`` names the
files, with size and time as they were when the batch began. The names of files that are gone from
the source are deleted there by and by.

Every committed partition satisfies waiting_before + rows_read = matched + unmatched + waiting.
Tuples that could not be parsed (reason ``unparsable``), or whose id is too long for an index
(``long_id``), are part of rows_read and of unmatched. Rows written for a partition: output_rows
into the fact table (for a left join that includes unmatched tuples, except those two kinds),
``unmatched`` into the table of that name.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from sqlalchemy import (
    Connection,
    Delete,
    Engine,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from semistream.config import SIDES
from semistream.data_files import DataFile
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.dialects import SYSTEMS
from semistream.warehouse.load_ids import first_load, last_load, load_id
from semistream.warehouse.schema import (
    load_apps,
    load_batches,
    load_commits,
    load_files,
    propagated,
    unmatched,
)

T = TypeVar("T")
FILES_AT_ONCE = 10_000  # of the source, checked by one query


def retrying(work: Callable[[], T], seconds: float) -> T:
    """Return the result of ``work``. It is run again, for at most so many seconds, after a deadlock
    or a lock timeout, when a connection was lost or leads to a server that is read-only, or when
    its statement was ended."""
    attempts = Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, DBAPIError) and (
            e.connection_invalidated or any(s.is_transient(e.orig) for s in SYSTEMS))),
        reraise=True, wait=wait_random_exponential(0.1, max=3), stop=stop_before_delay(seconds))
    return attempts(work)


def parts_of(offsets: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ``source_offsets`` of each stream: one, or the left and the right."""
    return [offsets[side] for side in ("left", "right")] if "left" in offsets else [offsets]


class Ledger:
    """The ledger of one app. retry: seconds for which each transaction is tried again when the
    database is unreachable or locked."""

    def __init__(self, engine: Engine, app: str, retry: float = 60.0):
        self.engine, self.app, self.retry = engine, app, retry

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction and return its result."""
        def once() -> T:
            with self.engine.begin() as connection:
                return work(connection)
        return retrying(once, self.retry)

    def number(self) -> int:
        """Return the app's number in its load_ids. The first call assigns it."""
        def once(connection: Connection) -> int:
            if app_number(connection, self.app) is None:
                connection.execute(load_apps.insert().values(app=self.app))
            return app_number(connection, self.app) or 0

        try:
            return self.run(once)
        except IntegrityError:  # another process was first
            return self.run(once)

    def load_id(self, load: Mapping[str, Any]) -> int:
        """Return the key of the load with this batch, drain and partition."""
        return load_id(self.number(), load["batch"], load["drain"], load["partition"])

    def partition(self, batch: int, drain: int, partition: int) -> dict[str, Any] | None:
        """Return the row of one partition, or None if it is not loaded."""
        rows = self.run(lambda c: c.execute(select(load_batches).where(
            *self._load(load_batches, batch, drain), load_batches.c.partition == partition)).all())
        return _entry(rows[0]) if rows else None

    def partitions(self, batch: int, drain: int) -> list[dict[str, Any]]:
        """Return the rows of a batch, ordered by partition."""
        query = select(load_batches).where(
            *self._load(load_batches, batch, drain)).order_by(load_batches.c.partition)
        return [_entry(row) for row in self.run(lambda c: c.execute(query).all())]

    def last(self) -> tuple[int, int] | None:
        """Return (batch, drain) of the newest commit, or None if there is none."""
        t = load_commits
        query = select(t.c.batch, t.c.drain).where(t.c.app == self.app).order_by(
            t.c.batch.desc(), t.c.drain.desc()).limit(1)
        row = self.run(lambda c: c.execute(query).first())
        return (row[0], row[1]) if row else None

    def newest_work(self, sink: str) -> tuple[int, int] | None:
        """Return (batch, drain) of the newest commit through a sink that needed tasks; a batch
        without tuples needs none."""
        c = load_commits.c
        query = select(c.batch, c.drain).where(
            c.app == self.app, c.sink == sink, or_(c.drain == 1, c.rows_read > 0)).order_by(
                c.batch.desc(), c.drain.desc()).limit(1)
        row = self.run(lambda connection: connection.execute(query).first())
        return (row.batch, row.drain) if row else None

    def newest_output(self, sink: str) -> tuple[int, int] | None:
        """Return (load_id, batch) of the newest load that wrote rows of the fact table through a
        sink."""
        b, c = load_batches.c, load_commits.c
        same = and_(c.app == b.app, c.batch == b.batch, c.drain == b.drain)
        query = select(b.load_id, b.batch).join(load_commits, same).where(
            b.app == self.app, b.output_rows > 0, c.sink == sink).order_by(
                b.load_id.desc()).limit(1)
        row = self.run(lambda connection: connection.execute(query).first())
        return (row.load_id, row.batch) if row else None

    def newest_job(self) -> tuple[str, str | None] | None:
        """Return (the fact table, the job as JSON) of the newest commit. The job is None if a
        former version committed it."""
        c = load_commits.c
        query = select(c.fact_table, c.job).where(c.app == self.app).order_by(
            c.batch.desc(), c.drain.desc()).limit(1)
        row = self.run(lambda connection: connection.execute(query).first())
        return (row.fact_table, row.job) if row else None

    def newest_sink(self) -> str | None:
        """Return the ``sink`` setting of the newest commit."""
        c = load_commits.c
        query = select(c.sink).where(c.app == self.app).order_by(
            c.batch.desc(), c.drain.desc()).limit(1)
        return self.run(lambda connection: connection.scalar(query))

    def file_paths(self) -> set[str]:
        """Return the paths of the loaded files that are still recorded."""
        query = select(load_files.c.path).where(load_files.c.app == self.app)
        return self.run(lambda connection: set(connection.scalars(query)))

    def note_checkpoint(self, checkpoint: str) -> None:
        """Record the path of the app's checkpoint, which the proof reads."""
        a = load_apps.c
        number = self.number()
        noted = update(load_apps).where(
            a.number == number, or_(a.checkpoint.is_(None), a.checkpoint != checkpoint)).values(
                checkpoint=checkpoint)
        self.run(lambda connection: connection.execute(noted))

    def others(self, fact_table: str) -> list[str]:
        """Return the other apps that have loaded into a fact table of the warehouse."""
        c = load_commits.c
        query = select(c.app).where(c.fact_table == fact_table, c.sink == "sql",
                                    c.app != self.app).distinct().order_by(c.app)
        return self.run(lambda connection: list(connection.scalars(query)))

    def partition_count(self, batch: int, drain: int) -> int:
        """Return the number of partitions of a commit."""
        query = select(load_commits.c.partitions).where(*self._load(load_commits, batch, drain))
        return self.run(lambda c: c.execute(query).scalar_one())

    def is_committed(self, batch: int, drain: int) -> bool:
        query = select(func.count()).select_from(load_commits).where(
            *self._load(load_commits, batch, drain))
        return bool(self.run(lambda c: c.execute(query).scalar()))

    def output_rows(self) -> int:
        """Return the number of rows that the app has written to the fact table."""
        query = select(func.sum(load_batches.c.output_rows)).where(load_batches.c.app == self.app)
        return int(self.run(lambda c: c.scalar(query)) or 0)

    def key_sketches(self, most: int) -> list[bytes]:
        """Return the key sketches of the app's latest loads that kept one, at most so many."""
        b = load_batches.c
        query = select(b.key_sketch).where(b.app == self.app, b.key_sketch.is_not(None)).order_by(
            b.batch.desc(), b.drain.desc()).limit(most)
        return self.run(lambda c: list(c.scalars(query)))

    def load(self, entry: dict[str, Any], write: Callable[[Connection], None]) -> dict[str, Any]:
        """Write one partition and its ledger row in one transaction, unless the partition is
        already loaded. Return the ledger row that is valid.

        The ledger row is written first: its unique key makes a second attempt at the same time
        wait, then fail.
        """
        row = _row(self.number(), entry)

        def work(connection: Connection) -> None:
            connection.execute(load_batches.insert(), row)
            write(connection)

        try:
            self.run(work)
            return entry
        except IntegrityError:
            winner = self.partition(entry["batch"], entry["drain"], entry["partition"])
            if winner is None:  # another unique key was violated
                raise
            return winner

    @staticmethod
    def note_closed(connection: Connection, load: int, sides: dict[str, dict[str, Any]],
                    number: int) -> None:
        """Note, for the proof, of how many keys a load of two streams has written the totals.

        load: its load_id; sides: what its ledger row says of each stream.
        """
        left = SIDES[0]
        noted = sides | {left: sides[left] | {"closed": number}}
        connection.execute(update(load_batches).where(load_batches.c.load_id == load).values(
            sides=json.dumps(noted)))

    def commit(self, commit: dict[str, Any], entries: Sequence[dict[str, Any]] = (),
               rows: Callable[[], Iterable[tuple[Table, pa.Table]]] = tuple) -> None:
        """Record that all partitions of a batch are loaded. A repeated call is harmless.

        commit: a row of ``load_commits``, and under "files" the rows for ``load_files``, each
        (path, size, modified). For a sink outside the warehouse also entries: partition rows that
        no task has written, and rows: a function that gives parts of rows for tables of the
        warehouse; each attempt calls it anew.
        """
        files = [{"app": self.app, "batch": commit["batch"], "number": n,
                  **DataFile(*file)._asdict()} for n, file in enumerate(commit.get("files", ()))]
        number = self.number() if entries else 0

        def work(connection: Connection) -> None:
            row = {name: value for name, value in commit.items() if name != "files"}
            connection.execute(load_commits.insert(), {**row, "committed_at": utc_now()})
            if files:
                connection.execute(load_files.insert(), files)
            if entries:
                connection.execute(load_batches.insert(), [_row(number, e) for e in entries])
            for table, part in rows():
                bulk_insert(connection, table, part)

        try:
            self.run(work)
        except IntegrityError:
            if not self.is_committed(commit["batch"], commit["drain"]):
                raise

    def source(self, batch: int) -> tuple[dict[str, Any], list[str]]:
        """Return the ``source_offsets`` of a committed batch, and the paths of its files that are
        still recorded."""
        f = load_files.c
        said = select(load_commits.c.source_offsets).where(*self._load(load_commits, batch, 0))
        offsets = json.loads(self.run(lambda connection: connection.execute(said).scalar_one()))
        if isinstance(offsets.get("files"), list):  # written by an earlier version
            return offsets, offsets["files"]
        paths = select(f.path).where(f.app == self.app, f.batch == batch).order_by(f.number)
        return offsets, self.run(lambda connection: list(connection.scalars(paths)))

    def take_back(self, batch: int, drain: int, tables: Sequence[Table]) -> None:
        """Delete everything that partitions of an uncommitted batch have loaded, also from these
        tables."""
        number = self.number()
        first, last = first_load(number, (batch, drain)), last_load(number, (batch, drain))

        def work(connection: Connection) -> None:
            for table in (*tables, unmatched, propagated, load_batches):
                connection.execute(delete(table).where(table.c.load_id.between(first, last)))

        self.run(work)

    def source_was_listed(self, batch: int, at: float) -> None:
        """Record that the batches up to this committed one contain everything that the source had
        at a time, in s since 1970."""
        done = update(load_commits).where(
            *self._load(load_commits, batch, 0)).values(source_listed=at)
        self.run(lambda connection: connection.execute(done))

    def forget_files(self) -> None:
        """Delete the names of source files that no longer exist, so that the table has at most one
        row for each file of the source."""
        f, after, more = load_files.c, (-1, -1), True
        while more:
            at = or_(f.batch > after[0], and_(f.batch == after[0], f.number > after[1]))
            page = select(f.batch, f.number, f.path).where(f.app == self.app, at).order_by(
                f.batch, f.number).limit(FILES_AT_ONCE)
            rows = self.run(partial(_all, page))
            gone = [{"b": row.batch, "n": row.number} for row in rows
                    if DataFile(row.path).now() is None]
            if gone:
                there = and_(f.app == self.app, f.batch == bindparam("b"),
                             f.number == bindparam("n"))
                self.run(partial(_execute, delete(load_files).where(there), gone))
            if more := len(rows) == FILES_AT_ONCE:
                after = rows[-1].batch, rows[-1].number

    def _load(self, table: Any, batch: int, drain: int) -> tuple[Any, ...]:
        return table.c.app == self.app, table.c.batch == batch, table.c.drain == drain


def _all(query: Select[*tuple[Any, ...]], connection: Connection) -> Sequence[Row[Any]]:
    return connection.execute(query).all()


def _execute(statement: Delete, values: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(statement, values)


def utc_now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def app_number(connection: Connection, app: str) -> int | None:
    """Return the number of an app in its load_ids, or None if it has none yet."""
    return connection.scalar(select(load_apps.c.number).where(load_apps.c.app == app))


def _row(number: int, entry: dict[str, Any]) -> dict[str, Any]:
    key = load_id(number, entry["batch"], entry["drain"], entry["partition"])
    sketch = entry.get("key_sketch")  # base64, as summaries and intents are JSON
    return {**entry, "load_id": key, "memory": json.dumps(entry["memory"]),
            "rejected": json.dumps(entry["rejected"]),
            **{name: json.dumps(entry[name]) if entry.get(name) else None
               for name in ("sides", "nulled")},
            "committed_at": utc_now(),
            "key_sketch": None if sketch is None else b64decode(sketch)}


def _entry(row: Row[Any]) -> dict[str, Any]:
    values = dict(row._mapping)
    del values["committed_at"], values["load_id"], values["key_sketch"]
    return {**values, **{name: json.loads(values[name]) if values[name] else None
                         for name in ("memory", "rejected", "sides", "nulled")}}
