"""Late master data: tuples of ``unmatched`` whose keys a new version of the dimension brings are
joined again and become facts, each of them once. The same for tuples that are replayed."""

import csv
import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import event

import faults
from loads import SmallLoad, check_resolved, same, until, verify
from semistream.column_format import ColumnFormat
from semistream.errors import ConfigError, StateError
from semistream.job import Job
from semistream.joins.stream_table.by_key import ByKey
from semistream.pipeline.load_page import load_page
from semistream.pipeline.summary import final_summary
from semistream.reasons import Reason
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.progress import Progress
from semistream.streaming.replaying import _read
from semistream.streaming.resolving import Staging, brought, lacks, typed_tuples
from semistream.streaming.spool import unmatched_rows
from semistream.streaming.status import read_status, request_stop
from semistream.streaming.summary import describe
from semistream.warehouse import connect, create_all, load_ids
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.resolution import AT_ONCE, ORIGINS, count_open, mark_resolved, with_keys
from semistream.warehouse.schema import unmatched
from star_loads import ROLES, SplitStar, StarLoad

RESOLVED = "SELECT sum(resolved), sum(matched) FROM load_batches WHERE drain > 1"


class LateLoad(SmallLoad):
    """A small load whose parts come late: each version brings some more."""

    def __init__(self, home, warehouse_url, **role):
        super().__init__(home, warehouse_url)
        self.job = self.job_of(self.job.stream.model_dump(), **({"late": "resolve"} | role))

    def publish_first(self, parts):
        """A new version, of the first parts, whose values do not change; also of the dimension."""
        self.master = self.first_parts(parts)
        self.publish_rows()

    def begin(self, spark, rows):
        """A first load, when 400 parts have come."""
        self.publish_first(400)
        self.add_file(rows)
        self.run(spark)

    def open(self):
        """The open tuples by reason, as the oracle gives them."""
        rows = self.query("SELECT reason, tuple FROM unmatched WHERE resolved_by IS NULL")
        return Counter((*json.loads(t).values(), reason) for reason, t in rows)

    def check(self, join_type="inner"):
        """Facts and open tuples are the oracle's of the newest version; each resolved row names a
        load that counted it."""
        joined, lost = self.expected(join_type)
        same(self.facts(), joined)
        same(self.open(), lost)
        check_resolved(self)

    def prove(self, **options):
        """The proof holds. The dimension table has the newest version."""
        self.execute("DROP TABLE IF EXISTS dim_part")
        return super().prove(**options)


@pytest.fixture
def late(tmp_path):
    return LateLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")


@pytest.fixture
def both(tmp_path, warehouse_url):
    """On each kind of database."""
    return LateLoad(tmp_path / "home", warehouse_url)


def test_a_new_version_resolves_what_it_has_brought(spark, both, tmp_path, sink):
    both.sink = sink
    both.publish_first(400)
    for rows in (900, 700):
        both.add_file(rows)
    both.run(spark)
    both.check()
    before = len(list(both.open().elements()))
    both.publish_first(2000)
    both.add_file(500)
    summary = both.run(spark)  # the version is taken up before the batch
    both.check()
    assert 0 < summary.resolved < before
    assert [r for (r,) in both.query("SELECT DISTINCT drain FROM load_batches")].count(2) == 1
    both.publish_first(both.parts)
    again = both.run(spark)  # although no file is new
    assert again.resolved > 0 and again.rows_read == 0
    both.check()
    result = both.prove()
    assert result.figures["resolved"] == summary.resolved + again.resolved
    assert any("were resolved" in note and "have no match still" in note for note in result.notes)
    # there is nothing more to resolve: only 3,000 parts are ever known
    assert both.run(spark).resolved == 0
    assert len(both.query("SELECT DISTINCT batch, drain FROM load_batches WHERE drain > 1")) == 2
    both.check()


def test_the_headline_of_a_report_adds_up_and_has_the_numbers_of_the_summary(spark, late):
    def headline(**options):
        page = late.prove(**options).report.read_text()
        return page, re.search("<h1>(.*)</h1>", page)[1]

    late.begin(spark, 900)
    late.prove()
    before = late.open().total()
    late.publish_first(2000)
    late.add_file(500)
    late.run(spark)
    total = final_summary("sales", late.paths).total
    read, matched, open_ = total.rows_read, total.matched, total.open
    assert read == matched + open_ == 1400 and open_ == late.open().total()
    ((resolved, again),) = late.query(RESOLVED)
    page, said = headline(since_last=True)
    assert said == (
        f"sales is complete: of 500 rows read and {resolved:,} joined again, "
        f"{matched - 900 + before:,} are matched, "
        f"{500 + resolved - (matched - 900 + before):,} are unmatched, and none waits. "
        f"In all, {open_:,} are unmatched."
    )
    assert resolved == again and "%)" not in page.partition('id="loads"')[0]
    assert headline()[1] == (
        f"sales is complete: of 1,400 rows read, {matched:,} are matched, {open_:,} are "
        f"unmatched, and none waits."
    )


