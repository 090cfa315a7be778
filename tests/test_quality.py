"""Every check holds for a sound load, and tells of what is damaged."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from loads import transaction
from semistream import quality
from semistream.errors import ConfigError
from semistream.quality.sample import stage_sample
from semistream.quality.scope import committed, make_scope, range_of
from semistream.quality.staging import Staging
from semistream.warehouse.load_ids import load_id
from semistream.warehouse.schema import load_batches, load_commits, load_inputs, quality_runs
from semistream.warehouse.tables import arrow_schema
from sink_loads import (
    BATCHES,
    ON_SQLITE,
    PER_BATCH,
    STREAM,
    Loader,
    change,
    check,
    failed,
    orders,
    rows_of,
)


def test_sound(loader):
    loader.load(range(BATCHES))
    tables = sa.inspect(loader.engine).get_table_names()
    result = check(loader)
    assert result.success, str(result)
    assert len(result.results) == 24 and not result.notes
    assert result.figures == {
        "rows read": 180,
        "matched": 156,
        "unmatched": 24,
        "unmatched: no_match": 12,
        "unmatched: null_key": 12,
        "waiting": 0,
        "output rows": 156,
        "batches": 3,
    }
    with loader.engine.connect() as connection:
        run = connection.execute(sa.select(quality_runs)).one()
    assert (
        run.app,
        run.fact_table,
        run.success,
        run.from_batch,
        run.to_batch,
        run.to_drain,
        run.failed,
    ) == ("sales", "fact_sales", 1, None, 2, 1, "[]")
    assert run.report == str(result.report)
    assert sa.inspect(loader.engine).get_table_names() == tables, "staging tables are left"


def test_sound_many_to_many(warehouse_url, tmp_path):
    loader = Loader(warehouse_url, tmp_path, many=True)
    loader.load(range(BATCHES))
    assert (
        loader.engine.connect().scalar(sa.select(sa.func.count()).select_from(loader.fact)) == 312
    )
    assert failed(check(loader)) == set()
    one = sa.select(sa.func.min(loader.fact.c.sales_sk)).where(loader.fact.c.order_id == 20)
    with loader.engine.begin() as connection:
        sk = connection.scalar(one)
        connection.execute(
            loader.fact.delete().where(loader.fact.c.order_id == 20, loader.fact.c.sales_sk == sk)
        )
    result = check(loader)
    assert failed(result) == {"fact_rows", "same_rows", "sample_joined"}
    assert [(r["order_id"], r["sales_sk"]) for r in rows_of(result, "sample_joined")] == [(20, sk)]


def test_sound_left_join(warehouse_url, tmp_path):
    loader = Loader(warehouse_url, tmp_path, left=True)
    loader.load(range(BATCHES))
    assert (
        loader.engine.connect().scalar(sa.select(sa.func.count()).select_from(loader.fact)) == 180
    )
    assert failed(check(loader)) == set()
    with loader.engine.begin() as connection:
        connection.execute(
            loader.fact.update().where(loader.fact.c.order_id == 20).values(sales_sk=None)
        )
    result = check(loader)
    assert failed(result) == {"surrogate_keys", "same_rows"}
    assert rows_of(result, "surrogate_keys")[0]["order_id"] == 20


Break = Callable[[sa.Connection, Loader], None]


def on_fact(where: str, **values) -> Break:
    return lambda connection, loader: change(
        connection, f"UPDATE fact_sales SET {sets(connection, values)} WHERE {where}"
    )


def on(
    table: sa.Table, batch: int, drain: int = 0, partition: int | None = 0, **changes: str
) -> Break:
    """Changes are SQL expressions."""

    def run(connection: sa.Connection, loader: Loader) -> None:
        where = (
            [table.c.load_id == load_id(1, batch, drain, partition)]
            if table is load_inputs
            else [table.c.app == "sales", table.c.batch == batch, table.c.drain == drain]
        )
        where += (
            [table.c.partition == partition]
            if "partition" in table.c and partition is not None
            else []
        )
        done = connection.execute(
            table.update()
            .where(*where)
            .values({k: sa.literal_column(v) for k, v in changes.items()})
        )
        assert done.rowcount == 1

    return run


def of_load(batch: int, drain: int = 0, **changes: str) -> Break:
    """The same change of a load and of its only input."""
    return several(*(on(table, batch, drain, **changes) for table in (load_batches, load_inputs)))


def several(*breaks: Break) -> Break:
    def run(connection: sa.Connection, loader: Loader) -> None:
        for b in breaks:
            b(connection, loader)

    return run


def sql(statement: str) -> Break:
    return lambda connection, loader: change(connection, statement)


def sets(connection: sa.Connection, values: dict) -> str:
    return ", ".join(f"{k} = {'NULL' if v is None else repr(v)}" for k, v in values.items())


def duplicate(connection: sa.Connection, loader: Loader) -> None:
    row = (
        connection.execute(sa.select(loader.fact).where(loader.fact.c.order_id == 20))
        .mappings()
        .one()
    )
    connection.execute(loader.fact.insert().values({**row, "load_row": 999}))


def shorten_source(connection: sa.Connection, loader: Loader) -> None:
    pq.write_table(
        pa.Table.from_pylist(orders(1)[:-1], STREAM), loader.directory / "orders-1.parquet"
    )


def add_product(connection: sa.Connection, loader: Loader) -> None:
    connection.execute(loader.dimension.insert().values(sku="x9", name="late"))


BREAKS: dict[str, tuple[Break, dict[str, dict], dict]] = {
    "a fact is deleted": (
        sql("DELETE FROM fact_sales WHERE order_id = 20"),
        {
            "same_rows": {"batch": 0, "drain": 0, "partition": 0, "table": "fact_sales"},
            "fact_rows": {"batch": 0, "drain": 0, "partition": 0},
            "none_missing": {"order_id": 20, "source_batch": 0},
        },
        {},
    ),
    "a fact is there twice": (
        duplicate,
        {
            "same_rows": {"batch": 0},
            "fact_rows": {"batch": 0},
            "no_duplicates": {"order_id": 20, "rows_in_warehouse": 2, "rows_in_source": 1},
        },
        {},
    ),
    "a stream id is changed": (
        on_fact("order_id = 20", order_id=99999),
        {
            "same_rows": {"batch": 0},
            "none_missing": {"order_id": 20},
            "none_invented": {"order_id": 99999, "batch": 0},
        },
        {},
    ),
    "an enriched value is changed": (
        on_fact("order_id = 20", name="wrong: 5 off"),
        {
            "same_rows": {"batch": 0},
            "sample_joined": {
                "order_id": 20,
                "column": "name",
                "loaded": "wrong: 5 off",
                "joined_again": "Product 0 100%: 'new'",
            },
            "enriched_columns": {
                "order_id": 20,
                "column": "name",
                "loaded": "wrong: 5 off",
                "in_dimension": "Product 0 100%: 'new'",
            },
        },
        {},
    ),
    "a decimal is changed": (
        on_fact("order_id = 41", price=0.01),
        {
            "same_rows": {"batch": 0, "partition": 1},
            "sample_joined": {"order_id": 41, "column": "price"},
            "enriched_columns": {"order_id": 41, "column": "price"},
        },
        {},
    ),
    "two facts have each other's quantity": (
        several(
            on_fact("order_id = 22", quantity=6),
            on_fact("order_id = 20", quantity=2),
            on_fact("order_id = 22", quantity=0),
        ),
        {"same_rows": {"batch": 0}},
        {},
    ),
    "a stream column is emptied": (
        on_fact("order_id = 41", quantity=None),
        {"same_rows": {"batch": 0, "partition": 1}},
        {},
    ),
    "an enriched column is emptied": (
        on_fact("order_id = 20", sales_day=None),
        {
            "enriched_columns": {
                "order_id": 20,
                "column": "sales_day",
                "loaded": None,
                "in_dimension": "2026-01-01",
            },
            "same_rows": {"batch": 0},
        },
        {"sample": 0},
    ),
    "a surrogate key is of no one": (
        on_fact("order_id = 20", sales_sk=99999),
        {"same_rows": {"batch": 0}, "surrogate_keys": {"order_id": 20, "sales_sk": 99999}},
        {"sample": 0},
    ),
    "a surrogate key is missing": (
        on_fact("order_id = 20", sales_sk=None),
        {"same_rows": {"batch": 0}, "surrogate_keys": {"order_id": 20, "sales_sk": None}},
        {"sample": 0},
    ),
    "a surrogate key is of another": (
        on_fact("order_id = 41", sales_sk=2),
        {
            "same_rows": {"batch": 0},
            "enriched_columns": {"order_id": 41, "column": "name"},
            "surrogate_keys": {"order_id": 41, "sku": "p07", "dim_sales_sku": "p01"},
        },
        {"sample": 0},
    ),
    "a batch lacks a partition": (
        on(load_commits, 1, partitions="3"),
        {"batch_partitions": {"batch": 1, "partitions_expected": 3, "partitions_in_ledger": 2}},
        {},
    ),
    "a partition's ledger row is lost": (
        sql("DELETE FROM load_batches WHERE batch = 1 AND load_batches.partition = 1"),
        {
            "batch_partitions": {"batch": 1, "partitions_in_ledger": 1},
            "commit_rows": {"batch": 1},
            "total_arithmetic": {},
            "waiting_carried": {"batch": 2, "partition": 1},
            "fact_rows": {"batch": 1, "partition": 1, "rows_in_ledger": 0},
            "known_loads": {"table": "fact_sales", "load_id": load_id(1, 1, 0, 1)},
        },
        {},
    ),
    "a batch was never committed": (
        sql("DELETE FROM load_commits WHERE batch = 1"),
        {
            "batch_partitions": {"batch": 1, "partitions_expected": None},
            "none_invented": {"batch": 1},
            "unmatched_once": {"rows_in_source": 0, "first_batch": 1},
        },
        {},
    ),
    "the driver read more": (
        on(load_commits, 1, rows_read="rows_read + 1"),
        {
            "commit_rows": {"batch": 1, "rows_read_by_driver": 61, "rows_read_by_partitions": 60},
            "source_rows": {"batch": 1},
        },
        {},
    ),
    "a count is altered": (
        of_load(1, matched="matched + 1"),
        {
            "batch_arithmetic": {"batch": 1, "partition": 0, "difference": -1},
            "input_arithmetic": {"batch": 1, "partition": 0, "role": "sales", "difference": -1},
            "total_arithmetic": {"difference": -1},
        },
        {},
    ),
    "waiting tuples appear": (
        of_load(1, waiting_before="waiting_before + 1", waiting="waiting + 1"),
        {"waiting_carried": {"batch": 1, "partition": 0}},
        {},
    ),
    "a waiting tuple is forgotten": (
        of_load(1, waiting="waiting - 1", matched="matched + 1"),
        {"waiting_carried": {"batch": 2, "partition": 0}, "total_arithmetic": {}},
        {},
    ),
    "a tuple waits after the drain": (
        of_load(2, 1, waiting="waiting + 1", matched="matched - 1"),
        {"drained": {"batch": 2, "drain": 1, "partition": 0, "waiting": 1}},
        {},
    ),
    "more rows were promised": (
        on(load_batches, 1, output_rows="output_rows + 1"),
        {"fact_rows": {"batch": 1, "partition": 0}},
        {},
    ),
    "an unmatched tuple is lost": (
        sql("DELETE FROM unmatched WHERE stream_id = '9'"),
        {
            "same_rows": {"batch": 0, "partition": 1, "table": "unmatched"},
            "unmatched_rows": {"batch": 0, "reason": "no_match", "partition": 1},
            "none_missing": {"order_id": 9},
        },
        {},
    ),
    "an unmatched tuple has another reason": (
        sql("UPDATE unmatched SET reason = 'null_key' WHERE stream_id = '9'"),
        {
            "same_rows": {"batch": 0, "table": "unmatched"},
            "unmatched_rows": {"batch": 0, "partition": 1},
        },
        {},
    ),
    "an unmatched tuple is changed": (
        sql("UPDATE unmatched SET tuple = '{}' WHERE stream_id = '14'"),
        {"same_rows": {"batch": 0, "table": "unmatched"}},
        {},
    ),
    "an input is not what its load is": (
        on(load_inputs, 1, matched="matched + 1", rows_read="rows_read + 1"),
        {"input_arithmetic": {"batch": 1, "partition": 0, "role": "(all)"}},
        {},
    ),
    "more than the limit were unparsable": (
        sql(
            "UPDATE load_rejections SET reason = 'unparsable' WHERE reason = 'no_match' AND "
            f"load_id = {load_id(1, 1, 0, 1)}"
        ),
        {"unparsable": {"rows_read": 180}, "unmatched_rows": {"batch": 1}},
        {},
    ),
    "more than the limit have no master data": (
        sql(
            "UPDATE load_rejections SET tuples = 80 WHERE reason = 'no_match' AND "
            f"load_id = {load_id(1, 1, 0, 1)}"
        ),
        {"unmatched_share": {"rows_read": 180}, "unmatched_rows": {"batch": 1}},
        {},
    ),
    "the reasons do not add up": (
        sql(f"DELETE FROM load_rejections WHERE load_id = {load_id(1, 1, 0, 0)}"),
        {"unmatched_rows": {"batch": 1, "reason": "(all)"}},
        {},
    ),
    "a tuple is unmatched under another's id": (
        sql("UPDATE unmatched SET stream_id = '19' WHERE stream_id = '9'"),
        {
            "same_rows": {"batch": 0},
            "none_missing": {"order_id": 9},
            "unmatched_once": {"stream_id": "19", "rows_in_unmatched": 2, "rows_in_source": 1},
        },
        {},
    ),
    "a tuple is unmatched under a loaded one's id": (
        sql("UPDATE unmatched SET stream_id = '20' WHERE stream_id = '9'"),
        {
            "same_rows": {"batch": 0},
            "none_missing": {"order_id": 9},
            "unmatched_once": {"stream_id": "20", "rows_in_unmatched": 1, "in_fact_sales": 1},
        },
        {},
    ),
    "the source has fewer rows": (
        shorten_source,
        {
            "source_rows": {
                "batch": 1,
                "source": "orders-1.parquet",
                "rows_in_source": 59,
                "rows_read": 60,
            },
            "unmatched_once": {"stream_id": "119", "rows_in_source": 0},
        },
        {},
    ),
    "an unmatched tuple has master data": (
        add_product,
        {"sample_unmatched": {"stream_id": "9", "sku": "x9"}},
        {},
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken(name, loader):
    break_it, expected, options = BREAKS[name]
    loader.load(range(BATCHES))
    with loader.engine.begin() as connection:
        break_it(connection, loader)
    result = check(loader, **options)
    assert not result.success
    assert failed(result) == set(expected)
    for check_name, row in expected.items():
        assert any(row.items() <= r.items() for r in rows_of(result, check_name)), rows_of(
            result, check_name
        )
    page = result.report.read_text()
    for r in result.failed:
        assert {r.expected, r.found} <= {"", *r.rows[0]}, "columns of the check's rows"
        assert r.title.replace("'", "&#39;") in page
        assert all(
            str(v) in page for v in r.rows[0].values() if v is not None and not isinstance(v, str)
        )


@ON_SQLITE
def test_the_sample_is_drawn_anew_and_as_large_as_it_is_told(loader, tmp_path):
    loader.load(range(BATCHES))
    pages = [check(loader, sample=n).report.read_text() for n in (10, 10, 1000)]
    drawn = [
        re.search(r"(\d+) facts drawn at random \(seed (\d+)\)", page).groups() for page in pages
    ]
    assert [count for count, _ in drawn] == ["10", "10", "156"]
    assert len({seed for _, seed in drawn}) == 3
    with loader.engine.connect() as connection:
        commits = committed(connection, "sales")
        scope = make_scope(
            connection,
            range_of(connection, "sales", commits, None),
            loader.job,
            commits[-1],
            loader.fact,
            ["v000001"],
            tmp_path,
        )
    samples = []
    for seed in (1, 1, 2):
        with Staging(loader.engine) as staging:
            facts = stage_sample(staging, scope, scope.roles[0], 10, seed).facts
            with loader.engine.connect() as connection:
                samples.append(sorted(connection.scalars(sa.select(facts.c.order_id))))
    assert samples[0] == samples[1] != samples[2]


def test_delta(warehouse_url, tmp_path):
    import deltalake

    loader, uri = Loader(warehouse_url, tmp_path), str(tmp_path / "delta")
    loader.load(range(BATCHES))
    with loader.engine.begin() as connection:
        rows = [dict(r) for r in connection.execute(sa.select(loader.fact)).mappings()]
        connection.execute(load_commits.update().values(sink=uri))
        connection.execute(loader.fact.delete())
    deltalake.write_deltalake(
        uri, pa.Table.from_pylist(rows, arrow_schema(loader.fact)).drop_columns(["load_row"])
    )
    assert failed(check(loader)) == set()
    deltalake.DeltaTable(uri).delete("order_id = 20")
    result = check(loader)
    assert failed(result) == {"fact_rows", "none_missing", "same_rows"}
    assert rows_of(result, "none_missing") == [{"source_batch": 0, "order_id": 20}]
    shutil.rmtree(uri)
    gone = check(loader)
    assert failed(gone) == {"fact_table"}
    assert "Delta table that exists" in rows_of(gone, "fact_table")[0]["finding"]
    assert gone.proof.startswith("NO: ")


@ON_SQLITE
def test_facts_that_an_earlier_version_has_loaded_elsewhere_are_missed(loader, tmp_path):
    """Each load's own proof would hold. A load into another sink is refused now."""
    import deltalake

    uri = str(tmp_path / "delta")
    loader.load(range(BATCHES - 1))
    assert check(loader).success
    loader.load(range(BATCHES - 1, BATCHES))
    newest = loader.fact.c.order_id >= (BATCHES - 1) * PER_BATCH
    with loader.engine.begin() as connection:
        rows = [
            dict(r) for r in connection.execute(sa.select(loader.fact).where(newest)).mappings()
        ]
        connection.execute(loader.fact.delete().where(newest))
        moved = load_commits.c.batch == BATCHES - 1
        connection.execute(load_commits.update().where(moved).values(sink=uri))
    deltalake.write_deltalake(
        uri, pa.Table.from_pylist(rows, arrow_schema(loader.fact)).drop_columns(["load_row"])
    )
    result = check(loader, since_last=True)
    assert {"fact_rows", "none_missing"} <= failed(result), result.describe()
    assert result.proof.startswith("NO: ")


