"""Generated streams and masters: duplicates, misses, nulls, skew, gaps, empty chunks, keys of every
kind."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

KEY_KINDS = {
    "int64": (pa.int64(), lambda i: i - 3),
    "int16": (pa.int16(), lambda i: i - 3),
    "uint64": (pa.uint64(), lambda i: 2**63 + i),
    "string": (pa.string(), lambda i: f"key {i}" * (i % 3) + "é"),
    "date": (pa.date32(), lambda i: dt.date(1969, 12, 25) + dt.timedelta(i)),
    "timestamp": (
        pa.timestamp("us"),
        lambda i: dt.datetime(1969, 12, 31, 23) + dt.timedelta(minutes=7 * i),
    ),
    "decimal": (pa.decimal128(12, 2), lambda i: Decimal(i - 5) / 4),
    "wide decimal": (pa.decimal128(38, 4), lambda i: Decimal(10) ** 30 * (i - 4)),
    "boolean": (pa.bool_(), lambda i: bool(i % 2)),
    "binary": (pa.binary(), lambda i: bytes([i]) * (i % 4)),
}


def keys(kind, numbers):
    arrow, make = KEY_KINDS[kind]
    return pa.array([None if i is None else make(i) for i in numbers], arrow)


@st.composite
def joins(draw):
    """(stream table, master table, on, chunk lengths): small, and full of what goes wrong."""
    kinds = draw(st.lists(st.sampled_from(sorted(KEY_KINDS)), min_size=1, max_size=2))
    number = st.one_of(st.none(), st.integers(0, 3), st.integers(0, 40))
    width = len(kinds)
    row = st.tuples(*[number] * width)
    r = draw(st.lists(row, max_size=60))
    s = draw(st.lists(row, max_size=200))
    master = pa.table(
        {
            **{f"m{i}": keys(k, [x[i] for x in r]) for i, k in enumerate(kinds)},
            "name": pa.array(
                [None if i % 7 == 3 else "n" * (i % 5) for i in range(len(r))], pa.string()
            ),
            "price": pa.array([Decimal(i) / 10 for i in range(len(r))], pa.decimal128(10, 1)),
            "new": pa.array([i % 3 == 0 for i in range(len(r))], pa.bool_()),
        }
    )
    stream = pa.table(
        {
            "id": pa.array(range(len(s)), pa.int32()),
            **{f"s{i}": keys(k, [x[i] for x in s]) for i, k in enumerate(kinds)},
            "note": pa.array(
                [None if i % 5 == 2 else "x" * (i % 11) for i in range(len(s))], pa.string()
            ),
            "paid": pa.array(
                [None if i % 4 == 1 else i % 2 == 0 for i in range(len(s))], pa.bool_()
            ),
        }
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(s)), max_size=6)))
    lengths = [b - a for a, b in zip([0, *cuts], [*cuts, len(s)], strict=True)]
    return stream, master, [(f"s{i}", f"m{i}") for i in range(width)], lengths
