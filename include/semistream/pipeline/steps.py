"""The work of the DAGs' tasks, without Airflow."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from semistream import workloads
from semistream.durable import read_checked, write_json
from semistream.errors import ConfigError, SemistreamError
from semistream.job import StreamStreamJob
from semistream.master.published import pin, snapshot_roots
from semistream.paths import Paths
from semistream.pipeline import drivers
from semistream.pipeline.loaded import loaded_job
from semistream.pipeline.settings import JoinSizeSettings
from semistream.settings import Settings
from semistream.streaming.position import PROGRESS, RESTORE
from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.warehouse import existing, open_warehouse, removal
from semistream.warehouse.ledger import (
    Ledger,
    app_number,
    checkpoint_of,
    committed_apps,
    is_transient,
)
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.schema import propagated as warehouse_propagated

if TYPE_CHECKING:
    from semistream.tuning.sweep import Sweep

S = TypeVar("S", bound=Settings)
MOST_VALUES = 10_000  # the most values in an asset event

log = logging.getLogger(__name__)


def load_settings(
    job: str, values: Mapping[str, Any], recommended: Iterable[Mapping[str, Any]] = ()
) -> LoadSettings:
    """Return the settings of a load from a filled-in form, ignoring the form's other entries.
    Raises ConfigError.

    recommended: the results of tuning sweeps, the newest first; used if the algorithm is auto.
    """
    settings = from_form(LoadSettings, values, job=job)
    if not settings.auto:
        return settings
    from semistream.tuning.sweep import advised

    return advised(settings, recommended)


def load_without_spark(settings: LoadSettings, paths: Paths) -> bool:
    """Return whether a load has nothing to do, so that Spark need not start. The app's status then
    records the run. Return False also if the load would fail, because its app reports the error."""
    from semistream.streaming.app import App

    directory = settings.directory(paths)
    if not (directory / "status.json").exists():  # the app was never started
        return False
    job = workloads.load_job(settings.job, paths)
    try:
        with checkpoint_lock(directory):
            status = StatusFile(directory, settings.name())
            return App(settings, job, paths, status).idle() is not None
    except SemistreamError as e:
        log.info("left to the load itself: %s", e)
        return False


def from_form(kind: type[S], values: Mapping[str, Any], **more: Any) -> S:
    """Return settings from a filled-in form, ignoring the form's other entries. more: settings that
    count in the place of the form's. Raises ConfigError."""
    given = {k: v for k, v in values.items() if k in kind.model_fields and v is not None}
    return kind.load(given | more)


def sweep(run: str, paths: Paths) -> Sweep:
    """Return the tuning sweep of a DAG run."""
    from semistream.tuning.sweep import Sweep

    return Sweep(run, paths)


def estimate_join_size(values: Mapping[str, Any], paths: Paths) -> dict[str, Any]:
    """Estimate the size of the join that a filled-in form names, and log it. Raises ConfigError,
    and TooManyRows for an estimate above the form's limit."""
    from semistream.pipeline.join_size import estimate_join_size as estimate

    found = estimate(from_form(JoinSizeSettings, values), paths)
    log.info("%s", found.describe())
    return asdict(found)


def propagated(app: str, paths: Paths, checkpoint: Path) -> dict[str, Any]:
    """Return the punctuations that an app of two streams has propagated since the last
    announcement. No later row of the app's fact table has values that match them.

    values: the first punctuations, each as {side, pattern}; count: the number of all punctuations;
    loads: the load_ids of the first and the last load that may have some. The table propagated has
    all of them.
    """
    mark, p = checkpoint / "announced.json", warehouse_propagated.c
    announced = json.loads(mark.read_text()) if mark.exists() else 0
    with open_warehouse(existing(paths.warehouse_url)) as engine, engine.connect() as connection:
        own = app_loads(app_number(connection, app))
        first, last = max(own[0], announced + 1), own[1]
        mine = p.load_id.between(first, last)
        count, newest = connection.execute(
            select(func.count(), func.max(p.load_id)).where(mine)
        ).one()
        values = [
            {"side": side, "pattern": json.loads(pattern)}
            for side, pattern in connection.execute(
                select(p.side, p.pattern)
                .where(mine)
                .order_by(p.load_id, p.load_row)
                .limit(MOST_VALUES)
            )
        ]
    if newest is not None:
        write_json(mark, newest)
    return {"app": app, "count": count, "values": values, "loads": [first, newest or announced]}


def verify(
    app: str, paths: Paths, *, since_last: bool, sample: int, job: str = ""
) -> dict[str, Any]:
    """Prove that everything the app has committed is complete. Raises VerificationFailed, which
    names checks and rows, otherwise.

    since_last: whether to check only what has not been proven yet; sample: how many facts and
    unmatched tuples are joined again; job: a job's file, whose limits (max_unparsable, unique_ids,
    max_unmatched) replace those with which the app was loaded.
    """
    from semistream import quality

    if sample < 0:
        raise ConfigError("sample", "must be at least 0", sample, "0 joins none again.")
    limits = workloads.load_any_job(job, paths) if job else None
    with open_warehouse(existing(paths.warehouse_url)) as engine, engine.connect() as connection:
        checkpoint = Path(checkpoint_of(connection, app) or paths.checkpoints / app)
        has_committed = app in committed_apps(connection)
    if not has_committed and drivers.is_alive(checkpoint):
        raise SemistreamError(
            f"Nothing is loaded yet that could be proven: the first load of {app} is running, and "
            f"has committed no batch. See `semistream status {app}`, and verify it when it has."
        )
    result = quality.verify(
        paths.warehouse_url,
        app,
        since_last=since_last,
        limits=limits,
        reports_dir=paths.reports,
        reports_kept=paths.reports_kept,
        snapshots=paths.snapshots,
        sample=sample,
        unfinished=drivers.unfinished(checkpoint),
    )
    if not result.success:
        raise quality.VerificationFailed(result)
    figures = result.figures
    matched = figures.get("matched", 0)
    done = matched + figures.get("unmatched", 0)
    return {
        "app": app,
        "fact_table": result.fact_table,
        "rows": figures.get("output rows", 0),
        "batches": figures.get("batches", 0),
        "match_rate": matched / done if done else None,
        "checks": len(result.results),
        "warnings": [check.name for check in result.warned],
        "report": str(result.report or ""),
        "unfinished": result.unfinished,
        "text": result.describe(),
    }


