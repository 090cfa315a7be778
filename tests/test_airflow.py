"""Airflow as `make up` starts it: its API, its drivers, and its pages in a real browser."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import stat
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from sqlalchemy import create_engine, text

import airflow_server as servers
import faults
from airflow_server import AirflowServer
from browser import find, forbidden, unfold
from loads import SmallJob, transaction
from semistream.paths import Paths
from semistream.pipeline import drivers, steps
from semistream.streaming.status import read_status, request_stop
from semistream.tuning.settings import TuneSettings

pytestmark = pytest.mark.timeout(600)
# each question takes some of the server's time
wait_until = functools.partial(servers.wait_until, every=1.0)


@pytest.fixture(scope="module")
def airflow_server(tmp_path_factory):
    """Airflow with scheduler, triggerer and UI."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = AirflowServer(tmp_path_factory.mktemp("up"), port)
    server.up()
    yield server
    server.down()


@pytest.fixture(scope="module")
def provisioned(airflow_server, tmp_path_factory):
    """A small job, provisioned by its DAG; the load and the verification that follow by assets have
    ended."""
    job = SmallJob(tmp_path_factory.mktemp("job") / "small")
    for _ in range(3):
        job.add(1000)
    airflow_server.trigger("provision_master_data", job=str(job.file))
    wait_until(
        lambda: (
            {"success", "failed"} & set(airflow_server.runs("verify_completeness"))
            or "failed"
            in airflow_server.runs("semi_stream_load")
            + airflow_server.runs("provision_master_data")
        ),
        "provisioned, loaded, verified",
        400,
    )
    return job


@pytest.fixture(scope="module")
def deadline() -> str:
    """The time of day at which a run of the job on a schedule is to be complete."""
    return f"{datetime.now(UTC) + timedelta(hours=1):%H:%M}"


@pytest.fixture(scope="module")
def put_jobs(airflow_server, provisioned, deadline) -> SmallJob:
    """A job on a schedule, whose load has no end, and one that is loaded when files arrive, which
    is given. An Airflow that runs finds them while another test waits for its load."""
    directory = airflow_server.home / "jobs"
    timed, filed = SmallJob(directory), SmallJob(airflow_server.home / "filed")
    timed.add(1000)
    # dimensions of their own: another test has one that is called product
    job = filed.file.read_text().replace("small", "filed").replace("name: product", "name: good")
    job = job.replace("path: ", f"path: {filed.directory}/")
    more = "schedule: on_files\nsettings: {memory: 1MB}\n"
    (directory / "filed.yaml").write_text(job + more)
    job = timed.file.read_text().replace("small", "timed").replace("name: product", "name: ware")
    told = f"path: {airflow_server.home / 'told'}, text: '{{{{ semistream.text }}}}'"
    more = f"""schedule: '* * * * *'
deadline: '{deadline}'
notify: [{{class: to_file.ToFile, {told}}}]
settings: {{app: scheduled, trigger: 500 milliseconds}}
"""
    timed.file.write_text(job + more)
    return filed


def rows_read(server: AirflowServer, app: str) -> int:
    """The rows of an app in the ledger."""
    with transaction(server.environment["WAREHOUSE_URL"]) as connection:
        rows = text("SELECT sum(rows_read) FROM load_batches WHERE app = :app")
        return connection.scalar(rows, {"app": app}) or 0


class EndlessLoad:
    """A load without end, in the DAG's run."""

    app = "endless"

    def __init__(self, server: AirflowServer, job: SmallJob):
        self.server, self.job = server, job
        self.checkpoint = server.home / "checkpoints" / self.app
        self.engine = create_engine(
            server.environment["WAREHOUSE_URL"], isolation_level="AUTOCOMMIT"
        )
        self.run = server.trigger(
            "semi_stream_load",
            job=str(job.file),
            app=self.app,
            memory="1MB",
            trigger="500 milliseconds",
        )

    @property
    def lives(self) -> bool:
        return self.state not in ("success", "failed")

    @property
    def state(self) -> str:
        return self.server.state("semi_stream_load", self.run)

    @property
    def is_followed(self) -> bool:
        return self.server.tasks("semi_stream_load", self.run).get("load") == "deferred"

    @property
    def rows_read(self) -> int:
        return rows_read(self.server, self.app)

    @property
    def has_read_all(self) -> bool:
        return self.rows_read == self.job.expected["rows_read"]

    def check(self) -> None:
        with self.engine.connect() as c:
            facts = c.execute(
                text(
                    "SELECT count(*), count(DISTINCT order_id) FROM fact_small "
                    "JOIN load_batches USING (load_id) WHERE app = :app"
                ),
                {"app": self.app},
            ).one()
        assert tuple(facts) == (self.job.expected["facts"], self.job.expected["ids"])


