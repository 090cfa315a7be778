"""The shipped flights as a star: what their dimensions lack is known, and is found by a load."""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from loads import AnyLoad
from semistream import quality
from semistream.cli import main
from semistream.paths import Paths
from semistream.pipeline import provision_steps
from semistream.streaming.settings import LoadSettings
from semistream.workloads import load_job, prepare

FLIGHTS = 336_776
MISSED = {"plane": 52_606, "carrier": 0, "origin": 0, "dest": 7_602, "weather": 1_556}


class FlightsLoad(AnyLoad):
    def __init__(self, home, warehouse_url):
        self.paths = Paths(home=home, warehouse_url=warehouse_url)
        self.job = load_job("nycflights13", self.paths)
        prepare(self.job, self.paths)
        for name in provision_steps.dimensions("nycflights13", self.paths):
            provision_steps.provision("nycflights13", name, self.paths)
            assert provision_steps.publish("nycflights13", name, "64MB", self.paths)

    def settings(self, **values):
        return LoadSettings.load({"job": "nycflights13", "memory": "16MB", **values})


def test_the_console_finds_what_is_known_of_the_dimensions_of_flights(tmp_path):
    paths = Paths(home=tmp_path, warehouse_url="")
    job = load_job("nycflights13", paths)
    prepare(job, paths)
    dimensions = {
        role.name: {
            "path": role.dimension.path,
            "on": role.on,
            "columns": role.columns,
            "join_type": role.join_type or "inner",
        }
        for role in job.roles
    }
    config = tmp_path / "star.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "stream": job.stream.path,
                "dimensions": dimensions,
                "memory": "16MB",
                "out": str(tmp_path / "facts.parquet"),
                "stats": str(tmp_path / "stats.json"),
            }
        )
    )
    assert main(["join", "--config", str(config), "--no-progress"]) == 0
    summary = json.loads((tmp_path / "stats.json").read_text())
    assert {r["role"]: sum(r["unmatched"].values()) for r in summary["roles"]} == MISSED
    assert summary["rows_read"] == summary["output_rows"] == FLIGHTS
    facts = pq.read_table(tmp_path / "facts.parquet")
    assert facts.num_rows == FLIGHTS and facts["dest_name"].null_count == MISSED["dest"]
    assert facts["model"].null_count == MISSED["plane"] and not facts["carrier_name"].null_count


@pytest.mark.slow
def test_every_flight_is_loaded_with_what_is_known_of_its_dimensions(spark, tmp_path):
    load = FlightsLoad(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    summary = load.run(spark)
    assert summary.rows_read == summary.output_rows == FLIGHTS
    assert summary.waiting == summary.unmatched == 0
    missed = "SELECT role, sum(missed), sum(unmatched) FROM load_inputs GROUP BY role"
    assert {role: (m, u) for role, m, u in load.query(missed)} == {
        role: (count, 0) for role, count in MISSED.items()
    }
    for role, count in MISSED.items():
        rows = load.query(f"SELECT count(*), count({role}_sk) FROM fact_flights")
        assert rows == [(FLIGHTS, FLIGHTS - count)], role
    ends = load.query(
        "SELECT count(*) FROM fact_flights f JOIN dim_airport o ON o.airport_sk = f.origin_sk "
        "JOIN dim_airport d ON d.airport_sk = f.dest_sk WHERE o.faa = f.origin AND d.faa = f.dest "
        "AND o.name = f.origin_name AND d.name = f.dest_name"
    )
    assert ends == [(FLIGHTS - MISSED["dest"],)]
    result = quality.verify(
        load.paths.warehouse_url,
        "nycflights13",
        job=load.job,
        reports_dir=tmp_path / "reports",
        snapshots=load.paths.snapshots,
    )
    assert result.success, str(result)
