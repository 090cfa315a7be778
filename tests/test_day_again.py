"""A day, or some files, taken out of a load and loaded again: the warehouse has what one load of
the corrected files would have brought, and the proof holds all the while."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

import faults
import sink_loads
from csv_loads import CsvLoad, sale
from damage import Kept
from loads import same, verify
from provisioned import provision, publish
from semistream.counted import counted
from semistream.errors import ConfigError, StateError
from semistream.pipeline import day_again
from semistream.positions import START
from semistream.streaming.app import App
from semistream.streaming.sources.log import SourceLog
from semistream.streaming.status import checkpoint_lock
from semistream.warehouse import open_warehouse
from semistream.warehouse.proof import read_proof
from semistream.warehouse.schema import load_files, quality_runs
from semistream.warehouse.taking_out import Stretch, stretches, take_out
from semistream.warehouse.totals import read_totals
from semistream.workloads import load_job
from sink_loads import orders
from star_loads import star_load
from stream_pairs import Pair

# ---- the ledger


def facts(loader) -> Counter:
    columns = [c for c in loader.fact.c if c.name not in ("load_id", "load_row")]
    with loader.engine.connect() as connection:
        return Counter(map(tuple, connection.execute(sa.select(*columns))))


def test_a_stretch_is_taken_out_and_loaded_again(loader):
    """Tuples of batch 0 became facts with batch 1, so that both go."""
    for batches in (range(2), range(2, 3), range(3, 4)):
        loader.load(batches)
    before = facts(loader)
    assert not sink_loads.failed(sink_loads.check(loader))
    with loader.engine.connect() as connection:
        found = stretches(connection, "sales")
        known = read_totals(connection)
        assert read_proof(connection, "sales").complete
    ends = [(1, 1), (2, 1), (3, 1)]
    assert found == [Stretch(*of) for of in zip([START, *ends], ends, strict=False)]
    files = [loader.directory / f"orders-{batch}.parquet" for batch in (0, 1)]
    listed = min(file.stat().st_ctime for file in files) - 1e-3
    for _ in range(2):  # a second time, as after a crash
        with loader.engine.begin() as connection:
            take_out(connection, "sales", found[:1], listed)
    left = facts(loader)
    assert left and not {row[0] for row in left} & set(range(120))
    with loader.engine.connect() as connection:
        proof = read_proof(connection, "sales")
        assert not proof.complete and proof.until == START
        totals = read_totals(connection, known=known)
        assert totals == read_totals(connection) and totals["sales"].rows_read == 120
        assert set(connection.scalars(sa.select(load_files.c.batch))) == {2, 3}
    assert not sink_loads.failed(sink_loads.check(loader))
    for batch, file in enumerate(files):
        loader.commit(4 + batch, 0, orders(batch), [file])
    loader.commit(5, 1)
    assert facts(loader) == before
    result = sink_loads.check(loader)
    assert not sink_loads.failed(result) and result.figures["rows read"] == 240
    with loader.engine.connect() as connection:
        assert read_proof(connection, "sales").complete


def test_a_verification_of_what_was_taken_out_is_not_read_again(loader):
    """Also where its range did not begin with the first batch; a former one still counts."""
    loader.load(range(2))
    sink_loads.check(loader)
    loader.load(range(2, 3))
    sink_loads.check(loader, since_last=True)
    with loader.engine.begin() as connection:
        take_out(connection, "sales", [Stretch((1, 1), (2, 1))], None)
        q = quality_runs.c
        counts = sa.select(q.from_batch, q.to_batch, q.outdated).order_by(q.id)
        assert connection.execute(counts).all() == [(None, 1, None), (1, 2, 1)]
    (loader.directory / "orders-2.parquet").unlink()
    loader.version = "v000002"  # of the former one there is no snapshot
    loader.load(range(3, 4))
    result = sink_loads.check(loader)
    assert not sink_loads.failed(result)
    assert any("compared with it by an earlier verification" in note for note in result.notes)
    assert not any("they were not compared" in note for note in result.notes)


def test_what_waits_after_the_newest_batch_is_of_the_last_stretch(loader):
    loader.load(range(1))
    loader.load(range(1, 3), drain=False)
    with loader.engine.connect() as connection:
        assert stretches(connection, "sales") == [Stretch(START, (0, 1)), Stretch((0, 1), (2, 0))]


# ---- Spark's list of files


def test_the_list_of_files_forgets_those_of_some_batches(tmp_path):
    log = SourceLog(tmp_path, "csv")
    (directory := tmp_path / "sources" / "0").mkdir(parents=True)
    entry = '{{"path":"file:///in/{0}%20a.csv","timestamp":1,"batchId":{0}}}'.format
    for number in range(12):
        (directory / str(number)).write_text(f"v1\n{entry(number)}")
        (directory / f".{number}.crc").write_bytes(b"x")
    (directory / "9.compact").write_text("\n".join(["v1", *map(entry, range(10))]))
    (directory / "9").unlink()
    assert log.entries(2, 4) == ["/in/3 a.csv", "/in/4 a.csv"]
    assert log.entries(-1, 11) == [f"/in/{n} a.csv" for n in range(12)]
    for _ in range(2):
        log.forget(2, 4)
        assert log.entries(-1, 11) == [f"/in/{n} a.csv" for n in range(12) if n not in (3, 4)]
    assert (directory / "3").read_text() == "v1"
    assert {n for n in range(12) if not (directory / f".{n}.crc").exists()} == {3, 4}


# ---- a load


OLD = datetime(2026, 11, 23, 23, 59, 59, tzinfo=UTC).timestamp()
WRONG = [line.replace(",p", ",q") for line in map(sale, range(100, 200))]


@pytest.fixture(scope="module")
def loaded(spark, tmp_path_factory):
    load = CsvLoad(tmp_path_factory.mktemp("three"), max_unparsable=1)
    load.add("monday.csv", *map(sale, range(100)))
    load.run(spark)
    load.add("tuesday.csv", *WRONG)
    load.run(spark)
    load.add("wednesday.csv", *map(sale, range(200, 300)))
    load.run(spark)
    return load, Kept(load.home)


@pytest.fixture
def three(loaded):
    """Three files, loaded one after the other; the second has wrong keys."""
    load, kept = loaded
    kept.bring_back()
    return load


@pytest.fixture(scope="module")
def oracle(spark, tmp_path_factory) -> tuple[Counter, Counter]:
    """One load of the right files."""
    load = CsvLoad(tmp_path_factory.mktemp("oracle"))
    for n, name in enumerate(("monday", "tuesday", "wednesday")):
        load.add(f"{name}.csv", *map(sale, range(100 * n, 100 * n + 100)))
    load.run(spark)
    return load.loaded()


@pytest.fixture
def run(run, three, monkeypatch):
    """Run the console command where the three files were loaded."""
    monkeypatch.setenv("SEMISTREAM_HOME", str(three.paths.home))
    monkeypatch.setenv("WAREHOUSE_URL", three.paths.warehouse_url)
    return run


def correct(load):
    load.add("tuesday.csv", *map(sale, range(100, 200)))


def load_corrected(spark, load, oracle):
    """Load tuesday's file again: all is as if it had been right at once."""
    load.run(spark)
    assert load.loaded() == oracle
    assert "checks hold" in load.verify()