def test_a_load_that_never_ends_resolves_although_no_file_comes(spark, both):
    both.publish_first(400)
    both.add_file(900)
    app = both.start(spark, trigger="100 milliseconds")

    def wait_for(condition, what):
        until(condition, what=what, watch=app.check)

    checkpoint = both.paths.checkpoints / "sales"
    wait_for(lambda: (s := read_status(checkpoint)) and s.rows_read == 900, "the first batch")
    for parts in (2000, both.parts):
        both.publish_first(parts)
        wanted = both.expected()[1]
        wait_for(lambda w=wanted: both.open() == w, f"the version of {parts} parts")
        both.check()
    request_stop(checkpoint)
    assert app.join().resolved > 0
    both.prove()


def test_only_what_a_version_has_brought_is_looked_at(spark, late, monkeypatch):
    late.begin(spark, 2000)
    lost, staged = late.open().total(), staged_rows(monkeypatch)
    late.publish_first(600)
    resolved = late.run(spark).resolved
    assert sum(staged) == resolved and 0 < resolved < lost / 2
    late.check()


def test_without_late_nothing_is_resolved_until_the_job_says_so(spark, late):
    late.job = late.job_of(late.job.stream.model_dump(), late="reject")
    late.begin(spark, 1500)
    lost = late.open()
    late.publish_first(1000)
    late.add_file(1)
    late.run(spark)
    assert not lost - late.open() and late.query(RESOLVED) == [(None, None)]
    # now all that are open are looked at, as no version is known that they were compared with
    late.job = late.job_of(late.job.stream.model_dump(), late="resolve")
    late.add_file(1)
    assert late.run(spark).resolved > 0
    late.check()
    late.prove()


def test_what_a_version_takes_away_and_brings_back_is_resolved(spark, late):
    late.publish_first(1000)
    late.add_file(500)
    late.run(spark)
    late.publish_first(300)
    late.stream_before = len(late.stream)
    late.add_file(500)
    late.run(spark)
    late.publish_first(1000)
    late.run(spark)
    late.check()


def test_as_many_resolving_loads_as_there_are_numbers_for_follow_a_batch(spark, late, caplog):
    late.publish_first(50)
    late.add_file(2500)
    late.run(spark)
    for parts in range(100, 1000, 100):
        late.publish_first(parts)
        late.run(spark)
    assert "9 resolving loads" not in caplog.text and "8 resolving loads" in caplog.text
    kinds = [kind for (kind,) in late.query("SELECT DISTINCT drain FROM load_commits")]
    assert sorted(kinds)[-8:] == list(range(2, 10))
    with pytest.raises(ConfigError, match="8 resolving loads.*an empty file .* is enough"):
        late.replay()
    late.add_file(0)
    late.run(spark)
    assert "0 unmatched tuples became facts" in late.replay()
    late.check()
    late.prove()


def test_a_replay_that_changes_nothing_takes_no_number(spark, late, tmp_path, sink):
    late.sink = sink
    late.publish_first(50)
    late.add_file(600)
    late.run(spark)
    before = late.query("SELECT * FROM load_inputs")
    for _ in range(10):
        assert ", and stay in unmatched" in late.replay()
    assert late.query("SELECT count(*) FROM load_commits WHERE drain > 1") == [(0,)]
    assert late.query("SELECT * FROM load_inputs") == before
    late.publish_first(100)  # the replay, not the load, is to resolve what it brings
    assert "have no match still" in (said := late.replay())
    assert not said.startswith("sales: 0 ")
    assert late.query("SELECT count(*) FROM load_commits WHERE drain = 2") == [(1,)]
    assert "0 unmatched tuples became facts" in late.replay()
    late.publish_first(200)
    late.add_file(100)
    late.run(spark)
    late.check()
    late.prove()


@pytest.mark.parametrize("files", [0, 1])
def test_a_load_that_resolves_nothing_takes_no_number(spark, late, monkeypatch, sink, files):
    late.sink = sink
    late.job = late.job_of(late.job.stream.model_dump(), late="reject")
    late.begin(spark, 600)
    # no version is known with which the open tuples were compared: all of them are joined again
    late.job = late.job_of(late.job.stream.model_dump(), late="resolve")
    staged = staged_rows(monkeypatch)
    for again in (False, True):
        before = sum(n for (*_, reason), n in late.open().items() if reason == Reason.NO_MATCH)
        if files:
            late.add_file(50)
        assert late.run(spark).resolved == 0
        assert staged == ([] if again else [before])
        staged.clear()
    assert late.query("SELECT count(*) FROM load_commits WHERE drain > 1") == [(0,)]
    late.publish_first(1000)
    assert late.run(spark).resolved == sum(staged) > 0
    late.check()
    late.prove()


def staged_rows(monkeypatch):
    """The numbers of rows that are staged from now on."""
    staged, add = [], Staging.add

    def noted(self, rows, *others):
        staged.append(len(rows))
        add(self, rows, *others)

    monkeypatch.setattr(Staging, "add", noted)
    return staged


