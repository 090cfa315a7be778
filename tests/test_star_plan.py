"""The plan of a load of several roles: its sizes, and how the initial plan is restored."""

import dataclasses
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import oracle
from semistream.cost_models import TYPICAL
from semistream.errors import NotEnoughMemory
from semistream.master.manifest import Manifest
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import star_plan
from semistream.sizing.enough import with_enough
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan, open_star
from semistream.sizing.star_plan import choose_joins, choose_plan, has_open_questions, size_plan

ROWS = {"part": 20_000, "shop": 60, "day": 400}
TUPLES = 8_000


def dimension(name, rows):
    return pa.table({"id": np.arange(rows), f"{name}_name": [f"{name} {i}" for i in range(rows)]})


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    found = {}
    for name, rows in ROWS.items():
        root, table = tmp_path_factory.mktemp(name), dimension(name, rows)
        publish_snapshot(table.to_batches(), table.schema, root, name, ["id"])
        with closing(open_snapshot(root)) as relation:
            found[name] = str(relation.directory)
    return found


@pytest.fixture(scope="module")
def sales():
    random = np.random.default_rng(2)
    keys = {name: random.integers(0, rows + rows // 20, TUPLES) for name, rows in ROWS.items()}
    return pa.RecordBatch.from_pydict({"n": np.arange(TUPLES), **keys})


def plan(snapshots, memory, partitions=1, algorithm="auto", **more):
    """As a planner asks for it: an even split, in the order of the job."""
    roles = ["shop", "part", "day"]
    return Plan(
        tuple(
            RolePlan(
                algorithm,
                memory // (partitions * len(roles)),
                "inner" if role == "day" else "left",
                {},
                ((role, "id"),),
                partitions,
                snapshots[role],
                role=role,
                parts=0 if role == "part" else 1,
                stride=1 if role == "part" else 0,
                auto=algorithm == "auto",
                share=len(roles),
                number=number,
                **more,
            )
            for number, role in enumerate(roles)
        )
    )


def order(found):
    return [join.role for join in found.joins]


def whole(found):
    return {join.role for join in found.joins if join.whole}


def test_small_dimensions_are_held_whole_and_the_large_one_gets_the_rest(snapshots, sales):
    initial = plan(snapshots, 300_000)
    found = size_plan(initial, sales, TYPICAL)
    assert whole(found) == {"shop", "day"} and order(found) == ["part", "day", "shop"]
    assert found.memory <= initial.memory and found.joins[0].memory > initial.joins[0].memory
    assert found.largest == 0 and initial.largest == 1
    assert "of M = 300,000 bytes part with" in found.reason and "shop is held whole" in found.reason


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_small_only_dimension_is_held_whole(snapshots, sales, partitions):
    size = Manifest.read(Path(snapshots["shop"])).tuple_bytes * ROWS["shop"]

    def planned(memory, algorithm="auto", one_machine=True):
        shop, *_ = plan(snapshots, int(memory), partitions, algorithm).joins
        each = int(memory) // partitions
        initial = Plan((dataclasses.replace(shop, memory=each, parts=0, stride=1, share=1),))
        found = choose_plan(initial, sales, TYPICAL, one_machine=one_machine)
        assert algorithm != "auto" or found.initial().joins == initial.joins
        return found

    found = planned(17 * size)
    assert whole(found) == {"shop"} and found.joins[0].parameters == {"sharers": partitions}
    assert "all of R takes about" in found.reason and "shop is held whole" in found.reason
    star = open_star(found.joins, sales.schema, 0)
    assert star.memory_peak <= 17 * size / partitions
    star.close()
    assert not whole(planned(15 * size))  # R is more than a sixteenth of M
    assert not whole(planned(17 * size, algorithm="ssbj"))
    assert bool(whole(planned(17 * size, one_machine=False))) == (partitions == 1)
    assert whole(planned(17 * partitions * size, one_machine=False)) == {"shop"}


def test_a_sized_plan_knows_its_initial_plan(snapshots, sales):
    initial = plan(snapshots, 300_000)
    found = choose_joins(size_plan(initial, sales, TYPICAL), sales, TYPICAL)
    assert has_open_questions(initial) and has_open_questions(found)
    assert found != initial and found.initial() == initial
    as_json = json.loads(json.dumps(dataclasses.asdict(found)))
    again = Plan.from_json(as_json, RolePlan)
    assert again == found and again.initial() == initial


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_plan_joins_all_tuples(partitions, snapshots, sales):
    initial = plan(snapshots, 900_000, partitions)
    found = choose_joins(size_plan(initial, sales, TYPICAL, one_machine=True), sales, TYPICAL)
    assert {"shop", "day"} <= whole(found)
    rows, names = [], []
    of = found.placement((sales.schema,)).partitions(sales)
    for partition in range(partitions):
        star = open_star(found.joins, sales.schema, partition)
        mine = sales.filter(pa.array(of == partition))
        rows += [o.joined for o in (*star.process(mine), *star.drain()) if o.joined is not None]
        names = star.output_schema.names
        assert star.memory_peak <= initial.memory
        star.close()
    tuples = sales.to_pylist()
    for role in ("shop", "part", "day"):
        kind = "inner" if role == "day" else "left"
        master = dimension(role, ROWS[role]).to_pylist()
        joined, _ = oracle.join(tuples, master, [(role, "id")], [f"{role}_name"], kind)
        columns = [*tuples[0], f"{role}_name"]
        tuples = [dict(zip(columns, row, strict=True)) for row in joined]
    assert names == list(tuples[0])
    assert oracle.rows(rows) == oracle.rows([pa.Table.from_pylist(tuples)])


def test_operators_of_one_machine_share_what_is_held_whole(snapshots, sales):
    apart = size_plan(plan(snapshots, 320_000, 4), sales, TYPICAL)
    together = size_plan(plan(snapshots, 320_000, 4), sales, TYPICAL, one_machine=True)
    assert whole(apart) < whole(together) == {"shop", "day"}
    assert {j.parameters["sharers"] for j in together.joins if j.whole} == {4}


def test_a_dimension_that_turns_out_larger_than_estimated_waits(snapshots, sales, monkeypatch):
    estimated = star_plan.size_star

    def too_little(roles, *arguments, waiting=(), **more):
        found = estimated(roles, *arguments, waiting=waiting, **more)
        shares = tuple(
            dataclasses.replace(share, memory=900) if share.whole and share.role == "day" else share
            for share in found.shares
        )
        return dataclasses.replace(found, shares=shares)

    monkeypatch.setattr(star_plan, "size_star", too_little)
    found = size_plan(plan(snapshots, 300_000), sales, TYPICAL)
    assert whole(found) == {"shop"} and order(found)[-1] == "shop"


def test_the_sizes_in_use_are_kept(snapshots, sales):
    initial = plan(snapshots, 300_000)
    found = size_plan(initial, sales, TYPICAL)
    # another sample of the same stream would give a slightly different split
    random = np.random.default_rng(9)
    other = sales.take(pa.array(random.integers(0, TUPLES, TUPLES)))
    again = size_plan(initial, other, TYPICAL, found)
    assert [(j.role, j.memory) for j in again.joins] == [(j.role, j.memory) for j in found.joins]
    assert "kept" in again.reason
    # a plan that was not sized has no split to keep
    assert "kept" not in size_plan(initial, sales, TYPICAL, initial).reason


def test_a_named_algorithm_holds_nothing_whole(snapshots, sales):
    found = size_plan(plan(snapshots, 300_000, algorithm="ssbj"), sales, TYPICAL)
    assert not whole(found) and {join.algorithm for join in found.joins} == {"ssbj"}
    assert found.initial() == plan(snapshots, 300_000, algorithm="ssbj")


def test_the_hash_join_can_be_named(snapshots, sales):
    initial = plan(snapshots, 4_000_000, algorithm="hash-join")
    found = choose_joins(size_plan(initial, sales, TYPICAL), sales, TYPICAL)
    assert {join.algorithm for join in found.joins} == {"hash-join"} and found.initial() == initial


def test_one_role_is_left_as_it_is(snapshots, sales):
    one = Plan((dataclasses.replace(plan(snapshots, 300_000).joins[1], share=1),))
    assert size_plan(one, sales, TYPICAL) is one


@pytest.mark.parametrize("memory", [30, 3_000])
def test_too_little_memory_is_refused_with_an_m_of_all_that_suffices(snapshots, sales, memory):
    with pytest.raises(NotEnoughMemory) as refusal:
        choose_plan(plan(snapshots, memory, 2), sales, TYPICAL)
    least = refusal.value.least
    assert refusal.value.value == memory and least > memory
    assert "in 2 partitions of 3 dimensions" in str(refusal.value)
    assert choose_plan(plan(snapshots, least, 2), sales, TYPICAL).memory * 2 <= least
    with pytest.raises(NotEnoughMemory):
        choose_plan(plan(snapshots, least // 3, 2), sales, TYPICAL)


def test_what_suffices_is_found_by_trying():
    def choose(memory):
        if memory < 5_000:  # what lacks depends on what there is
            raise NotEnoughMemory(memory // 2 + 1_000, memory, "joins")
        return memory

    assert with_enough(choose, 6_000, 2) == 6_000
    with pytest.raises(NotEnoughMemory, match="bytes for joins. Got 30") as refusal:
        with_enough(choose, 30, 2)
    assert 5_000 <= refusal.value.least < 10_000
    with pytest.raises(NotEnoughMemory) as refusal:
        with_enough(choose, 30, 1)
    assert refusal.value.least == 1_015
