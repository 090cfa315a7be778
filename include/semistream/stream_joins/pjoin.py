"""PJoin (Ding, Mehta, Rundensteiner, Heineman: Joining Punctuated Streams, 2004)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from semistream.errors import ConfigError, NotEnoughMemory
from semistream.joins.output import OUTPUT_ROWS
from semistream.joins.state_file import JoinState
from semistream.keys import equal_keys
from semistream.stream_joins.base import (
    AGAINST_PUNCTUATION,
    Propagated,
    StreamJoinOutput,
    StreamStreamJoin,
)
from semistream.stream_joins.disk import RunBlock
from semistream.stream_joins.events import Component, Event, Monitor, Registry
from semistream.stream_joins.kernels import BUCKETS, BUFFERED, CHANGED, DEAD
from semistream.stream_joins.memory import TupleLog
from semistream.stream_joins.punctuation_set import Closed, PunctuationSet, forget_closed_by_both
from semistream.stream_joins.punctuation_tables import NONE
from semistream.stream_joins.punctuations import LEAST, MOST, Keys, Punctuation, parse, values_of
from semistream.stream_joins.spec import StreamJoinSpec
from semistream.stream_joins.state import FREED_SHARE
from semistream.stream_joins.xjoin import XJoinParameters

Tuples = TupleLog | RunBlock  # tuples of one stream, in memory or on disk
PUNCTUATION_SHARE = 2  # part of M that punctuations may take
# bytes of M per constant that is taken in at a time; least constants at a time
PIECE_SHARE, LEAST_PIECE = 2048, 64


class PJoinParameters(XJoinParameters):
    """The parameters of PJoin: those of XJoin, and the thresholds of purging, indexing and
    propagation."""

    purge_threshold: int = Field(
        1, ge=0, description="Punctuations between two purges of the state; 1: eager purge"
    )
    propagate: Literal["push", "pull"] = Field(
        "push",
        description="push: punctuations are propagated by propagate_count and "
        "propagate_seconds; pull: on request (section 3.5)",
    )
    propagate_count: int = Field(
        1, ge=0, description="Punctuations between two propagations; 0: not by their count"
    )
    propagate_seconds: float | None = Field(
        None, ge=0, description="Seconds between two propagations; default: not by time"
    )
    index: Literal["lazy", "eager"] = Field(
        "lazy",
        description="When tuples are indexed by their own stream's punctuations: lazy: at "
        "a propagation; eager: at each punctuation",
    )

    @model_validator(mode="after")
    def _pulled(self) -> PJoinParameters:
        pushed = sorted({"propagate_count", "propagate_seconds"} & self.model_fields_set)
        if self.propagate == "pull" and pushed:
            raise ConfigError(
                pushed[0],
                "must be left out where propagation is pulled",
                getattr(self, pushed[0]),
                "Leave it out, or give propagate push.",
            )
        return self

    def monitor(self) -> Monitor:
        pull = self.propagate == "pull"
        return replace(
            super().monitor(),
            purge_threshold=self.purge_threshold,
            pull=pull,
            propagate_count=0 if pull else self.propagate_count,
            propagate_seconds=math.inf
            if self.propagate_seconds is None
            else self.propagate_seconds,
        )


class PJoin(StreamStreamJoin):
    """XJoin with punctuated streams. A punctuation guarantees that no later tuple of the stream has
    these join values.

    1. A new tuple probes the opposite memory portion (`memory_join`), as in XJoin. If it matches
       a punctuation of the opposite stream, it will have no more partners, and is not stored
       (on-the-fly drop). If it matches a punctuation of its own stream, the source has violated its
       guarantee: the tuple is returned as `against_punctuation`.
    2. A new punctuation finishes tuples of the opposite state: they leave (`state_purge`; eager,
       or lazy by a threshold), or wait in the purge buffer for partners on disk. Tuples on disk
       leave after a disk join.
    3. A punctuation is output when no tuple of its own state matches it any more (`propagation`, by
       the counts that `index_build` keeps), by count, by time or on request.

    A tuple that leaves without having had a partner is output as unmatched at that moment, because
    it could still have found a partner before. The default registry purges eagerly, and indexes
    lazily, for propagation by count.
    """

    def __init__(
        self,
        spec: StreamJoinSpec,
        parameters: PJoinParameters,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(spec, parameters.monitor(), registry(), clock)
        if parameters.index == "eager":
            self.registry[Event.NEW_PUNCT_READY] = [Component.INDEX_BUILD]
        self.punctuations = PunctuationSet(spec, 0), PunctuationSet(spec, 1)
        # watermarks of event time, if the spec has ``within``; LEAST before the first one
        self.watermarks = [LEAST, LEAST]
        self._purged_until = [LEAST, LEAST]
        # sequence number up to which each disk portion is indexed
        self._levels = [np.zeros(BUCKETS, np.int64) for _ in range(2)]
        self._news = 0  # punctuations so far, watermarks included
        # `_news` at the last disk join of each bucket
        self._joined_at = np.zeros(BUCKETS, np.int64)

    def _take(
        self, side: int, batch: pa.RecordBatch, codes: np.ndarray
    ) -> Iterator[StreamJoinOutput]:
        keys = Keys(
            codes, [] if self.spec.keys.exact else self.spec.key_values(side, batch.columns)
        )
        times = self.spec.times(side, batch.columns) if self.spec.within else None
        wrong = self.punctuations[side].match(keys) != NONE
        if times is not None:
            wrong |= times <= self.watermarks[side]
        if wrong.any():
            yield from self._unmatched(
                side, batch.filter(pa.array(wrong)).columns, AGAINST_PUNCTUATION
            )
            good = np.flatnonzero(~wrong)
            batch, keys = batch.take(pa.array(good)), keys.take(good)
            times = None if times is None else times[good]
        drop = self._finished(side, keys, times)
        yield from self.memory_join(side, batch, keys.codes, ~drop)

    def _finished(self, side: int, keys: Keys, times: np.ndarray | None) -> np.ndarray:
        """Return which tuples of a side cannot be joined with later tuples of the other stream,
        bool[n]. times: int64[n], or None without ``within``."""
        out = self.punctuations[1 - side].match(keys) != NONE
        if times is not None:
            out |= times <= self._horizon(side)
        return out

    def _horizon(self, side: int) -> int:
        """Return the time up to which tuples of the side are too old for later tuples of the other
        stream."""
        mark = self.watermarks[1 - side]
        if self.spec.within is None or mark in (LEAST, MOST):
            return mark
        return mark - self.spec.within.distance

    # Arrival of punctuations

    def _punctuate(
        self, side: int, punctuations: pa.RecordBatch | Iterable[Mapping[str, Any]]
    ) -> Iterator[StreamJoinOutput]:
        constants, others, times = parse(self.spec, side, punctuations)
        watermark = self._advanced(side, times)
        constants, others = self.punctuations[side].new(constants, others)
        advanced = watermark > self.watermarks[side]
        self.watermarks[side] = watermark
        most = max(self.spec.memory // PIECE_SHARE, LEAST_PIECE)
        for first in range(0, max(len(constants.codes), 1), most):
            piece = constants.take(np.arange(first, min(first + most, len(constants.codes))))
            yield from self._take_in(side, piece, others, advanced)
            others, advanced = [], False

    def _take_in(
        self, side: int, constants: Keys, others: list[Punctuation], advanced: bool
    ) -> Iterator[StreamJoinOutput]:
        """Add new punctuations to the set of a side, and raise the events that are due as a result.
        advanced: whether the watermark of the side has also advanced."""
        mine = self.punctuations[side]
        yield from self._make_room(lambda: mine.growth(constants, others))
        mine.add(constants, others)
        self._account_punctuations()
        news = len(constants.codes) + len(others) + advanced
        self.stats.sides[side].punctuations += news
        self._news += news
        m = self.monitor
        m.since_purge += news
        m.since_propagation += news
        if news:
            yield from self._raise(Event.NEW_PUNCT_READY)
        if news and m.since_purge >= m.purge_threshold:
            yield from self._raise(Event.PURGE_THRESHOLD_REACH)
        if news and m.propagate_count and m.since_propagation >= m.propagate_count:
            yield from self._raise(Event.PROPAGATE_COUNT_REACH)
        yield from self._check_time()

    def _advanced(self, side: int, times: list[tuple[int, int]]) -> int:
        """Return the watermark of a side after these ranges of time, each (low, high), have also
        been closed. Raises ConfigError if a range would leave a gap after the watermark."""
        mark = self.watermarks[side]
        for low, high in sorted(times):
            if low > mark + 1:
                raise ConfigError(
                    "punctuation",
                    "must be a range of times that goes on from the one before",
                    [low, high],
                    "Leave its start open: all older times are closed.",
                )
            mark = max(mark, high)
        return mark

    def _make_room(self, size: Callable[[], int]) -> Iterator[StreamJoinOutput]:
        """Make room for new punctuations if all punctuations together would exceed their part of M:
        first propagate, then forget constants. size: a function that returns the bytes of the new
        punctuations. Tuples that match a forgotten constant stay in the state, as if the constant
        had never come, and are still joined exactly. Raises NotEnoughMemory if punctuations other
        than constants take too much memory."""

        def least() -> int:
            return PUNCTUATION_SHARE * (self.state.punctuation_bytes + size())

        if least() > self.spec.memory:
            for component in (self.state_purge, self.index_build, self.propagation):
                yield from component()
        while (before := least()) > self.spec.memory:
            for side, punctuations in enumerate(self.punctuations):
                yield from self._free_up(punctuations.forgetting)
                self._forget(side)
                self._account_punctuations()
            if least() >= before:
                raise NotEnoughMemory(
                    least(), self.spec.memory, "the punctuations that wait for their counterparts"
                )
        yield from self._free_up(size)

    def _free_up(self, size: Callable[[], int]) -> Iterator[StreamJoinOutput]:
        """Compact garbage, then relocate tuples, until the state has as many free bytes as `size`
        returns."""
        while self.state.free < size():
            if not self.state.compact(self.spec.memory):
                yield from self.state_relocation()

    def _forget(self, side: int) -> None:
        """Forget half of a side's constants. A tuple that was counted for a forgotten constant gets
        the pid of another punctuation that matches it, or none."""
        punctuations = self.punctuations[side]
        now = np.arange(len(punctuations.index["state"]) + 1, dtype=np.int32)
        now[-1] = NONE
        pids, heirs = punctuations.forget_half()
        now[pids] = heirs
        self.stats.sides[side].forgotten += len(pids)
        for run in chain(*self.state.disk[side].runs):
            run.changed = True
        for pid, flags in self.state.marks(side):
            live = np.flatnonzero(flags & DEAD == 0)  # dead tuples' pids may be free or reused
            changed = live[now[pid[live]] != pid[live]]
            pid[changed] = now[pid[changed]]
            flags[changed] |= CHANGED

    def _account_punctuations(self) -> None:
        self.state.punctuation_bytes = sum(p.bytes for p in self.punctuations)
        self.state.account()

    # State relocation

    def state_relocation(self) -> Iterator[StreamJoinOutput]:
        """Relocate state after indexing, so that tuples have their pids on disk. If compacting
        purged tuples frees enough memory, nothing is relocated."""
        yield from self.index_build()
        if self.state.compact(FREED_SHARE):
            return
        for side, disk in enumerate(self.state.disk):
            self._levels[side][disk.tuples == 0] = self.punctuations[side].sequence
        yield from super().state_relocation()

    # State purge

    def state_purge(self) -> Iterator[StreamJoinOutput]:
        """Remove tuples that match a punctuation of the opposite stream. Tuples of a hash bucket on
        disk are removed after a disk join of the bucket. That disk join runs only when as many
        tuples have come since the last one as the bucket has on disk, so that the disk I/O is
        linear in the input."""
        for side in (0, 1):
            opposite = self.punctuations[1 - side]
            slots = (
                self._every_finished(side)
                if opposite.closed_early
                else self._matching(side, *opposite.since(opposite.purged), times=True)
            )
            opposite.purged, opposite.closed_early = opposite.sequence, False
            self._purged_until[side] = self._horizon(side)
            yield from self._purge(side, slots)
        self.monitor.since_purge = 0
        self.stats.purges += 1
        on_disk = sum(d.tuples for d in self.state.disk)
        due = (
            (on_disk > 0)
            & (self._joined_at < self._news)
            & (self.state.clock - self.state.done >= BUCKETS * on_disk)
        )
        for bucket in np.flatnonzero(due):
            yield from self.finish_bucket(int(bucket))
        self.state.tidy()

    def _purge(self, side: int, slots: np.ndarray) -> Iterator[StreamJoinOutput]:
        """Remove tuples in these slots, int64[n], of a side's memory portion. Tuples that may still
        have partners on disk go to the purge buffer."""
        log = self.state.memory[side]
        wait = self.state.waits(side, log.code[slots], log.ats[slots])
        if wait.any():
            log.buffer(slots[wait])
        self.stats.sides[side].purged += len(slots) - int(wait.sum())
        yield from self._leave(side, slots[~wait])

    def _every_finished(self, side: int) -> np.ndarray:
        """Return the slots of a memory portion, outside of the purge buffer, whose tuples cannot be
        joined with later tuples. All tuples are examined, and not only those that match new
        punctuations, because a punctuation that was propagated before the purge can no longer be
        listed."""
        log = self.state.memory[side]
        every = log.slots(DEAD | BUFFERED)
        parts = (every[first : first + OUTPUT_ROWS] for first in range(0, len(every), OUTPUT_ROWS))
        found = [self._finished_rows(side, log, slots) for slots in parts]
        return np.concatenate([every[:0], *found])

    def _matching(
        self, side: int, constants: Keys, others: list[Punctuation], times: bool = False
    ) -> np.ndarray:
        """Return the slots of a side's memory portion, outside of the purge buffer, whose tuples
        match any of these punctuations. With `times`, also return those that have become too old
        for later tuples of the other stream. Constants are looked up; other punctuations need a
        pass over the state."""
        log = self.state.memory[side]
        found = [np.empty(0, np.int64)]
        if len(constants.codes) and log.live:
            for rows, slots in log.pairs(log.find(constants.codes)):
                if constants.values:
                    keys = self._keys(side, log, slots)
                    slots = slots[equal_keys(keys.values, constants.take(rows).values)]
                found.append(slots)
        horizon = self._horizon(side) if times else LEAST
        aged = horizon > self._purged_until[side]
        if not (others or aged):
            return np.sort(np.concatenate(found))
        wanted = np.zeros(log.end, bool)
        wanted[np.concatenate(found)] = True
        every = log.slots(DEAD | BUFFERED)
        for first in range(0, len(every), OUTPUT_ROWS):
            slots = every[first : first + OUTPUT_ROWS]
            if others:
                keys = self._keys(side, log, slots)
                values = keys.values or [values_of(keys.codes, self.spec.keys.types[0])]
                for p in others:
                    wanted[slots[p.matches(values)]] = True
            if aged and self.spec.within:
                column = log.column(self.spec.within.columns[side], slots)
                wanted[slots[self.spec.within.times(column) <= horizon]] = True
        return np.flatnonzero(wanted)

    def _keys(self, side: int, tuples: Tuples, rows: np.ndarray) -> Keys:
        """Return the keys of a side's tuples in memory or on disk. rows: int64[n]."""
        if self.spec.keys.exact:
            return Keys(tuples.code[rows], [])
        columns = (tuples.column(c, rows) for c in self.spec.key_columns(side))
        return Keys(tuples.code[rows], self.spec.keys.canonical(columns))

    def disk_join(self) -> Iterator[StreamJoinOutput]:
        yield from super().disk_join()
        yield from self._empty_purge_buffer()

    def finish_bucket(self, bucket: int) -> Iterator[StreamJoinOutput]:
        """Join all pairs of a hash bucket that have not been joined yet. Then purge its disk
        portions, and index them."""
        yield from super().finish_bucket(bucket)
        yield from self._empty_purge_buffer()
        for side in (0, 1):
            before = int(self.state.disk[side].tuples[bucket])
            yield from self._leave_disk(side, bucket, partial(self._finished_rows, side))
            self.stats.sides[side].purged += before - int(self.state.disk[side].tuples[bucket])
            self._index_disk(side, bucket)
        self._joined_at[bucket] = self._news
        self.state.compact_disk(bucket)

    def _empty_purge_buffer(self) -> Iterator[StreamJoinOutput]:
        """Remove the tuples of the purge buffer that have met all their partners on disk."""
        for side, log in enumerate(self.state.memory):
            if log.buffered:
                slots = np.flatnonzero(log.flags[: log.end] & (DEAD | BUFFERED) == BUFFERED)
                slots = slots[~self.state.waits(side, log.code[slots], log.ats[slots])]
                self.stats.sides[side].purged += len(slots)
                yield from self._leave(side, slots)

    def _finished_rows(self, side: int, tuples: Tuples, rows: np.ndarray) -> np.ndarray:
        """Return which of these rows, int64[n], of a side's tuples cannot be joined with later
        tuples of the other stream."""
        within, times = self.spec.within, None
        if within:
            times = within.times(tuples.column(within.columns[side], rows))
        return rows[self._finished(side, self._keys(side, tuples, rows), times)]

    # Punctuation index (section 3.5, Fig. 3)

    def index_build(self) -> Iterator[StreamJoinOutput]:
        """Build the punctuation index: assign to each tuple in memory the pid of the first new
        punctuation of its own stream that matches the tuple, and increment that punctuation's
        count."""
        for side, punctuations in enumerate(self.punctuations):
            if punctuations.indexed == punctuations.sequence:
                continue
            log = self.state.memory[side]
            slots = self._matching(side, *punctuations.since(punctuations.indexed))
            buffered = (
                np.flatnonzero(log.flags[: log.end] & (DEAD | BUFFERED) == BUFFERED)
                if log.buffered
                else slots[:0]
            )
            self._index(side, log, np.concatenate([slots, buffered]))
            punctuations.indexed = punctuations.sequence
        yield from ()

    def _index_disk(self, side: int, bucket: int) -> None:
        """Index a side's tuples of a hash bucket on disk by the punctuations that have come since
        the tuples were indexed last."""
        disk, sequence = self.state.disk[side], self.punctuations[side].sequence
        if disk.tuples[bucket] and self._levels[side][bucket] < sequence:
            for block in disk.blocks(bucket):
                self._index(side, block, block.live)
        self._levels[side][bucket] = sequence

    def _index(self, side: int, tuples: Tuples, rows: np.ndarray) -> None:
        """Index the tuples in these rows, int64[n], that have no pid yet."""
        rows = rows[tuples.pid[rows] == NONE]
        pids = self.punctuations[side].match(self._keys(side, tuples, rows))
        tuples.assign(rows, pids)
        self.punctuations[side].count(pids, 1)

    def _left(self, side: int, pids: np.ndarray) -> None:
        self.punctuations[side].count(pids, -1)

    # Propagation

    def leftover_join(self) -> Iterator[StreamJoinOutput]:
        """Run the disk join of each hash bucket that has tuples on disk and may have punctuations
        to propagate."""
        on_disk = self.state.disk[0].tuples + self.state.disk[1].tuples
        for bucket in np.flatnonzero((on_disk > 0) & (self._joined_at < self._news)):
            yield from self.finish_bucket(int(bucket))

    def propagation(self) -> Iterator[StreamJoinOutput]:
        """Output and close each punctuation that no tuple of its own state matches (Theorem 1)."""
        for side, mine in enumerate(self.punctuations):
            level = np.where(self.state.disk[side].tuples == 0, MOST, self._levels[side])
            pids = mine.propagable(level)
            if len(pids):
                yield from self._free_up(partial(mine.closing, len(pids)))
                closed = mine.close(pids)
                forget_closed_by_both(mine, self.punctuations[1 - side], closed)
                yield from self._propagate(side, closed)
        self.monitor.since_propagation, self.monitor.propagated_at = 0, self.clock()
        self._account_punctuations()

    def _propagate(self, side: int, closed: Closed) -> Iterator[StreamJoinOutput]:
        """Output the punctuations of a side that have just been closed."""
        columns = self.spec.key_columns(side)
        count = len(closed.constants.codes) + len(closed.others)
        self.stats.sides[side].propagated += count
        values = closed.constants.values or [
            values_of(closed.constants.codes, self.spec.keys.types[0])
        ]
        constants = pa.RecordBatch.from_arrays(values, list(columns))
        yield StreamJoinOutput(
            propagated=Propagated(side, constants, [p.plain(columns) for p in closed.others])
        )

    def _drain(self) -> Iterator[StreamJoinOutput]:
        """Finish the join. The end of the streams closes every value."""
        yield from self.index_build()
        yield from super()._drain()
        yield from self.propagation()

    # Snapshots

    def _state(self, changes: bool) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        (left, left_values), (right, right_values) = (p.saved(changes) for p in self.punctuations)
        saved = {
            "punctuations": [left_values, right_values],
            "watermarks": self.watermarks,
            "purged_until": self._purged_until,
            "levels": [one.tolist() for one in self._levels],
            "news": self._news,
            "joined_at": self._joined_at.tolist(),
            "since": [self.monitor.since_purge, self.monitor.since_propagation],
        }
        return left | right, {"pjoin": saved}

    def _restore(self, states: Sequence[JoinState]) -> None:
        saved = states[-1].values["pjoin"]
        for punctuations, values in zip(self.punctuations, saved["punctuations"], strict=True):
            punctuations.restore([s.tables for s in states], values)
        self.watermarks, self._purged_until = list(saved["watermarks"]), list(saved["purged_until"])
        self._levels = [np.array(one, np.int64) for one in saved["levels"]]
        self._news, self._joined_at = saved["news"], np.array(saved["joined_at"], np.int64)
        self.monitor.since_purge, self.monitor.since_propagation = saved["since"]
        self._account_punctuations()

    def _restored(self) -> None:
        for side, punctuations in enumerate(self.punctuations):
            for pid, flags in self.state.marks(side):
                punctuations.count(pid[flags & DEAD == 0], 1)


def registry() -> Registry:
    """Return the default registry: eager or lazy purge by ``Monitor.purge_threshold``, lazy index,
    and propagation by count, by time (push) and on request (pull)."""
    propagate = [Component.INDEX_BUILD, Component.PROPAGATION]
    return {
        Event.STREAM_EMPTY: [Component.DISK_JOIN],
        Event.STATE_FULL: [Component.STATE_PURGE, Component.STATE_RELOCATION],
        Event.PURGE_THRESHOLD_REACH: [Component.STATE_PURGE],
        Event.PROPAGATE_COUNT_REACH: propagate,
        Event.PROPAGATE_TIME_EXPIRE: propagate,
        Event.PROPAGATE_REQUEST: [Component.STATE_PURGE, Component.LEFTOVER_JOIN, *propagate],
    }
