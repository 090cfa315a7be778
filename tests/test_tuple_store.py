"""Tuples in numbered slots."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream.joins.tuple_store import TupleStore

TYPES = {
    "truth": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-1, 7]),
    "short": (pa.uint16(), [1, 60_000]),
    "day": (pa.date32(), [date(2026, 1, 2), date(1, 1, 1)]),
    "long": (pa.int64(), [-(2**62), 5]),
    "double": (pa.float64(), [0.5, -1e300]),
    "money": (pa.decimal128(20, 2), [Decimal("1.25"), Decimal("-99999999999.99")]),
    "wide": (pa.decimal256(50, 0), [Decimal(7), Decimal(-(10**49))]),
    "three": (pa.binary(3), [b"abc", b"\0\0\1"]),
    "word": (pa.string(), ["", "a long word"]),
    "bytes": (pa.binary(), [b"\xff", b"12345"]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
SLOTS, HEAP = 300, 1 << 20


def batch(rng, rows, null, schema=SCHEMA):
    columns = []
    for field in schema:
        kind, values = TYPES[field.name]
        chosen = rng.integers(0, 2, rows)
        missing = rng.random(rows) < null
        columns.append(
            pa.array([None if m else values[c] for c, m in zip(chosen, missing, strict=True)], kind)
        )
    # a slice, as batches of readers are
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(3)


@pytest.mark.parametrize(
    "names",
    [list(TYPES), ["long"], ["word"], ["truth"], []],
    ids=lambda names: "+".join(names) or "none",
)
def test_a_slot_has_what_was_put_there_last(names):
    """Nulls come late and go again, in slots that had others."""
    rng, schema = np.random.default_rng(1), pa.schema([SCHEMA.field(n) for n in names])
    store, expected, end = TupleStore(schema, SLOTS, HEAP), {}, 0
    for null in (0.0, 0.0, 0.5, 0.0, 0.1, 1.0, 0.0):
        rows = batch(rng, 103, null, schema)
        of = rng.permutation(100)[:60]
        slots = rng.permutation(SLOTS)[:60]
        end = store.put(rows, of, slots, end)
        expected |= dict(zip(slots.tolist(), rows.take(pa.array(of)).to_pylist(), strict=True))
        asked = rng.choice(np.array(list(expected)), 200)
        columns = store.get(asked)
        for column in columns:
            column.validate(full=True)
        assert (pa.table(columns, schema=schema).to_pylist() if names else [{}] * 200) == [
            expected[s] for s in asked.tolist()
        ]


def test_single_columns_are_those_of_all():
    rng = np.random.default_rng(2)
    store, slots = TupleStore(SCHEMA, SLOTS, HEAP), np.arange(100)
    store.put(batch(rng, 103, 0.3), slots, slots)
    columns = store.get(slots)
    for i, column in enumerate(columns):
        assert store.get(slots, [i])[0].equals(column)
    assert store.get(slots, [4, 0]) == [columns[4], columns[0]]
    assert store.get(slots[:0]) == [c.slice(0, 0) for c in columns]


def test_tuples_move_whole():
    rng = np.random.default_rng(3)
    store, slots = TupleStore(SCHEMA, SLOTS, HEAP), np.arange(100)
    store.put(batch(rng, 103, 0.3), slots, slots)
    before, kept = store.get(slots), np.flatnonzero(rng.random(100) < 0.5)
    store.tuples[: len(kept)] = store.tuples[kept]
    assert store.get(slots[: len(kept)]) == [c.take(pa.array(kept)) for c in before]


def test_a_slot_takes_what_is_told():
    store = TupleStore(SCHEMA, SLOTS, HEAP)
    assert store.rows.nbytes == SLOTS * TupleStore.slot_bytes(SCHEMA)
    assert TupleStore.slot_bytes(SCHEMA) == 1 + 1 + 2 + 4 + 8 + 8 + 16 + 32 + 3 + 8 + 8 + 2


@pytest.mark.parametrize("words", [0, 1, 3, 200], ids="{} bytes at most".format)
def test_gaps_are_closed_in_whatever_order_the_values_lie(words):
    rng, schema = (
        np.random.default_rng(4),
        pa.schema([("a", pa.string()), ("n", pa.int64()), ("b", pa.binary())]),
    )
    store, end, slots = TupleStore(schema, SLOTS, HEAP), 0, rng.permutation(SLOTS)
    for part in np.array_split(slots, 7):
        texts = [
            chr(97 + n % 26) * size
            for n, size in zip(part, rng.integers(0, words + 1, len(part)), strict=True)
        ]
        rows = pa.record_batch(
            [texts, part, [bytes([n % 256]) * len(t) for n, t in zip(part, texts, strict=True)]],
            schema=schema,
        )
        end = store.put(rows, np.arange(len(part)), part, end)
    live = np.sort(rng.permutation(SLOTS)[: SLOTS // 3])
    before = store.get(live)
    closed = store.close_gaps([live] * 2, 0)
    assert closed == sum(pc.sum(pc.binary_length(before[c])).as_py() for c in (0, 2))
    assert store.get(live) == before
    assert store.close_gaps([live] * 2, 0) == closed and store.get(live) == before
    assert store.close_gaps([live[:0]] * 2, 0) == 0
