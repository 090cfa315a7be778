"""The page "Semistream" without Airflow around it: on each database, with whatever it finds there,
and what browsers are told."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import delete, select, text

import sink_loads
from loads import until
from semistream.data_files import DataFile
from semistream.job import Job
from semistream.master.publish import publish_snapshot
from semistream.master.published import snapshot_root
from semistream.paths import Paths
from semistream.pipeline import drivers, overview, steps, summary
from semistream.positions import Kind
from semistream.reasons import Reason
from semistream.streaming.status import StatusFile, checkpoint_lock, stop_requested
from semistream.streaming.summary import InputTotals
from semistream.warehouse import connect, create_all
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.records import Commit, InputCounts, LoadRecord
from semistream.warehouse.schema import (
    load_batches,
    load_commits,
    load_files,
    load_inputs,
    load_rejections,
    master_changes,
    masters,
    quality_runs,
    rejected_master,
    tuning_runs,
    unmatched,
)
from semistream.warehouse.totals import read_totals

NOW = datetime(2026, 1, 2, 3, 4, 5)
HERE = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
JOB = Job.load(
    {
        "name": "sales",
        "stream": {"format": "csv", "path": "/data", "id": ["id"]},
        "dimensions": {"m": {"path": "/m.csv", "on": {"sku": "code"}}},
        "fact_table": "fact_sales",
    }
)


class Page:
    """The page's app with a home of its own, its login left out, and ways to fill what it shows."""

    def __init__(self, home: Path, url: str, app):
        self.paths, self.app = Paths(home=home, warehouse_url=url), app
        self.client = TestClient(app, base_url="http://localhost:8080")
        self.engine = connect(url)

    def get(self, path: str = "/"):
        return self.client.get(path)

    def live(self, path: str = "/live") -> str:
        """The HTML of the first event that a stream sends."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("semistream.airflow.page.STREAM_SECONDS", 0)
            sent = self.client.get(path)
        assert sent.headers["content-type"].startswith("text/event-stream")
        (event,) = re.findall(r"^event: page\ndata: (.*)\n\n", sent.text, re.MULTILINE)
        return json.loads(event)

    def fill(self) -> None:
        """Two batches and a drain of the app "sales" in two partitions, a proof and a tuning
        sweep."""
        create_all(self.engine)
        ledger = Ledger(self.engine, "sales")
        for batch, drain, rows, waiting in ((0, 0, 2500, 10), (1, 0, 1500, 7), (1, 1, 0, 0)):
            load(ledger, batch, drain, rows, waiting)
        key = ledger.load_id(0, 0, 0)
        with self.engine.begin() as c:
            c.execute(
                unmatched.insert(),
                {
                    "load_id": key,
                    "load_row": 0,
                    "fact_table": "fact_sales",
                    "reason": "no_match",
                    "stream_id": "1",
                    "tuple": "{}",
                },
            )
            c.execute(
                quality_runs.insert(),
                {
                    "app": "sales",
                    "fact_table": "fact_sales",
                    "started_at": NOW,
                    "seconds": 1.0,
                    "from_batch": None,
                    "to_batch": 1,
                    "to_drain": 1,
                    "success": 1,
                    "expectations": 12,
                    "failed": "[]",
                    "unseen": "[]",
                    "report": "nowhere.html",
                },
            )
            c.execute(
                tuning_runs.insert(),
                [
                    {
                        "sweep": "sweep one",
                        "point": n,
                        "job": "tpch",
                        "algorithm": "ssbj",
                        "memory": 4_000_000,
                        "partitions": 2,
                        "parameters": "{}",
                        "predicted_rate": 1.0,
                        "rate": 12345.0,
                        "rows_read": 1,
                        "seconds": 1.0,
                        "state": state,
                        "error": "",
                        "best": 1,
                        "recommended": int(n == 0),
                        "recorded_at": NOW,
                    }
                    for n, state in enumerate(("measured", "failed"))
                ],
            )

    def status(self, name: str) -> Path:
        """The status of an app that ran and was killed."""
        checkpoint = self.paths.checkpoints / name
        checkpoint.mkdir(parents=True)
        StatusFile(checkpoint, name).update(state="running", rows_read=4000, rate=765.4)
        return checkpoint


def shop() -> Job:
    """A job whose tuples may come late for one of its two roles."""
    of = {"path": "/c.csv", "on": {"customer": "code"}, "late": "resolve"}
    roles = {"customers": of, "products": {"path": "/p.csv", "on": {"sku": "code"}}}
    return Job.load(
        {
            "name": "shop",
            "stream": {"format": "csv", "path": "/data", "id": ["id"]},
            "dimensions": roles,
            "fact_table": "fact_shop",
        }
    )


def load(ledger: Ledger, batch: int, drain: int, rows: int, waiting: int) -> None:
    """A batch in two partitions, the second with one tuple more."""
    for partition in (0, 1):
        counts = InputCounts(
            "m",
            0,
            rows + partition,
            rows,
            {Reason.NO_MATCH: partition},
            waiting + partition,
            "s",
            "m",
            f"v{batch}",
        )
        ledger.load(
            LoadRecord(
                ledger.app,
                batch,
                drain,
                partition,
                "ssbj",
                (counts,),
                rows + partition,
                rows,
                rows,
                cache_hits=rows // 2,
                memory_budget=2_000_000,
                memory_peak=1_000_000 + batch,
            ),
            lambda c: None,
        )
    commit = Commit(
        ledger.app,
        batch,
        drain,
        "fact_sales",
        "sql",
        2,
        2 * rows + 1,
        JOB.to_ledger(),
        files=() if drain else (DataFile(f"/data/{batch}.csv", 1, 10**18),),
        run_started=1000.0 + batch,
        phases=json.dumps({"plan": 0.5, "read": 1.5}),
    )
    ledger.commit(commit)


class Rights:
    """An auth manager, and its only user. allowed: the methods and DAGs that the user may use,
    None: all."""

    allowed: set[tuple[str, str]] | None = None

    def is_authorized_dag(self, *, method, details, user, access_entity=None) -> bool:
        return self.allowed is None or (method, details.id) in self.allowed


@pytest.fixture
def rights(monkeypatch, airflow_plugins) -> Rights:
    from airflow.api_fastapi.core_api import security

    from semistream.airflow import page as semistream_page

    rights = Rights()
    monkeypatch.setattr(security, "get_auth_manager", lambda: rights)
    logged_in = {security.get_user: lambda: None}
    monkeypatch.setattr(semistream_page.app, "dependency_overrides", logged_in)
    return rights


@pytest.fixture
def make_page(tmp_path, monkeypatch, rights):
    from semistream.airflow import page as semistream_page

    def make(url: str) -> Page:
        monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("WAREHOUSE_URL", url)
        monkeypatch.setattr(semistream_page, "overview", semistream_page.Overview())
        return Page(tmp_path / "home", url, semistream_page.app)

    return make


@pytest.fixture
def page(make_page, tmp_path, monkeypatch):
    """On SQLite, filled. A request waits for its reading, also on a machine that is busy."""
    monkeypatch.setattr(overview, "WAREHOUSE_TIMEOUT", 60.0)
    page = make_page(f"sqlite:///{tmp_path / 'warehouse.db'}")
    page.fill()
    yield page
    page.engine.dispose()


def test_page_and_summary_on_both_databases(make_page, warehouse_url):
    from rich.console import Console

    page = make_page(warehouse_url)
    until(lambda: "No load has run yet" in page.get().text, what="the warehouse's tables are made")
    page.fill()
    checkpoint = page.status("sales")
    shown = page.get()
    assert shown.status_code == 200 and 'id="error"' not in shown.text
    for part in (
        'href="/loads/sales"',
        "fact_sales",
        "8,003",
        ">complete<",
        "batches 0 to 1, 12 checks",
        "<b>765</b>",
        "sweep one",
        "4.0 MB: ssbj, 12,345 tuples/s",
        "Killed while running.",
    ):
        assert part in shown.text, part
    load_page = page.get("/loads/sales").text
    for part in ("2.0 MB of 4.0 MB", "50.0%", "1 drain", "m v1", "csv /data", "m, on sku = code"):
        assert part in load_page, part
    of = page.get("/loads/sales/series").json()
    assert (of["name"], of["rows_read"]) == (["0", "1", "1 drain"], [5001, 3001, 1])
    assert of["rate"][:2] == [5001 / 2, 3001 / 2] and of["seconds"]["join"] == [None] * 3
    assert [*of["seconds"]] == ["plan", "schedule", "read", "join", "write", "commit"]
    assert of["rejected"] == {"m: no_match": [1, 1, 1]} and of["memory_peak"][1] == 2_000_002
    assert of["cache"][0] == 2500 / 5001
    assert [(mark["at"], mark["kind"]) for mark in of["marks"]] == [(1, "version"), (1, "run")]
    numbers = (
        "rows_read",
        "matched",
        "unmatched",
        "waiting",
        "output_rows",
        "service_rate",
        "cache_share",
        "memory_peak",
        "memory_budget",
        "batches",
    )
    (checkpoint / "summary.json").write_text(
        json.dumps(
            {
                "rejected": {},
                **dict.fromkeys(numbers, 1),
                "rows_read": 500,
                "master_version": "v000001",
                "seconds": 4,
                "median_wait": 0.25,
                "longest_wait": 3.5,
            }
        )
    )
    screen = Console(width=120, record=True, file=StringIO())
    told = summary.final_summary("sales", page.paths)
    assert told.rejected_master == 0
    screen.print(summary.summary_table(told))
    told = screen.export_text()
    assert re.search(r"service rate +│ +1 tuples/s", told)
    assert re.search(r"end to end +│ +125 tuples/s", told)
    assert re.search(r"median wait for master data +│ +0.25 s", told)
    assert re.search(r"longest wait for master data +│ +3.5 s", told)
    assert "master rows left out" not in told
    with page.engine.begin() as c:
        row = {"reason": "unparsable", "detail": "", "tuple": "", "rejected_at": NOW}
        master = c.scalar(select(load_inputs.c.dimension).limit(1))
        c.execute(
            rejected_master.insert(),
            [{"master": name} | row for name in (master, master, "another's")],
        )
    screen.print(summary.summary_table(summary.final_summary("sales", page.paths)))
    assert re.search(r"master rows left out\W+2\b", screen.export_text())
    assert "8,003" in told and "no_match" in told and "2.0 MB of 4.0 MB" in told and "yes" in told
    assert steps.loaded_apps(page.paths) == ["sales"]
    # the whole fails, and then only what is new is found right
    with page.engine.begin() as connection:
        for n, success in enumerate((0, 1)):
            connection.execute(
                quality_runs.insert().values(
                    app="sales",
                    fact_table="fact_sales",
                    started_at=NOW,
                    seconds=1.0,
                    from_batch=1 if n else None,
                    from_drain=0 if n else None,
                    to_batch=1,
                    to_drain=0,
                    success=success,
                    expectations=12,
                    failed="[]" if success else '["fact_rows"]',
                    unseen="[]",
                    report="",
                )
            )
    open_failure = "NO: batches 0 to 1 failed fact_rows on 2026-01-02 03:04 UTC"
    assert open_failure in summary.final_summary("sales", page.paths).complete
    shown = page.get().text
    assert "batches 0 to 1 failed fact_rows" in shown and "The proof failed: fact_rows." in shown
    assert {"at": 1, "kind": "proof", "text": "proof failed: fact_rows"} in page.get(
        "/loads/sales/series"
    ).json()["marks"]
    page.engine.dispose()


def test_a_load_whose_source_has_more_is_complete_so_far(page, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    stream = JOB.stream.model_copy(update={"path": str(tmp_path / "in")})
    with page.engine.begin() as connection:
        job = JOB.model_copy(update={"stream": stream}).to_ledger()
        connection.execute(load_commits.update().values(job=job))
    page.status("sales")
    assert ">complete<" in page.get().text
    (tmp_path / "in" / "2.csv").touch()
    assert ">complete<" in page.get().text, "a source is not listed each time"
    monkeypatch.setattr(overview, "LISTED", 0.0)
    shown = page.get().text
    line = shown.partition(">complete so far<")[2][:500]
    assert ">complete so far<" in shown and ">complete<" not in shown
    assert "1 file of the source is not loaded yet; proven are batches 0 to 1, 12 checks" in line
    assert "0 complete" in shown


def test_the_unmatched_tuples_of_an_app_have_a_page(make_page, loader):
    loader.load(range(1))
    loader.commit(1, 0, [{**sink_loads.orders(1)[0], "sku": "<b>p00"}])
    page = make_page(loader.url)
    assert ">9 unmatched</a>" in page.get().text
    shown = page.get("/unmatched/sales").text
    assert "no_match in sales: 5 tuples of 5 keys" in shown and "&lt;b&gt;p00" in shown
    assert (
        "id 9" in shown
        and "<b>" not in shown
        and "The nearest keys of sales are not known" in shown
    )
    assert 'href="/dags/replay_unmatched"' in shown
    missing = page.get("/unmatched/sale")
    assert missing.status_code == 404 and "Did you mean sales?" in missing.text


def tile_in(html: str, app: str) -> str:
    return html.partition(f'id="tile-{app}"')[2].partition("</article>")[0]


def join_again(page: Page) -> None:
    """An app of two roles with 76 tuples, of which 44 were matched, 24 had no row in a role and 8
    could not be read; 9 of the 24 were joined again, and became facts."""
    ledger = Ledger(page.engine, "shop")
    lost = {
        ("customers", Reason.UNPARSABLE): 8,
        ("customers", Reason.NO_MATCH): 10,
        ("products", Reason.NO_MATCH): 14,
    }

    def counts(role: str, read: int, matched: int, resolved: int) -> InputCounts:
        rejected = {reason: n for (of, reason), n in lost.items() if of == role and read > 9}
        version = (0, "s", role, "v1")
        return InputCounts(role, 0, read, matched, rejected, *version, resolved=resolved)

    for drain, read, resolved in ((Kind.BATCH, 76, 0), (Kind.RESOLVE, 0, 9)):
        first = read - 18 if read else resolved
        last = read - 32 if read else resolved
        inputs = (counts("customers", read, first, resolved), counts("products", first, last, 0))
        ledger.load(
            LoadRecord("shop", 0, drain, 0, "ssbj", inputs, read, last, last, resolved=resolved),
            lambda c: None,
        )
        ledger.commit(Commit("shop", 0, drain, "fact_shop", "sql", 1, read, shop().to_ledger()))
    kept = [kind for kind, n in lost.items() for _ in range(n)]
    with page.engine.begin() as c:
        c.execute(
            unmatched.insert(),
            [
                {
                    "load_id": ledger.load_id(0, 0, 0),
                    "load_row": n,
                    "fact_table": "fact_shop",
                    "reason": reason,
                    "role": None if reason == Reason.UNPARSABLE else role,
                    "stream_id": str(n),
                    "tuple": json.dumps({"id": n}),
                    "resolved_by": ledger.load_id(0, 2, 0) if n >= 23 else None,
                }
                for n, (role, reason) in enumerate(kept)
            ],
        )


def test_what_was_joined_again_is_where_it_is_now_in_all_numbers(page, browser):
    from browser import find

    join_again(page)
    (page.status("shop") / "summary.json").write_text("{}")
    tile = tile_in(page.get().text, "shop")
    assert "<b>69.7%</b>" in tile and ">23 unmatched</a>" in tile  # 53 of 76
    assert "<small>1 batch</small>" in tile and "; 10 have no match still, the" in tile
    told = summary.final_summary("shop", page.paths)
    assert told.reasons == {"no_match": 15, "unparsable": 8} and told.total.open == 23
    assert {role: of.unmatched for role, of in told.inputs.items()} == {
        "customers": 10,
        "products": 5,
    }
    assert summary.standing(["shop"], page.paths)["shop"].totals.open == 23
    rejected = page.get("/loads/shop/series").json()["rejected"]
    assert {kind: sum(of) for kind, of in rejected.items()} == {
        "customers: no_match": 10,
        "products: no_match": 14,
        "unparsable": 8,
    }
    with page.engine.begin() as c:
        run = {"app": "shop", "fact_table": "fact_shop", "started_at": NOW, "seconds": 1.0}
        run |= {"success": 1, "expectations": 1, "failed": "[]", "unseen": "[]", "report": ""}
        run |= {"to_batch": 1, "to_drain": 0, "outdated": 1}
        c.execute(quality_runs.insert(), run)
    with Served(page.app) as url:
        browser.get(url + "loads/shop")
        find(browser, "#rejected")
        rows = [
            [cell.text for cell in row.find_elements("css selector", "th, td")]
            for row in browser.find_elements("css selector", "#rejected tbody tr")
        ]
        assert rows == [
            ["products", "no_match", "14", "5", '{"id": 18}'],
            ["customers", "no_match", "10", "10", '{"id": 8}'],
            ["–", "unparsable", "8", "8", '{"id": 0}'],
        ]
        assert "taken out since" in find(browser, "#quality").text
    browser.get("about:blank")


def test_the_numbers_of_a_role_are_of_all_loads_in_whatever_order_they_joined(page):
    ledger = Ledger(page.engine, "shop")
    for batch, roles in enumerate((("customers", "products"), ("products", "customers"))):
        inputs = tuple(
            InputCounts(
                role, 0, 10, 10, {}, 0, "s", role, "v1", missed=3 + batch, lacking=2, inferred=1
            )
            for role in roles
        )
        record = LoadRecord("shop", batch, 0, 0, "ssbj", inputs, 10, 10, 10)
        ledger.load(record, lambda c: None)
        ledger.commit(Commit("shop", batch, 0, "fact_shop", "sql", 1, 10, JOB.to_ledger()))
    (page.status("shop") / "summary.json").write_text("{}")
    of_role = InputTotals(unmatched=0, missed=7, lacking=4, inferred=2)
    told = summary.final_summary("shop", page.paths).inputs
    assert told == {"customers": of_role, "products": of_role}


def test_a_load_that_a_console_started_has_the_command_to_start_it_again(page):
    checkpoint = page.status("sales")
    launch = {"pid": 1, "started": 1, "host": socket.gethostname(), "at": 1.0}

    def shown(owner: str) -> str:
        (checkpoint / "driver.json").write_text(json.dumps(launch | {"owner": owner}))
        tile = tile_in(page.get().text, "sales")
        assert "Killed while running" in tile
        return tile

    for owner, command in (
        (
            "semistream load 'my jobs/sales.yaml', 1796",
            "semistream load &#39;my jobs/sales.yaml&#39;",
        ),
        ("semistream load, 1796", "semistream load JOB --app sales"),  # of an earlier version
    ):
        tile = shown(owner)
        assert f"Airflow did not start it: <code>{command}</code>" in tile
        assert "/runs/" not in tile and "Start again</button>" not in tile
    tile = shown("load_own manual__1 -1")
    assert "/dags/load_own/runs/manual__1" in tile and "Start again</button>" in tile


def test_totals_go_on_from_what_is_known(warehouse):
    ledger = Ledger(warehouse, "sales")
    load(ledger, 0, 0, 100, 5)
    with warehouse.connect() as c:
        known = read_totals(c)
        assert (known["sales"].rows_read, known["sales"].waiting, known["sales"].batches) == (
            201,
            11,
            1,
        )
        assert read_totals(c, known=known)["sales"] is known["sales"]
    load(ledger, 0, 1, 0, 0)
    load(Ledger(warehouse, "other"), 0, 0, 7, 0)
    load(ledger, 1, 0, 50, 2)
    with warehouse.begin() as c:
        first = ledger.load_id(0, 0, 0)
        for table in (load_batches, load_inputs):
            c.execute(delete(table).where(table.c.load_id.between(first, first + 1)))
    # nothing known already is read again: what is not there any more counts still
    with warehouse.connect() as c:
        totals = read_totals(c, known=known)
        assert list(totals) == ["other", "sales"] and totals["sales"].rows_read == 201 + 1 + 101
        assert (
            totals["sales"].batches,
            totals["sales"].waiting,
            totals["sales"].master_version,
        ) == (2, 5, "v1")
        assert totals["sales"].memory_peak == 2_000_002
        assert list(read_totals(c, "other")) == ["other"]
        assert read_totals(c, "other")["other"] == totals["other"]


def test_totals_of_an_app_that_was_begun_anew_are_its_new_ones(warehouse):
    ledger = Ledger(warehouse, "sales")
    for batch in range(3):
        load(ledger, batch, 0, 100, 0)
    with warehouse.connect() as c:
        known = read_totals(c)
    with warehouse.begin() as c:
        for table in (load_rejections, load_inputs, load_batches, load_files, load_commits):
            c.execute(delete(table))
    for batch in range(4):
        load(ledger, batch, 0, 1, 0)
    with warehouse.begin() as c:
        c.execute(load_commits.update().values(committed_at=NOW))
    with warehouse.connect() as c:
        assert read_totals(c, known=known) == read_totals(c)
        assert read_totals(c)["sales"].rows_read == 12


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 500,
        b"[]",
        b'{"state": "running"}',
        b'{"state": "odd", "pid": 1, "host": "h", "heartbeat": "never"}',
    ],
    ids=["empty", "zeros", "list", "partial", "odd"],
)
def test_a_damaged_status_is_shown_as_such(page, content):
    checkpoint = page.status("broken")
    page.status("whole")
    (checkpoint / "status.json").write_bytes(content)
    (checkpoint / "driver.json").write_bytes(content)
    shown = page.get()
    assert shown.status_code == 200 and "unknown" in shown.text and "cannot be read" in shown.text
    assert "killed" in shown.text
    with checkpoint_lock(checkpoint):
        assert 'action="/apps/broken/stop"' in page.get().text


def test_a_damaged_status_is_told_on_the_console_and_the_app_can_be_stopped(page, capsys):
    from semistream import cli

    checkpoint = page.status("broken")
    (checkpoint / "status.json").write_bytes(b"")
    assert cli.main(["status"]) == 0 and "cannot be read" in capsys.readouterr().out
    assert cli.main(["stop", "broken"]) == 0 and stop_requested(checkpoint)
    assert cli.main(["status", "never"]) == 2


@pytest.mark.parametrize(
    "command", [["verify", "sales"], ["reset", "sales"], ["provision", "tpch"]], ids=" ".join
)
def test_a_server_that_is_not_there_is_told_on_the_console_in_one_line(
    monkeypatch, tmp_path, capsys, command
):
    from semistream import cli

    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    monkeypatch.setenv("WAREHOUSE_URL", "mysql+pymysql://u:hush-hush@127.0.0.1:1/dw")
    assert cli.main(command) == 1
    told = capsys.readouterr().err
    assert told.startswith("Failed: ") and "Can't connect" in told and told.count("\n") == 1
    assert "hush" not in told


def test_what_was_read_is_shown_with_its_age_when_the_warehouse_is_gone(
    page, tmp_path, monkeypatch
):
    from semistream.airflow import page as semistream_page

    assert "8,003" in page.get().text
    page.engine.dispose()
    file = tmp_path / "warehouse.db"
    file.rename(tmp_path / "away.db")
    file.write_bytes(b"no database" * 1000)
    semistream_page.overview._read = semistream_page.overview._read.__class__(
        **{**vars(semistream_page.overview._read), "at": time.monotonic() - 90}
    )
    shown = page.live()
    assert "8,003" in shown and "The warehouse does not answer" in shown and "90 s ago" in shown
    for beside in tmp_path.glob("warehouse.db*"):
        beside.unlink()
    (tmp_path / "away.db").rename(file)
    assert "does not answer" not in page.live()


def test_a_ledger_that_was_removed_is_missed_and_made_anew(page):
    page.get()
    with page.engine.begin() as c:
        for name in ("load_commits", "load_batches", "quality_runs"):
            c.execute(text(f"DROP TABLE {name}"))
    shown = page.get().text
    assert "no such table" in shown and "8,003" in shown
    shown = page.get().text
    assert "No load has run yet" in shown and 'id="error"' not in shown


def test_a_server_that_is_not_there_or_says_nothing_does_not_hold_the_page_up(make_page):
    page = make_page("mysql+pymysql://u:secret@127.0.0.1:1/dw")
    page.status("sales")
    shown = page.get().text
    assert "The warehouse does not answer" in shown and "sales" in shown and "secret" not in shown
    assert "No load has run yet" not in shown
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        page = make_page(f"mysql+pymysql://u:secret@127.0.0.1:{silent.getsockname()[1]}/dw")
        begun = time.monotonic()
        for _ in range(2):
            assert "The warehouse has not answered yet" in page.live()
        assert time.monotonic() - begun < 8


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql//u:secret@h/d",
        "mysql+pymysql://u:secret@h:port/d",
        "oracle://u:secret@h/d",
        "?",
    ],
)
def test_a_warehouse_that_cannot_be_is_told_without_its_password(
    tmp_path, monkeypatch, make_page, url
):
    from semistream.airflow import page as semistream_page

    make_page(f"sqlite:///{tmp_path / 'warehouse.db'}").engine.dispose()
    monkeypatch.setenv("WAREHOUSE_URL", url)
    shown = TestClient(semistream_page.app).get("/").text
    assert "WAREHOUSE_URL" in shown and "must" in shown and "secret" not in shown


def test_ended_loads_are_dismissed_until_they_run_again(page):
    page.status("dead")
    alive = page.status("alive")

    def tiles(path: str = "/") -> list[str]:
        return sorted(re.findall('id="tile-(.*?)"', page.get(path).text))

    with checkpoint_lock(alive):
        for name in ("dead", "alive"):
            page.client.post(f"/apps/{name}/dismiss", headers=HERE)
        assert tiles() == ["alive", "sales"] and "1 dismissed" in page.get().text
        assert tiles("/?dismissed=true") == ["alive", "dead", "sales"]
        assert "tile-dead" not in page.live() and "tile-dead" in page.live("/live?dismissed=true")
        page.client.post("/apps/dead/dismiss?again=true", headers=HERE)
        assert tiles() == ["alive", "dead", "sales"]
        page.client.post("/apps/dead/dismiss", headers=HERE)
        StatusFile(page.paths.checkpoints / "dead", "dead").update(state="failed", error="gone")
        assert tiles() == ["alive", "dead", "sales"]
    assert page.client.post("/apps/nothing/dismiss", headers=HERE).status_code == 404
    assert page.client.post("/apps/dead/dismiss").status_code == 403


def test_a_dimension_has_a_page(page):
    table = pa.table({"code": ["a", "b"], "m_sk": [1, 2]})
    for rows in (1, 2):
        root = snapshot_root(page.paths.snapshots, "m", ["code"])
        publish_snapshot(table[:rows].to_batches(), table.schema, root, "m", ["code"])
    with page.engine.begin() as c:
        c.execute(
            masters.insert(),
            {
                "name": "m",
                "table_name": "dim_m",
                "arrow_schema": "",
                "business_key": '["code"]',
                "changes": 2,
                "rows": 3,
                "provisioned_at": NOW,
            },
        )
        row = {"master": "m", "reason": "null_key", "tuple": '{"code": null}', "rejected_at": NOW}
        c.execute(rejected_master.insert(), row)
        at = int(NOW.replace(tzinfo=UTC).timestamp() * 1e9)
        change = {"master": "m", "changes": at, "inserted": 4321, "updated": 7, "rejected": 1}
        c.execute(master_changes.insert(), change)
    assert 'href="/dimensions/m"' in page.get().text
    shown = re.sub(r"\s+", " ", page.get("/dimensions/m").text)
    for part in ("dim_m", "+1<", "1 null_key", "{&#34;code&#34;: null}", "/loads/sales", "v000002"):
        assert part in shown, part
    cells = re.findall(r"<t[dh] [^>]*>(?:<time[^>]*>)?([^<]*)<", shown.partition('id="changes"')[2])
    assert cells[4:8] == ["2026-01-02 03:04 UTC", "4,321", "7", "1"]
    assert shown.index("v000002") < shown.index("current") < shown.index("v000001")
    missing = page.get("/dimensions/n")
    assert missing.status_code == 404 and "They are: m." in missing.text


def requests(app, name: str, report: str) -> dict[str, str]:
    """The method of each request, by its path, with a load and a report."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    values = {"{name}": name, "{path:path}": report}
    found = {}
    for route in routes:
        path = route.path
        for part, value in values.items():
            path = path.replace(part, value)
        (found[path],) = route.methods
    return found