@pytest.fixture(scope="module")
def started() -> list[EndlessLoad]:
    return []


@pytest.fixture
def endless(airflow_server, provisioned, started) -> EndlessLoad:
    """A load without end: the one that another test has left, or a new one."""
    if not started or not started[-1].lives:
        started.append(EndlessLoad(airflow_server, provisioned))
    return started[-1]


@pytest.fixture(scope="module")
def logged_in(browser, airflow_server):
    browser.get(airflow_server.url + "/")
    find(browser, "input[name=username]").send_keys("admin")
    find(browser, "input[name=password]").send_keys(airflow_server.password)
    find(browser, "button[type=submit]").click()
    find(browser, "a[href*='/plugin/semistream']")


@pytest.fixture
def browser_in(browser, logged_in):
    """The browser, logged in. It leaves the page after the test, as a page that is live goes on
    drawing."""
    yield browser
    browser.get("about:blank")


@pytest.fixture
def shot(browser_in, tmp_path):
    """Takes a screenshot, kept in the test's directory, and fails on a blank page, or one that has
    what it does not allow."""

    def take(name: str) -> None:
        file = tmp_path / f"{name}.png"
        assert browser_in.save_screenshot(str(file)) and file.stat().st_size > 10_000
        assert forbidden(browser_in) == []

    return take


def test_airflow_and_its_drivers_are_reached_from_this_machine_only_and_read_by_their_owner_only(
    airflow_server, provisioned
):
    home = airflow_server.home
    group = int((home / "airflow" / "standalone.pid").read_text())
    found = faults.listening([group, *faults.descendants(group)])
    assert found and all(map(faults.is_loopback, found)), found
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    # Spark's own logs are readable to all, in a directory that is not.
    files = [
        p
        for p in home.rglob("*")
        if not p.is_symlink() and "query" not in p.relative_to(home).parts
    ]
    assert [p for p in files if stat.S_IMODE(p.stat().st_mode) & 0o077] == []
    assert {
        "warehouse.db",
        "airflow.db",
        "driver.log",
        "simple_auth_manager_passwords.json.generated",
    } <= {p.name for p in files}
    assert any(p.name.startswith("attempt=") for p in files)  # logs of tasks


def test_a_secret_in_the_form_is_refused_before_airflow_keeps_it(airflow_server):
    airflow_server.call("/api/v2/dags")
    runs = airflow_server.runs("semi_stream_load")
    for options in ({"kafka.sasl.jaas.config": "hush-hush"}, {"url": "mysql://u:hush-hush@h/d"}):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            airflow_server.trigger("semi_stream_load", job="tpch", source_options=options)
    assert airflow_server.runs("semi_stream_load") == runs


def test_new_master_data_are_loaded_and_verified_by_themselves(airflow_server, provisioned):
    for dag in ("provision_master_data", "semi_stream_load", "verify_completeness"):
        assert set(airflow_server.runs(dag)) == {"success"}, dag
    assert read_status(airflow_server.home / "checkpoints" / "small").rows_read == 3000


def test_retry_goes_on_from_the_checkpoint(endless, put_jobs):
    """SIGKILL of the driver fails the attempt; the next one goes on where it was, and nothing comes
    twice."""
    endless.job.add(500)
    wait_until(lambda: endless.rows_read >= 1000, "loading", 300)
    first = drivers.last_launch(endless.checkpoint)
    os.kill(read_status(endless.checkpoint).pid, signal.SIGKILL)
    wait_until(lambda: drivers.last_launch(endless.checkpoint) != first, "another attempt", 300)
    wait_until(lambda: endless.has_read_all, "it has read the rest", 300)
    endless.check()


