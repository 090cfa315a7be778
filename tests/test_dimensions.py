import datetime as dt
import gzip
import json
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from sqlalchemy import Column, DateTime, Integer, MetaData, Numeric, String, Table, inspect, select

from provisioned import provision, publish
from semistream.errors import ConfigError, SemistreamError
from semistream.job import Dimension, Job
from semistream.master.snapshot import open_snapshot
from semistream.provisioning import dimensions
from semistream.provisioning.dimensions import ProvisionResult
from semistream.provisioning.publishing import open_dimension
from semistream.warehouse import connect
from semistream.warehouse.schema import rejected_master
from semistream.warehouse.tables import existing_table


def job(
    path=None,
    *,
    on=None,
    business_key=(),
    table=None,
    columns=(),
    schema=None,
    max_rejected=1,
    allow_empty=False,
    name="product",
):
    return Job.load(
        {
            "name": "j",
            "stream": {},
            "on": on or {"sku": "sku"},
            "columns": columns,
            "fact_table": "fact",
            "master": {
                "name": name,
                "path": path and str(path),
                "table": table,
                "business_key": business_key,
                "columns": schema,
                "max_rejected": max_rejected,
                "allow_empty": allow_empty,
            },
        }
    )


def stored(engine, table="dim_product"):
    table = existing_table(engine, table)
    with engine.connect() as connection:
        return [dict(r._mapping) for r in connection.execute(select(table).order_by(table.c[0]))]


def rejects(engine):
    with engine.connect() as connection:
        rows = connection.execute(
            select(
                rejected_master.c.reason, rejected_master.c.detail, rejected_master.c.tuple
            ).order_by(rejected_master.c.id)
        ).all()
    return [
        (reason, re.sub(r"^.*/products", "products", detail or ""), text)
        for reason, detail, text in rows
    ]


def counts(result: ProvisionResult):
    assert result.read == result.inserted + result.updated + result.unchanged + result.rejected
    return result.inserted, result.updated, result.unchanged, result.rejected


PRODUCTS = pa.table(
    {
        "sku": ["b", "a", "B", "c"],
        "price": [1.5, 2.0, None, 4.0],
        "name": ["", "tab\t", None, "c"],
        "n": [1, 2, 3, 4],
    }
)


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
    assert {k: {c: v for c, v in r.items() if c != "product_sk"} for k, r in first.items()} == {
        r["sku"]: r for r in PRODUCTS.to_pylist()
    }
    assert counts(provision(job(path), warehouse)) == (0, 0, 4, 0)
    assert {r["sku"]: r for r in stored(warehouse)} == first

    changed = pa.table(
        {
            "sku": ["c", "d", "a"],
            "price": [None, 9.0, 2.0],
            "name": ["c", "d", "tab\t"],
            "n": [4, 5, 2],
        }
    )
    write(path, changed)
    result = provision(job(path), warehouse)
    assert (counts(result), result.absent) == ((1, 1, 1, 0), 2)
    second = {r["sku"]: r for r in stored(warehouse)}
    assert second["c"] == first["c"] | {"price": None} and second["a"] == first["a"]
    assert second["b"] == first["b"]
    assert len({r["product_sk"] for r in second.values()}) == 5
    noted = stored(warehouse, "master_changes")
    assert [(r["inserted"], r["updated"], r["rejected"]) for r in noted] == [(4, 0, 0), (1, 1, 0)]
    assert noted[1]["changes"] == stored(warehouse, "masters")[0]["changes"]


