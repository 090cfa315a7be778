"""The operator that a task runs on its partition: the join of a stream with R, or of two streams.

Both take a side's tuples, give what they have finished, and are kept, or saved and restored, from
one micro-batch to the next. A stream that is joined with R is side 0.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa

from semistream.job import SIDES
from semistream.joins import JoinState, SemiStreamJoin
from semistream.joins.output import JoinOutput
from semistream.reasons import Reason
from semistream.warehouse.closing import Final
from semistream.warehouse.records import InputCounts, LoadRecord

if TYPE_CHECKING:
    from semistream.sketches import SampledSketch
    from semistream.stream_joins import Propagated, StreamJoinOutput, StreamStreamJoin
    from semistream.stream_joins.sources import PunctuationSource
    from semistream.streaming.waiting import Pace

Refused = Counter[tuple[int, Reason]]  # tuples rejected before the operator, by side and reason


class Finished(NamedTuple):
    """The output of an operator. joined: rows of ``output_schema``; unmatched: tuples of the side,
    and ``reason``; propagated: JSON texts {column: pattern}, each of which says that no later row
    has such values in the side's join columns; final: those of this partition's keys, as the left
    stream's columns, that are final because of it; role: in which the tuples are unmatched, if
    there are several; codes: of the keys that these have, int64 with null for no key."""

    joined: pa.RecordBatch | None
    unmatched: pa.RecordBatch | None
    side: int = 0
    propagated: list[str] | None = None
    final: Final | None = None
    role: str | None = None
    codes: pa.Array | None = None


class JoinOperator(Protocol):
    """An operator in a task. first: how many of its output columns are the (left) stream's;
    sketched: whether its keys can be sketched for the ledger."""

    output_schema: pa.Schema
    first: int
    sketched: ClassVar[bool]

    @property
    def portable(self) -> bool:
        """Return whether another process can take the operator over in its present state."""

    def begin(self, at: float) -> None:
        """Note when a micro-batch began, by time.perf_counter."""

    def process(self, side: int, tuples: pa.RecordBatch) -> Iterator[Finished]:
        """Process tuples of a side."""

    def sketch(self, sketch: SampledSketch, tuples: pa.RecordBatch) -> None:
        """Add a sample of the tuples' join keys, drawn by the sketch."""

    def end_batch(self, pace: Pace | None) -> Iterator[Finished]:
        """End the micro-batch, whose tuples are all processed. pace: how far to finish waiting
        tuples, if their waiting is bounded."""

    def drain(self) -> Iterator[Finished]:
        """Finish the waiting tuples."""

    @property
    def waiting(self) -> int:
        """The number of tuples that wait for the disk."""

    def count(self) -> Any:
        """Return the operator's counts so far, for ``counted``."""

    def counted(
        self, load: LoadRecord, before: Any, refused: Refused, states: Sequence[str]
    ) -> LoadRecord:
        """Return the record with the counts of the work since ``before``. states: names of the
        files of the state after it."""

    def save(self, paths: Sequence[Path], before: Sequence[str]) -> None:
        """Write the state, one file a join of the plan. before: names of the files with the former
        state, in the same directory; none if there is none."""

    def restore(self, paths: Sequence[Path]) -> None:
        """Restore a state in a new operator."""

    def close(self) -> None:
        """Free memory and files now, and make the operator unusable. Its parts refer to it, so that
        it would otherwise stay until the next garbage collection."""


