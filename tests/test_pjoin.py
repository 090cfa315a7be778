"""PJoin against a join by plain loops, whatever is punctuated, relocated, joined from disk, propagated and restarted, and when."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semistream.keys as keys_module
import strategies
from semistream.errors import ConfigError
from semistream.joins.state_file import JoinState
from semistream.stream_joins import LEFT, RIGHT, open_stream_join
from semistream.stream_joins.spec import JOIN_TYPES
from test_stream_joins import OUTER, complete, expected, found

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
                if value is None or (low is not None and value < low) or (high is not None and value > high):
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
    arrow, make = strategies.KEY_KINDS[kind]
    number = st.integers(0, 3) | st.integers(0, 40)
    shape = draw(st.sampled_from(["constant"] * 4 + ["any", "none", "in"] + ["range"] * 2 * (kind != "uint64")))
    if shape == "constant":
        return make(draw(number))
    if shape == "in":
        return {"in": [make(i) for i in draw(st.lists(number, max_size=4))]}
    if shape == "range":
        return {"range": [draw(st.none() | number.map(make)), draw(st.none() | number.map(make))]}
    return {shape: True}


@SETTINGS
@given(data=st.data(), join_type=st.sampled_from(OUTER), restarts=st.booleans(), honest=st.booleans(), lazy=st.integers(1, 4),
       count=st.integers(0, 3))
def test_equals_the_oracle(data, join_type, restarts, honest, lazy, count, tmp_path_factory):
    left, right, on, _ = data.draw(strategies.joins())
    kinds = [next(k for k, (t, _) in strategies.KEY_KINDS.items() if t == left.schema.field(a).type) for a, _ in on]
    tables, columns = (left, right), [[p[s] for p in on] for s in (0, 1)]
    start = lambda: open_stream_join("pjoin", memory=100_000, left=left.schema, right=right.schema, on=on,  # noqa: E731
                                     join_type=join_type, parameters={"purge_threshold": lazy, "propagate_count": count})
    join, at, path = start(), [0, 0], tmp_path_factory.mktemp("state") / "state"
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
                            assert not any(matches(p, key) for p in closed[side]), "behind its punctuation's propagation"
            if o.propagated is not None:
                closed[o.propagated.side] += propagated_forms(o)
            outputs.append(o)

    def process(side, rows):
        for batch in rows.combine_chunks().to_batches():
            take(join.process(side, batch))
            for row in batch.to_pylist():
                if None not in (row[c] for c in columns[side]) and any(matches(p, row) for p in promised[side]):
                    broken[side][(*row.values(), "against_punctuation")] += 1
                else:
                    accepted[side].append(row)

    def punctuate(side):
        plain = [{c: data.draw(patterns(k)) for c, k in zip(columns[side], kinds, strict=True)
                  if data.draw(st.booleans()) or len(on) == 1} for _ in range(data.draw(st.integers(1, 3)))]
        rest = tables[side].slice(at[side]).to_pylist()
        if honest:
            plain = [p for p in plain if not any(matches(p, row) for row in rest)]
        try:
            take(join.punctuate(side, plain))
        except ConfigError as e:
            assert "disjoint" in str(e)
        else:
            promised[side] += plain

    steps = data.draw(st.lists(st.sampled_from(["left", "right", "relocate", "idle", "pull", "finish", *["punctuate"] * 4]),
                               max_size=25))
    for step in steps:
        if step in ("left", "right"):
            side = LEFT if step == "left" else RIGHT
            some = data.draw(st.integers(0, 20))
            process(side, tables[side].slice(at[side], some))
            at[side] = min(at[side] + some, tables[side].num_rows)
        elif step == "punctuate":
            punctuate(data.draw(st.sampled_from([LEFT, RIGHT])) if honest else LEFT)
        elif step == "relocate" and sum(m.live for m in join.state.memory):
            take(join.state_relocation())
        elif step == "idle":
            take(join.idle(1.0))
        elif step == "pull":
            take(join.request_propagation())
        elif step == "finish":
            for bucket in np.flatnonzero(join.state.disk[0].tuples + join.state.disk[1].tuples):
                take(join.finish_bucket(int(bucket)))
        if lazy == 1 and not join.stats.relocations and not restarts:
            for side in (0, 1):
                waits = [r for r in accepted[side] if None not in (r[c] for c in columns[side])
                         and not any(matches(dict(zip(columns[side], (p.get(c, {"any": True}) for c in columns[1 - side]),
                                                      strict=True)), r) for p in promised[1 - side])]
                assert join.state.held(side) == len(waits), "what cannot have a partner is no longer held"
        if restarts:
            join.snapshot().write(path)
            before = join
            join = start()
            join.restore(*JoinState.read(path))
            assert [join.state.held(s) for s in (0, 1)] == [before.state.held(s) for s in (0, 1)]
            assert [p.bytes for p in join.punctuations] <= [p.bytes for p in before.punctuations]
    for side in (0, 1):
        process(side, tables[side].slice(at[side]))
    take(join.drain())
    kept = [pa.Table.from_pylist(rows, schema=t.schema) for rows, t in zip(accepted, tables, strict=True)]
    joined, *lone = expected(*kept, on, join_type)
    assert found(outputs) == (joined, lone[0] + broken[0], lone[1] + broken[1])
    assert not any(p.index["open"].any() or p.index["count"].any() for p in join.punctuations)
    assert [join.state.held(s) for s in (0, 1)] == [0, 0]
    if not restarts:
        complete(join)
        assert [s.punctuations for s in join.stats.sides] == [s.propagated for s in join.stats.sides]
