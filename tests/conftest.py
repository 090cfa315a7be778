from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, event

# For the many JVMs that the tests start: nothing here runs long enough for the second compiler to
# pay.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# PySpark takes a main module without a file, as a process of pytest-xdist has, for its own
# doctests, and exits.
vars(sys.modules["__main__"]).setdefault("__file__", pytest.__file__)
# With all that the tests import, a full collection takes 0.3 s of a processor, and one of what has
# survived ten others 0.5 s. By default there is one in every few verifications.
gc.set_threshold(200_000, 100, 10)
# no test fails because the machine is busy
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
MARIADBD = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")


SERVERS = ("airflow", "spark", "mariadb", "browser", "make_app")  # how their fixtures' names begin
TOGETHER = ("test_experiments", "test_memory", "test_workloads")  # files whose data are made once


@event.listens_for(Engine, "connect")
def without_sync(connection, _):
    """What was written outlives this process, if not the machine, as with MariaDB."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def pytest_addoption(parser):
    parser.addoption(
        "--fast",
        action="store_true",
        help="one case of each test, but none that needs a server or is marked slow",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Send the tests that share a Spark session to two processes, each half of the files, and those
    that share an Airflow server to another. What takes long begins before what is short."""
    if config.getoption("--fast"):
        fast = chosen(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in fast])
        items[:] = fast
    groups = {item: group_of(item) for item in items}
    for item in items:
        if group := groups[item]:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not (item.get_closest_marker("slow") and not groups[item]))


def group_of(item) -> str:
    """The name of the tests that run in the same process as this one; "" if it may run in any."""
    found, file = servers(item), item.path.stem
    if "airflow" in found:
        return "airflow"
    if "spark" in found:
        return "spark, files to l" if file < "test_m" else "spark, files from m"
    return file if file in TOGETHER else ""


def servers(item) -> set[str]:
    """The kinds of servers that a test's fixtures start."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    names = [*item.fixturenames, params.get("warehouse_url", "")]
    return {server for server in SERVERS if any(name.startswith(server) for name in names)}


def chosen(items) -> list:
    """The tests of a fast run: one case of each, of other parameters from test to test."""
    cases = defaultdict(list)
    for item in items:
        if not servers(item) and not item.get_closest_marker("slow"):
            cases[item.parent.nodeid, item.originalname].append(item)
    fast = {of[crc32(test.encode()) % len(of)] for (_, test), of in cases.items()}
    return [item for item in items if item in fast]


class MariaDB:
    """A private MariaDB server: own data directory, socket and port."""

    def __init__(self, directory: Path):
        self.directory = directory
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def install(self) -> None:
        subprocess.run(
            [
                "mariadb-install-db",
                "--no-defaults",
                "--user=root",
                f"--datadir={self.directory / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            check=True,
            capture_output=True,
            # in a common one, a server that starts removes its tables
            env=os.environ | {"TMPDIR": str(self.directory)},
        )

    def start(self, timeout: float = 60) -> None:
        """Start it, after a kill too, and wait until it answers."""
        assert MARIADBD, "mariadb-server is not installed"
        with open(self.directory / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    MARIADBD,
                    "--no-defaults",
                    "--user=root",
                    f"--datadir={self.directory / 'data'}",
                    f"--port={self.port}",
                    f"--socket={self.directory / 'socket'}",
                    f"--pid-file={self.directory / 'pid'}",
                    "--bind-address=127.0.0.1",
                    # in a common one, a server that starts removes the others' tables
                    f"--tmpdir={self.directory / 'data'}",
                    "--local-infile=1",
                    "--innodb-buffer-pool-size=128M",
                    "--innodb-flush-log-at-trx-commit=1",
                    "--skip-log-bin",
                    "--skip-name-resolve",
                    # what was written outlives the server, if not the machine
                    "--innodb-flush-method=nosync",
                    "--debug-no-sync",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    "MariaDB did not start:\n" + (self.directory / "server.log").read_text()[-4000:]
                )
            time.sleep(0.05)

    def _answers(self) -> bool:
        import pymysql

        try:
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", connect_timeout=2
            ).close()
            return True
        except pymysql.err.OperationalError:
            return False

    def kill(self) -> None:
        """SIGKILL, as in a crash; ``start`` brings it back on the same data and port."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def url(self, database: str = "") -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}"

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        import pymysql

        self._databases += 1
        name = f"warehouse_{os.getpid()}_{self._databases}"
        connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root")
        with connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self.url(name)


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory):
    server = MariaDB(tmp_path_factory.mktemp("mariadb"))
    server.install()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "mariadb"])