def test_of_rows_with_the_same_key_the_last_one_stays(warehouse, tmp_path):
    """In whichever order they come; a column may have the name that SQLite numbers rows by."""
    rows = pa.table(
        {
            "sku": ["b", "a", "b", "a", "b"],
            "rowid": [9, 7, 1, 8, 5],
            "part": ["y", "x", "y", "x", "x"],
        }
    )
    path = write(tmp_path / "products.parquet", rows)
    assert counts(provision(job(path, business_key=["sku"]), warehouse)) == (2, 0, 0, 3)
    assert [(r["sku"], r["rowid"]) for r in stored(warehouse)] == [("a", 8), ("b", 5)]
    write(path, rows.slice(0, 4))
    assert counts(provision(job(path, business_key=["sku"]), warehouse)) == (0, 1, 1, 2)
    assert [(r["sku"], r["rowid"]) for r in stored(warehouse)] == [("a", 8), ("b", 1)]


def test_rows_in_no_order_are_written_a_few_times_and_not_at_random_places(tmp_path):
    """Of SQLite, whose B-trees would be read and written again with every row."""
    keys = np.random.default_rng(1).permutation(60_000)
    path = write(
        tmp_path / "products.parquet", pa.table({"sku": [f"k{k:06}" for k in keys], "n": keys})
    )
    file = tmp_path / "warehouse.db"
    engine = connect(f"sqlite:///{file}")
    before = transferred()
    provision(job(path), engine)
    provision(job(path), engine)
    moved = transferred()
    engine.dispose()
    size = file.stat().st_size
    assert moved["wchar"] - before["wchar"] < 15 * size
    assert moved["rchar"] - before["rchar"] < 20 * size


