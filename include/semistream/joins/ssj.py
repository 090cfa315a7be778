"""SSJ, Semi-Stream Join.

M. A. Naeem, N. Jamil: *An Efficient Stream-based Join to Process End User Transactions in Real-Time Data Warehousing*, 2014,
Algorithm 1.

    while true                                                             stream-probing phase
        READ w stream tuples (w = w_S + w_N)
        for each tuple t of them:  if t in H_R  OUTPUT t, else ADD t to H_S and Q
        READ the next b tuples of R, cyclically                            disk-probing phase
        for each tuple r of them:  if r in H_S
            OUTPUT r;  f = number of its matches
            if f >= threshold  SWITCH r into H_R
        DELETE the oldest chunk from H_S and Q

It has the phases of CMESHJOIN. What it adds is that "a stream-probing phase ends if H_S is completely filled or if the stream
buffer is empty" (section 4.1): the disk phase does not wait for a full chunk, and a slow stream's tuples not for one another.

Deviations: those of CMESHJOIN. A chunk is at most an N-th of H_S, so that H_S fills evenly over the R-cycle; one that filled H_S
at once would let N - 1 iterations go by without taking in a tuple, at the same service rate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.base import JoinOutput
from semistream.joins.cmeshjoin import Cmeshjoin


class Ssj(Cmeshjoin):
    """Needs no index. M = (k + l) v_P + 8 h_R + alpha [..] + (1 - alpha) [..], with [..] = M - (k + l) v_P - 8 h_R, Eq. 1."""

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        before = self.stats.iteration_count
        yield from super()._take(batch, codes)
        idle = self.stats.iteration_count == before
        if self.mesh.room.open_count or (idle and self.mesh.live):  # the stream buffer is empty
            yield from self.mesh.iterate()
