"""A star in one pass: each stream tuple goes through several joins, one for each role of a
dimension.

    for each join, in the order of execution
        a tuple with a match goes on to the next join, with the columns that this join added
        a tuple without a match goes on with nulls if the role is left, else it leaves: unmatched
    what leaves the last join is joined

For each role, waiting before + read = matched + unmatched + waiting. A role reads the tuples that
the previous role has passed on. Tuples wait only in joins: between two joins they are gathered
within one call, never from one call to the next. A star of one role gives the same output as its
join, including the unmatched tuples of a left join.

**The bound on waiting** applies to the whole path of a tuple. The bound is divided among the joins
in which tuples wait. Each join keeps its part, so that the sum is kept whatever path a tuple takes.
A join with a pass of p seconds and a bound of b reads for p / b of the time; for a given sum of the
bounds all joins together read least when b is proportional to the square root of p.

Two kinds of tuples are finished at once. A join that has room for all of R reads each part of R
once, so that waiting there gains nothing. After a join with ``many``, rows that come from one tuple
may wait in the later joins; they are finished at the end of a micro-batch, so that no tuple stays
half finished.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError
from semistream.gathering import Gathered
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.output import OUTPUT_BYTES, JoinOutput
from semistream.joins.state_file import JoinState

GATHERED_ROWS = 16_384  # the most joined tuples that are gathered before the next join gets them
AT_ONCE = (1.0, 1.0)  # of ``SemiStreamJoin.keep_up``: a whole pass over R is due


class RoleKind(NamedTuple):
    """The way in which a role treats tuples. inner: whether a tuple without a match becomes
    unmatched, instead of going on with nulls; many: whether a tuple may have several rows of the
    dimension, and goes on with each of them."""

    role: str
    inner: bool
    many: bool = False


class Inferring(Protocol):
    """The inferred members of a dimension. column: the output column with the surrogate keys;
    tuples: how many tuples have got a member so far."""

    column: str
    tuples: int

    def find(self, tuples: pa.RecordBatch) -> pa.Array:
        """Return the surrogate keys, above 0, of the inferred members for unmatched tuples,
        int64[n]; null for tuples that cannot have a member."""


@dataclass(frozen=True)
class RoleJoin:
    """The join with a dimension in one of its roles. many: see ``RoleKind``; missed: a function
    that gets the tuples without a match, including those that go on with nulls, in the schema
    ``Star.unmatched_schema``; members: the source of inferred members for tuples without a match; a
    tuple that gets a member is joined with it."""

    role: str
    join: SemiStreamJoin
    many: bool = False
    missed: Callable[[pa.RecordBatch], None] | None = None
    members: Inferring | None = None

    @property
    def kind(self) -> RoleKind:
        return RoleKind(self.role, self.join.spec.join_type == "inner", self.many)


class StarOutput(NamedTuple):
    """Some finished tuples, either joined or unmatched.

    joined: rows in ``Star.output_schema``; unmatched: rows in ``Star.unmatched_schema``; role: the
    role in which the unmatched tuples have no match.
    """

    joined: pa.RecordBatch | None
    unmatched: pa.RecordBatch | None
    role: str | None


class Star:
    """A single-threaded join of a stream with several dimensions.

    output_schema: the stream's columns, then the columns that each role adds; unmatched_schema: the
    stream's columns and ``reason``. first: the number of the stream's columns. A negative surrogate
    key denotes an inferred member, whose key is its absolute value; the other columns of its role
    are null.
    """

    def __init__(self, joins: Sequence[RoleJoin], columns: Sequence[str] | None = None):
        """Connect open joins.

        joins: in the order of execution; each was opened with the output schema of the previous
        join as its stream. Roles with ``many`` are last, and an inner role is the first of these:
        ``execution_order`` sorts in this way. columns: the roles in the order in which their
        columns are in the output, by default the order of execution. Raises ConfigError for roles
        that cannot be joined in one pass.
        """
        names, kinds = [each.role for each in joins], [each.kind for each in joins]
        if names != [names[i] for i in execution_order(kinds)]:
            raise ValueError(f"{names}: roles with many must be last, an inner one before others")
        for each in joins if len(joins) > 1 else ():
            check_unique(each.kind, each.join.master.unique, each.join.spec.keys.master)
        stream = joins[0].join.spec.stream
        for each in joins:
            _check_keys(each, stream)
        for before, after in pairwise(joins):
            if after.join.spec.stream != before.join.output_schema:
                raise ValueError(f"{after.role} was not opened with the output of {before.role}")
        self.joins = tuple(joins)
        # the batches that pass through all joins at a time together take as many bytes as one
        # join's
        size = OUTPUT_BYTES // len(joins)
        self._gathered_bytes = size // 2
        for each in joins:
            each.join.output.limit(size)
        self.first = len(stream)
        ends = [len(each.join.output_schema) for each in joins]
        added = dict(zip(names, zip([self.first, *ends], ends, strict=False), strict=True))
        self._output = [
            *range(self.first),
            *(i for role in columns or names for i in range(*added[role])),
        ]
        widest = joins[-1].join.output_schema
        self.output_schema = pa.schema([widest.field(i) for i in self._output])
        self.unmatched_schema = joins[0].join.unmatched_schema

    # What a SemiStreamJoin does, through all joins

    def begin(self, at: float) -> None:
        """Record the time at which a micro-batch began. In the first join, the waiting time of a
        tuple counts from this time; in each later join, from the tuple's arrival there. at: a time
        on time.perf_counter."""
        self.joins[0].join.begin(at)

    def process(self, tuples: pa.RecordBatch) -> Iterator[StarOutput]:
        """Join stream tuples. Yield the finished ones in batches of bounded size. The caller must
        exhaust the iterator. An empty batch means that the stream buffer is still empty."""
        return self._process(0, tuples)

    def keep_up(self, seconds: float, bound: float) -> Iterator[StarOutput]:
        """Run the disk-probing phases often enough that no tuple waits longer than `bound` seconds
        on its whole path. seconds: time since the last call. Call this method after every batch."""
        for number, (each, part) in enumerate(zip(self.joins, self.bound_parts(), strict=True)):
            pace = (seconds, part * bound) if part else AT_ONCE
            yield from self._pass_on(number, each.join.keep_up(*pace))

    def end_of_batch(self) -> Iterator[StarOutput]:
        """Finish the tuples that wait after a join with ``many``, so that no tuple stays half
        finished. Call this method at the end of every micro-batch."""
        for number, each in enumerate(self.joins):
            if self._multiplied(number):
                yield from self._pass_on(number, each.join.drain())

    def drain(self) -> Iterator[StarOutput]:
        """Finish all waiting tuples."""
        for number, each in enumerate(self.joins):
            yield from self._pass_on(number, each.join.drain())

    def bound_parts(self) -> list[float]:
        """Return each join's part of a bound on waiting. The parts sum up to 1, or are all 0 if
        tuples wait in no join."""
        passes = [
            0.0
            if self._at_once(each) or self._multiplied(number)
            else math.sqrt(max(each.join.master.tuple_count * each.join.master.tuple_bytes, 1))
            for number, each in enumerate(self.joins)
        ]
        total = sum(passes)
        return [each / total if total else 0.0 for each in passes]

    def rejects(self, each: RoleJoin) -> bool:
        """Return whether tuples without a match in a join are unmatched in the star."""
        return each.kind.inner or len(self.joins) == 1

    def waiting_in(self, each: RoleJoin) -> int:
        """Return how many tuples wait in a join.

        A join whose H_S keeps tuples for a whole pass over R has already passed on the tuples with
        a match. These no longer count as waiting, unless the role has ``many``.
        """
        stats, several = each.join.stats, len(self.joins) > 1
        return stats.paper_times.without_match if several and not each.many else stats.waiting

    @property
    def waiting(self) -> int:
        """The number of tuples that wait in all joins. A tuple that has passed a join with ``many``
        counts once for each of its rows."""
        return sum(self.waiting_in(each) for each in self.joins)

    @property
    def memory(self) -> dict[str, int]:
        """The bytes that are reserved now, by component. If there are several roles, the
        component's name begins with the role."""
        several = len(self.joins) > 1
        return {
            f"{each.role} {component}" if several else component: size
            for each in self.joins
            for component, size in each.join.stats.memory.items()
        }

    @property
    def memory_peak(self) -> int:
        """An upper bound on the bytes that the joins had at any one time: the sum of their
        peaks."""
        return sum(each.join.stats.memory_peak for each in self.joins)

    # State

    def snapshot(self) -> list[JoinState]:
        """Return the state of each join, between two calls."""
        return [each.join.snapshot() for each in self.joins]

    def save(self, paths: Sequence[Path], before: Sequence[str] = ()) -> None:
        """Write the state of each join to a file. before: names of the previously saved files, in
        the same directories; if given, the changes since these suffice."""
        former = before or [""] * len(self.joins)
        for each, path, name in zip(self.joins, paths, former, strict=True):
            each.join.save(path, name)

    def restore(self, states: Sequence[Sequence[JoinState]]) -> None:
        """Restore new joins from snapshots. states: for each join a whole snapshot, and the changes
        after it. Raises StateError if the snapshots belong to other joins."""
        for each, of in zip(self.joins, states, strict=True):
            each.join.restore(*of)

    def close(self) -> None:
        for each in self.joins:
            each.join.master.close()

    # The way through the joins

    def _multiplied(self, number: int) -> bool:
        """Return whether a join before this one has ``many``."""
        return any(each.many for each in self.joins[:number])

    def _at_once(self, each: RoleJoin) -> bool:
        """Return whether a join finishes its tuples at once, because H_R has room for all of R."""
        return len(self.joins) > 1 and each.join.keeps_all

    def _process(self, number: int, tuples: pa.RecordBatch) -> Iterator[StarOutput]:
        join = self.joins[number].join
        yield from self._pass_on(number, join.process(tuples), came=True)
        if self._at_once(self.joins[number]) and join.stats.waiting:
            yield from self._pass_on(number, join.keep_up(*AT_ONCE))

    def _pass_on(
        self, number: int, outputs: Iterator[JoinOutput], *, came: bool = False
    ) -> Iterator[StarOutput]:
        """Pass the tuples that a join has matched on to the later joins. Yield the finished tuples.
        came: whether stream tuples arrived, so that the next join is called even without tuples and
        learns that its stream buffer is empty."""
        each, last = self.joins[number], number + 1 == len(self.joins)
        gathered = Gathered(each.join.output_schema)
        rows = 0
        for joined, unmatched in outputs if each.members is None else _inferred(each, outputs):
            if unmatched.num_rows and (each.missed is not None or self.rejects(each)):
                lost = self._unmatched(unmatched)
                if each.missed is not None:
                    each.missed(lost)
                if self.rejects(each):
                    yield StarOutput(None, lost, each.role)
            if last and joined.num_rows:
                yield StarOutput(self._joined(joined), None, None)
            elif joined.num_rows:
                gathered.add(joined)
                rows += joined.num_rows
            if rows >= GATHERED_ROWS or gathered.size >= self._gathered_bytes:
                yield from self._process(number + 1, _one(gathered))
                rows = 0
        if not last and (rows or came):
            yield from self._process(number + 1, _one(gathered))

    def _joined(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [rows.column(i) for i in self._output]
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)

    def _unmatched(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        *columns, reason = rows.columns
        return pa.RecordBatch.from_arrays(
            [*columns[: self.first], reason], schema=self.unmatched_schema
        )


def _inferred(each: RoleJoin, outputs: Iterator[JoinOutput]) -> Iterator[JoinOutput]:
    """Yield the outputs of a join. Unmatched tuples that get an inferred member are joined instead.
    They are gathered, so that the members of many tuples are looked up together."""
    gathered, rows = Gathered(each.join.unmatched_schema), 0
    for output in outputs:
        if not output.unmatched.num_rows:
            yield output
            continue
        gathered.add(output.unmatched)  # rows with nulls of a left join are built again
        rows += output.unmatched.num_rows
        if rows >= GATHERED_ROWS:
            yield _with_members(each, _one(gathered))
            rows = 0
    if rows:
        yield _with_members(each, _one(gathered))


def _with_members(each: RoleJoin, lost: pa.RecordBatch) -> JoinOutput:
    assert each.members is not None
    schema, members = each.join.output_schema, each.members.find(lost)
    got, at = members.is_valid(), schema.get_field_index(each.members.column)
    columns = lost.columns[:-1]
    columns += [pa.nulls(len(lost), field.type) for field in list(schema)[len(columns) :]]
    columns[at] = pc.negate(members)
    joined = pa.RecordBatch.from_arrays(columns, schema=schema)
    if each.kind.inner:
        joined = joined.filter(got)
    return JoinOutput(joined, lost.filter(pc.invert(got)))


def _check_keys(each: RoleJoin, stream: pa.Schema) -> None:
    """Raise ConfigError if a role is joined on a column that another role has added, because the
    column's presence would depend on the order of execution."""
    for column in each.join.spec.keys.stream:
        if column not in stream.names:
            raise ConfigError(
                f"dimensions.{each.role}.on",
                "must name columns of the stream",
                column,
                f"It has: {', '.join(stream.names)}.",
            )


def _one(gathered: Gathered) -> pa.RecordBatch:
    """Return the gathered rows as one batch, and release them."""
    batches = gathered.take().combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], gathered.schema)


