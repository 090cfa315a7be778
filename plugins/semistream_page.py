"""Running loads, their ledger, the proofs of completeness and the tuning sweeps with their reports, and a button that drains."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader

from semistream import pipeline
from semistream.streaming.status import request_stop
from semistream_operators import places

LOAD = "semi_stream_load"
may_read = Depends(requires_access_dag("GET", param_dag_id=LOAD))
may_stop = Depends(requires_access_dag("PUT", DagAccessEntity.RUN, param_dag_id=LOAD))

templates = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True)
app = FastAPI(title="Semistream", docs_url=None, redoc_url=None, openapi_url=None)


def same_origin(request: Request) -> None:
    """The login is a cookie: a form on another site must not use it."""
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "A stop must be requested from this page")


@app.get("/", dependencies=[may_read], response_class=HTMLResponse)
def show(request: Request) -> str:
    return templates.get_template("semistream.html").render(overview=pipeline.overview(places()), root=_root(request))


@app.get("/live", dependencies=[may_read], response_class=HTMLResponse)
def live(request: Request) -> str:
    """The part of the page that changes."""
    return templates.get_template("live.html").render(overview=pipeline.overview(places()), root=_root(request))


@app.post("/apps/{name}/stop", dependencies=[may_stop, Depends(same_origin)])
def stop(name: str, request: Request) -> RedirectResponse:
    checkpoints = places().checkpoints
    if name not in pipeline.app_names(checkpoints):
        raise HTTPException(404, f"There is no app {name!r}")
    request_stop(checkpoints / name)
    return RedirectResponse(_root(request) + "/", status_code=303)


@app.get("/report/{path:path}", dependencies=[may_read], response_class=HTMLResponse)
def show_report(path: str, request: Request) -> str:
    """A report with the way back: Airflow shows the page in a frame that opens no other window."""
    return templates.get_template("report.html").render(path=path, root=_root(request))


@app.get("/reports/{path:path}", dependencies=[may_read])
def report(path: str) -> FileResponse:
    """A file of the Data Docs."""
    reports = places().reports.resolve()
    file = (reports / path).resolve()
    if not file.is_relative_to(reports) or not file.is_file():
        raise HTTPException(404, "There is no such report")
    return FileResponse(file)


def _root(request: Request) -> str:
    """The path under which the page is mounted, without a slash at its end."""
    return request.scope.get("root_path", "").rstrip("/")
