"""The output of a join: batches of joined and of unmatched tuples, made and counted in one
place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from semistream.joins.key_table import SLOTS_PER_KEY, distinct
from semistream.joins.spec import JoinSpec
from semistream.joins.statistics import JoinStatistics
from semistream.joins.stored_types import has_strings
from semistream.joins.tuple_store import TupleStore
from semistream.keys import equal_keys

NO_MATCH, NULL_KEY, UNPARSABLE = "no_match", "null_key", "unparsable"  # why a tuple is unmatched
# the most rows of one batch of output, and about the most bytes
OUTPUT_ROWS, OUTPUT_BYTES = 131_072, 8_000_000
TELLING_BYTES = OUTPUT_BYTES // 64  # bytes of a batch from which its rows are measured
FIRST_ROWS = 1024  # rows of a batch while the length of strings is unknown

# (rows int64[n] of a partition of R, waiting tuples int64[n]), in portions
Pairs = Iterator[tuple[np.ndarray, np.ndarray]]


class JoinOutput(NamedTuple):
    """The tuples that one step finished.

    joined: stream columns, then master columns (``SemiStreamJoin.output_schema``). In a left join,
    unmatched tuples are included here, with nulls. unmatched: stream columns and ``reason``
    (``SemiStreamJoin.unmatched_schema``).
    """

    joined: pa.RecordBatch
    unmatched: pa.RecordBatch


class MasterTuples(Protocol):
    """Tuples of R in memory."""

    def take(self, rows: np.ndarray) -> pa.RecordBatch: ...


class StreamTuples(Protocol):
    """Stream tuples that can be fetched by number."""

    def get(self, tuples: np.ndarray) -> list[pa.Array]: ...


class WaitingTuples(StreamTuples, Protocol):
    """Stream tuples that can be marked as matched. ``mark`` returns how many were unmarked
    before."""

    def mark(self, tuples: np.ndarray) -> int: ...


class Removed(NamedTuple):
    """Stream tuples that have left H_S. They can be fetched until other tuples enter H_S."""

    slots: np.ndarray  # int64[n]
    matched: np.ndarray  # bool[n]
    seconds: float  # since their entry, summed
    longest: float  # the most of one tuple
    timed: int  # number of tuples in these two sums

    @classmethod
    def none(cls) -> Removed:
        return cls(np.empty(0, np.int64), np.empty(0, bool), 0.0, 0.0, 0)


class RowSize:
    """An estimate of the bytes of a row: from the types of its schema, and from the strings of the
    latest rows."""

    def __init__(self, schema: pa.Schema):
        self._bytes, self._strings = float(TupleStore.slot_bytes(schema)), has_strings(schema)
        self._known, self.most_bytes = not self._strings, OUTPUT_BYTES

    @property
    def rows(self) -> int:
        """The number of rows in a batch that takes about ``most_bytes``."""
        most = OUTPUT_ROWS if self._known else FIRST_ROWS
        return min(max(int(self.most_bytes / self._bytes), 1), most)

    def learn(self, batch: pa.RecordBatch) -> None:
        """Update the expected bytes of a row from this batch, if it is large enough to be
        representative."""
        if self._strings and (
            batch.num_rows >= FIRST_ROWS or batch.get_total_buffer_size() > TELLING_BYTES
        ):
            self._bytes, self._known = max(batch.nbytes / batch.num_rows, 1.0), True

    def cut(self, count: int) -> Iterator[slice]:
        """Yield slices of at most ``rows`` rows that cover `count` rows."""
        first = 0
        while first < count:
            last = min(first + self.rows, count)
            yield slice(first, last)
            first = last

    def cut_pairs(self, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Pairs:
        """Split pairs of row numbers, each (int64[n], int64[n]), into portions of at most ``rows``
        pairs."""
        for one, other in pairs:
            for part in self.cut(len(one)):
                yield one[part], other[part]


class Output:
    """The output batches of one join, counted in its statistics."""

    def __init__(self, spec: JoinSpec, statistics: JoinStatistics):
        self.spec, self.statistics = spec, statistics
        added = [
            pa.field(n, spec.fetched_schema.field(c).type)
            for c, n in zip(spec.columns, spec.names, strict=True)
        ]
        self.schema = pa.schema([*spec.stream, *added])
        self.unmatched_schema = pa.schema([*spec.stream, pa.field("reason", pa.string())])
        self._added = [spec.fetched.index(c) for c in spec.columns]
        self._pair, self._lost = (
            RowSize(self.schema),
            RowSize(self.schema if spec.join_type == "left" else self.unmatched_schema),
        )
        self._refers = False
        self._nothing = (
            pa.RecordBatch.from_pylist([], self.schema),
            pa.RecordBatch.from_pylist([], self.unmatched_schema),
        )

    def refer(self) -> None:
        """Make R's columns dictionaries from now on, so that a tuple with many matches in a batch
        is copied once. The columns have the same indices."""
        self._refers, first = True, len(self.spec.stream)
        added = list(self.schema)[first:]
        dictionaries = [f.with_type(pa.dictionary(pa.int32(), f.type)) for f in added]
        self.schema = pa.schema([*self.spec.stream, *dictionaries])
        nothing = [pa.nulls(0, f.type) for f in self.schema]
        self._nothing = (pa.RecordBatch.from_arrays(nothing, schema=self.schema), self._nothing[1])

    def limit(self, size: int) -> None:
        """Limit batches to about this many bytes, instead of OUTPUT_BYTES."""
        self._pair.most_bytes = self._lost.most_bytes = size

    def tuples(
        self, rows: np.ndarray, take: Callable[[np.ndarray], list[pa.Array]]
    ) -> list[pa.Array]:
        """Return the columns of tuples of R, as dictionaries if the output refers to tuples. rows:
        int64[n], their numbers; take: a function that copies the columns of some tuples."""
        if not self._refers:
            return take(rows)
        different, index = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
        table = np.empty(SLOTS_PER_KEY * len(rows) + 1, np.int32)
        columns = take(different[: distinct(rows, table, different, index)])
        return [_dictionary(index, column) for column in columns]

    def joined(self, stream: list[pa.Array], master: list[pa.Array]) -> JoinOutput:
        """Make a batch of joined tuples. stream: stream columns; master: columns of R as in
        ``spec.fetched``; those that served only for comparison are left out of the batch."""
        added = [master[i] for i in self._added]
        if self._refers and added and not pa.types.is_dictionary(added[0].type):
            index = np.arange(len(added[0]), dtype=np.int32)
            added = [_dictionary(index, column) for column in added]
        joined = pa.RecordBatch.from_arrays([*stream, *added], schema=self.schema)
        self.statistics.output_rows += joined.num_rows
        self._pair.learn(joined)
        return JoinOutput(joined, self._nothing[1])

    def cut(self, pairs: Pairs) -> Pairs:
        """Split pairs into portions whose joined rows take at most about OUTPUT_BYTES."""
        return self._pair.cut_pairs(pairs)

    def unmatched(self, stream: list[pa.Array], reason: str) -> Iterator[JoinOutput]:
        """Yield batches of stream tuples that leave without a match and without having waited."""
        self._left_at_once(len(stream[0]))
        yield from self._rejected(stream, reason)

    def absent(self, batch: pa.RecordBatch, rows: np.ndarray) -> Iterator[JoinOutput]:
        """Yield these rows of a batch, int64[n], as unmatched, because R is known to lack their
        keys."""
        if len(rows):
            yield from self.unmatched(batch.take(pa.array(rows)).columns, NO_MATCH)

    def _rejected(self, stream: list[pa.Array], reason: str) -> Iterator[JoinOutput]:
        """Yield batches of stream tuples that have no match."""
        count = len(stream[0])
        for part in self._lost.cut(count):
            size = part.stop - part.start
            yield self._unmatched(
                stream if size == count else [c.slice(part.start, size) for c in stream], reason
            )

    def _unmatched(self, stream: list[pa.Array], reason: str) -> JoinOutput:
        """Make one batch of unmatched tuples, and count them. In a left join the batch also has
        their outer rows. stream: the stream columns; reason: why the tuples are unmatched."""
        count, stats = len(stream[0]), self.statistics
        stats.unmatched += count
        stats.rejected[reason] = stats.rejected.get(reason, 0) + count
        rejected = pa.RecordBatch.from_arrays(
            [*stream, pa.repeat(reason, count)], schema=self.unmatched_schema
        )
        joined = self._nothing[0]
        if self.spec.join_type == "left":
            added = [pa.nulls(count, f.type) for f in list(self.schema)[len(stream) :]]
            joined = pa.RecordBatch.from_arrays([*stream, *added], schema=self.schema)
            stats.output_rows += count
        self._lost.learn(joined if joined.num_rows else rejected)
        return JoinOutput(joined, rejected)

    def equal(
        self, stream: list[pa.Array], master: list[pa.Array], tuples: np.ndarray
    ) -> tuple[list[pa.Array], list[pa.Array], np.ndarray]:
        """Keep only the pairs whose keys are equal, among pairs with equal key codes. Exact codes
        need no filter.

        stream: all stream columns of the pairs; master: master columns of the pairs, as in
        ``spec.fetched``; tuples: int64[pairs], the number of each pair's stream tuple.
        """
        keys = self.spec.keys
        if keys.exact:
            return stream, master, tuples
        left = (stream[self.spec.stream.get_field_index(c)] for c in keys.stream)
        right = (master[self.spec.fetched.index(c)] for c in keys.master)
        same = equal_keys(keys.canonical(left), keys.canonical(right))
        if same.all():
            return stream, master, tuples
        keep = pa.array(same)
        return [c.filter(keep) for c in stream], [c.filter(keep) for c in master], tuples[same]

    def matches(
        self, partition: MasterTuples, waiting: WaitingTuples, pairs: Pairs
    ) -> Iterator[JoinOutput]:
        """OUTPUT the pairs of a partition's tuples and waiting tuples with equal key codes, and
        mark the waiting tuples as matched."""
        for rows, tuples in self.cut(pairs):
            stream, master, tuples = self.equal(
                waiting.get(tuples),
                self.tuples(rows, lambda of: partition.take(of).columns),
                tuples,
            )
            self.statistics.paper_times.match(waiting.mark(tuples))
            if len(tuples):
                yield self.joined(stream, master)

    def finish(self, h_s: StreamTuples, removed: Removed) -> Iterator[JoinOutput]:
        """Count the tuples that have left H_S, and output those without a match as unmatched,
        because all parts of R that could match them have been read."""
        stats = self.statistics
        stats.processed_seconds += removed.seconds
        if removed.timed:
            self._left(removed.longest, 1)
        if others := max(removed.timed - 1, 0):
            self._left((removed.seconds - removed.longest) / others, others)
        stats.matched += int(removed.matched.sum())
        lost = removed.slots[~removed.matched]
        stats.paper_times.match(len(lost))
        for part in self._lost.cut(len(lost)):
            yield from self._rejected(h_s.get(lost[part]), NO_MATCH)

    def matched_at_once(self, tuples: int) -> None:
        """Count tuples that leave with a match without having entered H_S."""
        self.statistics.matched += tuples
        self._left_at_once(tuples)

    def _left_at_once(self, tuples: int) -> None:
        if self.statistics.micro_batches:
            self._left(0.0, tuples)

    def _left(self, age: float, tuples: int) -> None:
        """Record that `tuples` tuples leave the join after waiting for `age` seconds, or after no
        wait."""
        stats = self.statistics
        if stats.micro_batches:
            now = time.perf_counter()
            age = now - stats.micro_batches.of(now - age)
        stats.waits.note(age, tuples)


def _dictionary(index: np.ndarray, values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index), values, safe=False)


def portions(counts: np.ndarray, most: int = OUTPUT_ROWS) -> Iterator[tuple[int, int, int]]:
    """Cut an array of counts into portions. Yield (first, last, sum of counts[first:last]) for
    each. A sum is at most `most`, unless the portion is a single element."""
    ends = np.cumsum(counts, dtype=np.int64)
    first, done = 0, 0
    while first < len(counts) and done < ends[-1]:
        last = max(int(np.searchsorted(ends, done + most, side="right")), first + 1)
        total = int(ends[last - 1]) - done
        if total:
            yield first, last, total
        first, done = last, int(ends[last - 1])


def pairs_of(counts: np.ndarray, fill: Callable[..., None], *arrays: Any) -> Pairs:
    """Yield the matches of master tuples, a portion at a time. counts: int32[n], the matches of
    each of n rows; fill: a kernel that gets a portion's first and last row, the arrays, and two
    arrays int64[matches] that it fills."""
    for first, last, total in portions(counts):
        rows, tuples = np.empty(total, np.int64), np.empty(total, np.int64)
        fill(first, last, *arrays, rows, tuples)
        yield rows, tuples
