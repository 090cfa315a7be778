"""What every sink is, and how rows name the load that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from semistream.warehouse.checksum import as_stored, checksum, signed

if TYPE_CHECKING:
    from semistream.streaming.sinks.delta import DataFile
    from semistream.streaming.task import Spool

INSERT_ROWS = 200_000  # handed to the bulk writer at a time
LOAD_FIELDS = (("app", pa.string()), ("batch", pa.int64()), ("drain", pa.int32()), ("partition", pa.int32()))


class Sink(Protocol):
    """``loaded``, ``data_file`` and ``write`` run in tasks, the rest in the driver."""

    def loaded(self, app: str, batch: int, drain: int, partition: int) -> dict[str, Any] | None:
        """The ledger row of a partition that is loaded already."""

    def take_back(self, app: str, batch: int, drain: int) -> None:
        """Forget what some partitions have loaded of a batch that is not committed."""

    def data_file(self, schema: pa.Schema, load: dict[str, Any]) -> DataFile | None:
        """Where joined rows go at once, and not into the spool; load: the ``LOAD_FIELDS``."""

    def write(self, entry: dict[str, Any], spool: Spool) -> dict[str, Any]:
        """Write a partition, or make it ready for ``commit``; gives the ledger row that counts."""

    def prepare(self, stream: pa.Schema, added: pa.Schema, id_columns: tuple[str, ...]) -> None:
        """Make the place, or check it. Raises ConfigError when it does not fit."""

    def promise(self, commit: dict[str, Any], entries: list[dict[str, Any]]) -> bool:
        """Make sure that a batch, all of whose partitions are loaded, will count; False where only ``commit`` can."""

    def commit(self, commit: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        """Make the batch count."""


def ledger_row(entry: dict[str, Any]) -> dict[str, Any]:
    """Without what only a Delta table's commit needs."""
    return {name: value for name, value in entry.items() if name not in ("data", "unmatched_file")}


def with_load(joined: pa.Table, entry: dict[str, Any]) -> pa.Table:
    """Rows with the load that they belong to."""
    for name, kind in LOAD_FIELDS:
        joined = joined.append_column(name, pa.repeat(pa.scalar(entry[name], kind), joined.num_rows))
    return joined


def rejected_rows(tuples: pa.Table, entry: dict[str, Any], fact: str) -> pa.Table:
    """Unmatched tuples as rows of the table ``unmatched``."""
    return with_load(tuples, entry).append_column("fact_table", pa.repeat(fact, tuples.num_rows))


def stored_checksum(rows: pa.Table, dialect: str) -> int:
    """Of rows as the warehouse gives them back; a part at a time, as they lie on disk."""
    parts = (rows.slice(start, INSERT_ROWS) for start in range(0, rows.num_rows, INSERT_ROWS))
    return signed(sum(checksum(as_stored(part, dialect)) for part in parts))
