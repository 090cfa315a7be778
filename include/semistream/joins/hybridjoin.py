"""HYBRIDJOIN.

M. A. Naeem, G. Dobbie, G. Weber: *HYBRIDJOIN for Near-Real-Time Data Warehousing*, IJDWM 7(4),
2011; as restated in section 3 of Naeem, Weber, Dobbie, Lutteroth: *SSCJ: A Semi-Stream Cache Join
using a Front-Stage Cache Module*.

    loop
        READ as many stream tuples as the last iteration removed into H_S, their keys into Q
        READ the partition of R (d tuples) that the index gives for the oldest key in Q
        for each tuple r of the partition
            OUTPUT r with each of its matches in H_S, and DELETE these from H_S and Q

Deviations, and why:

- The paper's Q is a list of join values, a node for each stream tuple, to which H_S points; here a
  tuple's links to its neighbours in age are part of its H_S slot, so that alpha, the share of H_S,
  is fixed by the layout.
- Many-to-many, by the rule of `joins/stream_table/by_key.py`; the paper assumes unique master keys.
- A key for which the index knows no partition is unmatched without entering H_S. Other absent keys
  leave when their partition is read, as present ones do.
- While H_S is not full, tuples only enter it, without an iteration, until it is full or the join is
  drained.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.admission import fill
from semistream.joins.index_phase import Indexed, IndexParameters
from semistream.joins.output import JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer, pieces
from semistream.joins.stream_table.by_key import APPEND_ROWS, ByKey


class Hybridjoin(Indexed):
    """The operator of HYBRIDJOIN: many-to-many, with an index. M = d v_R + alpha (M - d v_R) + (1 -
    alpha)(M - d v_R)."""

    h_s: ByKey

    def __init__(self, spec: JoinSpec, parameters: IndexParameters):
        super().__init__(spec, parameters)
        self.h_s = ByKey(self.layout, self.master.partition_count)
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        for tuples, keys in pieces(batch, codes, APPEND_ROWS):
            buffer = StreamBuffer(self.layout, tuples, keys)
            yield from self.output.absent(tuples, buffer.look_up(self.master))
            # READ stream tuples until H_S is full
            while (yield from fill(self.h_s, buffer, self.output)):
                yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        begun, h_s = self._begin(), self.h_s
        span, read = h_s.span(h_s.oldest), 0  # the oldest key in Q
        # READ the partition that the index gives for it
        for partition in self.index.read(span, h_s.following(span)):
            found = h_s.find(partition.codes, partition.firsts(span), span)
            yield from self.output.matches(partition, h_s, h_s.pairs(found))  # OUTPUT
            read += len(partition.codes)
        removed = h_s.remove(h_s.within(span))  # DELETE these from H_S and Q
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.index.cycles)
