"""What a job's user expects of its loads, as checks of the proof; and the table of what the proofs
have found wrong."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from semistream.errors import ConfigError
from semistream.expect import Expectations
from semistream.job import Job, StreamStreamJob
from semistream.quality.expected_loads import match_limits, volume_limits
from semistream.warehouse.load_history import LEARNED_FROM, Band, Load
from semistream.warehouse.load_ids import load_id
from semistream.warehouse.schema import load_commits, quality_failures
from sink_loads import (
    BATCHES,
    ON_SQLITE,
    STREAM,
    Loader,
    alter,
    check,
    failed,
    now,
    orders,
    rows_of,
)


def expecting(job: Job, **expect) -> Job:
    return job.model_copy(update={"expect": Expectations.load(expect)})


def load(loader: Loader, batch: int, rows: int) -> None:
    """Load a batch of so many orders, and its drain."""
    file = loader.directory / f"orders-{batch}.parquet"
    tuples = orders(batch)[:rows]
    pq.write_table(pa.Table.from_pylist(tuples, STREAM), file)
    loader.commit(batch, 0, tuples, [file])
    loader.commit(batch, 1)


@ON_SQLITE
def test_a_failure_tells_what_its_check_compares(loader):
    """And not another column that its rows have, too."""
    loader.load(range(BATCHES))
    alter(
        loader,
        f"UPDATE load_batches SET matched = matched + 1 WHERE load_id = {load_id(1, 1, 0, 0)}",
    )
    check(loader)
    told = {row.expectation: (row.expected, row.found) for row in failures(loader)}
    assert told["batch_arithmetic"] == told["total_arithmetic"] == (None, "-1")
    alter(loader, "UPDATE load_commits SET rows_read = 61 WHERE batch = 1")
    check(loader)
    [row] = [row for row in failures(loader) if row.expectation == "commit_rows"]
    assert (row.expected, row.found) == ("61", "60")


def failures(loader: Loader) -> list[sa.Row]:
    f = quality_failures.c
    with loader.engine.connect() as connection:
        query = sa.select(quality_failures).order_by(f.verification, f.number)
        return list(connection.execute(query))


@ON_SQLITE
def test_a_volume_is_learned_from_the_loads_before(loader):
    loader.job = expecting(loader.job, volume={"below": "20%", "action": "warn"})
    for batch in range(LEARNED_FROM):
        load(loader, batch, 60)
    result = check(loader)
    assert result.success and not result.warned
    assert result.notes == [
        "Not enough loads yet to learn what is usual (volume): it takes 5 before."
    ]
    load(loader, LEARNED_FROM, 48)
    load(loader, LEARNED_FROM + 1, 47)
    result = check(loader, since_last=True)  # judges both
    [warned] = result.warned
    assert result.success and warned.name == "volume" and not result.notes
    assert warned.count == 1 and {k: warned.rows[0][k] for k in ("batch", "found", "expected")} == {
        "batch": LEARNED_FROM + 1,
        "found": "47",
        "expected": "at least 48 (median of 6 loads: 60)",
    }
    told = "\n- Warning: Each load reads as many rows as are expected (volume): 1 row\n    batch=6,"
    assert told in result.describe()
    assert '<span class="tag warn">warns</span>' in result.report.read_text()
    [row] = failures(loader)
    assert (row.expectation, row.action, row.batch, row.found) == ("volume", "warn", 6, "47")
    failing = expecting(loader.job, volume={"below": "20%"})
    assert failed(check(loader, limits=failing)) == {"volume"}
    assert failures(loader)[0].action == "fail"


@ON_SQLITE
def test_given_limits_and_freshness(loader):
    loader.load(range(1))
    right = expecting(
        loader.job,
        volume={"at_least": 60, "at_most": 60},
        match_rate={"at_least": 0.86},
        freshness={"within": "2 hours"},
    )
    wrong = expecting(loader.job, volume={"at_most": 59}, match_rate={"at_least": 0.9})
    result = check(loader, limits=wrong)
    assert failed(result) == {"volume", "match_rate"}
    assert rows_of(result, "match_rate")[0]["found"] == "86.7%"
    assert check(loader, limits=right).success  # which settles the former
    loader.job = right
    nothing_new = check(loader, since_last=True)
    assert nothing_new.success and nothing_new.report is None
    with loader.engine.begin() as connection:
        aged = now() - timedelta(hours=3)
        connection.execute(load_commits.update().values(committed_at=aged))
    result = check(loader, since_last=True)  # nothing was loaded, which is what is wrong
    assert failed(result) == {"freshness"}
    assert rows_of(result, "freshness")[0]["found"] == "3 h"
    assert rows_of(result, "freshness")[0]["expected"] == "at most 2 h"


@ON_SQLITE
def test_the_report_tells_how_long_tuples_waited(loader):
    """The median of a load is of its tuples, and not of its commits."""
    load(loader, 0, 60)
    load(loader, 1, 40)
    alter(
        loader,
        "UPDATE load_batches SET wait_median = 0.25, wait_longest = 3",
        "UPDATE load_batches SET wait_median = 40, wait_longest = 50 WHERE matched < 5",
    )
    page = check(loader).report.read_text()
    named = re.findall(r'aria-label="(\w+ wait) of the last 2 loads, newest ([^;]+);', page)
    assert named == [("median wait", "0.26 s"), ("longest wait", "50 s")]
    told = re.findall(
        r"<td>([^<]+)</td>(?:<td[^>]*>\d+</td>)+<td[^>]*>([^<]+ s)<.*?>(\d+ s)<", page
    )
    assert told == [
        (n + kind, *waits)
        for n in "01"
        for kind, waits in {"": ("0.25 s", "3 s"), " drained": ("40 s", "50 s")}.items()
    ]


def test_what_is_usual():
    assert Band.learn([10, 10, 10, 10, 50], 1) == (10, 1, 5)
    assert Band.learn([1, 2, 3, 4, 5]).distance == pytest.approx(3 * 1.4826)
    assert Band.learn([1, 2, 3, 4]).distance == 0  # too few to tell
    start = now().replace(hour=12)
    loads = [
        Load((n, 0), (n, 1), start + timedelta(days=n), read=1000 if n % 7 else 100)
        for n in range(43)
    ]
    for of in loads:
        of.finished["part"], of.missing["part"] = 1000, 150 if of.first[0] % 2 else 160
    learned = Expectations.load({"volume": "learned", "match_rate": "learned"})
    # of the weekday on which there is little
    quiet, busy = (volume_limits(learned.volume, loads, n) for n in (42, 41))
    assert quiet.usual.median == 100 and quiet.holds(100) and not quiet.holds(1000)
    assert busy.usual.median == 1000 and busy.holds(1100) and not busy.holds(1101)
    rate = match_limits(learned.match_rate, "part", loads, 41)
    assert rate.holds(0.83) and not rate.holds(0.80) and rate.holds(1)


@pytest.mark.parametrize(
    "expect, words",
    [
        ({"volume": {"below": "20 %%"}}, r"expect\.volume\.below.*percentage such as 20%"),
        ({"volume": {"below": 20}}, r"expect\.volume\.below"),
        ({"volume": {"below": 0.2, "at_least": 5}}, r"expect\.volume\.below' must not be given"),
        ({"volume": {"at_least": 9, "at_most": 5}}, r"expect\.volume\.at_most' must not be less"),
        ({"match_rate": {"at_least": 95}}, r"expect\.match_rate\.at_least"),
        ({"match_rate": {"roles": ["x"]}}, r"expect\.match_rate\.roles.*It has: p"),
        ({"volume": "learnd"}, r"expect\.volume.*a mapping of limits, or the word learned"),
        ({"match_rate": {"at_least": "200%"}}, r"expect\.match_rate\.at_least"),
        ({"freshness": {"within": 2}}, r"expect\.freshness\.within.*a time such as 2 hours"),
        ({"freshness": {"within": "soon"}}, r"expect\.freshness\.within.*such as 2 hours"),
        ({"freshness": {"action": "shout"}}, r"expect\.freshness\.action"),
        ({"volumes": {}}, r"expect\.volumes' is not a setting.*Did you mean volume"),
    ],
)
def test_what_cannot_be_expected(expect, words):
    job = {"name": "j", "stream": {}, "master": {"name": "p"}, "on": "k", "fact_table": "f"}
    with pytest.raises(ConfigError, match=words):
        Job.load(job | {"expect": expect})


def test_shares_are_numbers_or_percentages_everywhere():
    product = {"path": "p.csv", "on": "k", "max_unmatched": "5%", "max_rejected": "0.5 %"}
    job = Job.load(
        {
            "name": "j",
            "stream": {"max_unparsable": "2%"},
            "dimensions": {"product": product},
            "fact_table": "f",
            "expect": {"match_rate": {"at_least": "99%"}},
        }
    )
    (role,) = job.roles
    assert (role.max_unmatched, role.dimension.max_rejected) == (0.05, 0.005)
    assert (job.stream.max_unparsable, job.expect.match_rate.at_least) == (0.02, 0.99)
    with pytest.raises(ConfigError, match="max_unmatched"):
        Job.load(job.model_dump() | {"dimensions": {"product": product | {"max_unmatched": "5"}}})


def test_a_job_keeps_its_expectations():
    expect = {
        "volume": {"below": "20%", "action": "warn"},
        "match_rate": {"at_least": 0.95, "roles": "left"},
        "freshness": {"within": "2 hours"},
    }
    job = StreamStreamJob.load(
        {"name": "j", "left": {}, "right": {}, "on": "k", "fact_table": "f", "expect": expect}
    )
    assert StreamStreamJob.load(json.loads(job.to_ledger())).expect == job.expect
    assert job.expect.freshness.seconds == 7200 and job.expect.volume.below == 0.2


def test_failures_are_in_a_table_until_the_same_batches_are_right(loader):
    loader.load(range(BATCHES))
    assert check(loader).success and failures(loader) == []
    alter(loader, "UPDATE fact_sales SET quantity = 9 WHERE order_id = 41")
    result = check(loader)
    found = failures(loader)
    assert {row.expectation for row in found} == failed(result)
    [row] = [row for row in found if row.expectation == "same_rows"]
    assert (row.app, row.fact_table, row.action, row.batch) == ("sales", "fact_sales", "fail", 0)
    assert (row.load_id, row.stream_id, row.column_name) == (load_id(1, 0, 0, 1), "41", "quantity")
    assert (row.expected, row.found) == ("1", "9")
    assert json.loads(row.detail)["finding"] == "changed" and row.rows_found == 1
    # a verification of later batches says nothing of them, and of the same ones replaces them
    load(loader, BATCHES, 60)
    with loader.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE quality_runs SET success = 1, failed = '[]'")
    assert check(loader, since_last=True).success
    assert failures(loader) == found
    check(loader)
    assert {row.verification for row in failures(loader)} == {found[0].verification + 2}
    alter(loader, "UPDATE fact_sales SET quantity = 1 WHERE order_id = 41")
    assert check(loader).success and failures(loader) == []
