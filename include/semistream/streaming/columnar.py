"""Parquet files of the stream, read by the tasks that join them.

Every task decodes all of a micro-batch's files and keeps the tuples of its own partition. To decode columns P times costs less
than to take the tuples through Spark as rows, over a shuffle and into Python, as long as P is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.streaming.plan import Plan

MOST_PARTITIONS = 16  # decoding takes some 0.05 s a million tuples of two columns, Spark's way some 1 s of a core
ROWS, BYTES = 262_144, 32_000_000  # decoded at a time, at most
BUFFER = 1_000_000  # bytes of a column's file that are read at a time
LEGACY = b"org.apache.spark.legacy"  # dates of another calendar, which only Spark understands


def can_read(files: Sequence[str], stream: pa.Schema, partitions: int) -> bool:
    """Whether the tasks can read these files themselves, and get what Spark would: local paths, the columns in the same types."""
    if not files or partitions > MOST_PARTITIONS:
        return False
    try:
        return all("://" not in file and _same(pq.read_schema(file), stream) for file in files)
    except (OSError, pa.ArrowInvalid):
        return False  # Spark says what is wrong


def tuple_count(file: str) -> int:
    return pq.read_metadata(file).num_rows


def _same(found: pa.Schema, stream: pa.Schema) -> bool:
    return (all(len(found.get_all_field_indices(f.name)) == 1 and found.field(f.name).type == f.type for f in stream)
            and not any(name.startswith(LEGACY) for name in found.metadata or ()))


def read_partition(files: Sequence[str], plan: Plan, stream: pa.Schema, partition: int) -> Iterator[pa.RecordBatch]:
    """The tuples of one partition, in the stream's schema and the order of the files.

    Raises pa.ArrowException or OSError for a file that has changed since ``can_read``.
    """
    placement = plan.placement(stream)
    for first, batch in _decode(files, stream):
        if plan.partitions > 1:
            batch = batch.take(pa.array(np.flatnonzero(placement.partitions(batch, first) == partition)))
        if batch.num_rows:
            yield batch


def first_tuples(files: Sequence[str], stream: pa.Schema, most: int) -> pa.RecordBatch:
    """Of all partitions, from as few files as have them. Raises as ``read_partition``."""
    taken = [pa.RecordBatch.from_pylist([], stream)]
    for _, batch in _decode(files, stream):
        taken.append(batch.slice(0, most))
        most -= len(taken[-1])
        if not most:
            break
    return pa.concat_batches(taken)


def _decode(files: Sequence[str], stream: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(number of the first row in its file, tuples)."""
    for file in files:
        first = 0
        with pq.ParquetFile(file, buffer_size=BUFFER) as tuples:
            for rows in tuples.iter_batches(_rows(tuples.metadata), columns=stream.names, use_threads=False):
                yield first, pa.RecordBatch.from_arrays([rows.column(n) for n in stream.names], schema=stream)
                first += rows.num_rows


def _rows(of: pq.FileMetaData) -> int:
    """Rows to decode at a time."""
    size = sum(of.row_group(i).total_byte_size for i in range(of.num_row_groups))
    return max(min(ROWS, BYTES * of.num_rows // max(size, 1)), 1)
