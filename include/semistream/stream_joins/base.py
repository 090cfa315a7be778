"""The interface of XJoin and PJoin, and their shared parts: input and output, memory join, state
relocation, disk join."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.job import SIDES
from semistream.joins.output import RowSize
from semistream.joins.state_file import JoinState
from semistream.joins.statistics import timed
from semistream.joins.stored_types import as_stored, variable_bytes
from semistream.keys import equal_keys
from semistream.stream_joins import kernels
from semistream.stream_joins.disk import RunBlock
from semistream.stream_joins.disk_join import Leftover
from semistream.stream_joins.events import Event, Monitor, Registry
from semistream.stream_joins.kernels import MATCHED
from semistream.stream_joins.spec import JOIN_TYPES, StreamJoinSpec
from semistream.stream_joins.state import State

# why a tuple is unmatched
NO_PARTNER, NULL_KEY, AGAINST_PUNCTUATION = "no_partner", "null_key", "against_punctuation"
PIECE = 16_384  # tuples that are joined at a time


class Propagated(NamedTuple):
    """Punctuations of one stream that hold for the output: no later output row has these values in
    the side's join columns.

    constants: a batch with one row for each constant, whose columns have the names of the side's
    join columns, in canonical types; patterns: other punctuations, in plain form.
    """

    side: int
    constants: pa.RecordBatch
    patterns: list[dict[str, Any]]


class StreamJoinOutput(NamedTuple):
    """The tuples and punctuations that one step finished.

    joined: rows as in ``output_schema``; in an outer join they include the outer rows. unmatched:
    tuples of the side that will never have a partner, with ``reason`` (``unmatched_schemas``). In
    an outer join, these tuples are also in ``joined`` as outer rows, unless the reason is
    `against_punctuation`.
    """

    joined: pa.RecordBatch | None = None
    side: int = 0
    unmatched: pa.RecordBatch | None = None
    propagated: Propagated | None = None


@dataclass
class SideStatistics:
    """Statistics of one stream: rows_read = matched + unmatched + held."""

    rows_read: int = 0
    matched: int = 0  # tuples that had a partner and have left
    unmatched: dict[str, int] = field(default_factory=dict)  # by reason
    held: int = 0  # in memory and on disk now
    held_peak: int = 0
    on_disk: int = 0  # now
    buffered: int = 0  # in the purge buffer now
    dropped: int = 0  # tuples dropped on the fly
    purged: int = 0
    punctuations: int = 0  # punctuations taken in
    propagated: int = 0
    forgotten: int = 0  # punctuations forgotten for lack of memory


@dataclass
class StreamJoinStatistics:
    """Totals since the operator was opened or restored."""

    sides: tuple[SideStatistics, SideStatistics] = field(
        default_factory=lambda: (SideStatistics(), SideStatistics())
    )
    output_rows: int = 0
    purges: int = 0  # runs of the component
    relocations: int = 0
    relocated: int = 0  # tuples
    disk_joins: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    seconds: float = 0.0  # inside the operator
    memory: dict[str, int] = field(default_factory=dict)  # bytes reserved now, by component
    memory_peak: int = 0

    def as_dict(self) -> dict[str, Any]:
        totals = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sides"}
        return totals | {name: vars(s).copy() for name, s in zip(SIDES, self.sides, strict=True)}


class StreamStreamJoin(ABC):
    """A single-threaded exact equijoin of two streams in at most M bytes. Tuples that do not fit
    wait on local disk.

    No pair is joined twice. If both tuples were in memory at the same time, the memory join finds
    the pair. Otherwise the first disk join that has both tuples finds it
    (`kernels.leftover_pairs`). clock: a function that returns seconds, for the time propagation
    threshold.

    An algorithm implements ``_take``, which is its loop, and the components that the registry
    names. Its constructor takes the spec and its parameters.
    """

    def __init__(
        self,
        spec: StreamJoinSpec,
        monitor: Monitor,
        registry: Registry,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.spec, self.monitor, self.registry, self.clock = spec, monitor, registry, clock
        self.state, self.stats = State(spec), StreamJoinStatistics()
        self.output_schema = spec.output_schema
        self.unmatched_schemas = tuple(
            s.append(pa.field("reason", pa.string())) for s in spec.schemas
        )
        self._outer = JOIN_TYPES[spec.join_type]
        self._pair = RowSize(self.output_schema)
        self._lost = [
            RowSize(self.output_schema if outer else schema)
            for outer, schema in zip(self._outer, self.unmatched_schemas, strict=True)
        ]
        self._account()

    def process(self, side: int, chunk: pa.RecordBatch) -> Iterator[StreamJoinOutput]:
        """Join tuples of a side. Yield joined rows and unmatched tuples in batches of bounded size.
        The caller must exhaust the iterator."""
        return timed(self._process(side, chunk), self._account)

    def punctuate(
        self, side: int, punctuations: pa.RecordBatch | Iterable[Mapping[str, Any]]
    ) -> Iterator[StreamJoinOutput]:
        """Process punctuations. A punctuation guarantees that no later tuple of this side matches
        it. punctuations: a batch of constants, one in each row, or mappings in plain form (see the
        module ``punctuations``).

        Punctuations may overlap earlier ones of the side; a punctuation that an earlier one
        contains is ignored. Raises ConfigError for an invalid punctuation, before anything has
        changed.
        """
        return timed(self._punctuate(side, punctuations), self._account)

    def request_propagation(self) -> Iterator[StreamJoinOutput]:
        """Propagate all punctuations that can be propagated now, because downstream requested it
        (pull)."""
        return timed(self._raise(Event.PROPAGATE_REQUEST), self._account)

    def idle(self, seconds: float) -> Iterator[StreamJoinOutput]:
        """Run the components that are registered for idle times, such as the disk join. seconds:
        the time since the last tuple of either stream."""
        return timed(self._idle(seconds), self._account)

    def drain(self) -> Iterator[StreamJoinOutput]:
        """Finish the join after both streams have ended. Afterwards the state holds no tuple."""
        return timed(self._drain(), self._account)

    def snapshot(self, *, changes: bool = False) -> JoinState:
        """Return the join's state between two calls. changes: whether the changes since the last
        snapshot suffice."""
        return self._snapshot(changes).held()

    def save(self, path: str | Path, before: str = "", **values: Any) -> None:
        """Write a snapshot, together with the given values, to a file, without building it in
        memory. before: the name of the previously saved state, in the same directory; if given,
        only the changes since that state may be written. Raises StateError if that file is damaged.
        """
        state = self._snapshot(bool(before))
        state.values |= values
        state.write(path, before)

    def _snapshot(self, changes: bool) -> JoinState:
        state = self.state.saved(changes)
        tables, values = self._state(not state.whole)
        state.tables |= tables
        state.values |= {"identity": self.spec.identity()} | values
        return state

    def restore(self, *states: JoinState) -> None:
        """Restore the state of an operator into this new one, which must have been opened with the
        same settings. states: a whole snapshot, then the changes after it, in order. Raises
        StateError if the settings differ."""
        states[0].check_identity(self.spec.identity())
        self._restore(states)
        self.state.restore(*states)
        self._restored()
        self._account()

    # Implemented by each algorithm

    @abstractmethod
    def _take(
        self, side: int, batch: pa.RecordBatch, codes: np.ndarray
    ) -> Iterator[StreamJoinOutput]:
        """Join new tuples, and store them. batch: tuples in stored types, without null keys; codes:
        int64[n], the key codes."""

    def _punctuate(
        self, side: int, punctuations: pa.RecordBatch | Iterable[Mapping[str, Any]]
    ) -> Iterator[StreamJoinOutput]:
        raise ConfigError(
            "algorithm",
            "must be pjoin where a stream has punctuations",
            self.spec.algorithm,
            "Choose pjoin.",
        )
        yield

    def _left(self, side: int, pids: np.ndarray) -> None:  # noqa: B027 - without an index: nothing
        """Record that tuples of a side have left the state. pids: int32[n], for each tuple the
        punctuation of its stream that counts the tuple, -1 if there is none."""

    def _state(self, changes: bool) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Return the part of a snapshot that the algorithm adds. changes: whether the changes since
        the last snapshot suffice."""
        return {}, {}

    def _restore(self, states: Sequence[JoinState]) -> None:  # noqa: B027 - nothing to take up
        """Restore the result of ``_state``. This happens before the tuples are restored."""

    def _restored(self) -> None:  # noqa: B027 - nothing is told of them
        """Complete the restoration after the tuples have been restored."""

    # Edges

    def _process(self, side: int, chunk: pa.RecordBatch) -> Iterator[StreamJoinOutput]:
        """Join a chunk of a side: output tuples without a key, then take in the others piece by
        piece."""
        batch = as_stored(chunk, self.spec.schemas[side])
        codes, valid = self.spec.codes(side, batch)
        self.stats.sides[side].rows_read += batch.num_rows
        if not valid.all():
            yield from self._unmatched(side, batch.filter(pa.array(~valid)).columns, NULL_KEY)
            batch, codes = batch.filter(pa.array(valid)), codes[valid]
        for first in range(0, batch.num_rows, PIECE):
            yield from self._take(side, batch.slice(first, PIECE), codes[first : first + PIECE])
        yield from self._check_time()

    def _idle(self, seconds: float) -> Iterator[StreamJoinOutput]:
        if seconds >= self.monitor.activation_seconds:
            yield from self._raise(Event.STREAM_EMPTY)
        yield from self._check_time()

    def _check_time(self) -> Iterator[StreamJoinOutput]:
        if self.monitor.propagation_is_due(self.clock):
            yield from self._raise(Event.PROPAGATE_TIME_EXPIRE)

    def _raise(self, event: Event) -> Iterator[StreamJoinOutput]:
        """Run the components that the registry lists for the event, in the registry's order."""
        for component in self.registry.get(event, ()):
            yield from getattr(self, component.value)()

    def _account(self, seconds: float = 0.0) -> None:
        """Update the statistics after a step. seconds: the time that the step took."""
        state, s = self.state, self.stats
        s.seconds += seconds
        state.account()
        s.memory, s.memory_peak = dict(state.arena.components), state.arena.peak
        s.relocations, s.relocated = state.relocations, state.relocated
        s.disk_joins = state.disk_joins
        s.bytes_written, s.bytes_read = (
            sum(getattr(d, n) for d in state.disk) for n in ("written", "read")
        )
        for side, one in enumerate(s.sides):
            one.held, one.on_disk = state.held(side), state.disk[side].total
            one.buffered = state.memory[side].buffered
            one.held_peak = max(one.held_peak, one.held)

    # Memory join

    def memory_join(
        self, side: int, batch: pa.RecordBatch, codes: np.ndarray, keep: np.ndarray
    ) -> Iterator[StreamJoinOutput]:
        """Probe the other stream's memory portion with new tuples, and store the tuples with
        keep[i], bool[n], in the memory portion of their side. Raise the event StateFull when M is
        reached.

        The tuples without keep[i] are dropped on the fly, or wait in the purge buffer if they may
        have partners on disk."""
        sizes = variable_bytes(batch)
        first = 0
        while first < len(codes):
            count = self.state.fitting(side, sizes[first:])
            if not count:
                if not self.state.compact():
                    yield from self._raise(Event.STATE_FULL)
                    if not self.state.fitting(side, sizes[first:]):
                        yield from self.state_relocation()
                continue
            last = min(first + count, len(codes))
            part = batch.slice(first, last - first)
            yield from self._join_piece(side, part, codes[first:last], keep[first:last])
            self.state.account()
            first = last

    def _join_piece(
        self, side: int, batch: pa.RecordBatch, codes: np.ndarray, keep: np.ndarray
    ) -> Iterator[StreamJoinOutput]:
        """Join a piece of new tuples that fits into memory with the other stream's memory portion,
        store the tuples with keep[i], bool[n], and drop the others. codes: int64[n]."""
        state, n = self.state, len(codes)
        log, other = state.memory[side], state.memory[1 - side]
        state.directory.grow(n)
        found, ats, slot = np.empty(n, np.int32), state.tick(n) + np.arange(n), log.end
        state.directory.used += kernels.join_and_insert(
            codes,
            keep.view(np.uint8),
            side,
            state.directory.t64,
            state.directory.t32,
            log.code,
            log.same,
            slot,
            found,
        )
        kept = np.flatnonzero(keep)
        log.store_rows(batch, kept, ats[kept])
        matched = np.zeros(n, np.uint8)
        for rows, slots in self._pair.cut_pairs(other.pairs(found)):
            mine = [c.take(pa.array(rows)) for c in batch.columns]
            theirs = other.columns(slots)
            pair = (mine, theirs) if side == 0 else (theirs, mine)
            pair, equal = self._equal(pair)
            if equal is not None:
                rows, slots = rows[equal], slots[equal]
            matched[rows] = MATCHED
            other.match(slots)
            yield self._joined(pair)
        log.flags[slot : log.end] |= matched[kept]
        if len(kept) < n:
            yield from self._drop(side, batch, codes, ats, matched, np.flatnonzero(~keep))

    def _drop(
        self,
        side: int,
        batch: pa.RecordBatch,
        codes: np.ndarray,
        ats: np.ndarray,
        matched: np.ndarray,
        rows: np.ndarray,
    ) -> Iterator[StreamJoinOutput]:
        """Drop these rows of a batch, int64[k], on the fly, instead of storing them. Rows that may
        have partners on disk are kept in the purge buffer."""
        wait = self.state.waits(side, codes[rows], ats[rows])
        if wait.any():
            held = rows[wait]
            columns = [c.take(pa.array(held)) for c in batch.columns]
            log = self.state.memory[side]
            slots = log.append(columns, codes[held], ats[held], np.zeros(len(held), bool))
            log.flags[slots] |= matched[held]
            rows = rows[~wait]
        one = self.stats.sides[side]
        lone = rows[matched[rows] == 0]
        one.dropped += len(rows)
        one.matched += len(rows) - len(lone)
        if len(lone):
            yield from self._unmatched(
                side, [c.take(pa.array(lone)) for c in batch.columns], NO_PARTNER
            )

    # State relocation

    def state_relocation(self) -> Iterator[StreamJoinOutput]:
        self.state.relocate()
        yield from ()

    # Disk join

    def disk_join(self) -> Iterator[StreamJoinOutput]:
        """Join one disk portion with the tuples that the other stream's memory has received since
        this portion was last probed. The portion is the largest one that has such partners and
        reaches the activation threshold."""
        best, most = None, max(self.monitor.activation_threshold, 1) - 1
        for side, disk in enumerate(self.state.disk):
            other = self.state.memory[1 - side]
            if not other.live:
                continue
            newest = int(other.ats[other.end - 1])
            for bucket in map(int, np.flatnonzero(disk.tuples > most)):
                probed = max(
                    (at for _, at in disk.history[bucket]), default=int(self.state.done[bucket])
                )
                if disk.tuples[bucket] > most and max(newest, disk.runs[bucket][-1].dts) > probed:
                    best, most = (side, bucket), int(disk.tuples[bucket])
        if best:
            for left in self.state.probe(*best):
                yield from self._leftover(left)

    def finish_bucket(self, bucket: int) -> Iterator[StreamJoinOutput]:
        """Join all pairs of a hash bucket that have not been joined yet, on disk and in memory.
        Propagation and the end of the streams require this."""
        for left in self.state.finish(bucket):
            yield from self._leftover(left)

    def _leftover(self, left: Leftover) -> Iterator[StreamJoinOutput]:
        """Join the pairs that a disk join found, and mark both tuples of each as matched."""
        for part in self._pair.cut_pairs([left.rows]):
            columns = tuple(b.columns(r) for b, r in zip(left.blocks, part, strict=True))
            pair, equal = self._equal(columns)  # type: ignore[arg-type]
            for blocks, rows in zip(left.blocks, part, strict=True):
                blocks.match(rows if equal is None else rows[equal])
            yield self._joined(pair)

    # The end of the streams

    def _drain(self) -> Iterator[StreamJoinOutput]:
        """Finish all tuples: move tuples from memory to disk if necessary, join each hash bucket,
        and output the tuples that had no partner."""
        while self.state.end():
            yield from self.state_relocation()
        on_disk = self.state.disk[0].tuples + self.state.disk[1].tuples
        for bucket in map(int, np.flatnonzero(on_disk)):
            yield from self.finish_bucket(bucket)
            for side, disk in enumerate(self.state.disk):
                yield from self._leave_disk(side, bucket, lambda _block, live: live)
                disk.clear(bucket)
        for side, log in enumerate(self.state.memory):
            yield from self._leave(side, log.slots())
        self.state.empty()

    # Tuples that leave, and output

    def _leave(self, side: int, slots: np.ndarray) -> Iterator[StreamJoinOutput]:
        """Remove slots, int64[n], from a side's memory portion. Output the tuples that had no
        partner as unmatched."""
        log = self.state.memory[side]
        self._left(side, log.pid[slots])
        lone = slots[log.flags[slots] & MATCHED == 0]
        self.stats.sides[side].matched += len(slots) - len(lone)
        for part in self._lost[side].cut(len(lone)):
            yield from self._unmatched(side, log.columns(lone[part]), NO_PARTNER)
        log.remove(slots)

    def _leave_disk(
        self, side: int, bucket: int, which: Callable[[RunBlock, np.ndarray], np.ndarray]
    ) -> Iterator[StreamJoinOutput]:
        """Remove tuples from the disk portion of a hash bucket, and output those that had no
        partner as unmatched. which: a function that returns which of a block's live rows, int64[n],
        leave. If all of these had a partner, only the marks are read."""
        disk, lone, count = self.state.disk[side], self.state.empty_blocks(), 0
        numbers = list[np.ndarray]()
        for block in disk.blocks(bucket):
            rows = which(block, block.live)
            alone = rows[block.flags[rows] & MATCHED == 0]
            self._left(side, block.pid[rows])
            self.stats.sides[side].matched += len(rows) - len(alone)
            block.remove(rows)
            disk.tuples[bucket] -= len(rows)
            if len(alone):
                disk.read += block.bytes
                numbers.append(alone + lone.add(block))
                count += len(alone)
            if count >= self._lost[side].rows:
                yield from self._unmatched(side, lone.columns(np.concatenate(numbers)), NO_PARTNER)
                lone, numbers, count = self.state.empty_blocks(), [], 0
        if count:
            yield from self._unmatched(side, lone.columns(np.concatenate(numbers)), NO_PARTNER)

    def _equal(
        self, pair: tuple[list[pa.Array], list[pa.Array]]
    ) -> tuple[tuple[list[pa.Array], list[pa.Array]], np.ndarray | None]:
        """Filter pairs with equal key codes: keep those with equal keys and with times within the
        distance of ``within``. pair: the columns of the left tuples and of the right tuples. Return
        the kept pairs, and a mask of them among the given pairs, bool[n], None if all are kept."""
        if self.spec.keys.exact and not self.spec.within:
            return pair, None
        same = np.ones(len(pair[0][0]), bool)
        if not self.spec.keys.exact:
            same = equal_keys(self.spec.key_values(0, pair[0]), self.spec.key_values(1, pair[1]))
        if self.spec.within:
            same &= (
                np.abs(self.spec.times(0, pair[0]) - self.spec.times(1, pair[1]))
                <= self.spec.within.distance
            )
        if same.all():
            return pair, None
        keep = pa.array(same)
        return ([c.filter(keep) for c in pair[0]], [c.filter(keep) for c in pair[1]]), same

    def _joined(self, pair: tuple[list[pa.Array], list[pa.Array]]) -> StreamJoinOutput:
        joined = pa.RecordBatch.from_arrays([*pair[0], *pair[1]], schema=self.output_schema)
        self.stats.output_rows += joined.num_rows
        self._pair.learn(joined)
        return StreamJoinOutput(joined)

    def _unmatched(
        self, side: int, columns: Sequence[pa.Array], reason: str
    ) -> Iterator[StreamJoinOutput]:
        """Yield batches of unmatched tuples, and count them. In an outer join, yield their outer
        rows, too. columns: the side's columns; reason: why the tuples are unmatched."""
        counts = self.stats.sides[side].unmatched
        for part in self._lost[side].cut(len(columns[0])):
            count, joined = part.stop - part.start, None
            mine = [c.slice(part.start, count) for c in columns]
            counts[reason] = counts.get(reason, 0) + count
            rejected = pa.RecordBatch.from_arrays(
                [*mine, pa.repeat(reason, count)], schema=self.unmatched_schemas[side]
            )
            if self._outer[side] and reason != AGAINST_PUNCTUATION:
                nulls = [pa.nulls(count, f.type) for f in self.spec.schemas[1 - side]]
                both = [*mine, *nulls] if side == 0 else [*nulls, *mine]
                joined = pa.RecordBatch.from_arrays(both, schema=self.output_schema)
                self.stats.output_rows += count
            self._lost[side].learn(rejected if joined is None else joined)
            yield StreamJoinOutput(joined, side, rejected)
