import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from provisioned import provision, publish
from semistream.errors import ConfigError
from semistream.job import Job
from semistream.master.publish import current_manifest
from semistream.master.published import snapshot_root
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.pipeline import provision_steps
from semistream.provisioning import publishing
from semistream.provisioning.spark import Publish, PublishSettings, task_count

APP = Path(__file__).parents[1] / "spark_apps" / "publish_snapshot.py"
ROWS = 3000
MASTER = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "code": [f"k{i * 7919 % 1000}" if i % 50 else None for i in range(ROWS)],
        "day": [dt.date(2020, 1, 1) + dt.timedelta(i % 40) for i in range(ROWS)],
        "name": [f"näme {i}" if i % 3 else None for i in range(ROWS)],
        "at": pa.array(
            [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i) for i in range(ROWS)],
            pa.timestamp("us", "UTC"),
        ),
        "local": pa.array(
            [dt.datetime(2024, 1, 1) + dt.timedelta(hours=i) for i in range(ROWS)],
            pa.timestamp("us"),
        ),
        "clock": pa.array([dt.time(i % 24, 1, 2, i) for i in range(ROWS)], pa.time64("us")),
        "price": pa.array(range(ROWS)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(30, 4)),
        "raw": [bytes([i % 256]) for i in range(ROWS)],
    }
)


def values(on):
    return {
        "name": "j",
        "stream": {},
        "on": on,
        "fact_table": "fact",
        "master": {"name": "m", "path": "m.parquet", "business_key": ["id"]},
    }


@pytest.fixture
def paths(warehouse_url, tmp_path):
    pq.write_table(MASTER, tmp_path / "m.parquet")
    return Paths(home=tmp_path, warehouse_url=warehouse_url)


def job(paths, on) -> Job:
    spec = values(on)
    spec["master"]["path"] = str(paths.home / "m.parquet")
    return Job.load(spec)


def contents(root):
    relation = open_snapshot(root)
    rows = [
        r
        for i in range(relation.partition_count)
        for r in relation.read(i, relation.schema.names).to_pylist()
    ]
    return (
        relation.manifest,
        sorted(rows, key=lambda r: r["m_sk"]),
        [relation.read_codes(i).tolist() for i in range(relation.partition_count)],
    )


@pytest.mark.parametrize(
    "on", [["id"], ["code"], ["code", "day"]], ids=["exact", "string", "composite"]
)
def test_spark_publishes_what_the_library_publishes(spark, warehouse, paths, on):
    spec = job(paths, on)
    provision(spec, warehouse)
    publish(spec, warehouse, paths.home / "library")
    app = Publish(PublishSettings(job="j"), "m", spec.roles[0].key, paths)
    assert app.needed
    app.run(spark)
    assert not Publish(PublishSettings(job="j"), "m", spec.roles[0].key, paths).needed
    ours, rows, codes = contents(snapshot_root(paths.snapshots, "m", on))
    theirs, expected, expected_codes = contents(snapshot_root(paths.home / "library", "m", on))
    assert rows == expected and codes == expected_codes and len(rows) == ROWS - theirs.null_keys
    for field in (
        "schema",
        "key_columns",
        "tuple_count",
        "null_keys",
        "unique",
        "bucket_count",
        "page_tuples",
        "source",
    ):
        assert getattr(ours, field) == getattr(theirs, field)


