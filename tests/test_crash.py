"""SIGKILL of driver, Python workers and database server at random moments; afterwards the warehouse
is the oracle's join."""

from collections import Counter

import numpy as np
import pytest

import faults
from loads import SmallLoad, delta_facts, same
from semistream.config import StreamStreamJob
from stream_pairs import TOTALS, Pair


def crashed(load, kills, seed, database=None, files=8, master="local[2,4]", **settings):
    load.publish()
    for rows in range(files):
        load.add_file(300 + 40 * rows)
    app = faults.App(load, master, **settings)
    try:
        return faults.run_through(app, faults.plan(seed, kills), seed, database)
    finally:
        app.close()


def test_sqlite_warehouse(tmp_path):
    load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    history = crashed(load, ["driver"] * 3 + ["worker"] * 3, seed=1, algorithm="ssbj")
    assert Counter(history)["driver"] == 3, history
    load.check()


def test_mariadb_warehouse(tmp_path, mariadb_to_kill):
    load = SmallLoad(tmp_path / "home", mariadb_to_kill.fresh())
    history = crashed(load, ["driver"] * 2 + ["worker"] * 2 + ["database"] * 3, seed=2,
                      database=mariadb_to_kill, algorithm="meshjoin", join_type="left")
    assert Counter(history)["database"] == 3, history
    load.check("left")


def test_delta_table(tmp_path):
    load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    sink = tmp_path / "delta"
    # On local[2], unlike local[2,4], Spark itself tries no task twice.
    history = crashed(load, ["driver"] * 2 + ["worker"] * 2, seed=3, sink=str(sink),
                      master="local[2]")
    assert Counter(history)["driver"] == 2, history
    joined, unmatched = load.expected()
    same(delta_facts(sink), joined)
    same(load.unmatched(), unmatched)
    load.check_ledger()


@pytest.fixture
def mariadb_to_kill(tmp_path_factory, mariadb):
    """A server of its own, since it is killed."""
    server = type(mariadb)(tmp_path_factory.mktemp("killed"))
    server.install()
    server.start()
    yield server
    server.stop()


def test_two_streams(tmp_path):
    """Their state is restored by other processes, with what their promises have come to. Keys are
    closed once."""
    pair = Pair(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", "left")
    pair.change(left={"unique": True}, right={"clustered": True})
    pair.job = StreamStreamJob.load(pair.job.model_dump() | {"totals": TOTALS})
    for first in range(0, 1200, 200):
        pair.put("left", pair.tuples("left", 200, np.arange(first, first + 200)))
        lines = np.repeat(np.arange(first, first + 200), 2)
        pair.put("right", pair.tuples("right", 400, lines))
    app = faults.App(pair, end=True)
    try:
        history = faults.run_through(app, faults.plan(4, ["driver"] * 2 + ["worker"] * 2), 4, None)
    finally:
        app.close()
    assert Counter(history)["driver"] == 2, history
    pair.check()
    same(pair.closed(), pair.expected_closed())


POINTS = [  # where the driver dies, in the order in which a batch passes them
    ("semistream.streaming.progress.Progress.write", "before"),
          ("semistream.streaming.progress.Progress.write", "after"),
    ("semistream.streaming.app.run_tasks", "after"),
          ("semistream.warehouse.ledger.Ledger.commit", "before"),
    ("semistream.warehouse.ledger.Ledger.commit", "after"),
          ("semistream.streaming.commit.Commits.finish", "after"),
    ("semistream.streaming.app.App._finish", "after"),
]
OF_DELTA = [  # what it has besides: an intent, and a commit that Spark need not wait for
    ("semistream.streaming.commit.Commits.prepare", "before"),
    ("semistream.streaming.commit.Commits.prepare", "after"),
    ("semistream.streaming.sinks.delta.DeltaSink.commit", "before"),
    ("semistream.streaming.sinks.delta.DeltaSink.commit", "after"),
]


@pytest.mark.parametrize("sink", ["sql", "delta"])
def test_driver_dies_at_every_step_of_batches_and_drains(spark, tmp_path, monkeypatch, sink):
    load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.publish()
    target = "sql" if sink == "sql" else str(tmp_path / "delta")
    for nth in (1, 2):  # in the batch, and in the drain that follows it
        for number, (name, when) in enumerate(POINTS if sink == "sql" else POINTS + OF_DELTA):
            load.add_file(250)
            if number == 3:
                load.publish(f"part {nth}")  # the next batch drains first and takes it up
            with monkeypatch.context() as patch:
                crash_at(patch, name, when, nth)
                with pytest.raises(OSError, match="crash"):
                    load.run(spark, sink=target)
    load.run(spark, sink=target)
    if sink == "sql":
        facts = Counter(load.query("SELECT id, sku, amount, part_sk, price FROM fact_sales"))
    else:
        from deltalake import DeltaTable

        rows = DeltaTable(target).to_pyarrow_table().select(
            ["id", "sku", "amount", "part_sk", "price"])
        facts = Counter(tuple(r.values()) for r in rows.to_pylist())
    joined, unmatched = load.expected()
    # names differ from version to version
    same(facts, Counter([(*row[:4], row[5]) for row in joined.elements()]))
    same(load.unmatched(), unmatched)
    load.check_ledger()


@pytest.mark.parametrize("sink", ["sql", "delta"])
def test_driver_dies_at_every_step_with_two_streams(spark, tmp_path, monkeypatch, sink):
    pair = Pair(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", "full")
    target = "sql" if sink == "sql" else str(tmp_path / "delta")
    points = POINTS if sink == "sql" else POINTS + OF_DELTA
    for name, when in points:
        pair.add(60, 60)
        with monkeypatch.context() as patch:
            crash_at(patch, name, when, 1)
            with pytest.raises(OSError, match="crash"):
                pair.run(spark, sink=target)
    pair.run(spark, sink=target)
    for name, when in points[:4]:  # at the end of both streams
        with monkeypatch.context() as patch:
            crash_at(patch, name, when, 1)
            with pytest.raises(OSError, match="crash"):
                pair.run(spark, sink=target, end=True)
    pair.run(spark, sink=target, end=True)
    joined, unmatched = pair.expected()
    same(pair.facts() if sink == "sql" else pair.delta_facts(target), joined)
    same(pair.unmatched(), unmatched)
    pair.check_ledger()


def crash_at(patch, name, when, nth):
    """The n-th call ends in an OSError, before or after it did its work."""
    import importlib

    module, kind, method = name.rsplit(".", 2)
    owner = getattr(importlib.import_module(module), kind)
    original, calls = getattr(owner, method), iter(range(1, 100))

    def crashing(*args, **kwargs):
        number = next(calls)
        if number == nth and when == "before":
            raise OSError("crash")
        result = original(*args, **kwargs)
        if number == nth:
            raise OSError("crash")
        return result

    patch.setattr(owner, method, crashing)
