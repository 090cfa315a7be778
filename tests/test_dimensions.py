import gzip
import json
import re

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from semistream.config import Job
from semistream.errors import ConfigError, SemistreamError
from semistream.master import open_snapshot
from semistream.provisioning.dimensions import ProvisionResult, open_dimension, provision, publish
from semistream.warehouse import connect
from semistream.warehouse.schema import rejected_master
from semistream.warehouse.tables import existing_table


def job(path=None, *, on=None, business_key=(), table=None, columns=(), schema=None,
        max_rejected=1):
    return Job.load({"name": "j", "stream": {}, "on": on or {"sku": "sku"}, "columns": columns,
                     "fact_table": "fact",
                     "master": {"name": "product", "path": path and str(path), "table": table,
                                "business_key": business_key,
                                "columns": schema, "max_rejected": max_rejected}})


def stored(engine, table="dim_product"):
    table = existing_table(engine, table)
    with engine.connect() as connection:
        return [dict(r._mapping) for r in connection.execute(select(table).order_by(table.c[0]))]


def rejects(engine):
    with engine.connect() as connection:
        rows = connection.execute(select(rejected_master.c.reason, rejected_master.c.detail,
                                         rejected_master.c.tuple)
                                  .order_by(rejected_master.c.id)).all()
    return [(reason, re.sub(r"^.*/products", "products", detail or ""), text)
            for reason, detail, text in rows]


def counts(result: ProvisionResult):
    assert result.read == result.inserted + result.updated + result.unchanged + result.rejected
    return result.inserted, result.updated, result.unchanged, result.rejected


PRODUCTS = pa.table({"sku": ["b", "a", "B", "c"], "price": [1.5, 2.0, None, 4.0],
                     "name": ["", "tab\t", None, "c"], "n": [1, 2, 3, 4]})


def write(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(r) + "\n" for r in table.to_pylist()))
    return path


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_upsert_keeps_surrogate_keys_and_rewrites_only_what_changed(warehouse, tmp_path, suffix):
    path = write(tmp_path / f"products.{suffix}", PRODUCTS)
    assert counts(provision(job(path), warehouse)) == (4, 0, 0, 0)
    first = {r["sku"]: r for r in stored(warehouse)}
    assert {k: {c: v for c, v in r.items() if c != "product_sk"}
            for k, r in first.items()} == {r["sku"]: r for r in PRODUCTS.to_pylist()}
    assert counts(provision(job(path), warehouse)) == (0, 0, 4, 0)
    assert {r["sku"]: r for r in stored(warehouse)} == first

    changed = pa.table({"sku": ["c", "d", "a"], "price": [None, 9.0, 2.0],
                        "name": ["c", "d", "tab\t"], "n": [4, 5, 2]})
    write(path, changed)
    assert counts(provision(job(path), warehouse)) == (1, 1, 1, 0)
    second = {r["sku"]: r for r in stored(warehouse)}
    assert second["c"] == first["c"] | {"price": None} and second["a"] == first["a"]
    assert second["b"] == first["b"]
    assert len({r["product_sk"] for r in second.values()}) == 5


def test_rows_that_cannot_be_taken_are_counted_and_kept_with_the_reason(warehouse, tmp_path):
    path = tmp_path / "products.csv"
    path.write_text("sku,price,n\na,1.5,1\n,2,2\nb,oops,3\n" + "x" * 191
                    + ",1,4\nragged,1\na,7,5\nc,,6\n")
    result = provision(job(path, schema="sku STRING, price DOUBLE, n INT"), warehouse)
    assert counts(result) == (2, 0, 0, 5)
    assert result.reasons == {"null_key": 1, "unparsable": 2, "long_key": 1, "duplicate_key": 1}
    assert [(r["sku"], r["price"]) for r in stored(warehouse)] == [("a", 7.0), ("c", None)]
    assert sorted(r[0] for r in rejects(warehouse)) == ["long_key", "null_key", "unparsable",
                                                        "unparsable"]
    assert ("unparsable", "products.csv, line 4: price: 'oops' is not double",
            "b,oops,3") in rejects(warehouse)
    assert any(r[0] == "null_key" and json.loads(r[2]) == {"sku": None, "price": 2.0, "n": 2}
               for r in rejects(warehouse))
    again = provision(job(path), warehouse)
    assert counts(again) == (0, 0, 2, 5) and len(rejects(warehouse)) == 4


