"""Rows of a version that is being written, by bucket. They are kept in memory as far as they fit,
and otherwise in files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.durable import WritingThread, naming

GROUPS = 8  # groups of neighbouring buckets
# The rows of a bucket are written this many bytes at a time, as Arrow writes each column of a part;
# less if the buffers of all buckets would take more than a part of the memory.
WRITTEN_BYTES, WRITTEN_PART = 65_536, 8


class Runs(AbstractContextManager["Runs"]):
    """The rows of each bucket in the order in which they came; a context manager.

    Rows stay in memory as long as ``memory`` bytes suffice to sort them there. Otherwise one group
    of buckets after another is written to files, and later rows of these groups are appended to the
    files. A thread writes the files while the next batch is split.
    """

    def __init__(self, directory: Path, schema: pa.Schema, memory: int, buckets: int):
        """Create the runs. buckets: number of buckets."""
        self._directory, self._schema, self._memory = directory, schema, memory
        self._buffer = min(WRITTEN_BYTES, memory // WRITTEN_PART // buckets + 1)
        self._borders = [buckets * group // GROUPS for group in range(GROUPS + 1)]
        self._kept = GROUPS  # groups in memory, the first ones
        self._rows = defaultdict[int, list[pa.RecordBatch]](list)  # the buckets in memory
        self._files = dict[int, pa.RecordBatchStreamWriter]()
        self._sinks = list[pa.BufferedOutputStream]()
        self._sizes = defaultdict[int, int](int)
        self._writing = WritingThread("writing runs")

    def __exit__(self, *_: object) -> None:
        self._writing.shutdown(cancel_futures=True)
        for sink in self._sinks:
            with suppress(OSError):  # for instance a full disk, which is already being reported
                sink.close()

    @property
    def in_memory(self) -> list[int]:
        """The buckets whose rows are in memory."""
        return sorted(self._rows)

    @property
    def in_files(self) -> list[int]:
        """The buckets whose rows are in files."""
        return sorted(self._files)

    @property
    def held(self) -> int:
        """The bytes of rows in memory."""
        return sum(self._sizes[bucket] for bucket in self._rows)

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max(self._sizes.values(), default=0)

    def size(self, bucket: int) -> int:
        """Return the bytes of a bucket's rows."""
        return self._sizes[bucket]

    def add(self, batch: pa.RecordBatch, order: np.ndarray, edges: np.ndarray) -> None:
        """Add rows of a batch.

        order: int64[rows], the row numbers in the order of their buckets; edges: int64[buckets +
        1], where each bucket begins in `order`.
        """
        self._make_room(3 * batch.nbytes)  # the batch, its rows by bucket, and rows being written
        for group in range(self._kept):  # each part is a copy, which is freed with its group
            for bucket, part in self._parts(batch, order, edges, group, group + 1):
                self._rows[bucket].append(part)
        if self._kept < GROUPS:
            parts = dict(self._parts(batch, order, edges, self._kept, GROUPS))
            self._writing.begin(self._write, parts)

    def end(self) -> None:
        """Finish the runs. No more rows may be added afterwards."""
        self._make_room(0)
        self._writing.wait()
        with naming(self._directory.parent):
            for file in self._files.values():
                file.close()
            for sink in self._sinks:
                sink.close()

    def _parts(
        self, batch: pa.RecordBatch, order: np.ndarray, edges: np.ndarray, first: int, last: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (bucket, rows) for each non-empty bucket of the groups from first to last."""
        low, high = self._borders[first], self._borders[last]
        rows = batch.take(pa.array(order[edges[low] : edges[high]]))
        for bucket in (low + np.flatnonzero(np.diff(edges[low : high + 1]))).tolist():
            part = rows.slice(edges[bucket] - edges[low], edges[bucket + 1] - edges[bucket])
            self._sizes[bucket] += part.nbytes
            yield bucket, part

    def _make_room(self, size: int) -> None:
        """Write groups of buckets to files until memory suffices for `size` more bytes and for
        sorting the largest bucket."""
        while self._kept and self.held + size + 3 * self.largest > self._memory:
            self._writing.wait()
            self._kept -= 1
            for bucket in range(self._borders[self._kept], self._borders[self._kept + 1]):
                for part in self._rows.pop(bucket, ()):
                    self._write({bucket: part})

    def _write(self, parts: dict[int, pa.RecordBatch]) -> None:
        """Append rows, by bucket, to the files of their buckets."""
        with naming(self._directory.parent):
            for bucket, part in parts.items():
                if bucket not in self._files:
                    file = pa.OSFile(str(self._file(bucket)), "wb")
                    self._sinks.append(pa.BufferedOutputStream(file, self._buffer))
                    self._files[bucket] = pa.ipc.new_stream(self._sinks[-1], self._schema)
                self._files[bucket].write_batch(part)

    def _file(self, bucket: int) -> Path:
        return self._directory / f"run-{bucket:05d}"

    def take(self, bucket: int, most: int = 2**62) -> Iterator[list[pa.RecordBatch]]:
        """Yield a bucket's rows, about `most` bytes at a time, and remove them from memory and
        files."""
        if bucket not in self._files:
            yield self._rows.pop(bucket)
            return
        yield from read_run(self._file(bucket), most)
        self._file(bucket).unlink()


def read_run(run: Path, most: int = 2**62) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches of a file in lists of about `most` bytes, at least one batch each. The
    batches refer to the mapped file."""
    held, size = list[pa.RecordBatch](), 0
    with pa.memory_map(str(run)) as file:
        for batch in pa.ipc.open_stream(file):
            held.append(batch)
            size += batch.nbytes
            if size >= most:
                yield held
                held, size = [], 0
    if held:
        yield held
