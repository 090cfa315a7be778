"""What a new algorithm takes: a file such as block_nested_loop.py, which test_joins.py tries as it
does those of the package. Likewise for a join of two streams."""

import json
import sys

import numpy as np
import pyarrow as pa
import pytest
from pydantic import Field

import oracle
from block_nested_loop import NAME, register
from semistream.cli import main
from semistream.errors import ConfigError, NotEnoughMemory
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


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    register(monkeypatch)


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
    stream = pa.record_batch({"id": range(3), "k": [1, 2, 3]})
    master = pa.table({"k": range(1000), "v": [f"v{k}" for k in range(1000)]})
    start = lambda memory: open_join(
        NAME,
        memory=memory,
        stream=stream.schema,
        on=[("k", "k")],
        master=MemoryRelation("r", master, ["k"], 100),
    )
    with pytest.raises(NotEnoughMemory) as refused:
        start(20)
    join = start(refused.value.least)
    outputs = [*join.process(stream), *join.drain()]
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
