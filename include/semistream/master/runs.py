"""Rows of a version in the making, by bucket: in memory while they fit, else in files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.durable import naming


class Runs:
    """Each bucket's rows in the order that they came; a context manager.

    They stay in memory where ``memory`` bytes are enough to sort them there, and are written to
    files from the batch on at which they are too many. A thread writes the files while the next
    batch is split.
    """

    def __init__(self, directory: Path, schema: pa.Schema, memory: int):
        self._directory, self._schema, self._memory = directory, schema, memory
        self._rows = defaultdict[int, list[pa.RecordBatch]](list)  # that are in memory
        self._files: dict[int, pa.RecordBatchStreamWriter] | None = None
        self._sinks = list[pa.OSFile]()
        self._sizes = defaultdict[int, int](int)
        self.held = 0  # bytes in memory
        self._writing = ThreadPoolExecutor(1, "writing runs")
        self._last: Future[None] | None = None

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self._writing.shutdown(cancel_futures=True)
        for sink in self._sinks:
            sink.close()

    @property
    def buckets(self) -> list[int]:
        """Those that have rows."""
        return sorted(self._sizes)

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max(self._sizes.values(), default=0)

    def size(self, bucket: int) -> int:
        """Bytes of a bucket's rows."""
        return self._sizes[bucket]

    def add(self, rows: pa.RecordBatch, edges: np.ndarray) -> None:
        """Add rows that are in the order of their buckets.

        edges: int64[buckets + 1], where each bucket's begin.
        """
        parts = {b: rows.slice(edges[b], edges[b + 1] - edges[b])
                 for b in np.flatnonzero(np.diff(edges)).tolist()}
        for bucket, part in parts.items():
            self._sizes[bucket] += part.nbytes
        if self._files is None and not self._fits(self.held + 2 * rows.nbytes):
            self._spill()
        if self._files is None:
            self.held += rows.nbytes
            for bucket, part in parts.items():
                self._rows[bucket].append(part)
            return
        self._wait()
        self._last = self._writing.submit(self._write, parts)

    def end(self) -> None:
        """Note that no row comes any more."""
        if self._files is None and not self._fits(self.held):
            self._spill()
        self._wait()
        with naming(self._directory.parent):
            for file in (self._files or {}).values():
                file.close()
            for sink in self._sinks:
                sink.close()

    def _fits(self, size: int) -> bool:
        """Whether there is room to sort the largest bucket beside so many bytes."""
        return size + 3 * self.largest <= self._memory

    def _spill(self) -> None:
        """Write what is held to files; what comes follows it."""
        self._files = {}
        for number in range(max(map(len, self._rows.values()), default=0)):
            self._write({b: held[number] for b, held in self._rows.items() if number < len(held)})
        self._rows.clear()
        self.held = 0

    def _write(self, parts: dict[int, pa.RecordBatch]) -> None:
        assert self._files is not None
        with naming(self._directory.parent):
            for bucket, part in parts.items():
                if bucket not in self._files:
                    self._sinks.append(pa.OSFile(str(self._file(bucket)), "wb"))
                    self._files[bucket] = pa.ipc.new_stream(self._sinks[-1], self._schema)
                self._files[bucket].write_batch(part)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _file(self, bucket: int) -> Path:
        return self._directory / f"run-{bucket:05d}"

    def take(self, bucket: int, most: int = 2**62) -> Iterator[list[pa.RecordBatch]]:
        """Give a bucket's rows, about so many bytes at a time, and have them no more."""
        if self._files is None:
            yield self._rows.pop(bucket)
            return
        yield from read_run(self._file(bucket), most)
        self._file(bucket).unlink()


def read_run(run: Path, most: int = 2**62) -> Iterator[list[pa.RecordBatch]]:
    """A file's batches, about so many bytes at a time and at least one. They lie in the file."""
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