def test_a_key_that_comes_costs_neither_a_spark_job_nor_a_pass_over_r(spark, late, monkeypatch):
    late.publish_first(late.parts)
    every = late.master
    late.master = [row for row in every if row["code"] != "c1"]
    late.publish_rows()
    late.add_file(2000)
    late.run(spark)
    lost = sum(row["sku"] == "c1" for row in late.stream)
    (former,) = Progress.read(late.checkpoint, RolePlan).plan.joins
    late.master = every
    late.publish_rows()
    monkeypatch.setattr("semistream.streaming.app.run_tasks", None)
    assert late.run(spark).resolved == lost > 0
    read = late.query("SELECT sum(disk_tuples_read) FROM load_batches WHERE drain > 1")
    assert 0 < read[0][0] < late.parts / 5
    late.check()
    # one operator, with the memory of a partition; the page has the settings of the load
    budgets = "SELECT partition, memory_budget FROM load_batches WHERE drain > 1"
    assert late.query(budgets) == [(0, 100_000)]
    (join,) = Progress.read(late.checkpoint, RolePlan).plan.joins
    assert join == replace(former, snapshot=join.snapshot) != former and former.owners
    shown = dict(load_page("sales", late.paths).settings)
    assert (shown["algorithm"], shown["partitions (P)"]) == ("elevatorjoin", "2")


def test_late_tuples_are_joined_in_the_order_of_r_however_few_h_s_holds(spark, late):
    late.publish_first(5)
    late.add_file(6000)
    late.run(spark)
    late.publish_first(late.parts)
    resolved = late.run(spark).resolved
    ((read, memory),) = late.query(
        "SELECT disk_tuples_read, memory FROM load_batches WHERE drain > 1"
    )
    assert json.loads(memory)["H_S"] < ByKey.OVERHEAD * resolved  # they do not fit
    assert read == late.parts  # each row once
    late.check()


# ---- crashes


@pytest.mark.parametrize(
    "point",
    [
        ("semistream.streaming.commit.Commits.give_up", "before", 1),
        ("semistream.streaming.commit.Commits.take_back", "after", 1),
        ("semistream.streaming.progress.Progress.write", "after", 2),
        ("semistream.streaming.commit.Commits.give_up", "after", 1),
    ],
)
def test_a_load_that_resolves_nothing_dies(spark, late, monkeypatch, point):
    late.job = late.job_of(late.job.stream.model_dump(), late="reject")
    late.begin(spark, 600)
    late.job = late.job_of(late.job.stream.model_dump(), late="resolve")
    late.add_file(100)
    with monkeypatch.context() as patch:
        faults.crash_at(patch, *point)
        with pytest.raises(OSError, match="crash"):
            late.run(spark)
    late.run(spark)
    late.check()
    late.publish_first(1000)
    assert late.run(spark).resolved > 0
    late.check()
    late.prove()


@pytest.mark.parametrize("then", ["replay", "load"])
@pytest.mark.parametrize(
    "point",
    [
        ("semistream.streaming.commit.Commits.give_up", "before", 1),
        ("semistream.streaming.commit.Commits.take_back", "after", 1),
        ("semistream.streaming.progress.Progress.write", "after", 2),
    ],
)
def test_a_replay_that_changes_nothing_dies(spark, late, monkeypatch, point, then):
    late.publish_first(50)
    late.add_file(600)
    late.run(spark)
    with monkeypatch.context() as patch:
        faults.crash_at(patch, *point)
        with pytest.raises(OSError, match="crash"):
            late.replay()
    if then == "replay":
        assert "0 unmatched tuples became facts" in late.replay()
        late.check()
    late.publish_first(200)
    late.run(spark)
    check_resolved(late)
    late.check()
    late.prove()


def test_a_driver_that_dies_at_any_step_resolves_each_tuple_once(
    spark, late, tmp_path, monkeypatch, sink
):
    late.sink = sink
    late.publish_first(50)
    late.add_file(3000)
    late.run(spark)
    for number, (name, when) in enumerate(faults.points(sink)):
        late.publish_first(100 + 100 * number)
        late.add_file(20)
        with monkeypatch.context() as patch:
            faults.crash_at(patch, name, when, 1)  # the first that begins is the resolving load
            with pytest.raises(OSError, match="crash"):
                late.run(spark)
    late.run(spark)
    late.check()
    assert late.query(RESOLVED)[0][0] > 0
    late.prove()


STEPS = [
    ("semistream.streaming.progress.Progress.write", "before", 1),
    ("semistream.streaming.progress.Progress.write", "after", 1),
    ("semistream.streaming.sinks.sql.SqlSink.write", "before", 1),
    ("semistream.streaming.sinks.sql.SqlSink.write", "after", 1),
    ("semistream.warehouse.ledger.Ledger.commit", "before", 1),
    ("semistream.warehouse.ledger.Ledger.commit", "after", 1),
    ("semistream.streaming.commit.Commits.finish", "after", 1),
]


@pytest.mark.parametrize("then", ["replay", "load"])
def test_a_replay_that_dies_at_any_step_is_finished_once(spark, late, monkeypatch, then):
    late.job = late.job_of(late.job.stream.model_dump(), late="reject")
    late.publish_first(50)
    for number, (name, when, nth) in enumerate(STEPS):
        late.add_file(400)
        late.run(spark)
        late.publish_first(100 + 100 * number)
        with monkeypatch.context() as patch:
            faults.crash_at(patch, name, when, nth)
            with pytest.raises(OSError, match="crash"):
                late.replay()
        if then == "replay":
            late.replay()
            late.check()
        else:
            late.run(spark)
            check_resolved(late)
    if then == "load":
        late.replay()
    late.check()
    late.prove()


