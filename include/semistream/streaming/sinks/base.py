"""What every sink is, and how rows name the load that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from sqlalchemy import Engine

from semistream.warehouse.checksum import as_stored, checksum, signed

if TYPE_CHECKING:
    from semistream.streaming.sinks.delta import DataFiles
    from semistream.streaming.sinks.sql import SqlSink
    from semistream.streaming.spool import Spool
    from semistream.warehouse.closing import Closing

# unmatched tuples, and what is propagated, as tasks keep them
UNMATCHED = pa.schema([("reason", pa.string()), ("side", pa.string()), ("stream_id", pa.string()),
                       ("tuple", pa.string())])
PROPAGATED = pa.schema([("side", pa.string()), ("pattern", pa.string())])
INSERT_ROWS = 100_000  # handed to the bulk writer at a time


Rows = tuple[str, Callable[[], Iterator[pa.RecordBatch]]]  # a file's name, and what gives its rows


class StoredRows(NamedTuple):
    """What a sink outside the warehouse has, for the proof.

    schema: of the rows, which have a load_id; files: (name, the app's rows in it) each; others: the
    load_ids of the rows in it that are not the app's. Reading the rows raises OSError or
    pa.ArrowException where a file is gone or damaged.
    """

    schema: pa.Schema
    files: Iterator[Rows]
    others: Iterator[Rows] = iter(())


class Sink(Protocol):
    """``loaded``, ``data_files`` and ``write`` run in tasks, the rest in the driver; a sink is sent
    to the tasks pickled.

    two_phase: whether ``commit`` needs a durable note before it, as it is made of several steps;
    all of them, and ``commit`` itself, can be done again.
    """

    two_phase: ClassVar[bool]

    @property
    def closing(self) -> Closing | None:
        """What ``write`` does with keys that have become final; None: nothing."""

    @staticmethod
    def accepts(setting: str) -> bool:
        """Whether the app's setting ``sink`` names one of this kind."""

    @classmethod
    def open(cls, setting: str, warehouse: SqlSink, checkpoint: Path) -> Sink:
        """The sink that the setting names. warehouse: the one that has ledger, unmatched tuples and
        dimension."""

    def loaded(self, app: str, batch: int, drain: int, partition: int) -> dict[str, Any] | None:
        """The ledger row of a partition that is loaded already."""

    def take_back(self, app: str, batch: int, drain: int) -> None:
        """Forget what some partitions have written of a batch that is not committed."""

    def data_files(self, schema: pa.Schema, load: dict[str, Any]) -> DataFiles | None:
        """Where joined rows go at once; None: into the spool. load: app, batch, drain and
        partition."""

    def write(self, entry: dict[str, Any], spool: Spool) -> dict[str, Any]:
        """Write a partition, or make it ready for ``commit``; gives the ledger row that counts."""

    def prepare(self, stream: pa.Schema, added: pa.Schema, id_columns: tuple[str, ...]) -> Sink:
        """Make the place, or check it; gives the sink to go on with. Raises ConfigError when the
        place does not fit."""

    def commit(self, commit: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        """Make a batch count, all of whose partitions are written; again is harmless.

        commit: a row of ``load_commits`` and its files; entries: what ``write`` gave for each
        partition.
        """

    def clean_up(self) -> None:
        """Remove what only ``commit`` needed. The note of the commit is gone."""

    def missing(self, app: str) -> str | None:
        """What is plainly not there of the rows that the ledger says the app has loaded here, as
        the beginning of a sentence. None: nothing that can be told without reading all of them."""

    def newest(self, app: str) -> tuple[int, int] | None:
        """The newest (batch, drain) that the sink itself says it has of an app; None where only the
        ledger tells."""

    def stored(self, app: str) -> StoredRows | None:
        """The app's rows, for the proof; None: they are in the warehouse's fact table. Raises
        ConfigError when it is gone."""


def ledger_row(entry: dict[str, Any]) -> dict[str, Any]:
    """Without what only a Delta table's commit needs, and without ``nulled``, which is of the facts
    that an SQL sink has written."""
    own = ("data", "staged", "unmatched_file", "nulled")
    return {name: value for name, value in entry.items() if name not in own}


def with_key(rows: pa.Table, load_id: int, first: int = 0) -> pa.Table:
    """Rows of a load with their primary key in the warehouse: load_id, load_row. first: the number
    of the first one."""
    numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int32))
    return rows.append_column("load_id", pa.repeat(pa.scalar(load_id, pa.int64()), rows.num_rows)) \
        .append_column("load_row", numbers)


def rejected_rows(tuples: pa.Table, load_id: int, fact: str, first: int = 0) -> pa.Table:
    """Unmatched tuples of a load as rows of the table ``unmatched``, or what it has propagated as
    rows of that table. first: the number of the first one."""
    keyed = with_key(tuples, load_id, first)
    return keyed.append_column("fact_table", pa.repeat(fact, tuples.num_rows))


def parts(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """(number of the first row, rows): a part at a time of what lies on disk, no larger than what
    was written at a time."""
    first = 0
    for part in rows.to_reader(INSERT_ROWS):
        yield first, pa.Table.from_batches([part])
        first += part.num_rows


def stored_checksum(rows: pa.Table, of: Engine) -> int:
    """Of rows as the warehouse gives them back."""
    return signed(sum(checksum(as_stored(part, of)) for _, part in parts(rows)))
