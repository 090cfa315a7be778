"""Ids that come twice in the source: the same verdict, however they came and whoever asks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from csv_loads import CsvLoad, sale
from semistream import quality
from sink_loads import ON_SQLITE, STREAM, Loader, check, failed, orders, rows_of


def load(loader: Loader, batch: int, *files: list[dict], drain: bool = True) -> list[Path]:
    """A batch of such files, which the ledger names as the app does."""
    paths = []
    for number, rows in enumerate(files):
        paths.append(loader.directory / f"orders-{batch}-{number}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, STREAM), paths[-1])
    loader.commit(batch, 0, [r for rows in files for r in rows], paths)
    if drain:
        loader.commit(batch, 1)
    return paths


def allowing(loader: Loader) -> None:
    """The job, with unique_ids: false."""
    stream = loader.job.stream.model_copy(update={"unique_ids": False})
    loader.job = loader.job.model_copy(update={"stream": stream})


@pytest.mark.parametrize(
    "together, gone, shape",
    [
        (True, False, {}),
        (True, True, {"many": True}),
        (False, False, {"left": True}),
        (False, True, {}),
        (False, True, {"many": True}),
        (False, True, {"left": True}),
    ],
    ids=str,
)
def test_a_file_that_came_twice(warehouse_url, tmp_path, together, gone, shape):
    """Under another name, with some orders of its own; whether the source is still there or not."""
    loader = Loader(warehouse_url, tmp_path, **shape)
    again = orders(0)[:40] + orders(1)[:5]
    if together:
        files = load(loader, 0, orders(0), again)
        assert failed(check(loader, since_last=True)) == {"unique_ids"}
    else:
        files = load(loader, 0, orders(0))
        assert check(loader, since_last=True).success
        files += load(loader, 1, again)
    if gone:
        for file in files:
            file.unlink()
    for since_last in (True, False, True):
        result = check(loader, since_last=since_last)
        assert failed(result) == {"unique_ids"}, str(result)
        [found] = result.failed
        assert found.count == 40 and "`semistream reset sales --file COPY`" in found.remedy
        assert "`semistream verify sales --job FILE`" in found.remedy
        assert {r["times_in_source"] for r in found.rows} == {2}
        assert {r["stream_id"] for r in found.rows} == {str(o["order_id"]) for o in orders(0)[:40]}
        named = {str(f) for r in found.rows for f in (r["first_file"], r["last_file"])}
        if gone and together:  # of the batch's files it is one
            assert named == {f"{files[0]}, or another of 2 files that are gone"}
        else:
            assert named == {f"{file}{' (which is gone)' * gone}" for file in files}, named
        assert "40 ids come more than once: 40 " in result.report.read_text()
    allowing(loader)
    for since_last in (True, False):
        if since_last and not together:
            assert check(loader).success
            loader.load(range(2, 3))
        result = check(loader, since_last=since_last)
        assert result.success, str(result)
    assert any("40 ids come more than once" in note for note in result.notes)


@pytest.mark.slow
def test_one_id_once_matched_and_once_not(loader):
    """Two loads, and the source is gone: the facts and the unmatched tuples are held together."""
    files = load(loader, 0, orders(0))
    assert check(loader).success
    matched, rejected = orders(0)[0], orders(0)[9]  # order 9 has no product
    swapped = [{**matched, "sku": "x0"}, {**rejected, "sku": "p03"}]
    files += load(loader, 1, swapped + orders(1)[:3])
    for file in [None, *files]:
        if file is not None:
            file.unlink()
        for since_last in (True, False):
            result = check(loader, since_last=since_last)
            assert failed(result) == {"unique_ids"}, str(result)
            assert {r["stream_id"] for r in rows_of(result, "unique_ids")} == {"0", "9"}


@ON_SQLITE
def test_a_tuple_that_was_loaded_twice_is_told_from_one_that_came_twice(loader):
    load(loader, 0, orders(0))
    with loader.engine.begin() as connection:
        row = (
            connection.execute(sa.select(loader.fact).where(loader.fact.c.order_id == 20))
            .mappings()
            .one()
        )
        connection.execute(loader.fact.insert().values({**row, "load_row": 999}))
    assert {"no_duplicates"} == failed(check(loader)) - {"fact_rows", "same_rows"}


def test_many_master_rows_are_no_duplicates(warehouse_url, tmp_path):
    """Also where the source is gone, and its facts are all that is known."""
    loader = Loader(warehouse_url, tmp_path, many=True)
    for batch in range(2):
        for file in load(loader, batch, orders(batch), drain=False):
            file.unlink()
        for since_last in (True, False):
            result = check(loader, since_last=since_last)
            assert result.success and "unique_ids" in {r.name for r in result.results}, str(result)


def test_tuples_without_an_id_are_no_copies_of_each_other(spark, tmp_path, run, monkeypatch):
    """For the check of a job, for the load and for the proof."""
    load = CsvLoad(tmp_path)
    monkeypatch.setenv("SEMISTREAM_HOME", str(load.paths.home))
    monkeypatch.setenv("WAREHOUSE_URL", load.paths.warehouse_url)
    nameless = [sale(i).partition(",")[2] for i in (1, 2, 30)]  # the last one has no key, too
    load.add("sales.csv", *map(sale, range(20)), *(f",{values}" for values in nameless))
    code, out, error = run("check", load.file)
    assert code == 0 and "3 of 23 tuples have no id (id): the proof counts them" in out, out + error
    load.run(spark)
    assert len(load.rows("fact_sales WHERE id IS NULL", "load_id", "load_row")) == 2
    result = quality.verify(
        load.paths.warehouse_url,
        "sales",
        reports_dir=load.paths.reports,
        snapshots=load.paths.snapshots,
    )
    assert result.success, str(result)
    said = "3 tuples of the source without an id (id): counted, and no missing one can be named."
    assert said in result.notes
    load.add("again.csv", sale(1), sale(2))
    code, out, _ = run("check", load.file)
    assert code == 1 and "2 of 25 tuples have the id of another one (id)" in out
