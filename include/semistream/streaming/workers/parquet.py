"""Parquet files of the stream, read by the tasks that join them.

The tasks of a machine decode a micro-batch once for all of them, each its share (``exchange``).
Every machine decodes all of it: as long as they are few, that costs less than to take the tuples
through Spark as rows, over a shuffle and into Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.partitioning import Placement
from semistream.source_files import open_parquet
from semistream.streaming.workers.exchange import Exchange

# decoding takes some 0.05 s a million tuples of two columns, Spark's way some 1 s of a core
MOST_PARTITIONS = 16
ROWS, BYTES = 262_144, 32_000_000  # decoded at a time, at most
PIECES = 16  # for each task to decode for all, about: files, or some of their row groups each
LEGACY = b"org.apache.spark.legacy"  # dates of another calendar, which only Spark understands
Piece = tuple[str, range | None]  # file, row groups; None: all


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


def read_partition(files: Sequence[str], placement: Placement, partition: int,
                   batch: object = None) -> Iterator[pa.RecordBatch]:
    """The tuples of one partition, in the placement's schema.

    batch: what the tasks of a micro-batch know it by, to exchange tuples: each then decodes its
    share of the files for all, and of the rest what nobody else on its machine has decoded. Raises
    pa.ArrowException or OSError for a file that has changed since ``can_read``.
    """
    count = placement.count
    pieces = _pieces(files, count)
    if batch is None or not 1 < count <= len(pieces):
        for piece in pieces:
            yield from _own(piece, placement, partition)
        return
    exchange, left = Exchange(batch, partition, count, placement.stream), list(range(len(pieces)))
    exchange.poll()
    share = left[partition::count]
    while left:
        if share:
            now = [share.pop(0)]
        else:
            exchange.poll()
            # not all the same one
            now = [n for n in left if n in exchange.found] or [left[partition % len(left)]]
        for n in now:
            yield from exchange.take(n) if n in exchange.found else _for_all(
                n, pieces[n], placement, partition, exchange)
            left.remove(n)


def _for_all(n: int, piece: Piece, placement: Placement, partition: int,
             exchange: Exchange) -> Iterator[pa.RecordBatch]:
    """One partition's tuples of piece n; the others' are kept for them."""
    for first, tuples in _decode(piece, placement.stream):
        parts = placement.split(tuples, first)
        exchange.write(parts)
        if parts[partition].num_rows:
            yield parts[partition]
    exchange.publish(n)


def _own(piece: Piece, placement: Placement, partition: int) -> Iterator[pa.RecordBatch]:
    """One partition's tuples of a piece."""
    for first, batch in _decode(piece, placement.stream):
        if placement.count > 1:
            batch = batch.take(
                pa.array(np.flatnonzero(placement.partitions(batch, first) == partition)))
        if batch.num_rows:
            yield batch


def first_tuples(files: Sequence[str], stream: pa.Schema, most: int) -> pa.RecordBatch:
    """Of all partitions, from as few files as have them. Raises as ``read_partition``."""
    taken = [pa.RecordBatch.from_pylist([], stream)]
    for _, batch in chain.from_iterable(_decode((file, None), stream) for file in files):
        taken.append(batch.slice(0, most))
        most -= len(taken[-1])
        if not most:
            break
    return pa.concat_batches(taken)


def _pieces(files: Sequence[str], partitions: int) -> list[Piece]:
    """What one task decodes for all each, the same for all tasks; not more than is worth to open a
    file for."""
    most = -(-PIECES * partitions // len(files)) if files else 1  # of a file
    if partitions == 1 or most == 1:
        return [(file, None) for file in files]
    pieces: list[Piece] = []
    for file in files:
        groups = pq.read_metadata(file).num_row_groups
        count = min(most, groups)
        pieces += [(file, range(groups * n // count, groups * (n + 1) // count))
                   for n in range(count)]
    return pieces


def _decode(piece: Piece, stream: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(number of the first row in its file, tuples)."""
    file, groups = piece
    with open_parquet(file) as tuples:
        of = tuples.metadata
        groups = range(of.num_row_groups) if groups is None else groups
        first = sum(of.row_group(n).num_rows for n in range(groups.start))
        for rows in tuples.iter_batches(_rows(of), row_groups=list(groups), columns=stream.names,
                                        use_threads=False):
            yield first, pa.RecordBatch.from_arrays([rows.column(n) for n in stream.names],
                                                    schema=stream)
            first += rows.num_rows


def _rows(of: pq.FileMetaData) -> int:
    """Rows to decode at a time."""
    size = sum(of.row_group(i).total_byte_size for i in range(of.num_row_groups))
    return max(min(ROWS, BYTES * of.num_rows // max(size, 1)), 1)
