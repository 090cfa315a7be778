"""The protocol of a sink, and the keys by which rows identify their load."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from sqlalchemy import Engine

from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import RowWriter, Spool
from semistream.warehouse.checksum import as_stored, checksum, signed
from semistream.warehouse.closing import Closing
from semistream.warehouse.inferred import Filling
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.records import Commit, LoadRecord

INSERT_ROWS = 100_000  # rows given to the bulk writer at a time


Rows = tuple[str, Callable[[], Iterator[pa.RecordBatch]]]  # a file's name, its rows


class StoredRows(NamedTuple):
    """The rows of a sink outside the warehouse, for the proof.

    schema: the schema of the rows, which have a load_id; files: (name, the app's rows in the file)
    for each file; others: (name, the load_ids of rows in the file that do not belong to the app)
    for each file. Reading the rows raises OSError or pa.ArrowException if a file is gone or
    damaged. The names come from the record of ``commit``, because a listing of the directory would
    not show that a file is gone. The rows of a load may come in any order; they have ``load_row``
    if they may have inferred members. Their values and types are those that ``write`` received.
    """

    schema: pa.Schema
    files: Iterator[Rows]
    others: Iterator[Rows] = iter(())


class Sink(Protocol):
    """A sink. ``loaded``, ``writer`` and ``write`` run in tasks, the rest in the driver. A sink is
    pickled and sent to the tasks. A class derived from this one inherits members that return None,
    for steps in which it has nothing to do.

    warehouse: the warehouse with the ledger and the dimensions; two_phase: whether ``commit`` has
    several steps and needs a durable record before it; all steps, and ``commit`` itself, can be
    repeated; in_warehouse: whether joined tuples go to the fact table of the warehouse; put_back: a
    text that says how to restore lost or changed rows, with ``{app}`` and ``{sink}`` for the app's
    name and the setting.
    """

    warehouse: Warehouse
    two_phase: ClassVar[bool] = False
    in_warehouse: ClassVar[bool]
    put_back: ClassVar[str]

    @property
    def closing(self) -> Closing | None:
        """The closing of keys, which ``write`` performs when they have become final. If it is None,
        ``open_sink`` refuses a job with totals."""
        return None

    @staticmethod
    def accepts(setting: str) -> bool:
        """Return whether the app's setting ``sink`` names a sink of this kind."""

    @classmethod
    def open(cls, setting: str, warehouse: Warehouse, checkpoint: Path) -> Sink:
        """Return the sink that the setting names. Raises ConfigError."""

    def loaded(self, app: str, batch: int, drain: int, partition: int) -> LoadRecord | None:
        """Return the record of a partition that is already loaded; otherwise None. A sink of two
        phases returns None, because a partition is not loaded before ``commit``."""
        return None

    def take_back(self, app: str, batch: int, drain: int) -> None:
        """Delete everything that readers can see of a batch that has begun and is not committed.
        This method is called when the batch's files have changed since a crash, before the batch
        runs again."""
        return None

    def take_out(self, loads: Sequence[tuple[int, int]]) -> None:
        """Delete rows of committed loads from outside the warehouse, before the ledger forgets the
        loads. loads: ranges of load_ids. A repeated call is harmless."""
        return None

    def writer(
        self, schema: pa.Schema, app: str, batch: int, drain: int, partition: int
    ) -> RowWriter | None:
        """Return a writer that receives joined rows as they are produced; None if they go to the
        spool."""
        return None

    def write(self, record: LoadRecord, spool: Spool) -> LoadRecord:
        """Write a partition, or prepare it for ``commit``: joined rows, those with inferred members
        (``Spool.inferred``), unmatched tuples, propagated patterns, and the marks of resolved rows
        (``mark_resolved``), whose keys are in ``Spool.resolved``. Return the valid record. Its
        fields facts_checksum and unmatched_checksum are set, and ``prepared`` contains the data for
        ``commit``, as JSON values.

        Several attempts of a partition may run at the same time, even an attempt of a driver that
        was killed: name files by ``attempt_name``.
        """

    def prepare(self, stream: pa.Schema, added: pa.Schema, id_columns: tuple[str, ...]) -> Sink:
        """Create or check the target, before the first batch. (This is not the first phase of
        ``two_phase``, which is ``write``.) Return the sink to use from then on. Raises ConfigError
        if the target does not fit."""

    def commit(self, commit: Commit, loads: Sequence[LoadRecord]) -> None:
        """Commit a batch, all of whose partitions are written. A repeated call is harmless. The
        last step is ``Ledger.commit``. A sink outside the warehouse also gives it the loads, and a
        function that writes the rows of ``unmatched`` and ``propagated``, and the marks.

        loads: the result of ``write`` for each partition.
        """

    def fill(self, filling: Filling, ledger: Ledger) -> int:
        """Fill in the columns of an app's facts whose inferred members have got rows in a version
        of their dimension, and of no others. Return the number of these facts. ``inferred``, and
        the checksums in the ledger, tell of it in one transaction, see ``Filling``. After a crash
        before that transaction the method is called again. Raises NotThatVersion."""

    def clean_up(self) -> None:
        """Remove files that only ``commit`` needed. The record of the commit has already been
        removed."""
        return None

    def missing(self, app: str) -> str | None:
        """Return the beginning of a sentence about obviously missing rows, which the app has loaded
        through this sink according to the ledger. Return None if a quick check finds none."""

    def newest(self, app: str) -> tuple[int, int] | None:
        """Return the newest (batch, drain) of an app according to the sink's record; None if only
        the ledger has a record."""
        return None

    def stored(self, app: str) -> StoredRows | None:
        """Return the app's rows, for the proof; None if they are in the warehouse's fact table.
        Raises ConfigError if the target is gone."""
        return None


def attempt_name(record: LoadRecord) -> str:
    """Return a new name for a load's files that no other attempt of the load has. The name of the
    record's state file is not unique in this way: it does not change if the load leaves the join's
    state unchanged."""
    return f"{record.batch:09d}-{record.drain}-{record.partition:04d}-{uuid.uuid4().hex}"


def with_key(rows: pa.Table, load_id: int, first: int = 0) -> pa.Table:
    """Return rows of a load with their primary key in the warehouse: load_id, load_row. first: the
    number of the first row."""
    numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int32))
    return rows.append_column(
        "load_id", pa.repeat(pa.scalar(load_id, pa.int64()), rows.num_rows)
    ).append_column("load_row", numbers)


