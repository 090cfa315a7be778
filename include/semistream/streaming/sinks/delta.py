"""A Delta table as the sink."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from sqlalchemy import Connection

from semistream.durable import naming, sync
from semistream.errors import ConfigError, StateError
from semistream.parquet_decoding import open_parquet, parquet_batches
from semistream.positions import KINDS, START, Kind, Position, named, resolves
from semistream.streaming.sinks.base import (
    INSERT_ROWS,
    Rows,
    Sink,
    StoredRows,
    attempt_name,
    of_load,
    rejected_rows,
    stored_checksum,
)
from semistream.streaming.sinks.delta_files import (
    GROUP_BYTES,
    LOAD_ROW,
    READ_ROWS,
    DataFiles,
    read_columns,
)
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import Spool
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.checksum import checksum, signed
from semistream.warehouse.identity import warehouse_identity
from semistream.warehouse.inferred import Filling
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.records import Commit, LoadRecord
from semistream.warehouse.resolution import mark_resolved
from semistream.warehouse.schema import inferred, metadata, propagated, unmatched
from semistream.warehouse.tables import ROW_KEY, fact_table

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

WAREHOUSE = "semistream.warehouse"  # property of the table: the identity of its warehouse
RESTORE = (
    "Restore it from a backup of the same time as the ledger; or delete the table, and load "
    "the source anew: semistream reset APP."
)
RESOLVED = "resolved"  # kind of staged rows: keys of rows of ``unmatched``, not rows of a table
TRIES = 10  # attempts to change a table that others change at the same time
READ_VALUES = 2_000_000  # read at a time for the proof, or READ_ROWS if that is less


@lru_cache(maxsize=4)
def _delta_table(uri: str) -> DeltaTable:
    """Open the table once per process. Opening reads the metadata of all its files, whose number
    grows with every batch."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(uri)
    except DeltaError as e:
        raise StateError(f"The Delta table {uri} cannot be opened: {e}. {RESTORE}") from None


def _transaction(app: str, at: Position) -> tuple[str, int]:
    """Return the application id and the version of the Delta transaction of a commit. Resolving
    loads have a separate application id, so that the versions of batches and drains stay the same
    as before resolving loads existed."""
    if resolves(at[1]):
        return f"{app}/resolve", KINDS * at[0] + at[1]
    return app, 2 * at[0] + at[1]


def _newest(table: DeltaTable, app: str) -> Position | None:
    """Return the position of the newest commit of an app in a table's log; None if there is
    none."""
    name, _ = _transaction(app, (0, Kind.RESOLVE))
    found = [(table.transaction_version(app), 2), (table.transaction_version(name), KINDS)]
    return max((divmod(v, base) for v, base in found if v is not None), default=None)


