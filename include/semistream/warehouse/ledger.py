"""The load ledger: a record of what has been loaded, exactly once.

``load_batches``: one row per (app, batch, drain, partition), written in the same transaction as
that partition's rows, under the same ``load_id``, which is computed from these four (see
``load_ids``). The first attempt that commits this row has loaded the partition; every later attempt
finds the row and writes nothing. ``load_commits``: one row per (app, batch, drain) once all its
partitions are loaded. A drain (drain = 1) finishes the tuples that waited after that batch, reads
no source, and exists only where tuples waited. A resolving load (drain = 2 and more) joins tuples
of ``unmatched`` again, and marks each of their rows with ``resolved_by``, its load_id.

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

``start`` is where the previous batch ended (null: the source's beginning), as in Spark's offset
log. A drain or resolving load has ``{}``. A batch of two streams has ``{"left": …, "right": …}``,
each of them as above. ``files`` is the number of files. ``load_files`` names the files, with their
size and time when the batch began. The names of files that are gone from the source are deleted
there over time.

Every committed partition satisfies waiting_before + rows_read + resolved = matched + unmatched +
waiting, in total and for each of its inputs (``load_inputs``), see ``records.unaccounted``.
``resolved`` counts the rows of ``unmatched`` that name the load as ``resolved_by``. Tuples that
could not be parsed (reason ``unparsable``), or whose id is too long for an index (``long_id``), are
part of rows_read and of unmatched. Rows written for a partition: output_rows into the fact table
(for a left join that includes unmatched tuples, except those two kinds), ``unmatched`` into the
table of that name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Engine,
    Row,
    Select,
    Table,
    Update,
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

from semistream.data_files import DataFile
from semistream.job import SIDES
from semistream.positions import Kind, Position
from semistream.reasons import Reason
from semistream.warehouse.dialects import SYSTEMS
from semistream.warehouse.load_ids import first_load, last_load, load_id
from semistream.warehouse.records import Commit, InputCounts, LoadRecord, Timed
from semistream.warehouse.schema import (
    OF_LOADS,
    load_apps,
    load_batches,
    load_commits,
    load_files,
    load_inputs,
    load_rejections,
)

T = TypeVar("T")
FILES_AT_ONCE = 10_000  # of the source, checked by one query


def is_transient(error: BaseException) -> bool:
    """Return whether an error is a deadlock, a lock timeout, a lost connection, a read-only server
    or a cancelled statement, so that the failed operation may be repeated."""
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or any(s.is_transient(error.orig) for s in SYSTEMS)
    )


def retrying(work: Callable[[], T], seconds: float) -> T:
    """Return the result of ``work``. After an error that ``is_transient``, run it again, for at
    most ``seconds``."""
    attempts = Retrying(
        retry=retry_if_exception(is_transient),
        reraise=True,
        wait=wait_random_exponential(0.1, max=3),
        stop=stop_before_delay(seconds),
    )
    return attempts(work)


def assigned(
    engine: Engine, query: Select[*tuple[Any, ...]], table: Table, retry: float, **values: Any
) -> Any:
    """Return the value that a query finds. If the query finds none, insert these values into the
    table and run the query again."""

    def once() -> Any:
        with engine.begin() as connection:
            if connection.scalar(query) is None:
                connection.execute(table.insert().values(values))
            return connection.scalar(query)

    try:
        return retrying(once, retry)
    except IntegrityError:  # another process was first
        return retrying(once, retry)


def parts_of(offsets: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a load's ``source_offsets`` by stream. Return a list with one entry, or with those of
    the left and the right stream."""
    return [offsets[side] for side in SIDES] if "left" in offsets else [offsets]