def test_a_wrong_file_is_corrected_and_loaded_again_without_the_rest(spark, three, oracle, run):
    assert "checks hold" in three.verify()
    wrong = three.stream_directory / "tuesday.csv"
    code, out, _ = run("reset", "sales", "--file", wrong)
    assert code == 1 and "batch 1 out of sales: 100 tuples" in out and "Give --yes" in out
    assert "reads 1 file again:\n" in out and str(wrong) in out and "more" not in out
    assert len(three.rows("unmatched", "load_id", "load_row")) > 50
    code, out, error = run("reset", "sales", "--file", wrong, "--yes")
    assert code == 0, error
    kept = {of for (of,) in three.rows("fact_sales", "id")}
    assert kept and not kept & set(range(100, 200))
    said = "1 file of the source is not loaded: files were taken out, and no load has run since"
    for since_last in (False, True):
        text = three.verify(since_last=since_last)
        assert f"{said}. `semistream load JOB`" in text
        assert "Complete as far as it was loaded: yes: batches 0 to 2, " in text
    assert f"so far: {said}; proven are " in run("status", "sales")[1]
    correct(three)
    load_corrected(spark, three, oracle)
    assert "Complete: yes" in three.verify() and "complete: batches " in run("status", "sales")[1]
    three.add("thursday.csv", sale(400))
    assert "1 file of the source is not loaded yet. " in three.verify()
    (three.stream_directory / "thursday.csv").unlink()
    of_batches = three.rows("load_commits WHERE drain = 0", "batch", "rows_read")
    assert of_batches == Counter([(0, 100), (1, 0), (2, 100), (3, 100)])
    before = three.rows("load_commits", "batch", "drain")
    three.run(spark)  # nothing else is read again
    assert three.rows("load_commits", "batch", "drain") == before