def test_broken_json_lines_cost_their_own_row_only(warehouse, tmp_path):
    path = tmp_path / "products.jsonl"
    path.write_text('{"sku": "a", "n": 1}\nnot json\n{"sku": "b", "n": 2}\n[1]\n{"sku": "c"}\n')
    assert provision(job(path), warehouse).reasons == {"unparsable": 2}
    path.write_text('{"sku": "a", "n": 1}\n{"sku": "b", "n": "seven"}\n')
    assert counts(provision(job(path), warehouse)) == (0, 0, 1, 1)
    assert [(r["sku"], r["n"]) for r in stored(warehouse)] == [("a", 1), ("b", 2), ("c", None)]


def test_types_declared_are_those_of_the_values(warehouse, tmp_path):
    path = tmp_path / "products"
    (path / "2024").mkdir(parents=True)
    schema = "sku STRING, n INT, price DECIMAL(20,2), at TIMESTAMP"
    (path / "a.csv").write_text(
        "sku,n,price,at\nNA, 7 ,1.5,2024-01-02 03:04:05\nnan,NaN,#N/A,2024-01-02T03:04:05+01:00\n")
    (path / "2024" / "b.csv.gz").write_bytes(gzip.compress(b"sku,n,price,at\n\"\",1,N/A,NA\n"))
    assert counts(provision(job(path, schema=schema), warehouse)) == (3, 0, 0, 0)
    rows = {r["sku"]: (r["n"], r["price"] and str(r["price"]), r["at"] and r["at"].hour)
            for r in stored(warehouse)}
    assert rows == {"NA": (7, "1.50", 3), "nan": (None, None, 2), "": (1, None, None)}


def test_json_values_in_another_form_are_taken(warehouse, tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.source.SAMPLE", 1)
    monkeypatch.setattr("semistream.files.source.BLOCK", 16)
    path = tmp_path / "products.jsonl"
    path.write_text('{"sku": 7, "n": "seven"}\n{"sku": "a", "n": "8"}\n{"sku": "b", "n": "NA", '
                    '"price": 123456789012345678.25}\n{"sku": "c"}\n{"sku": "d", "price": '
                    'NaN}\n{"sku": "\\ud800"}\n')
    assert counts(provision(job(path, schema="sku STRING, n INT, price DECIMAL(20,2)"),
                            warehouse)) == (4, 0, 0, 2)
    assert [(r["sku"], r["n"], r["price"] and str(r["price"])) for r in stored(warehouse)] == [
        ("a", 8, None), ("b", None, "123456789012345678.25"), ("c", None, None), ("d", None, None)]
    assert rejects(warehouse) == [("unparsable", "products.jsonl, line 1: n: 'seven' is not int32",
                                   '{"sku": 7, "n": "seven"}'),
                                  ("unparsable", "products.jsonl, line 6: not one JSON object",
                                   '{"sku": "\\ud800"}')]


def test_from_a_table_of_the_same_and_of_another_database(warehouse, tmp_path):
    write(tmp_path / "p.parquet", PRODUCTS)
    other = connect(f"sqlite:///{tmp_path / 'other.db'}")
    for engine in (warehouse, other):
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE legacy (sku CHAR(9) PRIMARY KEY, price "
                                       "DECIMAL(10,2), seen DATETIME, n INT)")
            connection.exec_driver_sql("INSERT INTO legacy VALUES ('a', 1.25, '2024-01-02 "
                                       "03:04:05', 7), ('b', NULL, NULL, NULL)")
    assert counts(provision(job(table="legacy"), warehouse)) == (2, 0, 0, 0)
    assert str(stored(warehouse)[0]["price"]) == "1.25"
    assert counts(provision(job(table="legacy"), warehouse, url=str(other.url))) == (0, 0, 2, 0)


def test_many_to_many_masters_have_a_business_key_of_their_own(warehouse, tmp_path):
    path = write(tmp_path / "p.parquet",
                 pa.table({"id": [1, 2, 3, 4], "sku": ["a", "a", "b", None], "n": [1, 2, 3, 4]}))
    spec = job(path, business_key=["id"])
    assert counts(provision(spec, warehouse)) == (4, 0, 0, 0)
    manifest, new = publish(spec, warehouse, tmp_path / "snapshots")
    assert new and not manifest.unique and (manifest.tuple_count, manifest.null_keys) == (3, 1)


def test_a_snapshot_is_published_only_if_something_changed(warehouse, tmp_path):
    path, snapshots = write(tmp_path / "p.parquet", PRODUCTS), tmp_path / "snapshots"
    provision(job(path), warehouse)
    first, new = publish(job(path), warehouse, snapshots)
    assert new and first.version == "v000001" and first.tuple_count == 4
    provision(job(path), warehouse)
    assert publish(job(path), warehouse, snapshots) == (first, False)
    write(path, PRODUCTS.slice(0, 1).set_column(1, "price", pa.array([99.0])))
    provision(job(path), warehouse)
    second, new = publish(job(path), warehouse, snapshots)
    assert new and second.version == "v000002"
    relation = open_snapshot(snapshots / "product")
    rows = [r for i in range(relation.partition_count)
            for r in relation.read(i, relation.schema.names).to_pylist()]
    assert sorted(rows, key=lambda r: r["product_sk"]) == stored(warehouse)
    assert {r["price"] for r in rows if r["sku"] == "b"} == {99.0}


def test_types_survive_the_warehouse(warehouse, tmp_path):
    import datetime as dt
    from decimal import Decimal

    table = pa.table({"sku": pa.array([1, 2], pa.uint16()),
                      "f": pa.array([0.1, None], pa.float32()), "b": [True, None],
                      "z": pa.array([dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC), None],
                                    pa.timestamp("ms", "UTC")),
                      "w": pa.array([Decimal("1" * 20 + ".01"), None], pa.decimal128(30, 2)),
                      "nothing": pa.nulls(2),
                      "cat": pa.array(["x", None]).dictionary_encode(), "bin": [b"\0", None]})
    provision(job(write(tmp_path / "p.parquet", table)), warehouse)
    publish(job(tmp_path / "p.parquet"), warehouse, tmp_path)
    relation = open_snapshot(tmp_path / "product")
    rows = [r for i in range(relation.partition_count)
            for r in relation.read(i, table.schema.names).to_pylist()]
    assert sorted(rows, key=lambda r: r["sku"]) == table.to_pylist()
    assert relation.schema.field("z").type == pa.timestamp("us", "UTC")
    assert relation.schema.field("f").type == pa.float32()