def test_a_row_is_resolved_by_one_load(spark, late):
    late.begin(spark, 500)
    ledger = Ledger(connect(late.paths.warehouse_url), "sales")
    row = late.query("SELECT load_id, load_row FROM unmatched LIMIT 1")[0]
    origins = [pa.RecordBatch.from_pylist([dict(zip(ORIGINS.names, row, strict=True))], ORIGINS)]
    ledger.run(lambda connection: mark_resolved(connection, 7, origins))
    with pytest.raises(StateError, match="no longer open"):
        ledger.run(lambda connection: mark_resolved(connection, 8, origins))
    assert late.query("SELECT resolved_by FROM unmatched WHERE resolved_by IS NOT NULL") == [(7,)]


def test_rows_of_many_loads_are_marked_with_few_statements(tmp_path):
    engine, rows = connect(f"sqlite:///{tmp_path / 'warehouse.db'}"), AT_ONCE + 1
    create_all(engine)
    loads = [load_ids.load_id(1, batch, 0, 0) for batch in range(4)]
    columns = {"fact_table": "facts", "reason": Reason.NO_MATCH, "tuple": "{}"}
    origins = [{"load_id": of, "load_row": n} for n in range(rows) for of in loads]
    statements = []

    @event.listens_for(engine, "before_cursor_execute")
    def _note(connection, cursor, statement, *others):
        statements.append(statement)

    with engine.begin() as connection:
        bulk_insert(connection, unmatched, pa.Table.from_pylist([o | columns for o in origins]))
        statements.clear()
        table = pa.Table.from_pylist(origins, ORIGINS)
        mark_resolved(
            connection, load_ids.load_id(1, 3, 2, 0), table.to_batches(max_chunksize=1000)
        )
        assert len(statements) == 1  # of all ranges
        assert count_open(connection, 1) == 0
        with pytest.raises(StateError, match="no longer open"):  # although they are a range
            mark_resolved(connection, load_ids.load_id(1, 3, 3, 0), table.to_batches())


def keep(connection, app, batch, key_codes):
    """Put tuples with these codes into ``unmatched``, by the first load of a batch."""
    rows = len(key_codes)
    table = pa.table(
        {"load_row": np.arange(rows, dtype=np.int32), "key_code": key_codes}
        | {
            name: pa.repeat(value, rows)
            for name, value in (
                ("load_id", load_ids.load_id(app, batch, 0, 0)),
                ("fact_table", "facts"),
                ("reason", Reason.NO_MATCH),
                ("tuple", "{}"),
            )
        }
    )
    bulk_insert(connection, unmatched, table)


def test_rows_are_found_by_their_keys_however_many_others_there_are(tmp_path):
    """SQLite has no statistics, and would read all rows of the app for so many keys."""
    engine = connect(f"sqlite:///{tmp_path / 'warehouse.db'}")
    create_all(engine)
    codes, ticks = 3 * np.arange(AT_ONCE), list[int]()
    for batch, rows in enumerate((6000, 60_000)):
        numbers = np.arange(rows)
        # of the first batch 20 have one of the codes, of the second one none
        there = np.where(numbers < 40, 3 * numbers - 60 + batch, -1 - numbers)
        ticks.append(0)

        def tick():
            ticks[-1] += 1

        with engine.begin() as connection:
            keep(connection, 1, batch, there)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            driver.set_progress_handler(tick, 100)
            found = list(with_keys(connection, 1, lacks("", alone=True), [codes]))
            driver.set_progress_handler(None, 0)
        assert [row["load_row"] for b in found for row in b.to_pylist()] == list(range(20, 40))
    assert ticks[1] < 1.2 * ticks[0]


def test_rows_of_loads_most_of_which_are_wanted_are_read_in_their_order(tmp_path, monkeypatch):
    engine = connect(f"sqlite:///{tmp_path / 'warehouse.db'}")
    create_all(engine)
    rows, codes = 3000, np.arange(1000)
    keys = np.random.default_rng(1).integers(0, 1100, rows)
    with engine.begin() as connection:
        for app, batch in ((1, 0), (1, 5), (2, 0)):
            keep(connection, app, batch, keys)
        done = [{"load_id": load_ids.load_id(1, 5, 0, 0), "load_row": n} for n in range(0, rows, 7)]
        mark_resolved(connection, 9, [pa.RecordBatch.from_pylist(done, ORIGINS)])
    wanted = [
        (load_ids.load_id(1, batch, 0, 0), n)
        for batch in (0, 5)
        for n in np.flatnonzero(keys < 1000).tolist()
        if batch == 0 or n % 7
    ]
    for seek in (0, 2):
        monkeypatch.setattr("semistream.warehouse.resolution.SEEK", seek)
        with engine.connect() as connection:
            found = list(
                with_keys(connection, 1, lacks("", alone=True), [codes[:300], codes[300:]])
            )
        keys_found = [(row["load_id"], row["load_row"]) for b in found for row in b.to_pylist()]
        assert sorted(keys_found) == wanted
        assert (keys_found == wanted) == bool(seek)


# ---- replay