class Ledger:
    """The ledger of one app. retry: seconds for which each transaction is repeated when the
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
        a = load_apps
        return assigned(
            self.engine, select(a.c.number).where(a.c.app == self.app), a, self.retry, app=self.app
        )

    def load_id(self, batch: int, drain: int, partition: int) -> int:
        """Return the load_id of a partition's load."""
        return load_id(self.number(), batch, drain, partition)

    def partition(self, batch: int, drain: int, partition: int) -> LoadRecord | None:
        """Return the record of one partition; None if the partition is not loaded."""
        found = self.run(
            lambda connection: _records(
                connection, load_batches.c.load_id == self.load_id(batch, drain, partition)
            )
        )
        return found[0] if found else None

    def partitions(self, batch: int, drain: int) -> list[LoadRecord]:
        """Return the records of a batch, ordered by partition, without key sketches."""
        return self.run(
            lambda connection: _records(connection, and_(*self._load(load_batches, batch, drain)))
        )

    def _newest(self, *conditions: ColumnElement[bool]) -> Row[Any] | None:
        return self.run(lambda connection: newest_commit(connection, self.app, *conditions))

    def last(self) -> Position | None:
        """Return the position of the newest commit, or None if there is none."""
        row = self._newest()
        return (row.batch, row.drain) if row else None

    def newest_work(self, sink: str) -> Position | None:
        """Return the position of the newest commit through a sink that needed tasks. A batch
        without tuples needs no tasks."""
        c = load_commits.c
        row = self._newest(c.sink == sink, or_(c.drain != Kind.BATCH, c.rows_read > 0))
        return (row.batch, row.drain) if row else None

    def newest_output(self, sink: str) -> tuple[int, int] | None:
        """Return (load_id, batch) of the newest load that wrote rows of the fact table through a
        sink."""
        b, c = load_batches.c, load_commits.c
        same = and_(c.app == b.app, c.batch == b.batch, c.drain == b.drain)
        query = (
            select(b.load_id, b.batch)
            .join(load_commits, same)
            .where(b.app == self.app, b.output_rows > 0, c.sink == sink)
            .order_by(b.load_id.desc())
            .limit(1)
        )
        row = self.run(lambda connection: connection.execute(query).first())
        return (row.load_id, row.batch) if row else None

    def newest_job(self) -> tuple[str, str] | None:
        """Return (the fact table, the job as JSON) of the newest commit."""
        row = self._newest()
        return (row.fact_table, row.job) if row else None

    def newest_sink(self) -> str | None:
        """Return the ``sink`` setting of the newest commit."""
        row = self._newest()
        return row.sink if row else None

    def sinks(self) -> list[str]:
        """Return the ``sink`` settings of the app's commits, the newest first."""
        c = load_commits.c
        newest = func.max(c.batch).desc()
        query = select(c.sink).where(c.app == self.app).group_by(c.sink).order_by(newest)
        return self.run(lambda connection: list(connection.scalars(query)))

    def file_paths(self) -> set[str]:
        """Return the paths of the loaded files that are still recorded."""
        query = select(load_files.c.path).where(load_files.c.app == self.app)
        return self.run(lambda connection: set(connection.scalars(query)))

    def note_checkpoint(self, checkpoint: str) -> None:
        """Record the path of the app's checkpoint, which the proof reads."""
        a, number = load_apps.c, self.number()
        noted = (
            update(load_apps)
            .where(a.number == number, or_(a.checkpoint.is_(None), a.checkpoint != checkpoint))
            .values(checkpoint=checkpoint)
        )
        self._execute(noted)

    def others(self, fact_table: str, sink: str) -> list[str]:
        """Return the other apps that have loaded into a fact table through the same sink."""
        c = load_commits.c
        query = (
            select(c.app)
            .where(c.fact_table == fact_table, c.sink == sink, c.app != self.app)
            .distinct()
            .order_by(c.app)
        )
        return self.run(lambda connection: list(connection.scalars(query)))

    def partition_count(self, batch: int, drain: int) -> int:
        """Return the number of partitions of a commit."""
        query = select(load_commits.c.partitions).where(*self._load(load_commits, batch, drain))
        return self.run(lambda c: c.execute(query).scalar_one())

    def is_committed(self, batch: int, drain: int) -> bool:
        return bool(self._rows(select(1).where(*self._load(load_commits, batch, drain))))

    def output_rows(self) -> int:
        """Return the number of rows that the app has written to the fact table."""
        query = select(func.sum(load_batches.c.output_rows)).where(load_batches.c.app == self.app)
        return int(self.run(lambda c: c.scalar(query)) or 0)

    def key_sketches(self, most: int) -> list[bytes]:
        """Return the latest key sketches of the app's loads, at most `most`."""
        b = load_batches.c
        query = (
            select(b.key_sketch)
            .where(b.app == self.app, b.key_sketch.is_not(None))
            .order_by(b.batch.desc(), b.drain.desc())
            .limit(most)
        )
        return self.run(lambda c: list(c.scalars(query)))

    def load(self, record: LoadRecord, write: Callable[[Connection], int | None]) -> LoadRecord:
        """Write one partition and its record in one transaction, unless the partition is already
        loaded. Return the valid record.

        The record is written first. Its unique key makes a simultaneous second attempt wait, and
        then fail. write: a function that writes the rows, and returns the number of keys whose
        totals it has written.
        """
        key = self.load_id(record.batch, record.drain, record.partition)

        def work(connection: Connection) -> int | None:
            _insert(connection, {key: record})
            closed = write(connection)
            if closed is not None:
                connection.execute(
                    update(load_batches).where(load_batches.c.load_id == key).values(closed=closed)
                )
            return closed

        try:
            return replace(record, closed=self.run(work))
        except IntegrityError:
            winner = self.partition(record.batch, record.drain, record.partition)
            if winner is None:  # another unique key was violated
                raise
            return winner

    def commit(
        self,
        commit: Commit,
        loads: Sequence[LoadRecord] = (),
        write: Callable[[Connection], object] = lambda _: None,
    ) -> None:
        """Record that all partitions of a batch are loaded. A repeated call is harmless.

        For a sink outside the warehouse, loads: records that no task has written; write: a function
        that writes these loads' rows of the warehouse's tables; it is called again in each attempt.
        """
        files = [
            {"app": self.app, "batch": commit.batch, "number": n, **file._asdict()}
            for n, file in enumerate(commit.files)
        ]
        row = _row_of(load_commits, commit) | {"committed_at": utc_now()}
        records = {self.load_id(r.batch, r.drain, r.partition): r for r in loads}

        def work(connection: Connection) -> None:
            connection.execute(load_commits.insert(), row)
            self._complete(connection, commit.before)
            if files:
                connection.execute(load_files.insert(), files)
            if records:
                _insert(connection, records)
            write(connection)

        try:
            self.run(work)
        except IntegrityError:
            if not self.is_committed(commit.batch, commit.drain):
                raise

    def source(self, batch: int) -> tuple[dict[str, Any], list[str]]:
        """Return the ``source_offsets`` of a committed batch, and the paths of its files that are
        still recorded."""
        f = load_files.c
        said = select(load_commits.c.source_offsets).where(
            *self._load(load_commits, batch, Kind.BATCH)
        )
        offsets = json.loads(self.run(lambda connection: connection.execute(said).scalar_one()))
        paths = select(f.path).where(f.app == self.app, f.batch == batch).order_by(f.number)
        return offsets, self.run(lambda connection: list(connection.scalars(paths)))

    def take_back(self, batch: int, drain: int, tables: Sequence[Table]) -> None:
        """Delete everything that partitions of an uncommitted batch have loaded, also from
        ``tables``."""
        number = self.number()
        first, last = first_load(number, (batch, drain)), last_load(number, (batch, drain))

        def work(connection: Connection) -> None:
            for table in (*tables, *OF_LOADS):
                connection.execute(delete(table).where(table.c.load_id.between(first, last)))

        self.run(work)

    def end_run(self, timed: Timed | None, batch: int, listed: float | None) -> None:
        """Record what is known at the end of a run only: the duration of its newest commit, and
        that the batches up to this committed one contain everything that the source had at time
        ``listed``, in seconds since 1970, None if no such time is known."""

        def work(connection: Connection) -> None:
            self._complete(connection, timed)
            if listed is not None:
                of_batch = self._load(load_commits, batch, Kind.BATCH)
                connection.execute(
                    update(load_commits).where(*of_batch).values(source_listed=listed)
                )

        if timed is not None or listed is not None:
            self.run(work)

    def _complete(self, connection: Connection, timed: Timed | None) -> None:
        """Write the duration of a commit, which is known after it only, into its row."""
        if timed is not None:
            of_commit = self._load(load_commits, timed.batch, timed.drain)
            connection.execute(update(load_commits).where(*of_commit).values(phases=timed.phases))

    def forget_files(self) -> None:
        """Delete the names of source files that no longer exist, so that the table has at most one
        row for each file of the source."""
        f, after, more = load_files.c, (-1, -1), True
        while more:
            at = or_(f.batch > after[0], and_(f.batch == after[0], f.number > after[1]))
            page = (
                select(f.batch, f.number, f.path)
                .where(f.app == self.app, at)
                .order_by(f.batch, f.number)
                .limit(FILES_AT_ONCE)
            )
            rows = self._rows(page)
            gone = [
                {"b": row.batch, "n": row.number}
                for row in rows
                if DataFile(row.path).now() is None
            ]
            if gone:
                there = and_(
                    f.app == self.app, f.batch == bindparam("b"), f.number == bindparam("n")
                )
                self._execute(delete(load_files).where(there), gone)
            if more := len(rows) == FILES_AT_ONCE:
                after = rows[-1].batch, rows[-1].number

    def _rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Row[Any]]:
        return self.run(lambda connection: connection.execute(query).all())

    def _execute(self, statement: Update | Delete, values: Any = None) -> None:
        self.run(lambda connection: connection.execute(statement, values))

    def _load(self, table: Any, batch: int, drain: int) -> tuple[Any, ...]:
        return table.c.app == self.app, table.c.batch == batch, table.c.drain == drain