def test_no_task_of_spark_is_run_for_an_empty_bucket(spark, warehouse, paths):
    """On two cores two tasks read 3,000 rows, and two write the 64 buckets."""
    spec = job(paths, ["id"])
    provision(spec, warehouse)
    group = f"publishing {paths.home}"
    spark.sparkContext.setJobGroup(group, "")
    try:
        Publish(PublishSettings(job="j"), "m", spec.roles[0].key, paths).run(spark)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    told = spark.sparkContext.statusTracker()
    stages = {
        stage
        for number in told.getJobIdsForGroup(group)
        for stage in told.getJobInfo(number).stageIds
    }
    assert sum(told.getStageInfo(stage).numCompletedTasks for stage in stages) == 4
    assert [task_count(spark, rows) for rows in (0, 1, 2, 3000, 500_001)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("is_small", [True, False])
def test_a_small_dimension_is_published_in_process_and_none_that_has_not_changed(
    warehouse, paths, monkeypatch, is_small
):
    spec = values(["code"])
    spec["master"]["path"] = str(paths.home / "m.parquet")
    (paths.home / "job.yaml").write_text(yaml.safe_dump(spec))
    name, root = str(paths.home / "job.yaml"), paths.snapshots / "m" / "code"
    provision(job(paths, ["code"]), warehouse)
    monkeypatch.setattr(publishing, "SMALL", ROWS * 10 if is_small else ROWS * 10 - 1)
    assert provision_steps.publish(name, "m", "16MB", paths) == is_small
    assert (current_manifest(root) is not None) == is_small
    publish(job(paths, ["code"]), warehouse, paths.snapshots)
    assert provision_steps.publish(name, "m", "16MB", paths)
    assert current_manifest(root).version == "v000001"
    with pytest.raises(ConfigError, match="memory"):
        provision_steps.publish(name, "m", "3 bananas", paths)


def test_spark_publishes_columns_of_any_name_and_date(spark, warehouse, paths):
    days = [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1582, 10, 10), None]
    times = [
        dt.datetime(1, 1, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(1582, 10, 10, 1),
        None,
    ]
    table = pa.table(
        {
            "a.b`c": ["x", "y", "z", "w"],
            "__bucket": range(4),
            "bucket": range(4),
            "bucket_": range(4),
            "day": days,
            "at": pa.array(times, pa.timestamp("us")),
        }
    )
    pq.write_table(table, paths.home / "m.parquet")
    values_ = values(["a.b`c"])
    values_["master"] |= {"path": str(paths.home / "m.parquet"), "business_key": ["a.b`c"]}
    spec = Job.load(values_)
    provision(spec, warehouse)
    Publish(PublishSettings(job="j"), "m", spec.roles[0].key, paths).run(spark)
    rows = contents(next((paths.snapshots / "m").glob("key-*")))[1]
    assert [{n: r[n] for n in table.column_names} for r in rows] == sorted(
        table.to_pylist(), key=lambda r: r["a.b`c"]
    )


def test_a_table_that_changes_while_it_is_read_is_not_published(
    spark, warehouse, paths, monkeypatch
):
    spec = job(paths, ["id"])
    provision(spec, warehouse)
    app = Publish(PublishSettings(job="j"), "m", spec.roles[0].key, paths)
    pq.write_table(
        MASTER.slice(0, 10).set_column(3, "name", pa.array(["new"] * 10)), paths.home / "m.parquet"
    )
    provision(spec, warehouse)
    with pytest.raises(Exception, match="changed while it was read"):
        app.run(spark)
    assert current_manifest(paths.snapshots / "m" / "id") is None


@pytest.mark.slow
def test_the_app_by_command(warehouse, paths, warehouse_url):
    spec = values(["code"])
    (paths.home / "job.yaml").write_text(yaml.safe_dump(spec))
    environment = os.environ | {
        "SEMISTREAM_HOME": str(paths.home),
        "WAREHOUSE_URL": warehouse_url,
        "PYSPARK_SUBMIT_ARGS": "--master local[1] --driver-memory 600m --conf "
        "spark.ui.enabled=false pyspark-shell",
    }

    def run(*arguments):
        return subprocess.run(
            [sys.executable, APP, *arguments],
            env=environment,
            cwd=paths.home,
            capture_output=True,
            text=True,
        )

    unprovisioned = run("--job", "job.yaml")
    assert unprovisioned.returncode == 2 and "semistream provision" in unprovisioned.stderr
    assert run("--job", "job.yaml", "--no-such-flag").returncode == 2
    provision(job(paths, ["code"]), warehouse)
    first = run("--job", "job.yaml")
    assert first.returncode == 0, first.stderr
    assert (
        f"Published m v000001: {ROWS - 60:,} tuples in 64 buckets, 60 without a key" in first.stdout
    )
    assert "nothing to publish" in run("--job", "job.yaml").stdout
