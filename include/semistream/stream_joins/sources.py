"""Sources of punctuations: rows of the stream, a unique key, a watermark, clustered arrival.

Each source turns a chunk of its stream into steps: tuples, and the punctuations that follow them,
which hold for all later tuples. If a stream violates its guarantee, answers are not wrong: the
operator returns a tuple against a punctuation as `against_punctuation`, and joins the others
exactly.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError, check_name

# the argument of ``StreamStreamJoin.punctuate``
Punctuations: TypeAlias = pa.RecordBatch | Sequence[Mapping[str, Any]]


class Step(NamedTuple):
    """Tuples, and the punctuations that follow them."""

    tuples: pa.RecordBatch
    punctuations: Sequence[Punctuations] = ()


class PunctuationSource(ABC):
    """A source that derives punctuations from one stream. state: values for a snapshot, in types
    that JSON can hold; they are updated in place."""

    state: dict[str, Any]

    @abstractmethod
    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        """Yield the chunk's tuples, each once and in order, with the punctuations that follow
        them."""

    def end_batch(self) -> list[Punctuations]:
        """Return the punctuations that hold from the end of a micro-batch on."""
        return []


class PunctuationRows(PunctuationSource):
    """Punctuations that are rows of the stream, marked by a column.

    A boolean column marks a row whose join columns are the pattern; null in a join column is a
    wildcard. A column of strings contains the pattern, as JSON of the plain form
    (``punctuations``); if it is null or empty, the row is a tuple.

    A marked row guarantees that its pattern matches no later tuple. A tuple that violates the
    guarantee in a later chunk is quarantined.
    """

    def __init__(self, column: str, on: Sequence[str]):
        self.column, self.on, self.state = column, list(on), {}

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        check_name("punctuation", "must name a column", self.column, chunk.schema.names)
        marks = chunk.column(self.column)
        if pa.types.is_boolean(marks.type):
            marked = pc.fill_null(marks, False)
            rows = chunk.filter(marked).select(self.on)
            whole = rows.drop_null()
            others = [
                {c: v for c, v in row.items() if v is not None}
                for row in (rows.to_pylist() if whole.num_rows < rows.num_rows else ())
                if None in row.values()
            ]
            yield Step(chunk.filter(pc.invert(marked)), [whole, others])
            return
        if not (pa.types.is_string(marks.type) or pa.types.is_large_string(marks.type)):
            raise ConfigError(
                "punctuation",
                "must name a column of booleans or of text",
                f"{self.column}: {marks.type}",
                "Cast it.",
            )
        marked = pc.fill_null(pc.not_equal(marks, ""), False)
        yield Step(
            chunk.filter(pc.invert(marked)),
            [[_parse(text) for text in marks.filter(marked).to_pylist()]],
        )


def _parse(text: str) -> dict[str, Any]:
    """Parse a punctuation in plain form from JSON. Raises ConfigError if the text is not a JSON
    object."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            "punctuation",
            "must be a JSON object of columns and patterns",
            text[:200],
            'For instance {"order_id": 7}, or {"order_id": {"range": [1, 9]}}.',
        )
    return found


class UniqueKey(PunctuationSource):
    """Punctuations from a unique key: the join columns are a key of the stream, and a constant
    follows each tuple.

    The stream guarantees that no key occurs twice. A second tuple of a key is quarantined, even
    within the same chunk.
    """

    def __init__(self, on: Sequence[str]):
        self.on, self.state = list(on), {}

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        keys = pa.table(chunk.select(self.on)).append_column(
            "__row", pa.array(np.arange(chunk.num_rows))
        )
        first = keys.group_by(self.on).aggregate([("__row", "min")])["__row_min"].to_numpy()
        again = np.zeros(chunk.num_rows, bool)
        again[keys.drop_null()["__row"].to_numpy()] = True
        again[first] = False
        if not again.any():
            yield Step(chunk, [chunk.select(self.on)])
            return
        tuples = chunk.filter(pa.array(~again))
        yield Step(tuples, [tuples.select(self.on)])
        yield Step(chunk.filter(pa.array(again)))


class Watermark(PunctuationSource):
    """Punctuations from advancing event time: a range over a column of times follows each chunk
    with a newer time.

    The stream guarantees that no tuple is older than the newest so far by more than the delay. A
    tuple that violates the guarantee in a later chunk is quarantined. The column is a join column
    or one of ``Within``. delay: an integer for integer columns.
    """

    def __init__(self, column: str, delay: timedelta | int):
        self.column, self.delay, self.state = column, delay, {}
        if (delay if isinstance(delay, int) else delay.total_seconds()) < 0:
            raise ConfigError(
                "delay", "must not be negative", str(delay), "Give how late a tuple may come."
            )

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        column = chunk.column(self.column)
        whole = pa.types.is_integer(column.type)
        if not whole:
            column = pc.cast(
                column, pa.timestamp("us", getattr(column.type, "tz", None) and "UTC"), safe=False
            )
        if whole != isinstance(self.delay, int):
            raise ConfigError(
                "delay",
                "must suit the column of times",
                f"{self.delay}, {self.column}: {column.type}",
                "Give seconds with timestamps and dates, and a number with integers.",
            )
        newest = pc.max(column)
        if not newest.is_valid:
            yield Step(chunk)
            return
        delay = (
            self.delay if isinstance(self.delay, int) else self.delay // timedelta(microseconds=1)
        )
        # closed: all times before newest - delay
        reached = int(newest.cast(pa.int64()).as_py()) - delay - 1
        before = self.state.get("reached")
        if before is not None and reached <= before:
            yield Step(chunk)
            return
        self.state["reached"] = reached
        low, high = (
            None if v is None else pa.scalar(v, pa.int64()).cast(column.type).as_py()
            for v in (None if before is None else before + 1, reached)
        )
        yield Step(chunk, [[{self.column: {"range": [low, high]}}]])


class Clustered(PunctuationSource):
    """Punctuations from clustered keys: a constant follows each change of the key.

    The stream guarantees that a key does not return after another key. If it does, in a later
    chunk, its tuples are quarantined. The state contains the key of the last tuple, which is open.
    """

    def __init__(self, on: Sequence[str]):
        self.on, self.state = list(on), {}

    def steps(self, chunk: pa.RecordBatch) -> Iterator[Step]:
        keys = chunk.select(self.on).drop_null()
        if not keys.num_rows:
            yield Step(chunk)
            return
        last = keys.slice(keys.num_rows - 1)
        seen = keys
        if "open" in self.state:
            held = pa.ipc.read_record_batch(
                pa.py_buffer(base64.b64decode(self.state["open"])), keys.schema
            )
            seen = pa.concat_batches([held, keys])
        open_key = np.ones(seen.num_rows, bool)
        for column, value in zip(seen.columns, last.columns, strict=True):
            open_key &= pc.equal(column, value[0]).to_numpy(zero_copy_only=False)
        self.state["open"] = base64.b64encode(last.serialize().to_pybytes()).decode()
        done = seen.filter(pa.array(~open_key))
        yield Step(chunk, [done] if done.num_rows else [])