def exported(load, file, change=lambda row: row):
    """Write the open tuples as `semistream unmatched APP --out FILE` does, changed."""
    rows = []
    for load_id, number, reason, text in load.query(
        "SELECT load_id, load_row, reason, tuple FROM unmatched WHERE resolved_by IS NULL"
    ):
        kept = json.loads(text)
        raw = kept.get("_corrupt_record")
        own = dict.fromkeys(("id", "sku", "amount")) if raw is not None else kept
        row = {"load_id": load_id, "load_row": number, "reason": reason, "role": "part"}
        rows.append(change(row | own | {"text": raw}))
    rows = [row for row in rows if row is not None]
    if file.suffix == ".csv":
        with open(file, "w", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        kinds = {
            "load_id": pa.int64(),
            "load_row": pa.int32(),
            "id": pa.int64(),
            "amount": pa.float64(),
        }
        schema = pa.schema([(name, kinds.get(name, pa.string())) for name in rows[0]])
        pq.write_table(pa.Table.from_pylist(rows, schema), file)
    return file


def test_a_replay_joins_what_is_open_with_the_current_version(spark, both):
    both.job = both.job_of(both.job.stream.model_dump(), late="reject")
    both.publish_first(400)
    both.add_file(1000)
    both.run(spark)
    lost = both.open()
    assert "0 unmatched tuples became facts" in both.replay()
    both.publish_first(1500)
    said = both.replay()
    both.check()
    found = (lost - both.open()).total()
    assert f"{found:,} unmatched tuples became facts" in said and found > 0
    assert f"{both.open().total():,} have no match still" in said
    assert "0 unmatched tuples became facts" in both.replay()
    both.add_file(300)
    both.run(spark)  # and it goes on
    both.check()
    both.prove()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_mended_file_is_replayed_once(spark, late, tmp_path, ending):
    late.begin(spark, 1000)

    def mend(row):
        """The first ones get a key that there is, one another that there is not."""
        if row["id"] % 3 == 0:
            return row | {"sku": "c7"}
        return row | {"sku": "nowhere"} if row["id"] % 3 == 1 else row

    lost = [json.loads(t) for (t,) in late.query("SELECT tuple FROM unmatched")]
    file = exported(late, tmp_path / f"mended.{ending}", mend)
    said = late.replay(file)
    mended = [row for row in lost if row["id"] % 3 == 0]
    moved = [row for row in lost if row["id"] % 3 == 1]
    assert f"{len(mended):,} unmatched tuples became facts" in said
    assert f"{len(moved):,} are unmatched for another reason now" in said
    for tuple_ in late.stream:
        if tuple_["id"] in {row["id"] for row in mended}:
            tuple_["sku"] = "c7"
        if tuple_["id"] in {row["id"] for row in moved}:
            tuple_["sku"] = "nowhere"
    late.check()
    said = late.replay(file)
    assert f"{len(mended) + len(moved):,} had been resolved before" in said
    late.check()
    result = late.prove()
    assert result.figures["resolved"] == len(mended) + len(moved)


def test_what_a_replay_leaves_unmatched_is_not_new(spark, both, tmp_path):
    """It was among the tuples of a verification that succeeded, and there are fewer now."""
    both.begin(spark, 1000)
    count = both.open().total()

    def judged(share, **options):
        role = both.job.dimensions["part"].model_copy(update={"max_unmatched": share})
        result = verify(
            both, limits=both.job.model_copy(update={"dimensions": {"part": role}}), **options
        )
        return {check.name for check in result.failed}

    assert not judged(count / 1000)
    mended = iter(range(count))
    keys = {True: "c7", False: "nowhere"}
    file = exported(
        both, tmp_path / "mended.csv", lambda row: row | {"sku": keys[next(mended) < 10]}
    )
    assert "10 unmatched tuples became facts" in both.replay(file)
    assert not judged((count - 10) / 1000, since_last=True)
    assert not judged((count - 10) / 1000)
    assert judged((count - 11) / 1000) == {"unmatched_share"}


def test_a_file_that_is_not_what_was_kept_is_refused(spark, late, tmp_path):
    late.begin(spark, 500)
    before = late.query("SELECT count(*) FROM load_commits")
    refused = [
        ({"id": 999_999}, "the ids that they had, id"),
        ({"load_row": 999_999}, "must have rows of unmatched that the app has"),
        ({"amount": "much"}, "must have values of the stream's types"),
        ({"load_row": ""}, "must name a row of unmatched in each of its rows"),
    ]
    some = next(iter(late.open()))[0]
    for change, said in refused:
        file = exported(
            late,
            tmp_path / "wrong.csv",
            lambda row, c=change: row | c if row["id"] == some else row,
        )
        with pytest.raises(ConfigError, match=said):
            late.replay(file)
    file = exported(late, tmp_path / "twice.csv")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines, lines[1]]))
    with pytest.raises(ConfigError, match="must have each row of unmatched once"):
        late.replay(file)
    (tmp_path / "none.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="lacks load_id, load_row"):
        late.replay(tmp_path / "none.csv")
    assert late.query("SELECT count(*) FROM load_commits") == before
    late.check()


def test_a_file_without_its_keys_is_told_so_before_its_columns_are_looked_at(tmp_path):
    (tmp_path / "none.csv").write_text("id,quantity\n1,2\n")
    stream = pa.schema([("id", pa.int64()), ("sku", pa.string())])
    with pytest.raises(ConfigError, match="lacks load_id, load_row, sku"):
        next(_read(tmp_path / "none.csv", stream, {"sku": ColumnFormat(trim=True)}))


def test_mended_texts_are_parsed_as_the_stream_is(spark, late, tmp_path):
    late.publish_first(400)
    files = late.paths.home / "csv"
    files.mkdir()
    lines = [f"{i},c{i % 300},{i / 8}" for i in range(200)]
    lines[7], lines[20] = "7,c7", "20,c20,many"
    lines[30] = "thirty,c30,1.5"
    (files / "a.csv").write_text("id,sku,amount\n" + "\n".join(lines) + "\n")
    spec = {
        "format": "csv",
        "path": str(files),
        "id": ["id"],
        "columns": "id BIGINT, sku STRING, amount DOUBLE",
        "max_unparsable": 0.001,
    }
    late.job = late.job_of(spec, late="reject")
    late.run(spark)
    assert late.query("SELECT count(*) FROM unmatched WHERE reason = 'unparsable'") == [(3,)]
    assert "3 cannot be parsed still" in late.replay()
    texts = {"7,c7": "7,c7,0.875", "20,c20,many": "20,c20,2.5", "thirty,c30,1.5": "30,c30,3.75"}
    file = exported(
        late, tmp_path / "mended.csv", lambda row: row | {"text": texts.get(row["text"])}
    )
    assert "3 unmatched tuples became facts" in late.replay(file)
    late.stream = [{"id": i, "sku": f"c{i % 300}", "amount": i / 8} for i in range(200)]
    late.check()
    late.prove()  # none is unparsable any more, of which it allows a thousandth


def test_a_text_without_an_id_cannot_be_given_that_of_another_tuple(spark, both, tmp_path, sink):
    late = both
    late.sink = sink
    late.publish_first(60)
    files = late.paths.home / "csv"
    files.mkdir()
    lines = [f"{i},c{i},{i / 8}" for i in range(70)]
    lines[20], lines[30] = "20,c20,2.5,3", "30,c30"
    (files / "a.csv").write_text("id,sku,amount\n" + "\n".join(lines) + "\n")
    spec = {
        "format": "csv",
        "path": str(files),
        "id": ["id"],
        "columns": "id BIGINT, sku STRING, amount DOUBLE",
        "max_unparsable": 0.5,
    }
    late.job = late.job_of(spec, late="reject")
    late.run(spark)
    before = late.query("SELECT count(*) FROM load_commits")
    facts, lost = 7, 65  # the ids of a fact, and of an open tuple
    for ids in ((facts, 30), (20, lost), (20, 20)):
        texts = dict(zip(("20,c20,2.5,3", "30,c30"), ids, strict=True))

        def mend(row, texts=texts):
            return row | {"text": (of := row["text"]) and f"{texts[of]},c5,1.5"}

        with pytest.raises(ConfigError, match=r"\(id\) that no other tuple has.*load_row"):
            late.replay(exported(late, tmp_path / "mended.csv", mend))
    assert late.query("SELECT count(*) FROM load_commits") == before
    assert late.query("SELECT count(*) FROM unmatched WHERE resolved_by IS NOT NULL") == [(0,)]
    file = exported(
        late,
        tmp_path / "mended.csv",
        lambda row: row | {"text": (of := row["text"]) and f"{of[:2]},c5,1.5"},
    )
    assert "2 unmatched tuples became facts" in late.replay(file)
    late.prove()


def test_what_is_left_to_be_finished_comes_before_a_replay(spark, late, monkeypatch):
    with pytest.raises(ConfigError, match="must have loaded"):
        late.replay()
    late.publish_first(400)
    late.add_file(500)
    with monkeypatch.context() as patch:
        faults.crash_at(patch, "semistream.warehouse.ledger.Ledger.commit", "before", 1)
        with pytest.raises(OSError, match="crash"):
            late.run(spark)
    with pytest.raises(ConfigError, match="must have"):
        late.replay()
    late.run(spark)
    late.check()


# ---- what cannot be


def test_late_is_reject_resolve_or_infer():
    job = {
        "name": "sales",
        "stream": {"format": "parquet", "path": "sales", "id": ["id"]},
        "master": {"name": "part"},
        "on": "sku",
        "fact_table": "fact_sales",
    }
    assert Job.load(job).role("part").late == "reject"
    assert Job.load(job | {"late": "resolve"}).role("part").late == "resolve"
    with pytest.raises(ConfigError, match="(?s)late.*reject.*resolve.*infer"):
        Job.load(job | {"late": "never"})
    role = Job.load(job | {"grace": "90 minutes"}).role("part")
    assert (role.grace_hours, role.grace_versions) == (1.5, 0)
    role = Job.load(job | {"grace": "3 versions"}).role("part")
    assert (role.grace_hours, role.grace_versions) == (0, 3)
    with pytest.raises(ConfigError, match="grace' must be a number of minutes, hours, days or ver"):
        Job.load(job | {"grace": "soon"})


def test_a_left_join_has_nothing_to_resolve(spark, late):
    late.publish_first(400)
    late.add_file(10)
    with pytest.raises(ConfigError, match="late' must be reject where the join is a left one"):
        late.run(spark, join_type="left")


# ---- parts


def versions(load, first, second):
    """The directories of two versions that have so many parts each."""
    load.publish_first(first)
    load.publish_first(second)
    root = load.paths.snapshots / "part" / "code"
    return root / "v000001", root / "v000002"


def test_what_a_version_has_brought_is_the_difference_of_its_codes(late):
    one, two = versions(late, 1000, 1300)
    codes = np.sort(np.concatenate(list(brought(one, two))))
    assert len(codes) == 300 and len(np.unique(codes)) == 300
    assert not list(brought(two, two)) and not list(brought(two, one))
    every = np.sort(np.concatenate(list(brought(one.parent / "v000009", two))))
    assert len(every) == 1300 and set(codes) < set(every)


def test_tuples_are_read_again_as_they_were_kept():
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("text", pa.string()),
            ("truth", pa.bool_()),
            ("amount", pa.decimal128(12, 3)),
            ("share", pa.float64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("clock", pa.time64("us")),
            ("raw", pa.binary()),
        ]
    )
    values = [
        2**60,
        'a "quoted" é',
        False,
        Decimal("-12.340"),
        0.1,
        date(2024, 2, 29),
        datetime(2024, 2, 29, 1, 2, 3, 45, UTC),
        datetime(1, 1, 1),
        time(23, 59, 59, 999),
        b"\x00\xff",
    ]
    rows = [dict(zip(schema.names, values, strict=True)), dict.fromkeys(schema.names)]
    tuples = pa.RecordBatch.from_pylist(rows, schema)
    kept = unmatched_rows(tuples, pa.repeat(Reason.NO_MATCH, 2), ("n",))
    again, wrong = typed_tuples(kept["tuple"].to_pylist(), schema)
    assert again.equals(tuples) and not wrong
    # a text that does not fit the types, or is no JSON as others write it, changes no other text
    odd = ['{"n": "seven", "day": "soon"}', '{"n": 7}', '{"share": NaN, "text": 5, "new": []}']
    other, wrong = typed_tuples([*odd, *kept["tuple"].to_pylist()], schema)
    assert list(wrong) == [0] and other["n"].to_pylist()[:2] == [None, 7]
    assert math.isnan(other["share"][2].as_py()) and other["text"][2].as_py() == "5"
    assert other.slice(len(odd)).equals(tuples)
    assert typed_tuples([], schema)[0].num_rows == 0


