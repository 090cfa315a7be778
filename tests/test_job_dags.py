"""A job's YAML file as a DAG: schedule, errors by file and line, retries, notifications."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy.exc import OperationalError

from loads import SmallJob
from semistream import workloads
from semistream.durable import write_checked
from semistream.errors import ConfigError, TooManyRows, WarehouseAway
from semistream.master.manifest import encode_schema
from semistream.paths import Paths
from semistream.pipeline import drivers, provision_steps
from semistream.streaming.position import PROGRESS
from semistream.streaming.stream_schemas import SCHEMAS
from semistream.workloads import load_job
from semistream.yaml_lines import line_of

SCHEDULED = """schedule: '@hourly'
timezone: Europe/Vienna
owner: shop
tags: [daily]
description: |
  Orders, with products.

  More of it.
deadline: 16:30
settings: {memory: 8MB, min_age: 2}
notify:
  - {class: to_file.ToFile, path: told, text: "{{ semistream.text }}"}
"""
pytestmark = pytest.mark.usefixtures("airflow_environment")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home, with a scheduled job."""
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    monkeypatch.delenv("SEMISTREAM_JOBS", raising=False)
    monkeypatch.setenv("WAREHOUSE_URL", f"sqlite:///{tmp_path / 'warehouse.db'}")
    job = SmallJob(tmp_path / "jobs")
    job.file.write_text(job.file.read_text() + SCHEDULED)
    return tmp_path


def changed(home: Path, old: str, new: str, name: str = "small") -> Path:
    """The job's file with a text in the place of another one."""
    text = (home / "jobs" / "small.yaml").read_text()
    assert old in text
    file = home / "jobs" / f"{name}.yaml"
    file.write_text(text.replace(old, new))
    return file


