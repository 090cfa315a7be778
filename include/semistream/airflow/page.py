"""The page "Semistream": every load at a glance, a page for each load, its unmatched tuples, each
dimension, the reports, and buttons that stop a load by draining, or start it again."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
from airflow.api_fastapi.core_api.routes.public.dag_run import trigger_dag_run
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.asset import AssetModel, DagScheduleAssetReference
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    StreamingResponse,
)
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from starlette.middleware.base import RequestResponseEndpoint

from semistream.airflow.files_trigger import FILES
from semistream.airflow.links import airflow_url
from semistream.airflow.operators import paths
from semistream.counted import counted
from semistream.durations import duration_text
from semistream.errors import ConfigError, SemistreamError
from semistream.joins.waits import in_seconds
from semistream.pipeline import drivers
from semistream.pipeline.dimension_page import dimension_page
from semistream.pipeline.dismissed import dismiss
from semistream.pipeline.drivers import Launch
from semistream.pipeline.load_page import commit_name, load_page, series
from semistream.pipeline.overview import Overview
from semistream.pipeline.tiles import Tile
from semistream.positions import Position
from semistream.streaming.status import read_status, request_stop

T = TypeVar("T")
EVERY, TICK = 2.0, 0.5  # s between two events; s between two checks whether the server stops
STREAM_SECONDS = 300  # s that a stream lasts; the browser then asks again, and its login is checked
LONGEST = 20  # characters of a position
LOAD, REPLAY, VERIFY = "semi_stream_load", "replay_unmatched", "verify_completeness"
KEYS = 20  # keys that are shown for each reason and role
# what is asked of a load's DAG: a method, and the part of the DAG
EDIT, TRIGGER = (("PUT", DagAccessEntity.RUN), ("POST", DagAccessEntity.RUN))
CLEAR = ("PUT", DagAccessEntity.TASK_INSTANCE)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONTENT_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; frame-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
# reports have no script, and inline styles
REPORT = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; form-action "
    "'none'; base-uri 'none'; frame-ancestors 'self'"
)

here = Path(__file__).parent
templates = Environment(loader=FileSystemLoader(here / "templates"), autoescape=True)
app = FastAPI(title="Semistream", docs_url=None, redoc_url=None, openapi_url=None)
app.mount("/static", StaticFiles(directory=here / "static"))
overview = Overview()
templates.filters |= {
    "in_seconds": in_seconds,
    "duration": duration_text,
    "commit_name": commit_name,
    "counted": counted,
}


class NextRun(NamedTuple):
    """The next run of a DAG. at: its time, None if unknown; schedule: the DAG's schedule in
    words; on_files: whether arriving files start it."""

    paused: bool
    at: datetime | None
    schedule: str
    on_files: bool


# ---- who may do what


def dag_of(launch: Launch | None) -> str:
    """Return the DAG whose permissions a load has: that of the task which launched its driver last,
    or ``semi_stream_load`` if no task did."""
    return run_of(launch)[0] or LOAD


def _dag_of_app(app: str) -> str:
    """Return the DAG whose permissions apply to an app's load; see ``dag_of``."""
    try:
        return dag_of(drivers.last_launch(paths().checkpoints / app))
    except OSError:  # no load can have that name
        return LOAD


def _is_allowed(
    request: Request,
    user: Any,
    dag: str,
    method: str = "GET",
    entity: DagAccessEntity | None = None,
) -> bool:
    """Return whether Airflow lets a user do something with a DAG."""
    try:
        requires_access_dag(method, entity, param_dag_id=dag)(request, user)
    except HTTPException:
        return False
    return True


def allows(request: Request, user: GetUserDep) -> Callable[..., bool]:
    """Return a function that tells whether the user may read a DAG, or do something else with it.
    It remembers what it has told, as a stream of events asks again and again."""
    return functools.cache(functools.partial(_is_allowed, request, user))


def read_load(name: str, request: Request, user: GetUserDep) -> None:
    """Refuse a user who may not read the load's DAG."""
    requires_access_dag("GET", param_dag_id=_dag_of_app(name))(request, user)


def edit_load(name: str, request: Request, user: GetUserDep) -> None:
    """Refuse a user who may not edit the runs of the load's DAG."""
    requires_access_dag(*EDIT, _dag_of_app(name))(request, user)


def trigger_load(name: str, request: Request, user: GetUserDep) -> None:
    """Refuse a user who may not trigger the load's DAG."""
    requires_access_dag(*TRIGGER, _dag_of_app(name))(request, user)


