"""The shares of a star: which tuples and which parts of R meet, and the shares that are chosen."""

import dataclasses
import itertools
import json
import math
from collections import Counter
from contextlib import closing
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from semistream.cost_models import TYPICAL
from semistream.joins import JoinState
from semistream.master.publish import publish_snapshot
from semistream.master.published import current_version
from semistream.partitioning import DEALT
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan, open_star
from semistream.sizing.shares import choices, products, with_shares
from semistream.sizing.star import GAIN, StarRole, size_star
from semistream.sizing.star_plan import choose_joins, size_plan, size_plans

DAY = date(2026, 3, 1)
# rows and buckets of each dimension
PARTS, OFFERS, SHOPS = (600, 16), (400, 5), (50, 3)
STREAM = pa.schema(
    [
        ("n", pa.int64()),
        ("sold", pa.int64()),
        ("returned", pa.int64()),
        ("region", pa.string()),
        ("day", pa.date32()),
        ("shop", pa.string()),
    ]
)
# role -> (dimension, on, column that is added, join type); two roles have the same dimension
ROLES = {
    "sold": ("part", (("sold", "id"),), "label", "inner"),
    "offer": ("offer", (("region", "region"), ("day", "day")), "percent", "left"),
    "returned": ("part", (("returned", "id"),), "label", "left"),
    "shop": ("shop", (("shop", "name"),), "size", "inner"),
}
MASTERS = {
    "part": pa.table({"id": range(PARTS[0]), "label": [f"part {i}" for i in range(PARTS[0])]}),
    "offer": pa.table(
        {
            "region": [f"r{i % 20}" for i in range(OFFERS[0])],
            "day": [DAY + timedelta(i // 20) for i in range(OFFERS[0])],
            "percent": range(OFFERS[0]),
        }
    ),
    "shop": pa.table({"name": [f"shop {i}" for i in range(SHOPS[0])], "size": range(SHOPS[0])}),
}
BUCKETS = {"part": PARTS[1], "offer": OFFERS[1], "shop": SHOPS[1]}


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    found = {}
    for name, table in MASTERS.items():
        root = tmp_path_factory.mktemp(name)
        (key,) = {on for dimension, on, *_ in ROLES.values() if dimension == name} - {
            ROLES["returned"][1]
        }
        columns = [column for _, column in key]
        publish_snapshot(
            table.to_batches(), table.schema, root, name, columns, bucket_count=BUCKETS[name]
        )
        found[name] = str(root / str(current_version(root)))
    return found


def initial(snapshots, roles, partitions, algorithm="elevatorjoin", memory=400_000):
    """The plan in which only the first of these roles is split."""
    return Plan(
        tuple(
            RolePlan(
                algorithm,
                memory // (partitions * len(roles)),
                ROLES[role][3],
                {} if algorithm == "auto" else {"disk_tuples": 8},
                ROLES[role][1],
                partitions,
                snapshots[ROLES[role][0]],
                {ROLES[role][2]: f"{role}_{ROLES[role][2]}"},
                role,
                parts=0 if number == 0 else 1,
                stride=1 if number == 0 else 0,
                share=len(roles),
                number=number,
            )
            for number, role in enumerate(roles)
        )
    )


def stream(rows):
    """Tuples, of (sold, returned, region and day, shop) as numbers, None for no key."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "n": n,
                "sold": sold,
                "returned": returned,
                "region": None if offer is None else f"r{offer % 20}",
                "day": None if offer is None and n % 2 else DAY + timedelta((offer or 0) // 20),
                "shop": None if shop is None else f"shop {shop}",
            }
            for n, (sold, returned, offer, shop) in enumerate(rows)
        ],
        STREAM,
    )


def keys(most):
    """Keys that R has, one of which is frequent, or that it lacks, or none."""
    return st.one_of(st.none(), st.just(1), st.integers(0, int(most * 1.1)))


@st.composite
def splits(draw):
    """(P, roles, their shares, tuples, algorithm, whether R's buckets are shared out by them)."""
    partitions = draw(st.sampled_from([4, 6]))
    others = draw(st.permutations(["offer", "returned", "shop"]))
    roles = ["sold", *others[: draw(st.integers(1, 2))]]
    most = [BUCKETS[ROLES[role][0]] for role in roles]
    shares = draw(st.sampled_from([s for s in products(partitions, most) if s[0] > 1]))
    row = st.tuples(keys(PARTS[0]), keys(PARTS[0]), keys(OFFERS[0]), keys(SHOPS[0]))
    rows = draw(st.lists(row, max_size=80))
    algorithm = draw(st.sampled_from(["elevatorjoin", "hybridjoin", "meshjoin", "ssbj"]))
    return partitions, roles, shares, stream(rows), algorithm, draw(st.booleans())


def expected(tuples, roles):
    """Return (joined, unmatched): Counters of rows, those of unmatched tuples with the role."""
    rows, unmatched = tuples.to_pylist(), Counter()
    names = list(STREAM.names)
    for role in roles:
        dimension, on, column, join_type = ROLES[role]
        master = MASTERS[dimension].to_pylist()
        joined, lost = oracle.join(rows, master, list(on), [column], join_type)
        if join_type == "inner":
            for row, times in lost.items():
                unmatched[(*row[: len(STREAM)], row[-1], role)] += times
        names.append(f"{role}_{column}")
        rows = [dict(zip(names, row, strict=True)) for row in joined.elements()]
    return Counter(tuple(row.values()) for row in rows), unmatched


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(split=splits(), cut=st.integers(0, 80), first=st.integers(0, 10**6))
def test_a_tuple_meets_all_its_master_data_at_one_operator(snapshots, tmp_path, split, cut, first):
    """Whatever the shares, also of two roles of one dimension, with frequent and composite keys,
    and without a key; and an operator goes on from its state."""
    partitions, roles, shares, tuples, algorithm, balanced = split
    plan = with_shares(
        initial(snapshots, roles, partitions, algorithm), dict(zip(roles, shares, strict=True))
    )
    assert math.prod(plan.shares.values()) == partitions
    if balanced:
        plan = Plan(tuple(join.balance(tuples) for join in plan.joins))
    placement, numbers = plan.placement((STREAM,)), first + np.arange(len(tuples))
    seen, joined, unmatched = [], Counter(), Counter()
    for partition in range(partitions):
        mine = placement.only(partition, tuples, numbers)
        seen += mine["n"].to_pylist()
        halves = mine.slice(0, cut), mine.slice(cut)
        star, paths = open_star(plan.joins, STREAM, partition), None
        outputs = list(star.process(halves[0]))
        paths = [tmp_path / f"{partition}-{i}" for i in range(len(roles))]
        star.save(paths)
        star.close()
        star = open_star(plan.joins, STREAM, partition)
        star.restore([JoinState.read(path) for path in paths])
        outputs += [*star.process(halves[1]), *star.drain()]
        for output in outputs:
            if output.joined is not None:
                joined += oracle.rows([output.joined])
            else:
                rows = oracle.rows([output.unmatched])
                unmatched += Counter({(*row, output.role): n for row, n in rows.items()})
        star.close()
    assert sorted(seen) == list(range(len(tuples)))
    assert (joined, unmatched) == expected(tuples, roles)


@pytest.mark.parametrize("shares", [(4, 1, 1), (2, 2, 1), (2, 1, 2)])
def test_a_tuple_goes_the_same_way_by_each_of_the_ways_that_place_it(snapshots, shares):
    roles, random = ["sold", "offer", "returned"], np.random.default_rng(3)
    tuples = stream(random.integers(0, 700, (3000, 4)).tolist())
    plan = with_shares(initial(snapshots, roles, 4), dict(zip(roles, shares, strict=True)))
    placement, numbers = plan.placement((STREAM,)), np.arange(len(tuples))
    of = placement.partitions(tuples, numbers)
    split = {p: part["n"].to_pylist() for p, part in placement.split(tuples, numbers)}
    for partition in range(4):
        only = placement.only(partition, tuples, numbers)["n"].to_pylist()
        assert only == split[partition] == np.flatnonzero(of == partition).tolist()
    # three of the five buckets of offers are of one part
    assert np.bincount(of).min() > 0.6 * len(tuples) / 4
    # a piece of them goes the same way
    piece = placement.partitions(tuples.slice(1000, 500), numbers[1000:1500])
    assert piece.tolist() == of[1000:1500].tolist()
    # all operators together have each R as often as there are operators for a part of it
    for join, parts in zip(plan.joins, shares, strict=True):
        tuples_of = []
        for partition in range(4):
            with closing(join.relation(partition)) as relation:
                tuples_of.append(relation.tuple_count)
        assert sum(tuples_of) == len(MASTERS[ROLES[join.role][0]]) * 4 / parts


def test_a_frequent_key_of_each_role_is_dealt_to_the_parts_of_its_own_axis(snapshots):
    random = np.random.default_rng(5)
    rows = random.integers(0, 400, (4000, 4))
    rows[:, 0] = np.where(random.random(4000) < 0.7, 1, rows[:, 0])
    rows[:, 1] = np.where(random.random(4000) < 0.7, 2, rows[:, 1])
    tuples, roles = stream(rows.tolist()), ["sold", "returned"]
    plan = with_shares(initial(snapshots, roles, 4), {"sold": 2, "returned": 2})
    plan = Plan(tuple(join.balance(tuples) for join in plan.joins))
    assert [join.owners.count(DEALT) for join in plan.joins] == [1, 1]
    of = plan.placement((STREAM,)).partitions(tuples)
    assert np.bincount(of).max() < 1.1 * len(tuples) / 4


def test_p_is_written_as_a_product():
    assert list(products(4, (9, 9))) == [(4, 1), (2, 2), (1, 4)]
    assert list(products(6, (3, 9, 2))) == [(3, 2, 1), (3, 1, 2), (2, 3, 1), (1, 6, 1), (1, 3, 2)]
    assert list(products(1, (5, 5))) == [(1, 1)] and list(products(7, (5, 6))) == []


# ---- the choice

WIDE = {"one": 60_000, "two": 50_000, "three": 40_000, "small": 50}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    found = {}
    for name, rows in WIDE.items():
        root = tmp_path_factory.mktemp(name)
        table = pa.table({"id": np.arange(rows), f"{name}_name": [f"{i:60}" for i in range(rows)]})
        buckets = 2 if name == "three" else 64
        publish_snapshot(table.to_batches(), table.schema, root, name, ["id"], bucket_count=buckets)
        found[name] = str(root / str(current_version(root)))
    return found


def sales(skew=None):
    """Evenly frequent keys, or of one role by Zipf's law, nearly all of them of few keys."""
    random = np.random.default_rng(2)
    keys = {name: random.integers(0, rows, 20_000) for name, rows in WIDE.items()}
    if skew is not None:
        keys[skew] = random.zipf(2.5, 20_000) % WIDE[skew]
    return pa.RecordBatch.from_pydict({"n": np.arange(20_000), **keys})


def plan_of(large, roles, partitions, memory, algorithm="auto"):
    return Plan(
        tuple(
            RolePlan(
                algorithm,
                memory // (partitions * len(roles)),
                "left",
                {},
                ((role, "id"),),
                partitions,
                large[role],
                {f"{role}_name": f"{role}_name"},
                role,
                parts=0 if number == 0 else 1,
                stride=1 if number == 0 else 0,
                auto=algorithm == "auto",
                share=len(roles),
                number=number,
            )
            for number, role in enumerate(roles)
        )
    )


def cost(plan, tuples):
    """The seconds of the slowest operator for a tuple of the stream, with the best split of M."""
    of = plan.placement((tuples.schema,)).partitions(tuples)
    roles = []
    for join in plan.joins:
        relation = join.relation(0)
        columns = join.added(tuples.schema, relation)
        roles.append(StarRole(join.role, relation, join.on, columns, join.join_type))
    mine = tuples.filter(pa.array(of == 0))
    found = size_star(roles, mine, plan.memory, TYPICAL)
    for role in roles:
        role.master.close()
    return found.seconds * np.bincount(of).max() / len(tuples)


SETTINGS = {
    "two of four operators": (("one", "two"), 4, 8_000_000, None),
    "two of six operators": (("one", "two"), 6, 8_000_000, None),
    "three of eight operators": (("one", "two", "three"), 8, 12_000_000, None),
    "the second has few keys": (("one", "two"), 4, 8_000_000, "two"),
    "the first has few keys": (("one", "two"), 6, 8_000_000, "one"),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_shares_of_lowest_cost_are_chosen(large, setting):
    roles, partitions, memory, skew = setting
    tuples, plan = sales(skew), plan_of(large, roles, partitions, memory)
    found = size_plan(plan, tuples, TYPICAL)
    counts = [2 if role == "three" else 64 for role in roles]
    every = [
        with_shares(plan, dict(zip(roles, shares, strict=True)))
        for shares in products(partitions, counts)
        if shares[0] > 1
    ]
    costs = {tuple(each.shares.values()): cost(each, tuples) for each in every}
    chosen = tuple(found.shares[role] for role in roles)
    assert costs[chosen] <= 1.05 * min(costs.values()), costs
    only_first = (partitions, *(1 for _ in roles[1:]))
    assert (chosen == only_first) == (costs[only_first] <= 1.02 * min(costs.values())), costs
    parts = " and ".join(f"1/{n} of {role}" for role, n in zip(roles, chosen, strict=True) if n > 1)
    assert all(part in found.reason for part in parts.split(" and "))
    assert found.initial() == plan and found.memory <= plan.memory


@pytest.mark.parametrize(
    "roles, partitions, memory",
    [
        (("one", "two"), 5, 8_000_000),  # P is prime
        (("one", "small"), 4, 8_000_000),  # one large role
        (("one", "two"), 4, 60_000_000),  # the second is not larger than an operator's memory
        (("one",), 4, 8_000_000),
    ],
)
def test_only_the_largest_is_split_where_there_is_nothing_to_choose(
    large, roles, partitions, memory
):
    plan = plan_of(large, roles, partitions, memory)
    assert choices(plan) == [plan]
    found = size_plan(plan, sales(), TYPICAL)
    assert {join.role: join.split for join in found.joins} == {
        role: partitions if role == "one" else 1 for role in roles
    }


def test_no_r_has_more_parts_than_buckets(large):
    found = choices(plan_of(large, ("one", "three"), 8, 4_000_000))
    assert [tuple(plan.shares.values()) for plan in found] == [(8, 1), (4, 2)]


def test_the_shares_in_use_are_kept_unless_others_gain_much(large):
    plan, tuples = plan_of(large, ("one", "two"), 4, 8_000_000), sales()
    found = choose_joins(size_plan(plan, tuples, TYPICAL), tuples, TYPICAL)
    assert found.shares == {"one": 2, "two": 2}
    nothing = tuples.slice(0, 0)
    assert size_plan(plan, nothing, TYPICAL, found).shares == found.shares
    assert size_plan(plan, nothing, TYPICAL).shares == {"one": 4, "two": 1}
    # of few keys of the second one, the first one should have four parts, and has them
    few = sales("two")
    first = choose_joins(size_plan(plan, few, TYPICAL), few, TYPICAL)
    assert first.shares == {"one": 4, "two": 1}
    for of, former in itertools.product((tuples, few), (found, first)):
        costs = {p.shares == former.shares: cost(p, of) for p in choices(plan)}
        kept = size_plan(plan, of, TYPICAL, former).shares == former.shares
        assert kept == (costs[True] <= (1 + GAIN) * costs[False]), costs


def test_a_plan_with_shares_can_be_stored(large):
    plan, tuples = plan_of(large, ("one", "two"), 4, 8_000_000), sales()
    found = choose_joins(size_plan(plan, tuples, TYPICAL), tuples, TYPICAL)
    assert found.shares == {"one": 2, "two": 2} and all(len(j.owners) == 64 for j in found.joins)
    assert {owner for join in found.joins for owner in join.owners} <= {DEALT, 0, 1}
    values = json.loads(json.dumps(dataclasses.asdict(found)))
    again = Plan.from_json(values, RolePlan)
    assert again == found and again.initial() == plan


def test_a_named_algorithm_has_shares_too(large):
    plan = plan_of(large, ("one", "two"), 4, 8_000_000, "meshjoin")
    found = size_plan(plan, sales(), TYPICAL)
    assert found.shares == {"one": 2, "two": 2} and found.initial() == plan
    hashed = plan_of(large, ("one", "two"), 4, 8_000_000, "hash-join")
    assert size_plan(hashed, sales(), TYPICAL).shares == {"one": 4, "two": 1}


def test_the_waits_are_those_of_the_parts(large):
    """A pass over R, and so the part of a bound on waiting, is of the part that an operator has."""
    plan = plan_of(large, ("one", "two"), 4, 8_000_000, "elevatorjoin")
    tuples = sales()
    for of, wanted in zip(choices(plan), [(60 / 4, 50), (60 / 2, 50 / 2)], strict=True):
        sized = choose_joins(size_plans([of], tuples, TYPICAL), tuples, TYPICAL)
        star = open_star(sized.joins, tuples.schema, 0)
        roots = {
            each.role: math.sqrt(size)
            for each, size in zip(
                sorted(star.joins, key=lambda each: each.role), wanted, strict=True
            )
        }
        for each, part in zip(star.joins, star.bound_parts(), strict=True):
            assert part == pytest.approx(roots[each.role] / sum(roots.values()), rel=0.03)
        star.close()


def test_all_operators_have_what_the_largest_role_and_the_others_have(large):
    plan = with_shares(plan_of(large, ("one", "two", "small"), 6, 1), {"one": 2, "two": 3})
    parts = [(plan.joins[0].part(p), plan.joins[1].part(p)) for p in range(6)]
    assert sorted(parts) == list(itertools.product(range(2), range(3)))
    assert [plan.joins[2].part(p) for p in range(6)] == [0] * 6
