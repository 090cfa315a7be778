from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

import sink_loads
from loads import transaction, until
from semistream import quality
from semistream.errors import ConfigError
from semistream.job import StreamSpec
from semistream.quality.scope import committed, make_scope, range_of
from semistream.quality.staging import Staging, stage_sample
from semistream.quality.verification import VerificationResult
from semistream.warehouse import connect, create_all
from semistream.warehouse.load_ids import load_id
from semistream.warehouse.proof import read_proof
from semistream.warehouse.schema import (
    load_apps,
    load_batches,
    load_commits,
    load_inputs,
    masters,
    quality_runs,
)
from semistream.warehouse.tables import arrow_schema
from sink_loads import (
    BATCHES,
    ON_SQLITE,
    PER_BATCH,
    STREAM,
    Loader,
    alter,
    change,
    check,
    failed,
    now,
    orders,
    publish,
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


def run_count(loader: Loader) -> int:
    with loader.engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(quality_runs))


def test_since_last(loader):
    loader.load(range(2), drain=False)
    first = check(loader)
    assert first.success, str(first)
    assert first.figures["waiting"] > 0
    loader.load(range(2, 3), drain=False)
    alter(loader, "UPDATE fact_sales SET name = 'before' WHERE order_id = 20")
    # begins with the tuples that waited, so it needs their sources too
    later = check(loader, since_last=True)
    assert later.success and later.proof.startswith("yes: batches 0 to 2"), str(later)
    assert later.figures["rows read"] == PER_BATCH
    alter(loader, "DELETE FROM fact_sales WHERE order_id = 130")
    loader.commit(2, 1)
    drained = check(loader, since_last=True)
    # the batch that lost it was verified before, yet it has not arrived
    assert failed(drained) == {"none_missing"}
    assert run_count(loader) == 3
    assert [r["order_id"] for r in rows_of(drained, "none_missing")] == [130]
    assert failed(check(loader)) == {
        "none_missing",
        "fact_rows",
        "same_rows",
        "enriched_columns",
        "sample_joined",
    }


def test_a_failure_stays_open_until_the_same_batches_pass(loader):
    """Also when what was loaded since is sound."""
    loader.load(range(2))
    assert check(loader).success
    with loader.engine.begin() as connection:
        lost = [
            dict(r)
            for r in connection.execute(
                sa.select(loader.fact).where(loader.fact.c.order_id == 20)
            ).mappings()
        ]
        change(connection, "DELETE FROM fact_sales WHERE order_id = 20")
    # what is proven is not looked at again
    assert "nothing was committed" in str(check(loader, since_last=True))
    assert not check(loader).success
    loader.load(range(2, 3))
    later = check(loader, since_last=True)
    assert failed(later) == {"fact_rows", "none_missing", "same_rows"}
    assert later.proof.startswith("NO: batches 0 to 2 failed")
    with loader.engine.begin() as connection:
        connection.execute(loader.fact.insert(), lost)
    mended = check(loader, since_last=True)
    assert mended.success and mended.figures["rows read"] == 3 * PER_BATCH
    assert mended.proof.startswith("yes: batches 0 to 2, 24 checks on ")


@pytest.mark.parametrize(
    "runs, until, open_failures",
    [
        ([], (-1, 1), 0),
        ([(None, (3, 1), True)], (3, 1), 0),
        ([(None, (3, 1), True), ((3, 1), (5, 1), True)], (5, 1), 0),
        ([(None, (3, 1), True), ((4, 1), (5, 1), True)], (3, 1), 0),  # nobody looked at batch 4
        ([(None, (3, 1), True), (None, (3, 1), False), ((3, 1), (5, 1), True)], (-1, 1), 1),
        ([(None, (3, 1), True), ((3, 1), (5, 1), False), ((5, 1), (6, 1), True)], (3, 1), 1),
        ([(None, (3, 1), True), ((3, 1), (5, 1), False), ((3, 1), (6, 1), True)], (6, 1), 0),
        (
            [((3, 1), (5, 1), False), (None, (4, 1), True)],
            (4, 1),
            1,
        ),  # of what failed, batch 5 is left
        ([((3, 1), (5, 1), False), (None, (6, 1), True)], (6, 1), 0),
    ],
    ids=str,
)
def test_what_all_verifications_have_proven(runs, until, open_failures, tmp_path):
    engine = connect(f"sqlite:///{tmp_path / 'warehouse.db'}")
    create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            load_commits.insert().values(
                app="a",
                batch=6,
                drain=1,
                job="{}",
                fact_table="f",
                sink="sql",
                partitions=1,
                source_offsets="{}",
                rows_read=0,
                committed_at=now(),
            )
        )
        for first, last, success in runs:
            connection.execute(
                quality_runs.insert().values(
                    app="a",
                    fact_table="f",
                    started_at=now(),
                    seconds=0,
                    from_batch=first and first[0],
                    from_drain=first and first[1],
                    to_batch=last[0],
                    to_drain=last[1],
                    success=int(success),
                    expectations=19,
                    failed="[]",
                    unseen="[]",
                    report="",
                )
            )
        proof = read_proof(connection, "a")
    assert (proof.until, len(proof.failures), proof.complete) == (
        until,
        open_failures,
        until == (6, 1) and not open_failures,
    )
    assert str(proof).startswith("yes" if proof.complete else "NO")


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


