"""R-MESHJOIN, reduced Mesh Join.

M. A. Naeem, G. Dobbie, G. Weber, S. Alam: *R-MESHJOIN for Near-Real-Time Data Warehousing*, DOLAP
2010. It is known here from what later papers say: it "clarifies the dependencies among the
components" of MESHJOIN and "introduces an additional degree of freedom" (Naeem, Weber, Dobbie,
Lutteroth: *SSCJ*, sections 2 and 5.2). The following reading is ours.

MESHJOIN has a chunk of Q per disk read. R-MESHJOIN decouples the two: a disk read fills a buffer of
b tuples, which is joined in q slices, and each slice admits a chunk and expires the oldest. Q has N
q chunks.

    loop
        READ w stream tuples, append them to H_S and, as one chunk, to Q
        if the last slice of the disk buffer was joined:  READ the next b tuples of R, cyclically
        for each tuple r of the buffer's next slice (b / q tuples)
            OUTPUT r with each of its matches in H_S
        REMOVE the oldest chunk of Q from H_S: it has met all N q slices

q = 1 is MESHJOIN. Deviations: those of MESHJOIN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.joins.admission import fill
from semistream.joins.output import JoinOutput
from semistream.joins.scan_phase import Scanning, ScanParameters
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer


class RMeshjoinParameters(ScanParameters):
    """The parameters of R-MESHJOIN."""

    slices: int = Field(
        4,
        ge=1,
        description="q, slices in which a disk read is joined, each with "
        "its own chunk of stream tuples",
    )


class RMeshjoin(Scanning):
    """The operator of R-MESHJOIN: many-to-many, without an index. M = b v_R + w N q (v_ptr + f
    v_S)."""

    def __init__(self, spec: JoinSpec, parameters: RMeshjoinParameters):
        super().__init__(spec, parameters, parameters.slices)
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        buffer = StreamBuffer(self.layout, batch, codes)
        # READ w stream tuples
        while (yield from fill(self.h_s, buffer, self.output, self.h_s.missing)):
            yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        begun, h_s = self._begin(), self.h_s
        h_s.close_chunk()
        part, read = self.scan.read()  # the buffer's next slice; READ, if the last one was joined
        found = h_s.find(part.codes)
        yield from self.output.matches(part, h_s, h_s.pairs(found))  # OUTPUT
        removed = h_s.remove()  # REMOVE the oldest chunk
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.scan.cycles)