def rejected_rows(tuples: pa.Table, load_id: int, fact: str, first: int = 0) -> pa.Table:
    """Return unmatched tuples of a load as rows of the table ``unmatched``, or its propagated
    patterns as rows of ``propagated``. first: the number of the first row."""
    numbers = pa.array(np.arange(first, first + tuples.num_rows, dtype=np.int32))
    return of_load(tuples.append_column("load_row", numbers), load_id, fact)


def of_load(rows: pa.Table, load_id: int, fact: str) -> pa.Table:
    """Return rows with two more columns: the load and the fact table to which they belong."""
    ids = pa.repeat(pa.scalar(load_id, pa.int64()), rows.num_rows)
    return rows.append_column("load_id", ids).append_column(
        "fact_table", pa.repeat(fact, rows.num_rows)
    )


def parts(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield (number of the first row, rows) for each part of the rows. Parts have at most the size
    in which the rows were written to disk."""
    first = 0
    for part in rows.to_reader(INSERT_ROWS):
        yield first, pa.Table.from_batches([part])
        first += part.num_rows


def stored_checksum(rows: pa.Table, of: Engine) -> int:
    """Return the checksum of rows, computed from the values that the warehouse returns after
    storing them."""
    return signed(sum(checksum(as_stored(part, of)) for _, part in parts(rows)))