def test_a_job_is_loaded_on_its_schedule_and_a_run_that_meets_its_load_is_skipped(
    airflow_server, put_jobs, deadline
):
    """Those who are named are told of the run that is not complete at its deadline."""
    server, dag, told = airflow_server, "load_timed", airflow_server.home / "told"
    wait_until(lambda: server.knows(dag), "the bundle of jobs has been read")
    server.call(f"/api/v2/dags/{dag}", {"is_paused": False}, "PATCH")

    def ids() -> list[str]:
        """Return the scheduled runs, the oldest first."""
        found = server.call(f"/api/v2/dags/{dag}/dagRuns?order_by=run_after")["dag_runs"]
        return [run["dag_run_id"] for run in found]

    def runs() -> list[dict[str, str]]:
        """Return the states of the tasks of each scheduled run."""
        return [server.tasks(dag, run) for run in ids()]

    wait_until(ids, "a run")
    assert f"{server.pass_deadline(dag, ids()[0]):%H:%M}" == deadline
    wait_until(lambda: any(t.get("verify") == "skipped" for t in runs()), "a second run", 400)
    first, second = runs()[:2]
    assert first["provision"] == "success" and first["load"] == "deferred"
    assert (second["load"], second["verify"]) == ("skipped", "skipped")
    said = wait_until(lambda: told.exists() and told.read_text(), "those who are named are told")
    lines = said.splitlines()
    assert lines[:3] == [
        "Job: timed",
        f"Run: {ids()[0]}",
        f"The run is not complete at {deadline} UTC.",
    ]
    assert lines[3].startswith("Proven until now: NO: ") and lines[4].startswith("What to do: ")
    assert lines[5:] == [f"Link: {server.url}/dags/{dag}/runs/{ids()[0]}"]
    checkpoint = server.home / "checkpoints" / "scheduled"
    has_read_all = lambda: (s := read_status(checkpoint)) and s.rows_read == 1000
    wait_until(has_read_all, "the load has read the file", 300)
    request_stop(checkpoint)
    wait_until(lambda: runs()[0].get("verify") == "success", "loaded and proven", 300)
    server.call(f"/api/v2/dags/{dag}", {"is_paused": True}, "PATCH")
    # the next minute's run may have begun a load since
    ended = lambda: request_stop(checkpoint) or not drivers.is_alive(checkpoint)
    wait_until(ended, "no load runs any more")
    assert rows_read(server, "scheduled") == 1000


def test_driver_outlives_airflow_and_drains_when_the_page_s_button_is_pressed(
    airflow_server, browser_in, shot, endless
):
    """Everything of Airflow is killed, started again, follows the same driver, and a stop ends it
    well."""
    checkpoint = endless.checkpoint
    wait_until(lambda: endless.is_followed and endless.has_read_all, "loading", 300)
    driver = drivers.last_launch(checkpoint)
    found = faults.listening([driver.pid, *faults.descendants(driver.pid)])
    assert len(found) >= 3 and all(map(faults.is_loopback, found)), found
    airflow_server.kill()
    assert drivers.is_alive(checkpoint)
    endless.job.add(500)
    wait_until(lambda: endless.has_read_all, "it goes on without Airflow")
    airflow_server.up()
    in_page(browser_in, airflow_server)
    find(browser_in, "form[action$='/apps/endless/stop'] button")
    shot("running")
    find(browser_in, "form[action$='/apps/endless/stop'] button").click()
    wait_until(lambda: read_status(checkpoint).state == "stopped", "it drained", 120)
    wait_until(lambda: not endless.lives, "the run ends", 300)
    assert endless.state == "success"
    assert drivers.last_launch(checkpoint) == driver  # never started twice
    assert read_status(checkpoint).waiting == 0
    endless.check()
    browser_in.switch_to.default_content()


def open_form(browser, server, dag: str):
    browser.get(f"{server.url}/dags/{dag}")
    find(browser, "[data-testid=trigger-dag-button]").click()
    return find(browser, "[role=dialog]")


def test_form_shows_every_parameter_with_its_description(airflow_server, browser_in, shot):
    from semistream.streaming.settings import LoadSettings

    dialog = open_form(browser_in, airflow_server, "semi_stream_load")
    # what most runs need is there at once
    for name in ("job", "memory", "trigger"):
        assert find(browser_in, f"[role=dialog] [name='element_{name}']").is_displayed()
    shown = ""
    for section in ("Run Parameters", "Data", "Join", "Rows", "Stop policy", "Source", "Failure"):
        unfold(browser_in, section)
        shown += dialog.text
        shot(section)
    assert {name for name in LoadSettings.model_fields if name not in shown} == {
        "checkpoint",
        "reason",
    }
    assert LoadSettings.model_fields["stop_after"].description in shown


def test_form_triggers_a_run(airflow_server, browser_in, provisioned):
    """Its defaults are valid: only the job is filled in."""
    before = len(airflow_server.runs("provision_master_data"))
    open_form(browser_in, airflow_server, "provision_master_data")
    unfold(browser_in, "Data")
    field = find(browser_in, "[role=dialog] input[name='element_job']")
    field.click()
    browser_in.execute_script("arguments[0].select()", field)
    field.send_keys(str(provisioned.file))
    find(browser_in, "[role=dialog]").find_elements(
        By.XPATH, ".//button[normalize-space()='Trigger']"
    )[-1].click()
    wait_until(
        lambda: len(airflow_server.runs("provision_master_data")) == before + 1,
        "the run exists",
        60,
    )


def in_page(browser, server) -> None:
    browser.switch_to.default_content()
    browser.get(f"{server.url}/plugin/semistream")
    browser.switch_to.frame(find(browser, "iframe"))


