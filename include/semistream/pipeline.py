"""What the tasks of the DAGs do, without Airflow; and what the UI page and ``make load`` tell about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from sqlalchemy import Connection, Engine, case, func, make_url, select, true

from semistream import drivers
from semistream.config import Places, Settings
from semistream.errors import ConfigError
from semistream.published import pin, read_manifest
from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import checkpoint_lock
from semistream.warehouse import connect, create_all, removal
from semistream.warehouse.proof import Proof, as_run, read_proof
from semistream.warehouse.schema import load_batches, load_commits, quality_runs, rejected_master, tuning_runs, unmatched
from semistream.warehouse.totals import Totals, read_totals


def prepare(job: str, places: Places) -> None:
    """Make the data files of a shipped job, where they are missing; a user's own are there."""
    from semistream import workloads

    workloads.prepare(workloads.load_job(job, places), places)


def provision(job: str, places: Places) -> dict[str, Any]:
    """Upsert the job's master data into its dimension table: counts of what happened."""
    from semistream import workloads
    from semistream.warehouse.dimensions import provision as upsert

    engine = warehouse(places)
    try:
        return asdict(upsert(workloads.load_job(job, places), engine))
    finally:
        engine.dispose()


def published(job: str, places: Places) -> dict[str, Any]:
    """The master snapshot that a load of the job reads from now on."""
    from semistream import workloads

    name = workloads.load_job(job, places).master.name
    manifest = read_manifest(places.snapshots / name)
    if manifest is None:
        raise ConfigError("snapshot", "must have been published", str(places.snapshots / name), "Run `semistream snapshot`.")
    return {"job": job, "master": name, "version": manifest["version"], "tuples": manifest["tuple_count"]}


def load_settings(job: str, values: Mapping[str, Any], recommended: Iterable[Mapping[str, Any]] = ()) -> LoadSettings:
    """The settings of a load from a filled-in form, whose other entries are not the app's. Raises ConfigError.

    recommended: what tuning sweeps gave, the newest first; looked at where the algorithm is auto.
    """
    settings = LoadSettings.load({**_given(LoadSettings, values), "job": job})
    if not settings.auto:
        return settings
    from semistream.tuning.sweep import advised

    return advised(settings, recommended)


def _given(kind: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k in kind.model_fields and v is not None}


def sweep_points(values: Mapping[str, Any], run: str, places: Places) -> list[dict[str, Any]]:
    """Begin a tuning sweep as a filled-in form has it: its points. Raises ConfigError."""
    from semistream.tuning import sweep
    from semistream.tuning.settings import TuneSettings

    return sweep.begin(TuneSettings.load(_given(TuneSettings, values)), sweep.sweep_name(run), places)


