"""A task's output on local disk, before it is loaded."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from typing import Any

import pyarrow as pa

from semistream.config import SIDES
from semistream.durable import naming
from semistream.joins.output import UNPARSABLE
from semistream.scratch import task_directory
from semistream.source_files import RAW
from semistream.streaming.sinks.base import PROPAGATED, UNMATCHED
from semistream.streaming.sinks.delta import DataFiles
from semistream.warehouse.ids import stream_ids

GATHERED_BYTES = 16_000_000  # of unparsable tuples
TUPLES = 8192  # unmatched ones that are Python objects at a time


class Spool:
    """A task's output on local disk, until it is loaded in one short transaction that can be tried
    again.

    ``joined()`` and ``unmatched()`` are tables whose pages the system reads from the files when
    they are touched. data: where the sink has joined rows written at once.
    """

    def __init__(self, joined: pa.Schema, streams: tuple[pa.Schema, ...],
                 ids: tuple[tuple[str, ...], ...], data: DataFiles | None = None,
                 first: int | None = None):
        """joined: schema of the joined rows, of which the first ones are the (left) stream's;
        streams: of each stream's rows; ids: names of its id columns."""
        self.output_schema, self.streams, self.ids, self.data = joined, streams, ids, data
        self._first = len(streams[0]) if first is None else first
        self._directory = tempfile.TemporaryDirectory(prefix="semistream-", dir=task_directory())
        self._schemas = {"joined": joined, "unmatched": UNMATCHED, "propagated": PROPAGATED}
        # unparsable tuples that are not written yet, by side
        self._rejected: list[list[pa.RecordBatch]] = [[] for _ in streams]
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
        """The (left) stream's columns in the types that the join gives them out in."""
        return pa.schema(list(self.output_schema)[:self._first])

    @property
    def added_schema(self) -> pa.Schema:
        return pa.schema(list(self.output_schema)[self._first:])

    def write(self, joined: pa.RecordBatch | None, unmatched: pa.RecordBatch | None,
              side: int = 0, propagated: list[str] | None = None) -> None:
        """unmatched: tuples of the side, and why; propagated: patterns over the side's join
        columns."""
        if propagated:
            columns = [pa.repeat(SIDES[side], len(propagated)), pa.array(propagated)]
            self._append("propagated", pa.record_batch(columns, schema=PROPAGATED))
        if joined is not None and joined.num_rows and self.data is not None:
            self.data.write(joined)
        elif joined is not None and joined.num_rows:
            self._append("joined", joined)
        if unmatched is not None and unmatched.num_rows:
            # the stream may have a column of that name, too
            *columns, reasons = unmatched.columns
            tuples = pa.RecordBatch.from_arrays(columns,
                                                schema=pa.schema(list(unmatched.schema)[:-1]))
            self.keep(tuples, reasons, side)

    def keep(self, tuples: pa.RecordBatch, reasons: pa.Array, side: int = 0) -> None:
        """Keep tuples that are not loaded."""
        for first in range(0, tuples.num_rows, TUPLES):
            part, why = tuples.slice(first, TUPLES), reasons.slice(first, TUPLES)
            self._append("unmatched", unmatched_rows(part, why, self.ids[side], self._side(side)))

    def _side(self, side: int) -> str | None:
        return SIDES[side] if len(self.streams) > 1 else None

    def reject(self, batch: pa.RecordBatch, side: int = 0) -> None:
        """Keep tuples that could not be parsed: their text, and why."""
        rejected = pa.record_batch([stream_ids(batch, self.ids[side]), batch.column(RAW)],
                                   names=["id", RAW])
        self._rejected[side].append(rejected)
        self._rejected_bytes += rejected.nbytes
        if self._rejected_bytes > GATHERED_BYTES:
            self._explain()

    def _explain(self) -> None:
        """Of many at once, as their lines are looked for in their files."""
        for side, rejected in enumerate(self._rejected):
            if rejected:
                self._explain_side(side, rejected)
        self._rejected, self._rejected_bytes = [[] for _ in self.streams], 0

    def _explain_side(self, side: int, rejected: list[pa.RecordBatch]) -> None:
        # what imports pandas, for the few that need it
        from semistream.streaming.unparsable import explain

        rows = pa.Table.from_batches(rejected).combine_chunks().to_batches()[0]
        kept = explain(rows.column(RAW).to_pylist(), self.streams[side], self._explained)
        sides = pa.array([self._side(side)] * len(kept), pa.string())
        columns = [pa.repeat(UNPARSABLE, len(kept)), sides, rows.column("id"),
                   pa.array([json.dumps(row) for row in kept])]
        self._append("unmatched", pa.record_batch(columns, schema=UNMATCHED))
        self._explained += len(kept)

    def joined(self) -> pa.Table:
        return self._read("joined")

    def unmatched(self) -> pa.Table:
        """Columns reason, side, stream_id, tuple."""
        self._explain()
        return self._read("unmatched")

    def propagated(self) -> pa.Table:
        """Columns side, pattern."""
        return self._read("propagated")

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


def unmatched_rows(tuples: pa.RecordBatch, reasons: pa.Array, id_columns: tuple[str, ...],
                   side: str | None = None) -> pa.RecordBatch:
    """Tuples as rows of the table ``unmatched``."""
    texts = [json.dumps(row, default=_plain) for row in tuples.to_pylist()]
    sides = pa.array([side] * len(texts), pa.string())
    return pa.record_batch([reasons, sides, stream_ids(tuples, id_columns),
                            pa.array(texts, pa.string())], schema=UNMATCHED)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