class SemiStreamOperator:
    """The operator that joins a stream with R."""

    portable = True
    sketched: ClassVar[bool] = True

    def __init__(self, join: SemiStreamJoin, role: str = ""):
        """Take the operator. role: that the master data play; default: their name."""
        self.join, self.output_schema = join, join.output_schema
        self.role = role or join.master.name
        self.first = len(join.spec.stream)

    def begin(self, at: float) -> None:
        self.join.begin(at)

    def process(self, side: int, tuples: pa.RecordBatch) -> Iterator[Finished]:
        return self._finished(self.join.process(tuples))

    def sketch(self, sketch: SampledSketch, tuples: pa.RecordBatch) -> None:
        keys = self.join.spec.keys
        drawn = tuples.select(list(dict.fromkeys(keys.stream))).take(
            pa.array(sketch.draw(tuples.num_rows))
        )
        codes, valid = keys.stream_codes(drawn)
        sketch.add(codes[valid])

    def end_batch(self, pace: Pace | None) -> Iterator[Finished]:
        return self._finished(self.join.keep_up(*pace) if pace else iter(()))

    def drain(self) -> Iterator[Finished]:
        return self._finished(self.join.drain())

    def _finished(self, outputs: Iterator[JoinOutput]) -> Iterator[Finished]:
        for joined, unmatched in outputs:
            codes = None
            if unmatched is not None and unmatched.num_rows:
                # by position: the stream may also have a column named reason
                tuples = pa.RecordBatch.from_arrays(
                    unmatched.columns[:-1], unmatched.schema.names[:-1]
                )
                keys, valid = self.join.spec.keys.stream_codes(tuples)
                codes = pa.array(keys, mask=~valid)
            yield Finished(joined, unmatched, codes=codes)

    @property
    def waiting(self) -> int:
        return self.join.stats.waiting

    def count(self) -> dict[str, Any]:
        return deepcopy(self.join.stats.as_dict())

    def counted(
        self, load: LoadRecord, before: dict[str, Any], refused: Refused, states: Sequence[str]
    ) -> LoadRecord:
        now, master = self.join.stats.as_dict(), self.join.master
        done = {
            name: now[name] - before[name]
            for name in (
                "rows_read",
                "matched",
                "unmatched",
                "output_rows",
                "cache_hits",
                "disk_tuples_read",
                "bytes_read",
                "seconds",
            )
        }
        waits, finished = now["waits"].since(before["waits"]), done["matched"] + done["unmatched"]
        counts = InputCounts(
            self.role,
            before["waiting"],
            done["rows_read"] + refused.total(),
            done["matched"],
            _rejected(0, now["rejected"], before["rejected"], refused),
            now["waiting"],
            states[0],
            master.name,
            master.version,
            cache_hits=done["cache_hits"],
            bytes_read=done["bytes_read"],
        )
        return replace(
            load,
            inputs=(counts,),
            rows_read=counts.rows_read,
            matched=counts.matched,
            output_rows=done["output_rows"],
            cache_hits=done["cache_hits"],
            disk_tuples_read=done["disk_tuples_read"],
            bytes_read=done["bytes_read"],
            r_cycles=done["disk_tuples_read"] / max(master.tuple_count, 1),
            seconds=done["seconds"],
            wait_median=waits.median(finished) if finished else None,
            wait_longest=waits.longest if finished else None,
            memory_peak=now["memory_peak"],
            memory=now["memory"],
        )

    def save(self, paths: Sequence[Path], before: Sequence[str]) -> None:
        (path,) = paths
        self.join.save(path, *before)

    def restore(self, paths: Sequence[Path]) -> None:
        (path,) = paths
        self.join.restore(*JoinState.read(path))

    def close(self) -> None:
        self.join.master.close()
        vars(self.join).clear()


class StreamStreamOperator:
    """The operator that joins two streams. A tuple counts as waiting while it is held, even if it
    has had a partner.

    sources: the punctuation sources of each side; alone: this is the only partition. Otherwise a
    range that it propagates says nothing of other partitions' keys and is not recorded.
    """

    sketched: ClassVar[bool] = False

    def __init__(
        self, join: StreamStreamJoin, sources: tuple[list[PunctuationSource], ...], alone: bool
    ):
        self.join, self.output_schema, self.sources = join, join.output_schema, sources
        self.first, self.alone = len(join.spec.schemas[0]), alone

    @property
    def portable(self) -> bool:
        """Return False if tuples are on disk: these files belong to this process and vanish with
        it."""
        return not self.join.state.uses_disk

    def begin(self, at: float) -> None:
        pass  # tuples are held for later ones: the ledger has no waits for them

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
        In an outer join, return None for a punctuation of the right stream: left tuples with its
        keys may still come out without a partner."""
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

    def count(self) -> dict[str, Any]:
        return deepcopy(self.join.stats.as_dict())

    def counted(
        self, load: LoadRecord, before: dict[str, Any], refused: Refused, states: Sequence[str]
    ) -> LoadRecord:
        now, sides = self.join.stats.as_dict(), list[InputCounts]()
        for side, name in enumerate(SIDES):
            a, b = before[name], now[name]
            outside = sum(n for (of, _), n in refused.items() if of == side)
            sides.append(
                InputCounts(
                    name,
                    a["held"],
                    b["rows_read"] - a["rows_read"] + outside,
                    b["matched"] - a["matched"],
                    _rejected(side, b["unmatched"], a["unmatched"], refused),
                    b["held"],
                    states[0],
                    on_disk=b["on_disk"],
                )
            )
        return replace(
            load,
            inputs=tuple(sides),
            rows_read=sum(side.rows_read for side in sides),
            matched=sum(side.matched for side in sides),
            output_rows=now["output_rows"] - before["output_rows"],
            bytes_read=now["bytes_read"] - before["bytes_read"],
            seconds=now["seconds"] - before["seconds"],
            memory_peak=now["memory_peak"],
            memory=now["memory"],
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


def _rejected(
    side: int, now: dict[str, int], before: dict[str, int], refused: Refused
) -> dict[Reason, int]:
    """Return by reason how many tuples of a side the operator has not matched since ``before``, and
    how many were rejected before it."""
    since = {Reason(reason): n for reason in now if (n := now[reason] - before.get(reason, 0))}
    return since | {reason: n for (of, reason), n in refused.items() if of == side}