def sweep_app(point: Mapping[str, Any], run: str, places: Places) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the Spark app that measures a point."""
    from semistream.tuning import sweep

    return sweep.app(point, sweep.sweep_name(run), places)


def sweep_record(point: Mapping[str, Any], run: str, places: Places) -> dict[str, Any]:
    """How a point went, into ``tuning_runs``."""
    from semistream.tuning import sweep

    return sweep.record(point, sweep.sweep_name(run), places)


def sweep_publish(run: str, places: Places) -> dict[str, Any]:
    """The report, and what the sweep recommends."""
    from semistream.tuning import sweep

    return sweep.publish(sweep.sweep_name(run), places)


def run_summary(checkpoint: Path) -> dict[str, Any]:
    """What the last run on a checkpoint said of itself at its end."""
    return json.loads((checkpoint / "summary.json").read_text())


def verify(app: str, places: Places, *, since_last: bool, sample: int) -> dict[str, Any]:
    """Prove that what the app has committed is complete. Raises VerificationFailed, naming checks and rows, when it is not.

    since_last: only what no verification has proven yet; sample: how many facts and unmatched tuples are joined again.
    """
    from semistream import quality

    result = quality.verify(places.warehouse_url, app, since_last=since_last, reports_dir=places.reports,
                            reports_kept=places.reports_kept, snapshots=places.snapshots, sample=sample)
    if not result.success:
        raise quality.VerificationFailed(result)
    return {"app": app, "checks": len(result.results), "report": str(result.report or ""), "text": result.describe()}


def loaded_apps(places: Places) -> list[str]:
    """The apps that have committed anything."""
    with warehouse_connection(places) as connection:
        return list(connection.scalars(select(load_commits.c.app).distinct().order_by(load_commits.c.app)))


def rows_of(app: str, places: Places) -> dict[str, int]:
    """How many rows of the warehouse's tables are an app's. Raises ConfigError where the app has loaded into Delta tables."""
    with warehouse_connection(places) as connection:
        return removal.rows_of(connection, app)


def reset(app: str, places: Places, checkpoint: Path | None = None, *, reports: bool = False) -> None:
    """Take an app's rows, ledger, verifications and checkpoint away, so that its next start begins with an empty warehouse.

    The rows go in one transaction, the checkpoint after it; an app between the two refuses to start, and this ends it.
    reports: the app's reports go, too. Raises ConfigError while the app runs, where it has loaded into Delta tables,
    and for a directory that is no checkpoint.
    """
    LoadSettings.load({"job": app, "app": app})
    checkpoint = checkpoint or places.checkpoints / app
    if checkpoint.is_dir() and any(checkpoint.iterdir()) and not (checkpoint / "status.json").exists():
        raise ConfigError("checkpoint", "must be a load's directory, with its status.json", str(checkpoint), "Check it.")
    with checkpoint_lock(checkpoint):
        engine = warehouse(places)
        try:
            with engine.begin() as connection:
                removal.remove_rows(connection, app)
        finally:
            engine.dispose()
        for pinned in places.snapshots.glob("*"):
            pin(pinned, app, None)
        shutil.rmtree(checkpoint)
    if reports:
        for kind in ("validations", "results"):
            shutil.rmtree(places.reports / kind / app, ignore_errors=True)


def app_names(checkpoints: Path) -> list[str]:
    """The apps that have ever run."""
    return sorted(path.parent.name for path in checkpoints.glob("*/status.json"))


def ledger(totals: Iterable[Totals], proofs: Mapping[str, Proof | None] | None = None) -> list[dict[str, Any]]:
    """One entry per app: the totals of everything that it has committed, and what is proven of it."""
    rows = []
    for t in totals:
        proof = (proofs or {}).get(t.app)
        rows.append({**asdict(t), "complete": str(proof or ""), "proven": proof is not None and proof.complete,
                     "committed_at": minute(t.committed_at), "cache_share": _share(t.cache_hits, t.rows_read),
                     "memory": f"{_megabytes(t.memory_peak)} of {_megabytes(t.memory_budget)}"})
    return rows


def quality(connection: Connection, places: Places, app: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """The latest verifications, newest first; ``report`` is relative to the reports' directory."""
    q = quality_runs.c
    latest = select(quality_runs).where(q.app == app if app else true()).order_by(q.id.desc()).limit(limit)
    found = connection.execute(latest).all()
    rows = [{**row._mapping, "batches": as_run(row).batches if row.to_batch is not None else ""} for row in found]
    for row in rows:
        row |= {"failed": json.loads(row["failed"]), "started_at": minute(row["started_at"]), "path": row["report"],
                "report": _report(Path(row["report"]), places)}
    return rows


def sweeps(connection: Connection, places: Places, limit: int = 5) -> list[dict[str, Any]]:
    """The latest tuning sweeps, newest first, with what they recommend; ``report`` is relative to the reports' directory."""
    t = tuning_runs.c
    latest = select(t.sweep, func.max(t.job).label("job"), func.max(t.recorded_at).label("recorded_at"),
                    func.count().label("points"), func.count(case((t.state == "failed", 1))).label("failed")) \
        .group_by(t.sweep).order_by(func.max(t.recorded_at).desc()).limit(limit)
    best = select(t.sweep, t.memory, t.algorithm, t.rate).where(t.recommended == 1).order_by(t.memory)
    rows = [dict(row) for row in connection.execute(latest).mappings()]
    recommended = connection.execute(best.where(t.sweep.in_([row["sweep"] for row in rows]))).all()
    return [{**row, "recorded_at": minute(row["recorded_at"]), "job": row["job"] and Path(row["job"]).stem,
             "best": [f"{_megabytes(memory)}: {algorithm}, {rate:,.0f} tuples/s"
                      for sweep, memory, algorithm, rate in recommended if sweep == row["sweep"]],
             "report": _report(places.reports / "tuning" / f"{row['sweep']}.html", places)} for row in rows]


