"""How M is split among the roles of a star, in which order they are joined, and which R is held
whole."""

import itertools
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from semistream.cost_models import TYPICAL
from semistream.errors import ConfigError
from semistream.joins.spec import join_spec
from semistream.joins.whole_master import WholeMaster
from semistream.master.memory import MemoryRelation
from semistream.sizing import tune
from semistream.sizing.star import LEVELS, RoleShare, StarRole, size_star, widened
from semistream.sizing.workload import describe

TUPLES = 20_000


def relation(name, rows, wide=0):
    table = pa.table(
        {
            f"{name}_id": np.arange(rows),
            f"{name}_name": [f"{name} {i}".ljust(20 + wide, ".") for i in range(rows)],
        }
    )
    return MemoryRelation(name, table, [f"{name}_id"], 64)


def role(name, rows, *, wide=0, join_type="left", many=False):
    of = relation(name, rows, wide)
    return StarRole(
        name, of, ((name, f"{name}_id"),), {f"{name}_name": f"{name}_name"}, join_type, many
    )


def sample(**keys):
    """Stream tuples; keys: by role, how many values there are, evenly frequent."""
    random = np.random.default_rng(1)
    columns = {name: random.integers(0, count, TUPLES) for name, count in keys.items()}
    return pa.RecordBatch.from_pydict({"n": np.arange(TUPLES), **columns})


def order(sizes):
    return [share.role for share in sizes.shares]


def whole(sizes):
    return {share.role for share in sizes.shares if share.whole}


def cost(roles, tuples, shares):
    """The predicted seconds of a tuple in all joins, each with its best sizes."""
    total = 0.0
    for share in shares:
        each = next(r for r in roles if r.name == share.role)
        spec = join_spec("", 0, tuples.schema, each.master, each.on, each.columns)
        try:
            total += 1 / tune("elevatorjoin", describe(spec, tuples), share.memory, TYPICAL).rate
        except ConfigError:  # it does not fit
            return math.inf
    return total


SMALL = [role("shop", 50), role("day", 300), role("clerk", 1000, wide=40)]
SALES = sample(shop=50, day=300, clerk=1000)


def test_what_fits_is_held_whole_and_fits_indeed():
    sizes = size_star(SMALL, SALES, 400_000)
    assert whole(sizes) == {"shop", "day", "clerk"}
    assert sum(share.memory for share in sizes.shares) <= 400_000
    for share in sizes.shares:
        of = next(r for r in SMALL if r.name == share.role)
        spec = join_spec("", 0, SALES.schema, of.master, of.on, of.columns)
        assert WholeMaster(spec, share.memory).size <= share.memory
    assert "all dimensions are held whole" in sizes.reason


def test_roles_held_whole_come_last_and_an_inner_one_before_others():
    roles = [
        role("shop", 50),
        role("big", 30_000, wide=60),
        role("day", 300, join_type="inner"),
        role("huge", 60_000),
    ]
    sizes = size_star(roles, sample(shop=50, big=30_000, day=300, huge=60_000), 300_000)
    assert whole(sizes) == {"shop", "day"}
    assert order(sizes) == ["huge", "big", "day", "shop"]
    assert sum(share.memory for share in sizes.shares) <= 300_000


def test_of_roles_that_let_tuples_wait_the_narrowest_payload_is_first():
    roles = [role(name, 20_000, wide=wide) for name, wide in (("a", 90), ("b", 10), ("c", 50))]
    sizes = size_star(roles, sample(a=20_000, b=20_000, c=20_000), 400_000)
    assert order(sizes) == ["b", "c", "a"] and not whole(sizes)


def test_a_role_with_many_is_last_though_it_is_not_whole():
    roles = [role("a", 30_000, many=True), role("b", 50)]
    sizes = size_star(roles, sample(a=30_000, b=50), 200_000)
    assert order(sizes) == ["b", "a"] and whole(sizes) == {"b"}


