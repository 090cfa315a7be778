"""The source is part of the proof: what never entered is missed, and no batch is taken for
another."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from loads import SmallLoad, verify, with_options
from semistream.data_files import list_files
from semistream.errors import StateError
from semistream.quality.verification import VerificationResult
from semistream.streaming.commit import Commits
from semistream.streaming.micro_batch import MicroBatch
from semistream.streaming.sinks.sql import SqlSink
from semistream.warehouse import connect
from semistream.warehouse.ledger import Ledger

YEAR = 365 * 86_400


def csv_load(load: SmallLoad):
    """The job of CSV files, which Spark brings to the tasks."""
    return load.job.model_copy(
        update={
            "stream": load.job.stream.model_copy(
                update={"format": "csv", "columns": "id BIGINT, sku STRING, amount DOUBLE"}
            )
        }
    )


def csv_text(load: SmallLoad, rows: int) -> str:
    return "".join(
        f"{r['id']},{r['sku'] or ''},{r['amount']}\n" for r in load.sales(rows).to_pylist()
    )


def add_csv(load: SmallLoad, name: str, rows: int) -> Path:
    path = load.stream_directory / name
    path.write_text("id,sku,amount\n" + csv_text(load, rows))
    return path


def found(result: VerificationResult, name: str = "source_files") -> list[dict]:
    return next(r for r in result.results if r.name == name).rows


def test_files_of_any_age_are_loaded(spark, sqlite_load):
    for _ in range(4):
        sqlite_load.add_file(50)
    files, now = sorted(sqlite_load.stream_directory.iterdir()), time.time()
    for file, age in zip(files, (20 * YEAR, 30 * 86_400, -2 * YEAR, 0), strict=True):
        os.utime(file, (now - age, now - age))
    sqlite_load.run(spark)
    sqlite_load.add_file(50)
    late = max(sqlite_load.stream_directory.iterdir())
    os.utime(late, (now - 25 * YEAR, now - 25 * YEAR))
    sqlite_load.run(spark)
    sqlite_load.check()
    assert verify(sqlite_load).success


def test_a_file_that_was_written_since_it_was_loaded_is_found(spark, load):
    for _ in range(3):
        load.add_file(50)
    load.run(spark)
    assert verify(load).success
    first, second, _ = sorted(load.stream_directory.iterdir())
    os.utime(first)
    with open(second, "ab") as file:
        file.write(b"more")
    load.add_file(50)  # not loaded yet
    result = verify(load)
    assert not result.success
    of = dict(load.query("SELECT path, batch FROM load_files"))
    assert {r["file"]: r["batch"] for r in found(result)} == {
        str(f): of[str(f)] for f in (first, second)
    }
    assert all("written since" in r["finding"] for r in found(result))
    assert any(f"{second} cannot be read" in note for note in result.notes)


def test_a_file_that_was_empty_and_is_filled_later_is_found(spark, sqlite_load):
    job, empty = csv_load(sqlite_load), sqlite_load.stream_directory / "a.csv"
    empty.touch()
    add_csv(sqlite_load, "b.csv", 50)
    sqlite_load.run(spark, job)
    assert verify(sqlite_load, job).success
    add_csv(sqlite_load, "a.csv", 50)
    sqlite_load.run(spark, job)
    result = verify(sqlite_load, job)
    assert not result.success and [r["file"] for r in found(result)] == [str(empty)]
    assert "0 bytes" in found(result)[0]["finding"]


def test_a_file_that_no_batch_has_is_found(spark, load):
    load.add_file(50)
    load.run(spark)
    # With Spark's own age limit, which counts from the newest file that a batch has had.
    job = with_options(load.job, maxFileAge="1d")
    load.add_file(50)
    late = max(load.stream_directory.iterdir())
    os.utime(late, (time.time() - YEAR, time.time() - YEAR))
    assert verify(load, job).success  # it came after the source was listed
    load.run(spark, job)
    result = verify(load, job)
    assert not result.success and [r["file"] for r in found(result)] == [str(late)]
    assert "in no batch" in found(result)[0]["finding"] and str(late) in result.describe()
    load.run(spark)
    load.check()
    assert verify(load).success


def test_a_directory_that_is_moved_into_the_stream_is_new_whatever_its_files_are(
    spark, sqlite_load
):
    """A rename changes no time of the files below: only the directory's own tells when they
    came."""
    job = with_options(csv_load(sqlite_load), recursiveFileLookup="true")
    aside = sqlite_load.paths.home / "day"
    aside.mkdir(parents=True)
    (aside / "old.csv").write_text("id,sku,amount\n" + csv_text(sqlite_load, 50))
    time.sleep(0.05)  # the kernel's clock of files goes in steps
    add_csv(sqlite_load, "a.csv", 50)
    sqlite_load.run(spark, job)
    aside.rename(sqlite_load.stream_directory / "day")
    assert verify(sqlite_load, job).success  # it came after the source was listed
    summary = sqlite_load.run(spark, job)
    assert summary.rows_read == 50
    sqlite_load.check()
    assert verify(sqlite_load, job).success
    lost = sqlite_load.stream_directory / "day" / "lost.csv"
    lost.write_text("id,sku,amount\n1000,,1\n")
    add_csv(sqlite_load, "b.csv", 50)
    time.sleep(0.05)
    sqlite_load.run(spark, with_options(job, recursiveFileLookup="true", pathGlobFilter="[ab].csv"))
    assert [r["file"] for r in found(verify(sqlite_load, job))] == [str(lost)]


def test_a_file_that_is_gone_before_it_is_read_stops_the_load(spark, sqlite_load, monkeypatch):
    sqlite_load.add_file(50)
    file, aside = next(sqlite_load.stream_directory.iterdir()), sqlite_load.paths.home / "aside"
    rested = MicroBatch._rested
    monkeypatch.setattr(
        MicroBatch, "_rested", lambda *args: (shutil.move(file, aside), rested(*args))[1]
    )
    with pytest.raises(StateError, match=f"{file} is gone"):
        sqlite_load.run(spark)
    monkeypatch.undo()
    shutil.move(aside, file)
    sqlite_load.run(spark)
    sqlite_load.check()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_that_changes_while_it_is_loaded_is_refused(spark, load, kind, monkeypatch):
    job = csv_load(load) if kind == "csv" else load.job
    if kind == "csv":
        add_csv(load, "a.csv", 100)
    else:
        load.add_file(100)
    file = next(load.stream_directory.iterdir())
    begin = Commits.begin

    def write_on(self, progress):
        begin(self, progress)
        if kind == "csv":
            with open(file, "a") as more:
                more.write(csv_text(load, 10))
        else:
            os.utime(file)

    monkeypatch.setattr(Commits, "begin", write_on)
    with pytest.raises(Exception, match=r"has changed.*while it was being loaded"):
        load.run(spark, job)
    assert load.query("SELECT count(*) FROM load_commits") == [(0,)]
    monkeypatch.undo()
    load.run(spark, job)
    load.check()
    assert verify(load, job).success


def test_what_was_loaded_of_a_batch_whose_file_has_changed_is_taken_back(spark, load, monkeypatch):
    job = csv_load(load)
    add_csv(load, "a.csv", 100)
    load.run(spark, job)
    file = add_csv(load, "b.csv", 100)

    def lost(*_):
        raise ConnectionError("the driver's machine")

    monkeypatch.setattr(SqlSink, "commit", lost)
    with pytest.raises(ConnectionError):
        load.run(spark, job)
    monkeypatch.undo()
    assert load.query("SELECT count(*) FROM load_batches WHERE batch = 1 AND drain = 0") == [(2,)]
    with open(file, "a") as more:
        more.write(csv_text(load, 20))
    load.run(spark, job)
    load.check()
    assert verify(load, job).success


def test_a_batch_is_passed_over_for_what_it_is_not_for_its_number(spark, sqlite_load):
    for _ in range(4):
        sqlite_load.add_file(50)
    sqlite_load.run(spark)
    query = sqlite_load.checkpoint / "query"
    shutil.rmtree(query)
    sqlite_load.run(spark)  # as before: the same batches
    sqlite_load.check()
    shutil.rmtree(query)
    sqlite_load.add_file(50)
    with pytest.raises(StateError, match="another part of the source than batch 0"):
        sqlite_load.run(spark, max_files=3)
    shutil.rmtree(query)
    sqlite_load.run(spark)
    sqlite_load.check()


def test_a_batch_that_spark_has_forgotten_is_loaded_as_spark_gives_it_next(
    spark, sqlite_load, monkeypatch
):
    """As after a power cut: progress.json is on disk, Spark's own note of the batch is not."""
    sqlite_load.add_file(50)
    sqlite_load.run(spark, max_files=0)
    sqlite_load.add_file(50)

    def lost(*_):
        raise ConnectionError("the driver's machine")

    monkeypatch.setattr(SqlSink, "commit", lost)
    with pytest.raises(ConnectionError):
        sqlite_load.run(spark, max_files=0)
    monkeypatch.undo()
    query = sqlite_load.checkpoint / "query"
    for name in ("offsets/1", "offsets/.1.crc", "sources/0/1", "sources/0/.1.crc"):
        (query / name).unlink(missing_ok=True)
    sqlite_load.add_file(50)
    sqlite_load.run(spark, max_files=0)
    sqlite_load.check()


