"""Parquet files of the stream, read by the tasks that join them.

Each task decodes all of a micro-batch, and keeps the tuples of its partition: as long as partitions
are few, that costs less than to take the tuples through Spark as rows, over a shuffle and into
Python. That one task decodes for others, and hands them their tuples, was tried, and is gone: it
earned nothing that could be told from noise (``workers``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.partitioning import Placement
from semistream.source_files import open_parquet, parquet_batches

# decoding takes some 0.05 s a million tuples of two columns, Spark's way some 1 s of a core
MOST_PARTITIONS = 16
ROWS, BYTES = 262_144, 16_000_000  # decoded at a time, at most
LEGACY = b"org.apache.spark.legacy"  # dates of another calendar, which only Spark understands


def can_read(files: Sequence[str], stream: pa.Schema, partitions: int) -> bool:
    """Whether the tasks can read these files themselves, and get what Spark would: local paths, the
    columns in the same types."""
    if not files or partitions > MOST_PARTITIONS:
        return False
    try:
        return all("://" not in file and _same(pq.read_schema(file), stream) for file in files)
    except (OSError, pa.ArrowInvalid):
        return False  # Spark says what is wrong


def tuple_count(file: str) -> int:
    return pq.read_metadata(file).num_rows


def _same(found: pa.Schema, stream: pa.Schema) -> bool:
    return (all(len(found.get_all_field_indices(f.name)) == 1 and found.field(f.name).type == f.type
                for f in stream)
            and not any(name.startswith(LEGACY) for name in found.metadata or ()))


def read_partition(files: Sequence[str], placement: Placement,
                   partition: int) -> Iterator[pa.RecordBatch]:
    """The tuples of one partition, in the placement's schema.

    Raises pa.ArrowException or OSError for a file that has changed since ``can_read``.
    """
    for file in files:
        for first, batch in decode(file, placement.stream):
            if (own := placement.only(partition, batch, first)).num_rows:
                yield own


def first_tuples(files: Sequence[str], stream: pa.Schema, most: int) -> pa.RecordBatch:
    """Of all partitions, from as few files as have them. Raises as ``read_partition``."""
    taken = [pa.RecordBatch.from_pylist([], stream)]
    for _, batch in chain.from_iterable(decode(file, stream) for file in files):
        taken.append(batch.slice(0, most))
        most -= len(taken[-1])
        if not most:
            break
    return pa.concat_batches(taken)


def decode(file: str, stream: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(number of the first row in its file, tuples)."""
    first = 0
    with open_parquet(file) as tuples:
        for rows in parquet_batches(tuples, stream.names, ROWS, BYTES):
            yield first, pa.RecordBatch.from_arrays([rows.column(n) for n in stream.names],
                                                    schema=stream)
            first += rows.num_rows
