"""A task's output on local disk, before it is loaded."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from semistream.durable import naming
from semistream.files.convert import json_text
from semistream.files.source import Rejected
from semistream.gathering import Gathered
from semistream.job import SIDES
from semistream.reasons import Reason
from semistream.scratch import task_directory
from semistream.warehouse.closing import Final
from semistream.warehouse.ids import stream_ids
from semistream.warehouse.inferred import INFERRED
from semistream.warehouse.resolution import ORIGINS
from semistream.warehouse.types import python_rows

# unmatched tuples and propagated patterns
UNMATCHED = pa.schema(
    [
        ("reason", pa.string()),
        ("side", pa.string()),
        ("role", pa.string()),
        ("stream_id", pa.string()),
        ("tuple", pa.string()),
        ("key_code", pa.int64()),
    ]
)
PROPAGATED = pa.schema([("side", pa.string()), ("pattern", pa.string())])
TEXT = "_corrupt_record"  # the field of an unparsable tuple's text; the name is Spark's
WRITTEN_BYTES = 4_000_000  # of buffered rows that are written at a time
VALUES = 131_072  # of unmatched tuples that are Python objects at a time


class RowWriter(Protocol):
    """A sink's writer of a partition's joined rows, which receives them as they are produced."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows of the partition."""

    def discard(self) -> None:
        """Delete everything that was written."""


