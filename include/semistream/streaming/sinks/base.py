"""The protocol of a sink, and the keys by which rows name their load."""

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
from semistream.warehouse.records import Commit, LoadRecord

INSERT_ROWS = 100_000  # rows given to the bulk writer at a time


Rows = tuple[str, Callable[[], Iterator[pa.RecordBatch]]]  # a file's name, its rows


class StoredRows(NamedTuple):
    """The rows of a sink outside the warehouse, for the proof.

    schema: of the rows, which have a load_id; files: (name, the app's rows in it) each; others:
    (name, the load_ids of the rows in it that are not the app's) each. Reading the rows raises
    OSError or pa.ArrowException if a file is gone or damaged: the names come from what ``commit``
    has recorded, as a listing of the directory would not show that a file is gone. The rows of a
    load may come in any order and without ``load_row``; their values and types are those that
    ``write`` was given.
    """

    schema: pa.Schema
    files: Iterator[Rows]
    others: Iterator[Rows] = iter(())


class Sink(Protocol):
    """A sink. ``loaded``, ``writer`` and ``write`` run in tasks, the rest in the driver; a sink
    is sent to the tasks pickled. A class that derives from this one inherits the members that
    return None where there is nothing to do.

    warehouse: where the ledger and the dimensions are;
    two_phase: ``commit`` has several steps and needs a durable record before it; all steps, and
    ``commit`` itself, can be repeated; in_warehouse: joined tuples go to the fact table of the
    warehouse; put_back: how rows that are lost or changed are put back, with ``{app}`` and
    ``{sink}`` for the app's name and the setting.
    """

    warehouse: Warehouse
    two_phase: ClassVar[bool] = False
    in_warehouse: ClassVar[bool]
    put_back: ClassVar[str]

    @property
    def closing(self) -> Closing | None:
        """The closing of keys that ``write`` performs when they have become final; None if it
        performs none. Then ``open_sink`` refuses a job with totals."""
        return None

    @staticmethod
    def accepts(setting: str) -> bool:
        """Return whether the app's setting ``sink`` names a sink of this kind."""

    @classmethod
    def open(cls, setting: str, warehouse: Warehouse, checkpoint: Path) -> Sink:
        """Return the sink that the setting names. Raises ConfigError."""

    def loaded(self, app: str, batch: int, drain: int, partition: int) -> LoadRecord | None:
        """Return the record of a partition that is already loaded, else None. A sink of two phases
        returns None, as a partition is not loaded before ``commit``."""
        return None

    def take_back(self, app: str, batch: int, drain: int) -> None:
        """Delete what readers can see of a batch that was begun and is not committed. It is called
        when the batch's files have changed since a crash, before the batch is run again."""
        return None

    def take_out(self, loads: Sequence[tuple[int, int]]) -> None:
        """Delete the rows of committed loads, given as ranges of load_ids, that lie outside the
        warehouse, before the ledger forgets them. A repeated call is harmless."""
        return None

    def writer(
        self, schema: pa.Schema, app: str, batch: int, drain: int, partition: int
    ) -> RowWriter | None:
        """Return the writer that takes joined rows as they come; None: they go to the spool."""
        return None

    def write(self, record: LoadRecord, spool: Spool) -> LoadRecord:
        """Write a partition, or prepare it for ``commit``: joined rows, unmatched tuples,
        propagated patterns, and the marks of the resolved ones (``mark_resolved``), whose keys
        ``Spool.resolved`` has. Return the record that is valid: its fields facts_checksum and
        unmatched_checksum are set, and ``prepared`` has as JSON values what ``commit`` needs to
        know.

        Several attempts of a partition may run at the same time, also one of a driver that was
        killed: name files by ``attempt_name``.
        """

    def prepare(self, stream: pa.Schema, added: pa.Schema, id_columns: tuple[str, ...]) -> Sink:
        """Create or check the target, before the first batch. (This is not the first phase of
        ``two_phase``, which is ``write``.) Return the sink to use from then on. Raises ConfigError
        if the target does not fit."""

    def commit(self, commit: Commit, loads: Sequence[LoadRecord]) -> None:
        """Commit a batch, all of whose partitions are written. A repeated call is harmless.
        Its last step is ``Ledger.commit``, which a sink outside the warehouse also gives the loads,
        and a function that writes the rows of ``unmatched`` and ``propagated``, and the marks.

        loads: the result of ``write`` for each partition.
        """

    def clean_up(self) -> None:
        """Remove files that only ``commit`` needed. The record of the commit is already removed."""
        return None

    def missing(self, app: str) -> str | None:
        """Return, as the beginning of a sentence, what is obviously missing of the rows that the
        ledger says the app has loaded here; None if nothing is, as far as a quick check shows."""

    def newest(self, app: str) -> tuple[int, int] | None:
        """Return the newest (batch, drain) of an app that the sink itself records; None if only the
        ledger does."""
        return None

    def stored(self, app: str) -> StoredRows | None:
        """Return the app's rows, for the proof; None if they are in the warehouse's fact table.
        Raises ConfigError if the target is gone."""
        return None


def attempt_name(record: LoadRecord) -> str:
    """Return a new name for a load's files that no other attempt of the load has. The record's
    state file is not such a name: a load that leaves the join's state as it was keeps its name."""
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
    """Return rows with the load and the fact table that they belong to."""
    ids = pa.repeat(pa.scalar(load_id, pa.int64()), rows.num_rows)
    return rows.append_column("load_id", ids).append_column(
        "fact_table", pa.repeat(fact, rows.num_rows)
    )


def parts(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield (number of the first row, rows): the rows on disk in parts, no larger than they were
    written."""
    first = 0
    for part in rows.to_reader(INSERT_ROWS):
        yield first, pa.Table.from_batches([part])
        first += part.num_rows


def stored_checksum(rows: pa.Table, of: Engine) -> int:
    """Return the checksum of rows as the warehouse gives them back."""
    return signed(sum(checksum(as_stored(part, of)) for _, part in parts(rows)))
