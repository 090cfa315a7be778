from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sqlalchemy import create_engine, text

from loads import SmallJob
from stream_pairs import Pair

ROOT = Path(__file__).parents[1]
DAGS = (
    "provision_master_data",
    "semi_stream_load",
    "stream_stream_load",
    "verify_completeness",
    "tuning_sweep",
    "estimate_join_size",
    "replay_unmatched",
)
BY_ITSELF = ("tuning_sweep", "estimate_join_size")  # a failure of these is looked at by hand
pytestmark = pytest.mark.usefixtures("airflow_environment")


@pytest.fixture(scope="module")
def dags(airflow_environment):
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(airflow_environment["AIRFLOW__CORE__DAGS_FOLDER"])
    assert not bag.import_errors
    return bag.dags


@pytest.fixture(scope="module")
def airflow(airflow_environment):
    """`airflow …` in this process: raises SystemExit when it fails."""
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()

    def run(*arguments: str) -> None:
        parsed = parser.parse_args(arguments)
        parsed.func(parsed)

    return run


def test_all_are_there(dags):
    assert set(dags) == set(DAGS)


def test_airflows_processes_wait_for_each_others_writes():
    from airflow import settings

    async def asynchronous():
        async with settings.async_engine.connect() as connection:
            timeout = (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar()
        await settings.async_engine.dispose()
        return timeout

    with settings.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 60_000
    assert asyncio.run(asynchronous()) == 60_000


@pytest.mark.parametrize("name", DAGS)
def test_files_are_thin(name):
    assert len((ROOT / "dags" / f"{name}.py").read_text().splitlines()) < 100


def test_parsing_opens_nothing(airflow_environment, tmp_path):
    """No connection, no file for writing, no process: an audit hook sees them all. And nothing
    heavy is imported."""
    script = tmp_path / "parse.py"
    script.write_text(f"""
import runpy, sys
import airflow.sdk, croniter, semistream.airflow.operators, semistream.pipeline  # once
seen = []
def hook(event, args):
    if event in ("socket.connect", "sqlite3.connect", "subprocess.Popen", "os.mkdir") or (
            event == "open" and set(str(args[1])) & set("wax+")):
        seen.append((event, str(args)))
sys.addaudithook(hook)
for dag in {DAGS!r}:
    runpy.run_path({str(ROOT / "dags")!r} + "/" + dag + ".py")
assert not seen, seen
heavy = {{"great_expectations", "pyspark", "numba", "scipy", "matplotlib", "deltalake"}}
assert not heavy & set(sys.modules)
""")
    subprocess.run([sys.executable, "-B", script], check=True)


def airflows_modules(directory: Path) -> set[tuple[str, str]]:
    """(file, module of Airflow) of each import below a directory: also inside functions, by
    ``import_module``, for types only."""
    found = set()
    for file in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [
                    f"{node.module}.{alias.name}" if node.module == "airflow" else str(node.module)
                    for alias in node.names
                ]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
                "import_module",
                "__import__",
            ):
                names = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
            found |= {
                (str(file.relative_to(directory)), n) for n in names if n.split(".")[0] == "airflow"
            }
    return found


def test_library_does_not_import_airflow():
    """But for its package for Airflow, and the command that runs Airflow on one machine."""
    found = airflows_modules(ROOT / "include" / "semistream")
    others = {(file, name) for file, name in found if not file.startswith("airflow/")}
    assert others == {("local.py", "airflow.cli")}
    assert not airflows_modules(ROOT / "spark_apps")


def test_dags_know_the_task_sdk_only_and_the_package_for_airflow_what_is_public():
    assert {module for _, module in airflows_modules(ROOT / "dags")} == {"airflow.sdk"}
    public = (
        "airflow.sdk",
        "airflow.triggers",
        "airflow.plugins_manager",
        "airflow.configuration",
        "airflow.api_fastapi",
        "airflow.dag_processing.bundles",
    )
    # the page runs in the API server, asks its database when and by what a DAG runs next, and
    # triggers a DAG as its routes do
    internal = (
        "airflow.models.asset",
        "airflow.models.dag",
        "airflow.models.dagbag",
        "airflow.utils.session",
    )
    assert {
        found
        for directory in ("plugins", "include/semistream/airflow")
        for found in airflows_modules(ROOT / directory)
        if not found[1].startswith(public)
    } == {("page.py", module) for module in internal}


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("def f():\n    from airflow.cli import cli_parser", "airflow.cli"),
        ("async def f():\n    import airflow.models as m", "airflow.models"),
        (
            "class A:\n    def f(self):\n        if 1:\n            from airflow import settings",
            "airflow.settings",
        ),
        ("def f():\n    import_module('airflow.cli')", "airflow.cli"),
        ("f = lambda: __import__('airflow')", "airflow"),
        ("if TYPE_CHECKING:\n    from airflow.models import DagRun", "airflow.models"),
        ("from semistream import airflow", None),
        ("from .airflow import x", None),
        ("import airflowish", None),
    ],
)
def test_an_import_of_airflow_is_found_wherever_it_is(tmp_path, code, module):
    (tmp_path / "file.py").write_text(code)
    assert airflows_modules(tmp_path) == ({("file.py", module)} if module else set())


