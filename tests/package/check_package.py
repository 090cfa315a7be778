"""What the ranges of pyproject.toml promise, with packages from the network: the core with the
oldest ones; the provider in somebody's own Airflow, of the oldest and the newest version, with a
DAG of theirs that has the task group of a job. Nothing of this checkout is on their paths."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from packages import (
    PACKAGES,
    PRODUCTS,
    ROOT,
    SALES,
    check_join,
    done,
    environment,
    installed,
    outside,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLDEST = re.search(r">=([\d.]+)", PROJECT["optional-dependencies"]["airflow"][0])[1] + ".0"
NEWEST = re.search(r"^apache-airflow==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)[1]
JOB = """
name: sales
stream:
  {format: csv, path: %s, columns: "sale_id BIGINT, sku STRING, amount BIGINT", id: [sale_id],
   options: {header: "true"}}
master: {name: product, path: %s, business_key: [sku]}
on: sku
fact_table: fact_sales
max_unmatched: 0.5
"""
LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"
DAG = """
from airflow.sdk import DAG, task
from semistream.airflow import SemistreamTaskGroup

with DAG("nightly", schedule=None):
    @task
    def report(): print("after the proof")

    SemistreamTaskGroup("sales.yaml") >> report()
"""
BUNDLES = [
    {"name": "dags-folder", "classpath": LOCAL, "kwargs": {}},
    {"name": "semistream-dags", "classpath": "semistream.airflow.bundle.DagsBundle", "kwargs": {}},
]
ASKED = """
import json, sys
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
plugins, errors = plugins_manager._get_plugins()
links = manager.extra_links_class_names
print(json.dumps({
    "hook": manager.hooks["semistream"].hook_name,
    "fields": [name for name in manager.connection_form_widgets if "semistream" in name],
    "links": [name for name in links if "semistream" in name],
    "plugins": [str(plugin.source) for plugin in plugins if plugin.name == "semistream"],
    "errors": errors,
    "heavy": sorted({"pyspark", "great_expectations"} & set(sys.modules)),
}))
"""


def test_the_core_joins_with_the_oldest_packages(built, tmp_path):
    """With the lowest versions of its own requirements, and those of theirs that fit."""
    (wheel,) = built.glob("*.whl")
    needed = ("--resolution", "lowest-direct", "--requirements", str(ROOT / "pyproject.toml"))
    programs = environment(tmp_path / "core", *needed)
    done(
        *("uv", "pip", "install", "--python", programs / "python", "--no-deps", wheel), env=PACKAGES
    )
    lowest = dict(re.match(r"([\w-]+)>=([\d.]+)", of).groups() for of in PROJECT["dependencies"])
    found = installed(programs)
    for name, version in lowest.items():
        assert Version(found[canonicalize_name(name)]) == Version(version), (name, found)
    elsewhere = {"cwd": tmp_path, "env": outside(programs, tmp_path)}
    check_join(programs, tmp_path)
    (tmp_path / "sales.yaml").write_text(JOB % (tmp_path / "sales.csv", tmp_path / "products.csv"))
    for command in ("check", "provision"):
        done(programs / "semistream", command, "sales.yaml", **elsewhere)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", dict.fromkeys([OLDEST, NEWEST]))
def test_a_dag_of_somebodys_airflow_loads_and_proves(built, tmp_path, version):
    (wheel,) = built.glob("*.whl")
    programs = environment(
        tmp_path / "venv", f"{wheel}[airflow,spark,verify]", f"apache-airflow=={version}"
    )
    assert not installed(programs).keys() & {
        "pyspark-client",
        "apache-airflow-providers-apache-spark",
    }
    (tmp_path / "dags").mkdir()
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "monday.csv").write_text(SALES)
    (tmp_path / "products.csv").write_text(PRODUCTS)
    (tmp_path / "dags" / "nightly.py").write_text(DAG)
    jobs = tmp_path / "var" / "jobs"
    jobs.mkdir(parents=True)
    job = JOB % (tmp_path / "sales", tmp_path / "products.csv")
    (jobs / "sales.yaml").write_text(job)
    variables = outside(programs, tmp_path) | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(BUNDLES),
        "AIRFLOW_CONN_SEMISTREAM_DEFAULT": json.dumps(
            {"conn_type": "semistream", "extra": {"spark_master": "local[2]"}}
        ),
    }
    done(programs / "airflow", "db", "migrate", env=variables, cwd=tmp_path)
    told = json.loads(
        done(programs / "python", "-c", ASKED, env=variables, cwd=tmp_path).splitlines()[-1]
    )
    assert told["hook"] == "Semistream" and not told["errors"] and not told["heavy"], told
    assert {name.rpartition("__")[2] for name in told["fields"]} == {
        *("home", "warehouse", "spark_master")
    }
    assert len(told["links"]) == 3
    assert len(told["plugins"]) == 1 and told["plugins"][0].startswith("semistream==")

    log = done(programs / "airflow", "dags", "test", "nightly", env=variables, cwd=tmp_path)
    assert "after the proof" in log
    counted = done(programs / "semistream", "status", "sales", env=variables, cwd=tmp_path)
    assert "3 rows read, 2 matched, 1 unmatched, 0 waiting" in counted
    again = ("dags", "test", "verify_completeness", "--bundle-name", "semistream-dags")
    log = done(programs / "airflow", *again, "--conf", '{"app": "sales"}', env=variables)
    assert re.search(r"sales: all \d+ checks hold", log)