def read_report(path: str, request: Request, user: GetUserDep) -> None:
    """Refuse a user who may not read the DAG of the load that a report is of."""
    from semistream.quality.checkpoint import suite_of  # the page itself reads no data

    reports = paths().reports.resolve()
    file = _report_file(path, reports)
    app = suite_of(file.relative_to(reports)) if file else ""
    requires_access_dag("GET", param_dag_id=_dag_of_app(app) if app else LOAD)(request, user)


def read_all(request: Request, user: GetUserDep) -> None:
    """Refuse a user who may not read the DAG ``semi_stream_load``, whose permissions apply to
    everything that belongs to no particular load."""
    requires_access_dag("GET", param_dag_id=LOAD)(request, user)


Allows = Annotated[Callable[..., bool], Depends(allows)]


# ---- requests


@app.middleware("http")
async def restrict(request: Request, answer: RequestResponseEndpoint) -> Response:
    """Restrict what a browser may do with a response: run only the page's own scripts, and show it
    only in Airflow's frames."""
    response = await answer(request)
    response.headers.setdefault("Content-Security-Policy", CONTENT_POLICY)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "SAMEORIGIN"
    return response


def same_origin(request: Request) -> None:
    """Refuse a request from another origin. The login is a cookie, which a form on another site, or
    a page under a host name that resolves to this machine, could misuse.

    Allowed is the origin in the setting api.base_url, or a local name of this machine if the
    request addressed Airflow by that name.
    """
    origin = urlsplit(request.headers.get("origin", ""))
    own = urlsplit(airflow_url())
    local = origin.hostname in LOOPBACK and origin.netloc == request.headers.get("host")
    if not local and (not own.netloc or origin[:2] != own[:2]):
        raise HTTPException(
            403,
            "This must be requested from the page itself, and "
            "AIRFLOW__API__BASE_URL must be its address",
        )


@app.get("/", response_class=HTMLResponse)
def show(request: Request, may: Allows, dismissed: bool = False) -> str:
    """Return the overview page, with the loads that the user may read. dismissed: whether to
    include the loads that were dismissed."""
    return _render("overview_page.html", request, **_overview(may, dismissed))


@app.get("/live")
def live(request: Request, may: Allows, dismissed: bool = False) -> StreamingResponse:
    """Send the overview's changing part whenever it has changed."""
    return _events(
        lambda: _render("overview.html", request, **_overview(may, dismissed, fresh=False))
    )


@app.get("/loads/{name}", dependencies=[Depends(read_load)], response_class=HTMLResponse)
def show_load(name: str, request: Request, may: Allows, before: str = "") -> str:
    """Return the page of a load. before: the position before which its ledger is shown."""
    return _render(
        "load_page.html", request, **_tile(name, may), **_details(name, before), before=before
    )


@app.get("/loads/{name}/live", dependencies=[Depends(read_load)])
def live_load(name: str, request: Request, may: Allows) -> StreamingResponse:
    """Send a load's tile whenever it has changed."""
    return _events(lambda: _render("load_tile.html", request, **_tile(name, may, fresh=False)))


@app.get("/loads/{name}/details", dependencies=[Depends(read_load)], response_class=HTMLResponse)
def show_details(name: str, request: Request, before: str = "") -> str:
    """Return the part of a load's page that changes with its commits."""
    return _render("load_details.html", request, app=name, **_details(name, before))


@app.get("/loads/{name}/series", dependencies=[Depends(read_load)])
def show_series(name: str, before: str = "") -> JSONResponse:
    """Return the numbers of a load's charts."""
    return JSONResponse(_found(lambda: series(name, paths(), _position(before))))


@app.get("/dimensions/{name}", dependencies=[Depends(read_all)], response_class=HTMLResponse)
def show_dimension(name: str, request: Request) -> str:
    """Return the page of a dimension."""
    return _render(
        "dimension_page.html", request, page=_found(lambda: dimension_page(name, paths()))
    )


@app.post("/apps/{name}/stop", dependencies=[Depends(edit_load), Depends(same_origin)])
def stop(name: str, request: Request) -> RedirectResponse:
    checkpoints = paths().checkpoints
    if name not in drivers.app_names(checkpoints):
        raise HTTPException(404, f"There is no app {name!r}")
    request_stop(checkpoints / name)
    return RedirectResponse(_root(request) + "/", status_code=303)


@app.post("/apps/{name}/dismiss", dependencies=[Depends(edit_load), Depends(same_origin)])
def dismiss_app(
    name: str, request: Request, may: Allows, *, again: bool = False
) -> RedirectResponse:
    """Dismiss a load that has ended. again: whether to show it again instead."""
    tile = _tile(name, may)["tile"]
    dismiss(paths().checkpoints, name, None if again else tile.at)
    return RedirectResponse(_root(request) + "/", status_code=303)


