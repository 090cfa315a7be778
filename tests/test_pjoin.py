"""PJoin against a join by plain loops, whatever is punctuated, relocated, joined from disk,
propagated and restarted."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream.keys as keys_module
import strategies
from semistream.errors import ConfigError, NotEnoughMemory
from semistream.joins.state_file import JoinState
from semistream.stream_joins import (
    LEFT,
    RIGHT,
    Component,
    Event,
    PJoin,
    Within,
    kernels,
    open_stream_join,
    stream_join_spec,
)
from semistream.stream_joins.pjoin import PJoinParameters
from semistream.stream_joins.punctuation_set import FREE, OPEN
from semistream.stream_joins.punctuations import Keys
from semistream.stream_joins.sources import Clustered, PunctuationRows, UniqueKey, Watermark
from semistream.stream_joins.spec import JOIN_TYPES
from stream_oracle import OUTER, Restarts, complete, expected, found, step_alone

SETTINGS = settings(max_examples=150)


def matches(plain, row):
    """Whether a row, by column, matches a punctuation in plain form."""
    for column, pattern in plain.items():
        value = row[column]
        match pattern:
            case {"any": True}:
                continue
            case {"none": True}:
                return False
            case {"in": values}:
                if value not in values:
                    return False
            case {"range": [low, high]}:
                if (
                    value is None
                    or (low is not None and value < low)
                    or (high is not None and value > high)
                ):
                    return False
            case _:
                if value != pattern:
                    return False
    return True


def propagated_forms(output):
    p = output.propagated
    return [*p.constants.to_pylist(), *p.patterns]


@st.composite
def patterns(draw, kind):
    make = strategies.KEY_KINDS[kind][1]
    number = st.integers(0, 3) | st.integers(0, 40)
    shape = draw(
        st.sampled_from(
            ["constant"] * 4 + ["any", "none", "in"] + ["range"] * 2 * (kind != "uint64")
        )
    )
    if shape == "constant":
        return make(draw(number))
    if shape == "in":
        return {"in": [make(i) for i in draw(st.lists(number, max_size=4))]}
    if shape == "range":
        return {"range": [draw(st.none() | number.map(make)), draw(st.none() | number.map(make))]}
    return {shape: True}


@SETTINGS
@given(
    data=st.data(),
    join_type=st.sampled_from(OUTER),
    restarts=st.booleans(),
    honest=st.booleans(),
    lazy=st.integers(1, 4),
    count=st.integers(0, 3),
)
def test_equals_the_oracle(data, join_type, restarts, honest, lazy, count, tmp_path_factory):
    left, right, on, _ = data.draw(strategies.joins())
    kinds = [
        next(k for k, (t, _) in strategies.KEY_KINDS.items() if t == left.schema.field(a).type)
        for a, _ in on
    ]
    tables, columns = (left, right), [[p[s] for p in on] for s in (0, 1)]

    def start():
        return open_stream_join(
            "pjoin",
            memory=100_000,
            left=left.schema,
            right=right.schema,
            on=on,
            join_type=join_type,
            parameters={"purge_threshold": lazy, "propagate_count": count},
        )

    join, at, states = start(), [0, 0], Restarts(tmp_path_factory.mktemp("state"), start)
    promised: list[list[dict]] = [[], []]
    accepted: list[list[dict]] = [[], []]  # rows that kept their stream's promises
    broken = [Counter(), Counter()]
    outputs, closed = [], [[], []]

    def take(steps):
        for o in steps:
            if o.joined is not None:
                for row in o.joined.to_pylist():
                    for side in (0, 1):
                        key = {c: row[c] for c in columns[side]}
                        if None not in key.values():
                            assert not any(matches(p, key) for p in closed[side]), (
                                "behind its punctuation's propagation"
                            )
            if o.propagated is not None:
                closed[o.propagated.side] += propagated_forms(o)
            outputs.append(o)

    def process(side, rows):
        for batch in rows.combine_chunks().to_batches():
            take(join.process(side, batch))
            for row in batch.to_pylist():
                if None not in (row[c] for c in columns[side]) and any(
                    matches(p, row) for p in promised[side]
                ):
                    broken[side][(*row.values(), "against_punctuation")] += 1
                else:
                    accepted[side].append(row)

    def punctuate(side):
        plain = [
            {
                c: data.draw(patterns(k))
                for c, k in zip(columns[side], kinds, strict=True)
                if data.draw(st.booleans()) or len(on) == 1
            }
            for _ in range(data.draw(st.integers(1, 3)))
        ]
        rest = tables[side].slice(at[side]).to_pylist()
        if honest:
            plain = [p for p in plain if not any(matches(p, row) for row in rest)]
        take(join.punctuate(side, plain))
        promised[side] += plain

    steps = data.draw(
        st.lists(
            st.sampled_from(
                ["left", "right", "relocate", "idle", "pull", "finish", *["punctuate"] * 4]
            ),
            max_size=25,
        )
    )
    for step in steps:
        if step in ("left", "right"):
            side = LEFT if step == "left" else RIGHT
            some = data.draw(st.integers(0, 20))
            process(side, tables[side].slice(at[side], some))
            at[side] = min(at[side] + some, tables[side].num_rows)
        elif step == "punctuate":
            punctuate(data.draw(st.sampled_from([LEFT, RIGHT])) if honest else LEFT)
        else:
            take(step_alone(join, step))
        if lazy == 1 and not join.stats.relocations and not restarts:
            for side in (0, 1):
                waits = [
                    r
                    for r in accepted[side]
                    if None not in (r[c] for c in columns[side])
                    and not any(
                        matches(
                            dict(
                                zip(
                                    columns[side],
                                    (p.get(c, {"any": True}) for c in columns[1 - side]),
                                    strict=True,
                                )
                            ),
                            r,
                        )
                        for p in promised[1 - side]
                    )
                ]
                assert join.state.held(side) == len(waits), (
                    "what cannot have a partner is no longer held"
                )
        if restarts:
            before, join = join, states.save(join, data.draw(st.booleans()))
            assert known(join) == known(before)
    for side in (0, 1):
        process(side, tables[side].slice(at[side]))
    take(join.drain())
    kept = [
        pa.Table.from_pylist(rows, schema=t.schema)
        for rows, t in zip(accepted, tables, strict=True)
    ]
    joined, *lone = expected(*kept, on, join_type)
    assert found(outputs) == (joined, lone[0] + broken[0], lone[1] + broken[1])
    assert not any(
        (p.index["state"] == OPEN).any() or p.index["count"].any() for p in join.punctuations
    )
    assert [join.state.held(s) for s in (0, 1)] == [0, 0]
    if not restarts:
        complete(join)
        assert [s.punctuations for s in join.stats.sides] == [
            s.propagated for s in join.stats.sides
        ]


def known(join):
    """What an operator has of punctuations."""

    def of(one):
        pids = np.flatnonzero(one.index["state"] != FREE)
        return (
            {name: column[pids].tolist() for name, column in one.index.items()},
            pids.tolist(),
            [[a.tolist() for a in (t.low, t.high, t.pid)] for t in one.intervals.values()],
            sorted(
                zip(
                    *(v.to_pylist() for v in one.hashed.keys.values),
                    one.hashed.pid.tolist(),
                    strict=True,
                )
            ),
            one.open.used,
            one.boxes,
            one.forms,
        )

    return [of(one) for one in join.punctuations]


ITEM = pa.schema([("id", pa.string()), ("k", pa.int64())])


def opened(schema=ITEM, on=(("k", "k"),), memory=200_000, **more):
    return open_stream_join("pjoin", memory=memory, left=schema, right=schema, on=list(on), **more)


def rows(*ids, key=None):
    return pa.RecordBatch.from_pydict(
        {"id": list(ids), "k": [int(i[1:]) if key is None else key for i in ids]}, ITEM
    )


def told(steps):
    """(pairs of ids, ids without partner or quarantined with the reason, propagated), sorted."""
    outputs = list(steps)
    pairs = sorted(
        (r["id"], r["right_id"])
        for o in outputs
        if o.joined is not None
        for r in o.joined.to_pylist()
        if None not in (r["id"], r["right_id"])
    )
    lone = sorted(
        (r["id"], r["reason"])
        for o in outputs
        if o.unmatched is not None
        for r in o.unmatched.to_pylist()
    )
    return (
        pairs,
        lone,
        sorted(
            ("OB"[o.propagated.side], f["k"])
            for o in outputs
            if o.propagated
            for f in propagated_forms(o)
        ),
    )


def test_a_golden_trace_of_the_auction():
    """The paper's example (section 2.1), worked by hand: items O are opened once, so a punctuation
    follows each; bids B on an item end with a punctuation. Purge is eager, propagation too."""
    join = opened(join_type="full")
    left, right = join.stats.sides

    def item(name):
        assert told(join.process(LEFT, rows(name)))[1:] == ([], [])
        return told(join.punctuate(LEFT, [{"k": int(name[1:])}]))

    assert item("O1") == ([], [], [])  # O1 itself matches: not propagable
    assert told(join.process(RIGHT, rows("B1"))) == ([("O1", "B1")], [], [])
    assert (right.held, right.dropped) == (0, 1)  # no other item 1 will come
    assert told(join.process(RIGHT, rows("B2"))) == ([], [], []) and right.held == 1
    assert told(join.process(LEFT, rows("O2"))) == ([("O2", "B2")], [], [])
    assert told(join.punctuate(LEFT, [{"k": 2}])) == ([], [], []) and (
        right.held,
        right.purged,
    ) == (0, 1)
    assert told(join.punctuate(RIGHT, [{"k": 1}])) == ([], [], [("B", 1), ("O", 1)]) and (
        left.held,
        left.purged,
    ) == (1, 1)
    assert item("O3") == ([], [], [])
    assert told(join.punctuate(RIGHT, [{"k": 3}])) == (
        [],
        [("O3", "no_partner")],
        [("B", 3), ("O", 3)],
    )
    # closed, and kept, as no item 5 has come
    assert told(join.punctuate(RIGHT, [{"k": 5}])) == ([], [], [("B", 5)])
    assert told(join.process(RIGHT, rows("B5"))) == ([], [("B5", "against_punctuation")], [])
    assert (
        told(join.process(LEFT, rows("O5"))) == ([], [("O5", "no_partner")], [])
        and left.dropped == 1
    )
    assert not join.punctuations[RIGHT].is_empty
    assert told(join.punctuate(LEFT, [{"k": 5}])) == ([], [], [("O", 5)])
    assert join.punctuations[RIGHT].is_empty  # its counterpart has come
    assert told(join.drain()) == ([], [], [("O", 2)])
    complete(join)
    assert (left.matched, left.unmatched, right.matched) == (2, {"no_partner": 2}, 2)
    assert right.unmatched == {"against_punctuation": 1}


def test_a_golden_trace_of_the_purge_buffer():
    """Worked by hand, one key: A7 on disk | B7 misses it, and may not go when A's punctuation comes
    | the disk join gives the pair, and empties the purge buffer | B's punctuation closes A7, which
    leaves behind the disk join that a request forces."""
    join = opened(join_type="full", parameters={"propagate_count": 0})
    left, right = join.stats.sides
    assert told(join.process(LEFT, rows("A7"))) == ([], [], [])
    list(join.state_relocation())
    assert told(join.process(RIGHT, rows("B7"))) == ([], [], [])
    assert told(join.punctuate(LEFT, [{"k": 7}])) == ([], [], [])
    assert (right.held, right.buffered, right.purged, left.on_disk) == (1, 1, 0, 1)
    assert told(join.idle(1.0)) == ([("A7", "B7")], [], [])
    assert (right.held, right.buffered, right.purged) == (0, 0, 1)
    assert told(join.request_propagation()) == ([], [], [])  # A7 matches its own punctuation
    assert told(join.punctuate(RIGHT, [{"k": 7}])) == ([], [], [])
    assert told(join.request_propagation()) == ([], [], [("B", 7), ("O", 7)])
    assert (left.held, left.purged, left.matched, right.matched) == (0, 1, 1, 1)
    assert all(p.is_empty for p in join.punctuations)


def test_a_dropped_tuple_waits_for_the_disk_portion():
    join = opened(join_type="left")
    list(join.process(LEFT, rows("A7")))
    list(join.state_relocation())
    list(join.punctuate(LEFT, [{"k": 7}]))
    assert (
        told(join.process(RIGHT, rows("B7"))) == ([], [], [])
        and join.stats.sides[RIGHT].buffered == 1
    )
    assert told(join.idle(1.0)) == ([("A7", "B7")], [], [])
    assert join.stats.sides[RIGHT].held == 0


def test_events_components_and_thresholds_can_be_changed_at_run_time():
    now = [0.0]
    parameters = PJoinParameters(purge_threshold=3, propagate_count=0, propagate_seconds=10.0)
    join = PJoin(
        stream_join_spec("pjoin", 200_000, ITEM, ITEM, [("k", "k")]), parameters, lambda: now[0]
    )
    monitor, right = join.monitor, join.stats.sides[RIGHT]
    list(join.process(RIGHT, rows("B1", "B2", "B3", "B4")))
    for k in (1, 2):
        assert told(join.punctuate(LEFT, [{"k": k}]))[2] == [] and right.held == 4  # lazy purge
    list(join.punctuate(LEFT, [{"k": 3}]))
    assert right.held == 1
    now[0] = 9.0
    assert told(join.idle(0.0))[2] == []
    now[0] = 10.0
    assert told(join.idle(0.0))[2] == [("O", 1), ("O", 2), ("O", 3)]
    monitor.purge_threshold, monitor.propagate_seconds = 1, 1e9
    list(join.punctuate(LEFT, [{"k": 4}]))
    assert right.held == 0
    join.registry[Event.NEW_PUNCT_READY] = [
        Component.STATE_PURGE,
        Component.INDEX_BUILD,
        Component.PROPAGATION,
    ]
    assert told(join.punctuate(LEFT, [{"k": 5}]))[2] == [("O", 4), ("O", 5)]
    join.registry[Event.PURGE_THRESHOLD_REACH] = []
    join.registry[Event.NEW_PUNCT_READY] = []
    list(join.process(RIGHT, rows("B6")))
    list(join.punctuate(LEFT, [{"k": 6}]))
    assert right.held == 1
    assert told(join.request_propagation())[2] == [("O", 6)] and right.held == 0


TWO = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("schema", "first", "second", "new"),
    [
        (ITEM, {"k": 5}, {"k": 5}, False),
        (ITEM, {"k": {"range": [1, 5]}}, {"k": {"in": [1, 2, 3, 4, 5]}}, False),  # equal sets
        (ITEM, {"k": {"range": [1, 5]}}, {"k": 5}, False),
        (ITEM, {"k": {"any": True}}, {"k": {"none": True}}, False),
        (ITEM, {"k": {"range": [1, 5]}}, {"k": {"range": [6, None]}}, True),
        (ITEM, {"k": {"in": [1, 3]}}, {"k": 2}, True),
        (ITEM, {"k": 5}, {"k": {"range": [1, 5]}}, True),
        (ITEM, {"k": {"in": [1, 2]}}, {"k": {"in": [2, 3]}}, True),
        (ITEM, {"k": {"range": [None, 2]}}, {"k": {"range": [None, 4]}}, True),
        (ITEM, {"k": 5}, {}, True),
        (TWO, {"a": 1}, {"a": 1, "b": "x"}, False),
        (TWO, {"a": {"range": [1, 3]}}, {"a": 2, "b": {"range": ["a", "f"]}}, False),
        (TWO, {"a": 1, "b": {"range": ["a", "f"]}}, {"a": 1, "b": "c"}, False),
        (TWO, {"a": 1}, {"a": 2, "b": "x"}, True),
        (TWO, {"a": 1}, {"b": "x"}, True),
        (TWO, {"a": 1, "b": "x"}, {"a": 1}, True),
        (TWO, {"a": 1, "b": "c"}, {"b": {"range": ["a", "f"]}}, True),
    ],
)
def test_what_is_new_of_a_punctuation_is_taken(schema, first, second, new):
    join = opened(
        schema, [(c, c) for c in schema.names if c != "id"], parameters={"propagate_count": 0}
    )
    list(join.punctuate(LEFT, [first]))
    list(join.punctuate(LEFT, [second]))
    assert join.stats.sides[LEFT].punctuations == 1 + new
    list(join.request_propagation())
    list(join.punctuate(LEFT, [second]))  # closed by now
    assert join.stats.sides[LEFT].punctuations == 1 + new


def test_a_golden_trace_of_containing_punctuations():
    """Worked by hand: A1 has the pid of "up to 2", A4 that of "up to 4", which A1 matches too. So
    "up to 4" has no tuples of its own behind A4, and must still wait for A1. The constant 9 waits
    for A9, and so does the end of the stream, which contains all."""
    join = opened()
    assert told(join.process(LEFT, rows("A1", "A4", "A9")))[0] == []
    for plain in ({"range": [None, 2]}, {"range": [None, 4]}, 9, {"any": True}):
        assert told(join.punctuate(LEFT, [{"k": plain}])) == ([], [], [])
    assert join.punctuations[LEFT].match(Keys(np.array([1, 4, 9, 50]), [])).tolist() == [0, 1, 2, 3]
    assert told(join.punctuate(RIGHT, [{"k": 4}])) == ([], [("A4", "no_partner")], [("B", 4)])
    given = [
        [
            f
            for o in join.punctuate(RIGHT, [{"k": k}])
            if o.propagated
            for f in propagated_forms(o)
            if o.propagated.side == LEFT
        ]
        for k in (1, 9)
    ]
    assert given == [[{"k": {"range": [None, 2]}}, {"k": {"range": [None, 4]}}], [{"k": 9}, {}]]
    assert told(join.process(LEFT, rows("A77"))) == ([], [("A77", "against_punctuation")], [])


@pytest.mark.parametrize("restarted", [False, True])
def test_propagation_need_not_wait_for_the_purge(restarted):
    """No tuple of O is held, so that its punctuations are given out at once; B's tuples are purged
    by them at the purge that is due, three punctuations later."""
    join = opened(parameters={"purge_threshold": 3})
    list(join.process(RIGHT, rows("B1", "B2", "B8")))
    for k in (1, 2):
        assert told(join.punctuate(LEFT, [{"k": k}]))[2] == [("O", k)]
    if restarted:
        saved = join.snapshot()
        join = opened(parameters={"purge_threshold": 3})
        join.restore(saved)
    assert join.state.held(RIGHT) == 3
    assert told(join.punctuate(LEFT, [{"k": 3}]))[2] == [("O", 3)]
    assert join.state.held(RIGHT) == 1


@pytest.mark.parametrize(
    "plain",
    [
        [{"a": {"range": [0, 5]}}, {"b": {"range": [None, "z"]}}],
        [{"b": {"range": [None, "z"]}}, {"a": {"range": [0, 5]}}],
    ],
)
def test_a_tuple_that_matches_several_has_the_first_ones_pid(plain):
    join = opened(TWO, [("a", "a"), ("b", "b")], parameters={"propagate_count": 0})
    list(join.process(LEFT, pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})))
    list(join.punctuate(LEFT, plain))
    assert not [o for o in join.request_propagation() if o.propagated]
    list(join.punctuate(RIGHT, [{"a": 1}]))
    given = [
        propagated_forms(o)
        for o in join.request_propagation()
        if o.propagated and o.propagated.side == LEFT
    ]
    assert given == [plain]


@pytest.mark.parametrize("relocated", [False, True])
def test_tuples_of_what_is_forgotten_keep_what_contains_it_from_being_propagated(relocated):
    join = opened()
    list(join.process(LEFT, rows("A1", "A2", "A3", "A4")))
    list(join.punctuate(LEFT, [{"k": k} for k in (1, 2, 3, 4)]))
    list(join.punctuate(LEFT, [{"k": {"any": True}}]))
    if relocated:
        list(join.state_relocation())
    join._forget(LEFT)
    assert join.stats.sides[LEFT].forgotten == 2
    given = []
    for k in (4, 3, 2, 1):
        outputs = [*join.punctuate(RIGHT, [{"k": k}]), *join.request_propagation()]
        given.append(
            [
                f
                for o in outputs
                if o.propagated and o.propagated.side == LEFT
                for f in propagated_forms(o)
            ]
        )
    assert given == [[{"k": 4}], [{"k": 3}], [], [{}]]


def test_modes_of_propagation_are_parameters():
    for mode, pushed in (("push", [("O", 1)]), ("pull", [])):
        join = opened(parameters={"propagate": mode})
        assert told(join.punctuate(LEFT, [{"k": 1}]))[2] == pushed
        assert told(join.request_propagation())[2] == ([] if pushed else [("O", 1)])
    for index, indexed in (("lazy", 0), ("eager", 1)):
        join = opened(parameters={"index": index, "propagate_count": 0})
        list(join.process(LEFT, rows("A1")))
        list(join.punctuate(LEFT, [{"k": 1}]))
        assert join.punctuations[LEFT].index["count"].tolist() == [indexed]
    for wrong, words in (
        ({"index": "soon"}, "'lazy' or 'eager'"),
        ({"propagate": 1}, "'push' or 'pull'"),
        ({"propagate": "pull", "propagate_seconds": 2}, "left out"),
    ):
        with pytest.raises(ConfigError, match=words):
            opened(parameters=wrong)
    with pytest.raises(
        ConfigError, match="'index' is not a setting. Settings: activation_threshold"
    ):
        open_stream_join(
            "xjoin",
            memory=200_000,
            left=ITEM,
            right=ITEM,
            on=[("k", "k")],
            parameters={"index": "eager"},
        )


NUMBERS = st.integers(0, 4)
SETS = st.one_of(
    NUMBERS.map(lambda k: (k, {k})),
    st.lists(NUMBERS, min_size=1, max_size=4).map(lambda ks: ({"in": ks}, set(ks))),
    st.tuples(NUMBERS, NUMBERS)
    .map(sorted)
    .map(lambda ab: ({"range": ab}, set(range(ab[0], ab[1] + 1)))),
    NUMBERS.map(lambda k: ({"range": [None, k]}, set(range(k + 1)))),
    st.just(({"any": True}, set(range(5)))),
)


@pytest.mark.slow
@SETTINGS
@given(
    data=st.data(),
    kind=st.sampled_from(["int", "string", "both"]),
    lazy=st.integers(1, 3),
    eager=st.booleans(),
    steps=st.lists(
        st.sampled_from(
            ["tuples", "close", "promise", "promise", "relocate", "pull", "restart", "forget"]
        ),
        max_size=30,
    ),
)
def test_containing_punctuations_are_propagated_as_theorem_1_says(data, kind, lazy, eager, steps):
    """By plain sets: of A's punctuations those are given out that no tuple of A matches which may
    still be joined, and that no earlier one overlaps which is not."""
    kinds = {"int": [pa.int64()], "string": [pa.string()], "both": [pa.int64(), pa.string()]}[kind]
    schema = pa.schema([(f"k{i}", t) for i, t in enumerate(kinds)])
    columns = data.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=30, max_size=30))

    def value(i, k):
        return k if pa.types.is_integer(kinds[i]) else f"{k:02}"

    def plain(i, pattern):
        """The pattern over one of the columns, which all have the same number."""
        if not isinstance(pattern, dict):
            return {f"k{j}": value(j, pattern) for j in range(len(kinds))}
        [(word, given)] = pattern.items()
        if word == "any":
            return {}
        return {f"k{i}": {word: [None if k is None else value(i, k) for k in given]}}

    def start():
        join = open_stream_join(
            "pjoin",
            memory=200_000,
            left=schema,
            right=schema,
            on=[(n, n) for n in schema.names],
            parameters={"purge_threshold": lazy, "propagate_count": int(eager)},
        )
        if eager:
            join.registry[Event.NEW_PUNCT_READY] = [Component.INDEX_BUILD]
        return join

    def take(outputs):
        for o in outputs:
            if o.propagated is not None and o.propagated.side == LEFT:
                for form in propagated_forms(o):
                    values = {
                        k
                        for k in range(5)
                        if matches(form, {n: value(i, k) for i, n in enumerate(schema.names)})
                    }
                    assert not values & held, "a tuple that matches may still be joined"
                    given.append(values)

    def batch(ks):
        return pa.RecordBatch.from_arrays(
            [pa.array([value(i, k) for k in ks], t) for i, t in enumerate(kinds)], schema=schema
        )

    join, held, promised, ended, given, forgotten = start(), set(), [], set(), [], False
    for step, column in zip(steps, columns, strict=False):
        if step == "tuples":
            ks = data.draw(st.lists(NUMBERS, max_size=5))
            held |= set(ks).difference(ended, *promised)
            take(join.process(LEFT, batch(ks)))
        elif step == "close":
            pattern, values = data.draw(SETS)
            ended |= values
            held -= values
            take(join.punctuate(RIGHT, [plain(column, pattern)]))
        elif step == "promise":
            pattern, values = data.draw(SETS)
            if not values <= set().union(*promised):
                promised.append(values)
            take(join.punctuate(LEFT, [plain(column, pattern)]))
        elif step == "relocate" and join.state.memory[LEFT].live + join.state.memory[RIGHT].live:
            take(join.state_relocation())
        elif step == "restart":
            saved, before = join.snapshot(), join
            join = start()
            join.restore(saved)
            assert known(join) == known(before)
        elif step == "forget":
            forgotten = True
            join._forget(LEFT)
        elif step == "pull":
            take(join.request_propagation())
            due = []
            for i, values in enumerate(promised):
                if not values & held and all(q in due or not q & values for q in promised[:i]):
                    due.append(values)
            if not forgotten:
                assert set().union(*given) == set().union(*due)
        for index in (p.index for p in join.punctuations):
            assert (index["count"] >= 0).all() and not index["count"][index["state"] != OPEN].any()
    held.clear()
    take(join.drain())
    if not forgotten:
        assert set().union(*given) == set().union(*promised)
    assert not any(
        (p.index["state"] == OPEN).any() or p.index["count"].any() for p in join.punctuations
    )


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"q": 1}, "join columns of the left"),
        ({"id": "x"}, "join columns of the left"),
        ({"k": "x"}, "type of k"),
        ({"k": None}, "not null"),
        ({"k": {"range": [1]}}, "must be a value"),
        ({"k": {"like": "x"}}, "must be a value"),
        ({"k": {"range": ["a", 2]}}, "type of k"),
        ({"k": 2**70}, "type of k"),
    ],
)
def test_a_wrong_punctuation_is_refused(plain, words):
    with pytest.raises(ConfigError, match=words):
        list(opened().punctuate(LEFT, [plain]))
    with pytest.raises(ConfigError, match="pjoin"):
        list(
            open_stream_join(
                "xjoin", memory=200_000, left=ITEM, right=ITEM, on=[("k", "k")]
            ).punctuate(LEFT, [{"k": 1}])
        )
    with pytest.raises(ConfigError, match="purge"):
        opened(parameters={"purge": 1})
    with pytest.raises(ConfigError, match="purge_threshold"):
        opened(parameters={"purge_threshold": -1})


def test_closed_integers_that_touch_are_one_interval_and_counterparts_are_forgotten():
    join = opened(memory=2_000_000)
    order = np.random.default_rng(3).permutation(20_000)
    for first in range(0, 20_000, 1000):
        list(join.punctuate(LEFT, pa.RecordBatch.from_pydict({"k": order[first : first + 1000]})))
    table = join.punctuations[LEFT].intervals[0]
    assert (table.low.tolist(), table.high.tolist()) == ([0], [19_999])
    for k in range(0, 6000, 3):  # every third
        list(join.punctuate(RIGHT, [{"k": k}]))
    assert (
        join.punctuations[RIGHT].is_empty
        and len(table.low) == 2000
        and join.stats.sides[RIGHT].propagated == 2000
    )
    list(join.punctuate(RIGHT, [{"k": {"range": [6000, 30_000]}}]))
    assert len(table.low) == 2000 and len(join.punctuations[RIGHT].intervals[0].low) == 1


def test_a_watermark_stays_known_and_takes_no_room():
    join = opened()
    for day in range(300):
        for side in (LEFT, RIGHT):
            list(
                join.punctuate(
                    side, [{"k": {"range": [None if day == 0 else day * 10 - 9, day * 10]}}]
                )
            )
    assert [len(p.intervals[0].low) for p in join.punctuations] == [1, 1]
    assert told(join.process(LEFT, rows("A77"))) == ([], [("A77", "against_punctuation")], [])


def test_hashed_constants_are_forgotten_too():
    schema = pa.schema([("k", pa.string())])
    join = opened(schema)
    batches = [
        pa.RecordBatch.from_pydict({"k": [f"key {i}" for i in range(j, j + 100)]})
        for j in range(0, 5000, 100)
    ]
    for batch in batches:
        list(join.punctuate(LEFT, batch))
        list(join.punctuate(RIGHT, batch))
    assert all(p.is_empty for p in join.punctuations)
    assert join.stats.memory_peak <= 200_000


@pytest.mark.parametrize("kind", ["int", "string"])
def test_punctuations_are_saved_by_what_has_come_and_gone(kind, tmp_path):
    """Each snapshot is taken up, and told by the ones before it."""

    def batch(*numbers):
        return pa.record_batch(
            {
                "k": [f"order {i:06}" for i in numbers]
                if kind == "string"
                else pa.array(numbers, pa.int64())
            }
        )

    def start():
        return open_stream_join(
            "pjoin", memory=8_000_000, left=batch(1).schema, right=batch(1).schema, on=[("k", "k")]
        )

    def save():
        path = tmp_path / str(len(saved))
        join.save(path, saved[-1].name if saved else "")
        saved.append(path)
        taken = start()
        taken.restore(*JoinState.read(path))
        assert known(taken) == known(join)
        return path.stat().st_size

    join, saved = start(), []
    list(join.process(LEFT, batch(*range(10_000))))
    list(join.punctuate(LEFT, batch(*range(10_000), 10_002)))
    whole = save()
    list(join.punctuate(LEFT, batch(10_003, 10_004)))  # of no tuples: closed
    assert save() < whole / 10
    list(join.punctuate(RIGHT, batch(*range(3), 10_002)))  # closed by both: forgotten
    assert save() < whole / 10
    list(join.punctuate(RIGHT, batch(4, 10_004)))
    list(join.punctuate(LEFT, batch(*range(20_000, 20_005))))  # where others were
    list(join.process(RIGHT, batch(20_010)))
    assert save() < whole / 10 and len(JoinState.read(saved[-1])) == 4
    # closes 7 of the left stream, and is itself open, as there is a tuple of 20,010
    list(join.punctuate(RIGHT, [{"k": {"in": batch(7, 20_010)["k"].to_pylist()}}]))
    assert save() < whole / 10
    for _ in range(3):
        join._forget(LEFT)
    save()
    assert join.stats.sides[LEFT].forgotten and sum(s.propagated for s in join.stats.sides) > 9


@pytest.mark.parametrize("kind", ["int", "string"])
def test_punctuations_that_outgrow_memory_are_forgotten_and_the_answer_is_the_same(kind):
    rng = np.random.default_rng(5)
    key = pa.array if kind == "int" else lambda x: pa.array([f"order {i}" for i in x])
    orders, lines = rng.permutation(3000) * 3, rng.permutation(np.repeat(np.arange(3000) * 3, 2))
    batch = lambda x: pa.RecordBatch.from_arrays([key(x)], ["k"])
    join = open_stream_join(
        "pjoin", memory=250_000, left=batch([1]).schema, right=batch([1]).schema, on=[("k", "k")]
    )
    rows = 0
    for i in range(0, 3000, 500):
        for steps in (
            join.process(LEFT, batch(orders[i : i + 500])),
            join.punctuate(LEFT, batch(orders[i : i + 500])),
            join.process(RIGHT, batch(lines[2 * i : 2 * i + 1000])),
        ):
            for out in steps:
                rows += out.joined.num_rows if out.joined else 0
                assert join.state.arena.used <= 250_000
    left, right = join.stats.sides
    assert left.forgotten > 0 and right.dropped > 0
    rows += sum(o.joined.num_rows for o in join.drain() if o.joined)
    assert rows == 6_000 and (left.matched, right.matched) == (3000, 6_000)
    assert (
        not join.punctuations[LEFT].index["count"].any()
        and left.propagated + left.forgotten == 3000
    )
    with pytest.raises(NotEnoughMemory, match="counterparts"):
        list(
            join.punctuate(
                LEFT,
                [
                    {"k": {"in": [key([i])[0].as_py(), key([i + 1])[0].as_py()]}}
                    for i in range(90_000, 99_000, 9)
                ],
            )
        )


@pytest.mark.parametrize("saved", [False, True])
def test_many_punctuations_close_where_tuples_fill_the_memory(saved):
    key = lambda values: pa.record_batch({"k": np.asarray(values, np.int64)})
    join = open_stream_join(
        "pjoin",
        memory=1_000_000,
        left=key([1]).schema,
        right=key([1]).schema,
        on=[("k", "k")],
        parameters={"propagate_count": 0},
    )
    list(join.punctuate(LEFT, key(np.arange(0, 8000, 2))))
    while join.state.free > 400:
        list(join.process(LEFT, key([9999] * 7)))
    assert not join.stats.relocations
    if saved:
        join.snapshot()
    list(join.request_propagation())
    assert join.stats.sides[LEFT].propagated == 4000 and join.stats.memory_peak <= 1_000_000


@pytest.mark.parametrize("relocated", [False, True])
def test_tuples_that_have_left_do_not_hinder_forgetting(relocated):
    """They keep the numbers of punctuations that the index has no longer."""
    key = lambda first, last: pa.record_batch({"k": np.arange(first, last)})
    join = open_stream_join(
        "pjoin", memory=400_000, left=key(0, 1).schema, right=key(0, 1).schema, on=[("k", "k")]
    )
    list(join.process(LEFT, key(0, 1000)))
    list(join.punctuate(LEFT, key(600, 1000)))
    list(join.index_build())
    if relocated:
        list(join.state_relocation())
    # 400 of 1000 tuples leave: not enough for their room to be given back
    list(join.punctuate(RIGHT, key(600, 1000)))
    list(join.request_propagation())
    assert join.stats.sides[LEFT].propagated == 400 and join.state.held(LEFT) == 600
    list(join.punctuate(LEFT, key(0, 10)))
    for _ in range(5):
        join._forget(LEFT)
    assert join.stats.sides[LEFT].forgotten == 10 and not len(
        join.punctuations[LEFT].index["state"]
    )
    rows = sum(
        out.joined.num_rows if out.joined else 0
        for out in (*join.process(RIGHT, key(0, 600)), *join.drain())
    )
    assert rows == 600


def test_hash_collisions_purge_nobody_else(monkeypatch):
    real = keys_module.codes
    monkeypatch.setattr(
        keys_module,
        "codes",
        lambda columns, kinds: (real(columns, kinds)[0] % 5, real(columns, kinds)[1]),
    )
    monkeypatch.setattr("semistream.stream_joins.punctuations.codes", keys_module.codes)
    left = pa.table({"a": range(300), "k": [f"key{i * i % 70}" for i in range(300)]})
    right = pa.table({"b": range(200), "k": [f"key{i}" for i in range(200)]})
    join = open_stream_join(
        "pjoin",
        memory=100_000,
        left=left.schema,
        right=right.schema,
        on=[("k", "k")],
        join_type="full",
    )
    outputs = list(join.process(RIGHT, right.to_batches()[0]))
    outputs += join.punctuate(RIGHT, right.to_batches()[0])  # unique
    outputs += join.process(LEFT, left.slice(0, 150).to_batches()[0])
    assert join.stats.sides[LEFT].held == 0 and join.stats.sides[LEFT].dropped == 150
    outputs += join.punctuate(LEFT, [{"k": f"key{i}"} for i in range(70, 200)])
    assert join.stats.sides[RIGHT].held == 70
    outputs += join.state_relocation()
    outputs += join.process(LEFT, left.slice(150).to_batches()[0])
    outputs += join.drain()
    assert found(outputs) == expected(left, right, [("k", "k")], "full")


@pytest.mark.parametrize("memory", [250_000, 20_000_000])
@pytest.mark.parametrize("kind", ["int", "string"])
def test_a_punctuated_state_stays_small_within_memory(memory, kind):
    """Orders, each once, with lines that follow or precede; both sides close an order a while
    later."""
    rng = np.random.default_rng(7)
    n, chunk = 6_000, 500
    key = pa.array if kind == "int" else lambda x: pa.array([f"order {i}" for i in x])
    ids = np.arange(n) * 7
    schema = pa.schema([("k", key(ids[:1]).type), ("note", pa.string())])
    join = open_stream_join(
        "pjoin", memory=memory, left=schema, right=schema, on=[("k", "k")], join_type="full"
    )
    outputs, most = [], 0
    for first in range(0, n, chunk):
        mine = rng.permutation(ids[first : first + chunk])
        lines = rng.permutation(np.repeat(mine, 2))
        sides = [(LEFT, mine), (RIGHT, lines[:chunk]), (RIGHT, lines[chunk:])]
        for side, k in sides:
            for out in join.process(
                side,
                pa.RecordBatch.from_arrays([key(k), pa.array(["x" * 80] * len(k))], schema=schema),
            ):
                outputs.append(out)
                assert join.state.arena.used <= memory
        for side in (LEFT, RIGHT):
            outputs += join.punctuate(side, pa.RecordBatch.from_arrays([key(mine)], ["k"]))
            assert join.state.arena.used <= memory
        most = max(most, *(s.held for s in join.stats.sides))
    assert (join.stats.relocations > 0) == (memory < 1_000_000)
    assert most <= (1 if memory > 1_000_000 else 12) * 2 * chunk
    outputs += join.drain()
    complete(join)
    assert (
        join.stats.memory_peak <= memory
        and sum(o.joined.num_rows for o in outputs if o.joined) == 2 * n
    )
    assert [s.propagated + s.forgotten for s in join.stats.sides] == [n, n]
    if memory > 1_000_000:
        assert not any(s.forgotten for s in join.stats.sides)
        assert all(p.is_empty for p in join.punctuations)


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("kind", ["int", "string"])
def test_punctuations_that_are_forgotten_stay_within_a_memory_that_is_full(kind, saved):
    """Whatever is free as they come: with more of M there are more of them."""
    key = pa.array if kind == "int" else lambda x: pa.array([f"order {i}" for i in x])
    batch = lambda k: pa.RecordBatch.from_arrays([key(k), pa.array(k)], ["k", "n"])
    forgotten = 0
    for memory, most in (*((m, 3000) for m in range(120_000, 300_000, 18_200)), (240_000, 6000)):
        rng, rows = np.random.default_rng(memory), 0
        join = open_stream_join(
            "pjoin", memory=memory, left=batch([1]).schema, right=batch([1]).schema, on=[("k", "k")]
        )
        for first in range(0, most, 300):
            orders = rng.permutation(np.arange(first, first + 300)) * 7
            for steps in (
                join.process(LEFT, batch(orders)),
                join.punctuate(LEFT, batch(orders).select(["k"])),
                join.process(RIGHT, batch(rng.integers(0, first + 300, 1200) * 7)),
            ):
                for out in steps:
                    rows += out.joined.num_rows if out.joined else 0
                    assert join.state.arena.used <= memory
                if saved:
                    join.snapshot(changes=True)
        assert rows + sum(o.joined.num_rows for o in join.drain() if o.joined) == 4 * most
        forgotten += join.stats.sides[LEFT].forgotten
        assert join.stats.memory_peak <= memory
    assert forgotten > 0


T0 = datetime(2026, 1, 1)
EVENTS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("t", pa.timestamp("ms"))])


@pytest.mark.slow
@SETTINGS
@given(data=st.data(), join_type=st.sampled_from(OUTER), restarts=st.booleans())
def test_a_join_within_a_distance_of_times(data, join_type, restarts, tmp_path_factory):
    event = st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(-9, 9))
    within, delay = timedelta(seconds=5), timedelta(seconds=data.draw(st.integers(0, 12)))
    tables = [
        pa.Table.from_pylist(
            [
                {"id": i, "k": k, "t": None if late is None else T0 + timedelta(seconds=i + late)}
                for i, (k, late) in enumerate(data.draw(st.lists(event, max_size=60)))
            ],
            EVENTS,
        )
        for _ in (0, 1)
    ]

    def start():
        return open_stream_join(
            "pjoin",
            memory=100_000,
            left=EVENTS,
            right=EVENTS,
            on=[("k", "k")],
            join_type=join_type,
            within=Within("t", "t", within),
        )

    join, sources, at, outputs = start(), [Watermark("t", delay), Watermark("t", delay)], [0, 0], []
    kept, late, newest = [[], []], [Counter(), Counter()], [None, None]
    states = Restarts(tmp_path_factory.mktemp("state"), start)
    steps = data.draw(
        st.lists(
            st.sampled_from(["left", "right", "left", "right", "relocate", "idle", "pull"]),
            max_size=25,
        )
    )
    for i, step in enumerate([*steps, "left", "right"]):
        if step in ("left", "right"):
            side = LEFT if step == "left" else RIGHT
            count = data.draw(st.integers(0, 20)) if i < len(steps) else 60
            for chunk in tables[side].slice(at[side], count).combine_chunks().to_batches():
                for one in sources[side].steps(chunk):
                    outputs += join.process(side, one.tuples)
                    for p in one.punctuations:
                        outputs += join.punctuate(side, p)
                for row in chunk.to_pylist():
                    if (
                        None not in (row["k"], row["t"], newest[side])
                        and row["t"] < newest[side] - delay
                    ):
                        late[side][(*row.values(), "against_punctuation")] += 1
                    else:
                        kept[side].append(row)
                newest[side] = max(
                    (t for t in [newest[side], *chunk["t"].to_pylist()] if t is not None),
                    default=None,
                )
            at[side] = min(at[side] + count, tables[side].num_rows)
        else:
            outputs += step_alone(join, step)
        if not join.stats.relocations and not restarts:
            for side in (0, 1):
                mark = newest[1 - side]
                waits = [
                    r
                    for r in kept[side]
                    if None not in (r["k"], r["t"])
                    and (mark is None or r["t"] + within >= mark - delay)
                ]
                assert join.state.held(side) == len(waits)
        if restarts:
            join = states.save(join, data.draw(st.booleans()))
    outputs += join.drain()
    joined, lone = Counter(), [Counter(), Counter()]
    met = [set(), set()]
    for a in kept[0]:
        for b in kept[1]:
            if (
                None not in (a["k"], a["t"], b["t"])
                and a["k"] == b["k"]
                and abs(a["t"] - b["t"]) <= within
            ):
                joined[(*a.values(), *b.values())] += 1
                met[0].add(a["id"])
                met[1].add(b["id"])
    for side in (0, 1):
        for row in kept[side]:
            if row["id"] not in met[side]:
                lone[side][
                    (*row.values(), "null_key" if None in row.values() else "no_partner")
                ] += 1
                if JOIN_TYPES[join_type][side]:
                    joined[
                        (*row.values(), None, None, None)
                        if side == 0
                        else (None, None, None, *row.values())
                    ] += 1
    assert found(outputs) == (joined, lone[0] + late[0], lone[1] + late[1])


def test_a_distance_that_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="column of the left"):
        opened(EVENTS, within=Within("q", "t", timedelta(1)))
    with pytest.raises(ConfigError, match="timestamps, dates or integers"):
        opened(ITEM, within=Within("id", "k", 1))
    for distance in (5, timedelta(-1)):
        with pytest.raises(ConfigError, match="distance"):
            opened(EVENTS, within=Within("t", "t", distance))
    with pytest.raises(ConfigError, match="goes on"):
        join = opened(EVENTS, within=Within("t", "t", timedelta(1)))
        list(join.punctuate(LEFT, [{"t": {"range": [T0, T0 + timedelta(1)]}}]))


def run(source, *chunks, on=("k",)):
    """What is said of a left stream with this source of punctuations."""
    schema = chunks[0].schema
    join = opened(schema, [(c, c) for c in on])
    lone = []
    for chunk in chunks:
        for step in source.steps(chunk):
            for out in [
                *join.process(LEFT, step.tuples),
                *(o for p in step.punctuations for o in join.punctuate(LEFT, p)),
            ]:
                if out.unmatched is not None:
                    lone += [(r["id"], r["reason"]) for r in out.unmatched.to_pylist()]
    return join, lone


def test_a_unique_key_closes_itself():
    join, lone = run(UniqueKey(["k"]), rows("A1", "A2", "A1"), rows("A3", "A2"))
    assert (
        lone == [("A1", "against_punctuation"), ("A2", "against_punctuation")]
        and join.stats.sides[LEFT].punctuations == 3
    )


def test_clustered_arrival_closes_each_key_but_the_last():
    source = Clustered(["k"])
    join, lone = run(source, rows("A1", "A1", "A2"), rows("A2", "A3"), rows("A3", "A1", "A2"))
    assert (
        lone == [("A1", "against_punctuation"), ("A2", "against_punctuation")]
        and join.stats.sides[LEFT].punctuations == 3
    )
    again = Clustered(["k"])
    again.state = source.state
    assert [s.punctuations[0].to_pylist() for s in again.steps(rows("A9"))] == [[{"k": 2}]]


def test_a_watermark_closes_what_is_older():
    source = Watermark("k", 2)
    _, lone = run(source, rows("A5", "A3"), rows("A2"), rows("A9", "A3"), rows("A6", "A7"))
    assert lone == [
        ("A2", "against_punctuation"),
        ("A6", "against_punctuation"),
    ] and source.state == {"reached": 6}
    with pytest.raises(ConfigError, match="delay"):
        list(Watermark("k", timedelta(1)).steps(rows("A1")))
    with pytest.raises(ConfigError, match="negative"):
        Watermark("k", -1)


def test_rows_of_the_source_are_punctuations():
    marked = pa.RecordBatch.from_pydict(
        {"id": ["A1", None, None], "k": [1, 4, None], "end": [None, True, False]}
    )
    join, lone = run(
        PunctuationRows("end", ["k"]), marked, rows("A4").append_column("end", pa.array([False]))
    )
    assert (
        lone == [("A4", "against_punctuation"), (None, "null_key")][::-1]
        and join.stats.sides[LEFT].held == 1
    )
    told_so = pa.RecordBatch.from_pydict(
        {
            "id": ["A1", None, ""],
            "k": [1, None, None],
            "end": [None, '{"k": {"range": [2, 5]}}', '{"k": 7}'],
        }
    )
    join, lone = run(
        PunctuationRows("end", ["k"]),
        told_so,
        rows("A3", "A7", "A8").append_column("end", pa.array([""] * 3)),
    )
    assert (
        lone == [("A3", "against_punctuation"), ("A7", "against_punctuation")]
        and join.stats.sides[LEFT].held == 2
    )
    for text in ("{", "7"):
        with pytest.raises(ConfigError, match="JSON object"):
            list(
                PunctuationRows("end", ["k"]).steps(
                    rows("A1").append_column("end", pa.array([text]))
                )
            )
    with pytest.raises(ConfigError, match="name a column"):
        list(PunctuationRows("stop", ["k"]).steps(marked))
    with pytest.raises(ConfigError, match="booleans or of text"):
        list(PunctuationRows("k", ["k"]).steps(marked))


def intervals(points):
    """The closed intervals of a set of integers, as arrays of their ends."""
    ordered = np.array(sorted(points), np.int64)
    first = np.flatnonzero(np.diff(ordered, prepend=-10) > 1)
    last = np.append(first[1:], len(ordered))[: len(first)] - 1
    return ordered[first], ordered[last]


@SETTINGS
@given(mine=st.sets(st.integers(0, 40)), theirs=st.sets(st.integers(0, 40)))
def test_intervals_are_cut_out_of_intervals(mine, theirs):
    low, high = intervals(mine)
    others = intervals(theirs)
    out = [np.empty(len(low) + len(others[0]), np.int64) for _ in range(2)]
    left = kernels.subtract(low, high, *others, True, *out)
    found = [x for a, b in zip(out[0][:left], out[1][:left], strict=True) for x in range(a, b + 1)]
    assert found == sorted(mine - theirs)


def test_an_interval_with_an_open_end_stays_whole():
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    low, high = np.array([least, 20, 50]), np.array([9, 30, most])
    out = [np.empty(5, np.int64) for _ in range(2)]
    left = kernels.subtract(low, high, np.array([5, 25]), np.array([6, 60]), True, *out)
    assert [x[:left].tolist() for x in out] == [[least, 20, 50], [9, 24, most]]
    left = kernels.subtract(low, high, np.array([5, 25]), np.array([6, 60]), False, *out)
    assert [x[:left].tolist() for x in out] == [[least, 7, 20, 61], [4, 9, 24, most]]
