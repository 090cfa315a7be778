"""SSBJ, the Semi-Stream Balanced Join.

M. A. Naeem, G. Weber, C. Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join*, Algorithm 1.

    loop
        if new R-cycle:  rc++
            rc mod 3 = 1  incrementing: count the master tuples of each join value that waits in H_S (s_count)
            rc mod 3 = 2  switching: where |H_S(j)| v_S > sf s_count(j) v_R, load all master tuples of j into the switching buffer
            rc mod 3 = 0  phase-out: MOVE the switching buffer to H_R, adapt w; the stream tuples of j run out of H_S in one cycle
            rc mod 10 = 0 eviction: drop j from H_R where |H_R(j)| v_R >= sf (f_count(j) / 10) v_S
        cache phase:  READ w stream tuples; join each with H_R at once, or ADD it to H_S and Q
        disk phase:   one iteration of MESHJOIN

Deviations, and why:

- The cache inequality is evaluated once per join value, when the switching cycle begins, and not at each of its master tuples:
  |H_S(j)| changes within the cycle, and a value could be switched with only a part of its master tuples. For the same reason
  s_count is kept only for values that were candidates for the whole incrementing cycle, so that it is complete.
- v_S and v_R are the bytes that a tuple takes in H_S and in H_R, links and table included, and a cached value costs v_E bytes
  beside its tuples. A value without master tuples (known absent) thus costs v_E and not nothing.
- A value enters H_R with the f_count that its |H_S(j)| stands for since the last eviction, so that the division by 10 is fair.
- rc starts in the phase-out: the first R-cycle fills H_S.
- An iteration that has nothing to join reads nothing. When all that comes is cached, the disk rests (Theorem 3).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.config import Settings
from semistream.joins import kernels
from semistream.joins.base import JoinOutput, JoinState, Partition, SemiStreamJoin
from semistream.joins.front import KeyTable, cache_phase, cached_bytes, has_strings, probe_front, tuples_of
from semistream.joins.parts import Cache, TupleStore, variable_bytes
from semistream.joins.sequential import MeshPhase
from semistream.joins.spec import JoinSpec

INCREMENTING, SWITCHING, PHASE_OUT = 1, 2, 0  # rc mod 3
EVICTION_CYCLES = 10
CANDIDATE_BYTES = 8 + 4 + 4 + 4 + 6  # key, s_count, |H_S|, loaded, 1.5 places in the table
CANDIDATE_SHARE, LEAST_CANDIDATES = 50, 64  # candidates take a fiftieth of M; there are at least 64
LEAST_H_S = 0.05  # of the memory that H_S and H_R share, whatever the inequality says


class SsbjParameters(Settings):
    disk_tuples: int = Field(0, ge=0, description="b, master tuples read per iteration; 0: chosen from M by the cost model")
    switching_factor: float = Field(1.0, gt=0, description="sf, hysteresis of the cache inequality; 1 is the paper's optimum")
    form: Literal["fixed", "rate"] = Field(
        "fixed", description="fixed: use all of M, the faster the better; rate: each chunk is what arrived in one iteration, and "
                             "only the memory that it needs is used")


def most_candidates(memory: int) -> int:
    """Join values that may be candidates at a time, for M of so many bytes."""
    return max(memory // CANDIDATE_SHARE // CANDIDATE_BYTES, LEAST_CANDIDATES)


class Candidates:
    """Join values of H_S that may be switched, fixed for an incrementing and a switching cycle."""

    def __init__(self, keys: np.ndarray, s_count: np.ndarray | None = None, waiting: np.ndarray | None = None):
        self.keys = keys
        self.s_count = np.zeros(len(keys), np.int32) if s_count is None else s_count
        self.waiting = np.zeros(len(keys), np.int32) if waiting is None else waiting  # |H_S(j)| when chosen
        self.loaded = np.zeros(len(keys), np.int32)
        self.find = KeyTable(keys).find


class Ssbj(SemiStreamJoin):
    """Many-to-many, needs no index. M = (b + h_R f) v_R + w_S (R_t / b)(v_P + f v_S), Eq. 1.

    H_R and H_S share what the disk buffer and the candidates leave: H_R takes what the cache inequality gives it, H_S the rest.
    """

    def __init__(self, spec: JoinSpec, parameters: SsbjParameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.parameters: SsbjParameters
        self.mesh = MeshPhase(self, self._migrate, on_cycle=self._new_cycle)
        self.rc, self.last_eviction = 2, 0
        self.candidates = Candidates(np.zeros(0, np.int64))
        self.planned = 0  # bytes that H_R will be given when the switching begins
        self.switching_done = False  # the switching buffer is complete before its cycle is: it was restored
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self.most_candidates = most_candidates(self.arena.budget)
        self.arena.reserve("candidates", self.most_candidates * CANDIDATE_BYTES)
        self.pool = self.arena.free  # for H_S and H_R
        self.mesh.require(self.pool, 2)
        self.cached_bytes = cached_bytes(spec)
        schema = spec.fetched_schema
        slot = Cache.LINK + TupleStore.slot_bytes(schema)
        self.cache = Cache(schema, int(min(self.pool // slot, self.master.tuple_count)) + 1, self.pool // Cache.ENTRY + 1,
                           self.pool if has_strings(schema) else 0)
        self.arena.reserve("H_R", 0)

    @property
    def cached(self) -> int:
        """Master tuples in H_R."""
        return self.cache.tuples

    @property
    def w_s(self) -> int:
        """Stream tuples per iteration that enter H_S: what fills it in one R-cycle, less what H_R will take of it."""
        return self.mesh.w(int(self._h_s_limit / self.mesh.tuple_bytes))

    @property
    def _h_s_limit(self) -> int:
        """Bytes that H_S may have now."""
        return self.pool - self.arena.components["H_R"] - self.planned

    @property
    def _least_h_s(self) -> int:
        return int(min(max(self.pool * LEAST_H_S, self.mesh.tuple_bytes * self.mesh.chunks), self.pool / 2))

    def _build(self, sample: pa.RecordBatch | None) -> None:
        self.mesh.build(sample, self.pool)
        self.mesh.resize(self.pool if self.parameters.form == "fixed" else self._least_h_s)

    # The outer loop

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        held = self.mesh.tuples.batch(batch)
        if not self.mesh.started:
            self._build(held)
        arrived, sizes = time.perf_counter(), variable_bytes(held)
        for first, block, keys in cache_phase(batch, codes, self.mesh.room.capacity):
            misses = yield from probe_front(self, self.cache, block, keys)
            yield from self._disk_phase(held, codes, first + misses, sizes, arrived)
        if self.parameters.form == "rate" and self.mesh.live:
            yield from self.mesh.iterate()

    def _disk_phase(self, held: pa.RecordBatch, codes: np.ndarray, rows: np.ndarray, sizes: np.ndarray,
                    arrived: float) -> Iterator[JoinOutput]:
        """Let the misses into H_S; iterate whenever w_S have come."""
        at, sizes = 0, sizes[rows]
        while at < len(rows):
            wanted = self.w_s - self.mesh.room.open_count
            taken = self.mesh.admit(held, codes, rows[at:], sizes[at:], wanted, arrived)
            at += taken
            if taken < wanted and at < len(rows) and self._grow():
                continue
            if not taken and not self.mesh.live:
                rows, sizes = yield from self.mesh.pass_by(held, codes, rows[at:], sizes[at:])
                at = 0
            elif taken >= wanted or at < len(rows):
                yield from self.mesh.iterate()

    def _grow(self) -> bool:
        """In the rate form, let H_S have half as much again, if M allows."""
        now = self.arena.components["H_S"]
        size = min(now + max(now // 2, 65_536), self._h_s_limit)
        return self.parameters.form == "rate" and size > now and self.mesh.resize(size)

    def _drain(self) -> Iterator[JoinOutput]:
        return self.mesh.drain()

    def _waiting(self) -> int:
        return self.mesh.live

    # Cache migration and eviction

    def _new_cycle(self) -> None:
        """What happens between two R-cycles (lines 3-14 and 42-51): H_S still holds all that came in the one that ends."""
        self.rc += 1
        if self.rc - self.last_eviction >= EVICTION_CYCLES and self.cache.entries and not self.cache.loaded:
            self._evict()
        if self.rc % 3 == INCREMENTING:
            self._nominate()
        elif self.rc % 3 == SWITCHING:
            self._choose()
        else:
            self._phase_out()

    def _nominate(self) -> None:
        """Fix the candidates: the most frequent values of H_S that could satisfy the inequality with the fewest master tuples."""
        room, sf, v_s = self.mesh.room, self.parameters.switching_factor, self.mesh.tuple_bytes
        space = self._space()
        most = int(min(self.most_candidates, space // Cache.ENTRY))
        present_n = int(sf * (self.cached_bytes + Cache.ENTRY) / v_s) + 1
        absent_n = int(sf * Cache.ENTRY / v_s) + 1
        histogram = np.zeros(4096, np.int64)

        def scan(keys: np.ndarray, counts: np.ndarray) -> int:
            histogram[:] = 0
            return kernels.hs_frequent(room.key, room.same, room.flags, room.oldest, room.live, room.capacity,
                                       present_n, absent_n, keys, counts, histogram)

        nothing = np.zeros(0, np.int64)
        found = scan(nothing, np.zeros(0, np.int32)) if room.live else 0
        if found > most:
            above = np.cumsum(histogram[::-1])[::-1]  # above[n]: values with at least n waiting tuples
            least = int(np.argmax(above <= most)) if (above <= most).any() else len(histogram)
            present_n, absent_n = max(present_n, least), max(absent_n, least)
            found = scan(nothing, np.zeros(0, np.int32)) if most else 0
        keys, counts = np.empty(min(found, most), np.int64), np.empty(min(found, most), np.int32)
        if len(keys):
            scan(keys, counts)
        self.candidates = Candidates(keys)
        # room is made one cycle ahead: fewer tuples enter, until H_S can be made smaller
        self.planned = min(space, int((counts >= present_n).sum() * self.cached_bytes + len(keys) * Cache.ENTRY))

    def _space(self) -> int:
        """Bytes that H_R may still grow by."""
        return max(self.pool - self.cache.used - self._least_h_s, 0)

    def _choose(self) -> None:
        """Evaluate the cache inequality (Theorem 2), m v_R < n v_S, with s_count complete and |H_S(j)| after a full R-cycle."""
        c = self.candidates
        _, waiting, _ = self.mesh.room.find(c.keys)
        m_cache = c.s_count * self.cached_bytes + Cache.ENTRY
        m_disk = waiting * self.mesh.tuple_bytes
        best = np.argsort(-m_disk / m_cache, kind="stable")
        best = best[m_disk[best] > self.parameters.switching_factor * m_cache[best]]
        needed = np.cumsum(m_cache[best])
        best = best[:np.searchsorted(needed, self._space(), side="right")]
        growth = int(needed[len(best) - 1]) + 1 if len(best) else 0
        if growth and not self._limit_h_s(self.pool - self.cache.used - growth):
            best = best[:0]
        self.candidates = Candidates(c.keys[best], c.s_count[best], waiting[best])
        self.switching_done = False
        if len(best):
            self.arena.reserve("H_R", self.cache.used + growth)
        self.planned = 0

    def _limit_h_s(self, size: int) -> bool:
        """Make H_S no larger than this. False when more waits there."""
        return self.arena.components["H_S"] <= size or self.mesh.resize(size)

    def _migrate(self, partition: Partition, f: np.ndarray) -> None:
        """Lines 28-36: count the candidates' master tuples, then load those of the chosen into the switching buffer."""
        c = self.candidates
        if not len(c.keys) or self.switching_done:
            return
        index = c.find(partition.codes)
        if self.rc % 3 == INCREMENTING:
            kernels.count_by(index, c.s_count)
        else:
            rows = np.flatnonzero(index >= 0)
            self._load(partition, rows, index[rows])

    def _load(self, partition: Partition, rows: np.ndarray, index: np.ndarray) -> None:
        """Load the candidates' tuples; where their strings are longer than the average, those of the best candidates.

        index: of each row's candidate.
        """
        if not len(rows):
            return
        budget = self.arena.components["H_R"] - len(self.candidates.keys) * Cache.ENTRY
        best = np.argsort(index, kind="stable")
        size = np.cumsum(variable_bytes(partition.payload)[rows[best]] + self.cache.slot)
        best = best[:np.searchsorted(size, budget - self.cache.used, side="right")]
        if len(best) and self.cache.load(partition.payload, rows[best], index[best], budget):
            kernels.count_by(index[best], self.candidates.loaded)

    def _phase_out(self) -> None:
        """Lines 9-13: the switching buffer becomes a part of H_R, and w is adapted."""
        c = self.candidates
        if len(c.keys):
            since = max(self.rc - self.last_eviction, 1)
            self._publish(c, c.waiting * np.int64(since))
        self.candidates, self.switching_done = Candidates(np.zeros(0, np.int64)), False
        self._rebalance()

    def _publish(self, c: Candidates, frequencies: np.ndarray) -> None:
        """Make values findable whose tuples all fitted; drop the others."""
        first = self.cache.entries
        self.cache.publish(c.keys, np.minimum(frequencies, 2**32 - 1))
        if (c.loaded != c.s_count).any():
            keep = np.ones(self.cache.entries, bool)
            keep[first:] = c.loaded == c.s_count
            self.cache.keep(keep)

    def _evict(self) -> None:
        """Lines 42-51: drop the values that have become too infrequent for their place."""
        n, cycles = self.cache.entries, self.rc - self.last_eviction
        m_cache = self.cache.ecount[:n] * self.cached_bytes + Cache.ENTRY
        m_disk = self.cache.efreq[:n] / cycles * self.mesh.tuple_bytes
        keep = m_cache < self.parameters.switching_factor * m_disk
        self.last_eviction = self.rc
        if not keep.all():
            self.cache.keep(keep)
            self._rebalance()
        self.cache.efreq[:self.cache.entries] = 0

    def _rebalance(self) -> None:
        """H_R has what it uses, H_S the rest (fixed form) or what it needed (rate form)."""
        self.arena.reserve("H_R", self.cache.used)
        size = self.pool - self.cache.used
        if self.parameters.form == "rate":
            most = max((i.waiting + i.w_s for i in list(self.stats.iterations)[-self.mesh.chunks:]), default=0)
            most = max(most, self.mesh.live)
            size = min(max(int(1.25 * most * self.mesh.tuple_bytes), self._least_h_s), self.arena.components["H_S"])
        self.mesh.resize(size)

    # State

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Of H_R and of the switching buffer only the join values and counts: their tuples are in R."""
        table, mesh = self.mesh.state()
        n, c = self.cache.entries, self.candidates
        cache = {"key": self.cache.ekey[:n], "tuples": self.cache.ecount[:n], "f_count": self.cache.efreq[:n]}
        tables = {"cache": pa.table(cache),
                  "candidates": pa.table({"key": c.keys, "s_count": c.s_count, "waiting": c.waiting})}
        if table:
            tables["waiting"] = table
        return tables, {"mesh": mesh, "rc": self.rc, "last_eviction": self.last_eviction, "planned": self.planned,
                        "h_r": self.arena.components["H_R"], "h_s": self.arena.components.get("H_S", 0)}

    def _go_on(self, state: JoinState) -> None:
        if "waiting" not in state.tables:
            return
        values = state.values
        self.rc, self.last_eviction, self.planned = values["rc"], values["last_eviction"], values["planned"]
        self.mesh.variable = values["mesh"]["variable"]
        self._build(None)
        self.mesh.resize(min(values["h_s"], self.pool))
        self.arena.reserve("H_R", min(values["h_r"], self.arena.free))
        cached, c = (state.tables[name] for name in ("cache", "candidates"))
        self._fetch(Candidates(_numpy(cached, "key"), _numpy(cached, "tuples")))
        self._publish(self.candidates, _numpy(cached, "f_count"))
        candidates = Candidates(_numpy(c, "key"), _numpy(c, "s_count"), _numpy(c, "waiting"))
        if self.rc % 3 == SWITCHING:
            self._fetch(candidates)
            self.switching_done = True
        self.candidates = candidates
        self.mesh.go_on(state.tables["waiting"], values["mesh"])

    def _fetch(self, values: Candidates) -> None:
        """Load all master tuples of these join values, through the index if R has one."""
        self.candidates = values
        for partition, rows, index in tuples_of(self.spec, values.keys):
            self._load(partition, rows, index)


def _numpy(table: pa.Table, column: str) -> np.ndarray:
    return table[column].to_numpy().copy()