@dataclass(frozen=True)
class DeltaSink(Sink):
    """The sink of a Delta table.

    Tasks write Parquet files to which nothing refers. The driver first records the commit. Then it
    commits the files as one Delta transaction under the app's transaction version (see
    ``_version``). In one transaction of the warehouse it writes unmatched tuples and ledger rows,
    and marks resolved rows. After a crash both steps are repeated, which is harmless. A batch that
    is not committed leaves nothing to delete, and the driver starts no task for a committed batch.

    Rows have their load's ``load_id``. They have their number in the load only if the table has a
    column for it, because facts may have inferred members: ``inferred`` names them by it.

    numbered: whether the table has that column, once ``prepare`` has looked.
    """

    uri: str
    checkpoint: str
    warehouse: Warehouse
    numbered: bool = False
    two_phase: ClassVar[bool] = True
    in_warehouse: ClassVar[bool] = False
    put_back: ClassVar[str] = (
        "restore {sink}, and the ledger, to a version of the same time, or load into a new place "
        "under another --app name."
    )

    @staticmethod
    def accepts(setting: str) -> bool:
        return True  # every other setting is a directory or a URI

    @classmethod
    def open(cls, setting: str, warehouse: Warehouse, checkpoint: Path) -> DeltaSink:
        return cls(setting, str(checkpoint), warehouse)

    def writer(
        self, schema: pa.Schema, app: str, batch: int, drain: int, partition: int
    ) -> DataFiles:
        key = self.warehouse.ledger(app).load_id(batch, drain, partition)
        return DataFiles(
            self.uri,
            schema,
            f"{batch:09d}-{drain}-{partition:04d}",
            {"load_id": pa.scalar(key, pa.int64())},
            numbered=self.numbered,
        )

    def write(self, record: LoadRecord, spool: Spool) -> LoadRecord:
        assert isinstance(spool.writer, DataFiles)
        name, files = f"{attempt_name(record)}.parquet", spool.writer.close()
        rejected, staged = spool.unmatched(), {}
        unmatched_checksum = stored_checksum(rejected, self.warehouse.engine)
        for what, rows in (
            (unmatched.name, rejected),
            (inferred.name, spool.inferred()),
            (propagated.name, spool.propagated()),
            (RESOLVED, spool.resolved()),
        ):
            if rows.num_rows:
                staged[what] = f"{what}-{name}"
                self._stage(staged[what], rows)
        return replace(
            record,
            prepared={"files": files, "staged": staged},
            facts_checksum=signed(spool.writer.total),
            unmatched_checksum=unmatched_checksum,
        )

    def _stage(self, name: str, rows: pa.Table) -> None:
        """Store rows for the warehouse in a file until the commit."""
        staging = Path(self.checkpoint) / "staging"
        staging.mkdir(exist_ok=True)
        with naming(staging / name):
            pq.write_table(rows, staging / name, row_group_size=INSERT_ROWS)
            sync(staging / name)

    def prepare(
        self, stream: pa.Schema, added: pa.Schema, id_columns: tuple[str, ...]
    ) -> DeltaSink:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        # checks for repeated names: the proof copies the rows to a table of the warehouse
        fact_table(self.warehouse.fact, stream, self.warehouse.surrogates, added, id_columns)
        schema = pa.schema([*stream, *added, pa.field("load_id", pa.int64())])
        more = [LOAD_ROW] if self.warehouse.infers else []
        _delta_table.cache_clear()  # another table may have been made at the same place
        try:
            if not DeltaTable.is_deltatable(self.uri):
                if "://" not in self.uri:
                    Path(self.uri).mkdir(parents=True, exist_ok=True)
                try:
                    whole = pa.schema([*schema, *more])
                    DeltaTable.create(self.uri, whole, mode="ignore", name=self.warehouse.fact)
                except DeltaError:
                    if not DeltaTable.is_deltatable(self.uri):  # otherwise another app was first
                        raise
            table = DeltaTable(self.uri)
            found = _columns(table)
        except DeltaError as e:
            raise ConfigError(
                "sink", "must be a Delta table, or a place for one", self.uri, str(e)
            ) from None
        if [name for name in found if name != LOAD_ROW.name] != schema.names:
            raise ConfigError(
                "sink",
                "must be a Delta table of the job's columns",
                found,
                f"They are: {', '.join(schema.names)}. Name another table.",
            )
        self._claim(table)
        if more:
            _number(table)
        return replace(self, numbered=LOAD_ROW.name in _columns(table))

    def _claim(self, table: DeltaTable) -> None:
        """Refuse a table that another warehouse loads. Both warehouses would use the same load_ids,
        and mistake each other's transactions of an app of the same name for their own."""
        mine = warehouse_identity(self.warehouse.engine, self.warehouse.retry)

        def owner() -> str | None:
            return table.metadata().configuration.get(WAREHOUSE)

        def claim() -> None:
            table.alter.set_table_properties({WAREHOUSE: mine}, raise_if_not_exists=False)

        _change(table, claim, lambda: owner() is not None)
        if owner() != mine:
            raise ConfigError(
                "sink",
                "must be a Delta table that no other warehouse loads",
                self.uri,
                f"Its property {WAREHOUSE} is {owner()}, and this "
                f"warehouse's identity {mine}. Name another table, or set "
                "WAREHOUSE_URL to the warehouse that has its ledger.",
            )

    def commit(self, commit: Commit, loads: Sequence[LoadRecord]) -> None:
        from deltalake import CommitProperties, Transaction

        table = _delta_table(self.uri)
        name, version = _transaction(commit.app, (commit.batch, commit.drain))
        table.update_incremental()
        newest = table.transaction_version(name)
        if newest is None or newest < version:
            files = [file for load in loads for file in load.prepared["files"]]
            once = CommitProperties(app_transactions=[Transaction(name, version)])
            table.create_write_transaction(
                _added(files), "append", table.schema(), commit_properties=once
            )
        self._flush(table.version())
        staging = Path(self.checkpoint) / "staging"
        ledger = self.warehouse.ledger(commit.app)

        def write(connection: Connection) -> None:
            for load in loads:
                key = ledger.load_id(load.batch, load.drain, load.partition)
                for what, name in load.prepared["staged"].items():
                    with open_parquet(staging / name) as file:
                        columns, first = file.schema_arrow.names, 0
                        parts = parquet_batches(file, columns, INSERT_ROWS, GROUP_BYTES)
                        if what == RESOLVED:
                            mark_resolved(connection, key, parts)
                            continue
                        for part in parts:
                            rows, fact = pa.Table.from_batches([part]), self.warehouse.fact
                            keyed = (
                                of_load(rows, key, fact)
                                if what == inferred.name
                                else rejected_rows(rows, key, fact, first)
                            )
                            bulk_insert(connection, metadata.tables[what], keyed)
                            first += part.num_rows

        ledger.commit(commit, loads, write)

    def clean_up(self) -> None:
        for left_over in (Path(self.checkpoint) / "staging").glob("*.parquet"):
            left_over.unlink(missing_ok=True)

    def take_out(self, loads: Sequence[tuple[int, int]]) -> None:
        from deltalake.exceptions import DeltaError

        table = self._existing()
        before = table.version()
        try:
            for first, last in loads:
                table.delete(f"load_id >= {first} AND load_id <= {last}")
        except DeltaError as e:
            raise StateError(
                f"The Delta table {self.uri} refuses to delete rows: {e}. Do it again."
            ) from None
        self._flush(before + 1)

    def fill(self, filling: Filling, ledger: Ledger) -> int:
        for _ in range(TRIES - 1):
            with suppress(_Rewritten):
                return self._fill(filling, ledger)
        return self._fill(filling, ledger)

    def _fill(self, filling: Filling, ledger: Ledger) -> int:
        """Write the data files that have facts to fill in anew. They replace the former ones as the
        last step of the ledger's transaction. Raises _Rewritten."""
        number, state, table = ledger.number(), ledger.run(filling.state), self._existing()
        data = table.to_pyarrow_dataset()
        added = filling.added(data.schema.names)
        loads = ledger.run(lambda connection: filling.loads(connection, number)) if added else set()
        old, new, more = list[str](), list[dict[str, Any]](), Counter[int]()

        def found(facts: pa.RecordBatch, added: Mapping[str, str]) -> tuple[np.ndarray, pa.Table]:
            return ledger.run(
                lambda connection: filling.values(connection, number, loads, facts, added)
            )

        key = pa.schema([field for field in data.schema if field.name in ROW_KEY])
        mine = pc.field("load_id").isin(pa.array(sorted(loads), pa.int64()))
        for fragment in data.get_fragments(filter=mine) if loads else ():
            read = partial(read_columns, data.filesystem, fragment.path)
            if not (
                fragment.subset(mine, schema=data.schema).row_groups
                and any(len(found(some, {})[0]) for some in read(key))
            ):
                continue
            writer = DataFiles(self.uri, data.schema, "filled", {})
            try:
                for batch in read(data.schema):
                    at, values = found(batch, added)
                    batch = _replaced(batch, at, values)
                    more.update(_growth(batch.take(pa.array(at)), values.column_names))
                    writer.write(batch)
                new += writer.close()
            except BaseException:
                writer.discard()
                raise
            old.append(fragment.path)

        def write(connection: Connection) -> int:
            facts = filling.record(connection, number, state, more)
            if old:
                self._replace(table, old, new)
            return facts

        return ledger.run(write)

    def _replace(self, table: DeltaTable, old: list[str], new: list[dict[str, Any]]) -> None:
        """Commit that data files are replaced by others. Raises _Rewritten."""
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        # delta-rs would let the commit pass if a compaction has removed the files meanwhile
        alone, now = CommitProperties(max_commit_retries=0), time.time_ns() // 1_000_000
        actions = [*_added(new), *(RemoveAction(path, True, now) for path in old)]
        for _ in range(TRIES):
            if not _sizes(table).keys() >= {*old}:
                break
            try:
                table.create_write_transaction(
                    actions, "append", table.schema(), commit_properties=alone
                )
            except CommitFailedError:  # another process was first
                table.update_incremental()
            else:
                self._flush(table.version())
                return
        raise _Rewritten(
            f"The Delta table {self.uri} was changed by others again and again while facts were "
            "filled in. Run the load again."
        )

    def missing(self, app: str) -> str | None:
        ledger = self.warehouse.ledger(app)
        if (newest := ledger.newest_work(self.uri)) is None:
            return None
        if (table := self._table()) is None:
            return f"The Delta table {self.uri} is gone"
        if (_newest(table, app) or START) < newest:
            return f"The log of the Delta table {self.uri} does not have {named(newest)}"
        if ledger.newest_output(self.uri) is not None and not table.file_uris():
            return f"The Delta table {self.uri} has no rows"
        return None

    def newest(self, app: str) -> tuple[int, int] | None:
        table = self._table()
        return None if table is None else _newest(table, app)

    def _table(self) -> DeltaTable | None:
        """Return the table in its present state; None if there is none. Raises StateError if its
        log cannot be read."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return DeltaTable(self.uri) if DeltaTable.is_deltatable(self.uri) else None
        except DeltaError as e:
            raise StateError(
                f"The log of the Delta table {self.uri} cannot be read: {e}. {RESTORE}"
            ) from None

    def _existing(self) -> DeltaTable:
        """Return the table in its present state. Raises StateError if there is none."""
        if (table := self._table()) is None:
            raise StateError(f"The Delta table {self.uri} is gone. {RESTORE}")
        return table

    def stored(self, app: str) -> StoredRows:
        if (table := self._table()) is None:
            raise ConfigError(
                "sink",
                "must be a Delta table that exists",
                self.uri,
                "It was written by this app and is gone.",
            )
        data, number = table.to_pyarrow_dataset(), self.warehouse.ledger(app).number()
        schema, (first, last) = pa.schema(data.schema), app_loads(number)
        mine = (pc.field("load_id") >= first) & (pc.field("load_id") <= last)
        sizes = _sizes(table)

        def read(fragment: ds.Fragment) -> Iterator[pa.RecordBatch]:
            found = data.filesystem.get_file_info(fragment.path).size
            wanted = sizes.get(fragment.path)
            if wanted not in (None, found):
                raise OSError(
                    "it is gone"
                    if found is None
                    else f"it has {found:,} bytes in place of {wanted:,}"
                )
            rows = max(min(READ_ROWS, READ_VALUES // len(schema)), 1)
            yield from fragment.to_batches(schema=data.schema, filter=mine, batch_size=rows)

        def others(fragment: ds.Fragment) -> Iterator[pa.RecordBatch]:
            key = pc.field("load_id")
            return fragment.to_batches(
                schema=data.schema,
                columns=["load_id"],
                filter=~mine | key.is_null(),
                batch_size=READ_ROWS,
            )

        def files(of: Callable[[ds.Fragment], Iterator[pa.RecordBatch]]) -> Iterator[Rows]:
            return ((f"{self.uri}/{f.path}", partial(of, f)) for f in data.get_fragments())

        return StoredRows(schema, files(read), files(others))

    def _flush(self, version: int) -> None:
        """Wait until the table's log from this version on is flushed to disk. The ledger relies on
        the log afterwards."""
        files, directory = pyarrow.fs.FileSystem.from_uri(self.uri)
        if not isinstance(files, pyarrow.fs.LocalFileSystem):
            return
        log = Path(directory) / "_delta_log"
        while (entry := log / f"{version:020d}.json").exists():
            sync(entry)
            version += 1
        sync(log)


class _Rewritten(StateError):
    """Another process has replaced a data file that was to be replaced, or commits all the time."""


def _columns(table: DeltaTable) -> list[str]:
    return [field.name for field in table.schema().fields]


def _sizes(table: DeltaTable) -> dict[str, int]:
    """Return the size in bytes of each data file, by its path in the table."""
    log = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    return {unquote(path): size for path, size in zip(log["path"], log["size_bytes"], strict=True)}


def _change(table: DeltaTable, change: Callable[[], None], done: Callable[[], bool]) -> None:
    """Change a table's metadata unless this is done. Other processes may do so at the same time."""
    from deltalake.exceptions import CommitFailedError

    for _ in range(TRIES):
        if done():
            break
        with suppress(CommitFailedError):  # another process was first
            change()
        table.update_incremental()


