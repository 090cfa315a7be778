"""SSJ, Semi-Stream Join.

M. A. Naeem, N. Jamil: *An Efficient Stream-based Join to Process End User Transactions in Real-Time
Data Warehousing*, 2014, Algorithm 1.

    while true                                                             stream-probing phase
        READ w stream tuples (w = w_S + w_N)
        for each tuple t of them:  if t in H_R  OUTPUT t, else ADD t to H_S and Q
        READ the next b tuples of R, cyclically                            disk-probing phase
        for each tuple r of them:  if r in H_S
            OUTPUT r;  f = number of its matches
            if f >= threshold  SWITCH r into H_R
        DELETE the oldest chunk from H_S and Q

This is the loop of CMESHJOIN, which stands in `joins/cmeshjoin.py`. SSJ adds that "a stream-probing
phase ends if H_S is completely filled or if the stream buffer is empty. Then the disk-probing phase
becomes active" (section 4.1). So it does not wait for a full chunk, and tuples of a slow stream do
not wait for each other. The stream buffer is the chunk that the caller gives. Once it is empty, the
disk-probing phase becomes active for one iteration, also after a chunk without tuples or without
keys. That is all that stands below.

Deviations: those of CMESHJOIN. While the stream buffer stays empty, the paper's endless loop would
go on reading R, even for an empty H_S. Here the disk-probing phase becomes active again with the
next chunk, however few tuples it has, and with `SemiStreamJoin.keep_up`, as often as is needed for
no tuple to wait longer than a bound. If no tuples wait, nothing is read. A chunk is at most an N-th
of H_S, so that H_S fills evenly over the R-cycle. One that filled H_S at once would let N - 1
iterations pass without taking in a tuple, at the same service rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from semistream.joins.cmeshjoin import Cmeshjoin
from semistream.joins.output import JoinOutput


class Ssj(Cmeshjoin):
    """The operator of SSJ. When the stream buffer is empty, it runs an iteration without waiting
    for a full chunk; all else is CMESHJOIN. M = (k + l) v_P + 8 h_R + alpha X + (1 - alpha) X,
    where X is the rest, M - (k + l) v_P - 8 h_R (Eq. 1)."""

    def _stream_buffer_empty(self, iterated: bool) -> Iterator[JoinOutput]:
        if self.h_s.open_count or (not iterated and self.h_s.live):
            yield from self.iterate()
