"""The page "Semistream": running loads, their ledger, their unmatched tuples, the proofs of
completeness, the tuning sweeps with their reports, and a button that stops a load by draining."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader
from starlette.middleware.base import RequestResponseEndpoint

from semistream.airflow.operators import places
from semistream.errors import ConfigError
from semistream.pipeline import drivers
from semistream.pipeline.overview import Overview
from semistream.streaming.status import read_status, request_stop

LOAD, REPLAY = "semi_stream_load", "replay_unmatched"
KEYS = 20  # that are shown of each reason and role
LOOPBACK = ("localhost", "127.0.0.1", "::1")
OWN = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; frame-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
# reports have no script, and inline styles
REPORT = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; form-action "
    "'none'; base-uri 'none'; frame-ancestors 'self'"
)
may_read = Depends(requires_access_dag("GET", param_dag_id=LOAD))
may_stop = Depends(requires_access_dag("PUT", DagAccessEntity.RUN, param_dag_id=LOAD))

here = Path(__file__).parent
templates = Environment(loader=FileSystemLoader(here / "templates"), autoescape=True)
app = FastAPI(title="Semistream", docs_url=None, redoc_url=None, openapi_url=None)
app.mount("/static", StaticFiles(directory=here / "static"))
overview = Overview()


@app.middleware("http")
async def restrict(request: Request, answer: RequestResponseEndpoint) -> Response:
    """Restrict what a browser may do with a response: run only the page's own scripts, and show it
    only in Airflow's frames."""
    response = await answer(request)
    response.headers.setdefault("Content-Security-Policy", OWN)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "SAMEORIGIN"
    return response


def same_origin(request: Request) -> None:
    """Refuse a request from another origin. The login is a cookie, which a form on another site
    must not use, nor a page under a host name that was made to resolve here.

    This page's own address is the setting api.base_url, or a local name of this machine by which
    Airflow was addressed.
    """
    origin = urlsplit(request.headers.get("origin", ""))
    own = urlsplit(conf.get("api", "base_url", fallback=""))
    local = origin.hostname in LOOPBACK and origin.netloc == request.headers.get("host")
    if not local and (not own.netloc or origin[:2] != own[:2]):
        raise HTTPException(
            403,
            "A stop must be requested from this page, and "
            "AIRFLOW__API__BASE_URL must be its address",
        )


@app.get("/", dependencies=[may_read], response_class=HTMLResponse)
def show(request: Request, ended: bool = True) -> str:
    """Return the page. ended: include the apps that are no longer running."""
    return _page("semistream.html", request, ended)


@app.get("/live", dependencies=[may_read], response_class=HTMLResponse)
def live(request: Request, ended: bool = True) -> str:
    """Return the part of the page that changes."""
    return _page("live.html", request, ended)


@app.post("/apps/{name}/stop", dependencies=[may_stop, Depends(same_origin)])
def stop(name: str, request: Request) -> RedirectResponse:
    checkpoints = places().checkpoints
    if name not in drivers.app_names(checkpoints):
        raise HTTPException(404, f"There is no app {name!r}")
    request_stop(checkpoints / name)
    return RedirectResponse(_root(request) + "/", status_code=303)


@app.get("/spark/{name}", dependencies=[may_read])
def show_spark(name: str) -> RedirectResponse:
    """Go to the UI of an app's driver."""
    checkpoint = places().checkpoints / name
    status = read_status(checkpoint) if name in drivers.app_names(checkpoint.parent) else None
    if status is None or not status.spark_ui or not drivers.is_alive(checkpoint):
        raise HTTPException(404, f"No driver of {name!r} runs that has a UI")
    return RedirectResponse(status.spark_ui)


@app.get("/unmatched/{name}", dependencies=[may_read], response_class=HTMLResponse)
def show_unmatched(name: str, request: Request) -> str:
    """Return a page with an app's unmatched tuples by reason, role and key."""
    # imported only here: it reads files and master data, which the page itself does not
    from semistream.pipeline.unmatched import list_unmatched

    try:
        listed = list_unmatched(name, places(), limit=KEYS)
    except ConfigError as e:
        raise HTTPException(404, str(e)) from None
    root = _root(request)
    return templates.get_template("unmatched.html").render(
        name=name, listed=listed, root=root, airflow=root.removesuffix("/semistream"), replay=REPLAY
    )


@app.get("/report/{path:path}", dependencies=[may_read], response_class=HTMLResponse)
def show_report(path: str, request: Request) -> str:
    """Return a page with a report and a link back: Airflow shows the page in a frame that cannot
    open another window."""
    return templates.get_template("report.html").render(path=path, root=_root(request))


@app.get("/reports/{path:path}", dependencies=[may_read])
def report(path: str) -> FileResponse:
    """Return a file of the Data Docs."""
    reports = places().reports.resolve()
    try:
        file = (reports / path).resolve()
        found = file.is_relative_to(reports) and file.is_file()
    except (OSError, ValueError):  # not a possible file name
        found = False
    if not found:
        raise HTTPException(404, "There is no such report")
    return FileResponse(file, headers={"Content-Security-Policy": REPORT})


def _page(template: str, request: Request, ended: bool) -> str:
    return templates.get_template(template).render(
        overview=overview.show(places(), ended), ended=ended, root=_root(request)
    )


def _root(request: Request) -> str:
    """Return the path under which the page is mounted, without a trailing slash."""
    return request.scope.get("root_path", "").rstrip("/")