def test_spark_s_own_notes_are_on_disk_before_a_batch_begins(spark, sqlite_load, monkeypatch):
    sqlite_load.add_file(50)
    flushed, begin = [], Commits.begin
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda f: (flushed.append(os.readlink(f"/proc/self/fd/{f}")), fsync(f))[1]
    )
    monkeypatch.setattr(
        Commits, "begin", lambda self, progress: (flushed.append("begin"), begin(self, progress))[1]
    )
    sqlite_load.run(spark, with_options(sqlite_load.job, maxFileAge="36500d"))
    query = sqlite_load.checkpoint / "query"
    assert {str(query / "offsets/0"), str(query / "sources/0/0")} <= set(
        flushed[: flushed.index("begin")]
    )


def test_a_file_is_loaded_when_it_has_rested(spark, sqlite_load):
    file, job = add_csv(sqlite_load, "a.csv", 50), csv_load(sqlite_load)
    future = add_csv(sqlite_load, "b.csv", 50)
    os.utime(future, (time.time() + YEAR, time.time() + YEAR))
    parts = [csv_text(sqlite_load, 50) for _ in range(4)]

    def write_on():
        for part in parts:
            time.sleep(0.4)
            with open(file, "a") as more:
                more.write(part)

    writer = threading.Thread(target=write_on)
    writer.start()
    sqlite_load.run(spark, job, min_age=1.5)
    writer.join()
    sqlite_load.check()


