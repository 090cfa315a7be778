"""Snapshots of one home, and several warehouses: the surrogate keys of one are not another's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from damage import flip
from loads import SmallLoad
from semistream.errors import ConfigError, StateError
from semistream.job import Job
from semistream.paths import Paths
from semistream.streaming.app import App
from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.warehouse import connect
from semistream.workloads import load_job


class Home:
    """One SEMISTREAM_HOME, and warehouses by their names."""

    def __init__(self, run, monkeypatch, job, directory: Path):
        self.run, self.monkeypatch, self.directory = run, monkeypatch, directory
        self.file, text = job.file, job.file.read_text()
        job.file.write_text(text.replace("path: ", f"path: {job.directory}/"))
        self.products = job.directory / "products.csv"

    def paths(self, name: str) -> Paths:
        self.monkeypatch.setenv("WAREHOUSE_URL", f"sqlite:///{self.directory / name}.db")
        return Paths.from_environment()

    def provision(self, name: str) -> str:
        self.paths(name)
        code, out, err = self.run("provision", self.file)
        assert code == 0, err
        return out

    def load(self, name: str, spark=None):
        """Check what can be without Spark; then run it, where there is one."""
        paths = self.paths(name)
        settings = LoadSettings.load(
            {
                "job": str(self.file),
                "algorithm": "ssbj",
                "app": name,
                "memory": "400KB",
                "partitions": 1,
            }
        )
        directory = settings.directory(paths)
        with checkpoint_lock(directory), StatusFile(directory, name) as status:
            load = App(settings, load_job(settings.job, paths), paths, status)
            load.check()
            return None if spark is None else load.run(spark.sparkContext)

    def keys(self, name: str, table: str, key: str) -> set[tuple[str, int]]:
        engine = connect(self.paths(name).warehouse_url)
        with engine.connect() as connection:
            return {
                tuple(row)
                for row in connection.execute(sa.text(f"SELECT {key}, product_sk FROM {table}"))
            }


@pytest.fixture
def home(run, monkeypatch, small_job, tmp_path):
    return Home(run, monkeypatch, small_job, tmp_path)


def test_a_load_refuses_another_warehouse_s_snapshot(home, spark):
    home.provision("one")
    header, *rows = home.products.read_text().splitlines()
    home.products.write_text("\n".join([header, "a0,First,1.00", *rows]))  # other surrogate keys
    home.provision("two")
    for name in ("one", "new"):
        with pytest.raises(ConfigError, match="published from .*two.db.*`semistream provision`"):
            home.load(name)
    assert "snapshot v000003:" in home.provision("one")
    assert home.load("one", spark).rows_read == 3000
    facts = home.keys("one", "fact_small", "sku")
    assert facts and facts <= home.keys("one", "dim_product", "sku")
    assert "snapshot v000003, as before:" in home.provision("one")
    with pytest.raises(ConfigError, match=r"published from .*one\.db"):
        home.load("two")


def test_a_copy_of_a_warehouse_has_its_name_but_not_its_later_rows(home):
    """So has an older backup that was put back."""
    home.provision("one")
    shutil.copy(home.directory / "one.db", home.directory / "older.db")
    home.load("older")
    home.products.write_text(home.products.read_text() + "zz,Last,1.00\n")
    home.provision("one")
    home.load("one")
    with pytest.raises(ConfigError, match="must not be newer than dim_product"):
        home.load("older")
    home.provision("older")
    home.load("older")


def test_what_is_said_of_a_damaged_version_helps(home):
    home.provision("one")
    root = home.paths("one").snapshots / "product" / "sku"
    for number, damage in enumerate(
        (
            lambda: flip(root / "v000001" / "manifest.json", 0.9),
            lambda: flip(root / "CURRENT", 0.8),
            lambda: shutil.rmtree(root / "v000003"),
        ),
        2,
    ):
        damage()
        with pytest.raises(StateError, match="published anew: `semistream provision JOB`"):
            home.load("one")
        assert f"snapshot v{number:06d}:" in home.provision("one")
        home.load("one")


def test_a_snapshot_without_a_warehouse(tmp_path):
    """It has no surrogate keys of one."""
    for name in ("one", "two"):
        load = SmallLoad(tmp_path / name, f"sqlite:///{tmp_path / name}.db")
        load.publish()
        load.add_file(1)
        settings = load.settings()
        job = Job.load(load.job.model_dump(mode="json"))
        with StatusFile(tmp_path, "sales") as status:
            App(settings, job, load.paths, status).check()