def utc_now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def app_number(connection: Connection, app: str) -> int:
    """Return the number of an app in its load_ids; 0, which no load has, if it has none yet."""
    return connection.scalar(select(load_apps.c.number).where(load_apps.c.app == app)) or 0


def checkpoint_of(connection: Connection, app: str) -> str | None:
    """Return the path of an app's checkpoint; None until its first load has begun."""
    return connection.scalar(select(load_apps.c.checkpoint).where(load_apps.c.app == app))


def committed_apps(connection: Connection) -> list[str]:
    """Return the apps that have committed anything, by name."""
    c = load_commits.c
    return list(connection.scalars(select(c.app).distinct().order_by(c.app)))


def newest_commit(
    connection: Connection, app: str, *conditions: ColumnElement[bool]
) -> Row[Any] | None:
    """Return an app's newest commit, of those to which the conditions apply."""
    c = load_commits.c
    query = (
        select(load_commits)
        .where(c.app == app, *conditions)
        .order_by(c.batch.desc(), c.drain.desc())
        .limit(1)
    )
    return connection.execute(query).first()


# ---- records and rows


def _insert(connection: Connection, records: Mapping[int, LoadRecord]) -> None:
    """Insert records by load_id. The rows of ``load_batches`` are inserted first."""
    now = utc_now()
    connection.execute(
        load_batches.insert(),
        [
            _row_of(load_batches, r)
            | {
                "load_id": key,
                "committed_at": now,
                "memory": json.dumps(dict(r.memory)),
                "nulled": json.dumps(dict(r.nulled)) if r.nulled else None,
            }
            for key, r in records.items()
        ],
    )
    inputs = [(key, number, of) for key, r in records.items() for number, of in enumerate(r.inputs)]
    insert_inputs(connection, inputs)