def test_the_split_is_better_than_an_even_one_and_about_the_best():
    """One R is 30 times as large as the other; both are too large for M."""
    roles = [role("big", 60_000), role("small", 2_000)]
    tuples, memory = sample(big=60_000, small=2_000), 100_000
    sizes = size_star(roles, tuples, memory, waiting=["small", "big"])
    shares = {share.role: share.memory for share in sizes.shares}
    assert shares["big"] > shares["small"]
    even = [RoleShare(name, memory // 2) for name in ("small", "big")]
    now = cost(roles, tuples, sizes.shares)
    assert now < cost(roles, tuples, even)
    others = (
        [RoleShare("small", memory * i // 16), RoleShare("big", memory * (16 - i) // 16)]
        for i in (2, 4, 6, 9, 12)
    )
    assert now < 1.05 * min(cost(roles, tuples, other) for other in others)


def test_of_several_choices_the_models_hold_whole_what_gains_most():
    """Either fits, not both: of one R few tuples are frequent, so that a small cache suffices."""
    roles = [role("spread", 2_000), role("skewed", 2_000)]
    tuples = sample(spread=2_000, skewed=20)
    assert whole(size_star(roles, tuples, 130_000)) == {"spread"}


def test_the_models_are_asked_only_where_the_answer_can_matter(monkeypatch):
    """A role that takes less as a whole than the smallest share is never held otherwise, but in an
    even split; and a role that waits is priced only for the shares that it can get."""
    asked = Counter[int]()

    def counted(algorithm, work, memory, costs):
        asked[work.master_tuples] += 1
        return tune(algorithm, work, memory, costs)

    monkeypatch.setattr("semistream.sizing.star.tune", counted)
    roles = [role("shop", 50), role("big", 30_000, wide=60), role("day", 300), role("huge", 60_000)]
    tuples, memory = sample(shop=50, big=30_000, day=300, huge=60_000), 1_500_000
    sizes = size_star(roles, tuples, memory)
    assert whole(sizes) == {"shop", "day"}
    assert asked[50] <= 2 and asked[300] <= 2  # around an even share
    assert LEVELS - 2 <= asked[60_000] <= LEVELS - 1
    now = cost(roles, tuples, [share for share in sizes.shares if not share.whole])
    others = size_star(roles, tuples, memory, waiting=["shop", "day"])
    assert now < cost(roles, tuples, [share for share in others.shares if not share.whole])


def test_a_split_in_use_stays_unless_another_gains_enough():
    roles, tuples = [role("big", 60_000), role("small", 2_000)], sample(big=60_000, small=2_000)
    best = size_star(roles, tuples, 300_000, waiting=["big", "small"])
    near = [
        RoleShare(s.role, s.memory + (2_000 if s.role == "big" else -2_000)) for s in best.shares
    ]
    kept = size_star(roles, tuples, 300_000, waiting=["big", "small"], former=near)
    assert list(kept.shares) == near and "kept" in kept.reason
    far = [RoleShare("small", 280_000), RoleShare("big", 20_000)]
    again = size_star(roles, tuples, 300_000, waiting=["big", "small"], former=far)
    assert again == best


@pytest.mark.parametrize(
    "former",
    [
        [RoleShare("small", 200_000), RoleShare("big", 200_000)],  # of another M
        [RoleShare("small", 150_000), RoleShare("other", 150_000)],
        [RoleShare("small", 100, True), RoleShare("big", 299_900)],  # R has grown
    ],
    ids=["too much", "another role", "no longer whole"],
)
def test_a_split_that_does_not_fit_is_not_kept(former):
    roles, tuples = [role("big", 60_000), role("small", 2_000)], sample(big=60_000, small=2_000)
    assert size_star(roles, tuples, 300_000, former=former) == size_star(roles, tuples, 300_000)


def test_a_role_that_must_wait_is_not_held_whole():
    sizes = size_star(SMALL, SALES, 400_000, waiting=["day"])
    assert whole(sizes) == {"shop", "clerk"} and order(sizes)[0] == "day"


def test_with_a_named_algorithm_nothing_is_held_whole():
    sizes = size_star(SMALL, SALES, 400_000, algorithm="ssbj")
    assert not whole(sizes) and sum(share.memory for share in sizes.shares) <= 400_000


def test_operators_that_share_an_r_count_a_part_of_it():
    assert whole(size_star(SMALL, SALES, 40_000)) != {"shop", "day", "clerk"}
    assert whole(size_star(SMALL, SALES, 40_000, sharers=4)) == {"shop", "day", "clerk"}


def test_too_little_memory_is_split_evenly():
    roles = [role("a", 20_000), role("b", 20_000)]
    sizes = size_star(roles, sample(a=20_000, b=20_000), 100)
    assert {share.memory for share in sizes.shares} == {50}
    assert "too little" in sizes.reason


def test_a_stream_without_a_tuple_gives_a_plan():
    nothing = SALES.slice(0, 0)
    for memory in (400_000, 60_000):
        sizes = size_star(SMALL, nothing, memory)
        assert sum(share.memory for share in sizes.shares) <= memory and len(sizes.shares) == 3


def test_a_sample_of_the_next_joins_stream_has_values_like_those_of_r():
    each = SMALL[2]
    wide = widened(SALES, each.master, each.columns)
    assert wide.schema.names == [*SALES.schema.names, "clerk_name"]
    assert set(wide["clerk_name"].to_pylist()) <= set(
        itertools.chain(*(each.master.read(i, ["clerk_name"])[0].to_pylist() for i in range(2)))
    )
    empty = role("none", 0)
    assert widened(SALES, empty.master, empty.columns)["none_name"].null_count == TUPLES
