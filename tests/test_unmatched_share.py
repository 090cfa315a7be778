"""Tuples without master data: the check of their share, the warning where it has risen, and why
their keys match nothing, in the proof."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loads import STREAM as SALES
from loads import SmallLoad, until, verify
from semistream.errors import ConfigError
from semistream.files.source import Rejected
from semistream.job import Job
from semistream.quality.expected_loads import match_rate
from semistream.quality.verification import VerificationResult
from semistream.streaming.status import request_stop
from semistream.warehouse.load_history import BEFORE, LEAST, newest_rise, read_loads
from sink_loads import STREAM, Loader, check, failed, publish, rows_of


class Loads:
    """Loads of an app, one after the other, each with a given share of tuples without master
    data."""

    def __init__(self, url: str, directory: Path):
        self.loader, self.batch, self.directory = Loader(url, directory), 0, directory
        publish(self.loader, directory / "snapshots")

    def load(
        self, count: int, missing: int, key: str = "x{}", drain: bool = True, unparsable: int = 0
    ) -> None:
        """Load a batch of so many tuples, and its drain. missing: of them have no master data; key:
        what they have instead, with the number of a product; unparsable: further ones."""
        first = self.batch * 10_000
        rows = [
            {
                "order_id": first + i,
                "sku": key.format(f"{i % 40:02d}") if i < missing else f"p{i % 40:02d}",
                "quantity": 1,
                "day": None,
            }
            for i in range(count)
        ]
        file = self.loader.directory / f"orders-{self.batch}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, STREAM), file)
        wrong = [Rejected("?", "no text", str(file), n, None) for n in range(unparsable)]
        self.loader.commit(self.batch, 0, rows, [file], wrong)
        if drain:
            self.loader.commit(self.batch, 1)
        self.batch += 1

    def check(self, **options) -> VerificationResult:
        return check(self.loader, snapshots=self.directory / "snapshots", **options)


@pytest.fixture
def loads(warehouse_url, tmp_path) -> Loads:
    return Loads(warehouse_url, tmp_path)


def limited(job: Job, limit: float) -> Job:
    role = job.dimensions["sales"].model_copy(update={"max_unmatched": limit})
    return job.model_copy(update={"dimensions": {"sales": role}})


def test_more_tuples_without_master_data_than_allowed_fail_the_proof(loads):
    loads.load(200, 100)
    assert loads.check().success
    loads.load(200, 102)
    result = loads.check()
    assert failed(result) == {"unmatched_share"}
    assert rows_of(result, "unmatched_share") == [
        {"rows_read": 400, "unmatched": 202},
        {"rows_read": 200, "unmatched": 102},
    ]
    assert "No more than 0.5 of the tuples have no row of sales" in result.describe()
    assert "outside what is expected: batch 1" in result.report.read_text()
    assert "raise max_unmatched of the role sales" in result.describe()
    assert loads.check(limits=limited(loads.loader.job, 0.6)).success


def test_former_loads_do_not_hide_what_the_latest_lacks(loads):
    loads.load(800, 0)
    assert loads.check(since_last=True).success
    loads.load(200, 102)
    # all but the first look at all, of which a tenth has no row
    for since_last in (True, False, False, True):
        result = loads.check(since_last=since_last)
        assert failed(result) == {"unmatched_share"}
        assert rows_of(result, "unmatched_share") == [{"rows_read": 200, "unmatched": 102}]
    assert loads.check(limits=limited(loads.loader.job, 0.6)).success
    assert loads.check().success  # what is proven counts with all others


def test_tuples_that_wait_are_counted_where_they_were_read(loads):
    loads.load(140, 60, drain=False)
    assert loads.check().success
    # the drain, by itself, finishes tuples of which more than half have no master data
    loads.loader.commit(0, 1)
    waited = [i for i in range(140) if i % 7 == 3]
    assert len([i for i in waited if i < 60]) * 2 < len(waited)
    assert loads.check(since_last=True).success
    loads.load(140, 100, drain=False)
    assert failed(loads.check(since_last=True)) == {"unmatched_share"}


@pytest.mark.parametrize(
    "key, said, declaration",
    [
        ("P{} ", "after trimming and ignoring case in sku", "{sku: {trim: true, case: fold}}"),
        (" p{}", "after trimming in sku", "{sku: {trim: true}}"),
    ],
)
def test_the_report_says_why_keys_match_nothing(loads, caplog, key, said, declaration):
    loads.load(200, 150, key)
    result = loads.check()
    assert failed(result) == {"unmatched_share"}
    shown = f"Of 40 unmatched keys 40 would match {said}"
    assert shown in result.describe() and f"formats: {declaration}" in result.describe()
    assert any(note.startswith(shown) for note in result.notes)
    page = result.report.read_text()
    assert shown in page and declaration in page
    assert any(shown in record.message for record in caplog.records)


def test_a_ledger_that_contradicts_itself_is_found_and_hides_nothing(loads):
    loads.load(200, 150, "P{} ")
    with loads.loader.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE load_batches SET unmatched = 0")
    assert failed(loads.check()) >= {"batch_arithmetic", "input_arithmetic", "unmatched_share"}


def test_few_tuples_without_master_data_are_not_looked_into(loads):
    loads.load(200, 10, "P{} ")
    assert loads.check().notes == []
    loads.load(200, 20, "P{} ")
    [note] = loads.check().notes
    assert "would match" in note


def test_a_share_that_rises_is_warned_of(loads, caplog):
    for _ in range(3):
        loads.load(LEAST, 10)
    assert loads.check().notes == []
    loads.load(LEAST, 30)  # 20 points more, and not more than 20
    assert loads.check(since_last=True).notes == []
    loads.load(LEAST, 40)
    caplog.set_level(logging.WARNING)
    result = loads.check(since_last=True)
    [note] = result.notes
    assert result.success and note == (
        f"40.0% of the {LEAST} tuples of batch 4 have no row of sales, against 10.0%, the median "
        "of the 4 loads before."
    )
    assert note in result.report.read_text() and note in caplog.text
    # in a proof of everything, too, until it is the rule
    assert loads.check().notes == [note]
    loads.load(LEAST - 1, 90)  # so few vary by chance
    assert loads.check(since_last=True).notes == []


def test_what_cannot_be_parsed_is_neither_matched_nor_without_master_data(loads):
    loads.load(LEAST, 10)
    loads.load(LEAST, 50, unparsable=3 * LEAST)
    with loads.loader.engine.connect() as connection:
        _, newest = read_loads(connection, "sales", (1, 1))
        rise = newest_rise(connection, "sales", "sales", None, (1, 1))
    assert newest.read == 4 * LEAST and newest.finished["sales"] == LEAST
    assert match_rate(newest, "sales") == 0.5
    assert f"50.0% of the {LEAST} tuples of batch 1" in str(rise)


def test_a_load_is_compared_with_the_ten_before(loads):
    loads.load(LEAST, 0)
    for _ in range(BEFORE):
        loads.load(LEAST, 40)
    loads.load(LEAST, 50)
    assert loads.check(since_last=True).notes[0].startswith("40.0% of the 100 tuples of batch 1 ")
    loads.load(LEAST, 62)
    assert (
        loads.check(since_last=True).notes[0].endswith("40.0%, the median of the 10 loads before.")
    )


def test_a_share_that_rises_is_warned_of_however_much_the_loads_before_differ(loads):
    for missing in (0, 50, 10, 40, 20, 30):
        loads.load(LEAST, missing)
    loads.check()
    loads.load(LEAST, 45)  # 20 points more than their median
    assert loads.check(since_last=True).notes == []
    loads.load(LEAST, 51)
    [note] = loads.check(since_last=True).notes
    assert note.startswith("51.0% of the 100 tuples of batch 7 have no row of sales, against 30.0%")


def test_what_waits_belongs_to_the_load_that_read_it(loads):
    """Batches without a drain between them are one load, whose unmatched tuples come last."""
    loads.load(LEAST, 10)
    for _ in range(3):
        loads.load(LEAST, 10, drain=False)
    loads.load(LEAST, 80)
    assert loads.check().notes == []
    loads.load(2 * LEAST, 120, drain=False)
    [note] = loads.check(since_last=True).notes
    assert "of batch 5 have no row of sales, against 18.8%, the median of the 2 loads" in note


@pytest.mark.parametrize("limit", [-0.1, 1.1, "many"])
def test_a_limit_is_a_share(limit):
    job = {"name": "j", "stream": {}, "master": {"name": "m"}, "on": "k", "fact_table": "f"}
    assert Job.load(job).dimensions["m"].max_unmatched == 0.5
    assert Job.load(job | {"max_unmatched": 1}).dimensions["m"].max_unmatched == 1
    with pytest.raises(ConfigError, match="max_unmatched"):
        Job.load(job | {"max_unmatched": limit})


# ---- the app


def add_written(load: SmallLoad, rows: int) -> None:
    """A file of sales whose keys are written otherwise than the parts' are."""
    tuples: list[dict[str, Any]] = [
        {"id": len(load.stream) + i, "sku": f" C{i % 100}", "amount": 1.0} for i in range(rows)
    ]
    load.stream += tuples
    load.put_file(load.stream_directory, pa.Table.from_pylist(tuples, SALES))