def execution_order(roles: Sequence[RoleKind]) -> list[int]:
    """Return the positions of roles in an order in which they can be joined. Apart from this, the
    given order is kept. Raises ConfigError if there is no such order.

    Roles with ``many`` come after the others. Among them an inner role comes before left ones, so
    that no tuple is multiplied that may still be unmatched.
    """
    multiply = [each.role for each in roles if each.many and each.inner]
    if len(multiply) > 1:
        raise ConfigError(
            f"dimensions.{multiply[1]}.many",
            "must not be true of two roles that are inner",
            " and ".join(multiply),
            "A stream tuple that the first one multiplies would be unmatched several times in the "
            "other. Make one of them join_type: left, or load a fact table for it.",
        )
    return sorted(
        range(len(roles)), key=lambda i: (roles[i].many, not roles[i].inner and roles[i].many)
    )


def check_unique(role: RoleKind, unique: bool, key: Sequence[str]) -> None:
    """Raise ConfigError if a role of a star may find several rows for a key, but does not have
    ``many``. unique: whether no two rows of the dimension have the same key."""
    if not (role.many or unique):
        raise ConfigError(
            f"dimensions.{role.role}.many",
            "must be true where the dimension has several rows with the same key",
            False,
            f"Several rows have the same {', '.join(key)}. Join on a key, or set many: true, and a "
            "stream tuple becomes a fact with each of its rows.",
        )