def _number(table: DeltaTable) -> None:
    """Add the column for the rows' numbers to a table that was made when no dimension had inferred
    members. The table's present rows have null there."""
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    column = Field(LOAD_ROW.name, PrimitiveType("integer"), nullable=True)
    _change(
        table, lambda: table.alter.add_columns(column), lambda: LOAD_ROW.name in _columns(table)
    )


def _added(files: Sequence[Mapping[str, Any]]) -> list[AddAction | RemoveAction]:
    """Return the actions that add data files to a table. files: as ``DataFiles.close`` returns
    them."""
    from deltalake.transaction import AddAction

    return [
        AddAction(f["path"], f["size"], {}, 0, True, json.dumps({"numRecords": f["rows"]}))
        for f in files
    ]


def _replaced(rows: pa.RecordBatch, at: np.ndarray, values: pa.Table) -> pa.RecordBatch:
    """Return rows with other values in some columns at these positions, int64[k]. values: k rows,
    with columns that ``rows`` has."""
    taken = np.arange(rows.num_rows)
    taken[at] = rows.num_rows + np.arange(len(at))
    for name in values.column_names:
        number, field = rows.schema.get_field_index(name), rows.schema.field(name)
        both = pa.concat_arrays([rows[name], *values[name].cast(field.type).chunks])
        rows = rows.set_column(number, field, both.take(pa.array(taken)))
    return rows


def _growth(rows: pa.RecordBatch, filled: Sequence[str]) -> dict[int, int]:
    """Return, by load, by what the checksum of these facts has grown when columns that were null
    were filled in. A null adds nothing to it."""
    growth = dict[int, int]()
    for load in pc.unique(rows["load_id"]).to_pylist():
        mine = rows.filter(pc.equal(rows["load_id"], load)).drop_columns([*ROW_KEY])
        growth[load] = checksum(mine) - checksum(mine.drop_columns([*filled]))
    return growth