def test_of_many_files_a_plan_names_the_first():
    files = (
        tuple(f"/data/{n}.csv" for n in range(3)),
        tuple(f"/data/{n}.csv" for n in range(3, 139)),
    )
    numbers = {
        "stretches": (),
        "logs": (),
        "listed": None,
        "facts": 1,
        "unmatched": 0,
        "rows_read": 1,
        "reopened": 0,
    }
    said = str(
        day_again.DayAgain(
            app="sales",
            files=files[0],
            others=files[1],
            batches=(1,),
            last=START,
            command="",
            **numbers,
        )
    ).split("\n")
    assert said[0].endswith(
        "1 tuple. 1 fact and 0 unmatched tuples go. The next load reads 139 files again:"
    )
    assert said[1:] == [
        *(f"  {file} (which is gone)" for file in files[0]),
        *(f"  {file} (of the same batches)" for file in files[1][:2]),
        "  and 134 more",
    ]


def test_a_day_is_that_of_the_files_last_change(spark, three, tmp_path):
    """The last second of a day in UTC; monday's file is of no batch but its own."""
    paths, here = three.paths, three.checkpoint
    with pytest.raises(ConfigError, match="last modified"):
        day_again.plan("sales", paths, here, day=datetime(2026, 11, 23, tzinfo=UTC).date())
    (aside := tmp_path / "tuesday.csv").write_text(
        (three.stream_directory / "tuesday.csv").read_text()
    )
    file = three.stream_directory / "old.csv"
    aside.write_text("\n".join([aside.read_text().splitlines()[0], *map(sale, range(300, 320))]))
    os.utime(aside, (OLD, OLD))
    aside.rename(file)
    three.run(spark)
    plan = day_again.plan("sales", paths, here, day=datetime(2026, 11, 23, tzinfo=UTC).date())
    assert (plan.files, plan.others, plan.rows_read) == ((str(file),), (), 20)
    day_again.carry_out(plan, paths, here)
    assert not {of for (of,) in three.rows("fact_sales", "id")} & set(range(300, 320))
    assert "checks hold" in three.verify()
    file.unlink()  # it is not to be loaded at all
    three.run(spark)
    assert "checks hold" in three.verify()
    of_batches = three.rows("load_commits WHERE drain = 0", "batch", "rows_read")
    assert of_batches == Counter([(0, 100), (1, 100), (2, 100), (3, 0)])