# ---- several roles


class LateStar(StarLoad):
    """Sales with parts, buyers and offers, or other roles, of which the inner ones come late."""

    def __init__(self, home, warehouse_url, roles=("offer", "part", "buyer")):
        super().__init__(home, warehouse_url, roles)
        self.known = {"part": 0, "person": 0}
        job = self.job.model_dump()
        for role in job["dimensions"].values():
            role["late"] = "resolve" if role["join_type"] == "inner" else "reject"
        self.job = Job.load(job)

    def _rows(self, dimension, prefix):
        return super()._rows(dimension, prefix)[: self.known.get(dimension)]

    def publish_first(self, **known):
        self.known |= known
        fixed = {"offer"} & set(self.roles) - set(self.masters)
        self.publish(dimensions=(*known, *fixed))
        self.provision_beside()

    def order(self):
        return ["part", "buyer", "offer"]

    def check(self, join_type="inner"):
        """The facts are the oracle's of the newest versions, and others are open. In which role
        they are depends on the order of the joins, which may differ from version to version."""
        joined, lost = self.expected()
        same(self.facts(), joined)
        rows = self.query("SELECT stream_id FROM unmatched WHERE resolved_by IS NULL")
        without = Counter(row[0] for row in lost.elements())
        same(Counter(int(i) for (i,) in rows), without)


