"""The interface of every semi-stream join, and the code that all joins share for input, output and
state."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError
from semistream.joins.arena import Arena
from semistream.joins.output import NULL_KEY, JoinOutput, Output
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState, Part, State
from semistream.joins.statistics import Clock, Iteration, JoinStatistics, PaperTimes
from semistream.joins.stored_types import as_stored
from semistream.joins.stream_buffer import StreamLayout
from semistream.joins.stream_table import Ages, StreamTable
from semistream.settings import Settings


class Begun(NamedTuple):
    """The state at the start of an iteration: the time on the join's clock, and the bytes read
    until then."""

    at: float
    bytes_read: int


class HeldMasterTuples(Protocol):
    """A part of a join that keeps master tuples in memory from one iteration to the next."""

    @property
    def tuples(self) -> int: ...


class SemiStreamJoin(ABC):
    """A single-threaded join of a stream with R in at most M bytes.

    A subclass creates ``h_s`` and ``parts``, and implements ``_take``, ``iterate`` and ``passes``.
    Null keys, output, time, totals and the saved state are handled here. H_S gets its memory when
    the first tuples come (``_open``), because these show how long strings are.
    """

    h_s: StreamTable
    held: HeldMasterTuples | None = None  # the part that keeps master tuples in memory
    parts: tuple[Part, ...] = ()  # in the order in which they are restored

    def __init__(self, spec: JoinSpec, parameters: Settings):
        self.spec, self.parameters, self.master = spec, parameters, spec.master
        self.arena, self.layout = Arena(spec.memory), StreamLayout.of(spec)
        self.clock = Clock()
        self.stats = JoinStatistics(paper_times=PaperTimes(self.clock))
        self.output = Output(spec, self.stats)
        self._hits_before = 0
        self._kept_up = 0.0  # passes over R that `keep_up` has accounted for
        self._overdue = False  # a state was restored, and the age of each tuple is unknown

    @property
    def cached(self) -> int:
        """Number of master tuples in H_R, or in the algorithm's counterpart of H_R."""
        return self.held.tuples if self.held else 0

    @property
    def keeps_all(self) -> bool:
        """Whether H_R has room for all of R, and the join reads each part of R only once. Waiting
        then gains nothing."""
        return False

    @property
    def output_schema(self) -> pa.Schema:
        return self.output.schema

    @property
    def unmatched_schema(self) -> pa.Schema:
        return self.output.unmatched_schema

    def begin(self, at: float) -> None:
        """Record the start of a micro-batch, ``at`` on the clock time.perf_counter. The waiting
        time of tuples that come before the next call counts from this time."""
        if not self._waiting():
            self.stats.micro_batches.clear()
        self.stats.micro_batches.append(at)

    def process(self, chunk: pa.RecordBatch) -> Iterator[JoinOutput]:
        """Join stream tuples. Yield the finished ones, joined or unmatched, in batches of bounded
        size. The caller must exhaust the iterator.

        The chunk is the papers' stream buffer, which is empty once all tuples are taken in. An
        empty chunk tells the join that the stream buffer is still empty.
        """
        return self.clock.timed(self._process(chunk), self._account)

    def drain(self) -> Iterator[JoinOutput]:
        """Finish all waiting tuples. Afterwards matched + unmatched = rows_read, and waiting =
        0."""
        return self.clock.timed(self._drain(), self._account)

    def keep_up(self, seconds: float, bound: float) -> Iterator[JoinOutput]:
        """Run the disk-probing phase often enough that no tuple waits longer than `bound` seconds.
        seconds: time since the last call. Call this method after every batch, while the stream
        buffer is empty, so that the reads are spread over time."""
        return self.clock.timed(self._keep_up(seconds / bound, bound), self._account)

    def snapshot(self, *, changes: bool = False) -> JoinState:
        """Return the join's state between two calls. changes: whether the changes since the last
        snapshot suffice; a join that does not track changes returns the whole state."""
        return self._snapshot(changes).held()

    def save(self, path: str | Path, before: str = "") -> None:
        """Write a snapshot without holding it in memory. before: name of the previously saved state
        in the same directory; if given, the changes since that state suffice. Raises StateError if
        that file is damaged."""
        self._snapshot(bool(before)).write(path, before)

    def _snapshot(self, changes: bool) -> JoinState:
        """Return the state as ``snapshot`` does, but its tables may be readers whose data have not
        been read yet. changes: see `snapshot`."""
        found = self._changes() if changes else None
        tables, values = found or self._state()
        ages, now = self.h_s.ages(), time.perf_counter()
        self.stats.micro_batches.forget(now - ages.oldest)
        # another process may continue from this state, perhaps after another boot
        boot = time.time() - now
        times = {
            "came": [boot + now - age for age in ages],
            "micro_batches": [boot + at for at in self.stats.micro_batches],
        }
        return JoinState(
            dict(tables), values | times | {"identity": self.spec.identity()}, not found
        )

    def restore(self, state: JoinState, *changes: JoinState) -> None:
        """Restore a new operator from snapshots of an operator with the same settings. state: a
        whole snapshot; changes: the changes after it. Raises StateError when the settings differ.
        """
        state.check_identity(self.spec.identity())
        self._restore(state, *changes)
        now, last = time.time(), (state, *changes)[-1].values
        came = last.get("came", (now, now))  # older states lack this
        self.h_s.age_by(Ages(*(max(now - at, 0.0) for at in came)))
        self.stats.micro_batches[:] = [
            time.perf_counter() - max(now - at, 0.0) for at in last.get("micro_batches", ())
        ]
        self._overdue, self._kept_up = True, self.passes
        self.stats.paper_times.resume(self._waiting() - _with_match(state))
        self._account()

    # Implemented by each algorithm

    @abstractmethod
    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        """Take in tuples that are in stored types and have no null keys. codes: int64[n], their key
        codes."""

    @abstractmethod
    def iterate(self) -> Iterator[JoinOutput]:
        """Run the outer loop once, without input."""

    def _stream_buffer_empty(self, iterated: bool) -> Iterator[JoinOutput]:
        """Run the steps that an empty stream buffer triggers. By default there are none, because an
        iteration waits for w tuples or for a full H_S. iterated: whether this call of `process` has
        already run an iteration."""
        return iter(())

    def _drain(self) -> Iterator[JoinOutput]:
        while self._waiting():
            yield from self.iterate()
        self.h_s.drained()

    @property
    @abstractmethod
    def passes(self) -> float:
        """The number of passes over R so far. A tuple that enters H_S after p passes has left H_S
        after p + 1."""

    def _is_due(self, passes: float, age: float) -> bool:
        """Return whether the next iteration must run now, because there were fewer than `passes`
        passes over R. age: seconds; a join that knows the age of each tuple compares the oldest
        tuple's age with `age` instead."""
        return self.passes < passes

    def _keep_up(self, share: float, age: float) -> Iterator[JoinOutput]:
        """Read a share of R, from 0 to 1, as far as tuples wait for it. Iterations that a full H_S
        caused since the last call count towards the share. age: see `_is_due`."""
        if self._overdue:
            share, age, self._overdue = 1.0, 0.0, False
        passes = self._kept_up + min(share, 1.0)
        while self._waiting() and self._is_due(passes, age):
            yield from self._go_on()
        self._pass_over(passes)

    def _go_on(self) -> Iterator[JoinOutput]:
        """Run one step of the disk-probing phase although H_S is not full, because a bound on
        waiting requires a step."""
        return self.iterate()

    def _pass_over(self, passes: float) -> None:
        """Record how much of R has been passed over. passes: the passes that were due."""
        self._kept_up = self.passes

    def _state(self) -> State:
        """Return the whole state of the join."""
        tables, values = {**self.h_s.tables()}, {"H_S": self.h_s.values()}
        for part in self.parts:
            tables |= part.tables()
            values |= part.values()
        return tables, values

    def _changes(self) -> State | None:
        """Return the changes of the state since the last snapshot; None if the whole state must be
        saved."""
        return None

    def _restore(self, state: JoinState, *changes: JoinState) -> None:
        """Restore a whole state and, in a join that saves changes, the changes after it."""
        for part in self.parts:
            part.restore(state.tables, state.values)
        if "waiting" in state.tables:
            values = state.values["H_S"]
            self._open(values["strings"])
            self.h_s.restore(state.tables["waiting"], values, self.spec)

    def _waiting(self) -> int:
        return self.h_s.live

    def _open(self, strings: float) -> None:
        """Give H_S all free memory. strings: expected bytes of strings in a stream tuple."""
        self.h_s.open(strings, self.arena.free)
        self.arena.reserve("H_S", self.h_s.resize(self.arena.free))

    # Memory and accounting

    def _require(self, least: float, free: float) -> None:
        """Check that H_S, which needs `least` bytes, fits into `free` bytes. Raises ConfigError
        otherwise."""
        if free < least:
            raise ConfigError(
                "memory",
                f"must leave H_S {int(least):,} bytes beside {self.arena.components}",
                self.spec.memory,
                "Give more memory.",
            )

    def _begin(self) -> Begun:
        self.stats.paper_times.load()
        return Begun(self.clock(), self.master.bytes_read)

    def _end(self, begun: Begun, w_s: int, disk_tuples: int, r_cycles: int) -> None:
        """Record an iteration that finished w_s tuples through H_S. begun: its start; disk_tuples:
        the master tuples that it read; r_cycles: the passes over R so far."""
        s, read = self.stats, self.master.bytes_read - begun.bytes_read
        s.iteration_count += 1
        s.disk_tuples_read += disk_tuples
        s.bytes_read += read
        s.r_cycles = r_cycles
        w_n, self._hits_before = s.cache_hits - self._hits_before, s.cache_hits
        s.iterations.append(
            Iteration(
                w_n,
                w_s,
                disk_tuples,
                read,
                self.clock() - begun.at,
                self._waiting(),
                self.cached,
                r_cycles,
            )
        )

    # Edges

    def _process(self, chunk: pa.RecordBatch) -> Iterator[JoinOutput]:
        self.stats.paper_times.call()
        before = self.stats.iteration_count
        yield from self._take_in(chunk)
        yield from self._stream_buffer_empty(self.stats.iteration_count > before)

    def _take_in(self, chunk: pa.RecordBatch) -> Iterator[JoinOutput]:
        """Take in a chunk: count its tuples, output tuples without a key, and pass the others on to
        `_take`."""
        batch = as_stored(chunk, self.spec.stream)
        codes, valid = self.spec.keys.stream_codes(batch)
        self.stats.rows_read += batch.num_rows
        if not valid.all():
            yield from self.output.unmatched(batch.filter(pa.array(~valid)).columns, NULL_KEY)
            batch, codes = batch.filter(pa.array(valid)), codes[valid]
        if not batch.num_rows:
            return
        if not self.h_s.opened:
            self._open(self.layout.strings(batch))
        yield from self._take(batch, codes)

    def _account(self, seconds: float = 0.0) -> None:
        """Update the statistics after a step. seconds: the time that the step took."""
        s, paper = self.stats, self.stats.paper_times
        s.seconds += seconds
        s.paper_waiting_seconds, s.paper_processing_seconds = paper.waited, paper.processed
        s.waiting = self._waiting()
        s.memory, s.memory_peak = dict(self.arena.components), self.arena.peak


def _with_match(state: JoinState) -> int:
    """Return how many waiting tuples of a state have already had a match."""
    waiting = state.tables.get("waiting")
    if waiting is None or "matched" not in waiting.column_names:
        return 0
    return int(pc.sum(waiting["matched"]).as_py() or 0)