@ON_SQLITE
def test_what_holds_says_of_which_batches_and_when(loader):
    loader.load(range(BATCHES))
    assert re.search(
        r"all 24 checks hold\. Complete: yes: batches 0 to 2, 24 checks on 20\d\d-.* "
        r"UTC\.",
        str(check(loader)),
    )


def test_nothing_new(loader):
    loader.load(range(1))
    assert check(loader, since_last=True).report.exists()
    again = check(loader, since_last=True)
    assert again.success and again.report is None and run_count(loader) == 1
    assert "nothing was committed" in str(again)


@ON_SQLITE
def test_old_reports_are_removed(loader, tmp_path, monkeypatch):
    """Of each app on its own: its latest pages stay, with their results, and the index knows no
    others."""
    loader.load(range(1))
    monkeypatch.setenv("SEMISTREAM_REPORTS_KEPT", "2")
    pages = [check(loader).report for _ in range(3)]
    with loader.engine.begin() as connection:
        for table in (load_apps, load_batches, load_commits):
            connection.execute(table.update().values(app="sales.other"))
    other = quality.verify(
        loader.url,
        "sales.other",
        job=loader.job,
        reports_dir=loader.reports,
        snapshots=loader.reports / "none",
    ).report
    assert set((loader.reports / "validations").rglob("*.html")) == {*pages[1:], other}
    assert len(list((loader.reports / "results").rglob("*.json"))) == 3
    index = (loader.reports / "index.html").read_text()
    assert [str(page.relative_to(loader.reports)) in index for page in (*pages, other)] == [
        False,
        True,
        True,
        True,
    ]
    assert not [d for d in loader.reports.rglob("*") if d.is_dir() and not list(d.iterdir())]


@pytest.fixture
def sketched(tmp_path, monkeypatch):
    """Loaders that keep sketches, of larger batches than others: most of an estimate's bound is
    its sample's, which is smaller for more."""
    monkeypatch.setattr(sink_loads, "PER_BATCH", 4200)

    def load(many: bool = False, left: bool = False, batches: int = BATCHES, drain: bool = True):
        loader = Loader(f"sqlite:///{tmp_path / 'warehouse.db'}", tmp_path, many, left)
        loader.sketched, loader.version = True, publish(loader, tmp_path / "snapshots")
        loader.load(range(batches), drain)
        return loader

    return load


def expected(result: VerificationResult) -> list[dict]:
    """What the check of the expected rows has found; it was made."""
    return rows_of(result, "expected_rows")


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"many": True}, {"left": True}])
def test_keys_tell_how_many_rows_are_to_be_loaded(sketched, form, tmp_path):
    """A loss of 8 of 10 rows is seen, one of a few is not: the bound is wider."""
    loader, places = sketched(**form), {"snapshots": tmp_path / "snapshots", "sample": 0}
    rows = 10_920 * (2 if "many" in form else 1)  # 13 of 15 have a sku, 14 of 15 of these a product
    result = check(loader, **places)
    assert result.success and expected(result) == [] and not result.notes
    alter(loader, "DELETE FROM fact_sales WHERE order_id < 120")
    assert failed(check(loader, **places)) == {"fact_rows", "same_rows", "none_missing"}
    alter(loader, "DELETE FROM fact_sales WHERE order_id > 2520")
    result = check(loader, **places)
    assert "expected_rows" in failed(result)
    [found] = expected(result)
    assert found["rows_loaded"] < found["at_least"] == found["estimate"] - found["bound"] < rows
    assert abs(found["estimate"] - rows) <= found["bound"] < 0.7 * rows
    assert found["at_most"] == found["estimate"] + found["bound"]