@pytest.mark.parametrize("change, message", [
    ({"on": {"sku": "nope"}}, "nope"), ({"columns": ["nope"]}, "nope"),
                                             ({"on": {"sku": "price"}},
                                              "must name columns of an integer")])
def test_a_master_that_does_not_fit_the_job_is_refused(warehouse, tmp_path, change, message):
    path = write(tmp_path / "p.parquet", PRODUCTS)
    with pytest.raises(ConfigError, match=message):
        provision(job(path, **change), warehouse)


def test_a_master_with_other_columns_than_before_is_refused(warehouse, tmp_path):
    path = write(tmp_path / "p.parquet", PRODUCTS)
    provision(job(path), warehouse)
    write(path, PRODUCTS.append_column("more", pa.array([1, 2, 3, 4])))
    with pytest.raises(ConfigError, match=r"\['more'\]"):
        provision(job(path), warehouse)
    with pytest.raises(ConfigError, match="file or a directory"):
        provision(job(tmp_path / "absent.csv"), warehouse)
    (tmp_path / "p.dat").write_text("")
    with pytest.raises(ConfigError, match="csv, json or parquet"):
        provision(job(tmp_path / "p.dat"), warehouse)
    with pytest.raises(ConfigError, match="must have been provisioned"):
        open_dimension(warehouse, "nobody")


def test_too_many_rows_that_cannot_be_taken_leave_the_dimension_as_it_was(warehouse, tmp_path):
    path = tmp_path / "products.csv"
    path.write_text("sku,price\n" + "".join(f"s{i},{i}\n" for i in range(200)))
    assert counts(provision(job(path, max_rejected=0.01), warehouse)) == (200, 0, 0, 0)
    path.write_text("sku,price\n" + "".join(f"s{i},{'x' if i < 3 else i + 1}\n" for i in range(200))
                    + "s9,9\n")
    with pytest.raises(SemistreamError, match=r"(?s)3 of 201 rows of .*\(unparsable 3\).*line 2: "
                                              r"price: 'x' is not .* in s0,x"):
        provision(job(path, max_rejected=0.01), warehouse)
    assert sorted(r["price"] for r in stored(warehouse)) == list(range(200))
    assert rejects(warehouse) == []
    # a duplicate is none of them
    assert counts(provision(job(path, max_rejected=0.015), warehouse))[3] == 4