def transferred() -> dict[str, int]:
    """Bytes that this process has read and written so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}


def test_rows_that_cannot_be_taken_are_counted_and_kept_with_the_reason(warehouse, tmp_path):
    path = tmp_path / "products.csv"
    path.write_text(
        "sku,price,n\na,1.5,1\n,2,2\nb,oops,3\n" + "x" * 191 + ",1,4\nragged,1\na,7,5\nc,,6\n"
    )
    result = provision(job(path, schema="sku STRING, price DOUBLE, n INT"), warehouse)
    assert counts(result) == (2, 0, 0, 5)
    assert result.reasons == {"null_key": 1, "unparsable": 2, "long_key": 1, "duplicate_key": 1}
    assert [(r["sku"], r["price"]) for r in stored(warehouse)] == [("a", 7.0), ("c", None)]
    assert sorted(r[0] for r in rejects(warehouse)) == [
        "duplicate_key",
        "long_key",
        "null_key",
        "unparsable",
        "unparsable",
    ]
    assert (
        "unparsable",
        "products.csv, line 4: price: 'oops' is not DOUBLE",
        "b,oops,3",
    ) in rejects(warehouse)
    assert any(
        r[0] == "null_key" and json.loads(r[2]) == {"sku": None, "price": 2.0, "n": 2}
        for r in rejects(warehouse)
    )
    (duplicate,) = (r for r in rejects(warehouse) if r[0] == "duplicate_key")
    assert duplicate[1] == "a later row has the same sku, a"
    assert json.loads(duplicate[2]) == {"sku": "a", "price": 1.5, "n": 1}
    again = provision(job(path), warehouse)
    assert counts(again) == (0, 0, 2, 5) and len(rejects(warehouse)) == 5


def test_of_rows_with_one_key_all_but_the_last_are_kept_as_rejected(
    warehouse, tmp_path, monkeypatch
):
    """Also far apart, by a key of two columns, and no more than some. That takes one more read."""
    opened, open_rows = [], dimensions.open_rows
    monkeypatch.setattr(
        dimensions, "open_rows", lambda *given: opened.append(given) or open_rows(*given)
    )
    path = tmp_path / "products.csv"
    lines = [f"p{i % 400000},{i % 2},{i}" for i in range(400_900)]
    path.write_text("\n".join(["sku,half,n", *lines, "p3,1,7", ""]))
    result = provision(job(path, on={"sku": "sku", "half": "half"}), warehouse)
    assert counts(result) == (400_000, 0, 0, 901)
    assert result.duplicates == tuple(f"p{i}, {i % 2}" for i in range(5))
    assert len(opened) == 2
    kept = [json.loads(r[2])["n"] for r in rejects(warehouse)]
    assert kept == [*range(900), 400_003]
    assert {row["n"] for row in stored(warehouse)} == {*range(900, 400_900), 7} - {400_003}


def test_rows_of_a_table_with_one_key_are_kept_as_rejected(warehouse):
    with warehouse.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE source (sku VARCHAR(20), n INT)")
        connection.exec_driver_sql("INSERT INTO source VALUES ('a', 1), ('b', 1), ('a', 1)")
    result = provision(job(table="source"), warehouse)
    # although more than max_rejected, as the key has its row
    assert (counts(result), result.duplicates) == ((2, 0, 0, 1), ("a",))
    assert "do not count" in str(Dimension.model_fields["max_rejected"].description)
    assert [r[:2] for r in rejects(warehouse)] == [
        ("duplicate_key", "a later row has the same sku, a")
    ]


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
        "sku,n,price,at\nNA, 7 ,1.5,2024-01-02 03:04:05\nnan,NaN,#N/A,2024-01-02T03:04:05+01:00\n"
    )
    (path / "2024" / "b.csv.gz").write_bytes(gzip.compress(b'sku,n,price,at\n"",1,N/A,NA\n'))
    assert counts(provision(job(path, schema=schema), warehouse)) == (3, 0, 0, 0)
    rows = {
        r["sku"]: (r["n"], r["price"] and str(r["price"]), r["at"] and r["at"].hour)
        for r in stored(warehouse)
    }
    assert rows == {"NA": (7, "1.50", 3), "nan": (None, None, 2), "": (1, None, None)}


def test_json_values_in_another_form_are_taken(warehouse, tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.source.SAMPLE", 1)
    monkeypatch.setattr("semistream.files.text_source.BLOCK", 16)
    path = tmp_path / "products.jsonl"
    path.write_text(
        '{"sku": 7, "n": "seven"}\n{"sku": "a", "n": "8"}\n{"sku": "b", "n": "NA", '
        '"price": 123456789012345678.25}\n{"sku": "c"}\n{"sku": "d", "price": '
        'NaN}\n{"sku": "\\ud800"}\n'
    )
    assert counts(
        provision(job(path, schema="sku STRING, n INT, price DECIMAL(20,2)"), warehouse)
    ) == (4, 0, 0, 2)
    assert [(r["sku"], r["n"], r["price"] and str(r["price"])) for r in stored(warehouse)] == [
        ("a", 8, None),
        ("b", None, "123456789012345678.25"),
        ("c", None, None),
        ("d", None, None),
    ]
    assert rejects(warehouse) == [
        ("unparsable", "products.jsonl, line 1: n: 'seven' is not INT", '{"sku": 7, "n": "seven"}'),
        (
            "unparsable",
            "products.jsonl, line 6: sku: half of a surrogate pair, or no escape",
            '{"sku": "\\ud800"}',
        ),
    ]


def test_from_a_table_of_the_same_and_of_another_database(warehouse, tmp_path):
    write(tmp_path / "p.parquet", PRODUCTS)
    other = connect(f"sqlite:///{tmp_path / 'other.db'}")
    legacy = Table(
        "legacy",
        MetaData(),
        Column("sku", String(9), primary_key=True),
        Column("price", Numeric(10, 2)),
        Column("seen", DateTime),
        Column("n", Integer),
    )
    first = {"sku": "a", "price": Decimal("1.25"), "seen": dt.datetime(2024, 1, 2, 3, 4, 5), "n": 7}
    for engine in (warehouse, other):
        legacy.create(engine)
        with engine.begin() as connection:
            connection.execute(legacy.insert(), [first, dict.fromkeys(first) | {"sku": "b"}])
    assert counts(provision(job(table="legacy"), warehouse)) == (2, 0, 0, 0)
    assert str(stored(warehouse)[0]["price"]) == "1.25"
    assert counts(provision(job(table="legacy"), warehouse, url=str(other.url))) == (0, 0, 2, 0)


def test_many_to_many_masters_have_a_business_key_of_their_own(warehouse, tmp_path):
    path = write(
        tmp_path / "p.parquet",
        pa.table({"id": [1, 2, 3, 4], "sku": ["a", "a", "b", None], "n": [1, 2, 3, 4]}),
    )
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
    relation = open_snapshot(snapshots / "product" / "sku")
    rows = [
        r
        for i in range(relation.partition_count)
        for r in relation.read(i, relation.schema.names).to_pylist()
    ]
    assert sorted(rows, key=lambda r: r["product_sk"]) == stored(warehouse)
    assert {r["price"] for r in rows if r["sku"] == "b"} == {99.0}


def test_types_survive_the_warehouse(warehouse, tmp_path):
    table = pa.table(
        {
            "sku": pa.array([1, 2], pa.uint16()),
            "f": pa.array([0.1, None], pa.float32()),
            "b": [True, None],
            "z": pa.array(
                [dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC), None], pa.timestamp("ms", "UTC")
            ),
            "w": pa.array([Decimal("1" * 20 + ".01"), None], pa.decimal128(30, 2)),
            "nothing": pa.nulls(2),
            "cat": pa.array(["x", None]).dictionary_encode(),
            "bin": [b"\0", None],
        }
    )
    provision(job(write(tmp_path / "p.parquet", table)), warehouse)
    publish(job(tmp_path / "p.parquet"), warehouse, tmp_path)
    relation = open_snapshot(tmp_path / "product" / "sku")
    rows = [
        r
        for i in range(relation.partition_count)
        for r in relation.read(i, table.schema.names).to_pylist()
    ]
    assert sorted(rows, key=lambda r: r["sku"]) == table.to_pylist()
    assert relation.schema.field("z").type == pa.timestamp("us", "UTC")
    assert relation.schema.field("f").type == pa.float32()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"on": {"sku": "nope"}}, "nope"),
        ({"columns": ["nope"]}, "nope"),
        ({"on": {"sku": "price"}}, "must name columns of an integer"),
    ],
)
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


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_columns_told_are_those_of_the_source_that_are_read(warehouse, tmp_path, suffix):
    path = write(tmp_path / f"p.{suffix}", PRODUCTS)
    told = job(path, schema="sku STRING")
    if suffix == "csv":
        with pytest.raises(ConfigError, match="must name all columns of .*, as it is CSV"):
            provision(told, warehouse)
        return
    for _ in range(2):
        assert provision(told, warehouse).rejected == 0
    assert set(stored(warehouse)[0]) == {"product_sk", "sku"}
    # other columns than those of the table, which would lose or lack values
    with pytest.raises(ConfigError, match=r"must have the columns of dim_product"):
        provision(job(path), warehouse)
    provision(job(path, name="whole"), warehouse)
    with pytest.raises(ConfigError, match=r"must have the columns of dim_whole"):
        provision(job(path, schema="sku STRING", name="whole"), warehouse)


def test_too_many_rows_that_cannot_be_taken_leave_the_dimension_as_it_was(warehouse, tmp_path):
    path = tmp_path / "products.csv"
    path.write_text("sku,price\n" + "".join(f"s{i},{i}\n" for i in range(200)))
    assert counts(provision(job(path, max_rejected=0.01), warehouse)) == (200, 0, 0, 0)
    path.write_text(
        "sku,price\n" + "".join(f"s{i},{'x' if i < 3 else i + 1}\n" for i in range(200)) + "s9,9\n"
    )
    with pytest.raises(
        SemistreamError,
        match=r"(?s)3 of 201 rows of .*\(unparsable 3\).*line 2: "
        r"price: 'x' is not .* in s0,x",
    ):
        provision(job(path, max_rejected=0.01), warehouse)
    assert sorted(r["price"] for r in stored(warehouse)) == list(range(200))
    assert rejects(warehouse) == []
    # a duplicate is none of them
    assert counts(provision(job(path, max_rejected=0.015), warehouse))[3] == 4


@pytest.mark.parametrize("rows", ["", ",1\n"])  # none, and one without a key
def test_a_dimension_without_a_row_is_refused_unless_it_may_be_empty(warehouse, tmp_path, rows):
    path = tmp_path / "products.csv"
    path.write_text("sku,price\n" + rows)
    with pytest.raises(SemistreamError, match=r"(?s)no tuple would match.*allow_empty: true"):
        provision(job(path), warehouse)
    assert not inspect(warehouse).has_table("dim_product")
    path.write_text("sku,price\na,1\n")
    provision(job(path), warehouse)
    path.write_text("sku,price\n" + rows)
    with pytest.raises(SemistreamError, match="dim_product is as it was"):
        provision(job(path), warehouse)
    assert [r["sku"] for r in stored(warehouse)] == ["a"]
    assert counts(provision(job(path, allow_empty=True), warehouse))[0] == 0


MYSQL = {  # column: type, what is put in, what the dimension has
    "tiny": ("TINYINT(1)", "5", 5),
    "flag": ("BOOLEAN", "TRUE", 1),
    "bit1": ("BIT(1)", "b'1'", 1),
    "bit8": ("BIT(8)", "b'101'", 5),
    "bit64": ("BIT(64)", "~0", Decimal(2**64 - 1)),
    "wide": ("BIGINT UNSIGNED", "~0", Decimal(2**64 - 1)),
    "narrow": ("BIGINT UNSIGNED", "7", 7),
    "day": ("DATE", "'2024-02-29'", dt.date(2024, 2, 29)),
    "early": ("DATETIME", "'0001-01-01'", dt.datetime(1, 1, 1)),
    "late": (
        "DATETIME(6)",
        "'9999-12-31 23:59:59.999999'",
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ),
    "at": (
        "TIMESTAMP(6) NULL",
        "'2024-01-02 03:04:05.123456'",
        dt.datetime(2024, 1, 2, 3, 4, 5, 123456),
    ),
    "clock": ("TIME(3)", "'12:34:56.789'", dt.time(12, 34, 56, 789000)),
    "year": ("YEAR", "2024", 2024),
    "choice": ("ENUM('x', 'y')", "'y'", "y"),
    "choices": ("SET('p', 'q')", "'p,q'", "p,q"),
    "json": ("JSON", "'{\"a\": 1}'", '{"a": 1}'),
    "long": ("DECIMAL(65,30)", "1" * 35 + "." + "2" * 30, "1" * 35 + "." + "2" * 30),
    "money": ("DECIMAL(30,10)", "-1.5", Decimal("-1.5")),
    "double": ("DOUBLE", "1e300", 1e300),
    "float": ("FLOAT", "16777215", 16777215.0),
    "bytes": ("VARBINARY(9)", "x'00ff'", b"\0\xff"),
    "blob": ("BLOB", "x'00fe'", b"\0\xfe"),
    "latin": ("VARCHAR(9) CHARACTER SET latin1", "'ü\t~0'", "ü\t~0"),
    "zeros": ("INT(5) ZEROFILL", "42", 42),
    "uuid": (
        "UUID",
        "'00000000-0000-0000-0000-00000000000a'",
        "00000000-0000-0000-0000-00000000000a",
    ),
}


@pytest.fixture
def mysql(mariadb):
    """A warehouse on MariaDB in which a table of master data can hold anything."""
    engine = connect(mariadb.fresh())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET SESSION sql_mode = ''")
        yield engine, lambda sql: connection.exec_driver_sql(sql.replace("%", "%%"))
    engine.dispose()


def test_every_type_of_mysql_is_taken_exactly(mysql):
    engine, execute = mysql
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, *_) in MYSQL.items())
    execute(f"CREATE TABLE t (sku VARCHAR(9), {columns})")
    execute(f"INSERT INTO t VALUES ('a', {', '.join(v for _, v, _ in MYSQL.values())})")
    assert counts(provision(job(table="t"), engine)) == (1, 0, 0, 0)
    assert {n: v for n, v in stored(engine)[0].items() if n in MYSQL} == {
        n: v for n, (_, _, v) in MYSQL.items()
    }
    assert counts(provision(job(table="t"), engine)) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    "kind, value, shown, named",
    [
        ("DATE", "0", "0000-00-00", "DATE"),
        ("DATETIME", "0", "0000-00-00 00:00:00", "TIMESTAMP_NTZ"),
        ("DATE", "'2024-00-10'", "2024-00-10", "DATE"),
        ("TIMESTAMP", "0", "0000-00-00 00:00:00", "TIMESTAMP_NTZ"),
        ("TIME", "'838:59:59'", "838:59:59", "TIME"),
        ("TIME", "'-01:00:00'", "-01:00:00", "TIME"),
    ],
)
def test_what_no_type_holds_is_rejected_or_declared_a_text(mysql, kind, value, shown, named):
    engine, execute = mysql
    execute(f"CREATE TABLE t (sku VARCHAR(9), v {kind} NULL)")
    execute(f"INSERT INTO t VALUES ('a', {value}), ('b', NULL)")
    assert counts(provision(job(table="t"), engine)) == (1, 0, 0, 1)
    assert [r[:2] for r in rejects(engine)] == [("unparsable", f"v: '{shown}' is not {named}")]
    with pytest.raises(SemistreamError, match=f"v: '{shown}' is not .*") as failed:
        provision(job(name="m", table="t", max_rejected=0), engine)
    assert "declare it a STRING" in str(failed.value)
    assert not inspect(engine).has_table("dim_m")
    as_text = job(name="m", table="t", schema="sku STRING, v STRING", max_rejected=0)
    assert counts(provision(as_text, engine)) == (2, 0, 0, 0)
    assert [r["v"] for r in stored(engine, "dim_m")] == [shown, None]


def test_numbers_that_a_former_provisioning_had_no_room_for_are_rejected(mysql):
    engine, execute = mysql
    execute("CREATE TABLE t (sku VARCHAR(9), n BIGINT UNSIGNED, flag TINYINT(1))")
    execute("INSERT INTO t VALUES ('a', 7, 1)")
    declared = job(table="t", schema="sku STRING, n BIGINT, flag BOOLEAN")
    assert counts(provision(declared, engine)) == (1, 0, 0, 0)
    execute("INSERT INTO t VALUES ('b', ~0, 1), ('c', 7, 5)")
    assert counts(provision(job(table="t"), engine)) == (0, 0, 1, 2)
    assert [r[1] for r in rejects(engine)] == [
        f"n: '{2**64 - 1}' is not BIGINT",
        "flag: '5' is not BOOLEAN",
    ]


def test_a_column_of_a_type_that_is_unknown_is_named_with_its_table(mysql):
    engine, execute = mysql
    execute("CREATE TABLE t (sku VARCHAR(9), place GEOMETRY)")
    with (
        pytest.warns(Warning, match="geometry"),
        pytest.raises(ConfigError, match=r"t\.place: unknown.* Make a view"),
    ):
        provision(job(table="t"), engine)


def test_cells_of_sqlite_that_are_not_of_their_column_s_type_are_rejected(tmp_path):
    """SQLite takes any value in any column: each is what it shows, or its row is rejected."""
    engine = connect(f"sqlite:///{tmp_path / 'w.db'}")
    rows = [
        ("a", 1, 1.5, "1.10", "2024-01-02", "2024-01-02 03:04:05", 1, b"x", "12:30:00"),
        ("b", "many", 1, 3.3000000000000003, None, None, None, "text", None),
        ("c", 2.5, 1, 1, None, None, None, None, None),
        ("d", 1, "much", 1, None, None, None, None, None),
        ("e", 1, 1, 1.255, None, None, None, None, None),
        ("f", 1, 1, 1, 19000, None, None, None, None),
        ("g", 1, 1, 1, None, 1700000000, None, None, None),
        ("h", 1, 1, 1, None, None, 5, None, None),
        (b"i", "2", 2**60 + 1, 1, *[None] * 5),
        (b"\xff", 1, 1, 1, *[None] * 5),
        ("k", 1, 1, 1, *[None] * 4, "25:00:00"),
        ("l", 2**62, "0.1", "7", *[None] * 5),
    ]
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE t (sku TEXT, n INTEGER, f NUMERIC, "
            "m DECIMAL(9,2), d DATE, at DATETIME, flag BOOLEAN, y BLOB, "
            "clock TIME)"
        )
        connection.exec_driver_sql(f"INSERT INTO t VALUES ({', '.join('?' * 9)})", rows)
    found = provision(job(table="t"), engine)
    assert [(r["sku"], r["n"], r["f"], str(r["m"]), r["y"]) for r in stored(engine)] == [
        ("a", 1, 1.5, "1.10", b"x"),
        ("l", 2**62, 0.1, "7.00", None),
    ]
    assert counts(found) == (2, 0, 0, 10)
    assert [r[1] for r in rejects(engine)] == [
        "n: 'many' is not BIGINT",
        "n: '2.5' is not BIGINT",
        "f: 'much' is not DOUBLE",
        "m: '1.255' is not DECIMAL(9,2)",
        "d: '19000' is not DATE",
        "at: '1700000000' is not TIMESTAMP_NTZ",
        "flag: '5' is not BOOLEAN",
        f"f: '{2**60 + 1}' is not DOUBLE",
        "sku: not UTF-8",
        "clock: '25:00:00' is not TIME",
    ]
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE t SET n = 8 WHERE sku = 'b'")
    assert counts(provision(job(table="t"), engine)) == (1, 0, 2, 9)
    assert [(str(r["m"]), r["y"]) for r in stored(engine)][2:] == [("3.30", b"text")]
    engine.dispose()


def test_numbers_that_the_database_lacks_are_counted_and_said(warehouse, tmp_path, caplog):
    """Those that come back as null are counted; the others come back as they were."""
    infinity, nan = float("inf"), float("nan")
    given = [1.5, nan, infinity, -infinity]
    path = write(
        tmp_path / "p.parquet",
        pa.table(
            {
                "sku": ["a", "b", "c", "d"],
                "price": given,
                "small": pa.array([nan, nan, 1.5, None], pa.float32()),
            }
        ),
    )
    for counted in ((4, 0, 0, 0), (0, 0, 4, 0)):
        result = provision(job(path), warehouse)
        assert counts(result) == counted
        rows = stored(warehouse)
        lost = {c: sum(r[c] is None for r in rows) for c in ("price", "small")}
        lost["small"] -= 1  # a null that was given
        assert result.nulled == {c: n for c, n in lost.items() if n}
    kept = [(a, r["price"]) for a, r in zip(given, rows, strict=True) if r["price"] is not None]
    assert kept[0] == (1.5, 1.5) and all(repr(a) == repr(float(b)) for a, b in kept)
    said = f"numbers stored as NULL: {lost['price']} of price, {lost['small']} of small; "
    assert (said in caplog.text) == any(lost.values())
    publish(job(path), warehouse, tmp_path / "s")


def test_dates_that_no_database_holds_are_rejected(warehouse, tmp_path):
    """After the year 9999, and before the year 1; what is within comes back."""
    numbers = [
        569_039_644_800_000_000,
        253_402_300_799_999_999,
        -62_135_596_800_000_000,
        -62_135_596_800_000_001,
        2**62,
        None,
    ]
    table = pa.table(
        {
            "k": range(6),
            "valid_to": pa.array(numbers, pa.timestamp("us")),
            "day": pa.array([None, 2_932_896, -719_162, None, None, 2_932_897], pa.date32()),
        }
    )
    path = write(tmp_path / "p.parquet", table)
    with pytest.raises(SemistreamError, match="(?s)4 of 6 rows of .* valid_to: 20002-02-24"):
        provision(job(path, on={"k": "k"}, max_rejected=0.5), warehouse)
    assert not inspect(warehouse).has_table("dim_product")
    assert counts(provision(job(path, on={"k": "k"}), warehouse)) == (2, 0, 0, 4)
    assert [r[1] for r in rejects(warehouse)] == [
        "valid_to: 20002-02-24 00:00:00.000000 is not within the years 1 to 9999",
        "valid_to: 0000-12-31 23:59:59.999999 is not within the years 1 to 9999",
        "valid_to: <value out of range: 4611686018427387904> is not within the years 1 to 9999",
        "day: 10000-01-01 is not within the years 1 to 9999",
    ]
    assert json.loads(rejects(warehouse)[0][2])["valid_to"] == "20002-02-24 00:00:00.000000"
    publish(job(path, on={"k": "k"}), warehouse, tmp_path / "s")
    relation = open_snapshot(tmp_path / "s" / "product" / "k")
    rows = [
        r
        for i in range(relation.partition_count)
        for r in relation.read(i, table.schema.names).to_pylist()
    ]
    assert sorted(rows, key=lambda r: r["k"]) == table.slice(1, 2).to_pylist()


NAMES = {
    "x" * 65: "at most 64 characters",
    "blank ": "not end with a blank",
    "two\nlines": "line",
    "😀": r"beyond U\+FFFF",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_mysql_lacks_are_refused_before_a_table_is_made(mysql, tmp_path, name):
    path = write(tmp_path / "p.parquet", pa.table({"sku": ["a"], name: [1]}))
    with pytest.raises(ConfigError, match=NAMES[name]):
        provision(job(path), mysql[0])
    assert not inspect(mysql[0]).has_table("dim_product")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("warehouse_url", ["sqlite"], indirect=True)
def test_sqlite_takes_names_that_mysql_lacks(warehouse, tmp_path, name):
    path = write(tmp_path / "p.parquet", pa.table({"sku": ["a"], name: [1]}))
    assert counts(provision(job(path), warehouse)) == (1, 0, 0, 0)
    assert stored(warehouse)[0][name] == 1


def test_rows_and_keys_that_mysql_has_no_room_for_are_refused_with_the_way_out(mysql, tmp_path):
    engine, _ = mysql
    columns = [f"c{i}" for i in range(300)]

    def master(value):
        table = pa.table({"sku": ["a"]} | {c: [value] for c in columns})
        return write(tmp_path / "p.parquet", table)

    with pytest.raises(ConfigError, match=r"dim_product.* half a page of InnoDB.* Leave columns"):
        provision(job(master("y" * 39)), engine)
    assert not inspect(engine).has_table("dim_product")
    for value in ("y" * 25, "y" * 41):
        provision(job(master(value)), engine)
        row = stored(engine)[0]
        assert {row[c] for c in columns} == {value}
    engine.dispose()
    wide = write(
        tmp_path / "w.parquet", pa.table({"sku": ["a"]} | {f"n{i}": [1] for i in range(1100)})
    )
    for name, path, key, message in (
        ("wide", wide, ["sku"], "at most 1,017 columns"),
        ("keyed", master("y"), columns[:5], "a key of dim_keyed.* 3,072 bytes"),
    ):
        with pytest.raises(ConfigError, match=message):
            provision(job(path, name=name, business_key=key), engine)
        assert not inspect(engine).has_table(f"dim_{name}")
