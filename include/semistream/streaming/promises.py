"""What two streams promise about tuples to come, as punctuations, when they arrive in micro-batches.

Within a micro-batch tuples have no order: partitions of the source are read side by side, and tasks
read pieces of it for each other. What a stream's order tells therefore holds behind a micro-batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from semistream.config import SIDES
from semistream.errors import ConfigError
from semistream.sizing.stream_stream_plan import StreamStreamPlan, distance
from semistream.stream_joins.sources import (
    Punctuations,
    PunctuationSource,
    Step,
    UniqueKey,
    Watermark,
)


class Promise(Protocol):
    """state: JSON-able, for a snapshot behind a micro-batch; it is updated in place."""

    state: dict[str, Any]

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        """The chunk's tuples, and the punctuations that hold behind these already."""

    def behind(self) -> list[Punctuations]:
        """Those that hold behind the micro-batch."""


class AtOnce:
    """A source that no order matters to."""

    def __init__(self, source: PunctuationSource):
        self.source, self.state = source, source.state

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        return self.source.steps(chunk)

    def behind(self) -> list[Punctuations]:
        return []


class Behind:
    """A source whose punctuations are held back until the micro-batch is in."""

    def __init__(self, source: PunctuationSource):
        self.source, self.state, self._held = source, source.state, list[Punctuations]()

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        for step in self.source.steps(chunk):
            self._held += step.punctuations
            yield Step(step.tuples)

    def behind(self) -> list[Punctuations]:
        held, self._held = self._held, []
        return held


class ClusteredBatches:
    """Tuples of a key come together: a key of the micro-batch before that this one has not is
    complete, if this one has any. The state has the keys of the latest micro-batch."""

    def __init__(self, schema: pa.Schema, on: list[str]):
        self.schema, self.state = pa.schema([schema.field(name) for name in on]), dict[str, Any]()
        self._found: list[pa.Table] = []

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        names = self.schema.names
        keys = pa.Table.from_batches([chunk.select(names)]).drop_null()
        if keys.num_rows:
            self._found.append(keys.group_by(names, use_threads=False).aggregate([]))
        yield Step(chunk)

    def behind(self) -> list[Punctuations]:
        if not self._found:
            return []
        names = self.schema.names
        now = pa.concat_tables(self._found).group_by(names, use_threads=False).aggregate([])
        now, self._found = now.cast(self.schema), []
        before = self.state.get("keys")
        self.state["keys"] = base64.b64encode(_message(now)).decode()
        if before is None:
            return []
        former = pa.ipc.open_stream(base64.b64decode(before)).read_all()
        done = former.join(now, names, join_type="left anti", use_threads=False)
        return list(done.combine_chunks().to_batches())


def _message(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def promises_of(plan: StreamStreamPlan, side: int, streams: tuple[pa.Schema, ...]) -> list[Promise]:
    """Those that a side makes. Raises ConfigError for a watermark over a column that tells the join
    nothing."""
    given, on = plan.promises[side], [pair[side] for pair in plan.on]
    out: list[Promise] = []
    if given.get("unique"):
        out.append(AtOnce(UniqueKey(on)))
    if given.get("clustered"):
        out.append(ClusteredBatches(streams[side], on))
    if watermark := given.get("watermark"):
        column = watermark["column"]
        allowed = {*on, *([plan.within[SIDES[side]]] if plan.within else [])}
        if column not in allowed:
            raise ConfigError(f"{SIDES[side]}.watermark", "must be over a join column, or a column "
                                                          "of within", column,
                              f"Columns: {', '.join(sorted(allowed))}.")
        delay = distance(watermark.get("delay", 0), streams[side].field(column).type)
        out.append(Behind(Watermark(column, delay)))
    return out
