"""Tuples that could not be parsed do not hide others that are missing."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from semistream.warehouse.load_ids import load_id
from semistream.warehouse.proof import read_proof
from semistream.warehouse.schema import (
    load_batches,
    load_commits,
    load_inputs,
    load_rejections,
    unmatched,
)
from test_quality import STREAM, Loader, change, check, failed, orders, rows_of


def with_unparsable(loader: Loader, file: Path, lines: list[str], said: list[dict]) -> None:
    """The source as a CSV file that has such lines more, which are unparsable and have no id."""
    loader.load(range(1))
    (loader.directory / "orders-0.parquet").unlink()
    with (gzip.open(file, "wt", newline="") if file.suffix == ".gz"
          else open(file, "w", newline="")) as f:
        writer = csv.DictWriter(f, STREAM.names)
        writer.writeheader()
        writer.writerows(orders(0))
        f.write("".join(f"{line}\n" for line in lines))
    stream = loader.job.stream.model_copy(update={"format": "csv", "max_unparsable": 1})
    loader.job = loader.job.model_copy(update={"stream": stream})
    loader.read_from(0, file, "csv")
    c, key = load_commits.c, load_id(1, 0, 0, 0)
    with loader.engine.begin() as connection:
        for table in (load_batches, load_inputs):
            connection.execute(table.update().where(table.c.load_id == key).values(
                rows_read=table.c.rows_read + len(said), unmatched=table.c.unmatched + len(said)))
        connection.execute(load_rejections.insert().values(
            load_id=key, role="sales", reason="unparsable", tuples=len(said)))
        connection.execute(load_commits.update().where(c.drain == 0).values(
            rows_read=c.rows_read + len(said)))
        connection.execute(unmatched.insert(), [
            {"load_id": key, "load_row": 1000 + n, "fact_table": "fact_sales",
             "reason": "unparsable", "stream_id": None, "tuple": json.dumps(each)}
            for n, each in enumerate(said)])


LINES = ["900,p01,many,2026-02-01", '901,"p0,1",many,2026-02-01', "three,p01,1,2026-02-01", "902"]


@pytest.mark.parametrize("name", ["orders.csv", "orders.csv.gz"])
def test_ids_of_unparsable_tuples_are_taken_from_their_text(warehouse_url, tmp_path, name):
    loader, reports = Loader(warehouse_url, tmp_path), tmp_path / "reports"
    file = tmp_path / name
    with_unparsable(loader, file, LINES,
                    [{"_corrupt_record": line, "file": str(file)} for line in LINES])
    sound = check(loader, reports)
    assert sound.success and not sound.unseen, str(sound)
    with loader.engine.begin() as connection:
        change(connection, "DELETE FROM fact_sales WHERE order_id IN (20, 21, 25)")
    lost = rows_of(check(loader, reports), "none_missing")
    assert [r["order_id"] for r in lost] == [20, 21, 25]


def test_texts_without_an_id_leave_room_for_so_many_and_the_verdict_says_so(tmp_path):
    """Of two tuples no one knows the file."""
    loader = Loader(f"sqlite:///{tmp_path / 'warehouse.db'}", tmp_path)
    reports, file = tmp_path / "reports", tmp_path / "orders.csv"
    with_unparsable(loader, file, LINES[:3], [
        {"_corrupt_record": LINES[0], "file": str(file)},
        *({"_corrupt_record": line} for line in LINES[1:3])])
    result = check(loader, reports)
    assert result.success
    assert result.unseen == ["at most 1 stream tuples are missing, as 2 unparsable ones have no id "
                             "that can be told"]
    assert result.unseen[0] in result.proof and result.unseen[0] in str(result)
    title = "All stream tuples but at most 1 have arrived"
    assert title in result.report.read_text() and title in [r.title for r in result.results]
    with loader.engine.connect() as connection:
        proof = read_proof(connection, "sales")
    assert proof.complete and proof.unseen == tuple(result.unseen)
    with loader.engine.begin() as connection:
        change(connection, "DELETE FROM fact_sales WHERE order_id = 20")
    assert "none_missing" not in failed(check(loader, reports)), "two may be these"
    with loader.engine.begin() as connection:
        change(connection, "DELETE FROM fact_sales WHERE order_id = 21")
    assert [r["order_id"] for r in rows_of(check(loader, reports), "none_missing")] == [20, 21, 901]
