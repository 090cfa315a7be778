"""Tuples that could not be parsed do not hide others that are missing."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from semistream.files.source import Rejected
from semistream.warehouse.proof import read_proof
from sink_loads import ON_SQLITE, STREAM, Loader, alter, check, failed, orders, rows_of


def with_unparsable(loader: Loader, file: Path, rejected: list[Rejected]) -> None:
    """Load a CSV file with rows that are unparsable and have no id."""
    with (
        gzip.open(file, "wt", newline="") if file.suffix == ".gz" else open(file, "w", newline="")
    ) as f:
        writer = csv.DictWriter(f, STREAM.names)
        writer.writeheader()
        writer.writerows(orders(0))
        f.write("".join(f"{r.text}\n" for r in rejected))
    stream = loader.job.stream.model_copy(update={"format": "csv", "max_unparsable": 1})
    loader.job = loader.job.model_copy(update={"stream": stream})
    loader.commit(0, 0, orders(0), [file], rejected)
    loader.commit(0, 1)
    loader.read_from(0, file, "csv")


LINES = ["900,p01,many,2026-02-01", '901,"p0,1",many,2026-02-01', "three,p01,1,2026-02-01", "902"]


@pytest.mark.parametrize("name", ["orders.csv", "orders.csv.gz"])
def test_ids_of_unparsable_tuples_are_taken_from_their_text(loader, tmp_path, name):
    file = tmp_path / name
    with_unparsable(loader, file, [Rejected(line, "", str(file)) for line in LINES])
    sound = check(loader)
    assert sound.success and not sound.unseen, str(sound)
    alter(loader, "DELETE FROM fact_sales WHERE order_id IN (20, 21, 25)")
    lost = rows_of(check(loader), "none_missing")
    assert [r["order_id"] for r in lost] == [20, 21, 25]


@ON_SQLITE
def test_texts_without_an_id_leave_room_for_so_many_and_the_verdict_says_so(loader, tmp_path):
    """Of two tuples no one knows the file."""
    file = tmp_path / "orders.csv"
    with_unparsable(
        loader,
        file,
        [Rejected(LINES[0], "", str(file)), *(Rejected(line, "") for line in LINES[1:3])],
    )
    result = check(loader)
    assert result.success
    assert result.unseen == [
        "at most 1 stream tuples are missing, as 2 unparsable ones have no id that can be told"
    ]
    assert result.unseen[0] in result.proof and result.unseen[0] in str(result)
    title = "All stream tuples but at most 1 have arrived"
    assert title in result.report.read_text() and title in [r.title for r in result.results]
    with loader.engine.connect() as connection:
        proof = read_proof(connection, "sales")
    assert proof.complete and proof.unseen == tuple(result.unseen)
    alter(loader, "DELETE FROM fact_sales WHERE order_id = 20")
    assert "none_missing" not in failed(check(loader)), "two may be these"
    alter(loader, "DELETE FROM fact_sales WHERE order_id = 21")
    assert [r["order_id"] for r in rows_of(check(loader), "none_missing")] == [20, 21, 901]
