"""Joins with several dimensions in one pass, compared with plain loops."""

import dataclasses
import itertools
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
import strategies
from semistream.errors import ConfigError, StateError
from semistream.joins import REGISTRY, JoinState
from semistream.joins.output import OUTPUT_BYTES
from semistream.joins.star import RoleJoin, RoleKind, Star, execution_order
from semistream.master.memory import MemoryRelation
from semistream.sizing import open_join

ALGORITHMS = sorted(REGISTRY)
COLUMNS = ("name", "price")


@dataclasses.dataclass
class Role:
    """A role as a test draws it."""

    name: str
    master: pa.Table
    on: list
    join_type: str = "inner"
    many: bool = False
    algorithm: str = "elevatorjoin"
    memory: int = 200_000
    partition_tuples: int = 8

    @property
    def kind(self):
        return RoleKind(self.name, self.join_type == "inner", self.many)

    @property
    def columns(self):
        return {c: f"{self.name}_{c}" for c in COLUMNS}


def star_of(stream, roles):
    """Open the roles' joins in an order in which they can be executed."""
    schema, joins = stream, []
    for number in execution_order([r.kind for r in roles]):
        role = roles[number]
        key = [m for _, m in role.on]
        join = open_join(
            role.algorithm,
            memory=role.memory,
            stream=schema,
            master=MemoryRelation(role.name, role.master, key, role.partition_tuples),
            on=role.on,
            columns=role.columns,
            join_type=role.join_type,
        )
        schema = join.output_schema
        joins.append(RoleJoin(role.name, join, role.many))
    return Star(joins, [role.name for role in roles])


def expected(stream, roles):
    """Return (joined, unmatched, counts): Counters of rows, those of ``unmatched`` with the role,
    and of each role in the order of execution (read, matched, unmatched)."""
    tuples, unmatched, counts = stream.to_pylist(), Counter(), {}
    names = list(stream.column_names)
    for number in execution_order([r.kind for r in roles]):
        role = roles[number]
        master = role.master.to_pylist()
        joined, lost = oracle.join(tuples, master, role.on, COLUMNS, role.join_type)
        read, missed = len(tuples), sum(lost.values())
        counts[role.name] = (read, read - missed, missed)
        if role.join_type == "inner":
            for row, times in lost.items():
                unmatched[(*row[: len(stream.column_names)], row[-1], role.name)] += times
        names += role.columns.values()
        tuples = [dict(zip(names, row, strict=True)) for row in joined.elements()]
    order = [*stream.column_names, *(c for role in roles for c in role.columns.values())]
    return Counter(tuple(t[c] for c in order) for t in tuples), unmatched, counts


def found(outputs):
    joined, unmatched = Counter(), Counter()
    for out in outputs:
        assert (out.joined is None) != (out.unmatched is None)
        if out.joined is not None:
            joined += oracle.rows([out.joined])
        else:
            rows = oracle.rows([out.unmatched])
            unmatched += Counter({(*row, out.role): n for row, n in rows.items()})
    return joined, unmatched


def batches(stream, lengths):
    at = 0
    for n in lengths:
        part = stream.slice(at, n).combine_chunks().to_batches()
        yield part[0] if part else pa.RecordBatch.from_pylist([], stream.schema)
        at += n


