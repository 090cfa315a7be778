"""The operator that a task runs on its partition: the join of a stream with dimensions, or of two
streams.

Both operators take a side's tuples and return finished ones. They are kept from one micro-batch to
the next, or saved and restored. A stream that is joined with dimensions is side 0.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from semistream.job import SIDES, surrogate_key
from semistream.joins import JoinState
from semistream.joins.hash_join import HashJoin
from semistream.joins.star import RoleJoin, Star, StarOutput
from semistream.joins.statistics import JoinStatistics
from semistream.reasons import Reason
from semistream.warehouse.closing import Final
from semistream.warehouse.inferred import INFERRED
from semistream.warehouse.records import InputCounts, LoadRecord

if TYPE_CHECKING:
    from semistream.sketches import SampledSketch
    from semistream.stream_joins import Propagated, StreamJoinOutput, StreamStreamJoin
    from semistream.stream_joins.sources import PunctuationSource
    from semistream.streaming.waiting import Pace

COUNTED = (  # totals of a join that the ledger has of a load
    "rows_read",
    "matched",
    "unmatched",
    "output_rows",
    "cache_hits",
    "disk_tuples_read",
    "bytes_read",
    "seconds",
)
Refused = Counter[tuple[int, Reason]]  # tuples rejected before the operator, by side and reason


class Finished(NamedTuple):
    """The output of an operator. joined: rows of ``output_schema``; unmatched: tuples of the side,
    and ``reason``; propagated: JSON texts {column: pattern}, each of which says that no later row
    has such values in the side's join columns; final: the keys of this partition, as the left
    stream's columns, that become final through the propagated patterns; role: the role in which the
    tuples are unmatched, if there are several roles; codes: the key codes of the unmatched tuples,
    int64 with null for no key; inferred: the joined rows with inferred members, as ``INFERRED``, by
    their numbers in ``joined``."""

    joined: pa.RecordBatch | None
    unmatched: pa.RecordBatch | None
    side: int = 0
    propagated: list[str] | None = None
    final: Final | None = None
    role: str | None = None
    codes: pa.Array | None = None
    inferred: pa.RecordBatch | None = None


class JoinOperator(Protocol):
    """An operator in a task. first: how many of its output columns belong to the (left) stream."""

    output_schema: pa.Schema
    first: int

    @property
    def portable(self) -> bool:
        """Return whether the operator can move to another process in its present state."""

    def begin(self, at: float) -> None:
        """Record the start of a load, from which ``counted`` counts. at: a time on
        time.perf_counter."""

    def process(self, side: int, tuples: pa.RecordBatch) -> Iterator[Finished]:
        """Process tuples of a side."""

    def sketch(self, sketch: SampledSketch, tuples: pa.RecordBatch) -> None:
        """Add a sample of the tuples' join keys to the sketch, which draws the sample. Two streams
        are not sketched."""

    def end_batch(self, pace: Pace | None) -> Iterator[Finished]:
        """End the micro-batch after all of its tuples were processed. pace: how many of the waiting
        tuples to finish, if there is a bound on waiting."""

    def drain(self) -> Iterator[Finished]:
        """Finish the waiting tuples."""

    @property
    def waiting(self) -> int:
        """The number of tuples that wait for the disk."""

    def counted(self, load: LoadRecord, refused: Refused, states: Sequence[str]) -> LoadRecord:
        """Return the record completed with the counts of the work since ``begin``. states: the
        names of the state files after this work."""

    def save(self, paths: Sequence[Path], before: Sequence[str]) -> None:
        """Write the state, one file for each join of the plan. before: names of the files with the
        former state, in the same directory; empty if there is no former state."""

    def restore(self, paths: Sequence[Path]) -> None:
        """Restore a saved state into a new operator."""

    def close(self) -> None:
        """Free memory and files now. The operator cannot be used afterwards. Its parts refer to it,
        so that it would otherwise stay in memory until the next garbage collection."""


class SemiStreamOperator:
    """The operator that joins a stream with dimensions, in one role or in several."""

    portable = True

    def __init__(self, star: Star, largest: int = 0, unknown: Mapping[str, int] | None = None):
        """Create the operator. largest: the number of the join with the largest R, whose keys are
        sketched; unknown: by output column, the value that replaces null."""
        self.star, self.output_schema, self.first = star, star.output_schema, star.first
        self.largest, self.unknown = largest, unknown or {}
        self._facts = Counter[str]()  # by role, joined rows with an inferred member so far
        self._lacking = Counter[str]()  # by role, joined rows without a row of it so far
        self._before: list[_Counts] = []  # of each role, when the load began

    def begin(self, at: float) -> None:
        self.star.begin(at)
        self._before = [self._counts(each) for each in self.star.joins]

    def process(self, side: int, tuples: pa.RecordBatch) -> Iterator[Finished]:
        return self._finished(self.star.process(tuples))

    def sketch(self, sketch: SampledSketch, tuples: pa.RecordBatch) -> None:
        keys = self.star.joins[self.largest].join.spec.keys
        drawn = tuples.select(list(dict.fromkeys(keys.stream))).take(
            pa.array(sketch.draw(tuples.num_rows))
        )
        codes, valid = keys.stream_codes(drawn)
        sketch.add(codes[valid])

    def end_batch(self, pace: Pace | None) -> Iterator[Finished]:
        if pace:
            yield from self._finished(self.star.keep_up(*pace))
        yield from self._finished(self.star.end_of_batch())

    def drain(self) -> Iterator[Finished]:
        return self._finished(self.star.drain())

    def _finished(self, outputs: Iterator[StarOutput]) -> Iterator[Finished]:
        several = len(self.star.joins) > 1
        for joined, unmatched, role in outputs:
            inferred = None
            if joined is not None:
                joined, inferred = self._inferred(joined)
                if several:
                    self._count_lacking(joined)
                for name, value in self.unknown.items():
                    at = self.output_schema.get_field_index(name)
                    filled = pc.fill_null(joined.column(at), value)
                    joined = joined.set_column(at, self.output_schema.field(at), filled)
            codes = None if unmatched is None or role is None else self._codes(unmatched, role)
            yield Finished(
                joined, unmatched, role=role if several else None, codes=codes, inferred=inferred
            )

    def _inferred(self, joined: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Return joined rows with the surrogate keys of inferred members, which are negative in the
        star's output, and a table of the rows that have such keys, as ``INFERRED``; None if no role
        infers members."""
        found = list[pa.RecordBatch]()
        for each in self.star.joins:
            if each.members is None:
                continue
            at = self.output_schema.get_field_index(each.members.column)
            keys = joined.column(at)
            rows = pc.indices_nonzero(pc.less(keys, 0))
            self._facts[each.role] += len(rows)
            members = pc.abs(keys)
            joined = joined.set_column(at, self.output_schema.field(at), members)
            columns = [rows.cast(pa.int32()), pa.repeat(each.role, len(rows)), members.take(rows)]
            found.append(pa.RecordBatch.from_arrays(columns, schema=INFERRED))
        return joined, pa.concat_batches(found) if found else None

    def _count_lacking(self, joined: pa.RecordBatch) -> None:
        """Count the joined rows that have no row of a role. They have no surrogate key of it."""
        for each in self.star.joins:
            if not self.star.rejects(each):
                keys = joined.column(surrogate_key(each.role))
                self._lacking[each.role] += keys.null_count

    def _codes(self, unmatched: pa.RecordBatch, role: str) -> pa.Array:
        """Return the codes of the keys that unmatched tuples have in a role, null for no key."""
        # by position: the stream may also have a column named reason
        tuples = pa.RecordBatch.from_arrays(unmatched.columns[:-1], unmatched.schema.names[:-1])
        keys = next(each for each in self.star.joins if each.role == role).join.spec.keys
        codes, valid = keys.stream_codes(tuples)
        return pa.array(codes, mask=~valid)

    @property
    def waiting(self) -> int:
        return self.star.waiting

    def _counts(self, each: RoleJoin) -> _Counts:
        return _Counts(
            JoinStatistics(**deepcopy(each.join.stats.as_dict())),
            self.star.waiting_in(each),
            0 if each.members is None else each.members.tuples,
            self._facts[each.role],
            self._lacking[each.role],
        )

    def counted(self, load: LoadRecord, refused: Refused, states: Sequence[str]) -> LoadRecord:
        joins, before, nothing = self.star.joins, self._before, Refused()
        work = [self._counts(each).since(was) for each, was in zip(joins, before, strict=True)]
        inputs = tuple(
            self._input(each, was.waiting, of, nothing if number else refused, state)
            for number, (each, was, of, state) in enumerate(
                zip(joins, before, work, states, strict=True)
            )
        )
        # a role that is held whole lets none wait
        waited = [
            (of.join.waits, of.finished)
            for each, of in zip(joins, work, strict=True)
            if of.finished and not isinstance(each.join, HashJoin)
        ]
        finished = any(of.finished for of in work)
        reads = sum(of.join.rows_read for of in work)
        hits = sum(of.join.cache_hits for of in work)
        disk_tuples = sum(of.join.disk_tuples_read for of in work)
        master_tuples = sum(each.join.master.tuple_count for each in joins)
        return replace(
            load,
            inputs=inputs,
            rows_read=inputs[0].rows_read,
            # a further role's tuples were matched by the role before it
            matched=sum(i.matched for i in inputs) - sum(i.rows_read for i in inputs[1:]),
            output_rows=work[-1].rows(joins[-1]),
            # as a share of the tuples that the roles have got, of which a further role gets fewer
            cache_hits=round(inputs[0].rows_read * hits / reads) if reads else 0,
            disk_tuples_read=disk_tuples,
            bytes_read=sum(of.join.bytes_read for of in work),
            r_cycles=disk_tuples / max(master_tuples, 1),
            seconds=sum(of.join.seconds for of in work),
            # an upper bound if there are several roles: a tuple that waits longest in one may have
            # waited less in another
            wait_median=sum(waits.median(n) for waits, n in waited) if finished else None,
            wait_longest=sum(waits.longest for waits, _ in waited) if finished else None,
            memory_peak=self.star.memory_peak,
            memory=self.star.memory,
        )

    def _input(
        self, each: RoleJoin, waited: int, work: _Counts, refused: Refused, state: str
    ) -> InputCounts:
        """Return the counts of a role. waited: the number of tuples that waited when the load
        began; work: the counts of the load; refused: by reason, the number of tuples that were
        rejected before the operator."""
        rejects, several = self.star.rejects(each), len(self.star.joins) > 1
        join, inferred, passed = work.join, work.inferred, work.rows(each)
        missed = 0 if rejects else join.unmatched - inferred
        # of several roles without ``many`` a tuple has matched as soon as it goes on
        matched = passed if several and not each.many else join.matched + missed + inferred
        rejected = _rejected(0, join.rejected if rejects else {}, refused)
        if rejects and inferred:
            rejected[Reason.NO_MATCH] -= inferred
        return InputCounts(
            each.role,
            waited,
            join.rows_read + refused.total(),
            matched,
            rejected,
            work.waiting,
            state,
            each.join.master.name,
            each.join.master.version,
            cache_hits=join.cache_hits,
            bytes_read=join.bytes_read,
            missed=missed,
            passed=passed if several else None,
            inferred=work.facts,
            lacking=work.lacking,
        )

    def save(self, paths: Sequence[Path], before: Sequence[str]) -> None:
        self.star.save(paths, before)

    def restore(self, paths: Sequence[Path]) -> None:
        self.star.restore([JoinState.read(path) for path in paths])

    def close(self) -> None:
        self.star.close()
        for each in self.star.joins:
            vars(each.join).clear()


