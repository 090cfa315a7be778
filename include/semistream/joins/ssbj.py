"""SSBJ, the Semi-Stream Balanced Join.

M. A. Naeem, G. Weber, C. Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join*, Algorithm 1.

    loop
        if new R-cycle:  rc++
            rc mod 3 = 1  incrementing: count the master tuples of each join value that waits in
                          H_S (s_count)
            rc mod 3 = 2  switching: where |H_S(j)| v_S > sf s_count(j) v_R, load all master tuples
                          of j into the switching buffer
            rc mod 3 = 0  phase-out: MOVE the switching buffer to H_R, adapt w; the stream tuples of
                          j run out of H_S in one cycle
            rc mod 10 = 0 eviction: drop j from H_R where |H_R(j)| v_R >= sf (f_count(j) / 10) v_S
        cache phase:  READ w stream tuples; join each with H_R at once, or ADD it to H_S and Q
        disk phase:   one iteration of MESHJOIN

Deviations, and why:

- The cache inequality is evaluated once per join value, when the switching cycle begins, and not at
  each of its master tuples: |H_S(j)| changes within the cycle, and a value could be switched with
  only a part of its master tuples. For the same reason s_count is kept only for values that were
  candidates for the whole incrementing cycle, so that it is complete.
- v_S and v_R are the bytes that a tuple takes in H_S and in H_R, links and table included, and a
  cached value costs v_E bytes beside its tuples. A value without master tuples (known absent) thus
  costs v_E and not nothing.
- A value enters H_R with the f_count that |H_S(j)| corresponds to since the last eviction, so that
  the division by 10 is fair.
- rc starts at 2, without candidates: the first R-cycle fills H_S. The eviction takes place between
  two R-cycles, after the phase-out and before the switching, and not once per iteration.
- The counted candidates take a fiftieth of M at most, but there are at least 64; values beyond that
  wait for another cycle. H_S keeps a twentieth of the memory that it shares with H_R, whatever the
  inequality says. The paper limits neither.
- w is at most MESHJOIN's (`joins/meshjoin.py`).
- An iteration without waiting tuples reads nothing. When all arriving values are cached, nothing is
  read (Theorem 3).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.admission import enter, join_long
from semistream.joins.key_table import KeyTable, count_by
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.output import JoinOutput
from semistream.joins.scan_phase import Scanning, ScanParameters, Slice
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState, State
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_probing import probe, steps

INCREMENTING, SWITCHING, PHASE_OUT = 1, 2, 0  # rc mod 3
EVICTION_CYCLES = 10
CANDIDATE_BYTES = 8 + 4 + 4 + 4 + 6  # key, s_count, |H_S|, staged tuples, 1.5 slots of the table
CANDIDATE_SHARE, LEAST_CANDIDATES = 50, 64  # candidates take a fiftieth of M; there are at least 64
LEAST_H_S = 0.05  # least share of H_S in the memory that H_S and H_R share


class SsbjParameters(ScanParameters):
    """The parameters of SSBJ."""

    switching_factor: float = Field(
        1.0, gt=0, description="sf, hysteresis of the cache inequality; 1 is the paper's optimum"
    )
    form: Literal["fixed", "rate"] = Field(
        "fixed",
        description="fixed: use all of M, the faster the better; rate: each chunk is what "
        "arrived in one iteration, and only the memory that it needs is used",
    )


def most_candidates(memory: int) -> int:
    """Return the largest number of join values that may be candidates at the same time, for M of
    `memory` bytes."""
    return max(memory // CANDIDATE_SHARE // CANDIDATE_BYTES, LEAST_CANDIDATES)


class Candidates:
    """Join values of H_S that may be switched, chosen for an incrementing and a switching cycle.

    keys: int64[n]; s_count: int32[n], the numbers of their master tuples; waiting: int32[n],
    |H_S(j)| at the time of the choice.
    """

    def __init__(
        self, keys: np.ndarray, s_count: np.ndarray | None = None, waiting: np.ndarray | None = None
    ):
        self.keys = keys
        self.s_count = np.zeros(len(keys), np.int32) if s_count is None else s_count
        self.waiting = np.zeros(len(keys), np.int32) if waiting is None else waiting
        self.find = KeyTable(keys).find

    @classmethod
    def none(cls) -> Candidates:
        return cls(np.zeros(0, np.int64))


class Ssbj(Scanning):
    """The operator of SSBJ: many-to-many, without an index. M = (b + h_R f) v_R + w_S (R_t / b)(v_P
    + f v_S), Eq. 1.

    H_R and H_S share the memory that the disk buffer and the candidates leave: H_R takes as much as
    the cache inequality requires, and H_S the rest.
    """

    parameters: SsbjParameters

    def __init__(self, spec: JoinSpec, parameters: SsbjParameters):
        super().__init__(spec, parameters)
        self.rc = 2
        self.candidates = Candidates.none()
        self.planned = 0  # bytes that H_R will get when the switching cycle begins
        # a restored switching buffer is complete before its cycle ends
        self.staged_all = False
        self.most_candidates = most_candidates(self.arena.budget)
        self.arena.reserve("candidates", self.most_candidates * CANDIDATE_BYTES)
        self.pool = self.arena.free  # bytes that H_S and H_R share
        self._require(2 * self.h_s.least_bytes, self.pool)
        self.v_r = cached_bytes(self.spec)
        self.h_r = self.held = MasterCache.within(self.spec, self.pool)
        self.arena.reserve("H_R", 0)

    # The outer loop

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived = time.perf_counter()
        for tuples, keys in steps(batch, codes, self.h_s.capacity):  # the cache phase
            misses = yield from probe(self.h_r, tuples, keys, self.output)
            yield from self._add(StreamBuffer(self.layout, tuples, keys, misses, arrived))
        if self.parameters.form == "rate" and self.h_s.live:
            yield from self.iterate()

    def _add(self, buffer: StreamBuffer) -> Iterator[JoinOutput]:
        """ADD the misses to H_S and Q, and run an iteration whenever w_S tuples have entered."""
        h_s = self.h_s
        while len(buffer):
            wanted = self.w_s - h_s.open_count
            entered = enter(h_s, buffer, self.stats, wanted)
            if entered < wanted and len(buffer) and self._grow():
                continue
            if not entered and not h_s.live:
                yield from join_long(buffer, self.output)
            elif entered >= wanted or len(buffer):
                yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        """Run the disk phase: one iteration of MESHJOIN."""
        begun, h_s = self._begin(), self.h_s
        h_s.close_chunk()
        partition, read = self.scan.read()
        found = h_s.find(partition.codes)
        yield from self.output.matches(partition, h_s, h_s.pairs(found))
        self._migrate(partition)
        if self.scan.ended_cycle:
            self._new_cycle()
        removed = h_s.remove()
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.scan.cycles)

    # Cache migration and eviction

    def _new_cycle(self) -> None:
        """Begin a new R-cycle. H_S still holds all tuples that came in the cycle that ends."""
        self.rc += 1
        if self.rc % 3 == PHASE_OUT:
            self._phase_out()
        if self.rc % EVICTION_CYCLES == 0:
            self._evict()
        if self.rc % 3 == INCREMENTING:
            self._nominate()
        elif self.rc % 3 == SWITCHING:
            self._choose()

    def _nominate(self) -> None:
        """Choose the candidates: the most frequent values of H_S. A value is considered only if it
        would satisfy the inequality with the fewest possible master tuples."""
        sf, v_s, v_e = self.parameters.switching_factor, self.h_s.tuple_bytes, MasterCache.ENTRY
        space = self._space()
        present, absent = int(sf * (self.v_r + v_e) / v_s) + 1, int(sf * v_e / v_s) + 1
        keys, counts, least = self.h_s.frequent(
            present, absent, int(min(self.most_candidates, space // v_e))
        )
        self.candidates = Candidates(keys)
        # room is made one cycle ahead: fewer tuples enter, until H_S can be made smaller
        self.planned = min(space, int((counts >= least).sum() * self.v_r + len(keys) * v_e))

    def _choose(self) -> None:
        """Choose the candidates that satisfy the cache inequality (Theorem 2), m v_R < n v_S. By
        now s_count is complete, and |H_S(j)| covers a full R-cycle."""
        c = self.candidates
        waiting = self.h_s.find(c.keys).counts
        m_cache = c.s_count * self.v_r + MasterCache.ENTRY
        m_disk = waiting * self.h_s.tuple_bytes
        best = np.argsort(-m_disk / m_cache, kind="stable")
        best = best[m_disk[best] > self.parameters.switching_factor * m_cache[best]]
        needed = np.cumsum(m_cache[best])
        best = best[: np.searchsorted(needed, self._space(), side="right")]
        growth = int(needed[len(best) - 1]) + 1 if len(best) else 0
        if growth and not self._limit_h_s(self.pool - self.h_r.used - growth):
            best = best[:0]
        self.candidates = Candidates(c.keys[best], c.s_count[best], waiting[best])
        self.staged_all = False
        if len(best):
            self.arena.reserve("H_R", self.h_r.used + growth)
            self.h_r.stage(self.candidates.keys, self.candidates.waiting)
        self.planned = 0

    def _migrate(self, partition: Slice) -> None:
        """Count the master tuples of the candidate join values, or copy the tuples of the chosen
        values into the switching buffer. If strings are longer than average, only the best
        candidates fit."""
        c = self.candidates
        if not len(c.keys) or self.staged_all:
            return
        index = c.find(partition.codes)
        if self.rc % 3 == INCREMENTING:
            count_by(index, c.s_count)
            return
        rows = np.flatnonzero(index >= 0)
        if len(rows):
            self.h_r.stage_tuples(
                partition.payload, rows, index[rows], self.arena.components["H_R"]
            )

    def _phase_out(self) -> None:
        """MOVE the switching buffer to H_R and adapt w. Values whose tuples did not all fit are
        dropped."""
        staged = self.h_r.staged
        if len(staged):
            # scaled to the cycles since the last eviction; the next one follows this phase-out
            staged.frequencies *= (self.rc - 1) % EVICTION_CYCLES + 1
            self.h_r.switch(staged.counts == self.candidates.s_count)
        self.candidates, self.staged_all = Candidates.none(), False
        self._rebalance()

    def _evict(self) -> None:
        """Drop the values that have become too infrequent for the memory that they take."""

        def worth(f_count: np.ndarray, tuples: np.ndarray) -> np.ndarray:
            m_cache = tuples * self.v_r + MasterCache.ENTRY
            m_disk = f_count / EVICTION_CYCLES * self.h_s.tuple_bytes
            return m_cache < self.parameters.switching_factor * m_disk

        keep = self.h_r.entries_where(worth)
        if not keep.all():
            self.h_r.keep(keep)
            self._rebalance()
        self.h_r.frequencies[:] = 0

    # Memory

    @property
    def w_s(self) -> int:
        """The number of stream tuples per iteration that enter H_S: as many as fill H_S in one
        R-cycle, not counting the memory that H_R will take from H_S."""
        return self.h_s.w(int(self._h_s_limit / self.h_s.tuple_bytes))

    @property
    def _h_s_limit(self) -> int:
        """Bytes that H_S may take now."""
        return self.pool - self.arena.components["H_R"] - self.planned

    @property
    def _least_h_s(self) -> int:
        return int(
            min(max(self.pool * LEAST_H_S, self.h_s.tuple_bytes * self.scan.chunks), self.pool / 2)
        )

    def _open(self, strings: float) -> None:
        self.h_s.open(strings, self.pool)
        self._resize(self.pool if self.parameters.form == "fixed" else self._least_h_s)

    def _resize(self, size: int) -> int:
        """Give H_S this many bytes, or more while its tuples need more. Return its bytes
        afterwards."""
        self.arena.reserve("H_S", self.h_s.resize(size))
        return self.h_s.size

    def _space(self) -> int:
        """Return the bytes by which H_R may still grow."""
        return max(self.pool - self.h_r.used - self._least_h_s, 0)

    def _limit_h_s(self, size: int) -> bool:
        """Shrink H_S to at most this size, in bytes. Return whether this succeeded; it fails while
        the tuples in H_S need more."""
        return self.h_s.size <= size or self._resize(size) <= size

    def _grow(self) -> bool:
        """Enlarge H_S by half in the rate form, if M allows. Return whether H_S grew."""
        now = self.h_s.size
        size = min(now + max(now // 2, 65_536), self._h_s_limit)
        return self.parameters.form == "rate" and size > now and self._resize(size) > now

    def _rebalance(self) -> None:
        """Give H_R the bytes that it uses. Give H_S the rest in the fixed form, and the bytes that
        it needed in the rate form."""
        self.arena.reserve("H_R", self.h_r.used)
        size = self.pool - self.h_r.used
        if self.parameters.form == "rate":
            most = max(
                (i.waiting + i.w_s for i in list(self.stats.iterations)[-self.scan.chunks :]),
                default=0,
            )
            most = max(most, self.h_s.live)
            size = min(max(int(1.25 * most * self.h_s.tuple_bytes), self._least_h_s), self.h_s.size)
        self._resize(size)

    # State

    def _state(self) -> State:
        """Return the state to save. H_R and the switching buffer are saved as join values and
        counts only, because their tuples can be read from R."""
        (tables, values), c = super()._state(), self.candidates
        sizes = {"H_S": self.h_s.size, "H_R": self.arena.components["H_R"]}
        return {
            **tables,
            "cache": self.h_r.saved(staged=False),
            "candidates": pa.table({"key": c.keys, "s_count": c.s_count, "waiting": c.waiting}),
        }, {**values, "rc": self.rc, "planned": self.planned, "sizes": sizes}

    def _restore(self, state: JoinState, *changes: JoinState) -> None:
        """Restore the waiting tuples. Fetch the tuples of H_R from R. In a switching cycle, also
        fetch all tuples of the chosen candidates, so that they need not be collected again."""
        if "waiting" not in state.tables:
            return
        values, tables = state.values, state.tables
        self.rc, self.planned = values["rc"], values["planned"]
        self._open(values["H_S"]["strings"])
        self._resize(min(values["sizes"]["H_S"], self.pool))
        self.arena.reserve("H_R", min(values["sizes"]["H_R"], self.arena.free))
        budget = self.arena.components["H_R"]
        self.h_r.take_up(self.spec, tables["cache"], budget)
        self.candidates = Candidates(
            *(
                tables["candidates"][name].to_numpy().copy()
                for name in ("key", "s_count", "waiting")
            )
        )
        if self.rc % 3 == SWITCHING and len(self.candidates.keys):
            self.h_r.stage_from(self.spec, self.candidates.keys, self.candidates.waiting, budget)
            self.staged_all = True
        self.scan.restore(tables, values)
        self.h_s.restore(tables["waiting"], values["H_S"], self.spec)
