"""Operators go from one worker process to another with their memory."""

import multiprocessing

import numpy as np
import pyarrow as pa
import pytest

import oracle
from semistream.joins import REGISTRY
from semistream.joins.arena import Region
from semistream.joins.star import RoleJoin, Star
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import open_join
from semistream.stream_joins import open_stream_join
from semistream.stream_joins.sources import UniqueKey
from semistream.streaming.join_operator import SemiStreamOperator, StreamStreamOperator
from semistream.streaming.workers import operators

STREAM = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("note", pa.string())])
ON, R_T = [("k", "k")], 20_000
# Workers are forks of a process that has imported what they need, as those of Spark are.
WORKERS = multiprocessing.get_context("forkserver")
WORKERS.set_forkserver_preload(
    [operators.__name__, SemiStreamOperator.__module__, "pandas"]  # which PyArrow imports
)
MASTER = pa.table({"k": pa.array(range(R_T), pa.int64()), "v": [f"v{k}" for k in range(R_T)]})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("snapshots") / "m"
    publish_snapshot(
        MASTER.to_batches(), MASTER.schema, root, "m", ["k"], bucket_count=4, page_tuples=64
    )
    return root


def chunks(first, count):
    random = np.random.default_rng(first)
    for i in range(first, first + count):
        keys = np.minimum(random.zipf(1.2, 3_000), 1.1 * R_T).astype(np.int64)
        yield pa.record_batch(
            [np.arange(3_000 * i, 3_000 * (i + 1)), keys, [f"n{k}" for k in keys]], schema=STREAM
        )


@pytest.fixture(scope="module")
def expected():
    """The answer to the chunks of three workers, by plain loops."""
    stream = [r for i in range(3) for c in chunks(4 * i, 4) for r in c.to_pylist()]
    return oracle.join(stream, MASTER.to_pylist(), ON, ["v"])[0]


def operator(root, name):
    join = open_join(
        name, memory=400_000, stream=STREAM, master=open_snapshot(root, partition_tuples=256), on=ON
    )
    return SemiStreamOperator(Star([RoleJoin("r", join)]))


def work(root, name, queue, first, key_before, key_after):
    """What a worker does in one micro-batch."""
    operators.use_memory_files()
    cache = operators.OperatorCache()
    join = cache.take(key_before) if key_before else operator(root, name)
    outputs = [o for c in chunks(first, 4) for o in join.process(0, c)] if join else None
    queue.put(None if outputs is None else [o.joined for o in outputs if o.joined is not None])
    if key_after:
        cache.put(key_after, join)
        del join
        queue.put("cached")
        multiprocessing.Event().wait()
    elif join:
        queue.put([o.joined for o in join.drain() if o.joined is not None])


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_another_process_goes_on_with_the_operator(root, name, expected):
    keys = [("checkpoint", 0, f"{name} {i}") for i in range(2)]
    queues = [WORKERS.Queue() for _ in range(3)]
    workers = [
        WORKERS.Process(target=work, args=(root, name, queue, 4 * i, before, after), daemon=True)
        for i, (queue, before, after) in enumerate(
            zip(queues, [None, *keys], [*keys, None], strict=True)
        )
    ]
    joined = []
    for i, (worker, queue) in enumerate(zip(workers, queues, strict=True)):
        worker.start()
        joined += queue.get(timeout=60)
        joined += queue.get(timeout=60) if i == 2 else []
        assert i == 2 or queue.get(timeout=60) == "cached"
    assert operators.fetch(keys[0]) is None, "it was given away before"
    for worker in workers:
        worker.kill()
    assert oracle.rows(joined) == expected


def test_nothing_is_copied_and_who_dies_gives_nothing(root):
    queue, key = WORKERS.Queue(), ("checkpoint", 1, "s")
    worker = WORKERS.Process(
        target=work, args=(root, "elevatorjoin", queue, 0, None, key), daemon=True
    )
    worker.start()
    queue.get(timeout=60)
    assert queue.get(timeout=60) == "cached"
    join = operators.fetch(key)
    own = join.star.joins[0].join
    assert all(Region.of(a) is not None for a in (own.h_r.ekey, own.h_s.key, own.h_s.store.heap))
    worker.kill()
    worker.join()
    assert sum(o.joined.num_rows for o in join.drain() if o.joined is not None) > 0
    done = own.stats
    assert done.waiting == 0 and done.matched + done.unmatched == done.rows_read
    assert operators.fetch(key) is None


def test_one_is_taken_here_or_there_but_once(root):
    cache, key = operators.OperatorCache(), ("checkpoint", 2, "s")
    join = operator(root, "meshjoin")
    cache.put(key, join)
    assert cache.take(("checkpoint", 2, "another")) is None
    assert cache.take(key) is join and cache.take(key) is None and operators.fetch(key) is None
    cache.put(key, join)
    cache.clear()
    assert cache.take(key) is None


def side(side, first, count):
    """Tuples of one of two streams; a key of the left one comes once."""
    ids = np.arange(first, first + count)
    return pa.record_batch(
        [ids, ids if side == 0 else ids // 3, [f"n{i}" for i in ids]], schema=STREAM
    )


def work_on_two_streams(memory, queue, key):
    """What a worker does in the first micro-batch."""
    operators.use_memory_files()
    join = open_stream_join(
        "pjoin", memory=memory, left=STREAM, right=STREAM, on=ON, join_type="left"
    )
    sources = [UniqueKey(["k"])], []
    two = StreamStreamOperator(join, sources, alone=True)
    rows = sum(
        o.joined.num_rows
        for s, n in ((0, 1000), (1, 1500))
        for o in two.process(s, side(s, 0, n))
        if o.joined is not None
    )
    cache = operators.OperatorCache()
    cache.put(key, two)
    queue.put((rows, join.stats.as_dict()))
    multiprocessing.Event().wait()


@pytest.mark.parametrize("memory", [4_000_000, 160_000])
def test_another_process_goes_on_with_two_streams_unless_they_are_on_disk(memory):
    queue, key = WORKERS.Queue(), ("checkpoint", 3, f"{memory}")
    worker = WORKERS.Process(target=work_on_two_streams, args=(memory, queue, key), daemon=True)
    worker.start()
    rows, stats = queue.get(timeout=60)
    two = operators.fetch(key)
    worker.kill()
    if stats["relocated"]:
        assert memory == 160_000 and two is None
        return
    assert memory == 4_000_000 and rows == 1500 and two.join.stats.as_dict() == stats
    finished = [
        o
        for s, first, n in ((1, 1500, 900), (0, 1000, 100))
        for o in two.process(s, side(s, first, n))
    ]
    finished += two.drain()
    joined = [row for o in finished if o.joined is not None for row in o.joined.to_pylist()]
    assert len(joined) == 900 + 300 and {r[name] for r in joined for name in r if "k" in name} == {
        *range(500, 1100),
        None,
    }
    assert two.join.stats.sides[0].held == two.join.stats.sides[1].held == 0