@ON_SQLITE
def test_job_comes_from_the_ledger(loader, tmp_path):
    loader.load(range(1))
    stream = loader.job.stream.model_copy(update={"options": {"url": "secret", "header": "true"}})
    job = loader.job.model_copy(update={"stream": stream})
    assert "secret" not in job.to_ledger()
    with loader.engine.begin() as connection:
        connection.execute(load_commits.update().values(job=job.to_ledger()))
    assert quality.verify(
        loader.url, "sales", reports_dir=loader.reports, snapshots=tmp_path
    ).success
    with pytest.raises(ConfigError, match="Apps that have: sales"):
        quality.verify(loader.url, "sails", reports_dir=loader.reports)


def test_stale_staging_tables_are_dropped(loader):
    loader.load(range(1))
    with loader.engine.begin() as connection:
        for name in ("quality_1000_1_ids", f"quality_{int(datetime.now().timestamp())}_1_ids"):
            connection.exec_driver_sql(f"CREATE TABLE {name} (a INT)")
    check(loader)
    left = [t for t in sa.inspect(loader.engine).get_table_names() if re.match(r"quality_\d", t)]
    assert len(left) == 1 and "quality_1000" not in left[0]


def test_nothing_secret_is_written(mariadb, tmp_path):
    url = mariadb.fresh()
    with transaction(url) as connection:
        connection.exec_driver_sql(
            "CREATE OR REPLACE USER 'checker'@'%%' IDENTIFIED BY 'hidden-word'"
        )
        connection.exec_driver_sql("GRANT ALL ON *.* TO 'checker'@'%%'")
    loader = Loader(url.replace("root@", "checker:hidden-word@"), tmp_path)
    loader.load(range(1))
    assert check(loader).success
    assert not [
        p for p in loader.reports.rglob("*") if p.is_file() and b"hidden-word" in p.read_bytes()
    ]