def test_more_rows_than_the_keys_tell(sketched, tmp_path):
    loader = sketched()
    with loader.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE copy AS SELECT * FROM fact_sales")
        change(connection, "UPDATE copy SET load_row = load_row + 10000")
        change(connection, "INSERT INTO fact_sales SELECT * FROM copy")
    result = check(loader, snapshots=tmp_path / "snapshots", sample=0)
    [found] = expected(result)
    assert found["rows_loaded"] == 2 * 10_920 > found["at_most"]


@pytest.mark.slow
def test_rows_are_expected_of_what_was_read_since_nothing_waited(sketched, tmp_path):
    """What waits at the end may be missing, also many times; and what waited when the last
    verification ended was read before, and is loaded behind it."""
    loader = sketched(many=True, batches=2, drain=False)
    assert sum(map(len, loader.waiting.values())) == 600
    places = {"snapshots": tmp_path / "snapshots", "sample": 0}
    assert check(loader, **places).success
    loader.load(range(2, 3))
    assert check(loader, since_last=True, **places).success
    alter(loader, "DELETE FROM fact_sales WHERE order_id < 12000")
    [found] = expected(check(loader, **places))
    assert abs(found["estimate"] - 2 * 10_920) <= found["bound"]


@pytest.mark.slow
def test_rows_are_expected_version_by_version_where_all_loads_kept_a_sketch(sketched, tmp_path):
    loader, places = sketched(batches=1), {"snapshots": tmp_path / "snapshots", "sample": 0}
    first, loader.version = loader.version, publish(loader, tmp_path / "snapshots")
    loader.load(range(1, 2))
    alter(loader, "DELETE FROM fact_sales")
    result = check(loader, **places)
    assert [r["version"] for r in expected(result)] == [first, loader.version]
    loader.sketched = False
    loader.load(range(2, 3))
    result = check(loader, **places)
    assert [r["version"] for r in expected(result)] == [first]
    assert f"Some loads with version {loader.version}" in result.notes[0]
    file = max(
        (tmp_path / "snapshots" / "sales" / "sku" / first).glob("*.codes"),
        key=lambda path: path.stat().st_size,
    )
    file.write_bytes(bytes(file.stat().st_size))
    result = check(loader, **places)
    assert "is damaged" in result.notes[1] and str(file) in result.notes[1]
    shutil.rmtree(tmp_path / "snapshots" / "sales" / "sku" / first)
    result = check(loader, **places)
    assert "expected_rows" not in {r.name for r in result.results}
    assert f"Version {first} of the master data is no longer kept" in result.notes[1]


def test_master_data_changed(loader, tmp_path):
    snapshots = tmp_path / "snapshots"
    loader.version = publish(loader, snapshots)
    loader.load(range(1))
    with loader.engine.begin() as connection:
        connection.execute(
            loader.dimension.update()
            .where(loader.dimension.c.sku == "p00")
            .values(name="renamed", colour="red")
        )
        connection.execute(loader.dimension.insert().values(sku="x9", name="new"))
    first, loader.version = loader.version, publish(loader, snapshots)
    assert first != loader.version
    loader.load(range(1, 3))
    result = check(loader, snapshots=snapshots)
    assert result.success and not result.notes, str(result)
    alter(
        loader,
        "UPDATE fact_sales SET name = 'renamed' WHERE order_id = 20",
        "UPDATE fact_sales SET name = 'Product 0' WHERE order_id = 60",
    )
    result = check(loader, snapshots=snapshots, sample=0)
    assert {(r["order_id"], r["in_dimension"]) for r in rows_of(result, "enriched_columns")} == {
        (20, "Product 0 100%: 'new'"),
        (60, "renamed"),
    }, "also those of a version before"
    result = check(loader, snapshots=snapshots)
    assert failed(result) == {"sample_joined", "enriched_columns", "same_rows"}
    assert {
        (r["order_id"], r["master_version"], r["joined_again"])
        for r in rows_of(result, "sample_joined")
    } == {(20, first, "Product 0 100%: 'new'"), (60, loader.version, "renamed")}
    shutil.rmtree(snapshots / "sales" / "sku" / first)
    result = check(loader, snapshots=snapshots)
    assert [r["order_id"] for r in rows_of(result, "sample_joined")] == [60]
    assert "no longer kept" in result.notes[0] and result.notes[0] in result.report.read_text()


