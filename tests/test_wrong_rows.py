"""Rows that were changed, lost or put there are named, with what they were and what they are."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
import sqlalchemy as sa

import sink_loads
from csv_loads import CsvLoad, sale
from semistream.quality import findings
from sink_loads import (
    BATCHES,
    ON_SQLITE,
    STREAM,
    Loader,
    alter,
    check,
    failed,
    orders,
    products,
    publish,
    rows_of,
)


def named(result) -> set[tuple]:
    return {
        tuple(r[n] for n in ("table", "finding", "stream_id", "column", "old", "new"))
        for r in rows_of(result, "same_rows")
    }


ALTERED = [
    "DELETE FROM fact_sales WHERE order_id IN (20, 21, 82)",
    "UPDATE fact_sales SET quantity = 77 WHERE order_id = 25",
    "UPDATE fact_sales SET quantity = NULL WHERE order_id = 90",
    "UPDATE fact_sales SET name = 'other' WHERE order_id = 41",
]


def test_rows_that_were_changed_and_lost(loader):
    loader.load(range(BATCHES))
    alter(loader, *ALTERED)
    result = check(loader)
    assert {"same_rows", "none_missing", "fact_rows"} <= failed(result)
    found = named(result)
    assert {f for f in found if f[1] == "changed"} == {
        ("fact_sales", "changed", "25", "quantity", "0", "77"),
        ("fact_sales", "changed", "90", "quantity", "0", None),
        ("fact_sales", "changed", "41", "name", "Product 7 100%: 'new'", "other"),
    }
    missing = {f[2]: json.loads(f[4]) for f in found if f[1] == "missing"}
    assert set(missing) == {"20", "21", "82"} and len(found) == 6
    assert missing["20"] == {
        "order_id": 20,
        "sku": "p00",
        "quantity": 0,
        "day": "2026-02-21",
        "sales_sk": 1,
        "name": "Product 0 100%: 'new'",
        "price": "0.00",
        "colour": None,
        "sales_day": "2026-01-01",
    }
    page = result.report.read_text()
    assert "Product 7 100%: &#39;new&#39;" in page and "semistream reset sales" in page


@ON_SQLITE
def test_a_row_that_is_lost_is_told_of_its_load(loader):
    loader.load(range(BATCHES))
    alter(loader, "DELETE FROM fact_sales WHERE order_id IN (20, 131)")
    rows = rows_of(check(loader), "same_rows")
    assert {(r["stream_id"], r["batch"], r["partition"]) for r in rows} == {
        ("20", 0, 0),
        ("131", 2, 1),
    }


@pytest.mark.parametrize("shape", [{"many": True}, {"left": True}], ids=str)
def test_other_joins(warehouse_url, tmp_path, shape):
    loader = Loader(warehouse_url, tmp_path, **shape)
    loader.load(range(BATCHES))
    with loader.engine.connect() as connection:
        f = loader.fact.c
        sk = connection.scalar(sa.select(sa.func.max(f.sales_sk)).where(f.order_id == 20))
    alter(
        loader,
        f"UPDATE fact_sales SET colour = 'odd' WHERE order_id = 20 AND sales_sk = {sk}",
        "DELETE FROM fact_sales WHERE order_id = 62"
        + (" AND (sales_sk & 1) = 0" if "many" in shape else ""),
    )
    found = named(check(loader))
    old = products("many" in shape)[sk - 1]["colour"]
    assert ("fact_sales", "changed", "20", "colour", old, "odd") in found
    assert [f[:3] for f in found if f[1] != "changed"] == [("fact_sales", "missing", "62")]


def test_an_id_that_was_changed_is_surplus_and_missing(loader):
    loader.load(range(BATCHES))
    alter(loader, "UPDATE fact_sales SET order_id = 99999 WHERE order_id = 20")
    found = rows_of(check(loader), "same_rows")
    assert {(r["finding"], r["stream_id"], r["batch"], r["partition"]) for r in found} == {
        ("surplus", "99999", 0, 0),
        ("missing", "20", 0, 0),
    }


def test_unmatched_tuples(loader):
    loader.load(range(BATCHES))
    alter(
        loader,
        "DELETE FROM unmatched WHERE stream_id = '9'",
        "UPDATE unmatched SET reason = 'null_key' WHERE stream_id = '19'",
        "UPDATE unmatched SET stream_id = '5000' WHERE stream_id = '14'",
        "UPDATE unmatched SET tuple = REPLACE(tuple, 'x39', 'x93') WHERE stream_id = '39'",
    )
    found = named(check(loader))
    assert {f[1:3] for f in found} == {
        ("missing", "9"),
        ("changed", "19"),
        ("surplus", "5000"),
        ("missing", "14"),
        ("changed", "39"),
    }
    assert ("unmatched", "changed", "19", "reason", "no_match", "null_key") in found
    assert ("unmatched", "changed", "39", "sku", "x39", "x93") in found


def test_what_was_loaded_with_an_older_version(loader, tmp_path):
    snapshots = tmp_path / "snapshots"
    loader.version = publish(loader, snapshots)
    loader.load(range(1))
    alter(loader, "UPDATE dim_sales SET name = 'renamed' WHERE sku = 'p00'")
    loader.version = publish(loader, snapshots)
    loader.load(range(1, 3))
    alter(
        loader,
        "UPDATE fact_sales SET name = 'renamed' WHERE order_id = 20",
        "UPDATE fact_sales SET name = 'Product 0' WHERE order_id = 60",
    )
    assert named(check(loader, snapshots=snapshots)) == {
        ("fact_sales", "changed", "20", "name", "Product 0 100%: 'new'", "renamed"),
        ("fact_sales", "changed", "60", "name", "renamed", "Product 0"),
    }


@ON_SQLITE
def test_where_the_source_is_gone_what_the_join_added_is_compared(loader):
    loader.load(range(BATCHES))
    (loader.directory / "orders-1.parquet").unlink()
    alter(
        loader,
        "UPDATE fact_sales SET quantity = 77 WHERE order_id = 25",
        "UPDATE fact_sales SET name = 'other' WHERE order_id = 41",
        "UPDATE fact_sales SET quantity = 5 WHERE order_id = 130",
    )
    result = check(loader)
    found = named(result)
    assert ("fact_sales", "changed", "41", "name", "Product 7 100%: 'new'", "other") in found
    assert {f[1] for f in found} == {"changed", "another checksum; no row of it could be named"}
    assert "the stream&#39;s own are not" in result.report.read_text()


@ON_SQLITE
def test_a_source_of_text(loader):
    """A row with a cell that is empty is not given whole: what the join added to it is compared."""
    loader.load(range(1))
    file = loader.directory / "orders-0.parquet"
    loader.read_from(0, file, "csv")
    file.write_text(
        "order_id,sku,quantity,day\n"
        + "".join(
            f"{o['order_id']},{o['sku'] or ''},{o['quantity']},{o['day']}\n" for o in orders(0)
        )
    )
    alter(
        loader,
        *(s for s in ALTERED if "82" not in s and "90" not in s),
        "DELETE FROM fact_sales WHERE order_id = 22",
    )
    found = named(check(loader))
    assert {f[1:4] for f in found} == {
        ("changed", "25", "quantity"),
        ("changed", "41", "name"),
        ("missing", "22", None),
    }


@ON_SQLITE
def test_many_wrong_rows_are_counted_and_the_first_are_named(loader, monkeypatch):
    loader.load(range(BATCHES))
    monkeypatch.setattr(findings, "NAMED", 5)
    alter(loader, "UPDATE fact_sales SET quantity = quantity + 1")
    result = check(loader)
    assert len([f for f in named(result) if f[1] == "changed"]) == 5
    assert (
        "156 rows of fact_sales are not as they were loaded, and 156 that were loaded are not "
        "there; the first 5 are compared" in result.report.read_text()
    )


def test_columns_that_are_called_as_staged_ones_were(warehouse_url, tmp_path, monkeypatch):
    names = ["batch", "version", "number", "stream_id", "place", "times", "column", "path"]
    more = [pa.field(n, pa.int64()) for n in names]
    for schema in ("STREAM", "JOINED", "KEPT"):
        known = list(getattr(sink_loads, schema))
        wider = [*known[: len(STREAM)], *more, *known[len(STREAM) :]]
        monkeypatch.setattr(sink_loads, schema, pa.schema(wider))
    monkeypatch.setattr(
        sink_loads,
        "orders",
        lambda batch: [{**o, **dict.fromkeys(names, o["order_id"])} for o in orders(batch)],
    )
    loader = Loader(warehouse_url, tmp_path)
    loader.load(range(2), drain=False)
    assert check(loader).success
    loader.load(range(2, 3))
    assert check(loader, since_last=True).success
    alter(
        loader,
        "UPDATE fact_sales SET version = 1 WHERE order_id = 20",
        "DELETE FROM fact_sales WHERE order_id = 21",
    )
    found = named(check(loader))
    assert {f[1:4] for f in found} == {("changed", "20", "version"), ("missing", "21", None)}
    for file in loader.directory.iterdir():
        file.unlink()
    assert "unique_ids" not in failed(check(loader))


@pytest.mark.parametrize("length", [300, 20_000])
def test_a_row_with_a_long_text_beside_one_that_was_edited(tmp_path, spark, length):
    load = CsvLoad(tmp_path)
    long = "é" * length
    load.add("0.csv", *map(sale, range(20)), f"20,p1,1.00,1,2026-01-01 10:00:00,{long}")
    load.run(spark, partitions=1)
    load.alter("UPDATE fact_sales SET note = 'edited' WHERE id = 3")
    (row,) = load.failures()["same_rows"]
    assert (row["stream_id"], row["column"], row["new"]) == ("3", "note", "edited")
    load.alter("UPDATE fact_sales SET note = substr(note, 2) WHERE id = 20")
    rows = {r["stream_id"]: r for r in load.failures()["same_rows"]}
    assert rows.keys() == {"3", "20"} and rows["20"]["column"] == "note"