def test_late_rows_of_several_roles_lead_through_the_whole_star(spark, tmp_path):
    star = LateStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    star.publish_first(part=300, person=200)
    for rows in (1200, 900):
        star.add_file(rows)
    star.run(spark)
    star.check()
    star.publish_first(part=1500)  # some of its tuples lack a buyer now
    assert star.run(spark).resolved > 0
    moved = "SELECT count(*) FROM unmatched WHERE load_id IN (SELECT load_id FROM load_batches {})"
    assert star.query(moved.format("WHERE drain > 1"))[0][0] > 0
    star.check()
    star.publish_first(person=700)
    star.add_file(300)
    star.run(spark)
    star.check()
    star.publish_first(part=3000, person=900)
    assert star.replay().startswith("sales: ")  # offers, which are many, last
    star.check()
    broken = (
        "SELECT * FROM load_inputs WHERE waiting_before + rows_read + resolved <> "
        "matched + unmatched + waiting OR missed > matched OR missed < 0"
    )
    assert star.query(broken) == []
    star.prove(seed=1)


class LateSplitStar(LateStar, SplitStar):
    """Sales that are split by the keys of both of their roles, whose dimensions come late."""

    def __init__(self, home, warehouse_url):
        super().__init__(home, warehouse_url, ("part", "buyer"))

    def order(self):
        return ["part", "buyer"]


def test_late_rows_are_resolved_in_a_load_that_is_split_by_two_roles(spark, tmp_path):
    """By the load, and by a replay."""
    star = LateSplitStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    star.publish_first(part=2500, person=2600)
    for rows in (3000, 2000):
        star.add_file(rows)
    star.run(spark)
    star.check()
    for persons in (2800, 3000):
        star.publish_first(part=persons, person=persons)
        if persons == 2800:
            assert star.run(spark).resolved > 0 and star.shares() == {"part": 2, "buyer": 2}
        else:
            assert star.replay().startswith("sales: ")
        star.check()
    partitions = "SELECT count(DISTINCT partition) FROM load_batches WHERE drain {}"
    assert star.query(partitions.format("= 0")) == [(4,)]
    assert star.query(partitions.format("> 1")) == [(1,)]  # one operator has all of R
    star.prove(seed=1)


