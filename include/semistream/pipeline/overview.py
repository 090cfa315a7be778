"""The content of the UI's page: apps from their status files, everything else from the warehouse.

A thread reads the warehouse, one at a time however many people open the page. A page request waits
a moment for it. If reading takes longer or fails, the page shows the previous reading with its age.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from semistream.errors import SemistreamError
from semistream.joins.waits import in_seconds
from semistream.paths import Paths
from semistream.pipeline import drivers, summary
from semistream.streaming.status import read_status, stop_requested
from semistream.warehouse import connect, create_all
from semistream.warehouse.dialects import system_of
from semistream.warehouse.lateness import Lateness, lateness
from semistream.warehouse.proof import Proof, read_proof
from semistream.warehouse.totals import Totals, read_totals

log = logging.getLogger(__name__)
WAREHOUSE_TIMEOUT = 2.0  # s that a page request waits for the warehouse
READ_SECONDS = 600  # after which reading from a silent server is given up
TONES = {"starting": "busy", "running": "busy", "draining": "busy", "stopped": "good"}


@dataclass(frozen=True)
class Reading:
    """A reading of the warehouse at a time (``time.monotonic()``)."""

    url: str = ""
    at: float = 0.0
    totals: Mapping[str, Totals] = field(default_factory=dict)
    proofs: Mapping[str, Proof | None] = field(default_factory=dict)
    late: Mapping[str, Lateness | None] = field(default_factory=dict)
    quality: tuple[dict[str, Any], ...] = ()
    tuning: tuple[dict[str, Any], ...] = ()


class Overview:
    """The overview of one process. It may be used by several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._under_way: Future[Reading] | None = None
        self._read = Reading()  # the newest
        self._ready = ""  # URL of the warehouse whose tables are known to be there

    def show(self, places: Paths, ended: bool = True) -> dict[str, Any]:
        """Return the content of the page. ended: include the apps that are no longer running."""
        apps = [_app(places.checkpoints / name) for name in drivers.app_names(places.checkpoints)]
        shown = [app for app in apps if ended or app["alive"]]
        error, read = self._look(places)
        return {
            "apps": shown,
            "ended": sum(not app["alive"] for app in apps),
            "error": error,
            "read": bool(read.at),
            "age": round(time.monotonic() - read.at),
            "ledger": summary.ledger(read.totals.values(), read.proofs, read.late),
            "quality": read.quality,
            "tuning": read.tuning,
        }

    def _look(self, places: Paths) -> tuple[str, Reading]:
        """Return the reason why there is no current reading, or "", and the newest reading of this
        warehouse."""
        with self._mutex:
            if self._under_way is None or self._under_way.done():
                self._under_way = self._begin(places)
            reading = self._under_way
        error = "The warehouse has not answered yet"
        if reading in wait([reading], WAREHOUSE_TIMEOUT).done:
            failure = reading.exception()
            why = str(failure).partition("\n")[0] or type(failure).__name__
            error = f"The warehouse does not answer: {why}" if failure else ""
        read = self._read
        return error, read if read.url == places.warehouse_url else Reading()

    def _begin(self, places: Paths) -> Future[Reading]:
        """Read the warehouse in a daemon thread, which does not delay the end of the process."""
        reading: Future[Reading] = Future()

        def run() -> None:
            try:
                reading.set_result(self._read_warehouse(places))
            except BaseException as e:
                if not isinstance(e, (SQLAlchemyError, OSError, SemistreamError)):
                    log.exception("the warehouse could not be read")
                reading.set_exception(e)

        threading.Thread(target=run, daemon=True, name="overview").start()
        return reading

    def _read_warehouse(self, places: Paths) -> Reading:
        url, before = places.warehouse_url, self._read
        engine = connect(url)
        system_of(engine).limit_reads(engine, READ_SECONDS)
        try:
            if self._ready != url:
                create_all(engine)
            self._ready = ""  # set again below if reading succeeds
            with engine.connect() as connection:
                totals = read_totals(connection, known=before.totals if before.url == url else None)
                late = _lateness(connection, totals, before)
                proofs = {app: read_proof(connection, app) for app in totals}
                quality = summary.quality(connection, places)
                tuning = summary.sweeps(connection, places)
            self._ready = url
        finally:
            engine.dispose()
        self._read = Reading(
            url, time.monotonic(), totals, proofs, late, tuple(quality), tuple(tuning)
        )
        return self._read


def _lateness(
    connection: Connection, totals: Mapping[str, Totals], before: Reading
) -> dict[str, Lateness | None]:
    """Return how late the master data of each app came. It is read anew after a commit, and while
    facts wait to be filled in, which is no commit."""
    known = {
        app: late
        for app, late in before.late.items()
        if before.totals.get(app) == totals.get(app) and not (late and late.filled.open)
    }
    return {app: known[app] if app in known else lateness(connection, app) for app in totals}


def _app(checkpoint: Path) -> dict[str, Any]:
    """Return an app's latest run as the page displays it."""
    end, status = drivers.ending(checkpoint), read_status(checkpoint)
    shown = {
        "name": checkpoint.name,
        "alive": end is None,
        "stopping": stop_requested(checkpoint),
        "tone": "bad",
        "error": "" if end is None else end[1],
    }
    if status is None:
        return {
            **shown,
            "state": "unknown",
            "heartbeat": "",
            "error": f"{checkpoint / 'status.json'} cannot be read. A running app writes it anew.",
        }
    state = drivers.state_of(checkpoint, status)
    return {
        **asdict(status),
        **shown,
        "state": state,
        "tone": TONES.get(state, "bad"),
        "stopping": shown["stopping"] or state == "draining",
        "batch": "" if status.batch is None else status.batch,
        "resident": summary.resident(status.resident_peak),
        "waited": f"{in_seconds(status.median_wait)}, {in_seconds(status.longest_wait)}"
        + (f" of {in_seconds(status.max_wait)}" if status.max_wait else ""),
        "heartbeat": summary.minute(datetime.fromisoformat(status.heartbeat)),
    }