class _Counts(NamedTuple):
    """The counts of a role so far, or of a load. join: the totals of its join, of which COUNTED,
    waits and rejected are those of a load; waiting: the number of tuples that wait in the role now;
    inferred: that of tuples with an inferred member; facts, lacking: those of joined rows with an
    inferred member, and without a row of the dimension."""

    join: JoinStatistics
    waiting: int
    inferred: int
    facts: int
    lacking: int

    def since(self, before: _Counts) -> _Counts:
        """Return the counts of the work since ``before``."""
        now, was = self.join, before.join
        join = replace(
            now,
            **{name: getattr(now, name) - getattr(was, name) for name in COUNTED},
            waits=now.waits.since(was.waits),
            rejected=Counter(now.rejected) - Counter(was.rejected),
        )
        return _Counts(
            join,
            self.waiting,
            self.inferred - before.inferred,
            self.facts - before.facts,
            self.lacking - before.lacking,
        )

    def rows(self, each: RoleJoin) -> int:
        """Return how many rows have left the join. In a left join, tuples with an inferred member
        are already included in the join's count."""
        return self.join.output_rows + (self.inferred if each.kind.inner else 0)

    @property
    def finished(self) -> int:
        return self.join.matched + self.join.unmatched


class StreamStreamOperator:
    """The operator that joins two streams. A tuple counts as waiting while it is held, even if it
    has had a partner.

    sources: the punctuation sources of each side; alone: whether this is the only partition. If
    there are others, a propagated range is not recorded, because it does not hold for the keys of
    other partitions.
    """

    def __init__(
        self, join: StreamStreamJoin, sources: tuple[list[PunctuationSource], ...], alone: bool
    ):
        self.join, self.output_schema, self.sources = join, join.output_schema, sources
        self.first, self.alone = len(join.spec.schemas[0]), alone
        self._before = deepcopy(join.stats)  # when the load began

    @property
    def portable(self) -> bool:
        """Return False if tuples are on disk, because these files belong to this process and vanish
        with it."""
        return not self.join.state.uses_disk

    def begin(self, at: float) -> None:
        # tuples are held for later ones: the ledger has no waits for them
        self._before = deepcopy(self.join.stats)

    def process(self, side: int, tuples: pa.RecordBatch) -> Iterator[Finished]:
        return self._finished(self._process(side, tuples, self.sources[side]))

    def _process(
        self, side: int, tuples: pa.RecordBatch, sources: list[PunctuationSource]
    ) -> Iterator[StreamJoinOutput]:
        if not sources:
            yield from self.join.process(side, tuples)
            return
        for step in sources[0].steps(tuples):
            yield from self._process(side, step.tuples, sources[1:])
            for punctuations in step.punctuations:
                yield from self.join.punctuate(side, punctuations)

    def sketch(self, sketch: SampledSketch, tuples: pa.RecordBatch) -> None:
        raise NotImplementedError

    def end_batch(self, pace: Pace | None) -> Iterator[Finished]:
        return self._finished(self._end_batch())

    def _end_batch(self) -> Iterator[StreamJoinOutput]:
        """Apply the punctuations that hold after the micro-batch, then let the join work during the
        pause."""
        for side, sources in enumerate(self.sources):
            for source in sources:
                for punctuations in source.end_batch():
                    yield from self.join.punctuate(side, punctuations)
        if self.join.monitor.pull:
            yield from self.join.request_propagation()
        yield from self.join.idle(0.0)

    def drain(self) -> Iterator[Finished]:
        yield from self._finished(self.join.drain())
        yield Finished(None, None, final=Final(pa.table({}), [{}]))

    def _finished(self, outputs: Iterator[StreamJoinOutput]) -> Iterator[Finished]:
        for joined, side, unmatched, propagated in outputs:
            if joined is not None or unmatched is not None:
                yield Finished(joined, unmatched, side)
            if propagated is not None:
                yield Finished(
                    None,
                    None,
                    propagated.side,
                    _texts(propagated, self.alone),
                    self._final(propagated),
                )

    def _final(self, found: Propagated) -> Final | None:
        """Return the keys that a propagated punctuation makes final, in the left stream's columns.
        In an outer join, return None for a punctuation of the right stream, because left tuples
        with its keys may still be output without a partner."""
        spec = self.join.spec
        if found.side and spec.join_type != "inner":
            return None
        names = dict(zip(spec.key_columns(found.side), spec.key_columns(0), strict=True))
        constants = pa.Table.from_batches([found.constants]).rename_columns(list(names.values()))
        return Final(
            constants, [{names[c]: p for c, p in plain.items()} for plain in found.patterns]
        )

    @property
    def waiting(self) -> int:
        return 0

    def counted(self, load: LoadRecord, refused: Refused, states: Sequence[str]) -> LoadRecord:
        now, before, sides = self.join.stats, self._before, list[InputCounts]()
        for side, (name, a, b) in enumerate(zip(SIDES, before.sides, now.sides, strict=True)):
            outside = sum(n for (of, _), n in refused.items() if of == side)
            sides.append(
                InputCounts(
                    name,
                    a.held,
                    b.rows_read - a.rows_read + outside,
                    b.matched - a.matched,
                    _rejected(side, Counter(b.unmatched) - Counter(a.unmatched), refused),
                    b.held,
                    states[0],
                    on_disk=b.on_disk,
                )
            )
        return replace(
            load,
            inputs=tuple(sides),
            rows_read=sum(side.rows_read for side in sides),
            matched=sum(side.matched for side in sides),
            output_rows=now.output_rows - before.output_rows,
            bytes_read=now.bytes_read - before.bytes_read,
            seconds=now.seconds - before.seconds,
            memory_peak=now.memory_peak,
            memory=now.memory,
        )

    def save(self, paths: Sequence[Path], before: Sequence[str]) -> None:
        (path,) = paths
        self.join.save(
            path, *before, punctuations=[[source.state for source in of] for of in self.sources]
        )

    def restore(self, paths: Sequence[Path]) -> None:
        (path,) = paths
        states = JoinState.read(path)
        for of, former in zip(self.sources, states[-1].values["punctuations"], strict=True):
            for source, state in zip(of, former, strict=True):
                source.state.update(state)
        self.join.restore(*states)

    def close(self) -> None:
        self.join.state.remove()
        vars(self.join).clear()


def _texts(propagated: Propagated, patterns: bool) -> list[str]:
    constants = propagated.constants.to_pylist() if propagated.constants is not None else []
    others = propagated.patterns if patterns else []
    return [json.dumps(pattern, default=str) for pattern in [*constants, *others]]


def _rejected(side: int, unmatched: Mapping[str, int], refused: Refused) -> dict[Reason, int]:
    """Return by reason how many tuples of a side the operator has not matched, and how many were
    rejected before they reached the operator. unmatched: the former, by reason."""
    by_reason = {Reason(reason): n for reason, n in unmatched.items()}
    return by_reason | {reason: n for (of, reason), n in refused.items() if of == side}
