from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# For the many JVMs that the tests start: nothing here runs long enough for the second compiler to
# pay.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# PySpark takes a main module without a file, as a process of pytest-xdist has, for its own
# doctests, and exits.
vars(sys.modules["__main__"]).setdefault("__file__", pytest.__file__)
MARIADBD = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that share a Spark session or an Airflow server go to the same one of the two
    processes."""
    for item in items:
        group = next((name for name in ("airflow", "spark")
                      if any(f.startswith(name) for f in item.fixturenames)), None)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


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
        subprocess.run(["mariadb-install-db", "--no-defaults", "--user=root",
                        f"--datadir={self.directory / 'data'}",
                        "--auth-root-authentication-method=normal", "--skip-test-db"], check=True,
                       capture_output=True)

    def start(self, timeout: float = 60) -> None:
        """Start it, after a kill too, and wait until it answers."""
        assert MARIADBD, "mariadb-server is not installed"
        with open(self.directory / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [MARIADBD, "--no-defaults", "--user=root", f"--datadir={self.directory / 'data'}",
                 f"--port={self.port}",
                 f"--socket={self.directory / 'socket'}", f"--pid-file={self.directory / 'pid'}",
                 "--bind-address=127.0.0.1",
                 # in a common one, a server that starts removes the others' tables
                 f"--tmpdir={self.directory / 'data'}",
                 "--local-infile=1", "--innodb-buffer-pool-size=128M",
                 "--innodb-flush-log-at-trx-commit=1", "--skip-log-bin",
                 "--skip-name-resolve", "--innodb-flush-method=fsync"], stdout=log, stderr=log,
                start_new_session=True)
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("MariaDB did not start:\n"
                                   + (self.directory / "server.log").read_text()[-4000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        import pymysql

        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user="root",
                            connect_timeout=2).close()
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
    return request.getfixturevalue("mariadb").fresh()


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

    session = SparkSession.builder.appName("tests").config(map=DEFAULTS | {
        "spark.master": "local[2]", "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC", "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark-local"))}).getOrCreate()
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
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True,
                   capture_output=True)
    return settings


class SmallJob:
    """A job of the user's own: orders of known and unknown products, and some of none, in Parquet
    files."""

    def __init__(self, directory: Path):
        self.directory, self.orders = directory, 0
        self.file = directory / "small.yaml"
        self.expected = Counter(rows_read=0, matched=0, unmatched=0, facts=0, ids=0)
        (directory / "orders").mkdir(parents=True)
        (directory / "products.csv").write_text(
            "sku,title,price\n" + "".join(f"p{i},Product {i},{i}.50\n" for i in range(300)))
        self.file.write_text("""
name: small
stream:
  format: parquet
  path: orders
  columns: order_id BIGINT, sku STRING, n INT
  id: [order_id]
  options: {maxFilesPerTrigger: "1"}
master: {name: product, path: products.csv}
on: {sku: sku}
columns: [title, price]
fact_table: fact_small
""")

    def add(self, count: int) -> None:
        """A further file of orders: every tenth of an unknown product, every 97th of none."""
        ids = range(self.orders, self.orders + count)
        skus = [None if i % 97 == 0 else f"p{i * 7 % 300}" if i % 10 else f"x{i}" for i in ids]
        table = pa.table({"order_id": pa.array(ids, pa.int64()), "sku": pa.array(skus, pa.string()),
                          "n": pa.array([1] * count, pa.int32())})
        beside = self.directory / f".{self.orders}.parquet"
        pq.write_table(table, beside)
        beside.rename(self.directory / "orders" / f"orders-{self.orders:08d}.parquet")
        known = sum(s is not None and s.startswith("p") for s in skus)
        self.orders += count
        self.expected.update(rows_read=count, matched=known, unmatched=count - known, facts=known,
                             ids=known)


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
def small_job(tmp_path) -> SmallJob:
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
def airflow_server(tmp_path_factory):
    """Airflow with scheduler, triggerer and UI, as `make up` starts it."""
    from airflow_server import AirflowServer

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = AirflowServer(tmp_path_factory.mktemp("up"), port)
    server.up()
    yield server
    server.down()


@pytest.fixture(scope="session")
def provisioned(airflow_server, tmp_path_factory):
    """A small job, provisioned by its DAG; the load and the verification that follow by assets have
    ended."""
    from airflow_server import wait_until

    job = SmallJob(tmp_path_factory.mktemp("job") / "small")
    for _ in range(3):
        job.add(1000)
    airflow_server.trigger("provision_master_data", job=str(job.file))
    wait_until(lambda: {"success", "failed"} & set(airflow_server.runs("verify_completeness"))
               or "failed" in airflow_server.runs("semi_stream_load")
               + airflow_server.runs("provision_master_data"), "provisioned, loaded, verified", 400)
    return job


@pytest.fixture
def load(tmp_path, warehouse_url):
    """A small load into each kind of warehouse, its master data published."""
    return small_load(tmp_path, warehouse_url)


@pytest.fixture
def sqlite_load(tmp_path):
    """A small load into SQLite only."""
    return small_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")


def small_load(tmp_path, url):
    from loads import SmallLoad

    load = SmallLoad(tmp_path / "home", url)
    load.publish()
    return load