def test_no_route_is_open_to_those_who_are_not_logged_in(page):
    page.app.dependency_overrides.clear()
    asked = requests(page.app, "sales", "index.html")
    assert len(asked) > 10
    for path, method in asked.items():
        answer = page.client.request(method, path, headers=HERE)
        assert answer.status_code == 401, path


def test_a_load_is_for_those_who_may_use_its_dag(page, rights, monkeypatch):
    """Of two loads, one is of a DAG of its own, and one of no DAG; likewise their reports."""
    monkeypatch.setattr("semistream.airflow.page.STREAM_SECONDS", 0)
    for dag in ("VERIFY", "REPLAY"):  # what may be triggered is not found
        monkeypatch.setattr(f"semistream.airflow.page.{dag}", "of_nobody")
    for name in ("own", "sales"):
        report = page.paths.reports / "validations" / name / "batches" / "now" / "r.html"
        report.parent.mkdir(parents=True)
        report.write_text(f"report of {name}")
        page.status(name)
    drivers.launch(["true"], page.paths.checkpoints / "own", "load_own manual__1 -1", {})

    def refused(name: str) -> set[str]:
        asked = requests(page.app, name, f"validations/{name}/batches/now/r.html")
        return {
            path
            for path, method in asked.items()
            if page.client.request(method, path, headers=HERE).status_code == 403
        }

    def tiles() -> list[str]:
        first, later = page.get().text, page.live()
        found = [sorted(re.findall('id="tile-(.*?)"', shown)) for shown in (first, later)]
        assert found[0] == found[1]
        assert ("Dimensions" in first) == (("GET", "semi_stream_load") in rights.allowed)
        return found[0]

    edits = {"/apps/own/stop", "/apps/own/dismiss"}
    triggers = {"/apps/own/verify", "/apps/own/replay"}
    rights.allowed = set()
    everything = requests(page.app, "own", "validations/own/batches/now/r.html").keys()
    assert tiles() == [] and refused("own") == everything - {"/", "/live"}
    assert "No load that you may read" in page.get().text
    rights.allowed = {("GET", "load_own")}
    assert tiles() == ["own"] and refused("own") == {*edits, *triggers, "/dimensions/own"}
    assert len(refused("sales")) == len(everything) - 2
    assert page.get("/reports/index.html").status_code == 403
    climbing = "/reports/validations/own/%2e%2e/sales/batches/now/r.html"
    assert page.get(climbing).status_code == 403
    rights.allowed.add(("PUT", "load_own"))
    assert tiles() == ["own"] and refused("own") == {*triggers, "/dimensions/own"}
    rights.allowed = {(method, "semi_stream_load") for method in ("GET", "PUT", "POST")}
    assert tiles() == ["sales"] and refused("sales") == set()
    assert len(refused("own")) == len(everything) - 3  # a dimension is not a load's


