"""The app as a process: command line, stop, what it leaves, and a standalone cluster."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

import faults
from loads import SmallLoad, small_load, until
from semistream.errors import ConfigError
from semistream.job import StreamSpec
from semistream.scratch import PREFIX, scratch_directory
from semistream.streaming.app import App
from semistream.streaming.commit import Commits
from semistream.streaming.settings import LoadSettings
from semistream.streaming.sources.file_reader import FEW_FILES
from semistream.streaming.sources.registry import find_source
from semistream.streaming.spark_master import is_local, local_environment
from semistream.streaming.status import (
    StatusFile,
    checkpoint_lock,
    read_status,
    request_stop,
    stop_requested,
)
from star_loads import star_load


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A standalone master and one worker of two cores, by the commands of docker-compose.yaml,
    whose host names and ports are replaced by local ones; gives the master's URL."""
    place = tmp_path_factory.mktemp("cluster")
    services = yaml.safe_load((faults.ROOT / "docker-compose.yaml").read_text())["services"]
    ports = dict(zip(("7077", "8081", "8082"), map(str, free_ports(3)), strict=True))

    def local(name: str) -> list[str]:
        command = [
            re.sub("7077|8081|8082", lambda m: ports[m[0]], a) for a in services[name]["command"]
        ]
        return [
            a.replace("spark-master", "127.0.0.1").replace("/tmp/spark-work", str(place))
            for a in command
        ]

    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARK_LOCAL_DIRS": str(place / "scratch"),
        "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),  # an archive of classes
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_CORES": "2",
        "SPARK_WORKER_MEMORY": "1g",
    }
    log = place / "cluster.log"
    with open(log, "ab") as out:
        processes = [
            subprocess.Popen(
                local(name), stdout=out, stderr=out, env=environment, start_new_session=True
            )
            for name in ("spark-master", "spark-worker")
        ]
    try:
        until(
            lambda: alive_workers(ports["8081"]) == 1,
            90,
            "registration of the worker",
            lambda: check(processes, log),
        )
        yield f"spark://127.0.0.1:{ports['7077']}"
    finally:
        for process in reversed(processes):
            for pid in [*faults.descendants(process.pid), process.pid]:
                os.kill(pid, signal.SIGTERM)
            process.wait(30)


