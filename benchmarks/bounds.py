"""The limits of the machine: reading R alone, and touching cache lines of M alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.data import Answer, Files, Stream
from benchmarks.harness import Result, Sample, peak_rss
from semistream.compiled import njit
from semistream.joins.arena import mapped
from semistream.joins.key_table import bucket

LINE = 64  # bytes
# lines of a tuple that H_R answers: its slot in the table, its entry, and a master tuple of two
LINES = 4


@dataclass(frozen=True)
class Bound:
    """The settings of a peer, which repeats its work for so many seconds."""

    once: Callable[[], Callable[[], tuple[int, int]]]  # returns (tuples, bytes of R)
    seconds: float

    def __call__(self) -> BoundPeer:
        return BoundPeer(self)


class BoundPeer:
    def __init__(self, of: Bound):
        pa.set_cpu_count(1)
        self.of, self.rows, self.once = of, 0, of.once()
        self.once()

    def measure(self) -> Sample:
        tuples, read, start, cpu = 0, 0, time.perf_counter(), time.process_time()
        while not tuples or time.perf_counter() - start < self.of.seconds:
            count, size = self.once()
            tuples, read = tuples + count, read + size
        self.rows += tuples
        return Sample(tuples, time.perf_counter() - start, read, time.process_time() - cpu)

    def finish(self) -> Result:
        """Return a result without an answer, because a bound joins nothing."""
        return Result(Answer(self.rows), Answer(self.rows), rss_peak=peak_rss())


@dataclass(frozen=True)
class Reading:
    """A sequential read of R, from the first partition to the last, as in the disk phase. Rates are
    in tuples of R per second."""

    files: Files
    schema: pa.Schema
    master: int

    def __call__(self) -> Callable[[], tuple[int, int]]:
        relation, names = self.files.relation(self.master, self.schema), self.schema.names

        def once() -> tuple[int, int]:
            before = relation.bytes_read
            for number in range(relation.partition_count):
                relation.prefetch(
                    range(number, min(number + relation.buffers, relation.partition_count)), names
                )
                relation.read_codes(number)
                relation.pages(number, names)
            return relation.tuple_count, relation.bytes_read - before

        return once


@dataclass(frozen=True)
class CacheLines:
    """Reads of an array of M bytes: for each stream tuple some cache lines, chosen by the tuple's
    key."""

    stream: Stream
    memory: int
    batch: int

    def __call__(self) -> Callable[[], tuple[int, int]]:
        lines = mapped(self.memory // LINE, np.int64, LINE // 8)
        lines[:] = 1
        batches = [
            self.stream.batch(n * self.batch, self.batch).column("key").to_numpy()
            for n in range(16)
        ]

        def once() -> tuple[int, int]:
            for keys in batches:
                assert touch(keys, lines) == LINES * len(keys)
            return sum(map(len, batches)), 0

        return once


@njit(cache=True)
def touch(codes, lines):
    """Return the sum over `LINES` lines for each code.

    in      codes int64[n], lines int64[m, 8]
    """
    total = 0
    for i in range(len(codes)):
        for k in range(LINES):
            total += lines[bucket(codes[i] * LINES + k, len(lines)), 0]
    return total
