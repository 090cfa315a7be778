"""The provider in somebody's own Airflow, of the oldest and the newest version that is promised: a
DAG of theirs, with the task group of a job. Nothing of this checkout is on its path."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from test_packaging import PRODUCTS, ROOT, SALES, built, done, environment, installed, outside  # noqa: F401  a fixture

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLDEST = re.search(r">=([\d.]+)", PROJECT["optional-dependencies"]["airflow"][0])[1] + ".0"
NEWEST = re.search(r"^apache-airflow==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)[1]
JOB = """
name: sales
stream:
  {format: csv, path: %s, columns: "sale_id BIGINT, sku STRING, amount BIGINT", id: [sale_id],
   options: {header: "true"}}
master: {name: product, path: %s}
on: sku
"""
DAG = """
from airflow.sdk import DAG, task
from semistream.airflow import SemistreamTaskGroup

with DAG("nightly", schedule=None):
    @task
    def report(): print("after the proof")

    SemistreamTaskGroup("sales.yaml") >> report()
"""
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


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", dict.fromkeys([OLDEST, NEWEST]))
def test_a_dag_of_somebodys_airflow_loads_and_proves(built, tmp_path, version):  # noqa: F811
    (wheel,) = built.glob("*.whl")
    programs = environment(
        tmp_path / "venv", f"{wheel}[airflow,spark,verify]", f"apache-airflow=={version}"
    )
    assert not installed(programs) & {"pyspark-client", "apache-airflow-providers-apache-spark"}
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
