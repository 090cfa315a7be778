"""Totals of keys that have become final, against plain dicts, on each kind of database."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import select

from semistream.errors import ConfigError
from semistream.job import StreamStreamJob
from semistream.streaming.sinks.base import with_key
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.warehouse import create_all
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.closing import AT_ONCE, Final
from semistream.warehouse.load_ids import app_loads, load_id
from semistream.warehouse.tables import existing_table, fact_table

LEFT = pa.schema([("a", pa.int64()), ("b", pa.string())])
RIGHT = pa.schema([("price", pa.decimal128(12, 2)), ("size", pa.float64()), ("day", pa.date32())])
TOTALS = {
    "n": "count",
    "sizes": "count(size)",
    "paid": "sum(price)",
    "area": "sum(size)",
    "first": "min(day)",
    "most": "max(price)",
}


def opened(url, on, totals=TOTALS, right=RIGHT):
    job = StreamStreamJob.load(
        {
            "name": "j",
            "left": {"path": "l"},
            "right": {"path": "r"},
            "on": on,
            "fact_table": "fact_j",
            "totals": totals,
        }
    )
    sink = SqlSink(Warehouse.of(url, job))
    create_all(sink.warehouse.engine)
    return sink.prepare(LEFT, right, ())


def total(rows):
    prices, sizes, days = ([r[i] for r in rows if r[i] is not None] for i in range(3))
    return (
        len(rows),
        len(sizes),
        sum(prices) if prices else None,
        sum(sizes) if sizes else None,
        min(days, default=None),
        max(prices, default=None),
    )


@pytest.mark.parametrize("on", [["a"], ["b"], ["a", "b"]], ids="+".join)
def test_equals_what_plain_dicts_add_up(warehouse_url, on):
    """Constants and patterns, of two partitions, over several loads; and a load that is taken back
    has closed nothing."""
    sink, rng = opened(warehouse_url, on), np.random.default_rng(3)
    fact = fact_table("fact_j", LEFT, (), RIGHT)
    number = sink.warehouse.ledger("app").number()
    at = [LEFT.names.index(k) for k in on]
    facts, wanted = defaultdict(list), {}  # by key: rows; the batch that closes it, and its totals
    for batch in range(4):
        for partition in (0, 1):
            load, final = load_id(number, batch, 0, partition), chosen(rng, on, facts)
            # both columns tell whose a key is
            keys = [
                (int(2 * k + partition), f"Ä{k % 70} {partition}")
                for k in rng.integers(0, 900, 1500)
            ]
            rows = [
                (
                    *k,
                    Decimal(int(rng.integers(0, 9999))) / 100,
                    None if rng.random() < 0.2 else float(rng.integers(0, 64)) / 8,
                    date(2026, 1, 1) + timedelta(int(rng.integers(0, 99))),
                )
                for k in keys
                if tuple(k[i] for i in at) not in wanted
            ]
            table = pa.Table.from_pylist(
                [
                    dict(zip((*LEFT.names, *RIGHT.names), r, strict=True))
                    for r in [*rows, (None, None, Decimal(1), 1.0, None)]
                ],
                pa.schema([*LEFT, *RIGHT]),
            )
            with sink.warehouse.engine.begin() as connection:
                bulk_insert(connection, fact, with_key(table, load))
                sink.closing.close(connection, fact, load, app_loads(number), final)
            for r in rows:
                facts[tuple(r[i] for i in at)].append(r[2:])
            for key, of in facts.items():
                mine = (key[0] % 2 if "a" in on else int(key[0][-1])) == partition
                if mine and key not in wanted and is_final(final, dict(zip(on, key, strict=True))):
                    wanted[key] = batch, total(of)
    assert closed(sink) == {key: of for key, (_, of) in wanted.items()} and len(wanted) > 60
    sink.take_back("app", 3, 0)
    left = {key: of for key, (batch, of) in wanted.items() if batch < 3}
    assert closed(sink) == left and 0 < len(left) < len(wanted)


def chosen(rng, on, facts):
    """Some keys that there are, and a pattern over the first column."""
    some = [dict(zip(on, k, strict=True)) for k in sorted(facts) if rng.random() < 0.2]
    constants = pa.Table.from_pylist(some) if some else pa.table({})
    low = int(rng.integers(0, 70 if on == ["b"] else 1800))
    value = (lambda n: f"Ä{n} 1") if on == ["b"] else int
    return Final(
        constants,
        [
            {on[0]: {"range": [value(low), value(low + 9)]}},
            {on[0]: {"in": [value(n) for n in range(low, low + AT_ONCE + 9)]}},
            {on[0]: value(low + 20)},
        ],
    )


def is_final(final, key):
    within, many, one = (next(iter(pattern.values())) for pattern in final.patterns)
    low, high = within["range"]
    first = next(iter(key.values()))
    if low <= first <= high or first in many["in"] or first == one:
        return True
    return key in final.constants.to_pylist()


def closed(sink):
    """Totals by key."""
    table = existing_table(sink.engine, "fact_j_closed")
    with sink.warehouse.engine.connect() as connection:
        rows = connection.execute(select(table)).all()
    width = len(sink.closing.keys)
    found = {tuple(r[:width]): tuple(r[width:-2]) for r in rows}
    assert len(found) == len(rows)
    return found


def test_totals_that_no_database_can_add_up_are_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'warehouse.db'}"
    long = pa.schema([("price", pa.decimal128(20, 2))])
    opened(url, ["a"], {"n": "count(price)"}, long)
    with pytest.raises(ConfigError, match="fewer digits in SQLite"):
        opened(url, ["a"], {"most": "max(price)"}, long)
    for totals, join_type, words in (
        ({"n": "avg(price)"}, "inner", "count, sum, min or max"),
        ({"n": "count"}, "full", "inner or left"),
    ):
        with pytest.raises(ConfigError, match=words):
            StreamStreamJob.load(
                {
                    "name": "j",
                    "left": {"path": "l"},
                    "right": {"path": "r"},
                    "on": "a",
                    "fact_table": "f",
                    "totals": totals,
                    "join_type": join_type,
                }
            )
