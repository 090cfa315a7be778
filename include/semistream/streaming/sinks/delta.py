"""A Delta table as the sink."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from semistream.durable import naming, read_checked, sync, write_checked
from semistream.errors import ConfigError
from semistream.streaming.progress import RESTORE
from semistream.streaming.sinks.base import LOAD_FIELDS, ledger_row, rejected_rows, stored_checksum, with_load
from semistream.streaming.sinks.sql import SqlSink
from semistream.warehouse.checksum import checksum, signed

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from semistream.streaming.task import Spool

INTENT = "intent.json"
GROUP_ROWS, GROUP_BYTES = 131_072, 32_000_000  # of a data file's row group, about; they are in memory until it is written


@lru_cache(maxsize=4)
def _delta_table(uri: str) -> DeltaTable:
    """It is opened once: that reads the metadata of all its files, which become more with every batch."""
    from deltalake import DeltaTable

    return DeltaTable(uri)


@dataclass(frozen=True)
class DeltaSink:
    """Tasks write Parquet files that nothing refers to. The driver notes them (``intent.json``: the promise), commits them as one
    Delta transaction under the app's transaction version 2 batch + drain, then writes unmatched tuples and ledger rows in one
    transaction of the warehouse. After a crash only what follows the intent is done again, and both steps can be.
    """

    uri: str
    checkpoint: str
    warehouse: SqlSink

    def loaded(self, app: str, batch: int, drain: int, partition: int) -> dict[str, Any] | None:
        return None  # the driver asks no task for a batch that is in

    def take_back(self, app: str, batch: int, drain: int) -> None:
        return None  # nothing refers to what was written

    def data_file(self, schema: pa.Schema, load: dict[str, Any]) -> DataFile:
        return DataFile(self.uri, schema, load)

    def write(self, entry: dict[str, Any], spool: Spool) -> dict[str, Any]:
        assert spool.data is not None
        name, data = f"{entry['state_file']}.parquet", spool.data.close()
        unmatched_checksum = stored_checksum(spool.unmatched(), self.warehouse.engine.dialect.name)
        rejected = rejected_rows(spool.unmatched(), entry, self.warehouse.fact)
        if rejected.num_rows:
            staging = Path(self.checkpoint) / "staging"
            staging.mkdir(exist_ok=True)
            with naming(staging / name):
                pq.write_table(rejected, staging / name)
                sync(staging / name)
        return entry | {"data": data, "unmatched_file": name if rejected.num_rows else None,
                        "facts_checksum": signed(spool.data.total), "unmatched_checksum": unmatched_checksum}

    def prepare(self, stream: pa.Schema, added: pa.Schema, id_columns: tuple[str, ...]) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        schema = pa.schema([*stream, *added, *(pa.field(n, t) for n, t in LOAD_FIELDS)])
        _delta_table.cache_clear()  # it may be another table, made anew at the same place
        try:
            if not DeltaTable.is_deltatable(self.uri):
                if "://" not in self.uri:
                    Path(self.uri).mkdir(parents=True, exist_ok=True)
                DeltaTable.create(self.uri, schema, mode="ignore", name=self.warehouse.fact)
            found = [f.name for f in DeltaTable(self.uri).schema().fields]
        except DeltaError as e:
            raise ConfigError("sink", "must be a Delta table, or a place for one", self.uri, str(e)) from None
        if found != schema.names:
            raise ConfigError("sink", "must be a Delta table of the job's columns", found,
                              f"They are: {', '.join(schema.names)}. Name another table.")

    def promise(self, commit: dict[str, Any], entries: list[dict[str, Any]]) -> bool:
        write_checked(Path(self.checkpoint) / INTENT, {"commit": commit, "entries": entries})
        return True

    def commit(self, commit: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        table, version = _delta_table(self.uri), 2 * commit["batch"] + commit["drain"]
        table.update_incremental()
        newest = table.transaction_version(commit["app"])
        if newest is None or newest < version:
            files = [e["data"] for e in entries if e["data"]]
            actions: list[AddAction | RemoveAction] = [
                AddAction(f["path"], f["size"], {}, 0, True, json.dumps({"numRecords": f["rows"]})) for f in files]
            once = CommitProperties(app_transactions=[Transaction(commit["app"], version)])
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=once)
        self._flush(table.version())
        staging = Path(self.checkpoint) / "staging"
        rejected = [pq.read_table(staging / e["unmatched_file"]) for e in entries if e["unmatched_file"]]
        rows = [ledger_row(e) for e in entries]
        self.warehouse.ledger(commit["app"]).commit(commit, rows, pa.concat_tables(rejected) if rejected else None)
        (Path(self.checkpoint) / INTENT).unlink(missing_ok=True)
        for left_over in staging.glob("*.parquet"):
            left_over.unlink(missing_ok=True)

    def version(self, app: str) -> int | None:
        """The newest transaction version that the table has of an app."""
        from deltalake import DeltaTable

        return DeltaTable(self.uri).transaction_version(app) if DeltaTable.is_deltatable(self.uri) else None

    def _flush(self, version: int) -> None:
        """Wait until the table's log from a version on is on disk: the ledger will say that it is."""
        files, directory = pyarrow.fs.FileSystem.from_uri(self.uri)
        if not isinstance(files, pyarrow.fs.LocalFileSystem):
            return
        log = Path(directory) / "_delta_log"
        while (entry := log / f"{version:020d}.json").exists():
            sync(entry)
            version += 1
        sync(log)


