"""The constraints of two streams, as punctuations about later tuples, for streams that come in
micro-batches.

Within a micro-batch tuples have no order, because partitions of the source are read in parallel. A
constraint that depends on the stream's order therefore holds only after the micro-batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.job import SIDES
from semistream.partitioning import Placement
from semistream.sizing.stream_stream_plan import StreamStreamPlan, distance
from semistream.stream_joins.sources import (
    PunctuationRows,
    Punctuations,
    PunctuationSource,
    Step,
    UniqueKey,
    Watermark,
)


class Deferred(PunctuationSource):
    """A punctuation source whose punctuations are held back until the end of the micro-batch."""

    def __init__(self, source: PunctuationSource):
        self.source, self.state, self._held = source, source.state, list[Punctuations]()

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        for step in self.source.steps(chunk):
            self._held += step.punctuations
            yield Step(step.tuples)

    def end_batch(self) -> list[Punctuations]:
        held, self._held = self._held, []
        return held


class MarkedRows(Deferred):
    """Punctuations that are rows of the source. A punctuation of several keys is sent to every
    partition. A punctuation of a single key is used only in the key's partition, which alone knows
    when the key is complete."""

    def __init__(self, mark: str, on: list[str], placement: Placement, partition: int):
        super().__init__(PunctuationRows(mark, on))
        self.on, self.placement, self.partition = on, placement, partition

    def end_batch(self) -> list[Punctuations]:
        return [mine for found in super().end_batch() for mine in self._of_partition(found)]

    def _of_partition(self, found: Punctuations) -> Iterator[Punctuations]:
        if isinstance(found, pa.RecordBatch):
            yield found
            return
        constant = [
            p
            for p in found
            if set(p) == set(self.on) and not any(isinstance(v, dict) for v in p.values())
        ]
        yield [p for p in found if p not in constant]
        if constant:
            columns = [
                _typed([p[name] for p in constant], self.placement.stream.field(name).type)
                for name in self.on
            ]
            keys = pa.RecordBatch.from_arrays(columns, self.on)
            yield keys.filter(pa.array(self.placement.partitions(keys) == self.partition))


def _typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert JSON values, in which dates and decimals are texts, to an Arrow type. Raises
    ConfigError."""
    try:
        texts = pa.array(values)
        return texts.cast(kind) if pa.types.is_string(texts.type) else pa.array(values, kind)
    except pa.ArrowException as e:
        raise ConfigError(
            "punctuation", f"must have values of type {kind}", values[:5], str(e)
        ) from None


class ClusteredBatches(PunctuationSource):
    """The constraint that tuples of a key come together. A key of the previous micro-batch is
    complete if it is not in this one, and this one has any keys. The state has the keys of the
    latest micro-batch."""

    def __init__(self, schema: pa.Schema, on: list[str]):
        self.schema, self.state = pa.schema([schema.field(name) for name in on]), dict[str, Any]()
        self._found: list[pa.Table] = []

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        names = self.schema.names
        keys = pa.Table.from_batches([chunk.select(names)]).drop_null()
        if keys.num_rows:
            self._found.append(keys.group_by(names, use_threads=False).aggregate([]))
        yield Step(chunk)

    def end_batch(self) -> list[Punctuations]:
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


def punctuation_sources(
    plan: StreamStreamPlan, side: int, streams: tuple[pa.Schema, ...], partition: int
) -> list[PunctuationSource]:
    """Return the punctuation sources of a side in a partition. Raises ConfigError for a watermark
    over a column that the join cannot use."""
    given, on = plan.promises[side], [pair[side] for pair in plan.on]
    out: list[PunctuationSource] = []
    if (mark := plan.mark(side)) is not None:
        if mark not in streams[side].names or mark in on:
            raise ConfigError(
                f"{SIDES[side]}.punctuation",
                "must name a column of the stream that is no join column",
                mark,
                f"It has: {', '.join(streams[side].names)}.",
            )
        out.append(MarkedRows(mark, on, plan.placement(streams, side), partition))
    if given.get("unique"):
        out.append(UniqueKey(on))  # which does not depend on the order of tuples
    if given.get("clustered"):
        out.append(ClusteredBatches(streams[side], on))
    if watermark := given.get("watermark"):
        column = watermark["column"]
        allowed = {*on, *([plan.within[SIDES[side]]] if plan.within else [])}
        if column not in allowed:
            raise ConfigError(
                f"{SIDES[side]}.watermark",
                "must be over a join column, or a column of within",
                column,
                f"Columns: {', '.join(sorted(allowed))}.",
            )
        delay = distance(watermark.get("delay", 0), streams[side].field(column).type)
        out.append(Deferred(Watermark(column, delay)))
    return out