def test_dismissed_loads_of_others_are_not_counted(page, rights):
    page.status("own")
    drivers.launch(["true"], page.paths.checkpoints / "own", "load_own manual__1 -1", {})
    until(lambda: not drivers.is_alive(page.paths.checkpoints / "own"), what="it ends")
    page.client.post("/apps/own/dismiss", headers=HERE)
    assert "1 dismissed" in page.get().text
    rights.allowed = {("GET", "semi_stream_load")}
    assert "dismissed" not in page.get().text


def test_tuples_are_joined_again_by_those_who_may_trigger_the_load(make_page, loader, rights):
    loader.load(range(1))
    page = make_page(loader.url)
    assert 'id="replay"' in page.get("/unmatched/sales").text
    rights.allowed = {("GET", "semi_stream_load"), ("PUT", "semi_stream_load")}
    assert 'id="replay"' not in page.get("/unmatched/sales").text


def test_a_tile_has_the_buttons_of_what_its_reader_may_do(page, rights):
    checkpoint, owner = page.status("sales"), "load_own manual__1 -1"
    launch = {"pid": 1, "started": 1, "host": socket.gethostname(), "owner": owner, "at": 1.0}
    (checkpoint / "driver.json").write_text(json.dumps(launch))
    with page.engine.begin() as connection:
        connection.execute(delete(quality_runs))  # so that there is something to verify

    def buttons() -> set[str]:
        pages = (page.get().text, page.live())
        pages += (page.get("/loads/sales").text, page.live("/loads/sales/live"))
        names = "verify|restart|stop|dismiss"
        (found,) = {frozenset(re.findall(f'id="({names})-sales"', shown)) for shown in pages}
        return {*found}

    rights.allowed = {("GET", "load_own"), ("GET", "semi_stream_load")}
    assert buttons() == set()
    with checkpoint_lock(checkpoint):
        assert buttons() == set()
    rights.allowed.add(("POST", "load_own"))
    assert buttons() == {"verify"}
    rights.allowed.add(("PUT", "load_own"))
    assert buttons() == {"verify", "restart", "dismiss"}
    with checkpoint_lock(checkpoint):
        assert buttons() == {"stop"}


