"""The driver outlives Airflow, drains when it is stopped, and goes on from its checkpoint when it
was killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, inspect

from airflow_server import wait_until
from semistream.errors import ConfigError
from semistream.job import Dimension
from semistream.pipeline import drivers
from semistream.streaming.status import read_status, request_stop, stop_requested
from semistream.workloads.jobs import JoinedDimension

STAND_IN = """
import sys, time
from pathlib import Path
from semistream.streaming.status import StatusFile, checkpoint_lock, stop_requested
directory, deed = Path(sys.argv[1]), sys.argv[2]
with checkpoint_lock(directory), StatusFile(directory, "x") as status:
    status.update(state="running", rows_read=7)
    if deed == "fail":
        raise ValueError("no luck")
    while not stop_requested(directory):
        time.sleep(0.02)
    status.update(state="stopped")
"""


@pytest.fixture
def start(tmp_path):
    """Launches a stand-in driver that keeps to the status protocol without Spark."""
    launched = []

    def run(deed: str = "wait", owner: str = "me") -> Path:
        launched.append(
            drivers.launch(
                [sys.executable, "-c", STAND_IN, str(tmp_path), deed], tmp_path, owner, {}
            )
        )
        return tmp_path

    yield run
    for record in launched:
        with suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGKILL)


def running(checkpoint: Path) -> bool:
    status = read_status(checkpoint)
    return status is not None and status.state == "running" and drivers.is_locked(checkpoint)


def test_of_several_runs_at_once_one_launches_a_driver(start, tmp_path):
    def run(owner: str) -> bool:
        with drivers.launching(tmp_path):
            if drivers.is_alive(tmp_path):
                return False
            start(owner=owner)
            return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run, "abcd")) == 1


def follow(checkpoint: Path) -> dict:
    from semistream.airflow.operators import DriverTrigger

    async def first() -> dict:
        async for event in DriverTrigger(str(checkpoint), poll=0.05).run():
            return event.payload
        raise AssertionError("no event")

    return asyncio.run(asyncio.wait_for(first(), 60))


def test_driver_has_a_session_of_its_own(start):
    checkpoint = start()
    wait_until(lambda: running(checkpoint), "the driver runs")
    record = drivers.last_launch(checkpoint)
    assert os.getsid(record.pid) == record.pid != os.getsid(0)
    assert drivers.is_alive(checkpoint) and drivers.ending(checkpoint) is None


def test_trigger_tells_of_a_drained_end(start, airflow_plugins):
    checkpoint = start()
    wait_until(lambda: running(checkpoint), "the driver runs")
    request_stop(checkpoint)
    assert follow(checkpoint) == {"checkpoint": str(checkpoint), "state": "stopped", "why": ""}


def test_trigger_tells_of_a_failure(start, airflow_plugins):
    event = follow(start("fail"))
    assert event["state"] == "failed" and "no luck" in event["why"]
    assert "no luck" in drivers.log_tail(Path(event["checkpoint"]))


def test_trigger_tells_of_a_kill(start, airflow_plugins):
    checkpoint = start()
    wait_until(lambda: running(checkpoint), "the driver runs")
    os.kill(drivers.last_launch(checkpoint).pid, signal.SIGKILL)
    assert follow(checkpoint) == {
        "checkpoint": str(checkpoint),
        "state": "failed",
        "why": "was killed while running",
    }


def test_trigger_tells_of_a_driver_that_never_spoke(tmp_path, airflow_plugins):
    drivers.launch(["false"], tmp_path, "me", {})
    assert follow(tmp_path)["why"] == "ended before its first sign of life"


def test_status_of_an_earlier_run_is_not_taken_for_this_one(start, tmp_path, airflow_plugins):
    checkpoint = start()
    wait_until(lambda: running(checkpoint), "the driver runs")
    request_stop(checkpoint)
    assert follow(checkpoint)["state"] == "stopped"
    past = time.time() - 3600
    status = (tmp_path / "status.json").read_text()
    (tmp_path / "status.json").write_text(
        status.replace(status.split('"heartbeat": "')[1][:10], "2020-01-01")
    )
    assert past < drivers.launch(["false"], tmp_path, "me", {}).at
    assert follow(tmp_path) == {
        "checkpoint": str(tmp_path),
        "state": "failed",
        "why": "ended before its first sign of life",
    }


def test_killing_the_task_requests_a_drain(start, airflow_plugins):
    from semistream.airflow.operators import DriverTrigger

    checkpoint = start()
    wait_until(lambda: running(checkpoint), "the driver runs")
    asyncio.run(DriverTrigger(str(checkpoint)).on_kill())
    assert follow(checkpoint)["state"] == "stopped"


def test_trigger_survives_serialization(airflow_plugins):
    from airflow.sdk._shared.module_loading import import_string

    from semistream.airflow.operators import DriverTrigger

    name, arguments = DriverTrigger("/c", poll=2.0).serialize()
    assert import_string(name) is DriverTrigger
    assert DriverTrigger(**arguments).serialize() == (name, arguments)


def test_old_stop_request_is_forgotten_by_a_new_owner_only(tmp_path):
    request_stop(tmp_path)
    drivers.launch(["true"], tmp_path, "first", {})
    assert not stop_requested(tmp_path)
    request_stop(tmp_path)
    drivers.launch(["true"], tmp_path, "first", {})
    assert stop_requested(tmp_path)


def test_driver_elsewhere_is_alive_while_it_was_heard_of_lately(tmp_path, monkeypatch):
    drivers.launch(["true"], tmp_path, "me", {})
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    assert drivers.is_alive(tmp_path)
    monkeypatch.setattr(drivers, "SILENCE", 0.0)
    assert not drivers.is_alive(tmp_path) and drivers.is_alive(tmp_path, heartbeat=time.time() + 5)


@pytest.mark.parametrize("in_process", [True, False])
def test_only_what_one_process_does_not_publish_is_submitted(
    airflow_plugins, monkeypatch, in_process
):
    from semistream.airflow.operators import ProvisionOperator, table_asset
    from semistream.pipeline import provision_steps

    asked, submitted, events = [], [], []
    joined = JoinedDimension(Dimension(name="product"), (), ())
    monkeypatch.setattr(provision_steps, "_joined", lambda *_: joined)
    monkeypatch.setattr(provision_steps, "provision", lambda *_: {"read": 3})
    monkeypatch.setattr(
        provision_steps, "publish", lambda *given: asked.append(given[:-1]) or in_process
    )
    monkeypatch.setattr(provision_steps, "published", lambda *_: {"tuples": 3})
    monkeypatch.setattr(
        ProvisionOperator, "submit", lambda self: submitted.append(self.application_args)
    )
    operator = ProvisionOperator(
        task_id="x",
        job="sales",
        dimension="product",
        memory="16MB",
        application="x.py",
        conn_id="spark_default",
    )
    event = SimpleNamespace(add=lambda asset, extra: events.append((asset, extra)))
    operator.execute({"outlet_events": {operator.outlets[0]: event}})
    assert events == [(table_asset("dim_product"), {"read": 3, "tuples": 3})]
    assert asked == [("sales", "product", "16MB")]
    arguments = ["--job", "sales", "--dimension", "product", "--memory", "16MB"]
    assert submitted == ([] if in_process else [arguments])


def test_missing_spark_connection_is_an_error_not_yarn(airflow_plugins, monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    from semistream.airflow.operators import SparkAppOperator

    with pytest.raises(AirflowFailException, match="no Airflow connection 'nowhere'"):
        SparkAppOperator(task_id="x", application="x.py", conn_id="nowhere").use_connections()


def test_warehouse_credentials_come_from_a_connection_and_stay_out_of_the_command(
    airflow_plugins, monkeypatch
):
    from semistream.airflow.operators import SparkAppOperator

    monkeypatch.delenv("WAREHOUSE_URL", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.setenv(
        "AIRFLOW_CONN_WAREHOUSE",
        json.dumps(
            {
                "conn_type": "mysql",
                "host": "db",
                "login": "u",
                "password": "hush/hush",
                "schema": "dw",
            }
        ),
    )
    operator = SparkAppOperator(task_id="x", application="x.py")
    operator.use_connections()
    assert operator.env_vars == {
        "WAREHOUSE_URL": "mysql+pymysql://u:hush%2Fhush@db/dw",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = operator.command()
    assert "local[2]" in command and not any(
        "hush%2Fhush" in a or "hush/hush" in a for a in command
    )


@pytest.mark.parametrize(
    ("spark", "master"),
    [
        ({"conn_type": "spark", "host": "yarn"}, "yarn"),
        ({"conn_type": "yarn"}, "yarn"),
        ({"conn_type": "spark", "host": "spark://one:7077,two:7077"}, "spark://one:7077,two:7077"),
        ({"conn_type": "spark", "host": "host", "port": 7077}, "spark://host:7077"),
        (
            {"conn_type": "spark", "host": "k8s://https://host", "port": 6443},
            "k8s://https://host:6443",
        ),
        ({"conn_type": "k8s", "host": "host"}, "k8s://host"),
    ],
)
def test_a_connection_to_spark_names_the_master(airflow_plugins, monkeypatch, spark, master):
    from semistream.airflow.operators import SparkAppOperator

    extra = {"queue": "nightly", "namespace": "etl"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark | {"extra": extra}))
    operator = SparkAppOperator(task_id="x", application="x.py", driver_memory="2g", name="sales")
    operator.use_connections()
    binary, *line = operator.command()
    assert Path(binary).name == "spark-submit"
    assert line == [
        *("--master", master, "--deploy-mode", "client", "--name", "sales", "--queue", "nightly"),
        *("--conf", "spark.kubernetes.namespace=etl", "--conf", "spark.driver.memory=2g", "x.py"),
    ]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"deploy-mode": "cluster"}, "set deploy-mode to client"),
        ({"keytab": "c2VjcmV0"}, "spark.kerberos.keytab, a path"),
    ],
)
def test_what_a_connection_to_spark_cannot_have_is_refused(
    airflow_plugins, monkeypatch, extra, words
):
    from airflow.sdk.exceptions import AirflowFailException

    from semistream.airflow.operators import SparkAppOperator

    spark = {"conn_type": "spark", "host": "local[2]", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    with pytest.raises(AirflowFailException, match=words) as e:
        SparkAppOperator(task_id="x", application="x.py").use_connections()
    assert "c2VjcmV0" not in str(e.value)


def test_a_connection_of_the_type_semistream_gives_home_warehouse_and_master(
    airflow_plugins, monkeypatch, tmp_path
):
    from semistream.airflow import SparkAppOperator

    given = {"home": str(tmp_path), "warehouse": "mysql+pymysql://u@db/dw"}
    connection = {"conn_type": "semistream", "password": "hush/hush"}
    monkeypatch.setenv("WAREHOUSE_URL", "sqlite:///other.db")
    monkeypatch.setenv("SEMISTREAM_HOME", "other")
    monkeypatch.setenv(
        "AIRFLOW_CONN_EAST",
        json.dumps(connection | {"extra": given | {"spark_master": "spark://host:7077"}}),
    )
    operator = SparkAppOperator(task_id="x", application="x.py", semistream_conn_id="east")
    operator.use_connections()
    assert operator.env_vars == {
        "SEMISTREAM_HOME": str(tmp_path),
        "WAREHOUSE_URL": "mysql+pymysql://u:hush%2Fhush@db/dw",
    }
    line = operator.command()
    assert "spark://host:7077" in line and not any("hush%2Fhush" in part for part in line)
    here = operator.paths()
    assert (here.home, here.warehouse_url) == (tmp_path, "mysql+pymysql://u:hush%2Fhush@db/dw")

    monkeypatch.setenv(
        "AIRFLOW_CONN_EAST", json.dumps(connection | {"extra": {"warehouse": "hush/hush:nonsense"}})
    )
    with pytest.raises(ConfigError, match="must be a URL as SQLAlchemy has it") as e:
        operator.paths()
    assert "hush/hush" not in str(e.value)


def test_a_tested_connection_leaves_the_environment_as_it_is(monkeypatch, tmp_path):
    from semistream.airflow.hook import SemistreamHook

    monkeypatch.setenv("SEMISTREAM_HOME", "other")
    monkeypatch.setenv("WAREHOUSE_URL", "sqlite:///other.db")
    given = {"home": str(tmp_path), "warehouse": f"sqlite:///{tmp_path / 'dw.db'}"}
    monkeypatch.setenv("AIRFLOW_CONN_EAST", json.dumps({"conn_type": "semistream", "extra": given}))
    assert SemistreamHook("east").test_connection() == (
        True,
        f"The warehouse is {given['warehouse']}",
    )
    assert (os.environ["SEMISTREAM_HOME"], os.environ["WAREHOUSE_URL"]) == (
        "other",
        "sqlite:///other.db",
    )
    assert inspect(create_engine(given["warehouse"])).get_table_names() == []
    given["warehouse"] = "mysql+pymysql://u@127.0.0.1:1/dw"
    monkeypatch.setenv("AIRFLOW_CONN_EAST", json.dumps({"conn_type": "semistream", "extra": given}))
    works, why = SemistreamHook("east").test_connection()
    assert not works and "Can't connect" in why


def test_an_app_that_fails_fails_its_task_and_one_that_is_killed_ends(
    airflow_plugins, monkeypatch, tmp_path
):
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from semistream.airflow import SparkAppOperator

    def submit(code: str) -> SparkAppOperator:
        operator = SparkAppOperator(task_id="x", application="x.py")
        monkeypatch.setattr(operator, "command", lambda: [sys.executable, "-c", code])
        return operator

    submit("print('done')").submit()
    for code, kind in ((1, AirflowException), (2, AirflowFailException)):
        with pytest.raises(AirflowException, match=f"exit code {code}:\nno such table") as e:
            submit(f"import sys; print('no such table'); sys.exit({code})").submit()
        assert e.type is kind
    operator = submit("import time; print('up', flush=True); time.sleep(60)")
    monkeypatch.setattr(operator.log, "info", lambda *_: operator.on_kill())
    with pytest.raises(AirflowException, match="exit code -15"):
        operator.submit()


def test_a_cluster_is_to_reach_the_driver(airflow_plugins, monkeypatch):
    from semistream.airflow.operators import SparkAppOperator

    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    spark = {"conn_type": "spark", "host": "spark://host:7077", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    operator = SparkAppOperator(task_id="x", application="x.py")
    operator.use_connections()
    assert "SPARK_LOCAL_IP" not in operator.env_vars