def test_a_file_is_parsed_in_milliseconds_without_spark_or_arrow(home):
    code = f"""
import sys, time, warnings
warnings.simplefilter("ignore")
from semistream.airflow.job_dags import job_dag
seconds = []
for _ in range(3):
    began = time.process_time()
    dag = job_dag({str(home / "jobs" / "small.yaml")!r})
    seconds.append(time.process_time() - began)
assert dag.dag_id == "load_small" and min(seconds) < 0.2, seconds
heavy = {{"pyspark", "pyarrow", "numpy", "numba", "pandas", "great_expectations"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)])
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": path})


def test_a_job_is_a_dag_with_its_schedule_owner_tags_docs_and_form(home):
    from semistream.airflow.job_dags import job_dag

    dag = job_dag(home / "jobs" / "small.yaml")
    assert (dag.dag_id, dag.description) == ("load_small", "Orders, with products.")
    assert "More of it." in dag.doc_md and dag.tags == {"semistream", "daily"}
    assert (dag.schedule.expression, str(dag.schedule.timezone)) == ("0 * * * *", "Europe/Vienna")
    assert {task.owner for task in dag.tasks} == {"shop"}
    form = dag.params.dump()
    assert form["memory"] == "8MB" and form["min_age"] == 2 and form["trigger"] == "availableNow"
    assert "job" not in form and "app" in form
    assert dag.get_task("verify").upstream_task_ids == {"load"}
    assert dag.get_task("load").upstream_task_ids == {"changed", "provision"}
    assert dag.get_task("verify").on_success_callback
    (alert,) = dag.deadline
    assert (alert.reference.at, alert.reference.timezone) == ("16:30", "Europe/Vienna")


def test_a_group_in_a_dag_of_one_s_own_has_the_job_s_settings(home):
    from airflow.sdk import DAG, task

    from semistream.airflow import SemistreamTaskGroup

    @task
    def report(): ...

    with DAG("nightly", schedule=None) as dag:
        SemistreamTaskGroup("small.yaml", settings={"partitions": 3}) >> report()
    assert dag.get_task("report").upstream_task_ids == {"small.verify"}
    load = dag.get_task("small.load")
    assert load.values({"params": {"memory": "1MB"}}) == {
        "memory": "8MB", "min_age": 2, "partitions": 3,
    }  # fmt: skip
    assert load.owner == "shop" and load.on_failure_callback
    with DAG("wrong", schedule=None), pytest.raises(ConfigError, match=r"settings\.memori"):
        SemistreamTaskGroup("small.yaml", settings={"memori": 1})


def test_a_connection_holds_for_all_tasks_of_a_group(home, tmp_path_factory, monkeypatch):
    """Also where its home has no job of that name."""
    from airflow.sdk import DAG

    from semistream.airflow import SemistreamTaskGroup

    east = tmp_path_factory.mktemp("east")
    given = {"home": str(east), "warehouse": f"sqlite:///{east / 'east.db'}"}
    connection = {"conn_type": "semistream", "extra": given | {"spark_master": "local[3]"}}
    monkeypatch.setenv("AIRFLOW_CONN_EAST", json.dumps(connection))
    with DAG("nightly", schedule=None) as dag:
        SemistreamTaskGroup("small", semistream_conn_id="east", prefix_group_id=False)
    changed, load = dag.get_task("changed").python_callable, dag.get_task("load")
    assert changed() == ["product"]
    provision_steps.provision_changed(load.job, "product", "16MB", load.paths(), lambda: None)
    assert changed() == []
    assert (east / "east.db").exists() and (east / "snapshots").exists()
    assert not (home / "warehouse.db").exists() and not (home / "snapshots").exists()
    load.use_connections()
    assert load._target.master == "local[3]"
    assert load.env_vars["SEMISTREAM_HOME"] == str(east)
    assert load.paths().checkpoints == east / "checkpoints"
    assert load_job(load.job, load.paths()).stream.path == str(home / "jobs" / "orders")
    of_task = (dag.get_task("provision").partial_kwargs, vars(load), vars(dag.get_task("verify")))
    assert {of["semistream_conn_id"] for of in of_task} == {"east"}
    assert {of["job"] for of in of_task} == {load.job}


def test_a_connection_holds_for_the_tasks_of_two_streams(home, tmp_path_factory, monkeypatch):
    from airflow.sdk import DAG

    from semistream.airflow import SemistreamTaskGroup

    east, prepared = tmp_path_factory.mktemp("east"), []
    monkeypatch.setenv(
        "AIRFLOW_CONN_EAST", json.dumps({"conn_type": "semistream", "extra": {"home": str(east)}})
    )
    monkeypatch.setattr(
        workloads, "prepare_target", lambda job, paths: prepared.append((job, paths.home))
    )
    with DAG("nightly", schedule=None) as dag:
        SemistreamTaskGroup("auctions", semistream_conn_id="east", prefix_group_id=False)
    dag.get_task("prepare").python_callable()
    assert prepared == [("auctions", east)]
    assert dag.get_task("load").paths().home == east


WRONG = [
    ("format: parquet", "formt: parquet", 4, "Did you mean format"),
    ("'@hourly'", "every day", 13, "cron expression"),
    ("'@hourly'", "'@continuos'", 13, "cron expression"),
    ("'@hourly'", "[]", 13, "must name assets"),
    ("format: parquet", "format: kafka", 13, "local directory"),
    ("Europe/Vienna", "Europe/Wien", 14, "time zone"),
    ("16:30", "25:00", 21, "time of day"),
    ("memory: 8MB", "memory: lots", 22, "settings.memory"),
    ("to_file.ToFile", "nowhere.ToFile", 24, "Install the provider"),
    ("tags: [daily]", "tags: [daily", 17, "YAML"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), WRONG, ids=[w[1] for w in WRONG])
def test_a_wrong_file_is_an_error_with_file_line_and_remedy(home, old, new, line, words):
    from semistream.airflow.job_dags import JobError, job_dag

    if "kafka" in new:
        changed(home, "'@hourly'", "on_files")
    file = changed(home, old, new)
    with pytest.raises(JobError, match=words) as e:
        job_dag(file)
    assert str(e.value).startswith(f"{file}, line {line}: ")


def test_a_deadline_needs_those_who_are_notified(home):
    from semistream.airflow.job_dags import JobError, job_dag

    file = home / "jobs" / "small.yaml"
    file.write_text(file.read_text().partition("notify:")[0])
    with pytest.raises(JobError, match=r"line 21: 'deadline' needs notify"):
        job_dag(file)


def test_each_file_of_the_bundle_is_a_dag_or_an_import_error_of_its_own(home, monkeypatch):
    """A file without a schedule is neither; what is changed or gone is so in the bundle too."""
    from airflow.dag_processing.dagbag import DagBag

    from semistream.airflow import JobsBundle

    def parsed() -> tuple[set[str], dict[str, str]]:
        bundle.refresh()
        bag = DagBag(str(bundle.path), bundle_path=bundle.path, bundle_name="jobs")
        return set(bag.dags), bag.import_errors

    bundle = JobsBundle(name="jobs")
    bundle.initialize()
    changed(home, "name: small", "name: by_hand", "by_hand")
    changed(home, "schedule: '@hourly'\n", "", "unscheduled")
    broken = changed(home, "format: parquet", "formt: parquet\n  pth: there", "broken")
    dags, errors = parsed()
    assert dags == {"load_small", "load_by_hand"} and errors.keys() == {"broken.py"}
    assert f"{broken}, line 4: 'stream.formt' is not a setting" in errors["broken.py"]
    assert f"{broken}, line 5: 'stream.pth' is not a setting" in errors["broken.py"]
    (home / "jobs" / "by_hand.yaml").unlink()
    changed(home, "name: small", "name: mended", "broken")
    assert parsed() == ({"load_small", "load_mended"}, {})
    monkeypatch.setenv("SEMISTREAM_JOBS", str((home / "jobs").rename(home / "elsewhere")))
    assert parsed() == ({"load_small", "load_mended"}, {})


def test_the_package_s_own_dags_are_a_bundle():
    from semistream.airflow import DagsBundle

    assert {"verify_completeness.py", "replay_unmatched.py"} <= {
        file.name for file in DagsBundle(name="own").path.iterdir()
    }


def test_a_job_is_scheduled_by_files_or_by_assets(home):
    from airflow.sdk import AssetAll, AssetAny

    from semistream.airflow.job_dags import schedule_of

    def scheduled(schedule):
        job = load_job(home / "jobs" / "small.yaml", Paths.from_environment())
        return schedule_of(job.model_copy(update={"schedule": schedule}))

    assert scheduled(None) is scheduled("none") is None and scheduled("@once") == "@once"
    both = scheduled(("dim_product", "s3://bucket/key"))
    assert isinstance(both, AssetAll)
    assert [a.uri for a in both.objects] == [
        "semistream://warehouse/dim_product",
        "s3://bucket/key",
    ]
    assert isinstance(scheduled({"any": ("dim_product",)}), AssetAny)
    (asset,) = scheduled("on_files").objects
    trigger = asset.watchers[0].trigger
    assert (trigger.path, trigger.min_age) == (str(home / "jobs" / "orders"), 2.0)


class State(dict):
    """The state of an asset, as a triggerer gives it."""

    async def aget(self, key):
        return self.get(key)

    async def aset(self, key, value):
        self[key] = value


def test_files_that_arrive_are_an_event_once_they_rest_and_once_only(tmp_path):
    from airflow.sdk._shared.module_loading import import_string

    from semistream.airflow.files_trigger import FilesTrigger

    state = State()

    def trigger():
        name, arguments = FilesTrigger(str(tmp_path), "csv", min_age=100, poll=0.01).serialize()
        found = import_string(name)(**arguments)
        found.asset_state_store = state
        return found.run()

    async def event(events):
        try:
            return (await asyncio.wait_for(anext(events), 0.5)).payload
        except TimeoutError:
            return None

    def put(name: str, age: float = 200) -> None:
        (tmp_path / name).write_text("a\n")
        past = datetime.now().timestamp() - age
        os.utime(tmp_path / name, (past, past))

    async def follow():
        put("a.csv"), put("young.csv", 0), put("_hidden.csv")
        first = trigger()
        said = [await event(first)]
        put("b.csv")
        said.append(await event(first))
        said += [await event(first), await event(trigger())]  # no more; started again, none
        put("young.csv")
        return [*said, await event(trigger())]

    a, b, *nothing, again = asyncio.run(follow())
    assert a == {"files": 1, "first": [str(tmp_path / "a.csv")]}
    assert b == {"files": 1, "first": [str(tmp_path / "b.csv")]}
    assert nothing == [None, None] and str(tmp_path / "young.csv") in again["first"]
    assert (tmp_path / "a.csv").exists()


AWAY = OperationalError("SELECT 1", {}, Exception())
AWAY.connection_invalidated = True


@pytest.mark.parametrize(
    ("error", "attempt", "action", "delay"),
    [
        (ConfigError("memory", "must be positive", 0, ""), 1, "fail", None),
        (TooManyRows(1, 2, 0, 0.9), 1, "fail", None),
        (WarehouseAway(), 14, "retry", timedelta(minutes=5)),
        (AWAY, 1, "retry", timedelta(minutes=5)),
        (OSError(), 3, "default", None),
        (OSError(), 4, "fail", None),
    ],
)
def test_what_is_tried_again(error, attempt, action, delay):
    from semistream.airflow.retries import RETRIES

    decision = RETRIES["retry_policy"].evaluate(error, attempt, RETRIES["retries"])
    assert (decision.action.value, decision.retry_delay) == (action, delay)
    assert RETRIES["retries"] * timedelta(minutes=5) > timedelta(hours=1)


@pytest.mark.parametrize(("skip", "error"), [(True, "Skip"), (False, "Fail")])
def test_a_run_that_meets_another_one_s_load_is_skipped_or_fails(tmp_path, skip, error):
    from airflow.sdk import exceptions

    from semistream.airflow import LoadOperator

    drivers.launch(["true"], tmp_path, "another run", {})
    with pytest.raises(getattr(exceptions, f"Airflow{error}Exception"), match="runs already"):
        LoadOperator(task_id="load", job="small").reattach(tmp_path, "this run", skip=skip)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-06-01T03:00", "2026-06-01T04:00"),  # 5:00 there
        ("2026-06-01T04:00", "2026-06-02T04:00"),
        ("2026-10-24T05:00", "2026-10-25T05:00"),  # the clock was put back meanwhile
    ],
)
def test_a_deadline_is_the_next_time_of_day_of_its_zone(now, expected):
    from semistream.airflow.deadlines import next_time

    found = next_time("06:00", "Europe/Vienna", datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_the_scheduler_evaluates_a_deadline(home):
    from airflow.serialization.decoders import decode_deadline_reference
    from airflow.serialization.encoders import encode_deadline_reference

    from semistream.airflow.deadlines import TimeOfDay, next_time

    encoded = encode_deadline_reference(TimeOfDay("06:00", "Europe/Vienna"))
    found = decode_deadline_reference(encoded).evaluate_with(session=None, interval=timedelta(0))
    assert found == next_time("06:00", "Europe/Vienna", datetime.now(UTC))


def test_those_who_are_named_are_told_of_a_missed_deadline(home, monkeypatch):
    from semistream.airflow.job_dags import job_dag
    from semistream.airflow.notifying import notify_of_deadline

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example")
    monkeypatch.chdir(home)
    (alert,) = job_dag(home / "jobs" / "small.yaml").deadline
    run = {"dag_id": "load_small", "dag_run_id": "manual__1"}
    asyncio.run(notify_of_deadline(**alert.callback.kwargs, context={"dag_run": run}))
    said = (home / "told").read_text()
    assert "Job: small\nOwner: shop\nRun: manual__1\n" in said
    assert "not complete at 16:30 Europe/Vienna" in said
    assert "Proven until now: NO: nothing is loaded" in said
    assert "https://airflow.example/dags/load_small/runs/manual__1" in said


def test_those_who_are_named_are_told_of_a_warning_of_the_daily_verification(home, monkeypatch):
    """And of one that does not warn, nothing."""
    from semistream.airflow import VerifyOperator
    from semistream.airflow.notifying import notify_of_warning

    monkeypatch.chdir(home)
    verify = VerifyOperator(task_id="verify", app="small")
    context = {"task": verify, "ti": verify, "run_id": "scheduled__1"}
    verify.result = {"warnings": [], "text": "small: all 24 checks hold."}
    notify_of_warning(context)
    assert not (home / "told").exists()
    verify.result |= {"warnings": ["volume"]}
    notify_of_warning(context)
    said = (home / "told").read_text()
    assert "Job: small\nOwner: shop\nRun: scheduled__1\nsmall: all 24 checks hold.\n" in said
    assert "Nothing has failed" in said


DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["scheduling.md", "installing.md"])
def test_the_blocks_of_a_page_are_dags_and_settings_of_airflow(home, page):
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk._shared.module_loading import import_string

    from semistream.airflow.job_dags import job_dag

    def blocks(page: str, kind: str) -> list[str]:
        text = (DOCS / page).read_text()
        return re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S)

    (job,) = blocks("scheduling.md", "yaml")
    (file := home / "jobs" / "sales.yaml").write_text(job)
    assert job_dag(file).dag_id == "load_sales"
    for block in blocks(page, "ini"):
        config = configparser.ConfigParser()
        config.read_string(block)
        for bundle in json.loads(config["dag_processor"]["dag_bundle_config_list"]):
            assert import_string(bundle["classpath"])
    dags = set[str]()
    for number, block in enumerate(blocks(page, "python")):
        (file := home / f"block{number}.py").write_text(block)
        bag = DagBag(str(file), bundle_path=home, bundle_name="docs")
        assert bag.import_errors == {}
        dags |= bag.dags.keys()
    assert dags == {"nightly"}


def test_dimensions_are_provisioned_when_their_source_has_changed(home):
    paths, job = Paths.from_environment(), str(home / "jobs" / "small.yaml")

    def to_provision() -> list[str]:
        found = provision_steps.changed_dimensions(job, paths)
        for name in found:
            provision_steps.provision_changed(job, name, "16MB", paths, lambda: None)
        return found

    assert to_provision() == ["product"] and to_provision() == []
    with open(home / "jobs" / "products.csv", "a") as file:
        file.write("q1,Another,1.50\n")
    assert to_provision() == ["product"] and to_provision() == []
    changed(home, "path: products.csv", "path: products.csv, max_rejected: 0.5")
    assert to_provision() == ["product"]
    (home / "warehouse.db").unlink()
    assert to_provision() == ["product"] and to_provision() == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("format: parquet", "format: parqet", "Did you mean parquet"),
        ("id: [order_id]", "id: [oder_id]", "Did you mean order_id"),
        ("on: {sku: sku}", "on: {ksu: sku}", "must name a column of the stream"),
        ("on: {sku: sku}", "on: {n: sku}", "one type"),
    ],
)
def test_nothing_is_provisioned_if_the_stream_does_not_fit(home, old, new, words):
    from semistream.airflow import ProvisionOperator

    job = str(changed(home, old, new))
    with pytest.raises(ConfigError, match=words):
        ProvisionOperator(task_id="provision", job=job, dimension="product").execute({})
    with closing(sqlite3.connect(home / "warehouse.db")) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    assert "dim_product" not in tables and not (home / "snapshots").exists()


def test_a_file_that_still_grows_does_not_keep_dimensions_from_being_provisioned(home):
    """Once the stream's columns are known from a load."""
    job = changed(home, "  columns: order_id BIGINT, sku STRING, n INT\n", "")
    paths = Paths.from_environment()
    (home / "jobs" / "orders" / "half.parquet").write_bytes(b"PAR1")
    arguments = (str(job), "product", "16MB", paths, lambda: None)
    with pytest.raises(ConfigError, match="must hold parquet files that can be read"):
        provision_steps.provision_changed(*arguments)
    checkpoint = paths.checkpoints / "small"
    checkpoint.mkdir(parents=True)
    columns = encode_schema(pa.schema([("order_id", pa.int64()), ("sku", pa.string())]))
    write_checked(checkpoint / SCHEMAS, {"streams": [columns]})
    (checkpoint / PROGRESS).touch()
    assert provision_steps.provision_changed(*arguments)["inserted"] == 300


def test_the_ledger_does_not_keep_who_is_notified(home):
    job = load_job(home / "jobs" / "small.yaml", Paths.from_environment())
    assert job.notify and "notify" not in job.to_ledger() and "schedule" not in job.to_ledger()


@pytest.mark.parametrize(
    ("parameter", "line"), [("b.c", 3), ("b.none", 2), ("d.1.e", 6), ("elsewhere", 1), ("b", 2)]
)
def test_the_line_of_a_setting(parameter, line):
    assert line_of("a: 1\nb:\n  c: 2\nd:\n  - {e: 3}\n  - {e: 4}\n", parameter) == line


def test_a_setting_that_is_given_twice_is_named_with_both_lines(home):
    from semistream.airflow.job_dags import JobError, job_dag

    wrong = changed(home, "fact_table:", "name: other\nfact_table:")
    lines = wrong.read_text().splitlines()
    first, again = (i for i, line in enumerate(lines, 1) if line.startswith("name:"))
    with pytest.raises(
        JobError, match=f"line {again}:.*name is given twice, first in line {first}"
    ):
        job_dag(wrong)
