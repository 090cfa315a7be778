"""What writes where there is no room left says where that is."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import MetaData, Table

from semistream.errors import StateError
from semistream.files.sink import OutputFile
from semistream.master.publish import Publication, publish_snapshot
from semistream.streaming.sinks.delta_files import DataFiles
from semistream.streaming.spool import Spool
from semistream.streaming.status import StatusFile, read_status
from semistream.warehouse import connect
from semistream.warehouse.bulk import bulk_insert

ROWS = pa.record_batch({"id": range(100_000), "text": [str(i * i) for i in range(100_000)]})


@pytest.fixture
def little_room():
    """Files of this process end at 100,000 bytes. That fails as on a full disk, without a path."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def snapshot(place: Path) -> None:
    publish_snapshot([ROWS], ROWS.schema, place, "m", ["id"], bucket_count=1)


def bucket(place: Path) -> None:
    """As a task of Spark writes one."""
    with (
        Publication(
            place, "m", ROWS.schema, ["id"], bucket_count=1, page_tuples=1024
        ) as publication,
        publication.writer(0) as writer,
    ):
        key_codes, _ = publication.keys.master_codes(ROWS)
        writer.write(ROWS.take(pa.array(np.argsort(key_codes, kind="stable"))))
        writer.close()


def output(place: Path, suffix: str) -> None:
    with OutputFile("out", place / f"out{suffix}", ROWS.schema) as file:
        file.write(ROWS)
        file.finish()


def parquet(place: Path) -> None:
    output(place, ".parquet")


def csv(place: Path) -> None:
    output(place, ".csv")


def json_lines(place: Path) -> None:
    output(place, ".jsonl")


def delta(place: Path) -> None:
    file = DataFiles(str(place), ROWS.schema, "000000000-0-0000", {"load_id": pa.scalar(1)})
    try:
        file.write(ROWS)
        file.close()
    finally:
        file.discard()


def spool(place: Path) -> None:
    with Spool(ROWS.schema, (ROWS.schema,), ((),)) as spooled:
        spooled.write(ROWS, None)
        spooled.joined()


@pytest.mark.parametrize("write", [snapshot, bucket, parquet, csv, json_lines, delta, spool])
def test_a_file_that_cannot_grow_is_named_and_nothing_stays(
    tmp_path, monkeypatch, little_room, write
):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr("semistream.streaming.spool.task_directory", lambda: str(place))
    with pytest.raises(OSError, match=f"File too large: '{place}") as failed:
        write(place)
    assert failed.value.errno == errno.EFBIG
    assert [file for file in place.rglob("*") if file.is_file() and file.name != ".lock"] == []


def test_the_warehouse_s_file_is_named(tmp_path):
    engine = connect(f"sqlite:///{tmp_path / 'warehouse.db'}")
    full = f"No space left on device: '{tmp_path}/warehouse.db'"
    with pytest.raises(OSError, match=full), engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 10")
        connection.exec_driver_sql(
            "CREATE TABLE t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
            "SELECT i + 1 FROM n WHERE i < 100000) SELECT i FROM n"
        )
    with pytest.raises(OSError, match=full), engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id, text)")
        bulk_insert(connection, Table("t", MetaData()), ROWS)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
    engine.dispose()


@pytest.mark.parametrize("how", ["rows", "arrow"])
def test_the_status_says_what_went_wrong_in_a_worker_and_not_where_in_the_code(
    spark, tmp_path, how
):
    def fail(_):
        try:
            raise ValueError("at first")
        except ValueError as e:
            raise OSError(errno.ENOSPC, "No space left on device", "/data/file") from e

    numbers = spark.range(1)
    job = (
        numbers.rdd.mapPartitions(fail) if how == "rows" else numbers.mapInArrow(fail, "id BIGINT")
    )
    with pytest.raises(Exception, match="Traceback"), StatusFile(tmp_path, "sales"):
        job.collect()
    assert (
        read_status(tmp_path).error == "OSError: [Errno 28] No space left on device: '/data/file'"
    )


def test_the_status_says_an_error_of_the_driver_as_it_is(tmp_path):
    with pytest.raises(StateError), StatusFile(tmp_path, "sales"):
        raise StateError("of two\nlines")
    assert read_status(tmp_path).error == "StateError: of two\nlines"