STEPS = {
    "before the rows are deleted": ("take_out", False),
    "before Spark's list is altered": ("forget", False),
    "after Spark's list is altered": ("forget", True),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_reset_that_was_cut_short_is_finished_by_the_same_command(
    spark, three, oracle, run, monkeypatch, step
):
    name, after = STEPS[step]
    of = day_again if name == "take_out" else SourceLog
    work = getattr(of, name)

    def killed(*arguments):
        if after:
            work(*arguments)
        raise KeyError("killed")

    wrong = str(three.stream_directory / "tuesday.csv")
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr(of, name, killed)
        run("reset", "sales", "--file", wrong, "--yes")
    correct(three)
    for _ in range(2):
        with pytest.raises(StateError, match=f"Finish it: semistream reset sales --file {wrong}"):
            three.run(spark)
    assert "ledger_is_newest" in three.failures()
    code, out, error = run("reset", "sales", "--file", wrong, "--yes")
    assert code == 0 and "finished what was cut short" in out, error
    load_corrected(spark, three, oracle)


def test_what_cannot_be_taken_out_is_refused(spark, three, run):
    before = three.loaded()
    wrong = str(three.stream_directory / "tuesday.csv")
    for arguments, words in (
        (["--file", str(three.stream_directory / "tusday.csv")], f"Did you mean {wrong}?"),
        (["--day", "2020-01-01"], "were last modified (UTC)"),
        (["--day", "23.11.2026"], "must be a date such as"),
        (["--day", "2020-01-01", "--file", wrong], "not allowed with"),
        (["--file", wrong, "--checkpoint", str(three.home)], f"must be {three.checkpoint}"),
    ):
        code, _, error = run("reset", "sales", *arguments, "--yes")
        assert code == 2 and words in error, error
    with checkpoint_lock(three.checkpoint):
        code, _, error = run("reset", "sales", "--file", wrong, "--yes")
        assert code == 2 and "is in use by another app" in error
    code, _, error = run("reset", "sale", "--file", wrong, "--yes")
    assert code == 2 and "Did you mean sales?" in error
    plan = day_again.plan("sales", three.paths, three.checkpoint, files=[wrong])
    three.add("thursday.csv", *map(sale, range(300, 310)))
    three.run(spark)
    with pytest.raises(ConfigError, match="must have loaded nothing since"):
        day_again.carry_out(plan, three.paths, three.checkpoint)
    assert all(not a - b for a, b in zip(before, three.loaded(), strict=True))


# ---- files that came twice, and are gone


@pytest.fixture
def twice(spark, tmp_path):
    """Two batches of two files; a file of the second one is a copy of one of the first."""
    load = CsvLoad(tmp_path)
    load.add("01_first.csv", *map(sale, range(10, 20)))
    load.add("10_twice.csv", *map(sale, range(10)))
    load.run(spark)
    load.verify()
    load.add("12_copy.csv", *map(sale, range(10)))
    load.add("13_other.csv", *map(sale, range(20, 25)))
    load.run(spark)
    return load


def test_the_files_of_an_id_are_named_whether_they_are_there_or_not(spark, twice):
    original, copy = (str(twice.stream_directory / f"{n}.csv") for n in ("10_twice", "12_copy"))

    def named(**options):
        rows = twice.failures(**options)["unique_ids"]
        return {(row["first_file"], row["last_file"]) for row in rows}

    for since_last in (True, False):
        assert named(since_last=since_last) == {(original, copy)}
    assert "`semistream reset sales --file COPY`, delete the copy, and load again" in twice.said
    Path(copy).unlink()
    twice.run(spark)  # it forgets the name, and the checkpoint does not
    assert not twice.rows("load_files WHERE path LIKE '%12_copy.csv'", "path")
    for since_last in (True, False):
        assert named(since_last=since_last) == {(original, f"{copy} (which is gone)")}
    with open_warehouse(twice.paths.warehouse_url) as engine, engine.connect() as connection:
        page = connection.scalar(
            sa.select(quality_runs.c.report).order_by(quality_runs.c.id.desc()).limit(1)
        )
    assert "2: 13_other.csv and 1 that is gone" in Path(page).read_text()
    Path(original).unlink()
    twice.run(spark)
    assert named() == {(f"{original} (which is gone)", f"{copy} (which is gone)")}
    shutil.rmtree(twice.checkpoint / "query")
    assert named() == {("a file that is gone",) * 2}


def test_a_file_that_was_deleted_first_is_taken_out_for_good(spark, twice, tmp_path):
    copy, other = (str(twice.stream_directory / f"{n}.csv") for n in ("12_copy", "13_other"))
    Path(copy).unlink()
    twice.run(spark)
    with pytest.raises(ConfigError, match=f"these are gone. Got '{copy}'.*name them too"):
        day_again.plan("sales", twice.paths, twice.checkpoint, files=[other])
    plan = day_again.plan("sales", twice.paths, twice.checkpoint, files=[copy])
    assert (plan.files, plan.others, plan.rows_read) == ((copy,), (other,), 15)
    assert plan == replace(
        day_again.plan("sales", twice.paths, twice.checkpoint, files=[copy, other]),
        **{name: getattr(plan, name) for name in ("files", "others", "command")},
    )
    day_again.carry_out(plan, twice.paths, twice.checkpoint)
    with pytest.raises(ConfigError, match="that was not taken out since"):
        day_again.plan("sales", twice.paths, twice.checkpoint, files=[copy])
    twice.run(spark)
    assert "checks hold" in twice.verify()
    assert {of for (of,) in twice.rows("fact_sales", "id")} <= set(range(25))
    assert twice.query("SELECT sum(rows_read) FROM load_batches") == [(25,)]


# ---- tuples that were joined again


def new_products(load: CsvLoad, *skus: str) -> None:
    """A version of the master data that has these, too."""
    with open(load.home / "products.csv", "a") as file:
        file.writelines(f"{sku},late\n" for sku in skus)
    with open_warehouse(load.paths.warehouse_url) as engine:
        provision(load.job, engine)
        publish(load.job, engine, load.paths.snapshots)


def test_what_was_joined_again_goes_with_its_file(spark, three, oracle):
    new_products(three, *(f"q{i}" for i in range(20)))
    assert three.replay().startswith("sales: ")
    assert len(three.rows("fact_sales WHERE category = 'late'", "id")) > 50
    assert "checks hold" in three.verify()
    wrong = str(three.stream_directory / "tuesday.csv")
    plan = day_again.plan("sales", three.paths, three.checkpoint, files=[wrong])
    assert plan.batches == (1,) and len(plan.stretches) == 2
    assert plan.facts > 50 and plan.facts + plan.unmatched == plan.rows_read == 100
    day_again.carry_out(plan, three.paths, three.checkpoint)
    assert not three.rows("fact_sales WHERE category = 'late'", "id")
    assert "checks hold" in three.verify()
    correct(three)
    load_corrected(spark, three, oracle)


@pytest.mark.parametrize("late", ["reject", "resolve"])
def test_what_was_joined_again_with_a_file_is_open_again(spark, three, oracle, late):
    """A key of tuesday's, and one of monday's, came with one version: one load has joined both."""

    def again():
        return three.run(spark) if late == "resolve" else three.replay()

    three.file.write_text(f"{three.file.read_text()}late: {late}\n")
    three.job = load_job(three.file, three.paths)
    new_products(three, "q1", "x28")
    again()
    resolved = three.rows("fact_sales WHERE category = 'late'", "id")
    of_monday = {of for (of,) in resolved} & set(range(100))
    assert of_monday and len(resolved) > len(of_monday)
    assert "checks hold" in three.verify()
    wrong = str(three.stream_directory / "tuesday.csv")
    plan = day_again.plan("sales", three.paths, three.checkpoint, files=[wrong])
    assert (plan.reopened, plan.rows_read) == (len(of_monday), 100)
    assert plan.facts + plan.unmatched == 100 + len(of_monday)
    assert f"facts of {counted(len(of_monday), 'tuple')} of other batches" in str(plan)
    day_again.carry_out(plan, three.paths, three.checkpoint)
    assert not three.rows("fact_sales WHERE category = 'late'", "id")
    assert len(three.rows("unmatched WHERE resolved_by IS NULL AND stream_id = '28'", "tuple")) == 1
    assert "checks hold" in three.verify()
    correct(three)
    three.run(spark)
    if late == "reject":
        again()
    assert three.rows("fact_sales WHERE category = 'late'", "id") == Counter(
        (of,) for of in of_monday
    )
    facts, _ = oracle
    assert not facts - three.loaded()[0]
    assert three.query("SELECT count(*) FROM fact_sales") == [(len(of_monday) + facts.total(),)]
    assert "checks hold" in three.verify()


# ---- tuples that wait from one batch to the next


def run_meshjoin(load, spark, **settings):
    """With MESHJOIN most tuples wait for later batches, or for the drain."""
    return load.run(spark, algorithm="meshjoin", **settings)


def of_file(load, number: int) -> str:
    return str(load.stream_directory / f"part-{number:05d}.parquet")


def test_files_whose_tuples_waited_for_each_other_go_together(spark, load):
    for _ in range(3):
        load.add_file(300)
    run_meshjoin(load, spark)
    load.add_file(200)
    run_meshjoin(load, spark)
    assert load.query("SELECT count(*) FROM load_batches WHERE waiting > 0") != [(0,)]
    assert verify(load).success
    here = load.checkpoint
    plan = day_again.plan("sales", load.paths, here, files=[of_file(load, 1)])
    assert (plan.files, set(plan.others)) == (
        (of_file(load, 1),),
        {of_file(load, 0), of_file(load, 2)},
    )
    assert (plan.batches, plan.rows_read) == ((0, 1, 2), 900)
    day_again.carry_out(plan, load.paths, here)
    assert load.query("SELECT count(*) FROM fact_sales WHERE id < 900") == [(0,)]
    assert verify(load).success
    assert run_meshjoin(load, spark).rows_read == 900
    load.check()
    assert verify(load).success
    load.add_file(100)
    assert run_meshjoin(load, spark).rows_read == 100
    load.check()


def test_a_file_that_is_gone_is_not_loaded_again_unless_it_was_asked_for(spark, sqlite_load):
    load = sqlite_load
    for _ in range(2):
        load.add_file(300)
    run_meshjoin(load, spark)
    here = load.checkpoint
    Path(of_file(load, 0)).unlink()
    with pytest.raises(ConfigError, match="these are gone"):
        day_again.plan("sales", load.paths, here, files=[of_file(load, 1)])
    plan = day_again.plan("sales", load.paths, here, files=[of_file(load, 0), of_file(load, 1)])
    assert f"{of_file(load, 0)} (which is gone)" in str(plan)
    day_again.carry_out(plan, load.paths, here)
    assert run_meshjoin(load, spark).rows_read == 300
    load.stream = load.stream[300:]
    joined, rejected = load.expected()
    same(load.facts(), joined)
    same(load.unmatched(), rejected)
    assert verify(load).success


def test_the_last_batch_is_taken_out_while_its_tuples_wait(spark, sqlite_load, monkeypatch):
    """A load that was killed before its drain."""
    load = sqlite_load
    load.add_file(300)
    run_meshjoin(load, spark)
    load.add_file(400)

    def killed(self):
        raise KeyError("killed")

    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr(App, "_drain", killed)
        run_meshjoin(load, spark)
    assert load.query("SELECT sum(waiting) FROM load_batches WHERE batch = 1 AND drain = 0") != [
        (0,)
    ]
    here = load.checkpoint
    plan = day_again.plan("sales", load.paths, here, files=[of_file(load, 1)])
    assert (plan.batches, plan.rows_read) == ((1,), 400)
    day_again.carry_out(plan, load.paths, here)
    assert verify(load).success
    assert run_meshjoin(load, spark).rows_read == 400
    load.check()
    assert verify(load).success


def test_files_are_taken_out_of_a_delta_table(spark, sqlite_load, monkeypatch):
    """A crash after its transaction, and before the warehouse's, leaves what the same command
    finishes."""
    load = sqlite_load
    load.sink = str(load.paths.home / "delta")
    for rows_of_file in (300, 200):
        load.add_file(rows_of_file)
        load.run(spark)
    before, here = load.facts(), load.checkpoint
    plan = day_again.plan("sales", load.paths, here, files=[of_file(load, 1)])
    assert (plan.batches, plan.rows_read) == ((1,), 200)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="crash"):
        faults.crash_at(patch, "semistream.pipeline.day_again.take_out", "before", 1)
        day_again.carry_out(plan, load.paths, here)
    assert not verify(load).success
    with pytest.raises(StateError, match="was cut short"):
        load.run(spark)
    day_again.carry_out(day_again.under_way(here), load.paths, here)
    left = load.facts()
    assert left < before and {row[0] for row in left} <= set(range(300))
    assert verify(load).success
    assert load.run(spark).rows_read == 200
    same(load.facts(), before)
    assert verify(load).success


def test_a_file_of_a_star_is_taken_out_and_loaded_again(spark, tmp_path):
    """Nothing of what its roles have let pass is left in the ledger."""
    load = star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}", ("offer", "part"))
    for rows_of_file in (300, 200):
        load.add_file(rows_of_file)
        load.run(spark)
    here = load.checkpoint
    plan = day_again.plan("sales", load.paths, here, files=[of_file(load, 1)])
    day_again.carry_out(plan, load.paths, here)
    left = "SELECT sum(missed), sum(passed) FROM load_inputs JOIN load_batches USING (load_id) "
    assert load.query(f"{left} WHERE batch = 1") == [(0, None)]
    load.provision_beside()
    assert verify(load).success
    load.run(spark)
    load.check()
    assert verify(load).success


def test_loads_of_other_kinds_are_refused(tmp_path, spark):
    pair = Pair(tmp_path / "pair", f"sqlite:///{tmp_path / 'pair.db'}")
    pair.add(30, 30)
    pair.run(spark, end=True)
    with pytest.raises(ConfigError, match="must be a load of one stream"):
        day_again.plan("orders", pair.paths, pair.checkpoint, files=["any"])