def warehouse_answers(paths: Paths) -> bool:
    """Return whether the warehouse accepts connections."""
    try:
        with open_warehouse(paths.warehouse_url) as engine, engine.connect() as connection:
            connection.execute(select(1))
    except DBAPIError as e:
        return not is_transient(e)
    return True


def replay(
    app: str,
    paths: Paths,
    file: Path | None = None,
    *,
    job: str = "",
    checkpoint: Path | None = None,
) -> str:
    """Join open tuples of an app's ``unmatched`` again, with the dimensions' current versions.
    Return a text that describes the results.

    file: the tuples, which may have been corrected; by default all open tuples, unchanged; job: the
    job's file, if the user has changed how it reads tuples; by default the ledger's record. Raises
    ConfigError while the app runs.
    """
    from semistream.streaming.app import App

    checkpoint = (checkpoint or paths.checkpoints / app).absolute()
    with open_warehouse(existing(paths.warehouse_url)) as engine:
        loaded, sink = loaded_job(engine, app), Ledger(engine, app).newest_sink()
    progress = read_checked(checkpoint / PROGRESS, RESTORE)
    if progress is None:
        raise ConfigError(
            "checkpoint",
            f"must be the one on which {app} has loaded",
            str(checkpoint),
            "Name that one.",
        )
    if job:
        loaded = workloads.load_any_job(job, paths)
    joins = progress["plan"].get("joins", [progress["plan"]])
    values = {
        "job": job or app,
        "app": app,
        "checkpoint": checkpoint,
        "sink": sink,
        "partitions": joins[0]["partitions"],
        "memory": sum(join["memory"] for join in joins) * joins[0]["partitions"],
        "join_type": joins[0].get("join_type", "inner"),
    }
    if isinstance(loaded, StreamStreamJob):
        raise ConfigError(
            "app",
            "must join one stream with dimensions: tuples of two streams are not replayed",
            app,
            "Mend the source, semistream reset APP, and load it anew.",
        )
    with checkpoint_lock(checkpoint):
        status = StatusFile(checkpoint, app)
        return str(App(LoadSettings.load(values), loaded, paths, status).replay(file))


def loaded_apps(paths: Paths) -> list[str]:
    """Return the apps that have committed anything."""
    with open_warehouse(existing(paths.warehouse_url)) as engine, engine.connect() as connection:
        return committed_apps(connection)


def rows_of(app: str, paths: Paths) -> dict[str, int]:
    """Count the rows of an app in the warehouse's tables. Raises ConfigError if the app has loaded
    through a sink outside the warehouse that still has rows."""
    with open_warehouse(existing(paths.warehouse_url)) as engine, engine.connect() as connection:
        return removal.rows_of(connection, app, partial(_holds, app, paths))


def _holds(app: str, paths: Paths, setting: str) -> bool:
    """Return whether a sink outside the warehouse has rows of the app. A table that no longer
    exists has no rows."""
    from semistream.streaming.sinks.registry import open_sink
    from semistream.streaming.sinks.warehouse import Warehouse

    warehouse = Warehouse(paths.warehouse_url, "", (), 0.0)
    try:
        return open_sink(setting, warehouse).stored(app) is not None
    except ConfigError:
        return False


def reset(app: str, paths: Paths, checkpoint: Path | None = None, *, reports: bool = False) -> None:
    """Delete an app's rows, ledger, verifications and checkpoint. The app's next start then begins
    with an empty warehouse.

    The rows are deleted in one transaction, and then the checkpoint in one step. After a crash
    between the two the app refuses to start until this function is called again. reports: whether
    to delete the app's reports, too. Raises ConfigError while the app runs, if the app has loaded
    through another sink that still has rows, and for a directory that is not a checkpoint.
    """
    LoadSettings.load({"job": app, "app": app})
    checkpoint = checkpoint or paths.checkpoints / app
    if (
        checkpoint.is_dir()
        and any(checkpoint.iterdir())
        and not (checkpoint / "status.json").exists()
    ):
        raise ConfigError(
            "checkpoint",
            "must be a load's directory, with its status.json",
            str(checkpoint),
            "Check it.",
        )
    with checkpoint_lock(checkpoint):
        with open_warehouse(existing(paths.warehouse_url)) as engine, engine.begin() as connection:
            removal.remove_rows(connection, app, partial(_holds, app, paths))
        for dimension in paths.snapshots.glob("*"):
            for root in snapshot_roots(paths.snapshots, dimension.name).values():
                pin(root, app, None)
        # renamed first: from half a checkpoint no app could tell what it has loaded
        doomed = checkpoint.with_name(f".{checkpoint.name}.reset")
        shutil.rmtree(doomed, ignore_errors=True)
        checkpoint.rename(doomed)
        shutil.rmtree(doomed)
    if reports:
        for kind in ("validations", "results"):
            shutil.rmtree(paths.reports / kind / app, ignore_errors=True)
