"""The relations of the benchmarks, and the expected result of their join.

R has the keys 1..R_t and 13 words of payload: with the key 112 bytes, with the stored key code 120,
like the papers' tuples. The payload is one opaque column of 104 bytes or, the same bytes, 13 BIGINT
columns. A tuple of S has 20 bytes: key, id, quantity. Its keys follow Zipf's law, and frequent keys
are not neighbours. Every byte is a function of the key or of the id, so that the checksum of any
join can be computed without joining.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.compiled import njit
from semistream.master.publish import publish_snapshot
from semistream.master.published import current_version
from semistream.master.snapshot import SnapshotRelation
from semistream.workloads.zipf import ZipfKeys

WORDS = 13
MASTER_BYTES = 120
ROW_GROUPS = 4  # row groups of a file of S
ON = [("key", "key")]
STREAM = pa.schema([("key", pa.int64()), ("id", pa.int64()), ("quantity", pa.int32())])
OPAQUE = pa.schema([("key", pa.int64()), ("payload", pa.binary(8 * WORDS))])
COLUMNS = pa.schema([("key", pa.int64()), *((f"c{i}", pa.int64()) for i in range(WORDS))])
STEP = 100_000  # tuples made at a time


@njit(inline="always")
def _mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def _word(key, i):
    """Return word i of the master tuple with this key."""
    return _mix((np.uint64(key) * np.uint64(WORDS) + np.uint64(i)) * np.uint64(0x9E3779B97F4A7C15))


@njit(inline="always")
def _fold(h, word):
    h = (h ^ np.uint64(word)) * np.uint64(0xD1B54A32D192ED03)
    return h ^ (h >> np.uint64(29))


@njit(cache=True)
def _payload(first, out):
    for row in range(len(out)):
        for i in range(WORDS):
            out[row, i] = _word(first + row, i)


@njit(cache=True)
def _fold_column(hashes, words, start, step):
    for row in range(len(hashes)):
        hashes[row] = _fold(hashes[row], words[start + row * step])


@njit(cache=True)
def _sum_expected(keys, ids, quantities):
    total = np.uint64(0)
    for row in range(len(keys)):
        h = _fold(_fold(_fold(np.uint64(0), keys[row]), ids[row]), quantities[row])
        for i in range(WORDS):
            h = _fold(h, _word(keys[row], i))
        total += h
    return total


@dataclass
class Answer:
    """The number of rows, and the sum over them of a 64-bit hash of the whole row: the same in any
    order."""

    rows: int = 0
    checksum: int = 0

    def add(self, joined: pa.RecordBatch | pa.Table) -> None:
        """Add joined rows: columns key, id, quantity, then the payload in either form; other
        columns are ignored."""
        for batch in joined.to_batches() if isinstance(joined, pa.Table) else [joined]:
            self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        hashes = np.zeros(batch.num_rows, np.uint64)
        payload = [n for n in batch.schema.names if n in OPAQUE.names[1:] or n in COLUMNS.names[1:]]
        for name in (*STREAM.names, *payload):
            column = batch.column(name)
            if column.null_count:
                raise ValueError(f"the joined column {name} has {column.null_count} nulls")
            if name in STREAM.names:
                column = column.cast(STREAM.field(name).type)
            elif name == "payload":
                column = column.cast(OPAQUE.field(name).type)
            width = column.type.bit_width // 8
            values = np.frombuffer(column.buffers()[1], np.int32 if width == 4 else np.int64)
            each = max(width // 8, 1)
            for i in range(each):
                _fold_column(hashes, values, column.offset * each + i, each)
        self.rows += batch.num_rows
        self.checksum = (self.checksum + int(hashes.sum(dtype=np.uint64))) % 2**64


@dataclass(frozen=True)
class Stream:
    """S: tuples 0, 1, 2, … whose keys follow Zipf's law over R's."""

    master: int  # R_t
    skew: float = 1.0
    drift: int = 0  # tuples after which other keys are the frequent ones; 0: never

    def batch(self, first: int, rows: int) -> pa.RecordBatch:
        keys = ZipfKeys(self.master, self.skew, seed=1, scattered=True, drift=self.drift).draw(
            first, rows
        )
        ids = np.arange(first, first + rows, dtype=np.int64)
        return pa.record_batch(
            [pa.array(keys), pa.array(ids), pa.array((ids % 97).astype(np.int32))], schema=STREAM
        )

    def expected(self, tuples: int) -> Answer:
        """Return the expected answer of the join of the stream's first `tuples` tuples."""
        answer = Answer()
        for first in range(0, tuples, STEP):
            batch = self.batch(first, min(STEP, tuples - first))
            answer.rows += batch.num_rows
            answer.checksum = (
                answer.checksum + int(_sum_expected(*(c.to_numpy() for c in batch.columns)))
            ) % 2**64
        return answer


