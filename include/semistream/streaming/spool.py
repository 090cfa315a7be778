"""A task's output on local disk, before it is loaded."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from typing import Any

import pyarrow as pa

from semistream.durable import naming
from semistream.joins import JoinOutput
from semistream.joins.output import UNPARSABLE
from semistream.scratch import task_directory
from semistream.source_files import RAW
from semistream.streaming.sinks.base import UNMATCHED
from semistream.streaming.sinks.delta import DataFile
from semistream.warehouse.ids import stream_ids

GATHERED_BYTES = 16_000_000  # of unparsable tuples
TUPLES = 8192  # unmatched ones that are Python objects at a time


class Spool:
    """A task's output on local disk, until it is loaded in one short transaction that can be tried
    again.

    ``joined()`` and ``unmatched()`` are tables whose pages the system reads from the files when
    they are touched. data: where the sink has joined rows written at once.
    """

    def __init__(self, joined: pa.Schema, stream: pa.Schema, stream_id: tuple[str, ...],
                 data: DataFile | None = None):
        """joined: schema of the joined rows; stream: of the tuples; stream_id: names of the tuples'
        id columns."""
        self.output_schema, self.stream, self.stream_id, self.data = joined, stream, stream_id, data
        self._directory = tempfile.TemporaryDirectory(prefix="semistream-", dir=task_directory())
        self._schemas = {"joined": joined, "unmatched": UNMATCHED}
        self._rejected: list[pa.RecordBatch] = []  # unparsable ones that are not written yet
        self._rejected_bytes, self._explained = 0, 0
        self._writers: dict[str, pa.RecordBatchStreamWriter] = {}

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers.values():
            with suppress(OSError):  # a full disk, say, which is being reported already
                writer.close()
        self._directory.cleanup()
        if failed and self.data is not None:
            self.data.discard()

    @property
    def stream_schema(self) -> pa.Schema:
        """The stream's columns in the types that the join gives them out in."""
        return pa.schema(list(self.output_schema)[:len(self.stream)])

    @property
    def added_schema(self) -> pa.Schema:
        return pa.schema(list(self.output_schema)[len(self.stream):])

    def write(self, output: JoinOutput) -> None:
        if output.joined.num_rows and self.data is not None:
            self.data.write(output.joined)
        elif output.joined.num_rows:
            self._append("joined", output.joined)
        if output.unmatched.num_rows:
            # the stream may have a column of that name, too
            *columns, reasons = output.unmatched.columns
            self.keep(pa.RecordBatch.from_arrays(
                columns, schema=pa.schema(list(output.unmatched.schema)[:-1])), reasons)

    def keep(self, tuples: pa.RecordBatch, reasons: pa.Array) -> None:
        """Keep tuples that are not loaded."""
        for first in range(0, tuples.num_rows, TUPLES):
            part, why = tuples.slice(first, TUPLES), reasons.slice(first, TUPLES)
            self._append("unmatched", unmatched_rows(part, why, self.stream_id))

    def reject(self, batch: pa.RecordBatch) -> None:
        """Keep tuples that could not be parsed: their text, and why."""
        self._rejected.append(pa.record_batch([stream_ids(batch, self.stream_id),
                                               batch.column(RAW)], names=["id", RAW]))
        self._rejected_bytes += self._rejected[-1].nbytes
        if self._rejected_bytes > GATHERED_BYTES:
            self._explain()

    def _explain(self) -> None:
        """Of many at once, as their lines are looked for in their files."""
        if not self._rejected:
            return
        # what imports pandas, for the few that need it
        from semistream.streaming.unparsable import explain

        rows = pa.Table.from_batches(self._rejected).combine_chunks().to_batches()[0]
        kept = explain(rows.column(RAW).to_pylist(), self.stream, self._explained)
        columns = [pa.repeat(UNPARSABLE, len(kept)), rows.column("id"),
                   pa.array([json.dumps(row) for row in kept])]
        self._append("unmatched", pa.record_batch(columns, schema=UNMATCHED))
        self._explained += len(kept)
        self._rejected, self._rejected_bytes = [], 0

    def joined(self) -> pa.Table:
        return self._read("joined")

    def unmatched(self) -> pa.Table:
        """Columns reason, stream_id, tuple."""
        self._explain()
        return self._read("unmatched")

    def _append(self, name: str, batch: pa.RecordBatch) -> None:
        path = os.path.join(self._directory.name, name)
        with naming(path):
            if name not in self._writers:
                self._writers[name] = pa.ipc.new_stream(path, self._schemas[name])
            self._writers[name].write_batch(batch)

    def _read(self, name: str) -> pa.Table:
        if name not in self._writers:
            return self._schemas[name].empty_table()
        self._writers[name].close()
        with pa.memory_map(os.path.join(self._directory.name, name)) as file:
            return pa.ipc.open_stream(file).read_all()


def unmatched_rows(tuples: pa.RecordBatch, reasons: pa.Array,
                   id_columns: tuple[str, ...]) -> pa.RecordBatch:
    """Tuples as rows of the table ``unmatched``."""
    texts = [json.dumps(row, default=_plain) for row in tuples.to_pylist()]
    return pa.record_batch([reasons, stream_ids(tuples, id_columns), pa.array(texts, pa.string())],
                           schema=UNMATCHED)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
