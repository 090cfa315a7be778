"""A new algorithm with a layout of H_S of its own: its operator, its cost model, and its entries in
the registries.

The algorithm is a block nested loop join; H_S is a list of Arrow batches. Nothing of it is in the
package: this module stands for the file that it would be there.
"""

import sys
import time

import numpy as np
import pyarrow as pa
from pydantic import Field

from semistream.cost_models import MODELS, Model, Prediction, Size
from semistream.cost_models.costs import infeasible
from semistream.cost_models.sizes import DISK_TUPLES
from semistream.joins import REGISTRY, Algorithm
from semistream.joins.admission import fill
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.output import Removed
from semistream.joins.scan_phase import Scan
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_table import NO_LIMIT, Ages, StreamTable
from semistream.settings import Settings

NAME = "block-nested-loop"
BLOCK_TUPLES = Size(lambda work, memory: (1.0, memory / work.stream_tuple_bytes))
CODE_AND_FLAG = 8 + 1  # bytes of a waiting tuple beside its columns


class ArrowList(StreamTable):
    """H_S as a list of Arrow batches, all of which leave together."""

    def __init__(self, layout, most):
        super().__init__(layout)
        self.most = most
        self.batches, self.codes, self.matched = [], np.empty(0, np.int64), np.empty(0, bool)
        self.used = 0
        self.entered = np.empty(0)

    @property
    def live(self):
        return len(self.codes)

    @property
    def tuple_bytes(self):
        """Of a tuple, its strings aside: an offset for each, a bit of validity for each column."""
        widths = [
            4 if f.type in (pa.string(), pa.binary()) else max(f.type.bit_width // 8, 1)
            for f in self.layout.held
        ]
        return sum(widths) + len(widths) + CODE_AND_FLAG

    def open(self, strings, most):
        self.strings, self.opened = strings, True

    def resize(self, size):
        self.size = size
        return size

    def fits(self, sizes, most=NO_LIMIT):
        most = min(most, self.most - self.live)
        return int(
            np.searchsorted(
                np.cumsum(sizes[:most] + self.tuple_bytes), self.size - self.used, side="right"
            )
        )

    def append(self, buffer, count):
        rows = buffer.rows[:count]
        self.batches.append(pa.RecordBatch.from_arrays(buffer.get(rows), schema=self.layout.schema))
        self.codes = np.append(self.codes, buffer.codes[rows])
        self.matched = np.append(self.matched, np.zeros(count, bool))
        self.entered = np.append(self.entered, np.full(count, time.perf_counter()))
        self.used += int(buffer.sizes[:count].sum()) + count * self.tuple_bytes
        return count

    def ages(self):
        waited = time.perf_counter() - self.entered
        return Ages.of(waited.max(initial=0.0), waited.sum(), self.live)

    def age_by(self, ages):
        self.entered[:] = time.perf_counter() - ages.others
        self.entered[:1] -= ages.oldest - ages.others

    def get(self, tuples):
        return pa.concat_batches(self.batches).take(pa.array(tuples)).columns

    def mark(self, tuples):
        before = np.count_nonzero(self.matched)
        self.matched[tuples] = True
        return np.count_nonzero(self.matched) - before

    def pairs(self, codes):
        """The (rows, tuples) with equal codes."""
        for row, code in enumerate(codes):
            tuples = np.flatnonzero(self.codes == code)
            if len(tuples):
                yield np.full(len(tuples), row), tuples

    def remove(self):
        ages = time.perf_counter() - self.entered
        return Removed(
            np.arange(self.live),
            self.matched,
            float(ages.sum()),
            float(ages.max(initial=0.0)),
            self.live,
        )

    def clear(self):
        self.__init__(self.layout, self.most)
        self.opened = True

    def tables(self):
        return {"waiting": self.saved(np.arange(self.live))} if self.live else {}

    def values(self):
        return {"strings": self.strings}

    def restore(self, waiting, values, spec):
        for part in waiting.combine_chunks().to_batches():
            self.admit_saved(
                pa.RecordBatch.from_arrays(part.columns, schema=spec.stream), spec, by_index=False
            )


class NestedLoopParameters(Settings):
    disk_tuples: int = Field(0, ge=0)
    block_tuples: int = Field(0, ge=0)  # stream tuples that a pass over R is made for


class NestedLoop(SemiStreamJoin):
    """Fill H_S, read all of R, join, begin anew."""

    def __init__(self, spec, parameters):
        super().__init__(spec.with_disk_buffer(parameters.disk_tuples), parameters)
        self.scan, self.h_s = Scan(self.spec), ArrowList(self.layout, parameters.block_tuples)
        self.arena.reserve("disk buffer", self.master.partition_bytes)
        self._require(self.h_s.tuple_bytes, self.arena.free)

    def _take(self, batch, codes):
        buffer = StreamBuffer(self.layout, batch, codes)
        while (yield from fill(self.h_s, buffer, self.output)):
            yield from self.iterate()

    @property
    def passes(self):
        return self.scan.passes

    def iterate(self):
        begun, h_s, removed = self._begin(), self.h_s, Removed.none()
        partition, read = self.scan.read()
        yield from self.output.matches(partition, h_s, h_s.pairs(partition.codes))
        if self.scan.ended_cycle:
            removed = h_s.remove()
            yield from self.output.finish(h_s, removed)
            size = h_s.size
            h_s.clear()
            h_s.resize(size)
        self._end(begun, len(removed.slots), read, self.scan.cycles)


def predict(work, m, costs, disk_tuples, block_tuples):
    """An R-cycle finishes h_S tuples, and compares each with each tuple of R."""
    sizes = {"disk_tuples": disk_tuples, "block_tuples": block_tuples}
    cut = work.partitions(disk_tuples)
    h_s = min((m - cut.most_bytes) / work.stream_tuple_bytes, block_tuples)
    if 2 * cut.most_bytes > m or h_s < 1:
        return infeasible(NAME, sizes)
    s = work.symbols(costs, h_s, cut.tuples)
    c_loop = s.c_io + cut.tuples * s.c_h * h_s
    return Prediction(
        NAME, sizes, 0.0, h_s / cut.number, c_loop, c_loop, {"disk buffer": cut.most_bytes}, h_s
    )


sys.modules["semistream.joins.nested_loop"] = sys.modules[__name__]
ENTRY = Algorithm(
    NAME,
    "BLOCK NESTED LOOP",
    "nested_loop.NestedLoop",
    "nested_loop.NestedLoopParameters",
    "a test",
)


def register(patch):
    """Put it where the others are, until the patch is undone."""
    patch.setitem(REGISTRY, NAME, ENTRY)
    patch.setitem(
        MODELS, NAME, Model(predict, {"disk_tuples": DISK_TUPLES, "block_tuples": BLOCK_TUPLES})
    )