def insert_inputs(connection: Connection, inputs: Sequence[tuple[int, int, InputCounts]]) -> None:
    """Insert the inputs of loads. inputs: (load_id, the input's number in the load, counts)."""
    connection.execute(
        load_inputs.insert(),
        [_row_of(load_inputs, of) | {"load_id": key, "number": n} for key, n, of in inputs],
    )
    if rejections := [
        {"load_id": key, "role": of.role, "reason": reason, "tuples": tuples}
        for key, _, of in inputs
        for reason, tuples in of.rejected.items()
        if tuples
    ]:
        connection.execute(load_rejections.insert(), rejections)


def _row_of(table: Table, record: LoadRecord | InputCounts | Commit) -> dict[str, Any]:
    """Return the fields of a record that are columns of a table."""
    return {c.name: getattr(record, c.name) for c in table.columns if hasattr(record, c.name)}


def _records(connection: Connection, which: ColumnElement[bool]) -> list[LoadRecord]:
    """Return the records of the loads that a condition over ``load_batches`` selects, ordered by
    load_id, without key sketches."""
    b, i, r = load_batches.c, load_inputs.c, load_rejections.c
    rows = connection.execute(
        select(*(c for c in b if c.name != "key_sketch")).where(which).order_by(b.load_id)
    ).all()
    keys = [row.load_id for row in rows]
    rejected: dict[tuple[int, str], dict[Reason, int]] = defaultdict(dict)
    inputs: dict[int, list[InputCounts]] = defaultdict(list)
    if keys:
        for row in connection.execute(select(load_rejections).where(r.load_id.in_(keys))):
            rejected[row.load_id, row.role][Reason(row.reason)] = row.tuples
        for row in connection.execute(
            select(load_inputs).where(i.load_id.in_(keys)).order_by(i.load_id, i.number)
        ):
            inputs[row.load_id].append(
                InputCounts(
                    rejected=rejected[row.load_id, row.role], **_fields_of(InputCounts, row)
                )
            )
    return [
        LoadRecord(
            **_fields_of(LoadRecord, row)
            | {
                "inputs": tuple(inputs[row.load_id]),
                "memory": json.loads(row.memory),
                "nulled": json.loads(row.nulled or "{}"),
            }
        )
        for row in rows
    ]


def _fields_of(kind: type[LoadRecord | InputCounts], row: Row[Any]) -> dict[str, Any]:
    """Return the fields of a record of this kind, by name, from a row whose columns have the same
    names."""
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in row._mapping.items() if name in names}
