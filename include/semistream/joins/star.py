"""A star in one pass: each stream tuple goes through several joins, one a role of a dimension.

    for each join, in the order of execution
        a tuple with a match goes on to the next join, with the columns that this join added
        a tuple without a match goes on with nulls if the role is left, else it leaves: unmatched
    what leaves the last join is joined

For each role, waiting before + read = matched + unmatched + waiting, and a role reads what the one
before it has let pass. Tuples wait only in joins: between two joins they are gathered within one
call, never from one call to the next. A star of one role gives what its join gives: the unmatched
tuples of a left join, too.

**The bound on waiting** is one for the whole way. It is divided among the joins in which tuples
wait, and each keeps its part, so that their sum is kept whatever way a tuple takes. A join with a
pass of p seconds and a bound of b reads for p / b of the time; for a given sum of the bounds all
joins together read least when b is proportional to the square root of p. A join that has room for
all of R reads each part of it once, so nothing is gained by waiting there: its tuples are finished
at once. So are, at the end of a micro-batch, those that wait behind a join with ``many``: there
they are rows that one tuple became, and the tuple is not to be half finished.
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
    """What a role does with a tuple. inner: a tuple without a match is unmatched, else it goes on
    with nulls; many: a tuple may have several rows of the dimension, and goes on with each."""

    role: str
    inner: bool
    many: bool = False


class Inferring(Protocol):
    """The inferred members of a dimension. column: of the output, with the surrogate keys; tuples:
    how many tuples have got a member so far."""

    column: str
    tuples: int

    def find(self, tuples: pa.RecordBatch) -> pa.Array:
        """Return the surrogate keys, above 0, of the members of unmatched tuples, int64[n]; null
        for those that can have none."""


@dataclass(frozen=True)
class RoleJoin:
    """The join with a dimension in one of its roles. many: see ``RoleKind``; missed: gets the
    tuples without a match, also those that go on with nulls, as ``Star.unmatched_schema``; members:
    of the tuples without a match, that go on with these if they can have one."""

    role: str
    join: SemiStreamJoin
    many: bool = False
    missed: Callable[[pa.RecordBatch], None] | None = None
    members: Inferring | None = None

    @property
    def kind(self) -> RoleKind:
        return RoleKind(self.role, self.join.spec.join_type == "inner", self.many)


class StarOutput(NamedTuple):
    """Some finished tuples: either joined or unmatched ones.

    joined: ``Star.output_schema``; unmatched: ``Star.unmatched_schema``; role: the one in which the
    unmatched tuples have no match.
    """

    joined: pa.RecordBatch | None
    unmatched: pa.RecordBatch | None
    role: str | None


class Star:
    """A single-threaded join of a stream with several dimensions.

    output_schema: the stream's columns, then those that each role adds; unmatched_schema: the
    stream's columns and ``reason``. first: how many columns the stream has. A surrogate key below 0
    is that of an inferred member, with the opposite sign: the other columns of its role are null.
    """

    def __init__(self, joins: Sequence[RoleJoin], columns: Sequence[str] | None = None):
        """Connect open joins.

        joins: in the order of execution, each opened with the output schema of the one before it as
        its stream. Roles with ``many`` are last, and an inner one is the first of these:
        ``execution_order`` sorts so. columns: the roles in the order in which their columns are in
        the output; default: that of execution. Raises ConfigError for roles that cannot be joined
        in one pass.
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
        # the batches that are on the way through all joins together take as much as those of one
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
        """Record the time at which a micro-batch began. The waiting time of a tuple is counted from
        then in the first join, and from its arrival there in each later join. at: by
        time.perf_counter."""
        self.joins[0].join.begin(at)

    def process(self, tuples: pa.RecordBatch) -> Iterator[StarOutput]:
        """Join stream tuples. Yield the finished ones in batches of bounded size. The caller must
        exhaust the iterator. An empty batch says that the stream buffer is still empty."""
        return self._process(0, tuples)

    def keep_up(self, seconds: float, bound: float) -> Iterator[StarOutput]:
        """Run the disk-probing phases as often as is needed for no tuple to wait longer than
        `bound` seconds on its whole way. seconds: time since the last call. Call this after every
        batch."""
        for number, (each, part) in enumerate(zip(self.joins, self.bound_parts(), strict=True)):
            pace = (seconds, part * bound) if part else AT_ONCE
            yield from self._pass_on(number, each.join.keep_up(*pace))

    def settle(self) -> Iterator[StarOutput]:
        """Finish what waits behind a join with ``many``, so that no tuple is half finished. Call
        this at the end of every micro-batch."""
        for number, each in enumerate(self.joins):
            if self._multiplied(number):
                yield from self._pass_on(number, each.join.drain())

    def drain(self) -> Iterator[StarOutput]:
        """Finish all waiting tuples."""
        for number, each in enumerate(self.joins):
            yield from self._pass_on(number, each.join.drain())

    def bound_parts(self) -> list[float]:
        """Return each join's part of a bound on waiting. They sum up to 1, or are all 0 if tuples
        wait in no join."""
        passes = [
            0.0
            if self._at_once(each) or self._multiplied(number)
            else math.sqrt(max(each.join.master.tuple_count * each.join.master.tuple_bytes, 1))
            for number, each in enumerate(self.joins)
        ]
        total = sum(passes)
        return [each / total if total else 0.0 for each in passes]

    def rejects(self, each: RoleJoin) -> bool:
        """Return whether a join's tuples without a match are unmatched ones of the star."""
        return each.kind.inner or len(self.joins) == 1

    def waiting_in(self, each: RoleJoin) -> int:
        """Return how many tuples wait in a join.

        A join whose H_S keeps tuples for a pass over R has let those with a match pass before. They
        wait no more, unless they may have ``many``.
        """
        stats, several = each.join.stats, len(self.joins) > 1
        return stats.paper_times.without_match if several and not each.many else stats.waiting

    @property
    def waiting(self) -> int:
        """The tuples that wait, in all joins. One that has passed a join with ``many`` counts once
        for each of its rows."""
        return sum(self.waiting_in(each) for each in self.joins)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes reserved now, by component, which is preceded by its role if there are several."""
        several = len(self.joins) > 1
        return {
            f"{each.role} {component}" if several else component: size
            for each in self.joins
            for component, size in each.join.stats.memory.items()
        }

    @property
    def memory_peak(self) -> int:
        """The most bytes that the joins had together, at most: the sum of their peaks."""
        return sum(each.join.stats.memory_peak for each in self.joins)

    # State

    def snapshot(self) -> list[JoinState]:
        """Return the state of each join, between two calls."""
        return [each.join.snapshot() for each in self.joins]

    def save(self, paths: Sequence[Path], before: Sequence[str] = ()) -> None:
        """Write the state of each join to a file. before: names of the files saved before, in the
        same directories; then changes since these suffice."""
        former = before or [""] * len(self.joins)
        for each, path, name in zip(self.joins, paths, former, strict=True):
            each.join.save(path, name)

    def restore(self, states: Sequence[Sequence[JoinState]]) -> None:
        """Restore new joins from snapshots: of each join a whole one, and the changes after it.
        Raises StateError if they are of other joins."""
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
        """Return whether a join's tuples are finished at once."""
        return len(self.joins) > 1 and each.join.keeps_all

    def _process(self, number: int, tuples: pa.RecordBatch) -> Iterator[StarOutput]:
        join = self.joins[number].join
        yield from self._pass_on(number, join.process(tuples), came=True)
        if self._at_once(self.joins[number]) and join.stats.waiting:
            yield from self._pass_on(number, join.keep_up(*AT_ONCE))

    def _pass_on(
        self, number: int, outputs: Iterator[JoinOutput], *, came: bool = False
    ) -> Iterator[StarOutput]:
        """Let what a join has matched go through the joins after it. Yield what is finished. came:
        whether the stream buffer was looked at, so that the next join learns if it is empty."""
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
    """Yield the outputs of a join, with the tuples joined that get an inferred member. These are
    gathered, so that members of many are looked up at once."""
    gathered, rows = Gathered(each.join.unmatched_schema), 0
    for output in outputs:
        if not output.unmatched.num_rows:
            yield output
            continue
        gathered.add(output.unmatched)  # of a left join, the rows with nulls are made anew
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
    """Raise ConfigError if a role is joined on a column that another role has added: whether it is
    there would depend on the order of execution."""
    for column in each.join.spec.keys.stream:
        if column not in stream.names:
            raise ConfigError(
                f"dimensions.{each.role}.on",
                "must name columns of the stream",
                column,
                f"It has: {', '.join(stream.names)}.",
            )


def _one(gathered: Gathered) -> pa.RecordBatch:
    """Take what was gathered as one batch."""
    batches = gathered.take().combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], gathered.schema)


def execution_order(roles: Sequence[RoleKind]) -> list[int]:
    """Return the numbers of roles in an order in which they can be joined, else as they are given.
    Raises ConfigError if there is none.

    Roles with ``many`` come after the others, and an inner one before those that are left: so no
    tuple is multiplied that may still be unmatched.
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
    """Raise ConfigError if a role of a star finds several rows for a key and has not ``many``.
    unique: whether no two rows of the dimension have the same key."""
    if not (role.many or unique):
        raise ConfigError(
            f"dimensions.{role.role}.many",
            "must be true where the dimension has several rows with the same key",
            False,
            f"Several rows have the same {', '.join(key)}. Join on a key, or set many: true, and a "
            "stream tuple becomes a fact with each of its rows.",
        )