@app.post("/apps/{name}/verify", dependencies=[Depends(trigger_load), Depends(same_origin)])
def verify(name: str, request: Request, user: GetUserDep) -> dict[str, str]:
    """Prove all that a load has loaded."""
    return _trigger(VERIFY, {"app": name, "since_last": False}, request, user)


@app.post("/apps/{name}/replay", dependencies=[Depends(trigger_load), Depends(same_origin)])
def replay(name: str, request: Request, user: GetUserDep) -> dict[str, str]:
    """Join a load's unmatched tuples again, as they are."""
    return _trigger(REPLAY, {"app": name}, request, user)


@app.get("/spark/{name}", dependencies=[Depends(read_load)])
def show_spark(name: str) -> RedirectResponse:
    """Redirect to the UI of an app's driver."""
    checkpoint = paths().checkpoints / name
    status = read_status(checkpoint) if name in drivers.app_names(checkpoint.parent) else None
    if status is None or not status.spark_ui or not drivers.is_alive(checkpoint):
        raise HTTPException(404, f"No driver of {name!r} runs that has a UI")
    return RedirectResponse(status.spark_ui)


@app.get("/unmatched/{name}", dependencies=[Depends(read_load)], response_class=HTMLResponse)
def show_unmatched(name: str, request: Request, may: Allows) -> str:
    """Return a page with an app's unmatched tuples by reason, role and key, and with the button
    that joins them again for those who may trigger the load's DAG."""
    # imported only here: it reads files and master data, which the page itself does not
    from semistream.pipeline.unmatched import list_unmatched

    listed = _found(lambda: list_unmatched(name, paths(), limit=KEYS))
    may_replay = may(_dag_of_app(name), *TRIGGER)
    return _render(
        "unmatched.html", request, name=name, listed=listed, replay=REPLAY, may_replay=may_replay
    )


@app.get("/report/{path:path}", dependencies=[Depends(read_report)], response_class=HTMLResponse)
def show_report(path: str, request: Request) -> str:
    """Return a page with a report and a link back. The link is necessary because Airflow shows the
    page in a frame that cannot open another window."""
    return templates.get_template("report.html").render(path=path, root=_root(request))


@app.get("/reports/{path:path}", dependencies=[Depends(read_report)])
def report(path: str) -> FileResponse:
    """Return a file of the Data Docs."""
    if (file := _report_file(path, paths().reports.resolve())) is None:
        raise HTTPException(404, "There is no such report")
    return FileResponse(file, headers={"Content-Security-Policy": REPORT})


def _report_file(path: str, reports: Path) -> Path | None:
    """Return a file below the directory of reports, None if it is not there."""
    try:
        file = (reports / path).resolve()
        return file if file.is_relative_to(reports) and file.is_file() else None
    except (OSError, ValueError):  # not a possible file name
        return None


def _overview(may: Callable[..., bool], dismissed: bool, *, fresh: bool = True) -> dict[str, Any]:
    """Return what the overview shows to a user. may: see ``allows``."""
    shown = overview.show(
        paths(), dismissed=dismissed, fresh=fresh, may_see=lambda tile: may(dag_of(tile.launch))
    )
    own = {dag_of(tile.launch) for tile in shown.tiles}
    next_runs, may_read_all = _next_runs(own), may(LOAD)
    if not (shown.tiles or may_read_all):
        shown = replace(shown, error="")
    awaited = {
        dag: run
        for dag, run in sorted(next_runs.items())
        if run.on_files and dag not in own and may(dag)
    }
    return {
        "overview": shown,
        "next_runs": next_runs,
        "awaited": awaited,
        "may_read_all": may_read_all,
        **_buttons(may),
    }


def _buttons(may: Callable[..., bool]) -> dict[str, Callable[[Tile], bool]]:
    """Return functions that tell whether the user may do what a tile's buttons do with the load's
    DAG: edit its runs, trigger one, or start one again."""

    def allowed(*what: Any) -> Callable[[Tile], bool]:
        return lambda tile: may(dag_of(tile.launch), *what)

    return {
        "may_edit": allowed(*EDIT),
        "may_trigger": allowed(*TRIGGER),
        "may_restart": allowed(*CLEAR),
    }


def _tile(name: str, may: Callable[..., bool], *, fresh: bool = True) -> dict[str, Any]:
    shown = overview.show(paths(), dismissed=True, fresh=fresh)
    if (tile := shown.tile(name)) is None:
        raise HTTPException(404, shown.error or f"There is no load {name!r}")
    next_runs = _next_runs([dag_of(tile.launch)])
    return {"overview": shown, "tile": tile, "next_runs": next_runs, **_buttons(may)}


