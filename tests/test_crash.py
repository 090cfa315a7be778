"""SIGKILL of driver, Python workers and database server at random moments; afterwards the warehouse
is the oracle's join."""

import numpy as np
import pytest

import faults
from loads import SmallLoad, same, small_load
from semistream.job import StreamStreamJob
from star_loads import split_star, star_load
from stream_pairs import TOTALS, Pair


def put_files(load: SmallLoad) -> SmallLoad:
    for rows in range(200, 440, 40):
        load.add_file(rows)
    return load


ROLES = [pytest.param(small_load, id="one role"), pytest.param(star_load, id="several roles")]


@pytest.mark.parametrize(
    ("make", "drivers", "workers"),
    [(small_load, 1, 1), (star_load, 1, 2), (split_star, 2, 1)],
    ids=["one role", "several roles", "two roles split"],
)
def test_sqlite_warehouse(tmp_path, make_app, make, drivers, workers):
    load = put_files(make(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}"))
    app = make_app(load, algorithm="ssbj")
    faults.run_through(app, 1, {"driver": drivers, "worker": workers})
    load.check()


@pytest.mark.parametrize("make", ROLES)
def test_mariadb_warehouse(tmp_path, mariadb_to_kill, make_app, make):
    load = put_files(make(tmp_path, mariadb_to_kill.fresh()))
    app = make_app(load, algorithm="meshjoin", join_type="left")
    faults.run_through(app, 2, {"driver": 1, "worker": 1, "database": 2}, mariadb_to_kill)
    load.check("left")


@pytest.mark.parametrize("make", ROLES)
def test_delta_table(tmp_path, make_app, make):
    load = put_files(make(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}"))
    load.sink = str(tmp_path / "d")
    # On local[2], unlike local[2,4], Spark itself tries no task twice.
    app = make_app(load, "local[2]")
    faults.run_through(app, 3, {"driver": 1, "worker": 1})
    load.check()


@pytest.fixture(scope="module")
def mariadb_to_kill(tmp_path_factory, mariadb):
    """A server of its own, since it is killed."""
    server = type(mariadb)(tmp_path_factory.mktemp("killed"))
    server.install()
    server.start()
    yield server
    server.stop()


def test_two_streams(tmp_path, make_app):
    """Their state is restored by other processes, with what their promises have come to. Keys are
    closed once."""
    pair = Pair(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", "left")
    pair.change(left={"unique": True}, right={"clustered": True})
    pair.job = StreamStreamJob.load(pair.job.model_dump() | {"totals": TOTALS})
    for first in range(0, 600, 100):
        pair.put("left", pair.tuples("left", 100, np.arange(first, first + 100)))
        lines = np.repeat(np.arange(first, first + 100), 2)
        pair.put("right", pair.tuples("right", 200, lines))
    faults.run_through(make_app(pair, end=True), 4, {"driver": 1, "worker": 1})
    pair.check()
    same(pair.closed(), pair.expected_closed())


@pytest.mark.parametrize("make", ROLES)
def test_driver_dies_at_every_step_of_batches_and_drains(spark, tmp_path, monkeypatch, sink, make):
    load = make(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.sink = sink
    for nth in (1, 2):  # in the batch, and in the drain that follows it
        for number, (name, when) in enumerate(faults.points(sink)):
            load.add_file(250)
            if number == 3:
                load.publish(f"part {nth}")  # the next batch drains first and takes it up
            with monkeypatch.context() as patch:
                faults.crash_at(patch, name, when, nth)
                with pytest.raises(OSError, match="crash"):
                    load.run(spark)
    load.run(spark)
    joined, unmatched = load.expected()
    same(load.lasting(load.facts()), load.lasting(joined))
    same(load.unmatched(), unmatched)
    load.check_ledger()


def test_driver_dies_at_every_step_with_two_streams(spark, tmp_path, monkeypatch, sink):
    pair = Pair(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", "full")
    pair.sink, points = sink, faults.points(sink)
    for name, when in points:
        pair.add(60, 60)
        with monkeypatch.context() as patch:
            faults.crash_at(patch, name, when, 1)
            with pytest.raises(OSError, match="crash"):
                pair.run(spark)
    pair.run(spark)
    for name, when in points[:4]:  # at the end of both streams
        with monkeypatch.context() as patch:
            faults.crash_at(patch, name, when, 1)
            with pytest.raises(OSError, match="crash"):
                pair.run(spark, end=True)
    pair.run(spark, end=True)
    pair.check()
