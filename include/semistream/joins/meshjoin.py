"""MESHJOIN.

N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: *Meshing Streaming Updates
with Persistent Data in an Active Data Warehouse*, IEEE TKDE 20(7), 2008; as restated in section 2.2
of Naeem, Weber, Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join*.

    loop
        READ w stream tuples, append them to H_S and, as one chunk, to Q
        READ the next partition of R (b tuples), cyclically
        for each tuple r of the partition
            OUTPUT r with each of its matches in H_S
        REMOVE the oldest chunk of Q from H_S: it has met all N partitions

Deviations, and why:

- Fewer than w tuples wait in the open chunk, without an iteration, until w have come or the join is
  drained. A tuple that leaves without a match is output as unmatched.
- w fills H_S in one R-cycle, as in the paper, but is at most `scan_phase.largest_chunk`. Beyond
  that, an iteration's own cost is less than a fifth of its stream tuples', so that more memory
  would make tuples wait longer and the join hardly faster. Memory that H_S has no use for is left
  free.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.admission import fill
from semistream.joins.output import JoinOutput
from semistream.joins.scan_phase import Scanning, ScanParameters
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer


class Meshjoin(Scanning):
    """The operator of MESHJOIN: many-to-many, without an index. M = b v_R + w N (v_ptr + f v_S)."""

    def __init__(self, spec: JoinSpec, parameters: ScanParameters):
        super().__init__(spec, parameters)
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        buffer = StreamBuffer(self.layout, batch, codes)
        # READ w stream tuples
        while (yield from fill(self.h_s, buffer, self.output, self.h_s.missing)):
            yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        begun, h_s = self._begin(), self.h_s
        h_s.close_chunk()
        partition, read = self.scan.read()  # READ the next partition of R, cyclically
        found = h_s.find(partition.codes)
        yield from self.output.matches(partition, h_s, h_s.pairs(found))  # OUTPUT
        removed = h_s.remove()  # REMOVE the oldest chunk
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.scan.cycles)