@pytest.mark.parametrize("name", DAGS)
def test_every_param_explains_itself(dags, name):
    for key in dags[name].params:
        param = dags[name].params.get_param(key)
        assert param.description and param.schema["type"] and param.schema["section"], key
        param.resolve()  # the default is valid


@pytest.mark.parametrize("name", [name for name in DAGS if name not in BY_ITSELF])
def test_a_warehouse_that_is_away_is_waited_for(dags, name):
    from semistream.airflow.retries import AWAY, WAIT

    assert all(task.retry_policy and task.retries * WAIT > AWAY for task in dags[name].tasks)


def test_load_form_has_every_setting_but_checkpoint_and_reason(dags):
    from semistream.streaming.settings import LoadSettings

    assert set(dags["semi_stream_load"].params) == set(LoadSettings.model_fields) - {
        "checkpoint",
        "reason",
    }


def test_form_of_two_streams_has_every_setting_but_checkpoint_and_reason(dags):
    from semistream.pipeline import steps
    from semistream.streaming.settings import StreamStreamSettings

    params = dags["stream_stream_load"].params
    assert set(params) == set(StreamStreamSettings.model_fields) - {"checkpoint", "reason"}
    given = steps.from_form(StreamStreamSettings, params.dump(), job="orders")
    assert given == StreamStreamSettings.load({"job": "orders"})


def test_the_memory_of_a_join_has_one_default(dags):
    from semistream.pipeline import steps
    from semistream.settings import MEMORY
    from semistream.streaming.settings import LoadSettings, StreamStreamSettings
    from semistream.tuning.settings import TuneSettings

    kinds = {
        "semi_stream_load": LoadSettings,
        "stream_stream_load": StreamStreamSettings,
        "tuning_sweep": TuneSettings,
    }
    for dag, kind in kinds.items():
        given = steps.from_form(kind, dags[dag].params.dump(), job="tpch").memory
        assert given == ((MEMORY,) if kind is TuneSettings else MEMORY), dag


@pytest.mark.parametrize(
    "name,wrong",
    [
        ("algorithm", "hashjoin"),
        ("memory", "lots"),
        ("memory", ""),
        ("join_type", "outer"),
        ("partitions", -1),
        ("partitions", 1.5),
        ("stop_after", -1),
        ("retry", 0),
        ("job", ""),
    ],
)
def test_form_refuses(dags, name, wrong):
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        dags["semi_stream_load"].params.get_param(name).resolve(wrong)


def test_join_size_form_has_every_setting(dags):
    from semistream.pipeline.settings import JoinSizeSettings

    params = dags["estimate_join_size"].params
    assert set(params) == set(JoinSizeSettings.model_fields)
    given = params.dump() | {"left": "a", "right": "b", "on": {"k": "k"}}
    assert JoinSizeSettings.load(
        {k: v for k, v in given.items() if v is not None}
    ) == JoinSizeSettings.load({"left": "a", "right": "b", "on": "k"})


def test_form_defaults_are_those_of_the_settings(dags):
    from semistream.pipeline import steps
    from semistream.streaming.settings import LoadSettings

    assert steps.load_settings("tpch", dags["semi_stream_load"].params.dump()) == LoadSettings.load(
        {"job": "tpch"}
    )