@pytest.mark.parametrize("verified", [True, False])
@ON_SQLITE
def test_a_version_that_is_gone_is_said_to_be(loader, tmp_path, verified):
    """Its facts were compared while it was there, or the verdict says that they were not."""
    snapshots = tmp_path / "snapshots"
    loader.version = publish(loader, snapshots)
    loader.load(range(1))
    if verified:
        assert check(loader, snapshots=snapshots).success
    with loader.engine.begin() as connection:
        connection.execute(loader.dimension.update().values(name="renamed"))
    first, loader.version = loader.version, publish(loader, snapshots)
    loader.load(range(1, 2))
    shutil.rmtree(snapshots / "sales" / "sku" / first)
    result = check(loader, snapshots=snapshots)
    assert result.success
    what = (
        f"52 facts and 8 unmatched tuples were loaded with version {first} of the master data, "
        f"which is no longer kept"
    )
    if verified:
        assert not result.unseen and any(
            n.startswith(f"{what}: they were compared") for n in result.notes
        )
    else:
        assert result.unseen == [f"{what}: they were not compared with it"]
        assert (
            result.unseen[0] in result.proof
            and "as far as can be seen" in result.report.read_text()
        )
    again = check(loader, snapshots=snapshots)
    assert again.unseen == result.unseen, "to have passed over it once is not to have seen it"


@ON_SQLITE
def test_a_version_that_is_damaged_is_said_to_be(loader, tmp_path):
    snapshots = tmp_path / "snapshots"
    loader.version = publish(loader, snapshots)
    loader.load(range(1))
    with loader.engine.begin() as connection:
        connection.execute(loader.dimension.update().values(name="renamed"))
    first, loader.version = loader.version, publish(loader, snapshots)
    loader.load(range(1, 2))
    for file in (snapshots / "sales" / "sku" / first).glob("*.arrow"):
        file.write_bytes(file.read_bytes()[:200])
    alter(loader, "UPDATE fact_sales SET quantity = 77 WHERE order_id = 20")
    result = check(loader, snapshots=snapshots)
    assert failed(result) == {"same_rows"}
    assert f"facts of version {first} of the master data were not all compared" in result.unseen[0]
    assert "Not all of these loads could be joined again" in result.report.read_text()
    assert any("cannot be read" in note for note in result.notes)


def provision_again(loader: Loader, changes: int) -> None:
    """As provisioning changes a dimension, which is not yet published: every name, and colours
    where there was none."""
    row = {
        "table_name": "dim_sales",
        "arrow_schema": "",
        "business_key": "[]",
        "rows": 1,
        "provisioned_at": now(),
    }
    with loader.engine.begin() as connection:
        connection.execute(masters.delete())
        connection.execute(masters.insert().values(name="sales", changes=changes, **row))
        connection.execute(
            loader.dimension.update().values(
                name=f"name {changes}", colour="red" if changes > 1 else None
            )
        )


def test_master_data_changed_and_not_yet_published(loader, tmp_path):
    """The facts are held against the version that they were loaded with."""
    snapshots = tmp_path / "snapshots"
    provision_again(loader, 1)
    loader.version = publish(loader, snapshots, 1)
    loader.load(range(BATCHES))
    assert not check(loader, snapshots=snapshots).notes
    provision_again(loader, 2)
    result = check(loader, snapshots=snapshots)
    assert result.success and not result.notes, str(result)
    alter(loader, "UPDATE fact_sales SET name = 'name 2' WHERE order_id = 20")
    result = check(loader, snapshots=snapshots)
    assert failed(result) == {"sample_joined", "enriched_columns", "same_rows"}
    assert [(r["order_id"], r["joined_again"]) for r in rows_of(result, "sample_joined")] == [
        (20, "name 1")
    ]
    publish(loader, snapshots, 2)
    assert rows_of(check(loader, snapshots=snapshots), "sample_joined") == rows_of(
        result, "sample_joined"
    )