def warehouse_url(request, tmp_path) -> str:
    """The URL of a fresh, empty database, once on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'warehouse.db'}"
    return request.getfixturevalue(request.param).fresh()


@pytest.fixture
def warehouse(warehouse_url):
    """An engine on a fresh warehouse with its own tables, once on each kind of database."""
    from semistream.warehouse import connect, create_all

    engine = connect(warehouse_url)
    create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One Spark session on two local cores."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from semistream.streaming.session import DEFAULTS

    session = (
        SparkSession.builder.appName("tests")
        .config(
            map=DEFAULTS
            | {
                "spark.master": "local[2]",
                "spark.ui.enabled": "false",
                "spark.sql.session.timeZone": "UTC",
                "spark.driver.memory": "1g",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.sql.shuffle.partitions": "4",
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
                "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
            }
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory) -> Path:
    """SEMISTREAM_HOME of the Airflow tests."""
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="session")
def airflow_environment(airflow_home) -> dict[str, str]:
    """Airflow set up as `make load` does, metadata and all, before anything imports it in this
    process."""
    from semistream import local

    assert "airflow" not in sys.modules, "Airflow was imported before its environment was set"
    settings = local.environment(airflow_home)
    os.environ |= settings
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True
    )
    return settings


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the console command in a directory of its own: (exit code, standard output, standard
    error)."""
    from semistream import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path / "var"))
    monkeypatch.delenv("WAREHOUSE_URL", raising=False)

    def run(*arguments):
        try:
            code = cli.main([str(a) for a in arguments])
        except SystemExit as e:
            code = e.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def join(run):
    """Run `semistream join` successfully and give its statistics; options by name."""
    from console import flags

    def join(*more, **options):
        given = {
            "stream": "s.csv",
            "master": "m.csv",
            "on": "k",
            "out": "out.parquet",
            "stats": "stats.json",
        } | options
        code, _, err = run("join", *more, *flags(given))
        assert code == 0, err
        return json.loads(Path(given["stats"]).read_text())

    return join


@pytest.fixture
def small_job(tmp_path):
    from loads import SmallJob

    job = SmallJob(tmp_path / "job")
    for _ in range(3):
        job.add(1000)
    return job


@pytest.fixture(scope="session")
def airflow_plugins(airflow_environment) -> None:
    """The plugins' modules can be imported, as in any Airflow process."""
    if (folder := airflow_environment["AIRFLOW__CORE__PLUGINS_FOLDER"]) not in sys.path:
        sys.path.append(folder)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium, without a window."""
    from browser import chromium

    driver = chromium(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A directory with the wheel and the sdist, built from the files under version control."""
    from packages import ROOT, done

    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    listed = done("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for file in (name for name in listed if name and (ROOT / name).is_file()):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_bytes((ROOT / file).read_bytes())
    done("uv", "build", "--no-build-isolation", "--out-dir", target, source)
    return target


@pytest.fixture
def make_app():
    """Make an app that is a process of its own (`faults.App`); what is left of it ends with the
    test."""
    import faults

    made = []

    def make(load, *master, **settings):
        made.append(faults.App(load, *master, **settings))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def loader(tmp_path, warehouse_url):
    """A load of orders through the product's own sink into each kind of warehouse."""
    from sink_loads import Loader

    loader = Loader(warehouse_url, tmp_path)
    yield loader
    loader.engine.dispose()


@pytest.fixture
def seconds(monkeypatch):
    """The clock by which joins wait."""
    from clock import Seconds

    clock = Seconds()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@pytest.fixture(params=["sql", "delta"])
def sink(request, tmp_path) -> str:
    """The warehouse's own table, or a Delta table."""
    return "sql" if request.param == "sql" else str(tmp_path / "delta")


@pytest.fixture
def load(tmp_path, warehouse_url):
    """A small load into each kind of warehouse, its master data published."""
    from loads import small_load

    return small_load(tmp_path, warehouse_url)


@pytest.fixture
def sqlite_load(tmp_path):
    """A small load into SQLite only."""
    from loads import small_load

    return small_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