def test_assets_link_them(dags):
    assert [a.name for a in dags["semi_stream_load"].schedule] == ["dimensions"]
    assert [
        a.name
        for a in dags["provision_master_data"].get_task("provision").partial_kwargs["outlets"]
    ] == ["dimensions"]
    assert [
        a.name for a in dags["semi_stream_load"].get_task("load").partial_kwargs["outlets"]
    ] == ["facts_loaded"]
    assert {a.name for a in dags["stream_stream_load"].get_task("load").outlets} == {
        "facts_loaded",
        "punctuations_propagated",
    }
    verify = dags["verify_completeness"].schedule
    assert [a.name for a in verify.asset_condition.objects] == ["facts_loaded"]
    assert verify.timetable.expression == "0 5 * * *"


@pytest.mark.parametrize(
    ("events", "form", "since_last"),
    [
        ({"facts_loaded": []}, {}, True),
        ({}, {}, False),
        ({}, {"app": "sales"}, False),
        ({"facts_loaded": []}, {"app": "sales"}, False),
        ({}, {"app": "sales", "since_last": True}, True),
        ({"facts_loaded": []}, {"since_last": False}, False),
    ],
)
def test_what_is_verified(dags, monkeypatch, events, form, since_last):
    """After a load what is new; every day, and of an app that is named, everything; with the sample
    that the form says."""
    from semistream.pipeline import steps

    monkeypatch.setattr(steps, "loaded_apps", lambda paths: ["sales"])
    verify = dags["verify_completeness"]
    params = verify.params.dump() | {"sample": 7} | form
    what = verify.get_task("what").python_callable(params=params, triggering_asset_events=events)
    assert what == [{"app": "sales", "since_last": since_last, "sample": 7}]


def test_what_is_replayed(dags, monkeypatch):
    """The file and the job of the form; the proof is asked for what has come."""
    from semistream.pipeline import steps

    asked = []
    monkeypatch.setattr(
        steps, "replay", lambda app, _, file, job: asked.append((app, file, job)) or ""
    )
    task, events = dags["replay_unmatched"].get_task("replay"), defaultdict(SimpleNamespace)
    empty = dags["replay_unmatched"].params.dump()
    for form in ({"app": "sales"}, {"app": "sales", "file": "/in/a.csv", "job": "/in/job.yaml"}):
        task.python_callable(empty | form, outlet_events=events)
    assert asked == [("sales", None, ""), ("sales", Path("/in/a.csv"), "/in/job.yaml")]
    assert [asset.name for asset in task.outlets] == ["facts_loaded"]
    assert next(iter(events.values())).extra == {"app": "sales"}


def run(airflow, dag: str, **conf) -> None:
    airflow("dags", "test", dag, "--conf", json.dumps(conf))


def counts(url: str, app: str) -> Counter:
    engine = create_engine(url)
    with engine.connect() as c:
        rows = c.execute(
            text(
                "SELECT sum(rows_read) rows_read, sum(matched) matched, "
                "sum(unmatched) unmatched FROM load_batches WHERE app=:a"
            ),
            {"a": app},
        ).one()
        facts = c.execute(
            text(
                "SELECT count(*), count(DISTINCT order_id) FROM fact_small "
                "JOIN load_batches USING (load_id) WHERE app=:a"
            ),
            {"a": app},
        ).one()
    return Counter(rows._asdict()) + Counter(facts=facts[0], ids=facts[1])


