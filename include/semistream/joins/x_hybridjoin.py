"""X-HYBRIDJOIN.

M. A. Naeem: *Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2013, section 3.

    LOAD the most frequent l pages of R into the non-swappable part of the disk buffer
    loop
        READ as many stream tuples as the last iteration removed into H_S, their keys into Q
        for each tuple r of the non-swappable part
            OUTPUT r with each of its matches in H_S, and DELETE these from H_S and Q
        READ the k pages of R that the index gives for the oldest key in Q into the swappable part
        for each tuple r of the swappable part
            OUTPUT r with each of its matches in H_S, and DELETE these from H_S and Q

The parts are equally large: l = k.

Deviations, and why:

- The paper's R is stored by access frequency, so that its first l pages are the most frequent ones.
  This requires that frequencies are known when R is stored. Here R is stored by key, and
  frequencies are observed: the h_S stream tuples that fill H_S for the first time are the sample.
  The iterations that follow read the partitions of the most frequent keys, and keep these keys'
  tuples for good.
- Under a bound on waiting H_S may never fill. So the keys are also chosen when the bound makes the
  join read R, once d_N stream tuples have come. The sample is then the waiting tuples, or, if these
  are fewer, the first d_N tuples that came; their keys were noted in the non-swappable part.
- So d_N = l v_P / v_R counts tuples, not whole pages, and the non-swappable part holds all master
  tuples of a key or none (many-to-many; the paper assumes unique master keys).
- The paper's section 3 takes the oldest key out of Q before both parts are probed; its section 5.2
  does so after the first inner loop, which probes the non-swappable part. The latter is done here.
  With the former, the oldest key could be a resident one when all tuples of earlier iterations have
  left, and its partition would be read in vain.
- The deviations of HYBRIDJOIN (`joins/hybridjoin.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.admission import fill
from semistream.joins.index_phase import Indexed, IndexParameters
from semistream.joins.non_swappable import NonSwappablePart
from semistream.joins.output import JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer, pieces
from semistream.joins.stream_table.by_key import APPEND_ROWS, EVERYWHERE, ByKey, Span


class XHybridjoinParameters(IndexParameters):
    """The parameters of X-HYBRIDJOIN."""

    disk_tuples: int = Field(
        0,
        ge=0,
        description="d_S = d_N, master tuples in each part of the disk buffer; 0: chosen from M",
    )


class XHybridjoin(Indexed):
    """The operator of X-HYBRIDJOIN: many-to-many, with an index; l = k. M = 2 k v_P + alpha [M - 2
    k v_P] + (1 - alpha)[M - 2 k v_P], Eq. 1."""

    h_s: ByKey

    def __init__(self, spec: JoinSpec, parameters: XHybridjoinParameters, d_n: int | None = None):
        """Open the join. d_n: d_N, if it differs from d_S, as in Tuned X-HYBRIDJOIN."""
        super().__init__(spec, parameters, "swappable part")
        self.h_s = ByKey(self.layout, self.master.partition_count)
        self.non_swappable = self.held = NonSwappablePart(
            self.spec, self.arena, self.master.partition_tuples if d_n is None else d_n
        )
        self.parts = (self.index, self.non_swappable)
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        for tuples, keys in pieces(batch, codes, APPEND_ROWS):
            buffer = StreamBuffer(self.layout, tuples, keys)
            yield from self.output.absent(tuples, buffer.look_up(self.master))
            self.non_swappable.note(buffer.codes[buffer.rows])
            # READ stream tuples until H_S is full
            while (yield from fill(self.h_s, buffer, self.output)):
                if self.non_swappable.chosen:
                    yield from self.iterate()
                else:
                    yield from self._load(self.h_s.most_frequent(self.non_swappable.capacity))

    def _load(self, keys: np.ndarray) -> Iterator[JoinOutput]:
        """LOAD the tuples of these keys, the most frequent first, into the non-swappable part. Each
        partition read counts as an iteration."""
        h_s, part = self.h_s, self.non_swappable
        spans = [(i, i + 1) for i in part.choose(keys)]
        for span, following in itertools.zip_longest(spans, spans[1:]):
            begun = self._begin()
            removed, read = yield from self._swap(span, following or h_s.following(span), load=True)
            self._end(begun, removed, read, self.index.cycles)
        part.complete()

    def iterate(self) -> Iterator[JoinOutput]:
        begun, h_s, removed, read = self._begin(), self.h_s, 0, 0
        met = [np.empty(0, np.int32)]
        # for each tuple r of the non-swappable part
        for part in self.non_swappable.portions():
            found = h_s.find(part.codes, part.firsts, EVERYWHERE)
            yield from self.output.matches(part, h_s, h_s.pairs(found))  # OUTPUT
            met.append(found.met)
        hits = h_s.remove(np.concatenate(met))  # DELETE these from H_S and Q
        self.stats.cache_hits += len(hits.slots)
        yield from self.output.finish(h_s, hits)
        if h_s.live:  # the partition of the oldest key in Q
            span = h_s.span(h_s.oldest)
            removed, read = yield from self._swap(span, h_s.following(span))
        self._end(begun, removed, read, self.index.cycles)

    def _swap(
        self, span: Span, following: Span, load: bool = False
    ) -> Generator[JoinOutput, None, tuple[int, int]]:
        """READ the partitions of the span into the swappable part, join them, and remove the tuples
        that waited for them. following: the partitions to read ahead; load: also LOAD tuples from
        these partitions into the non-swappable part. Return (stream tuples finished, disk tuples
        read)."""
        h_s, read = self.h_s, 0
        for partition in self.index.read(span, following):
            found = h_s.find(partition.codes, partition.firsts(span), span)
            yield from self.output.matches(partition, h_s, h_s.pairs(found))  # OUTPUT
            read += len(partition.codes)
            if load:
                self.non_swappable.gather(partition)
        removed = h_s.remove(h_s.within(span))  # DELETE these from H_S and Q
        yield from self.output.finish(h_s, removed)
        return len(removed.slots), read

    def _go_on(self) -> Iterator[JoinOutput]:
        h_s, part = self.h_s, self.non_swappable
        if not part.noted_enough:
            return self.iterate()
        return self._load(
            h_s.most_frequent(part.capacity) if h_s.live >= part.capacity else part.most_frequent()
        )
