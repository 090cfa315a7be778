"""What a new algorithm with a layout of H_S of its own takes: its operator, its cost model, and an
entry in each registry.

The algorithm is a block nested loop join; H_S is a list of Arrow batches. Nothing of it is in the
package: this module stands for the file that it would be there.
"""

import inspect
import json
import sys
import time

import numpy as np
import pyarrow as pa
import pytest
from pydantic import Field

import oracle
import test_joins
from semistream.cli import main
from semistream.cost_models import MODELS, Model, Prediction, Size
from semistream.cost_models.costs import infeasible
from semistream.cost_models.sizes import DISK_TUPLES
from semistream.errors import ConfigError, NotEnoughMemory
from semistream.joins import REGISTRY, Algorithm
from semistream.joins.admission import fill
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.output import Removed
from semistream.joins.scan_phase import Scan
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_table import NO_LIMIT, Ages, StreamTable
from semistream.master.memory import MemoryRelation
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.settings import Settings
from semistream.sizing import open_join
from semistream.stream_joins import (
    LEFT,
    RIGHT,
    Monitor,
    Registry,
    StreamStreamJoin,
    open_stream_join,
)
from semistream.stream_joins.registry import REGISTRY as STREAM_JOINS
from semistream.stream_joins.registry import StreamJoinAlgorithm

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


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(sys.modules, "semistream.joins.nested_loop", sys.modules[__name__])
    monkeypatch.setitem(
        REGISTRY,
        NAME,
        Algorithm(
            NAME,
            "BLOCK NESTED LOOP",
            "nested_loop.NestedLoop",
            "nested_loop.NestedLoopParameters",
            "a test",
        ),
    )
    monkeypatch.setitem(
        MODELS, NAME, Model(predict, {"disk_tuples": DISK_TUPLES, "block_tuples": BLOCK_TUPLES})
    )


CHECKS = [
    name
    for name, check in inspect.getmembers(test_joins, inspect.isfunction)
    if name.startswith("test_")
    and {"algorithm"}
    <= set(inspect.signature(check).parameters)
    <= {"algorithm", "tmp_path", "monkeypatch"}
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_holds(check, tmp_path, monkeypatch):
    check = getattr(test_joins, check)
    fixtures = {"algorithm": NAME, "tmp_path": tmp_path, "monkeypatch": monkeypatch}
    check(**{name: fixtures[name] for name in inspect.signature(check).parameters})


@pytest.mark.parametrize("memory", [60_000, 2_000_000])
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_it_stays_within_memory(memory, skew):
    test_joins.test_large_streams_stay_within_memory(NAME, {}, skew, memory)


@pytest.mark.parametrize("join_type", ["inner", "left"])
def test_it_is_opened_with_the_sizes_of_its_cost_model_and_restarted(join_type, tmp_path):
    keys = np.random.default_rng(1).integers(0, 1200, 6000)
    stream = pa.table({"id": range(6000), "k": keys, "note": [f"n{i % 7}" for i in range(6000)]})
    table = pa.table({"k": pa.array(range(1000), pa.int64()), "v": [f"v{k}" for k in range(1000)]})
    publish_snapshot(table.to_batches(), table.schema, tmp_path, "r", ["k"], page_tuples=64)
    make = lambda: open_join(
        NAME,
        memory=50_000,
        stream=stream.schema,
        master=open_snapshot(tmp_path),
        on=[("k", "k")],
        join_type=join_type,
    )
    join, outputs = make(), []
    assert join.parameters.disk_tuples > 64 and join.parameters.block_tuples > 100
    for batch in stream.to_batches(max_chunksize=1000):
        outputs += join.process(batch)
        state, join = join.snapshot(), make()
        join.restore(state)
    outputs += join.drain()
    joined, unmatched = oracle.join(
        stream.to_pylist(), table.to_pylist(), [("k", "k")], ["v"], join_type
    )
    assert (oracle.rows(o.joined for o in outputs), oracle.rows(o.unmatched for o in outputs)) == (
        joined,
        unmatched,
    )
    assert join.stats.memory_peak <= 50_000


def test_a_memory_that_is_too_small_is_refused_with_an_amount_that_works():
    stream = test_joins.sales([1, 2, 3])
    start = lambda memory: open_join(
        NAME,
        memory=memory,
        stream=stream.schema,
        on=[("k", "k")],
        master=MemoryRelation("r", test_joins.integers(1000), ["k"], 100),
    )
    with pytest.raises(NotEnoughMemory) as refused:
        start(20)
    outputs = test_joins.run(start(refused.value.least), stream)
    assert sum(o.joined.num_rows for o in outputs) == 3


class InMemoryParameters(Settings):
    kept: bool = Field(True, description="whether tuples are held")


class InMemory(StreamStreamJoin):
    """A symmetric hash join in memory."""

    def __init__(self, spec, parameters):
        super().__init__(spec, Monitor(), Registry())
        self.kept = parameters.kept

    def _take(self, side, batch, codes):
        yield from self.memory_join(side, batch, codes, np.full(len(codes), self.kept))


def test_a_join_of_two_streams_is_a_class_and_an_entry(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "semistream.stream_joins.in_memory", sys.modules[__name__])
    monkeypatch.setitem(
        STREAM_JOINS,
        "in-memory",
        StreamJoinAlgorithm(
            "in-memory", "IN MEMORY", "in_memory.InMemory", "in_memory.InMemoryParameters", "a test"
        ),
    )
    keys = pa.record_batch({"k": [1, 2, 2, 3]})
    start = lambda **parameters: open_stream_join(
        "in-memory",
        memory=1_000_000,
        left=keys.schema,
        right=keys.schema,
        on=[("k", "k")],
        parameters=parameters,
    )
    for kept, pairs in ((True, [1, 2, 2, 2, 2, 3]), (False, [])):
        join = start(kept=kept)
        outputs = [*join.process(LEFT, keys), *join.process(RIGHT, keys), *join.drain()]
        assert sorted(k for o in outputs if o.joined for k in o.joined["k"].to_pylist()) == pairs
    with pytest.raises(ConfigError, match="'other' is not a setting. Settings: kept"):
        start(other=1)
    assert main(["algorithms", "--json"]) == 0
    assert "in-memory" in {a["name"] for a in json.loads(capsys.readouterr().out)}