@pytest.fixture
def dags_of_loads(airflow_environment):
    """The DAGs that the page triggers, as Airflow's processor stores them. It has done so already
    if tests before ran them."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    folder = Path(airflow_environment["AIRFLOW__CORE__DAGS_FOLDER"])
    with create_session() as session:
        session.add(DagBundleModel(name="of_loads"))
        known = {*session.scalars(select(DagModel.dag_id))}
    for name in {"verify_completeness", "replay_unmatched"} - known:
        bag = DagBag(folder / f"{name}.py", bundle_path=folder, bundle_name="of_loads")
        sync_bag_to_db(bag, "of_loads", None)
    yield
    with create_session() as session:
        session.execute(delete(DagModel).where(DagModel.bundle_name == "of_loads"))
        session.execute(delete(DagBundleModel).where(DagBundleModel.name == "of_loads"))


@pytest.mark.slow
def test_the_right_to_trigger_a_load_is_enough_for_its_replay_and_its_verification(
    page, rights, dags_of_loads, monkeypatch
):
    """The user may do nothing with the DAGs that are run, and nothing with another load."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api import security
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    ann = {security.get_user: lambda: SimpleAuthManagerUser(username="ann", role=None)}
    monkeypatch.setattr(page.app, "dependency_overrides", ann)
    page.status("own")
    drivers.launch(["true"], page.paths.checkpoints / "own", "load_own manual__1 -1", {})
    rights.allowed = {("GET", "load_own"), ("POST", "load_own")}
    for what, dag, conf in (
        ("verify", "verify_completeness", {"app": "own", "since_last": False}),
        ("replay", "replay_unmatched", {"app": "own"}),
    ):
        answer = page.client.post(f"/apps/own/{what}", headers=HERE)
        assert answer.status_code == 200, answer.text
        with create_session() as session:
            hers = (DagRun.dag_id == dag, DagRun.triggering_user_name == "ann")
            (run,) = session.scalars(select(DagRun).where(*hers)).all()
            assert answer.json() == {"dag": dag, "run": run.run_id}
            assert (run.conf, run.state) == (conf, "queued")
            session.delete(run)
        assert page.client.post(f"/apps/sales/{what}", headers=HERE).status_code == 403
        assert page.client.post(f"/apps/own/{what}").status_code == 403, "of another origin"