def test_master_data_changed_while_it_was_verified(loader, tmp_path, monkeypatch):
    """What is found then is looked at again, and reported once."""
    from semistream.quality import verification

    snapshots = tmp_path / "snapshots"
    provision_again(loader, 1)
    loader.version = publish(loader, snapshots, 1)
    loader.load(range(BATCHES))
    original, found = verification.run_checkpoint, []

    def meanwhile(*args):
        if not found:
            provision_again(loader, 2)
        found.append(original(*args))
        return found[-1]

    monkeypatch.setattr(verification, "run_checkpoint", meanwhile)
    result = check(loader, snapshots=snapshots)
    assert [success for success, _, _ in found] == [False, True] and result.success
    assert run_count(loader) == 1 and result.index.read_text().count("<a href") == 1
    assert list((loader.reports / "validations").rglob("*.html")) == [result.report]


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


def test_source_gone(loader):
    loader.load(range(BATCHES))
    (loader.directory / "orders-1.parquet").unlink()
    result = check(loader)
    assert result.success and len(result.results) == 19
    assert "orders-1.parquet is gone" in result.notes[0]
    assert "not counted again" in result.report.read_text()


@pytest.mark.parametrize("form", ["parquet", "csv"])
@ON_SQLITE
def test_source_without_its_id(loader, form):
    loader.load(range(BATCHES))
    file = loader.directory / "orders-1.parquet"
    if form == "parquet":
        pq.write_table(pq.read_table(file).drop_columns(["order_id"]), file)
    else:
        loader.read_from(1, file, "csv")
        file.write_text("sku,quantity\np01,1\n")
    result = check(loader)
    assert result.success and f"{file} has no column order_id" in result.notes[0]


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