def test_a_stop_does_not_wait_for_files_to_rest(spark, sqlite_load):
    add_csv(sqlite_load, "a.csv", 50)
    started = time.monotonic()
    summary = sqlite_load.run(spark, csv_load(sqlite_load), min_age=300, stop_after=2)
    assert summary.rows_read == 0 and time.monotonic() - started < 60
    sqlite_load.run(spark, csv_load(sqlite_load))
    sqlite_load.check()


def test_names_of_files_that_are_gone_are_forgotten(spark, load, monkeypatch):
    monkeypatch.setattr("semistream.warehouse.ledger.FILES_AT_ONCE", 2)
    for _ in range(5):
        load.add_file(20)
    load.run(spark, max_files=3)
    files = sorted(load.stream_directory.iterdir())
    for file in files[:4]:
        file.unlink()
    Ledger(connect(load.paths.warehouse_url), "sales").forget_files()
    assert load.query("SELECT path FROM load_files") == [(str(files[4]),)]
    result = verify(load)
    assert result.success
    assert any("3 source files of batch 0 are gone" in note for note in result.notes)
    load.add_file(20)
    load.run(spark)
    load.check()


def test_the_files_are_those_that_spark_takes(spark, tmp_path):
    names = (
        "a.csv",
        "b.txt",
        "_hidden.csv",
        ".c.csv",
        "day=1/d.csv",
        "_day=1/e.csv",
        "_x/f.csv",
        ".y/g.csv",
        "h.csv._COPYING_",
        "deep/er/i.csv",
        "_k=1.csv",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    for pattern in ("*", "*.csv"):
        reader = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", pattern)
        wanted = {f.removeprefix("file://") for f in reader.text(str(tmp_path)).inputFiles()}
        assert {e.path for e in list_files(str(tmp_path), {"pathGlobFilter": pattern})} == wanted
    assert {e.name for e in list_files(f"{tmp_path}/*.csv", {})} == {"a.csv", "_k=1.csv"}