@st.composite
def stars(draw):
    """(stream table, roles, chunk lengths): two to four roles of up to three dimensions, of one or
    two join columns, on some of the stream's four."""
    kinds = draw(st.lists(st.sampled_from(sorted(strategies.KEY_KINDS)), min_size=2, max_size=2))
    number = st.one_of(st.none(), st.integers(0, 3), st.integers(0, 20))
    s = draw(st.lists(st.tuples(*[number] * 4), max_size=100))
    # the columns a, b have the first kind of keys; c, d the second
    stream = pa.table(
        {
            "id": pa.array(range(len(s)), pa.int32()),
            **{
                c: strategies.keys(kinds[i // 2], [row[i] for row in s])
                for i, c in enumerate("abcd")
            },
            "note": pa.array([None if i % 5 == 2 else "x" * (i % 11) for i in range(len(s))]).cast(
                pa.string()
            ),
        }
    )
    dimensions = []
    for which in draw(st.lists(st.sampled_from([(0,), (1,), (0, 1)]), min_size=1, max_size=3)):
        rows = draw(st.lists(st.tuples(*[number] * len(which)), max_size=30))
        table = {
            f"m{i}": strategies.keys(kinds[i], [row[at] for row in rows])
            for at, i in enumerate(which)
        } | {
            "name": pa.array(["n" * (i % 5) for i in range(len(rows))], pa.string()),
            "price": pa.array([Decimal(i) / 10 for i in range(len(rows))], pa.decimal128(10, 1)),
        }
        dimensions.append((which, pa.table(table)))
    roles = []
    for number in range(draw(st.integers(2, 4))):
        which, master = draw(st.sampled_from(dimensions))
        on = [(draw(st.sampled_from(("ab", "cd")[i])), f"m{i}") for i in which]
        keys = list(zip(*(master[m].to_pylist() for _, m in on), strict=True))
        many = draw(st.booleans())
        if not many:  # the first row of each key
            first = {key: row for row, key in reversed(list(enumerate(keys)))}
            master = master.take(pa.array(sorted(first.values()), pa.int64()))
        inner = draw(st.booleans()) and not (
            many and any(r.many and r.join_type == "inner" for r in roles)
        )
        roles.append(
            Role(
                f"r{number}",
                master,
                on,
                "inner" if inner else "left",
                many,
                draw(st.sampled_from(ALGORITHMS)),
                draw(st.sampled_from([60_000, 1_000_000])),
                draw(st.sampled_from([1, 8, 100])),
            )
        )
    cuts = sorted(draw(st.lists(st.integers(0, len(s)), max_size=4)))
    lengths = [b - a for a, b in zip([0, *cuts], [*cuts, len(s)], strict=True)]
    return stream, roles, lengths


@settings(max_examples=100)
@given(drawn=stars(), restarts=st.booleans(), bound=st.sampled_from([None, 1.0, 3.0]))
def test_equals_the_oracle(drawn, restarts, bound, tmp_path_factory):
    stream, roles, lengths = drawn
    star, outputs, path = star_of(stream.schema, roles), [], tmp_path_factory.mktemp("state")
    counts, before, waited = Counter(), [""] * len(roles), [0] * len(roles)

    def count(star):
        for each, already in zip(star.joins, waited, strict=True):
            s, waiting = each.join.stats, star.waiting_in(each)
            lost = s.unmatched if each.kind.inner else 0
            finished = s.matched + s.unmatched if each.many else s.output_rows + lost
            assert already + s.rows_read == finished + waiting
        for each in star.joins:
            s = each.join.stats
            counts.update(
                {
                    (each.role, 0): s.rows_read,
                    (each.role, 1): s.matched,
                    (each.role, 2): s.unmatched,
                }
            )

    for i, chunk in enumerate(batches(stream, lengths)):
        outputs += star.process(chunk)
        if bound:
            outputs += [*star.keep_up(1.0, bound), *star.end_of_batch()]
            many = [each.many for each in star.joins]
            assert not any(j.join.stats.waiting for n, j in enumerate(star.joins) if any(many[:n]))
        if restarts:
            names = [f"{i}-{each.role}" for each in star.joins]
            star.save([path / name for name in names], before)
            count(star)
            waited = [star.waiting_in(each) for each in star.joins]
            star, before = star_of(stream.schema, roles), names
            star.restore([JoinState.read(path / name) for name in names])
            assert [star.waiting_in(each) for each in star.joins] == waited
    outputs += star.drain()
    count(star)
    joined, unmatched, wanted = expected(stream, roles)
    assert found(outputs) == (joined, unmatched)
    assert {name: tuple(counts[name, i] for i in range(3)) for name in wanted} == wanted
    assert star.waiting == 0
    assert all(each.join.stats.memory_peak <= each.join.spec.memory for each in star.joins)


def dimension(count, name="v"):
    return pa.table(
        {
            "k": pa.array(range(count), pa.int64()),
            "name": [f"{name}{i}" for i in range(count)],
            "price": pa.array([Decimal(i) for i in range(count)], pa.decimal128(10, 1)),
        }
    )


def sales(**keys):
    return pa.table({"id": range(len(next(iter(keys.values())))), **keys})


BOUND = 8.0  # s, with a batch a second


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_tuple_waits_longer_than_the_bound_on_its_whole_way(algorithm, seconds):
    """Three tuples a second; each of two dimensions is read in its part of the bound."""
    random = np.random.default_rng(3)
    stream = sales(a=random.permutation(500)[:120], b=random.permutation(250)[:120])
    roles = [
        Role("one", dimension(400), [("a", "k")], "left", algorithm=algorithm, memory=30_000),
        Role("two", dimension(200), [("b", "k")], "left", algorithm=algorithm, memory=30_000),
    ]
    star = star_of(stream.schema, roles)
    parts = star.bound_parts()
    assert sum(parts) == pytest.approx(1.0)
    came, left = {}, {}
    for second, at in enumerate(range(0, stream.num_rows + 3 * int(BOUND + 2), 3)):
        seconds.now += 1.0
        part = stream.slice(at, 3).combine_chunks().to_batches()
        outputs = [o for batch in part for o in star.process(batch)]
        came |= dict.fromkeys(range(at, min(at + 3, stream.num_rows)), second)
        outputs += star.keep_up(1.0, BOUND)
        for out in outputs:
            for number in out.joined["id"].to_pylist():
                left.setdefault(number, second)
    assert set(left) == set(came) and star.waiting == 0
    assert max(left[n] - came[n] for n in came) <= BOUND + 1


def test_the_time_before_a_tuple_comes_to_a_join_is_waited_for_once(seconds):
    """A micro-batch that began a minute ago, whose tuples wait another minute in one join."""
    roles = [
        Role("one", dimension(400), [("a", "k")], "left", memory=30_000),
        Role("two", dimension(200), [("b", "k")], "left", memory=500_000),
    ]
    stream = sales(a=np.arange(120), b=np.arange(120))
    star = star_of(stream.schema, roles)
    star.begin(seconds.now)
    seconds.now += 60.0
    outputs = [*star.process(stream.combine_chunks().to_batches()[0])]
    assert star.waiting
    seconds.now += 60.0
    outputs += star.drain()
    assert found(outputs) == expected(stream, roles)[:2]
    one, two = (each.join.stats.waits.longest for each in star.joins)
    assert 120 <= one <= 131 and two < 1


def test_a_dimension_that_fits_lets_no_tuple_wait_and_is_read_once():
    stream = sales(a=np.arange(3000) % 500, b=np.arange(3000) % 70)
    small, large = dimension(60), dimension(400)
    roles = [
        Role("large", large, [("a", "k")], memory=30_000),
        Role("small", small, [("b", "k")], memory=500_000),
    ]
    star = star_of(stream.schema, roles)
    one, two = (each.join for each in star.joins)
    assert (one.keeps_all, two.keeps_all) == (False, True)
    assert star.bound_parts() == [1.0, 0.0]
    outputs = []
    for batch in stream.to_batches(max_chunksize=100):
        outputs += star.process(batch)
        assert two.stats.waiting == 0
        outputs += star.keep_up(1.0, 2.0)
        assert two.stats.waiting == 0
    outputs += star.drain()
    assert found(outputs) == expected(stream, roles)[:2]
    assert two.stats.disk_tuples_read <= small.num_rows + two.master.partition_tuples


def test_small_outputs_of_one_join_are_gathered_for_the_next():
    stream = sales(a=np.arange(3000) % 400, b=np.arange(3000) % 200)
    roles = [
        Role("one", dimension(400), [("a", "k")], memory=200_000),
        Role("two", dimension(200), [("b", "k")], "left", memory=200_000),
    ]
    star, calls = star_of(stream.schema, roles), []
    process = star.joins[1].join.process
    star.joins[1].join.process = lambda batch: calls.append(batch.num_rows) or process(batch)
    outputs = [*star.process(stream.combine_chunks().to_batches()[0]), *star.drain()]
    assert found(outputs) == expected(stream, roles)[:2]
    assert len(calls) <= 2 and sum(calls) == 3000


@pytest.mark.parametrize("count", [1, 3])
def test_batches_of_several_joins_take_together_what_those_of_one_take(count):
    stream = sales(a=np.arange(40_000) % 400, text=["x" * 500] * 40_000)
    roles = [Role(f"r{i}", dimension(400), [("a", "k")], memory=500_000) for i in range(count)]
    star, seen = star_of(stream.schema, roles), []
    for each in star.joins[1:]:
        process = each.join.process
        each.join.process = lambda batch, process=process: (
            seen.append(batch.nbytes) or process(batch)
        )
    outputs = [o for batch in stream.to_batches(max_chunksize=8000) for o in star.process(batch)]
    seen += [out.joined.nbytes for out in [*outputs, *star.drain()]]
    assert max(seen) <= 1.1 * OUTPUT_BYTES / count
    assert count > 1 or max(seen) > OUTPUT_BYTES / 3


def test_an_empty_batch_tells_every_join_that_its_buffer_is_empty():
    """SSJ reads on then."""
    stream = sales(a=[1, 90, 150], b=[3, 4, 5])
    roles = [
        Role("one", dimension(160), [("a", "k")], algorithm="ssj", partition_tuples=50),
        Role("two", dimension(160), [("b", "k")], algorithm="ssj", partition_tuples=50),
    ]
    star = star_of(stream.schema, roles)
    outputs = list(star.process(stream.to_batches()[0]))
    for _ in range(20):
        outputs += star.process(pa.RecordBatch.from_pylist([], stream.schema))
    assert star.waiting == 0
    assert found(outputs) == expected(stream, roles)[:2]


def test_the_output_has_the_columns_in_the_jobs_order():
    stream = sales(a=[1, 2, 2], b=[0, 1, 9])
    twice = pa.concat_tables([dimension(3, "x"), dimension(3, "y")])
    roles = [
        Role("lines", twice, [("a", "k")], "inner", many=True),
        Role("shop", dimension(3, "s"), [("b", "k")], "left"),
    ]
    star = star_of(stream.schema, roles)
    assert [each.role for each in star.joins] == ["shop", "lines"]
    names = ["id", "a", "b", "lines_name", "lines_price", "shop_name", "shop_price"]
    assert star.output_schema.names == names and star.first == 3
    assert star.unmatched_schema.names == ["id", "a", "b", "reason"]
    joined, unmatched = found([*star.process(stream.to_batches()[0]), *star.drain()])
    assert not unmatched and joined.total() == 6
    assert sorted(row[3] for row in joined) == ["x1", "x2", "x2", "y1", "y2", "y2"]
    assert star.memory.keys() >= {"shop H_S", "lines H_S"}


def test_several_rows_of_a_key_must_be_wanted():
    stream = sales(a=[1], b=[1])
    twice = pa.concat_tables([dimension(3), dimension(3)])
    roles = [Role("shop", dimension(3), [("b", "k")]), Role("lines", twice, [("a", "k")])]
    with pytest.raises(ConfigError, match=r"'dimensions.lines.many' must be true .* set many"):
        star_of(stream.schema, roles)
    star_of(stream.schema, roles[1:])  # a single role may have them


def test_only_one_of_the_roles_that_multiply_is_inner():
    stream = sales(a=[1], b=[1])
    twice = pa.concat_tables([dimension(3), dimension(3)])
    roles = [Role(name, twice, [("a", "k")], many=True) for name in ("one", "two")]
    with pytest.raises(ConfigError, match=r"'dimensions.two.many' must not be true of two roles"):
        star_of(stream.schema, roles)
    roles[0].join_type = "left"
    star = star_of(stream.schema, roles)
    assert [each.role for each in star.joins] == ["two", "one"]
    misplaced = [RoleJoin(each.role, each.join, each.many) for each in reversed(star.joins)]
    with pytest.raises(ValueError, match="must be last"):
        Star(misplaced)


def test_a_join_that_was_opened_for_another_stream_is_refused():
    stream = sales(a=[1], b=[1])
    one, two = (
        star_of(stream.schema, [Role(name, dimension(3), [("a", "k")])]).joins[0]
        for name in ("one", "two")
    )
    with pytest.raises(ValueError, match="two was not opened with the output of one"):
        Star([one, two])


def test_a_column_of_another_role_is_no_key():
    stream = sales(a=[1], b=[1])
    roles = [
        Role("one", dimension(3), [("a", "k")]),
        Role("two", dimension(3), [("one_name", "name")]),
    ]
    with pytest.raises(
        ConfigError, match=r"'dimensions.two.on' must name columns .* Got 'one_name'"
    ):
        star_of(stream.schema, roles)


def test_a_state_of_other_roles_is_refused():
    stream = sales(a=[1], b=[1])
    roles = [Role("shop", dimension(3), [("b", "k")]), Role("line", dimension(3), [("a", "k")])]
    one = star_of(stream.schema, roles)
    two = star_of(stream.schema, roles[::-1])
    with pytest.raises(StateError, match="the saved state is of another join"):
        two.restore([[state] for state in one.snapshot()])


@pytest.mark.parametrize("count", [2, 8])
def test_a_star_of_so_many_roles(count):
    """The same dimension in all of them, on other columns of the stream."""
    random = np.random.default_rng(5)
    stream = sales(**{f"k{i}": random.integers(0, 55, 400) for i in range(count)})
    roles = [
        Role(f"r{i}", dimension(50), [(f"k{i}", "k")], ("left", "inner")[i % 2], memory=60_000)
        for i in range(count)
    ]
    star = star_of(stream.schema, roles)
    outputs = list(itertools.chain(*map(star.process, stream.to_batches(max_chunksize=150))))
    outputs += star.drain()
    joined, unmatched, counts = expected(stream, roles)
    assert found(outputs) == (joined, unmatched)
    for each in star.joins:
        s = each.join.stats
        assert (s.rows_read, s.matched, s.unmatched) == counts[each.role]
    assert len({role for *_, role in unmatched}) == count // 2


def test_a_star_of_one_role_gives_what_its_join_gives():
    """The unmatched tuples of a left join, too."""
    stream, roles = sales(a=np.arange(60)), [Role("one", dimension(50), [("a", "k")], "left")]
    star = star_of(stream.schema, roles)
    outputs = [*star.process(stream.combine_chunks().to_batches()[0]), *star.drain()]
    joined, unmatched = oracle.join(
        stream.to_pylist(), dimension(50).to_pylist(), roles[0].on, COLUMNS, "left"
    )
    assert found(outputs) == (joined, Counter({(*row, "one"): n for row, n in unmatched.items()}))
    assert star.memory.keys() >= {"H_S", "H_R"}