SAID = "unmatched keys 100 would match after trimming and ignoring case in sku"


def test_a_run_says_why_its_keys_match_nothing(spark, sqlite_load, caplog):
    sqlite_load.add_file(2000)
    sqlite_load.add_file(2000)
    assert sqlite_load.run(spark).warnings == ()
    add_written(sqlite_load, 1000)
    rise, why = sqlite_load.run(spark).warnings
    assert rise.startswith("100.0% of the 1,000 tuples of batch 2 have no row of part, against ")
    assert SAID in why and why.endswith("formats: {sku: {trim: true, case: fold}}")
    assert SAID in caplog.text and rise in caplog.text
    result = verify(sqlite_load)
    assert result.success and any(rise in note for note in result.notes)
    assert any(SAID in note for note in result.notes)
    add_written(sqlite_load, 10_000)
    assert SAID in sqlite_load.run(spark).warnings[-1]
    assert failed(verify(sqlite_load, since_last=True)) == {"unmatched_share"}


def test_a_run_that_goes_on_says_it_while_it_goes_on(spark, sqlite_load, caplog):
    add_written(sqlite_load, 1500)
    app = sqlite_load.start(spark, trigger="100 milliseconds", stop_after=60)
    until(lambda: SAID in caplog.text, watch=app.check, what="a warning")
    request_stop(sqlite_load.paths.checkpoints / "sales")
    assert SAID in app.join().warnings[0]