class Made:
    """A job of one stream and one of two, which the same `make load` loads."""

    def __init__(self, directory: Path, settings: dict[str, str]):
        self.url, self.app = settings["WAREHOUSE_URL"], "small"
        self.job, self.pair = SmallJob(directory / "job"), Pair(directory / "pair", self.url)
        for _ in range(3):
            self.job.add(1000)
        self.pair.change(left={"unique": True}, right={"clustered": True})
        for first in (0, 100):
            orders = np.arange(first, first + 100)
            self.pair.put("left", self.pair.tuples("left", 100, orders))
            self.pair.put("right", self.pair.tuples("right", 200, np.repeat(orders, 2)))
        self.conf, self._started = directory / "conf", directory / "started"
        self.conf.mkdir()
        # each process of spark-submit runs this script once
        (self.conf / "spark-env.sh").write_text(f"echo $$ >> '{self._started}'\n")
        self._started.touch()

    def make_load(self, *jobs: Path) -> str:
        made = subprocess.run(
            [sys.executable, "-m", "semistream.local", "load", *map(str, jobs)],
            env={**os.environ, "SPARK_CONF_DIR": str(self.conf)},
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        return made.stdout

    @property
    def submitted(self) -> int:
        """How often spark-submit was started."""
        return len(self._started.read_text().splitlines())


@pytest.fixture(scope="module")
def made(airflow_environment, tmp_path_factory) -> Made:
    return Made(tmp_path_factory.mktemp("made"), airflow_environment)


@pytest.fixture(scope="module")
def told(made) -> str:
    """What `make load` of both has printed."""
    return made.make_load(made.job.file, made.pair.yaml())


def table_of(told: str, app: str) -> str:
    """An app's table of those that `make load` prints."""
    return re.search(rf"{app} → .*?(?=\w+ → |Done in)", told, re.DOTALL)[0]


def test_provision_load_verify_end_to_end(airflow, made, told, monkeypatch):
    """By `make load`, with its summary; a second one starts no Spark, a second run of a DAG adds
    only what is new, and a lost row fails the proof."""
    job, app, url = str(made.job.file), made.app, made.url
    for rows_read in (3000, 0):
        if not rows_read:
            told = made.make_load(made.job.file)
        table = table_of(told, app)
        assert re.search(rf"rows read .* {rows_read:,} │ .* 3,000 │\n", table), told
        assert re.search(r"complete .* yes │\n", table), told
        assert counts(url, app) == made.job.expected
        assert made.submitted == 2  # the loads; small masters need none
    made.job.add(500)
    monkeypatch.setenv("SPARK_CONF_DIR", str(made.conf))
    run(airflow, "semi_stream_load", job=job, memory="1MB")
    assert made.submitted == 3
    assert counts(url, app) == made.job.expected
    run(airflow, "replay_unmatched", app=app)
    assert f"{app}: 0 unmatched tuples became facts" in xcom("replay_unmatched", "replay")["text"]
    engine = create_engine(url)
    with engine.begin() as connection:  # a row is lost, of what was proven already
        connection.execute(
            text("DELETE FROM fact_small WHERE order_id = (SELECT min(order_id) FROM fact_small)")
        )
    with pytest.raises(SystemExit, match="DagRun failed"):
        run(airflow, "verify_completeness", app=app)
    with engine.connect() as connection:
        assert connection.execute(
            text("SELECT success FROM quality_runs WHERE app = 'small' ORDER BY id")
        ).scalars().all() == [1, 0]


def test_two_streams_end_to_end(airflow, airflow_environment, made, told):
    """By `make load`; what is closed is told to those who wait for it."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    from semistream.streaming.status import read_status

    table, pair = table_of(told, "orders"), made.pair
    assert re.search(r"rows read .* 600 │\n", table) and re.search(r"complete .* yes │\n", table), (
        told
    )
    assert pair.facts() == pair.expected()[0]
    checkpoint = Path(airflow_environment["SEMISTREAM_HOME"]) / "checkpoints" / "orders"
    assert read_status(checkpoint).inputs["right"] == 0
    run(airflow, "stream_stream_load", job=str(pair.yaml()), end=True)
    with create_session() as session:
        events = (
            session.query(AssetEvent)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .filter(AssetModel.name == "punctuations_propagated")
            .all()
        )
    told = events[-1].extra
    assert told["app"] == "orders" and {"side": "left", "pattern": {"order_no": "o7"}} in [
        *told["values"],
        *events[0].extra["values"],
    ]


def test_a_job_s_dag_provisions_loads_verifies_and_notifies(
    airflow, airflow_environment, monkeypatch
):
    """A run whose proof fails notifies; when the limit is mended, the next one proves the same rows
    without Spark, is an event of the fact table, and notifies of a warning. No dimension is
    provisioned twice."""
    monkeypatch.setenv("WAREHOUSE_URL", airflow_environment["WAREHOUSE_URL"])
    home = Path(airflow_environment["SEMISTREAM_HOME"])
    job, told = SmallJob(home / "shop"), home / "told"
    job.add(500)
    text = job.file.read_text().replace("path: ", f"path: {job.directory}/")
    for name, own in (("small", "shop"), ("product", "article")):
        text = re.sub(rf"(name: |fact_){name}\b", rf"\1{own}", text)
    (home / "jobs").mkdir(exist_ok=True)
    file = home / "jobs" / "shop.yaml"
    file.write_text(f"""{text}
schedule: '@once'
owner: retail
settings: {{memory: 1MB}}
max_unmatched: 0.01
expect: {{volume: {{at_least: 501, action: warn}}}}
notify: [{{class: to_file.ToFile, path: {told}, text: '{{{{ semistream.text }}}}'}}]
""")
    with pytest.raises(SystemExit, match="DagRun failed"):
        airflow("dags", "test", "load_shop", "--bundle-name", "semistream-jobs")
    said = told.read_text()
    assert "Job: shop\nOwner: retail\nRun: manual__" in said
    assert said.count("(unmatched_share)") == 1 and f"unmatched={job.expected['unmatched']}" in said
    assert "What to do: " in said and "/dags/load_shop/runs/" in said
    assert table_events("dim_article")[-1]["tuples"] == 300 and not table_events("fact_shop")
    file.write_text(file.read_text().replace("max_unmatched: 0.01", "max_unmatched: 0.5"))
    airflow("dags", "test", "load_shop", "--bundle-name", "semistream-jobs")
    (event,) = table_events("fact_shop")
    assert (event["app"], event["rows"], event["batches"]) == ("shop", job.expected["facts"], 1)
    assert event["match_rate"] == job.expected["matched"] / 500
    assert event["warnings"] == ["volume"] and len(table_events("dim_article")) == 1
    warning = told.read_text().removeprefix(said)
    assert warning.count("Job: shop\nOwner: retail\nRun: manual__") == 1
    assert warning.count("- Warning: ") == warning.count("(volume)") == 1
    assert "expected=at least 501" in warning and "Nothing has failed" in warning
    assert "Complete: yes: batches 0 to 0" in warning and "/dags/load_shop/runs/" in warning
    with create_engine(airflow_environment["WAREHOUSE_URL"]).begin() as connection:
        connection.exec_driver_sql("DELETE FROM fact_shop WHERE order_id = 1")
    with pytest.raises(SystemExit, match="DagRun failed"):
        run(airflow, "verify_completeness", app="shop")  # as once a day
    again = told.read_text().removeprefix(said + warning)
    assert "Job: shop\nOwner: retail\nRun: manual__" in again
    assert "(none_missing)" in again and "/dags/verify_completeness/runs/" in again


def table_events(table: str) -> list[dict]:
    """What the events of a table's asset have said."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = (
            session.query(AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .filter(AssetModel.uri == f"semistream://warehouse/{table}")
            .order_by(AssetEvent.id)
        )
        return [extra for (extra,) in found]


def test_wrong_setting_fails_at_once_and_says_what_to_do(airflow, small_job, capfd):
    with pytest.raises(SystemExit, match="DagRun failed"):
        run(airflow, "semi_stream_load", job="nowhere.yaml")
    assert "YAML file" in "".join(capfd.readouterr())


def test_join_size_is_estimated_and_refused_above_the_limit(airflow, tmp_path, capfd, caplog):
    """The result is the task's XCom and on its log: of 100 keys that come three times, one
    is there four times in B."""
    (tmp_path / "a.csv").write_text("k\n" + "".join(f"k{i % 100}\n" for i in range(300)))
    (tmp_path / "b.csv").write_text("key\n" + "k7\n" * 4 + "k200\n")
    conf = {"left": str(tmp_path / "a.csv"), "right": str(tmp_path / "b.csv"), "on": {"k": "key"}}
    run(airflow, "estimate_join_size", **conf, max_output_rows=12)
    assert "The join has 12 rows, off by at most 0" in caplog.text
    result = xcom("estimate_join_size", "estimate")
    assert (result["estimate"], result["bound"], result["method"]) == (12, 0, "skimmed")
    assert 0 < result["memory_bytes"] <= 2_000_000 and result["left"]["rows"] == 300
    with pytest.raises(SystemExit, match="DagRun failed"):
        run(airflow, "estimate_join_size", **conf, max_output_rows=11)
    assert "It is estimated that the join has 12 rows" in "".join(capfd.readouterr())
    with pytest.raises(SystemExit, match="DagRun failed"):
        run(airflow, "estimate_join_size", left=conf["left"], on=conf["on"])
    assert "'right' must be given" in "".join(capfd.readouterr())


def xcom(dag: str, task: str) -> dict:
    """What the task of the DAG's latest run returned."""
    from airflow.models.xcom import XComModel as XCom
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        value = session.scalars(
            select(XCom.value)
            .where(XCom.dag_id == dag, XCom.task_id == task)
            .order_by(XCom.timestamp.desc())
            .limit(1)
        ).one()
    return json.loads(value) if isinstance(value, str) else value