class Spool(AbstractContextManager["Spool"]):
    """A task's output on local disk, until it is loaded in one short transaction that can be
    repeated.

    ``joined()`` and ``unmatched()`` are tables that map the files into memory: the system reads a
    page when it is accessed. writer: a writer of a sink that receives joined rows as they are
    produced.
    """

    def __init__(
        self,
        joined: pa.Schema,
        streams: tuple[pa.Schema, ...],
        ids: tuple[tuple[str, ...], ...],
        writer: RowWriter | None = None,
        first: int | None = None,
        *,
        closes: bool = False,
    ):
        """Create the spool. joined: schema of the joined rows, whose first columns are the (left)
        stream's; streams: schema of each stream's rows; ids: names of each stream's id columns;
        closes: whether the sink needs the keys that become final."""
        self.output_schema, self.streams, self.ids, self.writer = joined, streams, ids, writer
        self._first = len(streams[0]) if first is None else first
        self._directory = tempfile.TemporaryDirectory(prefix="semistream-", dir=task_directory())
        self._schemas = {
            "joined": joined,
            "unmatched": UNMATCHED,
            "propagated": PROPAGATED,
            "resolved": ORIGINS,
            "inferred": INFERRED,
        }
        self._gathered = {name: Gathered(schema) for name, schema in self._schemas.items()}
        self._writers: dict[str, pa.RecordBatchStreamWriter] = {}
        self._closes, self._patterns = closes, list[dict[str, Any]]()
        self._joined = 0  # rows written so far

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers.values():
            with suppress(OSError):  # for instance a full disk, which is already being reported
                writer.close()
        self._directory.cleanup()
        if failed and self.writer is not None:
            self.writer.discard()

    @property
    def stream_schema(self) -> pa.Schema:
        """The (left) stream's columns, in the types that the join returns."""
        return pa.schema(list(self.output_schema)[: self._first])

    @property
    def added_schema(self) -> pa.Schema:
        return pa.schema(list(self.output_schema)[self._first :])

    def write(
        self,
        joined: pa.RecordBatch | None,
        unmatched: pa.RecordBatch | None,
        side: int = 0,
        propagated: list[str] | None = None,
        final: Final | None = None,
        role: str | None = None,
        codes: pa.Array | None = None,
        inferred: pa.RecordBatch | None = None,
    ) -> None:
        """Write the output of an operator.

        unmatched: tuples of the side, with the reason in the last column; propagated: patterns over
        the side's join columns; final: keys of the left stream that no later row has; role: the
        role in which the tuples are unmatched, if there are several roles; codes: int64, the codes
        of their keys in that role, null for no key; inferred: the joined rows with inferred
        members, as ``INFERRED``, by their numbers in ``joined``.
        """
        if final is not None and self._closes:
            self._patterns += final.patterns
            for constants in final.constants.to_batches():
                if "final" not in self._schemas:
                    self._schemas["final"] = constants.schema
                    self._gathered["final"] = Gathered(constants.schema)
                self._append("final", constants)
        if propagated:
            columns = [pa.repeat(SIDES[side], len(propagated)), pa.array(propagated)]
            self._append("propagated", pa.record_batch(columns, schema=PROPAGATED))
        if inferred is not None and inferred.num_rows:
            numbers = pc.add(inferred.column(0), pa.scalar(self._joined, pa.int32()))
            self._append("inferred", inferred.set_column(0, INFERRED.field(0), numbers))
        self._joined += 0 if joined is None else joined.num_rows
        if joined is not None and joined.num_rows and self.writer is not None:
            self.writer.write(joined)
        elif joined is not None and joined.num_rows:
            self._append("joined", joined)
        if unmatched is not None and unmatched.num_rows:
            # by position: the stream may also have a column named reason
            *columns, reasons = unmatched.columns
            tuples = pa.RecordBatch.from_arrays(
                columns, schema=pa.schema(list(unmatched.schema)[:-1])
            )
            self.keep(tuples, reasons, side, role, codes)

    def keep(
        self,
        tuples: pa.RecordBatch,
        reasons: pa.Array,
        side: int = 0,
        role: str | None = None,
        codes: pa.Array | None = None,
    ) -> None:
        """Write tuples that are kept in ``unmatched``, with their reasons."""
        rows = max(VALUES // tuples.num_columns, 1)
        for first in range(0, tuples.num_rows, rows):
            part, why = tuples.slice(first, rows), reasons.slice(first, rows)
            some = None if codes is None else codes.slice(first, part.num_rows)
            self._append(
                "unmatched", unmatched_rows(part, why, self.ids[side], self._side(side), role, some)
            )

    def resolve(self, origins: pa.RecordBatch) -> None:
        """Write the keys of rows of ``unmatched`` whose tuples belong to this load from now on.
        origins: a batch of ``ORIGINS``."""
        self._append("resolved", origins)

    def _side(self, side: int) -> str | None:
        return SIDES[side] if len(self.streams) > 1 else None

    def reject(self, rejected: Sequence[Rejected], side: int = 0) -> None:
        """Write tuples that could not be read: the text, the reason, and the position of each."""
        columns = [
            pa.repeat(Reason.UNPARSABLE, len(rejected)),
            pa.array([self._side(side)] * len(rejected), pa.string()),
            pa.nulls(len(rejected), pa.string()),
            pa.array([r.id for r in rejected], pa.string()),
            pa.array(
                [
                    json.dumps(
                        {TEXT: r.text, "why": r.detail}
                        | ({"file": r.file, "line": r.line} if r.file else {})
                    )
                    for r in rejected
                ]
            ),
            pa.nulls(len(rejected), pa.int64()),
        ]
        self._append("unmatched", pa.record_batch(columns, schema=UNMATCHED))

    def joined(self) -> pa.Table:
        return self._read("joined")

    def unmatched(self) -> pa.Table:
        """Return the unmatched tuples, with the columns of ``UNMATCHED``."""
        return self._read("unmatched")

    def resolved(self) -> pa.Table:
        """Return the keys of the rows of ``unmatched`` whose tuples belong to this load."""
        return self._read("resolved")

    def inferred(self) -> pa.Table:
        """Return the joined rows with inferred members, by their numbers in ``joined``."""
        return self._read("inferred")

    def propagated(self) -> pa.Table:
        """Return the propagated patterns, in the columns side and pattern."""
        return self._read("propagated")

    def final(self) -> Final:
        """Return the keys that have become final."""
        return Final(
            self._read("final") if "final" in self._schemas else pa.table({}), self._patterns
        )

    def _append(self, name: str, batch: pa.RecordBatch) -> None:
        self._gathered[name].add(batch)
        if self._gathered[name].size >= WRITTEN_BYTES:
            self._write(name)

    def _write(self, name: str) -> None:
        path = os.path.join(self._directory.name, name)
        with naming(path):
            if name not in self._writers:
                self._writers[name] = pa.ipc.new_stream(path, self._schemas[name])
            # in one piece: a sink would store some hundred rows at a time
            self._writers[name].write_table(self._gathered[name].take().combine_chunks())

    def _read(self, name: str) -> pa.Table:
        if self._gathered[name].size:
            self._write(name)
        if name not in self._writers:
            return self._schemas[name].empty_table()
        self._writers[name].close()
        with pa.memory_map(os.path.join(self._directory.name, name)) as file:
            return pa.ipc.open_stream(file).read_all()


def unmatched_rows(
    tuples: pa.RecordBatch,
    reasons: pa.Array,
    id_columns: tuple[str, ...],
    side: str | None = None,
    role: str | None = None,
    codes: pa.Array | None = None,
) -> pa.RecordBatch:
    """Return tuples as rows of the table ``unmatched``. codes: the codes of their keys, see
    ``Spool.write``."""
    texts = [json.dumps(row, default=json_text) for row in python_rows(tuples)]
    where = [pa.array([name] * len(texts), pa.string()) for name in (side, role)]
    return pa.record_batch(
        [
            reasons,
            *where,
            stream_ids(tuples, id_columns),
            pa.array(texts, pa.string()),
            pa.nulls(len(texts), pa.int64()) if codes is None else codes,
        ],
        schema=UNMATCHED,
    )