def _report(file: Path, places: Places) -> str:
    """Where a report is below the reports' directory; empty when it is no longer kept."""
    reports, file = places.reports.resolve(), file.resolve()
    return str(file.relative_to(reports)) if file.is_relative_to(reports) and file.is_file() else ""


@contextmanager
def warehouse_connection(places: Places) -> Iterator[Connection]:
    engine = warehouse(places)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def warehouse(places: Places) -> Engine:
    engine = connect(places.warehouse_url)
    create_all(engine)
    return engine


def hide_password(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)


def _master_of(connection: Connection, app: str) -> str | None:
    c = load_batches.c
    return connection.scalar(select(c.master).where(c.app == app).order_by(c.batch.desc()).limit(1))


def progress(app: str, places: Places) -> str:
    return drivers.progress(places.checkpoints / app)


def final_summary(app: str, places: Places) -> dict[str, Any]:
    """The ledger's totals of an app, its unmatched tuples by reason, its last run, and its last verification."""
    u = unmatched.c
    reasons = select(u.reason, func.count()).where(u.app == app).group_by(u.reason).order_by(func.count().desc())
    with warehouse_connection(places) as connection:
        by_reason: dict[str, int] = dict(connection.execute(reasons).tuples().all())
        total = ledger(read_totals(connection, app).values())
        of_master = rejected_master.c.master == _master_of(connection, app)
        rejected = connection.scalar(select(func.count()).select_from(rejected_master).where(of_master)) or 0
        latest, proof = quality(connection, places, app, limit=1), read_proof(connection, app)
    return {"app": app, "total": total[0] if total else {}, "reasons": by_reason, "rejected_master": rejected,
            "run": run_summary(places.checkpoints / app), "complete": str(proof or "NO: nothing was committed"),
            "report": latest[0]["path"] if latest else ""}


def summary_table(summary: Mapping[str, Any]) -> Table:
    """This run beside everything that the app has ever committed."""
    run, total = summary["run"], summary["total"]
    table = Table("", "this run", "in all", title=f"{summary['app']} → {total.get('fact_table', '')}", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for label, key in (("rows read", "rows_read"), ("matched", "matched"), ("unmatched", "unmatched"), ("waiting", "waiting"),
                       ("output rows", "output_rows")):
        table.add_row(label, f"{run[key]:,}", f"{total.get(key) or 0:,}")
        if key == "unmatched":
            for reason in summary["reasons"]:
                table.add_row(f"  {reason}", f"{run['rejected'].get(reason, 0):,}", f"{summary['reasons'][reason]:,}")
    if summary["rejected_master"]:
        table.add_row("master rows left out", "", f"{summary['rejected_master']:,}")
    worked = bool(run["batches"])  # else there was nothing new
    memory = f"{_megabytes(run['memory_peak'])} of {_megabytes(run['memory_budget'])}"
    table.add_row("service rate", f"{run['service_rate']:,.0f} tuples/s" if worked else "–", "")
    table.add_row("through the cache", f"{run['cache_share']:.1%}" if worked else "–", total.get("cache_share", ""))
    table.add_row("peak memory of budget", memory if worked else "–", total.get("memory", ""))
    table.add_section()
    said, _, why = summary["complete"].partition(": ")
    table.add_row("complete", "", said)
    table.caption = f"Complete: {why}\nReport: {summary['report']}"
    table.caption_justify = "left"
    return table


def minute(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _megabytes(n: float) -> str:
    return f"{n / 1e6:,.1f} MB"
