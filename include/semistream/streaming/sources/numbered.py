"""Tuples with numbers, which decide the partition of a tuple that has no key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.files.source import Chunk
from semistream.gathering import Gathered
from semistream.warehouse.checksum import row_hashes

NOTHING = np.zeros(0, np.int64)
GATHERED_BYTES = 4_000_000  # of tuples of small chunks that are combined
REJECTED_BYTES = 1_000  # the assumed size of a rejected text


class Numbered(NamedTuple):
    """A chunk with a number for each of its tuples, int64[n], and for each rejected text, int64[r].
    A number depends only on the source, so that every attempt assigns a tuple without a key to the
    same partition."""

    chunk: Chunk
    tuples: np.ndarray
    rejected: np.ndarray


def by_line(chunk: Chunk) -> Numbered:
    """Return a file's chunk whose tuples and rejected texts are numbered by their lines."""
    return Numbered(chunk, chunk.lines - 1, np.array([r.line for r in chunk.rejected], np.int64))


def hashes(rows: pa.RecordBatch) -> np.ndarray:
    """Return a hash of each row as its number, int64[n]."""
    return row_hashes(rows).view(np.int64)


def combined(parts: Iterator[Numbered], schema: pa.Schema) -> Iterator[Numbered]:
    """Combine small chunks up to `GATHERED_BYTES`, without changing the order."""
    rows, held = Gathered(schema), list[Numbered]()
    for part in parts:
        size = part.chunk.rows.nbytes + REJECTED_BYTES * len(part.chunk.rejected)
        if held and rows.size + size > GATHERED_BYTES:
            yield _one(rows, held)
            held = []
        rows.add(part.chunk.rows)
        held.append(part)
    if held:
        yield _one(rows, held)


def _one(rows: Gathered, parts: Sequence[Numbered]) -> Numbered:
    batches = rows.take().combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)
    rejected = [each for part in parts for each in part.chunk.rejected]
    return Numbered(
        Chunk(batch, rejected),
        np.concatenate([p.tuples for p in parts]),
        np.concatenate([p.rejected for p in parts]),
    )