SOURCES = {
    "csv": ('id,name\n1,a\n2,"b,\nb"\nthree,c\n4\n5,d\n', {}, 5, [1, 2, 5]),
    "csv without header": ("1;a\n2;b\n", {"header": "false", "sep": ";"}, 2, [1, 2]),
    "json": ('{"id": 1}\n\n{"id": 2\n{"name": "x"}\n{"id": 4}\n', {}, 4, [1, 4]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_text_sources(name, tmp_path):
    from semistream.quality.recount import ids_of_file, with_stream_id

    text, options, rows, ids = SOURCES[name]
    kind, file = name.split()[0], tmp_path / "part 1.txt"
    file.write_text(text)
    spec = StreamSpec(
        format=kind,
        options=options,
        columns=None if "id,name" in text else "id BIGINT, name STRING",
        id=("id",),
    )
    pieces = list(ids_of_file(file, spec, None))
    assert sum(n for n, _ in pieces) == rows
    schema = pa.schema(
        [("quality_batch", pa.int64()), ("id", pa.int64()), ("quality_id", pa.string())]
    )
    found = pa.concat_tables(with_stream_id(7, b, 1, schema) for _, b in pieces)
    assert found.to_pydict() == {
        "quality_batch": [7] * len(ids),
        "id": ids,
        "quality_id": [str(i) for i in ids],
    }


def test_options_of_a_file_hold_when_a_source_is_counted_again(tmp_path):
    from semistream.quality.recount import ids_of_file

    (options := tmp_path / "options.yaml").write_text('{header: "false", sep: ;}')
    options.chmod(0o600)
    (file := tmp_path / "part.txt").write_text("1;a\n2;b\n")
    spec = StreamSpec(
        format="csv", options_file=str(options), columns="id BIGINT, name STRING", id=("id",)
    )
    pieces = list(ids_of_file(file, spec, None))
    assert pa.concat_batches([b for _, b in pieces])["id"].to_pylist() == ["1", "2"]


def test_numbered_sources(warehouse):
    from semistream.streaming.sources.contract import CannotRecount, Part
    from semistream.streaming.sources.registry import find_source

    columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("order_id", sa.BigInteger)
    outbox = sa.Table("outbox", sa.MetaData(), *columns)
    outbox.create(warehouse)
    with warehouse.begin() as connection:
        connection.execute(outbox.insert(), [{"id": i, "order_id": 100 + i} for i in range(1, 10)])
    part = Part({"id": 3}, {"id": 7})
    source = find_source(StreamSpec(format="outbox", options={"table": "outbox"}, id=("order_id",)))
    (split,) = source.splits(part)
    assert [
        (n, b.to_pydict()) for n, b in source.recount(split, warehouse).read(("order_id",))
    ] == [(4, {"order_id": [104, 105, 106, 107]})]
    source = find_source(StreamSpec(format="zipf", id=("id",)))
    (split,) = source.splits(Part(None, part.end))
    assert [
        (n, b.column("id").to_pylist()) for n, b in source.recount(split, warehouse).read(("id",))
    ] == [(7, [1, 2, 3, 4, 5, 6, 7])]
    with pytest.raises(CannotRecount, match="kafka"):
        find_source(StreamSpec(format="kafka")).splits(part)


def test_stale_staging_tables_are_dropped(loader):
    loader.load(range(1))
    with loader.engine.begin() as connection:
        for name in ("quality_1000_1_ids", f"quality_{int(datetime.now().timestamp())}_1_ids"):
            connection.exec_driver_sql(f"CREATE TABLE {name} (a INT)")
    check(loader)
    left = [t for t in sa.inspect(loader.engine).get_table_names() if re.match(r"quality_\d", t)]
    assert len(left) == 1 and "quality_1000" not in left[0]


CUT = """return [...document.querySelectorAll('td, th, svg, pre, dd, p')]
    .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)
    .map(e => e.outerHTML)"""


@ON_SQLITE
def test_report_in_a_browser_offline(loader, tmp_path):
    chromium = pytest.importorskip("selenium.webdriver.chrome.options")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("chromedriver is not installed")
    loader.load(range(BATCHES))
    good = check(loader)
    assert good.success
    with loader.engine.begin() as connection:
        change(connection, "DELETE FROM fact_sales WHERE order_id = 20")
        change(
            connection,
            "UPDATE fact_sales SET name = '<script>document.title = 1</script>' "
            "WHERE order_id = 41",
        )
    result = check(loader)
    downloads = tmp_path / "downloads"
    options = chromium.Options()
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "host-resolver-rules=MAP * ~NOTFOUND",
        f"user-data-dir={tmp_path / 'user'}",
    ):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.get(result.index.as_uri())
        rows = browser.find_elements("css selector", "tbody tr")
        assert ["complete" in r.text for r in rows] == [True, True]
        assert "not complete" in rows[0].text
        rows[0].find_element("tag name", "a").click()
        verdict = browser.find_element("tag name", "h1").text
        assert verdict == "sales is not complete: 5 of 24 checks fail."
        assert browser.title == "sales: 5 failed"
        covered = browser.find_element("class name", "covered").text
        assert "0 to 2, all" in covered
        assert "3: orders-0.parquet, orders-1.parquet, orders-2.parquet" in covered
        shown = browser.find_element("id", "none_missing").text
        assert "Every stream tuple has arrived" in shown
        assert "Tuples of the source are neither in fact_sales nor in unmatched" in shown
        assert "\nsemistream reset sales\n" in shown
        assert "source batch order id\n0 20\n" in shown
        cards = browser.find_elements("css selector", "section.card")
        assert [c.get_attribute("id") for c in cards] == [r.name for r in result.failed]
        [flow] = browser.find_elements("css selector", "#completeness svg")
        assert flow.text.split("\n") == [
            "matched 156 (86.7%)",
            "no match 12 (6.7%)",
            "null key 12 (6.7%)",
            "180 read",
        ]
        assert flow.accessible_name.startswith("sales: 180 read; 156 matched; 12 no match")
        trends = browser.find_elements("css selector", "#loads svg")
        assert ["of the last 1 loads" in t.accessible_name for t in trends] == [True, True]
        browser.find_element("css selector", "#none_missing .csv").click()
        kept = downloads / "sales-none_missing.csv"
        until(kept.exists, what="a download")
        assert kept.read_text().split() == ["source_batch,order_id", "0,20"]
        assert "<script>" in browser.find_element("id", "sample_joined").text
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        assert [u for u in loaded if not u.startswith(("data:", "file:"))] == []
        color = browser.execute_script(
            "return getComputedStyle(document.querySelector('.tag.bad')).backgroundColor"
        )
        assert color not in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
        changes = browser.find_element("id", "changes")
        assert "Nothing was loaded." in changes.text and "were changed since" in changes.text
        for width, media in ((360, "screen"), (703, "print")):  # 186 mm: of A4, without margins
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width
        assert browser.execute_script(CUT) == []
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.find_element("link text", "its report").click()
        assert browser.current_url == good.report.as_uri()
        verdict = browser.find_element("tag name", "h1").text
        assert verdict == (
            "sales is complete: of 180 rows read, 156 are matched, 24 are unmatched, and none "
            "waits."
        )
        browser.find_element("link text", "All verifications").click()
        assert browser.find_element("tag name", "h1").text == "Data quality of the warehouse"
    finally:
        browser.quit()


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