def test_a_dag_that_airflow_does_not_have_cannot_be_run(page, rights, monkeypatch):
    monkeypatch.setattr("semistream.airflow.page.VERIFY", "of_nobody")
    answer = page.client.post("/apps/sales/verify", headers=HERE)
    assert answer.status_code == 404 and "of_nobody" in answer.json()["detail"]


def test_a_tile_leads_to_the_spark_ui_of_a_driver_that_runs(page):
    running = page.status("running")
    StatusFile(running, "running").update(state="running", spark_ui="http://driver:4040")
    assert "/spark/" not in page.get().text
    with checkpoint_lock(running):
        assert 'href="/spark/running"' in page.get().text
        answer = page.client.get("/spark/running", follow_redirects=False)
        assert answer.headers["location"] == "http://driver:4040"


@pytest.fixture
def on_files():
    """The DAGs load_own and load_other as Airflow has them, which files start."""
    from airflow.models.asset import AssetModel, DagScheduleAssetReference
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(DagBundleModel(name="on_files"))
        session.flush()
        for job in ("own", "other"):
            asset = AssetModel(uri=f"semistream://files/{job}", group="on_files")
            dag = DagModel(
                dag_id=f"load_{job}",
                bundle_name="on_files",
                is_stale=False,
                is_paused=False,
                timetable_description="Triggered by assets",
            )
            session.add_all([asset, dag])
            session.flush()
            session.add(DagScheduleAssetReference(asset_id=asset.id, dag_id=dag.dag_id))
    yield
    with create_session() as session:
        session.execute(delete(DagModel).where(DagModel.bundle_name == "on_files"))
        session.execute(delete(DagBundleModel).where(DagBundleModel.name == "on_files"))
        session.execute(delete(AssetModel).where(AssetModel.group == "on_files"))