def master_batches(tuples: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield R in the order of its keys."""
    for first in range(1, tuples + 1, STEP):
        n = min(STEP, tuples + 1 - first)
        words = np.empty((n, WORDS), np.uint64)
        _payload(first, words)
        keys = pa.array(np.arange(first, first + n, dtype=np.int64))
        if schema.equals(OPAQUE):
            payload = [
                pa.FixedSizeBinaryArray.from_buffers(
                    OPAQUE.field(1).type, n, [None, pa.py_buffer(words)]
                )
            ]
        else:
            payload = [
                pa.array(np.ascontiguousarray(words[:, i]).view(np.int64)) for i in range(WORDS)
            ]
        yield pa.record_batch([keys, *payload], schema=schema)


@dataclass(frozen=True)
class Files:
    """Data files under one directory, created on first use. The files that runs write are under
    ``runs`` and are deleted with them."""

    root: Path
    owner: int = field(default_factory=os.getpid)

    @property
    def runs(self) -> Path:
        return self.root / f"runs-{self.owner}"

    def snapshot(self, tuples: int, schema: pa.Schema) -> Path:
        """Return the directory of R's master snapshots, with one directory for each version."""
        return self.made(
            f"snapshot-{tuples}-{_form(schema)}",
            lambda at: publish_snapshot(
                master_batches(tuples, schema), schema, at, "master", ["key"]
            ),
        )

    def relation(self, tuples: int, schema: pa.Schema) -> SnapshotRelation:
        """Return R as a relation that is read past the page cache."""
        root = self.snapshot(tuples, schema)
        return SnapshotRelation(root / str(current_version(root)), direct=True)

    def master_parquet(self, tuples: int, schema: pa.Schema) -> Path:
        """Return the directory of R as Parquet files of at most 10M tuples, in the order of the
        keys."""

        def make(at: Path) -> None:
            at.mkdir()
            batches, number = master_batches(tuples, schema), 0
            while table := pa.Table.from_batches(
                [b for _, b in zip(range(10_000_000 // STEP), batches, strict=False)], schema
            ):
                pq.write_table(table, at / f"part-{number:05d}.parquet")
                number += 1

        return self.made(f"master-{tuples}-{_form(schema)}.parquet", make)

    def stream_parquet(self, stream: Stream, files: int, rows: int) -> Path:
        """Return the directory of S as Parquet files, each with row groups for several tasks."""

        def make(at: Path) -> None:
            at.mkdir()
            for number in range(files):
                pq.write_table(
                    pa.Table.from_batches([stream.batch(number * rows, rows)]),
                    at / f"part-{number:05d}.parquet",
                    row_group_size=max(rows // ROW_GROUPS, 1),
                )

        drift = f"-{stream.drift}" if stream.drift else ""
        return self.made(
            f"stream-{stream.master}-{stream.skew:g}{drift}-{files}x{rows}-{ROW_GROUPS}.parquet",
            make,
        )

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the path of a file or directory that ``make`` creates. The path appears complete
        or not at all."""
        path = self.root / name
        if not path.exists():
            print(f"# making {path}", file=sys.stderr, flush=True)
            beside = self.root / f".{name}.{os.getpid()}"
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                make(beside)
                subprocess.run(["sync", "-f", str(self.root)], check=False)
                beside.rename(path)
            finally:
                if beside.is_dir():
                    shutil.rmtree(beside, ignore_errors=True)
                else:
                    beside.unlink(missing_ok=True)
        return path


def _form(schema: pa.Schema) -> str:
    return "opaque" if "payload" in schema.names else "columns"