def _details(name: str, before: str) -> dict[str, Any]:
    """Return the details of a load, or the reason why there are none."""
    try:
        return {"page": load_page(name, paths(), _position(before)), "away": ""}
    except ConfigError as e:
        return {"page": None, "away": str(e)}
    except (SQLAlchemyError, OSError, SemistreamError) as e:
        why = str(e).partition("\n")[0]
        return {"page": None, "away": f"The warehouse does not answer: {why}"}


def _found(read: Callable[[], T]) -> T:
    """Return the result of ``read``. A ConfigError is answered with the HTTP status "not found"."""
    try:
        return read()
    except ConfigError as e:
        raise HTTPException(404, str(e)) from None


def _position(text: str) -> Position | None:
    """Return the position in a link, written BATCH.KIND; None for an empty text."""
    if not text:
        return None
    batch, _, kind = text.partition(".")
    if not (batch.isdecimal() and kind.isdecimal() and len(text) < LONGEST):
        raise HTTPException(404, f"{text!r} is no position: BATCH.KIND, for instance 12.0")
    return int(batch), int(kind)


def _events(render: Callable[[], str]) -> StreamingResponse:
    """Return a stream of server-sent events: the HTML whenever it has changed, and keep-alive
    events between the changes."""

    async def send() -> AsyncIterator[str]:
        sent, until = "", time.monotonic() + STREAM_SECONDS
        yield "retry: 1000\n\n"
        while not _server_stops():
            html = await run_in_threadpool(render)
            if html != sent:
                yield f"event: page\ndata: {json.dumps(html)}\n\n"
                sent = html
            else:
                yield "event: alive\ndata:\n\n"
            if time.monotonic() >= until:
                return
            for _ in range(int(EVERY / TICK)):
                if _server_stops():
                    return
                await asyncio.sleep(TICK)

    return StreamingResponse(
        send(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


def _server_stops() -> bool:
    """Return whether the server was asked to stop. A stopping server waits for all responses to
    end, so that endless event streams must end themselves."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))


def _next_runs(dags: Collection[str]) -> dict[str, NextRun]:
    """Return the next run by DAG, for these DAGs and for all DAGs that arriving files start. A DAG
    whose next run Airflow does not know is left out."""
    reference = DagScheduleAssetReference
    try:
        with create_session() as session:
            on_files = set(
                session.scalars(
                    select(reference.dag_id)
                    .join(AssetModel, AssetModel.id == reference.asset_id)
                    .join(DagModel, DagModel.dag_id == reference.dag_id)
                    .where(AssetModel.uri.startswith(f"{FILES}/"), ~DagModel.is_stale)
                )
            )
            rows = session.execute(
                select(
                    DagModel.dag_id,
                    DagModel.is_paused,
                    DagModel.next_dagrun_create_after,
                    DagModel.timetable_description,
                ).where(DagModel.dag_id.in_({*dags, *on_files}))
            ).all()
    except SQLAlchemyError:  # the page is useful without the next runs
        return {}
    return {row[0]: NextRun(bool(row[1]), row[2], row[3] or "", row[0] in on_files) for row in rows}


def _trigger(dag: str, conf: dict[str, Any], request: Request, user: Any) -> dict[str, str]:
    """Trigger a DAG for one load, in the name of a user who may trigger the load's own DAG. The
    user needs no permission of the DAG itself, which could be run for any load. Raises
    HTTPException where Airflow cannot run it."""
    body = TriggerDAGRunPostBody(logical_date=None, conf=conf)
    with create_session() as session:
        run = trigger_dag_run(dag, body, DBDagBag(), user, session, request)
        return {"dag": dag, "run": run.run_id}


def run_of(launch: Launch | None) -> tuple[str, str]:
    """Return the DAG and the run whose task launched a driver. Both are "" if no task launched
    it."""
    owner = launch.owner if launch else ""
    task = not owner.startswith(drivers.CONSOLE)
    found = re.fullmatch(r"(\S+) (.+) (-?\d+)", owner) if task else None
    return (found[1], found[2]) if found else ("", "")


def _render(template: str, request: Request, **values: Any) -> str:
    root = _root(request)
    return templates.get_template(template).render(
        root=root, airflow=root.removesuffix("/semistream"), run_of=run_of, **values
    )


def _root(request: Request) -> str:
    """Return the path under which the page is mounted, without a trailing slash."""
    return request.scope.get("root_path", "").rstrip("/")