def test_what_waits_for_files_is_told(page, rights, on_files):
    rights.allowed = {("GET", "load_own")}
    shown = re.sub("<.*?>", "", page.get().text)
    assert "load_own waits for files." in shown and "load_other" not in shown
    page.status("own")
    drivers.launch(["true"], page.paths.checkpoints / "own", "load_own manual__1 -1", {})
    until(lambda: not drivers.is_alive(page.paths.checkpoints / "own"), what="it ends")
    for shown in (page.get().text, page.get("/loads/own").text):
        assert re.search("<dt>Next run</dt><dd>waits for files<", shown)
        assert "load_own waits" not in re.sub("<.*?>", "", shown)


def test_the_page_is_found_behind_a_proxy_that_gives_airflow_a_path(airflow_plugins):
    """Airflow's UI takes a leading slash for the root of the whole site."""
    from semistream.airflow.plugin import SemistreamPlugin

    (view,), (mounted,) = SemistreamPlugin.external_views, SemistreamPlugin.fastapi_apps
    assert "/" + view["href"] == mounted["url_prefix"] + "/"


def test_browsers_are_told_what_an_answer_may_do(page):
    reports = page.paths.reports
    reports.mkdir(parents=True)
    (reports / "r.html").write_text("<script>alert(1)</script>")
    for path in (
        "/",
        "/loads/sales",
        "/loads/sales/series",
        "/report/r.html",
        "/reports/r.html",
        "/reports/no.html",
        "/static/semistream.js",
    ):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        for directive in ("default-src 'none'", "frame-ancestors 'self'", "base-uri 'none'"):
            assert directive in policy, path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["x-frame-options"] == "SAMEORIGIN", path
    assert "script-src" not in page.get("/reports/r.html").headers["content-security-policy"]
    for path in ("/", "/loads/sales"):
        assert "<script>" not in page.get(path).text and "<style" not in page.get(path).text


