"""The driver lists local files itself: those that Spark would list, each in one micro-batch. That
is decided before the batch begins. The logs are Spark's, so that a query of either kind goes on
after the other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

import faults
from loads import SmallLoad, until, with_options
from semistream.errors import ConfigError, StateError
from semistream.job import StreamSpec
from semistream.streaming.file_query import FileQuery
from semistream.streaming.query import Query
from semistream.streaming.settings import AVAILABLE_NOW
from semistream.streaming.sources.file_streams import FileStream
from semistream.streaming.sources.log import SourceLog, file_uri

NAMES = (
    "a.csv",
    "B.CSV",
    "c.txt",
    "d.csv.gz",
    "README",
    " e f.csv",
    "%20ä.csv",
    "g#h?i.csv",
    "j;k,l=m&n.csv",
    "'o'(1)~!*+$@`^|\"<>\\.csv",
    "[p]{q}.csv",
    "r\u00a0\u2028\u0085s.csv",
    "t\nu.csv",
    "v\N{GRINNING FACE}.csv",
    "below/w.csv",
    "below/deeper/x.csv",
    "_hidden.csv",
    ".y.csv",
    "z.csv._COPYING_",
    "_below/1.csv",
)
PARTITIONS = ("a.csv", "day=1/b.csv", "day=2/c.csv")


def source_of(path: Path | str, **options: str) -> FileStream:
    spec = StreamSpec(format="csv", path=str(path), columns="id BIGINT", options=options)
    return FileStream(spec)


def put(directory: Path, *names: str) -> None:
    """Files, each newer than those before."""
    newest = max((p.stat().st_mtime_ns for p in directory.rglob("*.*")), default=0)
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("id\n1\n")
        newest = max(newest + 2_000_000, path.stat().st_mtime_ns)
        os.utime(path, ns=(newest, newest))


class Given:
    """The micro-batches that a query has given, with their files."""

    def __init__(self, spark, place: Path):
        self.spark, self.place = spark, place
        self.directory, self.checkpoint = place / "in", place / "checkpoint"
        self.directory.mkdir(parents=True)
        self.batches: dict[int, list[str]] = {}

    def process(self, batch: int, _: object) -> None:
        files = SourceLog(self.checkpoint / "query", "csv").files(batch)
        assert self.batches.setdefault(batch, files) == files  # whatever happened meanwhile
        assert batch == max(self.batches)

    def run(self, kind=FileQuery, trigger=AVAILABLE_NOW, most=0, between=lambda: False, **options):
        query = kind(self.spark.sparkContext, "app", self.checkpoint, trigger)
        query.open([source_of(self.directory, **options)], most, 0)
        query.run(self.process, between, lambda: False)

    @property
    def names(self) -> list[str]:
        return [Path(file).name for batch in self.batches.values() for file in batch]


@pytest.fixture
def given(spark, tmp_path) -> Given:
    return Given(spark, tmp_path)


# ---- which files


@pytest.mark.parametrize(
    "names, path, options",
    [
        (NAMES, "in", {}),
        (NAMES, "in", {"recursiveFileLookup": "true"}),
        (NAMES, "in", {"PATHGLOBFILTER": "*[ac].*"}),
        (NAMES, "in/*.csv", {}),
        (NAMES, "i?", {}),
        (NAMES, "in/a.csv", {}),
        (NAMES, "in/../in/./below/", {}),
        (PARTITIONS, "in", {"recursiveFileLookup": "true"}),
        (PARTITIONS, "in/day=*", {}),
    ],
)
def test_the_driver_lists_the_files_that_spark_lists(spark, given, names, path, options):
    put(given.directory, names[0])
    (given.directory / "below").mkdir()
    source = source_of(f"{given.place}/{path}", **options)
    assert source.is_listed_by_driver
    query = Query(spark.sparkContext, "app", given.checkpoint, AVAILABLE_NOW)
    query.open([source], 0, 0)
    put(given.directory, *names[1:])  # partitions that are there before are refused
    query.run(given.process, lambda: False, lambda: False)
    assert given.names
    assert sorted(file.path for file in source.present()) == sorted(given.batches[0])
    lines = (given.checkpoint / "query" / "sources" / "0" / "0").read_text().splitlines()[1:]
    assert {json.loads(line)["path"] for line in lines} == set(map(file_uri, given.batches[0]))


@pytest.mark.parametrize(
    "path, options",
    [
        ("s3://bucket/in", {}),
        ("{a,b}", {}),
        ("in", {"maxFileAge": "1d"}),
        ("in", {"latestFirst": "true"}),
        ("in", {"CleanSource": "delete"}),
    ],
)
def test_what_only_spark_can_list_is_left_to_it(path, options):
    assert not source_of(path, **options).is_listed_by_driver


def test_what_spark_has_written_is_left_to_it(tmp_path):
    """It lists the files that it has committed there, and no others."""
    assert source_of(tmp_path).is_listed_by_driver
    (tmp_path / "_spark_metadata").mkdir()
    assert not source_of(tmp_path).is_listed_by_driver


def test_a_directory_that_cannot_be_read_is_no_empty_one():
    place = Path(tempfile.mkdtemp())
    try:
        if os.geteuid():
            place.chmod(0)
        else:
            os.seteuid(65534)
        with pytest.raises(StateError, match=f"{place} cannot be read: Permission denied"):
            list(source_of(place).present())
    finally:
        os.seteuid(os.getuid())
        place.chmod(0o700)
        shutil.rmtree(place)


def test_a_directory_of_a_partition_that_comes_later_is_refused(given):
    """A query of Spark fails, too."""
    put(given.directory, *PARTITIONS[:1])
    given.run()
    put(given.directory, *PARTITIONS)
    with pytest.raises(ConfigError, match="The column day is in the name of a directory only"):
        given.run()
    with pytest.raises(ConfigError, match="The column day is in the name of a directory only"):
        list(source_of(given.directory).present())


def test_a_limit_that_is_no_number_is_refused(tmp_path):
    assert source_of(tmp_path, MaxFilesPerTrigger="3").most_files(5) == 3
    assert source_of(tmp_path).most_files(5) == 5
    with pytest.raises(ConfigError, match="maxFilesPerTrigger"):
        source_of(tmp_path, maxFilesPerTrigger="few").most_files(5)


# ---- which file in which micro-batch


def test_the_oldest_files_come_first_and_no_more_than_the_limit(given):
    put(given.directory, *(f"{number}.csv" for number in (3, 1, 4, 5, 2)))
    given.run(most=2)
    assert given.names == ["3.csv", "1.csv", "4.csv", "5.csv", "2.csv"]
    assert list(map(len, given.batches.values())) == [2, 2, 1]
    given.run(most=2)
    assert len(given.batches) == 3


def test_a_run_to_the_end_takes_what_was_there_when_it_began(given, monkeypatch):
    put(given.directory, "a.csv")
    process = given.process
    monkeypatch.setattr(
        given, "process", lambda *batch: (process(*batch), put(given.directory, "b.csv"))
    )
    given.run()
    assert given.names == ["a.csv"]


def test_a_file_that_comes_before_the_batch_is_decided_is_in_it(given, monkeypatch):
    """It is listed when the batch begins, and not when the trigger fires: a later one waits."""
    put(given.directory, "a.csv")
    present, process = FileStream.present, given.process

    def late(source):
        if not given.batches:
            put(given.directory, "b.csv")
        return present(source)

    monkeypatch.setattr(FileStream, "present", late)
    monkeypatch.setattr(
        given, "process", lambda *batch: (put(given.directory, "c.csv"), process(*batch))
    )
    given.run(trigger="10 milliseconds", between=lambda: len(given.batches) == 2)
    assert [sorted(map(os.path.basename, b)) for b in given.batches.values()] == [
        ["a.csv", "b.csv"],
        ["c.csv"],
    ]


def test_nothing_is_noted_while_nothing_comes(given):
    looks = iter(range(10))
    given.run(trigger="1 milliseconds", between=lambda: next(looks) == 9)
    assert not given.batches and not (given.checkpoint / "query").exists()


def test_a_trigger_is_waited_for_and_a_batch_that_takes_longer_is_followed_at_once(given):
    begun, process = [], given.process

    def slow(batch, frames):
        begun.append(time.time())
        process(batch, frames)
        time.sleep(0.7 if not batch else 0)
        put(given.directory, f"{batch + 1}.csv")

    put(given.directory, "0.csv")
    given.process = slow
    given.run(trigger="500 milliseconds", between=lambda: len(given.batches) == 4)
    assert 0.7 <= begun[1] - begun[0] < 1.0
    assert begun[3] - begun[2] > 0.3 and begun[3] % 0.5 < 0.3


# ---- one kind of query goes on after the other


@pytest.mark.parametrize("kinds", [(FileQuery, Query), (Query, FileQuery)])
def test_a_query_goes_on_after_one_of_the_other_kind(given, kinds):
    """Also where the log was compacted by the other, and its old entries are gone."""
    number = 0
    for turn in range(8):
        for _ in range(7):
            put(given.directory, f"ä {number}.csv")
            number += 1
        given.run(kinds[turn % 2], most=1)
        assert given.names == [f"ä {n}.csv" for n in range(number)]
    assert list(given.batches) == list(range(number))


def test_logs_are_kept_of_the_last_hundred_batches(given):
    put(given.directory, *(f"{number:03d}.csv" for number in range(225)))
    given.run(most=1)
    query = given.checkpoint / "query"
    for log in ("offsets", "commits"):
        assert sorted(int(p.name) for p in (query / log).iterdir()) == list(range(125, 225))
    kept = {p.name for p in (query / "sources" / "0").iterdir()}
    assert kept == {f"{n}.compact" if n % 10 == 9 else str(n) for n in range(119, 225)}
    log = SourceLog(query, "csv")
    assert [Path(f).stem for f in log.entries(-1, 300)] == [f"{n:03d}" for n in range(225)]
    put(given.directory, "new.csv")
    given.run(Query)
    assert given.names[-1] == "new.csv" and len(given.names) == 226


# ---- crashes

STEPS = [
    ("semistream.streaming.sources.log.SourceLog.add", "before"),
    ("semistream.streaming.sources.log.SourceLog.add", "after"),
    ("semistream.streaming.sources.log.QueryLog.begin", "before"),
    ("semistream.streaming.sources.log.QueryLog.begin", "after"),
    ("semistream.streaming.sources.log.QueryLog.end", "before"),
    ("semistream.streaming.sources.log.QueryLog.end", "after"),
]


@pytest.mark.parametrize("kind", [FileQuery, Query])
@pytest.mark.parametrize("name, when", STEPS)
def test_a_batch_stays_what_it_is_and_no_file_comes_twice(given, monkeypatch, name, when, kind):
    """The driver dies at a step of the third batch, and a file comes before the next start."""
    put(given.directory, "a.csv", "b.csv", "c.csv")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="crash"):
        faults.crash_at(patch, name, when, 3)
        given.run(most=1)
    put(given.directory, "d.csv")
    given.run(kind, most=1)
    assert given.names == ["a.csv", "b.csv", "c.csv", "d.csv"]


@pytest.mark.parametrize("name, when", STEPS)
def test_an_app_whose_driver_dies_while_a_batch_is_noted(spark, load, monkeypatch, name, when):
    for _ in range(3):
        load.add_file(150)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="crash"):
        faults.crash_at(patch, name, when, 2)
        load.run(spark)
    load.add_file(150)
    load.run(spark)
    load.check()


def test_the_logs_are_on_disk_before_a_batch_is_given(given, monkeypatch):
    flushed, fsync, process = [], os.fsync, given.process
    monkeypatch.setattr(
        os, "fsync", lambda f: (flushed.append(os.readlink(f"/proc/self/fd/{f}")), fsync(f))[1]
    )
    monkeypatch.setattr(given, "process", lambda *b: (flushed.append("given"), process(*b)))
    put(given.directory, "a.csv")
    given.run()
    query, before = given.checkpoint / "query", flushed[: flushed.index("given")]
    for log in (query / "sources" / "0", query / "offsets"):
        assert str(log) in before and any(f.startswith(f"{log}/.0.") for f in before)


# ---- as a process


def test_files_come_while_a_load_is_killed_again_and_again(sqlite_load: SmallLoad, make_app):
    """Each kill leaves a batch that was decided, or was not. The end of Spark is noticed while
    nothing comes, with a trigger that is far away."""
    app = make_app(sqlite_load, trigger="50 milliseconds", max_files=0)
    stop = threading.Event()

    def arrive():
        while not stop.wait(0.05):
            sqlite_load.add_file(20)

    coming = threading.Thread(target=arrive)
    coming.start()
    try:
        for later in (0.0, 0.15):
            app.start()
            before = faults.batches(sqlite_load)
            until(lambda b=before: faults.batches(sqlite_load) > b + 3, 120, "some batches")
            time.sleep(later)  # not synchronisation: the moment within a batch
            app.process.kill()
            app.process.wait()
    finally:
        stop.set()
        coming.join()
    seldom = make_app(sqlite_load, trigger="1 hour", max_files=0)
    seldom.start()
    every = len(sqlite_load.stream)
    seldom.wait(lambda s: s.rows_read and loaded(sqlite_load) == every, "all rows")
    (jvm,) = [p for p in faults.descendants(seldom.process.pid) if "java" in faults.command_of(p)]
    os.kill(jvm, signal.SIGKILL)
    assert seldom.end(60) != 0
    sqlite_load.add_file(20)
    app.start()
    until(lambda: loaded(sqlite_load) == len(sqlite_load.stream), 120, "the last file")
    app.process.send_signal(signal.SIGTERM)
    assert app.end() == 0, app.output()
    sqlite_load.check()
    assert len(sqlite_load.query("SELECT path FROM load_files")) == sqlite_load.files


def loaded(load: SmallLoad) -> int:
    return int(load.query("SELECT coalesce(sum(rows_read), 0) FROM load_batches")[0][0])


def test_an_option_of_spark_s_listing_is_heeded_by_a_load_that_went_on_without_it(
    spark, sqlite_load
):
    sqlite_load.add_file(50)
    sqlite_load.run(spark)
    sqlite_load.add_file(50)
    sqlite_load.run(spark, with_options(sqlite_load.job, maxFileAge="10000d"))
    sqlite_load.add_file(50)
    sqlite_load.run(spark)
    sqlite_load.check()