def test_a_summary_counts_facts_without_a_row_once(spark, tmp_path, monkeypatch):
    """Although a left role reads a tuple before another one rejects it, and again when the tuple is
    joined again."""
    part = ("part", {"sku": "code"}, {"name": "name", "price": "price"}, "inner", True)
    monkeypatch.setitem(ROLES, "part", part)
    star = LateStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", ("seller", "part"))
    without = "SELECT count(*) FROM fact_sales WHERE seller_sk = 0"  # the unknown member
    before = 0
    for parts in (300, 1500):
        star.publish_first(part=parts, person=200)
        star.add_file(900)
        run = star.run(spark)
        ((now,),) = star.query(without)
        assert run.inputs["seller"].missed > run.inputs["seller"].lacking > 0
        assert run.inputs["seller"].lacking == now - before
        assert final_summary("sales", star.paths).inputs["seller"].lacking == now
        assert re.search(rf"output rows .*\n +without seller +{now - before:,}\n", describe(run))
        before = now
    assert run.resolved > 0
    ((of_read, of_run),) = star.query(
        "SELECT sum(cache_hits), sum(CASE WHEN batch = 1 THEN cache_hits ELSE 0 END) "
        "FROM load_batches WHERE drain < 2"
    )
    assert run.cache_share == of_run / 900
    assert final_summary("sales", star.paths).texts["cache_share"] == f"{of_read / 1800:.1%}"


class LateAfterLeft(LateStar):
    """Sales with a seller, whom a left join looks up first, and parts, which come late. They could
    be many for a tuple, so that they are looked up after the seller."""

    def __init__(self, home, warehouse_url):
        super().__init__(home, warehouse_url)
        self.roles, job = ("seller", "part", "offer"), StarLoad(home / "all", warehouse_url).job
        roles = {role: job.dimensions[role] for role in self.roles}
        roles["part"] = roles["part"].model_copy(update={"late": "resolve", "many": True})
        for name, role in roles.items():
            roles[name] = role.model_copy(update={"max_unmatched": 1.0})
        self.job = self.job.model_copy(update={"dimensions": roles})

    def shares(self, **options):
        """By role, (tuples that it has met, those without a row), by the proof; no tuple may be
        without a row."""
        roles = {
            name: role.model_copy(update={"max_unmatched": 0.0})
            for name, role in self.job.dimensions.items()
        }
        job = self.job.model_copy(update={"dimensions": roles})
        failed = verify(self, limits=job, seed=1, **options).failed
        assert {check.name.endswith("_unmatched_share") for check in failed} <= {True}
        return {
            check.of: (int(check.rows[0]["rows_read"]), int(check.rows[0]["unmatched"]))
            for check in failed
        }

    def ids(self, where):
        return self.query(f"SELECT count(DISTINCT id) FROM fact_sales WHERE {where}")[0][0]


def test_the_share_without_a_row_counts_each_tuple_once(spark, tmp_path):
    star = LateAfterLeft(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    star.publish_first(part=300, person=200)
    star.add_file(1200)
    star.run(spark)
    order = star.query("SELECT DISTINCT number, role FROM load_inputs ORDER BY number")
    assert order == [(0, "seller"), (1, "part"), (2, "offer")]

    def expected():
        open_ = star.query("SELECT count(*) FROM unmatched WHERE resolved_by IS NULL")[0][0]
        facts = star.ids("id >= 0")
        assert facts + open_ == len(star.stream)
        return {
            "seller": (facts, star.ids("seller_sk = 0")),
            "part": (len(star.stream), open_),
            "offer": (facts, star.ids("offer_sk IS NULL")),
        }

    assert star.shares() == expected()
    star.prove(seed=1)
    star.publish_first(part=1500)
    resolved = star.run(spark).resolved
    again = "load_id IN (SELECT load_id FROM load_batches WHERE drain > 1) AND "
    assert resolved > 0 and star.ids(again + "seller_sk = 0") > 0
    assert star.shares(since_last=True) == {  # no tuple is new
        "seller": (resolved, star.ids(again + "seller_sk = 0")),
        "offer": (resolved, star.ids(again + "offer_sk IS NULL")),
    }
    assert star.shares() == expected()


def test_the_share_without_a_row_counts_the_tuples_of_a_file_that_came_twice(spark, tmp_path):
    star = LateAfterLeft(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    roles = {
        name: role.model_copy(update={"many": False, "late": "reject"})
        for name, role in star.job.dimensions.items()
        if name != "offer"
    }
    stream = star.job.stream.model_copy(update={"unique_ids": False})
    star.job = star.job.model_copy(update={"stream": stream, "dimensions": roles})
    star.publish_first(part=300, person=200)
    star.add_file(1200)
    (file,) = star.stream_directory.iterdir()
    shutil.copy(file, file.with_name("again.parquet"))
    star.run(spark)
    ((facts, without),) = star.query("SELECT count(*), sum(seller_sk = 0) FROM fact_sales")
    assert without > star.ids("seller_sk = 0") > 0
    assert star.shares()["seller"] == (facts, without)