@pytest.mark.parametrize("path", ["%00", "a%00.html", "x" * 300, "%2e%2e%2fwarehouse.db", ".", ""])
def test_what_is_no_report_is_not_found(page, path):
    page.paths.reports.mkdir(parents=True)
    assert page.get(f"/reports/{path}").status_code == 404


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("localhost:8080", "http://localhost:8080", True),
        ("127.0.0.1:8080", "http://127.0.0.1:8080", True),
        ("inner:8080", "https://airflow.example", True),  # a proxy asks under a name of its own
        ("localhost:8080", "http://localhost:9999", False),
        # a name that was made to lead here
        ("rebound.example:8080", "http://rebound.example:8080", False),
        ("airflow.example", "http://airflow.example", False),
        ("localhost:8080", "null", False),
        ("localhost:8080", None, False),
    ],
)
def test_a_stop_comes_from_the_page_itself(page, monkeypatch, host, origin, allowed):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/path")
    checkpoint = page.status("sales")
    headers = {"Host": host} | ({"Origin": origin} if origin else {})
    answer = page.client.post("/apps/sales/stop", headers=headers, follow_redirects=False)
    assert answer.status_code == (303 if allowed else 403) and stop_requested(checkpoint) == allowed


class Served:
    """The page as it is mounted, on a port of its own, again and again."""

    def __init__(self, app):
        self.app = FastAPI()
        self.app.mount("/semistream", app)
        with socket.create_server(("127.0.0.1", 0)) as s:
            self.port = s.getsockname()[1]

    def __enter__(self) -> str:
        self._server = uvicorn.Server(
            uvicorn.Config(self.app, port=self.port, log_level="error", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server.started, 30, "the server")
        return f"http://localhost:{self.port}/semistream/"

    def __exit__(self, *_) -> None:
        self._server.should_exit = True
        self._thread.join()


def test_a_browser_tells_how_old_the_page_is_when_airflow_is_gone(page, browser, tmp_path):
    """In the states that are shown worst: a damaged status, a dead app, a warehouse that is away;
    then nobody answers at all."""
    from browser import find, forbidden

    (page.status("broken") / "status.json").write_bytes(b"")
    page.status("dead")
    served = Served(page.app)

    def told(css: str) -> str:  # in one step, as it is drawn anew
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return browser.execute_script(script, css)

    with served as url:
        browser.get(url)
        assert "8,003" in told("#tile-sales")
        assert "unknown" in told("#tile-broken")
        # its style is let in
        assert find(browser, "h1").value_of_css_property("font-size") == "20px"
        assert re.match(r"2026-01-02 \d\d:\d\d$", told("#tile-sales time"))
        page.engine.dispose()
        for file in tmp_path.glob("warehouse.db*"):
            file.rename(tmp_path / f"away-{file.name}")
        (tmp_path / "warehouse.db").write_bytes(b"no database" * 1000)
        until(lambda: "s ago" in told("#error"), 60, "the age of what is shown")
        assert "8,003" in told("#tile-sales")
        assert forbidden(browser) == []
    until(lambda: "Airflow does not answer. What is shown" in told("#stale"), 60, "its age")
    assert "8,003" in told("#tile-sales")
    with served:
        until(lambda: not browser.find_element("id", "stale").is_displayed(), 60, "an answer")
        button = find(browser, "#dismiss-dead")
        browser.execute_script("arguments[0].click()", button)
        until(lambda: "8,003" in told("#tiles") and "dead" not in told("#tiles"), 60, "it is gone")
    browser.get("about:blank")


AXE = Path(__file__).parent / "axe" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
# parts of a tile that are cut off, or lie outside of it; and whether the page is wider than it may
CUT_OFF = """
const cut = [...document.querySelectorAll(".tile *")].filter((part) => {
  const tile = part.closest(".tile").getBoundingClientRect();
  const scrolls = part.clientWidth && part.scrollWidth > part.clientWidth + 1;
  return scrolls || part.getBoundingClientRect().right > tile.right + 1;
});
const wide = document.documentElement.scrollWidth > innerWidth;
return [...cut.map((part) => part.outerHTML), ...(wide ? ["the page"] : [])];
"""


def test_all_pages_can_be_read_by_all_at_each_width_and_in_both_themes(page, browser, tmp_path):
    """Loads that are running, failed, killed, and complete with unmatched tuples."""
    from browser import find, forbidden

    page.status("sales")
    running, failed = page.status("running_under_a_name_that_is_rather_long"), page.status("failed")
    StatusFile(failed, "failed").update(
        state="failed", error="ConfigError: no such directory", refused=True
    )
    owner = "semi_stream_load manual__2026-01-01 0"
    launch = {"pid": 1, "started": 1, "host": socket.gethostname(), "owner": owner, "at": 1.0}
    (failed / "driver.json").write_text(json.dumps(launch))
    with page.engine.begin() as c:
        declared = {"arrow_schema": "", "business_key": "[]", "changes": 1, "rows": 3}
        row = {"name": "m", "table_name": "dim_m", "provisioned_at": NOW, **declared}
        c.execute(masters.insert(), row)
    with checkpoint_lock(running), Served(page.app) as url:
        for path in ("", "loads/sales", "dimensions/m", "unmatched/sales"):
            browser.get(url + path)
            find(browser, ".chart canvas" if path.startswith("loads") else "h1")
            browser.execute_script(AXE.read_text())
            for width in (360, 768, 1440):
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                for theme in ("light", "dark"):
                    browser.execute_script(
                        "localStorage.setItem('theme', arguments[0]);"
                        "dispatchEvent(new StorageEvent('storage', {key: 'theme'}))",
                        theme,
                    )
                    assert find(browser, f"[data-theme={theme}] h1"), theme
                    assert browser.execute_script(CUT_OFF) == [], (path, width)
                    found = browser.execute_async_script(
                        "axe.run(document, {runOnly: arguments[0]}).then(arguments[1])", RULES
                    )
                    wrong = [
                        (of["id"], node["html"], node["failureSummary"])
                        for of in found["violations"]
                        for node in of["nodes"]
                    ]
                    assert wrong == [], (path, width, theme)
                    name = f"{path.partition('/')[0] or 'overview'}-{width}-{theme}.png"
                    browser.save_screenshot(str(tmp_path / name))
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert forbidden(browser) == []
        browser.execute_script("localStorage.clear()")
    browser.get("about:blank")


def test_charts_show_the_numbers_under_the_pointer_and_as_a_table_of_what_is_zoomed_to(
    page, browser
):
    from selenium.webdriver.common.action_chains import ActionChains

    from browser import find

    ledger = Ledger(page.engine, "sales")
    for batch in range(2, 12):
        load(ledger, batch, 0, 1000 * batch, 0)
    with Served(page.app) as url:
        browser.get(url + "loads/sales")
        over = find(browser, ".chart .u-over")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", over)
        width = over.size["width"]

        def pointer(x: float) -> ActionChains:
            return ActionChains(browser).move_to_element_with_offset(over, int(x * width / 2), 0)

        pointer(0.99).perform()
        legend = browser.find_element("css selector", ".chart .u-legend")
        assert "22,001" in legend.text and "11, " in legend.text  # of the newest batch
        find(browser, ".chart summary").click()

        def rows() -> list[str]:  # in one step, as they are drawn anew
            return browser.execute_script(
                "return [...document.querySelector('.chart .table').querySelectorAll('tbody tr')]"
                ".map((row) => [row.cells[0], row.cells[2]].map((c) => c.textContent).join(' '))"
            )

        until(lambda: len(rows()) == 13, what="all commits")
        assert rows()[0] == "11 22,001" and rows()[-1] == "0 5,001"
        pointer(-0.5).click_and_hold().perform()
        pointer(0.0).release().perform()
        until(lambda: 0 < len(rows()) < 7, what="zoomed")
        assert rows()[0].split()[0] != "11"
        find(browser, "[data-zoom=all]").click()
        until(lambda: len(rows()) == 13, what="the whole")
        find(browser, "[data-axis=time]").send_keys("\n")
        until(lambda: "true" in find(browser, "[data-axis=time]").get_attribute("aria-pressed"))
        # an axis of small numbers has a unit in which they differ
        ticks = "return [0, 500, 4000, 2.5e6].map((n) => `${bytes.axis(n)}|${bytes.long(n)}`)"
        assert browser.execute_script(ticks) == [
            "0 MB|0.0 MB",
            "500 B|500 B",
            "4 kB|4.0 kB",
            "2.5 MB|2.5 MB",
        ]
        # a commit appears by itself
        load(ledger, 12, 0, 7000, 0)
        until(lambda: len(rows()) == 14, 20, "the new commit")
    browser.get("about:blank")
