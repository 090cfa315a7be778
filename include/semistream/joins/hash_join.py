"""Hash join with R whole in memory.

L. D. Shapiro: *Join Processing in Database Systems with Large Main Memories*, ACM TODS 11(3), 1986,
section 2.3, for an R that fits into memory.

    for each tuple r of R
        INSERT r into the hash table
    for each stream tuple s
        OUTPUT s with each of its matches in the hash table

No stream tuple waits. In a star this is the join with a role whose R fits its share of M. R's part
of the memory is mapped read-only, once per machine (`joins/whole_master.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.contract import SemiStreamJoin
from semistream.joins.output import NO_MATCH, JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_probing import PROBE_ROWS
from semistream.joins.stream_table.by_key import ByKey
from semistream.joins.whole_master import WholeMaster
from semistream.settings import Settings


class HashJoinParameters(Settings):
    sharers: int = Field(
        1,
        ge=1,
        description="Operators of this machine that share R's memory: each of them counts its part",
    )


class HashJoin(SemiStreamJoin):
    """The operator of the hash join: many-to-many. M = |R| / sharers."""

    h_s: ByKey  # it stays empty, and takes no memory

    def __init__(self, spec: JoinSpec, parameters: HashJoinParameters):
        super().__init__(spec, parameters)
        self.h_s = ByKey(self.layout, 1)
        self.whole = WholeMaster(spec, spec.memory * parameters.sharers)
        self.arena.reserve("R", -(-self.whole.size // parameters.sharers))
        self.stats.bytes_read, self.stats.r_cycles = (
            self.whole.size,
            min(spec.master.tuple_count, 1),
        )
        self._account()

    @property
    def cached(self) -> int:
        return self.master.tuple_count

    @property
    def keeps_all(self) -> bool:
        return True

    @property
    def passes(self) -> float:
        return 0.0

    def _open(self, strings: float) -> None:
        """Leave H_S without memory, because no tuple enters it."""

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        for first in range(0, len(codes), PROBE_ROWS):
            yield from self._probe(
                batch.slice(first, PROBE_ROWS), codes[first : first + PROBE_ROWS]
            )

    def _probe(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        firsts, counts = self.whole.find(codes)
        matched = np.zeros(len(codes), bool)
        self.stats.cache_hits += len(codes)
        self.stats.paper_times.answer(len(codes))
        for rows, tuples in self.output.cut(self.whole.pairs(firsts, counts)):
            each_once = self.whole.firsts is None and len(rows) == len(codes)
            stream = batch.columns if each_once else batch.take(pa.array(rows)).columns
            master = self.output.tuples(tuples, self.whole.take)
            stream, master, rows = self.output.equal(stream, master, rows)
            matched[rows] = True
            if len(rows):
                yield self.output.joined(stream, master)
        self.output.matched_at_once(int(matched.sum()))
        if not matched.all():
            absent = pa.array(np.flatnonzero(~matched))
            yield from self.output.unmatched(batch.take(absent).columns, NO_MATCH)

    def iterate(self) -> Iterator[JoinOutput]:
        """Do nothing, because no tuple waits for the disk."""
        return iter(())
