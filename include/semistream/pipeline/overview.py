"""The content of the UI's page: apps from their status files, everything else from the warehouse.

Only one thread reads the warehouse at a time, however many people open the page. A page request
waits a moment for this reading. If reading takes longer or fails, the page shows the previous
reading with its age.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from semistream.errors import SemistreamError
from semistream.paths import Paths
from semistream.pipeline import drivers, summary
from semistream.pipeline.dimension_page import DimensionLine, dimension_lines
from semistream.pipeline.dismissed import read_dismissed
from semistream.pipeline.tiles import Recent, Tile, read_recent, tile_of
from semistream.warehouse import connect, create_all
from semistream.warehouse.dialects import system_of
from semistream.warehouse.lateness import Lateness, lateness
from semistream.warehouse.proof import Proof, read_proof
from semistream.warehouse.source_files import source_files
from semistream.warehouse.totals import Totals, read_totals

log = logging.getLogger(__name__)
WAREHOUSE_TIMEOUT = 2.0  # s that a page request waits for the warehouse
READ_SECONDS = 600  # after which reading from a silent server is given up
FRESH = 1.5  # s after which a reading is too old for a browser that follows the page
LISTED = 20.0  # s for which a listing of a source counts, unless the app has loaded something


@dataclass(frozen=True)
class Reading:
    """The result of reading the warehouse at a time (``time.monotonic()``)."""

    url: str = ""
    at: float = 0.0
    totals: Mapping[str, Totals] = field(default_factory=dict)
    proofs: Mapping[str, Proof | None] = field(default_factory=dict)
    late: Mapping[str, Lateness | None] = field(default_factory=dict)
    recent: Mapping[str, Recent] = field(default_factory=dict)
    left: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # (listed at, Proof.left)
    dimensions: tuple[DimensionLine, ...] = ()
    tuning: tuple[summary.Swept, ...] = ()


@dataclass(frozen=True)
class OverviewContent:
    """The content of the overview. dismissed: the dismissed apps; error: the reason why there is no
    current reading of the warehouse, or ""; read: whether there is a reading; age: age of the
    reading in seconds; all: whether dismissed apps are included; at: the present time, UTC."""

    tiles: tuple[Tile, ...]
    dismissed: tuple[str, ...]
    error: str
    read: bool
    age: int
    dimensions: tuple[DimensionLine, ...]
    tuning: tuple[summary.Swept, ...]
    all: bool
    at: datetime

    @property
    def summary(self) -> str:
        """Return one sentence about the state of the loads."""
        counts = {
            "failed or incomplete": sum(bool(t.troubles) for t in self.tiles),
            "running": sum(t.alive for t in self.tiles),
            "complete": sum(t.complete.word == "complete" for t in self.tiles),
            "late": sum(t.late.tone in ("bad", "warn") for t in self.tiles),
        }
        return ", ".join(f"{n} {word}" for word, n in counts.items())

    def tile(self, app: str) -> Tile | None:
        return next((t for t in self.tiles if t.app == app), None)


class Overview:
    """The readings of the warehouse that the overview needs, shared by all threads of a process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._under_way: Future[Reading] | None = None
        self._read = Reading()  # the newest
        self._ready = ""  # URL of the warehouse whose tables are known to be there

    def show(
        self,
        paths: Paths,
        *,
        dismissed: bool = False,
        fresh: bool = True,
        may_see: Callable[[Tile], bool] = lambda _: True,
    ) -> OverviewContent:
        """Return the content of the page. dismissed: whether to include the dismissed apps; fresh:
        whether to read the warehouse again even if the newest reading is very recent; may_see: a
        function that returns whether the user may see a tile."""
        error, read = self._newest_reading(paths, fresh)
        now, hidden = datetime.now(UTC).replace(tzinfo=None), read_dismissed(paths.checkpoints)
        every = [
            tile_of(
                app,
                paths.checkpoints / app,
                read.totals.get(app),
                read.proofs.get(app),
                read.recent.get(app, Recent()),
                read.late.get(app),
                now,
            )
            for app in sorted({*drivers.app_names(paths.checkpoints), *read.totals})
        ]
        tiles = [t for t in every if may_see(t)]
        gone = {t.app for t in tiles if not t.alive and t.at and hidden.get(t.app) == t.at}
        shown = [t for t in tiles if dismissed or t.app not in gone]
        return OverviewContent(
            tuple(sorted(shown, key=lambda t: t.rank)),
            tuple(sorted(gone)),
            error,
            bool(read.at),
            round(time.monotonic() - read.at),
            read.dimensions,
            read.tuning,
            dismissed,
            now,
        )

    def _newest_reading(self, paths: Paths, fresh: bool) -> tuple[str, Reading]:
        """Return the reason why there is no current reading, or "", and the newest reading of this
        warehouse."""
        with self._mutex:
            young = time.monotonic() - self._read.at < FRESH and not fresh
            if self._under_way is None or (self._under_way.done() and not young):
                self._under_way = self._begin(paths)
            reading = self._under_way
        error = "The warehouse has not answered yet"
        if reading in wait([reading], WAREHOUSE_TIMEOUT).done:
            failure = reading.exception()
            why = str(failure).partition("\n")[0] or type(failure).__name__
            error = f"The warehouse does not answer: {why}" if failure else ""
        read = self._read
        return error, read if read.url == paths.warehouse_url else Reading()

    def _begin(self, paths: Paths) -> Future[Reading]:
        """Read the warehouse in a daemon thread, which does not delay the end of the process."""
        reading: Future[Reading] = Future()

        def run() -> None:
            try:
                reading.set_result(self._read_warehouse(paths))
            except BaseException as e:
                if not isinstance(e, (SQLAlchemyError, OSError, SemistreamError)):
                    log.exception("the warehouse could not be read")
                reading.set_exception(e)

        threading.Thread(target=run, daemon=True, name="overview").start()
        return reading

    def _read_warehouse(self, paths: Paths) -> Reading:
        url, before = paths.warehouse_url, self._read
        engine = connect(url)
        system_of(engine).limit_reads(engine, READ_SECONDS)
        try:
            if self._ready != url:
                create_all(engine)
            self._ready = ""  # set again below if reading succeeds
            with engine.connect() as connection:
                if before.url != url:
                    before = Reading()
                totals = read_totals(connection, known=before.totals)
                late = _lateness(connection, totals, before)
                left = _left(connection, totals, before)
                proofs = {app: _proof(connection, app, left[app][1]) for app in totals}
                recent = {
                    app: read_recent(connection, of, before.recent.get(app))
                    for app, of in totals.items()
                }
                dimensions = dimension_lines(connection)
                tuning = summary.sweeps(connection, paths)
            self._ready = url
        finally:
            engine.dispose()
        self._read = Reading(
            url, time.monotonic(), totals, proofs, late, recent, left, dimensions, tuning
        )
        return self._read


def _lateness(
    connection: Connection, totals: Mapping[str, Totals], before: Reading
) -> dict[str, Lateness | None]:
    """Return how late the master data of each app came. It is read again after a commit. It is also
    read again while inferred members are waiting to be filled in, because filling them in is not a
    commit."""
    known = {
        app: late
        for app, late in before.late.items()
        if before.totals.get(app) == totals.get(app) and not (late and late.filled.open)
    }
    return {app: known[app] if app in known else lateness(connection, app) for app in totals}


def _proof(connection: Connection, app: str, left: str) -> Proof | None:
    proof = read_proof(connection, app)
    return proof and replace(proof, left=left)


def _left(
    connection: Connection, totals: Mapping[str, Totals], before: Reading
) -> dict[str, tuple[float, str]]:
    """Return for each app when its source was listed, and what it has that is not loaded. A source
    is listed again after a commit, after a reset, and after a while."""
    now = time.monotonic()
    known = {
        app: of
        for app, of in before.left.items()
        if before.totals.get(app) == totals.get(app) and now - of[0] < LISTED
    }
    return {
        app: known[app] if app in known else (now, str(source_files(connection, app)))
        for app in totals
    }
