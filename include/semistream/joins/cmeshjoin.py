"""CMESHJOIN, Cached Mesh Join.

MESHJOIN with a stream-probing phase before it, and no other change. It is described in section 2.2
of Naeem, Weber, Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join*, as the authors'
earlier work.

    loop
        stream-probing phase: READ stream tuples, until w_S were added; one whose key is in H_R is
                              joined at once, another is ADDED to H_S and Q
        disk-probing phase:   one iteration of MESHJOIN; a disk tuple with f >= threshold matches in
                              H_S is SWITCHED into H_R

Deviations: those of MESHJOIN, and of the frequency detection (`joins/frequency_detection.py`). The
paper assumes that a stream tuple has one match; here duplicate master keys are joined exactly too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.admission import fill
from semistream.joins.frequency_detection import FrequencyParameters, FrequentTuples
from semistream.joins.output import JoinOutput
from semistream.joins.scan_phase import Scanning, ScanParameters
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_probing import probe, steps


class CmeshjoinParameters(FrequencyParameters, ScanParameters):
    """The parameters of CMESHJOIN, and of SSJ."""


class Cmeshjoin(Scanning):
    """The operator of CMESHJOIN, which needs no index on R. Its memory M, in bytes, is b v_R for
    the disk buffer, (v_R + 8) h_R for H_R, and w_S N (v_ptr + f v_S) for H_S and Q."""

    def __init__(self, spec: JoinSpec, parameters: CmeshjoinParameters):
        super().__init__(spec, parameters)
        self.h_r = self.held = FrequentTuples(self.spec, self.arena, parameters)
        self.parts = (self.h_r, self.scan)
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived, h_s = time.perf_counter(), self.h_s
        for tuples, keys in steps(batch, codes, h_s.capacity):  # the stream-probing phase
            misses = yield from probe(self.h_r.cache, tuples, keys, self.output)
            buffer = StreamBuffer(self.layout, tuples, keys, misses, arrived)
            # ADD them to H_S and Q, until w_S have come
            while (yield from fill(h_s, buffer, self.output, h_s.missing)):
                yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        """Run the disk-probing phase once."""
        begun, h_s = self._begin(), self.h_s
        h_s.close_chunk()
        partition, read = self.scan.read()  # READ the next b tuples of R, cyclically
        found = h_s.find(partition.codes)
        yield from self.output.matches(partition, h_s, h_s.pairs(found))  # OUTPUT
        self.h_r.detect(partition, found.counts)  # SWITCH the frequent ones into H_R
        if self.scan.ended_cycle:
            self.h_r.end_period()
        removed = h_s.remove()  # DELETE the oldest chunk
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.scan.cycles)