@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("make", [small_load, star_load])
def test_standalone_cluster_and_sigterm_to_the_driver(cluster, tmp_path, make_app, make):
    """spark-submit, as from Airflow; SIGTERM to the driver's Python process drains, and
    spark-submit ends with 0."""
    load = make(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    for rows in (2000, 1500):
        load.add_file(rows)
    app = make_app(load, trigger="100 milliseconds")
    app.submit("--master", cluster, *faults.CONF, "--conf", "spark.executor.memory=512m")
    pid = app.read(3500).pid
    assert pid != app.process.pid and "semi_stream_join.py" in faults.command_of(pid)
    os.kill(pid, signal.SIGTERM)
    assert app.end() == 0, app.output()
    assert read_status(app.checkpoint).state == "stopped"
    summary = json.loads((app.checkpoint / "summary.json").read_text())
    assert summary["rows_read"] == 3500 and summary["waiting"] == 0
    assert "rows read" in app.output() and "peak memory" in app.output()
    load.check()


@pytest.mark.parametrize(
    ("number", "group", "address"),
    [(signal.SIGTERM, False, ""), (signal.SIGTERM, True, "127.0.0.1"), (signal.SIGINT, True, "")],
)
def test_sigterm_and_ctrl_c_to_spark_submit_or_its_process_group_drain_and_end_with_0(
    sqlite_load, make_app, monkeypatch, number, group, address
):
    """Before that, the driver is reached from this machine only: by itself, and with its UI where
    the environment has the address, as Airflow's tasks set it."""
    # a shell lets what runs in the background ignore it, and what that starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if address:
        monkeypatch.setenv("SPARK_LOCAL_IP", address)
    sqlite_load.add_file(1000)
    for _ in range(FEW_FILES):
        sqlite_load.add_file(1)
    app = make_app(
        sqlite_load, trigger="100 milliseconds", max_wait=3600, memory="100KB", max_files=0
    )
    app.submit()
    status = app.read(1000 + FEW_FILES)
    assert status.waiting, "nothing is left to be drained"
    assert "max_wait: a tuple waits for its master data for at most 3.6e+03 s" in app.output()
    # tasks that read and tasks that join have the workers that were made ready
    assert len(app.workers()) == 2
    check_libraries(app.workers())
    check_addresses(app, bool(address))
    if group:
        os.killpg(os.getpgid(app.process.pid), number)
    else:
        app.process.send_signal(number)
    assert app.end() == 0, app.output()
    until(lambda: not Path(f"/proc/{status.pid}").exists(), 60, "the driver's end")
    assert read_status(app.checkpoint).state == "stopped", app.output()
    told = app.output(10**6)
    assert "rows read" in told and "Traceback" not in told
    assert "INFO semistream: max_wait: a tuple waits for its master data for at most" in told
    assert "INFO semistream: asked to stop: finishing what waits" in told
    sqlite_load.check()


def check_libraries(pids: Sequence[int]) -> None:
    """PyArrow imports pandas where it is not kept from it, which takes 25 MB."""
    for pid in pids:
        maps = Path(f"/proc/{pid}/maps").read_text()
        loaded = [name for name in ("pyarrow", "pandas") if f"/{name}/" in maps]
        assert loaded == ["pyarrow"], faults.command_of(pid)


def check_addresses(app: faults.App, has_ui: bool) -> None:
    found = faults.listening([app.process.pid, *faults.descendants(app.process.pid)])
    # PySpark's gateway, RPC, block manager
    assert len(found) >= 3 and all(map(faults.is_loopback, found)), found
    ui = [a for a in found if 4040 <= int(a.rpartition(":")[2], 16) < 4060]
    assert bool(ui) == has_ui
    for port in (int(a.rpartition(":")[2], 16) for a in ui):
        properties = spark_properties(f"http://127.0.0.1:{port}/api/v1/applications")
        assert properties["spark.authenticate"] == "true"
        assert "spark.authenticate.secret" not in properties


def test_a_refusal_is_one_line_and_no_stack_of_spark(sqlite_load, make_app):
    sqlite_load.add_file(1000)
    app = make_app(
        sqlite_load,
        source_format="csv",
        source_columns="x INT",
        source_path=str(sqlite_load.stream_directory),
    )
    app.submit()
    assert app.end() == 2
    said = app.output(10**6)
    assert "semi_stream_join.py: 'on' must" in said, said
    assert "\tat org.apache" not in said and "SparkException" not in said, said


def test_a_stop_while_files_rest_is_told_as_no_failure(sqlite_load, make_app):
    """Spark has given a micro-batch that is not to be loaded."""
    sqlite_load.add_file(1000)
    app = make_app(sqlite_load, trigger="100 milliseconds", min_age=3600)
    app.submit()
    status = app.wait(lambda _: "(min_age)" in app.output(), "the micro-batch")
    # PySpark would import it with the first call of the JVM
    assert "pandas/_libs" not in Path(f"/proc/{status.pid}/maps").read_text()
    request_stop(app.checkpoint)
    assert app.end() == 0, app.output()
    told = app.output(10**6)
    assert "asked to stop" in told and "rows read" in told
    assert "Traceback" not in told and " ERROR " not in told and "ERROR:" not in told, told


@pytest.mark.parametrize("module, quiet", [("pyspark.daemon", False), (faults.DAEMON, True)])
def test_a_worker_whose_connection_is_closed_leaves_no_traceback(module, quiet):
    """As at Spark's end, by Spark's protocol."""
    with tempfile.TemporaryDirectory() as sockets:  # their paths must be short
        check_closed_connection(module, quiet, sockets)


def check_closed_connection(module: str, quiet: bool, sockets: str) -> None:
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "SPARK_REUSE_WORKER": "1",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    command = [sys.executable, "-m", module, "pyspark.worker"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment, **pipes) as process:
        (size,) = struct.unpack("!i", process.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(process.stdout.read(size).decode())
            (worker,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        until(lambda: not Path(f"/proc/{worker}").exists(), 30, "the worker's end")
        process.stdin.close()  # which ends the daemon
        told = process.stderr.read().decode()
    assert ("BrokenPipeError" not in told and "Traceback" not in told) == quiet, told


def test_scratch_directories_without_a_living_process_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os; from semistream.scratch import scratch_directory\n"
        "print(scratch_directory(), flush=True); input()"
    )

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            text=True,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        return process, Path(process.stdout.readline().strip())

    alive, kept = start()
    killed, left = start()
    (left / "blockmgr").mkdir()
    with killed:
        killed.kill()
    half_removed = tmp_path / f"{PREFIX}without-lock"
    (half_removed / "v000001").mkdir(parents=True)
    own = scratch_directory()
    assert {path for path in tmp_path.iterdir() if path.name.startswith(PREFIX)} == {kept, own}
    alive.communicate("\n")
    assert not kept.exists() and own.exists()
    shutil.rmtree(own)


def test_what_a_killed_driver_leaves_is_swept(sqlite_load, make_app, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    sqlite_load.add_file(1000)
    app = make_app(sqlite_load, trigger="100 milliseconds")
    app.submit(local_directories=False)
    app.read(1000)
    (left,) = (tmp_path / "tmp").glob("semistream-scratch-*")
    assert any(left.glob("blockmgr-*"))
    processes = [app.process.pid, *faults.descendants(app.process.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none outlives another and tidies up
        for pid in processes:
            os.kill(pid, number)
    app.end()
    (app.checkpoint / "state" / ".half.1").touch()
    (app.checkpoint / ".progress.json.2").touch()
    assert left.exists()
    app.submit(local_directories=False)
    app.wait(lambda status: status.state == "running", "the start")
    assert not left.exists()
    assert not (app.checkpoint / "state" / ".half.1").exists()
    assert not (app.checkpoint / ".progress.json.2").exists()
    request_stop(app.checkpoint)
    assert app.end() == 0, app.output()
    assert not list((tmp_path / "tmp").glob("semistream-scratch-*"))
    sqlite_load.check()


@pytest.mark.parametrize(
    "master, local",
    [
        ("local", True),
        ("local[*,4]", True),
        ("local-cluster[1,1,1024]", False),
        ("spark://localhost:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_on_a_cluster_nothing_is_forced(monkeypatch, master, local):
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert is_local(master) == local and bool(local_environment(master)) == local


def spark_properties(url: str) -> dict[str, str]:
    """Of the driver whose UI that is."""

    def get(url: str):
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)

    return dict(get(f"{url}/{get(url)[0]['id']}/environment")["sparkProperties"])


def test_help_tells_every_setting_and_unknown_flags_are_errors():
    run = subprocess.run(
        [sys.executable, faults.APPS / "semi_stream_join.py", "--help"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0
    for name in LoadSettings.model_fields:
        assert "--" + name.replace("_", "-") in run.stdout
    wrong = subprocess.run(
        [sys.executable, faults.APPS / "semi_stream_join.py", "--job", "tpch", "--memroy", "1MB"],
        capture_output=True,
        text=True,
    )
    assert wrong.returncode == 2 and "--memroy" in wrong.stderr


def test_settings_that_cannot_work_exit_with_2_and_a_second_app_is_refused(sqlite_load, make_app):
    sqlite_load.add_file(10)
    app = make_app(sqlite_load, memory="1KB")
    app.start()
    assert app.end() == 2
    assert "'memory'" in app.output() and "Give more memory" in app.output()
    assert "Traceback" not in app.output()
    assert read_status(app.checkpoint).state == "failed"
    assert "'memory'" in read_status(app.checkpoint).error
    with checkpoint_lock(app.checkpoint):
        app.start()
        assert app.end() == 2
    assert f"in use by another app (pid {os.getpid()} on" in app.output()


@pytest.mark.parametrize("moment", ["its first line", "_pydantic_core", "libarrow"])
@pytest.mark.parametrize("script", ["semi_stream_join", "stream_stream_join", "publish_snapshot"])
def test_an_interrupt_while_modules_are_imported_is_one_line(script, moment, tmp_path):
    job = "tpch_orders" if script == "stream_stream_join" else "tpch"
    process = subprocess.Popen(
        [sys.executable, faults.APPS / f"{script}.py", "--job", job],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SEMISTREAM_HOME": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    at, maps = Path(f"/proc/{process.pid}/status"), Path(f"/proc/{process.pid}/maps")

    def there() -> bool:
        caught = int(at.read_text().split("SigCgt:")[1].split()[0], 16)
        # Python itself has no handler for SIGTERM
        return bool(caught >> (signal.SIGTERM - 1) & 1) and (
            moment == "its first line" or moment in maps.read_text()
        )

    ended = lambda: pytest.fail("it ended") if process.poll() is not None else None
    until(there, 60, moment, ended)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    if moment == "libarrow":  # Java, which starts meanwhile, has lines of its own
        assert "Interrupted; nothing was written.\n" in told and "Traceback" not in told
    else:
        assert told == "Interrupted; nothing was written.\n"


def test_a_stop_while_spark_is_started_ends_the_app_before_it_begins(sqlite_load, make_app):
    sqlite_load.add_file(1000)
    app = make_app(sqlite_load)
    app.start()
    app.wait(lambda status: status.state == "starting", "the start")
    request_stop(app.checkpoint)
    assert app.end() == 0, app.output()
    told = app.output(10**6)
    assert "nothing was begun" in told and "Traceback" not in told and " ERROR " not in told, told
    assert read_status(app.checkpoint).state == "stopped" and not stop_requested(app.checkpoint)
    assert not (app.checkpoint / "query").exists()
    assert json.loads((app.checkpoint / "summary.json").read_text())["rows_read"] == 0
    until(lambda: not faults.descendants(app.process.pid), 30, "the end of the JVM")


def test_a_stop_before_the_first_batch_lets_none_begin(spark, sqlite_load, monkeypatch):
    """One that Spark has given already, or one that it would give."""
    sqlite_load.add_file(1000)
    checkpoint, take_up = sqlite_load.paths.checkpoints / "sales", Commits.take_up

    def stopped(commits):
        request_stop(checkpoint)
        return take_up(commits)

    with monkeypatch.context() as patch:
        patch.setattr(Commits, "take_up", stopped)
        assert sqlite_load.run(spark).rows_read == 0
    begin = App._on_batch

    def given(app, *batch):
        request_stop(checkpoint)
        begin(app, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(App, "_on_batch", given)
        assert sqlite_load.run(spark).rows_read == 0
    assert sqlite_load.run(spark).rows_read == 1000
    sqlite_load.check()


def test_a_job_that_cannot_be_read_is_in_the_status(tmp_path):
    home = {**os.environ, "SEMISTREAM_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, faults.APPS / "semi_stream_join.py", "--job", "nope"],
        capture_output=True,
        text=True,
        env=home,
    )
    assert run.returncode == 2 and "'job' must be" in run.stderr and "Traceback" not in run.stderr
    status = read_status(tmp_path / "checkpoints" / "nope")
    assert status.state == "failed" and "'job' must be" in status.error


@pytest.mark.parametrize(
    "stream, says",
    [
        (
            {"format": "csv", "columns": "id INT, sku STRING", "path": "{home}/gone"},
            "'stream.path' must be a directory that is there. Got '{home}/gone'",
        ),
        (
            {"format": "orc", "path": "{home}/gone"},
            "'stream.path' must be a directory that is there",
        ),
        (
            {"format": "parquet", "columns": "id INT, sku STRING", "path": None},
            "'stream.path' must be given",
        ),
        ({"format": "zipf", "path": None}, "'rows' must be given"),
        (
            {"format": "zipf", "path": None, "options": {"rows": "9", "partitions": "0"}},
            "'partitions' must be a whole number",
        ),
        (
            {"format": "outbox", "path": None, "options": {"table": "gone", "url": "sqlite://"}},
            "'table' must be a table of the database. Got 'gone'",
        ),
    ],
)
def test_a_source_that_is_not_there_is_refused_without_spark(tmp_path, stream, says):
    load = SmallLoad(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.publish()
    path = stream["path"] and stream["path"].format(home=tmp_path)
    job = load.job.model_copy(
        update={"stream": load.job.stream.model_copy(update={**stream, "path": path})}
    )
    settings = load.settings()
    app = App(settings, job, load.paths, StatusFile(settings.directory(load.paths), "sales"))
    with pytest.raises(ConfigError, match=re.escape(says.format(home=tmp_path))):
        app.check()


def test_a_pattern_may_match_nothing_yet(tmp_path):
    spec = StreamSpec(format="csv", columns="id INT", path=str(tmp_path / "gone" / "*"))
    find_source(spec).check()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def alive_workers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as page:
            return json.load(page)["aliveworkers"]
    except (OSError, ValueError):  # not up yet
        return 0


def check(processes, log):
    assert all(p.poll() is None for p in processes), log.read_text()[-3000:]


@pytest.mark.slow
def test_the_users_spark_configuration_wins_over_the_defaults():
    from semistream.streaming.session import DEFAULTS

    names = list(DEFAULTS)
    program = (
        f"from semistream.streaming.session import open_session\nspark = open_session('x')\n"
        f"print([spark.sparkContext.getConf().get(n) for n in {names!r}])"
    )
    own = {
        "spark.master": "local[1]",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    }
    arguments = " ".join(f"--conf {name}={value}" for name, value in own.items())
    run = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell"},
    )
    assert run.stdout.splitlines()[-1] == str([own.get(name, DEFAULTS[name]) for name in names])


@pytest.mark.slow
@pytest.mark.parametrize(("files", "opened"), [(1, False), (FEW_FILES + 1, True)])
def test_a_load_opens_a_session_of_spark_sql_only_for_what_needs_it(
    sqlite_load, make_app, monkeypatch, tmp_path, files, opened
):
    """Each task reads all of a few files; of many small ones, some read for the others."""
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Xlog:class+load:file={tmp_path}/classes"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", options)
    for _ in range(files):
        sqlite_load.add_file(10)
    app = make_app(sqlite_load, max_files=0)
    app.start()
    assert app.end() == 0, app.output()
    sqlite_load.check()
    loaded = set(re.findall(r"\] (\S+) source:", (tmp_path / "classes").read_text()))
    assert "org.apache.spark.api.python.PythonRDD" in loaded
    assert ("org.apache.spark.sql.internal.SessionState" in loaded) == opened