def test_page_shows_loads_ledger_and_proof_and_opens_the_report(
    airflow_server, browser_in, shot, provisioned
):
    in_page(browser_in, airflow_server)
    tile = find(browser_in, "#tile-small").text
    assert all(part in tile for part in ("fact_small", "ended", "complete", "batches 0 to"))
    shot("page")
    find(browser_in, "#open-small").click()
    find(browser_in, ".chart canvas")
    assert "3,000" in find(browser_in, "#tile-small").text
    assert "complete" in find(browser_in, "#quality").text
    shot("load")
    link = find(browser_in, "#quality a")
    browser_in.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    browser_in.switch_to.frame(find(browser_in, "iframe"))
    assert "small" in find(browser_in, "body").text
    browser_in.switch_to.default_content()
    shot("report")
    browser_in.switch_to.frame(find(browser_in, "iframe"))
    find(browser_in, "nav a").click()
    find(browser_in, "#tiles")
    browser_in.switch_to.default_content()
    # the task that loaded it leads to its page
    (run,) = airflow_server.call("/api/v2/dags/semi_stream_load/dagRuns")["dag_runs"][:1]
    task = f"/api/v2/dags/semi_stream_load/dagRuns/{run['dag_run_id']}/taskInstances/load"
    links = airflow_server.call(f"{task}/links?map_index=0")["extra_links"]
    assert links["Load"].endswith("/semistream/loads/small")
    # a button does what it says, as the user who is logged in
    browser_in.get(f"{airflow_server.url}/semistream/unmatched/small")
    find(browser_in, "#replay").click()
    assert "replay_unmatched was triggered: manual__" in find(browser_in, "#said").text


def test_page_links_the_latest_tuning_report(airflow_server, browser_in, shot, provisioned):
    """The report itself, of points that no app has measured."""
    home = airflow_server.home
    paths = Paths(home=home, warehouse_url=airflow_server.environment["WAREHOUSE_URL"])
    run = "manual__2026-01-01"
    form = {
        "job": str(provisioned.file),
        "memory": "500KB",
        "algorithms": ["meshjoin"],
        "grid": 1,
        "partitions": 1,
    }
    sweep = steps.sweep(run, paths)
    for point in sweep.begin(steps.from_form(TuneSettings, form)):
        sweep.record(point)
    sweep.publish()
    in_page(browser_in, airflow_server)
    assert "manual__2026-01-01 small" in find(browser_in, "#tuning").text
    shot("tuning")
    link = find(browser_in, "#tuning a")
    browser_in.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    browser_in.switch_to.frame(find(browser_in, "iframe"))
    # what auto would choose is one of them
    assert re.match(r"(\d+) points, \1 failed", find(browser_in, "#outcome").text)
    browser_in.switch_to.default_content()
    shot("sweep")


@pytest.mark.parametrize(
    "path", ["/", "/live", "/loads/small", "/loads/small/series", "/reports/index.html"]
)
def test_page_is_closed_to_strangers(airflow_server, path):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(airflow_server.url + "/semistream" + path)


def test_stop_is_closed_to_strangers_and_to_other_sites(airflow_server):
    url = airflow_server.url + "/semistream/apps/small/stop"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(url, method="POST"))
    airflow_server.call("/api/v2/dags")
    headers = {"Cookie": f"_token={airflow_server.token}", "Origin": "http://elsewhere.example"}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(url, method="POST", headers=headers))


@pytest.mark.parametrize("path", ["..%2Fwarehouse.db", "%2Fetc%2Fpasswd", "nothing.html"])
def test_reports_serve_nothing_else(airflow_server, path):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        airflow_server.call(f"/semistream/reports/{path}")


def test_unknown_app_cannot_be_stopped(airflow_server):
    airflow_server.call("/api/v2/dags")
    headers = {"Cookie": f"_token={airflow_server.token}", "Origin": airflow_server.url}
    url = airflow_server.url + "/semistream/apps/nothing/stop"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(urllib.request.Request(url, method="POST", headers=headers))
    assert not Path(airflow_server.home / "checkpoints" / "nothing").exists()


def test_a_job_is_loaded_when_files_arrive(airflow_server, put_jobs):
    """By the triggerer, which watches the directory."""
    server, dag = airflow_server, "load_filed"
    wait_until(lambda: server.knows(dag), "the bundle of jobs has been read")
    server.call(f"/api/v2/dags/{dag}", {"is_paused": False}, "PATCH")

    def runs() -> list[dict[str, Any]]:
        return server.call(f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]

    assert runs() == []
    put_jobs.add(500)
    ended = lambda: [run["state"] for run in runs() if run["state"] in ("success", "failed")]
    wait_until(ended, "loaded and proven", 400)
    assert ended() == ["success"] and runs()[0]["run_type"] == "asset_triggered"
    assert read_status(server.home / "checkpoints" / "filed").rows_read == 500
    server.call(f"/api/v2/dags/{dag}", {"is_paused": True}, "PATCH")