def keep_promise(checkpoint: Path, warehouse: SqlSink) -> None:
    """Finish a commit that a crash left half-way, whatever sink is asked for now."""
    intent = read_checked(checkpoint / INTENT, RESTORE)
    if intent is not None:
        DeltaSink(intent["commit"]["sink"], str(checkpoint), warehouse).commit(intent["commit"], intent["entries"])


class DataFile:
    """A partition's joined rows as a Parquet file of a Delta table, written, and on a local disk flushed, while they are joined;
    until the driver's commit nothing refers to it."""

    def __init__(self, uri: str, schema: pa.Schema, load: dict[str, Any]):
        self._files, self._directory = pyarrow.fs.FileSystem.from_uri(uri)
        self._local = isinstance(self._files, pyarrow.fs.LocalFileSystem)
        self._name = f"{load['batch']:09d}-{load['drain']}-{load['partition']:04d}-{uuid.uuid4().hex}.parquet"
        self._schema, self._load = schema, load
        self._writer: pq.ParquetWriter | None = None
        self._flushing: threading.Thread | None = None
        self._group: list[pa.RecordBatch] = []
        self._rows = self._group_rows = self._group_bytes = 0
        self.total = 0  # the sum of the rows' checksums

    def write(self, rows: pa.RecordBatch) -> None:
        self._group.append(rows)
        self._group_rows += rows.num_rows
        self._group_bytes += rows.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> dict[str, Any] | None:
        """What the commit says of it: path, size and rows; None where there are none, and no file."""
        if self._group:
            self._write_group()
        if self._writer is None:
            return None
        with naming(self._path):
            self._writer.close()
            if self._local:
                sync(Path(self._path))
                sync(Path(self._directory))
        return {"path": self._name, "size": self._files.get_file_info(self._path).size, "rows": self._rows}

    def discard(self) -> None:
        if self._writer is not None:
            with suppress(OSError):  # a full disk, say, which is being reported already
                self._writer.close()
            if self._flushing is not None:
                self._flushing.join()
            self._files.delete_file(self._path)

    @property
    def _path(self) -> str:
        return f"{self._directory}/{self._name}"

    def _write_group(self) -> None:
        joined = pa.Table.from_batches(self._group, self._schema)
        self.total += checksum(joined)
        group = with_load(joined, self._load)
        with naming(self._path):
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path, group.schema, filesystem=self._files, compression="snappy",
                                                use_dictionary=_with_dictionary(group.schema))
            self._writer.write_table(group, GROUP_ROWS * 2)
        self._rows += group.num_rows
        self._group, self._group_rows, self._group_bytes = [], 0, 0
        self._flush()

    def _flush(self) -> None:
        """Begin to bring what is written to disk, so that little is left of it when the file ends."""
        if self._local and (self._flushing is None or not self._flushing.is_alive()):
            self._flushing = threading.Thread(target=sync, args=(Path(self._path),), daemon=True)
            self._flushing.start()


def _with_dictionary(schema: pa.Schema) -> list[str]:
    """Columns whose values are worth a dictionary; for numbers, trying it takes longer than the compression."""
    return [f.name for f in schema if not pa.types.is_primitive(f.type) or f.name in dict(LOAD_FIELDS)]
