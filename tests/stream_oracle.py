"""A join of two streams by plain loops, and what a join of them has given."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from semistream.joins.state_file import JoinState
from semistream.stream_joins import StreamStreamJoin
from semistream.stream_joins.base import StreamJoinOutput
from semistream.stream_joins.spec import JOIN_TYPES

OUTER = ("inner", "left", "right", "full")


def expected(left, right, on, join_type):
    """(joined, left unmatched, right unmatched) as Counters of tuples, by plain loops."""
    a, b = left.to_pylist(), right.to_pylist()
    key = lambda row, side: tuple(row[pair[side]] for pair in on)
    joined, met = Counter(), (set(), set())
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            if key(x, 0) == key(y, 1) and None not in key(x, 0):
                joined[(*x.values(), *y.values())] += 1
                met[0].add(i)
                met[1].add(j)
    lone = [Counter(), Counter()]
    for side, rows in enumerate((a, b)):
        for i, row in enumerate(rows):
            if i not in met[side]:
                lone[side][
                    (*row.values(), "null_key" if None in key(row, side) else "no_partner")
                ] += 1
                if JOIN_TYPES[join_type][side]:
                    nulls = (None,) * (right if side == 0 else left).num_columns
                    joined[(*row.values(), *nulls) if side == 0 else (*nulls, *row.values())] += 1
    return joined, *lone


def found(outputs):
    joined, lone = Counter(), [Counter(), Counter()]
    for o in outputs:
        if o.joined is not None:
            joined.update(tuple(r.values()) for r in o.joined.to_pylist())
        if o.unmatched is not None:
            lone[o.side].update(tuple(r.values()) for r in o.unmatched.to_pylist())
    return joined, *lone


def forget_others(state):
    """Delete what the state does not need, as the app does."""
    for name in {file.name for file in state.parent.iterdir()} - {*JoinState.files(state)}:
        (state.parent / name).unlink()


def step_alone(join: StreamStreamJoin, step: str) -> Iterator[StreamJoinOutput]:
    """Let the join take a step that no tuple is needed for."""
    if step == "relocate" and sum(m.live for m in join.state.memory):
        yield from join.state_relocation()
    elif step == "idle":
        yield from join.idle(1.0)
    elif step == "pull":
        yield from join.request_propagation()
    elif step == "finish":
        for bucket in np.flatnonzero(join.state.disk[0].tuples + join.state.disk[1].tuples):
            yield from join.finish_bucket(int(bucket))


class Restarts:
    """The states of a join in a directory, each with the changes since the one before."""

    def __init__(self, directory: Path, start: Callable[[], StreamStreamJoin]):
        self.directory, self.start, self.saved = directory, start, ""

    def save(self, join: StreamStreamJoin, restart: bool) -> StreamStreamJoin:
        """Save the state. Return the join, or a new one that goes on from there."""
        former, self.saved = self.saved, uuid.uuid4().hex
        state = self.directory / self.saved
        join.snapshot(changes=bool(former)).write(state, former)
        if not restart:
            return join
        again = self.start()
        forget_others(state)
        again.restore(*JoinState.read(state))
        assert [again.state.held(s) for s in (0, 1)] == [join.state.held(s) for s in (0, 1)]
        return again


def complete(join):
    for side in join.stats.sides:
        assert side.rows_read == side.matched + sum(side.unmatched.values()) and side.held == 0
