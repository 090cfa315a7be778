"""SSCJ, the Semi-Stream Cache Join (CACHEJOIN).

M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth: *SSCJ: A Semi-Stream Cache Join using a Front-Stage
Cache Module*, 2013, section 4.1.

    loop
        stream-probing phase, until H_S is full or the stream buffer is empty:
            READ a stream tuple
            if its key is in H_R OUTPUT it with its match, else ADD it to H_S and Q
        disk-probing phase:
            READ the partition of R (d tuples) that the index gives for the oldest key in Q
            for each tuple r of the partition
                OUTPUT r with each of its f matches in H_S, and DELETE these from H_S and Q
                if f >= threshold SWITCH r into H_R, if H_R is full in the place of the least
                    frequent tuple

The frequency recorder is that of CMESHJOIN and SSJ (`joins/frequency_detection.py`), and the
disk-probing phase that of HYBRIDJOIN (`joins/hybridjoin.py`). Their deviations apply, except the
last one of HYBRIDJOIN. The stream buffer is the chunk that the caller gives. Once it is empty, the
disk-probing phase becomes active for one iteration, also after a chunk without tuples or without
keys. While it stays empty, the phase becomes active again with the next chunk and with
`SemiStreamJoin.keep_up`, as in SSJ (`joins/ssj.py`). A period of the frequency recorder is N
partitions read. The paper assumes unique master keys; here H_R has all tuples of a key or none. The
paper needs only a non-clustered index. That of a snapshot is clustered: its tuples lie in the order
of their key codes, so that a key's partition has its neighbours too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.admission import fill
from semistream.joins.frequency_detection import FrequencyParameters, FrequentTuples
from semistream.joins.index_phase import Indexed, IndexParameters
from semistream.joins.output import JoinOutput
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_probing import probe, steps
from semistream.joins.stream_table.by_key import ByKey


class SscjParameters(FrequencyParameters, IndexParameters):
    """The parameters of SSCJ."""


class Sscj(Indexed):
    """The operator of SSCJ: many-to-many, with an index. M = d v_R + h_R v_R + 8 h_R + alpha [..] +
    (1 - alpha) [..], where [..] is the rest, Eq. 1."""

    h_s: ByKey

    def __init__(self, spec: JoinSpec, parameters: SscjParameters):
        super().__init__(spec, parameters)
        self.h_r = self.held = FrequentTuples(self.spec, self.arena, parameters)
        self.parts = (self.h_r, self.index)
        self.h_s = ByKey(self.layout, self.master.partition_count)
        self._require(self.h_s.least_bytes, self.arena.free)

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        arrived, h_s = time.perf_counter(), self.h_s
        for tuples, keys in steps(batch, codes, h_s.capacity):  # the stream-probing phase
            misses = yield from probe(self.h_r.cache, tuples, keys, self.output)
            buffer = StreamBuffer(self.layout, tuples, keys, misses, arrived)
            yield from self.output.absent(tuples, buffer.look_up(self.master))
            # ADD them to H_S and Q, until H_S is full
            while (yield from fill(h_s, buffer, self.output)):
                yield from self.iterate()

    def _stream_buffer_empty(self, iterated: bool) -> Iterator[JoinOutput]:
        if self.h_s.live:
            yield from self.iterate()

    def iterate(self) -> Iterator[JoinOutput]:
        """Run the disk-probing phase once."""
        begun, h_s, cycles = self._begin(), self.h_s, self.index.cycles
        span, read = h_s.span(h_s.oldest), 0  # the oldest key in Q
        # READ the partition that the index gives for it
        for partition in self.index.read(span, h_s.following(span)):
            found = h_s.find(partition.codes, partition.firsts(span), span)
            yield from self.output.matches(partition, h_s, h_s.pairs(found))  # OUTPUT
            self.h_r.detect(partition, found.counts)  # SWITCH the frequent ones into H_R
            read += len(partition.codes)
        removed = h_s.remove(h_s.within(span))  # DELETE these from H_S and Q
        yield from self.output.finish(h_s, removed)
        self._end(begun, len(removed.slots), read, self.index.cycles)
        if self.index.cycles > cycles:
            self.h_r.end_period()
